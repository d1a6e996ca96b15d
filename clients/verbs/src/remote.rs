//! A region of a peer, read and written by its name: [`connect_region`].
//!
//! Bytes pass through registered memory of [`WINDOW_BYTES`], cut into requests of [`CHUNK_BYTES`], of which several
//! are in flight. An RDMA Write completes when TCP has accepted it, so that RDMA Reads of no bytes follow, which the
//! peer may answer only after it has placed the bytes before them (RFC 5040 §5.5).

mod connection;
mod error;
mod target;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test may panic, and read the time")]
mod tests;

use std::net::SocketAddr;

use rdma::verbs::Access;

pub use connection::{RegionConnection, RegionOptions, RegionRequest, RegionShape};
pub use error::{Ending, RemoteError};
pub use target::RegionTarget;

/// Bytes of one RDMA Write or Read, at most.
const CHUNK_BYTES: usize = 128 << 10;
/// Requests in flight, at most.
const CHUNKS: u16 = 8;
/// Bytes in flight, at most.
const WINDOW_BYTES: usize = CHUNK_BYTES * CHUNKS as usize;
/// Requests of the send queue: the chunks, and a proof behind the one before.
const SEND_QUEUE: u16 = CHUNKS + 2;
/// Memory and queues of a connection.
const SHAPE: RegionShape =
    RegionShape { window_bytes: WINDOW_BYTES as u64, requests: SEND_QUEUE, reads: CHUNKS };

/// A region of a peer, over a connection of its own. The connection ends when the value is dropped, and with the first
/// error of the peer or the network: later calls return [`RemoteError::Closed`].
#[derive(Debug)]
pub struct RemoteRegion {
    connection: RegionConnection,
    /// Number of the next request.
    next: u64,
}

/// Connects to a region of a peer, with a device in this process: `target` is `HOST:PORT/NAME`, where an IPv6 address
/// stands in brackets and `:PORT` may be left out if it is [7400](crate::REGION_PORT). The peer may be `iwarpd`, a
/// program that offers regions ([`Context::serve_regions`](crate::Context::serve_regions)), or `iwarpctl serve`.
///
/// # Errors
/// The target is not written as above, the peer cannot be reached, has no such region, or refuses.
pub fn connect_region(target: &str, options: &RegionOptions) -> Result<RemoteRegion, RemoteError> {
    let connection = RegionConnection::open(&target.parse()?, options, &SHAPE)?;
    Ok(RemoteRegion { connection, next: 0 })
}

impl RemoteRegion {
    /// Returns the name of the region.
    pub fn name(&self) -> &str {
        &self.connection.target().name
    }

    /// Returns the peer's address and port.
    pub const fn peer(&self) -> SocketAddr {
        self.connection.peer()
    }

    /// Returns the length of the region, bytes.
    pub const fn bytes(&self) -> u64 {
        self.connection.bytes()
    }

    /// Returns the rights that the program has asked for.
    pub const fn access(&self) -> Access {
        self.connection.access()
    }

    /// Returns true until the connection has ended, as far as the calls before have seen.
    pub const fn is_open(&self) -> bool {
        self.connection.is_open()
    }

    /// Reads the bytes at an offset (RDMA Read). Bytes that others write meanwhile may be mixed with older ones.
    ///
    /// # Errors
    /// The bytes are not all inside the region, or the right to read was not asked for: nothing is sent. The connection
    /// has ended, or the peer was silent for the timeout: parts of `out` may have been read.
    pub fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), RemoteError> {
        self.connection.check(Access::REMOTE_READ, offset, out.len())?;
        let (mut asked, bytes) = (0_usize, out.len());
        for part in out.chunks_mut(CHUNK_BYTES) {
            while asked < bytes && self.in_flight() < usize::from(self.connection.reads_max()) {
                let len = bytes.saturating_sub(asked).min(CHUNK_BYTES);
                let (number, local) = (self.number(), (place(asked), length(len)));
                self.connection.post_read(number, local, offset.saturating_add(asked as u64))?;
                asked = asked.saturating_add(len);
            }
            let done = self.connection.complete()?;
            let read = self.connection.window_bytes(done.offset, done.length)?;
            part.iter_mut().zip(read).for_each(|(to, from)| *to = *from);
        }
        Ok(())
    }

    /// Writes bytes to an offset (RDMA Write), and returns when they are in the peer's memory.
    ///
    /// # Errors
    /// As for [`Self::read`]. After the connection has ended, any of the bytes may have been written.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RemoteError> {
        self.connection.check(Access::REMOTE_WRITE, offset, bytes.len())?;
        let mut sent = 0_usize;
        for (chunk_number, chunk) in (1_u64..).zip(bytes.chunks(CHUNK_BYTES)) {
            while self.in_flight().saturating_sub(self.proofs()) >= usize::from(CHUNKS) {
                self.connection.complete()?;
            }
            let (number, local) = (self.number(), (place(sent), length(chunk.len())));
            let window = self.connection.window_bytes(local.0, local.1)?;
            window.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            self.connection.post_write(number, local, offset.saturating_add(sent as u64))?;
            sent = sent.saturating_add(chunk.len());
            if chunk_number % u64::from(CHUNKS) == 0 {
                self.prove(offset)?;
            }
        }
        if !bytes.is_empty() {
            self.prove(offset)?;
        }
        while self.in_flight() > 0 {
            self.connection.complete()?;
        }
        Ok(())
    }

    /// Asks for the proof that all bytes so far are placed, once the one before has come: bytes without are bounded.
    fn prove(&mut self, at: u64) -> Result<(), RemoteError> {
        while self.proofs() > 0 {
            self.connection.complete()?;
        }
        let number = self.number();
        self.connection.post_read(number, (0, 0), at)
    }

    fn number(&mut self) -> u64 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    fn in_flight(&self) -> usize {
        self.connection.in_flight().len()
    }

    /// Returns the number of RDMA Reads of no bytes in flight.
    fn proofs(&self) -> usize {
        self.connection.in_flight().filter(|request| request.length == 0).count()
    }
}

/// Returns the place in the window of a transfer's byte at the start of a chunk.
const fn place(at: usize) -> u64 {
    (at % WINDOW_BYTES) as u64
}

/// Returns the length of a chunk.
fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
