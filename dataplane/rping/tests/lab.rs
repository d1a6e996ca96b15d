//! Tests of client and server in memory: over links that lose and reorder, against each other and against peers that
//! misbehave.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::time::Duration;

use iwarp_engine::testutil::hosts::{Host, Net, Setup, TIME_LIMIT, address, sge};
use iwarp_engine::testutil::{CLEAN, ROUGH};
use iwarp_rping::{Client, ClientPlan, Error, Server, ServerPlan, TextMemory, Verbosity};
use rdma::verbs::{
    Access, CmEventKind, ConnParam, Data, RecvWr, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};

const PORT: u16 = 7174;
const SECOND: Duration = Duration::from_secs(1);
const QUIET: Verbosity = Verbosity { progress: false, texts: false, events: false };
const ONE_READ: ConnParam<'_> =
    ConnParam { private_data: &[], responder_resources: 1, initiator_depth: 1, revision: 2, rtr: None };

fn memory(host: &mut Host, size: u32) -> TextMemory {
    let bytes = vec![0; usize::try_from(TextMemory::bytes(size)).unwrap()];
    TextMemory { region: host.verbs.memory_mut().add(bytes), size }
}

fn server_plan(persistent: bool) -> ServerPlan {
    ServerPlan { local: address(1, PORT), persistent, validate: true, timeout: SECOND * 20 }
}

fn client_plan(count: u64, size: u32) -> ClientPlan {
    ClientPlan { local: None, peer: address(1, PORT), count, size, validate: true, timeout: SECOND * 20 }
}

fn serve(net: &mut Net, plan: ServerPlan, memories: usize, size: u32) -> Server {
    let host = &mut net.hosts[1];
    let memories = (0..memories).map(|_| memory(host, size)).collect();
    Server::new(&mut host.verbs, plan, &ONE_READ, memories, QUIET).unwrap()
}

fn connect(net: &mut Net, plan: ClientPlan, param: &ConnParam<'_>) -> Client {
    let (now, host) = (net.now, &mut net.hosts[0]);
    let memory = memory(host, plan.size);
    Client::new(&mut host.verbs, plan, param, memory, now, QUIET).unwrap()
}

/// Result of a client or server.
type Outcome = Result<(), Error>;

/// Polls both hosts, the client and the server once.
fn poll_once(net: &mut Net, client: &mut Client, server: &mut Server) -> (Option<Outcome>, Option<Outcome>) {
    net.poll_once();
    let now = net.now;
    let [left, right] = &mut net.hosts;
    (client.poll(&mut left.verbs, now), server.poll(&mut right.verbs, now))
}

/// Runs both to their end.
fn run(net: &mut Net, client: &mut Client, server: &mut Server) -> (Outcome, Outcome) {
    let (mut mine, mut theirs) = (None, None);
    let end = net.now + TIME_LIMIT;
    while mine.is_none() || theirs.is_none() {
        assert!(net.now < end, "neither ends: {mine:?} {theirs:?}");
        let (client_end, server_end) = poll_once(net, client, server);
        (mine, theirs) = (mine.or(client_end), theirs.or(server_end));
    }
    (mine.unwrap(), theirs.unwrap())
}

/// Destroys both, and asserts that nothing is left.
fn clean_up(net: &mut Net, client: Client, server: Server) {
    client.destroy(&mut net.hosts[0].verbs).unwrap();
    server.destroy(&mut net.hosts[1].verbs).unwrap();
    net.run_for(SECOND * 70);
    net.assert_empty();
    assert_eq!(net.hosts.each_ref().map(|host| host.verbs.stags()), [0, 0]);
}

#[test]
fn texts_are_echoed() {
    for (seed, (link, mtu, revision, count, size)) in (1..).zip([
        (CLEAN, 1500, 2, 300, 64),
        (CLEAN, 1500, 1, 20, 16),
        (CLEAN, 9000, 2, 20, 65_535),
        (CLEAN, 576, 2, 5, 1 << 20),
        (ROUGH, 1500, 2, 100, 64),
        (ROUGH, 1500, 1, 50, 65_536),
        (ROUGH, 1500, 2, 4, 1 << 20),
    ]) {
        let mut net = Net::new(Setup { link, mtu, seed, unheard: true, ..Setup::default() });
        let mut server = serve(&mut net, server_plan(false), 1, 1 << 20);
        let param = ConnParam { revision, ..ONE_READ };
        let mut client = connect(&mut net, client_plan(count, size), &param);
        assert_eq!(run(&mut net, &mut client, &mut server), (Ok(()), Ok(())), "seed {seed}");
        let summary = client.stats.summary("client");
        assert_eq!((summary.rounds, summary.bytes), (count, 2 * count * u64::from(size)));
        assert_eq!(server.stats.rounds, count);
        assert!(summary.round_ns.unwrap().min > 0);
        clean_up(&mut net, client, server);
    }
}

