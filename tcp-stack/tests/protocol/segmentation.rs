//! TCP segmentation offload: every segment that the application queued leaves the port as one segment.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use tcp_stack::testutil::{HeapBuf, HeapPool, Random, WireSegment, cut, mark_congestion};
use tcp_stack::wire::{EthernetHeader, Ipv4Header, Ipv6Header, TcpFlags};
use tcp_stack::{
    Buf, BufClass, BufPool, ConnId, ConnOptions, Duration, Ecn, Event, Instant, Ipv4Cidr, Ipv6Cidr,
    ListenOptions, MacAddr, RxChecksum, RxFrame, Segmentation, Stack, StackConfig, TcpConfig,
};

/// Two stacks and two links; the port of the first stack cuts frames.
struct Pair {
    stacks: [Stack<HeapBuf>; 2],
    pools: [HeapPool; 2],
    wires: [VecDeque<Vec<u8>>; 2],
    now: Instant,
    /// Payload lengths of the first stack's segments, in the order of departure.
    segments: Vec<usize>,
    /// Frames that its port was given, by number of segments.
    runs: Vec<usize>,
    loss: Random,
    per_mille: u64,
    /// A router marks one of this many ECN-capable segments of the first stack.
    mark_every: usize,
    /// Its segments with CWR, by the number of segments in their frames.
    reduced: Vec<usize>,
    /// Number of marked segments.
    marked: usize,
}

const V4: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
const V6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];

impl Pair {
    fn new(segmentation: Option<Segmentation>, seed: u64, per_mille: u64) -> Self {
        let stack = |host: u8| {
            let index = usize::from(host);
            let config = StackConfig {
                mac: MacAddr([2, 0, 0, 0, 0, host]),
                ipv4: Ipv4Cidr::new(V4[index].parse().unwrap(), 24),
                ipv6: Ipv6Cidr::new(V6[index].parse().unwrap(), 64),
                tx_checksum_offload: host == 0,
                tx_ip_checksum_offload: host == 0,
                segmentation: segmentation.filter(|_| host == 0),
                tcp: TcpConfig { ecn: Ecn::On, ..TcpConfig::default() },
                connections_max: 4,
                buffers_max: 2048,
                ..StackConfig::default()
            };
            Stack::new(config, [host; 32])
        };
        Self {
            stacks: [stack(0), stack(1)],
            pools: [HeapPool::new(4096, 32, 2048), HeapPool::new(4096, 32, 2048)],
            wires: Default::default(),
            now: Instant::ZERO,
            segments: Vec::new(),
            runs: Vec::new(),
            loss: Random::new(seed),
            per_mille,
            mark_every: usize::MAX,
            reduced: Vec::new(),
            marked: 0,
        }
    }

    /// Polls a host: receives, takes events, runs timers, transmits.
    fn turn(&mut self, host: usize) -> Vec<Event<HeapBuf>> {
        let pool = &mut self.pools[host];
        let frames = self.wires[1 - host].drain(..);
        let mut frames = frames.map(|frame| RxFrame {
            buf: pool.copy(&frame).expect("the pool is large enough"),
            checksum: RxChecksum::Unknown,
        });
        let stack = &mut self.stacks[host];
        stack.handle_frames(self.now, &mut frames);
        drop(frames);
        let events = std::iter::from_fn(|| stack.poll_event()).collect();
        stack.handle_timeouts(self.now);
        events
    }

