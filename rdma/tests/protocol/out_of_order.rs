//! Out-of-order placement: FPDUs behind a gap are found, checked, placed once and delivered in order; and every reason
//! for refusal.

use proptest::prelude::*;
use rdma::mpa::PlacedRun;
use rdma::service::encode_request;
use rdma::testutil::bytes::*;
use rdma::testutil::*;
use rdma::{CrcPolicy, EndpointConfig, OutOfOrderPolicy, RegionId, StreamState};

const LAB: usize = 40_000;

/// A transport that has received all of a stream except its first chunk, and offers the chunks that it holds.
struct Held {
    chunks: Vec<(u64, Option<Vec<u8>>, usize)>,
}

impl Held {
    /// Offers the chunks in this order, and drops those that were placed.
    fn offer(side: &mut Side, chunks: &[(u64, Vec<u8>)]) -> Self {
        let chunks = chunks.iter().map(|(offset, bytes)| {
            let taken = side.out_of_order(*offset, bytes);
            (*offset, (!taken).then(|| bytes.clone()), bytes.len())
        });
        Self { chunks: chunks.collect() }
    }

    /// Delivers the held chunks after the gap has closed.
    fn release(mut self, side: &mut Side) {
        self.chunks.sort_by_key(|(offset, ..)| *offset);
        for (offset, bytes, len) in self.chunks {
            assert_eq!(offset, side.position);
            match bytes {
                Some(bytes) => side.deliver(&bytes),
                None => side.placed(len),
            }
        }
    }
}

fn connect(change: impl FnOnce(&mut EndpointConfig), crc: bool) -> (Side, Side, RegionId) {
    let mut config = initiator_config();
    config.mpa.crc = if crc { CrcPolicy::Required } else { CrcPolicy::IfPeerAsks };
    let private_data = encode_request("lab", BOTH, b"").unwrap();
    let mut initiator = Side::initiator(config, &request(&private_data));
    change(&mut config);
    let mut responder = Side::responder(config);
    let lab = responder.add_region("lab", vec![0; LAB], BOTH);
    run(&mut initiator, &mut responder, &mut segments(1448));
    (initiator, responder, lab)
}

/// Returns the segments of an initiator's Write of `len` bytes, with their stream positions.
fn write(cli: &mut Side, base: u64, len: u32, to: u64) -> Vec<(u64, Vec<u8>)> {
    let local = cli.memory.add(pattern(len as usize, 3)).unwrap();
    let stag = cli.grant().stag;
    cli.endpoint.post_write(1, slice(local, 0, len), stag, to).unwrap();
    cli.transmit();
    let mut offset = base;
    let segments = cli.wire.segments.drain(..);
    segments
        .map(|segment| {
            let at = offset;
            offset += segment.len() as u64;
            (at, segment)
        })
        .collect()
}

fn is_lab(side: &Side, lab: RegionId, len: usize) -> bool {
    side.bytes(lab)[..len] == pattern(len, 3)
}

#[test]
fn a_write_behind_a_gap_is_placed_and_delivered_when_the_gap_closes() {
    for (markers, crc) in [(false, true), (true, true), (true, false)] {
        let (mut cli, mut daemon, lab) = connect(|config| config.mpa.markers = markers, crc);
        let segments = write(&mut cli, daemon.position, 20_000, 0);
        let (first, behind) = segments.split_first().unwrap();
        let held = Held::offer(&mut daemon, behind);
        let (last, middle) = held.chunks.split_last().unwrap();
        assert!(middle.iter().all(|(_, bytes, _)| bytes.is_none()), "{markers} {crc}");
        assert!(last.1.is_some(), "the last segment of the message waits");
        let mpa = daemon.stats.mpa;
        // Without CRC, a last segment without a marker cannot even be located.
        let refused = if crc { mpa.early_refused_last } else { mpa.early_refused_unlocated };
        assert_eq!((mpa.early_tried as usize, refused), (behind.len(), 1));
        assert_eq!((mpa.bytes_held as usize, mpa.bytes_copied), (last.2, mpa.bytes_placed_early));
        assert_eq!(daemon.stats.rdmap.in_rdma_writes, 0, "placed, not delivered");
        assert_eq!(daemon.bytes(lab)[0], 0);
        assert!(daemon.bytes(lab)[2000..18_000] == pattern(20_000, 3)[2000..18_000]);
        daemon.deliver(&first.1);
        held.release(&mut daemon);
        assert!(is_lab(&daemon, lab, 20_000));
        let stats = daemon.stats;
        assert_eq!((stats.rdmap.in_rdma_writes, stats.mpa.bytes_copied), (1, 20_000));
        assert_eq!(stats.rdmap.payload_bytes_placed, 20_000);
        assert_eq!(
            (stats.mpa.fpdus_in, cli.stats.mpa.fpdus_out),
            (segments.len() as u64, stats.mpa.fpdus_in)
        );
        assert_eq!(stats.mpa.ulpdu_bytes_in, cli.stats.mpa.ulpdu_bytes_out);
        assert_eq!((stats.mpa.markers_in > 0, cli.stats.mpa.markers_out), (markers, stats.mpa.markers_in));
    }
}

