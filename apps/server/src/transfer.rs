//! A transfer between a file and memory, operation by operation: short ones go on, interrupted ones are repeated.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{fdatasync, fsync};
use rustix::io::{Errno, pread, pwrite};

use crate::identity::User;
use crate::kernel::{Durability, check_end, possible};

/// Times that the kernel may ask for an operation to be repeated (EAGAIN); after that the transfer fails.
const REPEATS_MAX: u8 = 8;

/// An operation of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Read to [`Transfer::rest`] at this offset.
    Read(u64),
    /// Write [`Transfer::rest`] at this offset.
    Write(u64),
    /// Make written data durable; with `true`, without times that are not needed to read it.
    Sync(bool),
}

/// State of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reads,
    Writes,
    Syncs,
    Done(Result<(), Errno>),
}

/// A read, a write that ends when its data is as durable as it is to be, or a sync. It owns what the kernel uses
/// meanwhile: the file and the memory.
#[derive(Debug)]
pub(crate) struct Transfer {
    file: Arc<OwnedFd>,
    /// User whose rights a write is made with; `None`: those of the server.
    user: Option<User>,
    memory: Vec<u8>,
    offset: u64,
    moved: usize,
    durability: Durability,
    state: State,
    repeats: u8,
}

impl Transfer {
    /// Reads up to `length` bytes. No file has any behind the largest offset: there a transfer is done.
    pub(crate) fn read(file: Arc<OwnedFd>, offset: u64, length: u32) -> Self {
        let memory = vec![0; possible(offset, length) as usize];
        Self::new(file, State::Reads, memory, offset, Durability::None)
    }

    /// Writes data, and makes it durable.
    pub(crate) fn write(
        file: Arc<OwnedFd>,
        user: Option<User>,
        data: Vec<u8>,
        offset: u64,
        durability: Durability,
    ) -> Self {
        let state =
            check_end(offset, data.len()).map_or_else(|error| State::Done(Err(error)), |()| State::Writes);
        Self { user, ..Self::new(file, state, data, offset, durability) }
    }

    /// Makes written data durable.
    pub(crate) fn sync(file: Arc<OwnedFd>, durability: Durability) -> Self {
        Self::new(file, State::Writes, Vec::new(), 0, durability)
    }

    fn new(file: Arc<OwnedFd>, state: State, memory: Vec<u8>, offset: u64, durability: Durability) -> Self {
        let mut new = Self { file, user: None, memory, offset, moved: 0, durability, state, repeats: 0 };
        new.skip_empty_states();
        new
    }

    /// Returns the next operation; `None` once the transfer is done.
    pub(crate) fn next(&self) -> Option<Operation> {
        let at = self.offset.saturating_add(self.moved as u64);
        match self.state {
            State::Reads => Some(Operation::Read(at)),
            State::Writes => Some(Operation::Write(at)),
            State::Syncs => Some(Operation::Sync(self.durability == Durability::Data)),
            State::Done(_) => None,
        }
    }

    /// Carries out the next operation on this thread, and all others of the same kind.
    pub(crate) fn perform(&mut self) {
        let state = self.state;
        while self.state == state
            && let Some(operation) = self.next()
        {
            let rest = self.memory.get_mut(self.moved..).unwrap_or_default();
            let moved = match operation {
                Operation::Read(at) => pread(&self.file, rest, at),
                Operation::Write(at) => pwrite(&self.file, rest, at),
                Operation::Sync(true) => fdatasync(&self.file).map(|()| 0),
                Operation::Sync(false) => fsync(&self.file).map(|()| 0),
            };
            self.advance(moved.map(|moved| u32::try_from(moved).unwrap_or(u32::MAX)));
        }
    }

    /// Takes the result of the latest operation.
    pub(crate) fn advance(&mut self, result: Result<u32, Errno>) {
        if result == Err(Errno::INTR) {
            return;
        }
        if result == Err(Errno::AGAIN) && self.repeats < REPEATS_MAX {
            self.repeats = self.repeats.saturating_add(1);
            return;
        }
        self.state = match (self.state, result) {
            (state @ (State::Reads | State::Writes), Ok(moved)) if moved > 0 => {
                self.moved = self.moved.saturating_add(moved as usize).min(self.memory.len());
                self.repeats = 0;
                state
            }
            // The end of the file.
            (State::Reads, Ok(_)) => State::Done(Ok(())),
            // Who has asked learns how much was written, and the error from the next write.
            (State::Writes, Err(_)) if self.moved > 0 => State::Syncs,
            (State::Writes, Ok(_)) => State::Syncs,
            (State::Syncs, Ok(_)) => State::Done(Ok(())),
            (State::Done(result), _) => State::Done(result),
            (_, Err(error)) => State::Done(Err(error)),
        };
        self.skip_empty_states();
    }

