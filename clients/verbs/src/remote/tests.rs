//! Regions that one device in this process offers, and another reads and writes.

mod hostile;

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdma::service::encode_request;

use super::*;
use crate::*;

const WAIT: Duration = Duration::from_secs(30);

/// Returns rights of local work and of peers.
fn rights(remote: Access) -> Access {
    Access::LOCAL_READ | Access::LOCAL_WRITE | remote
}

fn both() -> Access {
    Access::REMOTE_READ | Access::REMOTE_WRITE
}

/// A device that serves regions on a port of the kernel's choice.
struct Host {
    context: Context,
    pd: ProtectionDomain,
    server: RegionServer,
}

impl Host {
    fn at(ip: &str) -> Self {
        let context = Context::embedded().unwrap();
        let pd = context.alloc_pd().unwrap();
        let server = context.serve_regions(&[SocketAddr::new(ip.parse().unwrap(), 0)]).unwrap();
        Self { context, pd, server }
    }

    fn new() -> Self {
        Self::at("127.0.0.1")
    }

    /// Allocates memory and offers all of it.
    fn offer(&self, name: &str, bytes: u64, access: Access) -> (Mr, Offer) {
        let memory = self.pd.alloc_mr(bytes, rights(access)).unwrap();
        let offer = self.server.offer(name, &memory, &OfferOptions::new(access)).unwrap();
        (memory, offer)
    }

    /// Returns the text that names a region of this device.
    fn target(&self, name: &str) -> String {
        format!("{}/{name}", self.server.addresses()[0])
    }

    fn connect(&self, name: &str, access: Access) -> Result<RemoteRegion, RemoteError> {
        connect_region(&self.target(name), &RegionOptions::new(access).with_timeout(WAIT))
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at * 7 + at / 251 + seed) % 251).unwrap()).collect()
}

/// Returns the reason of a refusal by the own device.
fn reason<T: std::fmt::Debug>(refused: Result<T, Error>) -> (VerbsError, String) {
    match refused {
        Err(Error::Refused { cause, reason, .. }) => (cause, reason.unwrap_or_default()),
        other => panic!("{other:?}"),
    }
}

