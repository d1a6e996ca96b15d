//! Malformed calls: RPC-over-RDMA headers, RPC and XDR that are almost right, from a client that is admitted to one
//! export and knows the handles of another. The server answers or refuses each, returns nothing of what the client may
//! not read, and keeps no memory. Needs root.
//!
//! `MALFORMED_CALLS` is their number (200,000 by default; `make nfs-malformed` takes ten million), `MALFORMED_SEED` the
//! seed of the run.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use crate::client::{KEY, call_bytes, rule, whole};
use iwarp_alloc_counter::{live_bytes, watch};
use iwarp_nfsd::{Directory, Export, MountProc, Nfs3Proc, Nfs4Op, Nfs4Proc, Server, Squash, StateLimits};
use iwarp_rpc::header::{Body, ChunkLists, Header, ReadSegment, Segment};
use iwarp_rpc::xdr::{Reader, Writer};
use iwarp_rpc::{Limits, PrivateData, Received, Responder, Stats};
use iwarp_server::Peer;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rdma::Stag;
use tempfile::TempDir;

/// Content of every file that the client may not read.
const SECRET: &[u8; 16] = b"of other clients";
/// Content of the file that the client may read.
const PUBLIC: &[u8; 16] = b"the client's own";
/// Most bytes of a transfer.
const TRANSFER_MAX: u32 = 4096;
const RPC_LIMITS: Limits = Limits { credits: 4, segments_max: 16, fetch_bytes_max: 64 << 10 };
const LINUX: PrivateData = PrivateData { remote_invalidation: true, send_bytes: 4096, receive_bytes: 4096 };
const STATE: StateLimits = StateLimits {
    clients_max: 8,
    sessions_max: 2,
    slots_max: 4,
    opens_max: 16,
    locks_max: 16,
    cached_bytes_max: 1024,
    lease: Duration::from_secs(1),
    grace: Duration::from_secs(1),
};

/// Paths of MOUNT: of exports, below them, and out of them.
const PATHS: [&str; 10] = [
    "/open",
    "/closed",
    "/",
    "/open/folder",
    "//open/./folder/",
    "/open/link",
    "/open/private",
    "/open/up/file",
    "/open/../closed",
    "/closed/file",
];

/// Returns an offset in a small file, or near that at which every file ends.
fn offset(rng: &mut SmallRng) -> u64 {
    const LARGEST: u64 = i64::MAX as u64;
    match rng.random_range(0..8) {
        0 => LARGEST - rng.random_range(0..100),
        1 => LARGEST + rng.random_range(1..100),
        2 => u64::MAX - rng.random_range(0..100),
        _ => rng.random_range(0..300),
    }
}

