//! Attaching a FUSE connection to a directory, and detaching it.
//!
//! Root mounts with `mount(2)`; anyone else through the set-user-ID helper `fusermount3`, which hands back the
//! connection over a socket.

use std::ffi::{CString, OsString};
use std::fs::{self, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::mountinfo::unescape;
use crate::options::is_root;
use crate::{Error, MountOptions};

/// The file-system type shown in `/proc/mounts` is `fuse.amberfs`.
const SUBTYPE: &str = "amberfs";

/// Mounts on `dir`; the kernel's first message waits to be read from the descriptor.
pub(crate) fn attach(dir: &Path, options: &MountOptions) -> Result<OwnedFd, Error> {
    let root = fs::metadata(dir).map_err(|source| Error::mount_point(dir, source))?;
    if !root.is_dir() {
        return Err(Error::mount_point(dir, Errno::NOTDIR));
    }
    if is_root() { attach_as_root(dir, root.mode(), options) } else { attach_as_user(dir, options) }
}

fn attach_as_root(dir: &Path, root_mode: u32, options: &MountOptions) -> Result<OwnedFd, Error> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(Error::Device)?;
    let mut data = format!(
        "fd={},rootmode={root_mode:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(|nul| Error::mount_point(dir, io::Error::other(nul)))?;
    rustix::mount::mount(
        options.fs_name.as_str(),
        dir,
        format!("fuse.{SUBTYPE}"),
        flags(options),
        data.as_c_str(),
    )
    .map_err(|errno| Error::mount_point(dir, errno))?;
    Ok(device.into())
}

fn flags(options: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    for (wanted, flag) in [
        (options.read_only, MountFlags::RDONLY),
        (options.nosuid, MountFlags::NOSUID),
        (options.nosymfollow, MountFlags::NOSYMFOLLOW),
        (options.nodev, MountFlags::NODEV),
        (options.noexec, MountFlags::NOEXEC),
        (options.noatime, MountFlags::NOATIME),
    ] {
        flags.set(flag, wanted);
    }
    flags
}

/// Changes whether what is mounted on `dir` can be written to, and what else of `options` is the kernel's to grant
/// (set-user-ID bits, device nodes, programs, access times). Only for root. Fails with [`Error::Busy`] if it is to
/// become read-only and files are open for writing.
pub fn remount(dir: &Path, options: &MountOptions) -> Result<(), Error> {
    // Without any word on access times the kernel would leave those as they are.
    let access_times = if options.noatime { MountFlags::empty() } else { MountFlags::RELATIME };
    match rustix::mount::mount_remount(dir, flags(options) | access_times, c"") {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(Error::Busy(dir.to_owned())),
        Err(errno) => Err(Error::mount_point(dir, errno)),
    }
}

fn attach_as_user(dir: &Path, options: &MountOptions) -> Result<OwnedFd, Error> {
    let (ours, theirs) = UnixStream::pair().map_err(Error::Device)?;
    let mut list = format!("subtype={SUBTYPE},fsname={},default_permissions", escape(&options.fs_name));
    for (wanted, word) in [
        (options.allow_other, "allow_other"),
        (options.read_only, "ro"),
        (options.noexec, "noexec"),
        (options.noatime, "noatime"),
        (options.nosymfollow, "nosymfollow"),
        (true, "nosuid"),
        (true, "nodev"),
    ] {
        if wanted {
            list.push(',');
            list.push_str(word);
        }
    }
    // The helper finds the socket by number: as its standard input, it is 0.
    let helper = Command::new("fusermount3")
        .arg("-o")
        .arg(list)
        .arg("--")
        .arg(dir)
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Error::NoFusermount)?;
    let device = receive_descriptor(&ours);
    let output = helper.wait_with_output().map_err(Error::NoFusermount)?;
    match device {
        Ok(Some(device)) if output.status.success() => Ok(device),
        Err(error) if output.status.success() => Err(Error::Fusermount(error.to_string())),
        _ => Err(Error::Fusermount(helper_message(&output.stderr))),
    }
}

/// The descriptor that `fusermount3` sends, if it sends one.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [io::IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let received = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(received)
}

/// `,` and `\` separate and quote in `fusermount3`'s option list.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

fn helper_message(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let text = text.trim();
    let text = text.strip_prefix("fusermount3: ").unwrap_or(if text.is_empty() { "failed" } else { text });
    if text.contains("failed to open /dev/fuse") {
        return format!("{text} (root can open it to all users: chmod 666 /dev/fuse)");
    }
    text.to_owned()
}

