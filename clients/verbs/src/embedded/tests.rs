//! Devices in this process, connected over the loopback interface.

use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU16;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::*;

mod faults;
mod fork;

const WAIT: Duration = Duration::from_secs(30);
const DEPTH: u16 = 64;

/// One end of a connection.
struct End {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
    id: Option<Id>,
}

impl End {
    fn new() -> Self {
        let context = Context::embedded().unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4 * u32::from(DEPTH)).unwrap());
        let mut options = QpOptions::new(&cq);
        options.cap = QpCap { max_send_wr: DEPTH, max_recv_wr: DEPTH, ..QpCap::default() };
        let qp = pd.create_qp(&options).unwrap();
        Self { context, pd, cq, qp, id: None }
    }

    /// Waits for an event of this kind, and returns its id.
    fn event(&self, is_kind: impl Fn(&CmEventKind) -> bool) -> CmEvent {
        match self.context.wait_event(WAIT).unwrap() {
            Some(Event::Cm(event)) if is_kind(&event.kind) => event,
            other => panic!("{other:?}"),
        }
    }

    /// Polls until a completion comes.
    fn polled(&self) -> WorkCompletion {
        let (began, mut out) = (Instant::now(), [WorkCompletion::default()]);
        while self.cq.poll(&mut out).unwrap() == 0 {
            assert!(began.elapsed() < WAIT, "no completion");
        }
        out[0]
    }

    /// Sleeps until a completion comes.
    fn waited(&self) -> WorkCompletion {
        let mut out = [WorkCompletion::default()];
        loop {
            self.cq.req_notify(false);
            if self.cq.poll(&mut out).unwrap() == 1 {
                return out[0];
            }
            self.context.wait_completion(WAIT).unwrap().unwrap();
        }
    }

    fn post(&self, wr_id: u64, op: SendOp, list: &[Sge]) {
        let wr = SendWr { wr_id, op, data: Data::List(list), flags: SendFlags::SIGNALED };
        self.qp.post_send(&[wr]).unwrap();
    }
}

/// Returns an address that nobody listens at.
fn free(ip: &str) -> SocketAddr {
    TcpListener::bind(SocketAddr::new(ip.parse().unwrap(), 0)).unwrap().local_addr().unwrap()
}

/// Connects two devices: the one that connects, and the one that listens.
fn pair(ip: &str) -> [End; 2] {
    let (mut client, mut server, at) = (End::new(), End::new(), free(ip));
    let listener = server.context.create_id(Some(at)).unwrap();
    listener.listen(NonZeroU16::new(4).unwrap(), &ConnParam::default()).unwrap();
    let id = client.context.create_id(None).unwrap();
    id.connect(&client.qp, at, &ConnParam::default()).unwrap();
    let request = server.event(|kind| matches!(kind, CmEventKind::ConnectRequest { .. }));
    let accepted = server.context.id(request.id);
    accepted.accept(&server.qp, b"").unwrap();
    client.event(|kind| matches!(kind, CmEventKind::Established { .. }));
    (client.id, server.id) = (Some(id), Some(accepted));
    [client, server]
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at * 7 + seed) % 251).unwrap()).collect()
}

#[test]
fn messages_of_every_size_arrive_polled_and_waited_for() {
    for ip in ["127.0.0.1", "::1"] {
        let [client, server] = pair(ip);
        let local = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let rights = local | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let bytes = 3 << 20;
        let ours = client.pd.alloc_mr(bytes, rights).unwrap();
        let theirs = server.pd.alloc_mr(bytes, rights).unwrap();
        for (round, len) in [1_u32, 7, 64, 4095, 65_536, 70_001, 3 << 20].into_iter().enumerate() {
            let data = pattern(len as usize, round);
            ours.write(0, &data).unwrap();
            let recv = RecvWr { wr_id: 9, sg_list: &[theirs.sge(0, len)] };
            server.qp.post_recv(&[recv]).unwrap();
            client.post(1, SendOp::SEND, &[ours.sge(0, len)]);
            let (sent, received) = if round % 2 == 0 {
                (client.polled(), server.polled())
            } else {
                let received = server.waited();
                (client.waited(), received)
            };
            assert_eq!((sent.status, received.status), (WcStatus::Success, WcStatus::Success));
            assert_eq!(received.byte_len, len);
            let mut out = vec![0; len as usize];
            theirs.read(0, &mut out).unwrap();
            assert!(out == data, "{len} bytes sent");
            // The other way, with nobody at the far end but its helper.
            let data = pattern(len as usize, round + 100);
            ours.write(0, &data).unwrap();
            let (remote_addr, rkey) = (theirs.addr(), theirs.rkey());
            client.post(2, SendOp::RdmaWrite { remote_addr, rkey }, &[ours.sge(0, len)]);
            assert_eq!(client.polled().status, WcStatus::Success);
            ours.write(0, &vec![0; len as usize]).unwrap();
            client.post(3, SendOp::RdmaRead { remote_addr, rkey }, &[ours.sge(0, len)]);
            assert_eq!(client.waited().status, WcStatus::Success);
            ours.read(0, &mut out).unwrap();
            assert!(out == data, "{len} bytes written and read");
        }
    }
}

