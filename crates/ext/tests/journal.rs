//! Journals that the kernel left, replayed as the kernel and e2fsck replay them.

use crate::support;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::support::contents::pattern;
use crate::support::{Image, tree};
use disk::Disk;
use ext::{Error, Options, Recovery, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};

/// A journal's magic number, which in a journal no other block begins with.
const MAGIC: [u8; 4] = [0xC0, 0x3B, 0x39, 0x98];

/// Something of everything that a journal has: blocks of metadata again and again, directories that are removed and whose blocks
/// become data (revoked), and blocks that look like the journal's own.
fn work(root: &Path, rounds: u32) {
    for round in 0..rounds {
        let dir = root.join(format!("dir {round}"));
        fs::create_dir(&dir).unwrap();
        for n in 0..150 {
            fs::write(
                dir.join(format!("file {n} with a name that fills the directory's blocks")),
                n.to_string(),
            )
            .unwrap();
        }
        commit(root);
        if round % 2 == 1 {
            fs::remove_dir_all(&dir).unwrap();
            let data = [&MAGIC[..], &pattern(600_000, round.into())].concat();
            fs::write(root.join(format!("reuses {round}")), data).unwrap();
            let file = fs::File::create(root.join(format!("looks like a journal {round}"))).unwrap();
            for n in 0..20 {
                file.write_all_at(&[&MAGIC[..], &n_bytes(n)].concat(), n * 4096).unwrap();
            }
        }
        commit(root);
    }
}

/// Has the journal take all so far. (`sync` would have it written where it belongs, too.)
fn commit(root: &Path) {
    let file = fs::File::create(root.join("committed")).unwrap();
    file.write_all_at(&MAGIC, 0).unwrap();
    file.sync_all().unwrap();
    fs::File::open(root).unwrap().sync_all().unwrap();
}

fn n_bytes(n: u64) -> [u8; 8] {
    n.to_le_bytes()
}

/// An image that a crash could have left: copied while it is mounted, behind a commit.
fn crashed(options: &[&str], mount: &str) -> Image {
    let image = Image::make("24M", options);
    let mounted = image.mount(mount);
    work(&mounted.dir, 6);
    // What another test forks has all that is open here until it is a program of its own: a directory that was removed meanwhile is not
    // gone before.
    for _ in 0..50 {
        let copy = copy_in_use(&image);
        let volume = copy.open();
        if ext::check(volume.disk().clone(), &Options::default()).unwrap().orphans == 0 {
            return copy;
        }
        drop(volume);
        std::thread::sleep(std::time::Duration::from_millis(20));
        commit(&mounted.dir);
    }
    panic!("somebody keeps a removed directory of {} open", image.path.display());
}

/// A copy of what the kernel may write to meanwhile, so that one could have some blocks of before and a journal of behind it: what two
/// copies in a row agree on was there at a moment between them.
fn copy_in_use(image: &Image) -> Image {
    let mut last = image.bytes();
    for _ in 0..50 {
        let now = image.bytes();
        if now == last {
            let copy = Image::empty();
            fs::write(&copy.path, now).unwrap();
            return copy;
        }
        last = now;
    }
    panic!("the kernel does not stop writing to {}", image.path.display());
}

fn copy(image: &Image) -> Image {
    let copy = Image::empty();
    fs::copy(&image.path, &copy.path).unwrap();
    copy
}

fn by_kernel(image: &Image) -> tree::Tree {
    let copy = copy(image);
    // Orphans are removed when it is mounted for writing; of what has names nothing changes.
    drop(copy.mount(""));
    tree::of_kernel(&copy.mount("ro").dir, true)
}

