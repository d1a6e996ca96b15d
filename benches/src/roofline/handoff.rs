//! Hand-off: moves data from a region on one core to a region on another without a protocol: one copy into a buffer,
//! a ring, one copy out of it. There are no headers, checksums or acknowledgments. The bandwidth benchmarks use it as
//! baseline.

use anyhow::Result;
use dataplane::dpdk::BURST;
use iwarp_engine::memory::{Pages, RegionMemory};
use rtrb::{Consumer, Producer, RingBuffer};
use serde::Serialize;

use crate::{Cores, Gate, Stopwatch, bandwidth_gbps, median, on_two_cores};

/// Bytes of a packet buffer before its payload: DPDK's headroom, and the headers of a frame.
const BUFFER_OVERHEAD: usize = 128 + 18 + 20 + 32 + 20;

type Buffer = Box<[u8]>;

/// Result of one payload size.
#[derive(Clone, Debug, Serialize)]
pub struct HandoffRow {
    /// Bytes copied by one operation.
    pub payload: usize,
    /// Bytes of the region on either side.
    pub region_bytes: u64,
    /// True if the regions are on hugepages.
    pub hugepages: bool,
    /// Median of the runs, Gbit/s.
    pub gbps: f64,
    /// Slowest and fastest run, Gbit/s.
    pub gbps_spread: [f64; 2],
    /// Payloads per microsecond, of the median.
    pub frames_per_us: f64,
}

/// Parameters of a hand-off.
#[derive(Clone, Copy, Debug)]
pub struct Handoff {
    /// CPUs of sender and receiver.
    pub cores: Cores,
    /// Bytes of the region on either side.
    pub region_bytes: u64,
    /// Buffers that circulate between the cores.
    pub buffers: usize,
    /// Seconds of a run, after a fifth of that to warm up.
    pub seconds: f64,
    /// Number of runs; the median counts.
    pub runs: usize,
}

/// A hand-off with its regions.
#[derive(Debug)]
pub struct Prepared {
    handoff: Handoff,
    regions: [RegionMemory; 2],
}

impl Handoff {
    /// Makes the regions.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn prepare(self) -> Result<Prepared> {
        let regions = [region(self.region_bytes)?, region(self.region_bytes)?];
        Ok(Prepared { handoff: self, regions })
    }

    /// Measures one payload size.
    ///
    /// # Errors
    /// There is not enough memory, or a CPU is not available.
    pub fn measure(&self, payload: usize) -> Result<HandoffRow> {
        let prepared = self.prepare()?;
        let mut rates =
            (0..self.runs.max(1)).map(|_| prepared.once(payload)).collect::<Result<Vec<f64>>>()?;
        let gbps = median(&rates);
        rates.sort_by(f64::total_cmp);
        Ok(HandoffRow {
            payload,
            region_bytes: self.region_bytes,
            hugepages: prepared.regions.iter().all(RegionMemory::is_huge),
            gbps,
            gbps_spread: [rates.first(), rates.last()].map(|rate| rate.copied().unwrap_or(0.0)),
            frames_per_us: gbps * 1e9 / 8.0 / payload as f64 / 1e6,
        })
    }
}

impl Prepared {
    /// Measures one run; returns Gbit/s.
    ///
    /// # Errors
    /// A CPU is not available.
    pub fn once(&self, payload: usize) -> Result<f64> {
        let Self { handoff: Handoff { buffers, cores, seconds, .. }, regions: [from, to] } = self;
        let (filled, arrived) = RingBuffer::new(*buffers);
        let (mut emptied, returned) = RingBuffer::new(*buffers);
        for _ in 0..*buffers {
            let buffer = vec![0; payload + BUFFER_OVERHEAD].into_boxed_slice();
            emptied.push(buffer).map_err(|_| anyhow::anyhow!("the ring is as long as there are buffers"))?;
        }
        let gate = Gate::default();
        let ((), gbps) = on_two_cores(
            *cores,
            || {
                send(&gate, from, payload, filled, returned);
                Ok(())
            },
            || Ok(receive(&gate, to, payload, *seconds, arrived, emptied)),
        )?;
        Ok(gbps)
    }
}

/// Makes a region on hugepages, or on ordinary pages if there are not enough.
fn region(bytes: u64) -> Result<RegionMemory> {
    let huge = RegionMemory::new("roofline", bytes, Pages::Huge);
    Ok(huge.or_else(|_| RegionMemory::new("roofline", bytes, Pages::Ordinary))?)
}

/// Returns the offset of the next payload in a region that is used as a ring.
fn advance(offset: &mut u64, payload: usize, region: &RegionMemory) -> u64 {
    let at = *offset;
    let next = at + payload as u64;
    *offset = if next + payload as u64 <= region.bytes() { next } else { 0 };
    at
}

fn send(
    gate: &Gate,
    from: &RegionMemory,
    payload: usize,
    mut filled: Producer<Buffer>,
    mut returned: Consumer<Buffer>,
) {
    let mut offset = 0;
    while gate.is_open() {
        let count = returned.slots().min(BURST);
        let Ok(buffers) = returned.read_chunk(count) else { continue };
        let Ok(slots) = filled.write_chunk_uninit(count) else { continue };
        slots.fill_from_iter(buffers.into_iter().map(|mut buffer| {
            if let Some(room) = buffer.get_mut(BUFFER_OVERHEAD..) {
                let _ = from.read(advance(&mut offset, payload, from), room);
            }
            buffer
        }));
    }
}

/// Receives until the time is over; returns Gbit/s after the first fifth of the time.
fn receive(
    gate: &Gate,
    to: &RegionMemory,
    payload: usize,
    seconds: f64,
    mut arrived: Consumer<Buffer>,
    mut emptied: Producer<Buffer>,
) -> f64 {
    let (mut offset, mut bytes) = (0, 0_u64);
    let (watch, warm_up) = (Stopwatch::start(), seconds / 5.0);
    let mut since: Option<(f64, u64)> = None;
    loop {
        let count = arrived.slots().min(BURST);
        if let Ok(buffers) = arrived.read_chunk(count)
            && let Ok(slots) = emptied.write_chunk_uninit(count)
        {
            slots.fill_from_iter(buffers.into_iter().inspect(|buffer| {
                if let Some(frame) = buffer.get(BUFFER_OVERHEAD..) {
                    let _ = to.write(advance(&mut offset, payload, to), frame);
                    bytes = bytes.wrapping_add(frame.len() as u64);
                }
            }));
        }
        let now = watch.seconds();
        match since {
            None if now >= warm_up => since = Some((now, bytes)),
            Some((start, before)) if now >= warm_up + seconds => {
                gate.close();
                return bandwidth_gbps(bytes.wrapping_sub(before), now - start);
            }
            None | Some(_) => {}
        }
    }
}
