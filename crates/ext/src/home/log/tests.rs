//! What is written to the log is found again, and what is damaged told.

use super::*;
use crate::options::Options;
use crate::support::Image;
use crate::support::attached::{Attached, mount};
use crate::volume::Volume;
use nvm::{OpenOptions, VolumeKind, Zone};

/// Of the disk.
const BLOCKS: u64 = 1 << 10;

fn area() -> (Region, Area) {
    let zone = Zone::anonymous(64 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, Some(16 << 20)).unwrap();
    let mut area = Area::lay_out(&region, 1024, 128, 0).unwrap();
    area.disk_bytes = BLOCKS * 1024;
    (region, area)
}

fn transaction(number: u64) -> Transaction {
    Transaction {
        number,
        blocks: vec![
            (7, Kind::Directory(12), 0b101, vec![number as u8; 1024].into()),
            (9, Kind::Bitmap, u64::MAX, vec![3; 1024].into()),
        ],
        freed: vec![4, 5],
        ranges: vec![4..6, 100..101],
        items: vec![LogItem {
            block: 70,
            page: (*b"   hello  ").into(),
            within: 3..8,
            fresh: number.is_multiple_of(2),
        }],
    }
}

fn all(region: &Region, area: &Area) -> (Vec<Logged>, u64, Option<String>) {
    let log = FoundLog::of(region, area);
    let mut found = Vec::new();
    let each = log.each(|logged| {
        found.push(logged);
        Ok(())
    });
    each.unwrap();
    (found, log.next(), log.damage())
}

fn numbers(region: &Region, area: &Area) -> (Vec<u64>, u64, Option<String>) {
    let (found, next, damage) = all(region, area);
    (found.iter().map(|logged| logged.number).collect(), next, damage)
}

/// Turns all bits of a byte.
fn turn(region: &Region, at: u64) {
    region.store(Purpose::Journal, at, &[!region.bytes(at, 1)[0]]);
}

#[test]
fn what_is_appended_is_read_back() {
    let (region, area) = area();
    let mut log = Log::begin(region.clone(), area.clone(), 5);
    for number in 5..8 {
        log.append(&transaction(number)).unwrap().ignore();
    }
    log.switch();
    log.append(&transaction(8)).unwrap().ignore();
    let (found, next, damage) = all(&region, &area);
    assert_eq!((found.len(), next, damage), (4, 9, None));
    assert_eq!(found[1].blocks[0].2, [(0, vec![6; 128]), (2, vec![6; 128])]);
    assert_eq!(found[1].blocks[1].2.len(), 8);
    assert_eq!((&found[3].freed[..], &found[3].ranges[..]), (&[4, 5][..], &[4..6, 100..101][..]));
    let (item, expected) = (found[3].items[0], &transaction(8).items[0]);
    assert_eq!((item.block, item.offset, item.fresh), (expected.block, 3, expected.fresh));
    assert_eq!(region.bytes(item.at, item.length as usize), expected.bytes());
    area.retire(&region, 1, region.fence(nvm::Flushed::none())).ignore();
    assert_eq!(numbers(&region, &area), (vec![8], 9, None), "a retired epoch is none");
}

#[test]
fn the_log_ends_at_what_is_torn() {
    let (region, area) = area();
    let mut log = Log::begin(region.clone(), area.clone(), 1);
    log.append(&transaction(1)).unwrap().ignore();
    let second = area.half_at(1) + log.at;
    log.append(&transaction(2)).unwrap().ignore();
    turn(&region, second + 100);
    assert_eq!(numbers(&region, &area), (vec![1], 3, None), "and what is torn has its number for itself");
}

#[test]
fn a_full_half_takes_no_more() {
    let (region, area) = area();
    let mut log = Log::begin(region.clone(), area.clone(), 1);
    let mut number = 1;
    while log.append(&transaction(number)).is_ok() {
        number += 1;
    }
    let (filled, half) = log.fill();
    assert!(half - filled < 2048 && number > 500);
    assert_eq!(numbers(&region, &area), ((1..number).collect(), number, None));
}

