//! `amberfs info`: what a zone, a volume or an ext disk is.

use crate::admin::{describe, zone};
use crate::command_line::Info;
use crate::commands::disk_info;
use crate::control::{Request, unpack};
use crate::failure::Failure;
use crate::report::{self, Fields};
use crate::zone_access::{Access, reach};

pub(crate) fn run(arguments: &Info) -> Result<(), Failure> {
    let place = &arguments.place;
    let access = match reach(&place.zone, false) {
        // What is no zone may be a disk.
        Err(failure) if place.volume.is_none() => {
            let fields = disk_info::describe(&place.zone, failure)?;
            return report::print(&fields, arguments.json);
        }
        access => access?,
    };
    let (text, json) = match (access, &place.volume) {
        (Access::Open(zone), None) => both(zone::describe(&zone)),
        (Access::Open(zone), Some(name)) => both(describe::at_rest(&zone, name)?),
        (Access::Served(mut client), None) => unpack(client.ask(&Request::Zone)?),
        (Access::Served(mut client), Some(name)) => {
            unpack(client.ask(&Request::Info { volume: name.clone() })?)
        }
    };
    if arguments.json { report::print_json(&json) } else { report::print_text(&text) }
}

fn both(fields: Fields) -> (String, serde_json::Value) {
    (fields.text(), fields.json())
}
