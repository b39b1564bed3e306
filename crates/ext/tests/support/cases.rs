//! File systems in all ways in which mke2fs makes them, group by group.

use super::Image;
use super::contents::Scale;

pub(crate) const GIB: u64 = 1 << 30;

/// One way to make a file system.
pub(crate) struct Case {
    pub(crate) options: Vec<&'static str>,
    pub(crate) block: u64,
    /// Inodes have room for more than 128 bytes.
    pub(crate) large_inodes: bool,
    pub(crate) extents: bool,
    /// For tune2fs, before it is filled.
    tuned: Vec<&'static str>,
    scale: Option<Scale>,
}

impl Case {
    fn ext4(block: u64, options: &[&'static str]) -> Case {
        let options = [&["-t", "ext4"], options].concat();
        Case { options, block, large_inodes: true, extents: true, tuned: Vec::new(), scale: None }
    }

    fn scaled(self, scale: Scale) -> Case {
        Case { scale: Some(scale), ..self }
    }

    pub(crate) fn image(&self) -> Image {
        let (block, inode) = (self.block.to_string(), if self.large_inodes { "256" } else { "128" });
        let image =
            Image::make("400M", &[&["-b", &block, "-I", inode, "-N", "40000"], &self.options[..]].concat());
        if !self.tuned.is_empty() {
            super::run("tune2fs", &[&self.tuned[..], &[&image.path.display().to_string()]].concat());
        }
        image
    }

    pub(crate) fn scale(&self) -> Scale {
        self.scale.unwrap_or(Scale {
            entries: 3000,
            directories: 50,
            pieces: 500,
            far: if self.block == 1024 { 5 * GIB } else { 40 * GIB },
            extents: self.extents,
            block: self.block as usize,
        })
    }

    pub(crate) fn has(&self, option: &str) -> bool {
        self.options.contains(&option)
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let options = self.options.join(" ");
        write!(f, "{options}, blocks of {}, large inodes: {}", self.block, self.large_inodes)
    }
}

/// The file systems of one kind: three sizes of blocks and two of inodes.
pub(crate) fn of_kind(kind: &'static str) -> Vec<Case> {
    let sizes = [1024, 2048, 4096].into_iter().flat_map(|block| [(block, false), (block, true)]);
    let case = |(block, large_inodes)| Case {
        options: vec!["-t", kind],
        block,
        large_inodes,
        extents: kind == "ext4",
        tuned: Vec::new(),
        scale: None,
    };
    sizes.map(case).collect()
}

/// Of all kinds, sizes of blocks and sizes of inodes so many that any two of these three meet; with fewer things in them.
pub(crate) fn pairs() -> Vec<Case> {
    let chosen =
        |kind: usize, block: usize, case: &Case| (kind + block).is_multiple_of(2) == case.large_inodes;
    let of_kind = |(n, kind)| {
        let cases = of_kind(kind).into_iter().enumerate();
        cases.filter(move |(m, case)| chosen(n, m / 2, case)).map(|(_, case)| case)
    };
    let small = |case: Case| {
        let scale = Scale { entries: 400, directories: 20, pieces: 120, ..case.scale() };
        case.scaled(scale)
    };
    ["ext2", "ext3", "ext4"].into_iter().enumerate().flat_map(of_kind).map(small).collect()
}

/// What Debian 13 makes, and what it may.
pub(crate) fn newer_defaults() -> Vec<Case> {
    [4096, 1024].map(|block| Case::ext4(block, &["-O", "metadata_csum_seed,orphan_file"])).into()
}

pub(crate) fn older_defaults() -> Vec<Case> {
    let oldest = Case {
        options: vec!["-t", "ext2", "-O", "^filetype,^dir_index,^sparse_super,^large_file,^resize_inode"],
        block: 1024,
        large_inodes: false,
        extents: false,
        tuned: Vec::new(),
        scale: None,
    };
    vec![
        Case::ext4(4096, &["-O", "^metadata_csum,uninit_bg"]),
        Case::ext4(1024, &["-O", "^metadata_csum,^uninit_bg,^64bit,^flex_bg"]),
        Case::ext4(4096, &["-O", "^metadata_csum,uninit_bg,^64bit"]),
        Case::ext4(2048, &["-O", "^has_journal,^resize_inode,sparse_super2"]),
        oldest.scaled(Scale {
            entries: 500,
            directories: 5,
            pieces: 100,
            far: GIB,
            extents: false,
            block: 1024,
        }),
    ]
}

pub(crate) fn inline_data() -> Vec<Case> {
    vec![Case::ext4(4096, &["-O", "inline_data"]), Case::ext4(1024, &["-O", "inline_data,^metadata_csum"])]
}

pub(crate) fn bigalloc() -> Vec<Case> {
    vec![
        Case::ext4(4096, &["-O", "bigalloc", "-C", "65536", "-N", "20000"]),
        Case::ext4(1024, &["-O", "bigalloc", "-C", "16384", "-N", "8000"]),
    ]
}

pub(crate) fn meta_bg() -> Vec<Case> {
    vec![
        Case::ext4(1024, &["-O", "meta_bg,^resize_inode", "-g", "1024"]),
        Case::ext4(4096, &["-O", "meta_bg,^resize_inode"]),
    ]
}

pub(crate) fn multiple_mount_protection() -> Vec<Case> {
    vec![Case::ext4(4096, &["-O", "meta_bg,^resize_inode,mmp"])]
}

pub(crate) fn hash_functions() -> Vec<Case> {
    let scale = Scale { entries: 2000, directories: 5, pieces: 10, far: GIB, extents: true, block: 1024 };
    let hashes = ["hash_alg=half_md4", "hash_alg=tea", "hash_alg=legacy"];
    let case =
        |hash| Case { tuned: vec!["-E", hash], ..Case::ext4(1024, &["-O", "large_dir"]).scaled(scale) };
    hashes.map(case).into()
}

/// A directory of 10,000 entries in small blocks has a tree of two levels, one of 70,000 directories no count of them, and a file
/// of so many pieces a tree of extents two levels high.
pub(crate) fn large_things() -> [Case; 2] {
    [
        Case::ext4(1024, &[]).scaled(Scale {
            entries: 12_000,
            directories: 100,
            pieces: 6000,
            far: 12 * GIB,
            extents: true,
            block: 1024,
        }),
        Case::ext4(4096, &["-N", "90000"]).scaled(Scale {
            entries: 11_000,
            directories: 66_000,
            pieces: 4000,
            far: 900 * GIB,
            extents: true,
            block: 4096,
        }),
    ]
}
