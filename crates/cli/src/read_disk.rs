//! Disks by themselves: without NVM an ext2, ext3 or ext4 is mounted to be read, and nothing on the disk changes.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::{Disk, OpenOptions, Source};
use nvm::Zone;

use crate::failure::{Explain, Failure};
use crate::find_server;
use crate::options::Options;
use crate::report::{Fields, Value};

/// How long another of our servers may take to let go of the disk: umount(8) does not wait for it.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);

/// Opens a disk that is to be mounted by itself. Whoever writes to it keeps us away, and we keep them away.
pub(crate) fn open(source: &Source, options: &Options) -> Result<Arc<Disk>, Failure> {
    let refused = |what: &str, remedy: &str| {
        Err(Failure::new(format!("{source} is a disk by itself: {what}")).remedy(remedy))
    };
    if let Source::Path(path) = source
        && let Err(error) = std::fs::metadata(path)
    {
        return Err(
            Failure::new(format!("{source}: {error}")).remedy("name a volume as ZONE:VOLUME, or a disk")
        );
    }
    if let Source::Path(path) = source
        && is_zone(path)
    {
        let what = format!("'{source}' names no volume: write ZONE:VOLUME, for example {source}:home");
        return Err(Failure::new(what));
    }
    if options.snapshot.is_some() || options.keep.is_some() {
        return refused("it has no snapshots", "mount it without 'snapshot' and 'keep'");
    }
    if let Some(other) = &options.disk {
        return refused(&format!("disk={other} means nothing"), "mount it without that option");
    }
    if !options.read_only {
        let remedy = format!(
            "amberfs mount -o ro {source} DIR; to write to it, give it NVM: amberfs attach ZONE:VOLUME {source}, then mount that \
             volume"
        );
        return refused("without NVM it can be read, and not be written", &remedy);
    }
    let patience = Instant::now() + PATIENCE;
    loop {
        match Disk::open(source, &OpenOptions { read_only: true, ..OpenOptions::default() }) {
            Err(disk::Error::Busy { .. }) if Instant::now() < patience => std::thread::sleep(PAUSE),
            opened => {
                return opened.map(Arc::new).doing("opening the disk").map_err(|failure| {
                    failure.remedy("name a volume of a zone as ZONE:VOLUME, or a disk that nobody else uses")
                });
            }
        }
    }
}

fn is_zone(path: &Path) -> bool {
    let options = nvm::OpenOptions { read_only: true, ..nvm::OpenOptions::default() };
    match Zone::open(path, &options) {
        Ok(_) => true,
        // Or another server reads that disk.
        Err(nvm::Error::Locked { .. }) => find_server::of_zone(path)
            .is_some_and(|server| server.hello.mounts.iter().any(|mounted| !mounted.volume.is_empty())),
        Err(_) => false,
    }
}

/// What opening it found. Nothing was written: what its journal has is looked up there.
pub(crate) fn recovery(volume: &ext::Volume) -> Fields {
    let found = volume.recovery();
    Fields::new()
        .with("was_clean", found.transactions == 0)
        .with("journal_transactions_read", Value::Count(found.transactions))
        .with("journal_blocks_read", Value::Count(found.blocks))
}
