//! Programs in contexts of two engines, over TCP: the bytes, events and completions of connections on good links and on
//! bad ones, and what is left when a program ends.

use std::os::fd::OwnedFd;

use iwarp_engine::Wakers;
use iwarp_engine::memory::SharedWords;
use iwarp_engine::testutil::{CLEAN, ROUGH};
use iwarp_engine::wake::testutil::{USER, taken, wakes};
use iwarp_shared_verbs::testutil::{Program, Setup as ProgramSetup};
use iwarp_shared_verbs::worker::{ContextId, ObjectLimits, UserId};
use iwarp_shared_verbs::{Event, Request, Response, words_min};
use rdma::verbs::{
    Access, AddressBase, CmEvent, CmEventKind, Data, QpCap, QpState, RecvWr, RegionId, SendFlags, SendOp,
    SendWr, Sge, VerbsError, WcStatus, WorkCompletion,
};

use super::lab::{Net, Setup, TIME_LIMIT, address};

const PORT: u16 = 7174;
const BYTES: usize = 1 << 20;
const BASE: u64 = 0x7f12_3456_7000;
const LIMITS: ObjectLimits =
    ObjectLimits { pds: 2, mrs: 4, mws: 4, cqs: 4, qps: 4, srqs: 2, ids: 8, ids_of_all: 32 };
const CAP: QpCap =
    QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };

/// A program of one host, its context, and what it sleeps on.
struct Guest {
    host: usize,
    context: ContextId,
    region: RegionId,
    /// Descriptors that are readable when there is a completion in an armed queue, and an event.
    woken: [OwnedFd; 2],
    program: Program<SharedWords>,
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..BYTES).map(|at| (at * 31 + at / 251 + seed).to_le_bytes()[0]).collect()
}

fn execute(
    net: &mut Net,
    host: usize,
    context: ContextId,
    request: &Request,
) -> Result<Response, VerbsError> {
    let now = net.now;
    net.hosts[host].verbs.context_execute(now, context, request)
}

impl Guest {
    fn new(net: &mut Net, host: usize) -> Self {
        Self::bound(net, host, if host == 1 { PORT } else { 0 })
    }

    /// Creates a guest whose id is bound to a port; 0: any.
    fn bound(net: &mut Net, host: usize, port: u16) -> Self {
        let memory = SharedWords::new("test", words_min() + (1 << 15)).unwrap();
        let [(completions, its_completions), (events, its_events)] =
            [(); 2].map(|()| wakes().waker(USER).unwrap());
        let (doorbell, _) = wakes().doorbell(USER).unwrap();
        let wakers = Wakers { doorbell: Some(doorbell), completions, events };
        let engine = &mut net.hosts[host].verbs;
        let context = engine.context_open(memory.clone(), UserId(0), LIMITS, wakers).unwrap();
        let region = engine.memory_mut().add(pattern(host)).unwrap();
        let all = [Access::LOCAL_READ, Access::LOCAL_WRITE, Access::REMOTE_READ, Access::REMOTE_WRITE];
        let setup = ProgramSetup {
            cap: CAP,
            cqe: 256,
            local: address(host, port),
            region: (region, BYTES as u64),
            base: AddressBase::At(BASE),
            access: all.into_iter().fold(Access::NONE, |all, one| all | one),
        };
        let program = Program::new(memory, &setup, &mut |request| execute(net, host, context, request));
        Self { host, context, region, woken: [its_completions, its_events], program }
    }

    fn execute(&self, net: &mut Net, request: &Request) -> Response {
        execute(net, self.host, self.context, request).unwrap()
    }

    fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: BASE + offset, length, lkey: self.program.mr.lkey }
    }

    /// Returns the program's next event once there is one. The program is woken for it.
    fn event(&mut self, net: &mut Net) -> Event {
        let Self { program, woken, .. } = self;
        let mut event = None;
        net.run_until("an event", TIME_LIMIT, |_| {
            event = program.events.poll();
            event.is_some()
        });
        assert!(taken(&woken[1]) > 0);
        event.unwrap()
    }

    /// Polls until there are `count` completions of sends and of receives together.
    fn completions(&mut self, net: &mut Net, count: usize) -> Vec<WorkCompletion> {
        let mut all = Vec::new();
        net.run_until("completions", TIME_LIMIT, |_| {
            all.extend(self.program.poll(false));
            all.extend(self.program.poll(true));
            all.len() >= count
        });
        all
    }

    fn close(self, net: &mut Net) {
        let now = net.now;
        assert_eq!(net.hosts[self.host].verbs.context_close(now, self.context).unwrap(), [self.region]);
    }
}

/// A connection has the port that its id is bound to, and the peer sees it. A port that has a listener, or a connection
/// to the same peer, is refused by an event, also to another program.
#[test]
fn a_connection_has_the_port_that_its_id_is_bound_to() {
    let mut net = Net::new(Setup::default());
    let mut server = Guest::new(&mut net, 1);
    let (listener, backlog) = (server.program.id, 8.try_into().unwrap());
    server.execute(&mut net, &Request::Listen { id: listener, backlog, depths: (1, 1) });
    let connect = |net: &mut Net, guest: &Guest| {
        let (id, qp, peer) = (guest.program.id, guest.program.qp, address(1, PORT));
        let (private_data, depths) = (Vec::new(), (1, 1));
        let request =
            Request::Connect { id, qp, peer, private_data, depths, revision: 2, rtr: None, any_port: false };
        guest.execute(net, &request);
    };
    for port in [5555, 600, 49_152] {
        let mut guest = Guest::bound(&mut net, 0, port);
        connect(&mut net, &guest);
        let Event::Cm(CmEvent { id, kind: CmEventKind::ConnectRequest { .. } }) = server.event(&mut net)
        else {
            panic!("not a request")
        };
        let Response::Addresses(_, Some(peer)) = server.execute(&mut net, &Request::Addresses(id)) else {
            panic!("no addresses")
        };
        assert_eq!(peer.port(), port);
        let mut second = Guest::bound(&mut net, 0, port);
        connect(&mut net, &second);
        let event = second.event(&mut net);
        assert!(matches!(event, Event::Cm(CmEvent { kind: CmEventKind::AddressError, .. })), "{event:?}");
        second.close(&mut net);
        server.execute(&mut net, &Request::Reject { id, private_data: Vec::new() });
        let event = guest.event(&mut net);
        assert!(matches!(event, Event::Cm(CmEvent { kind: CmEventKind::Rejected { .. }, .. })), "{event:?}");
        server.execute(&mut net, &Request::DestroyId(id));
        guest.close(&mut net);
    }
    let listens = Guest::bound(&mut net, 0, 7777);
    let request = Request::Listen { id: listens.program.id, backlog, depths: (1, 1) };
    listens.execute(&mut net, &request);
    let mut refused = Guest::bound(&mut net, 0, 7777);
    connect(&mut net, &refused);
    let event = refused.event(&mut net);
    assert!(matches!(event, Event::Cm(CmEvent { kind: CmEventKind::AddressError, .. })), "{event:?}");
}

/// Connects a guest of host 0 with one of host 1.
fn connected(net: &mut Net) -> [Guest; 2] {
    let (mut a, mut b) = (Guest::new(net, 0), Guest::new(net, 1));
    let listener = b.program.id;
    b.execute(net, &Request::Listen { id: listener, backlog: 4.try_into().unwrap(), depths: (16, 16) });
    let (id, qp, private_data) = (a.program.id, a.program.qp, b"hello".to_vec());
    let peer = address(1, PORT);
    a.execute(
        net,
        &Request::Connect {
            id,
            qp,
            peer,
            private_data,
            depths: (16, 16),
            revision: 2,
            rtr: None,
            any_port: false,
        },
    );
    let Event::Cm(CmEvent { id, kind: CmEventKind::ConnectRequest { private_data, .. } }) = b.event(net)
    else {
        panic!("not a request")
    };
    assert_eq!(&*private_data, b"hello");
    b.program.id = id;
    b.execute(net, &Request::Accept { id, qp: b.program.qp, private_data: b"welcome".to_vec() });
    for guest in [&mut a, &mut b] {
        let event = guest.event(net);
        let Event::Cm(CmEvent { id, kind: CmEventKind::Established { private_data, .. } }) = &event else {
            panic!("{event:?}")
        };
        assert_eq!(*id, guest.program.id);
        assert_eq!(&**private_data, if guest.host == 0 { b"welcome".as_slice() } else { b"" });
        guest.program.send.set_ready(true);
    }
    [a, b]
}

