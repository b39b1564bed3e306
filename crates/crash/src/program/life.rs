//! A program's life, in memory and in a file: one recording that begins with the zone as it was before.

use nvm::{Event, EventKind, LINE, Purpose, RecordedVolume, Recording};

use crate::subject::Promise;

/// The mark behind which the life begins: this, the promise, and the volume's name.
const BEGINS: &str = "life ";
/// Bytes of the zone that one event of what was there before stores.
const PIECE: usize = 4096;

/// A program's life on a volume.
pub struct Life {
    /// What the volume promised it.
    pub promise: Promise,
    /// The zone's bytes before it.
    pub image: Vec<u8>,
    /// What happened to the zone, with bytes, and a [`super::done_mark`] wherever the program acknowledged a step.
    pub recording: Recording,
    /// The volume's name.
    pub volume: String,
}

/// Why a recording is no program's life.
#[derive(Debug, thiserror::Error)]
pub enum LifeError {
    /// Nothing in it says where a life begins.
    #[error("the recording is of no program's life: 'amberfs crash --program' writes those")]
    NoBeginning,
    /// What was there before cannot be put together.
    #[error("what the zone held before the program's life is not in the recording: {0}")]
    Image(#[from] nvm::ReplayError),
    /// Its zone is larger than any that such lives have.
    #[error("the recording is of a zone of {0} bytes, more than any life has")]
    TooLarge(u64),
}

impl Life {
    /// Bytes of the largest zone.
    const ZONE_MAX: u64 = 1 << 30;

    /// All of it in one recording, to be kept in a file. What the zone held before is stored by its first events.
    pub fn to_recording(&self) -> Recording {
        let mut whole = self.recording.clone();
        let mut before = Vec::new();
        // What is stored here belongs to no volume, but to the zone.
        let zone = whole.volumes.iter().position(|volume| volume.name.is_empty()).unwrap_or_else(|| {
            let (uuid, bytes) = (whole.zone_uuid, whole.zone_bytes);
            whole.volumes.push(RecordedVolume { name: String::new(), uuid, start: 0, bytes });
            whole.volumes.len() - 1
        });
        let event = |kind, operation, at: u64, length: usize, bytes_at| Event {
            time_ns: 0,
            thread: 1,
            volume: zone as u16,
            operation,
            operation_number: 0,
            kind,
            purpose: Purpose::Metadata,
            address: at,
            length: length as u64,
            bytes_at,
        };
        for (index, piece) in self.image.chunks(PIECE).enumerate() {
            if !nvm::is_zero(piece) {
                let at = (index * PIECE) as u64;
                before.push(event(EventKind::Stream, 0, at, piece.len(), Some(whole.bytes.len() as u64)));
                whole.bytes.extend_from_slice(piece);
            }
        }
        before.push(event(EventKind::Fence, 0, 0, 0, None));
        whole.operations.push(format!("{BEGINS}{} {}", self.promise, self.volume));
        before.push(event(EventKind::Mark, (whole.operations.len() - 1) as u16, 0, 0, None));
        whole.events.splice(0..0, before);
        whole
    }

    /// The life that [`Life::to_recording`] gave.
    pub fn from_recording(mut whole: Recording) -> Result<Life, LifeError> {
        let begins = |event: &Event| {
            let mark = whole.operation_of(event).strip_prefix(BEGINS)?;
            let (promise, volume) = mark.split_once(' ')?;
            Some((promise.parse().ok()?, volume.to_owned()))
        };
        let marks = whole.events.iter().enumerate().filter(|(_, event)| event.kind == EventKind::Mark);
        let (mark, (promise, volume)) = marks
            .filter_map(|(index, event)| Some((index, begins(event)?)))
            .next()
            .ok_or(LifeError::NoBeginning)?;
        if whole.zone_bytes > Life::ZONE_MAX || !whole.zone_bytes.is_multiple_of(LINE) {
            return Err(LifeError::TooLarge(whole.zone_bytes));
        }
        let mut image = vec![0; whole.zone_bytes as usize];
        whole.replay(&mut image, mark)?;
        whole.events.drain(..=mark);
        Ok(Life { promise, image, recording: whole, volume })
    }
}

#[cfg(test)]
mod tests {
    use nvm::{OpenOptions, RecordingOptions, VolumeKind, Zone};

    use super::*;

    fn life() -> Life {
        let zone = Zone::anonymous(4 << 20, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("lived-in", VolumeKind::Native, None).unwrap();
        region.store(Purpose::Data, 4096, b"before");
        let image = zone.snapshot_image();
        zone.start_recording(RecordingOptions::default());
        region.store(Purpose::Data, 8192, b"during");
        let flushed = region.flush(Purpose::Data, 8192, 6);
        let _ = region.fence(flushed);
        zone.mark("done 0");
        let recording = zone.stop_recording().unwrap();
        Life { promise: Promise::Fsync, image, recording, volume: "lived-in".to_owned() }
    }

    #[test]
    fn a_life_comes_back_from_a_file() {
        let life = life();
        let mut file = Vec::new();
        life.to_recording().write_to(&mut file).unwrap();
        let back = Life::from_recording(Recording::read_from(&file[..]).unwrap()).unwrap();
        assert_eq!((back.promise, &back.volume), (life.promise, &life.volume));
        assert!(back.image == life.image, "the image");
        let play = |life: &Life| {
            let mut image = life.image.clone();
            life.recording.replay(&mut image, usize::MAX).unwrap();
            image
        };
        assert_eq!(back.recording.events.len(), life.recording.events.len());
        assert!(play(&back) == play(&life), "what it leads to");
        assert!(play(&back) != back.image);
    }

    #[test]
    fn another_recording_is_refused() {
        let life = life();
        assert!(matches!(Life::from_recording(life.recording), Err(LifeError::NoBeginning)));
    }
}
