//! A connection to a peer's region.

use std::net::SocketAddr;
use std::time::Duration;

use rdma::service::{Grant, ServiceError, decode_reply, encode_request};
use rdma::{Access, Stag};

use super::{Peer, Way, nanoseconds, refusal};
use crate::args::{Link as Options, Target};
use crate::clock::Clock;
use crate::command::read_token;
use crate::failure::Failure;

/// RDMA Reads that we may have outstanding.
pub const READS_MAX: u16 = 128;
/// Work that can wait: the Reads, and what `put` posts.
pub const SEND_QUEUE: u16 = READS_MAX + 8;

/// A connection that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// With whom.
    pub target: &'a Target,
    /// How.
    pub options: &'a Options,
    /// What the peer is told.
    pub private_data: &'a [u8],
    /// Bytes of memory that are kept for the work.
    pub window: u32,
    /// How long the peer may be silent.
    pub patience: Duration,
}

/// What connections are made of: some TCP, and what carries RDMA over it.
pub trait Carrier {
    /// Connects.
    ///
    /// # Errors
    /// The peer cannot be reached, or there is nothing to reach it with.
    fn open(&mut self, request: &Request<'_>) -> Result<Box<dyn Wire + '_>, Failure>;
}

/// What puts bytes into memory.
pub type Use<'a> = dyn FnMut(&mut [u8]) -> Result<(), Failure> + 'a;
/// What looks at bytes of memory.
pub type Look<'a> = dyn FnMut(&[u8]) -> Result<(), Failure> + 'a;

/// A connection, with a window of memory that its work is done in. Every error is the end of it.
#[allow(clippy::missing_errors_doc, reason = "said once, above")]
pub trait Wire {
    /// The peer.
    fn peer(&self) -> SocketAddr;
    /// Waits for the peer's answer.
    fn agree(&mut self) -> Result<Agreed, Failure>;
    /// Has bytes of the window filled, fewer at its end.
    fn fill(&mut self, offset: u64, length: u32, with: &mut Use<'_>) -> Result<(), Failure>;
    /// Has bytes of the window looked at.
    fn show(&mut self, offset: u64, length: u32, to: &mut Look<'_>) -> Result<(), Failure>;
    /// Posts an RDMA Write of so many bytes at a place of the window.
    fn write(&mut self, wr_id: u64, from: (u64, u32), to: (Stag, u64)) -> Result<(), Failure>;
    /// Posts an RDMA Read of so many bytes to a place of the window.
    fn read(&mut self, wr_id: u64, to: (u64, u32), from: (Stag, u64)) -> Result<(), Failure>;
    /// Waits for the next piece of work to be finished, in the order of posting.
    fn completion(&mut self) -> Result<Done, Failure>;
    /// Ends the connection, all work being done.
    fn close(self: Box<Self>);
}

/// What the peer has answered.
#[derive(Clone, Debug)]
pub struct Agreed {
    /// In these words.
    pub private_data: Box<[u8]>,
    /// What both sides agreed on; `None`: it says no.
    pub terms: Option<Terms>,
}

/// What both sides agreed on.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The revision of MPA.
    pub rev: u8,
    /// Whether FPDUs have a CRC.
    pub crc: bool,
    /// Reads that may be outstanding.
    pub ord: u16,
}

/// A finished RDMA Write or Read.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// The number that it was posted with.
    pub wr_id: u64,
    /// Its bytes.
    pub bytes: u32,
}

/// A part of the peer's region that lies inside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// The tagged offset of its first byte.
    start: u64,
    pub(super) length: u64,
}

impl Reach {
    /// The tagged offset of an byte of it.
    pub(super) const fn at(&self, byte: u64) -> u64 {
        self.start.saturating_add(byte)
    }
}

/// A connection over which a region was granted.
pub(super) struct Link<'a> {
    wire: Box<dyn Wire + 'a>,
    target: Target,
    grant: Grant,
    terms: Terms,
    connect: Duration,
}

impl<'a> Link<'a> {
    /// Connects, and asks for the region with these rights. `window` bytes of memory are kept for the work.
    pub(super) fn open(
        target: &Target,
        options: &Options,
        access: Access,
        window: u32,
        way: &'a mut Way<'_>,
    ) -> Result<Self, Failure> {
        let token = options.token_file.as_deref().map(read_token).transpose()?;
        let token = token.as_ref().map_or(&[][..], |token| token.as_bytes());
        let private_data = encode_request(&target.region, access, token)
            .ok_or_else(|| Failure::usage(format!("`{}` cannot be asked for", target.region)))?;
        let clock = Clock::start();
        let patience = way.patience;
        let request = Request { target, options, private_data: &private_data, window, patience };
        let mut wire = way.carrier.open(&request)?;
        let Agreed { private_data, terms } = wire.agree()?;
        let grant = match (terms, decode_reply(&private_data)) {
            (Some(terms), Ok(grant)) => Ok((terms, grant)),
            // It says no, and grants something all the same.
            (None, Ok(_)) => Err(ServiceError::NotAnAnswer),
            (_, Err(error)) => Err(error),
        };
        let (terms, grant) = grant.map_err(|error| refusal::rejected(error, target, wire.peer()))?;
        Ok(Self { wire, target: target.clone(), grant, terms, connect: clock.now() })
    }

    /// Checks that so many bytes from an offset lie inside the region.
    pub(super) fn reach(&self, offset: u64, length: u64) -> Result<Reach, Failure> {
        let bytes = self.grant.bytes;
        if offset.checked_add(length).is_none_or(|end| end > bytes) {
            return Err(refusal::outside(&self.target, length, bytes));
        }
        Ok(Reach { start: self.grant.base_to.wrapping_add(offset), length })
    }

    /// All from an offset to the region's end.
    pub(super) fn reach_to_end(&self, offset: u64) -> Result<Reach, Failure> {
        self.reach(offset, self.grant.bytes.saturating_sub(offset))
    }

    /// Reads that may be outstanding.
    pub(super) fn reads_max(&self) -> u32 {
        self.terms.ord.into()
    }

    /// Has bytes of the window filled.
    pub(super) fn fill(&mut self, offset: u64, length: u32, with: &mut Use<'_>) -> Result<(), Failure> {
        self.wire.fill(offset, length, with)
    }

    /// Has bytes of the window looked at.
    pub(super) fn show(&mut self, offset: u64, length: u32, to: &mut Look<'_>) -> Result<(), Failure> {
        self.wire.show(offset, length, to)
    }

    /// Posts an RDMA Write of bytes of the window.
    pub(super) fn write(&mut self, wr_id: u64, offset: u64, length: u32, to: u64) -> Result<(), Failure> {
        self.wire.write(wr_id, (offset, length), (self.grant.stag, to))
    }

    /// Posts an RDMA Read into bytes of the window.
    pub(super) fn read(&mut self, wr_id: u64, offset: u64, length: u32, to: u64) -> Result<(), Failure> {
        self.wire.read(wr_id, (offset, length), (self.grant.stag, to))
    }

    /// Waits for the next piece of work to be finished, in the order of posting.
    pub(super) fn completion(&mut self) -> Result<Done, Failure> {
        self.wire.completion()
    }

    /// The peer, and what was agreed with it.
    pub(super) fn peer(&self, target: &Target) -> Peer {
        Peer {
            peer: self.wire.peer(),
            region: target.region.clone(),
            mpa_revision: self.terms.rev,
            crc: self.terms.crc,
            connect_ns: nanoseconds(self.connect),
        }
    }

    /// Ends the connection, all work being done.
    pub(super) fn close(self) {
        self.wire.close();
    }
}
