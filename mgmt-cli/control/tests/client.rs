//! The client against a scripted server.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use iwarp_control::{
    Client, ClientError, ConnListMethod, ErrorKind, ErrorObject, Exit, Hello, HelloReply, Id, METHODS,
    NamedCounters, NoParams, PortStatsMethod, RegionAttachMethod, RegionQuery, RegionRegister,
    RegionRegisterMethod, Request, Response, bounds, params, transfer,
};
use rdma::Access;
use serde_json::json;

/// A server that takes one connection and hands it to the test's code.
struct Server {
    _dir: tempfile::TempDir,
    path: PathBuf,
    thread: JoinHandle<()>,
}

fn serve(conversation: impl FnOnce(BufReader<UnixStream>) + Send + 'static) -> Server {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || conversation(BufReader::new(listener.accept().unwrap().0)));
    Server { _dir: dir, path, thread }
}

fn request(stream: &mut BufReader<UnixStream>) -> Request {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

fn reply(stream: &mut BufReader<UnixStream>, line: &[u8]) {
    stream.get_mut().write_all(line).unwrap();
}

fn call_hello(server: &Server) -> Result<HelloReply, ClientError> {
    Client::connect_with(&server.path, Duration::from_millis(300))?.call::<Hello>(&NoParams {})
}

#[test]
fn calls_follow_each_other_and_split_lines_are_joined() {
    let server = serve(|mut stream| {
        for pid in [7, 8] {
            let request = request(&mut stream);
            assert_eq!(request.method, "hello");
            let line = Response::success(request.id, HelloReply { api: 1, version: "0.1.0".into(), pid });
            for half in line.to_line().unwrap().chunks(11) {
                reply(&mut stream, half);
            }
        }
    });
    let mut client = Client::connect(&server.path).unwrap();
    assert_eq!(client.call::<Hello>(&NoParams {}).unwrap().pid, 7);
    assert_eq!(client.call::<Hello>(&NoParams {}).unwrap().pid, 8);
    server.thread.join().unwrap();
}

#[test]
fn a_refusal_carries_its_kind_help_and_exit_code() {
    let server = serve(|mut stream| {
        let id = request(&mut stream).id;
        let error =
            ErrorObject::new(ErrorKind::NoSuchObject, "no region lab").with_help("iwarpctl region list");
        reply(&mut stream, &Response::<()>::failure(id, error).to_line().unwrap());
    });
    let error = call_hello(&server).unwrap_err();
    assert_eq!(error.exit(), Exit::NoSuchObject);
    assert_eq!(error.to_string(), "no region lab");
    assert_eq!(error.help().unwrap(), "iwarpctl region list");
    assert_eq!(error.kind(), "no_such_object");
}

#[test]
fn a_refusal_of_the_connection_itself_is_read() {
    let server = serve(|mut stream| {
        let error = ErrorObject::new(ErrorKind::NoResources, "too many connections");
        reply(&mut stream, &Response::<()>::failure(None, error).to_line().unwrap());
    });
    let mut client = Client::connect(&server.path).unwrap();
    server.thread.join().unwrap();
    assert_eq!(client.call::<Hello>(&NoParams {}).unwrap_err().to_string(), "too many connections");
}

#[test]
fn a_descriptor_comes_with_the_reply() {
    let server = serve(|mut stream| {
        let request = request(&mut stream);
        let asked: RegionQuery = params::<RegionAttachMethod>(request.params).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"region bytes").unwrap();
        let reply = json!({"name": asked.name, "bytes": 12, "page_bytes": 4096, "access": ["remote-read"]});
        let line = Response::success(request.id, reply).to_line().unwrap();
        assert_eq!(transfer::send(stream.get_ref(), &line, &[file.as_fd()]).unwrap(), line.len());
    });
    let mut client = Client::connect(&server.path).unwrap();
    let (reply, fd) = client.call_with_fd::<RegionAttachMethod>(&RegionQuery { name: "lab".into() }).unwrap();
    assert_eq!(reply.access, Access::REMOTE_READ);
    let mut file = std::fs::File::from(fd.unwrap());
    let mut bytes = [0; 12];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"region bytes");
    assert_eq!(file.read(&mut bytes).unwrap(), 0, "the offset is shared with the sender, who wrote 12");
}

#[test]
fn nobody_there_is_unreachable_with_help() {
    let dir = tempfile::tempdir().unwrap();
    let error = Client::connect(dir.path().join("none.sock")).unwrap_err();
    assert_eq!(error.exit(), Exit::Unreachable);
    assert!(error.to_string().contains("none.sock"), "{error}");
    assert!(error.help().unwrap().contains("--socket"));
}

#[test]
fn a_silent_daemon_times_out() {
    let server = serve(|mut stream| {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
    });
    let error = call_hello(&server).unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    server.thread.join().unwrap();
}

#[test]
fn broken_replies_are_named() {
    let cases: [(&[u8], &str); 6] = [
        (b"garbage\n", "expected value"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1}\n", "neither"),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":9,\"result\":{\"api\":1,\"version\":\"\",\"pid\":1}}\n",
            "not to this request",
        ),
        (
            b"{\"jsonrpc\":\"1.0\",\"id\":1,\"result\":{\"api\":1,\"version\":\"\",\"pid\":1}}\n",
            "unknown variant",
        ),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"api\":1}}\n", "missing field"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":", "lost"),
    ];
    for (line, expected) in cases {
        let server = serve(move |mut stream| {
            request(&mut stream);
            reply(&mut stream, line);
        });
        let error = call_hello(&server).unwrap_err();
        assert_eq!(error.exit(), Exit::Failed);
        assert!(error.to_string().contains(expected), "{error} does not say {expected}");
    }
}

