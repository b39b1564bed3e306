//! What differs between snapshots, or between one and what a volume is now.

use native::{Aspect, Difference, DifferenceKind, Volume};
use nvm::{VolumeKind, Zone};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use vfs::FileKind;

use crate::failure::{Explain, Failure};
use crate::report::Parts;

/// Differences told at once: so many, or the first that make so many bytes.
const PART_MAX: usize = 256;

const PART_BYTES: usize = 64 << 10;

/// What is compared.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Pair {
    pub(crate) from: String,
    /// None: what the volume is now.
    pub(crate) to: Option<String>,
}

impl Pair {
    /// Compares what is in a volume that is not mounted; it is opened only if one of the two is what it is now.
    pub(crate) fn of_unmounted(&self, zone: &Zone, name: &str) -> Result<Vec<Difference>, Failure> {
        let region = zone.volume(name).doing("opening the volume")?;
        if region.kind() != VolumeKind::Native {
            let what = format!("volume '{name}' is of kind {}, which has no snapshots", region.kind());
            return Err(Failure::new(what));
        }
        if let Some(to) = &self.to {
            return native::diff(&region, &self.from, to).doing("comparing");
        }
        let read_only = zone.is_read_only();
        let options =
            native::MountOptions { read_only, background: false, ..native::MountOptions::default() };
        let volume = Volume::open(region, &options).doing("opening the volume")?;
        let differences = self.compare(&volume)?;
        volume.close().doing("closing the volume")?;
        Ok(differences)
    }

    pub(crate) fn compare(&self, volume: &Volume) -> Result<Vec<Difference>, Failure> {
        volume.diff(&self.from, self.to.as_deref()).doing("comparing")
    }
}

/// Hands differences on, some at a time.
pub(crate) fn tell(differences: &[Difference], take: &mut Parts<'_>) -> Result<(), Failure> {
    let (mut part, mut bytes) = (Vec::new(), 0);
    for difference in differences {
        bytes += difference.path.len();
        part.push(row(difference));
        if part.len() == PART_MAX || bytes > PART_BYTES {
            take(Json::Array(std::mem::take(&mut part)))?;
            bytes = 0;
        }
    }
    if part.is_empty() { Ok(()) } else { take(Json::Array(part)) }
}

/// A path in printable characters: a backslash, a blank, and what is no character or not to be seen, are told as a
/// backslash and three octal digits for each byte. So a line can be taken apart at its blanks.
fn escaped(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    let octal = |text: &mut String, bytes: &[u8]| {
        bytes.iter().for_each(|byte| text.push_str(&format!("\\{byte:03o}")));
    };
    for chunk in path.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character == '\\' || character.is_whitespace() || character.is_control() {
                octal(&mut text, character.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(character);
            }
        }
        octal(&mut text, chunk.invalid());
    }
    text
}

fn row(difference: &Difference) -> Json {
    let kind = match difference.file {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::BlockDevice => "block-device",
        FileKind::CharDevice => "char-device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    };
    let mut row = match &difference.kind {
        DifferenceKind::Removed => json!({ "change": "removed" }),
        DifferenceKind::Added => json!({ "change": "added" }),
        DifferenceKind::Renamed { from } => json!({ "change": "renamed", "from": escaped(from) }),
        DifferenceKind::Modified(aspects) => {
            let what: Vec<_> = aspects.iter().map(|aspect| name_of(*aspect)).collect();
            json!({ "change": "modified", "what": what })
        }
    };
    row["type"] = kind.into();
    row["path"] = escaped(&difference.path).into();
    row
}

fn name_of(aspect: Aspect) -> &'static str {
    match aspect {
        Aspect::Data => "data",
        Aspect::Entries => "entries",
        Aspect::Flags => "flags",
        Aspect::Links => "links",
        Aspect::Mode => "mode",
        Aspect::Owner => "owner",
        Aspect::Times => "times",
        Aspect::Xattrs => "xattrs",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_can_be_told_apart() {
        for (path, text) in [
            (&b"/plain/name.txt"[..], "/plain/name.txt"),
            ("/größe/名".as_bytes(), "/größe/名"),
            (b"/a -> b", "/a\\040->\\040b"),
            (b"/a\\040b", "/a\\134040b"),
            (b"/line\nfeed\x7f", "/line\\012feed\\177"),
            (b"/\xff\xc3(", "/\\377\\303("),
            ("/no\u{a0}break".as_bytes(), "/no\\302\\240break"),
        ] {
            assert_eq!(escaped(path), text);
        }
    }
}
