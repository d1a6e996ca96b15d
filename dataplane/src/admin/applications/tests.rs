//! Lists of applications and their objects, with two workers whose contexts run on heap buffers and are joined by a
//! link.

use std::sync::Arc;

use iwarp_config::Config;
use iwarp_control::{AppObjects, MrKind, WatchInfo};
use iwarp_engine::Clock;
use iwarp_engine::testutil::hosts::{Net, Setup, address};
use iwarp_engine::wake::testutil::wakes;
use iwarp_shared_verbs::Response;
use iwarp_shared_verbs::methods::{Open, RegMr};
use iwarp_shared_verbs::program::{RecvQueue, Slots};
use iwarp_shared_verbs::worker::NotificationStats;
use rdma::verbs::{
    Access, AddressBase, CmId, CqId, Limits, PdId, QpCap, QpInit, QpNum, QpState, RecvWr, VerbsError,
};

use super::*;

mod limits;
use crate::admin::report::{self, Names};
use crate::control::{Server, ServerConfig};
use crate::events::EventLog;
use crate::worker::{
    Commands, ConnPage, Executed as Results, Published, WatchCommand, WorkerStats, command_ring,
};

const CONFIG: &str = r#"
[memory]
hugepages = "prefer"
[[port]]
name = "p0"
driver = "tap"
interface = "iw0"
addresses = ["10.77.0.1/24"]
[workers]
cores = [0]
[applications]
[[listener]]
port = 7400
service = "region"
"#;
/// TCP port that a program listens on.
const PORT: u16 = 7174;
/// More queue pairs than a worker reports per command.
const QUEUE_PAIRS: usize = 150;

/// Carries out commands as a worker does, on the engine of one host.
fn run(net: &mut Net, host: usize, command: Command) {
    let now = net.now;
    let engine = &mut net.hosts[host].verbs;
    match command {
        Command::Conns { from: (_, cursor), mut rows, reply } => {
            let next = engine.conns(cursor, &mut |row| {
                rows.push((0, row));
                true
            });
            assert!(reply.send(ConnPage { rows, next: next.map(|next| (0, next)) }).is_ok());
        }
        Command::Context { port: 0, command } => match command {
            ContextCommand::Open { memory, user, limits, wakers, reply } => {
                assert!(reply.send(engine.context_open(memory, user, limits, *wakers)).is_ok());
            }
            ContextCommand::Execute { context, requests, reply } => {
                assert!(requests.len() <= 64, "a bounded command");
                let results =
                    requests.iter().map(|request| engine.context_execute(now, context, request)).collect();
                assert!(reply.send(Results { results, released: Vec::new() }).is_ok());
            }
            ContextCommand::Register { context, mr, reply } => {
                let NewMr { pd, region, memory, base, access } = *mr;
                let (offset, bytes) = memory.range();
                let request = Request::RegMr { pd, memory: (region, offset, bytes), base, access };
                let done = match engine.context_execute(now, context, &request) {
                    Ok(Response::Mr(mr)) => Ok(mr),
                    other => Err(other.err().unwrap_or(VerbsError::Invalid)),
                };
                assert!(reply.send(done).is_ok());
            }
            ContextCommand::Stats { context, reply } => {
                assert!(reply.send(engine.context_stats(context)).is_ok());
            }
            ContextCommand::CqStats { context, cqs, reply } => {
                assert!(cqs.len() <= 64, "a bounded command");
                let stats = cqs.iter().map(|cq| engine.cq_stats(context, *cq)).collect();
                assert!(reply.send(stats).is_ok());
            }
            ContextCommand::Link { up } => engine.contexts_set_link(up),
            ContextCommand::Close { context, reply } => {
                engine.context_close(now, context).unwrap();
                assert!(reply.send(Vec::new()).is_ok());
            }
        },
        Command::RegionAdd { reply, .. } => assert!(reply.send(Ok(())).is_ok()),
        Command::Watch(WatchCommand::Begin { region, watch, reply }) => {
            assert_eq!(watch.first_ring, host);
            let words = watch.memory.as_ref();
            words[host].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            assert!(reply.send(region == RegionId(0)).is_ok());
        }
        Command::Watch(WatchCommand::End { reply, .. }) => assert!(reply.send(()).is_ok()),
        Command::Watch(WatchCommand::Stats { number, reply, .. }) => {
            assert!(reply.send(NotificationStats { delivered: number, lost: 10 }).is_ok());
        }
        other => panic!("{other:?}"),
    }
}

