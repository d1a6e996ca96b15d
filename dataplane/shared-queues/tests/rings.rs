//! Rings behave as queues, whatever the order of calls, and an index that lies is found out.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use iwarp_shared_queues::*;
use proptest::prelude::*;

/// Shared memory of a test.
#[derive(Clone)]
struct Memory(Arc<[AtomicU64]>);

impl Memory {
    fn new(words: usize) -> Self {
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }
}

impl AsRef<[AtomicU64]> for Memory {
    fn as_ref(&self) -> &[AtomicU64] {
        &self.0
    }
}

fn ring(shape: RingShape, start: usize) -> (Memory, Producer<Memory>, Consumer<Memory>) {
    let memory = Memory::new(start + shape.words());
    let producer = Producer::new(memory.clone(), start, shape).unwrap();
    let consumer = Consumer::new(memory.clone(), start, shape).unwrap();
    (memory, producer, consumer)
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push,
    Retract,
    Publish,
    Pop,
    Peek,
    Release,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    use Step::{Peek, Pop, Publish, Push, Release, Retract};
    let step = prop_oneof![
        4 => Just(Push), 1 => Just(Retract), 2 => Just(Publish), 3 => Just(Pop), 2 => Just(Peek), 2 => Just(Release)
    ];
    proptest::collection::vec(step, 0..400)
}

proptest! {
    /// The model: entries pushed, published and popped are three counts, and the ring has room until what was not
    /// released fills it.
    #[test]
    fn a_ring_is_a_queue(entries in 1_u32..40, entry_words in 1_u32..9, start in 0_usize..20, steps in steps()) {
        let shape = RingShape::new(entries, entry_words).unwrap();
        let (_, mut producer, mut consumer) = ring(shape, start);
        let (mut queue, mut pushed, mut published, mut popped, mut released) = (VecDeque::new(), 0_u64, 0, 0, 0);
        for step in steps {
            match step {
                Step::Push => {
                    let entry: Vec<u64> = (0..u64::from(entry_words)).map(|word| pushed * 1000 + word).collect();
                    let full = pushed - released == u64::from(shape.entries());
                    prop_assert_eq!(producer.push(&entry), if full { Err(RingError::Full) } else { Ok(()) });
                    if !full {
                        queue.push_back(entry);
                        pushed += 1;
                    }
                }
                Step::Retract => {
                    let unpublished = pushed - published;
                    producer.retract(unpublished);
                    queue.truncate(queue.len() - usize::try_from(unpublished).unwrap());
                    pushed = published;
                }
                Step::Publish => {
                    producer.publish();
                    published = pushed;
                }
                Step::Pop => {
                    let mut out = vec![0; entry_words as usize];
                    let has = popped < published;
                    prop_assert_eq!(consumer.pop(&mut out), Ok(has));
                    if has {
                        prop_assert_eq!(Some(out), queue.pop_front());
                        popped += 1;
                    }
                }
                Step::Peek => {
                    let mut first = [[0; 2]; 3];
                    let peeked = consumer.peek(&mut first).unwrap();
                    prop_assert!(peeked as u64 <= published - popped);
                    prop_assert!(peeked > 0 || popped == published);
                    for (first, entry) in first.iter().zip(queue.iter()).take(peeked) {
                        let both = entry.len().min(2);
                        prop_assert_eq!(&first[..both], &entry[..both]);
                    }
                    let mut rest = vec![0; entry_words as usize];
                    consumer.peek_rest(1, &mut rest);
                    consumer.take();
                    if peeked > 0 {
                        let entry = queue.pop_front().unwrap();
                        prop_assert_eq!(&rest[..entry.len() - 1], &entry[1..]);
                        popped += 1;
                    }
                }
                Step::Release => {
                    consumer.release();
                    released = popped;
                }
            }
        }
    }

    /// The other side may write anything anywhere at any time: each call succeeds or finds out, and neither side ever
    /// has more entries than the ring.
    #[test]
    fn memory_that_changes_at_random_harms_nobody(
        entries in 1_u32..40,
        entry_words in 1_u32..9,
        steps in steps(),
        writes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 0_u32..64), 400),
    ) {
        let shape = RingShape::new(entries, entry_words).unwrap();
        let (memory, mut producer, mut consumer) = ring(shape, 0);
        let mut taken_in_a_row = 0;
        for (step, (place, value, shift)) in steps.into_iter().zip(writes) {
            memory.0[place.index(memory.0.len())].store(value >> shift, Ordering::Relaxed);
            let mut out = vec![0; entry_words as usize];
            match step {
                Step::Push => {
                    let _ = producer.push(&out);
                }
                Step::Retract => producer.retract(1),
                Step::Publish => producer.publish(),
                Step::Pop => {
                    let taken = consumer.pop(&mut out) == Ok(true);
                    taken_in_a_row = if taken { taken_in_a_row + 1 } else { 0 };
                    prop_assert!(taken_in_a_row <= 400);
                }
                Step::Peek => {
                    let peeked = consumer.peek(&mut [[0; 2]; 3]);
                    prop_assert!(peeked.unwrap_or(0) <= 3);
                    consumer.take();
                    taken_in_a_row = if peeked.is_ok_and(|count| count > 0) { taken_in_a_row + 1 } else { 0 };
                }
                Step::Release => consumer.release(),
            }
        }
    }
}

