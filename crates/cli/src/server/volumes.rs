//! What a server answers about volumes: about one that it serves as well as one that it does not, and what is done only to one that it
//! does not.

use serde_json::{Value as Json, json};

use super::at_work::Work;
use super::{Server, to_json};
use crate::admin::differences::{self, Pair};
use crate::admin::format::Settings;
use crate::admin::snapshots::{self, Ask};
use crate::admin::{attachment, check, describe, dump, format, zone};
use crate::control::{Asker, pack};
use crate::failure::Failure;
use crate::report::{self, Form};

impl Server {
    /// What a volume is: in use, at rest, or while somebody changes it.
    pub(super) fn info(&self, volume: &str) -> Result<Json, Failure> {
        let mut state = self.when_not_opening(volume);
        if let Some(served) = state.served.get(volume).cloned() {
            drop(state);
            let fields = describe::volume(&self.zone()?, volume, served.list_snapshots())?;
            return Ok(pack(&served.describe(fields)));
        }
        let at_work = self.begin(&mut state, volume, Work::Opening);
        drop(state);
        // Who changes the volume has its disk, and may be about to remove it. The zone is let go of first: when nobody is at work any more,
        // the server may end.
        let fields = match at_work {
            Ok(_at_work) => describe::at_rest(&self.zone()?, volume)?,
            Err(at_work) => describe::at_work(&self.zone()?, volume, at_work)?,
        };
        Ok(pack(&fields))
    }

    /// Does what is asked of a volume's snapshots.
    pub(super) fn snapshot(&self, volume: &str, ask: &Ask, asker: &mut Asker) -> Result<Json, Failure> {
        let work = match ask {
            Ask::Clone { .. } | Ask::RollBack { .. } => Work::Change,
            _ => Work::Opening,
        };
        let (served, _at_work) = self.served_or_at_work(volume, work)?;
        // The copy is nobody else's before it is whole, and the server does not end before that.
        let _copying = match ask {
            Ask::Clone { to, .. } if to != volume => {
                Some(self.begin(&mut self.when_not_opening(to), to, Work::Change)?)
            }
            _ => None,
        };
        let answer = match (served, ask) {
            (Some(served), Ask::Clone { name, to }) => {
                served.clone_snapshot(&self.zone()?, name, to, asker)?
            }
            (Some(served), Ask::RollBack { name, discard_newer }) => {
                served.roll_back(volume, name, *discard_newer)?
            }
            (Some(served), _) => served.snapshot(ask)?,
            (None, _) => snapshots::of_unmounted(&self.zone()?, volume, ask, &mut asker.progress())?,
        };
        Ok(pack(&answer))
    }

    /// Compares snapshots of a volume.
    pub(super) fn diff(&self, volume: &str, pair: &Pair, asker: &mut Asker) -> Result<Json, Failure> {
        let differences = match self.served_or_at_work(volume, Work::Opening)? {
            (Some(served), _) => served.diff(pair)?,
            (None, _at_work) => pair.of_unmounted(&self.zone()?, volume)?,
        };
        // Told when the volume is free again: whoever asked may take long to listen.
        differences::tell(&differences, &mut |part| asker.tell(part))?;
        Ok(Json::Null)
    }

    /// Attaches a disk to a volume, which is made if it is not there.
    pub(super) fn attach(&self, volume: &str, disk: &str, bytes: Option<u64>) -> Result<Json, Failure> {
        self.with_reserved(volume, |zone| to_json(attachment::attach(zone, volume, disk, bytes)?))
    }

    /// Makes a volume's disk a plain one again.
    pub(super) fn detach(&self, volume: &str, disk: Option<&str>) -> Result<Json, Failure> {
        self.with_reserved(volume, |zone| to_json(attachment::detach(zone, volume, disk)?))
    }

    /// Makes a file system on a volume.
    pub(super) fn format(&self, volume: &str, settings: &Settings) -> Result<Json, Failure> {
        self.with_reserved(volume, |zone| Ok(json!({ "bytes": format::format(zone, volume, settings)? })))
    }

    /// Checks a volume, and tells its problems when it is free again.
    pub(super) fn check(
        &self,
        volume: &str,
        repair: bool,
        preen: bool,
        asker: &mut Asker,
    ) -> Result<Json, Failure> {
        let repair = match (repair, preen) {
            (true, _) => check::Repair::Everything,
            (false, true) => check::Repair::Preen,
            (false, false) => check::Repair::Nothing,
        };
        let checked = self.with_reserved(volume, |zone| check::check(zone, volume, repair))?;
        checked.tell(&mut |part| asker.tell(part))?;
        to_json(checked)
    }

    /// Shows a structure of a volume, or the zone's entrance, for which no volume has to be free.
    pub(super) fn dump(
        &self,
        volume: Option<&str>,
        structure: &str,
        form: Form,
        asker: &mut Asker,
    ) -> Result<Json, Failure> {
        let (fields, dumped) = {
            let _at_work = volume.map(|volume| self.reserve(volume)).transpose()?;
            dump::dump(&self.zone()?, volume, structure)
        };
        if !fields.is_empty() {
            report::tell(&fields, form, &mut |part| asker.tell(part))?;
        }
        dumped.map(|()| Json::Null)
    }

    /// Removes a volume.
    pub(super) fn remove_volume(&self, volume: &str, force: bool) -> Result<Json, Failure> {
        self.with_reserved(volume, |zone| zone::remove_volume(zone, volume, force)).map(|()| Json::Null)
    }
}
