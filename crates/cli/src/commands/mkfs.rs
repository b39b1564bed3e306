//! `amberfs mkfs`: a file system on a volume, which is made if it is not there.

use nvm::VolumeKind;

use crate::admin::format::{Settings, format};
use crate::command_line::Mkfs;
use crate::control::Request;
use crate::failure::{Explain, Failure};
use crate::zone_access::{Access, reach, refuse_mounted};
use crate::{report, size};

/// Longest label, as `native::FormatOptions` has it.
const LABEL_BYTES_MAX: usize = 64;

pub(crate) fn run(arguments: &Mkfs) -> Result<(), Failure> {
    match arguments.kind {
        VolumeKind::Native => {}
        VolumeKind::Ext => {
            return Err(Failure::new(
                "a volume of kind ext belongs to a disk that has its file system already",
            )
            .leaving("nothing was made")
            .remedy(format!("mke2fs a disk, then: amberfs attach {} DISK", arguments.place)));
        }
        kind => {
            return Err(Failure::new(format!("volumes of kind {kind} are planned, this version has none"))
                .leaving("nothing was made")
                .remedy("choose --kind native"));
        }
    }
    if arguments.label.len() > LABEL_BYTES_MAX {
        let bytes = arguments.label.len();
        return Err(Failure::new(format!("a label of {bytes} bytes is too long: at most {LABEL_BYTES_MAX}"))
            .leaving("nothing was made"));
    }
    if arguments.label.chars().any(char::is_control) {
        return Err(Failure::new("a label has no control characters, such as ends of lines")
            .leaving("nothing was made")
            .remedy("choose a label that can be printed"));
    }
    let settings = Settings { bytes: arguments.size, label: arguments.label.clone(), force: arguments.force };
    let name = &arguments.place.volume;
    let bytes = match reach(&arguments.place.zone, true)? {
        Access::Open(zone) => format(&zone, name, &settings)?,
        Access::Served(mut client) => {
            refuse_mounted(&client, name).leaving("nothing was changed")?;
            let answer = client.ask(&Request::Format { volume: name.clone(), settings })?;
            answer["bytes"].as_u64().unwrap_or(0)
        }
    };
    if arguments.quiet {
        return Ok(());
    }
    report::print_text(&format!("{}: a native volume of {}\n", arguments.place, size::human(bytes)))
}