/// Clients one after the other, more of them than there are memories.
#[test]
fn a_persistent_server_serves_many_clients() {
    let mut net = Net::new(Setup { time_wait_ms: 10, unheard: true, ..Setup::default() });
    let mut server = serve(&mut net, server_plan(true), 1, 4096);
    for number in 0..40 {
        let mut client = connect(&mut net, client_plan(3, 100 + number), &ONE_READ);
        let mut end = None;
        while end.is_none() {
            let (mine, theirs) = poll_once(&mut net, &mut client, &mut server);
            assert_eq!(theirs, None);
            end = mine;
        }
        assert_eq!(end, Some(Ok(())));
        while server.sessions() > 0 {
            poll_once(&mut net, &mut client, &mut server);
        }
        client.destroy(&mut net.hosts[0].verbs).unwrap();
    }
    assert_eq!((server.stats.connections, server.stats.rounds, server.failed), (40, 120, 0));
    let now = net.now;
    server.stop(&mut net.hosts[1].verbs, now);
    assert_eq!(server.poll(&mut net.hosts[1].verbs, now), Some(Ok(())));
    server.destroy(&mut net.hosts[1].verbs).unwrap();
    net.run_for(SECOND);
    net.assert_empty();
}

#[test]
fn a_client_beyond_the_memories_is_rejected() {
    let mut net = Net::new(Setup { unheard: true, ..Setup::default() });
    let mut server = serve(&mut net, server_plan(true), 0, 4096);
    let mut client = connect(&mut net, client_plan(3, 64), &ONE_READ);
    let end = loop {
        if let (Some(end), _) = poll_once(&mut net, &mut client, &mut server) {
            break end;
        }
    };
    assert_eq!(end, Err(Error::Rejected { private_data: (*b"no place").into() }));
    clean_up(&mut net, client, server);
}

#[test]
fn a_text_that_has_no_room_is_refused() {
    let mut net = Net::new(Setup { unheard: true, ..Setup::default() });
    let mut server = serve(&mut net, server_plan(false), 1, 99);
    let mut client = connect(&mut net, client_plan(3, 100), &ONE_READ);
    let (mine, theirs) = run(&mut net, &mut client, &mut server);
    assert_eq!((mine, theirs), (Err(Error::Ended), Err(Error::TooLong { asked: 100, room: 99 })));
    clean_up(&mut net, client, server);
}

/// After an interruption the current round is finished, and both ends succeed.
#[test]
fn an_interrupted_client_ends_in_good_order() {
    let mut net = Net::new(Setup { unheard: true, ..Setup::default() });
    let mut server = serve(&mut net, server_plan(false), 1, 4096);
    let mut client = connect(&mut net, client_plan(0, 2000), &ONE_READ);
    while client.stats.rounds < 7 {
        assert_eq!(poll_once(&mut net, &mut client, &mut server), (None, None));
    }
    for _ in 0..3 {
        poll_once(&mut net, &mut client, &mut server);
    }
    let now = net.now;
    client.stop(&mut net.hosts[0].verbs, now);
    assert_eq!(run(&mut net, &mut client, &mut server), (Ok(()), Ok(())));
    assert_eq!((client.stats.rounds, server.stats.rounds), (8, 8));
    clean_up(&mut net, client, server);
}

/// The link is cut: both give up at their timeout, and leave nothing behind.
#[test]
fn a_peer_that_disappears() {
    let mut net = Net::new(Setup { unheard: true, ..Setup::default() });
    let mut server = serve(&mut net, server_plan(false), 1, 4096);
    let mut client = connect(&mut net, client_plan(0, 64), &ONE_READ);
    while client.stats.rounds < 7 {
        poll_once(&mut net, &mut client, &mut server);
    }
    net.cut = true;
    let silent = Err(Error::Silent(SECOND * 20));
    assert_eq!(run(&mut net, &mut client, &mut server), (silent.clone(), silent));
    clean_up(&mut net, client, server);
}

#[test]
fn connecting_without_a_listener_fails() {
    let mut net = Net::new(Setup { unheard: true, ..Setup::default() });
    let mut client = connect(&mut net, client_plan(1, 64), &ONE_READ);
    let end = loop {
        net.poll_once();
        let now = net.now;
        if let Some(end) = client.poll(&mut net.hosts[0].verbs, now) {
            break end;
        }
    };
    assert_eq!(end, Err(Error::Refused));
}