fn check(image: &Image, expects: impl Fn(Recovery) -> bool) {
    let expected = by_kernel(image);
    let before = image.bytes();
    // In memory, the disk unchanged.
    let volume = image.open();
    let recovery = volume.recovery();
    println!("{recovery:?}");
    assert!(recovery.transactions > 0 && expects(recovery), "{recovery:?}");
    tree::compare(&tree::of_volume(&volume).unwrap(), &expected);
    let found = ext::check(volume.disk().clone(), &Options::default()).unwrap();
    assert!(found.is_clean(), "{:#?}", found.findings);
    drop(volume);
    assert!(image.bytes() == before, "reading changed the disk");
    // Onto the disk.
    let recovered = copy(image);
    assert_eq!(ext::recover(&recovered.disk(false)).unwrap(), recovery);
    assert!(ext::info(&recovered.disk(true)).unwrap().clean);
    recovered.fsck();
    let volume = recovered.open();
    assert_eq!(volume.recovery(), Recovery::default());
    tree::compare(&tree::of_volume(&volume).unwrap(), &expected);
    drop(volume);
    tree::compare(&by_kernel(&recovered), &expected);
    // Byte by byte as e2fsck, but for the superblocks.
    let checked = copy(image);
    support::run("e2fsck", &["-y", "-E", "journal_only", &checked.path.display().to_string()]);
    let (ours, theirs) = (recovered.bytes(), checked.bytes());
    let differ: Vec<usize> =
        (1..ours.len() / 1024).filter(|n| ours[n * 1024..][..1024] != theirs[n * 1024..][..1024]).collect();
    assert!(differ.len() <= 2, "superblock and journal superblock, but: {differ:?}");
}

const EXT4: [&str; 6] = ["-t", "ext4", "-b", "1024", "-J", "size=4"];

/// Its group has it until it is gone: a sound disk was said to be damaged.
#[test]
fn a_directory_was_not_counted_that_was_removed_while_it_was_open() {
    if !support::can_mount() {
        return;
    }
    for orphans in ["^orphan_file", "orphan_file"] {
        let image = Image::make("24M", &[&EXT4[..], &["-O", orphans]].concat());
        let mounted = image.mount("");
        let removed = mounted.dir.join("removed");
        fs::create_dir(&removed).unwrap();
        let open = fs::File::open(&removed).unwrap();
        fs::remove_dir(&removed).unwrap();
        commit(&mounted.dir);
        let crashed = copy_in_use(&image);
        drop((open, mounted));
        let volume = crashed.open();
        let found = ext::check(volume.disk().clone(), &Options::default()).unwrap();
        assert!(found.is_clean() && found.orphans == 1, "{orphans}: {:#?}", found.findings);
    }
}

#[test]
fn ext3() {
    if support::can_mount() {
        let image = crashed(&["-t", "ext3", "-b", "1024", "-J", "size=4", "-I", "256"], "");
        check(&image, |found| found.revoked > 0);
        let image = crashed(&["-t", "ext3", "-b", "4096", "-J", "size=4", "-I", "256"], "");
        check(&image, |_| true);
    }
}

#[test]
fn ext4_with_checksums() {
    if support::can_mount() {
        let image = crashed(&EXT4, "");
        check(&image, |found| found.revoked > 0);
        let image = crashed(&["-t", "ext4", "-b", "4096", "-J", "size=4"], "");
        check(&image, |_| true);
    }
}

#[test]
fn ext4_without_checksums() {
    if support::can_mount() {
        let image = crashed(&[&EXT4[..], &["-O", "^metadata_csum"]].concat(), "");
        check(&image, |found| found.revoked > 0);
        let image = crashed(&[&EXT4[..], &["-O", "^metadata_csum,^64bit"]].concat(), "journal_checksum");
        check(&image, |found| found.revoked > 0);
    }
}

#[test]
fn commits_that_do_not_wait() {
    if support::can_mount() {
        let image = crashed(&EXT4, "journal_async_commit,data=writeback");
        check(&image, |found| found.revoked > 0);
    }
}

/// Data goes through the journal: blocks that begin like the journal's own are escaped.
#[test]
fn data_in_the_journal() {
    if support::can_mount() {
        let image = crashed(&EXT4, "data=journal");
        check(&image, |found| found.blocks > 100);
        let image = crashed(&["-t", "ext3", "-b", "2048", "-J", "size=4", "-I", "256"], "data=journal");
        check(&image, |found| found.blocks > 50);
    }
}