/// Returns the peer's answer to a request that it refuses.
fn status(refused: Result<RemoteRegion, RemoteError>) -> Status {
    match refused {
        Err(RemoteError::Refused { cause: ServiceError::Refused(status), .. }) => status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_of_every_length_are_written_and_read() {
    for ip in ["127.0.0.1", "::1"] {
        let host = Host::at(ip);
        // The second of two small ones does not begin where its memory does.
        let (_first, _other) = host.offer("first", 100, both());
        for (name, bytes) in [("small", 5000_u64), ("large", (5 << 20) + 3)] {
            let (memory, offer) = host.offer(name, bytes, both());
            let mut region = host.connect(name, both()).unwrap();
            assert_eq!((region.bytes(), region.name(), region.access()), (bytes, name, both()));
            assert_eq!(Some(&region.peer()), host.server.addresses().first());
            let lengths = [0, 1, 3, 4095, 4096, 4097, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1];
            let lengths = lengths.into_iter().chain([WINDOW_BYTES, 3 * WINDOW_BYTES + 17, 5 << 20]);
            for (seed, len) in lengths.filter(|len| *len as u64 <= bytes).enumerate() {
                for offset in [0, bytes - len as u64] {
                    let (data, mut out) = (pattern(len, seed), vec![0; len]);
                    region.write(offset, &data).unwrap();
                    memory.read(offset, &mut out).unwrap();
                    assert!(out == data, "{len} bytes written at {offset} of {name}");
                    let data = pattern(len, seed + 100);
                    memory.write(offset, &data).unwrap();
                    region.read(offset, &mut out).unwrap();
                    assert!(out == data, "{len} bytes read at {offset} of {name}");
                }
            }
            let stats = offer.stats().unwrap();
            assert_eq!((stats.grants, stats.bytes_placed), (1, stats.bytes_fetched));
        }
    }
}

#[test]
fn an_access_beyond_the_region_is_not_sent() {
    let host = Host::new();
    let (_memory, _offer) = host.offer("lab", 10, both());
    let mut region = host.connect("lab", both()).unwrap();
    for (offset, len) in [(10, 1), (0, 11), (u64::MAX, 1), (11, 0), (u64::MAX - 1, 5)] {
        let written = region.write(offset, &vec![0; len]);
        assert!(matches!(written, Err(RemoteError::Bounds(_))), "{written:?}");
        let read = region.read(offset, &mut vec![0; len]);
        assert!(matches!(read, Err(RemoteError::Bounds(_))), "{read:?}");
    }
    region.write(10, &[]).unwrap();
    region.write(0, b"0123456789").unwrap();
    assert!(region.is_open());
}

#[test]
fn rights_are_those_of_the_offer() {
    let host = Host::new();
    let (memory, _offer) = host.offer("ro", 4096, Access::REMOTE_READ);
    assert_eq!(status(host.connect("ro", Access::REMOTE_WRITE)), Status::NotPermitted);
    assert_eq!(status(host.connect("ro", both())), Status::NotPermitted);
    let mut region = host.connect("ro", Access::REMOTE_READ).unwrap();
    let denied = region.write(0, b"x").unwrap_err();
    assert!(matches!(denied, RemoteError::Right { right: "remote-write", .. }), "{denied}");
    memory.write(0, b"seen").unwrap();
    let mut out = [0; 4];
    region.read(0, &mut out).unwrap();
    assert_eq!(&out, b"seen");
    // Neither more than the memory region has, nor none, nor rights that are not a region's.
    for (access, cause, text) in [
        (
            Access::REMOTE_WRITE,
            VerbsError::NotPermitted,
            "region `x`: its memory region is not registered with",
        ),
        (
            Access::NONE,
            VerbsError::Invalid,
            "region `x`: its rights must be some of remote-read, remote-write",
        ),
        (Access::LOCAL_READ, VerbsError::Invalid, "region `x`"),
    ] {
        let (is, said) = reason(host.server.offer("x", &memory, &OfferOptions::new(access)));
        assert!(is == cause && said.starts_with(text), "{is} {said}");
    }
    let asked = host.connect("ro", Access::REMOTE_ATOMIC);
    assert!(matches!(asked, Err(RemoteError::Target { .. })), "{asked:?}");
}

#[test]
fn a_token_and_a_source_are_required() {
    let host = Host::new();
    let memory = host.pd.alloc_mr(64, rights(both())).unwrap();
    let token = |text: &str| Token::new(text.as_bytes()).unwrap();
    let options = OfferOptions::new(Access::REMOTE_READ).with_token(token("open sesame"));
    let _offer = host.server.offer("secret", &memory, &options).unwrap();
    assert_eq!(status(host.connect("secret", Access::REMOTE_READ)), Status::NotPermitted);
    let asks = RegionOptions::new(Access::REMOTE_READ);
    let with = |text| connect_region(&host.target("secret"), &asks.clone().with_token(token(text)));
    assert_eq!(status(with("open sesamf")), Status::NotPermitted);
    with("open sesame").unwrap().read(0, &mut [0; 64]).unwrap();
    for (name, prefix, is_here) in [("near", [127, 0, 0, 0], true), ("far", [10, 0, 0, 0], false)] {
        let allow = vec![Prefix::new(std::net::IpAddr::from(prefix), 8).unwrap()];
        let options = OfferOptions { allow, ..OfferOptions::new(Access::REMOTE_READ) };
        let _offer = host.server.offer(name, &memory, &options).unwrap();
        assert_eq!(host.connect(name, Access::REMOTE_READ).is_ok(), is_here, "{name}");
    }
}

#[test]
fn names_are_checked_and_belong_to_one_region() {
    let host = Host::new();
    let (memory, offer) = host.offer("lab", 64, Access::REMOTE_READ);
    assert_eq!(status(host.connect("Lab", Access::REMOTE_READ)), Status::NoSuchRegion);
    let options = OfferOptions::new(Access::REMOTE_READ);
    let (cause, said) = reason(host.server.offer("lab", &memory, &options));
    assert!(cause == VerbsError::Busy && said.contains("`lab` is offered already"), "{cause} {said}");
    for name in ["", "l\u{202e}ab", "a\nb", &"x".repeat(64)] {
        assert_eq!(reason(host.server.offer(name, &memory, &options)).0, VerbsError::Invalid, "{name:?}");
    }
    drop(offer);
    assert_eq!(status(host.connect("lab", Access::REMOTE_READ)), Status::NoSuchRegion);
    let offer = host.server.offer("lab", &memory, &options).unwrap();
    assert_eq!((offer.name(), offer.server().addresses()), ("lab", host.server.addresses()));
    host.connect("lab", Access::REMOTE_READ).unwrap().read(0, &mut [0; 64]).unwrap();
    let other = Host::new();
    assert_eq!(reason(other.server.offer("lab", &memory, &options)).0, VerbsError::Invalid);
}

#[test]
fn a_withdrawn_region_revokes_its_grants_alone() {
    let host = Host::new();
    let (memory, offer) = host.offer("lab", 3 << 20, both());
    let again = host.server.offer("again", &memory, &OfferOptions::new(Access::REMOTE_READ)).unwrap();
    let mut region = host.connect("lab", both()).unwrap();
    let mut other = host.connect("again", Access::REMOTE_READ).unwrap();
    let (is_used, bytes) = (AtomicBool::new(false), pattern(3 << 20, 0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            loop {
                region.write(0, &bytes)?;
                is_used.store(true, Ordering::SeqCst);
            }
            #[allow(unreachable_code, reason = "names the type of the error")]
            Ok::<(), RemoteError>(())
        });
        while !is_used.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        drop(offer);
        let ended = writer.join().unwrap().unwrap_err();
        assert!(matches!(ended, RemoteError::Closed { .. }), "{ended}");
    });
    assert!(!region.is_open() && matches!(region.read(0, &mut [0]), Err(RemoteError::Closed { .. })));
    other.read(0, &mut [0; 4096]).unwrap();
    // The end of the memory region is the end of its offers.
    assert_eq!(again.stats().map(|stats| stats.grants), Some(1));
    drop(memory);
    assert_eq!(again.stats(), None);
    let ended = other.read(0, &mut [0; 1]).unwrap_err();
    assert!(
        ended.to_string().contains("the peer has ended the connection: remote protection error"),
        "{ended}"
    );
    // A late end of a handle withdraws nothing that came after.
    let (_memory, _offer) = host.offer("again", 64, both());
    drop(again);
    host.connect("again", both()).unwrap().write(0, &[1; 64]).unwrap();
}

