//! fio's external engine for a volume in process: no mount, no system calls.
//!
//! ```text
//! fio --name=j --ioengine=external:/path/to/libamberfs_fio.so --thread --zone=/dev/shm/zone --volume=home \
//!     --rw=randwrite --bs=4k --size=256M --verify=crc32c
//! ```
//!
//! All jobs of a run work on one volume, as threads of fio (`thread=1`): a zone has one writer. The volume is mounted
//! when the first job begins and closed when the last has ended. Files are made if they are not there, with the
//! directories that lead to them, and written throughout before a run begins.
//!
//! The `engine` is safe code; `hooks` are what fio calls, and translate; `abi` is what both sides agree on.
#![deny(unsafe_code)]

mod abi;
mod engine;
#[allow(unsafe_code)]
mod hooks;
