//! Bursts of drops: rates of the counters of drops and refusals, sampled once per second.

use super::Event;

/// Samples below the limit after which a burst has ended.
const QUIET_SAMPLES: u64 = 10;

/// Rates of all counters of drops.
#[derive(Debug)]
pub(crate) struct DropBursts {
    /// Drops within a second that are a burst.
    limit: u64,
    counters: Vec<Counter>,
}

/// State of one counter.
#[derive(Debug)]
struct Counter {
    layer: String,
    reason: String,
    value: u64,
    burst: Option<Burst>,
}

/// A burst that has not ended.
#[derive(Clone, Copy, Debug)]
struct Burst {
    drops: u64,
    samples: u64,
    /// Samples below the limit since the last one above.
    quiet: u64,
}

impl DropBursts {
    /// Creates rates without a sample. `limit` drops of one reason within a second are a burst.
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, counters: Vec::new() }
    }

    /// Sets the drops of one reason within a second that are a burst.
    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Takes the sample of one second, a value for each layer and reason in an order that never changes. Returns the
    /// bursts that begin and end.
    pub(crate) fn sample<'a>(&mut self, rows: impl Iterator<Item = (&'a str, &'a str, u64)>) -> Vec<Event> {
        let mut events = Vec::new();
        for (at, (layer, reason, value)) in rows.enumerate() {
            match self.counters.get_mut(at) {
                Some(counter) => events.extend(counter.sample(value, self.limit)),
                None => {
                    let (layer, reason) = (layer.to_owned(), reason.to_owned());
                    self.counters.push(Counter { layer, reason, value, burst: None });
                }
            }
        }
        events
    }
}

impl Counter {
    fn sample(&mut self, value: u64, limit: u64) -> Option<Event> {
        let drops = value.wrapping_sub(std::mem::replace(&mut self.value, value));
        let (layer, reason) = (self.layer.clone(), self.reason.clone());
        let Some(burst) = &mut self.burst else {
            if drops < limit {
                return None;
            }
            self.burst = Some(Burst { drops, samples: 1, quiet: 0 });
            return Some(Event::DropBurst { layer, reason, drops_per_s: drops });
        };
        burst.drops = burst.drops.saturating_add(drops);
        burst.samples = burst.samples.saturating_add(1);
        burst.quiet = if drops < limit { burst.quiet.saturating_add(1) } else { 0 };
        if burst.quiet < QUIET_SAMPLES {
            return None;
        }
        let (drops, seconds) = (burst.drops, burst.samples.saturating_sub(QUIET_SAMPLES));
        self.burst = None;
        Some(Event::DropBurstEnded { layer, reason, drops, seconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples one counter, and returns the names of the events with the number that each carries.
    fn events(bursts: &mut DropBursts, values: &[u64]) -> Vec<(&'static str, u64)> {
        let sample = |value: &u64| bursts.sample([("tcp", "backlog", *value)].into_iter());
        let number = |event: Event| match event {
            Event::DropBurst { drops_per_s, .. } => ("begins", drops_per_s),
            Event::DropBurstEnded { drops, seconds, .. } => ("ends", drops * 1000 + seconds),
            _ => ("other", 0),
        };
        values.iter().flat_map(sample).map(number).collect()
    }

    #[test]
    fn a_burst_is_reported_when_it_begins_and_when_it_has_ended() {
        let mut bursts = DropBursts::new(100);
        // Drops before the first sample are no burst.
        assert_eq!(events(&mut bursts, &[5000, 5099, 5198]), []);
        assert_eq!(events(&mut bursts, &[5298]), [("begins", 100)]);
        assert_eq!(events(&mut bursts, &[5498, 5498, 5698]), [], "a pause of a second does not end it");
        assert_eq!(events(&mut bursts, &[5699; 9]), []);
        assert_eq!(events(&mut bursts, &[5699]), [("ends", 501_004)]);
        assert_eq!(events(&mut bursts, &[5699, 5799]), [("begins", 100)], "the next one");
    }

    #[test]
    fn each_reason_has_its_own_bursts() {
        let mut bursts = DropBursts::new(10);
        let rows = |a, b| [("ip", "short", a), ("tcp", "short", b)].into_iter();
        assert!(bursts.sample(rows(0, 0)).is_empty());
        assert_eq!(bursts.sample(rows(9, 10)).len(), 1);
        assert_eq!(bursts.sample(rows(19, 20)).len(), 1);
    }
}
