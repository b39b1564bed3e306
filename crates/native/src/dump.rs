//! Showing any structure of a volume at rest.

use std::str::FromStr;

use nvm::Region;
use zerocopy::FromBytes;

use crate::Error;
use crate::bia::{BlockKind, Entry};
use crate::directory;
use crate::geometry::BLOCK;
use crate::index;
use crate::inode::{Inode, Layout, nid_of, number_of, slot_of, slots_in};
use crate::inspect::{self, AtRest};
use crate::kept::Kept;
use crate::nat;
use crate::node::{HEADER, NodeHeader, View};
use crate::pointer::DataPointer;
use crate::reader::Reader;
use crate::record::Items;
use crate::sit::{self, SegmentKind, SitEntry, ones};
use crate::superblock::Left;
use crate::xattr;

/// What to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// Identity and areas.
    Superblock,
    /// The root slot in force and the newest checkpoint.
    Checkpoint,
    /// The transactions in the log that the checkpoint does not have.
    Log,
    /// Every node and its block.
    Nat,
    /// The segments that have valid blocks.
    Sit,
    /// What the newest checkpoint changed in the SIT.
    SitJournal,
    /// The list of snapshots.
    Snapshots,
    /// The entries of one segment.
    Bia(u32),
    /// A node, by NID.
    Node(u32),
    /// An inode, with what it holds.
    Inode(u32),
}

impl Structure {
    /// How the structures are named, for people.
    pub const NAMES: &str = "superblock, checkpoint, log, nat, sit, sit-journal, snapshots, bia:SEGMENT, node:NID and inode:NUMBER";
}

impl FromStr for Structure {
    type Err = String;

    fn from_str(text: &str) -> Result<Structure, String> {
        let (name, number) = match text.split_once(':') {
            None => (text, None),
            Some((name, digits)) => {
                let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
                let wrong = if is_number { "too large a number" } else { "no number" };
                let number: u32 =
                    digits.parse().map_err(|_| format!("{digits:?} is {wrong}, in {text:?}"))?;
                (name, Some(number))
            }
        };
        match (name, number) {
            ("superblock", None) => Ok(Structure::Superblock),
            ("checkpoint", None) => Ok(Structure::Checkpoint),
            ("log", None) => Ok(Structure::Log),
            ("nat", None) => Ok(Structure::Nat),
            ("sit", None) => Ok(Structure::Sit),
            ("sit-journal", None) => Ok(Structure::SitJournal),
            ("snapshots", None) => Ok(Structure::Snapshots),
            ("bia", Some(segment)) => Ok(Structure::Bia(segment)),
            ("node", Some(nid)) => Ok(Structure::Node(nid)),
            ("inode", Some(ino)) => Ok(Structure::Inode(ino)),
            _ => Err(format!("no structure {text:?}")),
        }
    }
}

/// What a structure holds: values by name, in the order of the medium.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown(pub Vec<(&'static str, Datum)>);

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datum {
    /// A number.
    Number(u64),
    /// A name, a kind, a time, bytes in hexadecimal.
    Text(String),
    /// Yes or no.
    Flag(bool),
    /// Things of one kind, each with the same names.
    Rows(Vec<Shown>),
}

impl Shown {
    fn number(mut self, name: &'static str, number: impl Into<u64>) -> Shown {
        self.0.push((name, Datum::Number(number.into())));
        self
    }

    fn text(mut self, name: &'static str, text: impl ToString) -> Shown {
        self.0.push((name, Datum::Text(text.to_string())));
        self
    }

    fn flag(mut self, name: &'static str, flag: bool) -> Shown {
        self.0.push((name, Datum::Flag(flag)));
        self
    }

    fn rows(mut self, name: &'static str, rows: Vec<Shown>) -> Shown {
        self.0.push((name, Datum::Rows(rows)));
        self
    }
}

fn new() -> Shown {
    Shown::default()
}

