//! Measures the round trip of one frame over a pair of ring ports, without a protocol, and how often the kernel or the
//! hypervisor interrupts either core. The roofline and the latency benchmarks call it.

use std::hint::black_box;
use std::io::{self, Write};
use std::sync::Arc;

use anyhow::{Context, Result};
use arrayvec::ArrayVec;
use dataplane::dpdk::{BURST, Eal, Mbuf, MbufPool, Mempool, RegisteredThread, TxBatch};
use dataplane::port::{Port, PortQueues, PortSpec, RxQueue, TxQueue};
use hdrhistogram::Histogram;
use iwarp_config::Driver;
use iwarp_engine::Clock;
use serde::Serialize;
use tcp_stack::{Buf, BufClass, BufPool, TxFrame, TxOffload};

use crate::verbs::few_buffers;
use crate::{Cores, Gate, on_two_cores};

/// Bytes of the frame: those of a 64-byte RDMA Write, with Ethernet, IP and TCP headers, and the FPDU.
const FRAME: usize = 66 + 84;
/// Largest value of the histogram of round trips, nanoseconds.
pub(crate) const HISTOGRAM_MAX_NS: u64 = 10_000_000_000;
/// Thresholds of counted interruptions, microseconds.
const INTERRUPTION_BOUNDS_US: [u64; 2] = [20, 50];

/// Distribution of the round trips.
#[derive(Clone, Debug, Serialize)]
pub struct RoundTripRow {
    /// Bytes of the frame.
    pub bytes: usize,
    /// Number of round trips.
    pub samples: u64,
    /// Shortest round trip, nanoseconds.
    pub min_ns: u64,
    /// Median round trip, in nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile of the round trips, nanoseconds.
    pub p99_ns: u64,
    /// 99.9th percentile of the round trips, nanoseconds.
    pub p99_9_ns: u64,
}

impl RoundTripRow {
    /// Writes a table of one row.
    ///
    /// # Errors
    /// Writing to `out` fails.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\nround trip of one frame over the same rings, no protocol, microseconds")?;
        writeln!(
            out,
            "{:>8} {:>12} {:>8} {:>9} {:>8} {:>8}",
            "#bytes", "#iterations", "t_min", "t_typical", "99%", "99.9%"
        )?;
        let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        let [min, p50, p99, p99_9] = [self.min_ns, self.p50_ns, self.p99_ns, self.p99_9_ns].map(us);
        let (bytes, samples) = (self.bytes, self.samples);
        writeln!(out, "{bytes:>8} {samples:>12} {min:>8.2} {p50:>9.2} {p99:>8.2} {p99_9:>8.2}")
    }
}

/// Interruptions of a loop that only reads the clock.
#[derive(Clone, Debug, Serialize)]
pub struct InterruptionsRow {
    /// Number of the CPU.
    pub cpu: usize,
    /// Interruptions per second longer than five median round trips.
    pub over_5_p50_per_s: f64,
    /// Interruptions per second longer than 20 µs.
    pub over_20_us_per_s: f64,
    /// Interruptions per second longer than 50 µs.
    pub over_50_us_per_s: f64,
}

/// A ring port with its queues and buffers.
struct RingEnd {
    rx: RxQueue,
    tx: TxQueue,
    pool: MbufPool,
    batch: TxBatch,
    received: ArrayVec<Mbuf, BURST>,
    _port: Port,
}

impl RingEnd {
    fn pair(eal: &Eal) -> Result<[Self; 2]> {
        let spec = PortSpec::new("round-trip", Driver::Ring);
        let pools = [[few_buffers(eal, spec.mtu)?], [few_buffers(eal, spec.mtu)?]];
        let [left_pools, right_pools] = &pools;
        let ports = Port::open_pair(eal, [&spec, &spec], [left_pools, right_pools])?;
        let [left, right] = ports.map(|(port, pairs)| (port, pairs.into_iter().next()));
        let end = |(port, pair): (Port, Option<PortQueues>), [pool]: &[Arc<Mempool>; 1]| -> Result<Self> {
            let PortQueues { rx, tx } = pair.context("the port has no queue")?;
            let pool = MbufPool::new(Arc::clone(pool), 0);
            Ok(Self { rx, tx, pool, batch: TxBatch::new(), received: ArrayVec::new(), _port: port })
        };
        Ok([end(left, left_pools)?, end(right, right_pools)?])
    }

    /// Writes the frame and transmits it.
    fn send(&mut self, mut frame: Mbuf, fill: u8) -> Result<()> {
        frame.bytes_mut().context("the buffer is shared")?.fill(fill);
        let sent = self.batch.push(TxFrame { buf: frame, offload: TxOffload::default() });
        sent.map_err(|_| ()).ok().context("the batch is full")?;
        while !self.batch.is_empty() {
            self.tx.burst(&mut self.batch);
        }
        Ok(())
    }

