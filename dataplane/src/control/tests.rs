//! The server against real sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use iwarp_control::bounds::REQUEST_BYTES_MAX;
use iwarp_control::{
    Client, ClientError, ErrorKind, ErrorObject, Hello, NoParams, RegionAttachMethod, RegionAttached,
    RegionQuery, Request, transfer,
};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::*;

mod descriptors;

/// Implements a few test methods.
struct Fake;

impl Handler for Fake {
    type Session = Peer;
    type Descriptors = usize;

    fn check(_: &str, fds: Vec<OwnedFd>) -> usize {
        fds.len()
    }

    fn open(&self, peer: &Peer) -> Result<Peer, ErrorObject> {
        Ok(peer.clone())
    }

    async fn close(&self, _: Peer) {}

    async fn handle(
        &self,
        peer: &mut Peer,
        request: Request,
        descriptors: usize,
    ) -> Result<Reply, ErrorObject> {
        match request.method.as_str() {
            "echo" => Ok(Reply::new(request.params)),
            "whoami" => Ok(Reply::new(json!({ "pid": peer.pid, "uid": peer.uid }))),
            "wait" => {
                tokio::time::sleep(Duration::from_secs(3600)).await;
                Ok(Reply::new(()))
            }
            "descriptors" => Ok(Reply::new(descriptors)),
            "stream" => {
                let (sender, stream) = tokio::sync::mpsc::channel(8);
                for part in ["one\n", "two\n"] {
                    sender.try_send(part.as_bytes().into()).unwrap();
                }
                if request.params["ends"] == false {
                    tokio::task::spawn_local(async move {
                        while sender.send(vec![b'x'; 1 << 16].into()).await.is_ok() {}
                    });
                }
                Ok(Reply::new("follows").with_stream(stream))
            }
            "big" => Ok(Reply::new("x".repeat(8 << 20))),
            "region.attach" => {
                let name = request.params.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
                let fd = memory(name.as_bytes());
                Ok(Reply::new(RegionAttached {
                    name,
                    bytes: 1,
                    page_bytes: 4096,
                    access: rdma::Access::NONE,
                })
                .with_fds(vec![fd]))
            }
            other => Err(ErrorObject::new(ErrorKind::UnknownMethod, format!("no method {other}"))),
        }
    }
}

fn memory(content: &[u8]) -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::pwrite(&fd, content, 0).unwrap();
    fd
}

fn config(socket: &Path) -> ServerConfig {
    ServerConfig {
        table: "control",
        socket_key: "control.socket",
        clients_max_key: "control.clients_max",
        socket: socket.to_owned(),
        mode: 0o660,
        group: None,
        clients_max: 128,
        user_clients_max: 128,
        user_clients_max_key: "control.clients_max",
        limits_root: true,
        idle_timeout: Some(Duration::from_secs(60)),
        reply_timeout: Duration::from_secs(60),
    }
}

/// A server on a thread of its own, stopped and joined when dropped.
struct Running {
    folder: tempfile::TempDir,
    stop: Option<oneshot::Sender<oneshot::Sender<ControlStats>>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(change: impl FnOnce(&mut ServerConfig)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(&folder.path().join("s"));
        change(&mut config);
        let (stop, stopped) = oneshot::channel::<oneshot::Sender<ControlStats>>();
        let (bound, is_bound) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let server = Server::bind(&config).unwrap();
            bound.send(()).unwrap();
            let stats = server.stats();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let stop = async {
                if let Ok(reply) = stopped.await {
                    reply.send(stats.read()).unwrap();
                }
            };
            runtime.block_on(server.run(Rc::new(Fake), stop)).unwrap();
        });
        is_bound.recv().unwrap();
        Self { folder, stop: Some(stop), thread: Some(thread) }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    fn connect(&self) -> Raw {
        Raw::connect(&self.path())
    }

    /// Stops the server and returns its counters.
    fn stop(mut self) -> ControlStats {
        let (send, receive) = oneshot::channel();
        self.stop.take().unwrap().send(send).unwrap();
        receive.blocking_recv().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
        assert!(!self.path().exists(), "the socket goes with the server");
    }
}

/// A client that sends raw bytes.
struct Raw {
    stream: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Raw {
    fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        Self { stream, reader }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "{line:?}");
        serde_json::from_str(&line).unwrap()
    }

    fn exchange(&mut self, line: &str) -> Value {
        self.send(line.as_bytes());
        self.send(b"\n");
        self.receive()
    }

    /// Asserts that the connection still works.
    #[track_caller]
    fn works(&mut self) {
        let reply = self.exchange(r#"{"jsonrpc":"2.0","id":"a","method":"echo","params":{"x":[1]}}"#);
        assert_eq!(reply, json!({"jsonrpc": "2.0", "id": "a", "result": {"x": [1]}}));
    }

    /// Returns true if the server has closed the connection.
    fn is_closed(&mut self) -> bool {
        matches!(self.reader.read(&mut [0; 1]), Ok(0))
    }
}

