//! Reads and syncs by io_uring(7): the kernel carries them out while the thread that started them goes on.
#![allow(unsafe_code, reason = "the kernel uses memory of the transfers behind the compiler's back")]

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::squeue::Flags;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, Probe, opcode};
use rustix::io::Errno;

use crate::transfer::{Operation, Transfer};

/// A ring of the kernel, and the transfers that it carries out.
pub(crate) struct Ring {
    ring: IoUring,
    /// Transfers with an operation in flight, by number: the kernel uses their memory and their files.
    transfers: HashMap<u64, Transfer>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("transfers", &self.transfers).finish_non_exhaustive()
    }
}

impl Ring {
    /// Makes a ring for this many operations at a time, which adds to this event counter when one has ended.
    ///
    /// # Errors
    /// The kernel has no io_uring, lacks one of the operations, or refuses it to this program.
    pub(crate) fn new(in_flight_max: u16, wakes: BorrowedFd<'_>) -> io::Result<Self> {
        // Entries of the completion queue are twice as many: it never overflows.
        let ring = IoUring::new(in_flight_max.into())?;
        let submitter = ring.submitter();
        let mut probe = Probe::new();
        submitter.register_probe(&mut probe)?;
        let needed = [opcode::Read::CODE, opcode::Fsync::CODE];
        if !needed.into_iter().all(|code| probe.is_supported(code)) {
            return Err(Errno::OPNOTSUPP.into());
        }
        // A thread of the kernel for each operation that blocks: a slow disk keeps none from another's.
        submitter.register_iowq_max_workers(&mut [in_flight_max.into(), 0])?;
        submitter.register_eventfd(wakes.as_raw_fd())?;
        Ok(Self { ring, transfers: HashMap::new() })
    }

    /// Starts the next operation of a transfer, unless it is a write: the transfer is returned then.
    pub(crate) fn start(&mut self, number: u64, transfer: Transfer) -> Option<Transfer> {
        let operation = transfer.next();
        let fd = Fd(transfer.file().as_raw_fd());
        let entry = match operation {
            Some(Operation::Read(at)) => {
                let rest = transfer.rest().map(|(mapping, (offset, length))| {
                    let start = mapping.part_address(offset, length);
                    // A transfer is never longer than 4 GiB; a shorter operation would go on with the rest.
                    start.map(|start| (start.as_ptr(), u32::try_from(length).unwrap_or(u32::MAX)))
                });
                let Some(Ok((start, length))) = rest else { return Some(transfer) };
                opcode::Read::new(fd, start, length).offset(at).build()
            }
            Some(Operation::Sync(is_data)) => {
                let flags = if is_data { FsyncFlags::DATASYNC } else { FsyncFlags::empty() };
                opcode::Fsync::new(fd).flags(flags).build()
            }
            Some(Operation::Write(_)) | None => return Some(transfer),
        };
        let entry = if transfer.must_wait() { entry.flags(Flags::ASYNC) } else { entry };
        let entry = entry.user_data(number);
        loop {
            // SAFETY: `transfers` keeps the transfer until the operation has ended, and with it the file and the
            // mapping, which `part_address` has checked; this program accesses the mapping atomically.
            let is_pushed = unsafe { self.ring.submission().push(&entry) }.is_ok();
            // It fails if a signal comes, or the kernel lacks memory for the moment. An entry cannot be taken back.
            while self.ring.submit().is_err() {
                std::thread::yield_now();
            }
            if is_pushed {
                break;
            }
        }
        self.transfers.insert(number, transfer);
        None
    }

    /// Returns a transfer whose operation has ended.
    pub(crate) fn ended(&mut self) -> Option<(u64, Transfer)> {
        loop {
            let entry = self.ring.completion().next()?;
            if let Some(mut transfer) = self.transfers.remove(&entry.user_data()) {
                transfer.advance(match entry.result() {
                    moved if moved >= 0 => Ok(moved.unsigned_abs()),
                    error => Err(Errno::from_raw_os_error(error.saturating_neg())),
                });
                return Some((entry.user_data(), transfer));
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel may use their memory after this. The program ends; that memory goes with it.
        std::mem::forget(std::mem::take(&mut self.transfers));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::kernel::Durability;
    use crate::region::testing::span;
    use crate::transfer::Bytes;

    /// The kernel's ring, where there is one.
    #[test]
    fn the_kernel_reads_and_syncs() {
        let wakes = eventfd(0, EventfdFlags::empty()).unwrap();
        let mut ring = match Ring::new(4, wakes.as_fd()) {
            Ok(ring) => ring,
            Err(error) => return eprintln!("no io_uring: {error}"),
        };
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
        file.write_all(&content).unwrap();
        let file = Arc::new(file.into());
        let data = Bytes::Registered(span(0, 1));
        let write = Transfer::write(Arc::clone(&file), None, data, 0, Durability::None);
        assert!(ring.start(0, write).is_some(), "not by the ring");
        let whole = span(0, 42 * 200_000);
        let place = |number: u32, length| whole.part(number * 200_000, length).unwrap();
        let read = |number, offset, length| Transfer::read(Arc::clone(&file), offset, place(number, length));
        // More than the ring has room for at a time, and the end of the file.
        let mut waiting = vec![Transfer::sync(Arc::clone(&file), Durability::File), read(40, 299_000, 5000)];
        waiting.extend((0..40).rev().map(|number| read(number, 1000, 200_000)));
        let (mut started, mut ended) = (0_u64, HashMap::new());
        while started < 42 || !ring.transfers.is_empty() {
            while ring.transfers.len() < 4
                && let Some(transfer) = waiting.pop()
            {
                assert!(ring.start(started, transfer).is_none());
                started += 1;
            }
            rustix::io::read(&wakes, &mut [0; 8]).unwrap();
            while let Some((number, transfer)) = ring.ended() {
                if transfer.next().is_some() {
                    assert!(ring.start(number, transfer).is_none());
                } else {
                    ended.insert(number, transfer.result().unwrap());
                }
            }
        }
        let bytes = |number, length| place(number, length).copy(0, length).unwrap();
        for number in 0..40 {
            assert_eq!(ended[&number.into()], 200_000);
            assert!(bytes(number, 200_000) == content[1000..201_000], "read {number}");
        }
        assert_eq!((ended[&40], bytes(40, 1000)), (1000, content[299_000..].to_vec()));
        assert_eq!(ended[&41], 0);
    }
}
