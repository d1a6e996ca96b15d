//! Both programs over TCP: records, limits, and clients that are not what they should be. Needs root.
#![allow(clippy::disallowed_methods, reason = "a test may wait")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::client::{KEY, TRANSFER_MAX, call_bytes, rule};
use iwarp_nfsd::{Directory, Export, MountProc, Nfs3Proc, Nfs4Proc, Server, Squash, TcpLimits, TcpServer};
use iwarp_rpc::xdr::{Reader, Writer};
use tempfile::TempDir;

const LIMITS: TcpLimits = TcpLimits { connections_max: 3, idle_timeout: Duration::from_secs(20) };

fn start(limits: TcpLimits) -> (TempDir, TcpServer) {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "127.0.0.0/8", true, limits);
    (folder, server)
}

/// Serves a folder to clients in a prefix, at 127.0.0.1.
fn server(folder: &Path, clients: &str, insecure: bool, limits: TcpLimits) -> TcpServer {
    let backend = Box::new(Directory::open(folder).unwrap());
    let rules = vec![rule(clients, true, Squash::None)];
    let export = Export { path: "/data".to_owned(), backend, rules, insecure };
    let server = Arc::new(Server::new(vec![export], KEY, 1, TRANSFER_MAX).unwrap());
    TcpServer::start(server, "127.0.0.1:0".parse().unwrap(), limits).unwrap()
}

fn connect(server: &TcpServer) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// Sends a message in fragments of `size` bytes.
fn send(stream: &mut TcpStream, message: &[u8], size: usize) {
    let count = message.len().div_ceil(size);
    for (at, part) in message.chunks(size).enumerate() {
        let last = if at + 1 == count { 1 << 31 } else { 0 };
        let mark = u32::try_from(part.len()).unwrap() | last;
        stream.write_all(&[&mark.to_be_bytes(), part].concat()).unwrap();
    }
}

fn receive(stream: &mut TcpStream) -> Vec<u8> {
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).unwrap();
    let mark = u32::from_be_bytes(mark);
    assert!(mark & 1 << 31 != 0, "a reply is one fragment");
    let mut record = vec![0; (mark & !(1 << 31)) as usize];
    stream.read_exact(&mut record).unwrap();
    record
}

/// Calls a procedure and returns its result.
fn call(
    stream: &mut TcpStream,
    program: u32,
    procedure: impl Into<u32>,
    arguments: &[u8],
    fragment: usize,
) -> Vec<u8> {
    let message = [call_bytes(program, 3, procedure, &(0, vec![0])), arguments.to_vec()].concat();
    send(stream, &message, fragment);
    let reply = receive(stream);
    assert_eq!(reply[..24], [77, 1, 0, 0, 0, 0].map(u32::to_be_bytes).concat());
    reply[24..].to_vec()
}

fn closed(stream: &mut TcpStream) -> bool {
    matches!(stream.read(&mut [0; 1]), Ok(0)) || stream.write_all(&[0; 4]).is_err()
}

