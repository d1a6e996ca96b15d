//! Two stacks that disagree about their sequence numbers: their acknowledgments must not loop for ever.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tcp_stack::testutil::{HeapBuf, HeapPool, WireSegment};
use tcp_stack::{
    Buf, BufClass, BufPool, ConnId, ConnOptions, Duration, Event, Instant, Ipv4Cidr, Ipv6Cidr, ListenOptions,
    MacAddr, RxChecksum, RxFrame, Stack, StackConfig, State, TxFrame,
};

const PORT: u16 = 7;

fn address(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

fn address_v6(n: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into())
}

/// Two stacks, and between them a middlebox that shifts sequence numbers.
struct Pair {
    stacks: [Stack<HeapBuf>; 2],
    pools: [HeapPool; 2],
    conns: [Option<ConnId>; 2],
    now: Instant,
    /// Shift of the sequence numbers per direction.
    shifts: [u32; 2],
    /// Times of segments without text, from either stack.
    acks: Vec<Instant>,
}

fn shift(bytes: &mut [u8], at: usize, by: u32) {
    let field: &mut [u8; 4] = bytes.get_mut(at..).unwrap().first_chunk_mut().unwrap();
    *field = u32::from_be_bytes(*field).wrapping_add(by).to_be_bytes();
}

impl Pair {
    fn new(shifts: [u32; 2], ipv6: bool) -> Self {
        let stack = |n: u8| {
            let config = StackConfig {
                mac: MacAddr([2, 0, 0, 0, 0, n]),
                ipv4: Ipv4Cidr::new(address(n), 24),
                ipv6: Ipv6Cidr::new(address_v6(n), 64),
                connections_max: 4,
                buffers_max: 64,
                ..StackConfig::default()
            };
            Stack::new(config, [n; 32])
        };
        let pools = [(); 2].map(|()| HeapPool::new(64, 16, 1600));
        let mut pair = Self {
            stacks: [stack(1), stack(2)],
            pools,
            conns: [None; 2],
            now: Instant::ZERO,
            shifts,
            acks: Vec::new(),
        };
        pair.stacks[1].listen(PORT, ListenOptions::default()).unwrap();
        let remote: IpAddr = if ipv6 { address_v6(2).into() } else { address(2).into() };
        let remote = SocketAddr::new(remote, PORT);
        let opened = pair.stacks[0].connect(pair.now, remote, ConnOptions::default()).unwrap();
        pair.conns[0] = Some(opened);
        pair.run_for(Duration::from_millis(200));
        assert_eq!([pair.state(0), pair.state(1)], [Some(State::Established); 2]);
        // From here on nothing is shifted.
        pair.shifts = [0; 2];
        pair.acks.clear();
        pair
    }

    fn state(&self, side: usize) -> Option<State> {
        Some(self.stacks[side].info(self.conns[side]?)?.state)
    }

    /// Carries the frames of one stack to the other; returns their number.
    fn carry(&mut self, from: usize) -> usize {
        let mut frames = Vec::new();
        let mut take = |frame: TxFrame<HeapBuf>| frames.push(frame.buf.bytes().to_vec());
        self.stacks[from].poll_transmit(self.now, &mut self.pools[from], &mut take, usize::MAX);
        let (out, back) = (self.shifts[from], self.shifts[1 - from]);
        for bytes in &mut frames {
            if let Some(seen) = WireSegment::parse(bytes).unwrap() {
                self.acks.extend((seen.seq_len() == 0).then_some(self.now));
                // Offset of the sequence number after Ethernet, IP and the ports.
                let seq = 14 + if seen.src.is_ipv4() { 20 } else { 40 } + 4;
                shift(bytes, seq, out);
                shift(bytes, seq + 4, 0_u32.wrapping_sub(back));
            }
        }
        let count = frames.len();
        let frames =
            frames.iter().map(|bytes| RxFrame { buf: HeapBuf::new(bytes), checksum: RxChecksum::Good });
        self.stacks[1 - from].handle_frames(self.now, frames);
        count
    }

    fn settle(&mut self) {
        for _ in 0..1000 {
            for (stack, conn) in self.stacks.iter_mut().zip(&mut self.conns) {
                while let Some(event) = stack.poll_event() {
                    if let Event::Accepted { conn: accepted, .. } = event {
                        *conn = Some(accepted);
                    }
                }
            }
            if self.carry(0) + self.carry(1) == 0 {
                return;
            }
        }
        panic!("they talk without a pause at {:?}: {} acknowledgments", self.now, self.acks.len());
    }

    fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        self.settle();
        while self.now < until {
            let next = self.stacks.iter().filter_map(Stack::next_deadline).min().unwrap_or(until);
            self.now = next.clamp(self.now, until);
            for stack in &mut self.stacks {
                stack.handle_timeouts(self.now);
            }
            self.settle();
        }
    }

    fn send(&mut self, side: usize) {
        let mut buf = self.pools[side].alloc(BufClass::Data).unwrap();
        buf.append(100).unwrap().fill(0);
        self.stacks[side].send(self.now, self.conns[side].unwrap(), buf).unwrap();
    }

    /// RFC 5961 §7: limits the unsolicited acknowledgments within five seconds.
    fn expect_few_acks(&self) {
        let five = Duration::from_secs(5);
        for at in &self.acks {
            let count = self.acks.iter().filter(|other| *other >= at && **other < *at + five).count();
            assert!(count <= 50, "{count} in the five seconds from {at:?}");
        }
    }
}

#[test]
fn streams_shifted_either_way_end_without_a_loop() {
    for shifts in
        [[0x4000_0000, 0], [1000, 0], [0, 0x8000_0000], [500_000, 0xf000_0000], [0xffff_ff00, 0x100]]
    {
        for (senders, ipv6) in [(&[0][..], false), (&[1], true), (&[0, 1], false), (&[0, 1], true)] {
            let mut pair = Pair::new(shifts, ipv6);
            for side in senders {
                pair.send(*side);
            }
            pair.run_for(Duration::from_secs(60));
            pair.expect_few_acks();
            // The data cannot arrive; both connections time out.
            pair.run_for(Duration::from_secs(1200));
            pair.expect_few_acks();
            for side in senders {
                assert_eq!(pair.state(*side), None, "{shifts:x?} {senders:?}");
            }
        }
    }
}

#[test]
fn closing_out_of_sync_does_not_loop() {
    let all = [[0x4000_0000, 0], [1000, 2000], [0xffff_ff00, 0x100]];
    for (shifts, ipv6) in all.into_iter().flat_map(|shifts| [(shifts, false), (shifts, true)]) {
        let mut pair = Pair::new(shifts, ipv6);
        for side in 0..2 {
            pair.stacks[side].close(pair.now, pair.conns[side].unwrap());
        }
        pair.run_for(Duration::from_secs(1500));
        pair.expect_few_acks();
        assert_eq!([pair.state(0), pair.state(1)], [None; 2], "{shifts:x?}");
    }
}
