//! Which names an operation takes.

use crate::{Error, NAME_MAX, RenameFlags, Result};

/// Checks a name's bytes: empty is [`Error::NotFound`], `/` or NUL in it [`Error::Invalid`], more than
/// [`NAME_MAX`] bytes [`Error::NameTooLong`].
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() {
        Err(Error::NotFound)
    } else if name.len() > NAME_MAX {
        Err(Error::NameTooLong)
    } else if has_byte(name, b'/') || has_byte(name, 0) {
        Err(Error::Invalid)
    } else {
        Ok(())
    }
}

/// Whether `wanted` is among `bytes`; looks at eight at a time, because every operation by name asks.
#[inline]
fn has_byte(bytes: &[u8], wanted: u8) -> bool {
    let has = |word: [u8; 8]| {
        let word = u64::from_ne_bytes(word) ^ u64::from_ne_bytes([wanted; 8]);
        word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080 != 0
    };
    // The last word overlaps the one before; a short name has none.
    match bytes.last_chunk::<8>() {
        Some(last) => bytes.as_chunks::<8>().0.iter().any(|word| has(*word)) || has(*last),
        None => bytes.contains(&wanted),
    }
}

/// Checks a name to be made: `.` and `..` exist.
pub fn check_new_name(name: &[u8]) -> Result<()> {
    check_name(name)?;
    if is_dots(name) { Err(Error::Exists) } else { Ok(()) }
}

/// Checks a name for `unlink`: `.` and `..` are directories.
pub fn check_unlink_name(name: &[u8]) -> Result<()> {
    check_name(name)?;
    if is_dots(name) { Err(Error::IsDirectory) } else { Ok(()) }
}

/// Checks a name for `rmdir`: `.` is [`Error::Invalid`], `..` is [`Error::NotEmpty`].
pub fn check_rmdir_name(name: &[u8]) -> Result<()> {
    check_name(name)?;
    match name {
        b"." => Err(Error::Invalid),
        b".." => Err(Error::NotEmpty),
        _ => Ok(()),
    }
}

/// Checks flags and names for `rename`: `.` and `..` are [`Error::Busy`] (as a target that may not be replaced,
/// [`Error::Exists`]); flags that contradict each other are [`Error::Invalid`].
pub fn check_rename_names(name: &[u8], new_name: &[u8], flags: RenameFlags) -> Result<()> {
    if flags.contains(RenameFlags::EXCHANGE)
        && flags.intersects(RenameFlags::NOREPLACE | RenameFlags::WHITEOUT)
    {
        return Err(Error::Invalid);
    }
    check_name(name)?;
    check_name(new_name)?;
    if is_dots(name) {
        Err(Error::Busy)
    } else if is_dots(new_name) {
        Err(if flags.contains(RenameFlags::NOREPLACE) { Error::Exists } else { Error::Busy })
    } else {
        Ok(())
    }
}

fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bytes_without_slash_and_nul() {
        assert_eq!(check_name(b""), Err(Error::NotFound));
        assert_eq!(check_name(b"a/b"), Err(Error::Invalid));
        assert_eq!(check_name(b"a\0"), Err(Error::Invalid));
        assert_eq!(check_name(&[b'x'; 256]), Err(Error::NameTooLong));
        assert_eq!(check_name(&[0xff; 255]), Ok(()));
        assert_eq!(check_name(b".."), Ok(()));
        for length in 1..40 {
            for (at, byte) in
                (0..length).flat_map(|at| [(at, 0), (at, b'/'), (at, 1), (at, b'.'), (at, 0x80)])
            {
                let mut name = vec![b'x'; length];
                name[at] = byte;
                assert_eq!(
                    check_name(&name).is_err(),
                    byte == 0 || byte == b'/',
                    "{byte} at {at} of {length}"
                );
            }
        }
    }

    #[test]
    fn dots_are_never_made_or_removed() {
        assert_eq!(check_new_name(b"."), Err(Error::Exists));
        assert_eq!(check_unlink_name(b".."), Err(Error::IsDirectory));
        assert_eq!(check_rmdir_name(b"."), Err(Error::Invalid));
        assert_eq!(check_rmdir_name(b".."), Err(Error::NotEmpty));
        let none = RenameFlags::empty();
        assert_eq!(check_rename_names(b".", b"a", none), Err(Error::Busy));
        assert_eq!(check_rename_names(b"a", b"..", none), Err(Error::Busy));
        assert_eq!(check_rename_names(b"a", b"..", RenameFlags::NOREPLACE), Err(Error::Exists));
        assert_eq!(check_rename_names(b"a", b"b", RenameFlags::all()), Err(Error::Invalid));
        assert_eq!(check_rename_names(b"a", b"...", none), Ok(()));
    }
}
