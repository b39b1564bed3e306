//! All names, from the root down.

use std::collections::HashSet;

use vfs::FileKind;

use super::Check;
use crate::core::inode::{self, Flags, Inode};
use crate::superblock::ROOT;
use crate::{directory, xattr};

/// A name as it is listed.
struct Name {
    bytes: Vec<u8>,
    inode: u32,
    kind: Option<FileKind>,
}

impl Name {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).escape_debug().to_string()
    }
}

impl Check<'_> {
    /// Counts the names of each inode, and looks at each directory once.
    pub(super) fn names(&mut self) {
        let mut seen = HashSet::from([ROOT]);
        let mut todo = vec![(ROOT, ROOT)];
        while let Some((number, parent)) = todo.pop() {
            let Some(dir) = self.report.note(inode::read(self.core, number)) else { continue };
            let mut names = Vec::new();
            let listed = directory::each(self.core, &dir, &mut |entry| {
                names.push(Name { bytes: entry.name.to_vec(), inode: entry.inode, kind: entry.kind });
                true
            });
            self.report.note(listed);
            self.dots(&dir, parent, &names);
            let mut bytes = HashSet::new();
            for name in &names {
                if !bytes.insert(&name.bytes) {
                    self.report.find(format!("'{}' is twice in directory {number}", name.text()));
                }
                self.name(&dir, name);
                let is_child = name.bytes != b"." && name.bytes != b"..";
                let is_dir =
                    self.inodes.get(&name.inode).is_some_and(|known| known.kind == FileKind::Directory);
                if is_child && is_dir {
                    if seen.insert(name.inode) {
                        todo.push((name.inode, number));
                    } else {
                        let what = format!("directory {} is in two directories, or in itself", name.inode);
                        self.report.find(what);
                    }
                }
            }
            self.report.note(xattr::names(self.core, &dir));
        }
    }

    /// `.` and `..` are the first two, and lead where they should.
    fn dots(&mut self, dir: &Inode, parent: u32, names: &[Name]) {
        let expected = [(&b"."[..], dir.number), (b"..", parent)];
        let found = names.iter().take(2).map(|name| (&name.bytes[..], name.inode));
        if !found.eq(expected) {
            self.report.find(format!(
                "directory {} does not begin with '.' and '..', or they lead elsewhere",
                dir.number
            ));
        }
    }

    /// A name leads to an inode in use, of the kind that it says, and is found by its hash, if there is a tree.
    fn name(&mut self, dir: &Inode, name: &Name) {
        let number = dir.number;
        match self.inodes.get_mut(&name.inode) {
            None => {
                let what = format!(
                    "'{}' of directory {number} leads to inode {}, which is not in use",
                    name.text(),
                    name.inode
                );
                self.report.find(what);
            }
            Some(known) => {
                known.names += 1;
                if name.kind.is_some_and(|kind| kind != known.kind) {
                    let what = format!(
                        "'{}' of directory {number} says that inode {} is of another kind",
                        name.text(),
                        name.inode
                    );
                    self.report.find(what);
                }
            }
        }
        // Where there is no tree, a look-up finds what listing found.
        if !dir.flags.contains(Flags::INDEX) {
            return;
        }
        match directory::find(self.core, dir, &name.bytes) {
            // Another inode's: the name is there twice, which is found without the tree.
            Ok(_) => {}
            Err(vfs::Error::NotFound) => {
                self.report
                    .find(format!("'{}' of directory {number} is not found by its hash tree", name.text()));
            }
            Err(error) => self.report.find(error.to_string()),
        }
    }
}
