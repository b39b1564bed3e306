//! Attributes against a map from names to values, and against what e2fsck and the kernel say of them.

use std::collections::BTreeMap;

use rustix::fs::XattrFlags;
use vfs::{Error, acl};

use super::{get, names, set};
use crate::core::inode;
use crate::scene::Scene;
use crate::superblock::ROOT;
use crate::support::random::Random;
use crate::support::{Image, can_mount};

type Values = BTreeMap<Vec<u8>, Vec<u8>>;

fn read(scene: &Scene, number: u32) -> Values {
    let inode = inode::read(scene.core(), number).unwrap();
    let names = names(scene.core(), &inode).unwrap();
    names.into_iter().map(|name| (name.clone(), get(scene.core(), &inode, &name).unwrap())).collect()
}

fn change(scene: &Scene, number: u32, name: &[u8], value: Option<&[u8]>) -> vfs::Result<()> {
    scene.change(|core| {
        let mut inode = inode::read(core, number)?;
        set(core, &mut inode, name, value)?;
        inode::write(core, &inode)
    })
}

/// What the kernel has.
fn of_kernel(path: &std::path::Path) -> Values {
    let mut list = vec![0u8; 1 << 16];
    let length = rustix::fs::listxattr(path, &mut list[..]).unwrap();
    let names = list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0u8; 1 << 16];
        let length = rustix::fs::getxattr(path, name, &mut value[..]).unwrap();
        value.truncate(length);
        value
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

fn judge(scene: &Scene, expected: &[(u32, Values)]) {
    scene.fsck();
    if !can_mount() {
        return;
    }
    let image = Image::of(&scene.image());
    let mounted = image.mount("ro,user_xattr,acl");
    for (n, (_, values)) in expected.iter().enumerate() {
        assert_eq!(&of_kernel(&mounted.dir.join(n.to_string())), values, "file {n}");
    }
}

const KINDS: [(&str, &[&str]); 6] = [
    ("8M", &["-t", "ext2", "-b", "1024", "-I", "128"]),
    ("8M", &["-t", "ext3", "-b", "2048", "-I", "256"]),
    ("8M", &["-t", "ext4", "-b", "1024", "-I", "256"]),
    ("8M", &["-t", "ext4", "-b", "4096", "-I", "512"]),
    ("8M", &["-t", "ext4", "-b", "4096", "-I", "128", "-O", "^metadata_csum,^ext_attr"]),
    ("8M", &["-t", "ext4", "-b", "1024", "-I", "1024"]),
];

