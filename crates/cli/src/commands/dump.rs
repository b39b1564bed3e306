//! `amberfs dump`: a structure of a zone or volume as it is in NVM.
//!
//! A server that has the zone for others of its volumes reads it in its process.

use native::{Datum, Shown, Structure};
use nvm::Zone;

use crate::command_line::Dump;
use crate::control::{Parts, Request};
use crate::exit;
use crate::failure::{Explain, Failure};
use crate::report::{self, Fields, Value};
use crate::zone_access::{Access, reach};

/// The structure that belongs to no volume.
const ENTRANCE: &str = "entrance";
/// Bytes that a server tells at once.
const PART_BYTES: usize = 1 << 20;

pub(crate) fn run(arguments: &Dump) -> Result<(), Failure> {
    let usage = |what: String, remedy: String| Failure::new(what).exit(exit::USAGE).remedy(remedy);
    let place = &arguments.place;
    let structure = arguments.structure.as_str();
    let of = match (structure, &place.volume) {
        (ENTRANCE, _) => None,
        (structure, volume) => {
            let known = structure.parse::<Structure>().map(drop);
            known.map_err(|error| usage(error, format!("choose {ENTRANCE}, {}", Structure::NAMES)))?;
            let zone = place.zone.display();
            Some(volume.as_deref().ok_or_else(|| {
                let what = format!("{zone} names no volume, and {structure} is one's");
                usage(what, format!("write {zone}:VOLUME; 'amberfs zone show {zone}' lists them"))
            })?)
        }
    };
    // Printed as far as it goes, also where damage ends it.
    match reach(&place.zone, false)? {
        Access::Open(zone) => {
            let (fields, dumped) = dump_in(&zone, of, structure);
            if !fields.is_empty() {
                report::print(&fields, arguments.json)?;
            }
            dumped
        }
        Access::Served(mut client) => {
            let (volume, json) = (of.map(str::to_string), arguments.json);
            let request = Request::Dump { volume, structure: structure.to_string(), json };
            let mut text = String::new();
            let dumped = client.ask_for_parts(&request, &mut |part| {
                text.push_str(part.as_str().unwrap_or_default());
                Ok(())
            });
            match arguments.json && !text.is_empty() {
                true => report::print_json(&serde_json::from_str(&text).map_err(Failure::new)?)?,
                false => report::print_text(&text)?,
            }
            dumped.map(drop)
        }
    }
}

/// A structure of a volume that nobody mounts meanwhile, or the zone's entrance; as much of it as can be read.
pub(crate) fn dump_in(zone: &Zone, volume: Option<&str>, structure: &str) -> (Fields, Result<(), Failure>) {
    let Some(volume) = volume else { return (entrance(zone), Ok(())) };
    let mut shown = Shown::default();
    let dumped = structure.parse().map_err(Failure::new).and_then(|known| {
        let region = zone.volume(volume).doing("opening the volume")?;
        native::dump(&region, known, &mut shown).doing(format!("reading {structure}"))
    });
    (fields(shown), dumped)
}

/// Hands on what was dumped, some at a time.
pub(crate) fn tell(fields: &Fields, json: bool, take: &mut Parts<'_>) -> Result<(), Failure> {
    let text = match json {
        _ if fields.is_empty() => String::new(),
        true => fields.json().to_string(),
        false => fields.text(),
    };
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (part, others) = rest.split_at(rest.floor_char_boundary(PART_BYTES));
        take(part.into())?;
        rest = others;
    }
    Ok(())
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
                                    .with("unfinished", volume.unfinished)
                            })
                            .collect(),
                    ),
                ),
        }
    });
    Fields::new().with("copy_0", Value::Fields(first)).with("copy_1", Value::Fields(second))
}
