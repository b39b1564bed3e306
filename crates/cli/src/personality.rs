//! Called by another name, as mount(8), umount(8), mkfs(8) and fsck(8) call their helpers, the program takes their
//! arguments: each is translated to a command of the table.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::exit;

/// The name under which the program was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Personality {
    Amberfs,
    /// `mount.amberfs SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`
    Mount,
    /// `umount.fuse.amberfs DIR [-flnrv] [-N NAMESPACE] [-t TYPE]`
    Umount,
    /// `mkfs.amberfs [OPTIONS] ZONE:VOLUME [SIZE]`
    Mkfs,
    /// `fsck.amberfs [-anpyf] [-C[FD]] [-tTVMRAP] ZONE:VOLUME`
    Fsck,
}

impl Personality {
    pub(crate) fn of(program: Option<&OsString>) -> Personality {
        let name = program.map(Path::new).and_then(Path::file_name).and_then(OsStr::to_str);
        match name {
            Some("mount.amberfs" | "mount.fuse.amberfs") => Personality::Mount,
            Some("umount.amberfs" | "umount.fuse.amberfs") => Personality::Umount,
            Some("mkfs.amberfs") => Personality::Mkfs,
            Some("fsck.amberfs") => Personality::Fsck,
            _ => Personality::Amberfs,
        }
    }

    /// The name that error messages begin with.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Personality::Amberfs => "amberfs",
            Personality::Mount => "mount.amberfs",
            Personality::Umount => "umount.amberfs",
            Personality::Mkfs => "mkfs.amberfs",
            Personality::Fsck => "fsck.amberfs",
        }
    }

    /// The code for a command line that could not be read, as `translate` gave it.
    pub(crate) fn usage_exit(self, arguments: &[OsString]) -> u8 {
        let command = arguments.get(1).and_then(|command| command.to_str());
        match (self, command) {
            (Personality::Mount | Personality::Umount, _)
            | (Personality::Amberfs, Some("mount" | "umount")) => exit::MOUNT_USAGE,
            (Personality::Fsck, _) | (Personality::Amberfs, Some("fsck")) => exit::FSCK_USAGE,
            (Personality::Mkfs, _) => exit::MKFS_USAGE,
            (Personality::Amberfs, _) => exit::USAGE,
        }
    }

    /// The arguments as `amberfs COMMAND ...` takes them.
    pub(crate) fn translate(self, arguments: Vec<OsString>) -> Result<Vec<OsString>, String> {
        let command = match self {
            Personality::Amberfs => return Ok(arguments),
            Personality::Mount => "mount",
            Personality::Umount => "umount",
            Personality::Mkfs => "mkfs",
            Personality::Fsck => "fsck",
        };
        if arguments.len() == 2 && arguments[1] == "-V" {
            return Ok(vec!["amberfs".into(), "--version".into()]);
        }
        let mut translated: Vec<OsString> = vec!["amberfs".into(), command.into()];
        let rest = arguments.into_iter().skip(1);
        match self {
            Personality::Mkfs => translated.extend(mkfs(rest)),
            Personality::Fsck => translated.extend(fsck(rest)?),
            _ => translated.extend(mount(rest, self == Personality::Umount)?),
        }
        Ok(translated)
    }
}

