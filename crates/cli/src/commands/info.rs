//! `amberfs info`: what a zone, a volume or an ext disk is, mounted or not.

use crate::admin::{describe, zone};
use crate::command_line::Info;
use crate::commands::disk_info;
use crate::control::{Request, unpack};
use crate::failure::Failure;
use crate::report::{self, Fields};
use crate::zone_access::{Access, reach};
use crate::{find_server, mount_table};

pub(crate) fn run(arguments: &Info) -> Result<(), Failure> {
    let place = &arguments.place;
    if place.volume.is_none() && mount_table::is_directory(&place.zone) {
        let dir = mount_table::resolve(&place.zone)?;
        let (mut client, volume) = find_server::volume_of_mount(&dir)?;
        let told = if volume.is_empty() {
            let disk = &client.hello.zone;
            both(disk_info::describe(disk, Failure::new(format!("{}: no ext any more", disk.display())))?)
        } else {
            unpack(client.ask(&Request::Info { volume })?)
        };
        return print(told, arguments.json);
    }
    let access = match reach(&place.zone, false) {
        // What is no zone may be a disk.
        Err(failure) if place.volume.is_none() => {
            let fields = disk_info::describe(&place.zone, failure)?;
            return report::print(&fields, arguments.json);
        }
        access => access?,
    };
    let told = match (access, &place.volume) {
        (Access::Open(zone), None) => both(zone::describe(&zone)),
        (Access::Open(zone), Some(name)) => both(describe::at_rest(&zone, name)?),
        (Access::Served(mut client), None) => unpack(client.ask(&Request::Zone)?),
        (Access::Served(mut client), Some(name)) => {
            unpack(client.ask(&Request::Info { volume: name.clone() })?)
        }
    };
    print(told, arguments.json)
}

fn print((text, json): (String, serde_json::Value), as_json: bool) -> Result<(), Failure> {
    if as_json { report::print_json(&json) } else { report::print_text(&text) }
}

fn both(fields: Fields) -> (String, serde_json::Value) {
    (fields.text(), fields.json())
}
