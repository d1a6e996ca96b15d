//! Peers that do not answer, answer nonsense, or go away.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::*;

/// Connects to a peer that does this with its first connection. Returns the result, and the time that it took.
fn against(peer: impl FnOnce(TcpStream) + Send) -> (Result<RemoteRegion, RemoteError>, Duration) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("{}/lab", listener.local_addr().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || peer(listener.accept().unwrap().0));
        let began = Instant::now();
        let options = RegionOptions::new(both()).with_timeout(Duration::from_millis(500));
        let result = connect_region(&target, &options).and_then(|mut region| {
            region.read(0, &mut [0; 16])?;
            Ok(region)
        });
        (result, began.elapsed())
    })
}

/// Reads the request, and answers with an MPA Reply that carries these bytes behind the read depths of 8.
fn answer(stream: &mut TcpStream, flags: u8, private_data: &[u8]) {
    assert!(stream.read(&mut [0; 1024]).unwrap() > 20);
    let length = u16::try_from(private_data.len() + 4).unwrap().to_be_bytes();
    let head = [b"MPA ID Rep Frame", &[flags, 2][..], &length, &[0, 8, 0, 8], private_data].concat();
    stream.write_all(&head).unwrap();
}

/// CRC and read depths (RFC 6581 §9.1); the Reject bit.
const FLAGS: u8 = 0x50;
const REJECT: u8 = 0x20;

/// Returns the answer of the region service for this many bytes at a tagged offset.
fn grant(access: u8, base_to: u64, bytes: u64) -> Vec<u8> {
    let head = [b"IWR1", &[0, access, 0, 0][..], &[0, 0, 1, 7], &[0; 4]].concat();
    [head, base_to.to_be_bytes().to_vec(), bytes.to_be_bytes().to_vec()].concat()
}

/// Reads until the other end closes.
fn drain(mut stream: TcpStream) {
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
}

#[test]
fn a_silent_peer_is_given_up_after_the_timeout() {
    let (result, took) = against(drain);
    assert!(matches!(result, Err(RemoteError::TimedOut { .. })), "{result:?}");
    assert!(took >= Duration::from_millis(500) && took < Duration::from_secs(10), "{took:?}");
    // It grants, and answers nothing.
    let (result, _) = against(|mut stream| {
        answer(&mut stream, FLAGS, &grant(3, 0, 4096));
        drain(stream);
    });
    assert!(matches!(result, Err(RemoteError::TimedOut { .. })), "{result:?}");
}

#[test]
fn a_peer_that_closes_is_an_error_and_not_a_wait() {
    let (result, _) = against(drop);
    assert!(matches!(result, Err(RemoteError::Closed { cause: Ending::Lost, .. })), "{result:?}");
    let (result, took) = against(|mut stream| answer(&mut stream, FLAGS, &grant(3, 0, 4096)));
    assert!(matches!(result, Err(RemoteError::Closed { .. })), "{result:?}");
    // It begins an FPDU, and closes.
    let (result, _) = against(|mut stream| {
        answer(&mut stream, FLAGS, &grant(3, 0, 4096));
        stream.write_all(&[0, 40, 0xc1]).unwrap();
    });
    assert!(matches!(result, Err(RemoteError::Closed { .. })), "{result:?}");
    assert!(took < Duration::from_millis(450), "{took:?}");
}

#[test]
fn nonsense_is_an_error() {
    let not_an_answer = |bytes: Vec<u8>, flags| {
        let (result, _) = against(move |mut stream| {
            answer(&mut stream, flags, &bytes);
            drain(stream);
        });
        let refused = matches!(result, Err(RemoteError::Refused { cause: ServiceError::NotAnAnswer, .. }));
        assert!(refused, "{result:?}");
    };
    not_an_answer(b"hello".to_vec(), FLAGS);
    not_an_answer(Vec::new(), FLAGS | REJECT);
    // A grant with a rejection, with fewer rights than were asked for, or beyond all tagged offsets.
    not_an_answer(grant(3, 0, 4096), FLAGS | REJECT);
    not_an_answer(grant(1, 0, 4096), FLAGS);
    not_an_answer(grant(3, 2, u64::MAX - 1), FLAGS);
    for garbage in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &[0; 1000]] {
        let (result, _) = against(move |mut stream| {
            let _ = stream.write_all(garbage);
            drain(stream);
        });
        assert!(matches!(result, Err(RemoteError::Closed { cause: Ending::NotIwarp, .. })), "{result:?}");
    }
    // Bytes that are no FPDU, after the grant.
    let (result, _) = against(|mut stream| {
        answer(&mut stream, FLAGS, &grant(3, 0, 4096));
        let _ = stream.write_all(&[0; 2000]);
        drain(stream);
    });
    assert!(matches!(result, Err(RemoteError::Closed { .. })), "{result:?}");
}

#[test]
fn a_host_that_answers_no_syn_is_unreachable_after_the_timeout() {
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    listener.bind(&any.into()).unwrap();
    listener.listen(0).unwrap();
    let at = listener.local_addr().unwrap().as_socket().unwrap();
    // The kernel drops the SYNs of others while the queue is full.
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&at.into());
            socket
        })
        .collect();
    let began = Instant::now();
    let options = RegionOptions::new(both()).with_timeout(Duration::from_millis(400));
    let error = connect_region(&format!("{at}/lab"), &options).unwrap_err();
    assert!(matches!(error, RemoteError::Unreachable { .. }), "{error}");
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(400) && took < Duration::from_secs(5), "{took:?}");
    drop(waiting);
}

#[test]
fn nobody_listens_there() {
    let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = connect_region(&format!("{at}/lab"), &RegionOptions::new(both())).unwrap_err();
    assert!(matches!(error, RemoteError::Unreachable { .. }), "{error}");
    let error = connect_region("host.invalid/lab", &RegionOptions::new(both())).unwrap_err();
    assert!(matches!(error, RemoteError::Unreachable { .. }), "{error}");
}

#[test]
fn a_host_that_ends_in_mid_transfer_is_an_error() {
    for round in 0..4 {
        let host = Host::new();
        let (memory, offer) = host.offer("lab", 8 << 20, both());
        let mut region = host.connect("lab", both()).unwrap();
        let (began, mut bytes) = (AtomicBool::new(false), pattern(8 << 20, 1));
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                for _ in 0..10_000 {
                    began.store(true, Ordering::SeqCst);
                    if round % 2 == 0 { region.write(0, &bytes)? } else { region.read(0, &mut bytes)? }
                }
                Ok::<(), RemoteError>(())
            });
            while !began.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            drop((memory, offer, host));
            let ended = worker.join().unwrap();
            assert!(matches!(ended, Err(RemoteError::Closed { .. })), "{ended:?}");
        });
    }
}