fn kind(reply: &Value) -> &str {
    reply["error"]["data"]["kind"].as_str().unwrap_or_default()
}

#[test]
fn the_library_client_is_served() {
    let server = Running::start(|_| ());
    let mut client = Client::connect(server.path()).unwrap();
    let hello = client.call::<Hello>(&NoParams {}).unwrap();
    assert_eq!((hello.api, hello.version.as_str()), (1, env!("CARGO_PKG_VERSION")));
    assert_eq!(hello.pid, std::process::id());
    let who = client.call_raw("whoami", Value::Null).unwrap();
    assert_eq!(who, json!({ "pid": std::process::id(), "uid": rustix::process::getuid().as_raw() }));
    let refused = client.call_raw("nonsense", Value::Null).unwrap_err();
    assert!(matches!(refused, ClientError::Refused(e) if e.data.kind == ErrorKind::UnknownMethod));
    assert!(matches!(client.call_raw("hello", json!({"x": 1})), Err(ClientError::Refused(_))));
    let stats = server.stop();
    assert_eq!((stats.clients, stats.requests, stats.requests_refused), (1, 4, 2));
}

#[test]
fn a_descriptor_comes_with_its_reply() {
    let server = Running::start(|_| ());
    let mut client = Client::connect(server.path()).unwrap();
    for name in ["first", "second"] {
        let params = RegionQuery { name: name.to_owned() };
        let (reply, fd) = client.call_with_fd::<RegionAttachMethod>(&params).unwrap();
        assert_eq!(reply.name, name);
        let mut content = [0; 16];
        let length = rustix::io::pread(fd.unwrap(), &mut content, 0).unwrap();
        assert_eq!(&content[..length], name.as_bytes());
        assert!(client.call_with_fd::<Hello>(&NoParams {}).unwrap().1.is_none());
    }
    // A notification gets neither answer nor descriptor.
    let mut raw = server.connect();
    raw.send(b"{\"jsonrpc\":\"2.0\",\"method\":\"region.attach\",\"params\":{\"name\":\"n\"}}\n");
    raw.works();
    assert_eq!(server.stop().descriptors_sent, 2);
}

#[test]
fn every_malformed_line_is_answered_and_the_connection_stays() {
    let server = Running::start(|_| ());
    let mut raw = server.connect();
    for (line, code) in [
        ("garbage", -32700),
        ("{", -32700),
        ("\u{1}\u{0}", -32700),
        ("{\"jsonrpc\":\"2.0\"} {}", -32700),
        ("[]", -32600),
        ("[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\"}]", -32600),
        ("7", -32600),
        ("null", -32600),
        ("{}", -32600),
        ("{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"echo\"}", -32600),
        ("{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"echo\"}", -32600),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":7}", -32600),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"nonsense\"}", -32601),
    ] {
        let reply = raw.exchange(line);
        assert_eq!(reply["error"]["code"], code, "{line}: {reply}");
        assert!(reply["error"]["message"].as_str().is_some_and(|m| !m.is_empty()));
    }
    let deep = "[".repeat(60_000);
    assert_eq!(raw.exchange(&deep)["error"]["code"], -32700);
    raw.send(b"\xFF\xFE\n");
    assert_eq!(raw.receive()["error"]["code"], -32700);
    // The id is returned if it could be parsed.
    assert_eq!(raw.exchange("{\"jsonrpc\":\"1.0\",\"id\":\"q\"}")["id"], "q");
    // Empty lines are ignored.
    raw.send(b"\n  \r\n");
    raw.works();
    let stats = server.stop();
    assert_eq!((stats.bad_not_json, stats.bad_not_a_request), (6, 9));
    assert_eq!((stats.requests, stats.requests_refused), (2, 1));
}