/// Two epochs of ten records each, and where they begin.
fn written(first: u64) -> (Region, Area, Vec<u64>) {
    let (region, area) = area();
    let mut log = Log::begin(region.clone(), area.clone(), first);
    let mut places = Vec::new();
    for n in 0..20 {
        if n == 10 {
            log.switch();
        }
        places.push(area.half_at(log.epoch % 2) + log.at);
        log.append(&transaction(first + n)).unwrap().ignore();
    }
    (region, area, places)
}

/// Whichever line of a record is damaged, and however many follow it: what is behind is found, and what is missing told.
#[test]
fn damage_is_not_taken_for_the_end() {
    let (_, _, places) = written(1);
    let bytes = places[1] - places[0];
    for (from, to) in [(0, 1), (3, 4), (3, 6), (9, 10), (8, 10), (10, 11), (15, 16), (0, 10), (10, 19)] {
        let (region, area, _) = written(1);
        let lines = (places[from]..places[to - 1] + bytes).step_by(64);
        lines.for_each(|line| turn(&region, line));
        let (found, next, damage) = numbers(&region, &area);
        let whole: Vec<u64> = (1..21).filter(|n| !(from + 1..=to).contains(&(*n as usize))).collect();
        assert_eq!((found, next), (whole, 21), "{from}..{to}");
        let damage = damage.unwrap();
        assert!(
            damage.contains(&format!("record {}", to + 1)) || damage.contains("behind which epoch 2 begins"),
            "{damage}"
        );
    }
    for line in (0..bytes).step_by(64) {
        let (region, area, places) = written(1);
        turn(&region, places[4] + line + 17);
        let (found, _, damage) = numbers(&region, &area);
        assert_eq!(found.len(), 19, "{line}");
        assert_eq!(damage.unwrap(), "record 5, behind which record 6 is whole");
    }
}

/// Whatever byte of it: what follows is found by the salt that its neighbour tells.
#[test]
fn a_damaged_header_of_a_half_loses_no_record() {
    for (half, byte) in [0, 1].into_iter().flat_map(|half| (0..48).map(move |byte| (half, byte))) {
        let (region, area, _) = written(7);
        turn(&region, area.half_at(half) + byte);
        let (found, next, damage) = numbers(&region, &area);
        assert_eq!((found, next), ((7..27).collect(), 27), "byte {byte} of {half}");
        assert!(damage.unwrap().starts_with("the header of its epoch"));
    }
    // When the other half was not begun yet, too; but not of what was never begun.
    let (region, area) = area();
    let mut log = Log::begin(region.clone(), area.clone(), 3);
    log.append(&transaction(3)).unwrap().ignore();
    turn(&region, area.half_at(1) + 20);
    assert_eq!(numbers(&region, &area), (vec![3], 4, Some("the header of its epoch 1".into())));
    let (region, area) = self::area();
    Log::begin(region.clone(), area.clone(), 3);
    turn(&region, area.half_at(1) + 20);
    assert_eq!(numbers(&region, &area), (vec![], 1, None));
}

#[test]
fn an_epoch_that_was_begun_behind_those_that_can_be_is_told() {
    let (region, area) = area();
    area.retire(&region, 8, region.fence(nvm::Flushed::none())).ignore();
    let mut log = Log::begin(region.clone(), area.clone(), 1);
    log.append(&transaction(1)).unwrap().ignore();
    turn(&region, area.half_at(0) + 16);
    area.retire(&region, 0, region.fence(nvm::Flushed::none())).ignore();
    let found = FoundLog::of(&region, &area);
    assert!(found.damage().unwrap().contains("epoch 9 was begun"), "{:?}", found.damage());
    assert_eq!(found.last_epoch(), 9);
}

/// What a half has from before is no record, though all of it is whole.
#[test]
fn what_is_left_of_another_epoch_is_nothing() {
    let (region, area, _) = written(1);
    area.retire(&region, 2, region.fence(nvm::Flushed::none())).ignore();
    assert_eq!(numbers(&region, &area), (vec![], 1, None));
    Log::begin(region.clone(), area.clone(), 21);
    assert_eq!(numbers(&region, &area), (vec![], 21, None));
}

