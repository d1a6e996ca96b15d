//! Asking the cache for a line before it is needed. On other processors than x86_64, nothing.
#![allow(
    unsafe_code,
    reason = "instructions that the compiler makes no other way; hints, which cannot fault"
)]

/// Bytes of a line.
pub const LINE: usize = 64;

/// Fetches all lines of these bytes, which will be read soon.
#[inline]
pub fn read_soon(bytes: &[u8]) {
    for line in bytes.chunks(LINE) {
        to_read(line.as_ptr());
    }
}

/// Fetches all lines of these bytes, which will be written soon: other cores give up theirs.
#[inline]
pub fn write_soon(bytes: &[u8]) {
    for line in bytes.chunks(LINE) {
        to_write(line.as_ptr());
    }
}

/// Fetches the line of an address, for reading.
#[inline]
pub(crate) fn to_read(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which cannot fault whatever the address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Fetches the line of an address, for writing: other cores give up theirs.
///
/// The compiler makes a prefetch for reading of its own function for this, unless it may use an instruction set that has
/// the instruction for certain. Processors of the set that it may use here take it for nothing at worst.
#[inline]
pub(crate) fn to_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which cannot fault whatever the address.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
