//! Many connections on one worker: what each weighs, what a packet costs, how fast they come and go.

use serde::Serialize;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use tcp_stack::Event;
use tcp_stack::wire::TcpFlags;

use super::echo::{EchoOptions, EchoReport};
use super::lab::Lab;
use super::{BURST, Cost, TcpError, Watch, echo};

/// Counts what is allocated, so that what a connection weighs is all of it.
#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How many.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct ConnsOptions {
    /// Numbers of connections
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

/// What so many connections cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ConnsRow {
    /// Connections, all established.
    pub connections: u32,
    /// Heap of the stack per connection, tables and pools included, bytes.
    pub bytes_each: u64,
    /// What a request of a random one costs, and its answer.
    pub request: EchoReport,
    /// That cost, divided by the cost at the first number of connections.
    pub ratio: f64,
    /// What it takes to open and close one more beside them, both sides together: the peer's segments are made, and the
    /// stack's read, within what is timed.
    pub connect_and_close: Cost,
}

/// A row for each number of connections.
#[derive(Clone, Debug, Serialize)]
pub struct ConnsReport {
    /// In the order that was asked for.
    pub rows: Vec<ConnsRow>,
}

/// Measures; fails if a connection was refused or a request not answered.
pub fn run(options: &ConnsOptions) -> Result<ConnsReport, TcpError> {
    let mut rows: Vec<ConnsRow> = Vec::new();
    for connections in options.connections.iter().copied() {
        let bytes_each = weigh(connections)?;
        let request = echo::run(&EchoOptions {
            connections,
            bytes: options.bytes,
            requests: 1024,
            laps: options.laps,
        })?;
        let first = rows.first().map_or(request.request.ns, |row| row.request.request.ns);
        let ratio = request.request.ns / first;
        let connect_and_close = come_and_go(connections)?;
        rows.push(ConnsRow { connections, bytes_each, request, ratio, connect_and_close });
    }
    Ok(ConnsReport { rows })
}

/// What the stack has allocated when so many connections are established, per connection.
fn weigh(connections: u32) -> Result<u64, TcpError> {
    let region = Region::new(HEAP);
    let mut lab = Lab::new(connections as usize);
    lab.connect(connections as usize)?;
    // The peers are not the stack's.
    let peers = std::mem::take(&mut lab.peers);
    drop(peers);
    let now = region.change();
    let bytes = now.bytes_allocated.saturating_sub(now.bytes_deallocated);
    Ok(bytes as u64 / u64::from(connections.max(1)))
}

/// Bursts of connections that open and close, beside those that are there.
fn come_and_go(connections: u32) -> Result<Cost, TcpError> {
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
