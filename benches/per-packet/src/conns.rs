//! `conns`: memory per connection, cost of a request, and cost of opening and closing, over the number of connections.

use serde::Serialize;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use tcp_stack::Event;
use tcp_stack::wire::TcpFlags;

use super::echo::{EchoOptions, EchoReport};
use super::lab::Lab;
use super::{BURST, Cost, TcpError, Watch, echo};

/// Counts all allocations, for the memory per connection.
#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Command-line flags of `conns`.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct ConnsOptions {
    /// Numbers of connections, one row each
    #[arg(long, value_delimiter = ',', default_values_t = [1, 1000, 10_000, 100_000])]
    pub connections: Vec<u32>,
    /// Payload of a request, bytes
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1448))]
    pub bytes: u32,
    /// Timed laps of 1024 requests; the median counts
    #[arg(long, default_value_t = 201, value_parser = clap::value_parser!(u32).range(1..))]
    pub laps: u32,
}

impl Default for ConnsOptions {
    fn default() -> Self {
        Self { connections: vec![1, 1000, 10_000, 100_000], bytes: 64, laps: 201 }
    }
}

/// Result of one number of connections.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ConnsRow {
    /// Number of established connections.
    pub connections: u32,
    /// Heap of the stack per connection, bytes; tables and pools included.
    pub bytes_each: u64,
    /// Cost of a request of a random connection, and its answer.
    pub request: EchoReport,
    /// Cost of a request divided by that at the first number of connections.
    pub ratio: f64,
    /// Cost of opening and closing one more connection, for stack and peer together.
    pub connect_and_close: Cost,
}

/// The result rows of `conns`.
#[derive(Clone, Debug, Serialize)]
pub struct ConnsReport {
    /// One row for each number of connections, in the order of the flag.
    pub rows: Vec<ConnsRow>,
}

/// Measures all rows; fails if the stack refuses a connection or does not answer a request.
pub fn run(options: &ConnsOptions) -> Result<ConnsReport, TcpError> {
    let mut rows: Vec<ConnsRow> = Vec::new();
    for connections in options.connections.iter().copied() {
        let bytes_each = heap_per_connection(connections)?;
        let request = echo::run(&EchoOptions {
            connections,
            bytes: options.bytes,
            requests: 1024,
            laps: options.laps,
        })?;
        let first = rows.first().map_or(request.request.ns, |row| row.request.request.ns);
        let ratio = request.request.ns / first;
        let connect_and_close = open_and_close(connections)?;
        rows.push(ConnsRow { connections, bytes_each, request, ratio, connect_and_close });
    }
    Ok(ConnsReport { rows })
}

/// Returns the heap of the stack per established connection, bytes.
fn heap_per_connection(connections: u32) -> Result<u64, TcpError> {
    let region = Region::new(HEAP);
    let mut lab = Lab::new(connections as usize);
    lab.connect(connections as usize)?;
    // The peers' memory does not count.
    let peers = std::mem::take(&mut lab.peers);
    drop(peers);
    let now = region.change();
    let bytes = now.bytes_allocated.saturating_sub(now.bytes_deallocated);
    Ok(bytes as u64 / u64::from(connections.max(1)))
}

/// Measures bursts of connections that open and close, beside the established ones.
fn open_and_close(connections: u32) -> Result<Cost, TcpError> {
    const ROUNDS: usize = 200;
    let present = connections as usize;
    let mut lab = Lab::new(present.saturating_add(ROUNDS * BURST));
    lab.connect(present)?;
    let mut watch = Watch::new();
    let mut closed = 0_u64;
    for _ in 0..ROUNDS {
        let first = lab.peers.len();
        watch.start();
        lab.connect(BURST)?;
        // The peer closes, the application follows, the peer acknowledges: no TIME-WAIT on our side.
        for round in [TcpFlags::FIN | TcpFlags::ACK, TcpFlags::ACK] {
            let frames: Vec<_> =
                (first..lab.peers.len()).filter_map(|peer| lab.segment(peer, round, 0)).collect();
            lab.take(frames);
            while let Some(event) = lab.stack.poll_event() {
                match event {
                    Event::PeerClosed { conn } => lab.stack.close(lab.now, conn),
                    Event::Closed { .. } => closed = closed.wrapping_add(1),
                    _ => {}
                }
            }
            lab.learn();
            for peer in lab.peers.get_mut(first..).unwrap_or_default() {
                peer.seq += u32::from(round.contains(TcpFlags::FIN));
            }
        }
        watch.stop(BURST as u64);
    }
    TcpError::unless_all("closed", "connections", closed, (ROUNDS * BURST) as u64)?;
    Ok(watch.cost())
}
