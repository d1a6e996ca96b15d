//! TCP ports that are ours at addresses of the kernel. The kernel receives our segments, too, and would answer with
//! resets. For each port of ours it has a *mute listener*: a socket that listens, whose filter drops every segment. The
//! listener takes no privilege, and no other program gets the port meanwhile. Our packet sockets receive our ports
//! alone: the frames of the kernel's connections cost us nothing.
//!
//! A worker, which carries out the requests of programs, may open no socket. It takes one from a stock that the control
//! thread fills, and binds it. Nor does it make a packet filter for each port: it lets all of TCP pass, and the control
//! thread narrows that down once the ports have been the same for a while.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use iwarp_config::PortRange;
use iwarp_engine::Reservations;
use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};
use tcp_stack::OurPorts;

use super::address::KernelAddresses;
use super::filter::{RETURN, admitting};

/// Sockets of each address in stock: programs listen at as many ports between two calls of [`Shared::refill`].
const STOCK: usize = 64;

/// An interface whose addresses the kernel has, too.
#[derive(Debug)]
pub struct Shared {
    addresses: KernelAddresses,
    source_ports: PortRange,
    /// The reserved ports, for the stacks.
    ours: OurPorts,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    reserved: BTreeMap<u16, Reserved>,
    /// Packet sockets of the interface.
    sockets: Vec<Weak<OwnedFd>>,
    /// Sockets without an address, with a filter that drops everything, by family.
    stock: Stock,
    refused: u64,
    filter: Filter,
}

/// The filter of the packet sockets, beside our ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Filter {
    /// It passes the ports that we had when it was set, not all.
    is_narrow: bool,
    /// These are still our ports.
    is_exact: bool,
    /// Our ports have changed since the last [`Shared::refill`].
    has_changed: bool,
}

impl Filter {
    fn changed(&mut self) {
        *self = Self { is_exact: false, has_changed: true, ..*self };
    }
}

#[derive(Debug, Default)]
struct Stock {
    ipv4: Vec<Socket>,
    ipv6: Vec<Socket>,
}

impl Stock {
    fn of(&mut self, domain: Domain) -> &mut Vec<Socket> {
        if domain == Domain::IPV6 { &mut self.ipv6 } else { &mut self.ipv4 }
    }
}

#[derive(Debug)]
struct Reserved {
    count: u32,
    _listeners: Vec<Socket>,
}

/// Ports that the kernel has reserved for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Ports that are reserved now, source ports included.
    pub ports: usize,
    /// Times that another program had a port.
    pub refused: u64,
}

