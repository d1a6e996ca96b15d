//! A connection over which a peer grants one of its regions.
//!
//! `put`, `get`, `ping` and `bench` open a [`RegionSession`] and post their work there, on a device in this process.

use std::time::Duration;

use iwarp_control::Exit;
use iwarp_terminal::Failure;
use iwarp_verbs::{Access, RegionConnection, RegionOptions, RegionRequest, RegionShape, RemoteError, Token};

use crate::options::{ConnectOptions, Target};
use crate::report::Peer;
use crate::{Context, nanoseconds, refusal};

/// RDMA Reads in flight that the peer is asked for (RFC 6581 §3.2).
const READS_MAX: u16 = 128;
/// Requests in flight: the Reads, and the Writes of `put`.
const REQUESTS_MAX: u16 = READS_MAX + 16;

/// A range of the peer's region, checked to lie inside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionRange {
    /// The offset of its first byte in the region.
    start: u64,
    /// Its length in bytes.
    pub(super) length: u64,
}

impl RegionRange {
    /// Returns the offset in the region of a byte of the range.
    pub(super) const fn offset(&self, byte: u64) -> u64 {
        self.start.saturating_add(byte)
    }

    /// Returns the range without its first bytes.
    pub(super) const fn behind(&self, bytes: u64) -> Self {
        Self { start: self.start.saturating_add(bytes), length: self.length.saturating_sub(bytes) }
    }
}

/// A connection over which the peer granted a region.
pub(super) struct RegionSession {
    connection: RegionConnection,
    target: Target,
    timeout: Duration,
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
        let ConnectOptions { token_file, crc, mpa_revision } = options;
        let token = token_file.as_deref().map(read_token).transpose()?;
        let timeout = context.timeout;
        let options = RegionOptions {
            token,
            timeout,
            crc: *crc,
            revision: *mpa_revision,
            ..RegionOptions::new(access)
        };
        let shape =
            RegionShape { window_bytes: window_bytes.into(), requests: REQUESTS_MAX, reads: READS_MAX };
        let connection = RegionConnection::open(&target.region, &options, &shape)
            .map_err(|error| refusal::of(error, target, timeout))?;
        Ok(Self { connection, target: target.clone(), timeout })
    }

    /// Returns the range of `length` bytes from `offset`.
    ///
    /// # Errors
    /// The range ends beyond the region.
    pub(super) fn range(&self, offset: u64, length: u64) -> Result<RegionRange, Failure> {
        let bytes = self.connection.bytes();
        if offset.checked_add(length).is_none_or(|end| end > bytes) {
            return Err(refusal::outside(&self.target, length, bytes));
        }
        Ok(RegionRange { start: offset, length })
    }

    /// Returns the range from `offset` to the region's end.
    ///
    /// # Errors
    /// `offset` lies beyond the region.
    pub(super) fn range_to_end(&self, offset: u64) -> Result<RegionRange, Failure> {
        self.range(offset, self.connection.bytes().saturating_sub(offset))
    }

    /// Returns the number of RDMA Reads that may be in flight.
    pub(super) fn reads_max(&self) -> u32 {
        self.connection.reads_max().into()
    }

    /// Returns bytes of the window that no request in flight uses.
    pub(super) fn window(&mut self, offset: u64, length: u32) -> Result<&mut [u8], Failure> {
        let window = self.connection.window_mut(offset, length);
        window.ok_or_else(|| Failure::new(Exit::Failed, "internal", "the window is in use"))
    }

    /// Posts an RDMA Write of bytes of the window to an offset of the region.
    pub(super) fn post_write(
        &mut self,
        wr_id: u64,
        offset: u64,
        length: u32,
        to: u64,
    ) -> Result<(), Failure> {
        let posted = self.connection.post_write(wr_id, (offset, length), to);
        posted.map_err(|error| self.failure(error))
    }

    /// Posts an RDMA Read from an offset of the region into bytes of the window.
    pub(super) fn post_read(
        &mut self,
        wr_id: u64,
        offset: u64,
        length: u32,
        from: u64,
    ) -> Result<(), Failure> {
        let posted = self.connection.post_read(wr_id, (offset, length), from);
        posted.map_err(|error| self.failure(error))
    }

    /// Posts Immediate Data, for a program that watches the region.
    pub(super) fn post_immediate(&mut self, wr_id: u64, number: u64) -> Result<(), Failure> {
        let posted = self.connection.post_immediate(wr_id, number.to_be_bytes());
        posted.map_err(|error| self.failure(error))
    }

    /// Waits for the next completion; completions come in the order of posting.
    pub(super) fn wait_completion(&mut self) -> Result<RegionRequest, Failure> {
        let completed = self.connection.complete();
        completed.map_err(|error| self.failure(error))
    }

    fn failure(&self, error: RemoteError) -> Failure {
        refusal::of(error, &self.target, self.timeout)
    }

    /// Returns the peer and the negotiated parameters, for a report.
    pub(super) fn peer(&self, target: &Target) -> Peer {
        Peer {
            peer: self.connection.peer(),
            region: target.region.name.clone(),
            mpa_revision: self.connection.revision(),
            crc: self.connection.crc(),
            connect_ns: nanoseconds(self.connection.connect_time()),
        }
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
