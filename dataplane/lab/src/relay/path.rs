//! Path of one connection in one direction: a queue, a transmitter, and a link with delay, loss and reordering.

use std::time::{Duration, Instant};

use crate::random::Random;

/// Properties of a path.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// Rate of the transmitter; 0 for unlimited.
    pub(super) bytes_per_second: f64,
    /// Propagation delay of the link.
    pub(super) delay: Duration,
    /// Capacity of the transmit queue, bytes.
    pub(super) queue_bytes: u64,
    /// Bytes in the transmit queue from which on a further frame meets congestion.
    pub(super) mark_bytes: u64,
    /// Share of frames lost.
    pub(super) loss: f64,
    /// Share of frames reordered.
    pub(super) reorder: f64,
    /// Additional delay of reordered frames: minimum and maximum.
    pub(super) reorder_by: (Duration, Duration),
}

/// Treatment of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Dropped because the queue was full.
    Dropped,
    /// Lost on the link.
    Lost,
    /// Delivered at a time; `congested` if the queue was longer than the threshold for marks.
    Delivered { due: Instant, reordered: bool, congested: bool },
}

/// State of a path.
#[derive(Debug)]
pub(super) struct Path {
    /// Time at which the transmitter will have emptied the queue.
    idle_at: Instant,
    random: Random,
}

impl Path {
    pub(super) fn new(now: Instant, seed: u64, stream: u64) -> Self {
        Self { idle_at: now, random: Random::new(seed, stream) }
    }

    /// Decides the treatment of a frame of `bytes` bytes.
    pub(super) fn take(&mut self, shape: &Shape, now: Instant, bytes: usize) -> Outcome {
        let waiting = self.idle_at.saturating_duration_since(now);
        let mut congested = false;
        if shape.bytes_per_second > 0.0 {
            let waiting_bytes = waiting.as_secs_f64() * shape.bytes_per_second;
            if waiting_bytes + bytes as f64 > shape.queue_bytes as f64 {
                return Outcome::Dropped;
            }
            congested = waiting_bytes >= shape.mark_bytes as f64;
            self.idle_at = now + waiting + Duration::from_secs_f64(bytes as f64 / shape.bytes_per_second);
        } else {
            self.idle_at = now;
        }
        // Always draws three numbers, so that the treatment of a frame does not depend on earlier ones.
        let [lost, late, how_late] = [self.random.share(), self.random.share(), self.random.share()];
        if lost < shape.loss {
            return Outcome::Lost;
        }
        let reordered = late < shape.reorder;
        let (least, most) = shape.reorder_by;
        let by = least + most.saturating_sub(least).mul_f64(how_late);
        let due = self.idle_at + shape.delay + if reordered { by } else { Duration::ZERO };
        Outcome::Delivered { due, reordered, congested }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Shape = Shape {
        bytes_per_second: 0.0,
        delay: Duration::from_millis(10),
        queue_bytes: u64::MAX,
        mark_bytes: u64::MAX,
        loss: 0.0,
        reorder: 0.0,
        reorder_by: (Duration::ZERO, Duration::ZERO),
    };

    fn due_ms(fate: Outcome, start: Instant) -> Option<u128> {
        match fate {
            Outcome::Delivered { due, .. } => Some((due - start).as_millis()),
            Outcome::Dropped | Outcome::Lost => None,
        }
    }

    #[test]
    fn a_wire_without_a_rate_only_delays() {
        let now = Instant::now();
        let mut path = Path::new(now, 1, 1);
        for _ in 0..1000 {
            assert_eq!(due_ms(path.take(&PLAIN, now, 1500), now), Some(10));
        }
    }

    #[test]
    fn the_transmitter_sends_one_frame_after_the_other() {
        // 1000 bytes take 1 ms.
        let shape = Shape { bytes_per_second: 1e6, ..PLAIN };
        let now = Instant::now();
        let mut path = Path::new(now, 1, 1);
        let dues: Vec<_> = (0..4).map(|_| due_ms(path.take(&shape, now, 1000), now)).collect();
        assert_eq!(dues, [Some(11), Some(12), Some(13), Some(14)]);
        let later = now + Duration::from_millis(100);
        assert_eq!(due_ms(path.take(&shape, later, 1000), later), Some(11));
    }

    #[test]
    fn a_full_queue_drops_the_newest() {
        let shape = Shape { bytes_per_second: 1e6, queue_bytes: 3000, ..PLAIN };
        let now = Instant::now();
        let mut path = Path::new(now, 1, 1);
        for _ in 0..3 {
            assert!(due_ms(path.take(&shape, now, 1000), now).is_some());
        }
        assert_eq!(path.take(&shape, now, 1000), Outcome::Dropped);
        let later = now + Duration::from_millis(1);
        assert!(due_ms(path.take(&shape, later, 1000), later).is_some());
    }

    #[test]
    fn a_queue_is_congested_from_the_threshold_on() {
        let shape = Shape { bytes_per_second: 1e6, queue_bytes: 5000, mark_bytes: 2000, ..PLAIN };
        let now = Instant::now();
        let mut path = Path::new(now, 1, 1);
        let is_congested = |path: &mut Path, now| match path.take(&shape, now, 1000) {
            Outcome::Delivered { congested, .. } => Some(congested),
            Outcome::Dropped | Outcome::Lost => None,
        };
        let seen: Vec<_> = (0..6).map(|_| is_congested(&mut path, now)).collect();
        assert_eq!(seen, [Some(false), Some(false), Some(true), Some(true), Some(true), None]);
        // 1500 bytes are left.
        let later = now + Duration::from_micros(3500);
        assert_eq!(is_congested(&mut path, later), Some(false));
        assert_eq!(is_congested(&mut path, later), Some(true));
    }

    #[test]
    fn losses_and_reordering_match_their_rates_and_the_seed() {
        let shape = Shape {
            loss: 0.01,
            reorder: 0.02,
            reorder_by: (Duration::from_millis(5), Duration::from_millis(10)),
            ..PLAIN
        };
        let now = Instant::now();
        let stats = |stream| {
            let mut path = Path::new(now, 5, stream);
            (0..100_000).map(|_| path.take(&shape, now, 1500)).collect::<Vec<_>>()
        };
        let all = stats(3);
        let lost = all.iter().filter(|fate| **fate == Outcome::Lost).count();
        let late: Vec<_> =
            all.iter().filter(|fate| matches!(fate, Outcome::Delivered { reordered: true, .. })).collect();
        assert!((900..1100).contains(&lost), "{lost} lost");
        assert!((1850..2150).contains(&late.len()), "{} late", late.len());
        assert!(late.iter().all(|fate| due_ms(**fate, now).is_some_and(|ms| (15..=20).contains(&ms))));
        assert!(all == stats(3) && all != stats(4));
    }
}