#[test]
fn memory_of_the_program_is_reached_where_it_is() {
    let [client, server] = pair("127.0.0.1");
    let mut ours = pattern(100_003, 5);
    let mut theirs = vec![0_u8; 100_010];
    let address = |bytes: &mut Vec<u8>| NonNull::new(bytes.as_mut_ptr()).unwrap();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let (from, to) = (address(&mut ours), address(&mut theirs).map_addr(|at| at.saturating_add(3)));
    // SAFETY: the vector lives longer than its registration, and is not accessed meanwhile.
    #[allow(unsafe_code, reason = "registers memory")]
    let source = unsafe { client.pd.reg_mr(from, 100_003, Access::LOCAL_READ) }.unwrap();
    // SAFETY: as above; the range ends before the vector does.
    #[allow(unsafe_code, reason = "registers memory")]
    let target = unsafe { server.pd.reg_mr(to, 100_003, rights) }.unwrap();
    let op = SendOp::RdmaWrite { remote_addr: target.addr(), rkey: target.rkey() };
    client.post(1, op, &[source.sge(0, 100_003)]);
    assert_eq!(client.polled().status, WcStatus::Success);
    // The Write is placed before a later message completes.
    let tail = server.pd.alloc_mr(8, Access::LOCAL_WRITE).unwrap();
    server.qp.post_recv(&[RecvWr { wr_id: 2, sg_list: &[tail.sge(0, 8)] }]).unwrap();
    client.post(2, SendOp::SEND, &[source.sge(0, 8)]);
    assert_eq!(server.waited().status, WcStatus::Success);
    drop((source, target));
    assert!(theirs[3..100_006] == ours[..] && theirs[..3] == [0; 3] && theirs[100_006..] == [0; 4]);
}

#[test]
fn memory_that_is_not_mapped_is_refused() {
    let end = End::new();
    let nowhere = NonNull::new(std::ptr::without_provenance_mut::<u8>(1 << 40)).unwrap();
    // SAFETY: nothing is there, which the call is to notice.
    #[allow(unsafe_code, reason = "registers memory")]
    let refused = unsafe { end.pd.reg_mr(nowhere, 4096, Access::LOCAL_READ) };
    assert!(matches!(refused, Err(Error::Memory { .. })), "{refused:?}");
    assert!(matches!(end.pd.reg_region("lab", Access::LOCAL_READ), Err(Error::Refused { .. })));
    assert!(end.context.watch("lab").is_err());
}

