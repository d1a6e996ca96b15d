//! The library against a worker in this process, behind a verbs socket: what a program sees when the daemon ends.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use iwarp_control::{Id, Request as Message, Response as Answer, params, transfer};
use iwarp_shared_verbs::methods::{DeviceInfo, Execute, ExecuteMethod, Executed, OpenMethod, Opened};
use iwarp_shared_verbs::worker::{Contexts, ObjectLimits, UserId};
use rdma::testutil::verbs::{Net, Node};
use rdma::verbs::Limits;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::context::Words;
use crate::mapping::Mapping;
use crate::*;

mod fork;

const BYTES: u64 = 4 << 20;
const WAIT: Duration = Duration::from_secs(60);

/// A daemon with one context, which executes requests, but polls no queue. It ends when its client closes, or asks for
/// a method that it does not know.
struct Daemon {
    _folder: tempfile::TempDir,
    socket: PathBuf,
    thread: JoinHandle<()>,
}

impl Daemon {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("verbs.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let thread = std::thread::spawn(move || serve(&listener));
        Self { _folder: folder, socket, thread }
    }
}

impl iwarp_shared_verbs::worker::ContextMemory for Words {}

fn shared_memory() -> OwnedFd {
    let fd = memfd_create("verbs", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, BYTES).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    fd
}

/// Returns the daemon's and the program's end of a bell.
pub(crate) fn bell_ends() -> (OwnedFd, OwnedFd) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
}

fn serve(listener: &UnixListener) {
    let (stream, _) = listener.accept().unwrap();
    let mut net = Net::with(Limits::default());
    let now = net.now;
    let Node { device, stags, .. } = &mut net.nodes[0];
    let fd = shared_memory();
    let words = Words(Arc::new(Mapping::of_daemon(&fd, BYTES, 4096).unwrap()));
    let mut contexts = Contexts::new(1, device.limits().cqs);
    let limits = ObjectLimits { pds: 4, mrs: 4, mws: 4, cqs: 4, qps: 8, srqs: 4, ids: 8, ids_of_all: 8 };
    let context = contexts.open(words, UserId(0), limits).unwrap();
    let ends = [(); 2].map(|()| bell_ends());
    for line in BufReader::new(stream.try_clone().unwrap()).split(b'\n') {
        let Ok(Message { id, method, params: given, .. }) = Message::from_line(&line.unwrap()) else {
            return;
        };
        match method.as_str() {
            "context.open" => {
                params::<OpenMethod>(given).unwrap();
                let device = DeviceInfo { name: "fake".to_owned(), addresses: Vec::new(), mtu: 1500 };
                let line = answer(id, Opened { app: 1, device, bytes: BYTES, link_up: true });
                let doorbell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
                let ends = [&ends[0].1, &ends[1].1, &doorbell];
                let fds: Vec<_> = std::iter::once(&fd).chain(ends).map(AsFd::as_fd).collect();
                transfer::send(&stream, &line, &fds).unwrap();
            }
            "context.execute" => {
                let Execute { requests } = params::<ExecuteMethod>(given).unwrap();
                let execute = |request| contexts.execute(context, request, device, stags, now);
                let results = requests.iter().map(execute).collect();
                transfer::send(&stream, &answer(id, Executed { results, reason: None }), &[]).unwrap();
            }
            _ => return,
        }
    }
}

fn answer<T: serde::Serialize>(id: Option<Id>, result: T) -> Vec<u8> {
    Answer::success(id, result).to_line().unwrap()
}

/// Polls all completions.
fn all(cq: &CompletionQueue) -> Vec<WorkCompletion> {
    let mut out = [WorkCompletion::default(); 3];
    let mut all = Vec::new();
    while let Ok(polled @ 1..) = cq.poll(&mut out) {
        all.extend_from_slice(&out[..polled]);
    }
    all
}

fn send(qp: &QueuePair, wr_id: u64, flags: SendFlags) -> Result<(), (usize, PostError)> {
    qp.post_send(&[SendWr { wr_id, op: SendOp::SEND, data: Data::List(&[]), flags }])
}