/// Polls two hosts and carries out the commands to each, for ever.
async fn work(mut commands: [Commands; 2]) {
    let limits = Limits { qps: 256, ids: 16, mrs: 64, cqe_max: 4096, ..Limits::default() };
    let mut net = Net::new(Setup { unheard: true, limits, ..Setup::default() });
    loop {
        for (host, commands) in commands.iter_mut().enumerate() {
            while let Some(command) = commands.pop() {
                run(&mut net, host, command);
            }
        }
        net.poll_once();
        tokio::task::yield_now().await;
    }
}

/// Runs a test with applications that have two workers.
fn with_workers(test: impl AsyncFnOnce(Applications)) {
    let (handles, commands): (Vec<_>, Vec<_>) = (0..2)
        .map(|core| {
            let published = Arc::new(Published::new(&(&WorkerStats::default(), [].as_slice())));
            let (producer, commands) = command_ring(16).unwrap();
            (WorkerHandle::new(core, published, producer), commands)
        })
        .unzip();
    let settings = Config::parse("test", CONFIG).unwrap().applications.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let control = Config::parse("test", CONFIG).unwrap().control;
    let config =
        ServerConfig { socket: folder.path().join("s"), mode: 0o666, ..ServerConfig::from(&control) };
    let admission = Server::bind(&config).unwrap().settings();
    let device =
        DeviceInfo { name: "p0".into(), addresses: vec!["10.77.0.1/24".parse().unwrap()], mtu: 1500 };
    let regions = Rc::new(Mutex::new(Regions::new(8, true, None)));
    let events = Rc::new(EventLog::new(10, &Clock::start()));
    let applications = Applications::new(
        settings,
        admission,
        Rc::new(handles),
        vec![device],
        regions,
        8,
        (&events, wakes()),
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::select! {
            () = work(commands.try_into().unwrap()) => {}
            () = test(applications) => {}
        }
    });
}

/// A program: its session, and the objects that each test needs.
struct Program {
    session: Session,
    pd: PdId,
    cq: CqId,
}

async fn one(applications: &Applications, session: &Session, request: Request) -> Response {
    applications.execute(session, vec![request]).await.unwrap().results[0].unwrap()
}

impl Program {
    async fn open(applications: &Applications, pid: u32) -> Self {
        Self::open_by(applications, &Peer { pid, uid: 1000, gid: 1000, groups: Vec::new() }).await
    }

    async fn open_by(applications: &Applications, peer: &Peer) -> Self {
        let mut session = applications.open(peer).unwrap();
        let open = Open { device: None, queue_bytes: None };
        applications.open_context(&mut session, open).await.unwrap();
        let Response::Pd(pd) = one(applications, &session, Request::AllocPd).await else { panic!() };
        let Response::Cq(cq, _) = one(applications, &session, Request::CreateCq(64)).await else { panic!() };
        Self { session, pd, cq }
    }

    fn number(&self) -> u32 {
        self.session.app.borrow().number
    }

    fn init(&self) -> QpInit {
        let cap = QpCap { max_send_wr: 4, max_recv_wr: 8, ..QpCap::default() };
        QpInit { cap, ..QpInit::new(self.pd, self.cq) }
    }

    async fn ask(&self, applications: &Applications, request: Request) -> Response {
        one(applications, &self.session, request).await
    }

