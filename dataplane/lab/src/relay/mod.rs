//! Link emulator between two interfaces.
//!
//! Every TCP connection has its own path in each direction, with its own transmitter, queue and random sequence, so
//! that many connections measure the same path at once. A connection is identified by the larger of its ports, the
//! client's. Its random sequence depends only on that port, the direction and the seed, so the n-th frame of a
//! connection is treated alike for every sender. All other frames, such as ARP, are only delayed.
//!
//! With `--shared` all connections have one path in each direction: the queue of a switch's port. With `--mark-bytes`
//! the link marks ECN-capable packets that meet a longer queue (RFC 3168 §5), as a switch does for DCTCP (RFC 8257
//! §3.1).
//!
//! Both interfaces and the hosts behind them must have their offloads off, or frames longer than a link can carry
//! arrive; frames longer than `--frame-max` are counted and dropped.

mod path;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use tcp_stack::testutil::mark_congestion;

use crate::packet::{BATCH, Batch, FRAME_MAX, Port};
use path::{Outcome, Path, Shape};

/// Longest wait before the check for a signal, milliseconds.
const LOOK_MS: u64 = 100;
/// Stands for every connection where all share a path: no connection has port 0.
const SHARED: u16 = 0;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Interface of side A
    a: String,
    /// Interface of side B
    b: String,
    /// Rate of the path, Mbit/s of frame bytes; 0: unlimited
    #[arg(long, default_value_t = 0.0)]
    rate_mbit: f64,
    /// Delay in one direction, milliseconds
    #[arg(long, default_value_t = 0.0)]
    delay_ms: f64,
    /// Capacity of the transmit queue, bytes; further frames are dropped
    #[arg(long, default_value_t = u64::MAX)]
    queue_bytes: u64,
    /// Bytes in the transmit queue from which on ECN-capable packets are marked (CE)
    #[arg(long, default_value_t = u64::MAX)]
    mark_bytes: u64,
    /// One path in each direction for all connections
    #[arg(long)]
    shared: bool,
    /// Share of frames lost, 0 to 1
    #[arg(long, default_value_t = 0.0)]
    loss: f64,
    /// Share of frames delayed by --reorder-ms, 0 to 1
    #[arg(long, default_value_t = 0.0)]
    reorder: f64,
    /// Additional delay of reordered frames, milliseconds: minimum and maximum
    #[arg(long, value_delimiter = ',', num_args = 1, default_value = "5,10")]
    reorder_ms: Vec<f64>,
    /// Lose and reorder only from A to B, only from B to A, or both
    #[arg(long, value_enum, default_value_t = Direction::Both)]
    impair: Direction,
    /// Longest frame that the link carries, bytes
    #[arg(long, default_value_t = 1514)]
    frame_max: usize,
    /// Seed of loss and reordering
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Direction {
    Both,
    AToB,
    BToA,
}

/// Relays until SIGTERM or SIGINT. Returns the counters of both directions.
pub(crate) fn run(options: &Options) -> Result<Value> {
    let open = |name: &str| Port::open(name).with_context(|| format!("interface {name}"));
    let ports = [open(&options.a)?, open(&options.b)?];
    let ended = end_on_signal()?;
    let mut wire = Wire::new(options);
    println!("ready");
    let mut batch = Batch::new();
    while !ended.load(Ordering::Relaxed) {
        let now = Instant::now();
        let next = wire.deliver(now, &ports);
        let wait = next.map_or(Duration::from_millis(LOOK_MS), |due| due.saturating_duration_since(now));
        let wait = Timespec::try_from(wait.min(Duration::from_millis(LOOK_MS)))?;
        let mut polled = ports.each_ref().map(|port| PollFd::from_borrowed_fd(port.as_fd(), PollFlags::IN));
        match poll(&mut polled, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("poll"),
        }
        for (from, port) in ports.iter().enumerate() {
            // Handles only the frames waiting now, so that due frames do not wait for a sender that never stops.
            if port.receive(&mut batch)? > 0 {
                let now = Instant::now();
                batch.frames().for_each(|frame| wire.take(now, from, frame));
            }
        }
    }
    let [a, b] = &ports;
    Ok(json!({ "a_to_b": wire.report(0, a.missed()?), "b_to_a": wire.report(1, b.missed()?) }))
}

/// Set once SIGTERM or SIGINT was received.
fn end_on_signal() -> Result<Arc<AtomicBool>> {
    let ended = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&ended);
    let (armed, is_armed) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = crate::clients::block_on(async {
            let ended = crate::clients::ended()?;
            let _ = armed.send(());
            ended.await;
            anyhow::Ok(())
        });
        seen.store(true, Ordering::Relaxed);
    });
    is_armed.recv().context("signals")?;
    Ok(ended)
}

/// A frame in flight.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Traveling {
    due: Instant,
    /// Preserves the order of frames that are due at the same time.
    number: u64,
    from: usize,
    bytes: Vec<u8>,
}

/// Counters of one direction.
#[derive(Default)]
struct DirectionStats {
    forwarded: u64,
    bytes: u64,
    lost: u64,
    dropped: u64,
    marked: u64,
    reordered: u64,
    oversize: u64,
    refused: u64,
    /// Longest time between a frame's due time and its delivery.
    late_max: Duration,
}