fn becomes(counter: &AtomicU64, value: u64) {
    let until = Instant::now() + Duration::from_secs(10);
    while counter.load(Ordering::Relaxed) != value {
        assert!(Instant::now() < until, "{counter:?} instead of {value}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_client_mounts_writes_and_reads() {
    let (folder, server) = start(LIMITS);
    for fragment in [1, 4, 100, 1 << 20] {
        let mut stream = connect(&server);
        let mut path = Writer::new();
        path.opaque(b"/data");
        let mounted = call(&mut stream, 100_005, MountProc::MNT, &path.into_bytes(), fragment);
        let mut reader = Reader::new(&mounted);
        assert_eq!(reader.u32(), Ok(0));
        assert_eq!(reader.opaque(64).unwrap().len() % 4, 0);
        for length in [0_usize, 1, 2, 3, 4, 1000, TRANSFER_MAX as usize] {
            let content: Vec<u8> = (0..length).map(|at| (at % 251).to_le_bytes()[0]).collect();
            std::fs::write(folder.path().join("file"), &content).unwrap();
            let mut lookup = Writer::new();
            lookup.opaque(Reader::new(&mounted[4..]).opaque(64).unwrap());
            lookup.opaque(b"file");
            let found = call(&mut stream, 100_003, Nfs3Proc::LOOKUP, &lookup.into_bytes(), fragment);
            let handle = Reader::new(&found[4..]).opaque(64).unwrap().to_vec();
            let mut read = Writer::new();
            read.opaque(&handle);
            read.u64(0);
            read.u32(TRANSFER_MAX);
            let result = call(&mut stream, 100_003, Nfs3Proc::READ, &read.into_bytes(), fragment);
            // Status, attributes, count, end of file, then the data.
            let mut reader = Reader::new(&result[4 + 88 + 8..]);
            assert_eq!(reader.opaque(TRANSFER_MAX as usize), Ok(&content[..]), "{length} bytes");
            assert!(reader.rest().is_empty());
            let mut write = Writer::new();
            write.opaque(&handle);
            write.u64(length as u64);
            write.u32(u32::try_from(length).unwrap());
            write.u32(2);
            write.opaque(&content);
            assert_eq!(
                call(&mut stream, 100_003, Nfs3Proc::WRITE, &write.into_bytes(), fragment)[..4],
                [0; 4]
            );
            assert_eq!(std::fs::read(folder.path().join("file")).unwrap(), [&content[..], &content].concat());
        }
    }
}

#[test]
fn records_have_limits() {
    let (_folder, server) = start(LIMITS);
    let marks: [&[u32]; 4] = [&[1 << 31], &[0; 17], &[(1 << 31) | (TRANSFER_MAX + 9000)], &[u32::MAX]];
    for (count, marks) in (1..).zip(marks) {
        let mut stream = connect(&server);
        let bytes: Vec<u8> = marks.iter().flat_map(|mark| mark.to_be_bytes()).collect();
        stream.write_all(&bytes).unwrap();
        assert!(closed(&mut stream), "{marks:x?}");
        becomes(&server.stats().closed_record, count);
    }
    let mut stream = connect(&server);
    send(&mut stream, &[0, 0, 0, 7, 0, 0, 0, 1], 100);
    assert!(closed(&mut stream), "a reply is no call");
    becomes(&server.stats().closed_no_call, 1);
    // A record that is cut off ends its own connection only.
    let mut stream = connect(&server);
    stream.write_all(&[0x80, 0, 0, 9, 1]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(closed(&mut stream));
    assert_eq!(call(&mut connect(&server), 100_003, Nfs3Proc::NULL, &[], 100), [0_u8; 0]);
}

/// libtirpc ends a record with an empty fragment if the one before has just filled its buffer.
#[test]
fn a_record_may_have_empty_fragments() {
    let (_folder, server) = start(LIMITS);
    let mut stream = connect(&server);
    let message = call_bytes(100_003, 3, Nfs3Proc::NULL, &(0, vec![0]));
    let (head, tail) = message.split_at(8);
    let empty = |count: usize| vec![0_u8; 4 * count];
    let part =
        |part: &[u8], last: u32| [&(u32::try_from(part.len()).unwrap() | last).to_be_bytes(), part].concat();
    let last = (1_u32 << 31).to_be_bytes().to_vec();
    for record in [
        [part(&message, 0), last.clone()].concat(),
        [empty(1), part(head, 0), empty(1), part(tail, 1 << 31)].concat(),
        [part(head, 0), empty(7), part(tail, 0), empty(8), last].concat(),
    ] {
        stream.write_all(&record).unwrap();
        assert_eq!(receive(&mut stream).len(), 24, "{record:x?}");
    }
    assert_eq!(server.stats().closed_record.load(Ordering::Relaxed), 0);
}

#[test]
fn an_idle_connection_makes_room() {
    let (_folder, server) = start(LIMITS);
    let mut streams: Vec<_> = (0..3).map(|_| connect(&server)).collect();
    for at in [1, 0, 2] {
        call(&mut streams[at], 100_003, Nfs3Proc::NULL, &[], 100);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.open(), 3);
    let mut next = connect(&server);
    call(&mut next, 100_003, Nfs3Proc::NULL, &[], 100);
    assert!(closed(&mut streams.remove(1)), "the longest idle");
    becomes(&server.stats().closed_idlest, 1);
    for stream in &mut streams {
        call(stream, 100_003, Nfs3Proc::NULL, &[], 100);
    }
    // A crowd that says nothing keeps nobody out.
    let mut silent: Vec<_> = (0..100).map(|_| connect(&server)).collect();
    becomes(&server.stats().closed_idlest, 101);
    let mut path = Writer::new();
    path.opaque(b"/data");
    let mounted = call(&mut connect(&server), 100_005, MountProc::MNT, &path.into_bytes(), 100);
    assert_eq!(mounted[..4], [0; 4]);
    assert!(silent[..98].iter_mut().all(closed));
    let stats = server.stats();
    assert_eq!(stats.closed_limit.load(Ordering::Relaxed) + stats.closed_idle.load(Ordering::Relaxed), 0);
    drop(server);
    assert!(streams.iter_mut().chain(&mut silent).all(closed), "the end of the server closes all");
}

#[test]
fn an_address_in_no_export_is_closed_at_once() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "10.0.0.0/8", true, LIMITS);
    let mut stream = connect(&server);
    let _ = stream.write_all(&[0; 4]);
    assert!(closed(&mut stream));
    becomes(&server.stats().closed_address, 1);
    assert_eq!(server.open(), 0);
}

#[test]
fn a_port_of_any_user_mounts_nothing() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "127.0.0.0/8", false, LIMITS);
    let mut path = Writer::new();
    path.opaque(b"/data");
    let mut stream = connect(&server);
    assert_eq!(
        call(&mut stream, 100_005, MountProc::MNT, &path.into_bytes(), 100),
        13_u32.to_be_bytes(),
        "MNT3ERR_ACCES"
    );
    becomes(&server.stats().refused_port, 1);
    assert!(
        !call(&mut stream, 100_005, MountProc::EXPORT, &[], 100).is_empty(),
        "the list of exports is for everybody"
    );
}

