//! The nodes that a walk has met: each belongs to one place, so a walk that meets one again ends there, however the nodes
//! of a forged medium name one another.

use std::collections::HashSet;

use crate::error::corrupt;

/// Nodes met so far.
#[derive(Default)]
pub(crate) struct Held(HashSet<u32>);

impl Held {
    /// Meets node `nid`: an error if it was met before.
    pub(crate) fn meet(&mut self, nid: u32) -> vfs::Result<()> {
        match self.0.insert(nid) {
            true => Ok(()),
            false => Err(corrupt(&format!("node {nid}"), 0, "place in its inode", "two", "one")),
        }
    }
}

#[cfg(test)]
mod tests {
    use vfs::{Caller, ROOT_INO};

    use crate::allocator::Urgency;
    use crate::bia::BlockKind;
    use crate::core::Core;
    use crate::geometry::BLOCK;
    use crate::node::HEADER;
    use crate::{MountOptions, directory, format, index};

    fn with_core(test: impl FnOnce(&Core)) {
        test(&format::new_in_memory(24 << 20, &MountOptions::default()));
    }

    /// Node `nid` names `name` in all its slots but the first.
    fn forge(core: &Core, nid: u32, name: u32) {
        let operation = core.begin(8, 1024, Urgency::Ordinary).unwrap();
        let edit = core.nodes.edit(&operation.budget, nid).unwrap();
        let slots = (edit.view().used() - HEADER) / 4;
        edit.store(HEADER + 4, &name.to_le_bytes().repeat(slots - 1));
    }

    /// A table that names itself 511 times over was listed, checked and removed for 512^7 steps.
    #[test]
    fn a_forged_directory_ends() {
        with_core(|core| {
            let root = Caller::root();
            let dir = core.mkdir(&root, ROOT_INO, b"d", 0o755).unwrap().ino;
            for n in 0..200 {
                core.mknod(&root, dir, format!("a name {n}").as_bytes(), 0o100_644, 0).unwrap();
            }
            let inode = core.nodes.inode(dir as u32).unwrap();
            let body = inode.derived().body.get();
            assert!(body >> 31 == 1, "the names fit one bucket");
            forge(core, body & !(1 << 31), body);
            assert!(directory::walk(&core.nodes, inode, &mut |_, _| Ok(())).is_err());
            assert!(directory::list(&core.nodes, inode, 0, &mut |_| true).is_err());
        });
    }

    /// The same of an indirect node: levels end there, but 1020 slots that name one direct node free it 1020 times.
    #[test]
    fn a_forged_index_ends() {
        with_core(|core| {
            let root = Caller::root();
            let rw = vfs::OpenFlags::READ | vfs::OpenFlags::WRITE;
            let file = core.create(&root, ROOT_INO, b"f", 0o644, rw).unwrap();
            core.write(&root, file.handle, 5 << 30, b"far").unwrap();
            core.write(&root, file.handle, (5 << 30) + 510 * 1019 * BLOCK, b"farther").unwrap();
            let inode = core.nodes.inode(file.attr.ino as u32).unwrap();
            let mut indirect = Vec::new();
            let visit = &mut |nid, kind| {
                indirect.extend((kind == BlockKind::Indirect).then_some(nid));
                Ok(())
            };
            index::walk(&core.nodes, inode, index::ALL, visit, &mut |_, _| Ok(())).unwrap();
            for nid in indirect {
                let child = core.nodes.view(nid, BlockKind::Indirect).unwrap();
                let used = child.used();
                let direct = child.u32_at(used - 4);
                forge(core, nid, direct);
            }
            assert!(index::check(&core.nodes, inode, 0..u64::MAX).is_err());
        });
    }
}