#[test]
fn the_last_segment_is_placed_out_of_order_if_configured() {
    let (mut cli, mut daemon, lab) = connect(|config| config.last_out_of_order = true, true);
    let segments = write(&mut cli, daemon.position, 6000, 0);
    let held = Held::offer(&mut daemon, &segments[1..]);
    assert!(held.chunks.iter().all(|(_, bytes, _)| bytes.is_none()));
    daemon.deliver(&segments[0].1);
    assert_eq!((daemon.stats.rdmap.in_rdma_writes, daemon.stats.mpa.bytes_held), (0, 0));
    held.release(&mut daemon);
    assert_eq!(daemon.stats.rdmap.in_rdma_writes, 1);
    assert!(is_lab(&daemon, lab, 6000));
}

#[test]
fn nothing_is_placed_where_no_fpdu_can_be_located() {
    type Change = fn(&mut EndpointConfig);
    let cases: [(Change, bool, u64); 3] = [
        (|_| {}, false, 1),
        (|config| config.out_of_order = OutOfOrderPolicy::Markers, true, 1),
        (|config| config.out_of_order = OutOfOrderPolicy::Off, true, 0),
    ];
    for (change, crc, tried) in cases {
        let (mut cli, mut daemon, lab) = connect(change, crc);
        let segments = write(&mut cli, daemon.position, 3000, 0);
        let held = Held::offer(&mut daemon, &segments[1..2]);
        assert!(held.chunks[0].1.is_some());
        let mpa = daemon.stats.mpa;
        assert_eq!((mpa.early_tried, mpa.early_refused_unlocated), (tried, tried));
        assert_eq!((mpa.bytes_copied, mpa.bytes_placed_early), (0, 0));
        daemon.deliver(&segments[0].1);
        held.release(&mut daemon);
        daemon.deliver(&segments[2].1);
        assert!(is_lab(&daemon, lab, 3000));
        assert_eq!(daemon.stats.mpa.bytes_copied, 3000);
    }
}

/// Returns a responder in full operation, and the stream position of its next byte.
fn ready(change: impl FnOnce(&mut EndpointConfig)) -> (Side, u32, RegionId) {
    let (cli, daemon, lab) = connect(change, true);
    (daemon, cli.grant().stag.0, lab)
}