    /// Creates an id, and a queue pair with buffers posted.
    async fn endpoint(&self, applications: &Applications, host: usize, buffers: u64) -> (CmId, QpNum) {
        let request = Request::CreateId(Some(address(host, if host == 1 { PORT } else { 0 })));
        let Response::Id(id) = self.ask(applications, request).await else { panic!() };
        let Response::Qp(qp, places) = self.ask(applications, Request::CreateQp(self.init())).await else {
            panic!()
        };
        let (memory, slots) = (self.session.queues.clone().unwrap(), Slots::new(false));
        let mut recv = RecvQueue::new(memory, places.recv.unwrap(), (8, 1), Some(slots)).unwrap();
        (0..buffers).for_each(|wr_id| recv.push(&RecvWr { wr_id, sg_list: &[] }).unwrap());
        recv.ring();
        (id, qp)
    }
}

const ALL: AppObjects = AppObjects { app: None };

/// Lets the workers poll.
async fn pause() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// A program that is started again finds the TCP port of its former connections on the worker that owns it.
#[test]
fn a_program_that_has_left_does_not_count_for_the_next_one_s_worker() {
    with_workers(async |applications| {
        let leaving = Program::open(&applications, 0).await;
        // Its objects are being destroyed.
        leaving.session.app.borrow_mut().has_left = true;
        let next = Program::open(&applications, 0).await;
        let other = Program::open(&applications, 0).await;
        let home = |program: &Program| program.session.app.borrow().context.unwrap().worker;
        assert_eq!([&leaving, &next, &other].map(home), [0, 0, 1]);
        applications.close(leaving.session).await;
    });
}

#[test]
fn applications_are_listed_from_connect_to_close() {
    with_workers(async |applications| {
        assert_eq!(applications.apps().await.unwrap(), []);
        let peer = Peer { pid: std::process::id(), uid: 1000, gid: 1000, groups: Vec::new() };
        let session = applications.open(&peer).unwrap();
        let [waiting] = &applications.apps().await.unwrap()[..] else { panic!() };
        assert_eq!(
            (waiting.pid, waiting.uid, &waiting.device, waiting.worker),
            (peer.pid, 1000, &None, None)
        );
        assert!(!waiting.command.is_empty(), "the test's own name");
        applications.close(session).await;

        let programs = [Program::open(&applications, 0).await, Program::open(&applications, 0).await];
        let listed = applications.apps().await.unwrap();
        assert_eq!(listed.iter().map(|app| app.worker).collect::<Vec<_>>(), [Some(0), Some(1)]);
        for (app, program) in listed.iter().zip(&programs) {
            assert_eq!((app.app, app.device.as_deref()), (program.number(), Some("p0")));
            assert_eq!((app.completion_queues, app.queue_pairs, app.memory_regions), (1, 0, 0));
            assert_eq!(app.queue_bytes, QUEUE_BYTES_DEFAULT);
            assert_eq!(applications.app(app.app).await.unwrap().pid, 0);
        }
        let [first, second] = programs;
        let number = first.number();
        applications.close(first.session).await;
        let left: Vec<u32> = applications.apps().await.unwrap().iter().map(|app| app.app).collect();
        assert_eq!(left, [second.number()]);
        let gone = AppObjects { app: Some(number) };
        for error in [
            applications.app(number).await.unwrap_err(),
            applications.queue_pairs(gone).await.unwrap_err(),
            applications.completion_queues(gone).await.unwrap_err(),
            applications.memory_regions(gone).unwrap_err(),
        ] {
            assert_eq!(error.data.kind, ErrorKind::NoSuchObject, "{error}");
        }
    });
}

#[test]
fn queue_pairs_are_listed_page_by_page() {
    with_workers(async |applications| {
        let programs = [Program::open(&applications, 1).await, Program::open(&applications, 2).await];
        for program in &programs {
            let create = vec![Request::CreateQp(program.init()); QUEUE_PAIRS];
            let created = applications.execute(&program.session, create).await.unwrap();
            assert!(created.results.iter().all(Result::is_ok), "{created:?}");
        }
        let all = applications.queue_pairs(ALL).await.unwrap();
        assert_eq!(all.len(), 2 * QUEUE_PAIRS);
        for (of_one, program) in all.chunks(QUEUE_PAIRS).zip(&programs) {
            let numbers: std::collections::BTreeSet<u32> = of_one.iter().map(|qp| qp.number).collect();
            assert_eq!(numbers.len(), QUEUE_PAIRS);
            for qp in of_one {
                assert_eq!((qp.app, qp.state.as_str(), qp.peer), (program.number(), "idle", None));
                assert_eq!((qp.send_slots, qp.recv_slots), (4, 8));
            }
            let asked = AppObjects { app: Some(program.number()) };
            assert_eq!(applications.queue_pairs(asked).await.unwrap(), of_one);
        }
    });
}

