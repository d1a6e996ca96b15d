//! `tcp-rx`: bulk receive of full segments of one connection, in bursts, each copied once into a region.

use serde::Serialize;
use tcp_stack::{Buf, Event, RxFrame};

use super::frames::Frame;
use super::lab::{Lab, MSS, fetch};
use super::{BURST, Cost, TcpError, Watch};

/// Command-line flags of `tcp-rx`.
#[derive(Clone, Copy, Debug, clap::Args, Serialize)]
pub struct RxOptions {
    /// Segments per lap, in frames of 2 KiB, built before it is timed; by default more than L2 holds
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u32).range(32..=1 << 20))]
    pub frames: u32,
    /// Region that payload is copied to, KiB
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(2..=4 << 20))]
    pub region_kib: u32,
    /// Timed laps; the median counts
    #[arg(long, default_value_t = 101, value_parser = clap::value_parser!(u32).range(1..))]
    pub laps: u32,
}

impl Default for RxOptions {
    fn default() -> Self {
        Self { frames: 8192, region_kib: 4096, laps: 101 }
    }
}

/// The result of `tcp-rx`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RxReport {
    /// Payload of a segment, bytes.
    pub payload: usize,
    /// Number of frames per lap.
    pub frames: u32,
    /// Size of the region, KiB.
    pub region_kib: u32,
    /// Cost of a segment, from its frame to its payload in the region, with its share of an acknowledgment.
    pub segment: Cost,
    /// Cost of the copy alone, of the same payloads from the same frames to the same region, before each lap.
    pub copy: Cost,
    /// Bandwidth of the payload, Gbit/s.
    pub gbit_s: f64,
    /// Segments per acknowledgment sent.
    pub segments_per_ack: f64,
}

/// Prefetch functions of a worker.
#[derive(Clone, Copy, Debug)]
pub struct Hints<R, W> {
    /// Prefetches bytes for reading.
    pub read_soon: R,
    /// Prefetches bytes for writing.
    pub write_soon: W,
}

/// Destination of the payload, used as a ring.
#[derive(Debug)]
struct Region {
    bytes: Vec<u8>,
    at: usize,
}

impl Region {
    /// Copies a payload, and prefetches the room for the next one.
    #[inline]
    fn place(&mut self, payload: &[u8], write_soon: impl Fn(&[u8])) {
        let end = self.at.wrapping_add(payload.len());
        if let Some(to) = self.bytes.get_mut(self.at..end) {
            to.copy_from_slice(payload);
            self.at = end;
        }
        if self.bytes.len().wrapping_sub(self.at) < MSS {
            self.at = 0;
        }
        let next = self.at..self.at.wrapping_add(MSS);
        write_soon(self.bytes.get(next).unwrap_or_default());
    }
}

/// The frames of a burst, last to first; prefetches the next frame while the current one is processed, as workers do.
#[derive(Debug)]
struct WithPrefetch<'a, R> {
    burst: std::vec::Drain<'a, RxFrame<Frame>>,
    read_soon: &'a R,
}

impl<R: Fn(&[u8])> Iterator for WithPrefetch<'_, R> {
    type Item = RxFrame<Frame>;

    #[inline]
    fn next(&mut self) -> Option<RxFrame<Frame>> {
        let frame = self.burst.next_back()?;
        if let Some(next) = self.burst.as_slice().last() {
            (self.read_soon)(next.buf.bytes());
        }
        Some(frame)
    }
}

/// Measures the segments; fails if the stack does not deliver all of them.
#[allow(clippy::cast_precision_loss, reason = "they are means")]
pub fn run(options: &RxOptions, hints: &Hints<impl Fn(&[u8]), impl Fn(&[u8])>) -> Result<RxReport, TcpError> {
    let mut lab = Lab::new(1);
    lab.connect(1)?;
    let mut region = Region { bytes: vec![0; (options.region_kib as usize) << 10], at: 0 };
    let (mut watch, mut copies, mut bytes, mut acks) = (Watch::new(), Watch::new(), 0_u64, 0_u64);
    let warm_up = 3;
    for lap in 0..options.laps.saturating_add(warm_up) {
        let mut frames: Vec<RxFrame<Frame>> =
            (0..options.frames).filter_map(|_| lab.next_segment(0, MSS)).collect();
        let count = frames.len() as u64;
        copies.start();
        for frame in &frames {
            let at = frame.buf.bytes().len().saturating_sub(MSS);
            region.place(frame.buf.bytes().get(at..).unwrap_or_default(), &hints.write_soon);
        }
        if lap >= warm_up {
            copies.stop(count);
        }
        frames.reverse();
        watch.start();
        while !frames.is_empty() {
            acks = acks.wrapping_add(receive(&mut lab, &mut frames, &mut region, &mut bytes, hints));
        }
        if lap >= warm_up {
            watch.stop(count);
        }
    }
    let laps = u64::from(options.laps.saturating_add(warm_up));
    let wanted = laps.saturating_mul(options.frames.into()).saturating_mul(MSS as u64);
    TcpError::unless_all("delivered", "bytes", bytes, wanted)?;
    let segment = watch.cost();
    Ok(RxReport {
        payload: MSS,
        frames: options.frames,
        region_kib: options.region_kib,
        segment,
        copy: copies.cost(),
        gbit_s: segment.per_second * MSS as f64 * 8.0 / 1e9,
        segments_per_ack: wanted as f64 / MSS as f64 / acks.max(1) as f64,
    })
}

/// Runs one poll iteration with the last burst of `frames`; returns the number of frames sent.
fn receive(
    lab: &mut Lab,
    frames: &mut Vec<RxFrame<Frame>>,
    region: &mut Region,
    bytes: &mut u64,
    Hints { read_soon, write_soon }: &Hints<impl Fn(&[u8]), impl Fn(&[u8])>,
) -> u64 {
    let first = frames.len().saturating_sub(BURST);
    fetch(frames.get(first..).unwrap_or_default());
    lab.take(WithPrefetch { burst: frames.drain(first..), read_soon });
    while let Some(event) = lab.stack.poll_event() {
        if let Event::Data { conn, segment, .. } = event {
            region.place(segment.bytes(), write_soon);
            *bytes = bytes.wrapping_add(segment.len() as u64);
            lab.stack.consumed(conn, segment.len());
        }
    }
    let mut sent = 0_u64;
    lab.drain(&mut |_| sent = sent.wrapping_add(1));
    sent
}
