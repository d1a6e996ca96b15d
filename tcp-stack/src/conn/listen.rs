//! LISTEN (RFC 9293 §3.10.7.2), the table of listeners, and the negotiation of options by two SYNs.

use alloc::vec::Vec;
use core::net::SocketAddr;
use core::num::NonZeroU32;

use super::{Conn, Origin, Pending};
use crate::cc::CongestionWindow;
use crate::config::{ListenOptions, ListenScope, StackConfig};
use crate::error::ListenError;
use crate::event::ListenerId;
use crate::pool::List;
use crate::state::State;
use crate::time::{Instant, LongStamp};
use crate::wire::{EcnField, SackBlocks, TcpHeader, TcpOptions, Timestamps};

/// RFC 9293 §3.7.1: the MSS assumed without an option, for IPv4 and for IPv6.
const MSS_DEFAULT: (u16, u16) = (536, 1220);
/// Lower bound of a peer's MSS, bytes: a segment must have room for more than its options.
const MSS_MIN: u16 = 64;
/// Length of the timestamps option with its padding, bytes.
pub(crate) const TIMESTAMPS_LEN: u16 = 12;

/// The fields of a received SYN that the negotiation uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SynOffer {
    pub(crate) header: TcpHeader,
    pub(crate) options: TcpOptions,
    /// The ECN field of the IP header.
    pub(crate) ecn: EcnField,
}

/// A port that accepts connections, at some or all of our addresses.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) port: u16,
    pub(crate) generation: NonZeroU32,
    pub(crate) options: ListenOptions,
    /// Number of its half-open connections.
    pub(crate) half_open: u32,
    /// The half-open connections in the order of their SYNs.
    pub(crate) waiting: List,
    /// Acknowledgments to no connection are checked for cookies until this time.
    pub(crate) cookies_until: Instant,
}

impl Listener {
    const fn new(port: u16, generation: NonZeroU32, options: ListenOptions) -> Self {
        Self { port, generation, options, half_open: 0, waiting: List::EMPTY, cookies_until: Instant::ZERO }
    }

    /// Returns the traffic class of its connections, without the ECN bits.
    pub(crate) const fn traffic_class(&self) -> u8 {
        self.options.conn.traffic_class & !EcnField::MASK
    }
}

/// The ports that accept connections.
#[derive(Debug)]
pub(crate) struct Listeners {
    slots: Vec<Option<Listener>>,
    /// Ports, addresses and slots, sorted by port. No address of a port has two.
    ports: Vec<(u16, ListenScope, u32)>,
    generation: NonZeroU32,
}

