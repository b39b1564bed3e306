//! `ZONE:VOLUME`, as commands, mount(8) and fstab name a volume; and disks, which can be mounted, too.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use disk::Source;

/// A zone, or a volume in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) zone: PathBuf,
    pub(crate) volume: Option<String>,
}

/// A volume in a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumePlace {
    pub(crate) zone: PathBuf,
    pub(crate) volume: String,
}

/// What can be mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MountSource {
    Volume(VolumePlace),
    /// A disk with ext2, ext3 or ext4 that no volume has.
    Disk(Source),
}

impl Place {
    /// Splits at the last colon, unless what follows it has a slash: a path may contain colons itself.
    fn split(text: &str) -> Result<Place, String> {
        let (zone, volume) = match text.rsplit_once(':') {
            Some((zone, volume)) if !volume.contains('/') => (zone, Some(volume)),
            _ => (text, None),
        };
        if zone.is_empty() {
            return Err(format!("'{text}' names no zone: write ZONE:VOLUME, for example /dev/dax0.0:home"));
        }
        if volume == Some("") {
            return Err(format!("'{text}' ends where a volume's name belongs: write ZONE:VOLUME"));
        }
        Ok(Place { zone: zone.into(), volume: volume.map(String::from) })
    }
}

/// Whether a disk is meant that is reached through a network, well written or not.
fn is_uri(text: &str) -> bool {
    text.starts_with("nbd") && text.contains("://") || text.starts_with("nbd:unix:")
}

impl FromStr for Place {
    type Err = String;

    /// A path to something that is there names that, whatever colons it has; and so does the URI of a disk.
    fn from_str(text: &str) -> Result<Place, String> {
        if is_uri(text) || text.contains(':') && Path::new(text).exists() {
            return Ok(Place { zone: text.into(), volume: None });
        }
        Place::split(text)
    }
}

impl FromStr for VolumePlace {
    type Err = String;

    fn from_str(text: &str) -> Result<VolumePlace, String> {
        let place = Place::split(text)?;
        match place.volume {
            Some(volume) => Ok(VolumePlace { zone: place.zone, volume }),
            None => {
                let no_slash = if text.contains(':') { "; a volume's name has no '/'" } else { "" };
                Err(format!("'{text}' names no volume: write ZONE:VOLUME, for example {text}:home{no_slash}"))
            }
        }
    }
}

impl FromStr for MountSource {
    type Err = String;

    /// What names no volume is a disk.
    fn from_str(text: &str) -> Result<MountSource, String> {
        if is_uri(text) {
            return text.parse().map(MountSource::Disk).map_err(|error: disk::SourceError| error.to_string());
        }
        let place: Place = text.parse()?;
        Ok(match place.volume {
            Some(volume) => MountSource::Volume(VolumePlace { zone: place.zone, volume }),
            None => MountSource::Disk(Source::Path(place.zone)),
        })
    }
}

/// A path that can be written in the table of mounts, in JSON and on a command line; other paths are refused.
///
/// # Errors
/// Which it is, with a mark for what is no character.
pub(crate) fn utf8(path: &Path) -> std::io::Result<&str> {
    path.to_str().ok_or_else(|| {
        std::io::Error::other(format!(
            "{}: the path is not UTF-8, as paths of zones and mount points have to be",
            path.display()
        ))
    })
}

impl MountSource {
    /// The same from any working directory: what a server and `/proc/mounts` keep.
    pub(crate) fn absolute(&self) -> std::io::Result<MountSource> {
        Ok(match self {
            MountSource::Volume(place) => MountSource::Volume(place.absolute()?),
            MountSource::Disk(disk) => {
                MountSource::Disk(disk.clone().seen_from(&std::env::current_dir().unwrap_or_default())?)
            }
        })
    }

    /// Whether nothing has this path: for `nofail`, which forgives that and no other failure (mount(8)). What is reached through a
    /// network counts as there.
    pub(crate) fn is_missing(&self) -> bool {
        let path = match self {
            MountSource::Volume(place) => &place.zone,
            MountSource::Disk(Source::Path(path)) => path,
            MountSource::Disk(Source::Nbd { .. }) => return false,
        };
        std::fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    }

    /// The volume's name; a disk's server has nothing else, and calls it nothing.
    pub(crate) fn volume(&self) -> &str {
        match self {
            MountSource::Volume(place) => &place.volume,
            MountSource::Disk(_) => "",
        }
    }

    /// What its server has open: the zone, or the disk.
    pub(crate) fn opened(&self) -> PathBuf {
        match self {
            MountSource::Volume(place) => place.zone.clone(),
            MountSource::Disk(disk) => disk.to_string().into(),
        }
    }
}

impl std::fmt::Display for MountSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MountSource::Volume(place) => place.fmt(f),
            MountSource::Disk(disk) => disk.fmt(f),
        }
    }
}

impl VolumePlace {
    /// The same place from any working directory: what a server and `/proc/mounts` keep.
    pub(crate) fn absolute(&self) -> std::io::Result<VolumePlace> {
        let zone = match std::fs::canonicalize(&self.zone) {
            Ok(zone) => zone,
            // Opening it will say what is wrong with it.
            Err(_) => std::path::absolute(&self.zone)?,
        };
        utf8(&zone)?;
        Ok(VolumePlace { zone, volume: self.volume.clone() })
    }
}

impl std::fmt::Display for VolumePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.zone.display(), self.volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_split_at_the_last_colon() {
        let volume = |text: &str| text.parse::<VolumePlace>().map(|place| (place.zone, place.volume));
        assert_eq!(volume("/dev/dax0.0:home"), Ok(("/dev/dax0.0".into(), "home".into())));
        assert_eq!(volume("a:b:c"), Ok(("a:b".into(), "c".into())));
        for text in ["/dev/dax0.0", "/a:b/c", "zone:", ":home", ""] {
            assert!(volume(text).is_err(), "{text}");
        }
        assert!(volume("/a:b/c").unwrap_err().ends_with("a volume's name has no '/'"));
        let place: Place = "/a:b/c".parse().unwrap();
        assert_eq!((place.zone, place.volume), ("/a:b/c".into(), None));
    }

    #[test]
    fn what_names_no_volume_is_a_disk() {
        let source = |text: &str| text.parse::<MountSource>().unwrap();
        assert_eq!(source("/dev/dax0.0:home").volume(), "home");
        for disk in
            ["/dev/sdb1", "disk", "nbd://host:10809", "nbd://host/export", "nbd+unix:///a:b?socket=/c"]
        {
            assert!(matches!(source(disk), MountSource::Disk(_)), "{disk}");
        }
        for text in ["", ":home", "zone:", "nbds://host", "nbd://host:port", "nbd:unix:/socket"] {
            assert!(text.parse::<MountSource>().is_err(), "{text}");
        }
        assert_eq!(source("nbd://host").opened(), Path::new("nbd://host:10809/"));
        assert_eq!(source("nbd:home").volume(), "home", "a zone may be called so");
        let place: Place = "nbd://host:10809".parse().unwrap();
        assert_eq!((place.zone, place.volume), ("nbd://host:10809".into(), None));
    }
}