/// Unmounts `dir`; `lazy` detaches it at once and lets it end when nobody uses it any more. Works on a mount
/// whose server is gone, too ("Transport endpoint is not connected").
pub fn unmount(dir: &Path, lazy: bool) -> Result<(), Error> {
    MountPoint::at(dir)?.unmount(lazy)
}

/// What is mounted on a directory now. Whoever can rename what lies above it cannot have anything else unmounted in its place later.
pub struct MountPoint {
    dir: PathBuf,
    /// The directory above, and the name in it; `/` has none.
    above: Option<(OwnedFd, OsString)>,
    id: Option<MountId>,
}

impl MountPoint {
    /// What is mounted on `dir`, if anything is; its server is not asked.
    ///
    /// # Errors
    /// The path leads nowhere, or through a symbolic link that was not there a moment before.
    pub fn at(dir: &Path) -> Result<MountPoint, Error> {
        let dir = resolve(dir)?;
        let failed = |errno: Errno| Error::Unmount { dir: dir.clone(), source: errno.into() };
        let above = match (dir.parent(), dir.file_name()) {
            (Some(parent), Some(name)) => {
                let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let opened = openat2(CWD, parent, how, Mode::empty(), ResolveFlags::NO_SYMLINKS);
                Some((opened.map_err(failed)?, name.to_owned()))
            }
            _ => None,
        };
        let mut point = MountPoint { dir, above, id: None };
        point.id = point.mounted().ok();
        Ok(point)
    }

    fn mounted(&self) -> io::Result<MountId> {
        match &self.above {
            Some((above, name)) => MountId::in_directory(above, Path::new(name)),
            None => MountId::of(&self.dir),
        }
    }

    /// Unmounts it, as [`unmount`] does.
    ///
    /// # Errors
    /// [`Error::NotMounted`] also if something else is mounted there now.
    pub fn unmount(self, lazy: bool) -> Result<(), Error> {
        if self.mounted().ok() != self.id {
            return Err(Error::NotMounted(self.dir));
        }
        self.unmount_whatever(lazy)
    }

    /// The same of what is mounted there now. It takes no descriptor more, but for an ordinary user.
    pub(crate) fn unmount_whatever(&self, lazy: bool) -> Result<(), Error> {
        let dir = || self.dir.clone();
        let mut flags = UnmountFlags::NOFOLLOW;
        flags.set(UnmountFlags::DETACH, lazy);
        let path = match &self.above {
            Some((above, name)) => Path::new("/proc/self/fd").join(above.as_raw_fd().to_string()).join(name),
            None => dir(),
        };
        match rustix::mount::unmount(&path, flags) {
            Ok(()) => Ok(()),
            Err(Errno::PERM) => unmount_as_user(&self.dir, lazy),
            Err(Errno::BUSY) => Err(Error::Busy(dir())),
            Err(Errno::INVAL) => Err(Error::NotMounted(dir())),
            Err(errno) => Err(Error::Unmount { dir: dir(), source: errno.into() }),
        }
    }
}

fn unmount_as_user(dir: &Path, lazy: bool) -> Result<(), Error> {
    let mut helper = Command::new("fusermount3");
    helper.arg("-u");
    if lazy {
        helper.arg("-z");
    }
    let output = helper.arg("--").arg(dir).stdin(Stdio::null()).output().map_err(Error::NoFusermount)?;
    if output.status.success() {
        return Ok(());
    }
    let message = helper_message(&output.stderr);
    if message.contains("Device or resource busy") {
        Err(Error::Busy(dir.to_owned()))
    } else if message.contains("not found in") {
        Err(Error::NotMounted(dir.to_owned()))
    } else {
        Err(Error::Fusermount(message))
    }
}

/// `dir` as an absolute path without symbolic links, without touching what is mounted there if that is dead.
fn resolve(dir: &Path) -> Result<PathBuf, Error> {
    if let Ok(path) = fs::canonicalize(dir) {
        return Ok(path);
    }
    let failed = |source| Error::Unmount { dir: dir.to_owned(), source };
    let path = std::path::absolute(dir).map_err(failed)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(fs::canonicalize(parent).map_err(failed)?.join(name)),
        _ => Ok(path),
    }
}

/// What tells a mount from others. Numbers of devices are used again as soon as they are free, and so are those of
/// mounts, but for the ones that Linux gives since 6.8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountId {
    /// As `/proc/self/mountinfo` writes it.
    device: String,
    /// Not known of one that was covered before anybody could ask.
    number: Option<u64>,
}

