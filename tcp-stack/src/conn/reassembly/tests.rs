use super::*;
use crate::testutil::HeapBuf;
use alloc::vec::Vec;
use proptest::prelude::*;

type RxPool = Pool<RxNode<HeapBuf>>;

const BASE: u32 = u32::MAX - 500;
const LIMITS: HoldLimits =
    HoldLimits { bytes: u32::MAX, segments: 1000, reserve: 0, merged: 0, offer: false, retains: true };

fn seq(offset: u32) -> SeqNum {
    SeqNum::new(BASE) + offset
}

/// A segment whose byte at stream offset `n` is `n` modulo 251.
fn segment(start: u32, len: u16) -> Payload<HeapBuf> {
    roomy_segment(start, len, 0)
}

/// Same as [`segment`], with `room` bytes of tailroom in its buffer.
fn roomy_segment(start: u32, len: u16, room: usize) -> Payload<HeapBuf> {
    let mut buf = HeapBuf::with_room(&[], usize::from(len) + 3 + room);
    let bytes = buf.append(usize::from(len) + 3).unwrap();
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = if i < 3 { 0xee } else { u8::try_from((start as usize + i - 3) % 251).unwrap() };
    }
    Payload { seq: seq(start), range: 3..3 + len, buf }
}

fn runs(held: &Reassembly, pool: &RxPool) -> Vec<(u32, u32)> {
    held.runs(pool).map(|r| (r.start.distance_from(seq(0)), r.end.distance_from(seq(0)))).collect()
}

fn hold(held: &mut Reassembly, pool: &mut RxPool, start: u32, len: u16) -> Result<(u32, u32), HoldError> {
    let Held { run, .. } = held.hold(pool, segment(start, len), LIMITS)?;
    Ok((run.start.distance_from(seq(0)), run.end.distance_from(seq(0))))
}

/// True if the counts match the segments.
fn is_counted(held: &Reassembly, pool: &RxPool) -> bool {
    held.count(pool) == Some((held.payloads(), held.held_bytes())) && held.nodes(pool) == pool.used()
}

/// Returns the number of packet buffers in a pool of 1000 nodes.
fn buffers(held: &Reassembly, pool: &RxPool) -> usize {
    assert!(is_counted(held, pool));
    (0..1000).filter_map(|at| pool.get(at)).filter(|node| node.buf.is_some()).count()
}

#[test]
fn runs_grow_join_and_are_released() {
    let mut pool = RxPool::new(100);
    let mut held = Reassembly::new();
    assert_eq!(hold(&mut held, &mut pool, 100, 50), Ok((100, 150)));
    assert_eq!(hold(&mut held, &mut pool, 150, 50), Ok((100, 200)), "continues the last run");
    assert_eq!(hold(&mut held, &mut pool, 300, 50), Ok((300, 350)));
    assert_eq!(hold(&mut held, &mut pool, 50, 20), Ok((50, 70)));
    assert_eq!(hold(&mut held, &mut pool, 250, 50), Ok((250, 350)), "joins the run behind it");
    assert_eq!(runs(&held, &pool), [(50, 70), (100, 200), (250, 350)]);
    assert_eq!(hold(&mut held, &mut pool, 190, 70), Ok((100, 350)), "closes the gap between two");
    assert!(matches!(hold(&mut held, &mut pool, 120, 200), Err(HoldError::Duplicate(_))));
    assert_eq!(held.release(&mut pool, seq(40)), seq(40), "the gap is still there");
    assert_eq!(held.release(&mut pool, seq(60)), seq(70));
    assert_eq!(held.release(&mut pool, seq(110)), seq(350));
    assert!(held.has_no_gap());
    assert_eq!((held.held_bytes(), held.held_segments()), (0, 0));
    held.clear(&mut pool);
    assert_eq!(pool.used(), 0);
}

#[test]
fn a_segment_that_covers_runs_replaces_them() {
    let mut pool = RxPool::new(100);
    let mut held = Reassembly::new();
    hold(&mut held, &mut pool, 100, 10).unwrap();
    hold(&mut held, &mut pool, 120, 10).unwrap();
    hold(&mut held, &mut pool, 140, 10).unwrap();
    assert_eq!(hold(&mut held, &mut pool, 90, 55), Ok((90, 150)));
    assert_eq!((held.held_segments(), pool.used()), (2, 2));
}

