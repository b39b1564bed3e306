//! Tables by inode number, or another number that is dense and nobody's to choose.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Spreads inode numbers by one multiplication: they are dense and nobody's to choose.
#[derive(Clone, Copy, Debug, Default)]
pub struct InoHasher(u64);

impl Hasher for InoHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// A table by inode number, of either width.
pub type InoMap<K, V> = HashMap<K, V, BuildHasherDefault<InoHasher>>;
/// A set of inode numbers, of either width.
pub type InoSet<K> = HashSet<K, BuildHasherDefault<InoHasher>>;
