//! One message from the kernel, wherever it came from, and the answer to it.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::RwLockReadGuard;

use rustix::io::Errno;
use vfs::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::abi::{InHeader, Opcode, OutHeader};

/// A message: what every one begins with, the arguments of its kind, and names or data.
pub(crate) struct Message<'a> {
    pub(crate) header: InHeader,
    arguments: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// As it is read from `/dev/fuse`, in one piece. `None` if that is not one whole message.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Message<'a>> {
        let (header, rest) = InHeader::read_from_prefix(bytes).ok()?;
        if header.len as usize != bytes.len() {
            return None;
        }
        let arguments = Opcode::of(header.opcode).map_or(0, Opcode::arguments);
        let (arguments, payload) = rest.split_at_checked(arguments)?;
        Some(Message { header, arguments, payload })
    }

    /// As a ring has it, in three.
    pub(crate) fn of_parts(header: InHeader, arguments: &'a [u8], payload: &'a [u8]) -> Message<'a> {
        Message { header, arguments, payload }
    }

    /// The inode that the message is about.
    pub(crate) fn ino(&self) -> vfs::Ino {
        self.header.nodeid
    }

    pub(crate) fn arguments<T: FromBytes>(&self) -> Result<T, Error> {
        T::read_from_prefix(self.arguments).map(|(arguments, _)| arguments).map_err(|_| Error::Invalid)
    }

    /// What follows the arguments: names, each with a zero behind it, or data.
    pub(crate) fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The name that follows the arguments.
    pub(crate) fn name(&self) -> Result<&'a [u8], Error> {
        split_name(self.payload).map(|(name, _)| name)
    }

    /// The two names that follow the arguments.
    pub(crate) fn names(&self) -> Result<(&'a [u8], &'a [u8]), Error> {
        let (first, rest) = split_name(self.payload)?;
        Ok((first, split_name(rest)?.0))
    }

    /// A name, and as many bytes of data behind it.
    pub(crate) fn name_and_data(&self, len: usize) -> Result<(&'a [u8], &'a [u8]), Error> {
        let (name, rest) = split_name(self.payload)?;
        Ok((name, rest.get(..len).ok_or(Error::Invalid)?))
    }
}

fn split_name(bytes: &[u8]) -> Result<(&[u8], &[u8]), Error> {
    let end = bytes.iter().position(|&byte| byte == 0).ok_or(Error::Invalid)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

/// Where an answer goes.
pub(crate) trait Answerer {
    /// Sends an answer of these `parts`, which together are what the kernel expects after the header.
    fn send(&mut self, header: OutHeader, parts: &[&[u8]]) -> io::Result<()>;

    /// The answer that was sent was wrong: this error is right. Nothing happens if the kernel has it already.
    fn take_back(&mut self, error: OutHeader);
}

/// By writing it to `/dev/fuse`.
impl<D: AsFd> Answerer for &D {
    fn send(&mut self, header: OutHeader, parts: &[&[u8]]) -> io::Result<()> {
        let mut slices = [IoSlice::new(&[]); 4];
        slices[0] = IoSlice::new(header.as_bytes());
        for (slice, part) in slices[1..].iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        match rustix::io::writev(*self, &slices[..1 + parts.len()]) {
            // The request was given up, or the mount is gone: nobody waits for this.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The kernel has copied the bytes itself; where it could not read them, that was the error.
    fn take_back(&mut self, _: OutHeader) {}
}

/// What a handler gave. To be kept until the answer is given: what that says is true until then. (Over a ring the kernel reads it a
/// little later. An entry that it tells of is among `inodes` before, so who exchanges the tree waits for the kernel to let go of it;
/// of the root directory, what is told late is older in the kernel's eyes than the invalidation that follows an exchange.)
pub(crate) struct Handled<'a, T> {
    pub(crate) result: std::result::Result<T, Errno>,
    _serving: RwLockReadGuard<'a, ()>,
}

impl<'a, T> Handled<'a, T> {
    pub(crate) fn new(
        result: std::result::Result<T, Errno>,
        serving: RwLockReadGuard<'a, ()>,
    ) -> Handled<'a, T> {
        Handled { result, _serving: serving }
    }
}

/// The answer that one message is owed. It can be given once.
pub(crate) struct Reply<'a> {
    unique: u64,
    to: &'a mut dyn Answerer,
    given: bool,
}

