//! A transfer between a file and memory, operation by operation: short ones go on, interrupted ones are repeated.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use iwarp_verbs::Mapping;
use rustix::fs::{fdatasync, fsync};
use rustix::io::{Errno, pwrite};

use crate::identity::{User, with_rights};
use crate::kernel::{Durability, check_end, possible};
use crate::region::Span;

/// Times that the kernel may ask for an operation to be repeated (EAGAIN); after that the transfer fails.
const REPEATS_MAX: u8 = 8;

/// An operation of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Read the file from this offset.
    Read(u64),
    /// Write the file from this offset.
    Write(u64),
    /// Make written data durable; with `true`, without times that are not needed to read it.
    Sync(bool),
}

/// Memory of a transfer.
#[derive(Debug)]
pub(crate) enum Bytes {
    /// Bytes of the program, to write.
    Own(Vec<u8>),
    /// Bytes of registered memory, which stays mapped as long as the transfer lives.
    Registered(Span),
}

impl Bytes {
    fn length(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.len(),
            Self::Registered(span) => span.length() as usize,
        }
    }
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
    memory: Bytes,
    offset: u64,
    moved: usize,
    durability: Durability,
    state: State,
    repeats: u8,
}

impl Transfer {
    /// Reads until the memory is full. No file has any byte behind the largest offset: there a transfer is done.
    pub(crate) fn read(file: Arc<OwnedFd>, offset: u64, mut memory: Span) -> Self {
        memory.truncate(possible(offset, memory.length()));
        Self::new(file, State::Reads, Bytes::Registered(memory), offset, Durability::None)
    }

    /// Writes data, and makes it durable.
    pub(crate) fn write(
        file: Arc<OwnedFd>,
        user: Option<User>,
        data: Bytes,
        offset: u64,
        durability: Durability,
    ) -> Self {
        let state =
            check_end(offset, data.length()).map_or_else(|error| State::Done(Err(error)), |()| State::Writes);
        Self { user, ..Self::new(file, state, data, offset, durability) }
    }

    /// Makes written data durable.
    pub(crate) fn sync(file: Arc<OwnedFd>, durability: Durability) -> Self {
        Self::new(file, State::Writes, Bytes::Own(Vec::new()), 0, durability)
    }

