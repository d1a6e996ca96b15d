//! Byte-range locks (RFC 8881 §9.1 to §9.6): they bind those who ask for locks, and no READ or WRITE.

use std::collections::HashSet;

use super::open::{READ, WRITE, next};
use super::{Named, State, Stateid};
use crate::status::Status;

/// A lock owner and the file that it locks ranges of.
#[derive(Debug)]
pub(super) struct Locker {
    pub(super) client: u64,
    owner: Vec<u8>,
    file: Vec<u8>,
    /// Open by which the locks were made.
    pub(super) open: u64,
    pub(super) seqid: u32,
}

/// Bytes of a file, from the first to the last one, both inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    first: u64,
    last: u64,
}

impl Span {
    /// Returns the bytes of a request; a length of 2⁶⁴ − 1 means all from the offset on.
    pub(crate) fn new(offset: u64, length: u64) -> Result<Self, Status> {
        let last = match length {
            0 => return Err(Status::Inval),
            u64::MAX => u64::MAX,
            _ => offset.checked_add(length.saturating_sub(1)).ok_or(Status::Inval)?,
        };
        Ok(Self { first: offset, last })
    }

    /// Returns the offset and the length, as a request states them.
    pub(crate) fn offset_and_length(self) -> (u64, u64) {
        let length = self.last.saturating_sub(self.first).saturating_add(1);
        (self.first, if self.last == u64::MAX { u64::MAX } else { length })
    }

    fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// A range that a lock owner has locked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    locker: u64,
    span: Span,
    write: bool,
}

/// The lock that prevents another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    pub(crate) span: Span,
    pub(crate) write: bool,
    pub(crate) client: u64,
    pub(crate) owner: Vec<u8>,
}

/// Reason why a lock is not given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LockError {
    /// Another owner has a conflicting lock.
    Denied(Denied),
    /// The request is not allowed.
    Status(Status),
}

impl From<Status> for LockError {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// A lock to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lock<'a> {
    pub(crate) client: u64,
    pub(crate) file: &'a [u8],
    /// Stateid of the open, with a new lock owner; or of the locks that the owner has.
    pub(crate) stateid: Stateid,
    /// The lock owner, if the stateid is that of an open.
    pub(crate) owner: Option<&'a [u8]>,
    pub(crate) span: Span,
    pub(crate) write: bool,
    pub(crate) reclaim: bool,
}

impl<F> State<F> {
    pub(super) fn has_ranges(&self, locker: u64) -> bool {
        let file = self.lockers.get(&locker).and_then(|locker| self.files.get(&locker.file));
        file.is_some_and(|file| file.ranges.iter().any(|range| range.locker == locker))
    }

    /// Forgets a lock owner with its ranges.
    pub(super) fn remove_locker(&mut self, number: u64) {
        let Some(locker) = self.lockers.remove(&number) else { return };
        let mut freed = 0;
        if let Some(file) = self.files.get_mut(&locker.file) {
            let before = file.ranges.len();
            file.ranges.retain(|range| range.locker != number);
            freed = before.saturating_sub(file.ranges.len());
        }
        if let Some(client) = self.clients.get_mut(&locker.client) {
            client.ranges = client.ranges.saturating_sub(freed);
            client.lockers = client.lockers.saturating_sub(1);
        }
        self.trim(&locker.file);
    }

    /// Counts another lock owner of a client. At the limit, those without a range are forgotten, which a client may
    /// have left behind (FREE_STATEID).
    fn count_locker(&mut self, client: u64) -> Result<(), Status> {
        let is_full = |state: &Self| {
            state.clients.get(&client).is_none_or(|client| client.lockers >= state.limits.locks_max)
        };
        if is_full(self) {
            let ranges = self.files.values().flat_map(|file| &file.ranges);
            let holding: HashSet<u64> = ranges.map(|range| range.locker).collect();
            let own = self.lockers.iter().filter(|(_, locker)| locker.client == client);
            let idle = own.map(|(number, _)| *number).filter(|number| !holding.contains(number));
            for number in idle.collect::<Vec<_>>() {
                self.remove_locker(number);
            }
        }
        if is_full(self) {
            return Err(Status::Delay);
        }
        if let Some(client) = self.clients.get_mut(&client) {
            client.lockers = client.lockers.saturating_add(1);
        }
        Ok(())
    }

    /// Finds a lock of another owner that conflicts with a request.
    fn conflict(&self, file: &[u8], locker: Option<u64>, span: Span, write: bool) -> Option<Denied> {
        let ranges = self.files.get(file).map(|file| &file.ranges[..]).unwrap_or_default();
        let found = ranges.iter().find(|range| {
            Some(range.locker) != locker && range.span.overlaps(span) && (write || range.write)
        })?;
        let holder = self.lockers.get(&found.locker)?;
        let Range { span, write, .. } = *found;
        Some(Denied { span, write, client: holder.client, owner: holder.owner.clone() })
    }

    fn locker_of(&self, client: u64, owner: &[u8], file: &[u8]) -> Option<u64> {
        let same = |locker: &Locker| locker.client == client && locker.owner == owner && locker.file == file;
        self.lockers.iter().find(|(_, locker)| same(locker)).map(|(number, _)| *number)
    }

