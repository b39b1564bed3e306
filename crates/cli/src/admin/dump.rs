//! Structures of a zone or volume as they are in NVM.

use native::{Datum, Shown};
use nvm::{EntranceCopy, VolumeKind, Zone};

use crate::failure::{Explain, Failure};
use crate::report::{Fields, Value};

/// A structure of a volume that nobody mounts meanwhile, or the zone's entrance; as much of it as can be read.
pub(crate) fn dump(zone: &Zone, volume: Option<&str>, structure: &str) -> (Fields, Result<(), Failure>) {
    let Some(volume) = volume else { return (entrance(zone.entrance_copies()), Ok(())) };
    let mut shown = Shown::default();
    let dumped = structure.parse().map_err(Failure::new).and_then(|known| {
        let region = zone.volume(volume).doing("opening the volume")?;
        if region.kind() != VolumeKind::Native {
            let what = format!(
                "volume '{volume}' is of kind {}: only those of a native one are shown",
                region.kind()
            );
            let remedy =
                "'amberfs info' tells what it is; what its disk has shows debugfs(8), once it is detached";
            return Err(Failure::new(what).remedy(remedy));
        }
        native::dump(&region, known, &mut shown).doing(format!("reading {structure}"))
    });
    (fields(shown), dumped)
}

fn fields(shown: Shown) -> Fields {
    let value = |datum| match datum {
        Datum::Number(number) => Value::Count(number),
        Datum::Text(text) => Value::Text(text),
        Datum::Flag(flag) => Value::Flag(flag),
        Datum::Rows(rows) => Value::Rows(rows.into_iter().map(fields).collect()),
    };
    shown.0.into_iter().fold(Fields::new(), |fields, (name, datum)| fields.with(name, value(datum)))
}

/// Both copies of the entrance, each with its system index; of damaged ones what they say all the same.
pub(crate) fn entrance(copies: [EntranceCopy; 2]) -> Fields {
    let [first, second] = copies.map(|copy| {
        let start = Fields::new().with("at", Value::Count(copy.at));
        let (start, content) = match copy.content {
            Err(damage) => (start.with("damage", damage), copy.doubtful),
            Ok(content) => (start, Some(content)),
        };
        match content {
            None => start,
            Some(content) => start
                .with("format_version", Value::Count(content.version.into()))
                .with("uuid", content.uuid.to_string())
                .with("sequence", Value::Count(content.sequence))
                .with("bytes", Value::Count(content.bytes))
                .with("created", Value::Time(content.created_s))
                .with(
                    "index",
                    Value::Rows(
                        content
                            .index
                            .into_iter()
                            .map(|(slot, volume)| {
                                Fields::new()
                                    .with("slot", Value::Count(slot as u64))
                                    .with("name", volume.name)
                                    .with("kind", volume.kind.to_string())
                                    .with("uuid", volume.uuid.to_string())
                                    .with("start", Value::Count(volume.start))
                                    .with("bytes", Value::Count(volume.bytes))
                                    .with("unfinished", volume.unfinished)
                            })
                            .collect(),
                    ),
                ),
        }
    });
    Fields::new().with("copy_0", Value::Fields(first)).with("copy_1", Value::Fields(second))
}
