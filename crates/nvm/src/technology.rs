//! Emulated memory technologies: what if the zone were made of something slower than DRAM?

use std::str::FromStr;

use crate::persist;

/// A memory technology whose latencies are added to the DRAM that the zone really is.
///
/// | | read | write | source |
/// |---|---|---|---|
/// | `Dram` | 15 ns | 15 ns | FSMAC Table 1 |
/// | `SttMram` | 32 ns | 40 ns | FSMAC Table 1 |
/// | `Pcm` | 48 ns | 150 ns | FSMAC Table 1 |
/// | `Memristor` | 100 ns | 100 ns | FSMAC Table 1 |
/// | `Optane` | 305 ns, then 10 | 94 ns, then 28 | Izraelevitz et al., *Basic Performance Measurements of the Intel Optane DC Persistent Memory Module*, 2019 (latency, DRAM 81 and 86 ns); Yang et al., *An Empirical Guide to the Behavior and Use of Scalable Persistent Memory*, FAST 2020 (6.6 and 2.3 GB/s a module, as ns a line) |
/// | `Cxl` | 155 ns, then 3 | 155 ns, then 3 | Li et al., *Pond*, ASPLOS 2023 (a directly attached CXL expander, local DRAM 85 ns); the next lines at about 21 GB/s of a x8 port |
///
/// What is added is the difference from DRAM of the same source, by a spin on the time stamp counter: per
/// line of a flush or a non-temporal store, and per line of a read, whether or not the line was in a cache. Who looks
/// something up in a block says how many of its lines that takes ([`crate::Region::bytes_of_which`]).
/// So reads that a cache would serve are overcharged: it is a model for comparisons, not a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Technology {
    /// Plain DRAM, NVDIMM-N: nothing is added.
    #[default]
    Dram,
    /// Spin-transfer-torque magnetic RAM.
    SttMram,
    /// Phase-change memory.
    Pcm,
    /// Memristors.
    Memristor,
    /// Intel Optane DC persistent memory (3D XPoint).
    Optane,
    /// Memory behind CXL.
    Cxl,
}

/// Nanoseconds added to DRAM's, per line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// The first line of a read.
    pub read_first_ns: u64,
    /// Each further line of a read.
    pub read_next_ns: u64,
    /// The first line of a flush or a non-temporal store.
    pub write_first_ns: u64,
    /// Each further line of a flush or a non-temporal store.
    pub write_next_ns: u64,
}

impl Technology {
    /// All of them, in the order of the table.
    pub const ALL: [Technology; 6] = [
        Technology::Dram,
        Technology::SttMram,
        Technology::Pcm,
        Technology::Memristor,
        Technology::Optane,
        Technology::Cxl,
    ];

    /// What it adds to DRAM.
    pub fn latency(self) -> Latency {
        let each = |read_ns, write_ns| Latency {
            read_first_ns: read_ns,
            read_next_ns: read_ns,
            write_first_ns: write_ns,
            write_next_ns: write_ns,
        };
        match self {
            Technology::Dram => each(0, 0),
            Technology::SttMram => each(32 - 15, 40 - 15),
            Technology::Pcm => each(48 - 15, 150 - 15),
            Technology::Memristor => each(100 - 15, 100 - 15),
            Technology::Optane => Latency {
                read_first_ns: 305 - 81,
                read_next_ns: 10,
                write_first_ns: 94 - 86,
                write_next_ns: 28,
            },
            Technology::Cxl => Latency {
                read_first_ns: 155 - 85,
                read_next_ns: 3,
                write_first_ns: 155 - 85,
                write_next_ns: 3,
            },
        }
    }
}

impl std::fmt::Display for Technology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Technology::Dram => "dram",
            Technology::SttMram => "stt-mram",
            Technology::Pcm => "pcm",
            Technology::Memristor => "memristor",
            Technology::Optane => "optane",
            Technology::Cxl => "cxl",
        })
    }
}

impl FromStr for Technology {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = || Technology::ALL.map(|technology| technology.to_string()).join(", ");
        Technology::ALL
            .into_iter()
            .find(|technology| technology.to_string() == name)
            .ok_or_else(|| format!("no memory technology {name:?}: choose one of {}", known()))
    }
}

/// A latency in cycles of the time stamp counter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spinner {
    read_first: u64,
    read_next: u64,
    write_first: u64,
    write_next: u64,
}

impl Spinner {
    /// None where nothing is to be added.
    pub(crate) fn new(latency: Latency) -> Option<Spinner> {
        if latency == Latency::default() {
            return None;
        }
        let cycles = |ns: u64| ns * persist::cycles_per_us() / 1_000;
        Some(Spinner {
            read_first: cycles(latency.read_first_ns),
            read_next: cycles(latency.read_next_ns),
            write_first: cycles(latency.write_first_ns),
            write_next: cycles(latency.write_next_ns),
        })
    }

    pub(crate) fn read(&self, lines: u64) {
        if lines > 0 {
            persist::spin(self.read_first + self.read_next * (lines - 1));
        }
    }

    pub(crate) fn write(&self, lines: u64) {
        if lines > 0 {
            persist::spin(self.write_first + self.write_next * (lines - 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for technology in Technology::ALL {
            assert_eq!(technology.to_string().parse(), Ok(technology));
        }
        assert!("tape".parse::<Technology>().unwrap_err().contains("memristor"));
    }

    #[test]
    fn dram_adds_nothing() {
        assert!(Spinner::new(Technology::Dram.latency()).is_none());
    }
}
