//! Memory of the program in whose process the engine runs. The program may unmap it at any time: on a card, which has
//! the pages pinned, that is harmless. Here it is harmless, too, if the process handles the fault: one function
//! touches such memory, and a handler of the signal has it return an error ([`resume_after_fault`]).
//!
//! JUSTIFICATION: accesses memory of the program by its address.
#![allow(unsafe_code, reason = "copies memory of the program; listed in UNSAFE.md")]

use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

/// Outcomes of an exchange: the number was as expected, or another one. Any other outcome is a fault.
const EXCHANGED: i32 = 0;
const CHANGED: i32 = 2;
/// Bytes of a word, which is stored at once.
const WORD: usize = size_of::<u64>();

/// Consecutive bytes of the program.
#[derive(Clone, Copy, Debug)]
pub struct ProgramMemory {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address. The bytes there are accessed by copies alone, as memory that others change.
unsafe impl Send for ProgramMemory {}
// SAFETY: as above.
unsafe impl Sync for ProgramMemory {}

impl ProgramMemory {
    /// Describes memory of this process.
    ///
    /// # Safety
    /// The program accesses it as memory that others change, with the rights that it is registered for, and maps it for
    /// as long, unless a handler of faults calls [`resume_after_fault`].
    pub const unsafe fn new(start: NonNull<u8>, bytes: usize) -> Self {
        Self { start, bytes }
    }

    /// Returns the number of bytes.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Returns the address of a byte.
    pub(super) fn address(&self, offset: u64) -> u64 {
        (self.start.as_ptr().addr() as u64).wrapping_add(offset)
    }

    fn at(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(len)?;
        (end <= self.bytes).then(|| self.start.as_ptr().wrapping_add(offset))
    }

    /// Copies `bytes` to `offset`, the last word after the others, as
    /// [`RegionMemory::write`](super::RegionMemory::write) does. Returns false if the memory has gone, or is shorter.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.at(offset, bytes.len()) else { return false };
        let Some((first, last)) = bytes.split_last_chunk::<WORD>() else {
            return copy(to, bytes.as_ptr(), bytes.len());
        };
        let copied = copy(to, first.as_ptr(), first.len());
        fence(Ordering::Release);
        copied && copy(to.wrapping_add(first.len()), last.as_ptr(), WORD)
    }

    /// Copies the bytes at `offset` to `out`. Returns false if the memory has gone, or is shorter.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        self.at(offset, out.len()).is_some_and(|from| copy(out.as_mut_ptr(), from, out.len()))
    }

    /// Changes a number, as [`RegionMemory::update`](super::RegionMemory::update) does.
    pub(super) fn update(&self, offset: u64, update: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let at = self.at(offset, WORD)?.cast::<u64>();
        let mut value = 0_u64;
        if !at.is_aligned() || !copy((&raw mut value).cast(), at.cast(), WORD) {
            return None;
        }
        loop {
            let Some(new) = update(value) else { return Some(value) };
            // SAFETY: `at` has checked that the number is inside the memory; aligned.
            match unsafe { guarded::exchange(at, &raw mut value, new) } {
                EXCHANGED => return Some(value),
                CHANGED => {}
                _ => return None,
            }
        }
    }
}

/// Copies bytes, of which either end may be memory of the program. Returns false if that has gone; then some bytes may
/// have been copied.
fn copy(to: *mut u8, from: *const u8, len: usize) -> bool {
    // SAFETY: the caller has checked that both ends are inside their memory. Memory of the library and of the program
    // do not overlap.
    unsafe { guarded::copy(to, from, len) == 0 }
}

/// Returns the address at which a thread goes on whose copy has faulted at the instruction at `address`; `None` for a
/// fault elsewhere. For a handler of SIGSEGV and SIGBUS.
pub fn resume_after_fault(address: usize) -> Option<usize> {
    guarded::resume_after(address)
}

/// The functions that touch the memory, whose instructions are known.
#[cfg(target_arch = "x86_64")]
mod guarded {
    // Up to 256 bytes, a loop is faster than `rep movsb`. A word is moved at once.
    std::arch::global_asm!(
        ".globl ironwarp_copy_guarded",
        ".globl ironwarp_exchange_guarded",
        ".globl ironwarp_copy_guarded_end",
        ".globl ironwarp_copy_guarded_fault",
        ".hidden ironwarp_copy_guarded",
        ".hidden ironwarp_exchange_guarded",
        ".hidden ironwarp_copy_guarded_end",
        ".hidden ironwarp_copy_guarded_fault",
        ".type ironwarp_copy_guarded, @function",
        "ironwarp_copy_guarded:",
        "cmp rdx, 256",
        "jae 6f",
        "2: cmp rdx, 16",
        "jb 3f",
        "movups xmm0, [rsi]",
        "movups [rdi], xmm0",
        "add rsi, 16",
        "add rdi, 16",
        "sub rdx, 16",
        "jmp 2b",
        "3: cmp rdx, 8",
        "jb 4f",
        "mov rax, [rsi]",
        "mov [rdi], rax",
        "add rsi, 8",
        "add rdi, 8",
        "sub rdx, 8",
        "4: test rdx, rdx",
        "jz 5f",
        "mov al, [rsi]",
        "mov [rdi], al",
        "inc rsi",
        "inc rdi",
        "dec rdx",
        "jmp 4b",
        "5: xor eax, eax",
        "ret",
        "6: mov rcx, rdx",
        "rep movsb",
        "xor eax, eax",
        "ret",
        "ironwarp_exchange_guarded:",
        "mov rax, [rsi]",
        "lock cmpxchg [rdi], rdx",
        "mov [rsi], rax",
        "setne cl",
        "movzx eax, cl",
        "add eax, eax",
        "ret",
        "ironwarp_copy_guarded_end:",
        "ironwarp_copy_guarded_fault:",
        "mov eax, 1",
        "ret",
        ".size ironwarp_copy_guarded, . - ironwarp_copy_guarded",
    );