/// Adds what `what` holds, as of the newest checkpoint, to `shown`: also when damage ends it early.
pub fn dump(region: &Region, what: Structure, shown: &mut Shown) -> Result<(), Error> {
    let at_rest = AtRest::read(region)?;
    let (dumped, result) = match what {
        Structure::Superblock => (superblock(&at_rest), Ok(())),
        Structure::Checkpoint => (checkpoint(&at_rest), Ok(())),
        Structure::Log => (log(&at_rest), Ok(())),
        Structure::Nat => nat_entries(&at_rest),
        Structure::Sit => (segments(&at_rest), Ok(())),
        Structure::SitJournal => whole(sit_journal(&at_rest)),
        Structure::Snapshots => snapshots(&at_rest),
        Structure::Bia(segment) => whole(bia(&at_rest, segment)?),
        Structure::Node(nid) => whole(node(&at_rest.nodes(), nid)),
        Structure::Inode(ino) => whole(inode(&at_rest.nodes(), ino)),
    };
    inspect::readable(region)?;
    shown.0.extend(dumped.0);
    result.map_err(|error| match (error, what) {
        (vfs::Error::Stale, Structure::Node(nid)) => Error::NoStructure(format!("node {nid}")),
        (vfs::Error::Stale, Structure::Inode(ino)) => Error::NoStructure(format!("inode {ino}")),
        (error, _) => error.into(),
    })
}

/// All or nothing.
fn whole(dumped: vfs::Result<Shown>) -> (Shown, vfs::Result<()>) {
    dumped.map_or_else(|error| (new(), Err(error)), |shown| (shown, Ok(())))
}

fn superblock(at_rest: &AtRest) -> Shown {
    let (superblock, g) = (&at_rest.superblock, &at_rest.medium.geometry);
    let areas = [
        ("superblocks", 0, 2),
        ("root slots", 2, 4),
        ("log", g.log_start, g.log_start + 2 * g.log_half),
        ("SIT", g.sit_start, g.sit_journal_start),
        ("SIT journal", g.sit_journal_start, g.bia_start),
        ("BIA", g.bia_start, g.main_start),
        ("Main Area", g.main_start, g.main_start + g.main_blocks()),
    ];
    let area = |(name, start, end)| new().text("area", name).number("first_block", start).number("end", end);
    let start = new().text("uuid", uuid::Uuid::from_bytes(superblock.uuid));
    start
        .number("format_version", superblock.version)
        .number("block_bytes", BLOCK)
        .number("blocks", g.blocks)
        .number("segments", g.segments)
        .rows("areas", areas.map(area).into())
}

fn checkpoint(at_rest: &AtRest) -> Shown {
    let (root, body) = (&at_rest.root, &at_rest.checkpoint.body);
    let start = new().number("root_sequence", root.sequence).flag("clean", root.left() != Left::InUse);
    start
        .number("mounts", root.mounts)
        .number("block", at_rest.checkpoint.block)
        .number("version", body.version)
        .number("after_version", body.previous)
        .number("nat_root_block", body.tree().root.block())
        .number("nat_height", body.nat_height)
        .number("next_nid", body.next_nid)
        .number("inodes", body.inodes)
        .number("nodes", body.nodes)
        .number("sit_journal_entries", body.journal_entries)
        .number("log_from_transaction", body.sequence)
        .number("made", body.time)
}

fn log(at_rest: &AtRest) -> Shown {
    let log = at_rest.log();
    let epoch =
        |&(version, first): &(u32, u64)| new().number("version", version).number("first_transaction", first);
    let mut items = Vec::new();
    for transaction in &log.transactions {
        for item in Items(transaction.items) {
            let item = item.map_or_else(|_| "malformed".to_string(), |item| format!("{item:?}"));
            items.push(new().number("transaction", transaction.number).text("item", item));
        }
    }
    let epochs = log.epochs.iter().map(epoch).collect();
    let shown = new().rows("epochs", epochs).rows("items", items).number("left_out", log.left_out);
    match &log.broken {
        Some(error) => shown.text("why", error),
        None => shown,
    }
}