/// Sends a COMPOUND of one operation, or of one behind SEQUENCE. Returns its results.
fn compound(stream: &mut TcpStream, operations: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Writer::new();
    out.opaque(b"");
    [1, u32::try_from(operations.len()).unwrap()].into_iter().for_each(|word| out.u32(word));
    let message = call_bytes(100_003, 4, Nfs4Proc::COMPOUND, &(0, vec![0]));
    send(stream, &[message, out.into_bytes(), operations.concat()].concat(), 1 << 20);
    let reply = receive(stream);
    assert_eq!(reply[24..28], [0; 4], "{reply:?}");
    reply[36..].to_vec()
}

fn operation(number: u32, arguments: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut out = Writer::new();
    out.u32(number);
    arguments(&mut out);
    out.into_bytes()
}

#[test]
fn the_connection_of_a_client_with_an_open_stays() {
    let (_folder, server) = start(LIMITS);
    let mut holder = connect(&server);
    let words = |out: &mut Writer, words: &[u32]| words.iter().for_each(|word| out.u32(*word));
    let made = compound(&mut holder, &[operation(42, |out| words(out, &[0, 1, 4, 7, 0, 0, 0]))]);
    let create = operation(43, |out| {
        out.fixed(&made[8..16]);
        words(out, &[1, 0]);
        (0..2).for_each(|_| words(out, &[0, 1 << 20, 1 << 20, 4096, 16, 4, 0]));
        words(out, &[0x4000_0000, 1, 0]);
    });
    let session = compound(&mut holder, &[create])[8..24].to_vec();
    let sequence = |number| {
        operation(53, |out| {
            out.fixed(&session);
            words(out, &[number, 0, 0, 0]);
        })
    };
    compound(&mut holder, &[sequence(1), operation(58, |out| out.bool(false))]);
    let open = operation(18, |out| {
        words(out, &[0, 3, 0, 0, 0, 4, 9, 1, 0, 0, 0, 0, 4]);
        out.fixed(b"file");
    });
    let lookup = operation(15, |out| out.opaque(b"data"));
    compound(&mut holder, &[sequence(2), operation(24, |_| {}), lookup, open]);
    std::thread::sleep(Duration::from_millis(20));
    let _silent: Vec<_> = (0..10).map(|_| connect(&server)).collect();
    becomes(&server.stats().closed_idlest, 8);
    compound(&mut holder, &[sequence(3)]);
}

#[test]
fn a_silent_client_is_closed() {
    let (_folder, server) = start(TcpLimits { idle_timeout: Duration::from_millis(50), ..LIMITS });
    let mut stream = connect(&server);
    stream.write_all(&[0x80, 0, 0]).unwrap();
    assert!(closed(&mut stream));
    becomes(&server.stats().closed_idle, 1);
}
