//! The named operations that workloads are made of.
//!
//! Each stands for one way in which a file system changes. Most are one operation; some need several, and the power
//! may go in each. `mmap` and `msync` have no form in process: what they come to is a write and an `fsync`.

use vfs::{FallocateMode, InodeFlags, OpenFlags, RenameFlags, XattrMode};

use crate::ground::Chore;
use crate::operation::Operation::{self, *};
use crate::scene::{Scene, long};

/// A named piece of a workload.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name, as `--list` shows it.
    pub name: String,
    /// What it starts from.
    pub scene: Scene,
    /// Done before, and not crashed.
    pub prelude: Vec<Operation>,
    /// What is crashed.
    pub operations: Vec<Operation>,
}

struct List(Vec<Entry>);

impl List {
    fn add(&mut self, name: &str, operations: Vec<Operation>) {
        self.on(Scene::Common, name, Vec::new(), operations);
    }

    fn on(&mut self, scene: Scene, name: &str, prelude: Vec<Operation>, operations: Vec<Operation>) {
        self.0.push(Entry { name: name.to_owned(), scene, prelude, operations });
    }
}

/// All of them.
pub fn catalogue() -> Vec<Entry> {
    let mut list = List(Vec::new());
    names(&mut list);
    renames(&mut list);
    writes(&mut list);
    lengths(&mut list);
    spaces(&mut list);
    attributes(&mut list);
    nameless(&mut list);
    syncs(&mut list);
    tended(&mut list);
    sealed(&mut list);
    growth(&mut list);
    full(&mut list);
    snapshots(&mut list);
    garbage(&mut list);
    reserved(&mut list);
    returns(&mut list);
    clones(&mut list);
    moved_and_back(&mut list);
    list.0
}

fn p(path: &str) -> String {
    path.to_owned()
}

/// Taken, changed under, removed: the first and the last by checkpoints of their own, and the space comes back with those
/// that follow.
fn snapshots(list: &mut List) {
    let take = |name: &str| TakeSnapshot(p(name));
    let remove = |name: &str| RemoveSnapshot(p(name));
    let write = || Write(p("/a/file"), 4_200, 700);
    list.add("snapshot", vec![take("s")]);
    list.add("snapshot-twice", vec![take("s"), take("t")]);
    let mut under = |name: &str, operations: Vec<Operation>| {
        list.on(Scene::Common, &format!("snapshot-then-{name}"), vec![take("s")], operations);
    };
    under("write", vec![write(), write()]);
    under("overwrite", vec![Write(p("/a/file"), 0, 8_192), Sync]);
    under("truncate", vec![Truncate(p("/a/file"), 5_000), Sync]);
    under("unlink", vec![Unlink(p("/a/file")), Sync]);
    under("snapshot", vec![write(), take("t")]);
    under("remove", vec![remove("s"), Sync, Sync]);
    under("write-remove", vec![write(), remove("s"), write(), Sync, write()]);
    under("unlink-remove", vec![Unlink(p("/a/file")), remove("s"), Create(p("/new")), Sync]);
    under("remove-between", vec![write(), take("t"), Unlink(p("/a/holes")), remove("s"), Sync]);
    under("remove-newer", vec![take("t"), write(), remove("t"), Sync, write()]);
    under("remove-both", vec![write(), take("t"), remove("s"), remove("t"), Sync, Sync]);
    let prelude =
        vec![take("s"), Unlink(p("/b/hard")), take("t"), write(), take("u"), remove("s"), remove("t")];
    list.on(Scene::Common, "snapshots-removed", prelude, vec![Sync, write(), Sync]);
}

/// Returned to: closed, rolled back, opened again.
fn returns(list: &mut List) {
    let take = |name: &str| TakeSnapshot(p(name));
    let back = |name: &str| RollBack(p(name));
    let write = || Write(p("/a/file"), 4_200, 700);
    let mut under = |name: &str, prelude: Vec<Operation>, operations: Vec<Operation>| {
        list.on(Scene::Common, &format!("roll-back{name}"), prelude, operations);
    };
    under("", vec![take("s"), write(), Unlink(p("/b/other"))], vec![back("s")]);
    under("-nothing", vec![take("s")], vec![back("s")]);
    under("-none", vec![take("s")], vec![back("t")]);
    under("-newest", vec![take("s"), write(), take("t"), Unlink(p("/a/file"))], vec![back("t")]);
    let three = vec![take("s"), write(), take("t"), Unlink(p("/a/holes")), take("u"), Mkdir(p("/dir"))];
    under("-discards", three, vec![back("s")]);
    let removing = vec![take("s"), Unlink(p("/b/hard")), take("t"), write(), RemoveSnapshot(p("s"))];
    under("-removing", removing, vec![back("t")]);
    under("-unlinked", vec![take("s"), Hold(0, p("/a/file")), Unlink(p("/a/file"))], vec![back("s")]);
    let nameless = || vec![Tmpfile(0, p("/a")), WriteHeld(0, 0, 5_000), take("s"), Release(0)];
    under("-nameless", nameless(), vec![back("s")]);
    under("-twice", vec![take("s"), Create(p("/new"))], vec![back("s"), write(), back("s")]);
    under("-write", vec![take("s"), write(), back("s")], vec![write(), Create(p("/new")), Sync]);
    under("-remove", vec![take("s"), write(), back("s")], vec![RemoveSnapshot(p("s")), Sync, Sync]);
    // All that is free is taken behind the snapshot.
    let filler = (0..13u32).map(|n| (u64::from(n) << 24, (16u64 << 20) >> n));
    let fill = filler.flat_map(|(at, piece)| {
        [0, piece].map(|more| Allocate(p("/filler"), FallocateMode::empty(), at + more, piece))
    });
    let full: Vec<_> = [take("s"), Create(p("/filler"))].into_iter().chain(fill).chain([Sync]).collect();
    under("-full", full, vec![back("s")]);
}