#[test]
fn long_lines_are_refused_and_skipped() {
    let server = Running::start(|_| ());
    let mut raw = server.connect();
    for excess in [1, 5000, 1 << 20] {
        let line = vec![b'x'; REQUEST_BYTES_MAX - 1 + excess];
        raw.send(&line);
        raw.send(b"\n");
        assert_eq!(kind(&raw.receive()), "too_large");
        raw.works();
    }
    // A line of the greatest allowed length.
    let mut line = br#"{"jsonrpc":"2.0","id":1,"method":"echo","params":{"x":""#.to_vec();
    line.resize(REQUEST_BYTES_MAX - 4, b'x');
    line.extend_from_slice(b"\"}}\n");
    assert_eq!(line.len(), REQUEST_BYTES_MAX);
    raw.send(&line);
    assert!(raw.receive()["result"]["x"].is_string());
    // A long line that never ends, then a client that leaves.
    raw.send(&vec![b'y'; 3 * REQUEST_BYTES_MAX]);
    assert_eq!(kind(&raw.receive()), "too_large");
    raw.stream.shutdown(Shutdown::Write).unwrap();
    assert!(raw.is_closed());
    let stats = server.stop();
    assert_eq!((stats.bad_too_long, stats.bad_unfinished, stats.closed_by_peer), (4, 0, 1));
}

#[test]
fn incomplete_lines_are_joined_or_refused() {
    let server = Running::start(|_| ());
    let mut raw = server.connect();
    // A line sent in pieces is one line.
    for piece in [&b"{\"jsonrpc\":\"2.0\",\"id\":1,"[..], b"\"method\":\"echo\",", b"\"params\":{}}", b"\n"] {
        raw.send(piece);
        std::thread::park_timeout(Duration::from_millis(20));
    }
    assert_eq!(raw.receive()["id"], 1);
    // Two lines sent at once are two requests.
    raw.send(
        b"{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"echo\"}\n\
          {\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"echo\"}\n",
    );
    assert_eq!((raw.receive()["id"].clone(), raw.receive()["id"].clone()), (json!(2), json!(3)));
    raw.send(b"{\"jsonrpc\":\"2.0\",\"id\":4,");
    raw.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(kind(&raw.receive()), "invalid_request");
    assert!(raw.is_closed());
    server.connect().works();
    assert_eq!(server.stop().bad_unfinished, 1);
}

#[test]
fn silent_and_slow_clients_are_disconnected_and_disturb_nobody() {
    let server = Running::start(|c| c.idle_timeout = Some(Duration::from_millis(300)));
    let mut silent = server.connect();
    let mut trickling = server.connect();
    // One byte every 30 ms does not extend the timeout.
    let mut sent = 0;
    while trickling.stream.write_all(b"x").is_ok() && sent < 1000 {
        sent += 1;
        std::thread::park_timeout(Duration::from_millis(30));
    }
    assert!(sent < 1000, "the trickling client was never let go");
    assert!(silent.is_closed());
    server.connect().works();
    assert_eq!(server.stop().closed_idle, 2);
}

#[test]
fn a_client_that_does_not_read_stops_only_itself() {
    let server = Running::start(|c| c.reply_timeout = Duration::from_millis(500));
    let mut slow = server.connect();
    slow.send(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"big\"}\n");
    for _ in 0..10 {
        server.connect().works();
    }
    std::thread::park_timeout(Duration::from_millis(1500));
    let mut rest = Vec::new();
    slow.reader.read_to_end(&mut rest).unwrap();
    assert!(rest.len() < 8 << 20, "{} bytes", rest.len());
    assert_eq!(server.stop().closed_slow_reader, 1);
}

#[test]
fn a_pending_request_does_not_delay_other_clients() {
    let server = Running::start(|_| ());
    let mut waiting = server.connect();
    waiting.send(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"wait\"}\n");
    // Until the thread of the connection has received it.
    std::thread::park_timeout(Duration::from_millis(200));
    server.connect().works();
    let stats = server.stop();
    assert_eq!(stats.requests, 2);
    assert!(waiting.is_closed(), "stopping cuts connections");
}

