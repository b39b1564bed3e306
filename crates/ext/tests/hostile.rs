//! Damaged and forged file systems: a clear error, or what is there; never a panic, and never without an end.

use crate::support;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::walk::walk;
use crate::support::{Image, specimens};
use disk::{Disk, Memory, Recorded};
use ext::{Error, Options, Volume};

const SECTOR: usize = 512;

/// A file system in memory, in which bytes are changed and changed back.
struct Victim {
    disk: Arc<Disk>,
    image: Vec<u8>,
}

impl Victim {
    fn new(image: Vec<u8>) -> Victim {
        Victim { disk: Arc::new(Disk::memory(image.clone())), image }
    }

    /// Puts `bytes` at byte `at` for as long as `see` looks.
    fn with<R>(&self, at: usize, bytes: &[u8], see: impl FnOnce(&Arc<Disk>) -> R) -> R {
        let start = at - at % SECTOR;
        let end = (at + bytes.len()).next_multiple_of(SECTOR);
        let mut sectors = self.image[start..end].to_vec();
        sectors[at - start..at - start + bytes.len()].copy_from_slice(bytes);
        self.disk.write(disk::Purpose::Metadata, start as u64, &sectors).unwrap();
        let seen = see(&self.disk);
        self.disk.write(disk::Purpose::Metadata, start as u64, &self.image[start..end]).unwrap();
        seen
    }
}

/// Opens and looks at everything; gives whether anything was found to be wrong.
fn look(disk: &Arc<Disk>) -> bool {
    let began = Instant::now();
    let found = match Volume::open(disk.clone(), &Options { cache_bytes: 1 << 20, ..Options::default() }) {
        Ok(volume) => {
            let (_, errors) = walk(&volume);
            for error in &errors {
                assert!(!error.to_string().is_empty());
            }
            let checked = ext::check(disk.clone(), &Options { cache_bytes: 1 << 20, ..Options::default() });
            !errors.is_empty() || checked.map_or(true, |report| !report.is_clean())
        }
        Err(_) => true,
    };
    assert!(began.elapsed() < Duration::from_secs(60), "it took {:?}", began.elapsed());
    found
}

/// Where metadata is: what a walk reads, but for the contents of files, which are all `x`.
fn metadata(image: &[u8]) -> Vec<usize> {
    let read = Arc::new(Mutex::new(BTreeSet::new()));
    let device = Recorded::new(Arc::new(Memory::new(image.to_vec(), false)), {
        let read = read.clone();
        move |event| read.lock().unwrap().extend((event.at / 1024)..(event.at + event.length).div_ceil(1024))
    });
    let disk = Arc::new(Disk::over("recorded".into(), Arc::new(device)));
    assert!(!look(&disk), "the specimen is sound");
    let blocks = read.lock().unwrap().iter().map(|block| *block as usize * 1024).collect::<Vec<_>>();
    blocks
        .into_iter()
        .filter(|at| image[*at..*at + 1024].iter().any(|byte| !matches!(byte, 0 | b'x')))
        .collect()
}

/// Bytes of every block of metadata, others in each file system.
#[test]
fn every_part_of_the_metadata_changed() {
    for (n, (name, image)) in specimens::all().into_iter().enumerate() {
        let has_checksums = Volume::open(Arc::new(Disk::memory(image.clone())), &Options::default()).is_ok()
            && ext::info(&Arc::new(Disk::memory(image.clone())))
                .unwrap()
                .features
                .ro_compat
                .contains(ext::RoCompat::METADATA_CSUM);
        let blocks = metadata(&image);
        let victim = Victim::new(image);
        let (mut changed, mut found, mut missed) = (0, 0, Vec::new());
        for (b, block) in blocks.iter().enumerate() {
            for at in (*block..block + 1024).skip((b + n) % 23).step_by(23) {
                // What is 0 seldom means something but in the superblock.
                if victim.image[at] == 0 && *block != 1024 && at % 5 != 0 {
                    continue;
                }
                let new = victim.image[at] ^ [0xFF, 0x01, 0x80, 0x10][(at / 23) % 4];
                changed += 1;
                if victim.with(at, &[new], look) { found += 1 } else { missed.push(at) }
            }
        }
        println!("{name}: {} blocks, {found} of {changed} changes were found", blocks.len());
        assert!(changed > 200 && found * 10 > changed);
        if has_checksums {
            // Not covered: what a walk does not look at in a block that it reads.
            assert!(found * 10 > changed * 8, "checksums find most changes");
        }
    }
}

