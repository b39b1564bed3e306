//! What a check says.

use std::fmt::Display;

use crate::error::without_advice;

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// What is wrong, or was.
    pub problems: Vec<Problem>,
    /// Files that are not directories.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Nodes of all kinds.
    pub nodes: u64,
    /// Blocks that something reaches.
    pub blocks_used: u64,
    /// Blocks of the Main Area.
    pub blocks_total: u64,
    /// A crash had left a log to replay, and it was.
    pub recovered: bool,
    /// Transactions of the log that could not be replayed, because one before them is missing or damaged, and were dropped.
    pub transactions_dropped: u64,
    /// There is a log to replay, and it was not: what was committed last is not in what was checked.
    pub needs_recovery: bool,
}

impl CheckReport {
    /// Whether nothing is wrong (any more).
    pub fn is_clean(&self) -> bool {
        self.problems.iter().all(|problem| problem.repaired)
    }

    /// Adds what is wrong and stays so.
    pub(crate) fn found(&mut self, what: impl Display) {
        self.problems.push(Problem { what: without_advice(what), repaired: false, with_loss: true });
    }

    /// Adds what is wrong, or was if it is `repaired`, and can be derived from what is there: nothing is lost by mending it.
    pub(crate) fn derivable(&mut self, what: impl Display, repaired: bool) {
        self.problems.push(Problem { what: without_advice(what), repaired, with_loss: false });
    }

    /// Adds what was wrong, and took something with it that nobody has any more.
    pub(crate) fn given_up(&mut self, what: impl Display) {
        self.problems.push(Problem { what: without_advice(what), repaired: true, with_loss: true });
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug)]
pub struct Problem {
    /// What, and where.
    pub what: String,
    /// Whether it was mended: another check does not find it.
    pub repaired: bool,
    /// Whether something is lost by mending it, or would be; also of what cannot be mended at all.
    pub with_loss: bool,
}
