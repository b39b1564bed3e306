//! Sound ext file systems, made once by mke2fs, e2fsck and debugfs, and how the input of a fuzzer changes them.
//!
//! The input is a list of changes, 2 bytes of place and 1 to 8 bytes each; a place counts the blocks that mean something. The
//! specimens have no checksums, so that what is changed is not refused at the door.

use std::fs;
use std::process::Command;
use std::sync::OnceLock;

const BLOCK: usize = 1024;

struct Specimen {
    image: Vec<u8>,
    /// Where blocks that are not all zeros, or all contents, begin.
    places: Vec<usize>,
}

/// One of each way to lay things out; the second has a journal to replay.
const KINDS: [&[&str]; 4] = [
    &["-t", "ext2", "-I", "128"],
    &["-t", "ext3", "-J", "size=1"],
    &["-t", "ext4", "-O", "^metadata_csum,^64bit,^has_journal"],
    &["-t", "ext4", "-O", "^metadata_csum,inline_data,bigalloc,^has_journal", "-C", "4096"],
];

fn run(program: &str, arguments: &[&str], most: i32) {
    let status = Command::new(program).args(arguments).status().expect("e2fsprogs is installed");
    assert!(status.code().is_some_and(|code| code <= most), "{program}: {status}");
}

fn specimens() -> &'static [Specimen] {
    static SPECIMENS: OnceLock<Vec<Specimen>> = OnceLock::new();
    SPECIMENS.get_or_init(|| KINDS.iter().map(|options| specimen(options)).collect())
}

fn specimen(options: &[&str]) -> Specimen {
    let dir = std::env::temp_dir().join(format!("amberfs-fuzz-ext.{}", std::process::id()));
    let source = dir.join("source");
    fs::create_dir_all(source.join("large")).unwrap();
    for n in 0..100 {
        fs::write(source.join(format!("large/{n} with a name that fills the directory's blocks")), "x")
            .unwrap();
    }
    fs::create_dir_all(source.join("a/b")).unwrap();
    fs::write(source.join("a/file"), vec![b'x'; 300_000]).unwrap();
    std::os::unix::fs::symlink("t".repeat(80), source.join("link")).unwrap();
    let (image, commands, blocks) = (dir.join("image"), dir.join("commands"), dir.join("blocks"));
    let text = |path: &std::path::Path| path.display().to_string();
    let _ = fs::remove_file(&image);
    let make = ["-q", "-F", "-b", "1024", "-N", "256", "-d", &text(&source)];
    run("mke2fs", &[&make[..], options, &[&text(&image), "6M"]].concat(), 0);
    run("e2fsck", &["-fyD", &text(&image)], 1);
    fs::write(&blocks, vec![b'y'; 4 * BLOCK]).unwrap();
    let journal = format!(
        "ea_set a/file user.name value\njo\njw -b 900,901 {0}\njw -r 901\njw -b 902 {0}\njc\n",
        text(&blocks)
    );
    let attributes = "ea_set a/file user.name value\n".to_string();
    fs::write(&commands, if options.contains(&"-J") { journal } else { attributes }).unwrap();
    run("debugfs", &["-w", "-f", &text(&commands), &text(&image)], 0);
    let image = fs::read(&image).unwrap();
    let _ = fs::remove_dir_all(&dir);
    let means = |at: &usize| image[*at..*at + BLOCK].iter().any(|byte| !matches!(byte, 0 | b'x'));
    let places = (0..image.len()).step_by(BLOCK).filter(means).collect();
    Specimen { image, places }
}

/// The specimen that `which` chooses, with changes.
pub(crate) fn changed(which: u8, changes: &[u8]) -> Vec<u8> {
    let specimen = &specimens()[usize::from(which) % KINDS.len()];
    let mut image = specimen.image.clone();
    let mut rest = changes;
    while let [low, high, length, tail @ ..] = rest {
        let (block, length) = (usize::from(*low) % specimen.places.len(), usize::from(length % 8) + 1);
        let (bytes, next) = tail.split_at(length.min(tail.len()));
        let at = specimen.places[block] + usize::from(*high) * 4 % (BLOCK - 8);
        image[at..at + bytes.len()].copy_from_slice(bytes);
        rest = next;
    }
    image
}
