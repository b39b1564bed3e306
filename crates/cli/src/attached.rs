//! Volumes of kind ext that are served: open with their disk, committing, telling of it.

use std::sync::Arc;

use nvm::Region;
use parking_lot::Mutex;

use crate::admin::account;
use crate::admin::attachment::{self, open_volume};
use crate::failure::{Explain, Failure, tell};
use crate::options::Options;
use crate::report::{Fields, Value};
use crate::size;

/// A disk whose metadata is in NVM, in use.
pub(crate) struct Attached {
    pub(crate) volume: Arc<ext::Volume>,
    /// Bytes of a block.
    block_bytes: u64,
    if_lost: String,
    /// Commits every so often, until it is closed.
    background: Mutex<Option<ext::Background>>,
}

impl Attached {
    /// Opens the volume as it is to be mounted.
    pub(crate) fn open(region: &Region, options: &Options) -> Result<Attached, Failure> {
        let how = options.mounted_ext().map_err(Failure::new).doing("reading the mount options")?;
        let volume = Arc::new(open_volume(region, options.disk.as_deref(), &how)?);
        if volume.disk().is_read_only() && !options.read_only {
            return Err(Failure::new(format!("{}: it is read-only", volume.disk().name()))
                .doing("opening the disk")
                .remedy("have the disk writable, or read the volume: -o ro"));
        }
        let background = match options.read_only {
            true => None,
            false => {
                let name = region.name().to_string();
                let told = move |what: &str| tell(format_args!("amberfs: volume '{name}': {what}"));
                let begun = ext::Background::begin(&volume, options.commit_interval, told);
                Some(begun.doing("beginning to commit")?)
            }
        };
        let (block_bytes, if_lost) = (attachment::of(region)?.block_bytes, attachment::if_lost(region));
        Ok(Attached { volume, block_bytes, if_lost, background: Mutex::new(background) })
    }

    /// Leaves everything durable, metadata in NVM. **What ends with the process is told.**
    pub(crate) fn close(&self) -> Result<(), Failure> {
        drop(self.background.lock().take());
        let closed = self.volume.unmount().doing("closing the volume");
        closed.map_err(|failure| {
            let kept = "it is unmounted; what was synced is in NVM and on the disk";
            let left = match self.volume.stats().pages_unsaved * self.block_bytes {
                0 => kept.to_string(),
                lost => {
                    format!("{kept}, and {} that were written and never synced are lost", size::human(lost))
                }
            };
            failure.leaving(left).remedy(format!("mount it again when the disk is back; {}", self.if_lost))
        })
    }

    /// What opening the volume had to do.
    pub(crate) fn recovery(&self) -> Fields {
        let replayed = self.volume.replayed();
        Fields::new()
            .with("was_clean", replayed.transactions == 0)
            .with("transactions_replayed", Value::Count(replayed.transactions))
            .with("log_bytes_replayed", Value::Bytes(replayed.log_bytes))
            .with("orphans_reclaimed", Value::Count(replayed.orphans))
            .with("seconds", Value::Seconds(replayed.duration.as_secs_f64()))
    }

    /// What of the volume is otherwise in use than at rest, where `fields` tell that.
    pub(crate) fn describe(&self, fields: Fields) -> Fields {
        let stats = self.volume.stats();
        let fields = fields
            .with_now("frames_used", Value::Count(stats.frames_used))
            .with_now("frames_dirty", Value::Count(stats.frames_dirty))
            .with_now("blocks_refused", Value::Count(stats.blocks_refused));
        self.caches(match self.volume.has_errors() {
            Ok(has_errors) => fields.with_now("has_errors", has_errors),
            Err(_) => fields,
        })
    }

    /// Adds what DRAM bytes of files take as the disk has them, and may take.
    fn caches(&self, fields: Fields) -> Fields {
        let stats = self.volume.stats();
        fields
            .with("clean_limit_bytes", Value::Bytes(stats.clean_limit_bytes))
            .with("clean_bytes", Value::Bytes(stats.clean_bytes))
    }

    /// What went to the disk and came from it, and what there is in NVM.
    pub(crate) fn stats(&self) -> Fields {
        let stats = self.volume.stats();
        let damage = self.volume.damage();
        let fetched = self.volume.fetched();
        let fetched = Fields::new()
            .with("blocks", Value::Count(fetched.blocks))
            .with("requests", Value::Count(fetched.requests))
            .with("left_out", Value::Count(fetched.left_out))
            .with("seconds", Value::Seconds(fetched.duration.as_secs_f64()));
        self.caches(Fields::new())
            .with("transactions", Value::Count(stats.transactions))
            .with("log_half_bytes", Value::Bytes(stats.log_bytes))
            .with("log_used_bytes", Value::Bytes(stats.log_used_bytes))
            .with("frames", Value::Count(stats.frames))
            .with("frames_used", Value::Count(stats.frames_used))
            .with("frames_dirty", Value::Count(stats.frames_dirty))
            .with("blocks_refused", Value::Count(stats.blocks_refused))
            .with("refused_because", self.volume.refusal().map_or(Value::None, Value::Text))
            .with("frame_table_bytes", Value::Bytes(stats.table_bytes))
            .with("pages_unsaved", Value::Count(stats.pages_unsaved))
            .with("fetched", Value::Fields(fetched))
            .with("pages_synced", Value::Count(stats.pages_synced))
            .with("clean_hits", Value::Count(stats.clean_hits))
            .with("clean_misses", Value::Count(stats.clean_misses))
            .with("damage_met", Value::Count(damage.count))
            .with("damage_first", if damage.count > 0 { Value::Text(damage.first) } else { Value::None })
            .with("disk_gone", self.volume.disk().gone())
            .with("disk", Value::Fields(account::disk(&self.volume.disk().account())))
    }
}