#[test]
fn twenty_peers_write_and_read_at_once() {
    let host = Host::new();
    let (memory, offer) = host.offer("lab", 20 * 70_000, both());
    std::thread::scope(|scope| {
        for number in 0..20_usize {
            let host = &host;
            scope.spawn(move || {
                let mut region = host.connect("lab", both()).unwrap();
                for round in 0..5 {
                    let (data, mut out) = (pattern(70_000, number + round), vec![0; 70_000]);
                    region.write(number as u64 * 70_000, &data).unwrap();
                    region.read(number as u64 * 70_000, &mut out).unwrap();
                    assert!(out == data, "{number}");
                }
            });
        }
    });
    let mut out = vec![0; 70_000];
    memory.read(19 * 70_000, &mut out).unwrap();
    assert!(out == pattern(70_000, 19 + 4));
    assert_eq!(offer.stats().unwrap().bytes_placed, 20 * 5 * 70_000);
}

#[test]
fn an_interrupted_call_ends_at_once() {
    static INTERRUPTED: AtomicBool = AtomicBool::new(false);
    let interrupted = || INTERRUPTED.load(Ordering::SeqCst);
    let host = Host::new();
    let (_memory, _offer) = host.offer("lab", 3 << 20, both());
    let options = RegionOptions::new(both()).with_timeout(WAIT).with_interrupted(interrupted);
    let mut region = connect_region(&host.target("lab"), &options).unwrap();
    region.write(0, &pattern(3 << 20, 0)).unwrap();
    // Without a pause, and while a peer is silent.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            INTERRUPTED.store(true, Ordering::SeqCst);
        });
        let ended = loop {
            if let Err(error) = region.write(0, &pattern(3 << 20, 0)) {
                break error;
            }
        };
        assert!(matches!(ended, RemoteError::Interrupted { .. }) && !region.is_open(), "{ended}");
    });
    let target = format!("{}/lab", silent.local_addr().unwrap());
    let ended = connect_region(&target, &options).unwrap_err();
    assert!(matches!(ended, RemoteError::Interrupted { .. }), "{ended}");
    assert!(began.elapsed() < WAIT / 3, "{:?}", began.elapsed());
}