/// Writes `rounds` pieces to host 1, reads each back, and sends a message about it.
fn write_read_send(setup: Setup, rounds: u64, piece: u32) {
    let mut net = Net::new(setup);
    let [mut a, mut b] = connected(&mut net);
    let half = BYTES as u64 / 2;
    for round in 0..rounds {
        let (from, to) = (round * 777 % (half - u64::from(piece)), half + round * 64);
        let (remote_addr, rkey) = (BASE + to, b.program.mr.rkey);
        b.program.post_recv(round, &[b.sge(0, 100)]);
        let (text, source, back) = (format!("round {round}"), [a.sge(from, piece)], [a.sge(half, piece)]);
        let work = [
            (SendOp::RdmaWrite { remote_addr, rkey }, Data::List(&source)),
            (SendOp::RdmaRead { remote_addr, rkey }, Data::List(&back)),
            (SendOp::SEND, Data::Inline(text.as_bytes())),
        ];
        for (wr_id, (op, data)) in (0..).zip(work) {
            let flags = SendFlags { fence: wr_id == 2, ..SendFlags::SIGNALED };
            a.program.send.push(&SendWr { wr_id, op, data, flags }).unwrap();
        }
        a.program.send.ring();
        let done = a.completions(&mut net, 3);
        let ends: Vec<_> = done.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(ends, [0, 1, 2].map(|wr_id| (wr_id, WcStatus::Success)));
        let received = b.completions(&mut net, 1);
        assert_eq!((received[0].wr_id, received[0].byte_len as usize), (round, text.len()));
        let [here, there] = [&a, &b].map(|guest| net.hosts[guest.host].bytes(guest.region));
        let range = |start: u64| {
            let start = usize::try_from(start).unwrap();
            start..start + piece as usize
        };
        assert!(here[range(from)] == there[range(to)], "written, round {round}");
        assert!(here[range(half)] == there[range(to)], "read back, round {round}");
        assert_eq!(&there[..text.len()], text.as_bytes());
    }
    ended(net, a, b);
}

/// Ends host 0's program: the other one learns of it, and nothing is left on either host.
fn ended(mut net: Net, a: Guest, mut b: Guest) {
    a.close(&mut net);
    let id = b.program.id;
    assert_eq!(b.event(&mut net), Event::Cm(CmEvent { id, kind: CmEventKind::Disconnected }));
    b.close(&mut net);
    net.run_until("no connection is left", TIME_LIMIT, |net| {
        net.hosts.iter().all(|host| (host.verbs.connections(), host.verbs.stags()) == (0, 0))
    });
}

#[test]
fn programs_write_read_and_send_over_a_good_link() {
    for (piece, mtu) in [(1, 1500), (64, 576), (4096, 1500), (65_536, 9000), (65_536, 1500)] {
        write_read_send(Setup { unheard: true, mtu, link: CLEAN, ..Setup::default() }, 8, piece);
    }
}

#[test]
fn programs_write_read_and_send_over_a_link_that_loses_and_reorders() {
    for (seed, mtu) in [(1, 1500), (2, 9000), (3, 576)] {
        write_read_send(Setup { unheard: true, mtu, seed, link: ROUGH, ..Setup::default() }, 6, 100_000);
    }
}