/// The volume that a zone has, as attaching leaves it.
fn attached(zone: &Zone) -> (Region, Area) {
    let region = zone.create_volume("disk", VolumeKind::Ext, Some(16 << 20)).unwrap();
    let mut area = Area::lay_out(&region, 1024, 128, 0).unwrap();
    area.disk_bytes = BLOCKS * 1024;
    area.clear_log(&region).ignore();
    area.retire(&region, 2, region.fence(nvm::Flushed::none())).ignore();
    (region, area)
}

/// What a removed volume had at the same place, records or files, is neither records nor what salts follow from.
#[test]
fn what_another_volume_left_is_nothing() {
    let zone = Zone::anonymous(64 << 20, &OpenOptions::default()).unwrap();
    let (region, area) = attached(&zone);
    let mut log = Log::begin(region.clone(), area.clone(), 1);
    for n in 1..11 {
        log.append(&transaction(n)).unwrap().ignore();
    }
    let salt = log.salt;
    drop((log, region));
    zone.remove_volume("disk").unwrap();
    let (region, area) = attached(&zone);
    assert_eq!(numbers(&region, &area), (vec![], 1, None));
    let mut log = Log::begin(region.clone(), area.clone(), 1);
    assert_ne!(log.salt, salt);
    for n in 1..4 {
        log.append(&transaction(n)).unwrap().ignore();
    }
    let (found, _, damage) = numbers(&region, &area);
    assert_eq!((found, damage), ((1..4).collect(), None));
    // Without the headers taken away, too: they are another volume's, or none.
    for at in (8 << 20..16 << 20).step_by(4096) {
        region.store(Purpose::Data, at, &[0x41; 4096]);
    }
    assert_eq!(numbers(&region, &area), (vec![], 1, None));
    assert_ne!(Log::begin(region, area, 1).salt, salt_behind(0x4141_4141_4141_4141, 3));
}

/// Bytes of a file that look like a record's beginning, and claim more than there is room for.
#[test]
fn what_a_file_holds_hides_no_damage() {
    let (region, area) = area();
    let mut log = Log::begin(region.clone(), area.clone(), 1);
    for n in 1..6 {
        let claim: [u8; 16] =
            [u64::to_le_bytes(0xFFFF_FFC0 << 32), u64::to_le_bytes(4)].concat().try_into().unwrap();
        let page: Arc<[u8]> = claim.repeat(64).into();
        let items = vec![LogItem { block: 70, page, within: 0..1024, fresh: true }];
        log.append(&Transaction { items, ..transaction(n) }).unwrap().ignore();
    }
    let bytes = (log.at - HEADER) / 5;
    turn(&region, area.half_at(1) + HEADER + bytes + 100);
    assert_eq!(
        numbers(&region, &area),
        (vec![1, 3, 4, 5], 6, Some("record 2, behind which record 3 is whole".into()))
    );
}

/// Of halves whose headers do not say what the salt before was, the first is lost with its header, and the second is not.
#[test]
fn a_header_of_before_is_told_and_loses_what_only_it_leads_to() {
    let (region, area, _) = written(7);
    for half in 0..2 {
        let mut raw = RawHalf::at(&region, &area, half).unwrap();
        raw.before = 0.into();
        raw.crc = raw.checksum(&region).into();
        region.store(Purpose::Journal, area.half_at(half), raw.as_bytes());
    }
    turn(&region, area.half_at(1) + 20);
    assert_eq!(numbers(&region, &area), ((17..27).collect(), 27, Some("the header of its epoch 1".into())));
}