/// Reads a number from the environment.
fn parameter(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

/// A folder in memory if there is one: the calls make data durable, millions of times.
fn folder() -> TempDir {
    TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap()
}

/// Fills the exports: `open`, to which the client is admitted, and `closed`, to which it is not.
fn fill(folder: &Path) {
    for name in ["open", "open/folder", "closed"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    let file = |name: &str, content: &[u8], mode| {
        fs::write(folder.join(name), content.repeat(16)).unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    file("open/file", PUBLIC, 0o666);
    file("open/private", SECRET, 0o600);
    file("closed/file", SECRET, 0o666);
    file("outside", SECRET, 0o666);
    symlink(folder.join("outside"), folder.join("open/link")).unwrap();
    symlink("../outside", folder.join("open/up")).unwrap();
}

/// The server, its client, and handles of both exports.
struct Lab {
    server: Server,
    client: IpAddr,
    handles: Vec<Vec<u8>>,
    /// Session of NFS version 4.1, and the sequence of its latest call.
    session: [u8; 16],
    sequence: u32,
}

impl Lab {
    fn new(folder: &Path) -> Self {
        let export = |name: &str, clients, squash| {
            let backend = Box::new(Directory::open(&folder.join(name)).unwrap());
            Export {
                path: format!("/{name}"),
                backend,
                rules: vec![rule(clients, true, squash)],
                insecure: false,
            }
        };
        let exports =
            vec![export("open", "10.0.0.0/24", Squash::All), export("closed", "10.0.1.0/24", Squash::None)];
        let server = Server::new(exports, KEY, 1, TRANSFER_MAX).unwrap();
        let server = server.with_state(STATE, &folder.join("clients")).unwrap();
        let names = &["file", "private", "folder", "link", "up"][..];
        let handles = [("10.0.0.1", "/open", names), ("10.0.1.1", "/closed", &["file"])];
        let handles = handles.into_iter().flat_map(|(client, path, names)| {
            let at = |message: Vec<u8>| answer(&server, client.parse().unwrap(), &message);
            let root = handle(&at(mount_call(path)));
            let names = names.iter().map(|name| handle(&at(lookup_call(&root, name)))).collect::<Vec<_>>();
            [vec![root], names].concat()
        });
        let handles = handles.collect();
        let client = "10.0.0.1".parse().unwrap();
        let mut lab = Self { server, client, handles, session: [0; 16], sequence: 0 };
        lab.open_session();
        lab
    }

    fn open_session(&mut self) {
        let exchange = compound(&[operation(Nfs4Op::EXCHANGE_ID, |out| {
            out.u64(1);
            out.opaque(b"malformed");
            [0, 0, 0].into_iter().for_each(|word| out.u32(word));
        })]);
        let made = answer(&self.server, self.client, &exchange);
        if made[24..28] != [0; 4] {
            // Clients of damaged calls occupy the table, until their lease ends.
            return;
        }
        // Behind the header: status, tag, count, operation, status.
        let mut reader = Reader::new(&made[24 + 4 + 8 + 12..]);
        let (id, sequence) = (reader.u64().unwrap(), reader.u32().unwrap());
        let create = compound(&[operation(Nfs4Op::CREATE_SESSION, |out| {
            out.u64(id);
            [sequence, 0].into_iter().for_each(|word| out.u32(word));
            for _ in 0..2 {
                [0, 1 << 20, 1 << 20, 1024, 16, 4, 0].into_iter().for_each(|word| out.u32(word));
            }
            [0x4000_0000, 1, 0].into_iter().for_each(|word| out.u32(word));
        })]);
        let made = answer(&self.server, self.client, &create);
        let status = u32::from_be_bytes(made[24..28].try_into().unwrap());
        if status == 0 {
            self.session = made[24 + 4 + 8 + 12..][..16].try_into().unwrap();
            self.sequence = 0;
        }
    }

    /// Returns a well-formed call.
    fn call(&mut self, rng: &mut SmallRng) -> Vec<u8> {
        match rng.random_range(0..16) {
            0 => mount_call(PATHS[rng.random_range(0..PATHS.len())]),
            1 => call(100_005, 3, rng.random_range(0..7_u32), &[]),
            2..=8 => self.nfs3(rng),
            _ => self.nfs4(rng),
        }
    }

    fn handle(&self, rng: &mut SmallRng) -> &[u8] {
        &self.handles[rng.random_range(0..self.handles.len())]
    }

    fn nfs3(&self, rng: &mut SmallRng) -> Vec<u8> {
        let procedure = rng.random_range(0..23);
        let mut out = Writer::new();
        out.opaque(self.handle(rng));
        let name = [&b"file"[..], b"..", b"link", b"../outside", b"new", b""][rng.random_range(0..6)];
        match Nfs3Proc::new(procedure) {
            Some(Nfs3Proc::SETATTR) => [0_u32; 8].into_iter().for_each(|word| out.u32(word)),
            Some(Nfs3Proc::LOOKUP | Nfs3Proc::REMOVE | Nfs3Proc::RMDIR) => out.opaque(name),
            Some(Nfs3Proc::ACCESS) => out.u32(0x3f),
            Some(Nfs3Proc::READ) => {
                out.u64(offset(rng));
                out.u32(rng.random_range(0..8192));
            }
            Some(Nfs3Proc::WRITE) => {
                out.u64(offset(rng));
                let data = vec![7; rng.random_range(0..100)];
                // Half of them leave the data to a chunk.
                let in_chunk = rng.random();
                let length = if in_chunk { 64 } else { u32::try_from(data.len()).unwrap() };
                out.u32(length);
                out.u32(rng.random_range(0..3));
                if in_chunk { out.u32(length) } else { out.opaque(&data) }
            }
            Some(Nfs3Proc::CREATE | Nfs3Proc::MKDIR | Nfs3Proc::SYMLINK | Nfs3Proc::MKNOD) => {
                out.opaque(name);
                [0_u32; 7].into_iter().for_each(|word| out.u32(word));
            }
            Some(Nfs3Proc::RENAME) => {
                out.opaque(name);
                out.opaque(self.handle(rng));
                out.opaque(b"other");
            }
            Some(Nfs3Proc::LINK) => {
                out.opaque(self.handle(rng));
                out.opaque(name);
            }
            Some(Nfs3Proc::READDIR | Nfs3Proc::READDIRPLUS) => {
                out.u64(0);
                out.u64(0);
                out.u32(512);
                out.u32(4096);
            }
            Some(Nfs3Proc::COMMIT) => {
                out.u64(0);
                out.u32(0);
            }
            _ => {}
        }
        call(100_003, 3, procedure, &out.into_bytes())
    }

    fn nfs4(&mut self, rng: &mut SmallRng) -> Vec<u8> {
        self.sequence += 1;
        let sequence = operation(Nfs4Op::SEQUENCE, |out| {
            out.fixed(&self.session);
            [self.sequence, 0, 0].into_iter().for_each(|word| out.u32(word));
            out.bool(rng.random());
        });
        let handle = self.handle(rng).to_vec();
        let mut operations = vec![sequence, operation(Nfs4Op::PUTFH, |out| out.opaque(&handle))];
        for _ in 0..rng.random_range(0..4) {
            let number = rng.random_range(3..60);
            operations.push(operation(number, |out| arguments(number, out, rng)));
        }
        compound(&operations)
    }
}

/// Writes arguments of an operation of NFS version 4.1.
fn arguments(number: u32, out: &mut Writer, rng: &mut SmallRng) {
    let words = |out: &mut Writer, words: &[u32]| words.iter().for_each(|word| out.u32(*word));
    match Nfs4Op::new(number) {
        Some(Nfs4Op::ACCESS) => out.u32(0x3f),
        Some(Nfs4Op::GETATTR | Nfs4Op::NVERIFY | Nfs4Op::VERIFY) => words(out, &[2, u32::MAX, u32::MAX, 0]),
        Some(Nfs4Op::LOOKUP | Nfs4Op::REMOVE | Nfs4Op::SECINFO) => {
            out.opaque(["file", "..", "link", "private"][rng.random_range(0..4)].as_bytes())
        }
        Some(Nfs4Op::OPEN) => {
            words(out, &[0, rng.random_range(1..4), rng.random_range(0..4), 0, 0]);
            out.opaque(&[rng.random_range(0..20); 4]);
            words(out, &[0, 0]);
            out.opaque(b"file");
        }
        Some(Nfs4Op::LOCK) => {
            words(out, &[1, 0, 0, 0, 0, 64, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0x6f77_6e65])
        }
        // The stateid is the current one, or the anonymous one.
        Some(Nfs4Op::READ) => {
            words(out, &[rng.random_range(0..2), 0, 0, 0]);
            out.u64(offset(rng));
            out.u32(300);
        }
        Some(Nfs4Op::WRITE) => {
            words(out, &[rng.random_range(0..2), 0, 0, 0]);
            out.u64(offset(rng));
            words(out, &[rng.random_range(0..3), 4, 0x0707_0707]);
        }
        Some(Nfs4Op::READDIR) => words(out, &[0, 0, 0, 0, 512, 4096, 1, 0x0010_001a]),
        Some(Nfs4Op::SETATTR) => words(out, &[0, 0, 0, 0, 1, 1 << 4, 8, 0, 64]),
        Some(Nfs4Op::EXCHANGE_ID) => words(out, &[0, 1, 4, rng.random_range(0..32), 0, 0, 0]),
        _ => (0..rng.random_range(0..16)).for_each(|_| out.u32(rng.random_range(0..8))),
    }
}

fn call(program: u32, version: u32, procedure: impl Into<u32>, arguments: &[u8]) -> Vec<u8> {
    [call_bytes(program, version, procedure, &(0, vec![0])), arguments.to_vec()].concat()
}

fn mount_call(path: &str) -> Vec<u8> {
    let mut out = Writer::new();
    out.opaque(path.as_bytes());
    call(100_005, 3, MountProc::MNT, &out.into_bytes())
}

fn lookup_call(root: &[u8], name: &str) -> Vec<u8> {
    let mut out = Writer::new();
    out.opaque(root);
    out.opaque(name.as_bytes());
    call(100_003, 3, Nfs3Proc::LOOKUP, &out.into_bytes())
}

fn operation(number: impl Into<u32>, arguments: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut out = Writer::new();
    out.u32(number.into());
    arguments(&mut out);
    out.into_bytes()
}

fn compound(operations: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Writer::new();
    out.opaque(b"tag");
    [1, u32::try_from(operations.len()).unwrap()].into_iter().for_each(|word| out.u32(word));
    call(100_003, 4, Nfs4Proc::COMPOUND, &[out.into_bytes(), operations.concat()].concat())
}

/// Sends a whole message, and returns the reply.
fn answer(server: &Server, client: IpAddr, message: &[u8]) -> Vec<u8> {
    let reply = server.call(Peer::rdma(client), Reader::new(message), &|_| panic!("no chunk")).unwrap();
    whole(&reply)
}

/// Returns the handle of a reply to MNT or LOOKUP.
fn handle(reply: &[u8]) -> Vec<u8> {
    assert_eq!(reply[24..28], [0; 4], "the call succeeds");
    Reader::new(&reply[28..]).opaque(64).unwrap().to_vec()
}

/// Values that lengths and counts go wrong with.
const WORDS: [u32; 12] =
    [0, 1, 2, 3, 4, 63, 65, 1024, 4097, i32::MAX.cast_unsigned(), u32::MAX - 3, u32::MAX];

/// Damages a message in one to four places.
fn damage(bytes: &mut Vec<u8>, rng: &mut SmallRng) {
    for _ in 0..rng.random_range(1..5) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.random_range(0..bytes.len());
        let word = at & !3;
        let end = (word + 4).min(bytes.len());
        match rng.random_range(0..8) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 | 2 => {
                let value = WORDS[rng.random_range(0..WORDS.len())].to_be_bytes();
                bytes[word..end].copy_from_slice(&value[..end - word]);
            }
            3 => bytes.truncate(at),
            4 => bytes.extend((0..rng.random_range(0..64)).map(|_| rng.random::<u8>())),
            5 => drop(bytes.drain(word..end)),
            6 => drop(bytes.splice(word..word, rng.random::<u32>().to_be_bytes())),
            _ => {
                let copied = bytes[word..end.max(bytes.len().min(word + 24))].to_vec();
                drop(bytes.splice(word..word, copied));
            }
        }
    }
}

/// Puts an RPC message behind a header with chunks.
fn with_header(rpc: &[u8], rng: &mut SmallRng) -> Vec<u8> {
    let xid = Reader::new(rpc).u32().unwrap_or(0);
    let mut segment = |length| Segment { stag: Stag(rng.random()), length, offset: rng.random() };
    let length = u32::try_from(rpc.len()).unwrap();
    let body = match length % 5 {
        0 => Body::Msg(ChunkLists::default()),
        1 => {
            let reads = vec![ReadSegment { position: length & !3, segment: segment(64) }];
            Body::Msg(ChunkLists { reads, ..ChunkLists::default() })
        }
        2 => {
            let writes = vec![vec![segment(300), segment(4096)], vec![segment(0)]];
            Body::Msg(ChunkLists { writes, ..ChunkLists::default() })
        }
        3 => Body::Msg(ChunkLists { reply: Some(vec![segment(8192)]), ..ChunkLists::default() }),
        _ => {
            let reads = vec![ReadSegment { position: 0, segment: segment(length) }];
            Body::NoMsg(ChunkLists { reads, ..ChunkLists::default() })
        }
    };
    let mut out = Writer::new();
    Header { xid, version: 1, credits: 16, body: body.clone() }.emit(&mut out);
    let mut message = out.into_bytes();
    if matches!(body, Body::Msg(_)) {
        message.extend_from_slice(rpc);
    }
    message
}

/// Passes a message through the responder and the server, as a connection does. Returns true if the server executed a
/// call.
fn exchange(lab: &Lab, message: &[u8], rpc: &[u8], stats: &mut Stats) -> bool {
    let mut responder = Responder::new(RPC_LIMITS, &LINUX, &LINUX);
    let call = match responder.receive(message, stats) {
        Received::Call(call) => call,
        Received::Answer(answer) => {
            assert!(answer.len() <= 28, "a refusal is a header");
            return false;
        }
        Received::Discard | Received::Close => return false,
    };
    let mut fetched = rpc.to_vec();
    assert!(call.fetch_bytes() <= RPC_LIMITS.fetch_bytes_max);
    fetched.resize(call.fetch_bytes() as usize, 7);
    let reader = match call.reader(message, &fetched) {
        Ok(reader) => reader,
        Err(refusal) => {
            let answer = responder.refuse(&call, refusal, stats);
            assert!(answer.len() <= 28 && responder.in_flight() == 0);
            return false;
        }
    };
    let copy_out = |range: std::ops::Range<u32>| fetched[range.start as usize..range.end as usize].to_vec();
    let Some(reply) = lab.server.call(Peer::rdma(lab.client), reader, &copy_out) else {
        responder.discard(call, stats);
        return false;
    };
    for part in reply.bytes() {
        assert!(
            !part.windows(SECRET.len()).any(|bytes| bytes == SECRET),
            "content that the client may not read"
        );
    }
    match responder.reply(&call, &reply.stream, &reply.items(), stats) {
        Ok(sent) => assert!(sent.send.iter().map(iwarp_rpc::Piece::len).sum::<usize>() <= 4096),
        Err(refusal) => drop(responder.refuse(&call, refusal, stats)),
    }
    assert_eq!(responder.in_flight(), 0);
    true
}

/// Prints the call that the test fails with.
struct Failing {
    seed: u64,
    number: u64,
    message: Vec<u8>,
}

impl Drop for Failing {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let bytes: String = self.message.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("MALFORMED_SEED={}: call {}: {bytes}", self.seed, self.number);
        }
    }
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn malformed_calls_return_nothing_and_leave_nothing() {
    let (calls, seed) = (parameter("MALFORMED_CALLS", 200_000), parameter("MALFORMED_SEED", 1));
    let folder = folder();
    fill(folder.path());
    let mut lab = Lab::new(folder.path());
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut stats = Stats::default();
    let mut failing = Failing { seed, number: 0, message: Vec::new() };
    let (mut executed, mut settled) = (0_u64, None);
    watch(true);
    for number in 0..calls {
        if number == calls / 4 {
            settled = Some((live_bytes(), open_files()));
        }
        if number % 1000 == 0 {
            // The state may have gone with a DESTROY_SESSION, and the sequence with a call that was not executed.
            lab.open_session();
        }
        let mut rpc = lab.call(&mut rng);
        let kind = rng.random_range(0..8);
        if kind >= 2 {
            damage(&mut rpc, &mut rng);
        }
        let mut message = with_header(&rpc, &mut rng);
        if kind < 4 {
            damage(&mut message, &mut rng);
        }
        (failing.number, failing.message) = (number, message);
        executed += u64::from(exchange(&lab, &failing.message, &rpc, &mut stats));
    }
    let (bytes, files) = settled.expect("some calls");
    assert!(live_bytes() - bytes < 1 << 20, "memory has grown from {bytes} to {} bytes", live_bytes());
    assert!(open_files() <= files + 64, "{files} open files have become {}", open_files());
    watch(false);
    println!("{calls} calls with seed {seed}: {executed} executed; {stats:?}");
    // The calls were of all kinds, and the server is as it was.
    assert!(executed > calls / 4 && executed < calls);
    assert!(stats.refused_malformed > 0 && stats.refused_stream > 0 && stats.refused_xid > 0);
    for name in ["open/private", "closed/file", "outside"] {
        assert_eq!(fs::read(folder.path().join(name)).unwrap(), SECRET.repeat(16), "{name}");
    }
    fs::write(folder.path().join("open/file"), PUBLIC).unwrap();
    let read = call(100_003, 3, Nfs3Proc::READ, &{
        let mut out = Writer::new();
        out.opaque(&lab.handles[1]);
        out.u64(0);
        out.u32(100);
        out.into_bytes()
    });
    assert!(answer(&lab.server, lab.client, &read).ends_with(PUBLIC), "the server serves");
}
