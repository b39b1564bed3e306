//! How users name disks: a path, or an NBD URI; and how they are opened.

use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// How to open a disk.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// For reading only. A disk that cannot be written is opened so anyway, and says so.
    pub read_only: bool,
    /// Around the page cache (`O_DIRECT`). By default block special files are, and image files are not.
    pub direct: Option<bool>,
    /// How long the server of an NBD export may take for one answer; 30 s by default.
    pub patience: Duration,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions { read_only: false, direct: None, patience: Duration::from_secs(30) }
    }
}

/// Where a disk is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An image file or a block special file.
    Path(PathBuf),
    /// An export of an NBD server.
    Nbd {
        /// Where the server listens.
        address: NbdAddress,
        /// The export's name; empty is the server's default.
        export: String,
    },
}

/// Where an NBD server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    /// A host, by name or number, and a port.
    Tcp(String, u16),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// The port of NBD servers.
const NBD_PORT: u16 = 10809;
/// Longest name of an export, bytes (the protocol's limit).
const EXPORT_MAX: usize = 4096;

/// Why a name is no disk's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' names no disk: {why}; write PATH, nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH"
)]
pub struct SourceError {
    /// What was given.
    pub text: String,
    /// What is wrong with it.
    pub why: String,
}

impl Source {
    /// The same disk, named so that it is found from any working directory; who named it was in `directory`. Links in the path stay:
    /// those of `/dev/disk` lead to the disk whatever it is called after the next start.
    ///
    /// # Errors
    /// The directory is relative itself, and there is no working directory.
    pub fn seen_from(self, directory: &Path) -> io::Result<Source> {
        let absolute = |path: PathBuf| std::path::absolute(directory.join(path));
        Ok(match self {
            Source::Path(path) => Source::Path(absolute(path)?),
            Source::Nbd { address: NbdAddress::Unix(socket), export } => {
                Source::Nbd { address: NbdAddress::Unix(absolute(socket)?), export }
            }
            Source::Nbd { address: NbdAddress::Tcp(..), .. } => self,
        })
    }
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Source, SourceError> {
        parse(text).map_err(|why| SourceError { text: text.into(), why })
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Path(path) => write!(f, "{}", path.display()),
            Source::Nbd { address: NbdAddress::Tcp(host, port), export } if host.contains(':') => {
                write!(f, "nbd://[{host}]:{port}/{}", encoded(export))
            }
            Source::Nbd { address: NbdAddress::Tcp(host, port), export } => {
                write!(f, "nbd://{host}:{port}/{}", encoded(export))
            }
            Source::Nbd { address: NbdAddress::Unix(path), export } => {
                let socket = path.to_string_lossy();
                write!(f, "nbd+unix:///{}?socket={}", encoded(export), encoded(&socket))
            }
        }
    }
}

fn parse(text: &str) -> Result<Source, String> {
    if let Some(rest) = text.strip_prefix("nbd://") {
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        if export.contains('?') {
            return Err("nbd:// takes no parameters".into());
        }
        return Ok(Source::Nbd { address: tcp(authority)?, export: export_name(export)? });
    }
    if let Some(rest) = text.strip_prefix("nbd+unix://") {
        let (path, query) = rest.split_once('?').ok_or("it has no ?socket=PATH")?;
        let export =
            path.strip_prefix('/').ok_or("a host has no place in it: it begins with nbd+unix:///")?;
        let socket = query.strip_prefix("socket=").ok_or("its parameter is not socket=PATH")?;
        if socket.is_empty() || socket.contains('&') {
            return Err("its only parameter is socket=PATH".into());
        }
        let address = NbdAddress::Unix(decoded(socket)?.into());
        return Ok(Source::Nbd { address, export: export_name(export)? });
    }
    match text.split_once("://") {
        Some(("nbds" | "nbds+unix", _)) => Err("NBD over TLS is not supported".into()),
        Some((scheme, _)) if scheme.starts_with("nbd") => Err(format!("'{scheme}' is not supported")),
        None if text.starts_with("nbd:unix:") => Err("that is how QEMU writes it".into()),
        _ if text.is_empty() => Err("it is empty".into()),
        _ => Ok(Source::Path(text.into())),
    }
}