#[test]
fn a_retired_epoch_that_counts_again_is_told_if_two_are_behind_it() {
    let (region, area, _) = written(1);
    area.retire(&region, 1, region.fence(nvm::Flushed::none())).ignore();
    let salt = RawHalf::at(&region, &area, 2).unwrap().salt.get();
    let mut log = Log {
        region: region.clone(),
        area: area.clone(),
        epoch: 2,
        salt,
        next: 21,
        at: HEADER,
        buffer: Vec::new(),
    };
    log.switch();
    log.append(&transaction(21)).unwrap().ignore();
    assert_eq!(numbers(&region, &area), ((11..22).collect(), 22, None));
    area.retire(&region, 0, region.fence(nvm::Flushed::none())).ignore();
    let (found, _, damage) = numbers(&region, &area);
    assert!(found.is_empty() && damage.unwrap().contains("is 0, and epoch 3 was begun"));
    assert_eq!(FoundLog::of(&region, &area).last_epoch(), 3);
}

/// No epoch is so far.
fn turn_up(region: &Region) {
    let area = Area::read(region).unwrap().unwrap();
    area.retire(region, u64::MAX, region.fence(nvm::Flushed::none())).ignore();
}

/// The log seemed empty: what was synced was lost without a word.
#[test]
fn a_retired_epoch_that_cannot_be_was_believed() {
    for (retired, is_told) in [(65_538, false), (65_539, true), (1 << 62, true), (u64::MAX, true)] {
        let (region, area, _) = written(1);
        area.retire(&region, retired, region.fence(nvm::Flushed::none())).ignore();
        let log = FoundLog::of(&region, &area);
        let damage = log.damage().unwrap_or_default();
        let expected = format!("its newest epoch that is emptied is {retired}, and epoch 2 the newest begun");
        assert_eq!(damage, if is_told { expected } else { String::new() });
        assert_eq!(log.last_epoch(), if is_told { 2 } else { 65_540 });
    }
    let zone = Zone::anonymous(64 << 20, &OpenOptions::default()).unwrap();
    let (region, area) = attached(&zone);
    area.retire(&region, u64::MAX, region.fence(nvm::Flushed::none())).ignore();
    let log = FoundLog::of(&region, &area);
    assert!(log.damage().unwrap().contains("and none was begun"), "{:?}", log.damage());
    // Who goes on has a number that counts; and so has who attaches a disk.
    let Attached { zone, memory, volume } = Attached::new();
    drop(volume);
    let region = zone.volume("disk").unwrap();
    let disk = || Arc::new(disk::Disk::over("disk".into(), memory.clone()));
    turn_up(&region);
    let refused = Volume::mount(&region, disk(), &Options::default()).map(drop);
    assert!(matches!(refused, Err(crate::Error::LogDamaged { .. })), "{refused:?}");
    let past_damage = Options { past_damage: true, ..Options::default() };
    drop(Volume::mount(&region, disk(), &past_damage).unwrap());
    mount(&zone, &memory).detach().unwrap();
    let Attached { zone, memory, volume } = Attached::new();
    volume.detach().unwrap();
    drop(volume);
    let region = zone.volume("disk").unwrap();
    turn_up(&region);
    let disk = Arc::new(disk::Disk::over("disk".into(), memory.clone()));
    crate::attach(&region, &disk).unwrap();
    mount(&zone, &memory).detach().unwrap();
}

#[test]
fn the_last_record_of_an_epoch_is_missed_by_where_the_next_begins() {
    let (region, area) = area();
    let mut log = Log::begin(region.clone(), area.clone(), 1);
    log.append(&transaction(1)).unwrap().ignore();
    let second = area.half_at(1) + log.at;
    log.append(&transaction(2)).unwrap().ignore();
    log.switch();
    turn(&region, second + 100);
    assert_eq!(numbers(&region, &area), (vec![1], 3, Some("record 2, behind which epoch 2 begins".into())));
}