/// End of a program, or of what it has.
#[derive(Clone, Copy, Debug)]
enum Ending {
    DestroyQp,
    DestroyId,
    ModifyQp,
    /// The program ends, or is killed.
    Close,
}

const ENDINGS: [Ending; 4] = [Ending::DestroyQp, Ending::DestroyId, Ending::ModifyQp, Ending::Close];

/// Ends a guest. Returns it if its program goes on.
fn end(net: &mut Net, guest: Guest, ending: Ending) -> Option<Guest> {
    let Program { qp, id, .. } = guest.program;
    match ending {
        Ending::DestroyQp => guest.execute(net, &Request::DestroyQp(qp)),
        Ending::DestroyId => guest.execute(net, &Request::DestroyId(id)),
        Ending::ModifyQp => guest.execute(net, &Request::ModifyQp(qp, QpState::Error)),
        Ending::Close => {
            guest.close(net);
            return None;
        }
    };
    Some(guest)
}

/// The peer receives each Send that has completed, and then the end of the stream, not a reset.
#[test]
fn completed_sends_arrive_whatever_ends_their_program() {
    for (at, ending) in ENDINGS.into_iter().enumerate() {
        for (link, piece, count) in
            [(CLEAN, 64, 1), (CLEAN, 65_536, 16), (ROUGH, 65_536, 16), (ROUGH, 900, 60)]
        {
            let seed = (at * 100 + count) as u64;
            let mut net = Net::new(Setup { unheard: true, seed, link, ..Setup::default() });
            let [mut a, mut b] = connected(&mut net);
            for wr_id in (0..).take(count) {
                b.program.post_recv(wr_id, &[b.sge(0, piece)]);
                let list = [a.sge(wr_id * 64, piece)];
                a.program.send.push(&SendWr::new(wr_id, SendOp::SEND, &list)).unwrap();
            }
            a.program.send.ring();
            let sent = a.completions(&mut net, count);
            assert!(sent.iter().all(|wc| wc.status == WcStatus::Success), "{ending:?}");
            let left = end(&mut net, a, ending);
            net.poll_once();
            assert_eq!(net.hosts[0].verbs.lingering(UserId(0)), 1, "{ending:?}: it counts for its user");
            let received = b.completions(&mut net, count);
            let whole = |wc: &WorkCompletion| (wc.status, wc.byte_len) == (WcStatus::Success, piece);
            assert!(received.iter().all(whole), "{ending:?}, {piece} bytes: {received:?}");
            let id = b.program.id;
            assert_eq!(b.event(&mut net), Event::Cm(CmEvent { id, kind: CmEventKind::Disconnected }));
            let resets = net.hosts.each_ref().map(|host| host.verbs.stack().stats().tcp.resets_out);
            assert_eq!(resets, [0, 0], "{ending:?}");
            b.close(&mut net);
            if let Some(a) = left {
                a.close(&mut net);
            }
            net.run_until("no connection is left", TIME_LIMIT, |net| {
                net.hosts.iter().all(|host| (host.verbs.connections(), host.verbs.stags()) == (0, 0))
            });
            assert_eq!(net.hosts[0].verbs.lingering(UserId(0)), 0);
        }
    }
}

/// Work that is not finished, posted or not, cannot arrive: the peer sees a reset.
#[test]
fn a_program_that_leaves_unfinished_work_resets_its_connection() {
    for ending in ENDINGS {
        for posted in [true, false] {
            let mut net = Net::new(Setup { unheard: true, ..Setup::default() });
            let [mut a, mut b] = connected(&mut net);
            let op = SendOp::RdmaRead { remote_addr: BASE, rkey: b.program.mr.rkey };
            a.program.post(1, op, &[a.sge(0, 500_000)]);
            if posted {
                net.run_until("the request is read", TIME_LIMIT, |net| {
                    net.hosts[1].verbs.stack().stats().tcp.bytes_in > 0
                });
            }
            let left = end(&mut net, a, ending);
            let id = b.program.id;
            assert_eq!(b.event(&mut net), Event::Cm(CmEvent { id, kind: CmEventKind::Disconnected }));
            assert!(net.hosts[0].verbs.stack().stats().tcp.resets_out > 0, "{ending:?}, {posted}");
            drop(left);
        }
    }
}