#[test]
fn invalid_segments_behind_a_gap_end_the_stream_when_it_reaches_them() {
    let (mut daemon, stag, lab) = ready(|_| {});
    let base = daemon.position;
    let cases = [
        fpdu(&tagged(TAGGED_MORE, WRITE, stag, LAB as u64 - 3, b"outside")),
        fpdu(&tagged(TAGGED_MORE, WRITE, stag ^ 1, 0, b"no such STag")),
        fpdu(&tagged(TAGGED_MORE, READ_RESPONSE, stag, 0, b"no read")),
        fpdu(&tagged(0x82, WRITE, stag, 0, b"DDP version")),
        fpdu(&tagged(TAGGED_MORE, 0x80, stag, 0, b"RDMAP version")),
        fpdu(&untagged(UNTAGGED_LAST, SEND, 0, [0, 1, 0], b"untagged")),
        fpdu(&[]),
        fpdu(&tagged(TAGGED_MORE, WRITE, stag, 0, b"cut off"))[..24].to_vec(),
        vec![0xAB; 4],
    ];
    for bytes in &cases {
        assert!(!daemon.out_of_order(base + 400, bytes));
    }
    let mut damaged = fpdu(&tagged(TAGGED_MORE, WRITE, stag, 0, b"damaged"));
    damaged[20] ^= 1;
    assert!(!daemon.out_of_order(base + 400, &damaged));
    assert!(!daemon.out_of_order(base, &fpdu(&tagged(TAGGED_MORE, WRITE, stag, 0, b"in order"))));
    assert!(
        !daemon.out_of_order(base + 401, &fpdu(&tagged(TAGGED_MORE, WRITE, stag, 0, b"no multiple of 4")))
    );
    let mpa = daemon.stats.mpa;
    assert_eq!((mpa.early_refused_access, mpa.early_refused_kind, mpa.early_refused_crc), (2, 5, 1));
    assert_eq!((mpa.early_refused_incomplete, mpa.early_refused_unlocated, mpa.early_tried), (2, 2, 12));
    assert_eq!(mpa.bytes_held, cases.iter().map(Vec::len).sum::<usize>() as u64 + 28 + 28 + 36);
    assert!(daemon.bytes(lab).iter().all(|byte| *byte == 0));
    assert_eq!(daemon.endpoint.info().state, StreamState::ReadyToSend);
    // The stream reaches the segment.
    daemon.deliver(&cases[0]);
    let told = ulpdus(&{
        daemon.transmit();
        daemon.wire.take()
    });
    let segment = tagged(TAGGED_MORE, WRITE, stag, LAB as u64 - 3, b"outside");
    assert_eq!(told, [terminate_about(0x11, 0x01, 0xc0, &segment, &[])]);
    assert!(!daemon.out_of_order(base + 4000, &cases[0]), "the stream has ended");
}

// A peer that does not align its FPDUs sends bytes that look like an FPDU inside another's payload.
#[test]
fn a_false_fpdu_inside_a_payload_ends_the_stream() {
    for cut in [0, 4] {
        let (mut daemon, stag, _) = ready(|_| {});
        let base = daemon.position;
        let inner = fpdu(&tagged(TAGGED_MORE, WRITE, stag, 0, &[7; 100]));
        let payload = [vec![1; 988], inner.clone(), vec![2; 300]].concat();
        let outer = fpdu(&tagged(TAGGED_MORE, WRITE, stag, 1000, &payload));
        let at = 2 + 14 + 988;
        assert_eq!(outer[at..][..inner.len()], inner);
        assert!(daemon.out_of_order(base + at as u64, &inner));
        assert_eq!(daemon.stats.mpa.bytes_placed_early, 100);
        // The lengths reveal the error as soon as the first bytes arrive.
        daemon.deliver(&outer[..if cut == 0 { at } else { cut }]);
        daemon.transmit();
        assert_eq!(ulpdus(&daemon.wire.take()), [terminate([0x20, 0x03, 0, 0], &[])]);
        assert_eq!((daemon.stats.mpa.boundary_errors, daemon.stats.drops.fpdu_start), (1, 1));
        assert_eq!(daemon.stats.rdmap.in_rdma_writes, 0);
    }
}

