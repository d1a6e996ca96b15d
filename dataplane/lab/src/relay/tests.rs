use std::time::{Duration, Instant};

use clap::Parser;

use super::{Options, Wire, client_port};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

/// 1000 bytes take 1 ms.
fn wire(options: &str) -> Wire {
    let words = format!("relay a b --rate-mbit 8 {options}");
    Wire::new(&Line::parse_from(words.split_whitespace()).options)
}

/// Returns an IPv4 segment of 1000 bytes, with a valid header checksum.
fn v4(port: u16, traffic_class: u8) -> Vec<u8> {
    let mut frame = vec![0; 1000];
    frame[12..16].copy_from_slice(&[8, 0, 0x45, traffic_class]);
    frame[16..18].copy_from_slice(&986_u16.to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 6]);
    frame[26..34].copy_from_slice(&[10, 77, 0, 2, 10, 77, 0, 9]);
    frame[34..36].copy_from_slice(&19_u16.to_be_bytes());
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    let sum = !ones_sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Returns an IPv6 segment of 1000 bytes.
fn v6(port: u16, traffic_class: u8) -> Vec<u8> {
    let mut frame = vec![0; 1000];
    frame[12..16].copy_from_slice(&[0x86, 0xdd, 0x60 | traffic_class >> 4, traffic_class << 4 | 7]);
    frame[18..22].copy_from_slice(&[3, 0xb2, 6, 64]);
    frame[54..56].copy_from_slice(&19_u16.to_be_bytes());
    frame[56..58].copy_from_slice(&port.to_be_bytes());
    frame
}

/// Returns the ones' complement sum of a header (RFC 1071): 0xffff if its checksum is valid.
fn ones_sum(header: &[u8]) -> u16 {
    let mut sum: u32 =
        header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

/// Returns the frames in flight in the order of their delivery, with the delay of each in milliseconds.
fn in_flight(wire: &mut Wire, now: Instant) -> Vec<(u128, Vec<u8>)> {
    std::iter::from_fn(|| wire.traveling.pop())
        .map(|frame| ((frame.0.due - now).as_millis(), frame.0.bytes))
        .collect()
}

#[test]
fn a_connection_is_known_by_its_larger_port() {
    let mut segment = v4(40_000, 0);
    assert_eq!(client_port(&segment), Some(40_000));
    segment[34..38].copy_from_slice(&[0x9c, 0x40, 0, 19]);
    assert_eq!(client_port(&segment), Some(40_000));
    assert_eq!(client_port(&v6(40_001, 0)), Some(40_001));
}

#[test]
fn other_frames_belong_to_no_connection() {
    assert_eq!(client_port(&[]), None);
    assert_eq!(client_port(&[0; 60]), None);
    let mut arp = [0; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(client_port(&arp), None);
    let mut cut = [0; 36];
    cut[12..15].copy_from_slice(&[8, 0, 0x45]);
    cut[23] = 6;
    assert_eq!(client_port(&cut), None);
}

#[test]
fn a_shared_path_has_one_transmitter_and_one_queue_in_each_direction() {
    let now = Instant::now();
    let delays = |options: &str| {
        let mut wire = wire(options);
        for port in 40_000..40_005 {
            wire.take(now, 0, &v4(port, 0));
        }
        wire.take(now, 1, &v6(40_000, 0));
        let dropped = [wire.stats[0].dropped, wire.stats[1].dropped];
        let delays: Vec<_> = in_flight(&mut wire, now).into_iter().map(|(ms, _)| ms).collect();
        (delays, dropped)
    };
    assert_eq!(delays("--queue-bytes 3000"), (vec![1; 6], [0, 0]));
    assert_eq!(delays("--queue-bytes 3000 --shared"), (vec![1, 1, 2, 3], [2, 0]));
}

#[test]
fn ecn_capable_packets_that_meet_a_long_queue_are_marked() {
    let make: [fn(u16, u8) -> Vec<u8>; 2] = [v4, v6];
    for (make, class) in make.into_iter().zip([15_usize, 14]) {
        // ECT(1), ECT(0), CE and Not-ECT, each with a Differentiated Services Code Point of 46.
        for (ecn, marked) in [(1, 3), (2, 3), (3, 3), (0, 0)] {
            let now = Instant::now();
            let mut wire = wire("--shared --mark-bytes 1000");
            let segment = make(40_000, 46 << 2 | ecn);
            wire.take(now, 0, &segment);
            wire.take(now, 0, &segment);
            let frames: Vec<_> = in_flight(&mut wire, now).into_iter().map(|(_, bytes)| bytes).collect();
            assert_eq!(frames[0], segment, "no queue: unchanged");
            assert_eq!(frames[1], make(40_000, 46 << 2 | marked), "the field and the header checksum alone");
            assert!(class == 14 || ones_sum(&frames[1][14..34]) == 0xffff);
            assert_eq!(wire.stats[0].marked, u64::from(ecn != 0));
            assert_eq!(wire.stats[0].dropped, 0);
        }
    }
}

#[test]
fn address_resolution_passes_a_full_queue_unchanged() {
    let now = Instant::now();
    let mut wire = wire("--shared --queue-bytes 2000 --mark-bytes 0 --delay-ms 3");
    let mut arp = vec![7; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    // A neighbor solicitation, whose sender claims that it is ECN-capable.
    let mut solicitation = v6(0, 2);
    solicitation[20] = 58;
    for _ in 0..3 {
        wire.take(now, 0, &v4(40_000, 2));
    }
    wire.take(now, 0, &arp);
    wire.take(now, 0, &solicitation);
    assert_eq!((wire.stats[0].dropped, wire.stats[0].marked), (1, 2));
    let frames = in_flight(&mut wire, now);
    assert_eq!(frames[..2], [(3, arp), (3, solicitation)]);
    assert_eq!(frames.len(), 4);
}

#[test]
fn frames_longer_than_the_link_carries_are_dropped() {
    let now = Instant::now();
    let mut wire = wire("--frame-max 999");
    wire.take(now + Duration::from_secs(1), 0, &v4(40_000, 0));
    assert_eq!(wire.stats[0].oversize, 1);
    assert!(in_flight(&mut wire, now).is_empty());
}