/// `STATX_MNT_ID_UNIQUE`; kernels that don't know it give the number that is used again.
const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

impl MountId {
    /// Of what is mounted on `dir`, without asking its server.
    pub(crate) fn of(dir: &Path) -> io::Result<MountId> {
        MountId::in_directory(CWD, dir)
    }

    /// Of the mount that was just made on `dir`, and is served by `connection`: somebody else may have mounted over it since.
    pub(crate) fn of_new(dir: &Path, connection: &OwnedFd) -> io::Result<MountId> {
        let seen = MountId::of(dir)?;
        match device_of(connection) {
            Some(device) if device != seen.device => Ok(MountId { device, number: None }),
            _ => Ok(seen),
        }
    }

    /// Whether something else covers it since it was made.
    pub(crate) fn is_covered(&self) -> bool {
        self.number.is_none()
    }

    /// The same of a path from a directory.
    fn in_directory(above: impl AsFd, dir: &Path) -> io::Result<MountId> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let found = statx(above, dir, flags, StatxFlags::MNT_ID | UNIQUE)?;
        let device = format!("{}:{}", found.stx_dev_major, found.stx_dev_minor);
        Ok(MountId { device, number: Some(found.stx_mnt_id) })
    }

    /// Of the file system that is mounted, as `major:minor`.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    fn is(&self, found: &MountId) -> bool {
        self.device == found.device && (self.is_covered() || self.number == found.number)
    }

    /// Where this mount is now, and is seen; `None` if nowhere.
    pub(crate) fn mounted_at(&self) -> io::Result<Option<PathBuf>> {
        let table = fs::read("/proc/self/mountinfo")?;
        for line in table.split(|&byte| byte == b'\n') {
            let mut fields = line.split(|&byte| byte == b' ').skip(2);
            if fields.next() == Some(self.device.as_bytes())
                && let Some(path) =
                    fields.nth(1).map(|field| PathBuf::from(OsString::from_vec(unescape(field))))
                && MountId::of(&path).is_ok_and(|found| self.is(&found))
            {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }
}

/// The device of the file system that a connection serves, where the kernel tells that (6.18 does).
fn device_of(connection: &OwnedFd) -> Option<String> {
    let told = fs::read_to_string(format!("/proc/self/fdinfo/{}", connection.as_raw_fd())).ok()?;
    let number = told.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?;
    let number: u32 = number.trim().parse().ok()?;
    // As the kernel has it: twenty bits of minor number.
    Some(format!("{}:{}", number >> 20, number & 0xf_ffff))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Of two who mounted on one directory at once, the one below took the other's mount for its own, and ended that.
    #[test]
    fn a_mount_that_was_covered_at_once_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let attach = || attach_as_root(dir.path(), 0o40_755, &MountOptions::default());
        let below = match attach() {
            Ok(below) => below,
            Err(error) => {
                let _ = writeln!(io::stderr(), "LEFT OUT: mounting needs root and /dev/fuse: {error}");
                return;
            }
        };
        let Some(device) = device_of(&below) else {
            let _ =
                writeln!(io::stderr(), "LEFT OUT: this kernel does not tell which mount a connection serves");
            return unmount(dir.path(), true).unwrap();
        };
        let alone = MountId::of_new(dir.path(), &below).unwrap();
        assert_eq!((alone.device(), alone.is_covered()), (&*device, false));
        let above = attach().unwrap();
        let covered = MountId::of_new(dir.path(), &below).unwrap();
        assert_eq!((covered.device(), covered.is_covered()), (&*device, true));
        assert_eq!(covered.mounted_at().unwrap(), None, "it is not seen");
        assert!(!MountId::of_new(dir.path(), &above).unwrap().is_covered());
        unmount(dir.path(), true).unwrap();
        assert_eq!(covered.mounted_at().unwrap().as_deref(), Some(dir.path()), "now it is");
        unmount(dir.path(), true).unwrap();
    }

    #[test]
    fn option_values_are_quoted() {
        assert_eq!(escape(r"/z,one:a\b"), r"/z\,one:a\\b");
    }

    #[test]
    fn unmounting_what_is_not_mounted_says_so() {
        let dir = tempfile::tempdir().unwrap();
        match unmount(dir.path(), false) {
            Err(Error::NotMounted(path)) => assert_eq!(path, dir.path().canonicalize().unwrap()),
            other => panic!("{other:?}"),
        }
    }
}
