//! Writes that the kernel carries out by itself: `io_uring(7)`.
//!
//! The kernel reads a write's memory until it has answered. So buffers are owned by the ring, in slots, from before they are
//! submitted until they have been answered for; and the ring is never dropped with a slot filled.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{IoUring, opcode, types};

use super::Carrier;
use crate::buffer::Buffer;
use crate::device::Device;
use crate::disk::Disk;
use crate::usual::Usual;

pub(super) struct Ring {
    ring: IoUring,
    /// Keeps the file open.
    device: Arc<dyn Device>,
    /// By slot: place, bytes, and how many of them have been written.
    slots: Vec<Option<(u64, Buffer, usize)>>,
    /// What failed before the kernel had it.
    refused: Vec<(usize, io::Error)>,
}

impl Ring {
    /// None where the disk is no file of the kernel, or the kernel has no rings for us.
    pub(super) fn new(disk: &Disk, depth: usize) -> Option<Ring> {
        disk.device().file()?;
        let ring = IoUring::new((depth as u32).next_power_of_two()).ok()?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe).ok()?;
        if !probe.is_supported(opcode::Write::CODE) {
            return None;
        }
        let slots = (0..depth).map(|_| None).collect();
        Some(Ring { ring, device: disk.device().clone(), slots, refused: Vec::new() })
    }

    /// Submits what is still to be written of a slot.
    fn submit(&mut self, slot: usize) {
        let (Some(file), Some((at, buffer, written))) = (self.device.file(), &self.slots[slot]) else {
            return;
        };
        let rest = &buffer[*written..];
        let entry = opcode::Write::new(types::Fd(file.as_raw_fd()), rest.as_ptr(), rest.len() as u32)
            .offset(at + *written as u64)
            .build()
            .user_data(slot as u64);
        // SAFETY: the entry's memory belongs to a buffer in `self.slots`, which neither moves its bytes nor is touched until
        // `wait` has seen the kernel's answer; its file is open as long as `self.device` is there; `Drop` waits for all answers.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // What the kernel cannot write without waiting it gives to threads of its own, which get our priority.
        let _usual = Usual::for_now();
        let submitted = match pushed {
            Ok(()) => loop {
                match self.ring.submit() {
                    Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted) => {}
                    // It is in the ring, and goes with what is submitted next: `wait` submits, too.
                    _ => break Ok(()),
                }
            },
            Err(full) => Err(io::Error::other(full)),
        };
        if let Err(error) = submitted {
            self.refused.push((slot, error));
        }
    }

    fn answered(&mut self) -> (usize, io::Result<usize>) {
        loop {
            if let Some((slot, error)) = self.refused.pop() {
                return (slot, Err(error));
            }
            if let Some(entry) = self.ring.completion().next() {
                let result = match entry.result() {
                    moved @ 0.. => Ok(moved as usize),
                    errno => Err(io::Error::from_raw_os_error(-errno)),
                };
                return (entry.user_data() as usize, result);
            }
            // Whatever goes wrong here, the kernel has our memory until it answers.
            let _ = self.ring.submit_and_wait(1);
        }
    }
}

impl Carrier for Ring {
    fn start(&mut self, slot: usize, at: u64, buffer: Buffer) {
        self.slots[slot] = Some((at, buffer, 0));
        self.submit(slot);
    }

    fn wait(&mut self) -> (usize, Buffer, io::Result<()>) {
        loop {
            let (slot, result) = self.answered();
            let Some((_, buffer, written)) = self.slots.get_mut(slot).and_then(Option::as_mut) else {
                continue;
            };
            let result = match result {
                Ok(0) if *written < buffer.len() => Err(io::ErrorKind::WriteZero.into()),
                Ok(moved) => {
                    *written += moved;
                    if *written < buffer.len() {
                        self.submit(slot);
                        continue;
                    }
                    Ok(())
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.submit(slot);
                    continue;
                }
                Err(error) => Err(error),
            };
            if let Some((_, buffer, _)) = self.slots[slot].take() {
                return (slot, buffer, result);
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.slots.iter().any(Option::is_some) {
            let _ = self.wait();
        }
    }
}
