//! What a served volume tells of itself.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::UNIX_EPOCH;

use vfs::FileSystem;

use super::{Promise, Served, Shown};
use crate::admin::account;
use crate::mount_table::Whereabouts;
use crate::read_disk;
use crate::report::{Fields, Value};

impl Promise {
    fn described(self, fields: Fields) -> Fields {
        let durability =
            self.durability.map_or(Value::None, |durability| Value::Text(durability.to_string()));
        fields
            .with("durability", durability)
            .with("names_durable_at_once", self.at_once.map_or(Value::None, Value::Flag))
    }
}

impl Served {
    /// What the volume is in use, where `fields` tell what it is at rest: space as the mount tells it, what its caches take, whether it failed,
    /// and how it is mounted.
    pub(crate) fn describe(&self, fields: Fields) -> Fields {
        let fields = match self.metered.statfs() {
            Ok(space) => {
                let bytes = |blocks: u64| Value::Bytes(blocks * u64::from(space.block_size));
                let fields = match &*self.shown() {
                    Shown::Volume(_) => fields.with_now("blocks_free", Value::Count(space.blocks_free)),
                    _ => fields,
                };
                fields
                    .with_now("space_bytes", bytes(space.blocks))
                    .with_now("used_bytes", bytes(space.blocks.saturating_sub(space.blocks_free)))
                    .with_now("free_bytes", bytes(space.blocks_available))
                    .with_now("inodes", Value::Count(space.files.saturating_sub(space.files_free)))
            }
            Err(error) => fields.with("use_not_known", error.to_string()),
        };
        let fields = match &*self.shown() {
            Shown::Volume(volume) => account::failure(account::caches(fields, &volume.stats()), volume),
            Shown::Disk(disk) => disk.describe(fields),
            Shown::Read(_) | Shown::Snapshot | Shown::Nothing | Shown::Ended => fields,
        };
        let text = |dir: PathBuf| Some(dir.display().to_string());
        let (mounted, detached_from) = match self.whereabouts() {
            Whereabouts::Shown(dir) | Whereabouts::Covered(dir) => (text(dir), None),
            Whereabouts::Nowhere => (None, text(self.dir.clone())),
        };
        let fields = fields
            .with("mounted", mounted)
            .with("detached_from", detached_from)
            .with("mounted_read_only", self.is_read_only())
            .with("mounted_snapshot", self.options.snapshot.clone());
        self.promise.described(fields)
    }

    /// What the volume has done since it was mounted.
    pub(crate) fn stats(&self) -> Fields {
        let since = self.since.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let user = Fields::new()
            .with("bytes_written", Value::Bytes(self.meter.bytes_written.load(Relaxed)))
            .with("bytes_read", Value::Bytes(self.meter.bytes_read.load(Relaxed)))
            .with("changes", Value::Count(self.meter.changes.load(Relaxed)))
            .with("syncs", Value::Count(self.meter.syncs.load(Relaxed)));
        let counts = self.requests.lock()();
        let requests = counts.iter().filter(|(_, count)| *count > 0);
        let requests = requests
            .fold(Fields::new(), |fields, (request, count)| fields.with(request.name(), Value::Count(count)));
        let fields = Fields::new()
            .with("volume", self.source.as_str())
            .with("dir", self.place().display().to_string())
            .with("options", self.option_list.as_str())
            .with("pid", Value::Count(std::process::id().into()))
            .with("mounted_since", Value::Time(since))
            .with("seconds", Value::Seconds(self.started.elapsed().as_secs_f64()))
            .with("user", Value::Fields(user));
        let fields = self.promise.described(fields);
        let fields = match &self.account {
            Some((region, before)) => {
                fields.with("nvm", Value::Fields(account::nvm(&(region.account() - *before))))
            }
            None => fields,
        };
        let fields = match &*self.shown() {
            Shown::Volume(volume) => account::failure(fields, volume)
                .with("native", Value::Fields(account::native(&volume.stats())))
                .with("recovery", Value::Fields(account::recovery(&volume.recovery()))),
            Shown::Disk(disk) => fields
                .with("ext", Value::Fields(disk.stats()))
                .with("recovery", Value::Fields(disk.recovery())),
            Shown::Read(volume) => fields
                .with("disk", Value::Fields(account::disk(&volume.disk().account())))
                .with("recovery", Value::Fields(read_disk::recovery(volume))),
            Shown::Snapshot | Shown::Nothing | Shown::Ended => fields,
        };
        let transport = if self.over_io_uring { "io_uring" } else { "/dev/fuse" };
        fields.with("transport", transport).with("kernel_requests", Value::Fields(requests))
    }
}