#[test]
fn random_changes() {
    for (seed, (size, options)) in (1..).zip(KINDS) {
        eprintln!("{options:?}");
        let random = &mut Random::new(seed);
        let scene = Scene::new(size, &[options, &["-O", "^has_journal"]].concat(), 4);
        let mut all: Vec<(u32, Values)> = (0..4).map(|n| (scene.file(n), Values::new())).collect();
        let (mut full, mut free) = (0, None);
        for step in 0..3000 {
            if step == 5 {
                free = Some(scene.free().0);
            }
            let (number, values) = &mut all[random.below(4) as usize];
            let prefix = ["user.", "trusted.", "security."][random.below(3) as usize].as_bytes();
            // Few different names, some of them long, and one that ends in bytes above 127.
            let suffix = format!("{}", random.below(12)).repeat(1 + random.below(2) as usize * 60);
            let end: &[u8] = if random.below(12) == 0 { &[0xC3, 0xA4] } else { b"" };
            let name = [prefix, suffix.as_bytes(), end].concat();
            let most = if random.below(4) == 0 { 700 } else { 40 };
            let length = random.below(most) as usize;
            let value = vec![random.below(256) as u8; length];
            if values.contains_key(&name) && random.below(2) == 0 {
                change(&scene, *number, &name, None).unwrap();
                values.remove(&name);
            } else {
                match change(&scene, *number, &name, Some(&value)) {
                    Ok(()) => drop(values.insert(name, value)),
                    Err(Error::NoSpace) => full += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(&read(&scene, *number), values);
        }
        assert!(full > 0 || options.contains(&"4096"), "some did not fit");
        assert!(free.is_some());
        judge(&scene, &all);
        // All gone, nothing is left of them.
        for (number, values) in &mut all {
            for name in std::mem::take(values).into_keys() {
                change(&scene, *number, &name, None).unwrap();
            }
            let inode = inode::read(scene.core(), *number).unwrap();
            assert_eq!((inode.attributes, inode.blocks), (0, 0));
        }
        judge(&scene, &all);
    }
}

/// ACLs have a form of their own on the disk.
#[test]
fn lists_are_as_the_kernel_has_them() {
    let entry = |tag: u16, permissions: u16, id: u32| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries = [
        entry(1, 7, none),
        entry(2, 6, 1000),
        entry(4, 5, none),
        entry(8, 4, 77),
        entry(16, 7, none),
        entry(32, 1, none),
    ];
    let list = [&[2, 0, 0, 0][..], &entries.concat()].concat();
    acl::check(&list).unwrap();
    for (size, options) in KINDS {
        let scene = Scene::new(size, &[options, &["-O", "^has_journal"]].concat(), 1);
        let number = scene.file(0);
        change(&scene, number, acl::ACCESS, Some(&list)).unwrap();
        scene
            .change(|core| {
                let inode = inode::read(core, number)?;
                inode::write(core, &inode::Inode { mode: inode.mode & !0o777 | 0o771, ..inode })
            })
            .unwrap();
        change(&scene, ROOT, acl::DEFAULT, Some(&list)).unwrap();
        let root = inode::read(scene.core(), ROOT).unwrap();
        assert_eq!(get(scene.core(), &root, acl::DEFAULT).as_ref(), Ok(&list));
        judge(&scene, &[(number, Values::from([(acl::ACCESS.to_vec(), list.clone())]))]);
    }
}

/// The kernel lets files share a block of the same attributes. Who changes one of them leaves the others as they are.
#[test]
fn a_shared_block_is_left_to_the_others() {
    if !can_mount() {
        return;
    }
    for options in
        [&["-t", "ext2", "-b", "1024", "-I", "128"][..], &["-t", "ext4", "-b", "4096", "-I", "128"]]
    {
        let image = Image::make("8M", &[options, &["-O", "^has_journal"]].concat());
        let value = vec![b'v'; 300];
        {
            let mounted = image.mount("user_xattr");
            for n in 0..6 {
                let path = mounted.dir.join(n.to_string());
                std::fs::write(&path, "").unwrap();
                rustix::fs::setxattr(&path, "user.same", &value, XattrFlags::empty()).unwrap();
            }
        }
        let scene = Scene::of(image.bytes());
        let mut all: Vec<(u32, Values)> =
            (0..6).map(|n| (scene.file(n), Values::from([(b"user.same".to_vec(), value.clone())]))).collect();
        let block = |n: u32| inode::read(scene.core(), scene.file(n)).unwrap().attributes;
        let shared = block(0);
        assert!((0..6).all(|n| block(n) == shared && shared != 0), "the kernel shares");
        change(&scene, all[1].0, b"user.other", Some(b"1")).unwrap();
        all[1].1.insert(b"user.other".to_vec(), b"1".to_vec());
        change(&scene, all[2].0, b"user.same", None).unwrap();
        all[2].1.clear();
        change(&scene, all[3].0, b"user.same", Some(b"new")).unwrap();
        all[3].1.insert(b"user.same".to_vec(), b"new".to_vec());
        assert_eq!([block(0), block(2), block(4)], [shared, 0, shared]);
        judge(&scene, &all);
        for n in [0, 4, 5] {
            change(&scene, all[n].0, b"user.same", None).unwrap();
            all[n].1.clear();
        }
        judge(&scene, &all);
    }
}
