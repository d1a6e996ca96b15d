//! A bad wire: it stands between the rings of two nodes, and loses and delays frames by a seeded random sequence.

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
use tcp_stack::{TxFrame, TxOffload};

use crate::Stopwatch;

/// What the wire does to frames, in either direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Weather {
    /// Share of frames that are lost.
    pub loss: f64,
    /// Share of frames that others overtake.
    pub reorder: f64,
    /// How many others overtake such a frame.
    pub hold_frames: usize,
    /// How long it waits for them at most, microseconds: it is late, and not kept until a sender that waits for its
    /// arrival has sent more.
    pub hold_us: u64,
}

/// One direction.
#[derive(Debug)]
struct Way {
    rx: RxQueue,
    tx: TxQueue,
    /// Frames to go out, oldest first.
    ready: VecDeque<Mbuf>,
    /// Frames that are overtaken, oldest first.
    held: VecDeque<Late>,
    batch: TxBatch,
    received: ArrayVec<Mbuf, BURST>,
}

/// A frame that others overtake.
#[derive(Debug)]
struct Late {
    frame: Mbuf,
    /// How many still are to pass it.
    others: usize,
    /// When it goes on in any case.
    until: Duration,
}

/// Both directions.
#[derive(Debug)]
pub(super) struct Relay {
    watch: Stopwatch,
    ways: [Way; 2],
    weather: Weather,
    random: SmallRng,
    _ports: [Port; 2],
}

/// The relay's end of a wire.
pub(super) fn spec(mtu: u16, descriptors: u16) -> PortSpec {
    let new = PortSpec::new("relay", Driver::Ring);
    PortSpec { mtu, rx_descriptors: descriptors, tx_descriptors: descriptors, ..new }
}

/// A pool for ports that have few frames of their own, or none.
pub(crate) fn few_buffers(eal: &Eal, mtu: u16) -> Result<Arc<Mempool>> {
    let config = MempoolConfig { count: 255, cache: 0, data_room: mtu.max(1920) + 128 + 18 };
    Ok(Arc::new(Mempool::new(eal, config)?))
}

impl Relay {
    pub(super) fn new(ends: [(Port, Vec<PortQueues>); 2], weather: Weather, seed: u64) -> Result<Self> {
        let [(left_port, left), (right_port, right)] = ends;
        let first = |pairs: Vec<PortQueues>| pairs.into_iter().next().context("a port has a queue");
        let (left, right) = (first(left)?, first(right)?);
        let way = |rx, tx| Way {
            rx,
            tx,
            ready: VecDeque::with_capacity(4 * BURST),
            held: VecDeque::with_capacity(4 * BURST),
            batch: TxBatch::new(),
            received: ArrayVec::new(),
        };
        Ok(Self {
            watch: Stopwatch::start(),
            ways: [way(left.rx, right.tx), way(right.rx, left.tx)],
            weather,
            random: SmallRng::seed_from_u64(seed),
            _ports: [left_port, right_port],
        })
    }

    /// Takes a burst from either end and passes on what is to arrive.
    pub(super) fn turn(&mut self) {
        let Self { watch, ways, weather, random, .. } = self;
        let now = watch.elapsed();
        for way in ways {
            // Frames that the far port does not take wait in the near port's ring.
            if way.ready.is_empty() {
                way.rx.burst(&mut way.received);
            }
            for frame in way.received.drain(..) {
                if random.random_bool(weather.loss) {
                    continue;
                }
                if random.random_bool(weather.reorder) {
                    let until = now.saturating_add(Duration::from_micros(weather.hold_us));
                    way.held.push_back(Late { frame, others: weather.hold_frames, until });
                    continue;
                }
                way.ready.push_back(frame);
                for late in &mut way.held {
                    late.others = late.others.saturating_sub(1);
                }
                while way.held.front().is_some_and(|late| late.others == 0) {
                    way.ready.extend(way.held.pop_front().map(|late| late.frame));
                }
            }
            while way.held.front().is_some_and(|late| late.until <= now) {
                way.ready.extend(way.held.pop_front().map(|late| late.frame));
            }
            while !way.batch.is_full() {
                let Some(buf) = way.ready.pop_front() else { break };
                // There is room.
                drop(way.batch.push(TxFrame { buf, offload: TxOffload::default() }));
            }
            way.tx.burst(&mut way.batch);
        }
    }
}
