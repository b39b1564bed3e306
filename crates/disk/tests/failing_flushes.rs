//! NBD servers that refuse to flush and lose what they had, as a kernel does whose page cache could not be written: what a later flush
//! calls durable is.

use std::io::{IoSlice, Read, Result, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::{Disk, OpenOptions, Purpose};
use parking_lot::Mutex;

const MIB: u64 = 1 << 20;
const BYTES: u64 = 128 * MIB;
/// It can flush, and not write durably.
const FLAGS: u16 = 1 | 1 << 2;
const EIO: u32 = 5;

/// A server with a cache of its own.
struct Server {
    image: Vec<u8>,
    cache: Vec<(usize, Vec<u8>)>,
    /// The next flush fails, and the cache is lost.
    fails: bool,
    /// The next flush is carried out, and its answer kept back.
    holds: bool,
    held: Option<Vec<u8>>,
    streams: Vec<UnixStream>,
}

fn serve(mut stream: UnixStream, server: &Mutex<Server>) -> Result<()> {
    let greeting = [&b"NBDMAGICIHAVEOPT"[..], &3_u16.to_be_bytes()].concat();
    stream.write_all(&greeting)?;
    // The client's flags, and its only option: NBD_OPT_GO.
    let mut option = [0; 20];
    stream.read_exact(&mut option)?;
    let mut about = vec![0; u32::from_be_bytes(option[16..].try_into().unwrap()) as usize];
    stream.read_exact(&mut about)?;
    let reply = [&0x0003_e889_0455_65a9_u64.to_be_bytes()[..], &7_u32.to_be_bytes()].concat();
    let export = [&[0, 0, 0, 3, 0, 0, 0, 12, 0, 0][..], &BYTES.to_be_bytes(), &FLAGS.to_be_bytes()].concat();
    stream.write_all(&[&reply[..], &export, &reply, &[0, 0, 0, 1, 0, 0, 0, 0]].concat())?;
    loop {
        let mut request = [0; 28];
        stream.read_exact(&mut request)?;
        let kind = u16::from_be_bytes(request[6..8].try_into().unwrap());
        let at = u64::from_be_bytes(request[16..24].try_into().unwrap()) as usize;
        let length = u32::from_be_bytes(request[24..].try_into().unwrap()) as usize;
        let mut data = vec![0; if kind == 1 { length } else { 0 }];
        stream.read_exact(&mut data)?;
        let (mut error, mut answer) = (0, Vec::new());
        let mut server = server.lock();
        let Server { image, cache, fails, holds, held, .. } = &mut *server;
        match kind {
            0 => answer = image[at..at + length].to_vec(),
            1 => cache.push((at, data)),
            3 if std::mem::take(fails) => {
                error = EIO;
                cache.clear();
            }
            3 => cache.drain(..).for_each(|(at, data)| image[at..at + data.len()].copy_from_slice(&data)),
            _ => return Ok(()),
        }
        let head = [&0x6744_6698_u32.to_be_bytes()[..], &error.to_be_bytes(), &request[8..16]].concat();
        if kind == 3 && std::mem::take(holds) {
            *held = Some(head);
            continue;
        }
        stream.write_all(&[&head[..], &answer].concat())?;
    }
}

fn place() -> (Arc<Mutex<Server>>, Disk, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let (image, cache) = (vec![0; BYTES as usize], Vec::new());
    let server = Arc::new(Mutex::new(Server {
        image,
        cache,
        fails: true,
        holds: false,
        held: None,
        streams: Vec::new(),
    }));
    let serving = server.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            serving.lock().streams.push(stream.try_clone().unwrap());
            let server = serving.clone();
            std::thread::spawn(move || serve(stream, &server));
        }
    });
    let source = format!("nbd+unix:///?socket={}", socket.display()).parse().unwrap();
    (server, Disk::open(&source, &OpenOptions::default()).unwrap(), dir)
}

/// Of so much that is unflushed the client has the server flush of its own accord: that this failed was told to one writer alone.
#[test]
fn a_flush_that_nobody_asked_for_lost_what_others_had_written() {
    let (server, disk, _dir) = place();
    let since = disk.since();
    let write = |n: u64| disk.write(Purpose::Data, n * MIB, &vec![7; MIB as usize]);
    let refused: Vec<u64> = (0..80).filter(|n| write(*n).is_err()).collect();
    assert_eq!(refused.len(), 1);
    write(refused[0]).unwrap();
    disk.flush_since(since).unwrap();
    let server = server.lock();
    assert!(server.cache.is_empty());
    assert_eq!((0..80).filter(|n| server.image[(n * MIB) as usize] != 7).collect::<Vec<_>>(), []);
}

#[test]
fn a_durable_write_that_could_not_be_flushed_lost_others() {
    let (server, disk, _dir) = place();
    disk.write(Purpose::Data, MIB, &[7; 4096]).unwrap();
    let durable = disk.write_vectored(Purpose::Data, 2 * MIB, &[IoSlice::new(&[7; 4096])], true);
    assert!(durable.is_err());
    // Written over meanwhile: the later one counts.
    disk.write(Purpose::Data, MIB, &[8; 4096]).unwrap();
    disk.flush().unwrap();
    assert_eq!(server.lock().image[MIB as usize..][..4096], [8; 4096]);
}

/// Whoever had asked for it.
#[test]
fn a_flush_that_failed_is_told_to_who_had_written_before() {
    let (_server, disk, _dir) = place();
    let since = disk.since();
    disk.write(Purpose::Data, MIB, &[7; 4096]).unwrap();
    assert!(disk.flush().is_err());
    assert!(disk.flush_since(since).is_err());
    disk.flush_since(disk.since()).unwrap();
}

/// The write was answered first, and lost with the server.
#[test]
fn a_flush_is_none_of_what_was_written_beside_it() {
    let (server, disk, _dir) = place();
    {
        let server = &mut *server.lock();
        (server.fails, server.holds) = (false, true);
    }
    std::thread::scope(|threads| {
        let flush = threads.spawn(|| disk.flush());
        while server.lock().held.is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        disk.write(Purpose::Data, MIB, &[7; 4096]).unwrap();
        let server = &mut *server.lock();
        server.streams[0].write_all(&server.held.take().unwrap()).unwrap();
        drop(flush);
    });
    {
        let server = &mut *server.lock();
        server.cache.clear();
        server.streams.drain(..).for_each(|stream| stream.shutdown(Shutdown::Both).unwrap());
    }
    let began = Instant::now();
    while let Err(error) = disk.flush() {
        assert!(began.elapsed() < Duration::from_secs(20), "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.lock().image[MIB as usize..][..4096], [7; 4096]);
}

/// What had been lost was taken for what the disk is known by.
#[test]
fn a_disk_is_known_again_behind_a_flush_that_failed() {
    let (server, disk, _dir) = place();
    disk.write(Purpose::Metadata, 1024, &[2; 1024]).unwrap();
    assert!(disk.flush().is_err());
    disk.flush().unwrap();
    assert_eq!(server.lock().image[1024], 2);
    server.lock().streams.drain(..).for_each(|stream| stream.shutdown(Shutdown::Both).unwrap());
    let began = Instant::now();
    while let Err(error) = disk.read(Purpose::Data, 0, &mut [0; 512]) {
        assert!(began.elapsed() < Duration::from_secs(20), "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
