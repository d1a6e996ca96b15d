//! Asserts that no packet causes an allocation: a counting allocator is active during every poll of an engine, or of
//! verbs, with established connections.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use iwarp_alloc_counter::{counted, watch, watched};
use iwarp_engine::testutil::client::{Session, TcpSession, fill};
use iwarp_engine::testutil::hosts as verbs_lab;
use iwarp_engine::testutil::lab::{CHARGEN, DISCARD, ECHO, Lab, REGION, Setup};
use iwarp_engine::testutil::{CLEAN, ROUGH};
use rdma::{Access, CrcPolicy, OutOfOrderPolicy, RegionId};
use tcp_stack::testutil::LinkConfig;
use tcp_stack::{ConnId, Duration};

/// Starts and stops the count; the test hosts call it before (`true`) and after each poll.
fn watch_steps(on: bool) {
    watch(on);
}

const MIB: u64 = 1 << 20;
const PIECE: u32 = 1 << 20;
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// An engine and a client with a granted stream, and memory of the client.
struct Bench {
    lab: Lab,
    conn: ConnId,
    local: RegionId,
    echo: ConnId,
}

impl Bench {
    fn new(link: LinkConfig, mtu: u16, markers: bool) -> Self {
        let mut lab = Lab::new(Setup { link, mtu, markers, seed: u64::from(mtu), ..Setup::default() });
        let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let conn = lab.connect(REGION, Session::region("lab", both, b"", CrcPolicy::Required));
        lab.run_until("a grant", TIME_LIMIT, |lab| lab.client.rdma(conn).answer.is_some());
        let mut source = vec![0; lab.region_bytes().len()];
        fill(0, &mut source);
        let local = lab.client.memory.add(source).unwrap();
        let echo = lab.connect(
            ECHO,
            Session::Tcp(TcpSession { bulk: 1, unechoed_max: 256 << 10, ..TcpSession::default() }),
        );
        lab.run_until("an echo", TIME_LIMIT, |lab| lab.client.tcp(echo).received == 1);
        Self { lab, conn, local, echo }
    }

    /// Writes, or reads, `bytes` bytes in pieces of 1 MiB, each at its own offset.
    fn bulk(&mut self, reads: bool, bytes: u64) {
        let region = self.lab.region_bytes().len() as u64;
        for at in (0..bytes).step_by(PIECE as usize) {
            self.post(reads, at % region, PIECE);
        }
        self.drain();
    }

    /// Writes a few bytes at unaligned offsets, a number of times, and reads them.
    fn small(&mut self, count: u64) {
        for number in 0..count {
            self.post(number % 8 == 7, number * 67 % 100_000, 1 + u32::try_from(number % 90).unwrap());
        }
        self.drain();
    }

    fn post(&mut self, reads: bool, at: u64, len: u32) {
        let conn = self.conn;
        self.lab.run_until("a place in the queue", TIME_LIMIT, |lab| {
            lab.client.established(conn).1.info().work_pending < 16
        });
        if reads {
            self.lab.client.read(conn, (self.local, at), len, at);
        } else {
            self.lab.client.write(conn, (self.local, at), len, at);
        }
    }

    fn drain(&mut self) {
        let conn = self.conn;
        self.lab
            .run_until("all work", TIME_LIMIT, |lab| lab.client.established(conn).1.info().work_pending == 0);
    }

    fn echo(&mut self, bytes: u64) {
        let conn = self.echo;
        let stream = self.lab.client.tcp(conn);
        stream.bulk += bytes;
        let all = stream.sent + stream.bulk;
        self.lab.run_until("the echo", TIME_LIMIT, |lab| lab.client.tcp(conn).received == all);
        assert_eq!(self.lab.client.tcp(conn).wrong, 0);
    }

    fn all(&mut self, bytes: u64, small: u64) {
        self.bulk(false, bytes);
        self.bulk(true, bytes);
        self.small(small);
        self.echo(bytes / 4);
    }

    /// Returns the allocations inside of the engine's polls during `work`.
    fn allocations(&mut self, work: impl FnOnce(&mut Self)) -> u64 {
        let before = counted();
        self.lab.watch = watch_steps;
        work(self);
        self.lab.watch = |_| {};
        counted() - before
    }
}

/// Moves 64 MiB each way, beside small messages and an echo stream; asserts that nothing is allocated.
fn run(link: LinkConfig, mtu: u16, markers: bool) -> Bench {
    let mut bench = Bench::new(link, mtu, markers);
    let before = *bench.lab.engine.rdma_stats();
    let allocations = bench.allocations(|bench| bench.all(64 * MIB, 10_000));
    let after = bench.lab.engine.rdma_stats();
    let moved = |of: fn(&rdma::RdmapStats) -> u64| of(&after.rdmap) - of(&before.rdmap);
    assert!(moved(|stats| stats.payload_bytes_placed) >= 64 * MIB, "bytes written");
    assert!(moved(|stats| stats.payload_bytes_fetched) >= 64 * MIB, "bytes read");
    assert_eq!(allocations, 0, "allocations in the engine's steps");
    let frames = bench.lab.engine.stack().stats().interface.rx_frames;
    println!("mtu {mtu}: {frames} frames received, no allocation");
    bench
}

