//! Runs functions in threads that are pinned to CPUs.

use std::str::FromStr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};

/// CPUs of a measurement: initiator, target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cores(pub [usize; 2]);

impl FromStr for Cores {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` are not two CPUs: write them as 0,1");
        let (left, right) = text.split_once(',').ok_or_else(wrong)?;
        let cpu = |text: &str| text.trim().parse().map_err(|_| wrong());
        Ok(Self([cpu(left)?, cpu(right)?]))
    }
}

impl Cores {
    /// Pins the calling thread to the first CPU.
    ///
    /// # Errors
    /// The machine has no such CPU, or the process may not use it.
    pub fn pin_first(self) -> Result<()> {
        pin(self.0[0])
    }
}

/// Pins the calling thread to a CPU.
fn pin(cpu: usize) -> Result<()> {
    ensure!(cpu < CpuSet::MAX_CPU, "CPU {cpu}: they are numbered up to {}", CpuSet::MAX_CPU - 1);
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("cannot run on CPU {cpu}"))
}

/// Returns how often the kernel has preempted the calling thread; 0 if unknown.
#[must_use]
pub(crate) fn preemptions() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Flag that ends a measurement in both of its threads.
#[derive(Debug, Default)]
pub struct Gate(AtomicBool);

impl Gate {
    /// Returns true until [`Self::close`].
    #[inline]
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }

    /// Ends the measurement in both threads.
    pub fn close(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a function in a thread pinned to a CPU and returns its result.
///
/// # Errors
/// The CPU is not available, or the function fails.
pub(crate) fn on_core<T: Send>(cpu: usize, run: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let thread = thread::scope(|scope| scope.spawn(|| pin(cpu).and_then(|()| run())).join());
    thread.map_err(|_| anyhow!("a measuring thread panicked"))?
}

/// Runs two functions at the same time, each pinned to its CPU, and returns both results.
///
/// # Errors
/// A CPU is not available, or a function fails.
pub fn on_two_cores<A: Send, B: Send>(
    cores: Cores,
    left: impl FnOnce() -> Result<A> + Send,
    right: impl FnOnce() -> Result<B> + Send,
) -> Result<(A, B)> {
    let Cores([left_cpu, right_cpu]) = cores;
    let (start, pinned) = (Barrier::new(2), AtomicUsize::new(0));
    // Neither starts unless both can: one alone would wait for ever.
    let enter = |cpu| {
        let outcome = pin(cpu);
        pinned.fetch_add(usize::from(outcome.is_ok()), Ordering::AcqRel);
        start.wait();
        outcome?;
        ensure!(pinned.load(Ordering::Acquire) == 2, "the other thread has no CPU");
        Ok(())
    };
    thread::scope(|scope| {
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        let left = named("initiator").spawn_scoped(scope, || enter(left_cpu).and_then(|()| left()))?;
        let right = named("target").spawn_scoped(scope, || enter(right_cpu).and_then(|()| right()))?;
        let crashed = |_| anyhow!("a measuring thread panicked");
        let (left, right) = (left.join().map_err(crashed)?, right.join().map_err(crashed)?);
        match (left, right) {
            (Ok(left), Ok(right)) => Ok((left, right)),
            // Returns the cause: the other thread has ended normally.
            (Ok(_), Err(error)) | (Err(error), Ok(_)) => Err(error),
            (Err(left), Err(right)) => Err(left.context(format!("{right:#}"))),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_two_numbers() {
        assert_eq!("0,1".parse(), Ok(Cores([0, 1])));
        assert_eq!(" 2 , 7".parse(), Ok(Cores([2, 7])));
        for wrong in ["", "1", "a,b", "1,2,3", "-1,2"] {
            assert!(wrong.parse::<Cores>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn both_functions_run_and_a_failure_is_returned() {
        let gate = Gate::default();
        let wait = || {
            while gate.is_open() {
                thread::yield_now();
            }
            Ok(1)
        };
        let close = || {
            gate.close();
            Ok(2)
        };
        assert_eq!(on_two_cores(Cores([0, 0]), wait, close).unwrap(), (1, 2));
        let fails = || -> Result<()> { Err(anyhow!("no")) };
        assert!(on_two_cores(Cores([0, 0]), || Ok(()), fails).is_err());
        for none in [1023, 99_999] {
            assert!(on_two_cores(Cores([0, none]), || Ok(()), || Ok(())).is_err());
        }
    }
}