#[test]
fn limits_hold_in_bytes_segments_and_pool() {
    let mut pool = RxPool::new(4);
    let mut held = Reassembly::new();
    let size = u32::try_from(segment(0, 10).buf.true_size()).unwrap();
    let limits = HoldLimits { bytes: size * 2, ..LIMITS };
    held.hold(&mut pool, segment(100, 10), limits).unwrap();
    held.hold(&mut pool, segment(200, 10), limits).unwrap();
    assert_eq!(held.hold(&mut pool, segment(300, 10), limits), Err(HoldError::Full));
    let limits = HoldLimits { segments: 2, ..LIMITS };
    assert_eq!(held.hold(&mut pool, segment(300, 10), limits), Err(HoldError::Full));
    let limits = HoldLimits { reserve: 2, ..LIMITS };
    assert_eq!(held.hold(&mut pool, segment(300, 10), limits), Err(HoldError::Full));
    held.hold(&mut pool, segment(300, 10), LIMITS).unwrap();
    let run = SackRange { start: seq(100), end: seq(110) };
    assert_eq!(held.hold(&mut pool, segment(100, 10), limits), Err(HoldError::Duplicate(run)));
}

#[test]
fn short_segments_are_copied_into_another_buffer() {
    let limits = HoldLimits { merged: 300, ..LIMITS };
    let mut pool = RxPool::new(100);
    let mut held = Reassembly::new();
    let merges = |pool: &mut RxPool, held: &mut Reassembly, start, len, limits| {
        let kept = held.hold(pool, roomy_segment(start, len, 1600), limits).unwrap();
        (kept.copied, held.held_segments(), buffers(held, pool))
    };
    assert_eq!(merges(&mut pool, &mut held, 100, 10, limits), (false, 1, 1));
    assert_eq!(merges(&mut pool, &mut held, 110, 20, limits), (true, 1, 1));
    assert_eq!(merges(&mut pool, &mut held, 120, 30, limits), (true, 1, 1), "of which 10 are new");
    assert_eq!(
        merges(&mut pool, &mut held, 150, 249, limits),
        (false, 2, 2),
        "not short: a buffer is less than eight times as large"
    );
    assert_eq!(
        merges(&mut pool, &mut held, 399, 60, limits),
        (true, 3, 2),
        "a segment of its own: too long together"
    );
    assert_eq!(merges(&mut pool, &mut held, 461, 1, limits), (true, 4, 2), "behind a gap of its own");
    let none = HoldLimits { retains: false, ..limits };
    assert_eq!(merges(&mut pool, &mut held, 462, 1, none), (true, 4, 2), "the same segment, longer");
    assert_eq!(held.hold(&mut pool, roomy_segment(600, 1, 1600), none), Err(HoldError::Full));
    let full = HoldLimits { bytes: held.held_bytes(), segments: 5, ..limits };
    assert_eq!(
        held.hold(&mut pool, roomy_segment(600, 300, 1600), full),
        Err(HoldError::Full),
        "a new buffer"
    );
    assert_eq!(
        merges(&mut pool, &mut held, 459, 2, full),
        (true, 5, 2),
        "closes the gap, without a new buffer"
    );
    assert_eq!(
        held.hold(&mut pool, roomy_segment(600, 1, 1600), full),
        Err(HoldError::Full),
        "a sixth segment"
    );
    assert_eq!(runs(&held, &pool), [(100, 463)]);
    assert!(is_counted(&held, &pool));
    assert!(held.push_ready(&mut pool, segment(0, 100)));
    assert_eq!(held.release(&mut pool, seq(100)), seq(463));
    assert_eq!((held.payloads(), held.held_bytes()), (0, 0));
    let mut at = 0;
    while let Some(ReadyPayload { seq: start, range, buf }) = held.pop_ready(&mut pool) {
        assert_eq!(start, seq(at));
        let buf = buf.unwrap();
        for byte in &buf.bytes()[range.start.into()..range.end.into()] {
            assert_eq!(usize::from(*byte), at as usize % 251, "byte {at}");
            at += 1;
        }
    }
    assert_eq!(at, 463);
}