struct Wire {
    shapes: [Shape; 2],
    is_shared: bool,
    frame_max: usize,
    seed: u64,
    paths: HashMap<(usize, u16), Path>,
    traveling: BinaryHeap<Reverse<Traveling>>,
    number: u64,
    stats: [DirectionStats; 2],
    /// Buffers of delivered frames, for reuse.
    spare: Vec<Vec<u8>>,
}

impl Wire {
    fn new(options: &Options) -> Self {
        let shape = |direction| {
            let impaired = [Direction::Both, direction].contains(&options.impair);
            let share = |share: f64| if impaired { share } else { 0.0 };
            let millis = |ms: f64| Duration::from_secs_f64(ms.max(0.0) / 1e3);
            let first = options.reorder_ms.first().copied().unwrap_or(0.0);
            let last = options.reorder_ms.last().copied().unwrap_or(first);
            Shape {
                bytes_per_second: options.rate_mbit * 1e6 / 8.0,
                delay: millis(options.delay_ms),
                queue_bytes: options.queue_bytes,
                mark_bytes: options.mark_bytes,
                loss: share(options.loss),
                reorder: share(options.reorder),
                reorder_by: (millis(first), millis(last)),
            }
        };
        Self {
            shapes: [shape(Direction::AToB), shape(Direction::BToA)],
            is_shared: options.shared,
            frame_max: options.frame_max.min(FRAME_MAX),
            seed: options.seed,
            paths: HashMap::new(),
            traveling: BinaryHeap::new(),
            number: 0,
            stats: Default::default(),
            spare: Vec::new(),
        }
    }

    /// Passes a frame that enters the link at side `from` to its path.
    fn take(&mut self, now: Instant, from: usize, frame: &[u8]) {
        let (Some(shape), Some(stats)) = (self.shapes.get(from), self.stats.get_mut(from)) else { return };
        if frame.len() > self.frame_max {
            stats.oversize += 1;
            return;
        }
        let connection = client_port(frame).map(|port| if self.is_shared { SHARED } else { port });
        let fate = match connection {
            Some(port) => {
                let stream = (u64::from(port) << 1) | from as u64;
                let path =
                    self.paths.entry((from, port)).or_insert_with(|| Path::new(now, self.seed, stream));
                path.take(shape, now, frame.len())
            }
            None => Outcome::Delivered { due: now + shape.delay, reordered: false, congested: false },
        };
        match fate {
            Outcome::Lost => stats.lost += 1,
            Outcome::Dropped => stats.dropped += 1,
            Outcome::Delivered { due, reordered, congested } => {
                stats.reordered += u64::from(reordered);
                let mut bytes = self.spare.pop().unwrap_or_default();
                bytes.clear();
                bytes.extend_from_slice(frame);
                stats.marked += u64::from(congested && mark_congestion(&mut bytes));
                self.number += 1;
                self.traveling.push(Reverse(Traveling { due, number: self.number, from, bytes }));
            }
        }
    }

    /// Sends the frames that are due. Returns the time of the next one.
    fn deliver(&mut self, now: Instant, ports: &[Port; 2]) -> Option<Instant> {
        let mut leaving: [Vec<Vec<u8>>; 2] = Default::default();
        let next = loop {
            let is_due = self.traveling.peek().map(|Reverse(frame)| (frame.due, frame.due <= now));
            match is_due {
                Some((_, true)) => {}
                Some((due, false)) => break Some(due),
                None => break None,
            }
            if let Some(Reverse(frame)) = self.traveling.pop()
                && let Some(leaving) = leaving.get_mut(frame.from)
                && let Some(stats) = self.stats.get_mut(frame.from)
            {
                stats.late_max = stats.late_max.max(now.saturating_duration_since(frame.due));
                leaving.push(frame.bytes);
            }
        };
        for ((frames, to), stats) in leaving.into_iter().zip(ports.iter().rev()).zip(&mut self.stats) {
            for burst in frames.chunks(BATCH) {
                let taken = to.send(burst);
                stats.forwarded += taken as u64;
                stats.refused += (burst.len() - taken) as u64;
                stats.bytes += burst.iter().map(|frame| frame.len() as u64).sum::<u64>();
            }
            self.spare.extend(frames);
        }
        next
    }

    /// Returns the counters of one direction; `missed` frames were lost before the relay.
    fn report(&self, from: usize, missed: u32) -> Value {
        let Some(stats) = self.stats.get(from) else { return Value::Null };
        json!({
            "forwarded": stats.forwarded, "bytes": stats.bytes, "lost": stats.lost, "dropped": stats.dropped,
            "marked": stats.marked, "reordered": stats.reordered, "oversize": stats.oversize,
            "refused": stats.refused, "missed": missed, "late_ms_max": stats.late_max.as_secs_f64() * 1e3,
        })
    }
}

/// Returns the larger port of a TCP segment; `None` for all other frames.
fn client_port(frame: &[u8]) -> Option<u16> {
    let field =
        |at: usize| frame.get(at..).and_then(|rest| rest.first_chunk()).map(|word| u16::from_be_bytes(*word));
    let byte = |at: usize| frame.get(at).copied();
    let segment = match (field(12), byte(14), byte(23), byte(20)) {
        (Some(0x0800), Some(version), Some(6), _) => 14 + usize::from(version & 0xf) * 4,
        (Some(0x86dd), _, _, Some(6)) => 54,
        _ => return None,
    };
    Some(field(segment)?.max(field(segment + 2)?))
}

#[cfg(test)]
mod tests;
