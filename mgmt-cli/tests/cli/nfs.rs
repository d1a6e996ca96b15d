//! The noun `nfs`, against a server of NFS that is played by the test.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use iwarp_control::nfs::{
    Clients, ClientsMethod, Connection, Errors, Export, ExportClients, ExportsMethod, Files, Nfs4Client,
    Procedure, ReloadMethod, Stats, StatsMethod, Status, StatusMethod,
};
use iwarp_control::{CounterGroup, CounterRow, ErrorKind, ErrorObject, Method, Request, Response};
use serde_json::{Value, to_value};

use crate::{Run, alone};

fn status() -> Status {
    Status {
        version: "1.2.3".into(),
        pid: 42,
        uptime_ms: 61_000,
        config: "/etc/iwarpd/nfsd.toml".into(),
        rdma: "10.77.0.2:20049".parse().unwrap(),
        tcp: None,
        in_grace: true,
        exports: 1,
        connections_rdma: 2,
        connections_tcp: 0,
        clients: 1,
        sessions: 1,
        opens: 7,
        locks: 3,
        calls: 1000,
        errors: 1,
        files: Files {
            access: "io_uring".into(),
            reason: None,
            transfers_max: 64,
            in_flight: 2,
            waiting: 0,
            done: 500,
            waited: 5,
            cached: 300,
        },
        reload_error: Some("no such directory".into()),
    }
}

fn exports() -> Vec<Export> {
    let clients = |prefix: &str, access: &str| ExportClients {
        prefix: prefix.parse().unwrap(),
        access: access.into(),
        squash: "root".into(),
        anonuid: 65534,
        anongid: 65533,
    };
    vec![Export {
        path: "/data".into(),
        content: "/srv/data".into(),
        clients: vec![clients("10.77.0.0/24", "rw"), clients("fd77::/64", "ro")],
        insecure: false,
        mounts: vec!["10.77.0.5".parse().unwrap()],
    }]
}

fn clients() -> Clients {
    let connection = Connection {
        address: "10.77.0.5".parse().unwrap(),
        transport: "rdma".into(),
        age_ms: 5000,
        calls: 9,
    };
    let client = Nfs4Client {
        id: 7,
        owner: "Linux\u{1b}[31m".into(),
        confirmed: true,
        reclaimed: true,
        silent_ms: 1500,
        sessions: 1,
        opens: 7,
        locks: 3,
    };
    Clients { connections: vec![connection], nfs4: vec![client] }
}

fn stats() -> Stats {
    let read = Procedure {
        program: "nfs4".into(),
        procedure: "READ".into(),
        calls: 10,
        errors: 1,
        read_bytes: 1 << 20,
        written_bytes: 0,
        mean_ns: 12_300,
        p99_ns: 32_768,
        max_ns: 40_000,
    };
    let errors = Errors { program: "nfs4".into(), reason: "Stale".into(), status: Some(70), count: 1 };
    let row = |name: &str, value| CounterRow { name: name.into(), help: "Calls.".into(), value };
    let counters = vec![row("calls", 10), row("closed_credits", 0)];
    Stats {
        procedures: vec![read],
        errors: vec![errors],
        groups: vec![CounterGroup { group: "rpcrdma".into(), counters }],
    }
}

fn serve(stream: &UnixStream) {
    for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
        let request = Request::from_line(&line).unwrap();
        let value: Result<Value, ErrorObject> = match request.method.as_str() {
            StatusMethod::NAME => Ok(to_value(status()).unwrap()),
            ExportsMethod::NAME => Ok(to_value(exports()).unwrap()),
            ClientsMethod::NAME => Ok(to_value(clients()).unwrap()),
            StatsMethod::NAME => Ok(to_value(stats()).unwrap()),
            ReloadMethod::NAME => {
                Err(ErrorObject::new(ErrorKind::InvalidParams, "the exports stay as they are"))
            }
            other => panic!("{other}"),
        };
        let reply = match value {
            Ok(value) => Response::success(request.id, value),
            Err(error) => Response::failure(request.id, error),
        };
        let mut stream = stream;
        stream.write_all(&reply.to_line().unwrap()).unwrap();
    }
}

/// Runs `iwarpctl nfs` against the server.
fn nfs(arguments: &[&str]) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = std::thread::spawn(move || serve(&listener.accept().unwrap().0));
    let run = at(&socket, arguments);
    server.join().unwrap();
    run
}

fn at(socket: &Path, arguments: &[&str]) -> Run {
    alone(&[&["nfs", "--server", socket.to_str().unwrap()], arguments].concat())
}

/// Returns true if a line has these words, in this order.
fn has(text: &str, words: &str) -> bool {
    text.lines().any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ").contains(words))
}

#[test]
fn replies_are_shown_as_text_and_as_they_are() {
    for (noun, reply, lines) in [
        (
            "status",
            to_value(status()).unwrap(),
            &["rdma 10.77.0.2:20049, 2 connections", "opens 7", "reload no such directory"][..],
        ),
        (
            "exports",
            to_value(exports()).unwrap(),
            &[
                "/data 10.77.0.0/24 rw <1024 root 65534:65533 /srv/data 10.77.0.5",
                "/data fd77::/64 ro <1024 root",
            ],
        ),
        (
            "clients",
            to_value(clients()).unwrap(),
            &["10.77.0.5 rdma 5.00 s 9", "confirmed 1.50 s 1 7 3 Linux"],
        ),
        (
            "stats",
            to_value(stats()).unwrap(),
            &[
                "nfs4 READ 10 1 1 MiB 0 B 12.3 µs 32.8 µs 40.0 µs",
                "nfs4 70 1 Stale",
                "rpcrdma calls 10 Calls.",
            ],
        ),
    ] {
        let text = nfs(&[noun]);
        assert_eq!(text.code, 0, "{}", text.stderr);
        for words in lines {
            assert!(has(&text.stdout, words), "{words:?} is not in\n{}", text.stdout);
        }
        assert!(
            !text.stdout.contains('\u{1b}') && !text.stdout.contains("closed_credits"),
            "{}",
            text.stdout
        );
        assert_eq!(nfs(&["--json", noun]).json(), reply);
    }
}

#[test]
fn failures_name_the_server() {
    let refused = nfs(&["reload"]);
    assert!(refused.code == 1 && refused.stderr.contains("stay as they are"), "{}", refused.stderr);
    let absent = at(Path::new("/nonexistent/s"), &["status"]);
    assert_eq!(absent.code, 3);
    for words in ["cannot reach iwarp-nfsd at /nonexistent/s", "systemctl status iwarp-nfsd", "--server PATH"]
    {
        assert!(absent.stderr.contains(words), "{}", absent.stderr);
    }
}
