//! A connection over which a peer grants one of its regions.
//!
//! `put`, `get`, `ping` and `bench` open a [`RegionSession`]; the session connects by a [`Connector`] and posts its
//! work to an [`RdmaConnection`].

use std::net::SocketAddr;
use std::time::Duration;

use iwarp_control::Exit;
use iwarp_terminal::Failure;
use iwarp_terminal::clock::Clock;
use rdma::service::{Grant, ServiceError, Token, decode_reply, encode_request};
use rdma::{Access, Stag};

use crate::options::{ConnectOptions, Target};
use crate::report::Peer;
use crate::{Context, nanoseconds, refusal};

/// The ORD that the initiator requests: RDMA Reads in flight (RFC 6581 §3.2).
pub const READS_MAX: u16 = 128;
/// Work requests of the send queue: the Reads, and the Writes that `put` posts.
pub const SEND_QUEUE: u16 = READS_MAX + 8;

/// A connection to open.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionRequest<'a> {
    /// The peer and the region.
    pub target: &'a Target,
    /// Options of the connection.
    pub options: &'a ConnectOptions,
    /// Private data of the MPA request: the request to the region service.
    pub private_data: &'a [u8],
    /// Bytes of the local memory that Writes read from and Reads place into.
    pub window_bytes: u32,
    /// The longest silence of the peer.
    pub timeout: Duration,
}

/// Opens connections over one TCP: the kernel's, or that of a dataplane.
pub trait Connector {
    /// Opens a TCP connection and sends the MPA request.
    ///
    /// # Errors
    /// The peer is unreachable, or a local resource is missing.
    fn open(&mut self, request: &ConnectionRequest<'_>) -> Result<Box<dyn RdmaConnection + '_>, Failure>;
}

/// Fills bytes of the window.
pub type Fill<'a> = dyn FnMut(&mut [u8]) -> Result<(), Failure> + 'a;
/// Reads bytes of the window.
pub type Inspect<'a> = dyn FnMut(&[u8]) -> Result<(), Failure> + 'a;

/// An RDMA connection with a window of local memory. Every error ends the connection.
#[allow(clippy::missing_errors_doc, reason = "stated once, above")]
pub trait RdmaConnection {
    /// Returns the peer's address and port.
    fn peer(&self) -> SocketAddr;
    /// Waits for the MPA reply.
    fn wait_reply(&mut self) -> Result<ConnectReply, Failure>;
    /// Calls `fill` on `length` bytes of the window from `offset`, or on fewer at the window's end.
    fn fill(&mut self, offset: u64, length: u32, fill: &mut Fill<'_>) -> Result<(), Failure>;
    /// Calls `inspect` on `length` bytes of the window from `offset`, or on fewer at the window's end.
    fn inspect(&mut self, offset: u64, length: u32, inspect: &mut Inspect<'_>) -> Result<(), Failure>;
    /// Posts an RDMA Write of a part of the window (offset, length) to an STag and tagged offset.
    fn post_write(&mut self, wr_id: u64, from: (u64, u32), to: (Stag, u64)) -> Result<(), Failure>;
    /// Posts an RDMA Read from an STag and tagged offset into a part of the window (offset, length).
    fn post_read(&mut self, wr_id: u64, to: (u64, u32), from: (Stag, u64)) -> Result<(), Failure>;
    /// Posts Immediate Data (RFC 7306 §6).
    fn post_immediate(&mut self, wr_id: u64, data: [u8; 8]) -> Result<(), Failure>;
    /// Waits for the next completion; completions come in the order of posting.
    fn wait_completion(&mut self) -> Result<Completion, Failure>;
    /// Closes the connection after the last completion.
    fn close(self: Box<Self>);
}

/// The reply to an MPA request.
#[derive(Clone, Debug)]
pub struct ConnectReply {
    /// Private data of the reply: the answer of the region service.
    pub private_data: Box<[u8]>,
    /// The negotiated parameters; `None` if the peer rejected the connection.
    pub negotiated: Option<Negotiated>,
}

/// Parameters that MPA negotiated.
#[derive(Clone, Copy, Debug)]
pub struct Negotiated {
    /// The MPA revision: 1 or 2.
    pub rev: u8,
    /// True if FPDUs carry a CRC.
    pub crc: bool,
    /// RDMA Reads that may be in flight.
    pub ord: u16,
}

/// The completion of an RDMA Write or Read.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The identifier that it was posted with.
    pub wr_id: u64,
    /// Bytes written or read.
    pub bytes: u32,
}

/// A range of the peer's region, checked to lie inside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionRange {
    /// The tagged offset of its first byte.
    start: u64,
    /// Its length in bytes.
    pub(super) length: u64,
}

impl RegionRange {
    /// Returns the tagged offset of a byte of the range.
    pub(super) const fn tagged_offset(&self, byte: u64) -> u64 {
        self.start.saturating_add(byte)
    }

    /// Returns the range without its first bytes.
    pub(super) const fn behind(&self, bytes: u64) -> Self {
        Self { start: self.start.saturating_add(bytes), length: self.length.saturating_sub(bytes) }
    }
}

/// A connection over which the peer granted a region.
pub(super) struct RegionSession<'a> {
    connection: Box<dyn RdmaConnection + 'a>,
    target: Target,
    grant: Grant,
    negotiated: Negotiated,
    /// Time that TCP, MPA and the grant took.
    connect_time: Duration,
}