#[test]
fn one_context_has_one_server_and_its_end_frees_the_port() {
    let host = Host::new();
    let (_memory, offer) = host.offer("lab", 64, both());
    let mut region = host.connect("lab", both()).unwrap();
    let at = host.server.addresses()[0];
    let (cause, said) = reason(host.context.serve_regions(&[]));
    assert!(cause == VerbsError::Busy && said.contains("serves regions already"), "{said}");
    let other = Context::embedded().unwrap();
    let taken = other.serve_regions(&[at]).unwrap_err();
    assert!(taken.to_string().contains("another program listens there"), "{taken}");
    let foreign = other.serve_regions(&["192.0.2.1:0".parse().unwrap()]).unwrap_err();
    assert!(foreign.to_string().contains("no interface of this machine"), "{foreign}");
    let Host { context, pd: _pd, server } = host;
    drop(server);
    region.write(0, b"an offer keeps its server").unwrap();
    drop(offer);
    assert!(matches!(region.write(0, b"x"), Err(RemoteError::Closed { .. })));
    let again = context.serve_regions(&[at, "[::1]:0".parse().unwrap()]).unwrap();
    assert_eq!((again.addresses()[0], again.addresses().len()), (at, 2));
    drop((again, context));
    TcpListener::bind(at).unwrap();
}

#[test]
fn a_device_connects_to_itself() {
    let host = Host::new();
    let (memory, _offer) = host.offer("lab", 4096, both());
    let (target, options) = (host.target("lab").parse().unwrap(), RegionOptions::new(both()));
    let (request, at) = (encode_request("lab", both(), b"").unwrap(), host.server.addresses()[0]);
    let connection = RegionConnection::open_at(&host.context, (&target, at), &options, (&SHAPE, &request));
    let mut region = RemoteRegion { connection: connection.unwrap(), next: 0 };
    region.write(100, b"here").unwrap();
    let mut out = [0; 4];
    memory.read(100, &mut out).unwrap();
    assert_eq!(&out, b"here");
    region.read(98, &mut out).unwrap();
    assert_eq!(&out, b"\0\0he");
}

#[test]
fn a_file_is_read_and_written_and_may_be_cut_short() {
    let host = Host::new();
    let file = tempfile::NamedTempFile::new().unwrap();
    let data = pattern(1_000_003, 0);
    std::fs::write(file.path(), &data).unwrap();
    let open = |write| std::fs::OpenOptions::new().read(true).write(write).open(file.path()).unwrap();
    let offered = host.server.offer_file("image", open(true), &OfferOptions::new(both())).unwrap();
    let mut region = host.connect("image", both()).unwrap();
    let mut out = vec![0; data.len()];
    assert_eq!(region.bytes(), data.len() as u64);
    region.read(0, &mut out).unwrap();
    assert!(out == data);
    let changed = pattern(500_000, 9);
    region.write(500_003, &changed).unwrap();
    assert!(std::fs::read(file.path()).unwrap() == [&data[..500_003], &changed[..]].concat());
    // A file that may only be read is not written, and an access beyond the end of a shorter one ends its connection.
    let unfit = host.server.offer_file("ro", open(false), &OfferOptions::new(both())).unwrap_err();
    assert!(
        unfit.to_string().contains("region `ro` cannot be offered: it is open for reading only"),
        "{unfit}"
    );
    let read_only = OfferOptions::new(Access::REMOTE_READ);
    let _second = host.server.offer_file("ro", open(false), &read_only).unwrap();
    open(true).set_len(1000).unwrap();
    let ended = region.read(0, &mut out).unwrap_err();
    assert!(matches!(ended, RemoteError::Closed { .. }), "{ended}");
    let mut writer = host.connect("image", both()).unwrap();
    writer.write(0, &data[..1000]).unwrap();
    let ended = writer.write(999, b"xy").unwrap_err();
    assert!(ended.to_string().contains("the peer has ended the connection"), "{ended}");
    assert_eq!(file.as_file().metadata().unwrap().len(), 1000);
    let mut reader = host.connect("ro", Access::REMOTE_READ).unwrap();
    reader.read(0, &mut out[..1000]).unwrap();
    assert!(out[..1000] == data[..1000] && reader.read(999, &mut [0; 2]).is_err());
    let (cause, _) =
        reason(host.server.offer_file("x", open(true), &OfferOptions::new(Access::REMOTE_ATOMIC)));
    assert_eq!(cause, VerbsError::NotPermitted);
    drop(offered);
    let folder = std::fs::File::open("/").unwrap();
    let unfit = host.server.offer_file("x", folder, &read_only).unwrap_err();
    assert!(unfit.to_string().ends_with("it is not a regular file"), "{unfit}");
}

