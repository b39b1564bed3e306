//! What is noted of a disk's life is enough to play it back.

use std::sync::{Arc, Mutex};

use disk::{Buffer, Disk, EventKind, Memory, Purpose, Queue, Recorded, Write};

type Notes = Arc<Mutex<Vec<(EventKind, u64, Vec<u8>)>>>;

fn recorded() -> (Arc<Memory>, Arc<Disk>, Notes) {
    let memory = Arc::new(Memory::new(vec![0; 64 << 10], false));
    let notes = Notes::default();
    let device = Recorded::new(memory.clone(), {
        let notes = notes.clone();
        move |event| notes.lock().unwrap().push((event.kind, event.at, event.bytes.to_vec()))
    });
    (memory, Arc::new(Disk::over("recorded".into(), Arc::new(device))), notes)
}

#[test]
fn notes_played_back_are_the_disk() {
    let (memory, disk, notes) = recorded();
    let queue = Queue::new(disk.clone(), 4);
    for n in 0..40u64 {
        let buffer = Buffer::of(&[n as u8 + 1; 1024]);
        queue.submit(Write { purpose: Purpose::Data, at: n * 7 % 32 * 512, buffer, token: n }).unwrap();
    }
    queue.drain().unwrap();
    disk.flush().unwrap();
    disk.write(Purpose::Metadata, 512, &[99; 512]).unwrap();
    let mut image = vec![0; 64 << 10];
    for (kind, at, bytes) in notes.lock().unwrap().iter() {
        if *kind == EventKind::Write {
            image[*at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }
    assert!(image == memory.image());
}

#[test]
fn notes_stand_in_the_order_in_which_things_took_effect() {
    let (_, disk, notes) = recorded();
    disk.write(Purpose::Data, 0, &[1; 512]).unwrap();
    disk.flush().unwrap();
    disk.read(Purpose::Data, 100, &mut [0; 8]).unwrap();
    disk.write_vectored(Purpose::Data, 512, &[std::io::IoSlice::new(&[2; 512])], true).unwrap();
    let kinds: Vec<EventKind> = notes.lock().unwrap().iter().map(|(kind, ..)| *kind).collect();
    use EventKind::{Flush, Read, Write};
    assert_eq!(kinds, [Write, Flush, Read, Write, Flush]);
}

/// A write that fails may have arrived all the same, so it is noted; a flush that fails promises nothing.
#[test]
fn failures_are_noted_for_what_they_may_have_done() {
    let (memory, disk, notes) = recorded();
    memory.vanish(true);
    assert!(disk.write(Purpose::Data, 0, &[1; 512]).is_err());
    assert!(disk.flush().is_err());
    let kinds: Vec<EventKind> = notes.lock().unwrap().iter().map(|(kind, ..)| *kind).collect();
    assert_eq!(kinds, [EventKind::Write]);
}