/// Versions of checksums that only older kernels wrote, made by debugfs.
#[test]
fn older_checksums() {
    if !support::can_mount() {
        return;
    }
    // Version 1 is what debugfs makes of a file system without checksums.
    for version in ["", "-v 2", "-v 3"] {
        for wide in ["64bit", "^64bit"] {
            let features = format!("{}metadata_csum,{wide}", if version.is_empty() { "^" } else { "" });
            let image = Image::make("16M", &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", &features]);
            let path = image.path.display().to_string();
            // Blocks of a file, which therefore change when it is replayed.
            let contents = image.path.with_extension("contents");
            fs::write(&contents, pattern(5 * 1024, 1)).unwrap();
            let written = image.path.with_extension("written");
            fs::write(&written, [&MAGIC[..], &pattern(5 * 1024 - 4, 2)].concat()).unwrap();
            let script = image.path.with_extension("script");
            fs::write(&script, format!("write {} file\n", contents.display())).unwrap();
            support::run("debugfs", &["-w", "-f", &script.display().to_string(), &path]);
            let blocks = support::run("debugfs", &["-R", "blocks file", &path]);
            let blocks: Vec<&str> = blocks.split_whitespace().collect();
            assert_eq!(blocks.len(), 5);
            // In version 1 the kernel takes no commit of debugfs that revokes and writes nothing.
            let revoke = if version.is_empty() { String::new() } else { format!("jw -r {}\n", blocks[1]) };
            let commands = format!(
                "jo -c {version}\njw -b {} {}\n{revoke}jw -b {} {}\njc\n",
                blocks.join(","),
                written.display(),
                blocks[2],
                written.display(),
            );
            fs::write(&script, commands).unwrap();
            support::run("debugfs", &["-w", "-f", &script.display().to_string(), &path]);
            println!("version '{version}', {features}");
            let told = support::run("dumpe2fs", &["-h", &path]);
            println!(
                "{}",
                told.lines().filter(|line| line.starts_with("Journal")).collect::<Vec<_>>().join("\n")
            );
            let expected = if version.is_empty() { (2, 5, 0) } else { (3, 4, 1) };
            check(&image, |found| (found.transactions, found.blocks, found.revoked) == expected);
        }
    }
}

/// A crash while the journal is replayed: whatever had arrived, it is replayed again.
#[test]
fn a_replay_cut_short_is_done_again() {
    if !support::can_mount() {
        return;
    }
    use std::sync::Mutex;
    let image = crashed(&EXT4, "");
    let before = image.bytes();
    let memory = Arc::new(disk::Memory::new(before.clone(), false));
    let events = Arc::new(Mutex::new(Vec::new()));
    let recorded = disk::Recorded::new(memory.clone(), {
        let events = events.clone();
        move |event| {
            if event.kind != disk::EventKind::Read {
                events.lock().unwrap().push((event.kind, event.at as usize, event.bytes.to_vec()));
            }
        }
    });
    let recovery = ext::recover(&Arc::new(Disk::over("recorded".into(), Arc::new(recorded)))).unwrap();
    let after = memory.image();
    let events = events.lock().unwrap();
    let cuts = [
        0,
        1,
        events.len() / 3,
        events.len() - 5,
        events.len() - 4,
        events.len() - 3,
        events.len() - 2,
        events.len() - 1,
    ];
    for cut in cuts {
        for keep in 0..3u64 {
            // What a flush has followed is there; of the rest all, nothing, or every other write.
            let durable =
                events[..cut].iter().rposition(|(kind, ..)| *kind == disk::EventKind::Flush).unwrap_or(0);
            let mut state = before.clone();
            for (n, (_, at, bytes)) in events[..cut].iter().enumerate() {
                if n < durable || keep == 1 || keep == 2 && n % 2 == 0 {
                    state[*at..*at + bytes.len()].copy_from_slice(bytes);
                }
            }
            let state = Arc::new(disk::Memory::new(state, false));
            let again = ext::recover(&Arc::new(Disk::over("again".into(), state.clone()))).unwrap();
            assert!(
                again == recovery || again == Recovery::default() || again.transactions == 0,
                "{again:?}"
            );
            assert!(state.image() == after, "cut at {cut}, {keep}");
        }
    }
}

/// What fast commits have is not in the log: whoever reads only that loses what was synced.
#[test]
fn fast_commits_are_left_to_the_kernel() {
    if !support::can_mount() {
        return;
    }
    let image = Image::make("24M", &["-t", "ext4", "-O", "fast_commit"]);
    // Nothing is committed but by who syncs.
    let mounted = image.mount("commit=600");
    commit(&mounted.dir);
    for n in 0..5 {
        let mut file = fs::File::create(mounted.dir.join(format!("file-{n}"))).unwrap();
        file.write_all(&[b'x'; 1000]).unwrap();
        file.sync_all().unwrap();
    }
    let crashed = copy(&image);
    drop(mounted);
    assert!(by_kernel(&crashed).len() > 5, "the kernel finds what was synced");
    let before = crashed.bytes();
    let disk = crashed.disk(false);
    for result in [
        Volume::open(disk.clone(), &Options::default()).map(drop),
        ext::recover(&disk).map(drop),
        ext::check(disk.clone(), &Options::default()).map(drop),
    ] {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("fast commits") && error.contains("mount it once with the kernel"), "{error}");
    }
    drop(disk);
    assert!(crashed.bytes() == before, "the disk was changed");
    // What the message says is enough. (The kernel gives directories the time of the replay.)
    drop(crashed.mount(""));
    let expected = by_kernel(&crashed);
    tree::compare(&tree::of_volume(&crashed.open()).unwrap(), &expected);
}

