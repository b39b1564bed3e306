//! A state that breaks the promise, by what a power cut left of which lines.

/// A state that breaks the promise.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Index of the event before which the power went.
    pub event: usize,
    /// The first line of each unit that was not as it was durable, from the volume's start, and the choice.
    pub lines: Vec<(u32, usize)>,
    /// The first of the lines that stand for the volume's disk, eight a sector, if it has one.
    pub disk: Option<u32>,
    /// What is wrong.
    pub what: String,
    /// If the recovery of this state was crashed, where that was.
    pub deeper: Option<Box<Violation>>,
}

impl Violation {
    /// Of this state, or of the one of its recovery that is to blame.
    pub fn deepest(&self) -> &Violation {
        self.deeper.as_deref().map_or(self, Violation::deepest)
    }
}
