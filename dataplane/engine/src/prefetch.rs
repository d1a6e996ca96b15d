//! Cache prefetch hints. They do nothing on processors other than x86_64.
#![allow(
    unsafe_code,
    reason = "instructions that the compiler makes no other way; hints, which cannot fault"
)]

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// Longest run of lines to prefetch into the first-level cache, bytes. A processor waits for 10 to 24 lines of it at a
/// time, and for more of the second-level cache.
pub const L1_RUN_BYTES: usize = 2048;

/// Prefetches all lines of `bytes` for reading.
#[inline]
pub fn read_soon(bytes: &[u8]) {
    run(bytes.as_ptr(), bytes.len(), to_read);
}

/// Prefetches all lines of `bytes` for writing: other cores lose their copies.
#[inline]
pub fn write_soon(bytes: &[u8]) {
    run(bytes.as_ptr(), bytes.len(), to_write);
}

/// Prefetches the lines of `len` bytes at `start`, each by `fetch`.
#[inline(always)]
pub fn run(start: *const u8, len: usize, fetch: impl Fn(*const u8)) {
    for at in (0..len).step_by(LINE) {
        fetch(start.wrapping_add(at));
    }
}

/// Prefetches the line of an address for reading.
#[inline]
pub fn to_read(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint and faults at no address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches the line of an address into the second-level cache.
#[inline]
pub fn to_second_level(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint and faults at no address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T1 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches the line of an address for writing: other cores lose their copies.
///
/// The compiler's own function emits a prefetch for reading, unless the target has the instruction for certain.
/// Processors of the target that lack `prefetchw` execute it as a no-op.
#[inline]
pub fn to_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint and faults at no address.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