/// Words that lengths, counts and addresses like least.
#[test]
fn extreme_numbers() {
    for (n, (_, image)) in specimens::all().into_iter().enumerate() {
        let blocks = metadata(&image);
        let victim = Victim::new(image);
        for (b, block) in blocks.iter().enumerate() {
            for at in (*block..block + 1024).step_by(4).skip((b + n) % 67).step_by(67) {
                for word in [0, 1, 0x7FFF_FFFF, 0xFFFF_FFFF, (*block / 1024) as u32, 0x0001_0000] {
                    victim.with(at, &word.to_le_bytes(), look);
                }
            }
        }
    }
}

#[test]
fn disks_cut_short_are_refused() {
    let image = specimens::make(&["-t", "ext4", "-b", "1024"]);
    for length in [0, 512, 1024, 1536, 2047] {
        let error = Volume::open(Arc::new(Disk::memory(image[..length].to_vec())), &Options::default())
            .err()
            .unwrap();
        assert!(matches!(error, Error::NotExt { .. }), "{length}: {error}");
    }
    for length in [2048, 4096, 1 << 20, image.len() - 512] {
        let error = Volume::open(Arc::new(Disk::memory(image[..length].to_vec())), &Options::default())
            .err()
            .unwrap();
        assert!(matches!(error, Error::CutShort { .. }), "{length}: {error}");
    }
}

#[test]
fn what_is_no_ext_is_told_so() {
    for image in [vec![0; 1 << 20], vec![0xFF; 1 << 20], b"a text".repeat(10_000)] {
        let error = Volume::open(Arc::new(Disk::memory(image)), &Options::default()).err().unwrap();
        assert!(matches!(error, Error::NotExt { .. }), "{error}");
    }
}

#[test]
fn what_is_there_instead_is_named() {
    let cases: [(usize, &[u8], &str); 7] = [
        (0, b"XFSB", "but an XFS file system"),
        (65600, b"_BHRfS_M", "but a btrfs file system"),
        (0, b"LUKS\xBA\xBE\0\x02", "but a LUKS container: `cryptsetup open` it"),
        (510, &[0x55, 0xAA], "but an MBR partition table: name one of the partitions"),
        (4096, b"EFI PART", "but a GPT partition table: name one of the partitions"),
        (512, b"LABELONE", "but an LVM physical volume: name one of the logical volumes"),
        (0, b"", "but zeros"),
    ];
    for (at, magic, words) in cases {
        let mut image = vec![0; 1 << 20];
        image[at..at + magic.len()].copy_from_slice(magic);
        let disk = Arc::new(Disk::memory(image));
        let error = Volume::open(disk, &Options::default()).err().unwrap().to_string();
        assert!(error.contains(words) && error.contains("nothing was changed"), "{error}");
    }
}

#[test]
fn features_that_are_not_supported_are_named() {
    let victim = Victim::new(specimens::make(&["-t", "ext2", "-b", "1024", "-I", "128"]));
    let incompat = 1024 + 0x60;
    for (bit, name) in [
        (0x10000u32, "encrypt"),
        (0x20000, "casefold"),
        (0x400, "ea_inode"),
        (1 << 29, "incompat:0x20000000"),
    ] {
        victim.with(incompat, &(bit | 2).to_le_bytes(), |disk| {
            let error = Volume::open(disk.clone(), &Options::default()).err().unwrap();
            assert!(
                matches!(error, Error::Unsupported { .. }) && error.to_string().contains(name),
                "{error}"
            );
            assert!(ext::info(disk).unwrap().features.names().contains(&name.to_string()));
        });
    }
    // Who only reads need not know these.
    victim.with(1024 + 0x64, &0x8000_0103u32.to_le_bytes(), |disk| assert!(!look(disk)));
}