impl<'a> Reply<'a> {
    pub(crate) fn new(message: &Message<'_>, to: &'a mut dyn Answerer) -> Reply<'a> {
        Reply { unique: message.header.unique, to, given: false }
    }

    /// What was handled: a message, `()` for one without words, or the error.
    pub(crate) fn answer<T: IntoBytes + Immutable>(self, handled: Handled<'_, T>) {
        match &handled.result {
            Ok(answer) => self.data(answer.as_bytes()),
            Err(errno) => self.error(*errno),
        }
    }

    /// Bytes of whatever length.
    pub(crate) fn data(self, bytes: &[u8]) {
        self.parts(&[bytes]);
    }

    /// At most three pieces, one after the other.
    pub(crate) fn parts(mut self, parts: &[&[u8]]) {
        self.send(parts);
    }

    /// Bytes that are the answer if what they come from succeeds to its end, as [`Reply::conclude`] then says.
    pub(crate) fn provisionally(&mut self, bytes: &[u8]) {
        self.send(&[bytes]);
        self.given = true;
    }

    /// `otherwise` is the answer if none was given.
    pub(crate) fn conclude(self, result: Result<(), Errno>, otherwise: &[u8]) {
        match (result, self.given) {
            (Ok(()), true) => {}
            (Ok(()), false) => self.data(otherwise),
            (Err(errno), true) => self.to.take_back(self.error_header(errno)),
            (Err(errno), false) => self.error(errno),
        }
    }

    pub(crate) fn error(self, errno: Errno) {
        if let Err(error) = self.to.send(self.error_header(errno), &[]) {
            tracing::error!("the kernel did not take an answer: {error}");
        }
    }

    fn send(&mut self, parts: &[&[u8]]) {
        let len = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = OutHeader { len: len as u32, error: 0, unique: self.unique };
        if let Err(error) = self.to.send(header, parts) {
            tracing::error!("the kernel did not take an answer of {len} bytes: {error}");
            if error.raw_os_error() == Some(Errno::FAULT.raw_os_error()) {
                parts.iter().for_each(|part| touch(part));
            }
            let _ = self.to.send(self.error_header(Errno::IO), &[]); // somebody waits
        }
    }

    fn error_header(&self, errno: Errno) -> OutHeader {
        let len = size_of::<OutHeader>() as u32;
        OutHeader { len, error: -errno.raw_os_error(), unique: self.unique }
    }
}

/// Looks at each page of what the kernel could not read, so that whoever has lent it learns of it: the medium may have failed there, and the
/// kernel tells this only to who reads himself.
fn touch(bytes: &[u8]) {
    const PAGE: usize = 4096;
    for byte in bytes.iter().step_by(PAGE).chain(bytes.last()) {
        std::hint::black_box(*byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{MkdirIn, RenameIn};

    fn bytes(opcode: u32, arguments: &[u8], payload: &[u8]) -> Vec<u8> {
        let len = size_of::<InHeader>() + arguments.len() + payload.len();
        let header = InHeader { len: len as u32, opcode, unique: 7, nodeid: 1, ..InHeader::default() };
        [header.as_bytes(), arguments, payload].concat()
    }

    #[test]
    fn arguments_and_names_are_told_apart() {
        let mkdir = bytes(9, MkdirIn { mode: 0o755, umask: 0o22 }.as_bytes(), b"name\0");
        let message = Message::parse(&mkdir).unwrap();
        assert_eq!(message.arguments::<MkdirIn>().unwrap().mode, 0o755);
        assert_eq!(message.name().unwrap(), b"name");
        let rename = bytes(12, RenameIn { newdir: 3 }.as_bytes(), b"from\0to\0");
        assert_eq!(Message::parse(&rename).unwrap().names().unwrap(), (&b"from"[..], &b"to"[..]));
    }

    #[test]
    fn what_is_not_whole_is_refused() {
        let mkdir = bytes(9, MkdirIn::default().as_bytes(), b"name\0");
        assert!(Message::parse(&mkdir[..mkdir.len() - 1]).is_none());
        assert!(Message::parse(&mkdir[..20]).is_none());
        assert!(Message::parse(&bytes(9, &[0; 4], b"")).is_none(), "arguments cut short");
        let endless = bytes(10, &[], b"name");
        assert_eq!(Message::parse(&endless).unwrap().name(), Err(Error::Invalid));
        let one = bytes(6, &[], b"name\0");
        assert_eq!(Message::parse(&one).unwrap().names(), Err(Error::Invalid));
    }

    #[test]
    fn an_answer_is_header_and_parts() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let unlink = bytes(10, &[], b"name\0");
        let message = Message::parse(&unlink).unwrap();
        Reply::new(&message, &mut &writer).parts(&[b"ab", b"c"]);
        Reply::new(&message, &mut &writer).error(Errno::NOENT);
        drop(writer);
        let mut answers = Vec::new();
        io::Read::read_to_end(&mut std::fs::File::from(reader), &mut answers).unwrap();
        let first = OutHeader { len: 19, error: 0, unique: 7 };
        let second = OutHeader { len: 16, error: -2, unique: 7 };
        assert_eq!(answers, [first.as_bytes(), b"abc", second.as_bytes()].concat());
    }

    #[test]
    fn what_was_given_provisionally_is_final_where_the_kernel_has_it() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let read = bytes(15, &[0; 40], b"");
        let message = Message::parse(&read).unwrap();
        let mut device = &writer;
        let mut reply = Reply::new(&message, &mut device);
        reply.provisionally(b"abc");
        reply.conclude(Err(Errno::IO), b"");
        Reply::new(&message, &mut device).conclude(Ok(()), b"d");
        drop(writer);
        let mut answers = Vec::new();
        io::Read::read_to_end(&mut std::fs::File::from(reader), &mut answers).unwrap();
        let header = |len| OutHeader { len, error: 0, unique: 7 };
        assert_eq!(answers, [header(19).as_bytes(), b"abc", header(17).as_bytes(), b"d"].concat());
    }
}
