//! fio itself, with the engine as it loads it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use native::{FormatOptions, MountOptions, Volume, check, format};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::{Caller, FileSystem, ROOT_INO};

/// The size of a file that fio has left.
fn size_of(volume: &Volume, path: &[&str]) -> u64 {
    let look = |dir, name: &&str| volume.lookup(&Caller::root(), dir, name.as_bytes()).unwrap().ino;
    volume.getattr(path.iter().fold(ROOT_INO, look)).unwrap().size
}

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    /// A zone with the volume `v`.
    fn new() -> Bench {
        let bench = Bench { dir: tempfile::tempdir_in("/dev/shm").unwrap() };
        let zone = Zone::create(&bench.zone(), 96 << 20, false, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
        format(&region, &FormatOptions::default()).unwrap();
        bench
    }

    fn zone(&self) -> PathBuf {
        self.dir.path().join("zone")
    }

    fn fio(&self, arguments: &str) -> Output {
        let engine = format!("--ioengine=external:{}", library().display());
        let zone = format!("--zone={}", self.zone().display());
        let mut command = Command::new("fio");
        command.args(["--name=j", &engine, &zone]).args(arguments.split_whitespace()).current_dir(&self.dir);
        command.output().expect("fio is not there: scripts/install-deps.sh test installs it")
    }

    /// The volume, which is sound and was closed.
    fn volume(&self) -> (Volume, Zone) {
        let zone = Zone::open(&self.zone(), &OpenOptions::default()).unwrap();
        let region = zone.volume("v").unwrap();
        let report = check(&region, true).unwrap();
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
        let volume = Volume::open(region, &MountOptions::default()).unwrap();
        assert!(volume.recovery().was_clean, "the engine did not close the volume");
        (volume, zone)
    }
}

/// What is built for tests lies beside them, or one above.
fn library() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let dirs = tests.ancestors().skip(1).take(2).map(Path::to_path_buf);
    let mut found = dirs.map(|dir| dir.join("libamberfs_fio.so")).filter(|path| path.exists());
    found.next().expect("the engine has been built with its tests")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn what_is_written_is_read_and_verified() {
    let bench = Bench::new();
    for durability in ["op", "fsync", "snapshot"] {
        let output = bench.fio(&format!(
            "--thread --volume=v --durability={durability} --numjobs=2 --size=8M --rw=randwrite --bsrange=512-64k \
             --bs_unaligned --verify=crc32c --do_verify=1 --verify_fatal=1 --fsync=32 --group_reporting --output-format=json"
        ));
        assert!(output.status.success(), "{}", said(&output));
        let text = said(&output);
        let json: serde_json::Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
        let job = &json["jobs"][0];
        assert_eq!(job["error"], 0);
        for what in ["write", "read"] {
            assert!(job[what]["io_bytes"].as_u64().unwrap() >= 15 << 20, "{what}: {job}");
        }
        assert!(job["sync"]["total_ios"].as_u64().unwrap() > 0, "{job}");
        let (volume, _zone) = bench.volume();
        for n in 0..2 {
            assert_eq!(size_of(&volume, &[&format!("j.{n}.0")]), 8 << 20);
        }
    }
}

#[test]
fn files_below_directories_are_made_read_and_removed() {
    let bench = Bench::new();
    let output = bench.fio("--thread --volume=v --filename=a/b/file --size=4M --rw=randread --bs=4k");
    assert!(output.status.success(), "{}", said(&output));
    let (volume, zone) = bench.volume();
    assert_eq!(size_of(&volume, &["a", "b", "file"]), 4 << 20);
    drop((volume, zone));
    // Its size is found, and then it goes.
    let output = bench.fio("--thread --volume=v --filename=a/b/file --rw=randtrim --bs=64k --unlink=1");
    assert!(output.status.success(), "{}", said(&output));
    let (volume, _zone) = bench.volume();
    let (_, report) = (volume.close(), check(volume.region(), true).unwrap());
    assert_eq!(report.files, 0, "{report:?}");
}

