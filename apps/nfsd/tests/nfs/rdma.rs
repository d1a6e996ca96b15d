//! The server over RDMA, with devices in this process: which bytes are copied, and connections that end.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use iwarp_nfsd::{Directory, Export, RdmaDevice, RdmaLimits, RdmaServer, Server, Squash};
use iwarp_verbs::Context;
use nfs3_types::nfs3::createhow3;
use tempfile::TempDir;

use crate::client::{Client, KEY, mode, rule};
use crate::over_rdma::{Client as Connection, DATA_AT, result};

/// Most bytes of a READ or WRITE.
const BYTES: u32 = 1 << 20;

/// A server over RDMA, and files in its directory.
struct Lab {
    server: Arc<Server>,
    address: SocketAddr,
    client: Client,
    ends: Arc<AtomicBool>,
    running: Option<JoinHandle<()>>,
}

impl Lab {
    fn new(folder: TempDir, threads_max: u16) -> Self {
        let backend = Box::new(Directory::open(folder.path()).unwrap());
        let rules = || vec![rule("0.0.0.0/0", true, Squash::None)];
        let export = Export { path: "/data".to_owned(), backend, rules: rules(), insecure: false };
        let server = Arc::new(Server::new(vec![export], KEY, 1, BYTES).unwrap());
        // Handles of files come from another server with the same key.
        let client = Client::over(folder, rules());
        let limits = RdmaLimits {
            connections_max: 8,
            credits: 4,
            inline_bytes: 4096,
            segments_max: 16,
            transfers_max: 4,
            threads_max,
        };
        let device = RdmaDevice::on(Context::embedded().unwrap(), limits).unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let rdma = RdmaServer::start(Arc::clone(&server), device, address).unwrap();
        let ends = Arc::<AtomicBool>::default();
        let asked = Arc::clone(&ends);
        let running = std::thread::spawn(move || rdma.run(&|| asked.load(Ordering::Acquire)).unwrap());
        Self { server, address, client, ends, running: Some(running) }
    }

    fn connect(&self) -> Connection {
        Connection::on(Context::embedded().unwrap(), self.address, BYTES).unwrap()
    }

    /// Makes a file, and returns its handle.
    fn file(&self, name: &str) -> Vec<u8> {
        let made = self.client.create(&self.client.root, name, createhow3::UNCHECKED(mode(0o666)));
        made.unwrap().data.to_vec()
    }

    fn content(&self, name: &str) -> Vec<u8> {
        fs::read(self.client.folder.path().join(name)).unwrap()
    }

    fn counter(&self, group: &str, name: &str) -> u64 {
        let report = self.server.stats_report();
        let group = report.groups.into_iter().find(|found| found.group == group).unwrap();
        group.counters.into_iter().find(|found| found.name == name).unwrap().value
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        let ended = self.running.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

fn pattern(seed: u32, length: u32) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31).wrapping_add(seed * 7) % 251).to_le_bytes()[0]).collect()
}

/// Writes data, and waits for the reply.
fn write(connection: &mut Connection, file: &[u8], data: &[u8], stable: u32) {
    connection.mr.write(DATA_AT, data).unwrap();
    connection.send_write(file, u32::try_from(data.len()).unwrap(), stable).unwrap();
    result(&connection.reply().unwrap()).unwrap();
}

/// The counters of payload are the bytes that this program, and those that the kernel alone has copied.
#[test]
fn the_kernel_alone_copies_between_files_and_registered_memory() {
    for (folder, kind) in [(TempDir::new().unwrap(), "disk"), (TempDir::new_in("/dev/shm").unwrap(), "tmpfs")]
    {
        let lab = Lab::new(folder, 4);
        let mut connection = lab.connect();
        let mut moved = 0;
        for (seed, length) in (0..).zip([1, 3, 4, 4095, 4096, 65_537, 200_000, BYTES - 1, BYTES]) {
            let (name, data) = (format!("{length}"), pattern(seed, length));
            let file = lab.file(&name);
            write(&mut connection, &file, &data, seed % 3);
            assert!(lab.content(&name) == data, "{kind}: a WRITE of {length} bytes");
            connection.mr.write(DATA_AT, &vec![0; length as usize]).unwrap();
            assert!(connection.read(&file, length).unwrap() == data, "{kind}: a READ of {length} bytes");
            moved += u64::from(length);
        }
        let counters =
            ["read_placed", "write_placed", "read_copied", "write_copied", "read_direct", "write_direct"];
        let counted = counters.map(|name| lab.counter("payload", name));
        assert_eq!(counted, [moved, moved, 0, 0, 0, 0], "{kind}: {counters:?}");
    }
}

/// A client with several connections (nconnect) goes on with those that are left, in every order of closing.
#[test]
fn connections_of_a_client_end_in_every_order() {
    let lab = Lab::new(TempDir::new().unwrap(), 3);
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut connections: Vec<_> = (0..3).map(|_| Some(lab.connect())).collect();
        let files: Vec<_> = (0..3).map(|number| lab.file(&format!("{number}"))).collect();
        for closed in order {
            for (number, connection) in (0..).zip(&mut connections) {
                let Some(connection) = connection else { continue };
                connection.mr.write(DATA_AT, &pattern(number, 300_000)).unwrap();
                connection.send_write(&files[number as usize], 300_000, 0).unwrap();
            }
            for (number, connection) in (0..).zip(&mut connections) {
                let Some(connection) = connection else { continue };
                result(&connection.reply().unwrap()).unwrap();
                let read = connection.read(&files[number as usize], 300_000).unwrap();
                assert!(read == pattern(number, 300_000), "{order:?}: connection {number}");
            }
            connections[closed] = None;
        }
    }
    assert_eq!(lab.counter("payload", "read_copied"), 0);
}

/// A client that disappears while its data moves leaves a file with the bytes before or after the WRITE, never others;
/// another client's bytes are right meanwhile, and nothing is in flight in the end.
#[test]
fn a_client_that_disappears_spoils_no_byte() {
    let lab = Lab::new(TempDir::new().unwrap(), 4);
    let (victim, other) = (lab.file("victim"), lab.file("other"));
    let mut honest = lab.connect();
    write(&mut honest, &other, &pattern(99, BYTES), 0);
    write(&mut honest, &victim, &pattern(0, BYTES), 0);
    let mut possible = vec![pattern(0, BYTES)];
    for round in 1..16 {
        let mut gone = lab.connect();
        let data = pattern(round, BYTES);
        gone.mr.write(DATA_AT, &data).unwrap();
        gone.send_write(&victim, BYTES, round % 3).unwrap();
        // At every time of the call: before, while and after its data moves.
        gone.is_answered_within(Duration::from_micros(150) * (round - 1)).unwrap();
        drop(gone);
        possible.push(data);
        assert!(honest.read(&other, BYTES).unwrap() == pattern(99, BYTES), "round {round}");
    }
    settles(&lab);
    // The call of a connection that has ended goes on: its client's later calls come after it.
    let content = honest.read(&victim, BYTES).unwrap();
    assert!(possible.contains(&content), "bytes that nobody has written as one");
    assert!(lab.content("victim") == content);
}

/// Waits until the server has no transfer and no connection but one.
#[allow(clippy::disallowed_methods, reason = "a wait with a time limit reads the clock")]
fn settles(lab: &Lab) {
    let begin = Instant::now();
    while lab.server.connection_count() > 1 {
        assert!(begin.elapsed() < Duration::from_secs(20), "connections stay");
        std::thread::sleep(Duration::from_millis(5));
    }
}
