//! Showing any structure of a volume at rest, for people.

use std::fmt;
use std::io::Write;
use std::str::FromStr;

use nvm::Region;
use zerocopy::FromBytes;

use crate::Error;
use crate::bia::{BlockKind, Entry};
use crate::directory;
use crate::geometry::SEGMENT_BLOCKS;
use crate::index;
use crate::inode::{Layout, nid_of, number_of, slot_of, slots_in};
use crate::inspect::AtRest;
use crate::nat;
use crate::node::{HEADER, NodeHeader, View};
use crate::pointer::DataPointer;
use crate::reader::Reader;
use crate::record::Items;
use crate::sit::{SegmentKind, SitEntry, ones};
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
    /// The entries of one segment.
    Bia(u32),
    /// A node, by NID.
    Node(u32),
    /// An inode, with what it holds.
    Inode(u64),
}

impl FromStr for Structure {
    type Err = String;

    fn from_str(text: &str) -> Result<Structure, String> {
        let (name, number) = match text.split_once(':') {
            None => (text, None),
            Some((name, digits)) => {
                let number: u32 =
                    digits.parse().map_err(|_| format!("{digits:?} is no number, in {text:?}"))?;
                (name, Some(number))
            }
        };
        match (name, number) {
            ("superblock", None) => Ok(Structure::Superblock),
            ("checkpoint", None) => Ok(Structure::Checkpoint),
            ("log", None) => Ok(Structure::Log),
            ("nat", None) => Ok(Structure::Nat),
            ("sit", None) => Ok(Structure::Sit),
            ("bia", Some(segment)) => Ok(Structure::Bia(segment)),
            ("node", Some(nid)) => Ok(Structure::Node(nid)),
            ("inode", Some(ino)) => Ok(Structure::Inode(ino.into())),
            _ => Err(format!(
                "no structure {text:?}; there are superblock, checkpoint, log, nat, sit, bia:SEGMENT, node:NID and inode:NUMBER"
            )),
        }
    }
}

/// Writes what `what` holds to `out`, as of the newest checkpoint.
pub fn dump(region: &Region, what: &Structure, out: &mut dyn Write) -> Result<(), Error> {
    let at_rest = AtRest::read(region)?;
    let shown = match *what {
        Structure::Superblock => superblock(&at_rest, out),
        Structure::Checkpoint => checkpoint(&at_rest, out),
        Structure::Log => log(&at_rest, out)?,
        Structure::Nat => nat_entries(&at_rest, out)?,
        Structure::Sit => sit(&at_rest, out)?,
        Structure::Bia(segment) => bia(&at_rest, segment, out)?,
        Structure::Node(nid) => node(&at_rest.nodes(), nid, out)?,
        Structure::Inode(ino) => {
            inode(&at_rest.nodes(), u32::try_from(ino).map_err(|_| vfs::Error::Stale)?, out)?
        }
    };
    shown.map_err(|error| Error::Volume(vfs::Error::Io(format!("cannot write the dump: {error}"))))
}

type Shown = std::io::Result<()>;

fn superblock(at_rest: &AtRest, out: &mut dyn Write) -> Shown {
    let (superblock, g) = (&at_rest.superblock, &at_rest.medium.geometry);
    writeln!(out, "uuid             {}", uuid::Uuid::from_bytes(superblock.uuid))?;
    writeln!(out, "format version   {}", superblock.version)?;
    writeln!(out, "blocks           {} of 4096 bytes", g.blocks)?;
    let log_end = g.log_start + 2 * g.log_half;
    let areas = [
        ("superblocks", 0, 2),
        ("root slots", 2, 4),
        ("log", g.log_start, log_end),
        ("SIT", g.sit_start, g.sit_journal_start),
        ("SIT journal", g.sit_journal_start, g.bia_start),
        ("BIA", g.bia_start, g.main_start),
        ("Main Area", g.main_start, g.main_start + g.main_blocks()),
    ];
    for (name, start, end) in areas {
        writeln!(out, "{name:<16} blocks {start:>10} … {end}")?;
    }
    writeln!(out, "segments         {} of {SEGMENT_BLOCKS} blocks", g.segments)
}

