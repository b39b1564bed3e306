//! Damage to what was chosen, and what exactly follows from it.

use super::*;

fn opened(image: &[u8]) -> Result<Tree, Error> {
    let volume = Volume::open(zone_of(image).1, &options(Durability::Operation))?;
    Ok(tree(&volume)?)
}

/// Either superblock and either root slot may go, of a volume that was closed and of one that was killed.
#[test]
fn twins_stand_in() {
    for clean in [true, false] {
        let specimen = specimen(clean);
        for block in SUPERBLOCKS.chain(ROOT_SLOTS) {
            for fill in [0, 0x5a, 0xff] {
                let mut image = specimen.image.clone();
                image[specimen.block(block)].fill(fill);
                let found = opened(&image).unwrap_or_else(|error| panic!("without block {block}: {error}"));
                assert_eq!(difference(&found, &specimen.tree), None, "without block {block}");
                for mend in [preen, |region: &Region| check(region, true)] {
                    let (_zone, region) = zone_of(&image);
                    let at = format!("at block {block} is damaged; the other serves");
                    for (report, repaired) in [(check(&region, false), false), (mend(&region), true)] {
                        let [problem] = &report.unwrap().problems[..] else { panic!("{block}: one problem") };
                        assert!(problem.what.contains(&at) && problem.repaired == repaired, "{problem:?}");
                    }
                    assert!(check(&region, false).unwrap().problems.is_empty());
                }
            }
        }
    }
}

#[test]
fn both_superblocks() {
    let specimen = specimen(true);
    let mut image = specimen.image.clone();
    for block in SUPERBLOCKS {
        image[specimen.block(block).start + 100] ^= 1;
    }
    let error = opened(&image).unwrap_err();
    assert!(matches!(error, Error::SuperblocksDamaged(_)), "{error}");
    assert!(matches!(check(&zone_of(&image).1, true), Err(Error::SuperblocksDamaged(_))));
    for block in SUPERBLOCKS {
        image[specimen.block(block)].fill(0);
    }
    let error = opened(&image).unwrap_err();
    assert!(matches!(error, Error::SuperblocksDamaged(_)), "{error}");
    assert!(recognise(&zone_of(&image).1), "it is not to be overwritten by whoever was told to make one");
    for block in ROOT_SLOTS {
        image[specimen.block(block)].fill(0);
    }
    assert!(matches!(opened(&image), Err(Error::NotNative)));
    assert!(!recognise(&zone_of(&image).1));
}

#[test]
fn both_root_slots() {
    let specimen = specimen(true);
    let mut image = specimen.image.clone();
    for block in ROOT_SLOTS {
        image[specimen.block(block).start] ^= 1;
    }
    let error = opened(&image).unwrap_err().to_string();
    assert!(error.contains("root slot") && error.contains("both copies"), "{error}");
}

/// Numbers to which no volume counts, under checksums that are right: who went on from there ended where numbers do.
#[test]
fn numbers_near_their_end() {
    let specimen = specimen(true);
    let word = |image: &[u8], at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
    let with = |field: usize, number: u64| {
        let mut image = specimen.image.clone();
        for slot in ROOT_SLOTS {
            let at = specimen.block(slot).start;
            image[at + field..at + field + 8].copy_from_slice(&number.to_le_bytes());
            let crc = crc32c::crc32c(&image[at + 4..at + 64]);
            image[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        }
        image
    };
    // A clone counts its mounts from any number below that.
    assert_eq!(difference(&opened(&with(24, (1 << 62) - 1)).unwrap(), &specimen.tree), None);
    assert_eq!(difference(&opened(&with(24, 1 << 62)).unwrap(), &specimen.tree), None);
    // The number of the slot's writing, and of mounts.
    for field in [8, 24] {
        let image = with(field, u64::MAX);
        let error = opened(&image).unwrap_err().to_string();
        assert!(error.contains("root slot"), "{field}: {error}");
        assert!(check(&zone_of(&image).1, true).is_err());
    }
    // The number of the first transaction that the checkpoint has not.
    let mut image = specimen.image.clone();
    let block = word(&image, specimen.block(ROOT_SLOTS.start).start + 16);
    let body = specimen.block(block as usize).start + 64;
    image[body + 48..body + 56].fill(0xff);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&block.to_le_bytes()), &image[body + 4..body + 128]);
    image[body..body + 4].copy_from_slice(&crc.to_le_bytes());
    let error = opened(&image).unwrap_err().to_string();
    assert!(error.contains("number of a transaction"), "{error}");
}

/// A target in a block of its own has no checksum. One that had become zeros was followed as an empty name.
#[test]
fn a_target_that_cannot_be_one() {
    let specimen = specimen(true);
    let is_target = |block: &usize| specimen.image[specimen.block(*block)][..4000] == [b's'; 4000];
    let blocks: Vec<usize> = specimen.of_kind(1..2).into_iter().filter(is_target).collect();
    let [block] = blocks[..] else { panic!("{blocks:?}") };
    for damaged in [0..4096, 17..18] {
        let mut image = specimen.image.clone();
        image[specimen.block(block)][damaged].fill(0);
        let (_zone, region) = zone_of(&image);
        let volume = mount(&region, Durability::Operation);
        let told = volume.readlink(ino(&volume, "symlink"));
        assert!(matches!(told, Err(vfs::Error::Corrupt(_))), "{told:?}");
        volume.close().unwrap();
        drop(volume);
        for repair in [false, true] {
            let report = check(&region, repair).unwrap();
            let [problem] = &report.problems[..] else { panic!("{report:?}") };
            assert!(problem.what.contains("symbolic link") && !problem.repaired, "{problem:?}");
        }
    }
}

