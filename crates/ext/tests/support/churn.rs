//! Many random changes of few files: what is written over, cut, grown, moved and removed again and again.

use std::path::Path;

use super::contents::pattern;
use super::maker::{Kernel, Maker};
use super::random::Random;

/// Names that there can be.
const FILES: u64 = 24;
/// Where a write begins at most, bytes.
const FAR: u64 = 600_000;
/// Longest write, bytes.
const LONG: u64 = 50_000;

/// Makes `count` changes, and the same in `mirror`, a directory whose files are so what these should be. Whoever goes on with another seed
/// changes what was left before.
pub(crate) fn churn(maker: &mut impl Maker, mirror: &Path, seed: u64, count: u64) {
    let there = |name: &[u8]| mirror.join(std::str::from_utf8(name).expect("a name of ours")).exists();
    let mut random = Random::new(seed);
    let mut mirrored = Kernel::below(mirror);
    for _ in 0..count {
        let name = format!(
            "{} {}",
            if random.below(2) == 0 { "file" } else { "a longer name" },
            random.below(FILES)
        );
        let name = name.into_bytes();
        let choice = random.below(10);
        if choice < 8 || !there(&name) {
            let at = random.below(FAR);
            let bytes = pattern(random.below(LONG) as usize, random.next());
            let cut = (choice == 0).then(|| random.below(FAR));
            let sync = choice == 1;
            change(maker, &name, sync, cut, at, &bytes);
            change(&mut mirrored, &name, sync, cut, at, &bytes);
        } else if choice == 8 {
            maker.unlink(&name);
            mirrored.unlink(&name);
        } else {
            let to = format!("file {}", random.below(FILES)).into_bytes();
            maker.rename(&name, &to);
            mirrored.rename(&name, &to);
        }
    }
}

fn change(maker: &mut impl Maker, name: &[u8], sync: bool, cut: Option<u64>, at: u64, bytes: &[u8]) {
    let file = maker.open(name, sync);
    if let Some(length) = cut {
        maker.set_len(&file, length);
    }
    maker.write_at(&file, bytes, at);
    maker.close(file);
}

/// Fails unless the files of two directories are the same, byte by byte.
pub(crate) fn compare(one: &Path, other: &Path) {
    let names = |dir: &Path| {
        let mut names: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(one), names(other));
    for name in names(one) {
        let [here, there] = [one, other].map(|dir| std::fs::read(dir.join(&name)).unwrap());
        let differs = here.iter().zip(&there).position(|(here, there)| here != there);
        assert!(differs.is_none() && here.len() == there.len(), "{name:?} differs at {differs:?}");
    }
}