fn checkpoint(at_rest: &AtRest, out: &mut dyn Write) -> Shown {
    let (root, body) = (&at_rest.root, &at_rest.checkpoint.body);
    writeln!(
        out,
        "root slot        sequence {}, {}",
        root.sequence,
        if root.clean == 1 { "clean" } else { "in use, or crashed" }
    )?;
    writeln!(out, "mounts           {}", root.mounts)?;
    writeln!(out, "checkpoint       block {}", at_rest.checkpoint.block)?;
    writeln!(out, "version          {} (after {})", body.version, body.previous)?;
    writeln!(out, "NAT              root {}, height {}", Block(body.tree().root.block()), body.nat_height)?;
    writeln!(out, "next NID         {}", body.next_nid)?;
    writeln!(out, "inodes           {}, in {} nodes with all they hold", body.inodes, body.nodes)?;
    writeln!(out, "SIT journal      {} segments", body.journal_entries)?;
    writeln!(out, "log from         transaction {}", body.sequence)?;
    writeln!(out, "made             {} s after the epoch", body.time)
}

fn log(at_rest: &AtRest, out: &mut dyn Write) -> vfs::Result<Shown> {
    let log = at_rest.log();
    Ok((|| {
        for (version, first) in &log.epochs {
            writeln!(out, "epoch {version}, from transaction {first}")?;
        }
        for transaction in &log.transactions {
            writeln!(out, "transaction {}", transaction.number)?;
            for item in Items(transaction.items) {
                match item {
                    Ok(item) => writeln!(out, "  {item:?}")?,
                    Err(_) => writeln!(out, "  malformed")?,
                }
            }
        }
        match &log.broken {
            Some(error) => writeln!(out, "{} more are not replayed: {error}", log.left_out),
            None => Ok(()),
        }
    })())
}

fn nat_entries(at_rest: &AtRest, out: &mut dyn Write) -> vfs::Result<Shown> {
    let mut shown = Ok(());
    let tree = at_rest.checkpoint.body.tree();
    nat::walk(&at_rest.medium, tree, &mut |_, _, _| Ok(()), &mut |nid, pointer| {
        if shown.is_ok() {
            shown = writeln!(out, "node {nid:>10}  block {}", pointer.block());
        }
        Ok(())
    })?;
    Ok(shown)
}

fn sit(at_rest: &AtRest, out: &mut dyn Write) -> vfs::Result<Shown> {
    for segment in 0..at_rest.medium.geometry.segments {
        let shown = match SitEntry::read(&at_rest.medium, segment) {
            Ok(entry) if entry.segment_kind() == SegmentKind::Free => continue,
            Ok(entry) => {
                let (kind, valid, version) = (entry.segment_kind(), entry.valid, entry.version);
                writeln!(out, "segment {segment:>8}  {kind:?}, {valid:>3} valid, version {version}")
            }
            Err(error) => writeln!(out, "segment {segment:>8}  {error}"),
        };
        if shown.is_err() {
            return Ok(shown);
        }
    }
    Ok(Ok(()))
}

