//! Explores every order in which two threads may see each other's accesses: `make loom`.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use iwarp_shared_queues::*;
use loom::sync::Arc;
use loom::thread;

#[derive(Clone)]
struct Memory(Arc<Vec<AtomicU64>>);

impl Memory {
    fn new(words: usize) -> Self {
        Self(Arc::new((0..words).map(|_| AtomicU64::new(0)).collect()))
    }
}

impl AsRef<[AtomicU64]> for Memory {
    fn as_ref(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// Publishes entries with the numbers from 1 to `last`, until the ring is full, and returns the last number.
fn write(producer: &mut Producer<Memory>, last: u64) -> u64 {
    let mut written = 0;
    for number in 1..=last {
        if producer.push(&[number, !number]).is_err() {
            break;
        }
        producer.publish();
        written = number;
    }
    written
}

/// A place is not overwritten before it was read, and what is read is what was written.
#[test]
fn entries_arrive_whole_and_in_order() {
    loom::model(|| {
        let shape = RingShape::new(2, 2).unwrap();
        let memory = Memory::new(shape.words());
        let mut producer = Producer::new(memory.clone(), 0, shape).unwrap();
        let mut consumer = Consumer::new(memory, 0, shape).unwrap();
        let writer = thread::spawn(move || write(&mut producer, 4));
        let mut out = [0; 2];
        let mut next = 1;
        for _ in 0..4 {
            if consumer.pop(&mut out).unwrap() {
                assert_eq!(out, [next, !next]);
                next += 1;
                consumer.release();
            }
        }
        let written = writer.join().unwrap();
        while consumer.pop(&mut out).unwrap() {
            assert_eq!(out, [next, !next]);
            next += 1;
        }
        assert_eq!(next, written + 1);
    });
}

/// Entries whose first words are copied ahead are whole, too, and their places are not overwritten before they are
/// taken.
#[test]
fn entries_that_are_peeked_arrive_whole_and_in_order() {
    loom::model(|| {
        let shape = RingShape::new(2, 2).unwrap();
        let memory = Memory::new(shape.words());
        let mut producer = Producer::new(memory.clone(), 0, shape).unwrap();
        let mut consumer = Consumer::new(memory, 0, shape).unwrap();
        let writer = thread::spawn(move || write(&mut producer, 3));
        let (mut first, mut next) = ([[0; 1]; 2], 1);
        for _ in 0..2 {
            let peeked = consumer.peek(&mut first).unwrap();
            for first in first.iter().take(peeked) {
                let mut rest = [0];
                consumer.peek_rest(1, &mut rest);
                assert_eq!((*first, rest), ([next], [!next]));
                consumer.take();
                next += 1;
            }
            consumer.release();
        }
        writer.join().unwrap();
    });
}

/// A program that arms, polls once more and finds nothing is signaled for the completion that follows.
#[test]
fn no_completion_is_missed_by_a_program_that_sleeps() {
    loom::model(|| {
        let shape = RingShape::new(2, 1).unwrap();
        let memory = Memory::new(shape.words() + 1);
        let word = shape.words();
        let mut producer = Producer::new(memory.clone(), 0, shape).unwrap();
        let mut consumer = Consumer::new(memory.clone(), 0, shape).unwrap();
        let shared = memory.clone();
        let worker = thread::spawn(move || {
            producer.push(&[1]).unwrap();
            producer.publish();
            Arm(&shared.0[word]).take_due(false)
        });
        Arm(&memory.0[word]).arm(Armed::Any);
        let found = consumer.pop(&mut [0]).unwrap();
        let signaled = worker.join().unwrap();
        assert!(found || signaled, "the program sleeps, and a completion waits");
    });
}

/// An arming raises one event, of the worker or of the program that finds a completion in the queue.
#[test]
fn an_arming_raises_one_event() {
    loom::model(|| {
        let shape = RingShape::new(2, 1).unwrap();
        let memory = Memory::new(shape.words() + 1);
        let word = shape.words();
        let mut producer = Producer::new(memory.clone(), 0, shape).unwrap();
        let mut consumer = Consumer::new(memory.clone(), 0, shape).unwrap();
        let shared = memory.clone();
        let worker = thread::spawn(move || {
            producer.push(&[1]).unwrap();
            producer.publish();
            Arm(&shared.0[word]).take_due(false)
        });
        Arm(&memory.0[word]).arm(Armed::Any);
        let found = consumer.pop(&mut [0]).unwrap();
        let mine = found && Arm(&memory.0[word]).disarm();
        let theirs = worker.join().unwrap();
        assert!(mine != theirs, "the program: {mine}, the worker: {theirs}");
    });
}

/// A queue that rings while the worker takes doorbells is visited now or the next time, with its entry.
#[test]
fn no_doorbell_is_lost() {
    loom::model(|| {
        let shape = RingShape::new(2, 1).unwrap();
        let ring_words = shape.words();
        let memory = Memory::new(ring_words + Doorbells::words(64));
        let mut producer = Producer::new(memory.clone(), 0, shape).unwrap();
        let mut consumer = Consumer::new(memory.clone(), 0, shape).unwrap();
        let shared = memory.clone();
        let program = thread::spawn(move || {
            producer.push(&[1]).unwrap();
            producer.publish();
            Doorbells::new(&shared.0, ring_words, 64).unwrap().ring(5);
        });
        let doorbells = Doorbells::new(&memory.0, ring_words, 64).unwrap();
        let mut visits = 0;
        doorbells.take(0, &mut |_| visits += 1);
        let early = visits > 0;
        if early {
            assert!(consumer.pop(&mut [0]).unwrap(), "a doorbell follows its entry");
        }
        program.join().unwrap();
        doorbells.take(0, &mut |_| visits += 1);
        assert_eq!(visits, 1);
    });
}

/// A worker that goes to sleep sees the doorbell, or the program sees that it sleeps.
#[test]
fn no_worker_sleeps_through_a_doorbell() {
    loom::model(|| {
        let memory = Memory::new(Doorbells::words(64));
        let shared = memory.clone();
        let program = thread::spawn(move || Doorbells::new(&shared.0, 0, 64).unwrap().ring(5));
        let sleeps = Doorbells::new(&memory.0, 0, 64).unwrap().sleep();
        let woken = program.join().unwrap();
        assert!(!sleeps || woken, "the worker sleeps, and a doorbell waits");
    });
}