    /// LOCK: makes a lock, or changes the type of a range.
    pub(crate) fn lock(&mut self, asked: &Lock<'_>) -> Result<Stateid, LockError> {
        let (open, mut locker) = match asked.owner {
            Some(owner) => {
                let open = self.open_named(asked.client, asked.stateid, asked.file)?;
                (open, self.locker_of(asked.client, owner, asked.file))
            }
            None => {
                let number = self.locker_named(asked.client, asked.stateid, asked.file)?;
                let open = self.lockers.get(&number).map(|locker| locker.open).ok_or(Status::BadStateId)?;
                (open, Some(number))
            }
        };
        self.may_claim(asked.client, asked.reclaim)?;
        let wanted = if asked.write { WRITE } else { READ };
        if self.opens.get(&open).is_none_or(|open| open.access & wanted == 0) {
            return Err(Status::OpenMode.into());
        }
        if let Some(denied) = self.conflict(asked.file, locker, asked.span, asked.write) {
            return Err(LockError::Denied(denied));
        }
        if let (None, Some(owner)) = (locker, asked.owner) {
            self.count_locker(asked.client)?;
            let number = self.number();
            let (owner, file) = (owner.to_vec(), asked.file.to_vec());
            self.lockers.insert(number, Locker { client: asked.client, owner, file, open, seqid: 0 });
            locker = Some(number);
        }
        let number = locker.ok_or(Status::BadStateId)?;
        if let Err(status) = self.set_range(number, asked.span, Some(asked.write)) {
            if !self.has_ranges(number) {
                self.remove_locker(number);
            }
            return Err(status.into());
        }
        Ok(self.locker_changed(number)?)
    }

    /// LOCKT: checks that an owner could have a lock.
    pub(crate) fn test_lock(
        &self,
        client: u64,
        (owner, file): (&[u8], &[u8]),
        span: Span,
        write: bool,
    ) -> Result<(), LockError> {
        if self.in_grace() {
            return Err(Status::Grace.into());
        }
        let locker = self.locker_of(client, owner, file);
        self.conflict(file, locker, span, write).map_or(Ok(()), |denied| Err(LockError::Denied(denied)))
    }

    /// LOCKU: frees a range, whatever parts of it are locked.
    pub(crate) fn unlock(
        &mut self,
        client: u64,
        stateid: Stateid,
        file: &[u8],
        span: Span,
    ) -> Result<Stateid, Status> {
        let number = self.locker_named(client, stateid, file)?;
        self.set_range(number, span, None)?;
        self.locker_changed(number)
    }

    fn locker_named(&self, client: u64, stateid: Stateid, file: &[u8]) -> Result<u64, Status> {
        match self.named(client, stateid)? {
            Named::Locker(number) if self.lockers.get(&number).is_some_and(|locker| locker.file == file) => {
                Ok(number)
            }
            _ => Err(Status::BadStateId),
        }
    }

    fn locker_changed(&mut self, number: u64) -> Result<Stateid, Status> {
        let locker = self.lockers.get_mut(&number).ok_or(Status::BadStateId)?;
        locker.seqid = next(locker.seqid);
        let seqid = locker.seqid;
        Ok(self.stateid(number, seqid))
    }

    /// Sets the type of a range, or frees it; both may split a range into two or three.
    fn set_range(&mut self, number: u64, span: Span, write: Option<bool>) -> Result<(), Status> {
        let locker = self.lockers.get(&number).ok_or(Status::BadStateId)?;
        let file = self.files.get_mut(&locker.file).ok_or(Status::BadStateId)?;
        let client = self.clients.get_mut(&locker.client).ok_or(Status::BadStateId)?;
        let own = file.ranges.iter().filter(|range| range.locker == number);
        let mut own: Vec<Range> = own.flat_map(|range| without(*range, span)).flatten().collect();
        own.extend(write.map(|write| Range { locker: number, span, write }));
        own.sort_by_key(|range| range.span.first);
        own.dedup_by(|second, first| {
            let joined = joins(first, second);
            if joined {
                first.span.last = second.span.last;
            }
            joined
        });
        let before = file.ranges.iter().filter(|range| range.locker == number).count();
        let ranges = client.ranges.saturating_add(own.len()).saturating_sub(before);
        if ranges > self.limits.locks_max && ranges > client.ranges {
            return Err(Status::Delay);
        }
        client.ranges = ranges;
        file.ranges.retain(|range| range.locker != number);
        file.ranges.append(&mut own);
        Ok(())
    }
}

/// Returns the parts of a range before and behind a span.
fn without(range: Range, span: Span) -> [Option<Range>; 2] {
    if !range.span.overlaps(span) {
        return [Some(range), None];
    }
    let part = |first, last| Some(Range { span: Span { first, last }, ..range });
    let before = if range.span.first < span.first {
        part(range.span.first, span.first.saturating_sub(1))
    } else {
        None
    };
    let behind =
        if range.span.last > span.last { part(span.last.saturating_add(1), range.span.last) } else { None };
    [before, behind]
}

/// Returns true if the second range continues the first one.
fn joins(first: &Range, second: &Range) -> bool {
    let adjacent = first.span.last.checked_add(1) == Some(second.span.first);
    first.locker == second.locker && first.write == second.write && adjacent
}