#[test]
fn everything_that_was_sent_arrives_when_the_sender_goes() {
    for round in 0..20_u32 {
        let [client, server] = pair("127.0.0.1");
        let len = 200_000_usize;
        let ours = client.pd.alloc_mr(len as u64, Access::LOCAL_READ).unwrap();
        let theirs = server.pd.alloc_mr(len as u64, Access::LOCAL_WRITE).unwrap();
        let data = pattern(len, round as usize);
        ours.write(0, &data).unwrap();
        let list = [theirs.sge(0, 200_000)];
        server
            .qp
            .post_recv(&[RecvWr { wr_id: 1, sg_list: &list }, RecvWr { wr_id: 2, sg_list: &[] }])
            .unwrap();
        client.post(1, SendOp::SEND, &[ours.sge(0, 200_000)]);
        assert_eq!(client.polled().status, WcStatus::Success);
        // Every handle goes, in an order that changes.
        let End { context, pd, cq, qp, id } = client;
        match round % 4 {
            0 => drop((id, qp, cq, pd, context, ours)),
            1 => drop((qp, ours, context, id, cq, pd)),
            2 => {
                id.as_ref().unwrap().disconnect().unwrap();
                drop((ours, pd, cq, context, qp, id));
            }
            _ => drop((ours, context, pd, cq, id, qp)),
        }
        assert_eq!(server.waited().status, WcStatus::Success);
        let mut out = vec![0; len];
        theirs.read(0, &mut out).unwrap();
        assert!(out == data, "round {round}");
        assert_eq!(server.waited().status, WcStatus::WrFlushError);
    }
}

#[test]
fn a_peer_that_polls_no_queue_is_served_by_the_helper() {
    let [client, server] = pair("127.0.0.1");
    let ours = client.pd.alloc_mr(4096, Access::LOCAL_WRITE).unwrap();
    let theirs = server.pd.alloc_mr(4096, Access::LOCAL_READ | Access::REMOTE_READ).unwrap();
    theirs.write(0, b"served").unwrap();
    let read = SendOp::RdmaRead { remote_addr: theirs.addr(), rkey: theirs.rkey() };
    let mut longest = Duration::ZERO;
    for _ in 0..200 {
        let began = Instant::now();
        client.post(1, read, &[ours.sge(0, 6)]);
        assert_eq!(client.polled().status, WcStatus::Success);
        longest = longest.max(began.elapsed());
    }
    let mut out = [0; 6];
    ours.read(0, &mut out).unwrap();
    assert_eq!(&out, b"served");
    assert!(longest < Duration::from_secs(5), "{longest:?}");
}

#[test]
fn nobody_listens_there_and_a_port_is_taken() {
    let end = End::new();
    let id = end.context.create_id(None).unwrap();
    id.connect(&end.qp, free("127.0.0.1"), &ConnParam::default()).unwrap();
    end.event(|kind| !matches!(kind, CmEventKind::Established { .. }));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listener = end.context.create_id(Some(taken.local_addr().unwrap())).unwrap();
    listener.listen(NonZeroU16::MIN, &ConnParam::default()).unwrap();
    end.event(|kind| matches!(kind, CmEventKind::AddressError));
}

#[test]
fn threads_share_a_queue_pair() {
    let [client, server] = pair("127.0.0.1");
    let ours = client.pd.alloc_mr(4096, Access::LOCAL_READ).unwrap();
    let theirs = server.pd.alloc_mr(4096, Access::LOCAL_WRITE).unwrap();
    let (threads, rounds) = (4, 50_u64);
    for round in 0..rounds {
        // One buffer for each message: a Send without one ends the connection.
        for _ in 0..DEPTH {
            server.qp.post_recv(&[RecvWr { wr_id: round, sg_list: &[theirs.sge(0, 64)] }]).unwrap();
        }
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    (0..u64::from(DEPTH) / threads)
                        .for_each(|wr_id| client.post(wr_id, SendOp::SEND, &[ours.sge(0, 64)]));
                });
            }
            scope.spawn(|| {
                (0..DEPTH).for_each(|_| assert_eq!(client.waited().status, WcStatus::Success));
            });
            (0..DEPTH).for_each(|_| assert_eq!(server.polled().status, WcStatus::Success));
        });
    }
}

/// The handshake's time limit passes while one thread sleeps for something else: the helper leaves the device to it.
#[test]
fn a_deadline_passes_while_a_thread_sleeps() {
    let end = End::new();
    // It accepts, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| end.event(|kind| !matches!(kind, CmEventKind::Established { .. })));
        // It sleeps by now, without a deadline.
        std::thread::sleep(Duration::from_millis(100));
        let id = end.context.create_id(None).unwrap();
        id.connect(&end.qp, silent.local_addr().unwrap(), &ConnParam::default()).unwrap();
        assert_eq!(sleeper.join().unwrap().id, id.handle());
    });
}

