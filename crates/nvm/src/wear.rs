//! Wear: how often each piece of a zone was written.

use std::sync::atomic::{AtomicU32, Ordering};

/// Counters of a zone's granules, alive.
#[derive(Debug)]
pub(crate) struct WearMap {
    granule: u64,
    writes: Box<[AtomicU32]>,
}

impl WearMap {
    pub(crate) fn new(zone_bytes: u64, granule: u64) -> WearMap {
        let granule = granule.next_power_of_two().clamp(crate::LINE, crate::SEGMENT);
        WearMap { granule, writes: (0..zone_bytes.div_ceil(granule)).map(|_| AtomicU32::new(0)).collect() }
    }

    /// One flush or non-temporal store of `[at, at + len)`, in zone addresses.
    pub(crate) fn written(&self, at: u64, len: u64) {
        if len == 0 {
            return;
        }
        // A zone that grew is counted up to the size it was opened with.
        for granule in at / self.granule..=(at + len - 1) / self.granule {
            if let Some(writes) = self.writes.get(granule as usize) {
                writes.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn snapshot(&self) -> Wear {
        Wear {
            granule: self.granule,
            writes: self.writes.iter().map(|writes| writes.load(Ordering::Relaxed)).collect(),
        }
    }
}

/// How often each granule of a zone was written since it was opened.
///
/// A flush or a non-temporal store counts once for each granule it touches, whatever part of it: that is
/// how a medium with internal blocks of that size wears. Lines that the cache evicts by itself are not seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wear {
    /// Bytes of a granule.
    pub granule: u64,
    /// Writes of each granule, from the zone's start.
    pub writes: Vec<u32>,
}

impl Wear {
    /// The most written granule: its byte offset in the zone and its writes.
    pub fn hottest(&self) -> (u64, u32) {
        let hottest = self.writes.iter().enumerate().max_by_key(|(_, writes)| **writes);
        hottest.map_or((0, 0), |(granule, &writes)| (granule as u64 * self.granule, writes))
    }

    /// Writes of all granules.
    pub fn total(&self) -> u64 {
        self.writes.iter().map(|&writes| u64::from(writes)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_counts_once_per_granule_it_touches() {
        let map = WearMap::new(1 << 20, 256);
        map.written(0, 64);
        map.written(255, 2);
        map.written(512, 1024);
        map.written(4096, 0);
        let wear = map.snapshot();
        assert_eq!(wear.writes[..7], [2, 1, 1, 1, 1, 1, 0]);
        assert_eq!(wear.total(), 7);
        assert_eq!(wear.hottest(), (0, 2));
        assert_eq!(wear.writes[16], 0);
    }
}
