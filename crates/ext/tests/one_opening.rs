//! A volume's area in NVM is one opening's: a second one in the same process would change it in its own way, and so was possible until it was refused.

use crate::support::Image;
use ext::{Error, Options, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::{Caller, FileSystem, ROOT_INO};

const MIB: u64 = 1 << 20;

#[test]
fn a_volume_is_opened_once_at_a_time() {
    let image = Image::make("64M", &["-t", "ext4"]);
    let disk = image.disk(false);
    let zone = Zone::anonymous(40 * MIB, &OpenOptions::default()).unwrap();
    zone.create_volume("disk", VolumeKind::Ext, Some(32 * MIB)).unwrap();
    let region = || zone.volume("disk").unwrap();
    let is_refused = |what: Result<(), Error>| {
        let error = what.unwrap_err();
        assert!(matches!(&error, Error::Mounted { volume } if volume == "disk"), "{error}");
        assert!(error.to_string().contains("in use already"), "{error}");
    };
    ext::attach(&region(), &disk).unwrap();
    let volume = Volume::mount(&region(), disk.clone(), &Options::default()).unwrap();
    volume.mkdir(&Caller::root(), ROOT_INO, b"dir", 0o755).unwrap();
    is_refused(Volume::mount(&region(), disk.clone(), &Options::default()).map(drop));
    is_refused(ext::at_rest(&region(), &disk).map(drop));
    is_refused(ext::attach(&region(), &disk).map(drop));
    // Who only asks which disk it has is told.
    assert!(ext::attachment(&region()).unwrap().is_some());
    volume.mkdir(&Caller::root(), ROOT_INO, b"other", 0o755).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    ext::at_rest(&region(), &disk).unwrap();
    // One that could not be opened is nobody's.
    let other = std::sync::Arc::new(disk::Disk::memory(vec![0; 64 << 20]));
    assert!(Volume::mount(&region(), other, &Options::default()).is_err());
    let volume = Volume::mount(&region(), disk.clone(), &Options::default()).unwrap();
    for name in [&b"dir"[..], b"other"] {
        volume.lookup(&Caller::root(), ROOT_INO, name).unwrap();
    }
    volume.detach().unwrap();
    drop(volume);
    ext::attach(&region(), &disk).unwrap();
}
