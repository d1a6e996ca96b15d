//! Distributions of durations, counted by one thread or by several.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// Distribution of durations. The bound of each bucket is twice that of the one before, so that counting takes a few
/// instructions and no division.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; Self::BUCKETS],
    sum_ns: u64,
}

impl Histogram {
    /// Number of buckets; the last one has no bound.
    pub const BUCKETS: usize = 25;
    /// Names of the values of [`Self::visit`].
    const NAMES: [&'static str; Self::BUCKETS] = [
        "le_2^10_ns",
        "le_2^11_ns",
        "le_2^12_ns",
        "le_2^13_ns",
        "le_2^14_ns",
        "le_2^15_ns",
        "le_2^16_ns",
        "le_2^17_ns",
        "le_2^18_ns",
        "le_2^19_ns",
        "le_2^20_ns",
        "le_2^21_ns",
        "le_2^22_ns",
        "le_2^23_ns",
        "le_2^24_ns",
        "le_2^25_ns",
        "le_2^26_ns",
        "le_2^27_ns",
        "le_2^28_ns",
        "le_2^29_ns",
        "le_2^30_ns",
        "le_2^31_ns",
        "le_2^32_ns",
        "le_2^33_ns",
        "longer",
    ];
    /// Binary logarithm of the first bound in nanoseconds: about one microsecond.
    const FIRST: u32 = 10;

    /// Counts a duration in the first bucket that is long enough.
    #[inline]
    pub fn record(&mut self, duration: Duration) {
        let (at, ns) = Self::place(duration);
        let [buckets @ .., last] = &mut self.buckets;
        let bucket = buckets.get_mut(at).unwrap_or(last);
        *bucket = bucket.wrapping_add(1);
        self.sum_ns = self.sum_ns.wrapping_add(ns);
    }

    /// Returns the bucket of a duration, or a higher number than any has for the last one, and its nanoseconds.
    #[inline]
    fn place(duration: Duration) -> (usize, u64) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        // The binary logarithm, rounded up.
        let log = u64::BITS.wrapping_sub(ns.saturating_sub(1).leading_zeros());
        (log.saturating_sub(Self::FIRST) as usize, ns)
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, bucket| sum.wrapping_add(*bucket))
    }

    /// Returns the sum of the durations in nanoseconds.
    pub const fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Returns each bucket: the longest duration that it counts, `None` if there is no such bound, and the number of
    /// durations that no bucket before counts.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        let bounds = (Self::FIRST..).map(|log| Duration::from_nanos(1u64.wrapping_shl(log)));
        let last = Self::BUCKETS.saturating_sub(1);
        bounds
            .zip(&self.buckets)
            .enumerate()
            .map(move |(at, (bound, count))| ((at < last).then_some(bound), *count))
    }

    /// Calls `f(name, value)` for each bucket, and then for the sum.
    pub fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        for (name, value) in Self::NAMES.iter().zip(&self.buckets) {
            f(name, *value);
        }
        f("sum_ns", self.sum_ns);
    }

    /// Returns the histogram with the values of [`Self::visit`].
    pub fn from_values(values: impl IntoIterator<Item = u64>) -> Self {
        let (mut histogram, mut values) = (Self::default(), values.into_iter());
        for (bucket, value) in histogram.buckets.iter_mut().zip(&mut values) {
            *bucket = value;
        }
        histogram.sum_ns = values.next().unwrap_or(0);
        histogram
    }
}

/// A [`Histogram`] that several threads write, none of which waits for another.
#[derive(Debug, Default)]
pub struct SharedHistogram {
    buckets: [AtomicU64; Histogram::BUCKETS],
    sum_ns: AtomicU64,
}

impl SharedHistogram {
    /// Counts a duration in the first bucket that is long enough.
    #[inline]
    pub fn record(&self, duration: Duration) {
        let (at, ns) = Histogram::place(duration);
        let [buckets @ .., last] = &self.buckets;
        buckets.get(at).unwrap_or(last).fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Returns the durations counted so far. Of one that is being counted meanwhile, the sum may have its part and the
    /// buckets not, or the reverse.
    pub fn snapshot(&self) -> Histogram {
        let values = self.buckets.iter().chain([&self.sum_ns]);
        Histogram::from_values(values.map(|value| value.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn every_duration_is_in_the_first_bucket_that_is_long_enough() {
        for ns in [0, 1, 1023, 1024, 1025, 2048, 2049, 1 << 33, (1 << 33) + 1, u64::MAX] {
            let mut histogram = Histogram::default();
            histogram.record(Duration::from_nanos(ns));
            let (bound, count) = histogram.buckets().find(|(_, count)| *count > 0).unwrap();
            let first = histogram
                .buckets()
                .map(|(bound, _)| bound)
                .find(|bound| bound.is_none_or(|bound| Duration::from_nanos(ns) <= bound));
            assert_eq!((Some(bound), count), (first, 1), "{ns}");
            assert_eq!((histogram.count(), histogram.sum_ns()), (1, ns));
        }
        let bounds: Vec<_> = Histogram::default().buckets().map(|(bound, _)| bound).collect();
        assert_eq!(bounds.len(), Histogram::BUCKETS);
        assert_eq!(bounds[0], Some(Duration::from_nanos(1024)));
        assert_eq!(bounds[23], Some(Duration::from_nanos(1 << 33)));
        assert_eq!(bounds[24], None);
    }

    #[test]
    fn threads_share_a_histogram() {
        let (shared, mut alone) = (SharedHistogram::default(), Histogram::default());
        let durations = [0, 1025, 5_000_000, 1 << 33, (1 << 33) + 1, u64::MAX >> 8].map(Duration::from_nanos);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope
                    .spawn(|| (0..1000).for_each(|_| durations.iter().for_each(|each| shared.record(*each))));
            }
        });
        (0..4000).for_each(|_| durations.iter().for_each(|each| alone.record(*each)));
        assert_eq!(shared.snapshot(), alone);
        shared.record(Duration::MAX);
        assert_eq!(shared.snapshot().count(), 24_001);
    }

    #[test]
    fn what_is_visited_is_the_histogram() {
        let mut histogram = Histogram::default();
        for ns in [5, 5000, 5_000_000, u64::from(u32::MAX) * 100] {
            histogram.record(Duration::from_nanos(ns));
        }
        let (mut values, mut names) = (Vec::new(), Vec::new());
        histogram.visit(&mut |name, value| {
            names.push(name);
            values.push(value);
        });
        assert_eq!(Histogram::from_values(values), histogram);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Histogram::BUCKETS + 1);
    }
}