/// fio clipped every job to what its file held already, and ended without an error.
#[test]
fn a_file_that_is_shorter_than_its_job_becomes_longer() {
    let bench = Bench::new();
    let wrote = |arguments: &str| {
        let output = bench.fio(&format!("--thread --volume=v --bs=64k --output-format=json {arguments}"));
        assert!(output.status.success(), "{arguments}: {}", said(&output));
        let text = said(&output);
        let json: serde_json::Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
        let jobs = json["jobs"].as_array().unwrap();
        jobs.iter()
            .map(|job| ["read", "write"].map(|what| job[what]["io_bytes"].as_u64().unwrap() >> 20))
            .collect::<Vec<_>>()
    };
    let engine = format!("--ioengine=external:{}", library().display());
    let zone = format!("--zone={}", bench.zone().display());
    let second = format!("--name=k --stonewall {engine} {zone} --volume=v --thread --bs=64k");
    let two = format!("--filename=two --size=4M --rw=write {second} --filename=two --size=16M --rw=write");
    for (arguments, expected) in [
        ("--filename=f --size=8M --rw=write", vec![[0, 8]]),
        ("--filename=f --size=16M --rw=write --verify=crc32c", vec![[16, 16]]),
        ("--filename=f --offset=16M --size=4M --rw=write", vec![[0, 4]]),
        ("--filename=f --rw=read", vec![[20, 0]]),
        ("--filename=f --size=4M --rw=read", vec![[4, 0]]),
        ("--filename=new --offset=4M --size=4M --rw=read", vec![[4, 0]]),
        (two.as_str(), vec![[0, 4], [0, 16]]),
    ] {
        assert_eq!(wrote(arguments), expected, "{arguments}");
    }
    let (volume, _zone) = bench.volume();
    for (name, mib) in [("f", 20), ("new", 8), ("two", 16)] {
        assert_eq!(size_of(&volume, &[name]), mib << 20, "{name}");
    }
}

#[test]
fn why_a_zone_cannot_be_had_is_told_as_it_is() {
    let bench = Bench::new();
    let zone = Zone::open(&bench.zone(), &OpenOptions::default()).unwrap();
    let output = bench.fio("--thread --volume=v --size=1M --rw=read");
    assert!(!output.status.success() && said(&output).contains("is in use by process"), "{}", said(&output));
    assert!(!said(&output).contains("thread=1"), "nothing fio can help: {}", said(&output));
    // The advice for what is no native volume at all would have a disk's metadata made anew.
    zone.remove_volume("v").unwrap();
    zone.create_volume("e", VolumeKind::Ext, None).unwrap();
    drop(zone);
    let output = bench.fio("--thread --volume=e --size=1M --rw=read");
    assert!(!output.status.success() && said(&output).contains("native volumes only"), "{}", said(&output));
    assert!(!said(&output).contains("mkfs"), "{}", said(&output));
}

#[test]
fn what_cannot_be_is_said_and_leaves_the_volume_sound() {
    let bench = Bench::new();
    for (arguments, words) in [
        ("--thread --size=1M --rw=read", "needs the options zone=FILE and volume=NAME"),
        ("--thread --volume=w --size=1M --rw=read", "the zone has no volume \"w\""),
        ("--thread --volume=v --durability=maybe --size=1M", "durability is op, fsync or snapshot"),
        ("--volume=v --numjobs=2 --size=1M --rw=read --time_based --runtime=1", "thread=1"),
        ("--thread --volume=v --size=4G --rw=write", "no space left"),
    ] {
        let output = bench.fio(arguments);
        assert!(!output.status.success() && said(&output).contains(words), "{arguments}: {}", said(&output));
        bench.volume();
    }
}

#[test]
fn one_run_works_on_one_volume() {
    let bench = Bench::new();
    let jobs = bench.dir.path().join("jobs");
    let text = format!(
        "[global]\nioengine=external:{}\nzone={}\nthread=1\nsize=1M\nrw=read\n[one]\nvolume=v\n[two]\nvolume=w\n",
        library().display(),
        bench.zone().display()
    );
    std::fs::write(&jobs, text).unwrap();
    let output = Command::new("fio").arg(&jobs).output().expect("fio is not there");
    assert!(!output.status.success() && said(&output).contains("volume is v already"), "{}", said(&output));
}

/// A program that is no fio of the release whose structures the engine knows gets no engine.
#[test]
fn another_release_is_refused() {
    let bench = Bench::new();
    let source = bench.dir.path().join("other.c");
    std::fs::write(
        &source,
        "#include <dlfcn.h>\n\
         const char fio_version_string[] = \"fio-9.99\";\n\
         int main(int argc, char **argv) {\n\
             void *ops = 0, *library = dlopen(argv[1], RTLD_NOW);\n\
             void (*get)(void **) = library ? (void (*)(void **))dlsym(library, \"get_ioengine\") : 0;\n\
             if (!get) return 2;\n\
             get(&ops);\n\
             return ops != 0;\n\
         }\n",
    )
    .unwrap();
    let program = bench.dir.path().join("other");
    let built = Command::new("cc").arg("-rdynamic").arg("-o").arg(&program).arg(&source).arg("-ldl").status();
    assert!(built.unwrap().success());
    let output = Command::new(&program).arg(library()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("not those of fio-9.99"), "{}", said(&output));
}
