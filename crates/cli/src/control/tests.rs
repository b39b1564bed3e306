//! What clients and servers do to each other.

use std::ffi::OsStr;

use super::*;

/// A list of some 7,000 snapshots was longer than a line of either side: the server hung up.
#[test]
fn a_long_list_ended_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let dir = RuntimeDirectory::open(dir.path(), this_user()).unwrap();
    let rows: Vec<String> = (0..37_000).map(|number| format!("{number:0<135}")).collect();
    let answer = rows.clone();
    let handler: Handler = Arc::new(move |request, _| match request {
        Request::Hello => {
            let hello = Hello { pid: 1, ..Hello::default() };
            serde_json::to_value(hello).map_err(Failure::new)
        }
        _ => serde_json::to_value(&answer).map_err(Failure::new),
    });
    let _listener = Listener::at(&dir, "zone", handler, Arc::default()).unwrap();
    let stream = dir.connect(OsStr::new("zone.sock")).unwrap();
    let mut client = Client::meet(stream, this_user(), Duration::from_secs(60)).unwrap();
    let listed = client.ask(&Request::Zone).unwrap();
    assert_eq!(serde_json::from_value::<Vec<String>>(listed).unwrap(), rows);
}

/// A client that was stopped held up the copy of a snapshot of which it was told how far it had come.
#[test]
fn who_does_not_read_is_not_waited_for() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = RuntimeDirectory::open(scratch.path(), this_user()).unwrap();
    let (done, is_done) = std::sync::mpsc::channel();
    let handler: Handler = Arc::new(move |_, asker| {
        (0..50_000).for_each(|step| asker.tell_in_passing(serde_json::json!({ "done": step })));
        done.send(()).map_err(Failure::new)?;
        Ok(Json::Bool(true))
    });
    let _listener = Listener::at(&dir, "zone", handler, Arc::default()).unwrap();
    let mut stream = dir.connect(OsStr::new("zone.sock")).unwrap();
    stream.write_all(b"{\"request\":\"zone\"}\n").unwrap();
    is_done.recv_timeout(Duration::from_secs(60)).expect("it waits for the client");
    let lines: Vec<String> =
        BufReader::new(stream).lines().map(Result::unwrap).take_while(|line| !line.contains("ok")).collect();
    assert!((10..50_000).contains(&lines.len()), "{} of what was told in passing", lines.len());
    assert!(lines.iter().all(|line| serde_json::from_str::<Response>(line).is_ok()));
}

/// Who had asked for what made a server panic heard that it had gone away, and the server lived on.
#[test]
fn a_panic_is_answered() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = RuntimeDirectory::open(scratch.path(), this_user()).unwrap();
    let handler: Handler = Arc::new(move |request, _| match request {
        Request::Hello => serde_json::to_value(Hello::default()).map_err(Failure::new),
        Request::Grow { bytes } => panic!("{bytes} bytes"),
        _ => Ok(Json::Bool(true)),
    });
    let _listener = Listener::at(&dir, "zone", handler, Arc::default()).unwrap();
    let stream = dir.connect(OsStr::new("zone.sock")).unwrap();
    let mut client = Client::meet(stream, this_user(), Duration::from_secs(60)).unwrap();
    assert_eq!(client.ask(&Request::Grow { bytes: 7 }).unwrap_err().what, "the server panicked: 7 bytes");
    assert_eq!(client.ask(&Request::Zone).unwrap(), Json::Bool(true));
}

/// Of two requests that had come together a server read both and answered the first.
#[test]
fn requests_that_come_together_are_answered_in_turn() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = RuntimeDirectory::open(scratch.path(), this_user()).unwrap();
    let handler: Handler = Arc::new(|_, _| Ok(Json::Bool(true)));
    let _listener = Listener::at(&dir, "zone", handler, Arc::default()).unwrap();
    let mut stream = dir.connect(OsStr::new("zone.sock")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(&b"{\"request\":\"zone\"}\n".repeat(3)).unwrap();
    assert_eq!(BufReader::new(stream).lines().map_while(Result::ok).take(3).count(), 3);
}