/// Cloned, over a volume that was there.
fn clones(list: &mut List) {
    let take = |name: &str| TakeSnapshot(p(name));
    let change = || [Write(p("/a/file"), 4_200, 700), Unlink(p("/b/other"))];
    let mut of = |name: &str, prelude: &[Operation], operations: Vec<Operation>| {
        list.on(Scene::Two, &format!("clone-{name}"), prelude.to_vec(), operations);
    };
    let [write, unlink] = change();
    of("mounted", &[take("s"), write.clone()], vec![CloneMounted(p("s"))]);
    of("closed", &[take("s"), unlink.clone()], vec![CloneClosed(p("s"))]);
    let nameless = [Hold(0, p("/b/other")), unlink.clone(), take("s"), Release(0)];
    of("nameless", &nameless, vec![CloneMounted(p("s"))]);
    of("none", &[take("s")], vec![CloneMounted(p("t"))]);
    of("older", &[take("s"), write.clone(), take("t"), unlink], vec![CloneMounted(p("s"))]);
    of("then-remove", &[take("s")], vec![write.clone(), CloneMounted(p("s")), RemoveSnapshot(p("s")), Sync]);
    of("twice", &[take("s"), write, take("t"), CloneMounted(p("s"))], vec![CloneClosed(p("t"))]);
}

/// Everything moves out of a segment: in the volume, in snapshots, in both; after changes, and with changes behind.
fn garbage(list: &mut List) {
    let take = |name: &str| TakeSnapshot(p(name));
    let write = || Write(p("/a/file"), 4_200, 700);
    // What the scene has written lies in 0 and 2, nodes and data; what is written behind it in 1.
    let all = || [EmptySegment(0), EmptySegment(1), EmptySegment(2)];
    list.add("empty-nodes", vec![EmptySegment(0)]);
    list.add("empty-data", vec![EmptySegment(2)]);
    list.add("empty-written", vec![write(), EmptySegment(1), write(), EmptySegment(0), write()]);
    let mut of = |name: &str, prelude: Vec<Operation>, operations: Vec<Operation>| {
        list.on(Scene::Common, &format!("empty-{name}"), prelude, operations);
    };
    of("snapshot", vec![take("s")], all().to_vec());
    of("snapshot-unlinked", vec![take("s"), Unlink(p("/a/file")), Sync], all().to_vec());
    let two =
        || vec![take("s"), write(), Chmod(p("/b/other"), 0o600), take("t"), Write(p("/a/file"), 0, 4_096)];
    of("snapshots", two(), all().to_vec());
    let then = [EmptySegment(1), write(), EmptySegment(0), RemoveSnapshot(p("s")), Sync, Sync];
    of("snapshots-then-remove", two(), then.to_vec());
    let behind = [EmptySegment(0), RemoveSnapshot(p("t")), EmptySegment(1), Unlink(p("/a/file")), Sync];
    of("snapshots-then-unlink", two(), behind.to_vec());
}