/// An object's number names another object in another context, which may belong to another daemon.
#[test]
fn objects_of_two_contexts_do_not_go_together() {
    let daemons = [Daemon::start(), Daemon::start()];
    let contexts = daemons.each_ref().map(|daemon| Context::open(&daemon.socket, None).unwrap());
    let [pd, other_pd] = contexts.each_ref().map(|context| context.alloc_pd().unwrap());
    let [cq, other_cq] = contexts.each_ref().map(|context| context.create_cq(8).unwrap());
    let refused = |result: Result<(), Error>, call: &str| match result {
        Err(Error::Refused { call: of, cause: VerbsError::Invalid, reason }) => {
            assert!(of == call && reason.unwrap().contains("two contexts"));
        }
        other => panic!("{call}: {other:?}"),
    };
    let other_srq = other_pd.create_srq(4, 1).unwrap();
    for options in [
        QpOptions::new(&other_cq),
        QpOptions { recv_cq: &other_cq, ..QpOptions::new(&cq) },
        QpOptions { send_cq: &other_cq, ..QpOptions::new(&cq) },
        QpOptions { srq: Some(&other_srq), ..QpOptions::new(&cq) },
    ] {
        refused(pd.create_qp(&options).map(drop), "create_qp");
    }
    let qp = pd.create_qp(&QpOptions::new(&cq)).unwrap();
    let id = contexts[1].create_id(None).unwrap();
    refused(id.connect(&qp, "10.0.0.1:7174".parse().unwrap(), &ConnParam::default()), "connect");
    refused(id.accept(&qp, b""), "accept");
}

#[test]
fn the_daemon_s_device_refuses_to_serve_regions_and_says_what_does() {
    let daemon = Daemon::start();
    let context = Context::open(&daemon.socket, None).unwrap();
    match context.serve_regions(&[]) {
        Err(Error::Refused { cause: VerbsError::NotPermitted, reason, .. }) => {
            assert!(reason.unwrap().contains("`iwarpctl region register`"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn when_the_daemon_ends_all_work_completes_with_an_error_and_no_call_blocks() {
    for two_queues in [false, true] {
        let daemon = Daemon::start();
        let context = Context::open(&daemon.socket, None).unwrap();
        let pd = context.alloc_pd().unwrap();
        let (send_cq, recv_cq) = (context.create_cq(64).unwrap(), context.create_cq(64).unwrap());
        let recv_cq = if two_queues { recv_cq } else { send_cq.clone() };
        let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, ..QpCap::default() };
        let options = QpOptions { recv_cq: &recv_cq, cap, ..QpOptions::new(&send_cq) };
        let qps = pd.create_qps(&options, 3).unwrap();
        for (qp, first) in qps.iter().zip([100, 200]) {
            // In this state it accepts work, which the worker would flush.
            qp.modify(QpState::Error).unwrap();
            for wr_id in first..first + 4 {
                // Unsignaled work completes, too.
                send(qp, wr_id, SendFlags::default()).unwrap();
            }
            assert_eq!(send(qp, 0, SendFlags::default()), Err((0, PostError::QueueFull)));
            for wr_id in [first + 10, first + 11] {
                qp.post_recv(&[RecvWr { wr_id, sg_list: &[] }]).unwrap();
            }
        }
        assert!(all(&send_cq).is_empty() && context.poll_event().is_none());
        let (any, completion) = (context.clone(), context.clone());
        let any = std::thread::spawn(move || any.wait(WAIT));
        let completion = std::thread::spawn(move || completion.wait_completion(WAIT));
        // A method that it does not know ends the daemon.
        assert!(
            context
                .0
                .call(|backend| backend
                    .daemon()?
                    .call(|client| client.call_raw("end", serde_json::Value::Null)))
                .is_err()
        );
        daemon.thread.join().unwrap();
        assert!(any.join().unwrap().unwrap(), "there is an event");
        assert!(matches!(completion.join().unwrap(), Err(Error::Lost)));
        assert_eq!(context.wait_event(WAIT).unwrap(), Some(Event::DeviceFatal));
        assert_eq!(context.poll_event(), None, "the event comes once");
        assert!(matches!(context.wait_event(WAIT), Err(Error::Lost)));
        assert!(matches!(context.wait_completion(WAIT), Err(Error::Lost)));
        assert!(matches!(context.create_cq(1), Err(Error::Lost)));

        let mut completions = all(&send_cq);
        completions.extend(all(&recv_cq));
        assert!(completions.iter().all(|wc| wc.status == WcStatus::WrFlushError));
        for (qp, first) in qps.iter().zip([100, 200]) {
            let of = |receives: bool| -> Vec<u64> {
                let of_qp = completions.iter().filter(|wc| wc.qp_num == qp.num());
                of_qp.filter(|wc| (wc.opcode == WcOpcode::Recv) == receives).map(|wc| wc.wr_id).collect()
            };
            assert_eq!(of(false), [first, first + 1, first + 2, first + 3]);
            assert_eq!(of(true), [first + 10, first + 11]);
        }
        assert_eq!(completions.len(), 12);
        // Work that is posted now is flushed at once, however much.
        for first in (300..340).step_by(4) {
            for wr_id in first..first + 4 {
                send(&qps[1], wr_id, SendFlags::SIGNALED).unwrap();
            }
            assert_eq!(send(&qps[1], 0, SendFlags::SIGNALED), Err((0, PostError::QueueFull)));
            let wr_ids: Vec<_> = all(&send_cq).iter().map(|wc| wc.wr_id).collect();
            assert_eq!(wr_ids, [first, first + 1, first + 2, first + 3]);
        }
    }
}