impl Shared {
    /// Reserves the range of source ports at the addresses that the kernel has on an interface. Ports that other
    /// programs have are left out.
    ///
    /// # Errors
    /// The interface has no address, no port of the range is free, or the process may have no more descriptors.
    pub fn of(interface: &str, source_ports: PortRange) -> io::Result<Self> {
        let addresses = KernelAddresses::of(interface)?;
        let shared = Self { addresses, source_ports, ours: OurPorts::default(), state: Mutex::default() };
        let mut state = shared.lock();
        let mut last = None;
        for port in source_ports.ports() {
            match state.listeners(&addresses, port) {
                Ok(listeners) => state.enter(&shared.ours, port, listeners),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        match last {
            Some(error) if state.reserved.is_empty() => return Err(error),
            _ => drop(state),
        }
        shared.refill();
        Ok(shared)
    }

    /// Fills the stock of sockets up, and narrows the filter. Called every second, by a thread that may open sockets.
    pub fn refill(&self) {
        for domain in [Domain::IPV4, Domain::IPV6] {
            let ends = self.addresses.ends(0).filter(|end| Domain::for_address(*end) == domain);
            let wanted = ends.count().saturating_mul(STOCK);
            let missing = wanted.saturating_sub(self.lock().stock.of(domain).len());
            // Without the lock, which workers take, too. A process without descriptors left tries again later.
            let made: Vec<Socket> = std::iter::from_fn(|| mute(domain).ok()).take(missing).collect();
            self.lock().stock.of(domain).extend(made);
        }
        let mut state = self.lock();
        let waits = std::mem::take(&mut state.filter.has_changed) || state.filter.is_exact;
        // A filter that lets too much through costs time alone.
        if !waits && self.attach(&state, true).is_ok() {
            state.filter = Filter { is_narrow: true, is_exact: true, has_changed: false };
        }
    }

    /// Returns the addresses, as the kernel had them at the start.
    pub fn addresses(&self) -> &KernelAddresses {
        &self.addresses
    }

    /// Checks that the interface of a name still is the one whose addresses were read, and has the station address that
    /// the stacks send from.
    ///
    /// # Errors
    /// It is not: the listeners are bound to the former one, and neighbors know another station address.
    pub(super) fn check(&self, interface: &str, (has, sends): ([u8; 6], [u8; 6])) -> io::Result<()> {
        if has == sends && KernelAddresses::of(interface)? == self.addresses {
            return Ok(());
        }
        Err(io::Error::other("its addresses are not those that it had at the start: restart iwarpd"))
    }

    /// Returns the ports that are reserved.
    pub fn ours(&self) -> &OurPorts {
        &self.ours
    }

    /// Returns the source ports of our connections.
    pub fn source_ports(&self) -> PortRange {
        self.source_ports
    }

    /// Returns the number of ports that are reserved.
    pub fn reservation(&self) -> Reservation {
        let state = self.lock();
        Reservation { ports: state.reserved.len(), refused: state.refused }
    }

    /// Has packet sockets receive our ports alone, as these change.
    ///
    /// # Errors
    /// Those of `SO_ATTACH_FILTER`.
    pub(super) fn narrow<'a>(&self, sockets: impl Iterator<Item = &'a Arc<OwnedFd>>) -> io::Result<()> {
        let mut state = self.lock();
        state.sockets = sockets.map(Arc::downgrade).collect();
        state.filter = Filter::default();
        self.attach(&state, false)
    }

    /// Sets the filter of all sockets: for our ports alone, or for all.
    fn attach(&self, state: &State, is_narrow: bool) -> io::Result<()> {
        let filter = match is_narrow {
            true => admitting(state.reserved.keys().copied()),
            false => admitting(0..=u16::MAX),
        };
        let mut sockets = state.sockets.iter().filter_map(Weak::upgrade);
        sockets.try_for_each(|socket| SockRef::from(socket.as_ref()).attach_filter(&filter))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Makes the listeners of a port, one for each address.
    fn listeners(&mut self, addresses: &KernelAddresses, port: u16) -> io::Result<Vec<Socket>> {
        let listener = |end: SocketAddr| {
            let domain = Domain::for_address(end);
            let socket = self.stock.of(domain).pop().map_or_else(|| mute(domain), Ok)?;
            match socket.bind(&end.into()) {
                Ok(()) => socket.listen(1).map(|()| socket),
                Err(error) => {
                    self.stock.of(domain).push(socket);
                    Err(error)
                }
            }
        };
        addresses.ends(port).map(listener).collect()
    }

    fn enter(&mut self, ours: &OurPorts, port: u16, listeners: Vec<Socket>) {
        self.reserved.insert(port, Reserved { count: 1, _listeners: listeners });
        ours.insert(port);
    }
}

impl Reservations for Shared {
    fn reserve(&self, port: u16) -> bool {
        let mut state = self.lock();
        if let Some(reserved) = state.reserved.get_mut(&port) {
            reserved.count = reserved.count.saturating_add(1);
            return true;
        }
        let Ok(listeners) = state.listeners(&self.addresses, port) else {
            state.refused = state.refused.wrapping_add(1);
            return false;
        };
        if state.filter.is_narrow && self.attach(&state, false).is_err() {
            return false;
        }
        state.filter = Filter { is_narrow: false, is_exact: false, has_changed: true };
        state.enter(&self.ours, port, listeners);
        true
    }

    fn release(&self, port: u16) {
        let mut state = self.lock();
        let Some(reserved) = state.reserved.get_mut(&port) else { return };
        reserved.count = reserved.count.saturating_sub(1);
        if reserved.count == 0 {
            self.ours.remove(port);
            state.reserved.remove(&port);
            state.filter.changed();
        }
    }
}

/// Opens a socket whose filter drops everything.
fn mute(domain: Domain) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)])?;
    // An address may be about to come: IPv6 looks for duplicates first.
    if domain == Domain::IPV6 {
        socket.set_only_v6(true)?;
        socket.set_freebind_v6(true)?;
    } else {
        socket.set_freebind_v4(true)?;
    }
    // Without SO_REUSEADDR: connections of the kernel's, which that would pass over, keep their port.
    Ok(socket)
}