/// Preallocated blocks that a snapshot has, too: written where they are, for it reads zeros, whatever is in them. They are
/// written, and then move; or move, and are written; with the records of both in the log, of one epoch or of two.
fn reserved(list: &mut List) {
    let take = |name: &str| TakeSnapshot(p(name));
    let block = || Write(p("/b/reserved"), 4_096, 4_096);
    let small = |at| Write(p("/b/reserved"), at, 60);
    // Longer than what has one fence with its record.
    let most = || Write(p("/b/reserved"), 0, 14_000);
    let data = || EmptySegment(2);
    let mut of = |name: &str, prelude: Vec<Operation>, operations: Vec<Operation>| {
        list.on(Scene::Common, &format!("reserved-{name}"), prelude, operations);
    };
    let s = || vec![take("s")];
    of("written-moved", s(), vec![block(), data()]);
    of("moved-written", s(), vec![data(), block()]);
    of("moved-between", s(), vec![block(), data(), block(), small(9_000)]);
    of("small-moved-between", s(), vec![small(5_000), data(), small(5_030), small(100)]);
    of("most-moved-between", s(), vec![most(), data(), most()]);
    of("moved-twice", s(), vec![block(), data(), small(100), EmptySegment(1), EmptySegment(0), small(9_000)]);
    of("kept-both", s(), vec![block(), take("t"), data(), block(), small(100)]);
    let both = || vec![take("s"), block(), take("t")];
    of("kept-moved-remove", both(), vec![data(), RemoveSnapshot(p("s")), Sync, small(100), Sync]);
    of("kept-remove-moved", both(), vec![RemoveSnapshot(p("t")), Sync, small(4_200), data(), block()]);
    let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
    let hole = || Allocate(p("/b/reserved"), punch, 4_096, 8_192);
    of("punched-moved", s(), vec![block(), hole(), data(), block()]);
    of("moved-truncated", s(), vec![block(), data(), Truncate(p("/b/reserved"), 4_100), small(9_000)]);
    of("moved-back", s(), vec![block(), data(), RollBack(p("s")), small(5_000)]);
    of("back-moved", s(), vec![block(), RollBack(p("s")), small(5_000), data(), small(100)]);
}

/// Garbage is collected before or behind a rollback or the making of a clone, and what comes after finds what moved.
fn moved_and_back(list: &mut List) {
    let take = |name: &str| TakeSnapshot(p(name));
    let back = |name: &str| RollBack(p(name));
    let write = || Write(p("/a/file"), 4_200, 700);
    let reserve = || Write(p("/b/reserved"), 4_096, 4_096);
    let (nodes, written, data) = (|| EmptySegment(0), || EmptySegment(1), || EmptySegment(2));
    let mut of = |name: &str, prelude: Vec<Operation>, operations: Vec<Operation>| {
        list.on(Scene::Common, &format!("moved-{name}"), prelude, operations);
    };
    let changed = || vec![take("s"), write(), Unlink(p("/b/other"))];
    of("back", changed(), vec![nodes(), data(), back("s")]);
    of("back-moved", changed(), vec![data(), back("s"), data(), nodes(), write()]);
    of("back-twice", changed(), vec![back("s"), nodes(), written(), back("s"), write()]);
    // What was given up is still being removed when the collector comes: what snapshots have stays then.
    of("while-given-up", changed(), vec![back("s"), Sync, data(), Sync, data(), Sync]);
    let two = || vec![take("s"), write(), take("t"), Unlink(p("/a/holes"))];
    of("back-discards", two(), vec![data(), back("s"), data(), RemoveSnapshot(p("s")), Sync]);
    let mut of = |name: &str, prelude: Vec<Operation>, operations: Vec<Operation>| {
        list.on(Scene::Two, &format!("moved-{name}"), prelude, operations);
    };
    of("cloned", changed(), vec![nodes(), data(), CloneMounted(p("s"))]);
    of("cloned-moved", changed(), vec![CloneMounted(p("s")), data(), nodes(), CloneClosed(p("s"))]);
    of("cloned-reserved", vec![take("s"), reserve()], vec![data(), CloneMounted(p("s")), reserve(), data()]);
    of("back-cloned", two(), vec![data(), back("s"), CloneMounted(p("s")), nodes(), write()]);
    of("cloned-back", two(), vec![CloneMounted(p("t")), data(), back("s"), CloneClosed(p("s"))]);
    let rest = vec![RemoveSnapshot(p("s")), Sync, data(), CloneMounted(p("t")), back("t"), nodes()];
    of("removed-cloned-back", two(), rest);
}