fn nat_entries(at_rest: &AtRest) -> (Shown, vfs::Result<()>) {
    let mut entries = Vec::new();
    let tree = at_rest.checkpoint.body.tree();
    let walked = nat::walk(&at_rest.medium, tree, &mut |_, _, _| Ok(()), &mut |nid, pointer| {
        entries.push(new().number("node", nid).number("block", pointer.block()));
        Ok(())
    });
    (new().rows("entries", entries), walked)
}

fn segments(at_rest: &AtRest) -> Shown {
    let row = |segment| {
        let start = new().number("segment", segment);
        Some(match SitEntry::read(&at_rest.medium, segment) {
            Ok(entry) if entry.segment_kind() == SegmentKind::Free => return None,
            Ok(entry) => {
                segment_row(start, &format!("{:?}", entry.segment_kind()), entry.valid, entry.version)
            }
            Err(error) => segment_row(start, &error.to_string(), 0u16, 0u32),
        })
    };
    new().rows("segments", (0..at_rest.medium.geometry.segments).filter_map(row).collect())
}

fn segment_row(start: Shown, kind: &str, valid: impl Into<u64>, version: impl Into<u64>) -> Shown {
    start.number("valid", valid).number("version", version).text("kind", kind)
}

fn sit_journal(at_rest: &AtRest) -> vfs::Result<Shown> {
    let body = &at_rest.checkpoint.body;
    let entries = sit::read_journal(&at_rest.medium, body.journal_entries.get(), body.journal_crc.get())?;
    let row = |entry: &sit::JournalEntry| {
        let start = new().number("segment", entry.segment());
        segment_row(start, &format!("{:?}", entry.segment_kind()), entry.valid, entry.version)
    };
    Ok(new().rows("segments", entries.iter().map(row).collect()))
}

fn snapshots(at_rest: &AtRest) -> (Shown, vfs::Result<()>) {
    let (kept, damage) = Kept::of_newest(&at_rest.medium, &at_rest.checkpoint);
    let rows = kept.all().map(|record| {
        let start = new().number("version", record.version).number("block", record.block);
        start
            .number("cursor", record.cursor)
            .text("state", format!("{:?}", record.state))
            .text("taken", seconds(record.taken))
            .text("name", &record.name)
            .text("comment", &record.comment)
            .text("holds", record.holds.join(" "))
    });
    (new().rows("snapshots", rows.collect()), damage.map_or(Ok(()), Err))
}

fn bia(at_rest: &AtRest, segment: u32) -> Result<vfs::Result<Shown>, Error> {
    let geometry = &at_rest.medium.geometry;
    if segment >= geometry.segments {
        return Err(Error::NoStructure(format!("segment {segment}: there are {}", geometry.segments)));
    }
    let row = |index: usize| {
        let block = geometry.segment_start(segment) + index as u64;
        let entry = Entry::read(&at_rest.medium, block);
        let start = new().number("block", block).text("kind", kind_name(entry.kind));
        start.number("start_version", entry.version).number("owner", entry.owner).number("place", entry.place)
    };
    let rows = |entry: SitEntry| new().rows("blocks", ones(&entry.bits()).map(row).collect());
    Ok(SitEntry::read(&at_rest.medium, segment).map(rows))
}

fn kind_name(kind: u8) -> String {
    BlockKind::from_u8(kind).map_or("unknown".into(), |kind| format!("{kind:?}"))
}

fn seconds(time: vfs::Time) -> String {
    format!("{}.{:09}", time.sec, time.nsec)
}

fn node(nodes: &Reader, nid: u32) -> vfs::Result<Shown> {
    let view = nodes.any(nid)?;
    let shown = header(view);
    if view.bytes[0] == BlockKind::Inode as u8 {
        let numbers = slots_in(view.header().slots.get()).map(|slot| number_of(nid, slot as u32));
        let inodes: vfs::Result<Vec<Shown>> =
            numbers.map(|number| nodes.inode(number).map(attributes)).collect();
        return Ok(shown.rows("inodes", inodes?));
    }
    let row = |(row, bytes): (usize, &[u8])| {
        let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        new().number("at", (HEADER + row * 16) as u64).text("bytes", hex.join(" "))
    };
    let body = &view.bytes[HEADER..view.used()];
    Ok(shown.rows("body", body.chunks(16).enumerate().map(row).collect()))
}