fn tcp(authority: &str) -> Result<NbdAddress, String> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("its '[' is not closed")?;
            (
                host,
                if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or("']' ends its host")?) },
            )
        }
        None => match authority.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() {
        return Err("it names no host".into());
    }
    let port = match port {
        None => NBD_PORT,
        Some(port) => port.parse().map_err(|_| format!("'{port}' is no port"))?,
    };
    Ok(NbdAddress::Tcp(host.into(), port))
}

fn export_name(text: &str) -> Result<String, String> {
    let name = decoded(text)?;
    if name.len() > EXPORT_MAX { Err("its export's name is too long".into()) } else { Ok(name) }
}

/// `%41` is `A`.
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        rest = behind;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(code.filter(|code| *code != 0).ok_or("a '%' in it is not followed by two digits")?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".into())
}

/// The other way round, of what would mean something else in an URI.
fn encoded(text: &str) -> String {
    let mut all = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '%' | '?' | '&' => all.push_str(&format!("%{:02X}", letter as u32)),
            letter => all.push(letter),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nbd(address: NbdAddress, export: &str) -> Result<Source, SourceError> {
        Ok(Source::Nbd { address, export: export.into() })
    }

    #[test]
    fn disks_are_paths_or_uris() {
        assert_eq!("/dev/sdb".parse(), Ok(Source::Path("/dev/sdb".into())));
        assert_eq!("a:b".parse(), Ok(Source::Path("a:b".into())));
        assert_eq!("nbd://host".parse(), nbd(NbdAddress::Tcp("host".into(), 10809), ""));
        assert_eq!("nbd://host:7/a%20b/c".parse(), nbd(NbdAddress::Tcp("host".into(), 7), "a b/c"));
        assert_eq!("nbd://[::1]:7/x".parse(), nbd(NbdAddress::Tcp("::1".into(), 7), "x"));
        assert_eq!("nbd+unix:///x?socket=/run/s".parse(), nbd(NbdAddress::Unix("/run/s".into()), "x"));
    }

    #[test]
    fn what_names_no_disk_says_why() {
        for (text, why) in [
            ("", "empty"),
            ("nbd://", "no host"),
            ("nbd://host:x/", "'x' is no port"),
            ("nbd://[::1", "not closed"),
            ("nbd://[::1]7/", "']' ends its host"),
            ("nbd://host/x?y=1", "no parameters"),
            ("nbd+unix:///x", "no ?socket"),
            ("nbd+unix://host/x?socket=/s", "a host"),
            ("nbd+unix:///x?sock=/s", "socket=PATH"),
            ("nbd://host/%4", "two digits"),
            ("nbd://host/%00", "two digits"),
            ("nbds://host/x", "TLS"),
            ("nbd:unix:/socket", "QEMU"),
            ("nbd+vsock://1/x", "'nbd+vsock' is not supported"),
        ] {
            let error = text.parse::<Source>().unwrap_err();
            assert!(error.why.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_source_is_written_as_it_is_read() {
        for text in [
            "/dev/sdb",
            "nbd://host:7/x",
            "nbd://[::1]:7/x",
            "nbd+unix:///x?socket=/run/s",
            "nbd://host:7/50%25%3F",
            "nbd+unix:///x?socket=/a%26b/100%25",
        ] {
            assert_eq!(text.parse::<Source>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_path_is_found_from_anywhere_and_a_host_is_where_it_was() {
        for (text, expected) in [
            ("disk.img", "/a/disk.img"),
            ("./disk.img", "/a/disk.img"),
            ("/dev/disk/by-id/x", "/dev/disk/by-id/x"),
            ("nbd+unix:///x?socket=s", "nbd+unix:///x?socket=/a/s"),
            ("nbd://host:7/disk.img", "nbd://host:7/disk.img"),
        ] {
            let source: Source = text.parse().unwrap();
            assert_eq!(source.seen_from(Path::new("/a")).unwrap().to_string(), expected);
        }
    }
}