/// mount(8) and umount(8) put flags before or after what they are about, several in one word.
fn mount(arguments: impl Iterator<Item = OsString>, umount: bool) -> Result<Vec<OsString>, String> {
    let mut arguments = arguments;
    let mut translated = Vec::new();
    // umount(8) says nothing of what goes well.
    let mut quiet = umount;
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy().into_owned();
        let flags = match text.strip_prefix('-') {
            Some(flags) if !flags.is_empty() && !flags.starts_with('-') => flags,
            _ => {
                translated.push(argument);
                continue;
            }
        };
        let mut rest = flags.chars();
        while let Some(flag) = rest.next() {
            // A flag's value is the rest of its word, or the next word.
            let mut value = || match rest.as_str() {
                "" => arguments.next().ok_or(format!("-{flag} needs a value")),
                text => Ok(text.into()),
            };
            match flag {
                'o' if !umount => {
                    translated.extend(["-o".into(), value()?]);
                    break;
                }
                't' => {
                    value()?;
                    break;
                }
                'N' => {
                    translated.extend(["--namespace".into(), value()?]);
                    break;
                }
                's' if !umount => translated.push("--sloppy".into()),
                'f' if !umount => translated.push("--fake".into()),
                'v' if !umount => translated.push("--verbose".into()),
                'r' if !umount => translated.extend(["-o".into(), "ro".into()]),
                'w' if !umount => translated.extend(["-o".into(), "rw".into()]),
                'l' if umount => translated.push("--lazy".into()),
                'h' => translated.push("--help".into()),
                // No mtab to write; -f and -r of umount(8) change nothing here.
                'n' => {}
                'f' | 'r' if umount => {}
                'v' if umount => quiet = false,
                other => return Err(format!("unknown flag -{other}")),
            }
        }
    }
    if quiet {
        translated.push("--quiet".into());
    }
    Ok(translated)
}

/// mkfs(8) may pass `-V`, and a size after the device.
fn mkfs(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words = 0;
    let mut value_follows = false;
    let mut translated = Vec::new();
    for argument in arguments {
        let text = argument.to_string_lossy().into_owned();
        if text == "-V" || text == "-v" {
            continue;
        }
        let is_word = !text.starts_with('-') && !value_follows;
        value_follows = matches!(text.as_str(), "--kind" | "--size" | "--label" | "-L");
        words += usize::from(is_word);
        if is_word && words == 2 {
            translated.push("--size".into());
        }
        translated.push(argument);
    }
    translated
}

/// fsck(8) passes on what it does not know, and `-C FD` for a progress bar, which checking needs none of.
fn fsck(arguments: impl Iterator<Item = OsString>) -> Result<Vec<OsString>, String> {
    let mut translated = Vec::new();
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy().into_owned();
        match text.as_str() {
            "-C" => {
                arguments.next_if(|next| next.to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()));
            }
            "-T" | "-V" | "-v" | "-M" | "-R" | "-P" => {}
            _ if text.starts_with("-C")
                && text[2..].bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') => {}
            _ => translated.push(argument),
        }
    }
    Ok(translated)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> Result<String, String> {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let translated = Personality::of(arguments.first()).translate(arguments)?;
        Ok(translated.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn helpers_take_what_util_linux_gives() {
        for (line, expected) in [
            ("/sbin/mount.amberfs /z:v /mnt -o rw,nosuid", "amberfs mount /z:v /mnt -o rw,nosuid"),
            (
                "mount.amberfs /z:v /mnt -sfnv -oro -t amberfs",
                "amberfs mount /z:v /mnt --sloppy --fake --verbose -o ro",
            ),
            ("mount.amberfs /z:v /mnt -nN 17 -o rw", "amberfs mount /z:v /mnt --namespace 17 -o rw"),
            ("umount.fuse.amberfs /mnt -N /run/ns", "amberfs umount /mnt --namespace /run/ns --quiet"),
            ("umount.fuse.amberfs /mnt -l -n", "amberfs umount /mnt --lazy --quiet"),
            ("umount.fuse.amberfs /mnt -vl", "amberfs umount /mnt --lazy"),
            ("mkfs.amberfs -V -L data /z:v 64M", "amberfs mkfs -L data /z:v --size 64M"),
            ("mkfs.amberfs -q /z:v", "amberfs mkfs -q /z:v"),
            ("fsck.amberfs -a -C0 /z:v", "amberfs fsck -a /z:v"),
            ("fsck.amberfs -C 4 -n /z:v", "amberfs fsck -n /z:v"),
            ("amberfs mount -x", "amberfs mount -x"),
            ("mount.amberfs -V", "amberfs --version"),
            ("umount.amberfs -V", "amberfs --version"),
            ("mkfs.amberfs -V", "amberfs --version"),
            ("fsck.amberfs -V", "amberfs --version"),
        ] {
            assert_eq!(translated(line).as_deref(), Ok(expected), "{line}");
        }
        assert!(translated("mount.amberfs a:b /c -q").is_err());
        assert!(translated("mount.amberfs a:b /c -o").is_err());
    }
}
