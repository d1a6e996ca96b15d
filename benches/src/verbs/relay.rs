//! Relay between the rings of two nodes: drops and reorders frames by a seeded random sequence.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use arrayvec::ArrayVec;
use dataplane::dpdk::{BURST, Eal, Mbuf, Mempool, MempoolConfig, TxBatch};
use dataplane::port::{Port, PortQueues, PortSpec, RxQueue, TxQueue};
use iwarp_config::Driver;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use tcp_stack::{Instant, TxFrame, TxOffload};

/// Impairments of the wire, in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Impairments {
    /// Fraction of frames dropped.
    pub loss: f64,
    /// Fraction of frames with which a burst of loss begins.
    pub bursts: f64,
    /// Frames dropped in a burst, at most.
    pub burst_frames: usize,
    /// Longest time that a burst lasts, microseconds: the sender may wait for its loss probe and send nothing more.
    pub burst_us: u64,
    /// Fraction of frames held back while others overtake them.
    pub reorder: f64,
    /// Frames that overtake a held frame.
    pub hold_frames: usize,
    /// Longest time that a frame is held, microseconds: the sender may wait for its acknowledgment and send nothing
    /// more.
    pub hold_us: u64,
}

/// The wire between two nodes.
#[derive(Debug)]
pub(super) struct Wire {
    /// Both directions, by the role of the node that receives. Each runs on the thread of that node: a frame waits no
    /// longer than until its receiver looks for it.
    pub(super) relays: [Relay; 2],
    _ports: [Port; 2],
}

/// One direction of the wire.
#[derive(Debug)]
pub(super) struct Relay {
    rx: RxQueue,
    tx: TxQueue,
    impairments: Impairments,
    random: SmallRng,
    /// Frames to transmit, oldest first.
    ready: VecDeque<Mbuf>,
    /// Frames held back, oldest first.
    held: VecDeque<HeldFrame>,
    /// Frames that the current burst of loss is still to drop, and its end in any case.
    burst: (usize, Instant),
    batch: TxBatch,
    received: ArrayVec<Mbuf, BURST>,
}

/// A frame held back while others overtake it.
#[derive(Debug)]
struct HeldFrame {
    frame: Mbuf,
    /// Frames that are still to overtake it.
    others: usize,
    /// Time of its release in any case.
    until: Instant,
}

/// Returns the specification of the relay's port on either side.
pub(super) fn spec(mtu: u16, descriptors: u16) -> PortSpec {
    let new = PortSpec::new("relay", Driver::Ring);
    PortSpec { mtu, rx_descriptors: descriptors, tx_descriptors: descriptors, ..new }
}

/// Makes a packet pool for a port that sends few frames of its own, or none.
pub(crate) fn few_buffers(eal: &Eal, mtu: u16) -> Result<Arc<Mempool>> {
    let config = MempoolConfig { count: 255, cache: 0, data_room: mtu.max(1920) + 128 + 18 };
    Ok(Arc::new(Mempool::new(eal, config)?))
}

impl Wire {
    /// Lays a wire between the ports of an initiator and a target.
    pub(super) fn new(
        ends: [(Port, Vec<PortQueues>); 2],
        impairments: Impairments,
        seed: u64,
    ) -> Result<Self> {
        let [(left_port, left), (right_port, right)] = ends;
        let first = |pairs: Vec<PortQueues>| pairs.into_iter().next().context("the port has no queue");
        let (left, right) = (first(left)?, first(right)?);
        let mut seeds = SmallRng::seed_from_u64(seed);
        let mut relay = |rx, tx| Relay {
            rx,
            tx,
            impairments,
            random: SmallRng::from_rng(&mut seeds),
            ready: VecDeque::with_capacity(4 * BURST),
            held: VecDeque::with_capacity(4 * BURST),
            burst: (0, Instant::ZERO),
            batch: TxBatch::new(),
            received: ArrayVec::new(),
        };
        // The rings of one node may hold frames of the other after that one is closed.
        left.tx.forwards(&right.rx);
        right.tx.forwards(&left.rx);
        let relays = [relay(right.rx, left.tx), relay(left.rx, right.tx)];
        Ok(Self { relays, _ports: [left_port, right_port] })
    }

    /// Runs both directions.
    pub(super) fn poll(&mut self, now: Instant) {
        self.relays.iter_mut().for_each(|relay| relay.poll(now));
    }
}

impl Relay {
    /// Receives a burst and transmits the frames that are due.
    pub(super) fn poll(&mut self, now: Instant) {
        let Self { rx, tx, impairments, random, ready, held, burst, batch, received } = self;
        // While the other port's ring is full, frames wait in this port's ring.
        if ready.is_empty() {
            rx.burst(received);
        }
        for frame in received.drain(..) {
            if random.random_bool(impairments.bursts) {
                *burst = (impairments.burst_frames, now + Duration::from_micros(impairments.burst_us));
            }
            let (left, until) = *burst;
            if left > 0 && now < until {
                burst.0 = left.saturating_sub(1);
                continue;
            }
            if random.random_bool(impairments.loss) {
                continue;
            }
            if random.random_bool(impairments.reorder) {
                let until = now + Duration::from_micros(impairments.hold_us);
                held.push_back(HeldFrame { frame, others: impairments.hold_frames, until });
                continue;
            }
            ready.push_back(frame);
            for held in held.iter_mut() {
                held.others = held.others.saturating_sub(1);
            }
            while held.front().is_some_and(|held| held.others == 0) {
                ready.extend(held.pop_front().map(|held| held.frame));
            }
        }
        while held.front().is_some_and(|held| held.until <= now) {
            ready.extend(held.pop_front().map(|held| held.frame));
        }
        while !batch.is_full() {
            let Some(buf) = ready.pop_front() else { break };
            // The batch has room.
            drop(batch.push(TxFrame { buf, offload: TxOffload::default() }));
        }
        tx.burst(batch);
    }
}
