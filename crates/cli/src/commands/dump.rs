//! `amberfs dump`: a structure of a volume as it is in NVM.

use std::io::Write;

use crate::command_line::Dump;
use crate::failure::{Explain, Failure};
use crate::report;
use crate::zone_access::open_alone;

pub(crate) fn run(arguments: &Dump) -> Result<(), Failure> {
    let structure: native::Structure = arguments.structure.parse().map_err(|error| {
        Failure::new(error)
            .exit(crate::exit::USAGE)
            .remedy("choose superblock, checkpoint, log, nat, sit, bia:SEGMENT, node:NID or inode:NUMBER")
    })?;
    let zone = open_alone(&arguments.place.zone, false)?;
    let region = zone.volume(&arguments.place.volume).doing("opening the volume")?;
    // Collected first, so that a reader who goes away is told from a volume that cannot be read.
    let mut text = Vec::new();
    let dumped = native::dump(&region, &structure, &mut text as &mut dyn Write);
    report::print_text(&String::from_utf8_lossy(&text))?;
    dumped.doing(format!("reading {}", arguments.structure))
}