fn header(view: View<'_>) -> Shown {
    let header = NodeHeader::ref_from_bytes(&view.bytes[..HEADER]).expect("a header's length");
    let start =
        new().number("node", header.nid).number("block", view.block).text("kind", kind_name(header.kind));
    start.number("level", header.level).number("owner", header.owner).number("used_bytes", header.used)
}

/// An inode without what it holds.
fn attributes(inode: Inode<'_>) -> Shown {
    let attr = inode.attr();
    let start = new().number("inode", inode.ino).number("slot", slot_of(inode.ino) as u64);
    let shown = start
        .number("node", nid_of(inode.ino))
        .number("block", inode.block)
        .text("mode", format!("{:o}", attr.mode))
        .text("kind", format!("{:?}", attr.kind()))
        .text("layout", format!("{:?}", inode.layout()))
        .number("links", attr.nlink)
        .number("uid", attr.uid)
        .number("gid", attr.gid)
        .number("size_bytes", inode.hot().size.get())
        .number("blocks", inode.derived().blocks)
        .number("generation", attr.generation)
        .text("flags", format!("{:#x}", attr.flags));
    let times = [("atime", attr.atime), ("mtime", attr.mtime), ("ctime", attr.ctime), ("btime", attr.btime)];
    times.into_iter().fold(shown, |shown, (name, time)| shown.text(name, seconds(time)))
}

fn inode(nodes: &Reader, ino: u32) -> vfs::Result<Shown> {
    let inode = nodes.inode(ino)?;
    let mut xattrs = Vec::new();
    xattr::each(nodes, inode, |attribute| {
        let name = attribute.name.escape_ascii();
        xattrs.push(new().text("name", name).number("bytes", attribute.value.len() as u64));
    })?;
    let shown = attributes(inode).rows("attributes", xattrs);
    match inode.layout() {
        Layout::Inline => Ok(shown.number("inline_bytes", inode.inline_bytes().len() as u64)),
        Layout::Directory => {
            let mut entries = Vec::new();
            directory::list(nodes, inode, 0, &mut |entry| {
                let start = new().text("key", format!("{:016x}", entry.key)).number("inode", entry.ino);
                let kind = format!("{:?}", entry.file_kind());
                entries.push(start.text("kind", kind).text("name", entry.name.escape_ascii()));
                true
            })?;
            Ok(shown.rows("entries", entries))
        }
        Layout::Mapped => mapped(nodes, inode, shown),
    }
}

/// The nodes of a file's index, and its blocks in runs.
fn mapped(nodes: &Reader, inode: Inode<'_>, shown: Shown) -> vfs::Result<Shown> {
    let mut index_nodes = Vec::new();
    let mut runs: Vec<(u64, DataPointer, u64)> = Vec::new();
    index::walk(
        nodes,
        inode,
        index::ALL,
        &mut |nid, kind| {
            index_nodes.push(new().number("node", nid).text("kind", format!("{kind:?}")));
            Ok(())
        },
        &mut |index, pointer| {
            match runs.last_mut() {
                Some((first, start, n)) if *first + *n == index && start.plus(*n) == pointer => *n += 1,
                _ => runs.push((index, pointer, 1)),
            }
            Ok(())
        },
    )?;
    let run = |(index, pointer, blocks): (u64, DataPointer, u64)| {
        let start = new().number("file_block", index).number("block", pointer.block());
        start.number("blocks", blocks).flag("unwritten", pointer.is_unwritten())
    };
    Ok(shown.rows("index_nodes", index_nodes).rows("runs", runs.into_iter().map(run).collect()))
}