impl Listeners {
    const MAX: usize = 1024;

    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), ports: Vec::new(), generation: NonZeroU32::MIN }
    }

    pub(crate) fn add(
        &mut self,
        (scope, port): (ListenScope, u16),
        options: ListenOptions,
    ) -> Result<ListenerId, ListenError> {
        if port == 0 {
            return Err(ListenError::PortZero);
        }
        if self.of_port(port).any(|(other, _)| other.overlaps(scope)) {
            return Err(ListenError::InUse);
        }
        let at = self.ports.partition_point(|entry| entry.0 < port);
        let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if free >= Self::MAX {
            return Err(ListenError::TooMany);
        }
        self.generation = self.generation.checked_add(1).unwrap_or(NonZeroU32::MIN);
        let listener = Listener::new(port, self.generation, options);
        match self.slots.get_mut(free) {
            Some(slot) => *slot = Some(listener),
            None => self.slots.push(Some(listener)),
        }
        let index = u32::try_from(free).unwrap_or(u32::MAX);
        self.ports.insert(at, (port, scope, index));
        Ok(ListenerId { index, generation: self.generation })
    }

    /// Returns the addresses and the slots of a port.
    fn of_port(&self, port: u16) -> impl Iterator<Item = (ListenScope, u32)> {
        let first = self.ports.partition_point(|entry| entry.0 < port);
        let same = self.ports.iter().skip(first).take_while(move |entry| entry.0 == port);
        same.map(|(_, scope, index)| (*scope, *index))
    }

    /// Returns true if a local address and port has a listener.
    pub(crate) fn has(&self, local: SocketAddr) -> bool {
        self.of_port(local.port()).any(|(scope, _)| scope.has(local.ip()))
    }

    /// Returns the listener of a port at all addresses, if it is one.
    pub(crate) fn at_all(&self, port: u16) -> Option<ListenerId> {
        let (_, index) = self.of_port(port).find(|(scope, _)| *scope == ListenScope::Any)?;
        let generation = self.slots.get(index as usize)?.as_ref()?.generation;
        Some(ListenerId { index, generation })
    }

    /// Sets the options of a listener, if it is there.
    pub(crate) fn set_options(&mut self, id: ListenerId, options: ListenOptions) {
        if let Some(listener) = self.get_mut(id) {
            listener.options = options;
        }
    }

    /// Sets the traffic class of the connections that a listener accepts from now on, if it is there.
    pub(crate) fn set_traffic_class(&mut self, id: ListenerId, class: u8) {
        if let Some(listener) = self.get_mut(id) {
            listener.options.conn.traffic_class = class;
        }
    }

    /// Removes a listener; `None` if it is gone already.
    pub(crate) fn remove(&mut self, id: ListenerId) -> Option<Listener> {
        self.get_mut(id)?;
        let listener = self.slots.get_mut(id.index as usize)?.take()?;
        self.ports.retain(|entry| entry.2 != id.index);
        Some(listener)
    }

    pub(crate) fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        let slot = self.slots.get_mut(id.index as usize)?;
        slot.as_mut().filter(|listener| listener.generation == id.generation)
    }

    /// Returns the listener of a local address and port.
    pub(crate) fn find(&mut self, local: SocketAddr) -> Option<(ListenerId, &mut Listener)> {
        let (_, index) = self.of_port(local.port()).find(|(scope, _)| scope.has(local.ip()))?;
        let listener = self.slots.get_mut(index as usize)?.as_mut()?;
        Some((ListenerId { index, generation: listener.generation }, listener))
    }
}

impl Conn {
    /// Makes a connection in SYN-RECEIVED. `opened` and `sent` are the times of the SYN and of the last SYN-ACK;
    /// `attempts` SYN-ACKs were sent before that one.
    pub(crate) fn accept(
        now: Instant,
        origin: &Origin,
        config: &StackConfig,
        offer: &SynOffer,
        (opened, sent, attempts): (Instant, Instant, u8),
    ) -> Self {
        let mut conn = Self::new(now, origin, config, State::SynReceived);
        conn.negotiate(now, config, offer);
        conn.note_syn_window(config);
        conn.ecn.on_syn_sent(State::SynReceived);
        conn.pending.remove(Pending::Syn);
        conn.snd.nxt = origin.iss + 1;
        conn.last_sent_at = sent;
        conn.opened_at = opened;
        conn.recovery.attempts = attempts;
        conn.rcv.segments = 1;
        conn.segments_out = u64::from(attempts).saturating_add(1);
        conn
    }

    /// Takes over the peer's sequence number, window and options.
    pub(super) fn negotiate(&mut self, now: Instant, config: &StackConfig, offer: &SynOffer) {
        let SynOffer { header, options, ecn } = offer;
        self.ecn.on_syn(header.flags, *ecn);
        self.init_receive(header.seq);
        self.snd.wnd = u32::from(header.window);
        self.snd.max_wnd = self.snd.wnd;
        self.snd.wl1 = header.seq;
        let tcp = &config.tcp;
        self.negotiated.sack = tcp.sack && options.sack_permitted;
        if let Some(shift) = options.window_scale.filter(|_| tcp.window_scale) {
            // RFC 7323 §2.3: "If a Window Scale option is received with a shift.cnt value larger than 14,
            // the TCP SHOULD [...] use 14".
            self.negotiated.window_scale = true;
            self.negotiated.snd_wscale = shift.min(14);
            self.negotiated.rcv_wscale = super::window::offered_scale(config);
        }
        if let Some(ts) = options.timestamps.filter(|_| tcp.timestamps) {
            self.negotiated.timestamps = true;
            self.rcv.ts_recent = ts.value;
            self.heard_at = LongStamp::of(now);
        }
        self.snd.peer_mss = mss_of(options, self.remote().is_ipv4());
        self.set_emss();
        self.window = CongestionWindow::initial(u32::from(self.snd.emss), &config.tcp);
    }

