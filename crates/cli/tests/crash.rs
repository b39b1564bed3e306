//! `amberfs crash`, as a command.

use std::process::{Command, Stdio};

use crate::support::{PROGRAM, Run, eventually, run};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn workloads_are_crashed_by_their_names() {
    let answer = run("crash create rename-over+chmod --durability op --json").ok().json();
    let campaign = &answer["campaigns"][0];
    assert_eq!((&campaign["durability"], &campaign["workloads"]), (&"op".into(), &2.into()));
    assert!(campaign["states_distinct"].as_u64() > campaign["states_checked"].as_u64());
    assert_eq!(campaign["violations"].as_array().map(Vec::len), Some(0));
    let text = run("crash mkdir --depth 1").ok().out;
    assert_eq!(text.matches("0 violations").count(), 3, "{text}");
}

#[test]
fn repairs_are_cut_short() {
    let answer = run("crash --repairs 997 --json").ok().json();
    let repairs = answer["repairs"].as_array().unwrap();
    assert_eq!(repairs.len(), 2);
    assert!(
        repairs.iter().all(|of| of["damaged"].as_u64() > Some(0) && of["violation"].is_null()),
        "{answer}"
    );
}

#[test]
fn an_ext_disk_is_crashed_with_its_nvm() {
    let answer = run("crash --volume ext create --depth 1 --json").ok().json();
    let campaign = &answer["campaigns"][0];
    assert_eq!((&campaign["volume"], &campaign["durability"]), (&"ext".into(), &"op".into()));
    assert_eq!(campaign["violations"].as_array().map(Vec::len), Some(0));
    assert!(campaign["states_checked"].as_u64() > Some(0));
    let list = run("crash --volume ext --list").ok().out;
    assert!(list.contains("checkpoint-write") && !list.contains("TakeSnapshot"), "{list}");
}

#[test]
fn the_catalogue_is_listed() {
    let list = run("crash --list").ok().out;
    assert!(list.contains("rename-exchange-across") && list.contains("enospc-1 "), "{list}");
}

#[test]
fn what_is_no_workload_or_state_is_refused() {
    run("crash no-such-operation").fails(2, &["no operation is called", "--list"]);
    // What tries nothing keeps every promise.
    for nothing in ["--two 0", "--three 0", "--random 0", "--concurrent 0", "--threads 0", "random-0"] {
        assert_eq!(run(&format!("crash {nothing}")).code, 2, "{nothing}");
    }
    run("crash create --durability never").fails(2, &["op, fsync or snapshot"]);
    run("crash --replay native:create").fails(2, &["subject:workload:promise:seed:schedule"]);
    for (state, why) in [
        ("native:create:op:0:99999", "no crash point"),
        ("native:create:op:0:1:9", "subject:workload:promise:seed:schedule"),
        ("flash:create:op:0:1", "flash"),
        ("ext:create:snapshot:0:1", "does not promise snapshot"),
        ("native:two-0,99@:op:0:0", "names no pair"),
        ("native:two-0,3@:fsync:0:0", "durability=op"),
        ("native-diff:two-0,3@:op:0:0", "the volume native"),
        ("native:two-0,3@:op:0:0 --shrink", "nothing to leave out"),
    ] {
        run(&format!("crash --replay {state}")).fails(2, &[why]);
    }
    // What would do nothing is no option.
    for other in
        ["--one", "--two", "--three 1", "--random 1", "--concurrent 1", "--seed 1", "--depth 1", "--list"]
    {
        run(&format!("crash --replay native:create:op:0:1 {other}")).fails(2, &["cannot be used with"]);
    }
    for other in ["--one", "--two", "--three 1", "--random 1", "--concurrent 1", "--seed 1"] {
        run(&format!("crash --list {other}")).fails(2, &["cannot be used with"]);
    }
    run("crash create --two").fails(2, &["cannot be used with"]);
    run("crash --shrink").fails(2, &["--replay"]);
    run("crash --recording life").fails(2, &["--program"]);
    run("crash --volume nonsense").fails(2, &["nonsense", "native, ext, ext2"]);
    run("crash --volume ext create --durability snapshot")
        .fails(2, &["does not promise snapshot, but op", "fsync"]);
    run("crash --volume ext create --journal diff").fails(2, &["--journal is for native volumes"]);
    run("crash --volume ext snapshot").fails(2, &["operations that ext does not have"]);
    run("crash --volume ext --concurrent 1").fails(2, &["cannot be used with"]);
    run("crash --repairs --depth 1").fails(2, &["cannot be used with", "--depth"]);
    run("crash --repairs --volume ext").fails(2, &["cannot be used with"]);
    run("crash --repairs 0").fails(2, &["--repairs"]);
    run("crash --concurrent 1 --depth 1").fails(2, &["cannot be used with"]);
}

/// A state that keeps its promise says so when it is asked for by name.
#[test]
fn a_state_is_judged_by_its_name() {
    let events = (1..200).find_map(|event| {
        let answer = run(&format!("crash --replay native:create:op:0:{event}"));
        (answer.code == 0).then_some(answer.out)
    });
    assert!(events.is_some_and(|answer| answer.contains("the promise is kept")));
    let state = "native:two-6,8@0,1:op:0:0";
    let answer = run(&format!("crash --replay {state} --json")).ok().json();
    assert_eq!((&answer["state"], &answer["violations"]), (&state.into(), &serde_json::json!([])));
}

/// How often a volume had no room for an operation is told: of a full one only.
#[test]
fn what_had_no_room_is_counted() {
    for (workload, count) in [("full-create", 1), ("create", 0)] {
        let answer = run(&format!("crash {workload} --depth 1 --durability op --json")).ok().json();
        assert_eq!(answer["campaigns"][0]["operations_without_room"], count, "{workload}");
        let text = run(&format!("crash {workload} --depth 1 --durability op")).ok().out;
        assert!(text.contains(&format!("{count} operations without room")), "{text}");
    }
}

#[test]
fn a_recording_that_is_none_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("life");
    let judge = format!("crash --program true --recording {}", file.display());
    run(&judge).fails(1, &["life", "No such file"]);
    std::fs::write(&file, b"AMBR").unwrap();
    run(&judge).fails(1, &["cut short"]);
    std::fs::write(&file, [7; 4096]).unwrap();
    run(&judge).fails(1, &["no Amberfs recording"]);
}

/// Who interrupted it was not told what had been found.
#[test]
fn interrupted_it_tells_what_it_has_found() {
    for (what, told) in
        [("--random=9000", "0 violations"), ("--two --json", "campaigns"), ("--concurrent=5", "0 violations")]
    {
        let mut command = Command::new(PROGRAM);
        let child =
            command.arg("crash").args(what.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.unwrap();
        eventually("it watches for signals", || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t")).unwrap();
            u64::from_str_radix(caught, 16).unwrap() & 1 << (Signal::INT.as_raw() - 1) != 0
        });
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let run =
            Run::of(child.wait_with_output().unwrap()).fails(130, &["interrupted", "no more was tried"]);
        assert_eq!(run.out.matches(told).count(), 1, "{what}: {}", run.out);
    }
}