/// Short segments between gaps share buffers, whatever the order of their arrival and delivery, and whether the
/// application keeps what it has got or not.
#[test]
fn short_segments_between_gaps_share_buffers() {
    for (len, room, keeps) in [(1, 1600, false), (1, 1600, true), (30, 1600, true), (100, 9000, false)] {
        let step = u32::from(len) + 1;
        let (mut pool, mut held) = (RxPool::new(1000), Reassembly::new());
        let mut order: Vec<u32> = (1..=40).map(|n| n * 17 % 41).collect();
        for n in order.drain(..) {
            held.hold(&mut pool, roomy_segment(n * step, len, room), LIMITS).unwrap();
        }
        let per_buffer = room / usize::from(len) + 1;
        assert_eq!((held.payloads(), buffers(&held, &pool)), (40, 40_usize.div_ceil(per_buffer)));
        assert!(is_counted(&held, &pool));
        let (mut nxt, mut kept) = (0, Vec::new());
        for n in 0..=40 {
            let start = if n == 0 { 0 } else { n * step + u32::from(len) };
            let filler = roomy_segment(start, if n == 0 { u16::try_from(step).unwrap() } else { 1 }, room);
            let end = filler.end();
            assert!(held.push_ready(&mut pool, filler));
            held.release(&mut pool, end);
            assert!(is_counted(&held, &pool));
            while let Some(ready) = held.pop_ready(&mut pool) {
                assert_eq!(ready.seq, seq(nxt));
                nxt += u32::try_from(ready.range.len()).unwrap();
                kept.push(ready);
            }
            kept.retain(|_| keeps);
            // Further segments never change what has been delivered.
            held.hold(&mut pool, roomy_segment(5000 + n * step, len, room), LIMITS).unwrap();
        }
        assert_eq!(nxt, 41 * step);
        for ReadyPayload { seq: start, range, buf } in kept {
            let at = start.distance_from(seq(0)) as usize;
            let bytes = &buf.as_ref().unwrap().bytes()[range.start.into()..range.end.into()];
            assert!((at..).zip(bytes).all(|(at, byte)| usize::from(*byte) == at % 251), "{len}: {at}");
        }
        assert!(is_counted(&held, &pool));
        held.clear(&mut pool);
        assert_eq!((held.held_bytes(), held.held_segments(), held.payloads(), pool.used()), (0, 0, 0, 0));
    }
}

#[test]
fn a_segment_that_is_offered_may_lie_in_a_shared_buffer() {
    let limits = HoldLimits { offer: true, ..LIMITS };
    for takes in [false, true] {
        let (mut pool, mut held) = (RxPool::new(100), Reassembly::new());
        for start in [100, 200, 300] {
            held.hold(&mut pool, roomy_segment(start, 20, 1600), limits).unwrap();
        }
        assert_eq!(offer(&mut held, &mut pool, 0, takes), [(100, 20), (200, 20), (300, 20)]);
        assert_eq!((held.held_segments(), held.payloads()), (3, if takes { 0 } else { 3 }));
        assert!((held.held_bytes() > 0) != takes && is_counted(&held, &pool));
        assert_eq!(held.release(&mut pool, seq(100)), seq(120));
        let first = held.pop_ready(&mut pool).unwrap();
        assert_eq!((first.buf.is_none(), first.range.len()), (takes, 20));
        held.clear(&mut pool);
        assert_eq!((held.held_bytes(), held.payloads(), pool.used()), (0, 0, 0));
    }
}