/// Every part of a journal damaged in turn: it is replayed as far as it counts, or refused; nothing else.
#[test]
fn damaged_journals_are_refused_or_end() {
    if !support::can_mount() {
        return;
    }
    let image = crashed(&EXT4, "");
    let bytes = image.bytes();
    let starts: Vec<usize> =
        (0..bytes.len() / 1024).map(|n| n * 1024).filter(|at| bytes[*at..].starts_with(&MAGIC)).collect();
    assert!(starts.len() > 20);
    let disk = Arc::new(Disk::memory(bytes.clone()));
    let (mut opened, mut refused) = (0, 0);
    for (n, start) in starts.iter().enumerate().step_by(3) {
        for at in [4, 7, 8, 12, 15, 16, 20, 24, 28, 30, 40, 0x50, 252, 1020].map(|at| at + n % 4) {
            let place = (start + at) / 512 * 512;
            let mut sector = bytes[place..place + 512].to_vec();
            sector[(start + at) % 512] ^= 0x81;
            disk.write(disk::Purpose::Metadata, place as u64, &sector).unwrap();
            let outcome = Volume::open(disk.clone(), &Options::default());
            disk.write(disk::Purpose::Metadata, place as u64, &bytes[place..place + 512]).unwrap();
            match outcome {
                Ok(_) => opened += 1,
                Err(error) => {
                    assert!(error.to_string().contains("e2fsck"), "{error}");
                    refused += 1;
                }
            }
        }
    }
    println!("{opened} opened, {refused} refused");
    assert!(opened > 0 && refused > 0);
}

