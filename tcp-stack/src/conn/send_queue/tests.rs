use super::*;
use crate::testutil::HeapBuf;
use alloc::vec::Vec;
use proptest::prelude::*;

type TxPool = Pool<TxNode<HeapBuf>>;

fn seq(n: u32) -> SeqNum {
    SeqNum::new(n)
}

/// The sums, the order and the list in time, counted afresh.
fn check(queue: &SendQueue, pool: &TxPool) {
    let (mut index, mut prev) = (queue.head, NIL);
    let (mut octets, mut flight, mut lost, mut sacked, mut segments) = (0, 0, 0, 0, 0);
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
        octets += u32::from(node.len);
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
    assert_eq!((queue.segments, queue.octets), (segments, octets));
    assert_eq!((queue.in_flight, queue.lost, queue.sacked), (flight, lost, sacked));
    let mut in_time = Vec::new();
    let (mut index, mut at) = (queue.oldest, Instant::ZERO);
    while let Some(node) = pool.get(index) {
        assert!(node.sent_at >= at);
        at = node.sent_at;
        in_time.push(index);
        index = node.newer;
    }
    assert_eq!(queue.flight_segments as usize, in_time.len());
    in_time.sort_unstable();
    in_flight.sort_unstable();
    assert_eq!(in_time, in_flight);
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
    queue.sack(pool, range.start, range.end, |node| newly.push(node.seq));
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
                    let pushed = queue.push(&mut pool, end, 100, false, Some(HeapBuf::new(&[])));
                    end += if pushed.is_ok() { 100 } else { 0 };
                }
                (2, _) if queue.unsent != NIL => queue.mark_sent(&mut pool, queue.unsent, now),
                (3, Some(TxState::Flight)) => queue.mark_lost(&mut pool, index),
                (4, Some(TxState::Flight | TxState::Lost)) => queue.mark_sacked(&mut pool, index),
                (5, Some(TxState::Sacked)) if nth == 19 => {
                    queue.renege(&mut pool);
                }
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
                    while queue.pop_acked(&mut pool, una).is_some() {}
                }
                _ => {}
            }
            check(&queue, &pool);
            prop_assert_eq!(queue.first_lost(&pool), first_lost_by_walking(&queue, &pool));
        }
        while queue.pop_head(&mut pool).is_some() {}
        check(&queue, &pool);
        prop_assert_eq!(pool.used(), 0);
    }
}
