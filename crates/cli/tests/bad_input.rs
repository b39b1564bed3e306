//! Wrong arguments, wrong places, wrong sizes: each is named, nothing is changed, and the exit code fits.

use crate::support::{PROGRAM, Run, Scratch, amberfs, eventually, run};

#[test]
fn usage_errors_have_the_codes_of_the_programs_we_stand_in_for() {
    run("").fails(2, &["Usage"]);
    run("frobnicate").fails(2, &["frobnicate"]);
    run("zone create").fails(2, &["PATH"]);
    run("mount only-one").fails(1, &[]);
    run("fsck --wrong a:b").fails(16, &["--wrong"]);
    run("fsck -n -y a:b").fails(16, &["cannot be used with"]);
    run("mkfs /dev/null").fails(2, &["names no volume"]);
    run("mkfs /z:v --size 1Q").fails(2, &["no size"]);
    run("mkfs /z:v --kind btrfs").fails(2, &["btrfs", "native"]);
    let scratch = Scratch::new();
    for (helper, code) in [("mkfs", 1), ("fsck", 16), ("mount", 1), ("umount.fuse", 1)] {
        let helper = scratch.path(&format!("{helper}.amberfs"));
        std::os::unix::fs::symlink(PROGRAM, &helper).unwrap();
        Run::of(std::process::Command::new(&helper).arg("--wrong").output().unwrap())
            .fails(code, &["--wrong"]);
    }
    run("mount none /tmp").fails(32, &["none: No such file", "ZONE:VOLUME"]);
    let zone = scratch.zone();
    run(&format!("fsck -a -p {zone}:home")).ok();
    run(&format!("fsck -p -y {zone}:home")).fails(16, &["cannot be used with"]);
}

#[test]
fn unknown_mount_options_are_named_with_their_neighbour() {
    let scratch = Scratch::new();
    let (zone, dir) = (scratch.zone(), scratch.mount_point("mnt"));
    let mount = |options: &str| run(&format!("mount {zone}:home {dir} -o {options}"));
    mount("durabilty=op").fails(1, &["durabilty", "did you mean 'durability'?", "nothing was mounted"]);
    mount("durability=sometimes").fails(1, &["sometimes", "op, fsync"]);
    mount("commit=-1").fails(1, &["commit=-1"]);
    mount("threads=0").fails(1, &["threads=0"]);
    mount("technology=paper").fails(1, &["paper"]);
}

#[test]
fn places_that_are_no_zones_are_told_apart() {
    let scratch = Scratch::new();
    run(&format!("zone show {}", scratch.text(""))).fails(1, &["is a directory"]);
    run(&format!("zone show {}", scratch.text("missing"))).fails(1, &["No such file"]);
    std::fs::write(scratch.path("text"), "hello, world\n").unwrap();
    run(&format!("zone show {}", scratch.text("text"))).fails(1, &["is no Amberfs zone"]);
    run("zone show /dev/null").fails(1, &["character device"]);
    run(&format!("zone create {}", scratch.text("new"))).fails(1, &["--size"]);
    run(&format!("zone create {} --size 1M", scratch.text("new")))
        .fails(1, &["1 MiB are too few", "at least 4 MiB", "nothing was made"]);
    assert!(!scratch.path("new").exists(), "a failed create leaves no file");
}

#[test]
fn nothing_is_overwritten_without_force() {
    let scratch = Scratch::new();
    let zone = scratch.zone();
    run(&format!("zone create {zone} --size 64M")).fails(1, &["holds an Amberfs zone", "unchanged"]);
    run(&format!("mkfs {zone}:home")).fails(1, &["native file system", "'mine'", "--force"]);
    run(&format!("mkfs {zone}:home --size 16M --force")).fails(1, &["32 MiB", "--size"]);
    run(&format!("zone remove-volume {zone} home")).fails(1, &["--force"]);
    run(&format!("fsck {zone}:home")).ok();
    run(&format!("mkfs {zone}:home --force --label other")).ok();
    assert_eq!(run(&format!("info {zone}:home --json")).ok().json()["label"], "other");
    run(&format!("zone remove-volume {zone} home --force")).ok();
    run(&format!("fsck {zone}:home")).fails(8, &["no volume \"home\""]);
}

#[test]
fn volumes_that_cannot_be_are_refused_and_leave_nothing() {
    let scratch = Scratch::new();
    let zone = scratch.zone();
    let long = "n".repeat(32);
    run(&format!("mkfs {zone}:{long}")).fails(1, &["cannot name a volume"]);
    run(&format!("mkfs {zone}:two --label {}", "x".repeat(65))).fails(1, &["65 bytes", "at most 64"]);
    run(&format!("mkfs {zone}:tiny --size 4M")).fails(1, &["too few", "16 MiB"]);
    run(&format!("mkfs {zone}:large --size 1G")).fails(1, &["no room"]);
    run(&format!("mkfs {zone}:disk --kind ext")).fails(1, &["amberfs attach", "ext"]);
    run(&format!("mkfs {zone}:nand --kind flash")).fails(1, &["flash", "are planned"]);
    let volumes = run(&format!("zone show {zone} --json")).ok().json();
    assert_eq!(volumes["volumes"].as_array().unwrap().len(), 1);
    run(&format!("info {zone}:hom")).fails(1, &["it has home"]);
    run(&format!("mount {zone}:hom {}", scratch.mount_point("mnt")))
        .fails(32, &["it has home", "nothing was mounted"]);
    run(&format!("dump {zone}:home everything")).fails(2, &["superblock"]);
}

