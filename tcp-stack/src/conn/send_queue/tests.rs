use super::*;
use crate::testutil::HeapBuf;
use crate::wire::SackRange;
use alloc::vec::Vec;
use proptest::prelude::*;

type TxPool = Pool<TxNode<HeapBuf>>;

fn seq(n: u32) -> SeqNum {
    SeqNum::new(n)
}

/// Recounts the sums, the order and the list by time.
fn check(queue: &SendQueue, pool: &TxPool) {
    let (mut index, mut prev) = (queue.head, NIL);
    let (mut bytes, mut flight, mut lost, mut sacked, mut segments) = (0, 0, 0, 0, 0);
    let mut in_flight = Vec::new();
    let mut unsent_seen = false;
    while let Some(node) = pool.get(index) {
        assert_eq!(node.prev, prev);
        if let Some(before) = pool.get(prev) {
            assert_eq!(before.end(), node.seq, "no gap, no overlap");
        }
        unsent_seen |= index == queue.unsent;
        assert_eq!(node.state == TxState::Ready, unsent_seen);
        segments += 1;
        bytes += u32::from(node.len);
        match node.state {
            TxState::Ready => {}
            TxState::Flight => {
                flight += node.seq_len();
                in_flight.push(index);
            }
            TxState::Lost => lost += node.seq_len(),
            TxState::Sacked => sacked += node.seq_len(),
        }
        (prev, index) = (index, node.next);
    }
    assert_eq!(queue.tail, prev);
    assert_eq!((queue.segments, queue.bytes), (segments, bytes));
    assert_eq!((queue.in_flight, queue.lost, queue.sacked), (flight, lost, sacked));
    let mut in_time = Vec::new();
    let (mut index, mut at) = (queue.flight.first, Instant::ZERO);
    while let Some(node) = pool.get(index) {
        assert!(node.sent_at >= at);
        at = node.sent_at;
        in_time.push(index);
        index = node.by_state.next;
    }
    assert_eq!(queue.flight_segments as usize, in_time.len());
    in_time.sort_unstable();
    in_flight.sort_unstable();
    assert_eq!(in_time, in_flight);
    check_losses(queue, pool);
    check_runs(queue, pool);
}

fn check_losses(queue: &SendQueue, pool: &TxPool) {
    let (mut bytes, mut index, mut prior) = (0, queue.losses.first, NIL);
    while let Some(node) = pool.get(index) {
        assert_eq!((node.state, node.by_state.prev), (TxState::Lost, prior));
        assert!(pool.get(prior).is_none_or(|prior| prior.seq.before(node.seq)), "in sequence");
        bytes += node.seq_len();
        (prior, index) = (index, node.by_state.next);
    }
    assert_eq!((queue.losses.last, queue.lost), (prior, bytes));
    assert!(pool.get(queue.lost_hint).is_none_or(|node| node.state == TxState::Lost));
}

fn check_runs(queue: &SendQueue, pool: &TxPool) {
    let sacked = |index: u32| pool.get(index).is_some_and(|node| node.state == TxState::Sacked);
    let (mut first, mut index) = (NIL, queue.head);
    while let Some(node) = pool.get(index) {
        if sacked(index) && !sacked(node.prev) {
            first = index;
        }
        if sacked(index) && !sacked(node.next) {
            assert_eq!(
                (node.by_state.next, pool.get(first).unwrap().by_state.next),
                (first, index),
                "the ends of a run"
            );
        }
        if index == queue.sack_hint {
            assert!(!sacked(index) || first == index, "the hint is no place inside of a run");
        }
        index = node.next;
    }
}

fn first_lost_by_walking(queue: &SendQueue, pool: &TxPool) -> Option<u32> {
    let mut index = queue.head;
    while let Some(node) = pool.get(index) {
        if node.state == TxState::Lost {
            return Some(index);
        }
        index = node.next;
    }
    None
}

/// A train leaves the queue as if each of its segments had been sent by itself.
#[test]
fn a_train_equals_its_segments_sent_one_by_one() {
    for (before, row, behind) in [(0, 1, 0), (0, 3, 2), (2, 4, 0), (5, 1, 1), (3, 0, 2)] {
        let all = [(); 2].map(|()| {
            let (mut pool, mut queue) = (TxPool::new(before + row + behind), SendQueue::new());
            for nth in 0..before + row + behind {
                queue.push(&mut pool, seq(nth * 100), 100, false, (None, None)).unwrap();
            }
            for index in 0..before {
                queue.mark_sent(&mut pool, index, Instant::from_nanos(7));
            }
            (pool, queue)
        });
        let [(mut pool, mut queue), (mut other_pool, mut other)] = all;
        let now = Instant::from_nanos(9);
        let mut seen = Vec::new();
        let sent_train =
            queue.mark_train_sent(&mut pool, (now, RateStamp::default()), |node, in_flight, is_last| {
                seen.push((node.seq, in_flight, is_last));
                seen.len() <= row as usize
            });
        for index in before..before + row {
            other.mark_sent(&mut other_pool, index, now);
        }
        assert_eq!((sent_train.segments, sent_train.bytes), (row, row * 100));
        assert!(row == 0 || sent_train.end == seq((before + row) * 100));
        let count = before + row + behind;
        let expected =
            (before..count).take(row as usize + 1).map(|nth| (seq(nth * 100), nth * 100, nth + 1 == count));
        assert_eq!(seen, expected.collect::<Vec<_>>());
        assert_eq!(std::format!("{queue:?} {pool:?}"), std::format!("{other:?} {other_pool:?}"));
    }
}

