//! What volumes of ours make on everything that mke2fs makes is sound, and read by the kernel as by us.

use crate::support;
use std::sync::Arc;

use crate::support::cases::{self, Case};
use crate::support::contents::{self, Scale};
use crate::support::maker::{Kernel, Ours};
use crate::support::{Image, tree};
use disk::Disk;
use ext::{Options, Volume};
use nvm::{OpenOptions, Region, VolumeKind, Zone};
use vfs::FileSystem;

const MIB: u64 = 1 << 20;

fn check(cases: Vec<Case>) {
    for case in cases {
        eprintln!("{case}");
        check_one(&case);
    }
}

/// NVM that is not asked to keep anything.
fn zone() -> Zone {
    let zone = Zone::anonymous(160 * MIB, &OpenOptions::default()).unwrap();
    zone.create_volume("disk", VolumeKind::Ext, Some(128 * MIB)).unwrap();
    zone
}

fn mount(region: &Region, disk: Arc<Disk>) -> Volume {
    let options = Options { cache_bytes: 4 * MIB, page_bytes: 2 * MIB, ..Options::default() };
    Volume::mount(region, disk, &options).unwrap()
}

/// Filled and changed by us, and gone on with by the kernel; filled by the kernel, and changed by us.
fn check_one(case: &Case) {
    let image = case.image();
    work(case, &image, |maker, scale| contents::fill(maker, scale));
    work(case, &image, |maker, scale| contents::change(maker, scale));
    if support::can_mount() {
        go_on_with_the_kernel(case, &image);
        let image = case.image();
        contents::fill(&mut Kernel::below(&image.mount("").dir), case.scale());
        work(case, &image, |maker, scale| contents::change(maker, scale));
    }
}

/// Work in one attachment: what is there behind it is what was there before the disk was detached.
fn work(case: &Case, image: &Image, work: impl FnOnce(&mut Ours<'_>, Scale)) {
    let zone = zone();
    let (region, disk) = (zone.volume("disk").unwrap(), image.disk(false));
    ext::attach(&region, &disk).unwrap();
    let volume = mount(&region, disk);
    let before = volume.statfs().unwrap();
    work(&mut Ours::of(&volume), case.scale());
    volume.syncfs().unwrap();
    let (ours, space) = (tree::of_volume(&volume).unwrap(), volume.statfs().unwrap());
    assert_ne!(space.blocks_free, before.blocks_free);
    volume.detach().unwrap();
    drop(volume);
    image.fsck();
    let volume = image.open();
    tree::compare(&tree::of_volume(&volume).unwrap(), &ours);
    assert_eq!(volume.statfs().unwrap(), space);
    let found = ext::check(volume.disk().clone(), &Options::default()).unwrap();
    assert!(found.is_clean(), "{:#?}", found.findings.iter().take(20).collect::<Vec<_>>());
    drop(volume);
    if support::can_mount() {
        let mounted = image.mount("ro");
        tree::compare(&ours, &tree::of_kernel(&mounted.dir, case.large_inodes));
    }
}

/// The kernel goes on where we stopped.
fn go_on_with_the_kernel(case: &Case, image: &Image) {
    if !support::can_mount() {
        return;
    }
    let mounted = image.mount("");
    std::fs::write(mounted.dir.join("of the kernel"), contents::pattern(3 << 20, 9)).unwrap();
    std::fs::create_dir(mounted.dir.join("large/directory of the kernel")).unwrap();
    std::fs::remove_file(mounted.dir.join("every other block")).unwrap();
    std::fs::remove_dir_all(mounted.dir.join("many")).unwrap();
    let kernel = tree::of_kernel(&mounted.dir, case.large_inodes);
    drop(mounted);
    image.fsck();
    assert!(kernel.len() > 100);
}

#[test]
fn ext2() {
    check(cases::of_kind("ext2"));
}

#[test]
fn ext3() {
    check(cases::of_kind("ext3"));
}

#[test]
fn ext4() {
    check(cases::of_kind("ext4"));
}

#[test]
fn newer_defaults() {
    check(cases::newer_defaults());
}

#[test]
fn older_defaults() {
    check(cases::older_defaults());
}

#[test]
fn meta_bg() {
    check(cases::meta_bg());
}

#[test]
fn hash_functions() {
    check(cases::hash_functions());
}

#[test]
fn large_things_in_small_blocks() {
    let [small, _] = cases::large_things();
    check(vec![small]);
}

#[test]
fn large_things_in_large_blocks() {
    let [_, large] = cases::large_things();
    check(vec![large]);
}

/// What cannot be written as a whole is refused before anything is changed, and the message says why.
#[test]
fn what_is_only_read_is_refused() {
    for case in
        [cases::inline_data(), cases::bigalloc(), cases::multiple_mount_protection()].into_iter().flatten()
    {
        let image = case.image();
        let before = image.bytes();
        let zone = zone();
        let error = ext::attach(&zone.volume("disk").unwrap(), &image.disk(false)).unwrap_err();
        let name =
            ["inline_data", "bigalloc", "mmp"].into_iter().find(|name| error.to_string().contains(name));
        let name = name.unwrap_or_else(|| panic!("{case}: {error}"));
        assert!(image.bytes() == before);
        // What to do about it can be done.
        if name != "mmp" {
            assert!(error.to_string().contains(&format!("`mke2fs -O ^{name}`")), "{error}");
            continue;
        }
        assert!(error.to_string().contains("`tune2fs -O ^mmp`"), "{error}");
        support::run("tune2fs", &["-O", "^mmp", &image.path.display().to_string()]);
        ext::attach(&zone.volume("disk").unwrap(), &image.disk(false)).unwrap();
    }
}