#[test]
fn a_hundred_clients_at_once() {
    let server = Running::start(|_| ());
    let path = server.path();
    let clients = (0..100).map(|n| {
        let path = path.clone();
        std::thread::spawn(move || {
            let mut client = Client::connect(path).unwrap();
            for i in 0..20 {
                let params = json!({ "n": n, "i": i, "pad": "x".repeat(n * 100) });
                assert_eq!(client.call_raw("echo", params.clone()).unwrap(), params);
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    for client in clients {
        client.join().unwrap();
    }
    let stats = server.stop();
    assert_eq!((stats.clients, stats.requests), (100, 2000));
}

#[test]
fn clients_beyond_the_bound_get_a_reason() {
    let server = Running::start(|c| c.clients_max = 2);
    let (mut a, mut b) = (server.connect(), server.connect());
    a.works();
    b.works();
    // The tests run as root, which has one more slot.
    let mut c = server.connect();
    c.works();
    let mut third = server.connect();
    assert_eq!(kind(&third.receive()), "no_resources");
    assert!(third.is_closed());
    let refused = Client::connect(server.path()).unwrap().call::<Hello>(&NoParams {}).unwrap_err();
    assert!(matches!(refused, ClientError::Refused(e) if e.data.kind == ErrorKind::NoResources));
    drop(a);
    // A slot is free as soon as the server has seen the client disconnect.
    for _ in 0..1000 {
        let mut again = server.connect();
        again.stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\"}\n").ok();
        if again.receive()["id"] == 1 {
            b.works();
            return;
        }
    }
    panic!("the place was never free again");
}

#[test]
fn idle_clients_do_not_lock_root_out() {
    let server = Running::start(|c| c.clients_max = 64);
    let mut idle: Vec<Raw> = (0..64).map(|_| server.connect()).collect();
    idle.iter_mut().for_each(Raw::works);
    for _ in 0..3 {
        let mut root = server.connect();
        root.works();
        // A client that occupies the reserved slot is soon disconnected, too.
        assert!(root.is_closed());
    }
    idle.iter_mut().for_each(Raw::works);
    let stats = server.stop();
    assert_eq!((stats.clients, stats.closed_idle, stats.refused_too_many), (67, 3, 0));
}

#[test]
fn descriptors_from_clients_are_not_kept() {
    let server = Running::start(|_| ());
    let mut raw = server.connect();
    let fd = rustix::fs::memfd_create("uninvited", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let held = || {
        let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        links
            .filter(|l| {
                std::fs::read_link(l.path()).is_ok_and(|to| to.to_string_lossy().contains("uninvited"))
            })
            .count()
    };
    assert_eq!(held(), 1, "this test's own");
    for _ in 0..50 {
        let line = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\"}\n";
        let sent = transfer::send(&raw.stream, line, &[fd.as_fd()]).unwrap();
        assert_eq!(sent, line.len());
        raw.receive();
    }
    assert_eq!(held(), 1);
}

#[test]
fn an_unknown_group_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let config = ServerConfig { group: Some("no such group".to_owned()), ..config(&socket) };
    assert!(matches!(Server::bind(&config), Err(BindError::Group { .. })));
}

/// Descriptors go with the request that they come with; more than the bound are closed.
#[test]
fn descriptors_come_with_a_request() {
    let server = Running::start(|_| {});
    let client = UnixStream::connect(server.folder.path().join("s")).unwrap();
    let mut lines = BufReader::new(&client);
    let fd = memory(b"sent");
    for count in [1, 0, 4, 2] {
        let line = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"descriptors\",\"params\":{}}\n";
        transfer::send(&client, line, &vec![fd.as_fd(); count]).unwrap();
        let mut reply = String::new();
        lines.read_line(&mut reply).unwrap();
        let reply: Value = serde_json::from_str(&reply).unwrap();
        assert_eq!(reply["result"], count);
    }
}

fn stream(server: &Running, ends: bool) -> Raw {
    let mut raw = server.connect();
    let reply = raw.exchange(&format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stream\",\"params\":{{\"ends\":{ends}}}}}"
    ));
    assert_eq!(reply["result"], "follows");
    raw
}

#[test]
fn bytes_follow_a_reply_until_their_source_ends() {
    let server = Running::start(|c| c.idle_timeout = Some(Duration::from_millis(300)));
    let mut rest = Vec::new();
    stream(&server, true).reader.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"one\ntwo\n");
    assert_eq!(server.stop().closed_by_peer, 1);
}

/// A stream has no time limits: neither that of a silent client, nor that of one that does not read.
#[test]
fn a_stream_waits_for_its_reader_and_ends_with_it() {
    let server = Running::start(|c| {
        c.idle_timeout = Some(Duration::from_millis(100));
        c.reply_timeout = Duration::from_millis(100);
    });
    let mut slow = stream(&server, false);
    std::thread::park_timeout(Duration::from_millis(500));
    server.connect().works();
    let mut some = vec![0; 1 << 20];
    slow.reader.read_exact(&mut some).unwrap();
    assert!(some.starts_with(b"one\ntwo\nxxx"));
    // A client that sends a byte ends its stream.
    let mut sends = stream(&server, false);
    sends.send(b"\n");
    std::io::copy(&mut sends.reader, &mut std::io::sink()).ok();
    drop(slow);
    std::thread::park_timeout(Duration::from_millis(100));
    let stats = server.stop();
    assert_eq!((stats.clients, stats.closed_slow_reader, stats.closed_idle), (3, 0, 0));
}

#[test]
fn the_place_that_is_reserved_for_root_has_no_streams() {
    let server = Running::start(|c| c.clients_max = 1);
    let mut first = server.connect();
    first.works();
    let mut root = server.connect();
    let refused = root.exchange("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stream\"}");
    assert_eq!(kind(&refused), "no_resources");
    root.works();
}
