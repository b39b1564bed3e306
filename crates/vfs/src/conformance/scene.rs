//! What the cases play in: a directory, callers, and short words for what they do.

use std::cell::RefCell;

use crate::{
    Attr, Caller, Created, FileKind, FileSystem, Handle, Ino, OpenFlags, ROOT_INO, RenameFlags, Result,
    SetAttr,
};

/// Opened for reading and writing.
pub(super) const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// A case's directory, which everybody may write.
pub(super) struct Scene<'a> {
    pub(super) fs: &'a dyn FileSystem,
    pub(super) dir: Ino,
    /// The superuser, umask 0.
    pub(super) root: Caller,
    /// User 1001 of group 2001 and, besides, group 3000.
    pub(super) user: Caller,
    /// User 1002 of group 2002 and, besides, group 3000.
    pub(super) other: Caller,
    opened: RefCell<Vec<Handle>>,
}

/// Closes what the case left open.
impl Drop for Scene<'_> {
    fn drop(&mut self) {
        for handle in self.opened.take() {
            // Most are closed already, which is as well.
            let _ = self.fs.release(handle);
        }
    }
}

impl<'a> Scene<'a> {
    pub(super) fn new(fs: &'a dyn FileSystem, name: &str) -> Scene<'a> {
        let root = Caller::root();
        let member = |uid, gid| Caller { groups: [3000].into(), umask: 0, ..Caller::user(uid, gid) };
        let dir = fs.mkdir(&root, ROOT_INO, name.as_bytes(), 0o777).expect("a directory for the case").ino;
        Scene {
            fs,
            dir,
            root,
            user: member(1001, 2001),
            other: member(1002, 2002),
            opened: RefCell::default(),
        }
    }

    /// A new file, opened for reading and writing by the superuser.
    pub(super) fn create(&self, name: &str) -> Created {
        self.create_as(&self.root, name, 0o644)
    }

    pub(super) fn create_as(&self, caller: &Caller, name: &str, mode: u32) -> Created {
        let flags = RW | OpenFlags::EXCLUSIVE;
        self.kept(self.fs.create(caller, self.dir, name.as_bytes(), mode, flags)).expect("a new file")
    }

    /// A new file with bytes, closed.
    pub(super) fn file(&self, name: &str, bytes: &[u8]) -> Ino {
        let made = self.create(name);
        self.write(made.handle, 0, bytes);
        self.close(made.handle);
        made.attr.ino
    }

    /// Notes what `create` or `tmpfile` opened, to be closed at the end.
    pub(super) fn kept(&self, created: Result<Created>) -> Result<Created> {
        self.opened.borrow_mut().extend(created.as_ref().map(|created| created.handle));
        created
    }

    pub(super) fn mkdir(&self, name: &str) -> Ino {
        self.mkdir_in(self.dir, name)
    }

    pub(super) fn mkdir_in(&self, dir: Ino, name: &str) -> Ino {
        self.fs.mkdir(&self.root, dir, name.as_bytes(), 0o755).expect("a new directory").ino
    }

    pub(super) fn open(&self, ino: Ino, flags: OpenFlags) -> Handle {
        let handle = self.fs.open(&self.root, ino, flags).expect("the superuser opens anything");
        self.opened.borrow_mut().push(handle);
        handle
    }

    pub(super) fn close(&self, handle: Handle) {
        self.fs.release(handle).expect("an open handle is closed");
    }

    pub(super) fn write(&self, handle: Handle, offset: u64, bytes: &[u8]) {
        assert_eq!(self.fs.write(&self.root, handle, offset, bytes), Ok(bytes.len()));
    }

    pub(super) fn read(&self, handle: Handle, offset: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0xee; len];
        let count = self.fs.read(handle, offset, &mut buf).expect("an open file is read");
        buf.truncate(count);
        buf
    }

    /// All bytes of a file.
    pub(super) fn bytes(&self, ino: Ino) -> Vec<u8> {
        let handle = self.open(ino, OpenFlags::READ);
        let bytes = self.read(handle, 0, self.attr(ino).size as usize + 10);
        self.close(handle);
        bytes
    }

    pub(super) fn attr(&self, ino: Ino) -> Attr {
        self.fs.getattr(ino).expect("a live inode has attributes")
    }

    pub(super) fn find(&self, name: &str) -> Result<Attr> {
        self.find_in(self.dir, name)
    }

    pub(super) fn find_in(&self, dir: Ino, name: &str) -> Result<Attr> {
        self.fs.lookup(&self.root, dir, name.as_bytes())
    }

    pub(super) fn link(&self, ino: Ino, name: &str) -> Result<Attr> {
        self.fs.link(&self.root, ino, self.dir, name.as_bytes())
    }

    pub(super) fn unlink(&self, name: &str) -> Result<()> {
        self.fs.unlink(&self.root, self.dir, name.as_bytes())
    }

    pub(super) fn rmdir(&self, name: &str) -> Result<()> {
        self.fs.rmdir(&self.root, self.dir, name.as_bytes())
    }

    /// Renames within the case's directory.
    pub(super) fn rename(&self, name: &str, new_name: &str, flags: RenameFlags) -> Result<()> {
        self.move_to(self.dir, name, self.dir, new_name, flags)
    }

    pub(super) fn move_to(
        &self,
        dir: Ino,
        name: &str,
        new_dir: Ino,
        new_name: &str,
        flags: RenameFlags,
    ) -> Result<()> {
        self.fs.rename(&self.root, dir, name.as_bytes(), new_dir, new_name.as_bytes(), flags)
    }

    pub(super) fn set(&self, ino: Ino, set: SetAttr) -> Attr {
        self.fs.setattr(&self.root, ino, &set, None).expect("the superuser sets attributes")
    }

    pub(super) fn chmod(&self, ino: Ino, mode: u32) {
        self.set(ino, SetAttr { mode: Some(mode), ..SetAttr::default() });
    }

    pub(super) fn chown(&self, ino: Ino, uid: u32, gid: u32) {
        self.set(ino, SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() });
    }

    /// The names in a directory but for `.` and `..`, sorted.
    pub(super) fn names(&self, dir: Ino) -> Vec<String> {
        let mut names: Vec<String> = self
            .list(dir, 0, usize::MAX)
            .into_iter()
            .map(|entry| entry.0)
            .filter(|name| name != "." && name != "..")
            .collect();
        names.sort();
        names
    }

    /// Up to `count` entries after cookie `from`: name, inode, kind, cookie.
    pub(super) fn list(&self, dir: Ino, from: u64, count: usize) -> Vec<(String, Ino, FileKind, u64)> {
        let mut all = Vec::new();
        let listed = self.fs.readdir(dir, from, &mut |entry| {
            if all.len() == count {
                return false;
            }
            let name = String::from_utf8_lossy(entry.name).into_owned();
            all.push((name, entry.ino, entry.kind, entry.next));
            true
        });
        assert_eq!(listed, Ok(()));
        all
    }
}