fn names(list: &mut List) {
    list.add("create", vec![Create(p("/new"))]);
    list.add("create-in-dir", vec![Create(p("/a/new"))]);
    list.add("create-long-name", vec![Create(format!("/a/{}", long(0)))]);
    list.add("create-twice", vec![Create(p("/new")), Create(p("/new2"))]);
    list.add("mkdir", vec![Mkdir(p("/dir"))]);
    list.add("mkdir-in-dir", vec![Mkdir(p("/b/e/dir"))]);
    list.add("mkdir-long-name", vec![Mkdir(format!("/{}", long(1)))]);
    list.add("mkdir-and-file", vec![Mkdir(p("/dir")), Create(p("/dir/file"))]);
    list.add("mknod-file", vec![Mknod(p("/node"), 0o100_640)]);
    list.add("mknod-fifo", vec![Mknod(p("/node"), 0o010_600)]);
    list.add("mknod-socket", vec![Mknod(p("/node"), 0o140_600)]);
    list.add("mknod-char", vec![Mknod(p("/node"), 0o020_600)]);
    list.add("mknod-block", vec![Mknod(p("/node"), 0o060_600)]);
    list.add("symlink", vec![Symlink(p("/sym"), 12)]);
    list.add("symlink-long", vec![Symlink(p("/sym"), 2_000)]);
    list.add("symlink-longest", vec![Symlink(p("/sym"), 4_095)]);
    list.add("link", vec![Link(p("/a/file"), p("/b/another"))]);
    list.add("link-second", vec![Link(p("/b/hard"), p("/third"))]);
    list.add("link-long-name", vec![Link(p("/a/file"), format!("/b/{}", long(2)))]);
    list.add("unlink-empty", vec![Unlink(p("/b/void"))]);
    list.add("unlink-small", vec![Unlink(p("/a/fifo"))]);
    list.add("unlink-file", vec![Unlink(p("/a/file"))]);
    list.add("unlink-holes", vec![Unlink(p("/a/holes"))]);
    list.add("unlink-hard", vec![Unlink(p("/b/hard"))]);
    list.add("unlink-both", vec![Unlink(p("/b/hard")), Unlink(p("/a/small"))]);
    list.add("unlink-symlink", vec![Unlink(p("/b/link"))]);
    list.add("unlink-xattr", vec![Unlink(p("/b/other"))]);
    list.add("rmdir", vec![Rmdir(p("/b/e"))]);
    list.add("rmdir-not-empty", vec![Rmdir(p("/a"))]);
    list.add("create-unlink", vec![Create(p("/new")), Unlink(p("/new"))]);
    list.add("mkdir-rmdir", vec![Mkdir(p("/dir")), Rmdir(p("/dir"))]);
    list.add("unlink-create", vec![Unlink(p("/a/file")), Create(p("/a/file"))]);
}

fn renames(list: &mut List) {
    let (none, noreplace, exchange) = (RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE);
    let mut add =
        |name: &str, from: &str, to: &str, flags| list.add(name, vec![Rename(p(from), p(to), flags)]);
    add("rename", "/a/file", "/a/renamed", none);
    add("rename-across", "/a/file", "/b/file", none);
    add("rename-over", "/a/file", "/a/holes", none);
    add("rename-over-across", "/a/file", "/b/other", none);
    add("rename-over-small", "/b/void", "/a/small", none);
    add("rename-over-hard", "/a/file", "/b/hard", none);
    add("rename-same-inode", "/a/small", "/b/hard", none);
    add("rename-noreplace", "/a/file", "/b/file", noreplace);
    add("rename-noreplace-refused", "/a/file", "/b/other", noreplace);
    add("rename-exchange", "/a/file", "/a/holes", exchange);
    add("rename-exchange-across", "/a/file", "/b/other", exchange);
    add("rename-exchange-kinds", "/a/file", "/b/e", exchange);
    add("rename-exchange-dirs", "/a", "/b/e", exchange);
    let whiteout = RenameFlags::WHITEOUT;
    add("rename-whiteout", "/a/file", "/a/renamed", whiteout);
    add("rename-whiteout-over-across", "/a/file", "/b/other", whiteout);
    add("rename-whiteout-dir-across", "/b/e", "/a/e", whiteout);
    add("rename-dir", "/b/e", "/b/f", none);
    add("rename-dir-across", "/b/e", "/a/e", none);
    add("rename-dir-up", "/b/e", "/e", none);
    add("rename-dir-over-empty", "/a", "/b/e", none);
    add("rename-dir-over-full", "/b/e", "/a", none);
    add("rename-into-itself", "/b", "/b/e/b", none);
    add("rename-symlink", "/b/link", "/a/link", none);
    let name = format!("/a/{}", long(3));
    list.add("rename-long-name", vec![Rename(p("/a/file"), name, none)]);
    let write = Write(p("/new"), 0, 5_000);
    let over = Rename(p("/new"), p("/a/file"), none);
    list.add("rename-replace-by-new", vec![Create(p("/new")), write, over]);
}

