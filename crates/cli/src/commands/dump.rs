//! `amberfs dump`: a structure of a zone or volume as it is in NVM.
//!
//! A server that has the zone for others of its volumes reads it in its process.

use native::Structure;
use nvm::Zone;
use serde_json::Value as Json;

use crate::admin::dump;
use crate::command_line::Dump;
use crate::control::Request;
use crate::exit;
use crate::failure::Failure;
use crate::report::{self, Form};
use crate::zone_access::{Access, reach};

/// The structure that belongs to no volume.
const ENTRANCE: &str = "entrance";

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
    let access = reach(&place.zone, false).or_else(|failure| {
        if of.is_none()
            && let Ok(copies) = Zone::damaged_entrance(&place.zone)
            && copies.iter().any(|copy| copy.doubtful.is_some())
        {
            report::print(&dump::entrance(copies), arguments.json)?;
        }
        Err(failure)
    });
    match access? {
        Access::Open(zone) => {
            let (fields, dumped) = dump::dump(&zone, of, structure);
            if !fields.is_empty() {
                report::print(&fields, arguments.json)?;
            }
            dumped
        }
        Access::Served(mut client) => {
            let (volume, form) = (of.map(str::to_string), Form::of(arguments.json));
            let request = Request::Dump { volume, structure: structure.to_string(), form };
            let print = &mut |part: Json| report::print_text(part.as_str().unwrap_or_default());
            client.ask_for_parts(&request, print).map(drop)
        }
    }
}
