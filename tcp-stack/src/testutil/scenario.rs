//! Input and output of a simulation: a [`Scenario`] of hosts, links and connections, and its [`Report`].

use super::app::{Outcome, Plan};
use super::liar::Liar;
use super::link::{LinkConfig, LinkCounts};
use crate::time::{Duration, Instant};
use crate::{ConnOptions, EvictionPolicy, StackConfig, StackStats};
use alloc::vec::Vec;

/// A planned connection: its hosts, its start, and the behavior of both applications.
#[derive(Clone, Copy, Debug)]
pub struct ConnPlan {
    /// Time of the open, since the start.
    pub at: Duration,
    /// Host that opens it.
    pub from: usize,
    /// Host that listens for it.
    pub to: usize,
    /// True for IPv6, false for IPv4.
    pub ipv6: bool,
    /// True for a simultaneous open: both sides connect, and nobody listens.
    pub simultaneous: bool,
    /// Behavior of the opener's application.
    pub opener: Plan,
    /// Behavior of the listener's application.
    pub listener: Plan,
    /// Connection that it shares the listener of, by number; `None` gives it a listener of its own.
    pub shares_listener_of: Option<usize>,
    /// Rule by which the accepted connection may be evicted.
    pub eviction: EvictionPolicy,
}

/// A network to simulate.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Stacks, each with its own addresses on one link.
    pub hosts: Vec<StackConfig>,
    /// Link between any two hosts.
    pub link: LinkConfig,
    /// Link from a higher host to a lower one, if it is different.
    pub link_back: Option<LinkConfig>,
    /// True if all frames to a host share one queue, as behind a port of a switch: `link_back` to the first host,
    /// `link` to each other one.
    pub switched: bool,
    /// Connections to open, in numerical order.
    pub conns: Vec<ConnPlan>,
    /// Options of both ends of every connection.
    pub conn_options: ConnOptions,
    /// Connections that each listener may have at a time.
    pub listener_connections_max: u32,
    /// Packet buffers of the pools of the first two hosts.
    pub buffers: usize,
    /// Packet buffers of the pool of each further host.
    pub further_buffers: usize,
    /// Longest time between the arrival of a frame and the poll that receives it.
    pub poll_interval: Duration,
    /// Time at which the remaining connections are aborted, since the start.
    pub abort_at: Option<Duration>,
    /// Interval at which a blind attacker sends a segment to one of the ends.
    pub attack: Option<Duration>,
    /// The host that misbehaves, if one does.
    pub liar: Option<Liar>,
    /// True to let the sequence numbers of the first connection's opener wrap soon after its start.
    pub wraps: bool,
    /// True if frames may be forged, so that received bytes need not be those that were sent.
    pub hostile: bool,
    /// Events after which the run fails.
    pub steps_max: u64,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Per connection: the opener's side and the listener's.
    pub outcomes: Vec<[Outcome; 2]>,
    /// Counters of each host.
    pub stats: Vec<StackStats>,
    /// Counters of all links, summed.
    pub links: LinkCounts,
    /// Digest of all frames on the wire: equal for equal seeds.
    pub trace: u64,
    /// Time of the first event.
    pub start: Instant,
    /// Time of the last event.
    pub end: Instant,
    /// Number of events processed.
    pub steps: u64,
}
