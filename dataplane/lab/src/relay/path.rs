//! One connection's path in one direction: a transmitter behind a queue, and a wire.

use std::time::{Duration, Instant};

use crate::random::Random;

/// What a path is like.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// What the transmitter sends; 0 for no limit.
    pub(super) bytes_per_second: f64,
    /// How long the wire is.
    pub(super) delay: Duration,
    /// What waits for the transmitter at most, bytes.
    pub(super) queue_bytes: u64,
    /// Share of the frames that the wire loses.
    pub(super) loss: f64,
    /// Share of the frames that come late.
    pub(super) reorder: f64,
    /// How late: at least, at most.
    pub(super) reorder_by: (Duration, Duration),
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The queue was full.
    Dropped,
    /// The wire lost it.
    Lost,
    /// It comes out of the wire.
    Arrives { due: Instant, reordered: bool },
}

/// A path in use.
#[derive(Debug)]
pub(super) struct Path {
    /// When the transmitter will have sent what waits.
    idle_at: Instant,
    random: Random,
}

impl Path {
    pub(super) fn new(now: Instant, seed: u64, stream: u64) -> Self {
        Self { idle_at: now, random: Random::new(seed, stream) }
    }

    /// Decides the fate of a frame of so many bytes.
    pub(super) fn take(&mut self, shape: &Shape, now: Instant, bytes: usize) -> Fate {
        let waiting = self.idle_at.saturating_duration_since(now);
        if shape.bytes_per_second > 0.0 {
            let waiting_bytes = waiting.as_secs_f64() * shape.bytes_per_second;
            if waiting_bytes + bytes as f64 > shape.queue_bytes as f64 {
                return Fate::Dropped;
            }
            self.idle_at = now + waiting + Duration::from_secs_f64(bytes as f64 / shape.bytes_per_second);
        } else {
            self.idle_at = now;
        }
        // Always three throws, so that a frame's fate does not depend on that of the ones before it.
        let [lost, late, how_late] = [self.random.share(), self.random.share(), self.random.share()];
        if lost < shape.loss {
            return Fate::Lost;
        }
        let reordered = late < shape.reorder;
        let (least, most) = shape.reorder_by;
        let by = least + most.saturating_sub(least).mul_f64(how_late);
        let due = self.idle_at + shape.delay + if reordered { by } else { Duration::ZERO };
        Fate::Arrives { due, reordered }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Shape = Shape {
        bytes_per_second: 0.0,
        delay: Duration::from_millis(10),
        queue_bytes: u64::MAX,
        loss: 0.0,
        reorder: 0.0,
        reorder_by: (Duration::ZERO, Duration::ZERO),
    };

    fn due_ms(fate: Fate, start: Instant) -> Option<u128> {
        match fate {
            Fate::Arrives { due, .. } => Some((due - start).as_millis()),
            Fate::Dropped | Fate::Lost => None,
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
        assert_eq!(path.take(&shape, now, 1000), Fate::Dropped);
        let later = now + Duration::from_millis(1);
        assert!(due_ms(path.take(&shape, later, 1000), later).is_some());
    }

    #[test]
    fn losses_and_late_frames_are_as_many_as_asked_and_the_seed_determines_which() {
        let shape = Shape {
            loss: 0.01,
            reorder: 0.02,
            reorder_by: (Duration::from_millis(5), Duration::from_millis(10)),
            ..PLAIN
        };
        let now = Instant::now();
        let fates = |stream| {
            let mut path = Path::new(now, 5, stream);
            (0..100_000).map(|_| path.take(&shape, now, 1500)).collect::<Vec<_>>()
        };
        let all = fates(3);
        let lost = all.iter().filter(|fate| **fate == Fate::Lost).count();
        let late: Vec<_> =
            all.iter().filter(|fate| matches!(fate, Fate::Arrives { reordered: true, .. })).collect();
        assert!((900..1100).contains(&lost), "{lost} lost");
        assert!((1850..2150).contains(&late.len()), "{} late", late.len());
        assert!(late.iter().all(|fate| due_ms(**fate, now).is_some_and(|ms| (15..=20).contains(&ms))));
        assert!(all == fates(3) && all != fates(4));
    }
}