    unsafe extern "C" {
        #[link_name = "ironwarp_copy_guarded"]
        pub(super) fn copy(to: *mut u8, from: *const u8, len: usize) -> i32;
        #[link_name = "ironwarp_exchange_guarded"]
        pub(super) fn exchange(at: *mut u64, expected: *mut u64, new: u64) -> i32;
        #[link_name = "ironwarp_copy_guarded_end"]
        fn copy_end();
        #[link_name = "ironwarp_copy_guarded_fault"]
        fn copy_fault();
    }

    pub(super) fn resume_after(address: usize) -> Option<usize> {
        let of = |function: unsafe extern "C" fn()| (function as *const ()).addr();
        let begin = (copy as *const ()).addr();
        (begin..of(copy_end)).contains(&address).then(|| of(copy_fault))
    }
}

/// Elsewhere the program keeps its memory mapped.
#[cfg(not(target_arch = "x86_64"))]
mod guarded {
    /// Copies bytes.
    ///
    /// # Safety
    /// Both ends are mapped, and do not overlap.
    pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> i32 {
        // SAFETY: as for this function.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        0
    }

    /// Stores `new` if the number is as expected. Stores what it was to `expected`.
    ///
    /// # Safety
    /// Both numbers are mapped and aligned.
    pub(super) unsafe fn exchange(at: *mut u64, expected: *mut u64, new: u64) -> i32 {
        use std::sync::atomic::{AtomicU64, Ordering};
        // SAFETY: as for this function.
        let number = unsafe { AtomicU64::from_ptr(at) };
        // SAFETY: as for this function.
        let before = unsafe { *expected };
        let outcome = number.compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire);
        let (now, outcome) = match outcome {
            Ok(now) => (now, super::EXCHANGED),
            Err(now) => (now, super::CHANGED),
        };
        // SAFETY: as for this function.
        unsafe { *expected = now };
        outcome
    }

    pub(super) const fn resume_after(_: usize) -> Option<usize> {
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_are_copied_and_no_others() {
        for len in (0..70).chain([255, 256, 257, 4095, 4096, 70_001]) {
            for shift in [0, 1, 7] {
                let mut room = vec![0xee_u8; len + shift + 9];
                let at = NonNull::new(room.as_mut_ptr().wrapping_add(shift)).unwrap();
                // SAFETY: `room` outlives it, and is not looked at until the copies are done.
                let memory = unsafe { ProgramMemory::new(at, len) };
                let bytes: Vec<u8> = (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect();
                assert!(memory.write(0, &bytes));
                let mut out = vec![0; len];
                assert!(memory.read(0, &mut out));
                assert!(out == bytes, "{len} bytes at {shift}");
                assert!(!memory.write(1, &vec![0; len]) || len == 0, "beyond the end");
                assert_eq!(room[..shift], vec![0xee; shift]);
                assert_eq!(room[shift + len..], [0xee; 9]);
            }
        }
    }

    #[test]
    fn a_number_is_changed_where_it_is_aligned() {
        let mut numbers = [5_u64, 7];
        // SAFETY: `numbers` outlives it.
        let memory = unsafe { ProgramMemory::new(NonNull::from(&mut numbers).cast(), 16) };
        assert_eq!(memory.update(8, |value| Some(value + 1)), Some(7));
        assert_eq!(memory.update(4, |value| Some(value + 1)), None, "between two numbers");
        assert_eq!(memory.update(16, |value| Some(value + 1)), None, "behind the last one");
        assert_eq!(numbers, [5, 8]);
    }

    #[test]
    fn only_the_copying_function_is_resumed() {
        assert_eq!(resume_after_fault(0), None);
        assert_eq!(resume_after_fault((resume_after_fault as *const ()).addr()), None);
        #[cfg(target_arch = "x86_64")]
        assert!(resume_after_fault((guarded::copy as *const ()).addr()).is_some());
    }
}