#[test]
fn a_retransmission_of_placed_bytes_is_ignored() {
    let (mut cli, mut daemon, lab) = connect(|_| {}, true);
    let segments = write(&mut cli, daemon.position, 8000, 0);
    assert!(daemon.out_of_order(segments[2].0, &segments[2].1));
    assert!(daemon.out_of_order(segments[2].0, &segments[2].1), "it is placed: nobody needs it");
    assert_eq!(daemon.stats.mpa.bytes_copied, 1428);
    let (mut wrong, len) = (segments[2].1.clone(), segments[2].1.len());
    wrong.fill(0x99);
    daemon.deliver(&segments[0].1);
    // Overlapping segments: the end of one, half of the placed bytes, and the rest as a length.
    daemon.deliver(&[&segments[1].1[..], &wrong[..len / 2]].concat());
    assert_eq!(daemon.endpoint.info().state, StreamState::ReadyToSend);
    daemon.placed(len - len / 2);
    for (_, segment) in &segments[3..] {
        daemon.deliver(segment);
    }
    assert!(is_lab(&daemon, lab, 8000));
    assert_eq!((daemon.stats.mpa.bytes_copied, daemon.stats.rdmap.in_rdma_writes), (8000, 1));
    assert_eq!(daemon.stats.mpa.fpdus_in as usize, segments.len());
}

#[test]
fn a_length_without_bytes_must_have_been_placed() {
    let (mut daemon, stag, _) = ready(|_| {});
    daemon.deliver(&fpdu(&tagged(TAGGED_LAST, WRITE, stag, 0, b"in order")));
    daemon.placed(28);
    assert_eq!(daemon.endpoint.info().state, StreamState::Terminating);
    assert_eq!((daemon.stats.mpa.stream_gaps, daemon.stats.drops.local), (1, 1));
}

// The right existed when the bytes were placed; delivery does not check it again.
#[test]
fn a_right_revoked_between_placement_and_delivery() {
    let (mut cli, mut daemon, lab) = connect(|_| {}, true);
    let segments = write(&mut cli, daemon.position, 6000, 0);
    let held = Held::offer(&mut daemon, &segments[1..3]);
    daemon.deliver(&segments[0].1);
    assert_eq!(daemon.stags.revoke_region(lab), 1);
    held.release(&mut daemon);
    assert_eq!(daemon.endpoint.info().state, StreamState::ReadyToSend);
    assert!(is_lab(&daemon, lab, 3 * 1428));
    daemon.deliver(&segments[3].1);
    assert_eq!(daemon.endpoint.info().state, StreamState::Terminating);
}

#[test]
fn the_number_of_runs_is_limited_by_the_configuration() {
    let (mut cli, mut daemon, lab) = connect(|config| config.placed_runs_max = 2, true);
    let segments = write(&mut cli, daemon.position, 20_000, 0);
    let order = [2, 4, 6, 3, 8, 5];
    let chunks: Vec<_> = order.iter().map(|nth| segments[*nth].clone()).collect();
    let held = Held::offer(&mut daemon, &chunks);
    let taken: Vec<_> = held.chunks.iter().map(|(_, bytes, _)| bytes.is_none()).collect();
    // The third run exceeds the limit, until the first two are merged.
    assert_eq!(taken, [true, true, false, true, true, true]);
    assert_eq!(daemon.stats.mpa.early_refused_runs, 1);
    let rest: Vec<_> = [1, 7].into_iter().map(|nth| segments[nth].clone()).collect();
    let mut all = Held::offer(&mut daemon, &rest);
    all.chunks.extend(held.chunks);
    daemon.deliver(&segments[0].1);
    all.release(&mut daemon);
    segments[9..].iter().for_each(|(_, segment)| daemon.deliver(segment));
    assert!(is_lab(&daemon, lab, 20_000));
    assert_eq!(daemon.stats.mpa.bytes_copied, 20_000);
    assert!(size_of::<PlacedRun>() <= 40, "what `EndpointConfig` promises");
}

#[derive(Clone, Debug)]
struct Way {
    markers: bool,
    crc: bool,
    last_out_of_order: bool,
    how: OutOfOrderPolicy,
    /// Lengths of the chunks; empty: the sender's segments.
    cuts: Vec<usize>,
    /// True for each chunk that arrives late; and the order in which the others are offered.
    late: Vec<bool>,
    order: u64,
    writes: Vec<(u32, u64)>,
    mss: usize,
}

