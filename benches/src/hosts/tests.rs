use super::*;

const SIZES: Sizes = Sizes { mtu: 1500, connections: 64, buffers: 8192 };
const TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn bytes_are_placed_in_a_ring() {
    let (mut region, mut at) = ([0; 5], 3);
    place(&mut region, &mut at, b"abcdefgh");
    assert_eq!((&region, at), (b"hdefg", 1));
    place(&mut [], &mut 0, b"a");
}

#[test]
fn our_tcp_delivers_what_was_sent() {
    let source: Vec<u8> = (0..1448 * 8).map(|at: usize| at.to_le_bytes()[0]).collect();
    let receiver = TcpReceiver::new(&SIZES, vec![0; source.len()]).unwrap();
    let mut pair = HostPair::new(&SIZES, TcpSender::new(&SIZES, source.clone()), receiver).unwrap();
    pair.sender().connect().unwrap();
    assert!(pair.run_until(TIMEOUT, |pair| pair.receiver().copied() > 1 << 20), "nothing is delivered");
    assert!(pair.receiver().region() == source, "what was delivered is not what was sent");
    assert!(pair.sender().copied() >= pair.receiver().copied());
    let [sender, receiver, neither] = pair.spent();
    assert!(
        sender > Duration::ZERO && receiver > Duration::ZERO && sender + receiver + neither <= pair.elapsed()
    );
}

#[test]
fn many_streams_write_into_the_region() {
    let bytes = 1 << 20;
    let sender = Initiator::new(&SIZES, bytes).unwrap();
    let mut pair = HostPair::new(&SIZES, sender, Target::new(&SIZES, bytes).unwrap()).unwrap();
    for _ in 0..48 {
        let now = pair.elapsed();
        pair.sender().connect(now).unwrap();
    }
    assert!(pair.run_until(TIMEOUT, |pair| pair.sender().granted() == 48), "{:?}", pair.sender().failure());
    for stream in 0..48 {
        pair.sender().write(stream, stream as u64 * 4096, 4096).unwrap();
    }
    assert!(pair.sender().write(48, 0, 1).is_err());
    let all = |pair: &mut HostPair<Initiator, Target>| {
        pair.receiver().stats().rdmap.payload_bytes_placed == 48 * 4096
    };
    assert!(pair.run_until(TIMEOUT, all), "{:?}", pair.sender().failure());
    let done =
        |pair: &mut HostPair<Initiator, Target>| (0..48).all(|stream| pair.sender().completed(stream) == 1);
    assert!(pair.run_until(TIMEOUT, done), "{:?}", pair.sender().failure());
}