fn bia(at_rest: &AtRest, segment: u32, out: &mut dyn Write) -> vfs::Result<Shown> {
    if segment >= at_rest.medium.geometry.segments {
        return Err(vfs::Error::Invalid);
    }
    let first = at_rest.medium.geometry.segment_start(segment);
    let valid = SitEntry::read(&at_rest.medium, segment)?.bits();
    for index in ones(&valid) {
        let block = first + index as u64;
        let entry = Entry::read(&at_rest.medium, block);
        let (version, owner, place) = (entry.version, entry.owner, entry.place);
        let kind = BlockKind::from_u8(entry.kind).map_or("unknown".into(), |kind| format!("{kind:?}"));
        if let Err(error) =
            writeln!(out, "block {block:>10}  {kind}, start version {version}, owner {owner}, place {place}")
        {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}

fn node(nodes: &Reader, nid: u32, out: &mut dyn Write) -> vfs::Result<Shown> {
    let view = nodes.any(nid)?;
    if view.bytes[0] == BlockKind::Inode as u8 {
        let mut shown = header(view, out);
        for slot in slots_in(view.header().slots.get()) {
            if shown.is_ok() {
                shown = writeln!(out);
            }
            if shown.is_ok() {
                shown = inode(nodes, number_of(nid, slot as u32), out)?;
            }
        }
        return Ok(shown);
    }
    Ok(header(view, out).and_then(|()| {
        let body = &view.bytes[HEADER..view.used()];
        for (row, bytes) in body.chunks(16).enumerate() {
            let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(out, "{:>6}  {}", HEADER + row * 16, hex.join(" "))?;
        }
        Ok(())
    }))
}

fn header(view: View<'_>, out: &mut dyn Write) -> Shown {
    let header = NodeHeader::ref_from_bytes(&view.bytes[..HEADER]).expect("a header's length");
    let kind = BlockKind::from_u8(header.kind).map_or("unknown".into(), |kind| format!("{kind:?}"));
    writeln!(out, "node {} at block {}: {kind}, level {}", header.nid, view.block, header.level)?;
    writeln!(out, "owner            inode {}", header.owner)?;
    writeln!(out, "used             {} bytes", header.used)
}

fn inode(nodes: &Reader, ino: u32, out: &mut dyn Write) -> vfs::Result<Shown> {
    let inode = nodes.inode(ino)?;
    let mut lines = Vec::new();
    xattr::each(nodes, inode, |attribute| {
        lines.push(format!(
            "attribute        {} ({} bytes)",
            attribute.name.escape_ascii(),
            attribute.value.len()
        ));
    })?;
    match inode.layout() {
        Layout::Inline => lines.push(format!("inline           {} bytes", inode.inline_bytes().len())),
        Layout::Directory => directory::list(nodes, inode, 0, &mut |entry| {
            let (key, ino, kind) = (entry.key, entry.ino, entry.file_kind());
            lines.push(format!("entry {key:016x}  {kind:?} {ino}  {}", entry.name.escape_ascii()));
            true
        })?,
        Layout::Mapped => {
            let nodes_seen = std::cell::RefCell::new(Vec::new());
            let mut runs: Vec<(u64, DataPointer, u64)> = Vec::new();
            index::walk(
                nodes,
                inode,
                index::ALL,
                &mut |nid, kind| {
                    nodes_seen.borrow_mut().push(format!("index node       {nid} ({kind:?})"));
                    Ok(())
                },
                &mut |index, pointer| {
                    match runs.last_mut() {
                        Some((first, start, n)) if *first + *n == index && start.plus(*n) == pointer => {
                            *n += 1
                        }
                        _ => runs.push((index, pointer, 1)),
                    }
                    Ok(())
                },
            )?;
            lines.append(&mut nodes_seen.borrow_mut());
            for (index, pointer, n) in runs {
                let (block, state) =
                    (pointer.block(), if pointer.is_unwritten() { ", unwritten" } else { "" });
                lines.push(format!(
                    "file blocks      {index} … {}: {block} … {}{state}",
                    index + n,
                    block + n
                ));
            }
        }
    }
    Ok((|| {
        writeln!(
            out,
            "inode {ino} in slot {} of node {} at block {}",
            slot_of(ino),
            nid_of(ino),
            inode.block
        )?;
        let (attr, layout) = (inode.attr(), inode.layout());
        writeln!(out, "mode             {:o} ({:?}), layout {layout:?}", attr.mode, attr.kind())?;
        writeln!(out, "links            {}", attr.nlink)?;
        writeln!(out, "owner, group     {}, {}", attr.uid, attr.gid)?;
        writeln!(out, "size             {} bytes in {} blocks", attr.size, inode.derived().blocks)?;
        writeln!(out, "generation       {}", attr.generation)?;
        for (name, time) in
            [("atime", attr.atime), ("mtime", attr.mtime), ("ctime", attr.ctime), ("btime", attr.btime)]
        {
            writeln!(out, "{name:<16} {}.{:09}", time.sec, time.nsec)?;
        }
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))
    })())
}

/// A block number; 0 is none.
struct Block(u64);

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { f.write_str("none") } else { write!(f, "block {}", self.0) }
    }
}
