//! `amberfs dump`: a structure of a zone or volume as it is in NVM.

use native::{Datum, Shown, Structure};
use nvm::Zone;

use crate::command_line::Dump;
use crate::exit;
use crate::failure::{Explain, Failure};
use crate::report::{self, Fields, Value};
use crate::zone_access::open_alone;

/// The structure that belongs to no volume.
const ENTRANCE: &str = "entrance";

pub(crate) fn run(arguments: &Dump) -> Result<(), Failure> {
    let usage = |what: String, remedy: String| Failure::new(what).exit(exit::USAGE).remedy(remedy);
    let place = &arguments.place;
    if arguments.structure == ENTRANCE {
        return report::print(&entrance(&open_alone(&place.zone, false)?), arguments.json);
    }
    let structure: Structure = arguments
        .structure
        .parse()
        .map_err(|error| usage(error, format!("choose {ENTRANCE}, {}", Structure::NAMES)))?;
    let zone = place.zone.display();
    let name = place.volume.as_ref().ok_or_else(|| {
        let what = format!("{zone} names no volume, and {} is one's", arguments.structure);
        usage(what, format!("write {zone}:VOLUME; 'amberfs zone show {zone}' lists them"))
    })?;
    let region = open_alone(&place.zone, false)?.volume(name).doing("opening the volume")?;
    // Printed as far as it goes, also where damage ends it.
    let mut shown = Shown::default();
    let dumped = native::dump(&region, structure, &mut shown);
    if dumped.is_ok() || !shown.0.is_empty() {
        report::print(&fields(shown), arguments.json)?;
    }
    dumped.doing(format!("reading {}", arguments.structure))
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

/// Both copies of the entrance, each with its system index.
fn entrance(zone: &Zone) -> Fields {
    let [first, second] = zone.entrance_copies().map(|copy| {
        let start = Fields::new().with("at", Value::Count(copy.at));
        match copy.content {
            Err(damage) => start.with("damage", damage),
            Ok(content) => start
                .with("format_version", Value::Count(content.version.into()))
                .with("uuid", content.uuid.to_string())
                .with("sequence", Value::Count(content.sequence))
                .with("bytes", Value::Count(content.bytes))
                .with("created", report::date(content.created_s))
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
                            })
                            .collect(),
                    ),
                ),
        }
    });
    Fields::new().with("copy_0", Value::Fields(first)).with("copy_1", Value::Fields(second))
}