#[test]
fn connections_slots_and_counters_are_those_of_the_worker() {
    with_workers(async |applications| {
        let [a, b] = [Program::open(&applications, 1).await, Program::open(&applications, 2).await];
        let (listener, qp_b) = b.endpoint(&applications, 1, 5).await;
        let listen = Request::Listen { id: listener, backlog: 4.try_into().unwrap(), depths: (1, 1) };
        b.ask(&applications, listen).await;
        let (id, qp) = a.endpoint(&applications, 0, 3).await;
        let (peer, private_data) = (address(1, PORT), Vec::new());
        a.ask(
            &applications,
            Request::Connect {
                id,
                qp,
                peer,
                private_data,
                depths: (1, 1),
                revision: 2,
                rtr: None,
                any_port: false,
            },
        )
        .await;
        let mut events = iwarp_shared_verbs::program::Events::new(b.session.queues.clone().unwrap()).unwrap();
        let request = loop {
            // Virtual time advances while the workers are idle: a late answer would miss the handshake's time limit.
            tokio::task::yield_now().await;
            if let Some(iwarp_shared_verbs::Event::Cm(event)) = events.poll() {
                break event.id;
            }
        };
        b.ask(&applications, Request::Accept { id: request, qp: qp_b, private_data: Vec::new() }).await;
        pause().await;

        let listed = applications.queue_pairs(ALL).await.unwrap();
        let shown: Vec<_> = listed.iter().map(|qp| (qp.app, qp.state.as_str(), qp.recv_slots_used)).collect();
        assert_eq!(shown, [(a.number(), "rts", 3), (b.number(), "rts", 5)]);
        assert_eq!(listed[0].peer, Some(address(1, PORT)));
        assert_eq!(listed[1].peer.unwrap().ip(), address(0, 0).ip());

        let names = Names { regions: applications.regions.lock().await, owners: applications.owners() };
        let now = tcp_stack::Instant::from_nanos(0);
        let conns = report::conns(&applications.workers, &names, now).await.unwrap();
        let owners: Vec<_> =
            conns.iter().map(|conn| (conn.worker, conn.service.as_str(), conn.app)).collect();
        assert_eq!(owners, [(0, "verbs", Some(a.number())), (1, "verbs", Some(b.number()))]);

        // From here on its size is the new one, and counts for the user's limits.
        a.ask(&applications, Request::ResizeCq(a.cq, 200)).await;
        assert_eq!(a.session.app.borrow().usage().queue_entries, 200 + 4 + 8);
        b.ask(&applications, Request::ResizeCq(b.cq, 200)).await;

        a.ask(&applications, Request::ModifyQp(qp, QpState::Error)).await;
        pause().await;
        for (program, buffers) in [(&a, 3), (&b, 5)] {
            let app = applications.app(program.number()).await.unwrap();
            assert_eq!((app.work_requests, app.completions, app.errors), (buffers, buffers, buffers));
            let asked = AppObjects { app: Some(program.number()) };
            let [cq] = &applications.completion_queues(asked).await.unwrap()[..] else { panic!() };
            assert_eq!((cq.app, cq.number, cq.entries), (program.number(), program.cq.0, 200));
            assert_eq!((cq.completions, cq.errors, cq.events), (buffers, buffers, 0));
        }
        let states: Vec<_> =
            applications.queue_pairs(ALL).await.unwrap().into_iter().map(|qp| (qp.state, qp.peer)).collect();
        assert_eq!(states, [("error".to_owned(), None), ("error".to_owned(), None)]);
    });
}

