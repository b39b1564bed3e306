//! `ZONE:VOLUME`, as commands, mount(8) and fstab name a volume.

use std::path::{Path, PathBuf};
use std::str::FromStr;

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

impl FromStr for Place {
    type Err = String;

    /// A path to something that is there names that, whatever colons it has.
    fn from_str(text: &str) -> Result<Place, String> {
        if text.contains(':') && Path::new(text).exists() {
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
            None => Err(format!("'{text}' names no volume: write ZONE:VOLUME, for example {text}:home")),
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
        let place: Place = "/a:b/c".parse().unwrap();
        assert_eq!((place.zone, place.volume), ("/a:b/c".into(), None));
    }
}
