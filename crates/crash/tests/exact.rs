//! What crashing each recovery once, for all that store the same, does not find, and [`Lab::exact`] does.

use crash::{Id, Lab, Mounted, Native, Operation, Promise, Subject, Violation, Workload, catalogue};
use nvm::{Event, EventKind, Purpose, Recording, Region, Zone};

/// A word that every recovery sets before anything else, and clears behind everything else. It is in a block that the volume has for its superblock,
/// behind that.
const RECOVERING: u64 = 512;
/// A word in a line of its own, which is looked at only by a recovery that finds another one to have been cut short.
const HINT: u64 = 1024;
/// What must not be there then, what is stored over it, and what a recovery may put in its place.
const WRONG: u64 = 7;
const RIGHT: u64 = 8;
const NONE: u64 = 9;

/// A native volume with a recovery that goes wrong after one which was cut short, if of a hint the first version has arrived.
#[derive(Debug, PartialEq)]
enum Hinted {
    /// Every recovery reads the hint, and does the same whatever it is; not only the one that goes wrong.
    ReadByAll,
    /// Only that one reads it.
    ReadAgain,
    /// The same, and each recovery begins by putting something else in its place: it has to be cut before that has arrived.
    Overwritten,
}

const SOUND: &Native = &Native::ADAPTIVE;

impl Subject for Hinted {
    fn name(&self) -> &'static str {
        "hinted"
    }

    fn promises(&self) -> &'static [Promise] {
        SOUND.promises()
    }

    fn can(&self, operation: &Operation) -> bool {
        SOUND.can(operation)
    }

    fn volume_bytes(&self) -> u64 {
        SOUND.volume_bytes()
    }

    fn format(&self, zone: &Zone, name: &str) -> Result<Region, String> {
        SOUND.format(zone, name)
    }

    fn number_this_thread(&self, number: usize) {
        SOUND.number_this_thread(number);
    }

    fn open(&self, region: &Region, promise: Promise) -> Result<Box<dyn Mounted>, String> {
        let is_again = region.load_u64(RECOVERING) != 0;
        let is_wrong = (is_again || *self == Hinted::ReadByAll) && region.load_u64(HINT) == WRONG;
        if is_again && is_wrong {
            return Err("it follows the wrong hint".into());
        }
        region.persist_u64(Purpose::Metadata, RECOVERING, 1).ignore();
        if *self == Hinted::Overwritten {
            region.persist_u64(Purpose::Metadata, HINT, NONE).ignore();
        }
        let opened = SOUND.open(region, promise);
        region.persist_u64(Purpose::Metadata, RECOVERING, 0).ignore();
        opened
    }

    fn check(&self, region: &Region) -> Result<(), String> {
        SOUND.check(region)
    }
}

/// Has the hint stored behind the opening of the volume, twice, and sent nowhere.
fn hint(recording: &mut Recording) {
    let opened = recording.operations.iter().position(|name| name == "opened").unwrap();
    let is_mark = |event: &Event| event.kind == EventKind::Mark && usize::from(event.operation) == opened;
    let at = recording.events.iter().position(is_mark).unwrap() + 1;
    let store = *recording.events.iter().find(|event| event.kind.is_store()).unwrap();
    let address = recording.volumes[usize::from(store.volume)].start + HINT;
    for (at, value) in (at..).zip([WRONG, RIGHT]) {
        let bytes_at = Some(recording.bytes.len() as u64);
        let event = Event { kind: EventKind::Store, address, length: 8, bytes_at, ..store };
        recording.bytes.extend(value.to_le_bytes());
        recording.events.insert(at, event);
    }
}

fn workload() -> Workload {
    Workload { from: 0, ..Workload::named(SOUND, "create", 1, &catalogue()).unwrap() }
}

fn explored(subject: &'static Hinted, exact: bool) -> Option<Violation> {
    let workload = workload();
    let mut lab = Lab::new(subject, Promise::Operation, 2);
    if exact {
        lab.exact();
    }
    assert_eq!(lab.explore(&workload).unwrap().violation.map(|it| it.what), None, "without the hint");
    lab.tamper(hint);
    lab.explore(&workload).unwrap().violation
}

fn only_exactly_found(subject: &'static Hinted) {
    assert!(explored(subject, false).is_none(), "once for all that store the same, it is not found");
    let found = explored(subject, true).expect("exactly, it is found");
    assert!(found.deepest().what.contains("it follows the wrong hint"), "{found:?}");
    assert!(found.deeper.is_some(), "only of a recovery that was cut short: {found:?}");
    // It is found again by a name that says how deep, whatever else the lab does.
    let judged = |depth: u32| {
        let id = Id {
            subject: "hinted".into(),
            workload: "create".into(),
            promise: Promise::Operation,
            seed: 1,
            event: found.event,
            lines: found.lines.clone(),
            depth,
        };
        let mut lab = Lab::new(subject, Promise::Operation, 3 - depth);
        lab.exact();
        lab.tamper(hint);
        lab.replay(&workload(), &id).unwrap().map(|again| again.what)
    };
    assert_eq!((judged(1), judged(2)), (None, Some(found.what.clone())));
}

/// Two recoveries store the same, and lead to the same tree. Only one of them, cut short, is followed by one that goes wrong.
#[test]
fn recoveries_that_store_the_same_and_are_not_the_same() {
    only_exactly_found(&Hinted::ReadByAll);
}

/// The word in which two states differ is read by nobody else, so to all others they are one.
#[test]
fn words_that_are_only_read_after_a_recovery_was_cut_short() {
    only_exactly_found(&Hinted::ReadAgain);
}

/// What a recovery stores over a word does not matter where that has not arrived.
#[test]
fn words_that_a_recovery_stores_to_when_it_was_cut_before() {
    only_exactly_found(&Hinted::Overwritten);
}