    fn transmit(&mut self, host: usize) {
        let (segments, runs, wire) = (&mut self.segments, &mut self.runs, &mut self.wires[host]);
        let (loss, per_mille) = (&mut self.loss, self.per_mille);
        let (mark_every, reduced, marked) = (self.mark_every, &mut self.reduced, &mut self.marked);
        let mut out = |frame| {
            let mut parts = cut(&frame);
            if host == 0 {
                let sent = parts.iter().filter_map(|part| WireSegment::parse(part).unwrap());
                let reduces =
                    |seen: &WireSegment| seen.payload_len > 0 && seen.header.flags.contains(TcpFlags::CWR);
                reduced.extend(sent.filter(reduces).map(|_| parts.len()));
                for (at, part) in (segments.len() + 1..).zip(&mut parts) {
                    *marked += usize::from(at % mark_every == 0 && mark_congestion(part));
                }
                let lengths = parts.iter().filter_map(|part| payload_len(part));
                segments.extend(lengths.filter(|len| *len > 0));
                runs.push(parts.len());
            }
            wire.extend(parts.into_iter().filter(|_| loss.below(1000) >= per_mille));
        };
        self.stacks[host].poll_transmit(self.now, &mut self.pools[host], &mut out, 64);
        self.now += Duration::from_micros(50);
    }

    /// Opens a connection and sends segments of these lengths; returns the received bytes.
    fn transfer(&mut self, addresses: [&str; 2], lengths: &[usize]) -> Vec<u8> {
        self.stacks[1].listen(9, ListenOptions::default()).unwrap();
        let remote = SocketAddr::new(addresses[1].parse::<IpAddr>().unwrap(), 9);
        let conn = self.stacks[0].connect(self.now, remote, ConnOptions::default()).unwrap();
        let (mut queued, mut bytes, mut arrived, mut open) = (0, 0_usize, Vec::new(), false);
        let wanted = lengths.iter().sum::<usize>();
        for _ in 0..400_000 {
            open |= self.turn(0).iter().any(|event| matches!(event, Event::Connected { .. }));
            while open && queued < lengths.len() && self.send(conn, bytes, lengths[queued]) {
                bytes += lengths[queued];
                queued += 1;
            }
            self.transmit(0);
            for event in self.turn(1) {
                if let Event::Data { conn, segment, .. } = event {
                    arrived.extend_from_slice(segment.bytes());
                    let len = segment.bytes().len();
                    drop(segment);
                    self.stacks[1].consumed(conn, len);
                }
            }
            self.transmit(1);
            if arrived.len() >= wanted && self.stacks[0].info(conn).is_some_and(|info| info.in_flight == 0) {
                break;
            }
        }
        arrived
    }

    fn send(&mut self, conn: ConnId, offset: usize, len: usize) -> bool {
        if self.stacks[0].send_capacity(conn) < len {
            return false;
        }
        let Some(mut buf) = self.pools[0].alloc(BufClass::Data) else { return false };
        for (at, byte) in (offset..).zip(buf.append(len).unwrap()) {
            *byte = pattern(at);
        }
        self.stacks[0].send(self.now, conn, buf).is_ok()
    }
}

fn pattern(offset: usize) -> u8 {
    u8::try_from(offset % 251).unwrap()
}

/// Returns the payload of a TCP segment in a frame, or `None` for another frame.
fn payload_len(frame: &[u8]) -> Option<usize> {
    let l2 = EthernetHeader::LEN;
    let l3 = match frame.get(12..14)? {
        [0x08, 0x00] if frame[l2 + 9] == 6 => Ipv4Header::LEN,
        [0x86, 0xdd] if frame[l2 + 6] == 6 => Ipv6Header::LEN,
        _ => return None,
    };
    assert!(frame.len() <= l2 + 1500, "no segment is longer than the MTU");
    Some(frame.len() - l2 - l3 - usize::from(frame[l2 + l3 + 12] >> 4) * 4)
}

const CARD: Segmentation = Segmentation { bytes_max: 65_000, buffers_max: 40 };