/// Marks a range and compares with what a walk over the whole queue expects.
fn sack_by_walking(queue: &mut SendQueue, pool: &mut TxPool, range: &core::ops::Range<SeqNum>) {
    let (mut expected, mut index) = (Vec::new(), queue.head);
    while let Some(node) = pool.get(index) {
        let inside = node.seq.at_or_after(range.start) && node.end().at_or_before(range.end);
        if inside && matches!(node.state, TxState::Flight | TxState::Lost) {
            expected.push(node.seq);
        }
        index = node.next;
    }
    let mut newly = Vec::new();
    let range = SackRange { start: range.start, end: range.end };
    queue.sack(pool, range, &mut 1000, |node| newly.push(node.seq));
    assert_eq!(newly, expected);
}

proptest! {
    /// Any sequence of operations keeps the sums and lists right.
    #[test]
    fn sums_and_lists_stay_consistent(ops in prop::collection::vec((0u8..10, 0u32..20), 1..200)) {
        let mut pool = TxPool::new(64);
        let mut queue = SendQueue::new();
        let mut end = seq(u32::MAX - 3000);
        let mut now = Instant::ZERO;
        for (op, nth) in ops {
            now += core::time::Duration::from_micros(1);
            let mut index = queue.head;
            for _ in 0..nth {
                let next = pool.get(index).map_or(NIL, |node| node.next);
                if next != NIL { index = next; }
            }
            let state = pool.get(index).map(|node| node.state);
            match (op, state) {
                (0 | 1, _) => {
                    let pushed = queue.push(&mut pool, end, 100, false, (Some(HeapBuf::new(&[])), None));
                    end += if pushed.is_ok() { 100 } else { 0 };
                }
                (2, _) if nth % 2 == 1 => {
                    let mut left = nth / 2;
                    let sent_train = queue.mark_train_sent(&mut pool, (now, RateStamp::default()), |_, _, _| {
                        left = left.wrapping_sub(1);
                        left != u32::MAX
                    });
                    prop_assert!(sent_train.segments <= nth / 2);
                }
                (2, _) if queue.unsent != NIL => queue.mark_sent(&mut pool, queue.unsent, now),
                (3, Some(TxState::Flight)) => queue.mark_lost(&mut pool, index),
                (4, Some(TxState::Flight | TxState::Lost)) => queue.mark_sacked(&mut pool, index),
                (5, Some(TxState::Sacked)) if nth == 19 => {
                    queue.renege(&mut pool);
                }
                (5, _) if nth == 0 => queue.revert_lost(&mut pool),
                (9, Some(state)) if state != TxState::Ready => {
                    let start = pool.get(index).unwrap().seq;
                    let range = start..start + 100 * (1 + nth % 4);
                    sack_by_walking(&mut queue, &mut pool, &range);
                }
                (6, _) => if let Some(lost) = queue.first_lost(&pool) {
                    queue.mark_sent(&mut pool, lost, now);
                },
                (7, Some(TxState::Ready | TxState::Lost)) => {
                    queue.split(&mut pool, index, 10, HeapBuf::new(&[]));
                }
                (8, Some(state)) if state != TxState::Ready => {
                    let una = pool.get(index).unwrap().seq;
                    let mut expected = Vec::new();
                    let mut at = queue.head;
                    while let Some(node) = pool.get(at).filter(|node| node.end().at_or_before(una)) {
                        expected.push(node.seq);
                        at = node.next;
                    }
                    let mut reported = Vec::new();
                    queue.drop_acked(&mut pool, una, |node| reported.push(node.seq));
                    prop_assert_eq!(reported, expected);
                }
                _ => {}
            }
            check(&queue, &pool);
            prop_assert_eq!(queue.first_lost(&pool), first_lost_by_walking(&queue, &pool));
        }
        queue.revert_lost(&mut pool);
        prop_assert_eq!(queue.lost(), 0);
        check(&queue, &pool);
        while queue.pop_head(&mut pool).is_some() {}
        check(&queue, &pool);
        prop_assert_eq!(pool.used(), 0);
    }
}

