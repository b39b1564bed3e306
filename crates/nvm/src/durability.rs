//! Durability in types: what was flushed, and what a fence made durable.

use std::marker::PhantomData;

/// Says that lines are on their way to the medium. A fence on the same thread makes them arrive.
///
/// Only [`crate::Region::flush`], [`crate::Region::stream`] and [`crate::Region::stream_zero`] make one,
/// and only [`crate::Region::fence`] takes one. It stays on its thread, because a fence waits only for the
/// flushes of the thread that executes it.
///
/// ```compile_fail
/// fn sent_to_another_thread(flushed: nvm::Flushed) {
///     std::thread::spawn(move || drop(flushed));
/// }
/// ```
#[derive(Debug)]
#[must_use = "flushed lines are not durable before a fence: pass this to `Region::fence`"]
pub struct Flushed(PhantomData<*const ()>);

impl Flushed {
    pub(crate) fn new() -> Flushed {
        Flushed(PhantomData)
    }

    /// Nothing flushed: where a code path had nothing to write, or for a fence that only orders.
    pub fn none() -> Flushed {
        Flushed::new()
    }

    /// Both: one fence serves the two.
    pub fn and(self, _other: Flushed) -> Flushed {
        self
    }
}

/// Proof that a fence came after the flushes it was given: those lines survive a power cut.
///
/// A function that publishes something (`commit`, `publish`, `switch`) takes the `Durable` of what it
/// publishes, so that forgetting the fence does not compile.
///
/// ```compile_fail
/// # use nvm::{Durable, Purpose, Region};
/// fn publish(region: &Region, record: Durable) {}
///
/// fn forgets_the_fence(region: &Region) {
///     publish(region, region.flush(Purpose::Journal, 0, 64));
/// }
/// ```
#[derive(Debug)]
#[must_use = "this proves that what was flushed is durable: hand it to what publishes it, or `.ignore()` it"]
pub struct Durable(());

impl Durable {
    pub(crate) fn new() -> Durable {
        Durable(())
    }

    /// No proof at all: for tests that leave a fence out, to see whether anybody notices.
    #[cfg(feature = "planted-faults")]
    pub fn pretended(_flushed: Flushed) -> Durable {
        Durable(())
    }

    /// Both.
    pub fn and(self, _other: Durable) -> Durable {
        self
    }

    /// Says in so many words that durability was the purpose and nothing depends on the proof.
    pub fn ignore(self) {}
}