#[test]
fn segments_keep_their_bounds_in_a_run() {
    for addresses in [V4, V6] {
        // FPDUs of a long message, its last one, and another such message.
        let message = [vec![1428; 60], vec![500]].concat();
        let lengths = [message.clone(), message.clone(), vec![64; 20], message].concat();
        let mut pair = Pair::new(Some(CARD), 1, 0);
        let arrived = pair.transfer(addresses, &lengths);
        assert_eq!(pair.segments, lengths);
        assert!(arrived.iter().copied().eq((0..lengths.iter().sum()).map(pattern)));
        assert!(pair.runs.iter().any(|segments| *segments > 20), "{:?}", pair.runs);
        let stats = pair.stacks[0].stats();
        assert!(stats.tcp.runs_out > 0 && stats.tcp.retransmits == 0);
        assert_eq!(stats.tcp.data_segments_out, lengths.len() as u64);
        assert_eq!(pair.pools[0].live(), 0, "every buffer came back");
    }
}

#[test]
fn a_frame_keeps_to_the_limits_of_the_port() {
    for (limits, most) in [
        (Segmentation { bytes_max: 65_000, buffers_max: 8 }, 7),
        (Segmentation { bytes_max: 10_000, buffers_max: 64 }, 7),
        (Segmentation { bytes_max: u32::MAX, buffers_max: u16::MAX }, 45),
        (Segmentation { bytes_max: 65_000, buffers_max: 2 }, 1),
    ] {
        for addresses in [V4, V6] {
            let mut pair = Pair::new(Some(limits), 1, 0);
            pair.transfer(addresses, &[1428; 600]);
            assert_eq!(pair.runs.iter().max(), Some(&most), "{limits:?}");
        }
    }
}

#[test]
fn lost_parts_of_a_run_are_sent_again_one_by_one() {
    for seed in 0..8 {
        let mut random = Random::new(seed);
        let lengths: Vec<usize> =
            (0..600)
                .map(|_| {
                    if random.below(4) == 0 { 1 + usize::try_from(random.below(1428)).unwrap() } else { 1428 }
                })
                .collect();
        let mut pair = Pair::new(Some(CARD), seed, 20);
        let arrived = pair.transfer(if seed % 2 == 0 { V4 } else { V6 }, &lengths);
        assert!(arrived.iter().copied().eq((0..lengths.iter().sum()).map(pattern)), "seed {seed}");
        assert!(pair.stacks[0].stats().tcp.retransmits > 0);
        assert!(pair.segments.iter().all(|len| lengths.contains(len)), "seed {seed}");
        assert_eq!(pair.pools[0].live(), 0, "every buffer came back");
    }
}

/// RFC 3168: every segment of a run is ECN-capable, and a segment with CWR leaves alone: not every card clears CWR on
/// the segments after the first.
#[test]
fn runs_are_ecn_capable_and_cwr_goes_alone() {
    for addresses in [V4, V6] {
        let lengths = [1428; 2000];
        let mut pair = Pair::new(Some(CARD), 1, 0);
        pair.mark_every = 100;
        let arrived = pair.transfer(addresses, &lengths);
        assert!(arrived.iter().copied().eq((0..lengths.iter().sum()).map(pattern)));
        let tcp = pair.stacks[0].stats().tcp;
        assert_eq!((tcp.ect_out, pair.marked, tcp.retransmits), (2000, 20, 0), "{tcp:?}");
        assert!(tcp.ecn_reductions > 5 && tcp.cwr_out > 5, "{tcp:?}");
        assert_eq!(pair.reduced, vec![1; usize::try_from(tcp.cwr_out).unwrap()]);
        assert!(pair.runs.iter().any(|segments| *segments > 5), "{:?}", pair.runs);
    }
}

#[test]
fn without_such_a_port_every_frame_is_a_segment() {
    for addresses in [V4, V6] {
        let mut pair = Pair::new(None, 1, 0);
        let arrived = pair.transfer(addresses, &[1428; 300]);
        assert!(arrived.iter().copied().eq((0..300 * 1428).map(pattern)));
        assert_eq!(pair.runs.iter().max(), Some(&1));
        assert_eq!(pair.stacks[0].stats().tcp.runs_out, 0);
    }
}