/// Makes a queue of `count` segments of 100 bytes, all in flight, sent a microsecond apart.
fn in_flight(count: u32) -> (TxPool, SendQueue) {
    let (mut pool, mut queue) = (TxPool::new(count), SendQueue::new());
    for nth in 0..count {
        let index =
            queue.push(&mut pool, seq(nth * 100), 100, false, (Some(HeapBuf::new(&[])), None)).unwrap();
        queue.mark_sent(&mut pool, index, Instant::from_nanos(u64::from(nth) * 1000));
    }
    (pool, queue)
}

fn segments(range: core::ops::Range<u32>) -> SackRange {
    SackRange { start: seq(range.start * 100), end: seq(range.end * 100) }
}

/// A range far from the start of the search is not found within the steps; when it is reported again, the search
/// continues. No acknowledgment costs more than its steps and the segments that it reports.
#[test]
fn a_search_is_bounded_and_continues() {
    const STEPS: u32 = 64;
    for count in [1000, 8000] {
        let (mut pool, mut queue) = in_flight(count);
        let (mut acks, mut newly) = (0, 0);
        while newly == 0 {
            let (mut steps, middle) = (STEPS, count / 2);
            queue.sack(&mut pool, segments(middle..middle + 2), &mut steps, |_| newly += 1);
            acks += 1;
        }
        assert_eq!((newly, acks), (2, (count / 2).div_ceil(STEPS)));
        check(&queue, &pool);
    }
}

/// Blocks that jump from one end of the scoreboard to the other, over every second segment: a run is one step, the
/// ends are near, and nothing else is visited.
#[test]
fn runs_are_passed_in_one_step() {
    let (mut pool, mut queue) = in_flight(8000);
    let mut steps = 1000;
    queue.sack(&mut pool, segments(1..4000), &mut steps, |_| ());
    queue.sack(&mut pool, segments(4001..7999), &mut steps, |_| ());
    assert_eq!(queue.sacked_segments(), 3999 + 3998);
    let before = steps;
    let mut newly = 0;
    for range in [0..1, 7999..8000, 4000..4001] {
        queue.sack(&mut pool, segments(range), &mut steps, |_| newly += 1);
    }
    assert_eq!(newly, 3);
    assert!(before - steps <= 8, "{} steps", before - steps);
    check(&queue, &pool);
}

/// Loss detection visits the segments that it marks, and one more, however many are in flight.
#[test]
fn detection_ends_at_the_first_that_is_not_overdue() {
    let (mut pool, mut queue) = in_flight(5000);
    let mut looked = 0;
    for (now_us, lost) in [(9, 10), (9, 0), (10, 1), (110, 100)] {
        let (before, seen) = (queue.lost(), looked);
        let now = Instant::from_nanos(now_us * 1000);
        let next = queue.lose_overdue(&mut pool, now, |node| {
            looked += 1;
            Some(node.sent_at)
        });
        assert_eq!((queue.lost() - before, looked - seen), (lost * 100, lost + 1));
        assert_eq!(next, Some(Instant::from_nanos((now_us + 1) * 1000)));
    }
    assert_eq!(queue.lose_overdue(&mut pool, Instant::ZERO, |_| None), None);
}

#[test]
fn spuriously_lost_segments_return_to_their_place_by_time() {
    let (mut pool, mut queue) = in_flight(10);
    for index in [0, 1, 4] {
        queue.mark_lost(&mut pool, index);
    }
    // One of them is sent again, and marked lost again.
    queue.mark_sent(&mut pool, 1, Instant::from_nanos(50_000));
    assert_eq!(queue.flight_again(), 1);
    queue.mark_lost(&mut pool, 1);
    queue.revert_lost(&mut pool);
    check(&queue, &pool);
    let (mut order, mut index) = (Vec::new(), queue.oldest());
    while let Some(node) = pool.get(index) {
        order.push(index);
        index = node.by_state.next;
    }
    assert_eq!(order, [0, 2, 3, 4, 5, 6, 7, 8, 9, 1]);
    assert_eq!((queue.lost(), queue.flight_again()), (0, 1));
}

/// A segment whose place among the losses was too far to be found is retransmitted first once it is the first of all:
/// a receiver without room for out-of-order data takes no other one.
#[test]
fn the_first_segment_of_all_is_retransmitted_first() {
    let (mut pool, mut queue) = in_flight(300);
    let far = 2 * LOST_STEPS_MAX;
    for index in core::iter::once(10).chain(50..51 + far).chain([20]) {
        queue.mark_lost(&mut pool, index);
    }
    assert_eq!(queue.first_lost(&pool), Some(10));
    for (una, first) in [(11, 50), (19, 50), (20, 20), (21, 50), (51, 51)] {
        queue.drop_acked(&mut pool, seq(una * 100), |_| ());
        assert_eq!(queue.first_lost(&pool), Some(first), "after an acknowledgment of {una} segments");
    }
}
