//! Tests of peers that try to exhaust the packet buffers: retained received data leaves enough buffers to others.

use std::net::IpAddr;

use rdma::RegionId;
use rdma::mpa::framer::MULPDU_MAX;
use tcp_stack::wire::{
    EtherType, EthernetHeader, IpProtocol, Ipv4Header, Ipv6Header, Sum, TcpFlags, TcpHeader, TcpOptions,
};
use tcp_stack::{ConnId, Duration, MacAddr};

use super::client::{Session, TcpSession};
use super::hostile::{BOTH, assert_serves, region_request, say, shake_hands_over, write};
use super::lab::{CLIENT, CLIENT6, DISCARD, ECHO, ENGINE, ENGINE6, Lab, REGION, Setup};
use super::{SECOND, assert_empty, hang_up};

/// Most attack frames per poll of the engine: half a burst.
const FRAMES_PER_TURN: usize = 16;
/// Bytes of each Write, and of each Read, of the honest peer.
const BYTES: u32 = 16 << 10;
/// Bytes of DDP's and RDMAP's header in front of what a Write carries.
const WRITE_HEADER: usize = 14;

fn setup(buffers: usize, connections: u32) -> Setup {
    Setup { buffers, connections, grants: connections, timestamps: false, ..Setup::default() }
}

/// Builds an acknowledgment of the client with `text`, `at` bytes after the start of its stream.
fn segment(lab: &Lab, conn: ConnId, at: u32, text: &[u8]) -> Vec<u8> {
    let (iss, irs) = lab.client.stack.initial_sequences(conn).unwrap();
    let info = lab.client.stack.info(conn).unwrap();
    let header = TcpHeader {
        src_port: info.local.port(),
        dst_port: info.remote.port(),
        seq: iss + 1 + at,
        ack: irs + 1,
        flags: TcpFlags::ACK,
        window: 65_535,
        urgent: 0,
    };
    packet(info.local.ip(), &header, text)
}

fn packet(from: IpAddr, header: &TcpHeader, text: &[u8]) -> Vec<u8> {
    let options = TcpOptions::NONE;
    let mut tcp = vec![0; TcpHeader::len_with(&options)];
    assert!(header.emit(&options, &mut tcp));
    tcp.extend(text);
    let to = if from.is_ipv4() { ENGINE.into() } else { ENGINE6.into() };
    let sum = Sum::pseudo_header(from, to, IpProtocol::TCP, tcp.len());
    assert!(TcpHeader::set_checksum(&mut tcp, sum));
    let mut ip = Vec::new();
    let ethertype = match from {
        IpAddr::V4(_) => {
            ip.resize(Ipv4Header::LEN, 0);
            let header = Ipv4Header::atomic(CLIENT, ENGINE, IpProtocol::TCP);
            header.emit(tcp.len(), true, ip.first_chunk_mut().unwrap());
            EtherType::IPV4
        }
        IpAddr::V6(_) => {
            ip.resize(Ipv6Header::LEN, 0);
            let (next_header, hop_limit) = (IpProtocol::TCP, 64);
            let header = Ipv6Header {
                src: CLIENT6,
                dst: ENGINE6,
                next_header,
                traffic_class: 0,
                flow_label: 0,
                hop_limit,
            };
            header.emit(tcp.len(), ip.first_chunk_mut().unwrap());
            EtherType::IPV6
        }
    };
    let (dst, src) = (MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 1]));
    let ethernet = EthernetHeader { dst, src, tci: None, ethertype };
    let mut frame = vec![0; ethernet.header_len()];
    assert!(ethernet.emit(&mut frame));
    frame.extend(ip);
    frame.extend(tcp);
    frame
}

fn address(ipv6: bool) -> IpAddr {
    if ipv6 { ENGINE6.into() } else { ENGINE.into() }
}

/// Opens connections of bytes to a port, all at the same time.
fn open_all(
    lab: &mut Lab,
    ipv6: bool,
    port: u16,
    count: usize,
    session: impl Fn() -> Session,
) -> Vec<ConnId> {
    let mut conns = Vec::new();
    while conns.len() < count {
        let some = (0..(count - conns.len()).min(64)).map(|_| lab.connect_to(address(ipv6), port, session()));
        let some: Vec<ConnId> = some.collect();
        lab.run_until("connect", SECOND * 5, |lab| some.iter().all(|conn| lab.client.tcp(*conn).connected));
        conns.extend(some);
    }
    conns
}

/// A peer that writes to the region and reads back what it has written, again and again.
struct Honest {
    conn: ConnId,
    local: RegionId,
    rounds: u64,
}

