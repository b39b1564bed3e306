//! The processor's side of persistence: flushes, non-temporal stores, the fence, and the clock that
//! emulated latencies spin on.
//!
//! One of the three files of this crate that may use `unsafe`. Everything else calls these functions
//! through [`crate::mapping::Window`], which range-checks first.

use core::arch::asm;
use core::arch::x86_64::*;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Instant;

use crate::LINE;

#[cfg(not(target_arch = "x86_64"))]
compile_error!(
    "amberfs-nvm persists with x86-64 instructions; another architecture needs its own persist.rs"
);

/// How lines leave the processor's caches for the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PersistMethod {
    /// `CLWB`: writes a line back and may keep it cached. The best of the three.
    Clwb,
    /// `CLFLUSHOPT`: writes a line back and evicts it; flushes of different lines overlap.
    Clflushopt,
    /// `CLFLUSH`: writes a line back and evicts it, one line after another. Every x86-64 has it.
    Clflush,
    /// `msync(2)`: the zone is a plain file and the kernel's page cache stands before the medium.
    Msync,
}

impl PersistMethod {
    /// The best flush instruction of this processor.
    pub fn best() -> PersistMethod {
        static BEST: OnceLock<PersistMethod> = OnceLock::new();
        *BEST.get_or_init(|| {
            [PersistMethod::Clwb, PersistMethod::Clflushopt]
                .into_iter()
                .find(|method| method.supported())
                .unwrap_or(PersistMethod::Clflush)
        })
    }

    /// Whether this processor can do it.
    pub fn supported(self) -> bool {
        let leaf7 = || {
            if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 }
        };
        match self {
            PersistMethod::Clwb => leaf7() & (1 << 24) != 0,
            PersistMethod::Clflushopt => leaf7() & (1 << 23) != 0,
            PersistMethod::Clflush | PersistMethod::Msync => true,
        }
    }
}

impl std::fmt::Display for PersistMethod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PersistMethod::Clwb => "clwb",
            PersistMethod::Clflushopt => "clflushopt",
            PersistMethod::Clflush => "clflush",
            PersistMethod::Msync => "msync",
        })
    }
}

impl FromStr for PersistMethod {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "clwb" => Ok(PersistMethod::Clwb),
            "clflushopt" => Ok(PersistMethod::Clflushopt),
            "clflush" => Ok(PersistMethod::Clflush),
            "msync" => Ok(PersistMethod::Msync),
            _ => Err(format!("no persist method {name:?}: choose clwb, clflushopt, clflush or msync")),
        }
    }
}

/// Flushes every line of `[from, from + len)`.
///
/// # Safety
/// The range must be mapped, and the processor must support `method`.
#[inline]
pub(crate) unsafe fn flush_lines(method: PersistMethod, from: *const u8, len: usize) {
    if len == 0 {
        return;
    }
    let mut line = from as usize & !(LINE as usize - 1);
    let end = from as usize + len;
    match method {
        PersistMethod::Clwb => {
            while line < end {
                // SAFETY: the line is mapped and CLWB exists, says the caller; it changes no memory.
                unsafe { asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) };
                line += LINE as usize;
            }
        }
        PersistMethod::Clflushopt => {
            while line < end {
                // SAFETY: the line is mapped and CLFLUSHOPT exists, says the caller.
                unsafe { asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)) };
                line += LINE as usize;
            }
        }
        PersistMethod::Clflush => {
            while line < end {
                // SAFETY: the line is mapped, says the caller; SSE2 and CLFLUSH are x86-64's baseline.
                unsafe { _mm_clflush(line as *const u8) };
                line += LINE as usize;
            }
        }
        PersistMethod::Msync => {}
    }
}