fn way() -> impl Strategy<Value = Way> {
    let how = prop_oneof![
        4 => Just(OutOfOrderPolicy::Aligned),
        2 => Just(OutOfOrderPolicy::Markers),
        1 => Just(OutOfOrderPolicy::Off),
    ];
    let cuts = prop_oneof![
        2 => Just(Vec::new()),
        1 => prop::collection::vec((1usize..1200).prop_map(|words| words * 4), 1..20),
        1 => prop::collection::vec(1usize..6000, 1..20),
    ];
    let writes = prop::collection::vec((prop_oneof![1u32..60, 60u32..9000], 0u64..30_000), 1..8);
    let mss = prop_oneof![Just(1448usize), Just(8948), 140usize..2000];
    (any::<[bool; 3]>(), how, cuts, prop::collection::vec(any::<bool>(), 1..40), any::<u64>(), writes, mss)
        .prop_map(|([markers, crc, last_out_of_order], how, cuts, late, order, writes, mss)| Way {
            markers,
            crc,
            last_out_of_order,
            how,
            cuts,
            late,
            order,
            writes,
            mss,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 400 }))]

    // Each Write has its own destination: the order of Writes to the same one is undefined (RFC 5040 §5.5 rule 3).
    #[test]
    fn any_order_of_any_chunks_gives_the_same_memory(way in way()) {
        let (mut cli, mut daemon, lab) = connect(|config| {
            config.mpa.markers = way.markers;
            config.last_out_of_order = way.last_out_of_order;
            config.out_of_order = way.how;
        }, way.crc);
        cli.wire.mss = way.mss;
        let (base, stag) = (daemon.position, cli.grant().stag);
        let (mut expected, mut total, mut to) = (vec![0; LAB], 0, 0usize);
        for (nth, (len, gap)) in way.writes.iter().enumerate() {
            to = LAB.min(to + (*gap % 500) as usize);
            let len = (*len as usize).min(LAB - to);
            let bytes = pattern(len, nth as u8);
            expected[to..to + len].copy_from_slice(&bytes);
            let local = cli.memory.add(bytes).unwrap();
            cli.endpoint.post_write(nth as u64, slice(local, 0, len as u32), stag, to as u64).unwrap();
            (to, total) = (to + len, total + len as u64);
        }
        cli.transmit();
        let mut chunks = Vec::new();
        let mut offset = base;
        let mut cuts = way.cuts.iter().cycle();
        let mut stream: Vec<Vec<u8>> = cli.wire.segments.drain(..).collect();
        if !way.cuts.is_empty() {
            stream = vec![stream.concat()];
        }
        for run in stream {
            let mut rest = &run[..];
            while !rest.is_empty() {
                let (chunk, behind) = rest.split_at(cuts.next().map_or(rest.len(), |cut| (*cut).min(rest.len())));
                chunks.push((offset, chunk.to_vec()));
                offset += chunk.len() as u64;
                rest = behind;
            }
        }
        // The gaps close one after the other, starting with the first.
        let late = |nth: usize| nth == 0 || way.late[nth % way.late.len()];
        let mut others: Vec<_> = (0..chunks.len()).filter(|nth| !late(*nth)).collect();
        others.sort_by_key(|nth| (*nth as u64).wrapping_mul(way.order | 1));
        let others: Vec<_> = others.into_iter().map(|nth| chunks[nth].clone()).collect();
        let held = Held::offer(&mut daemon, &others);
        for (offset, bytes) in &chunks {
            match held.chunks.iter().find(|(at, ..)| at == offset) {
                Some((_, None, len)) => daemon.placed(*len),
                _ => daemon.deliver(bytes),
            }
        }
        prop_assert_eq!(daemon.endpoint.info().state, StreamState::ReadyToSend);
        prop_assert!(daemon.bytes(lab) == expected);
        let stats = daemon.stats;
        prop_assert_eq!(stats.rdmap.in_rdma_writes as usize, way.writes.len());
        prop_assert_eq!(stats.rdmap.payload_bytes_placed, total, "placed once");
        prop_assert_eq!(stats.mpa.bytes_copied, total + stats.mpa.bytes_spilled);
        prop_assert_eq!(stats.mpa.ulpdu_bytes_in, cli.stats.mpa.ulpdu_bytes_out);
        prop_assert_eq!(stats.mpa.fpdus_in, cli.stats.mpa.fpdus_out);
    }
}
