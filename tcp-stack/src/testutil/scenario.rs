//! What a simulation is made from, and what it comes to.

use super::app::{Outcome, Plan};
use super::liar::Liar;
use super::link::{LinkConfig, LinkCounts};
use crate::time::{Duration, Instant};
use crate::{ConnOptions, StackConfig, StackStats};
use alloc::vec::Vec;

/// A connection to be: who opens it to whom, when, and what both do.
#[derive(Clone, Copy, Debug)]
pub struct ConnPlan {
    /// When.
    pub at: Duration,
    /// The host that opens it.
    pub from: usize,
    /// The host that listens.
    pub to: usize,
    /// Whether over IPv6.
    pub ipv6: bool,
    /// Whether both open it at once, and nobody listens.
    pub simultaneous: bool,
    /// What the opener does.
    pub opener: Plan,
    /// What the listener does.
    pub listener: Plan,
}

/// A network.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The stacks. Every one has addresses of its own on one link.
    pub hosts: Vec<StackConfig>,
    /// The links between any two of them.
    pub link: LinkConfig,
    /// The links in the direction from a higher host to a lower one, if they are different.
    pub link_back: Option<LinkConfig>,
    /// The connections.
    pub conns: Vec<ConnPlan>,
    /// Options of both ends of all of them.
    pub conn_options: ConnOptions,
    /// Buffers of each host.
    pub buffers: usize,
    /// How long a host's worker is busy elsewhere at most, before it looks at its port.
    pub poll_interval: Duration,
    /// All connections that are left are aborted then.
    pub abort_at: Option<Duration>,
    /// Somebody sends a blind segment to one of the ends this often.
    pub attack: Option<Duration>,
    /// A host that lies to the others.
    pub liar: Option<Liar>,
    /// Whether the sequence numbers of the first dial's opener pass zero early on.
    pub wraps: bool,
    /// Whether frames may be forged, so that what arrives need not be what was sent.
    pub hostile: bool,
    /// Steps after which the run has failed.
    pub steps_max: u64,
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// Per dial: the opener's side and the listener's.
    pub outcomes: Vec<[Outcome; 2]>,
    /// What each host counted.
    pub stats: Vec<StackStats>,
    /// What the links did, together.
    pub links: LinkCounts,
    /// A number for all that was on the wire: equal for equal seeds.
    pub trace: u64,
    /// When the first thing happened.
    pub start: Instant,
    /// When nothing was left to do.
    pub end: Instant,
    /// Steps that were needed.
    pub steps: u64,
}
