//! What a recorded run does, on the volume and on the model alike.

use vfs::{
    Caller, Error, FallocateMode, FileSystem, Handle, Ino, OpenFlags, ROOT_INO, RenameFlags, Result, SetAttr,
    XattrMode,
};

use crate::volumes::*;

/// One operation of the run, by paths, so that it means the same to the volume and to the model.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Create(String),
    Mkdir(String),
    Symlink(String, Vec<u8>),
    Write(String, u64, Vec<u8>),
    WriteHeld(u64, Vec<u8>),
    Truncate(String, u64),
    Allocate(String, FallocateMode, u64, u64),
    Copy(String, String),
    Setxattr(String, String, Vec<u8>),
    Removexattr(String, String),
    Chmod(String, u32),
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, RenameFlags),
    /// Opens a file and keeps it open.
    Hold(String),
    /// Makes a file without a name and keeps it open.
    Tmpfile,
    /// Gives a name to what is held.
    LinkHeld(String),
    Release,
    Fsync,
    Sync,
}

/// A file system and the files that are held open on it.
pub(crate) struct Actor<'a> {
    pub(crate) fs: &'a dyn FileSystem,
    /// What it calls `/`.
    pub(crate) root: Ino,
    pub(crate) held: Vec<(Ino, Handle)>,
}

impl Actor<'_> {
    pub(crate) fn find(&self, path: &str) -> Result<Ino> {
        let mut at = self.root;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = self.fs.lookup(&Caller::root(), at, name.as_bytes())?.ino;
        }
        Ok(at)
    }

    fn split<'p>(&self, path: &'p str) -> Result<(Ino, &'p [u8])> {
        // The root has no name.
        let (dir, name) = path.trim_end_matches('/').rsplit_once('/').ok_or(Error::Busy)?;
        Ok((self.find(dir)?, name.as_bytes()))
    }

    fn with(&self, path: &str, then: impl FnOnce(Handle) -> Result<()>) -> Result<()> {
        let handle = self.fs.open(&Caller::root(), self.find(path)?, RW)?;
        let result = then(handle);
        self.fs.release(handle)?;
        result
    }

    pub(crate) fn perform(&mut self, operation: &Operation) -> Result<()> {
        let (fs, root) = (self.fs, &Caller::root());
        match operation {
            Operation::Create(path) => {
                let (dir, name) = self.split(path)?;
                let created = fs.create(root, dir, name, 0o644, RW | OpenFlags::EXCLUSIVE)?;
                fs.release(created.handle)
            }
            Operation::Mkdir(path) => {
                let (dir, name) = self.split(path)?;
                fs.mkdir(root, dir, name, 0o755).map(drop)
            }
            Operation::Symlink(path, target) => {
                let (dir, name) = self.split(path)?;
                fs.symlink(root, dir, name, target).map(drop)
            }
            Operation::Write(path, at, bytes) => {
                self.with(path, |handle| fs.write(root, handle, *at, bytes).map(drop))
            }
            Operation::WriteHeld(at, bytes) => match self.held.last() {
                Some((_, handle)) => fs.write(root, *handle, *at, bytes).map(drop),
                None => Ok(()),
            },
            Operation::Truncate(path, size) => {
                let set = SetAttr { size: Some(*size), ..SetAttr::default() };
                fs.setattr(root, self.find(path)?, &set, None).map(drop)
            }
            Operation::Allocate(path, mode, at, length) => {
                self.with(path, |handle| fs.fallocate(root, handle, *mode, *at, *length))
            }
            Operation::Copy(from, to) => {
                let source = self.find(from)?;
                self.with(to, |sink| {
                    let from = fs.open(root, source, RW)?;
                    let copied = fs.copy_file_range(root, from, 0, sink, 4000, 20_000);
                    fs.release(from)?;
                    copied.map(drop)
                })
            }
            Operation::Setxattr(path, name, value) => {
                fs.setxattr(root, self.find(path)?, name.as_bytes(), value, XattrMode::Either)
            }
            Operation::Removexattr(path, name) => fs.removexattr(root, self.find(path)?, name.as_bytes()),
            Operation::Chmod(path, mode) => {
                let set = SetAttr { mode: Some(*mode), uid: Some(*mode), ..SetAttr::default() };
                fs.setattr(root, self.find(path)?, &set, None).map(drop)
            }
            Operation::Link(from, to) => {
                let (dir, name) = self.split(to)?;
                fs.link(root, self.find(from)?, dir, name).map(drop)
            }
            Operation::Unlink(path) => {
                let (dir, name) = self.split(path)?;
                fs.unlink(root, dir, name)
            }
            Operation::Rmdir(path) => {
                let (dir, name) = self.split(path)?;
                fs.rmdir(root, dir, name)
            }
            Operation::Rename(from, to, flags) => {
                let ((dir, name), (new_dir, new_name)) = (self.split(from)?, self.split(to)?);
                fs.rename(root, dir, name, new_dir, new_name, *flags)
            }
            Operation::Hold(path) => {
                let ino = self.find(path)?;
                let handle = fs.open(root, ino, RW)?;
                self.held.push((ino, handle));
                Ok(())
            }
            Operation::Tmpfile => {
                let created = fs.tmpfile(root, self.root, 0o600, RW)?;
                self.held.push((created.attr.ino, created.handle));
                Ok(())
            }
            Operation::LinkHeld(path) => {
                let Some(&(ino, _)) = self.held.last() else { return Ok(()) };
                let (dir, name) = self.split(path)?;
                fs.link(root, ino, dir, name).map(drop)
            }
            Operation::Release if self.held.is_empty() => Ok(()),
            Operation::Release => fs.release(self.held.remove(0).1),
            Operation::Fsync => fs.fsync_inode(ROOT_INO),
            Operation::Sync => fs.syncfs(),
        }
    }
}