#[test]
fn a_reply_without_end_is_given_up() {
    let server = serve(|mut stream| {
        request(&mut stream);
        let block = vec![b' '; 1 << 20];
        while stream.get_mut().write_all(&block).is_ok() {}
    });
    let mut client = Client::connect(&server.path).unwrap();
    let error = client.call::<Hello>(&NoParams {}).unwrap_err();
    assert!(matches!(error, ClientError::Malformed { .. }), "{error}");
}

#[test]
fn a_request_that_does_not_fit_is_not_sent() {
    let server = serve(|mut stream| {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty());
    });
    let mut client = Client::connect(&server.path).unwrap();
    let error = client.call_raw("x", json!({"pad": "y".repeat(bounds::REQUEST_BYTES_MAX)})).unwrap_err();
    assert!(matches!(error, ClientError::RequestTooLong { .. }), "{error}");
    drop(client);
    server.thread.join().unwrap();
}

#[test]
fn parameters_are_checked_by_name_and_type() {
    assert!(params::<ConnListMethod>(serde_json::Value::Null).is_ok());
    assert!(params::<ConnListMethod>(json!({})).is_ok());
    for (bad, expected) in [
        (json!({"nme": "lab", "bytes": 1, "access": []}), "nme"),
        (json!({"name": "lab", "bytes": -1, "access": []}), "-1"),
        (json!({"name": "lab", "bytes": 1, "access": ["write"]}), "remote-write"),
        (json!({"name": "lab", "bytes": 1, "access": [], "allow": ["10.0.0.0/33"]}), "is not a prefix"),
        (json!([]), "named members"),
    ] {
        let error = params::<RegionRegisterMethod>(bad).unwrap_err();
        assert_eq!(error.data.kind, ErrorKind::InvalidParams);
        assert!(error.message.contains("region.register"), "{error}");
        assert!(error.message.contains(expected), "{error} does not say {expected}");
    }
}

/// The rights of a region are a list of names, in one order, whatever the order and number of those that are read.
#[test]
fn rights_are_names() {
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    for (read, access, written) in [
        (json!([]), Access::NONE, json!([])),
        (
            json!(["remote-write", "remote-read", "remote-write"]),
            both,
            json!(["remote-read", "remote-write"]),
        ),
        (
            json!(Access::REGION_NAMES),
            Access::REGION,
            json!(["remote-read", "remote-write", "remote-atomic"]),
        ),
    ] {
        let asked =
            params::<RegionRegisterMethod>(json!({"name": "lab", "bytes": 1, "access": read})).unwrap();
        assert_eq!(asked.access, access);
        assert_eq!(serde_json::to_value(&asked).unwrap()["access"], written);
    }
    for wrong in [json!(["remote-invalidate"]), json!(["local-read"]), json!("remote-read"), json!([1])] {
        let asked = params::<RegionRegisterMethod>(json!({"name": "lab", "bytes": 1, "access": wrong}));
        assert!(asked.is_err(), "{wrong}");
    }
}

#[test]
fn counters_keep_their_order() {
    let text = r#"[{"name":"p0","counters":{"zulu":1,"alpha":18446744073709551615}}]"#;
    let rows: <PortStatsMethod as iwarp_control::Method>::Reply = serde_json::from_str(text).unwrap();
    assert_eq!(rows[0].counters, NamedCounters(vec![("zulu".into(), 1), ("alpha".into(), u64::MAX)]));
    assert_eq!(serde_json::to_string(&rows).unwrap(), text);
}

#[test]
fn a_token_does_not_show_in_a_log() {
    let request = RegionRegister {
        name: "lab".into(),
        bytes: 1,
        access: Access::REMOTE_READ,
        token_hex: Some("c0ffee".into()),
        allow: Vec::new(),
    };
    assert!(!format!("{request:?}").contains("c0ffee"));
    assert!(serde_json::to_string(&request).unwrap().contains("c0ffee"));
}

#[test]
fn envelopes_read_what_the_standard_allows() {
    let request: Request = serde_json::from_str(r#"{"jsonrpc":"2.0","id":"a","method":"hello"}"#).unwrap();
    assert_eq!((request.id, request.params), (Some(Id::Text("a".into())), serde_json::Value::Null));
    let error: ErrorObject =
        serde_json::from_str(r#"{"code":-1,"message":"m","data":{"kind":"novel"}}"#).unwrap();
    assert_eq!(error.data.kind, ErrorKind::Unknown);
    let error: ErrorObject = serde_json::from_str(r#"{"code":-1,"message":"m"}"#).unwrap();
    assert_eq!(error.data.kind.exit(), Exit::Failed);
    assert_eq!(
        Response::<()>::failure(None, ErrorObject::not_json("no")).to_line().unwrap(),
        b"{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700,\"message\":\"no\",\
          \"data\":{\"kind\":\"invalid_request\"}}}\n"
    );
}

#[test]
fn every_kind_has_its_name_and_an_own_code() {
    let kinds = [
        ErrorKind::InvalidRequest,
        ErrorKind::UnknownMethod,
        ErrorKind::InvalidParams,
        ErrorKind::NoSuchObject,
        ErrorKind::Exists,
        ErrorKind::InUse,
        ErrorKind::NotPermitted,
        ErrorKind::NoResources,
        ErrorKind::TooLarge,
        ErrorKind::InvalidConfig,
        ErrorKind::NeedsRestart,
        ErrorKind::Internal,
    ];
    let mut codes: Vec<i32> = kinds.iter().map(|kind| kind.code()).collect();
    for kind in kinds {
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
    }
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes.len(), kinds.len());
    assert_eq!(METHODS.len(), 26);
}
