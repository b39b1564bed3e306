//! What can be planted in the volume's logic: see [`nvm::planted_faults`].

#![cfg_attr(not(feature = "planted-faults"), allow(unreachable_pub, reason = "a test is to name them"))]

nvm::planted_faults! {
    /// A record is not fenced before its operation returns.
    CommitFence,
    /// A record is stored, but not sent.
    RecordNotSent,
    /// A torn record is replayed.
    RecordChecksumIgnored,
    /// The header of a half of the log is stored, but not sent.
    HalfHeaderNotSent,
    /// Frames are changed before the record that says so is durable.
    AppliedTooEarly,
    /// An operation on names returns before it is committed.
    NamesNotCommitted,
    /// An operation on a file's contents returns before it is committed.
    ContentsNotCommitted,
    /// A checkpoint does not flush frames.
    FramesNotFlushed,
    /// A checkpoint does not flush the frames' entries.
    EntriesNotFlushed,
    /// A checkpoint retires a half whose bytes of files are not on the disk.
    NotDrained,
    /// A checkpoint does not flush the disk before it retires a half.
    DrainNotFlushed,
    /// A checkpoint retires a half first, and then makes durable what it had.
    RetiredTooEarly,
    /// Files' maps lead to blocks whose bytes are written to the disk and not flushed.
    MappedTooEarly,
    /// A record maps blocks whose bytes are neither in it nor on the disk.
    ItemsLeftOut,
    /// A dirty frame is given up when its block is written to the disk and not flushed.
    EvictedTooEarly,
    /// A frame is given up, and its entry says still what it held.
    EvictedStillListed,
    /// Replay leaves out bytes of files.
    DataNotReplayed,
    /// Replay writes bytes of files from the newest to the oldest.
    ItemsBackwards,
    /// Replay does not flush the disk before it retires the log.
    ReplayDiskNotFlushed,
    /// Replay retires the log first, and then makes durable what it had.
    ReplayRetiredFirst,
    /// Files without a name are not removed after a crash.
    OrphanNotReclaimed,
}
