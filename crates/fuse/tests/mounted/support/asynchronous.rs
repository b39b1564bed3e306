//! Linux's asynchronous I/O (`io_submit(2)`), of which no library here knows.
#![allow(unsafe_code, reason = "the kernel is asked directly")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `struct iocb` and `struct io_event` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Default)]
struct Control {
    token: u64,
    key: u32,
    flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: [u64; 2],
}

#[repr(C)]
#[derive(Default)]
struct Event {
    token: u64,
    control: u64,
    result: i64,
    more: i64,
}

const WRITE: u16 = 1;

fn checked(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// What has writes under way, of which one at a time is waited for here.
pub struct Context(u64);

impl Context {
    pub fn new() -> io::Result<Context> {
        let mut context = 0u64;
        // SAFETY: the kernel writes a number of this size there.
        checked(unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) })?;
        Ok(Context(context))
    }

    /// Writes `bytes` at the beginning of `file`, as programs do that don't wait for each write.
    pub fn write(&self, file: &File, bytes: &[u8]) -> io::Result<usize> {
        let mut control = Control {
            opcode: WRITE,
            file: file.as_raw_fd() as u32,
            buffer: bytes.as_ptr() as u64,
            len: bytes.len() as u64,
            ..Control::default()
        };
        let mut controls = [&raw mut control];
        let mut event = Event::default();
        // SAFETY: all that the kernel is told of lives until the second call has succeeded, when the write is done.
        unsafe {
            checked(libc::syscall(libc::SYS_io_submit, self.0, 1, controls.as_mut_ptr()))?;
            loop {
                let none = std::ptr::null::<libc::timespec>();
                match checked(libc::syscall(libc::SYS_io_getevents, self.0, 1, 1, &raw mut event, none)) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    done => {
                        done?;
                        break;
                    }
                }
            }
        }
        usize::try_from(event.result).map_err(|_| io::Error::from_raw_os_error(-event.result as i32))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `new` has made it, and nothing is under way.
        let _ = unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}