#[test]
fn an_index_outside_of_the_ring_is_corrupt() {
    let shape = RingShape::new(4, 2).unwrap();
    for produced in [5, 6, 1 << 40, u64::MAX] {
        let (memory, _, mut consumer) = ring(shape, 0);
        memory.0[0].store(produced, Ordering::Relaxed);
        assert_eq!(consumer.pop(&mut [0; 2]), Err(RingError::Corrupt), "{produced} of 4");
    }
    let (memory, mut producer, mut consumer) = ring(shape, 0);
    for _ in 0..4 {
        producer.push(&[1, 2]).unwrap();
    }
    producer.publish();
    assert_eq!(producer.push(&[1, 2]), Err(RingError::Full));
    for consumed in [5, u64::MAX] {
        memory.0[LINE_WORDS].store(consumed, Ordering::Relaxed);
        assert_eq!(producer.push(&[1, 2]), Err(RingError::Corrupt), "{consumed} of 4");
    }
    // Neither count may decrease.
    memory.0[LINE_WORDS].store(3, Ordering::Relaxed);
    for _ in 0..3 {
        producer.push(&[1, 2]).unwrap();
    }
    memory.0[LINE_WORDS].store(2, Ordering::Relaxed);
    assert_eq!(producer.push(&[1, 2]), Err(RingError::Corrupt));
    for _ in 0..4 {
        assert_eq!(consumer.pop(&mut [0; 2]), Ok(true));
    }
    memory.0[0].store(1, Ordering::Relaxed);
    assert_eq!(consumer.pop(&mut [0; 2]), Err(RingError::Corrupt));
}

#[test]
fn sizes_are_checked() {
    for (entries, words) in
        [(0, 1), (1, 0), (RingShape::ENTRIES_MAX + 1, 1), (1, RingShape::ENTRY_WORDS_MAX + 1)]
    {
        assert_eq!(RingShape::new(entries, words), None);
    }
    let shape = RingShape::new(100, 3).unwrap();
    assert_eq!((shape.entries(), shape.words()), (128, 16 + 128 * 3));
    let memory = Memory::new(shape.words() + 7);
    assert!(
        Producer::new(memory.clone(), 7, shape).is_some()
            && Consumer::new(memory.clone(), 7, shape).is_some()
    );
    for start in [8, usize::MAX] {
        assert!(Producer::new(memory.clone(), start, shape).is_none());
        assert!(Consumer::new(memory.clone(), start, shape).is_none());
    }
    let mut producer = Producer::new(memory, 0, shape).unwrap();
    assert_eq!(producer.push(&[0; 4]), Err(RingError::TooLong));
    assert_eq!(producer.push(&[0; 2]), Ok(()), "a shorter entry leaves the rest of its place");
}

/// Two threads, a million entries, a small ring: every entry arrives once, in order.
#[test]
fn entries_cross_threads_in_order() {
    const ENTRIES: u64 = 1_000_000;
    let (_, mut producer, mut consumer) = ring(RingShape::new(16, 3).unwrap(), 0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..ENTRIES {
                while producer.push(&[number, !number, number * 3]).is_err() {
                    producer.publish();
                    std::thread::yield_now();
                }
                if number % 7 == 0 {
                    producer.publish();
                }
            }
            producer.publish();
        });
        let mut expected = 0;
        let mut out = [0; 3];
        while expected < ENTRIES {
            if consumer.pop(&mut out).unwrap() {
                assert_eq!(out, [expected, !expected, expected * 3]);
                expected += 1;
            } else {
                consumer.release();
                std::thread::yield_now();
            }
        }
    });
}