/// It told that on its own standard error, and whoever waited for it that it had ended without a word.
#[test]
fn a_server_whose_mount_point_has_gone_reports_that() {
    let scratch = Scratch::new();
    let zone = scratch.zone();
    let ended = run(&format!("mount --report {zone}:home {}", scratch.text("gone")));
    assert_eq!((ended.code, &*ended.err), (32, ""));
    let told = ended.json()["failed"].clone();
    assert!(told["what"].as_str().unwrap().contains("No such file") && told["exit"] == 32, "{told}");
}

/// Whatever tells of it would have had to leave out, or to do, what such a label says.
#[test]
fn a_label_has_no_control_characters() {
    let scratch = Scratch::new();
    let zone = scratch.zone();
    amberfs(&["mkfs", &format!("{zone}:new"), "--label", "two\nlines"]).fails(1, &["control characters"]);
    amberfs(&["mkfs", &format!("{zone}:new"), "--label", "größe 名", "--size", "16M"]).ok();
}

#[test]
fn wrong_mount_points_are_told_apart() {
    let scratch = Scratch::new();
    let zone = scratch.zone();
    run(&format!("mount {zone}:home {}", scratch.text("missing"))).fails(32, &["No such file"]);
    // What mount(8) means by it: the zone may be missing, and nothing else be wrong.
    let dir = scratch.mount_point("absent");
    for source in [format!("{zone}.gone:home"), format!("{zone}.gone")] {
        run(&format!("mount {source} {dir}")).fails(32, &["No such file"]);
        run(&format!("mount {source} {dir} -o nofail")).ok();
        assert!(
            run(&format!("mount -v {source} {dir} -o ro,nofail")).ok().out.contains("nothing was mounted")
        );
    }
    run(&format!("mount {zone}:nope {dir} -o nofail")).fails(32, &["it has home"]);
    run(&format!("mount {zone}:home {} -o nofail", scratch.text("missing"))).fails(32, &["No such file"]);
    run(&format!("mount {zone}:home {zone}")).fails(32, &["not a directory"]);
    run(&format!("umount {}", scratch.mount_point("mnt"))).fails(32, &["not a mount point"]);
    run("umount /proc").fails(32, &["type proc"]);
    run(&format!("stats {}", scratch.text("mnt"))).fails(1, &["no volume is served"]);
}

#[test]
fn a_locked_zone_names_its_holder() {
    let scratch = Scratch::new();
    let zone = scratch.zone();
    let holder = nvm::Zone::open(zone.as_ref(), &nvm::OpenOptions::default()).unwrap();
    let pid = std::process::id().to_string();
    run(&format!("fsck {zone}:home")).fails(8, &["in use by process", &pid]);
    run(&format!("mkfs {zone}:two")).fails(1, &[&pid]);
    drop(holder);
    // A test beside this one may be starting a process, which has our files until it is another program.
    eventually("the zone is let go of", || run(&format!("fsck {zone}:home")).code == 0);
}

#[test]
fn helpers_have_the_exit_codes_of_theirs() {
    let scratch = Scratch::new();
    let (zone, dir) = (scratch.zone(), scratch.mount_point("mnt"));
    let helper = |name: &str, arguments: &str| {
        let link = scratch.path(name);
        if !link.exists() {
            std::os::unix::fs::symlink(PROGRAM, &link).unwrap();
        }
        Run::of(std::process::Command::new(link).args(arguments.split_whitespace()).output().unwrap())
    };
    helper("mount.amberfs", &format!("{zone}:home {dir} -o rw,nonsense"))
        .fails(1, &["mount.amberfs:", "nonsense"]);
    helper("mount.amberfs", &format!("{zone}:home {dir} -x")).fails(1, &["unknown flag -x"]);
    helper("mount.amberfs", &format!("{zone}:nope {dir} -o rw")).fails(32, &["nope"]);
    run(&format!("mount --fake {zone}:none {dir}")).fails(32, &["no volume", "nothing was mounted"]);
    helper("mount.amberfs", &format!("{zone}:home {dir} -f -n -v -s -o rw,nonsense -t amberfs")).ok();
    helper("fsck.amberfs", &format!("-a -C0 {zone}:home")).ok();
    helper("fsck.amberfs", &format!("-q {zone}:home")).fails(16, &["-q"]);
    helper("fsck.amberfs", &format!("{zone}:nope")).fails(8, &["fsck.amberfs:"]);
    assert_eq!(helper("mkfs.amberfs", &format!("-V -q {zone}:two 16M")).ok().out, "");
    amberfs(&["fsck", &format!("{zone}:two")]).ok();
}

/// It was killed by a signal and left a file of nothing behind; and a file stayed as long as it had been made.
#[test]
fn what_the_process_may_not_have_is_told() {
    let scratch = Scratch::new();
    let zone = scratch.text("limited");
    let made = |limit: &str, size: &str| {
        let line = format!("{limit}; exec {PROGRAM} zone create {zone} --size {size}");
        Run::of(std::process::Command::new("sh").args(["-c", &line]).output().unwrap())
    };
    made("ulimit -f 1000", "64M").fails(1, &["cannot allocate its space", "nothing was made"]);
    assert!(!scratch.path("limited").exists());
    std::fs::write(&zone, [0; 5]).unwrap();
    made("ulimit -v 500000", "512M").fails(1, &["cannot map it", "what was there is unchanged"]);
    assert_eq!(std::fs::metadata(&zone).unwrap().len(), 5);
}
