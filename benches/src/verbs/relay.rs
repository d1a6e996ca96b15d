//! Relay between the rings of two nodes: drops and reorders frames by a seeded random sequence.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use arrayvec::ArrayVec;
use dataplane::dpdk::{BURST, Eal, Mbuf, Mempool, MempoolConfig, RxQueue, TxBatch, TxQueue};
use dataplane::port::{Port, PortQueues, PortSpec};
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

/// One direction of the wire.
#[derive(Debug)]
struct Direction {
    rx: RxQueue,
    tx: TxQueue,
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

/// A wire with impairments: both directions and the ports at its ends.
#[derive(Debug)]
pub(super) struct Relay {
    directions: [Direction; 2],
    impairments: Impairments,
    random: SmallRng,
    _ports: [Port; 2],
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

impl Relay {
    pub(super) fn new(
        ends: [(Port, Vec<PortQueues>); 2],
        impairments: Impairments,
        seed: u64,
    ) -> Result<Self> {
        let [(left_port, left), (right_port, right)] = ends;
        let first = |pairs: Vec<PortQueues>| pairs.into_iter().next().context("the port has no queue");
        let (left, right) = (first(left)?, first(right)?);
        let direction = |rx, tx| Direction {
            rx,
            tx,
            ready: VecDeque::with_capacity(4 * BURST),
            held: VecDeque::with_capacity(4 * BURST),
            burst: (0, Instant::ZERO),
            batch: TxBatch::new(),
            received: ArrayVec::new(),
        };
        Ok(Self {
            directions: [direction(left.rx, right.tx), direction(right.rx, left.tx)],
            impairments,
            random: SmallRng::seed_from_u64(seed),
            _ports: [left_port, right_port],
        })
    }

    /// Receives a burst from either side and transmits the frames that are due.
    pub(super) fn poll(&mut self, now: Instant) {
        let Self { directions, impairments, random, .. } = self;
        for direction in directions {
            // While the other port's ring is full, frames wait in this port's ring.
            if direction.ready.is_empty() {
                direction.rx.burst(&mut direction.received);
            }
            for frame in direction.received.drain(..) {
                if random.random_bool(impairments.bursts) {
                    let until = now + Duration::from_micros(impairments.burst_us);
                    direction.burst = (impairments.burst_frames, until);
                }
                let (left, until) = direction.burst;
                if left > 0 && now < until {
                    direction.burst.0 = left.saturating_sub(1);
                    continue;
                }
                if random.random_bool(impairments.loss) {
                    continue;
                }
                if random.random_bool(impairments.reorder) {
                    let until = now + Duration::from_micros(impairments.hold_us);
                    direction.held.push_back(HeldFrame { frame, others: impairments.hold_frames, until });
                    continue;
                }
                direction.ready.push_back(frame);
                for held in &mut direction.held {
                    held.others = held.others.saturating_sub(1);
                }
                while direction.held.front().is_some_and(|held| held.others == 0) {
                    direction.ready.extend(direction.held.pop_front().map(|held| held.frame));
                }
            }
            while direction.held.front().is_some_and(|held| held.until <= now) {
                direction.ready.extend(direction.held.pop_front().map(|held| held.frame));
            }
            while !direction.batch.is_full() {
                let Some(buf) = direction.ready.pop_front() else { break };
                // The batch has room.
                drop(direction.batch.push(TxFrame { buf, offload: TxOffload::default() }));
            }
            direction.tx.burst(&mut direction.batch);
        }
    }
}
