//! Rings of notifications, from several workers to one program.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use iwarp_shared_queues::AtomicU64;
use iwarp_shared_verbs::program::Notifications;
use iwarp_shared_verbs::worker::{NotificationRing, NotificationStats};
use iwarp_shared_verbs::{Content, Notification, RingShape, notification_ring, notification_ring_words};
use rdma::Message;

#[derive(Clone)]
struct Words(Arc<Vec<AtomicU64>>);

impl AsRef<[AtomicU64]> for Words {
    fn as_ref(&self) -> &[AtomicU64] {
        &self.0
    }
}

type Rings = Vec<NotificationRing<Words>>;

fn watch(rings: usize, entries: u32) -> (Words, Rings, Notifications<Words>) {
    let shape = notification_ring(entries).unwrap();
    let words = notification_ring_words(shape) * rings;
    let memory = Words(Arc::new((0..words).map(|_| AtomicU64::new(0)).collect()));
    let workers = (0..rings).map(|ring| NotificationRing::new(memory.clone(), ring, shape).unwrap());
    let program = Notifications::new(memory.clone(), rings, shape).unwrap();
    (memory.clone(), workers.collect(), program)
}

fn immediate(number: u64) -> rdma::Notification<'static> {
    let message = Message::Immediate(number.to_be_bytes());
    rdma::Notification { message, solicited: false, written: number }
}

fn number(notification: Option<Notification>) -> Option<u64> {
    notification.map(|notification| match notification.content {
        Content::Immediate(data) => u64::from_be_bytes(data),
        Content::Send(bytes) => panic!("{bytes:?}"),
    })
}

#[test]
fn each_ring_keeps_its_order_and_none_is_left_out() {
    for rings in [1, 2, 3, 8] {
        let (_, mut workers, mut program) = watch(rings, 16);
        for round in 0..5_u64 {
            for (ring, worker) in (0..).zip(&mut workers) {
                assert!(!worker.push(&immediate(ring << 32 | round)), "nobody waits");
            }
        }
        let mut last = vec![None; rings];
        while let Some(number) = number(program.poll()) {
            let ring = usize::try_from(number >> 32).unwrap();
            let round = number & 0xffff_ffff;
            assert_eq!(last[ring].replace(round), round.checked_sub(1));
        }
        assert_eq!(last, vec![Some(4); rings]);
        assert_eq!(program.lost(), 0);
    }
}

#[test]
fn a_program_that_does_not_poll_loses_the_newest_and_learns_how_many() {
    for entries in [1_u32, 2, 256] {
        let (_, mut workers, mut program) = watch(2, entries);
        let fit = u64::from(entries);
        for at in 0..fit + 10 {
            workers[1].push(&immediate(at));
        }
        assert_eq!(workers[1].stats(), NotificationStats { delivered: fit, lost: 10 });
        assert_eq!((workers[0].stats(), program.lost()), (NotificationStats::default(), 10));
        for at in 0..fit {
            assert_eq!(number(program.poll()), Some(at));
        }
        assert_eq!(program.poll(), None);
        workers[1].push(&immediate(77));
        assert_eq!(number(program.poll()), Some(77), "there is room again");
    }
}

#[test]
fn an_armed_program_is_woken_once_by_each_worker() {
    let (_, mut workers, mut program) = watch(2, 8);
    assert!(!program.is_armed(), "a new watch is not armed");
    program.arm();
    assert!(program.is_armed());
    assert_eq!([workers[0].push(&immediate(1)), workers[0].push(&immediate(2))], [true, false]);
    assert!(!program.is_armed());
    assert!(workers[1].push(&immediate(3)));
    assert_eq!(std::iter::from_fn(|| number(program.poll())).count(), 3);
    program.arm();
    assert!(!program.is_gone() && workers[0].close());
    assert!(!program.is_gone(), "one worker still has the region");
    assert!(workers[1].close() && program.is_gone());
}

/// A program can write its own watch only. Whatever it writes, the worker loses notifications at most.
#[test]
fn a_corrupt_ring_takes_no_more_notifications() {
    for word in 0..32 {
        for value in [1, 9, u64::MAX] {
            let (memory, mut workers, _) = watch(2, 4);
            for stored in memory.as_ref().iter().skip(word).step_by(32) {
                stored.store(value, Ordering::Relaxed);
            }
            for at in 0..20 {
                workers[0].push(&immediate(at));
            }
            let NotificationStats { delivered, lost } = workers[0].stats();
            assert!(delivered + lost == 20 && delivered <= 13, "{delivered} delivered");
        }
    }
}

#[test]
fn memory_that_is_too_short_is_refused() {
    let shape: RingShape = notification_ring(4).unwrap();
    let words = notification_ring_words(shape) * 2;
    let memory = Words(Arc::new((1..words).map(|_| AtomicU64::new(0)).collect()));
    assert!(Notifications::new(memory.clone(), 2, shape).is_none());
    assert!(Notifications::new(memory.clone(), usize::MAX, shape).is_none());
    assert!(NotificationRing::new(memory.clone(), 1, shape).is_none());
    assert!(NotificationRing::new(memory.clone(), usize::MAX, shape).is_none());
    assert!(NotificationRing::new(memory, 0, shape).is_some());
}
