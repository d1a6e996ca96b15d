//! A connection over which a peer grants one of its regions.
//!
//! `put`, `get`, `ping` and `bench` open a [`RegionSession`]; the session opens a [`Connection`] and posts its work
//! there.

use std::time::Duration;

use iwarp_control::Exit;
use iwarp_terminal::Failure;
use iwarp_terminal::clock::Clock;
use rdma::Access;
use rdma::service::{Grant, ServiceError, Token, decode_reply, encode_request};

use crate::connection::{Completion, ConnectReply, Connection, ConnectionRequest, Negotiated};
use crate::options::{ConnectOptions, Target};
use crate::report::Peer;
use crate::{Context, nanoseconds, refusal};

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
pub(super) struct RegionSession {
    connection: Connection,
    target: Target,
    grant: Grant,
    negotiated: Negotiated,
    /// Time that TCP, MPA and the grant took.
    connect_time: Duration,
}

impl RegionSession {
    /// Connects and requests `access` to the region of `target`.
    ///
    /// # Errors
    /// The token file is unreadable, the peer is unreachable, or it refuses.
    pub(super) fn open(
        target: &Target,
        options: &ConnectOptions,
        access: Access,
        window_bytes: u32,
        context: &Context<'_>,
    ) -> Result<Self, Failure> {
        let token = options.token_file.as_deref().map(read_token).transpose()?;
        let token = token.as_ref().map_or(&[][..], |token| token.as_bytes());
        let private_data = encode_request(&target.region, access, token)
            .ok_or_else(|| Failure::usage(format!("`{}` is not the name of a region", target.region)))?;
        let clock = Clock::start();
        let timeout = context.timeout;
        let private_data = &private_data;
        let request = ConnectionRequest { target, options, private_data, window_bytes, rtr: None, timeout };
        let mut connection = Connection::open(&request)?;
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

    /// Returns bytes of the window, fewer at its end.
    pub(super) fn window(&mut self, offset: u64, length: u32) -> &mut [u8] {
        self.connection.window(offset, length)
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
