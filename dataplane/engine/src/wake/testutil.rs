//! One thread that wakes programs, for all tests of a process.

use std::sync::OnceLock;

use super::*;

/// User of the programs in tests.
pub const USER: u32 = 1000;

/// Returns the programs that the thread can wake.
pub fn wakes() -> Wakes {
    static WAKES: OnceLock<(Wakes, WakeThread)> = OnceLock::new();
    WAKES.get_or_init(|| Wakes::start(&Clock::start(), || ()).unwrap()).0.clone()
}

/// Returns the number of times that a program was woken, once the thread has served all marks.
pub fn taken(descriptor: &OwnedFd) -> usize {
    for _ in 0..2 {
        // The second one is served in a later round than all that were marked before the first.
        let (waker, woken) = wakes().waker(USER).unwrap();
        waker.wake();
        wait_readable(&woken);
    }
    rustix::io::read(descriptor, &mut [0; 64]).unwrap_or(0)
}

/// Waits until a program is woken, however busy the machine is, or has lost its waker.
pub fn wait_readable(descriptor: &impl AsFd) {
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&limit)), Ok(1));
}
