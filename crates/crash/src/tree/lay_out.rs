//! A tree as a directory of the machine, for programs that know no other.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use vfs::FileKind;

use super::{BLOCK, Name, Node, Tree};
use crate::hash::{mix, mix_bytes};

impl Tree {
    /// Equal for trees that differ in times only.
    pub(crate) fn contents_hash(&self) -> u64 {
        self.names.iter().fold(0, |hash, (path, name)| {
            let hash = mix_bytes(hash, path);
            match name {
                Name::Same(first) => mix_bytes(mix(hash, 1), first),
                Name::First(node) => {
                    let hash = mix(mix(hash, u64::from(node.mode)), node.contents.size);
                    let hash = node
                        .contents
                        .blocks
                        .iter()
                        .fold(hash, |hash, (index, bytes)| mix_bytes(mix(hash, *index), bytes));
                    mix_bytes(hash, &node.target)
                }
            }
        })
    }

    /// Makes `dir` and in it the tree: directories, files, symbolic and hard links, with their permissions. What only root
    /// could make (devices, owners) and what programs here do not look at (other kinds, extended attributes, times) is
    /// left out.
    pub(crate) fn lay_out(&self, dir: &Path) -> io::Result<()> {
        let mut made: HashMap<&[u8], PathBuf> = HashMap::new();
        for (path, name) in &self.names {
            // All paths begin and end with a slash; the root's is nothing else.
            let relative = path.get(1..path.len().max(2) - 1).unwrap_or_default();
            let place = dir.join(OsStr::from_bytes(relative));
            match name {
                Name::Same(first) => {
                    if let Some(first) = made.get(first.as_slice()) {
                        std::fs::hard_link(first, &place)?;
                    }
                }
                Name::First(node) => {
                    make(node, &place)?;
                    made.insert(path, place);
                }
            }
        }
        Ok(())
    }
}

fn make(node: &Node, place: &Path) -> io::Result<()> {
    let permissions = || std::fs::Permissions::from_mode(node.mode & 0o7777);
    match FileKind::from_mode(node.mode) {
        Some(FileKind::Directory) => {
            std::fs::create_dir_all(place)?;
            std::fs::set_permissions(place, permissions())
        }
        Some(FileKind::Regular) => {
            let file = std::fs::File::create(place)?;
            file.set_len(node.contents.size)?;
            for (index, bytes) in &node.contents.blocks {
                file.write_all_at(bytes, index * BLOCK)?;
            }
            file.set_permissions(permissions())
        }
        Some(FileKind::Symlink) => symlink(OsStr::from_bytes(&node.target), place),
        _ => Ok(()),
    }
}