fn writes(list: &mut List) {
    let mut add = |name: &str, path: &str, at, length| list.add(name, vec![Write(p(path), at, length)]);
    add("write-empty-small", "/b/void", 0, 100);
    add("write-empty-block", "/b/void", 0, 4_096);
    add("write-empty-three", "/b/void", 0, 12_288);
    add("write-large", "/b/void", 0, 100_000);
    add("write-one-byte", "/a/file", 5_000, 1);
    add("write-eight-bytes", "/a/file", 4_096, 8);
    add("write-inline", "/a/small", 10, 50);
    add("write-inline-append", "/a/small", 300, 200);
    add("write-inline-leaves", "/a/small", 300, 4_000);
    add("write-sub-block", "/a/file", 4_200, 700);
    add("write-half-block", "/a/file", 4_096, 2_048);
    add("write-most-of-block", "/a/file", 4_100, 3_000);
    add("write-block", "/a/file", 4_096, 4_096);
    add("write-two-blocks", "/a/file", 0, 8_192);
    add("write-across", "/a/file", 3_000, 2_000);
    add("write-across-three", "/a/file", 3_000, 6_000);
    add("write-all", "/a/file", 0, 9_000);
    add("write-unaligned-tail", "/a/file", 8_192, 1_001);
    add("write-append", "/a/file", 9_000, 77);
    add("write-append-block", "/a/file", 9_000, 4_096);
    add("write-beyond-end", "/a/file", 20_000, 3_333);
    add("write-far-beyond-end", "/a/file", 1 << 21, 4_096);
    add("write-in-hole", "/a/holes", 8_192, 4_096);
    add("write-in-hole-small", "/a/holes", 9_000, 100);
    add("write-hole-and-data", "/a/holes", 38_000, 5_000);
    add("write-reserved", "/b/reserved", 4_096, 4_096);
    add("write-reserved-small", "/b/reserved", 5_000, 60);
    let append = WriteWith(p("/a/file"), 0, 500, OpenFlags::APPEND);
    list.add("write-o-append", vec![append]);
    list.add("write-o-sync", vec![WriteWith(p("/a/file"), 100, 5_000, OpenFlags::SYNC)]);
    list.add("write-o-dsync", vec![WriteWith(p("/a/file"), 100, 50, OpenFlags::DSYNC)]);
    list.add("write-twice-same", vec![Write(p("/a/file"), 4_200, 64), Write(p("/a/file"), 4_200, 64)]);
    list.add("write-neighbours", vec![Write(p("/a/file"), 4_200, 30), Write(p("/a/file"), 4_230, 30)]);
    let both =
        vec![Hold(0, p("/a/file")), Hold(1, p("/a/file")), WriteHeld(0, 0, 600), WriteHeld(1, 300, 600)];
    list.add("write-two-descriptors", both);
    let copy = |from: &str, from_at, to: &str, at, length| vec![Copy(p(from), from_at, p(to), at, length)];
    list.add("copy-file", copy("/a/file", 0, "/b/void", 0, 9_000));
    list.add("copy-block", copy("/a/file", 4_096, "/b/other", 0, 4_096));
    list.add("copy-unaligned", copy("/a/file", 100, "/b/other", 777, 3_000));
    list.add("copy-within", copy("/a/file", 0, "/a/file", 12_288, 4_096));
    list.add("copy-holes", copy("/a/holes", 30_000, "/b/other", 0, 30_000));
}

fn lengths(list: &mut List) {
    let mut add = |name: &str, path: &str, size| list.add(name, vec![Truncate(p(path), size)]);
    add("truncate-zero", "/a/file", 0);
    add("truncate-aligned", "/a/file", 4_096);
    add("truncate-unaligned", "/a/file", 4_500);
    add("truncate-one-less", "/a/file", 8_999);
    add("truncate-same", "/a/file", 9_000);
    add("truncate-up", "/a/file", 9_500);
    add("truncate-up-blocks", "/a/file", 50_000);
    add("truncate-inline-down", "/a/small", 100);
    add("truncate-inline-up", "/a/small", 1_000);
    add("truncate-inline-leaves", "/a/small", 10_000);
    add("truncate-holes", "/a/holes", 41_000);
    add("truncate-empty-up", "/b/void", 3_000);
    add("truncate-reserved", "/b/reserved", 100);
    list.add("truncate-down-up", vec![Truncate(p("/a/file"), 4_500), Truncate(p("/a/file"), 9_000)]);
    list.add("truncate-zero-write", vec![Truncate(p("/a/file"), 0), Write(p("/a/file"), 0, 6_000)]);
    list.add("write-truncate", vec![Write(p("/a/file"), 9_000, 8_000), Truncate(p("/a/file"), 9_000)]);
    list.add("open-truncate", vec![OpenTruncate(p("/a/file"))]);
}

fn spaces(list: &mut List) {
    let (none, keep) = (FallocateMode::empty(), FallocateMode::KEEP_SIZE);
    let (punch, zero) = (FallocateMode::PUNCH_HOLE | keep, FallocateMode::ZERO_RANGE);
    let mut add =
        |name: &str, path: &str, mode, at, length| list.add(name, vec![Allocate(p(path), mode, at, length)]);
    add("allocate", "/b/void", none, 0, 16_384);
    add("allocate-beyond", "/a/file", none, 10_000, 10_000);
    add("allocate-keep", "/a/file", keep, 10_000, 10_000);
    add("allocate-hole", "/a/holes", none, 0, 30_000);
    add("allocate-inline", "/a/small", none, 0, 200);
    add("punch-block", "/a/file", punch, 4_096, 4_096);
    add("punch-piece", "/a/file", punch, 4_500, 100);
    add("punch-across", "/a/file", punch, 1_000, 6_000);
    add("punch-all", "/a/file", punch, 0, 20_000);
    add("punch-hole", "/a/holes", punch, 0, 20_000);
    add("punch-inline", "/a/small", punch, 10, 30);
    add("zero-block", "/a/file", zero, 4_096, 4_096);
    add("zero-piece", "/a/file", zero, 4_500, 100);
    add("zero-across", "/a/file", zero, 1_000, 6_000);
    add("zero-beyond", "/a/file", zero, 8_000, 8_000);
    add("zero-keep", "/a/file", zero | keep, 8_000, 8_000);
    add("punch-no-keep-refused", "/a/file", FallocateMode::PUNCH_HOLE, 0, 4_096);
}