/// Waits until this thread's flushes and non-temporal stores have reached the persistence domain.
#[inline]
pub(crate) fn fence() {
    // SAFETY: SFENCE is x86-64's baseline and touches no memory.
    unsafe { _mm_sfence() };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Width {
    Avx512,
    Avx2,
    Sse2,
}

#[inline]
fn width() -> Width {
    // `is_x86_feature_detected!` caches its answer in an atomic: a load and a test from then on.
    if is_x86_feature_detected!("avx512f") {
        Width::Avx512
    } else if is_x86_feature_detected!("avx2") {
        Width::Avx2
    } else {
        Width::Sse2
    }
}

/// Copies whole lines with non-temporal stores.
///
/// # Safety
/// `to` must be line-aligned; both ranges of `len` bytes (a multiple of 64) must be mapped, `to` for
/// writing, and must not overlap.
#[inline]
pub(crate) unsafe fn stream_lines(to: *mut u8, from: *const u8, len: usize) {
    debug_assert!((to as usize).is_multiple_of(LINE as usize) && len.is_multiple_of(LINE as usize));
    // SAFETY: forwarded from the caller; `width` says that the instructions exist.
    unsafe {
        match width() {
            Width::Avx512 => stream_avx512(to, from, len),
            Width::Avx2 => stream_avx2(to, from, len),
            Width::Sse2 => stream_sse2(to, from, len),
        }
    }
}

/// Copies bytes from the medium to ordinary memory.
///
/// # Safety
/// Both ranges of `len` bytes must be mapped, `to` for writing, and must not overlap.
#[inline]
pub(crate) unsafe fn copy_out(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: forwarded from the caller; `width` says that the instructions exist.
    unsafe {
        if len.is_multiple_of(PAGE) && len > 0 && width() == Width::Avx512 {
            copy_pages_avx512(to, from, len);
        } else {
            std::ptr::copy_nonoverlapping(from, to, len);
        }
    }
}

/// Bytes that one hardware prefetcher's stream covers.
const PAGE: usize = 4096;
/// Lines of a page that are asked for before the first is copied. Fewer than 16 gained nothing where it was measured.
const AHEAD: usize = 16;

/// # Safety
/// As [`copy_out`], with whole pages, on a processor with AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn copy_pages_avx512(to: *mut u8, from: *const u8, len: usize) {
    for page in (0..len).step_by(PAGE) {
        // A copy that nothing before overlaps with begins all its misses at once, rather than as its loads come up.
        for line in 0..AHEAD {
            // SAFETY: SSE is x86-64's baseline; a prefetch changes no memory and never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.add(page + line * 64).cast()) };
        }
        for at in (page..page + PAGE).step_by(64) {
            // SAFETY: `at + 64 <= len`, as `len` is a multiple of PAGE.
            unsafe { _mm512_storeu_si512(to.add(at).cast(), _mm512_loadu_si512(from.add(at).cast())) };
        }
    }
}

/// Zeroes whole lines with non-temporal stores.
///
/// # Safety
/// `to` must be line-aligned and its `len` bytes (a multiple of 64) mapped for writing.
#[inline]
pub(crate) unsafe fn stream_zero_lines(to: *mut u8, len: usize) {
    debug_assert!((to as usize).is_multiple_of(LINE as usize) && len.is_multiple_of(LINE as usize));
    // SAFETY: forwarded from the caller; `width` says that the instructions exist.
    unsafe {
        match width() {
            Width::Avx512 => zero_avx512(to, len),
            Width::Avx2 | Width::Sse2 => zero_sse2(to, len),
        }
    }
}

/// # Safety
/// As [`stream_lines`], on a processor with AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn stream_avx512(to: *mut u8, from: *const u8, len: usize) {
    let mut at = 0;
    // Four lines a turn: the loads of a turn overlap before its stores queue up.
    while at + 256 <= len {
        // SAFETY: `at + 256 <= len` keeps all eight accesses inside the caller's ranges.
        unsafe {
            let a = _mm512_loadu_si512(from.add(at).cast());
            let b = _mm512_loadu_si512(from.add(at + 64).cast());
            let c = _mm512_loadu_si512(from.add(at + 128).cast());
            let d = _mm512_loadu_si512(from.add(at + 192).cast());
            _mm512_stream_si512(to.add(at).cast(), a);
            _mm512_stream_si512(to.add(at + 64).cast(), b);
            _mm512_stream_si512(to.add(at + 128).cast(), c);
            _mm512_stream_si512(to.add(at + 192).cast(), d);
        }
        at += 256;
    }
    while at < len {
        // SAFETY: `len` is a multiple of 64, so `at + 64 <= len`.
        unsafe { _mm512_stream_si512(to.add(at).cast(), _mm512_loadu_si512(from.add(at).cast())) };
        at += 64;
    }
}

/// # Safety
/// As [`stream_lines`], on a processor with AVX2.
#[target_feature(enable = "avx2")]
unsafe fn stream_avx2(to: *mut u8, from: *const u8, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: `len` is a multiple of 64, so both halves of the line are inside the caller's ranges.
        unsafe {
            let a = _mm256_loadu_si256(from.add(at).cast());
            let b = _mm256_loadu_si256(from.add(at + 32).cast());
            _mm256_stream_si256(to.add(at).cast(), a);
            _mm256_stream_si256(to.add(at + 32).cast(), b);
        }
        at += 64;
    }
}

/// # Safety
/// As [`stream_lines`].
unsafe fn stream_sse2(to: *mut u8, from: *const u8, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: `len` is a multiple of 64, hence of 16.
        unsafe { _mm_stream_si128(to.add(at).cast(), _mm_loadu_si128(from.add(at).cast())) };
        at += 16;
    }
}

/// # Safety
/// As [`stream_zero_lines`], on a processor with AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn zero_avx512(to: *mut u8, len: usize) {
    let zero = _mm512_setzero_si512();
    let mut at = 0;
    while at < len {
        // SAFETY: `len` is a multiple of 64, so `at + 64 <= len`.
        unsafe { _mm512_stream_si512(to.add(at).cast(), zero) };
        at += 64;
    }
}