/// A worker without traffic polls again after a request, which may have raised an event or flushed work.
#[test]
fn what_a_request_has_raised_is_delivered_without_traffic() {
    let mut net = Net::new(Setup { unheard: true, ..Setup::default() });
    let mut guest = Guest::new(&mut net, 0);
    guest.program.post_recv(7, &[guest.sge(0, 100)]);
    net.run_until("rest", TIME_LIMIT, |net| !net.hosts[0].verbs.has_output());
    guest.execute(&mut net, &Request::ModifyQp(guest.program.qp, QpState::Error));
    assert!(net.hosts[0].verbs.has_output(), "the worker polls");
    net.poll_once();
    let flushed = guest.completions(&mut net, 1);
    assert_eq!((flushed[0].wr_id, flushed[0].status), (7, WcStatus::WrFlushError));
    net.run_until("rest", TIME_LIMIT, |net| !net.hosts[0].verbs.has_output());
    guest.close(&mut net);
}

#[test]
fn an_armed_completion_queue_wakes_its_program_once() {
    let mut net = Net::new(Setup { unheard: true, ..Setup::default() });
    let [mut a, b] = connected(&mut net);
    let write = |net: &mut Net, a: &mut Guest| {
        let op = SendOp::RdmaWrite { remote_addr: BASE, rkey: b.program.mr.rkey };
        a.program.post(1, op, &[a.sge(0, 10)]);
        assert_eq!(a.completions(net, 1)[0].status, WcStatus::Success);
        taken(&a.woken[0])
    };
    assert_eq!(write(&mut net, &mut a), 0, "not armed");
    a.program.cq.req_notify(false);
    assert_eq!((write(&mut net, &mut a), write(&mut net, &mut a)), (1, 0));
    ended(net, a, b);
}

#[test]
fn a_program_that_ends_in_the_middle_of_its_work_leaves_nothing() {
    for polls in [0, 1, 5, 20, 60] {
        let mut net = Net::new(Setup { unheard: true, link: ROUGH, seed: polls, ..Setup::default() });
        let [mut a, mut b] = connected(&mut net);
        for wr_id in 0..16 {
            let op = SendOp::RdmaWrite { remote_addr: BASE, rkey: b.program.mr.rkey };
            a.program.post(wr_id, op, &[a.sge(0, 60_000)]);
            b.program.send.push(&SendWr::new(wr_id, SendOp::SEND, &[b.sge(0, 0)])).unwrap();
            a.program.recv.push(&RecvWr { wr_id, sg_list: &[] }).unwrap();
        }
        b.program.send.ring();
        a.program.recv.ring();
        (0..polls).for_each(|_| net.poll_once());
        ended(net, a, b);
    }
}

/// Returns the number of polls after which a message has been received. Its buffer is posted before this one of them.
fn received_after(posted_before: u32) -> u32 {
    let mut net = Net::new(Setup { unheard: true, ..Setup::default() });
    let [mut a, mut b] = connected(&mut net);
    a.program.post(1, SendOp::Send { invalidate: None }, &[a.sge(0, 100)]);
    for poll in 1..1000 {
        if poll == posted_before {
            b.program.post_recv(2, &[b.sge(0, 4096)]);
        }
        net.poll_once();
        if let Some(wc) = b.program.poll(true).pop() {
            assert_eq!((wc.wr_id, wc.status), (2, WcStatus::Success), "posted before poll {posted_before}");
            return poll;
        }
    }
    panic!("no completion")
}

/// The worker takes the buffer and the message in the same iteration.
#[test]
fn a_buffer_that_was_posted_just_before_its_message_arrives_is_found() {
    let arrival = received_after(1);
    assert!(arrival > 1);
    assert_eq!(received_after(arrival), arrival);
}