fn attributes(list: &mut List) {
    let (either, create, replace) = (XattrMode::Either, XattrMode::Create, XattrMode::Replace);
    let mut set = |name: &str, path: &str, key: &str, length, mode| {
        list.add(name, vec![Setxattr(p(path), p(key), length, mode)]);
    };
    set("setxattr", "/a/small", "user.new", 20, create);
    set("setxattr-empty", "/a/small", "user.new", 0, either);
    set("setxattr-large", "/a/small", "user.new", 1_800, either);
    set("setxattr-replace", "/a/file", "user.one", 30, replace);
    set("setxattr-longer", "/a/file", "user.one", 300, either);
    set("setxattr-second", "/b/other", "user.two", 100, create);
    set("setxattr-refused", "/a/file", "user.one", 30, create);
    set("setxattr-dir", "/a", "user.dir", 50, either);
    list.add("removexattr", vec![Removexattr(p("/a/file"), p("user.one"))]);
    list.add("removexattr-large", vec![Removexattr(p("/b/other"), p("user.large"))]);
    list.add("removexattr-none", vec![Removexattr(p("/a/small"), p("user.none"))]);
    list.add("chmod", vec![Chmod(p("/a/file"), 0o4_755)]);
    list.add("chmod-dir", vec![Chmod(p("/b"), 0o1_777)]);
    list.add("chattr", vec![Chattr(p("/a/file"), InodeFlags::APPEND | InodeFlags::NODUMP)]);
    let (fixed, free) = (InodeFlags::IMMUTABLE, InodeFlags::empty());
    let write = || Write(p("/a/file"), 4_200, 700);
    list.add("chattr-protects", vec![Chattr(p("/a/file"), fixed), write(), Unlink(p("/a/file"))]);
    list.add("chattr-freed", vec![Chattr(p("/a/file"), fixed), Chattr(p("/a/file"), free), write()]);
    list.add("chattr-inherited", vec![Chattr(p("/a"), InodeFlags::INHERITED), Create(p("/a/new"))]);
    list.add("chown", vec![Chown(p("/a/file"), 1000, 100)]);
    list.add("utimens", vec![Utimens(p("/a/file"), 1_000_000_000, -5)]);
    list.add("utimens-dir", vec![Utimens(p("/a"), 5, 6)]);
}

fn nameless(list: &mut List) {
    let hold = || Hold(0, p("/a/file"));
    list.add("unlink-while-open", vec![hold(), Unlink(p("/a/file"))]);
    list.add("unlink-open-close", vec![hold(), Unlink(p("/a/file")), Release(0)]);
    list.add("unlink-open-write", vec![hold(), Unlink(p("/a/file")), WriteHeld(0, 100, 9_000), Release(0)]);
    list.add("unlink-open-truncate", vec![hold(), Unlink(p("/a/file")), TruncateHeld(0, 0)]);
    list.add("rename-over-open", vec![hold(), Rename(p("/b/other"), p("/a/file"), RenameFlags::empty())]);
    list.add("tmpfile", vec![Tmpfile(0, p("/a"))]);
    list.add("tmpfile-close", vec![Tmpfile(0, p("/a")), WriteHeld(0, 0, 5_000), Release(0)]);
    list.add("tmpfile-link", vec![Tmpfile(0, p("/a")), WriteHeld(0, 0, 5_000), LinkHeld(0, p("/a/linked"))]);
    list.add("tmpfile-two", vec![Tmpfile(0, p("/a")), Tmpfile(1, p("/b")), LinkHeld(1, p("/linked"))]);
}