    fn new(file: Arc<OwnedFd>, state: State, memory: Bytes, offset: u64, durability: Durability) -> Self {
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
            let moved = match operation {
                Operation::Read(at) => self.read_at(at, false),
                Operation::Write(at) => self.write_at(at),
                Operation::Sync(true) => fdatasync(&self.file).map(|()| 0),
                Operation::Sync(false) => fsync(&self.file).map(|()| 0),
            };
            self.advance(moved.map(|moved| u32::try_from(moved).unwrap_or(u32::MAX)));
        }
    }

    /// As [`Self::perform`], with the rights that the operation needs.
    pub(crate) fn perform_with_rights(&mut self) {
        match self.user().cloned() {
            Some(user) => with_rights(&user, || self.perform()),
            None => self.perform(),
        }
    }

    /// Reads what is in the page cache: copying it is all that there is to do. Returns true if the transfer is done.
    pub(crate) fn perform_cached(&mut self) -> bool {
        while let Some(Operation::Read(at)) = self.next() {
            match self.read_at(at, true) {
                Ok(moved) => self.advance(Ok(u32::try_from(moved).unwrap_or(u32::MAX))),
                Err(Errno::INTR) => {}
                // It would have to wait, or the file system cannot tell.
                Err(_) => break,
            }
        }
        self.next().is_none()
    }

    fn read_at(&self, at: u64, cached: bool) -> Result<usize, Errno> {
        let (mapping, part) = self.rest().ok_or(Errno::FAULT)?;
        mapping.read_file(part, &self.file, at, cached)
    }

    fn write_at(&self, at: u64) -> Result<usize, Errno> {
        match &self.memory {
            Bytes::Own(bytes) => pwrite(&self.file, bytes.get(self.moved..).unwrap_or_default(), at),
            Bytes::Registered(_) => {
                let (mapping, part) = self.rest().ok_or(Errno::FAULT)?;
                mapping.write_file(part, &self.file, at)
            }
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
                self.moved = self.moved.saturating_add(moved as usize).min(self.memory.length());
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
        let is_moved = self.moved == self.memory.length();
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

    /// Returns the place of the registered bytes that the next operation uses, as [`Span::place`]. They stay mapped
    /// until the transfer is dropped.
    pub(crate) fn rest(&self) -> Option<(&Mapping, (u64, usize))> {
        match &self.memory {
            Bytes::Own(_) => None,
            Bytes::Registered(span) => span.place(self.moved),
        }
    }

    /// Returns the user whose rights the next operation needs.
    pub(crate) fn user(&self) -> Option<&User> {
        self.user.as_ref().filter(|_| self.state == State::Writes)
    }

    /// Returns true if the kernel was busy with the latest operation, and should wait with the next one.
    pub(crate) fn must_wait(&self) -> bool {
        self.repeats > 0
    }

    /// Returns the number of bytes moved.
    ///
    /// # Errors
    /// The error of the operation that ended the transfer.
    pub(crate) fn result(&self) -> Result<u32, Errno> {
        let State::Done(result) = self.state else { return Err(Errno::CANCELED) };
        result.map(|()| u32::try_from(self.moved).unwrap_or(u32::MAX))
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
    use crate::region::testing::span;

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
            let moved = match operation {
                Operation::Sync(_) => {
                    self.volatile = 0;
                    0
                }
                Operation::Read(at) => {
                    let (mapping, (start, length)) = transfer.rest().unwrap();
                    assert!(length > 0, "an operation that moves nothing");
                    let content = self.content.get(at as usize..).unwrap_or_default();
                    let moved = length.min(most).min(content.len());
                    mapping.write(start, &content[..moved]).unwrap();
                    moved
                }
                Operation::Write(at) => {
                    let rest = bytes(transfer, transfer.moved);
                    assert!(!rest.is_empty(), "an operation that moves nothing");
                    let (at, moved) = (at as usize, rest.len().min(most));
                    self.content.resize(self.content.len().max(at + moved), 0);
                    self.content[at..][..moved].copy_from_slice(&rest[..moved]);
                    self.volatile += moved;
                    moved
                }
            };
            Ok(moved as u32)
        }

        /// Returns the bytes moved.
        fn run(&mut self, mut transfer: Transfer) -> Result<Vec<u8>, Errno> {
            while let Some(operation) = transfer.next() {
                let result = self.obey(&mut transfer, operation);
                transfer.advance(result);
            }
            let moved = transfer.result()?;
            Ok(bytes(&transfer, 0)[..moved as usize].to_vec())
        }
    }

    /// Returns bytes of a transfer.
    fn bytes(transfer: &Transfer, start: usize) -> Vec<u8> {
        match &transfer.memory {
            Bytes::Own(own) => own[start..].to_vec(),
            Bytes::Registered(span) => span.copy(start as u64, span.length() - start as u32).unwrap(),
        }
    }

    fn own(data: &[u8]) -> Bytes {
        Bytes::Own(data.to_vec())
    }

    /// Returns registered memory with these bytes.
    fn registered(data: &[u8]) -> Bytes {
        let span = span(3, data.len() as u32);
        span.fill(data).unwrap();
        Bytes::Registered(span)
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
            let read = disk(&content, &answers).run(Transfer::read(file(), offset, span(5, length)));
            let start = content.len().min(offset as usize);
            let end = content.len().min(offset as usize + length as usize);
            prop_assert_eq!(read, Ok(content[start..end].to_vec()));

            for (durability, memory) in [Durability::None, Durability::Data, Durability::File]
                .into_iter()
                .flat_map(|durability| [(durability, own(&data)), (durability, registered(&data))])
            {
                let mut disk = disk(&content, &answers);
                let written = disk.run(Transfer::write(file(), None, memory, offset, durability));
                prop_assert_eq!(written.as_ref(), Ok(&data));
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
                Transfer::write(file(), None, own(&[1; 10]), 0, Durability::File)
            } else {
                Transfer::read(file(), 0, span(0, 10))
            };
            let mut disk = disk(&[2; 10], &answers);
            match disk.run(transfer) {
                Ok(moved) => {
                    prop_assert!(moved.len() >= at, "{} bytes lost", at);
                    prop_assert!(!is_write || disk.volatile == 0, "answered before it is durable");
                }
                Err(error) => prop_assert!(errors.contains(&error)),
            }
        }
    }

    #[test]
    fn errors_end_a_transfer() {
        let fails = |error| [Answer::Short(3), Answer::Fails(error)];
        let read = disk(&[0; 9], &fails(Errno::IO)).run(Transfer::read(file(), 0, span(0, 9)));
        assert_eq!(read, Err(Errno::IO));
        // A part of a write counts, if it can be made durable.
        let write = |durability| Transfer::write(file(), None, own(&[7; 9]), 0, durability);
        let mut full = disk(&[], &fails(Errno::NOSPC));
        assert_eq!(full.run(write(Durability::File)), Ok(vec![7; 3]));
        assert_eq!((full.content, full.volatile), (vec![7; 3], 0));
        assert_eq!(disk(&[], &fails(Errno::NOSPC)[1..]).run(write(Durability::File)), Err(Errno::NOSPC));
        let unsynced = [Answer::Short(9), Answer::Fails(Errno::IO)];
        assert_eq!(disk(&[], &unsynced).run(write(Durability::Data)), Err(Errno::IO));
        let sync = Transfer::sync(file(), Durability::Data);
        assert_eq!(sync.next(), Some(Operation::Sync(true)));
        assert_eq!(disk(&[], &[Answer::Fails(Errno::IO)]).run(sync), Err(Errno::IO));
        let busy = vec![Answer::Fails(Errno::AGAIN); 1 + REPEATS_MAX as usize];
        assert_eq!(disk(&[0; 9], &busy).run(Transfer::read(file(), 0, span(0, 9))), Err(Errno::AGAIN));
    }

    #[test]
    fn a_file_ends_at_the_largest_offset() {
        for (offset, length) in [(u64::MAX, 0), (u64::MAX, 1), (OFFSET_MAX, 1), (1 << 63, 9), (OFFSET_MAX, 0)]
        {
            let read = Transfer::read(file(), offset, span(0, length));
            assert_eq!((read.next(), read.result()), (None, Ok(0)), "a read of {length} at {offset}");
            let data = registered(&vec![1; length as usize]);
            let write = Transfer::write(file(), None, data, offset, Durability::File);
            let expected = if offset == OFFSET_MAX && length == 0 { None } else { Some(Err(Errno::FBIG)) };
            assert_eq!(
                write.next().is_none().then(|| write.result()),
                expected,
                "a write of {length} at {offset}"
            );
        }
        let read = Transfer::read(file(), OFFSET_MAX - 4095, span(8, 4096));
        let (_, part) = read.rest().unwrap();
        assert_eq!((read.next(), part), (Some(Operation::Read(OFFSET_MAX - 4095)), (8, 4095)));
    }

    #[test]
    fn a_transfer_moves_bytes_between_a_file_and_its_memory_alone() {
        let mut content = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut content, &[7; 5000]).unwrap();
        let file = Arc::new(OwnedFd::from(content));
        for (offset, length, expected) in
            [(0, 1, 1), (1, 4095, 4095), (4000, 5000, 1000), (9000, 10, 0), (5, 0, 0)]
        {
            let around = span(0, 8192);
            around.fill(&[1; 8192]).unwrap();
            let mut read = Transfer::read(Arc::clone(&file), offset, around.part(100, length).unwrap());
            while read.next().is_some() {
                read.perform();
            }
            assert_eq!(read.result(), Ok(expected));
            let (start, end) = (100, 100 + expected as usize);
            let bytes = around.copy(0, 8192).unwrap();
            assert!(bytes[start..end].iter().all(|byte| *byte == 7), "{offset} {length}");
            assert!(bytes[..start].iter().chain(&bytes[end..]).all(|byte| *byte == 1), "{offset} {length}");
            let part = around.part(100, expected).unwrap();
            let target = Arc::new(OwnedFd::from(tempfile::tempfile().unwrap()));
            let data = Bytes::Registered(part);
            let mut write = Transfer::write(Arc::clone(&target), None, data, 3, Durability::Data);
            while write.next().is_some() {
                write.perform();
            }
            assert_eq!(write.result(), Ok(expected));
            let mut written = vec![0; 8192];
            let length = crate::kernel::read_at(&target, &mut written, 3).unwrap();
            assert_eq!(written[..length as usize], bytes[start..end]);
        }
    }
}