proptest! {
    /// Segments in any order and overlap: the stream is delivered whole and right, runs are sorted and apart, and
    /// each reported run is one of them.
    #[test]
    fn the_stream_comes_out_whole(
        pieces in prop::collection::vec((0u32..1000, 1u16..120), 1..80),
        room in prop::sample::select(&[0, 100, 1000][..]),
        merged in prop::sample::select(&[0, 200, 2000][..]),
    ) {
        let limits = HoldLimits { merged, ..LIMITS };
        let mut pool = RxPool::new(1000);
        let mut held = Reassembly::new();
        let mut nxt = seq(0);
        let mut out = Vec::new();
        let mut seen = [false; 1200];
        // The last pieces fill every gap.
        let rest = (0..20).map(|i| (i * 60, 60u16));
        for (start, len) in pieces.into_iter().chain(rest) {
            for slot in &mut seen[start as usize..start as usize + usize::from(len)] {
                *slot = true;
            }
            let mut payload = roomy_segment(start, len, room);
            payload.trim_before(nxt);
            if payload.len() == 0 {
                continue;
            }
            if payload.seq == nxt {
                nxt = payload.end();
                assert!(held.push_ready(&mut pool, payload));
                nxt = held.release(&mut pool, nxt);
            } else {
                match held.hold(&mut pool, payload, limits) {
                    Ok(Held { run, .. }) => prop_assert!(held.runs(&pool).any(|r| r == run)),
                    Err(HoldError::Duplicate(run)) => prop_assert!(held.runs(&pool).any(|r| r == run)),
                    Err(HoldError::Full) => prop_assert!(false, "within the limits"),
                }
            }
            let mut end = nxt;
            for run in held.runs(&pool) {
                prop_assert!(run.start.after(end) && run.end.after(run.start));
                end = run.end;
            }
            prop_assert!(is_counted(&held, &pool));
            let covered: u32 = held.runs(&pool).map(|r| r.end.distance_from(r.start)).sum();
            let beyond = nxt.distance_from(seq(0)) as usize;
            prop_assert!(seen[..beyond].iter().all(|s| *s) && (beyond == 1200 || !seen[beyond]));
            prop_assert_eq!(covered as usize, seen[beyond..].iter().filter(|s| **s).count());
            while let Some(payload) = held.pop_ready(&mut pool) {
                let range = usize::from(payload.range.start)..usize::from(payload.range.end);
                out.extend_from_slice(&payload.buf.unwrap().bytes()[range]);
            }
        }
        prop_assert!(out.iter().enumerate().all(|(i, byte)| usize::from(*byte) == i % 251));
        prop_assert_eq!(out.len(), 1200);
        prop_assert_eq!((pool.used(), held.held_bytes(), held.held_segments()), (0, 0, 0));
    }
}

fn offer(held: &mut Reassembly, pool: &mut RxPool, nxt: u32, takes: bool) -> Vec<(u32, usize)> {
    let mut offered = Vec::new();
    let first = held.take_unoffered();
    held.offer(pool, first, seq(nxt), &mut |at, bytes| {
        let start = at.distance_from(seq(0));
        assert!((start..).zip(bytes).all(|(at, byte)| u32::from(*byte) == at % 251));
        offered.push((start, bytes.len()));
        takes
    });
    offered
}

fn hold_unoffered(held: &mut Reassembly, pool: &mut RxPool, start: u32, len: u16) {
    held.hold(pool, segment(start, len), HoldLimits { offer: true, ..LIMITS }).unwrap();
}

#[test]
fn taken_segments_keep_their_node_and_release_their_frame() {
    let mut pool = RxPool::new(100);
    let mut held = Reassembly::new();
    hold_unoffered(&mut held, &mut pool, 100, 50);
    hold_unoffered(&mut held, &mut pool, 200, 50);
    hold(&mut held, &mut pool, 300, 50).unwrap();
    let before = held.held_bytes();
    assert_eq!(offer(&mut held, &mut pool, 0, true), [(100, 50), (200, 50)], "as they came, and once");
    assert!(offer(&mut held, &mut pool, 0, true).is_empty());
    assert_eq!((held.held_bytes(), held.held_segments()), (before / 3, 3));
    assert_eq!(runs(&held, &pool), [(100, 150), (200, 250), (300, 350)]);
    // A longer segment replaces a taken one; a shorter one does not.
    assert!(matches!(hold(&mut held, &mut pool, 210, 20), Err(HoldError::Duplicate(_))));
    hold(&mut held, &mut pool, 190, 70).unwrap();
    assert_eq!(held.release(&mut pool, seq(120)), seq(150));
    let first = held.pop_ready(&mut pool).unwrap();
    assert_eq!((first.buf.is_none(), first.range.len()), (true, 30));
    assert_eq!(held.release(&mut pool, seq(190)), seq(260));
    assert_eq!(held.pop_ready(&mut pool).unwrap().buf.unwrap().bytes().len(), 73);
    held.clear(&mut pool);
    assert_eq!((held.held_bytes(), held.held_segments(), pool.used()), (0, 0, 0));
}