/// They were called damage, and e2fsck was to mend them.
#[test]
fn larger_blocks_than_there_are_here_are_not_supported() {
    let image = Image::make("64M", &["-t", "ext4", "-b", "65536"]).bytes();
    let disk = Arc::new(Disk::memory(image));
    for error in [Volume::open(disk.clone(), &Options::default()).err(), ext::info(&disk).err()] {
        let error = error.unwrap();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("blocks of 64 KiB"), "{error}");
    }
    let victim = Victim::new(specimens::make(&["-t", "ext2", "-b", "1024", "-I", "128"]));
    victim.with(1024 + 0x18, &7u32.to_le_bytes(), |disk| {
        let error = Volume::open(disk.clone(), &Options::default()).err().unwrap();
        assert!(matches!(error, Error::Superblock { .. }), "{error}");
    });
}

#[test]
fn a_file_system_with_errors_is_refused_with_advice() {
    let victim = Victim::new(specimens::make(&["-t", "ext2", "-b", "1024", "-I", "128"]));
    victim.with(1024 + 0x3A, &[2, 0], |disk| {
        let error = Volume::open(disk.clone(), &Options::default()).err().unwrap();
        assert!(matches!(error, Error::HasErrors { .. }) && error.to_string().contains("e2fsck"), "{error}");
    });
}

#[test]
fn a_file_system_that_another_machine_has_is_refused() {
    let image = specimens::make(&["-t", "ext4", "-b", "1024", "-O", "mmp,^metadata_csum"]);
    let block = u64::from_le_bytes(image[1024 + 0x168..][..8].try_into().unwrap()) as usize * 1024;
    let victim = Victim::new(image);
    assert!(!look(&victim.disk));
    victim.with(block + 4, &7u32.to_le_bytes(), |disk| {
        let error = Volume::open(disk.clone(), &Options::default()).err().unwrap();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
    });
}

/// The Hurd has high bits of a file's mode where Linux, with `64bit` alone, has those of the block of its attributes.
#[test]
fn a_file_of_the_hurd_was_damaged() {
    let mut image = specimens::make(&["-t", "ext2", "-b", "1024", "-o", "hurd"]);
    let at = inode_at(&image, "/");
    image[at + 0x76] = 1;
    Image::of(&image).fsck();
    let volume = Volume::open(Arc::new(Disk::memory(image)), &Options::default()).unwrap();
    let names = vfs::FileSystem::listxattr(&volume, &vfs::Caller::root(), vfs::ROOT_INO).unwrap();
    assert!(names.is_empty(), "{names:?}");
}

/// Where the i-node of a path is, by debugfs.
fn inode_at(image: &[u8], path: &str) -> usize {
    let file = support::Image::of(image);
    let told = support::run("debugfs", &["-R", &format!("imap {path}"), &file.path.display().to_string()]);
    // "… located at block 33, offset 0x0580"
    let word = |after: &str| {
        told.split(after).nth(1).unwrap().split([',', '\n', ' ']).next().unwrap().trim().to_string()
    };
    let block: usize = word("located at block ").parse().unwrap();
    block * 1024 + usize::from_str_radix(word("offset 0x").as_str(), 16).unwrap()
}

