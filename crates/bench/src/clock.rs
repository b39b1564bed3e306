//! CPU time: of this process, of the one that serves a mount, and of the machine.

use rustix::time::{ClockId, clock_gettime};

/// CPU time of all threads of this process, nanoseconds: in user and in kernel mode.
pub(crate) fn process_ns() -> u64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// CPU time of the living threads of another process, nanoseconds. `None` if it is gone, or the kernel does not count.
pub(crate) fn server_ns(pid: u32) -> Option<u64> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let of = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    threads.flatten().map(of).reduce(|sum, thread| Some(sum? + thread.unwrap_or(0)))?
}

/// CPU time of this process's children that have ended and been waited for, nanoseconds: in ticks of 10 ms.
pub(crate) fn children_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The program's name, in brackets, may have blanks. Behind it, cutime and cstime are the 14th and 15th.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 =
        fields.split_whitespace().skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second()
}

/// CPU time of all that the machine does, kernel threads and interrupts included, nanoseconds: in ticks of 10 ms, summed
/// over processors.
pub(crate) fn machine_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    busy_ticks(&text) * 1_000_000_000 / rustix::param::clock_ticks_per_second()
}

/// Ticks that are neither idle nor waiting for a device, nor another machine's. What guests take is in what users take.
fn busy_ticks(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    let (user, nice, system, interrupts, soft) = (0, 1, 2, 5, 6);
    [user, nice, system, interrupts, soft].iter().filter_map(|field| ticks.get(*field)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_works_takes_time_by_both_clocks() {
        let (own, same) = (process_ns(), server_ns(std::process::id()).unwrap());
        let mut sum = 0u64;
        while process_ns() - own < 50_000_000 {
            sum = std::hint::black_box(sum.wrapping_mul(3).wrapping_add(1));
        }
        let took = server_ns(std::process::id()).unwrap().saturating_sub(same);
        assert!(took > 25_000_000, "{took} of 50 ms");
        assert!(server_ns(u32::MAX).is_none());
    }

    #[test]
    fn the_machine_works_when_it_is_not_idle() {
        assert_eq!(
            busy_ticks("cpu  10 2 30 4000 500 6 70 8 9 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"),
            10 + 2 + 30 + 6 + 70
        );
        assert_eq!(busy_ticks(""), 0);
        assert!(machine_ns() > 0);
    }
}
