//! The workloads, by their known names and with their published parameters.

mod data;
mod filebench;
mod metadata;
mod suites;

use crate::flow::Workload;
use crate::parameters::Parameters;

/// Threads that a workload may have.
pub(crate) const THREADS_MAX: usize = 1024;

/// Files in a directory, if all are in one: Filebench's `dirwidth` of 1,000,000.
const FLAT: &str = "1000000";

/// A workload that can be asked for.
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// Its parameters, and their published values.
    pub parameters: &'static [(&'static str, &'static str)],
    pub(crate) build: fn(&Parameters) -> Result<Workload, String>,
}

/// All of them.
pub fn catalogue() -> &'static [Entry] {
    static ALL: std::sync::LazyLock<Vec<Entry>> = std::sync::LazyLock::new(|| {
        [metadata::entries(), data::entries(), filebench::entries(), suites::entries()]
            .into_iter()
            .flatten()
            .collect()
    });
    &ALL
}

/// Groups of them: name, what it is for, requests.
pub fn groups() -> &'static [(&'static str, &'static str, &'static [&'static str])] {
    &[
        (
            "headline",
            "what is measured unless something else is asked for",
            &[
                "metadata",
                "read:at=random,io=4K",
                "read:at=next,io=1M",
                "write:at=random,io=4K",
                "write:at=random,io=4K,sync=each",
                "write:at=next,io=1M",
                "fileserver",
                "webserver",
                "webproxy",
                "varmail",
                "postmark",
            ],
        ),
        (
            "filebench",
            "Filebench's personalities",
            &[
                "fileserver",
                "webserver",
                "webproxy",
                "varmail",
                "createfiles",
                "listdirs",
                "openfiles",
                "statfiles",
                "append",
                "writefsync",
            ],
        ),
        (
            "granularity",
            "reading and writing in pieces from 64 B to 1 MiB",
            &[
                "read:at=next,io=64/256/1K/4K/16K/64K/256K/1M",
                "read:at=random,io=64/256/1K/4K/16K/64K/256K/1M",
                "write:at=next,io=64/256/1K/4K/16K/64K/256K/1M",
                "write:at=random,io=64/256/1K/4K/16K/64K/256K/1M",
                "write:at=random,sync=each,io=64/256/1K/4K/16K/64K/256K/1M",
            ],
        ),
        (
            "threads",
            "reading and writing 4 KiB with 1 to 32 threads, and Filebench's servers",
            &[
                "read:at=random,threads=1/2/4/8/16/32",
                "write:at=random,threads=1/2/4/8/16/32",
                "write:at=random,sync=each,threads=1/2/4/8/16/32",
                "metadata:threads=1/2/4/8/16/32",
                "fileserver:threads=1/4/16/32",
                "varmail:threads=1/4/16/32",
            ],
        ),
        ("width", "operations on names by the width of directories", &["metadata:width=10/100/1000/10000"]),
        (
            "files",
            "operations on names by the number of files, in directories of 1000",
            &["metadata:files=1000/10000/100000"],
        ),
        (
            "synced",
            "what is bound by fsync",
            &[
                "writefsync:io=4K,every=1",
                "write:at=random,io=4K,sync=each",
                "fs_mark:files=~10000,size=4K,io=4K,sync=1",
                "fs_mark:sync=4",
                "varmail",
            ],
        ),
        (
            "fsmac",
            "what FSMAC §V measures, with its numbers, and small synced writes",
            &[
                "createfiles:files=~200000,threads=4",
                "varmail:files=~10000,width=50",
                "webserver:files=~100000",
                "postmark:files=~200000,dirs=50,least=1K,most=10K",
                "ffsb:mix=even",
                // Ten times its number: a hundredth of that is over in milliseconds.
                "fs_mark:files=~24000,width=100,size=200K,threads=4,sync=0/1/2/3/4/5/6",
                // Of them the one of 32 is its "file append".
                "writefsync:every=1/8/32/128/512/1024",
                "writefsync:io=4K,every=1",
                "fs_mark:files=~10000,size=4K,io=4K,sync=1",
                "write:at=random,io=4K,sync=each",
            ],
        ),
        ("fsmark", "fs_mark with each of its ways to sync", &["fs_mark:sync=0/1/2/3/4/5/6"]),
    ]
}