impl<'a> RegionSession<'a> {
    /// Connects and requests `access` to the region of `target`.
    ///
    /// # Errors
    /// The token file is unreadable, the peer is unreachable, or it refuses.
    pub(super) fn open(
        target: &Target,
        options: &ConnectOptions,
        access: Access,
        window_bytes: u32,
        context: &'a mut Context<'_>,
    ) -> Result<Self, Failure> {
        let token = options.token_file.as_deref().map(read_token).transpose()?;
        let token = token.as_ref().map_or(&[][..], |token| token.as_bytes());
        let private_data = encode_request(&target.region, access, token)
            .ok_or_else(|| Failure::usage(format!("`{}` is not the name of a region", target.region)))?;
        let clock = Clock::start();
        let timeout = context.timeout;
        let request =
            ConnectionRequest { target, options, private_data: &private_data, window_bytes, timeout };
        let mut connection = context.connector.open(&request)?;
        let ConnectReply { private_data, negotiated } = connection.wait_reply()?;
        let granted = match (negotiated, decode_reply(&private_data)) {
            (Some(negotiated), Ok(grant)) => Ok((negotiated, grant)),
            // A rejection that carries a grant is not an answer of the region service.
            (None, Ok(_)) => Err(ServiceError::NotAnAnswer),
            (_, Err(error)) => Err(error),
        };
        let (negotiated, grant) =
            granted.map_err(|error| refusal::rejected(error, target, connection.peer()))?;
        let connect_time = clock.now();
        Ok(Self { connection, target: target.clone(), grant, negotiated, connect_time })
    }

    /// Returns the range of `length` bytes from `offset`.
    ///
    /// # Errors
    /// The range ends beyond the region.
    pub(super) fn range(&self, offset: u64, length: u64) -> Result<RegionRange, Failure> {
        let bytes = self.grant.bytes;
        if offset.checked_add(length).is_none_or(|end| end > bytes) {
            return Err(refusal::outside(&self.target, length, bytes));
        }
        Ok(RegionRange { start: self.grant.base_to.wrapping_add(offset), length })
    }

    /// Returns the range from `offset` to the region's end.
    ///
    /// # Errors
    /// `offset` lies beyond the region.
    pub(super) fn range_to_end(&self, offset: u64) -> Result<RegionRange, Failure> {
        self.range(offset, self.grant.bytes.saturating_sub(offset))
    }

    /// Returns the number of RDMA Reads that may be in flight.
    pub(super) fn reads_max(&self) -> u32 {
        self.negotiated.ord.into()
    }

    /// Calls `fill` on bytes of the window.
    pub(super) fn fill(&mut self, offset: u64, length: u32, fill: &mut Fill<'_>) -> Result<(), Failure> {
        self.connection.fill(offset, length, fill)
    }

    /// Calls `inspect` on bytes of the window.
    pub(super) fn inspect(
        &mut self,
        offset: u64,
        length: u32,
        inspect: &mut Inspect<'_>,
    ) -> Result<(), Failure> {
        self.connection.inspect(offset, length, inspect)
    }

    /// Posts an RDMA Write of bytes of the window to a tagged offset.
    pub(super) fn post_write(
        &mut self,
        wr_id: u64,
        offset: u64,
        length: u32,
        to: u64,
    ) -> Result<(), Failure> {
        self.connection.post_write(wr_id, (offset, length), (self.grant.stag, to))
    }

    /// Posts an RDMA Read from a tagged offset into bytes of the window.
    pub(super) fn post_read(
        &mut self,
        wr_id: u64,
        offset: u64,
        length: u32,
        from: u64,
    ) -> Result<(), Failure> {
        self.connection.post_read(wr_id, (offset, length), (self.grant.stag, from))
    }

    /// Posts Immediate Data, for a program that watches the region.
    pub(super) fn post_immediate(&mut self, wr_id: u64, number: u64) -> Result<(), Failure> {
        self.connection.post_immediate(wr_id, number.to_be_bytes())
    }

    /// Waits for the next completion; completions come in the order of posting.
    pub(super) fn wait_completion(&mut self) -> Result<Completion, Failure> {
        self.connection.wait_completion()
    }

    /// Returns the peer and the negotiated parameters, for a report.
    pub(super) fn peer(&self, target: &Target) -> Peer {
        Peer {
            peer: self.connection.peer(),
            region: target.region.clone(),
            mpa_revision: self.negotiated.rev,
            crc: self.negotiated.crc,
            connect_ns: nanoseconds(self.connect_time),
        }
    }

    /// Closes the connection after the last completion.
    pub(super) fn close(self) {
        self.connection.close();
    }
}

/// Reads a token from a file: a token on the command line would be visible in the list of processes.
///
/// # Errors
/// The file is unreadable or holds no token.
pub fn read_token(file: &std::path::Path) -> Result<Token, Failure> {
    iwarp_config::token_from_file(file).map_err(|reason| {
        Failure::new(Exit::Failed, "token", format!("no token can be read from {}: {reason}", file.display()))
    })
}
