//! Inodes with fewer fields than ours have (`i_extra_isize`): the kernel and we read the same of them, before we change them and behind that.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::support::{Image, can_mount, run};
use ext::{Options, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::{Attr, Caller, FileSystem, ROOT_INO, SetAttr, SetTime, Time, XattrMode};

/// Bytes of fields behind the first 128, and the name of what each four are, from the second on.
const SIZES: [usize; 8] = [4, 8, 12, 16, 20, 24, 28, 32];
const FIELDS: [&str; 5] = ["ctime_extra", "mtime_extra", "atime_extra", "crtime", "crtime_extra"];
/// The year 2106, and what of a time without a second field is left of it.
const LATER: Time = Time { sec: 0x1_0000_0000, nsec: 123_456_789 };
const NARROW: Time = Time { sec: i32::MAX as i64, nsec: 0 };

/// Files `4` to `32` by how many bytes of fields they have, with nanoseconds in all fields that can have them; and `4-a` and so on, which have an attribute
/// behind the fields.
fn made(options: &[&str]) -> Image {
    let source = tempfile::tempdir().unwrap();
    let mut commands = String::new();
    for (size, has_attribute) in all() {
        let name = name(size, has_attribute);
        std::fs::write(source.path().join(&name), "").unwrap();
        for (n, field) in FIELDS.into_iter().enumerate() {
            let value = if (n + 2) * 4 <= size { (500_000_000 + n) << 2 } else { 0 };
            commands += &format!("sif /{name} {field} {value}\n");
        }
        commands += &format!("sif /{name} extra_isize {size}\n");
        if has_attribute {
            commands += &format!("ea_set /{name} user.a value\n");
        }
    }
    let from = source.path().display().to_string();
    let image = Image::make("16M", &[&["-t", "ext4", "-I", "256", "-d", &from], options].concat());
    let list = image.path.with_extension("commands");
    std::fs::write(&list, commands).unwrap();
    run("debugfs", &["-w", "-f", &list.display().to_string(), &image.path.display().to_string()]);
    image.fsck();
    image
}

fn all() -> impl Iterator<Item = (usize, bool)> {
    SIZES.into_iter().flat_map(|size| [(size, false), (size, true)])
}

fn name(size: usize, has_attribute: bool) -> String {
    format!("{size}{}", if has_attribute { "-a" } else { "" })
}

fn look(volume: &Volume, name: &str) -> Attr {
    volume.lookup(&Caller::root(), ROOT_INO, name.as_bytes()).unwrap()
}

/// The kernel finds in all of them what we do.
fn compare(image: &Image) {
    let attributes = ["user.a", "user.b"];
    let volume = image.open();
    let ours = all().map(|(size, has_attribute)| {
        let name = name(size, has_attribute);
        let attr = look(&volume, &name);
        let values = attributes.map(|key| volume.getxattr(&Caller::root(), attr.ino, key.as_bytes()).ok());
        (name, attr, values)
    });
    let ours: Vec<_> = ours.collect();
    drop(volume);
    let mounted = image.mount("ro");
    for (name, attr, values) in ours {
        let path = mounted.dir.join(&name);
        let theirs = std::fs::metadata(&path).unwrap();
        let time = |sec: i64, nsec: i64| Time { sec, nsec: nsec as u32 };
        assert_eq!(attr.atime, time(theirs.atime(), theirs.atime_nsec()), "atime of {name}");
        assert_eq!(attr.mtime, time(theirs.mtime(), theirs.mtime_nsec()), "mtime of {name}");
        assert_eq!(attr.ctime, time(theirs.ctime(), theirs.ctime_nsec()), "ctime of {name}");
        assert_eq!(values, attributes.map(|key| value(&path, key)), "attributes of {name}");
    }
}

fn value(path: &Path, attribute: &str) -> Option<Vec<u8>> {
    let mut bytes = [0; 100];
    let length = rustix::fs::getxattr(path, attribute, &mut bytes[..]).ok()?;
    Some(bytes[..length].to_vec())
}

/// With fewer than 16 bytes of fields all times lost their nanoseconds as soon as anything of the inode changed.
#[test]
fn inodes_with_few_fields_are_as_the_kernel_has_them() {
    if !can_mount() {
        return;
    }
    for options in [&["-O", "metadata_csum"][..], &["-O", "^metadata_csum"]] {
        let image = made(options);
        compare(&image);
        let zone = Zone::anonymous(14 << 20, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("disk", VolumeKind::Ext, None).unwrap();
        let disk = image.disk(false);
        ext::attach(&region, &disk).unwrap();
        let volume = Volume::mount(&region, disk, &Options::default()).unwrap();
        let root = Caller::root();
        for (size, has_attribute) in all() {
            let name = name(size, has_attribute);
            let before = look(&volume, &name);
            volume
                .setattr(&root, before.ino, &SetAttr { mode: Some(0o600), ..SetAttr::default() }, None)
                .unwrap();
            let after = look(&volume, &name);
            assert_eq!(
                (before.atime, before.mtime, before.btime),
                (after.atime, after.mtime, after.btime),
                "{name}"
            );
            let later = Some(SetTime::At(LATER));
            let set = SetAttr { atime: later, mtime: later, ctime: Some(LATER), ..SetAttr::default() };
            volume.setattr(&root, before.ino, &set, None).unwrap();
            // Where nothing stands behind the fields there is room for all of them.
            let expected = |end: usize| if size >= end || !has_attribute { LATER } else { NARROW };
            let after = look(&volume, &name);
            assert_eq!(
                (after.ctime, after.mtime, after.atime),
                (expected(8), expected(12), expected(16)),
                "{name}"
            );
            if size % 8 == 0 {
                volume.setxattr(&root, before.ino, b"user.b", b"another value", XattrMode::Either).unwrap();
            }
        }
        volume.syncfs().unwrap();
        volume.detach().unwrap();
        drop(volume);
        image.fsck();
        compare(&image);
    }
}
