//! What one client and two pay for a request, by the number of server threads: the measurement behind
//! `MountOptions::threads`.
//!
//! `cargo run --release -p amberfs-fuse --example latency [-- OPERATIONS]` mounts a model on temporary directories and
//! prints the median and the mean of each operation in microseconds.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use vfs::model::Model;

type Operation = (&'static str, fn(&Path, usize));

/// Each makes at least one request, so that the round trip is measured and not the kernel's caches.
const OPERATIONS: &[Operation] = &[
    ("statfs", |dir, _| assert!(rustix::fs::statvfs(dir).is_ok())),
    ("lookup (absent)", |dir, i| assert!(fs::symlink_metadata(dir.join(format!("absent-{i}"))).is_err())),
    ("create + close", |dir, i| drop(File::create(dir.join(format!("file-{i}"))).unwrap())),
    ("open + close", |dir, i| drop(File::open(dir.join(format!("file-{i}"))).unwrap())),
    ("stat", |dir, i| assert!(fs::metadata(dir.join(format!("file-{i}"))).is_ok())),
    ("write 4 KiB + close", |dir, i| {
        let file = OpenOptions::new().write(true).open(dir.join(format!("file-{i}"))).unwrap();
        file.write_all_at(&[1; 4096], 0).unwrap();
    }),
    ("append 100 B + fsync", |dir, i| {
        let mut file = OpenOptions::new().append(true).open(dir.join(format!("file-{i}"))).unwrap();
        file.write_all(&[1; 100]).unwrap();
        file.sync_all().unwrap();
    }),
    ("rename", |dir, i| fs::rename(dir.join(format!("file-{i}")), dir.join(format!("new-{i}"))).unwrap()),
    ("unlink", |dir, i| fs::remove_file(dir.join(format!("new-{i}"))).unwrap()),
    ("mkdir", |dir, i| fs::create_dir(dir.join(format!("dir-{i}"))).unwrap()),
    ("rmdir", |dir, i| fs::remove_dir(dir.join(format!("dir-{i}"))).unwrap()),
    ("symlink", |dir, i| symlink("target", dir.join(format!("link-{i}"))).unwrap()),
    ("readlink", |dir, i| drop(fs::read_link(dir.join(format!("link-{i}"))).unwrap())),
];

fn main() {
    let operations = std::env::args().nth(1).map_or(5000, |count| count.parse().expect("a number"));
    println!("{operations} operations a client; median / mean, microseconds");
    for writeback_cache in [false, true] {
        for clients in [1, 2] {
            let tables: Vec<_> =
                [1, 2, 4].map(|threads| measure(threads, clients, writeback_cache, operations)).into();
            println!();
            println!(
                "{clients} client(s){}: server threads      1               2               4",
                if writeback_cache { ", writeback cache" } else { "" }
            );
            for (row, (name, _)) in OPERATIONS.iter().enumerate() {
                print!("{name:<24}");
                for table in &tables {
                    let (median, mean) = table[row];
                    print!("  {:>6.1} /{:>6.1}", micros(median), micros(mean));
                }
                println!();
            }
        }
    }
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

/// Each operation's median and mean.
fn measure(
    threads: usize,
    clients: usize,
    writeback_cache: bool,
    operations: usize,
) -> Vec<(Duration, Duration)> {
    let dir = tempfile::tempdir().unwrap();
    let options = fuse::MountOptions { threads, writeback_cache, ..Default::default() };
    let mount = fuse::mount(Arc::new(Model::new()), dir.path(), &options).unwrap();
    let result = OPERATIONS
        .iter()
        .map(|&(_, operation)| {
            let clients: Vec<_> = (0..clients)
                .map(|client| {
                    let dir = dir.path().join(format!("client-{client}"));
                    fs::create_dir_all(&dir).unwrap();
                    thread::spawn(move || time_each(operations, |i| operation(&dir, i)))
                })
                .collect();
            let mut times: Vec<Duration> = clients.into_iter().flat_map(|c| c.join().unwrap()).collect();
            times.sort();
            (times[times.len() / 2], times.iter().sum::<Duration>() / times.len() as u32)
        })
        .collect();
    mount.unmounter().unmount(false).unwrap();
    mount.wait().unwrap();
    result
}

fn time_each(count: usize, operation: impl Fn(usize)) -> Vec<Duration> {
    (0..count)
        .map(|i| {
            let start = Instant::now();
            operation(i);
            start.elapsed()
        })
        .collect()
}