/// The kernel notes in the journal why it gave up, and in the superblock not before the next mount. Such a disk was taken for sound, replayed
/// and attached.
#[test]
fn a_journal_that_ended_with_an_error_is_of_a_file_system_with_errors() {
    const ERROR_AT: u64 = 32;
    for kind in ["ext3", "ext4"] {
        for unclean in [false, true] {
            let image = Image::make("16M", &["-t", kind, "-b", "1024", "-J", "size=1"]);
            let path = image.path.display().to_string();
            if unclean {
                support::run("debugfs", &["-w", "-R", "feature +needs_recovery", &path]);
            }
            let first: u64 = support::run("debugfs", &["-R", "bmap <8> 0", &path]).trim().parse().unwrap();
            let file = fs::OpenOptions::new().write(true).open(&image.path).unwrap();
            file.write_all_at(&(-5i32).to_be_bytes(), first * 1024 + ERROR_AT).unwrap();
            drop(file);
            let (before, disk) = (image.bytes(), image.disk(false));
            let zone = Zone::anonymous(12 << 20, &OpenOptions::default()).unwrap();
            let region = zone.create_volume("disk", VolumeKind::Ext, Some(8 << 20)).unwrap();
            let refused = [
                Volume::open(disk.clone(), &Options::default()).err(),
                ext::check_attachable(&disk, "disk", 8 << 20).err(),
                ext::attach(&region, &disk).err(),
                ext::recover(&disk).err(),
            ];
            for error in refused.map(|refused| refused.expect("it has errors")) {
                assert!(matches!(error, Error::HasErrors { .. }), "{error}");
                assert!(error.to_string().contains(&format!("run `e2fsck -f {}`", disk.name())), "{error}");
            }
            assert!(ext::info(&disk).unwrap().has_errors);
            drop(disk);
            assert!(image.bytes() == before, "nothing was changed");
            // As e2fsck has it, which puts the mark where it belongs and takes it away.
            let told = support::run("e2fsck", &["-p", &path]);
            assert!(told.contains("contains a file system with errors"), "{told}");
            let disk = image.disk(false);
            assert!(!ext::info(&disk).unwrap().has_errors);
            ext::attach(&region, &disk).unwrap();
        }
    }
}

/// An image whose journal has two transactions, both of a file's blocks, and what the second has of them.
fn two_transactions() -> (Image, Vec<u8>) {
    let image = Image::make("16M", &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "metadata_csum"]);
    let path = image.path.display().to_string();
    let [script, contents] = ["script", "contents"].map(|extension| image.path.with_extension(extension));
    fs::write(&contents, pattern(3 * 1024, 1)).unwrap();
    fs::write(&script, format!("write {} file\n", contents.display())).unwrap();
    support::run("debugfs", &["-w", "-f", &script.display().to_string(), &path]);
    let blocks = support::run("debugfs", &["-R", "blocks file", &path]);
    let blocks: Vec<&str> = blocks.split_whitespace().collect();
    let mut commands = "jo -c -v 3\n".to_string();
    for salt in [2, 3] {
        let written = image.path.with_extension(format!("written-{salt}"));
        fs::write(&written, pattern(3 * 1024, salt)).unwrap();
        commands += &format!("jw -b {} {}\n", blocks.join(","), written.display());
    }
    fs::write(&script, commands + "jc\n").unwrap();
    support::run("debugfs", &["-w", "-f", &script.display().to_string(), &path]);
    (image, pattern(3 * 1024, 3))
}

/// Where the journal's superblock is.
fn journal_at(image: &Image) -> usize {
    let path = image.path.display().to_string();
    support::run("debugfs", &["-R", "bmap <8> 0", &path]).trim().parse::<usize>().unwrap() * 1024
}

/// The number of the next transaction, or the first that is to be replayed.
fn number(image: &Image) -> u32 {
    let at = journal_at(image) + 24;
    u32::from_be_bytes(image.bytes()[at..at + 4].try_into().unwrap())
}

/// What is left in the log would be taken for transactions of the next life.
#[test]
fn no_number_is_given_again_that_a_transaction_had() {
    let (image, _) = two_transactions();
    let before = number(&image);
    let recovery = ext::recover(&image.disk(false)).unwrap();
    assert_eq!(recovery.transactions, 2);
    assert!(number(&image) >= before + 2, "{} behind {before}", number(&image));
}

/// Its commit had waited for it.
#[test]
fn a_block_that_rotted_in_the_last_transaction_is_damage() {
    let (image, written) = two_transactions();
    let bytes = image.bytes();
    let at = bytes.chunks(1024).position(|block| block == &written[1024..2048]).unwrap() * 1024;
    fs::OpenOptions::new()
        .write(true)
        .open(&image.path)
        .unwrap()
        .write_all_at(&[!bytes[at + 500]], at as u64 + 500)
        .unwrap();
    let before = image.bytes();
    for error in [
        Volume::open(image.disk(true), &Options::default()).map(drop).unwrap_err(),
        ext::recover(&image.disk(false)).map(drop).unwrap_err(),
    ] {
        assert!(error.to_string().contains("wrong checksum"), "{error}");
    }
    assert!(image.bytes() == before, "nothing was changed");
}
