//! Memory that pages had, for those that come: a page may be let go of by another thread than the one that wrote it, and what an allocator makes of that
//! costs as much as the copy.

use std::sync::Arc;

use parking_lot::Mutex;

/// The bytes of a block, each.
pub(crate) struct Spare {
    buffers: Mutex<Vec<Arc<[u8]>>>,
    most: usize,
}

impl Spare {
    /// Keeps so many, at most.
    pub(crate) fn new(most: u64) -> Spare {
        Spare { buffers: Mutex::default(), most: most as usize }
    }

    /// These bytes of a block, in memory of their own.
    pub(crate) fn copy(&self, bytes: &[u8]) -> Arc<[u8]> {
        let spare = self.buffers.lock().pop();
        if let Some(mut buffer) = spare
            && let Some(place) = Arc::get_mut(&mut buffer).filter(|place| place.len() == bytes.len())
        {
            place.copy_from_slice(bytes);
            return buffer;
        }
        bytes.into()
    }

    /// Makes bytes those of their holder alone, to be changed.
    pub(crate) fn own<'a>(&self, bytes: &'a mut Arc<[u8]>) -> &'a mut [u8] {
        if Arc::get_mut(bytes).is_none() {
            *bytes = self.copy(bytes);
        }
        Arc::get_mut(bytes).expect("just copied")
    }

    /// Keeps what nobody else has any longer.
    pub(crate) fn keep(&self, mut bytes: Arc<[u8]>) {
        if Arc::get_mut(&mut bytes).is_none() {
            return;
        }
        let buffers = &mut *self.buffers.lock();
        if buffers.len() < self.most {
            buffers.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_has_is_nobody_elses() {
        let spare = Spare::new(1);
        let [first, second] = [[1; 16], [2; 16]].map(|bytes| spare.copy(&bytes));
        let others = first.clone();
        spare.keep(first);
        let third = spare.copy(&[3; 16]);
        assert_eq!((others[0], third[0]), (1, 3), "what somebody else has is not given out");
        let at = second.as_ptr();
        spare.keep(second);
        spare.keep(third);
        assert_eq!(spare.buffers.lock().len(), 1);
        let mut fourth = spare.copy(&[4; 16]);
        assert_eq!((fourth.as_ptr(), fourth[15]), (at, 4), "what nobody has is");
        let others = fourth.clone();
        spare.own(&mut fourth).fill(5);
        assert_eq!((others[0], fourth[0]), (4, 5));
    }
}