/// With right checksums, as only who can write to NVM has them.
#[test]
fn a_record_that_contradicts_itself_is_none() {
    let (region, area, places) = written(1);
    let salt = RawHalf::at(&region, &area, 1).unwrap().salt.get();
    let mut raw: RawRecord = region.load(places[4]);
    let mut record = region.bytes(places[4], raw.bytes.get() as usize).to_vec();
    raw.blocks = 100_000.into();
    record[..RECORD].copy_from_slice(raw.as_bytes());
    raw.crc = salted(salt, &record).into();
    record[..RECORD].copy_from_slice(raw.as_bytes());
    region.store(Purpose::Journal, places[4], &record);
    let (found, _, damage) = numbers(&region, &area);
    assert_eq!((found.len(), damage), (19, Some("record 5, behind which record 6 is whole".into())));
    let mut header = RawHalf::at(&region, &area, 2).unwrap();
    header.first = u64::MAX.into();
    header.crc = header.checksum(&region).into();
    region.store(Purpose::Journal, area.half_at(0), header.as_bytes());
    assert_eq!(numbers(&region, &area).1, 21);
}

/// Whether a volume whose log has only that can be mounted and detached, and what is found of three records of which the second is that.
fn check_is_none(hostile: impl Fn(u64) -> Transaction) {
    let Attached { zone, memory, volume } = Attached::new();
    volume.unmount().unwrap();
    let number = volume.stats().transactions + 1;
    drop(volume);
    let region = zone.volume("disk").unwrap();
    let area = Area::read(&region).unwrap().unwrap();
    let mut log = Log::begin(region, area.clone(), number);
    log.append(&Transaction { number, ..hostile(area.blocks()) }).unwrap().ignore();
    mount(&zone, &memory).unmount().unwrap();
    mount(&zone, &memory).detach().unwrap();
    Image::of(&memory.image()).fsck();
    let (region, area) = self::area();
    let mut log = Log::begin(region.clone(), area.clone(), 1);
    for transaction in [transaction(1), Transaction { number: 2, ..hostile(BLOCKS) }, transaction(3)] {
        log.append(&transaction).unwrap().ignore();
    }
    let missing = Some("record 2, behind which record 3 is whole".into());
    assert_eq!(numbers(&region, &area), (vec![1, 3], 4, missing));
}

/// A block of a file that nobody has.
fn item(block: u64) -> LogItem {
    LogItem { block, page: vec![0; 1024].into(), within: 0..1024, fresh: true }
}

/// Maps that are asked for such a range panic.
#[test]
fn a_range_in_the_log_that_ends_before_it_begins_made_the_mount_panic() {
    for range in
        [|blocks| blocks / 2..4, |blocks| blocks..blocks - 1, |blocks| 7..blocks + 1, |_| 7..u64::MAX]
    {
        check_is_none(|blocks| Transaction {
            ranges: vec![4..5, range(blocks)],
            items: vec![item(blocks - 1)],
            ..Transaction::default()
        });
    }
}

/// Just behind the disk's end it was taken for one that the disk refuses, and the volume could be neither mounted nor detached any more.
#[test]
fn a_block_in_the_log_that_the_disk_does_not_have_went_to_nvm_for_ever() {
    for block in [|blocks| blocks, |_| 1 << 62, |_| u64::MAX] {
        let none = Transaction::default;
        check_is_none(|blocks| Transaction { items: vec![item(block(blocks))], ..none() });
        check_is_none(|blocks| Transaction { freed: vec![block(blocks)], ..none() });
        let metadata = |block| vec![(block, Kind::Bitmap, 0, [].into())];
        check_is_none(|blocks| Transaction { blocks: metadata(block(blocks)), ..none() });
    }
}

/// A page that cannot be read any more reads as zeros: between finding records and reading them, too.
#[test]
fn records_that_are_gone_since_they_were_found_are_an_error() {
    let (region, area, places) = written(1);
    let log = FoundLog::of(&region, &area);
    for gone in [[0u8; 64], [0xFF; 64]] {
        region.store(Purpose::Journal, places[5], &gone);
        let mut count = 0;
        let each = log.each(|_| {
            count += 1;
            Ok(())
        });
        assert!(matches!(each, Err(vfs::Error::Io(_))), "{each:?}");
        assert_eq!(count, 5);
    }
}
