//! Accounts: what a volume in use has done and holds, what went to NVM and to its disk.

use nvm::{Purpose, Written};

use crate::report::{Fields, Value};

/// What a native volume says of itself.
pub(crate) fn native(stats: &native::Stats) -> Fields {
    let fields = Fields::new()
        .with("transactions", Value::Count(stats.transactions))
        .with("checkpoints", Value::Count(stats.checkpoints))
        .with("log_half_bytes", Value::Bytes(stats.log_bytes))
        .with("log_used_bytes", Value::Bytes(stats.log_used_bytes));
    caches(fields, stats)
        .with("nat_cache_bytes", Value::Bytes(stats.nat_cache_bytes))
        .with("segment_cache_bytes", Value::Bytes(stats.segment_cache_bytes))
        .with("hint_cache_bytes", Value::Bytes(stats.hint_cache_bytes))
        .with("snapshot_views", Value::Count(stats.snapshot_views))
        .with("snapshot_cache_bytes", Value::Bytes(stats.snapshot_cache_bytes))
        .with("epoch_nodes", Value::Count(stats.epoch_nodes))
        .with("open_handles", Value::Count(stats.open_handles))
        .with("blocks_free", Value::Count(stats.blocks_free))
        .with("blocks_total", Value::Count(stats.blocks_total))
        .with("segments_empty", Value::Count(stats.segments_empty))
        .with("segments_emptied", Value::Count(stats.segments_emptied))
}

/// DRAM: what caches may take, what they take, and what is there once.
pub(crate) fn caches(fields: Fields, stats: &native::Stats) -> Fields {
    fields
        .with("cache_limit_bytes", stats.cache_limit_bytes.map_or(Value::None, Value::Bytes))
        .with("cache_bytes", Value::Bytes(stats.cache_bytes))
        .with("table_bytes", Value::Bytes(stats.table_bytes))
}

/// Why nothing of a volume can be changed any more, if that is so.
pub(crate) fn failure(fields: Fields, volume: &native::Volume) -> Fields {
    let failure = volume.failure().map(|failure| failure.to_string());
    fields.with("failure", failure.map_or(Value::None, Value::Text))
}

/// What opening a volume had to do.
pub(crate) fn recovery(recovery: &native::Recovery) -> Fields {
    Fields::new()
        .with("was_clean", recovery.was_clean)
        .with("transactions_replayed", Value::Count(recovery.transactions_replayed))
        .with("log_bytes_replayed", Value::Bytes(recovery.log_bytes_replayed))
        .with("transactions_left_out", Value::Count(recovery.transactions_left_out))
        .with("orphans_reclaimed", Value::Count(recovery.orphans_reclaimed))
        .with("seconds", Value::Seconds(recovery.duration.as_secs_f64()))
}

/// Stores by purpose, with their sum.
pub(crate) fn nvm(account: &nvm::Account) -> Fields {
    let row = |name: String, written: Written| {
        Fields::new()
            .with("purpose", name)
            .with("bytes", Value::Bytes(written.bytes))
            .with("lines_flushed", Value::Count(written.lines_flushed))
            .with("lines_streamed", Value::Count(written.lines_streamed))
    };
    let mut rows: Vec<Fields> =
        Purpose::ALL.iter().map(|purpose| row(purpose.to_string(), account.of(*purpose))).collect();
    rows.push(row("total".to_string(), account.total()));
    Fields::new().with("written", Value::Rows(rows)).with("fences", Value::Count(account.fences))
}

/// What came from a disk and went to it.
pub(crate) fn disk(account: &disk::Account) -> Fields {
    let of = |purpose| {
        let transferred = account.of(purpose);
        Fields::new()
            .with("reads", Value::Count(transferred.reads))
            .with("bytes_read", Value::Bytes(transferred.bytes_read))
            .with("writes", Value::Count(transferred.writes))
            .with("bytes_written", Value::Bytes(transferred.bytes_written))
    };
    Fields::new()
        .with("data", Value::Fields(of(disk::Purpose::Data)))
        .with("metadata", Value::Fields(of(disk::Purpose::Metadata)))
        .with("flushes", Value::Count(account.flushes))
}