impl Honest {
    fn new(lab: &mut Lab, ipv6: bool) -> Self {
        let session = Session::region("lab", BOTH, b"", lab.client.crc);
        let conn = lab.connect_to(address(ipv6), REGION, session);
        lab.run_until("a grant", SECOND, |lab| lab.client.rdma(conn).answer.is_some());
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).chain((0..BYTES).map(|_| 0)).collect();
        let local = lab.client.memory.add(bytes).unwrap();
        let mut honest = Self { conn, local, rounds: 0 };
        honest.post(lab);
        honest
    }

    fn post(&mut self, lab: &mut Lab) {
        let to = self.rounds % 100 * 16;
        lab.client.write(self.conn, (self.local, 0), BYTES, to);
        lab.client.read(self.conn, (self.local, BYTES.into()), BYTES, to);
    }

    /// Returns the rounds completed within `time`; `feed` is called before each poll. A round that ended earlier,
    /// unnoticed, is not counted.
    fn rounds_in(&mut self, lab: &mut Lab, time: Duration, mut feed: impl FnMut(&mut Lab)) -> u64 {
        self.go_on(lab);
        let (end, before) = (lab.now + time, self.rounds);
        while lab.now < end {
            feed(lab);
            lab.poll_once();
            self.go_on(lab);
        }
        self.rounds - before
    }

    /// Starts the next round when the current one is complete.
    fn go_on(&mut self, lab: &mut Lab) {
        if lab.client.rdma(self.conn).completed == (self.rounds + 1) * 2 {
            let bytes = lab.client.memory.bytes(self.local).unwrap();
            let (written, read) = bytes.split_at(bytes.len() / 2);
            assert!(written == read, "round {}", self.rounds);
            self.rounds += 1;
            self.post(lab);
        }
    }
}

/// Asserts the effect of an attack on an honest peer: half of its rate is left during the attack, and nearly all a
/// second later.
fn assert_rate(lab: &mut Lab, honest: &mut Honest, name: &str, mut frames: impl Iterator<Item = Vec<u8>>) {
    let time = SECOND / 50;
    let before = honest.rounds_in(lab, time, |_| ());
    assert!(before > 20, "{name}: {before} rounds");
    let (mut rates, mut is_over) = (Vec::new(), false);
    while !is_over {
        rates.push(honest.rounds_in(lab, time, |lab| {
            for _ in 0..FRAMES_PER_TURN {
                match frames.next() {
                    Some(frame) => lab.inject(frame),
                    None => is_over = true,
                }
            }
        }));
    }
    for during in &rates {
        assert!(
            during * 2 >= before,
            "{name}: {before} rounds before, then {rates:?}\n{:?}",
            lab.engine.stack().stats()
        );
    }
    let once_more = honest.rounds_in(lab, time, |_| ());
    assert!(once_more * 2 >= before, "{name}: {before} rounds before, {once_more} right behind");
    lab.run_for(SECOND);
    let after = honest.rounds_in(lab, time, |_| ());
    assert!(after * 10 >= before * 9, "{name}: {before} rounds before, {after} a second later");
    assert_budget(lab, name);
}

/// Asserts that retained data is within the budget, and that the pool's reserve was not used.
fn assert_budget(lab: &Lab, name: &str) {
    let stats = lab.engine.stack().stats();
    assert!(stats.retained_buffers <= stats.retained_limit, "{name}: {stats:?}");
    assert_eq!(lab.engine.stack().audit(), Ok(()), "{name}");
    let (used, all) = (lab.buffers_used_max, lab.pool.capacity());
    assert!(used < all - all / 8, "{name}: {used} of {all} buffers were in use");
}

/// Connections that send one byte behind a gap, many times: to every service, before the MPA handshake and after it.
#[test]
fn bytes_behind_gaps_starve_nobody() {
    let kinds = [(ECHO, false), (DISCARD, false), (REGION, false), (REGION, true)];
    for (turn, buffers) in [8192, 16_384, 65_536, 131_072].into_iter().enumerate() {
        for (kind, (port, granted)) in kinds.into_iter().enumerate() {
            for ipv6 in [false, true] {
                if buffers > 16_384 && ipv6 == (turn + kind).is_multiple_of(2) {
                    continue;
                }
                let name = format!("{buffers} buffers, port {port}, granted {granted}, IPv6 {ipv6}");
                let mut lab = Lab::new(setup(buffers, 128));
                let mut honest = Honest::new(&mut lab, ipv6);
                let count = 70 + turn * 13;
                let conns: Vec<ConnId> = if granted {
                    (0..count).map(|_| shake_hands_over(&mut lab, address(ipv6), false).0).collect()
                } else {
                    open_all(&mut lab, ipv6, port, count, || Session::script(b""))
                };
                let each = u32::try_from((buffers * 5 / 4 / count).min(1000)).unwrap();
                let mut all = (0..each).flat_map(|n| conns.iter().map(move |conn| (*conn, 1000 + n * 2)));
                let frames: Vec<_> = all.by_ref().map(|(conn, at)| segment(&lab, conn, at, b"x")).collect();
                assert_rate(&mut lab, &mut honest, &name, frames.into_iter());
                let stats = lab.engine.stack().stats();
                assert!(stats.tcp.held_segments > 500, "{name}: {stats:?}");
                hang_up(&mut lab, &conns);
                assert_serves(&mut lab);
                hang_up(&mut lab, &[honest.conn]);
                assert_empty(&mut lab);
            }
        }
    }
}

