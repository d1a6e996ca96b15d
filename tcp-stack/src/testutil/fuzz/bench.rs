//! The stack under test, with its buffers and clock, and the invariants that the targets check after every operation.

use crate::buf::{Buf, RxChecksum, RxFrame};
use crate::testutil::{HeapBuf, HeapPool, WireSegment};
use crate::time::{Duration, Instant};
use crate::wire::{EthernetHeader, Ipv4Cidr, Ipv6Cidr, MacAddr};
use crate::{ConnId, Event, Stack, StackConfig, TcpConfig};
use alloc::vec::Vec;
use core::net::{Ipv4Addr, Ipv6Addr};

pub(super) const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub(super) const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
pub(super) const IPV4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
pub(super) const IPV6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)];
/// Port on which the stack listens.
pub(super) const PORT: u16 = 7;
const MTU: usize = 1500;
const BUFFERS: usize = 192;

/// A stack with its buffers and its clock.
#[derive(Debug)]
pub(super) struct Bench {
    pub(super) now: Instant,
    pub(super) stack: Stack<HeapBuf>,
    pub(super) pool: HeapPool,
    /// Frames that have arrived, and the number of frames that the stack receives at a time.
    held: Vec<RxFrame<HeapBuf>>,
    pub(super) burst: usize,
    /// Frames that the stack sent.
    pub(super) sent: Vec<Vec<u8>>,
}

pub(super) fn config() -> StackConfig {
    StackConfig {
        // Short, so that a run ends soon after its last operation.
        tcp: TcpConfig { time_wait_ms: 5_000, syn_retries: 2, ..TcpConfig::default() },
        mac: MAC,
        ipv4: Ipv4Cidr::new(IPV4[0], 24),
        ipv6: Ipv6Cidr::new(IPV6[0], 64),
        connections_max: 8,
        fragments_timeout_ms: 5_000,
        neighbors_max: 8,
        buffers_max: 64,
        held_segments_max: 32,
        held_bytes_max: 64 << 10,
        send_buffer_bytes: 32 << 10,
        receive_window_bytes: 32 << 10,
        ..StackConfig::default()
    }
}

impl Bench {
    pub(super) fn new(config: StackConfig) -> Self {
        let now = Instant::ZERO + Duration::from_secs(1);
        let stack = Stack::new(config, [7; 32]);
        Self {
            now,
            stack,
            pool: HeapPool::new(BUFFERS, 16, MTU + 64),
            held: Vec::new(),
            burst: 1,
            sent: Vec::new(),
        }
    }

    /// Adds a frame to the current burst.
    pub(super) fn receive(&mut self, bytes: &[u8], checksum: RxChecksum) {
        if let Some(buf) = self.pool.copy(bytes) {
            self.held.push(RxFrame { buf, checksum });
        }
        if self.held.len() >= self.burst {
            self.hand_over();
        }
    }

    /// Passes the burst to the stack.
    pub(super) fn hand_over(&mut self) {
        if !self.held.is_empty() {
            self.stack.handle_frames(self.now, self.held.drain(..));
        }
    }

    pub(super) fn wait(&mut self, pause: Duration) {
        self.hand_over();
        self.now += pause;
        self.stack.handle_timeouts(self.now);
    }

    /// Returns the frames that the stack sends now, at most `budget`, each checked to be well formed and within the
    /// MTU.
    pub(super) fn transmit(&mut self, budget: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let Self { stack, pool, now, .. } = self;
        let sent =
            stack.poll_transmit(*now, pool, &mut |frame| frames.push(frame.buf.bytes().to_vec()), budget);
        assert!(sent == frames.len() && sent <= budget, "{} frames, {sent} reported", frames.len());
        for frame in &frames {
            let packet = EthernetHeader::parse(frame).map_or(0, |(_, packet)| packet.len());
            assert!((1..=MTU).contains(&packet), "a packet of {packet} bytes");
            if let Err(error) = WireSegment::parse(frame) {
                panic!("{error}: {frame:02x?}");
            }
        }
        self.sent.clone_from(&frames);
        frames
    }

    /// Checks the invariants that hold between any two calls.
    pub(super) fn check(&self) {
        if let Err(error) = self.stack.audit() {
            panic!("{error}");
        }
        assert_eq!(self.pool.total(), self.pool.capacity(), "a buffer was lost");
        let stats = self.stack.stats();
        let counted = stats.interface.rx_delivered.wrapping_add(stats.drops.total());
        assert_eq!(stats.interface.rx_frames, counted, "frames received are not delivered plus dropped");
    }

    /// Takes all events; consumes the data of those that carry it.
    pub(super) fn drain(&mut self) {
        while let Some(event) = self.stack.poll_event() {
            if let Event::Data { conn, segment, .. } = event {
                self.stack.consumed(conn, segment.len());
            }
        }
    }

    /// Aborts every connection, waits, and checks that no resource is left in use.
    pub(super) fn end(mut self) {
        self.hand_over();
        let conns: Vec<ConnId> = self.stack.connections_from(0).collect();
        for conn in conns {
            self.stack.abort(self.now, conn);
        }
        // Half-open connections and TIME-WAIT end by time alone.
        for _ in 0..600 {
            self.drain();
            self.transmit(64);
            self.check();
            let stats = self.stack.stats();
            if stats.connections == 0 && stats.time_wait_now == 0 && stats.half_open_now == 0 {
                break;
            }
            self.wait(Duration::from_secs(1));
        }
        let stats = self.stack.stats();
        let left = (stats.connections, stats.half_open_now, stats.time_wait_now);
        assert_eq!(left, (0, 0, 0), "{stats:?}");
        // Packets may wait for neighbors that never answer.
        for _ in 0..20 {
            self.wait(Duration::from_secs(1));
            self.transmit(64);
        }
        assert_eq!(self.pool.live(), 0, "buffers that nobody needs: {:?}", self.stack.stats());
    }
}