#[test]
fn memory_regions_are_listed_once_they_are_registered() {
    with_workers(async |applications| {
        let a = Program::open(&applications, 1).await;
        applications
            .alloc(&a.session, AllocMemory { bytes: 100_000, exchange: false, shared: false })
            .await
            .unwrap();
        assert_eq!(applications.memory_regions(ALL).unwrap(), [], "not registered");
        let memory = *a.session.app.borrow().memories.keys().next().unwrap();
        let access = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
        let asked = RegMr { memory, pd: a.pd, base: AddressBase::Zero, access };
        let mr = applications.register(&a.session, asked).await.unwrap();
        let [row] = &applications.memory_regions(ALL).unwrap()[..] else { panic!() };
        assert_eq!((row.app, row.number, row.bytes), (a.number(), mr.id.0, 100_000));
        assert_eq!(row.access, ["remote-write", "local-write"]);
        assert!(matches!(row.kind, MrKind::Hugepages | MrKind::Pages) && row.region.is_none(), "{row:?}");
        let json = serde_json::to_string(row).unwrap();
        assert!(!json.contains("key") && !json.contains(&mr.rkey.0.to_string()), "{json}: a key is a secret");

        a.session.app.borrow_mut().memories.get_mut(&memory).unwrap().region = Some("lab".into());
        let [row] = &applications.memory_regions(ALL).unwrap()[..] else { panic!() };
        assert_eq!((row.kind, row.region.as_deref()), (MrKind::Region, Some("lab")));
        let app = applications.app(a.number()).await.unwrap();
        assert_eq!((app.memory_regions, app.registered_bytes), (1, 100_000));
    });
}

/// Adds a region to those of the control socket. Returns its number.
async fn add_region(applications: &Applications, name: &str) -> RegionId {
    let spec = crate::admin::RegionSpec {
        name: iwarp_config::RegionName::new(name).unwrap(),
        bytes: 5000,
        access: Access::REMOTE_WRITE,
        token: None,
        allow: Vec::new(),
        origin: iwarp_control::Origin::Control,
    };
    applications.regions.lock().await.make(spec).unwrap().id()
}

#[test]
fn a_watch_is_on_all_workers_and_has_limits() {
    with_workers(async |mut applications| {
        let settings = applications.settings.get_mut();
        (settings.region_watches_max, settings.user.watches_max) = (3, 2);
        let peer = |uid| Peer { pid: 1, uid, gid: uid, groups: Vec::new() };
        let [first, second] = [1000, 1001].map(|uid| applications.open(&peer(uid)).unwrap());
        assert_eq!(add_region(&applications, "lab").await, RegionId(0));
        add_region(&applications, "strange").await;
        let refused = |reply: Result<Reply, ErrorObject>| reply.unwrap_err().data.kind;
        assert_eq!(refused(applications.watch(&first, "none").await), ErrorKind::NoSuchObject);
        // The workers do not have this one: nothing is left of the watch.
        assert_eq!(refused(applications.watch(&first, "strange").await), ErrorKind::Internal);
        assert!(first.app.borrow().watches.is_empty());
        for session in [&first, &second, &first] {
            applications.watch(session, "lab").await.unwrap();
        }
        assert_eq!(
            refused(applications.watch(&second, "lab").await),
            ErrorKind::NoResources,
            "of the region"
        );
        let [app, _] = &applications.apps().await.unwrap()[..] else { panic!() };
        let row = |number: u64| WatchInfo { region: "lab".into(), notifications: 2 * number, lost: 20 };
        assert_eq!(app.watches, [row(2), row(4)], "the sum of both workers");
        assert!(first.app.borrow().usage().memory_bytes >= 2 * 256 * 88 * 2, "counts for the user");
        applications.unwatch(&first, 2).await.unwrap();
        let none = applications.unwatch(&first, 3).await.unwrap_err();
        assert_eq!(none.data.kind, ErrorKind::NoSuchObject);
        applications.close(second).await;
        applications.watch(&first, "lab").await.unwrap();
        assert_eq!(refused(applications.watch(&first, "lab").await), ErrorKind::NoResources, "of the user");
        applications.close(first).await;
        assert_eq!(applications.apps().await.unwrap(), []);
    });
}