/// Pointers that lead to themselves, on every level: reading and looking for holes come to an end.
#[test]
fn pointers_in_a_circle_come_to_an_end() {
    let image = specimens::make(&["-t", "ext2", "-b", "1024", "-I", "128"]);
    let at = inode_at(&image, "sparse");
    let indirect = u32::from_le_bytes(image[at + 0x28 + 48..][..4].try_into().unwrap()).to_le_bytes();
    let block = u32::from_le_bytes(indirect) as usize * 1024;
    let victim = Victim::new(image.clone());
    // Its indirect block is also its double and triple one, and points to itself throughout.
    victim.disk.write(disk::Purpose::Metadata, block as u64, &indirect.repeat(256)).unwrap();
    victim.with(at + 0x28 + 48, &indirect.repeat(3), |disk| {
        victim_size(disk, at, u64::MAX >> 1);
        assert!(look(disk));
    });
}

/// Sets a file's size.
fn victim_size(disk: &Disk, at: usize, size: u64) {
    let mut sector = vec![0; SECTOR];
    let start = at - at % SECTOR;
    disk.read(disk::Purpose::Metadata, start as u64, &mut sector).unwrap();
    sector[at - start + 4..][..4].copy_from_slice(&(size as u32).to_le_bytes());
    sector[at - start + 0x6C..][..4].copy_from_slice(&((size >> 32) as u32).to_le_bytes());
    disk.write(disk::Purpose::Metadata, start as u64, &sector).unwrap();
}

/// An extent node that is its own child: its depth does not fit.
#[test]
fn extents_in_a_circle_are_damage() {
    let image = specimens::make(&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    let at = inode_at(&image, "sparse") + 0x28;
    assert_eq!(image[at + 6], 1, "the tree has one level below its root");
    let node = u32::from_le_bytes(image[at + 16..][..4].try_into().unwrap()) as usize * 1024;
    let victim = Victim::new(image);
    let itself = [&[0; 4][..], &(node as u32 / 1024).to_le_bytes(), &[0; 4]].concat();
    let header = [0x0A, 0xF3, 1, 0, 4, 0, 1, 0, 0, 0, 0, 0];
    victim.with(node, &[&header[..], &itself].concat(), |disk| assert!(look(disk)));
    victim.with(at + 6, &[5], |disk| assert!(look(disk)));
}

/// A directory in itself is one more directory: names don't end, walks that are told of numbers do.
#[test]
fn a_directory_in_itself_is_read_as_it_is() {
    let image = specimens::make(&["-t", "ext2", "-b", "1024", "-I", "128"]);
    // The entry `b` of `a` leads to `a`.
    let entry = [1, 0, b'b'];
    let found = image
        .windows(4)
        .position(|bytes| bytes[..1] == entry[..1] && bytes[1] == 2 && bytes[2..3] == entry[2..])
        .unwrap();
    let dot = (found - 6) / 1024 * 1024;
    let victim = Victim::new(image.clone());
    victim.with(found - 6, &image[dot..dot + 4], |disk| {
        look(disk);
    });
}

/// Two structures that share a block are found by whoever comes second.
#[test]
fn a_block_of_two_directories_is_damage() {
    let image = specimens::make(&["-t", "ext2", "-b", "1024", "-I", "128"]);
    let (first, second) = (inode_at(&image, "a") + 0x28, inode_at(&image, "a/b") + 0x28);
    let victim = Victim::new(image.clone());
    victim.with(second, &image[first..first + 4], |disk| {
        let volume = Volume::open(disk.clone(), &Options::default()).unwrap();
        let (_, errors) = walk(&volume);
        assert!(errors.iter().any(|error| error.to_string().contains("its use")), "{errors:?}");
    });
}

/// A hole in a directory as large as the numbers allow is passed over at once.
#[test]
fn a_huge_directory_of_holes_is_refused() {
    let image = specimens::make(&["-t", "ext4", "-b", "1024", "-O", "large_dir,^metadata_csum"]);
    let at = inode_at(&image, "a/b/c");
    let victim = Victim::new(image.clone());
    victim.with(at, &image[at..at + 1], |disk| {
        victim_size(disk, at, 1 << 50);
        assert!(look(disk));
    });
}