fn syncs(list: &mut List) {
    let write = || Write(p("/a/file"), 4_200, 700);
    list.add("fsync", vec![write(), Fsync(p("/a/file"), false)]);
    list.add("fdatasync", vec![Write(p("/a/file"), 9_000, 5_000), Fsync(p("/a/file"), true)]);
    list.add("fsync-dir", vec![Create(p("/a/new")), FsyncDir(p("/a"))]);
    list.add("fsync-held", vec![Tmpfile(0, p("/")), WriteHeld(0, 0, 99), FsyncHeld(0), LinkHeld(0, p("/x"))]);
    list.add("sync-nothing", vec![Sync]);
    list.add("sync-create", vec![Create(p("/new")), Sync]);
    list.add("sync-write", vec![write(), Sync]);
    list.add("sync-block", vec![Write(p("/a/file"), 0, 4_096), Sync]);
    list.add("sync-unlink", vec![Unlink(p("/a/file")), Sync]);
    list.add("sync-twice", vec![Mkdir(p("/dir")), Sync, Rmdir(p("/dir")), Sync]);
    list.add("checkpoint-nothing", vec![Checkpoint]);
    list.add("checkpoint-create", vec![Create(p("/new")), Checkpoint]);
    list.add("checkpoint-write", vec![write(), Write(p("/b/void"), 0, 9_000), Checkpoint]);
    list.add("checkpoint-unlink", vec![write(), Unlink(p("/a/file")), Checkpoint, Create(p("/new"))]);
    list.add("checkpoint-between", vec![write(), Checkpoint, write(), Checkpoint]);
    let orphan = vec![Hold(0, p("/a/file")), Unlink(p("/a/file")), Checkpoint, Release(0)];
    list.add("checkpoint-while-open", orphan);
    let reused = vec![Rmdir(p("/b/e")), Write(p("/b/void"), 0, 20_000), Checkpoint, Mkdir(p("/b/e"))];
    list.add("checkpoint-reused", reused);
    list.add("write-sync-write", vec![write(), Sync, write()]);
}

/// What is done behind users' backs, between and behind what they do: commits of all but what files hold, files written out, half of the log
/// emptied.
fn tended(list: &mut List) {
    let (commit, pages, empty) =
        (|| Tend(Chore::Commit), || Tend(Chore::WritePages), || Tend(Chore::EmptyLog));
    let write = || Write(p("/a/file"), 4_200, 700);
    let fsync = |path: &str| Fsync(p(path), false);
    list.add("commit-create", vec![Create(p("/new")), commit()]);
    list.add("commit-write", vec![write(), commit(), write(), fsync("/a/file")]);
    list.add("commit-append", vec![Write(p("/a/file"), 9_000, 5_000), commit(), fsync("/a/file")]);
    list.add("commit-truncate", vec![Truncate(p("/a/file"), 4_500), commit(), Truncate(p("/a/file"), 9_000)]);
    list.add("pages-append", vec![Write(p("/a/file"), 9_000, 5_000), pages(), commit()]);
    list.add("pages-new", vec![Write(p("/b/void"), 0, 9_000), pages(), commit()]);
    list.add("pages-overwrite", vec![Write(p("/a/file"), 1_000, 6_000), pages(), commit()]);
    list.add("pages-in-hole", vec![Write(p("/a/holes"), 9_000, 5_000), pages(), commit()]);
    list.add("pages-reserved", vec![Write(p("/b/reserved"), 5_000, 5_000), pages(), commit()]);
    // What the log has of a page must not come back over what was written out behind it.
    list.add("pages-synced", vec![write(), fsync("/a/file"), write(), pages(), commit(), empty()]);
    list.add(
        "pages-cut",
        vec![Write(p("/b/void"), 0, 20_000), pages(), Truncate(p("/b/void"), 100), commit()],
    );
    let cut =
        [Truncate(p("/a/file"), 4_500), pages(), Write(p("/a/file"), 9_000, 100), commit(), fsync("/a/file")];
    list.add("pages-cut-grown", cut.to_vec());
    // A block that was freed is another file's only when that is durable.
    list.add("pages-freed", vec![Unlink(p("/a/file")), Write(p("/b/void"), 0, 9_000), pages(), commit()]);
    list.add(
        "pages-reused",
        vec![Unlink(p("/a/file")), commit(), Write(p("/b/void"), 0, 9_000), pages(), commit()],
    );
    list.add("pages-replaced", {
        let over = Rename(p("/new"), p("/a/file"), RenameFlags::empty());
        vec![Create(p("/new")), Write(p("/new"), 0, 5_000), pages(), over, commit()]
    });
    list.add("empty-log", vec![write(), fsync("/a/file"), empty(), write(), fsync("/a/file"), empty()]);
    list.add(
        "empty-log-unlinked",
        vec![write(), fsync("/a/file"), Unlink(p("/a/file")), empty(), commit(), empty()],
    );
    list.add("empty-log-changed", vec![write(), fsync("/a/file"), write(), empty(), fsync("/a/file")]);
}

