//! Opens and share reservations (RFC 8881 §9.7 to §9.11).

use super::{Named, State, Stateid};
use crate::status::Status;

/// Bit of an access or deny mode: READ.
pub(crate) const READ: u32 = 1;
/// Bit of an access or deny mode: WRITE.
pub(crate) const WRITE: u32 = 2;

/// A file that an open owner of a client has opened.
#[derive(Debug)]
pub(super) struct Open<F> {
    pub(super) client: u64,
    owner: Vec<u8>,
    pub(super) file: Vec<u8>,
    pub(super) access: u32,
    deny: u32,
    pub(super) seqid: u32,
    read: Option<F>,
    write: Option<F>,
}

/// An open to be made.
#[derive(Debug)]
pub(crate) struct NewOpen<'a, F> {
    pub(crate) client: u64,
    pub(crate) owner: &'a [u8],
    /// Handle of the file.
    pub(crate) file: &'a [u8],
    /// Bits [`READ`] and [`WRITE`]; not zero.
    pub(crate) access: u32,
    /// Bits that other owners must not have, and cannot get.
    pub(crate) deny: u32,
    /// File opened for reading, if `access` has the bit.
    pub(crate) read: Option<F>,
    /// File opened for writing, if `access` has the bit.
    pub(crate) write: Option<F>,
}

/// Right by which a READ or a WRITE happens.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Held<F> {
    /// An open holds the file.
    Open(F),
    /// No open: the rights of the user count.
    Special,
}

impl<F: Clone> State<F> {
    /// Makes an open, or adds to the one that its owner has of the file.
    pub(crate) fn open(&mut self, new: NewOpen<'_, F>) -> Result<Stateid, Status> {
        let own =
            self.opens_of(new.file).find(|(_, open)| open.client == new.client && open.owner == new.owner);
        let own = own.map(|(number, _)| number);
        let mut others = self.opens_of(new.file).filter(|(number, _)| Some(*number) != own);
        let denied = others.any(|(_, open)| new.access & open.deny != 0 || new.deny & open.access != 0);
        drop(others);
        if denied {
            return Err(Status::ShareDenied);
        }
        if let Some((number, open)) = own.and_then(|number| Some((number, self.opens.get_mut(&number)?))) {
            open.access |= new.access;
            open.deny |= new.deny;
            open.seqid = next(open.seqid);
            open.read = open.read.take().or(new.read);
            open.write = open.write.take().or(new.write);
            let seqid = open.seqid;
            return Ok(self.stateid(number, seqid));
        }
        let client = self.clients.get_mut(&new.client).ok_or(Status::StaleClientId)?;
        if client.opens >= self.limits.opens_max {
            return Err(Status::Delay);
        }
        client.opens = client.opens.saturating_add(1);
        let number = self.number();
        let NewOpen { client, owner, file, access, deny, read, write } = new;
        let (owner, file) = (owner.to_vec(), file.to_vec());
        self.files.entry(file.clone()).or_default().opens.push(number);
        self.opens.insert(number, Open { client, owner, file, access, deny, seqid: 1, read, write });
        Ok(self.stateid(number, 1))
    }

    /// Returns the file for a READ or a WRITE with this stateid.
    pub(crate) fn held(
        &self,
        client: u64,
        stateid: Stateid,
        file: &[u8],
        write: bool,
    ) -> Result<Held<F>, Status> {
        let wanted = if write { WRITE } else { READ };
        if stateid == Stateid::ANONYMOUS || stateid == Stateid::BYPASS {
            if self.in_grace() {
                return Err(Status::Grace);
            }
            let denied = self.opens_of(file).any(|(_, open)| open.deny & wanted != 0);
            let bypass = stateid == Stateid::BYPASS && !write;
            return if denied && !bypass { Err(Status::Locked) } else { Ok(Held::Special) };
        }
        let number = match self.named(client, stateid)? {
            Named::Open(number) => number,
            Named::Locker(number) => {
                self.lockers.get(&number).map(|locker| locker.open).ok_or(Status::BadStateId)?
            }
        };
        let open = self.opens.get(&number).filter(|open| open.file == file).ok_or(Status::BadStateId)?;
        if open.access & wanted == 0 {
            return Err(Status::OpenMode);
        }
        let held = if write { &open.write } else { &open.read };
        held.clone().map(Held::Open).ok_or(Status::OpenMode)
    }
}

impl<F> State<F> {
    fn opens_of(&self, file: &[u8]) -> impl Iterator<Item = (u64, &Open<F>)> {
        let numbers = self.files.get(file).map(|file| &file.opens[..]).unwrap_or_default();
        numbers.iter().filter_map(|number| Some((*number, self.opens.get(number)?)))
    }

    /// Finds an open of a file by its stateid.
    pub(super) fn open_named(&self, client: u64, stateid: Stateid, file: &[u8]) -> Result<u64, Status> {
        match self.named(client, stateid)? {
            Named::Open(number) if self.opens.get(&number).is_some_and(|open| open.file == file) => {
                Ok(number)
            }
            _ => Err(Status::BadStateId),
        }
    }

    /// OPEN_DOWNGRADE: both modes may only lose bits.
    pub(crate) fn downgrade(
        &mut self,
        client: u64,
        stateid: Stateid,
        file: &[u8],
        (access, deny): (u32, u32),
    ) -> Result<Stateid, Status> {
        let number = self.open_named(client, stateid, file)?;
        let open = self.opens.get_mut(&number).ok_or(Status::BadStateId)?;
        if access == 0 || access & !open.access != 0 || deny & !open.deny != 0 {
            return Err(Status::Inval);
        }
        (open.access, open.deny, open.seqid) = (access, deny, next(open.seqid));
        open.read = open.read.take().filter(|_| access & READ != 0);
        open.write = open.write.take().filter(|_| access & WRITE != 0);
        let seqid = open.seqid;
        Ok(self.stateid(number, seqid))
    }

    /// CLOSE: the locks of the open's lock owners go with it.
    pub(crate) fn close(&mut self, client: u64, stateid: Stateid, file: &[u8]) -> Result<Stateid, Status> {
        let number = self.open_named(client, stateid, file)?;
        self.remove_open(number);
        Ok(Stateid::INVALID)
    }

    /// Removes an open and what depends on it.
    pub(super) fn remove_open(&mut self, number: u64) {
        let Some(open) = self.opens.remove(&number) else { return };
        if let Some(client) = self.clients.get_mut(&open.client) {
            client.opens = client.opens.saturating_sub(1);
        }
        let lockers =
            self.lockers.iter().filter(|(_, locker)| locker.open == number).map(|(number, _)| *number);
        for locker in lockers.collect::<Vec<_>>() {
            self.remove_locker(locker);
        }
        if let Some(file) = self.files.get_mut(&open.file) {
            file.opens.retain(|opened| *opened != number);
        }
        self.trim(&open.file);
    }
}

/// Returns the sequence after this one; 0 stands for the latest one of a stateid and is left out.
pub(super) fn next(seqid: u32) -> u32 {
    seqid.wrapping_add(1).max(1)
}