/// Connections that each start an FPDU of 64 KiB, in segments of a given size, and never complete it.
#[test]
fn fpdus_that_never_end_starve_nobody_and_time_out() {
    for (buffers, count, bytes, ipv6) in [
        (8192, 400, 100, false),
        (8192, 400, 1000, true),
        (16_384, 400, 100, true),
        (16_384, 800, 600, false),
        (65_536, 1600, 100, false),
        (131_072, 1600, 100, true),
    ] {
        let name = format!("{buffers} buffers, {count} connections, {bytes} bytes each, IPv6 {ipv6}");
        let fpdu_timeout = SECOND * 20;
        let mut lab = Lab::new(Setup { fpdu_timeout, ..setup(buffers, 2048) });
        let mut honest = Honest::new(&mut lab, ipv6);
        let conns = open_all(&mut lab, ipv6, REGION, count, || Session::script(&region_request("lab")));
        lab.run_until("the grants", SECOND * 5, |lab| {
            conns.iter().all(|conn| lab.client.tcp(*conn).received > 50)
        });
        let before = honest.rounds_in(&mut lab, SECOND / 50, |_| ());
        let begun = write(1, 0, &[0x5a; MULPDU_MAX - WRITE_HEADER]);
        for conn in &conns {
            lab.client.tcp(*conn).chunk = bytes;
            say(&mut lab, *conn, &begun[..bytes * 50]);
        }
        let during = honest.rounds_in(&mut lab, SECOND / 10, |_| ());
        assert!(
            during * 2 >= before * 5,
            "{name}: {before} rounds in a fiftieth of a second before, {during} in a tenth"
        );
        let stats = lab.engine.stack().stats();
        assert!(stats.kept_buffers <= stats.retained_limit, "{name}: {stats:?}");
        let after = honest.rounds_in(&mut lab, SECOND / 50, |_| ());
        assert!(after * 10 >= before * 9, "{name}: {before} rounds before, {after} a second later");
        assert_budget(&lab, &name);
        lab.run_until("the time limit", SECOND * 25, |lab| lab.conns() == 1);
        assert_eq!(lab.engine.rdma_stats().drops.fpdu_timeout, count as u64, "{name}");
        assert_eq!(lab.engine.stack().stats().retained_buffers, 0, "{name}");
        assert!(honest.rounds_in(&mut lab, SECOND / 50, |_| ()) * 10 >= before * 9, "{name}");
        hang_up(&mut lab, &[honest.conn]);
        assert_empty(&mut lab);
    }
}

/// Connections that send to echo and do not read: none is reset, and their send queues may use all unreserved buffers.
/// An honest peer keeps a quarter of its rate beside 400 of them.
#[test]
fn deaf_peers_of_echo_starve_nobody() {
    for (buffers, ipv6) in [(8192, false), (8192, true), (16_384, false)] {
        let name = format!("{buffers} buffers, IPv6 {ipv6}");
        let mut lab = Lab::new(setup(buffers, 512));
        let mut honest = Honest::new(&mut lab, ipv6);
        let before = honest.rounds_in(&mut lab, SECOND / 50, |_| ());
        let never_reads =
            || Session::Tcp(TcpSession { bulk: 1 << 20, never_reads: true, ..TcpSession::default() });
        let conns = open_all(&mut lab, ipv6, ECHO, 400, never_reads);
        lab.run_for(SECOND);
        let after = honest.rounds_in(&mut lab, SECOND / 50, |_| ());
        assert!(after * 4 >= before, "{name}: {before} rounds before, {after} then");
        let stats = lab.engine.stack().stats();
        assert!(stats.retained_buffers <= stats.retained_limit, "{name}: {stats:?}");
        hang_up(&mut lab, &conns);
        assert_serves(&mut lab);
    }
}
