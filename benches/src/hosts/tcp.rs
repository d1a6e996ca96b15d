//! Hosts that use our TCP like sockets: they copy bytes from the application's buffer, and into it.

use dataplane::dpdk::{Mbuf, MbufPool};
use tcp_stack::{Buf, BufClass, BufPool, ConnId, ConnOptions, Event, Instant, RxFrame, Stack};

use super::{BURST, Host, SEED, Sizes, listen_options, place, receiver_address, transmit};

/// Sends a buffer repeatedly, as fast as TCP allows.
#[allow(missing_debug_implementations, reason = "it is nothing but buffers")]
pub struct TcpSender {
    stack: Stack<Mbuf>,
    conn: Option<ConnId>,
    source: Vec<u8>,
    at: usize,
    bytes: u64,
}

impl TcpSender {
    /// Makes a sender of `source`, which must not be shorter than a segment.
    #[must_use]
    pub fn new(sizes: &Sizes, source: Vec<u8>) -> Self {
        Self { stack: Stack::new(sizes.stack(0), SEED), conn: None, source, at: 0, bytes: 0 }
    }

    /// Opens the connection.
    ///
    /// # Errors
    /// The stack refuses the connection.
    pub fn connect(&mut self) -> Result<(), tcp_stack::ConnectError> {
        self.stack.connect(Instant::ZERO, receiver_address(), ConnOptions::default()).map(|_| ())
    }

    /// Returns the bytes copied from the buffer.
    #[must_use]
    pub fn copied(&self) -> u64 {
        self.bytes
    }

    fn send(&mut self, now: Instant, conn: ConnId, pool: &mut MbufPool) {
        let segment = self.stack.emss(conn);
        for _ in 0..BURST {
            if segment == 0 || self.stack.send_capacity(conn) < segment {
                return;
            }
            let end = self.at.wrapping_add(segment);
            let from = if end <= self.source.len() { self.at } else { 0 };
            let Some(bytes) = self.source.get(from..from.wrapping_add(segment)) else { return };
            let Some(mut buf) = pool.alloc(BufClass::Data) else { return };
            let Some(room) = buf.append(segment) else { return };
            room.copy_from_slice(bytes);
            if self.stack.send(now, conn, buf).is_err() {
                return;
            }
            self.at = from.wrapping_add(segment);
            self.bytes = self.bytes.wrapping_add(segment as u64);
        }
    }
}

impl Host for TcpSender {
    #[inline]
    fn step(
        &mut self,
        now: Instant,
        frames: &mut Vec<RxFrame<Mbuf>>,
        pool: &mut MbufPool,
        out: &mut Vec<Mbuf>,
    ) {
        self.stack.handle_frames(now, frames.drain(..));
        while let Some(event) = self.stack.poll_event() {
            match event {
                Event::Connected { conn } => self.conn = Some(conn),
                Event::Closed { .. } => self.conn = None,
                _ => {}
            }
        }
        self.stack.handle_timeouts(now);
        if let Some(conn) = self.conn {
            self.send(now, conn, pool);
        }
        transmit(&mut self.stack, now, pool, out);
    }
}

/// Copies received bytes into a buffer, used as a ring.
#[allow(missing_debug_implementations, reason = "it is nothing but buffers")]
pub struct TcpReceiver {
    stack: Stack<Mbuf>,
    region: Vec<u8>,
    at: usize,
    bytes: u64,
}

impl TcpReceiver {
    /// Makes a receiver that listens.
    ///
    /// # Errors
    /// The stack refuses the listener.
    pub fn new(sizes: &Sizes, region: Vec<u8>) -> Result<Self, tcp_stack::ListenError> {
        let mut stack = Stack::new(sizes.stack(1), SEED);
        stack.listen(super::PORT, listen_options())?;
        Ok(Self { stack, region, at: 0, bytes: 0 })
    }

    /// Returns the bytes copied into the buffer, which are those delivered to the application.
    #[must_use]
    pub fn copied(&self) -> u64 {
        self.bytes
    }

    /// Returns the buffer with the received bytes.
    #[must_use]
    pub fn region(&self) -> &[u8] {
        &self.region
    }
}

impl Host for TcpReceiver {
    #[inline]
    fn step(
        &mut self,
        now: Instant,
        frames: &mut Vec<RxFrame<Mbuf>>,
        pool: &mut MbufPool,
        out: &mut Vec<Mbuf>,
    ) {
        self.stack.handle_frames(now, frames.drain(..));
        while let Some(event) = self.stack.poll_event() {
            if let Event::Data { conn, segment, .. } = event {
                place(&mut self.region, &mut self.at, segment.bytes());
                self.bytes = self.bytes.wrapping_add(segment.len() as u64);
                self.stack.consumed(conn, segment.len());
            }
        }
        self.stack.handle_timeouts(now);
        transmit(&mut self.stack, now, pool, out);
    }
}
