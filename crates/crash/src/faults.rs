//! Planted faults of persistence: a flush, a fence or an order that somebody forgot.
//!
//! They change a recording, not the volume: the states of the changed recording are those that the volume would leave
//! if it did not do that one thing. The explorer has to find them.

use std::fmt;

use nvm::{Event, EventKind, LINE, Recording};

use crate::lab::OPENED;

/// One thing that is not done, or not in time. Numbers are indices of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaFault {
    /// This flush is left out.
    Flush(usize),
    /// This fence is left out.
    Fence(usize),
    /// This sync of the disk is left out.
    Sync(usize),
    /// This non-temporal store is an ordinary one, and nobody flushes it.
    Stream(usize),
    /// This flush or non-temporal store forgets its last line.
    Short(usize),
    /// What this fence makes durable is stored, flushed and fenced after what the next one makes durable.
    Swap(usize),
}

impl MediaFault {
    /// All faults that can be planted in a recording, after the volume was opened.
    pub fn all(recording: &Recording) -> Vec<MediaFault> {
        let mut all = Vec::new();
        let events = &recording.events;
        let first = opened(recording);
        for (index, event) in events.iter().enumerate().skip(first) {
            match event.kind {
                EventKind::Flush if event.length > 0 => all.push(MediaFault::Flush(index)),
                EventKind::Stream | EventKind::StreamZero => all.push(MediaFault::Stream(index)),
                EventKind::DiskSync => all.push(MediaFault::Sync(index)),
                EventKind::Fence => {
                    all.push(MediaFault::Fence(index));
                    if second_fence(events, index).is_some() {
                        all.push(MediaFault::Swap(index));
                    }
                }
                _ => {}
            }
            let sends = matches!(event.kind, EventKind::Flush | EventKind::Stream);
            if sends && event.address / LINE != (event.address + event.length).saturating_sub(1) / LINE {
                all.push(MediaFault::Short(index));
            }
        }
        all
    }

    /// The event that the fault is about.
    pub fn event(self) -> usize {
        match self {
            MediaFault::Flush(at)
            | MediaFault::Fence(at)
            | MediaFault::Sync(at)
            | MediaFault::Stream(at)
            | MediaFault::Short(at)
            | MediaFault::Swap(at) => at,
        }
    }

    /// Plants it.
    pub fn plant(self, recording: &mut Recording) {
        let first = opened(recording);
        let events = &mut recording.events;
        match self {
            MediaFault::Flush(at) | MediaFault::Fence(at) | MediaFault::Sync(at) => drop(events.remove(at)),
            MediaFault::Stream(at) => events[at].kind = unsent(events[at].kind),
            MediaFault::Short(at) => {
                let event = events[at];
                let cut = (event.address + event.length - 1) / LINE * LINE - event.address;
                events[at].length = cut;
                if event.kind == EventKind::Stream {
                    let rest = Event {
                        kind: EventKind::Store,
                        address: event.address + cut,
                        length: event.length - cut,
                        bytes_at: event.bytes_at.map(|bytes| bytes + cut),
                        ..event
                    };
                    events.insert(at + 1, rest);
                }
            }
            MediaFault::Swap(at) => {
                let Some(end) = second_fence(events, at) else { return };
                let begin = events[first..at].iter().rposition(ends_epoch).map_or(first, |n| first + n + 1);
                events[begin..=end].rotate_left(at + 1 - begin);
            }
        }
    }
}

impl fmt::Display for MediaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MediaFault::Flush(_) => "no flush",
            MediaFault::Fence(_) => "no fence",
            MediaFault::Sync(_) => "no sync of the disk",
            MediaFault::Stream(_) => "not streamed",
            MediaFault::Short(_) => "last line not sent",
            MediaFault::Swap(_) => "order swapped",
        })
    }
}

fn ends_epoch(event: &Event) -> bool {
    matches!(event.kind, EventKind::Fence | EventKind::Mark)
}

/// The fence after the one at `at`, if no operation returns in between.
fn second_fence(events: &[Event], at: usize) -> Option<usize> {
    let next = events[at + 1..].iter().position(ends_epoch)? + at + 1;
    (events[next].kind == EventKind::Fence && next > at + 1).then_some(next)
}

fn unsent(kind: EventKind) -> EventKind {
    match kind {
        EventKind::Stream => EventKind::Store,
        EventKind::StreamZero => EventKind::Zero,
        other => other,
    }
}

/// The first event after the volume was opened.
fn opened(recording: &Recording) -> usize {
    let opened = |event: &Event| event.kind == EventKind::Mark && recording.operation_of(event) == OPENED;
    recording.events.iter().position(opened).map_or(0, |at| at + 1)
}
