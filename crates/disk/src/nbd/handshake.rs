//! What client and server agree on before the first request.

use std::io::{self, Write};

use super::wire::{Stream, broken, receive_bytes, receive_u16, receive_u32, receive_u64};

const SERVER_MAGIC: u64 = 0x4e42_444d_4147_4943; // "NBDMAGIC"
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054; // "IHAVEOPT"
const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Of both sides' handshake flags.
const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;

const OPTION_EXPORT_NAME: u32 = 1;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REPLY_ERROR: u32 = 1 << 31;
const ERROR_UNSUPPORTED: u32 = REPLY_ERROR + 1;
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;
/// A reply to an option is short.
const REPLY_BYTES_MAX: u32 = 64 << 10;
/// No server has reason to send more replies to one option.
const REPLIES_MAX: usize = 64;

const HAS_FLAGS: u16 = 1;
const READ_ONLY: u16 = 1 << 1;
const SEND_FLUSH: u16 = 1 << 2;
const SEND_FUA: u16 = 1 << 3;

/// What every server takes that says nothing else, bytes.
const REQUEST_DEFAULT: u32 = 32 << 20;

/// What the server exports.
pub(super) struct Export {
    pub(super) bytes: u64,
    /// Power of two from 512 on.
    pub(super) sector: u32,
    /// Whole sectors.
    pub(super) request_max: u32,
    pub(super) read_only: bool,
    pub(super) flush: bool,
    pub(super) fua: bool,
}

impl Export {
    pub(super) fn new(bytes: u64, flags: u16) -> Export {
        let has = |flag| flags & HAS_FLAGS != 0 && flags & flag != 0;
        Export {
            bytes,
            sector: 512,
            request_max: REQUEST_DEFAULT,
            read_only: has(READ_ONLY),
            flush: has(SEND_FLUSH),
            fua: has(SEND_FUA),
        }
    }
}

pub(super) fn negotiate(stream: &mut Stream, name: &str) -> io::Result<Export> {
    if receive_u64(stream)? != SERVER_MAGIC {
        return Err(broken("it does not greet like an NBD server"));
    }
    match receive_u64(stream)? {
        OPTION_MAGIC => {}
        OLDSTYLE_MAGIC => return Err(io::Error::other("the server speaks the oldstyle protocol only")),
        magic => return Err(broken(format_args!("it greets with {magic:#x}"))),
    }
    let flags = receive_u16(stream)?;
    if flags & FIXED_NEWSTYLE == 0 {
        return Err(io::Error::other("the server does not speak the fixed newstyle protocol"));
    }
    let flags = flags & (FIXED_NEWSTYLE | NO_ZEROES);
    stream.write_all(&u32::from(flags).to_be_bytes())?;
    match go(stream, name)? {
        Some(export) => Ok(export),
        None => export_name(stream, name, flags & NO_ZEROES != 0),
    }
}

fn send_option(stream: &mut Stream, option: u32, data: &[u8]) -> io::Result<()> {
    let mut message = OPTION_MAGIC.to_be_bytes().to_vec();
    message.extend_from_slice(&option.to_be_bytes());
    message.extend_from_slice(&(data.len() as u32).to_be_bytes());
    message.extend_from_slice(data);
    stream.write_all(&message)
}

/// Asks for the export and its limits. Nothing if the server does not know how to be asked so.
fn go(stream: &mut Stream, name: &str) -> io::Result<Option<Export>> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&1u16.to_be_bytes());
    data.extend_from_slice(&INFO_BLOCK_SIZE.to_be_bytes());
    send_option(stream, OPTION_GO, &data)?;
    let (mut size, mut limits) = (None, None);
    for _ in 0..REPLIES_MAX {
        let (kind, data) = option_reply(stream, OPTION_GO)?;
        let number =
            |at: usize| data.get(at..at + 4).and_then(|part| part.try_into().ok()).map(u32::from_be_bytes);
        match kind {
            REPLY_ACK => {
                let (bytes, flags) = size.ok_or_else(|| broken("it names no size"))?;
                return with_limits(Export::new(bytes, flags), limits).map(Some);
            }
            REPLY_INFO => match data.first_chunk().map(|kind| u16::from_be_bytes(*kind)) {
                Some(INFO_EXPORT) if data.len() == 12 => {
                    let (high, low) = (number(2).unwrap_or(0), number(6).unwrap_or(0));
                    let flags = u16::from_be_bytes([data[10], data[11]]);
                    size = Some((u64::from(high) << 32 | u64::from(low), flags));
                }
                Some(INFO_BLOCK_SIZE) if data.len() == 14 => limits = number(2).zip(number(10)),
                Some(INFO_EXPORT | INFO_BLOCK_SIZE) | None => {
                    return Err(broken("an information of wrong length"));
                }
                Some(_) => {}
            },
            ERROR_UNSUPPORTED => return Ok(None),
            kind if kind & REPLY_ERROR != 0 => return Err(refusal(kind, name, &data)),
            kind => return Err(broken(format_args!("reply {kind} to an option"))),
        }
    }
    Err(broken("it does not come to an end of its replies"))
}

fn with_limits(mut export: Export, limits: Option<(u32, u32)>) -> io::Result<Export> {
    let Some((least, most)) = limits else { return Ok(export) };
    if !least.is_power_of_two() || least > 65536 || most < least.max(512) {
        return Err(broken(format_args!("requests of {least} to {most} bytes")));
    }
    export.sector = least.max(512);
    let most = most.min(REQUEST_DEFAULT);
    export.request_max = most - most % export.sector;
    if export.request_max == 0 {
        return Err(broken(format_args!("requests of {least} to {most} bytes")));
    }
    Ok(export)
}

fn option_reply(stream: &mut Stream, option: u32) -> io::Result<(u32, Vec<u8>)> {
    let magic = receive_u64(stream)?;
    let (about, kind, length) = (receive_u32(stream)?, receive_u32(stream)?, receive_u32(stream)?);
    if magic != OPTION_REPLY_MAGIC || about != option || length > REPLY_BYTES_MAX {
        return Err(broken("a reply to another option, or too long a one"));
    }
    Ok((kind, receive_bytes(stream, length as usize)?))
}

fn refusal(kind: u32, name: &str, text: &[u8]) -> io::Error {
    let why = match kind - REPLY_ERROR {
        2 => "it is not allowed".into(),
        5 => "the server wants TLS, which is not supported".into(),
        6 => format!("the server has no export '{name}'"),
        7 => "the server shuts down".into(),
        number => format!("the server refuses with error {number}"),
    };
    let text = String::from_utf8_lossy(text);
    let text: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
    io::Error::other(if text.is_empty() { why } else { format!("{why} ({text})") })
}

/// The way of older servers: no limits, and no words if the export is not there.
fn export_name(stream: &mut Stream, name: &str, no_zeroes: bool) -> io::Result<Export> {
    send_option(stream, OPTION_EXPORT_NAME, name.as_bytes())?;
    let bytes = receive_u64(stream).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::other(format!("the server has no export '{name}'")),
        _ => error,
    })?;
    let flags = receive_u16(stream)?;
    if !no_zeroes {
        receive_bytes(stream, 124)?;
    }
    Ok(Export::new(bytes, flags))
}