/// A superblock of a format that is not known yet is not guessed at.
#[test]
fn a_later_format() {
    let specimen = specimen(true);
    let mut image = specimen.image.clone();
    for block in SUPERBLOCKS {
        let at = specimen.block(block).start;
        image[at + 4..at + 8].copy_from_slice(&99u32.to_le_bytes());
        let crc = crc32c::crc32c(&image[at + 4..at + 184]);
        image[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
    assert!(matches!(opened(&image), Err(Error::Version { found: 99, .. })));
}

/// A volume whose region is shorter than it was made is refused, and so is one that is no volume at all.
#[test]
fn cut_short() {
    let (big_zone, big) = made(32 << 20);
    write_file(&mount(&big, Durability::Operation), ROOT_INO, "f", b"bytes").unwrap();
    let start = big.entry().start as usize;
    let image = big_zone.snapshot_image();
    let zone = Zone::anonymous(18 << 20, &OpenOptions::default()).unwrap();
    let small: Region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
    let options = options(Durability::Operation);
    assert!(matches!(Volume::open(small.clone(), &options), Err(Error::NotNative)));
    let mut bytes = image[start..start + small.len() as usize].to_vec();
    small.store(Purpose::Metadata, 0, &bytes);
    let error = Volume::open(small.clone(), &options).map(drop).unwrap_err();
    assert!(error.to_string().contains("parts of different zones"), "{error}");
    // The same volume in a zone that was cut.
    for block in SUPERBLOCKS {
        let superblock = &mut bytes[block * BLOCK..block * BLOCK + 184];
        superblock[16..32].copy_from_slice(small.uuid().as_bytes());
        let crc = crc32c::crc32c(&superblock[4..]);
        superblock[..4].copy_from_slice(&crc.to_le_bytes());
    }
    small.store(Purpose::Metadata, 0, &bytes);
    let error = Volume::open(small.clone(), &options).map(drop).unwrap_err();
    assert!(matches!(error, Error::CutShort { .. }), "{error}");
    assert!(matches!(check(&small, true), Err(Error::CutShort { .. })));
    // Too small for anything.
    let zone = Zone::anonymous(18 << 20, &OpenOptions::default()).unwrap();
    let tiny = zone.create_volume("v", VolumeKind::Native, Some(4 << 20)).unwrap();
    assert!(matches!(Volume::open(tiny, &options), Err(Error::TooSmall { .. })));
    // The zone itself.
    assert!(Zone::from_bytes(&image[..image.len() / 2], &OpenOptions::default()).is_err());
}

/// Who cannot say which of a segment's blocks are in use does without that segment, until a check has counted them.
#[test]
fn a_damaged_sit_entry_costs_its_segment() {
    for clean in [true, false] {
        let specimen = specimen(clean);
        let free = |region: &Region| native::info(region).unwrap().blocks_free;
        for segment in 0..SEGMENTS {
            let image = specimen.without_sit_of(segment..segment + 1);
            let (_zone, region) = zone_of(&image);
            let volume = mount(&region, Durability::Operation);
            assert_eq!(difference(&tree(&volume).unwrap(), &specimen.tree), None, "segment {segment}");
            write_some(&volume);
            let written = tree(&volume).unwrap();
            volume.close().unwrap();
            drop(volume);
            let quarantined = free(&region);
            let report = check(&region, true).unwrap();
            assert!(report.is_clean(), "segment {segment}: {:?}", report.problems);
            assert_sound(&region);
            assert!(free(&region) > quarantined, "segment {segment}: what is not in use is free again");
            assert_eq!(difference(&tree(&mount(&region, Durability::Operation)).unwrap(), &written), None);
        }
    }
}

/// Without any segment to use there is no room to replay the log in; a check makes some first.
#[test]
fn without_any_sit_entry_a_check_recovers() {
    let specimen = specimen(false);
    let image = specimen.without_sit_of(0..SEGMENTS);
    let error = opened(&image).unwrap_err().to_string();
    assert!(error.contains("SIT") && error.contains("fsck"), "{error}");
    let (_zone, region) = zone_of(&image);
    let report = check(&region, true).unwrap();
    assert!(report.is_clean() && report.recovered && report.problems.len() >= SEGMENTS, "{report:?}");
    assert_sound(&region);
    let found = tree(&mount(&region, Durability::Operation)).unwrap();
    assert_eq!(difference(&found, &specimen.tree), None);
}

/// A block of inodes that cannot be read is an error of the inodes in it, not of their neighbours.
#[test]
fn damage_stays_where_it_is() {
    let specimen = specimen(true);
    let inodes = specimen.of_kind(2..3);
    let mut hurt = 0;
    for block in inodes.iter().step_by(4) {
        let mut image = specimen.image.clone();
        image[specimen.block(*block).start + 256 + 40] ^= 0xff;
        let volume = Volume::open(zone_of(&image).1, &options(Durability::Operation)).unwrap();
        let root = volume.open(&Caller::root(), ROOT_INO, OpenFlags::READ);
        if root.is_err() {
            continue; // that was the root
        }
        let errors = read_all(&volume, &specimen.tree, Tolerance::Nothing).unwrap();
        assert!(errors <= 15, "{errors} inodes suffer from one block's damage");
        hurt += errors;
    }
    assert!(hurt > 0);
}