#[test]
fn no_allocation_on_a_good_link() {
    run(CLEAN, 1500, false);
    run(CLEAN, 9000, true);
}

#[test]
fn no_allocation_on_a_link_that_loses_and_reorders() {
    for markers in [false, true] {
        let bench = run(ROUGH, 1500, markers);
        let (stats, mpa) = (bench.lab.engine.stack().stats(), bench.lab.engine.rdma_stats().mpa);
        assert!(stats.tcp.retransmits > 500, "{stats:?}");
        assert!(stats.tcp.held_segments > 500, "{stats:?}");
        assert!(stats.tcp.taken_segments > 500 && mpa.bytes_placed_early > 500_000, "{mpa:?}");
        assert_eq!(mpa.markers_in > 0, markers);
    }
}

#[test]
fn no_allocation_in_discard_and_chargen() {
    let mut bench = Bench::new(CLEAN, 1500, false);
    let lab = &mut bench.lab;
    let discard = lab.connect(DISCARD, Session::Tcp(TcpSession { bulk: MIB, ..TcpSession::default() }));
    let chargen = lab.connect(CHARGEN, Session::Tcp(TcpSession::default()));
    lab.run_until("a start", TIME_LIMIT, |lab| lab.client.tcp(chargen).received > MIB);
    let allocations = bench.allocations(|bench| {
        bench.lab.client.tcp(discard).bulk += 16 * MIB;
        bench.lab.run_until("the end", TIME_LIMIT, |lab| {
            lab.engine.service_stats().discard_bytes == 17 * MIB
                && lab.client.tcp(chargen).received > 16 * MIB
        });
    });
    assert_eq!(allocations, 0);
}

/// Runs Writes, Reads and Sends between two hosts with verbs; posting and polling are not counted.
#[test]
fn no_allocation_in_verbs() {
    use rdma::verbs::{Data, RecvWr, SendFlags, SendOp, SendWr, WcStatus};
    for (link, out_of_order) in [
        (CLEAN, OutOfOrderPolicy::Aligned),
        (ROUGH, OutOfOrderPolicy::Aligned),
        (ROUGH, OutOfOrderPolicy::Off),
    ] {
        let mut net =
            verbs_lab::Net::new(verbs_lab::Setup { link, out_of_order, ..verbs_lab::Setup::default() });
        net.listen(7174);
        let pair = net.connect(7174, 64);
        let all = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let (_, from) = net.hosts[0].reg(pair.pd[0], vec![1; 4 << 20], all);
        let (_, to) = net.hosts[1].reg(pair.pd[1], vec![0; 4 << 20], all);
        let before = counted();
        net.watch = watch_steps;
        for round in 0..48_u64 {
            let wr = RecvWr { wr_id: round, sg_list: &[verbs_lab::sge(&to, 0, 4096)] };
            net.hosts[1].verbs.device_mut().post_recv(pair.qp[1], &wr).unwrap();
            let (remote_addr, rkey) = (round * 1024, to.rkey);
            let large = verbs_lab::sge(&from, round * 1024, 1 << 20);
            let small = verbs_lab::sge(&from, round * 1024, 40);
            for (op, sge) in [
                (SendOp::RdmaWrite { remote_addr, rkey }, large),
                (SendOp::RdmaWrite { remote_addr, rkey }, small),
                (SendOp::RdmaRead { remote_addr, rkey }, large),
                (SendOp::Send { invalidate: None }, small),
            ] {
                let wr = SendWr { wr_id: round, op, data: Data::List(&[sge]), flags: SendFlags::SIGNALED };
                net.hosts[0].verbs.device_mut().post_send(pair.qp[0], &wr).unwrap();
            }
            let mut done = 0;
            net.run_until("a round", TIME_LIMIT, |net| {
                let ended: Vec<_> =
                    net.hosts.iter_mut().zip(pair.cq).flat_map(|(host, cq)| host.poll(cq)).collect();
                assert!(ended.iter().all(|wc| wc.status == WcStatus::Success), "{ended:?}");
                done += ended.len();
                done == 5
            });
        }
        assert_eq!(counted() - before, 0, "allocations in the steps");
        let lost = net.hosts[1].verbs.stack().stats().tcp.retransmits;
        assert_eq!(lost > 100, link == ROUGH, "{lost}");
    }
}

/// Checks the counter itself: allocations inside are counted, those outside are not.
#[test]
fn allocations_are_counted() {
    let mut bench = Bench::new(CLEAN, 1500, false);
    let before = counted();
    // A new connection allocates its endpoint, which shows that the counter works.
    let allocations = bench.allocations(|bench| {
        let conn =
            bench.lab.connect(REGION, Session::region("lab", Access::REMOTE_READ, b"", CrcPolicy::Required));
        bench.lab.run_until("a grant", TIME_LIMIT, |lab| lab.client.rdma(conn).answer.is_some());
    });
    assert!((1..100).contains(&allocations), "{allocations}");
    let grown: Vec<u64> = watched(|| std::hint::black_box((0..100).collect()));
    assert_eq!((counted() - before - allocations, grown.len()), (1, 100));
}