/// The parts of an answer were without end, and a command of root's collected them.
#[test]
fn others_say_so_much_and_no_more() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let talk = std::thread::spawn(move || {
        let hello = Hello { pid: 1, ..Hello::default() };
        say(&mut theirs, &Response::Ok(serde_json::to_value(hello).unwrap())).unwrap();
        let part = Response::More(Json::String("x".repeat(5 << 20)));
        (0..).take_while(|_| say(&mut theirs, &part).is_ok()).count()
    });
    let mut client = Client::meet(ours, this_user() + 1, Duration::from_secs(60)).unwrap();
    let error = client.ask_for_parts(&Request::Zone, &mut |_| Ok(())).unwrap_err();
    assert!(error.what.contains("an answer of more than"), "{error}");
    drop(client);
    assert!(talk.join().unwrap() < 60);
}

/// A command whose server ended with another one's `umount` failed, though nothing had been done. What a server has read it may have done.
#[test]
fn what_a_server_has_not_read_is_asked_again() {
    let ask = |reads: bool, waits: bool| {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let talk = std::thread::spawn(move || {
            let mut lines = BufReader::new(theirs.try_clone().unwrap());
            let mut line = String::new();
            lines.read_line(&mut line).unwrap();
            let hello = Hello { pid: 1, ..Hello::default() };
            say(&mut theirs, &Response::Ok(serde_json::to_value(hello).unwrap())).unwrap();
            if reads {
                lines.read_line(&mut line).unwrap();
            } else if waits {
                let mut asked = [PollFd::new(&theirs, PollFlags::IN)];
                rustix::event::poll(&mut asked, None).unwrap();
            }
        });
        let mut client = Client::meet(ours, this_user(), Duration::from_secs(60)).unwrap();
        if !reads && !waits {
            talk.join().unwrap();
            return client.ask(&Request::Zone).unwrap_err();
        }
        let failure = client.ask(&Request::Zone).unwrap_err();
        talk.join().unwrap();
        failure
    };
    assert!(ask(false, false).again && ask(false, true).again);
    let read = ask(true, true);
    assert!(!read.again && read.what.contains("went away before it answered"), "{read}");
}

/// Whoever is at the other end writes what he likes, as slowly as he likes.
#[test]
fn a_line_is_waited_for_so_long_and_no_longer() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let drip = std::thread::spawn(move || {
        while theirs.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let began = Instant::now();
    let error = Client::meet(ours, this_user() + 1, Duration::from_millis(300)).map(|_| ()).unwrap_err();
    assert!(error.what.contains("no answer from the server"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    drip.join().unwrap();
}

/// The directory keeps others away from the socket; if it did not, they would hear nothing.
#[test]
fn a_server_answers_its_own_user_alone() {
    if this_user() != 0 {
        let _ = writeln!(std::io::stderr(), "LEFT OUT: asking as another user needs root");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let dir = RuntimeDirectory::open(scratch.path(), 0).unwrap();
    let handler: Handler = Arc::new(|_, _| Ok(Json::Bool(true)));
    let _listener = Listener::at(&dir, "zone", handler, Arc::default()).unwrap();
    let path = scratch.path().join("zone.sock");
    for (path, mode) in [(scratch.path(), 0o755), (&*path, 0o777)] {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    }
    let answer = |user| {
        let path = path.clone();
        let ask = move || {
            let user = rustix::process::Uid::from_raw(user);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            let mut stream = UnixStream::connect(path).unwrap();
            let _ = stream.write_all(b"{\"request\":\"zone\"}\n");
            let mut answer = String::new();
            let _ = BufReader::new(stream).read_line(&mut answer);
            answer
        };
        std::thread::spawn(ask).join().unwrap()
    };
    assert_eq!((answer(0).as_str(), answer(64_300).as_str()), ("{\"ok\":true}\n", ""));
}

/// A terminal would have done what another user's server said.
#[test]
fn control_characters_of_others_are_not_shown() {
    let mut said = serde_json::json!({ "text": ["a\u{1b}[2J\n", { "deep": "\u{9b}b" }] });
    tame(&mut said);
    assert_eq!(said, serde_json::json!({ "text": ["a\u{FFFD}[2J\n", { "deep": "\u{FFFD}b" }] }));
}
