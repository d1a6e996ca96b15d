use super::*;

const SIZES: Sizes = Sizes { mtu: 1500, connections: 64, buffers: 8192 };
const PATIENCE: Duration = Duration::from_secs(30);

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
    let receiver = Receiver::new(&SIZES, vec![0; source.len()]).unwrap();
    let mut pair = Pair::new(&SIZES, Sender::new(&SIZES, source.clone()), receiver).unwrap();
    pair.near().connect().unwrap();
    assert!(pair.run_until(PATIENCE, |pair| pair.far().copied() > 1 << 20), "nothing is delivered");
    assert!(pair.far().region() == source, "what was delivered is not what was sent");
    assert!(pair.near().copied() >= pair.far().copied());
    let [near, far, neither] = pair.spent();
    assert!(near > Duration::ZERO && far > Duration::ZERO && near + far + neither <= pair.elapsed());
}

#[test]
fn many_streams_write_into_the_region() {
    let bytes = 1 << 20;
    let near = Initiator::new(&SIZES, bytes).unwrap();
    let mut pair = Pair::new(&SIZES, near, Target::new(&SIZES, bytes).unwrap()).unwrap();
    for _ in 0..48 {
        let now = pair.elapsed();
        pair.near().connect(now).unwrap();
    }
    assert!(pair.run_until(PATIENCE, |pair| pair.near().granted() == 48), "{:?}", pair.near().failure());
    for stream in 0..48 {
        pair.near().write(stream, stream as u64 * 4096, 4096).unwrap();
    }
    assert!(pair.near().write(48, 0, 1).is_err());
    let all = |pair: &mut Pair<Initiator, Target>| pair.far().stats().rdmap.payload_bytes_placed == 48 * 4096;
    assert!(pair.run_until(PATIENCE, all), "{:?}", pair.near().failure());
    let done = |pair: &mut Pair<Initiator, Target>| (0..48).all(|stream| pair.near().completed(stream) == 1);
    assert!(pair.run_until(PATIENCE, done), "{:?}", pair.near().failure());
}