#[test]
fn segments_that_are_gone_are_not_offered() {
    let mut pool = RxPool::new(100);
    let mut held = Reassembly::new();
    // The gap closes before the list is taken: the segments are delivered in order and never offered.
    hold_unoffered(&mut held, &mut pool, 100, 50);
    hold_unoffered(&mut held, &mut pool, 200, 50);
    held.release(&mut pool, seq(100));
    assert_eq!(offer(&mut held, &mut pool, 150, true), [(200, 50)]);
    assert!(held.pop_ready(&mut pool).unwrap().buf.is_some());
    // One is covered by a longer segment; its node may be reused by now.
    hold_unoffered(&mut held, &mut pool, 300, 10);
    hold_unoffered(&mut held, &mut pool, 290, 30);
    assert_eq!(offer(&mut held, &mut pool, 0, false), [(290, 30)]);
    // The list is never offered, and the segment is delivered in order.
    hold_unoffered(&mut held, &mut pool, 400, 10);
    held.release(&mut pool, seq(400));
    while held.pop_ready(&mut pool).is_some() {}
    assert!(offer(&mut held, &mut pool, 0, true).is_empty());
    assert_eq!(pool.used(), 0);
}

proptest! {
    /// An application that takes some of the segments that it is offered: each byte is delivered once, as a byte or
    /// as part of a taken segment; taken segments were offered with the right bytes, in one piece or in several.
    #[test]
    fn taken_segments_are_delivered_once(
        pieces in prop::collection::vec((0u32..1000, 1u16..120, any::<bool>(), any::<bool>()), 1..80),
    ) {
        let mut pool = RxPool::new(1000);
        let mut held = Reassembly::new();
        let (mut nxt, mut due) = (seq(0), 0);
        let mut taken = [false; 1200];
        let limits = HoldLimits { offer: true, ..LIMITS };
        let rest = (0..20).map(|i| (i * 60, 60u16, true, true));
        for (start, len, takes, looks) in pieces.into_iter().chain(rest) {
            let mut payload = segment(start, len);
            payload.trim_before(nxt);
            if payload.len() == 0 {
                continue;
            }
            if payload.seq == nxt {
                nxt = payload.end();
                assert!(held.push_ready(&mut pool, payload));
                nxt = held.release(&mut pool, nxt);
            } else {
                let _ = held.hold(&mut pool, payload, limits);
            }
            if looks && held.has_unoffered() {
                let beyond = nxt.distance_from(seq(0));
                for (at, len) in offer(&mut held, &mut pool, beyond, takes) {
                    prop_assert!(at > beyond);
                    if takes {
                        taken[at as usize..at as usize + len].fill(true);
                    }
                }
            }
            while let Some(payload) = held.pop_ready(&mut pool) {
                prop_assert_eq!(payload.seq, seq(due));
                let range = usize::from(payload.range.start)..usize::from(payload.range.end);
                let span = due as usize..due as usize + range.len();
                match payload.buf {
                    Some(buf) => {
                        let bytes = &buf.bytes()[range];
                        prop_assert!(span.clone().zip(bytes).all(|(at, byte)| usize::from(*byte) == at % 251));
                    }
                    None => prop_assert!(taken[span.clone()].iter().all(|taken| *taken)),
                }
                due = u32::try_from(span.end).unwrap();
            }
        }
        prop_assert_eq!(due, 1200);
        prop_assert_eq!((pool.used(), held.held_bytes(), held.held_segments()), (0, 0, 0));
    }
}
