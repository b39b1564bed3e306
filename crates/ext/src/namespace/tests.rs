//! How many directories a directory counts, on either side of the limit.

use vfs::{Error, FileKind};

use super::{LINKS_MAX, gain_directory, lose_directory};
use crate::core::inode::{self, Inode};
use crate::directory;
use crate::scene::Scene;
use crate::superblock::ROOT;

/// Sets what the root directory counts, lets `change` have it, and gives what it counts then.
fn after(
    scene: &Scene,
    links: u32,
    change: impl FnOnce(&crate::core::Core) -> vfs::Result<()>,
) -> vfs::Result<u32> {
    scene.change(|core| {
        inode::write(core, &Inode { links, ..inode::read(core, ROOT)? })?;
        change(core)
    })?;
    Ok(inode::read(scene.core(), ROOT).unwrap().links)
}

#[test]
fn directories_are_counted_up_to_a_limit() {
    let gain = |core: &_| gain_directory(core, ROOT);
    let lose = |core: &_| lose_directory(core, ROOT);
    for (options, may_stop) in [
        (&["-t", "ext4", "-b", "1024", "-O", "dir_nlink"][..], true),
        (&["-t", "ext4", "-b", "1024", "-O", "^dir_nlink"], false),
        (&["-t", "ext2", "-b", "1024"], false),
    ] {
        let scene = Scene::new("16M", options, 1);
        let file = scene.file(0);
        assert_eq!(after(&scene, 2, gain), Ok(3));
        assert_eq!(after(&scene, 3, lose), Ok(2));
        assert_eq!(after(&scene, LINKS_MAX - 1, gain), Ok(LINKS_MAX));
        assert_eq!(after(&scene, LINKS_MAX, gain), Err(Error::TooManyLinks), "one without a tree");
        scene
            .change(|core| {
                let mut root = inode::read(core, ROOT)?;
                for n in 0..200 {
                    directory::insert(
                        core,
                        &mut root,
                        format!("name {n}").as_bytes(),
                        file,
                        FileKind::Regular,
                    )?;
                }
                inode::write(core, &root)
            })
            .unwrap();
        let expected = if may_stop { Ok(1) } else { Err(Error::TooManyLinks) };
        assert_eq!(after(&scene, LINKS_MAX, gain), expected);
        // What is not counted stays so.
        assert_eq!(after(&scene, 1, gain), Ok(1));
        assert_eq!(after(&scene, 1, lose), Ok(1));
    }
}
