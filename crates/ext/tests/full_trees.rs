//! Directories whose hash tree has all the blocks that two levels lead to: what we fill the kernel takes on, and the other way round.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use crate::support::random::Random;
use crate::support::{Image, can_mount, run};
use disk::Disk;
use ext::{Options, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::{Caller, Error, FileSystem, Ino, OpenFlags, ROOT_INO, RenameFlags};

/// Fewer make no tree of two levels of 1 KiB blocks full, whoever splits them: a third of what they lead to is used.
const NAMES_MIN: usize = 15_000;

type Names = BTreeSet<String>;

/// Who changes the directory. A name that finds no room is told by `false`.
trait Directory {
    fn add(&self, name: &str) -> bool;
    fn remove(&self, name: &str);
    fn names(&self) -> Names;
}

struct Ours<'a> {
    volume: &'a Volume,
    dir: Ino,
    file: Ino,
}

impl Ours<'_> {
    /// Nothing gets a name for which there is no room, by whatever operation, and nothing of the attempt is left.
    fn refuse(&self, name: &str) {
        let (root, volume, name) = (Caller::root(), self.volume, name.as_bytes());
        let free = volume.statfs().unwrap();
        let none = RenameFlags::empty();
        let results = [
            volume.mkdir(&root, self.dir, name, 0o755).map(drop),
            volume.symlink(&root, self.dir, name, &[b't'; 200]).map(drop),
            volume.create(&root, self.dir, name, 0o644, OpenFlags::WRITE).map(drop),
            volume.rename(&root, ROOT_INO, b"file", self.dir, name, none),
        ];
        assert_eq!(results, [const { Err(Error::NoSpace) }; 4]);
        volume.syncfs().unwrap();
        let now = volume.statfs().unwrap();
        assert_eq!((now.blocks_free, now.files_free), (free.blocks_free, free.files_free));
    }
}

impl Directory for Ours<'_> {
    fn add(&self, name: &str) -> bool {
        match self.volume.link(&Caller::root(), self.file, self.dir, name.as_bytes()) {
            Ok(_) => true,
            Err(Error::NoSpace) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn remove(&self, name: &str) {
        self.volume.unlink(&Caller::root(), self.dir, name.as_bytes()).unwrap();
    }

    fn names(&self) -> Names {
        let mut names = Names::new();
        let mut add = |entry: vfs::DirEntry<'_>| {
            assert!(names.insert(String::from_utf8(entry.name.to_vec()).unwrap()), "twice");
            true
        };
        self.volume.readdir(self.dir, 0, &mut add).unwrap();
        assert!(names.remove(".") && names.remove(".."));
        names
    }
}

/// Below where the kernel has mounted the image.
struct Kernels<'a>(&'a Path);

impl Directory for Kernels<'_> {
    fn add(&self, name: &str) -> bool {
        match std::fs::hard_link(self.0.join("file"), self.0.join("dir").join(name)) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::StorageFull => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.0.join("dir").join(name)).unwrap();
    }

    fn names(&self) -> Names {
        let entries = std::fs::read_dir(self.0.join("dir")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// Adds long names until one finds no room, and gives that.
fn fill(dir: &impl Directory, names: &mut Names, random: &mut Random) -> String {
    loop {
        let name = format!("{:x<1$}", random.next(), 240 + random.below(15) as usize);
        if !dir.add(&name) {
            return name;
        }
        names.insert(name);
    }
}

/// What is full stays so for a name that found no room; what is removed makes room, for the same names and for others.
fn use_full(dir: &impl Directory, names: &mut Names, refused: &str, random: &mut Random) {
    assert!(&dir.names() == names);
    assert!(!dir.add(refused), "it has found room");
    for name in names.iter().filter(|_| random.below(5) == 0) {
        dir.remove(name);
        assert!(dir.add(name), "no room for what was there");
    }
    let removed: Vec<String> = names.iter().filter(|_| random.below(3) == 0).cloned().collect();
    for name in removed {
        dir.remove(&name);
        names.remove(&name);
    }
    let before = names.len();
    fill(dir, names, random);
    assert!(names.len() > before, "nothing has found room");
    assert!(&dir.names() == names);
}

fn by_us<R>(image: &Image, change: impl FnOnce(&Ours<'_>) -> R) -> R {
    let zone = Zone::anonymous(40 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, Some(36 << 20)).unwrap();
    let disk: Arc<Disk> = image.disk(false);
    ext::attach(&region, &disk).unwrap();
    let volume = Volume::mount(&region, disk.clone(), &Options::default()).unwrap();
    let find = |name: &[u8]| volume.lookup(&Caller::root(), ROOT_INO, name).unwrap().ino;
    let done = change(&Ours { volume: &volume, dir: find(b"dir"), file: find(b"file") });
    let space = volume.statfs().unwrap();
    assert!(space.blocks_free > space.blocks / 4, "the disk is full, not the tree");
    volume.detach().unwrap();
    drop((volume, disk));
    image.fsck();
    done
}

fn by_the_kernel<R>(image: &Image, change: impl FnOnce(&Kernels<'_>) -> R) -> R {
    let done = {
        let mounted = image.mount("");
        change(&Kernels(&mounted.dir))
    };
    image.fsck();
    done
}

fn image(options: &[&str]) -> Image {
    let image =
        Image::make("64M", &[options, &["-b", "1024", "-N", "64", "-O", "dir_index,^large_dir"]].concat());
    let list = image.path.with_extension("commands");
    std::fs::write(&list, "mkdir dir\nwrite /dev/null file\n").unwrap();
    run("debugfs", &["-w", "-f", &list.display().to_string(), &image.path.display().to_string()]);
    image
}

const KINDS: [&[&str]; 2] = [&["-t", "ext2"], &["-t", "ext4", "-O", "^has_journal"]];

/// Ends with an empty directory, which can be removed.
fn finish(image: &Image, names: &Names) {
    by_us(image, |dir| {
        names.iter().for_each(|name| dir.remove(name));
        dir.volume.rmdir(&Caller::root(), ROOT_INO, b"dir").unwrap();
    });
}

#[test]
fn a_tree_that_we_fill_is_one_that_the_kernel_goes_on_with() {
    if !can_mount() {
        return;
    }
    for (seed, options) in (1..).zip(KINDS) {
        let (random, mut names) = (&mut Random::new(seed), Names::new());
        let image = image(options);
        let refused = by_us(&image, |dir| {
            let refused = fill(dir, &mut names, random);
            dir.refuse(&refused);
            refused
        });
        assert!(names.len() > NAMES_MIN, "{} names", names.len());
        by_the_kernel(&image, |dir| use_full(dir, &mut names, &refused, random));
        by_us(&image, |dir| assert!(dir.names() == names));
        finish(&image, &names);
    }
}

#[test]
fn a_tree_that_the_kernel_fills_is_one_that_we_go_on_with() {
    if !can_mount() {
        return;
    }
    for (seed, options) in (11..).zip(KINDS) {
        let (random, mut names) = (&mut Random::new(seed), Names::new());
        let image = image(options);
        let refused = by_the_kernel(&image, |dir| fill(dir, &mut names, random));
        assert!(names.len() > NAMES_MIN, "{} names", names.len());
        by_us(&image, |dir| use_full(dir, &mut names, &refused, random));
        by_the_kernel(&image, |dir| assert!(dir.names() == names));
        finish(&image, &names);
    }
}