/// Nodes that are made ready for the checkpoint before it is made, and changed, moved, or removed behind that.
fn sealed(list: &mut List) {
    let seal = || Tend(Chore::Seal);
    let write = || Write(p("/a/file"), 4_200, 700);
    let again = |mode: u32| [Chmod(p("/a/file"), mode), seal()];
    list.add("seal-write", vec![write(), seal(), Checkpoint]);
    list.add("seal-no-checkpoint", vec![Create(p("/new")), seal(), Create(p("/newer"))]);
    list.add("seal-broken", vec![Create(p("/new")), seal(), Create(p("/newer")), Checkpoint]);
    list.add("seal-broken-by-write", vec![Write(p("/b/void"), 0, 9_000), seal(), write(), Checkpoint]);
    list.add(
        "seal-anew",
        [again(0o600), again(0o640), again(0o644)].concat().into_iter().chain([Checkpoint]).collect(),
    );
    let often = (0..6).flat_map(|n| again(0o600 + n)).chain([Checkpoint, Chmod(p("/a/file"), 0o755)]);
    list.add("seal-too-often", often.collect());
    list.add("seal-removed", vec![Chmod(p("/a/file"), 0o600), seal(), Unlink(p("/a/file")), Checkpoint]);
    list.add("seal-next-epoch", vec![Chmod(p("/a/file"), 0o600), seal(), Checkpoint, write(), Checkpoint]);
    let over = Rename(p("/a/file"), p("/b/other"), RenameFlags::empty());
    list.add("seal-renamed", vec![write(), seal(), over, seal(), Sync, Checkpoint]);
    list.add("seal-then-snapshot", vec![write(), seal(), TakeSnapshot(p("new")), write()]);
    list.add("seal-segment", vec![write(), seal(), EmptySegment(0), Checkpoint]);
}

fn growth(list: &mut List) {
    let at = |at: u64| vec![Write(p("/a/file"), at, 4_096)];
    // Pointers in the inode, direct nodes, one and two levels of indirect nodes: one write beyond each.
    list.add("level-direct", at(8 << 20));
    list.add("level-indirect", at(256 << 20));
    list.add("level-second", at(2 << 30));
    list.add("level-third", at(1 << 40));
    list.add("level-truncate", vec![Write(p("/a/file"), 256 << 20, 4_096), Truncate(p("/a/file"), 4_096)]);
    let links = |from: usize, count: usize| {
        (from..from + count).map(|n| Link(p("/a/small"), format!("/crowd/{}", long(n)))).collect::<Vec<_>>()
    };
    list.on(Scene::Crowd, "directory-grows", Vec::new(), links(13, 2));
    list.on(Scene::Crowd, "directory-fills", links(13, 1), links(14, 1));
    list.on(Scene::Crowd, "directory-unlink", Vec::new(), vec![Unlink(format!("/crowd/{}", long(5)))]);
    list.on(Scene::Index, "bucket-adds", Vec::new(), links(27, 1));
    list.on(Scene::Index, "bucket-splits", links(27, 6), links(33, 4));
    list.on(Scene::Index, "bucket-unlink", Vec::new(), vec![Unlink(format!("/crowd/{}", long(5)))]);
    let moved = Rename(format!("/crowd/{}", long(6)), format!("/crowd/{}", long(90)), RenameFlags::empty());
    list.on(Scene::Index, "bucket-rename", Vec::new(), vec![moved]);
    // Records of 2 KiB fill half of the smallest log.
    let fill = |count| (0..count).map(|n| Write(p("/a/file"), 4_096 + n % 8, 2_000)).collect::<Vec<_>>();
    list.on(Scene::Common, "log-nearly-full", fill(118), vec![Create(p("/new"))]);
    list.on(Scene::Common, "log-wraps", fill(120), fill(6));
    // Both halves of a log of 256 KiB are retired and used again before, and once more meanwhile, with bytes in them that nobody else has.
    let synced =
        |count| (0..count).flat_map(|_| [Write(p("/b/void"), 0, 20_000), Fsync(p("/b/void"), false)]);
    let small = || [Write(p("/a/file"), 4_200, 700), Fsync(p("/a/file"), false)];
    let again =
        small().into_iter().chain(synced(7)).chain(small()).chain([Create(p("/new"))]).chain(synced(6));
    list.on(Scene::Common, "log-reused", synced(20).collect(), again.collect());
}

fn full(list: &mut List) {
    let operations: [(&str, Operation); 10] = [
        ("create", Create(p("/new"))),
        ("mkdir", Mkdir(p("/dir"))),
        ("write", Write(p("/a/file"), 0, 8_192)),
        ("write-sub-block", Write(p("/a/file"), 100, 100)),
        ("append", Write(p("/a/file"), 9_000, 20_000)),
        ("symlink", Symlink(p("/sym"), 4_000)),
        ("setxattr", Setxattr(p("/a/small"), p("user.new"), 1_800, XattrMode::Either)),
        ("unlink", Unlink(p("/a/file"))),
        ("rename-over", Rename(p("/a/file"), p("/b/other"), RenameFlags::empty())),
        ("truncate", Truncate(p("/a/file"), 100)),
    ];
    for (name, operation) in operations {
        list.on(Scene::Full, &format!("full-{name}"), Vec::new(), vec![operation]);
    }
    // One more block is free each time: what does not fit fails at another allocation.
    for blocks in [1, 2, 3, 4, 5, 6, 8, 12, 16] {
        let hole = Allocate(
            p("/filler"),
            FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE,
            1 << 20,
            blocks * 4_096,
        );
        let write = Write(p("/b/void"), 0, 20_000);
        list.on(Scene::Full, &format!("enospc-{blocks}"), vec![hole, Sync], vec![Create(p("/new")), write]);
    }
}
