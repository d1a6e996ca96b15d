//! Rates of counters, from one sample to the next, and their recent past.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::args::Tab;

/// Samples that a sparkline can show.
const HISTORY_MAX: usize = 240;

/// A quantity of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// The table of the object; `None` for a total.
    tab: Option<Tab>,
    /// The name or the number of the object.
    object: String,
    quantity: &'static str,
}

impl Key {
    pub(super) fn total(quantity: &'static str) -> Self {
        Self { tab: None, object: String::new(), quantity }
    }

    pub(super) fn of(tab: Tab, object: &impl ToString, quantity: &'static str) -> Self {
        Self { tab: Some(tab), object: object.to_string(), quantity }
    }
}

/// The latest value of a quantity, and those before.
#[derive(Debug, Default)]
struct Meter {
    /// The counter at the last sample; `None` for a gauge.
    counter: Option<u64>,
    history: VecDeque<f64>,
    /// The last round in which the object was there.
    round: u64,
}

impl Meter {
    fn push(&mut self, value: f64) {
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(value);
    }
}

/// The rates of all counters, and the values of all gauges.
#[derive(Debug, Default)]
pub(super) struct Rates {
    meters: HashMap<Key, Meter>,
    round: u64,
    /// Time since the last round.
    elapsed: Duration,
}

impl Rates {
    /// Begins a round: the next sample, `elapsed` after the last one.
    pub(super) fn begin(&mut self, elapsed: Duration) {
        self.round = self.round.saturating_add(1);
        self.elapsed = elapsed;
    }

    /// Ends a round: forgets objects that were not in it.
    pub(super) fn end(&mut self) {
        self.meters.retain(|_, meter| meter.round == self.round);
    }

    /// Forgets everything: another daemon counts from zero.
    pub(super) fn clear(&mut self) {
        self.meters.clear();
    }

    /// Takes the value of a counter. The first value, and one below the last one, give no rate.
    pub(super) fn count(&mut self, key: Key, value: u64) {
        let (round, seconds) = (self.round, self.elapsed.as_secs_f64());
        let meter = self.meters.entry(key).or_default();
        meter.round = round;
        match meter.counter.and_then(|before| value.checked_sub(before)) {
            Some(change) if seconds > 0.0 => meter.push(change as f64 / seconds),
            _ => meter.history.clear(),
        }
        meter.counter = Some(value);
    }

    /// Takes the value of a gauge.
    pub(super) fn gauge(&mut self, key: Key, value: f64) {
        let round = self.round;
        let meter = self.meters.entry(key).or_default();
        meter.round = round;
        meter.push(value);
    }

    /// Returns the latest rate or value; `None` before the second sample.
    pub(super) fn latest(&self, key: &Key) -> Option<f64> {
        self.meters.get(key)?.history.back().copied()
    }

    /// Returns the latest `columns` values as a sparkline, the latest at its end: each column is as high as its share
    /// of `full`, or of the highest value.
    pub(super) fn sparkline(&self, key: &Key, columns: usize, full: Option<f64>) -> String {
        const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let history = self.meters.get(key).map(|meter| &meter.history).into_iter().flatten();
        let latest: Vec<f64> = history.rev().take(columns).copied().collect();
        let full = full.unwrap_or_else(|| latest.iter().copied().fold(0.0, f64::max));
        let level = |value: &f64| {
            let share = if full > 0.0 { value / full } else { 0.0 };
            // The least value above zero is visible.
            let eighths = LEVELS.len().saturating_sub(1);
            let nth = (1..=eighths).find(|nth| share * eighths as f64 <= *nth as f64).unwrap_or(eighths);
            LEVELS.get(if *value > 0.0 { nth } else { 0 }).copied().unwrap_or(' ')
        };
        latest.iter().rev().map(level).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn counted(rates: &mut Rates, elapsed: Duration, values: &[(&str, u64)]) {
        rates.begin(elapsed);
        for (object, value) in values {
            rates.count(Key::of(Tab::Ports, object, "rx"), *value);
        }
        rates.end();
    }

    fn rate(rates: &Rates, object: &str) -> Option<f64> {
        rates.latest(&Key::of(Tab::Ports, &object, "rx"))
    }

    #[test]
    fn a_rate_is_a_change_per_second() {
        let mut rates = Rates::default();
        counted(&mut rates, Duration::ZERO, &[("p0", 1000)]);
        assert_eq!(rate(&rates, "p0"), None);
        counted(&mut rates, 2 * SECOND, &[("p0", 1500), ("p1", 7)]);
        assert_eq!((rate(&rates, "p0"), rate(&rates, "p1")), (Some(250.0), None));
        // An object that left and came back begins again.
        counted(&mut rates, SECOND, &[("p1", 8)]);
        counted(&mut rates, SECOND, &[("p0", 9000), ("p1", 8)]);
        assert_eq!((rate(&rates, "p0"), rate(&rates, "p1")), (None, Some(0.0)));
    }

    #[test]
    fn a_counter_that_falls_has_no_rate() {
        let mut rates = Rates::default();
        for (value, expected) in [(50, None), (60, Some(10.0)), (3, None), (5, Some(2.0))] {
            counted(&mut rates, SECOND, &[("p0", value)]);
            assert_eq!(rate(&rates, "p0"), expected, "{value}");
        }
    }

    #[test]
    fn a_sparkline_has_the_latest_values() {
        let mut rates = Rates::default();
        let key = Key::total("busy");
        assert_eq!(rates.sparkline(&key, 8, None), "");
        for value in [0.0, 1.0, 400.0, 800.0] {
            rates.begin(SECOND);
            rates.gauge(key.clone(), value);
        }
        assert_eq!(rates.sparkline(&key, 8, None), " ▁▄█");
        assert_eq!(rates.sparkline(&key, 2, Some(1600.0)), "▂▄");
        assert_eq!(rates.sparkline(&key, 0, None), "");
        for _ in 0..2 * HISTORY_MAX {
            rates.gauge(key.clone(), 5.0);
        }
        assert_eq!(rates.sparkline(&key, usize::MAX, None).chars().count(), HISTORY_MAX);
    }
}