/// The next operation, for a tree that looks like this.
pub(crate) fn choose(random: &mut Random, tree: &Tree) -> Operation {
    let new = |random: &mut Random| {
        let dirs: Vec<&String> = tree.keys().filter(|path| tree[*path].is_dir()).collect();
        let dir = dirs[random.below(dirs.len() as u64) as usize];
        let long = if random.one_in(4) { "-with-a-name-that-takes-room".repeat(8) } else { String::new() };
        format!("{dir}n{}{long}", random.below(30))
    };
    let any = |random: &mut Random| {
        let path = tree.keys().nth(random.below(tree.len() as u64) as usize).unwrap();
        if random.one_in(8) { new(random) } else { path.clone() }
    };
    let file = |random: &mut Random| {
        let files: Vec<&String> = tree.keys().filter(|path| tree[*path].is_file()).collect();
        match files.len() {
            0 => new(random),
            n => files[random.below(n as u64) as usize].clone(),
        }
    };
    let offset = |random: &mut Random| match random.below(4) {
        0 => 0,
        1 => random.below(5_000),
        2 => random.below(40) * 4096,
        _ => random.below(300_000),
    };
    let bytes = |random: &mut Random| {
        let length = match random.below(8) {
            0..=2 => 1 + random.below(200),
            3 => 1 + random.below(4000),
            4 => 4096,
            5 => 8192 + random.below(3) * 4096,
            6 => random.below(30_000),
            _ => 1 + random.below(100_000),
        };
        random.bytes(length as usize)
    };
    match random.below(34) {
        0..=4 => Operation::Create(new(random)),
        5..=6 => Operation::Mkdir(new(random)),
        7 => {
            let length = 1 + random.below(4095) as usize;
            let target = random.bytes(length).iter().map(|byte| byte | 1).collect();
            Operation::Symlink(new(random), target)
        }
        8..=14 => Operation::Write(file(random), offset(random), bytes(random)),
        15 => Operation::WriteHeld(offset(random), bytes(random)),
        16..=17 => Operation::Truncate(file(random), offset(random)),
        18 => Operation::Allocate(file(random), FallocateMode::empty(), offset(random), 1 + offset(random)),
        19 => {
            let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
            Operation::Allocate(file(random), mode, offset(random), 1 + offset(random))
        }
        20 => Operation::Copy(file(random), file(random)),
        21..=22 => {
            let length = random.below(1800) as usize;
            Operation::Setxattr(any(random), format!("user.x{}", random.below(2)), random.bytes(length))
        }
        23 => Operation::Removexattr(any(random), format!("user.x{}", random.below(2))),
        24 => Operation::Chmod(any(random), random.below(0o1000) as u32),
        25 => Operation::Link(any(random), new(random)),
        26..=27 => Operation::Unlink(any(random)),
        28 => Operation::Rmdir(any(random)),
        29 => {
            let flags = [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
            Operation::Rename(any(random), any(random), flags[random.below(3) as usize])
        }
        30 => Operation::Rename(any(random), new(random), RenameFlags::empty()),
        31 => [Operation::Tmpfile, Operation::Hold(file(random)), Operation::Hold(file(random))]
            [random.below(3) as usize]
            .clone(),
        32 => [Operation::LinkHeld(new(random)), Operation::Release][random.below(2) as usize].clone(),
        _ if random.one_in(2) => Operation::Fsync,
        _ => Operation::Sync,
    }
}
