//! Queue pairs that are connected by number: where their connections arrive, who may open one, and those that are
//! connected with themselves.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use rdma::verbs::{CmId, Owner, Rendezvous};
use rdma::{EndpointConfig, Memory};
use tcp_stack::{Instant, ListenError, ListenOptions, ListenScope};

use super::{Engine, ListenerOwner};
use crate::transport::{Transport, instant, since_start};

/// Rendezvous of an engine, and connections without a transport.
#[derive(Debug)]
pub(super) struct NumberedQps {
    /// Key of the nonces.
    key: (u64, u64),
    /// Port that this engine listens at, once it does.
    port: Option<u16>,
    /// Networks whose hosts may connect; `None`: all.
    peers: Option<Box<[IpNet]>>,
    /// Queue pairs without a transport that have output: connected with themselves, or of datagrams.
    to_itself: VecDeque<CmId>,
}

impl NumberedQps {
    pub(super) fn new(seed: &[u8; 32]) -> Self {
        let mut halves = seed.as_chunks().0.iter().map(|half| u64::from_le_bytes(*half));
        let key = (halves.next().unwrap_or(0), halves.next().unwrap_or(0));
        Self { key, port: None, peers: None, to_itself: VecDeque::new() }
    }
}

/// Conditions of connections by number.
#[derive(Clone, Debug)]
pub struct NumberedConfig {
    /// First TCP port, of worker 0. The others have higher ones, by their number.
    pub port: u16,
    /// Number of this worker, below [`QP_WORKERS_MAX`](rdma::verbs::QP_WORKERS_MAX).
    pub worker: u8,
    /// Networks whose hosts may connect; `None`: all.
    pub peers: Option<Vec<IpNet>>,
    /// Bytes of an IP packet of the port, at most.
    pub mtu: u16,
}

impl<T: Transport, M: Memory> Engine<T, M> {
    /// Lets queue pairs be connected by number. Returns false if there are queue pairs already.
    pub fn connect_by_number(&mut self, config: NumberedConfig) -> bool {
        let NumberedConfig { port, worker, peers, mtu } = config;
        let is_set = self.device.set_worker(worker);
        if is_set {
            let datagram_max = rdma::verbs::path_mtu(mtu);
            self.device.set_rendezvous(Rendezvous { port, key: self.numbered.key, datagram_max });
            self.numbered.port = port.checked_add(worker.into());
            self.numbered.peers = peers.map(Vec::into_boxed_slice);
        }
        is_set
    }

    /// Listens for connections by number, unless it does, with the settings that all of them have.
    ///
    /// # Errors
    /// As [`Transport::listen_at`]: the port is taken, or there are too many listeners.
    pub fn listen_by_number(&mut self, endpoint: EndpointConfig) -> Result<(), ListenError> {
        let owner = Owner::QueuePairs;
        let is_its = |id: &CmId| self.device.owner(*id) == Some(owner);
        let is_open = |(_, of): &(_, ListenerOwner)| matches!(of, ListenerOwner::Device(id) if is_its(id));
        let Some(port) = self.numbered.port.filter(|_| self.accepts) else { return Ok(()) };
        if self.listeners.iter().any(is_open) {
            return Ok(());
        }
        let (ports, worker) = &self.local_ports;
        if !ports.claim(port, *worker) {
            return Err(ListenError::InUse);
        }
        let options = ListenOptions { conn: self.options, ..ListenOptions::default() };
        let listener = self.transport.listen_at((ListenScope::Any, port), options);
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let id = listener.is_ok().then(|| self.device.create_listener(any, endpoint, owner).ok()).flatten();
        match (listener, id) {
            (Ok(listener), Some(id)) => {
                self.listeners.push((listener, ListenerOwner::Device(id)));
                return Ok(());
            }
            (Ok(listener), None) => self.transport.unlisten(listener),
            (Err(error), _) => {
                let (ports, worker) = &self.local_ports;
                ports.release(port, *worker);
                return Err(error);
            }
        };
        let (ports, worker) = &self.local_ports;
        ports.release(port, *worker);
        Err(ListenError::TooMany)
    }

    /// Returns true if a host may connect at a listener.
    pub(super) fn admits(&self, listener: CmId, host: IpAddr) -> bool {
        let is_by_number = self.device.owner(listener) == Some(Owner::QueuePairs);
        let admits = |peers: &[IpNet]| peers.iter().any(|network| network.contains(&host));
        !is_by_number || self.numbered.peers.as_deref().is_none_or(admits)
    }

    /// Passes the datagrams that have arrived to their queue pairs, opens connections, and ends what has waited for too
    /// long.
    #[inline]
    pub(super) fn run_numbered(&mut self, now: Instant) {
        if self.device.has_links() {
            self.run_links(now);
        }
    }

    #[cold]
    fn run_links(&mut self, now: Instant) {
        let Self { device, rdma, .. } = self;
        let at = since_start(now);
        if device.has_datagrams() {
            device.deliver_datagrams(at, &mut rdma.env());
        }
        if device.next_link_deadline().is_none_or(|due| due <= at) {
            device.run_links();
        }
    }

    pub(super) fn numbered_deadline(&self) -> Option<Instant> {
        self.device.next_link_deadline().map(instant)
    }

    /// Queues the output of a queue pair without a transport; ignores any other connection.
    #[cold]
    pub(super) fn queue_to_itself(&mut self, id: CmId) {
        if self.device.is_looped_to_itself(id) && !self.numbered.to_itself.contains(&id) {
            self.numbered.to_itself.push_back(id);
        }
    }

    #[inline]
    pub(super) fn has_output_to_itself(&self) -> bool {
        !self.numbered.to_itself.is_empty()
    }

    /// Sends output of queue pairs without a transport, up to a bound each.
    #[inline]
    pub(super) fn transmit_to_itself(&mut self, now: Instant) {
        if self.numbered.to_itself.is_empty() {
            return;
        }
        for _ in 0..self.numbered.to_itself.len() {
            let Some(id) = self.numbered.to_itself.pop_front() else { break };
            let Self { device, rdma, transport, .. } = self;
            let is_local = |address| transport.is_local(address);
            if device.transmit_to_itself(id, since_start(now), &mut rdma.env(), is_local) {
                self.queue_to_itself(id);
            }
        }
        // Links have datagrams to send now.
        self.apply_requests(now);
    }
}
