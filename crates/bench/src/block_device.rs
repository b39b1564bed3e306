//! What a block device was asked for, as the kernel counts it.

use std::path::PathBuf;

/// Bytes of a sector in the kernel's counters, whatever the device's are.
const SECTOR: u64 = 512;

/// A block device whose requests are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    stat: PathBuf,
}

/// Requests that a block device has completed, behind merging: what the disk saw (FSMAC Fig. 7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests that read.
    pub reads: u64,
    /// Requests that wrote.
    pub writes: u64,
    /// Flushes of its cache.
    pub flushes: u64,
    /// Bytes that were read and written.
    pub bytes: u64,
}

impl BlockDevice {
    /// The one that the kernel calls so: `loop0`.
    pub fn named(name: &str) -> BlockDevice {
        BlockDevice { stat: PathBuf::from(format!("/sys/block/{name}/stat")) }
    }

    /// Its counters since it was set up; `None` if it is gone, or the kernel does not count.
    pub fn traffic(&self) -> Option<Traffic> {
        Traffic::parse(&std::fs::read_to_string(&self.stat).ok()?)
    }
}

impl Traffic {
    /// Reads the kernel's line (`Documentation/block/stat.rst`): of reads, writes and, behind the times, discards each the requests, those
    /// merged, sectors and milliseconds; at its end the flushes.
    fn parse(text: &str) -> Option<Traffic> {
        let numbers: Vec<u64> =
            text.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let at = |place: usize| numbers.get(place).copied();
        Some(Traffic { reads: at(0)?, writes: at(4)?, flushes: at(15)?, bytes: (at(2)? + at(6)?) * SECTOR })
    }

    /// What was asked for since `earlier`.
    pub fn since(self, earlier: Traffic) -> Traffic {
        Traffic {
            reads: self.reads.saturating_sub(earlier.reads),
            writes: self.writes.saturating_sub(earlier.writes),
            flushes: self.flushes.saturating_sub(earlier.flushes),
            bytes: self.bytes.saturating_sub(earlier.bytes),
        }
    }

    /// Reads, writes and flushes.
    pub fn requests(self) -> u64 {
        self.reads + self.writes + self.flushes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_is_read() {
        let line = "     3   0  24  1  50  7  800  9  0  10  20  4  0  64  2  6  11\n";
        let traffic = Traffic { reads: 3, writes: 50, flushes: 6, bytes: 824 * 512 };
        assert_eq!(Traffic::parse(line), Some(traffic));
        assert_eq!(traffic.requests(), 59);
        assert_eq!(Traffic::parse("1 2 3"), None, "a kernel that counts no flushes (before 5.5)");
        let later = Traffic { writes: 60, ..traffic };
        assert_eq!(later.since(traffic), Traffic { writes: 10, ..Traffic::default() });
        assert_eq!(BlockDevice::named("none").traffic(), None);
    }
}