    /// Waits for the frame and reads it; `None` once either thread has closed the gate.
    fn receive(&mut self, gate: &Gate) -> Option<Mbuf> {
        while gate.is_open() {
            self.rx.burst(&mut self.received);
            if let Some(frame) = self.received.pop() {
                black_box(frame.bytes().iter().fold(0, |sum: u64, byte| sum.wrapping_add((*byte).into())));
                return Some(frame);
            }
        }
        None
    }
}

/// Measures round trips for `seconds`, after a warm-up of a fifth of that.
///
/// # Errors
/// There is not enough memory, or a CPU is not available.
pub(crate) fn round_trips(eal: &Eal, cores: Cores, seconds: f64) -> Result<RoundTripRow> {
    let [mut initiator, mut target] = RingEnd::pair(eal)?;
    let gate = Gate::default();
    let (histogram, ()) = on_two_cores(
        cores,
        || {
            let _closes = CloseAtEnd(&gate);
            let _registered = RegisteredThread::new(eal)?;
            ping_pong(&mut initiator, &gate, seconds)
        },
        || {
            let _closes = CloseAtEnd(&gate);
            let _registered = RegisteredThread::new(eal)?;
            while let Some(frame) = target.receive(&gate) {
                target.send(frame, 0x5a)?;
            }
            Ok(())
        },
    )?;
    let at = |quantile| histogram.value_at_quantile(quantile);
    Ok(RoundTripRow {
        bytes: FRAME,
        samples: histogram.len(),
        min_ns: histogram.min(),
        p50_ns: at(0.5),
        p99_ns: at(0.99),
        p99_9_ns: at(0.999),
    })
}

/// Closes the gate when its thread ends, for whatever reason, so that the other thread does not wait forever.
struct CloseAtEnd<'a>(&'a Gate);

impl Drop for CloseAtEnd<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn ping_pong(end: &mut RingEnd, gate: &Gate, seconds: f64) -> Result<Histogram<u64>> {
    let mut histogram = Histogram::new_with_bounds(1, HISTOGRAM_MAX_NS, 3)?;
    let mut frame = end.pool.alloc(BufClass::Data).context("the pool has no buffer")?;
    frame.append(FRAME).context("the frame does not fit into a buffer")?;
    let (clock, warm_up) = (Clock::start(), seconds / 5.0);
    loop {
        let began = clock.now().as_nanos();
        end.send(frame, 0xa5)?;
        frame = end.receive(gate).context("the other thread has failed")?;
        let ended = clock.now().as_nanos();
        let since_start = seconds_of(ended);
        if since_start >= warm_up {
            histogram.saturating_record(ended.saturating_sub(began));
        }
        if since_start >= warm_up + seconds {
            return Ok(histogram);
        }
    }
}

fn seconds_of(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// Counts interruptions of both cores for this number of seconds.
///
/// # Errors
/// A CPU is not available.
pub(crate) fn interruptions(cores: Cores, seconds: f64, p50_ns: u64) -> Result<[InterruptionsRow; 2]> {
    let bounds =
        [p50_ns.saturating_mul(5), INTERRUPTION_BOUNDS_US[0] * 1000, INTERRUPTION_BOUNDS_US[1] * 1000];
    let watch = || Ok(gaps_per_second(seconds, bounds));
    let (left, right) = on_two_cores(cores, watch, watch)?;
    let Cores([left_cpu, right_cpu]) = cores;
    let row = |cpu, [over_5_p50_per_s, over_20_us_per_s, over_50_us_per_s]: [f64; 3]| InterruptionsRow {
        cpu,
        over_5_p50_per_s,
        over_20_us_per_s,
        over_50_us_per_s,
    };
    Ok([row(left_cpu, left), row(right_cpu, right)])
}

/// Returns how often per second two readings of the clock were further apart than each bound, nanoseconds.
fn gaps_per_second(seconds: f64, bounds: [u64; 3]) -> [f64; 3] {
    let (clock, mut counts) = (Clock::start(), [0_u64; 3]);
    let mut last = clock.now().as_nanos();
    while seconds_of(last) < seconds {
        let now = clock.now().as_nanos();
        let apart = now.saturating_sub(last);
        for (count, bound) in counts.iter_mut().zip(bounds) {
            *count += u64::from(apart > bound);
        }
        last = now;
    }
    counts.map(|count| count as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::gaps_per_second;

    #[test]
    fn every_reading_exceeds_a_bound_of_zero_and_none_the_largest() {
        let [always, sometimes, never] = gaps_per_second(0.02, [0, 1000, u64::MAX]);
        assert!(always > 0.0 && always >= sometimes, "{always} {sometimes}");
        assert_eq!(never, 0.0);
    }
}