/// A hand-written client whose Sends violate the protocol of rping.
struct Rogue {
    pair: ([rdma::verbs::QpNum; 1], rdma::verbs::CqId),
    text: rdma::verbs::MemoryRegion,
    inbox: rdma::verbs::MemoryRegion,
}

impl Rogue {
    /// Connects while the server is polled.
    fn connect(net: &mut Net, server: &mut Server) -> Self {
        let host = &mut net.hosts[0];
        let (pd, cq, qp) = host.queue_pair(8);
        let all = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let (_, text) = host.reg(pd, b"no text of rping's, but of some length\0".to_vec(), all);
        let (_, inbox) = host.reg(pd, vec![0; 64], all);
        let device = host.verbs.device_mut();
        let id = device.create_id(None).unwrap();
        device.connect(id, qp, address(1, PORT), &ONE_READ).unwrap();
        device.post_recv(qp, &RecvWr { wr_id: 0, sg_list: &[sge(&inbox, 0, 16)] }).unwrap();
        loop {
            net.poll_once();
            let now = net.now;
            assert_eq!(server.poll(&mut net.hosts[1].verbs, now), None);
            if let Some(event) = net.hosts[0].verbs.device_mut().poll_cm_event() {
                assert!(matches!(event.kind, CmEventKind::Established { .. }), "{event:?}");
                return Self { pair: ([qp], cq), text, inbox };
            }
        }
    }

    fn send(&self, net: &mut Net, bytes: &[u8]) {
        let ([qp], _) = self.pair;
        let (op, flags) = (SendOp::Send { invalidate: None }, SendFlags::SIGNALED);
        let wr = SendWr { wr_id: 0, op, data: Data::Inline(bytes), flags };
        net.hosts[0].verbs.device_mut().post_send(qp, &wr).unwrap();
    }

    fn info(&self, rkey: u32, size: u32) -> [u8; 16] {
        let rkey = rdma::Stag(rkey);
        iwarp_rping::protocol::Info { addr: self.text.addr, rkey, size }.encode()
    }

    /// Returns the result of the server.
    fn end(net: &mut Net, server: &mut Server) -> Outcome {
        let limit = net.now + TIME_LIMIT;
        loop {
            assert!(net.now < limit, "the server does not end");
            net.poll_once();
            let now = net.now;
            if let Some(end) = server.poll(&mut net.hosts[1].verbs, now) {
                return end;
            }
        }
    }
}

fn against_a_rogue(what: impl FnOnce(&Rogue, &mut Net)) -> Outcome {
    let mut net = Net::new(Setup { unheard: true, ..Setup::default() });
    let mut server = serve(&mut net, server_plan(false), 1, 4096);
    let rogue = Rogue::connect(&mut net, &mut server);
    what(&rogue, &mut net);
    let end = Rogue::end(&mut net, &mut server);
    server.destroy(&mut net.hosts[1].verbs).unwrap();
    assert_eq!(net.hosts[1].verbs.stags(), 0);
    // The rogue's outstanding work is flushed.
    net.run_for(SECOND);
    let (_, cq) = rogue.pair;
    let last = net.hosts[0].poll(cq).pop();
    assert_eq!(last.map(|wc| (wc.opcode, wc.status)), Some((WcOpcode::Recv, WcStatus::WrFlushError)));
    assert!(rogue.inbox.length == 64);
    end
}

#[test]
fn clients_that_misbehave_end_their_own_connection() {
    let short = against_a_rogue(|rogue, net| rogue.send(net, b"fifteen bytes!!"));
    assert_eq!(short, Err(Error::Message(15)));
    let text = against_a_rogue(|rogue, net| {
        let info = rogue.info(rogue.text.rkey.0, u32::try_from(rogue.text.length).unwrap());
        rogue.send(net, &info);
    });
    assert_eq!(text, Err(Error::NotAText));
    let huge = against_a_rogue(|rogue, net| rogue.send(net, &rogue.info(rogue.text.rkey.0, u32::MAX)));
    assert_eq!(huge, Err(Error::TooLong { asked: u32::MAX, room: 4096 }));
    let key = against_a_rogue(|rogue, net| rogue.send(net, &rogue.info(rogue.text.rkey.0 ^ 1, 8)));
    assert!(matches!(key, Err(Error::Terminated(_))), "{key:?}");
    let impatient = against_a_rogue(|rogue, net| {
        let info = rogue.info(rogue.text.rkey.0, 39);
        rogue.send(net, &info);
        net.run_for(SECOND / 1000);
        rogue.send(net, &info);
    });
    assert!(
        matches!(impatient, Err(Error::UnexpectedSend | Error::NotAText | Error::Terminated(_))),
        "{impatient:?}"
    );
}