/// # Safety
/// As [`stream_zero_lines`].
unsafe fn zero_sse2(to: *mut u8, len: usize) {
    // SAFETY: SSE2 is x86-64's baseline.
    let zero = unsafe { _mm_setzero_si128() };
    let mut at = 0;
    while at < len {
        // SAFETY: `len` is a multiple of 64, hence of 16.
        unsafe { _mm_stream_si128(to.add(at).cast(), zero) };
        at += 16;
    }
}

/// The time stamp counter, in cycles.
#[inline]
pub(crate) fn cycles() -> u64 {
    // SAFETY: RDTSC is x86-64's baseline and touches no memory.
    unsafe { _rdtsc() }
}

/// Cycles of the time stamp counter in one microsecond, measured once against the system's clock.
pub(crate) fn cycles_per_us() -> u64 {
    static RATE: OnceLock<u64> = OnceLock::new();
    *RATE.get_or_init(|| {
        // Who is interrupted between the two looks at either end counts too many cycles, never too few: an emulated
        // device is at least as slow as it should be.
        let (before, clock) = (cycles(), Instant::now());
        while clock.elapsed().as_micros() < 5_000 {
            std::hint::spin_loop();
        }
        let (elapsed_ns, after) = (clock.elapsed().as_nanos() as u64, cycles());
        ((after - before) * 1_000 / elapsed_ns.max(1)).max(1)
    })
}

/// Spins for so many cycles.
pub(crate) fn spin(duration_cycles: u64) {
    let start = cycles();
    while cycles().wrapping_sub(start) < duration_cycles {
        std::hint::spin_loop();
    }
}

/// The bare work of [`crate::Region::stream`] and a fence, on a plain buffer: the floor its benchmark
/// compares with. `into` must start on a line; both have one length, a multiple of 64.
#[doc(hidden)]
pub fn floor_stream(into: &mut [u8], from: &[u8]) {
    assert!(
        into.len() == from.len()
            && into.len().is_multiple_of(64)
            && (into.as_ptr() as usize).is_multiple_of(64)
    );
    // SAFETY: both ranges are Rust slices of one checked length; `&mut` cannot overlap `&`.
    unsafe { stream_lines(into.as_mut_ptr(), from.as_ptr(), into.len()) };
    fence();
}

/// The bare work of an 8-byte store, flush and fence; see [`floor_stream`].
#[doc(hidden)]
pub fn floor_store_u64(into: &mut u64, value: u64) {
    *into = value;
    // SAFETY: a reference is mapped; `best` is supported.
    unsafe { flush_lines(PersistMethod::best(), (&raw const *into).cast(), 8) };
    fence();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 64-byte aligned storage.
    #[repr(align(64))]
    struct Lines([u8; 1024]);

    #[test]
    fn every_width_copies_and_zeroes_the_same_bytes() {
        let from: Vec<u8> = (0..1024u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for len in [64, 128, 192, 256, 320, 512, 960] {
            let check = |name: &str, copy: unsafe fn(*mut u8, *const u8, usize)| {
                let mut to = Lines([0xEE; 1024]);
                // SAFETY: aligned, in range, not overlapping; features are checked below.
                unsafe { copy(to.0.as_mut_ptr(), from.as_ptr().add(3), len) };
                fence();
                assert_eq!(to.0[..len], from[3..3 + len], "{name} {len}");
                assert!(to.0[len..].iter().all(|&byte| byte == 0xEE), "{name} {len} overran");
            };
            check("sse2", stream_sse2);
            if is_x86_feature_detected!("avx2") {
                check("avx2", |to, from, len| {
                    // SAFETY: AVX2 was detected; the ranges are the caller's.
                    unsafe { stream_avx2(to, from, len) }
                });
            }
            if is_x86_feature_detected!("avx512f") {
                check("avx512", |to, from, len| {
                    // SAFETY: AVX-512F was detected; the ranges are the caller's.
                    unsafe { stream_avx512(to, from, len) }
                });
            }
            let mut to = Lines([0xEE; 1024]);
            // SAFETY: aligned and in range.
            unsafe { zero_sse2(to.0.as_mut_ptr(), len) };
            assert!(to.0[..len].iter().all(|&byte| byte == 0) && to.0[len] == 0xEE);
            let mut to = Lines([0xEE; 1024]);
            // SAFETY: aligned and in range.
            unsafe { stream_zero_lines(to.0.as_mut_ptr(), len) };
            assert!(to.0[..len].iter().all(|&byte| byte == 0) && to.0[len] == 0xEE);
        }
    }

    #[test]
    fn spinning_takes_the_time_it_should() {
        let rate = cycles_per_us();
        let clock = Instant::now();
        spin(rate * 2_000);
        let elapsed_us = clock.elapsed().as_micros();
        assert!(elapsed_us >= 1_900, "{elapsed_us} µs of 2000");
    }

    #[test]
    fn names_read_back() {
        for method in
            [PersistMethod::Clwb, PersistMethod::Clflushopt, PersistMethod::Clflush, PersistMethod::Msync]
        {
            assert_eq!(method.to_string().parse(), Ok(method));
        }
        assert!("clwbb".parse::<PersistMethod>().is_err());
    }
}