    /// RFC 9293 §3.7.1: "Eff.snd.MSS = min(SendMSS+20, MMS_S) - TCPhdrsize - IPoptionsize".
    pub(super) fn set_emss(&mut self) {
        let mss = self.snd.peer_mss.min(mss_for(self.local(), self.path.mtu));
        let options = if self.negotiated.timestamps { TIMESTAMPS_LEN } else { 0 };
        self.snd.emss = mss.saturating_sub(options).max(1);
        self.window.mss = u32::from(self.snd.emss);
    }

    /// Returns the options of our SYN, or of our SYN-ACK, which has only those that the peer's SYN offered (RFC
    /// 7323 §2.2 and §3.2, RFC 2018 §2).
    pub(super) fn syn_options(&self, config: &StackConfig, now: Instant) -> TcpOptions {
        let tcp = &config.tcp;
        let mss = Some(mss_for(self.local(), config.mtu));
        let value = self.ts_clock(now);
        if self.state == State::SynReceived {
            let agreed = self.negotiated;
            return TcpOptions {
                mss,
                window_scale: agreed.window_scale.then_some(agreed.rcv_wscale),
                sack_permitted: agreed.sack,
                timestamps: agreed.timestamps.then_some(Timestamps { value, echo: self.rcv.ts_recent }),
                sack: SackBlocks::EMPTY,
            };
        }
        TcpOptions {
            mss,
            window_scale: tcp.window_scale.then(|| super::window::offered_scale(config)),
            sack_permitted: tcp.sack,
            timestamps: tcp.timestamps.then_some(Timestamps { value, echo: 0 }),
            sack: SackBlocks::EMPTY,
        }
    }
}

/// Returns the MSS of a SYN, bytes: the announced one or the default.
pub(super) fn mss_of(options: &TcpOptions, is_ipv4: bool) -> u16 {
    let default = if is_ipv4 { MSS_DEFAULT.0 } else { MSS_DEFAULT.1 };
    options.mss.unwrap_or(default).max(MSS_MIN)
}

/// Returns the MSS that our SYN announces, bytes: a packet of `mtu` bytes without options (RFC 6691 §2).
pub(crate) fn mss_for(local: SocketAddr, mtu: u16) -> u16 {
    let headers = if local.is_ipv4() { 40 } else { 60 };
    mtu.saturating_sub(headers).max(MSS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConnOptions;
    use crate::seq::SeqNum;
    use crate::wire::EcnField;

    /// RFC 9293 §3.7.1 (MUST-15, MUST-16).
    #[test]
    fn segment_size_follows_the_peers_mss_and_the_path_mtu() {
        let config = StackConfig::default();
        let emss = |remote: &str, mss, timestamps: bool| {
            let remote: SocketAddr = remote.parse().unwrap();
            let local = if remote.is_ipv4() { "10.0.0.1:7" } else { "[fd77::1]:7" }.parse().unwrap();
            let (iss, options) = (SeqNum::new(0), ConnOptions::default());
            let (listener, path_mtu) = (None, config.mtu);
            let origin = Origin { local, remote, hash: 0, iss, ts_offset: 0, listener, options, path_mtu };
            let timestamps = timestamps.then(Timestamps::default);
            let options = TcpOptions { mss, timestamps, ..TcpOptions::NONE };
            let offer = SynOffer { header: TcpHeader::default(), options, ecn: EcnField::NotEct };
            let sent = (Instant::ZERO, Instant::ZERO, 0);
            Conn::accept(Instant::ZERO, &origin, &config, &offer, sent).snd.emss
        };
        assert_eq!(emss("10.0.0.2:1", None, false), 536);
        assert_eq!(emss("[fd77::2]:1", None, false), 1220);
        assert_eq!(emss("10.0.0.2:1", Some(9000), false), 1460);
        assert_eq!(emss("[fd77::2]:1", Some(9000), false), 1440);
        assert_eq!(emss("10.0.0.2:1", Some(1000), true), 988, "options are a part of the segment");
    }
}