    /// Leaves states in which nothing is left to do.
    fn skip_empty_states(&mut self) {
        let is_moved = self.moved == self.memory.len();
        self.state = match self.state {
            State::Reads if is_moved => State::Done(Ok(())),
            State::Writes if is_moved => State::Syncs,
            state => state,
        };
        if self.state == State::Syncs && self.durability == Durability::None {
            self.state = State::Done(Ok(()));
        }
    }

    /// Borrows the file that is read or written.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Borrows the memory that the next operation uses. Its place stays the same until the transfer is dropped.
    pub(crate) fn rest(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.moved..).unwrap_or_default()
    }

    /// Returns the user whose rights the next operation needs.
    pub(crate) fn user(&self) -> Option<&User> {
        self.user.as_ref().filter(|_| self.state == State::Writes)
    }

    /// Returns true if the kernel was busy with the latest operation, and should wait with the next one.
    pub(crate) fn must_wait(&self) -> bool {
        self.repeats > 0
    }

    /// Returns the number of bytes moved, and the memory, cut there.
    ///
    /// # Errors
    /// The error of the operation that ended the transfer.
    pub(crate) fn result(mut self) -> Result<(u32, Vec<u8>), Errno> {
        let State::Done(result) = self.state else { return Err(Errno::CANCELED) };
        self.memory.truncate(self.moved);
        let moved = u32::try_from(self.moved).unwrap_or(u32::MAX);
        result.map(|()| (moved, self.memory))
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test may panic, its sizes are small"
)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::OFFSET_MAX;

    fn file() -> Arc<OwnedFd> {
        Arc::new(std::fs::File::open("/dev/null").unwrap().into())
    }

    /// A disk that answers as its script says; then it does what it is asked for.
    struct Disk {
        content: Vec<u8>,
        answers: Vec<Answer>,
        /// Bytes written since the latest sync.
        volatile: usize,
    }

    #[derive(Clone, Copy, Debug)]
    enum Answer {
        Short(u32),
        Fails(Errno),
    }

    impl Disk {
        fn obey(&mut self, transfer: &mut Transfer, operation: Operation) -> Result<u32, Errno> {
            let most = match (!self.answers.is_empty()).then(|| self.answers.remove(0)) {
                Some(Answer::Fails(error)) => return Err(error),
                Some(Answer::Short(most)) => most as usize,
                None => usize::MAX,
            };
            let (at, rest) = match operation {
                Operation::Read(at) | Operation::Write(at) => (at as usize, transfer.rest()),
                Operation::Sync(_) => {
                    self.volatile = 0;
                    return Ok(0);
                }
            };
            assert!(!rest.is_empty(), "an operation that moves nothing");
            let moved = match operation {
                Operation::Read(_) => {
                    let content = self.content.get(at..).unwrap_or_default();
                    let moved = rest.len().min(most).min(content.len());
                    rest[..moved].copy_from_slice(&content[..moved]);
                    moved
                }
                _ => {
                    let moved = rest.len().min(most);
                    self.content.resize(self.content.len().max(at + moved), 0);
                    self.content[at..][..moved].copy_from_slice(&rest[..moved]);
                    self.volatile += moved;
                    moved
                }
            };
            Ok(moved as u32)
        }

        fn run(&mut self, mut transfer: Transfer) -> Result<(u32, Vec<u8>), Errno> {
            while let Some(operation) = transfer.next() {
                let result = self.obey(&mut transfer, operation);
                transfer.advance(result);
            }
            transfer.result()
        }
    }

    fn disk(content: &[u8], answers: &[Answer]) -> Disk {
        Disk { content: content.to_vec(), answers: answers.to_vec(), volatile: 0 }
    }

    fn answers() -> impl Strategy<Value = Vec<Answer>> {
        // No 0: a read of nothing is the end of the file, a write of nothing the end of the space.
        let one = prop_oneof![
            (1..50_u32).prop_map(Answer::Short),
            Just(Answer::Fails(Errno::INTR)),
            Just(Answer::Fails(Errno::AGAIN)),
        ];
        prop::collection::vec(one, 0..REPEATS_MAX as usize)
    }

    proptest! {
        #[test]
        fn short_and_repeated_operations_move_everything(
            content in prop::collection::vec(any::<u8>(), 0..300),
            data in prop::collection::vec(any::<u8>(), 0..300),
            offset in 0..400_u64, length in 0..300_u32, answers in answers(),
        ) {
            let read = disk(&content, &answers).run(Transfer::read(file(), offset, length));
            let start = content.len().min(offset as usize);
            let end = content.len().min(offset as usize + length as usize);
            prop_assert_eq!(read, Ok(((end - start) as u32, content[start..end].to_vec())));

            for durability in [Durability::None, Durability::Data, Durability::File] {
                let mut disk = disk(&content, &answers);
                let written = disk.run(Transfer::write(file(), None, data.clone(), offset, durability));
                prop_assert_eq!(written.map(|(moved, _)| moved), Ok(data.len() as u32));
                let mut expected = content.clone();
                if !data.is_empty() {
                    expected.resize(content.len().max(offset as usize + data.len()), 0);
                    expected[offset as usize..][..data.len()].copy_from_slice(&data);
                }
                prop_assert_eq!(&disk.content, &expected);
                let unsynced = if durability == Durability::None { data.len() } else { 0 };
                prop_assert_eq!(disk.volatile, unsynced, "{:?}", durability);
            }
        }

        #[test]
        fn every_script_of_errors_ends(
            errors in prop::collection::vec(prop_oneof![
                Just(Errno::IO), Just(Errno::NOSPC), Just(Errno::AGAIN), Just(Errno::CANCELED),
            ], 0..20),
            at in 0..10_usize, is_write: bool,
        ) {
            let mut answers = vec![Answer::Short(1); at];
            answers.extend(errors.iter().map(|error| Answer::Fails(*error)));
            let transfer = if is_write {
                Transfer::write(file(), None, vec![1; 10], 0, Durability::File)
            } else {
                Transfer::read(file(), 0, 10)
            };
            let mut disk = disk(&[2; 10], &answers);
            match disk.run(transfer) {
                Ok((moved, _)) => {
                    prop_assert!(moved as usize >= at, "{} bytes lost", at);
                    prop_assert!(!is_write || disk.volatile == 0, "answered before it is durable");
                }
                Err(error) => prop_assert!(errors.contains(&error)),
            }
        }
    }

    #[test]
    fn errors_end_a_transfer() {
        let fails = |error| [Answer::Short(3), Answer::Fails(error)];
        let read = disk(&[0; 9], &fails(Errno::IO)).run(Transfer::read(file(), 0, 9));
        assert_eq!(read, Err(Errno::IO));
        // A part of a write counts, if it can be made durable.
        let write = |durability| Transfer::write(file(), None, vec![7; 9], 0, durability);
        let mut full = disk(&[], &fails(Errno::NOSPC));
        assert_eq!(full.run(write(Durability::File)), Ok((3, vec![7; 3])));
        assert_eq!((full.content, full.volatile), (vec![7; 3], 0));
        assert_eq!(disk(&[], &fails(Errno::NOSPC)[1..]).run(write(Durability::File)), Err(Errno::NOSPC));
        let unsynced = [Answer::Short(9), Answer::Fails(Errno::IO)];
        assert_eq!(disk(&[], &unsynced).run(write(Durability::Data)), Err(Errno::IO));
        let sync = Transfer::sync(file(), Durability::Data);
        assert_eq!(sync.next(), Some(Operation::Sync(true)));
        assert_eq!(disk(&[], &[Answer::Fails(Errno::IO)]).run(sync), Err(Errno::IO));
        let busy = vec![Answer::Fails(Errno::AGAIN); 1 + REPEATS_MAX as usize];
        assert_eq!(disk(&[0; 9], &busy).run(Transfer::read(file(), 0, 9)), Err(Errno::AGAIN));
    }

    #[test]
    fn a_file_ends_at_the_largest_offset() {
        for (offset, length) in [(u64::MAX, 0), (u64::MAX, 1), (OFFSET_MAX, 1), (1 << 63, 9), (OFFSET_MAX, 0)]
        {
            let read = Transfer::read(file(), offset, length);
            assert_eq!(
                (read.next(), read.result()),
                (None, Ok((0, vec![]))),
                "a read of {length} at {offset}"
            );
            let write = Transfer::write(file(), None, vec![1; length as usize], offset, Durability::File);
            let expected = if offset == OFFSET_MAX && length == 0 { None } else { Some(Err(Errno::FBIG)) };
            assert_eq!(
                write.next().is_none().then(|| write.result()),
                expected,
                "a write of {length} at {offset}"
            );
        }
        let mut read = Transfer::read(file(), OFFSET_MAX - 4095, 4096);
        assert_eq!((read.next(), read.rest().len()), (Some(Operation::Read(OFFSET_MAX - 4095)), 4095));
    }
}
