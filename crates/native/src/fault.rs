//! What can be planted in the volume's logic: see [`nvm::planted_faults`].

#![cfg_attr(not(feature = "planted-faults"), allow(unreachable_pub, reason = "a test is to name them"))]

nvm::planted_faults! {
    /// A transaction's record is not fenced before the operation returns.
    CommitFence,
    /// Data that has a fence of its own is not fenced before the record that points to it.
    DataFence,
    /// What has to wait for the record's fence is applied before it.
    AppliedTooEarly,
    /// Who depends on what others changed does not wait until it is durable.
    NotSettled,
    /// Who depends on what others changed counts as one who does not.
    AlwaysBeside,
    /// A record does not say that it was committed beside others.
    BesideNotTold,
    /// Who goes beside others does not log the times that he finds there already.
    TimesLeftOut,
    /// A transaction is two: its first item, and the others.
    TransactionInTwo,
    /// A record's last line is stored, but not sent.
    RecordTailNotSent,
    /// A torn record is replayed.
    RecordChecksumIgnored,
    /// A lane's last transaction is replayed, although its data did not come.
    DataChecksumIgnored,
    /// A half of the log is replayed whose epoch the checkpoint has.
    OldHalfReplayed,
    /// With `durability=fsync`: what follows a missing transaction is replayed.
    GapIgnored,
    /// The last record of the log is not replayed.
    LastRecordIgnored,
    /// Records are replayed from the last to the first.
    ReplayedBackwards,
    /// Replay hands out blocks that the log names.
    ReplayWithoutClaims,
    /// Replay does not know which numbers the log gives to inodes.
    NumbersNotClaimed,
    /// Replay changes nodes of the checkpoint it begins with.
    ReplayedInPlace,
    /// Recovery begins its own log before its checkpoint is published.
    LogBegunTooEarly,
    /// A half's header is stored, but not sent.
    HalfHeaderNotSent,
    /// The log is not flushed when it is forced.
    ForceNotFlushed,
    /// The log is not fenced when it is forced.
    ForceFence,
    /// With `durability=fsync`: bytes change in place before their record is forced.
    InPlaceNotForced,
    /// Where the log has changes in place is forgotten.
    InPlaceForgotten,
    /// A checkpoint does not flush what was changed in place.
    InPlaceNotFlushed,
    /// Bytes that change in place where no log names them, or in a replay, are not flushed.
    BytesNotFlushed,
    /// A checkpoint does not flush nodes.
    NodesNotFlushed,
    /// A checkpoint does not flush the last line of each part of a node.
    NodeTailNotFlushed,
    /// Who changes a node that is ready for the checkpoint does not say so.
    SealNotBroken,
    /// New blocks of the NAT are stored, but not sent.
    NatNotSent,
    /// Soft BIA entries are not flushed.
    SoftEntriesNotFlushed,
    /// The SIT journal is stored, but not sent.
    SitJournalNotSent,
    /// The checkpoint block is stored, but not sent.
    CheckpointNotSent,
    /// A checkpoint is published before it is durable.
    PrepareFence,
    /// The word that publishes is not flushed.
    PublishNotFlushed,
    /// The SIT is settled before the word that publishes is durable.
    PublishFence,
    /// The SIT is settled before the checkpoint is published.
    SettledBeforePublished,
    /// Settled SIT entries are not flushed.
    SettleNotFlushed,
    /// The root slots are written before the SIT is durably settled.
    SettleFence,
    /// The root slots are written before the SIT is settled.
    RootBeforeSettled,
    /// Both root slots are written with one fence.
    RootsTogether,
    /// Root slots are stored, but not sent.
    RootNotSent,
    /// The checkpoint before stays allocated.
    PredecessorNotFreed,
    /// A checkpoint has the high-water mark of NIDs of the one before.
    HighWaterStale,
    /// A checkpoint has the number of the first transaction of the one before.
    SequenceStale,
    /// A freed block is handed out in the same epoch.
    FreedBlockReused,
    /// What is freed stays valid.
    FreedBlockStaysValid,
    /// A node is changed where the checkpoint has it.
    NodeChangedInPlace,
    /// A file that is open when it loses its last name is not named in the hidden directory.
    OrphanNotNamed,
    /// An inode without a name goes, its entry in the hidden directory stays.
    HiddenEntryLeft,
    /// Inodes without a name are not removed after a crash, nor when the volume is closed.
    OrphanNotReclaimed,
    /// A hidden directory that is made anew is published before it names what has no name.
    RenewedEmpty,
    /// A file that is cut off keeps the bytes behind its end.
    TailNotZeroed,
    /// A difference is stored in a block that a snapshot has.
    SharedChangedInPlace,
    /// What the running tree lets go of is freed, although a snapshot has it.
    KeptFreed,
    /// A snapshot's blocks are left alone only when its checkpoint is published, and not from when its epoch ends.
    KeptTooLate,
    /// A snapshot's blocks are no longer left alone when it is to go, and not only when a checkpoint says that it goes.
    KeptLoweredEarly,
    /// A checkpoint says which blocks are valid when it is written, and not when its epoch ended.
    FrozenTooLate,
    /// Blocks of a snapshot are freed before a checkpoint says that it is being removed.
    RemovedAtOnce,
    /// Removing a snapshot frees what the next one has, too.
    NextIgnored,
    /// Removing a snapshot frees what the one before has, too.
    PreviousIgnored,
    /// Where the removal of a snapshot has come to is not written down.
    CursorForgotten,
    /// The list of snapshots is stored, but not sent.
    ListNotSent,
    /// What moves in snapshots is stored in its new home, but not sent.
    HomeNotSent,
    /// The running tree is told of nodes that moved before the data that they lead to is in its new homes.
    HomesFilledLate,
    /// Preallocated blocks that a snapshot has are copied before all operations wait, while somebody may write to them.
    ReservedFilledEarly,
    /// The running tree is not told that nodes it shares with a snapshot have moved.
    MoveNotTold,
    /// The list of snapshots is not told that their trees have moved.
    MovesNotListed,
    /// A block that moved counts as born when it moved.
    MovedIsNewborn,
    /// What a rollback gives up is not given back.
    GivenUpForgotten,
    /// The blocks of a clone are stored, but not sent.
    CloneNotSent,
    /// A clone is written over a volume that is still one.
    CloneOverOld,
}
