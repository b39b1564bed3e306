//! What a power cut may leave of a flash chip.
//!
//! A program or an erase that returned is durable. One that was under way is not whole: of a page some bits are
//! programmed and others not yet, of a block some are erased and others not. Programming only clears bits, erasing only
//! sets them, so each bit has its old or its new value; what reads back may change no more until the next erase.

use crate::random::Random;

/// The shape of a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a page, with its spare area.
    pub page_bytes: usize,
    /// Pages of an erase block.
    pub block_pages: usize,
    /// Erase blocks.
    pub blocks: usize,
}

/// An operation that was under way when the power went.
#[derive(Clone, Debug, PartialEq, Eq)]
enum UnderWay {
    Program { page: usize, bytes: Vec<u8> },
    Erase { block: usize },
}

/// A chip while a recording is played. Addresses are byte offsets, pages with their spare areas one after the other.
#[derive(Clone, Debug)]
pub struct Nand {
    geometry: Geometry,
    bytes: Vec<u8>,
    under_way: Option<UnderWay>,
}

/// An event that this chip cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NandError {
    /// Not a page or block of it.
    #[error("{length} bytes at {address} are no page or block of this chip")]
    Outside {
        /// Byte offset on the chip.
        address: u64,
        /// Bytes.
        length: u64,
    },
    /// Bits that are already programmed cannot be set again without an erase.
    #[error("page {page} is programmed a second time without an erase, and bits would have to be set")]
    NotErased {
        /// The page.
        page: usize,
    },
}

impl Nand {
    /// A chip that holds `image`.
    ///
    /// # Panics
    /// If the image has not the chip's size.
    pub fn new(geometry: Geometry, image: Vec<u8>) -> Nand {
        let expected = geometry.page_bytes * geometry.block_pages * geometry.blocks;
        assert_eq!(image.len(), expected, "the image has the chip's size");
        Nand { geometry, bytes: image, under_way: None }
    }

    /// The unit that a range of bytes is, if it is one.
    fn unit(&self, address: u64, length: u64, unit_bytes: usize) -> Result<usize, NandError> {
        let outside = NandError::Outside { address, length };
        let end = address.checked_add(length).ok_or(outside.clone())?;
        if length != unit_bytes as u64
            || !address.is_multiple_of(unit_bytes as u64)
            || end > self.bytes.len() as u64
        {
            return Err(outside);
        }
        Ok(address as usize / unit_bytes)
    }

    /// Begins to program a page. What was under way before has returned.
    pub fn program(&mut self, address: u64, bytes: &[u8]) -> Result<(), NandError> {
        self.settle();
        let page = self.unit(address, bytes.len() as u64, self.geometry.page_bytes)?;
        let old = &self.bytes[page * self.geometry.page_bytes..][..self.geometry.page_bytes];
        if old.iter().zip(bytes).any(|(old, new)| !old & new != 0) {
            return Err(NandError::NotErased { page });
        }
        self.under_way = Some(UnderWay::Program { page, bytes: bytes.to_vec() });
        Ok(())
    }

    /// Begins to erase a block. What was under way before has returned.
    pub fn erase(&mut self, address: u64, length: u64) -> Result<(), NandError> {
        self.settle();
        let block = self.unit(address, length, self.geometry.page_bytes * self.geometry.block_pages)?;
        self.under_way = Some(UnderWay::Erase { block });
        Ok(())
    }

    /// What was under way returns: from here on it is durable.
    pub fn settle(&mut self) {
        let page_bytes = self.geometry.page_bytes;
        match self.under_way.take() {
            Some(UnderWay::Program { page, bytes }) => {
                self.bytes[page * page_bytes..][..page_bytes].copy_from_slice(&bytes);
            }
            Some(UnderWay::Erase { block }) => {
                let block_bytes = page_bytes * self.geometry.block_pages;
                self.bytes[block * block_bytes..][..block_bytes].fill(0xff);
            }
            None => {}
        }
    }

    /// What a power cut leaves now, by `cut`: 0, nothing of what was under way has happened; `u64::MAX`, all of it; any
    /// other number, some of its bits, another choice for each number.
    pub fn state(&self, cut: u64) -> Vec<u8> {
        let mut image = self.bytes.clone();
        let page_bytes = self.geometry.page_bytes;
        let (at, target): (usize, Vec<u8>) = match &self.under_way {
            None => return image,
            Some(UnderWay::Program { page, bytes }) => (page * page_bytes, bytes.clone()),
            Some(UnderWay::Erase { block }) => {
                let block_bytes = page_bytes * self.geometry.block_pages;
                (block * block_bytes, vec![0xff; block_bytes])
            }
        };
        let mut random = Random::new(cut);
        for (byte, new) in image[at..].iter_mut().zip(target) {
            let arrived = match cut {
                0 => 0,
                u64::MAX => 0xff,
                _ => random.next() as u8,
            };
            *byte = *byte & !arrived | new & arrived;
        }
        image
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry { page_bytes: 64, block_pages: 4, blocks: 2 };

    fn chip() -> Nand {
        Nand::new(GEOMETRY, vec![0xff; 512])
    }

    #[test]
    fn a_page_under_way_has_old_and_new_bits() {
        let mut chip = chip();
        chip.program(64, &[0x0f; 64]).unwrap();
        assert_eq!(chip.state(0), [0xff; 512]);
        assert_eq!(chip.state(u64::MAX)[64..128], [0x0f; 64]);
        let torn = chip.state(7);
        assert!(torn[64..128].iter().all(|byte| byte & 0x0f == 0x0f), "bits that stay set");
        assert!(torn[64..128].iter().any(|byte| *byte != 0x0f && *byte != 0xff), "bits of both");
        assert_eq!((&torn[..64], &torn[128..]), (&[0xff; 64][..], &[0xff; 384][..]), "other pages");
        assert_ne!(torn, chip.state(8), "another cut");
    }

    #[test]
    fn a_block_may_be_half_erased() {
        let mut chip = chip();
        chip.program(0, &[0; 64]).unwrap();
        chip.erase(0, 256).unwrap();
        assert_eq!(chip.state(0)[..64], [0; 64], "the program had returned");
        assert!(chip.state(3)[..64].iter().any(|byte| *byte != 0 && *byte != 0xff));
        chip.settle();
        assert_eq!(chip.state(3), [0xff; 512], "nothing is under way");
    }

    #[test]
    fn bits_are_set_by_erasing_only() {
        let mut chip = chip();
        chip.program(0, &[0x0f; 64]).unwrap();
        assert_eq!(chip.program(0, &[0x1f; 64]), Err(NandError::NotErased { page: 0 }));
        chip.program(0, &[0x0e; 64]).unwrap();
    }

    #[test]
    fn what_is_no_page_or_block_is_refused() {
        let mut chip = chip();
        assert!(chip.program(1, &[0; 64]).is_err() && chip.program(0, &[0; 63]).is_err());
        assert!(chip.program(512, &[0; 64]).is_err() && chip.erase(64, 256).is_err());
        assert!(chip.erase(0, 64).is_err() && chip.erase(u64::MAX - 255, 256).is_err());
    }
}
