//! Memory that many threads store to, apart from what others read.

use std::ops::Deref;

/// What has its lines of memory to itself: who stores to it takes no line from those who read what lies beside it.
#[repr(align(128))]
pub(crate) struct Alone<T>(T);

impl<T> Alone<T> {
    pub(crate) fn new(value: T) -> Alone<T> {
        Alone(value)
    }
}

impl<T> Deref for Alone<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}