#[test]
fn a_burst_is_sent_although_the_program_neither_polls_nor_waits() {
    let [client, server] = pair("127.0.0.1");
    let ours = client.pd.alloc_mr(4096, Access::LOCAL_READ).unwrap();
    let theirs = server.pd.alloc_mr(4096, Access::LOCAL_WRITE).unwrap();
    // Many rounds: the last post of one may come while the helper sends those before.
    for count in [1_u64, 3, 4, 5, 20, 60].into_iter().cycle().take(300) {
        for wr_id in 0..count {
            server.qp.post_recv(&[RecvWr { wr_id, sg_list: &[theirs.sge(0, 64)] }]).unwrap();
        }
        (0..count).for_each(|wr_id| client.post(wr_id, SendOp::SEND, &[ours.sge(0, 64)]));
        for wr_id in 0..count {
            let received = server.waited();
            assert_eq!((received.wr_id, received.status), (wr_id, WcStatus::Success));
        }
        (0..count).for_each(|_| assert_eq!(client.polled().status, WcStatus::Success));
    }
}

#[test]
fn a_burst_arrives_although_the_program_disconnects_or_closes_next() {
    for round in 0..40 {
        let [mut client, server] = pair("127.0.0.1");
        let ours = client.pd.alloc_mr(4096, Access::LOCAL_READ).unwrap();
        let theirs = server.pd.alloc_mr(4096, Access::LOCAL_WRITE).unwrap();
        for wr_id in 0..30 {
            server.qp.post_recv(&[RecvWr { wr_id, sg_list: &[theirs.sge(0, 64)] }]).unwrap();
        }
        (0..30).for_each(|wr_id| client.post(wr_id, SendOp::SEND, &[ours.sge(0, 64)]));
        match round % 4 {
            0 => client.id.as_ref().unwrap().disconnect().unwrap(),
            1 => drop(client.id.take()),
            2 => client.qp.modify(QpState::Error).unwrap(),
            _ => drop(client),
        }
        for wr_id in 0..30 {
            let received = server.waited();
            assert_eq!((received.wr_id, received.status), (wr_id, WcStatus::Success), "round {round}");
        }
    }
}

#[test]
fn a_receive_buffer_of_a_broken_queue_pair_completes_although_the_program_only_watches_the_descriptor() {
    let [client, server] = pair("127.0.0.1");
    drop(client);
    server.event(|kind| matches!(kind, CmEventKind::Established { .. }));
    server.event(|kind| matches!(kind, CmEventKind::Disconnected));
    let memory = server.pd.alloc_mr(4096, Access::LOCAL_WRITE).unwrap();
    server.cq.req_notify(false);
    server.qp.post_recv(&[RecvWr { wr_id: 5, sg_list: &[memory.sge(0, 64)] }]).unwrap();
    let mut set = [PollFd::from_borrowed_fd(server.context.completion_fd(), PollFlags::IN)];
    let wait = Timespec { tv_sec: 30, tv_nsec: 0 };
    assert_eq!(poll(&mut set, Some(&wait)), Ok(1));
    let completion = server.polled();
    assert_eq!((completion.wr_id, completion.status), (5, WcStatus::WrFlushError));
}

#[test]
fn a_program_that_arms_before_each_poll_is_served_however_long_it_has_idled() {
    let [client, server] = pair("127.0.0.1");
    let rights = Access::LOCAL_READ | Access::LOCAL_WRITE;
    let (ours, theirs) = (client.pd.alloc_mr(64, rights).unwrap(), server.pd.alloc_mr(64, rights).unwrap());
    server.qp.post_recv(&[RecvWr { wr_id: 9, sg_list: &[theirs.sge(0, 64)] }]).unwrap();
    let mut out = [WorkCompletion::default()];
    for tick in 0..120 {
        server.cq.req_notify(false);
        assert_eq!(server.cq.poll(&mut out), Ok(0));
        if tick % 2 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    client.post(1, SendOp::SEND, &[ours.sge(0, 64)]);
    let began = Instant::now();
    while server.cq.poll(&mut out).unwrap() == 0 {
        server.cq.req_notify(false);
        std::thread::sleep(Duration::from_millis(1));
        assert!(began.elapsed() < Duration::from_secs(5), "nobody reads");
    }
    assert_eq!(out[0].wr_id, 9);
}