#[test]
fn requests_complete_in_order_and_own_their_bytes_until_then() {
    let host = Host::new();
    let (memory, _offer) = host.offer("lab", 1000, both());
    let (target, options) = (host.target("lab").parse().unwrap(), RegionOptions::new(both()));
    let shape = RegionShape { window_bytes: 300, requests: 3, reads: 2 };
    let mut connection = RegionConnection::open(&target, &options, &shape).unwrap();
    assert_eq!((connection.bytes(), connection.reads_max(), connection.revision()), (1000, 2, 2));
    assert!(connection.crc() && connection.is_open() && connection.target() == &target);
    connection.window_mut(0, 300).unwrap().fill(7);
    assert!(connection.window_mut(1, 300).is_none() && connection.window_mut(u64::MAX, 1).is_none());
    connection.post_write(5, (0, 100), 900).unwrap();
    connection.post_read(6, (100, 50), 0).unwrap();
    connection.post_read(7, (0, 0), 1000).unwrap();
    for (offset, length, is_free) in [(0, 1, false), (99, 2, false), (149, 1, false), (150, 150, true)] {
        assert_eq!(connection.window_mut(offset, length).is_some(), is_free, "{offset} {length}");
    }
    for expected in [(5, 0, 100), (6, 100, 50), (7, 0, 0)] {
        let done = connection.complete().unwrap();
        assert_eq!((done.wr_id, done.offset, done.length), expected);
    }
    let window = [vec![7; 100], vec![0; 50], vec![7; 150]].concat();
    assert_eq!(connection.window_mut(0, 300).unwrap(), window);
    let mut placed = [0; 101];
    memory.read(899, &mut placed).unwrap();
    assert_eq!((placed[0], &placed[1..]), (0, &[7; 100][..]));
    for outside in [(901, 100), (1001, 0), (u64::MAX, 2)] {
        let refused = connection.post_write(0, (0, outside.1), outside.0);
        assert!(matches!(refused, Err(RemoteError::Bounds(_))), "{outside:?}: {refused:?}");
    }
    assert_eq!(connection.in_flight().len(), 0);
}

#[test]
fn crcs_and_the_revision_are_those_that_were_asked_for() {
    let host = Host::new();
    let (_memory, _offer) = host.offer("lab", 100, both());
    let target = host.target("lab").parse().unwrap();
    for (crc, revision) in [(CrcPolicy::Required, 1), (CrcPolicy::IfPeerAsks, 2)] {
        let options = RegionOptions { crc, revision, ..RegionOptions::new(both()) };
        let connection = RegionConnection::open(&target, &options, &SHAPE).unwrap();
        // The peer here asks for them.
        assert_eq!((connection.crc(), connection.revision()), (true, revision));
    }
    let kinds = RtrOptions { send: false, write: true, read: true };
    let options = RegionOptions { rtr: Some(kinds), ..RegionOptions::new(both()) };
    let connection = RegionConnection::open(&target, &options, &SHAPE).unwrap();
    let mut region = RemoteRegion { connection, next: 0 };
    region.write(0, &[1; 100]).unwrap();
}
