//! Calls of librdmacm: channels, ids, connections.

use std::ffi::{c_char, c_int, c_void};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use iwarp_verbs::{ConnParam as Param, NextHop, QueuePair, RtrOptions};

use crate::abi::QpAttr;
use crate::abi_cm::ConnParam;
use crate::addresses::{device_at, devices_at_any, devices_to, is_any, unspecified};
use crate::cm::{self, CmEvent, Id, ROUTE_RESOLVED, Stage};
use crate::context::{OpenContext, Shared, context_at, context_of, failed_read, lock, null, number};
use crate::device_list::devices;
use crate::endpoint::complete;
use crate::event_channel::EventChannel;
use crate::options::set_option;
use crate::qp::{self, Qp};
use crate::raw::{address, array, export, export_waiting, object, write};
use crate::resolve::{self, Resolution};

/// Reads at a time of a connection if the program asks for as many as possible.
const DEPTH_MAX: u16 = 16;
/// Ports of listeners that the program does not choose, as the kernel's.
const EPHEMERAL: std::ops::Range<u16> = 32_768..61_000;
/// Other port spaces: `RDMA_PS_IPOIB` and `RDMA_PS_UDP`, of datagrams.
const DATAGRAMS: [c_int; 2] = [0x0002, 0x0111];
/// Sets `errno` if the call has failed, and returns what the program gets.
pub(crate) fn answer(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(number) => {
            errno::set_errno(errno::Errno(number));
            -1
        }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(crate) fn failed(error: iwarp_verbs::Error) -> c_int {
    number(&error)
}

/// Returns the parameters of a connection, with `private_data`. Some programs send first on the side that accepts: the
/// peer-to-peer model allows that.
fn param<'a>(given: &ConnParam, private_data: &'a [u8]) -> Param<'a> {
    let depth = |depth: u8| if depth == u8::MAX { DEPTH_MAX } else { depth.into() };
    Param {
        private_data,
        responder_resources: depth(given.responder_resources),
        initiator_depth: depth(given.initiator_depth),
        rtr: peer_to_peer(),
        ..Param::default()
    }
}

/// Returns the ready-to-receive messages of the peer-to-peer model.
pub(crate) const fn peer_to_peer() -> Option<RtrOptions> {
    Some(RtrOptions { send: false, write: true, read: true })
}

/// Returns the queue pair of a connection: that of the id, or the one of the device that the parameters name, whatever
/// its context.
fn qp_of(id: &Id, given: &ConnParam) -> Result<QueuePair, c_int> {
    if let Some(qp) = object::<Qp>(id.head.qp.load(Ordering::Acquire)) {
        *lock(&qp.connection) = Some(Arc::clone(&id.state));
        return Ok(qp.qp.clone());
    }
    let shared = &id.verbs().ok_or(libc::EINVAL)?.shared;
    let qps = lock(&shared.qps);
    let (_, route) = qps.iter().find(|(number, _)| number.0 == given.qp_num).ok_or(libc::EINVAL)?;
    if let Some(qp) = object(ptr::with_exposed_provenance::<Qp>(route.address)) {
        *lock(&qp.connection) = Some(Arc::clone(&id.state));
    }
    Ok(route.qp.clone())
}

/// Returns a port that differs from those that this program and others have received last.
fn some_port() -> u16 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = std::process::id().wrapping_mul(101).wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
    let offset = number % u32::from(EPHEMERAL.end - EPHEMERAL.start);
    EPHEMERAL.start + u16::try_from(offset).unwrap_or(0)
}

/// Gives an id an address of this machine, and its device. Some programs send their port to the peer before they
/// listen, so what takes time is done here.
pub(crate) fn bind(id: &Id, local: SocketAddr) -> Result<(), c_int> {
    if lock(&id.state.inner).stage != Stage::Idle {
        return Err(libc::EINVAL);
    }
    let ip = match local.ip() {
        ip if !is_any(ip) => {
            let device = device_at(ip).ok_or(libc::EADDRNOTAVAIL)?;
            id.set_verbs(context_of(device)?);
            ip
        }
        ip => {
            // A device that does not open now fails the call that needs it.
            for device in devices_at_any() {
                let _ = context_of(device);
            }
            unspecified(ip)
        }
    };
    check_port(SocketAddr::new(ip, local.port()))?;
    let any_port = local.port() == 0;
    id.head.src.set(SocketAddr::new(ip, if any_port { some_port() } else { local.port() }));
    let mut inner = lock(&id.state.inner);
    (inner.any_port, inner.stage) = (any_port, Stage::Bound);
    Ok(())
}

/// Asks the daemon if the program's user may use a port below 1024.
///
/// # Errors
/// EACCES, as the kernel's `rdma_bind_addr`.
fn check_port(local: SocketAddr) -> Result<(), c_int> {
    if !(1..1024).contains(&local.port()) {
        return Ok(());
    }
    let asked = devices().iter().flatten().next().ok_or(libc::ENODEV)?;
    // The id is destroyed at once: ports are claimed by listeners and connections.
    context_of(asked)?.shared.context.create_id(Some(local)).map(drop).map_err(failed)
}

/// Resolves the address of a peer within a time limit. An event reports the outcome.
pub(crate) fn resolve(
    id: &Id,
    source: Option<SocketAddr>,
    peer: SocketAddr,
    limit: Duration,
) -> Result<(), c_int> {
    let until = resolve::end_of(limit);
    let hop = select(id, source, peer)?;
    let ends = id.head.src.get().zip(id.head.dst.get());
    let (shared, (local, peer)) =
        id.verbs().map(|open| Arc::clone(&open.shared)).zip(ends).ok_or(libc::EINVAL)?;
    let number = {
        let mut inner = lock(&id.state.inner);
        inner.resolutions = inner.resolutions.wrapping_add(1);
        inner.stage = Stage::Resolving(inner.resolutions);
        inner.resolutions
    };
    let resolution = Resolution { state: Arc::clone(&id.state), number, shared, local, peer, until };
    match hop {
        NextHop::Known => resolution.end(Ok(())),
        NextHop::None => resolution.end(Err(libc::ENETUNREACH)),
        NextHop::Unknown => resolution.wait(),
    }
    complete(id)
}

/// Selects the device that reaches a peer, and the local address; an id without a port gets one. A `source` counts for
/// an id that is not bound. Returns what is known of the next hop.
pub(crate) fn select(id: &Id, source: Option<SocketAddr>, peer: SocketAddr) -> Result<NextHop, c_int> {
    let stage = lock(&id.state.inner).stage;
    match stage {
        Stage::Idle => {
            if let Some(source) = source {
                bind(id, source)?;
            }
        }
        Stage::Bound => {}
        _ => return Err(libc::EINVAL),
    }
    let bound = id.head.src.get();
    if bound.is_some_and(|bound| bound.is_ipv4() != peer.is_ipv4()) {
        return Err(libc::EINVAL);
    }
    let candidates = match bound.map(|local| local.ip()).filter(|local| !local.is_unspecified()) {
        Some(own) => {
            let open = object(id.head.verbs.load(Ordering::Acquire)).ok_or(libc::EINVAL)?;
            vec![(open, own)]
        }
        None => {
            let open = |(device, own)| Ok((context_of(device)?, own));
            devices_to(peer.ip()).into_iter().map(open).collect::<Result<_, c_int>>()?
        }
    };
    let port = bound.map_or(0, |local| local.port());
    let mut found = None;
    for (open, own) in candidates {
        let to = SocketAddr::new(if is_any(peer.ip()) { own } else { peer.ip() }, peer.port());
        let (hop, local) =
            open.shared.context.resolve(Some(SocketAddr::new(own, port)), to).map_err(failed)?;
        let mut local = local.unwrap_or(SocketAddr::new(own, port));
        if port != 0 {
            // Of an id that is bound to any address, the kernel has chosen another one.
            local.set_port(port);
        }
        let is_way = hop != NextHop::None;
        if found.is_none() || is_way {
            found = Some((open, local, to, hop));
        }
        if is_way {
            break;
        }
    }
    let (open, local, to, hop) = found.ok_or(libc::ENODEV)?;
    id.set_verbs(context_at(&open.shared, local.ip()).unwrap_or(open));
    id.head.src.set(if local.port() == 0 { SocketAddr::new(local.ip(), some_port()) } else { local });
    id.head.dst.set(to);
    let mut inner = lock(&id.state.inner);
    inner.any_port |= port == 0;
    inner.stage = Stage::Bound;
    Ok(hop)
}

fn connect(id: &Id, given: &ConnParam) -> Result<(), c_int> {
    if lock(&id.state.inner).stage != Stage::RouteResolved {
        return Err(libc::EINVAL);
    }
    let qp = qp_of(id, given)?;
    let private_data = array(given.private_data, given.private_data_len.into());
    id.begin_handshake();
    connect_with(id, &qp, &param(given, private_data))?;
    complete(id)
}

/// Requests a connection of a queue pair. Events report the outcome.
pub(crate) fn connect_with(id: &Id, qp: &QueuePair, param: &Param<'_>) -> Result<(), c_int> {
    let shared = Arc::clone(&id.verbs().ok_or(libc::EINVAL)?.shared);
    let peer = id.head.dst.get().ok_or(libc::EINVAL)?;
    let local = id.head.src.get();
    let connection = shared.context.create_id(local).map_err(failed)?;
    let (any_port, class) = {
        let inner = lock(&id.state.inner);
        (inner.any_port, inner.traffic_class)
    };
    if class != 0 {
        connection.set_traffic_class(class).map_err(failed)?;
    }
    // Before the request: the event may come first.
    lock(&shared.ids).insert(connection.handle(), Arc::clone(&id.state));
    let connected = connection.connect_from(qp, peer, param, any_port).map_err(failed);
    let local = match connected.and_then(|()| check_address(id, &connection, &shared)) {
        Ok(local) => local,
        Err(error) => {
            lock(&shared.ids).remove(&connection.handle());
            return Err(error);
        }
    };
    // The daemon may have taken another port.
    local.into_iter().for_each(|local| id.head.src.set(local));
    let mut inner = lock(&id.state.inner);
    inner.stage = Stage::Connected;
    inner.ids.push((connection, shared));
    Ok(())
}

fn accept(id: &Id, given: &ConnParam) -> Result<(), c_int> {
    requested(id)?;
    let qp = qp_of(id, given)?;
    let private_data = array(given.private_data, given.private_data_len.into());
    accept_with(id, &qp, private_data)?;
    complete(id)
}

/// Returns an error unless a peer waits for the id's answer.
fn requested(id: &Id) -> Result<(), c_int> {
    if lock(&id.state.inner).stage == Stage::Requested { Ok(()) } else { Err(libc::EINVAL) }
}

/// Accepts a connection with a queue pair. Events report the outcome.
pub(crate) fn accept_with(id: &Id, qp: &QueuePair, private_data: &[u8]) -> Result<(), c_int> {
    let mut inner = lock(&id.state.inner);
    let (connection, _) = inner.ids.first().ok_or(libc::EINVAL)?;
    connection.accept(qp, private_data).map_err(failed)?;
    id.state.set_answered(&mut inner);
    Ok(())
}

/// Returns the local address of a listener or connection, or an error if the daemon has refused it.
fn check_address(
    id: &Id,
    asked: &iwarp_verbs::Id,
    shared: &Arc<Shared>,
) -> Result<Option<SocketAddr>, c_int> {
    // The worker has executed the request before it answers the next one; then its event is there.
    let (local, _) = asked.addresses().map_err(failed)?;
    shared.dispatch();
    let refused = std::mem::take(&mut lock(&id.state.inner).refused);
    if refused { Err(libc::EADDRINUSE) } else { Ok(local) }
}

/// Listens at an address on one device.
fn listen_on(
    id: &Id,
    open: &'static OpenContext,
    local: SocketAddr,
    backlog: NonZeroU16,
) -> Result<(), c_int> {
    let shared = Arc::clone(&open.shared);
    let listener = shared.context.create_id(Some(local)).map_err(failed)?;
    let class = lock(&id.state.inner).traffic_class;
    if class != 0 {
        listener.set_traffic_class(class).map_err(failed)?;
    }
    lock(&shared.ids).insert(listener.handle(), Arc::clone(&id.state));
    let listens = listener.listen(backlog, &Param::default()).map_err(failed);
    let result = listens.and_then(|()| check_address(id, &listener, &shared));
    if let Err(error) = result {
        lock(&shared.ids).remove(&listener.handle());
        return Err(error);
    }
    lock(&id.state.inner).ids.push((listener, shared));
    Ok(())
}

/// Listens at the address of an id: on its device, or on all.
pub(crate) fn listen(id: &Id, backlog: c_int) -> Result<(), c_int> {
    if !matches!(lock(&id.state.inner).stage, Stage::Idle | Stage::Bound) {
        return Err(libc::EINVAL);
    }
    let local = id.head.src.get().unwrap_or(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
    // The library counts the requests that the program has not fetched.
    id.state.set_backlog(backlog);
    let backlog = NonZeroU16::MAX;
    let opens: Vec<&'static OpenContext> = match object(id.head.verbs.load(Ordering::Acquire)) {
        Some(open) => vec![open],
        None => devices_at_any().map(context_of).collect::<Result<_, _>>()?,
    };
    if opens.is_empty() {
        return Err(libc::ENODEV);
    }
    let any_port = local.port() == 0 || lock(&id.state.inner).any_port;
    let chosen = if local.port() == 0 { some_port() } else { local.port() };
    let ports = if any_port { EPHEMERAL } else { chosen..chosen.saturating_add(1) };
    let first = chosen.saturating_sub(ports.start);
    let count = ports.end.saturating_sub(ports.start).max(1);
    for at in 0..count {
        let port = if count == 1 { ports.start } else { ports.start + (first + at) % count };
        let local = SocketAddr::new(local.ip(), port);
        // Unless the program has asked for one family, the unspecified address of IPv6 is that of both.
        let both = local.is_ipv6() && local.ip().is_unspecified() && !lock(&id.state.inner).one_family;
        let ipv4 = both.then(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
        let at_all = |open: &&'static OpenContext| {
            std::iter::once(local).chain(ipv4).try_for_each(|local| listen_on(id, open, local, backlog))
        };
        match opens.iter().try_for_each(at_all) {
            Ok(()) => {
                id.head.src.set(local);
                lock(&id.state.inner).stage = Stage::Listening;
                return Ok(());
            }
            Err(error) => {
                let made = std::mem::take(&mut lock(&id.state.inner).ids);
                for (listener, shared) in &made {
                    lock(&shared.ids).remove(&listener.handle());
                }
                if error != libc::EADDRINUSE || at + 1 == count {
                    return Err(error);
                }
            }
        }
    }
    Err(libc::EADDRINUSE)
}

/// Closes the connection of an id.
pub(crate) fn disconnect(id: &Id) -> Result<(), c_int> {
    {
        let mut inner = lock(&id.state.inner);
        if !matches!(inner.stage, Stage::Connected | Stage::Requested) {
            return Err(libc::EINVAL);
        }
        if inner.closed {
            return Ok(());
        }
        let (connection, _) = inner.ids.first().ok_or(libc::EINVAL)?;
        connection.disconnect().map_err(failed)?;
        inner.closed = true;
    }
    complete(id)
}

/// Moves an id, and its events, to a channel.
fn migrate(id: &Id, to: &EventChannel) {
    let mut channel = lock(&id.state.channel);
    let old = std::mem::replace(&mut *channel, to.queue());
    for entry in old.remove(|entry| Arc::ptr_eq(&entry.state, &id.state)) {
        channel.push(entry);
    }
    drop(channel);
    id.head.channel.store(ptr::from_ref(to).cast_mut(), Ordering::Release);
}

export! {
    fn rdma_create_event_channel() -> Option<Box<EventChannel>> {
        match EventChannel::new() {
            Ok(channel) => Some(Box::new(channel)),
            Err(error) => null(error.raw_os_error().unwrap_or(libc::EMFILE)),
        }
    }

    fn rdma_destroy_event_channel(channel: Option<Box<EventChannel>>) {
        channel.into_iter().for_each(EventChannel::destroy);
    }

    fn rdma_create_id(
        channel: Option<&EventChannel>,
        out: Option<&mut *const Id>,
        context: *mut c_void,
        port_space: c_int,
    ) -> c_int {
        let Some(out) = out else { return answer(Err(libc::EINVAL)) };
        match port_space {
            cm::PORT_SPACE_TCP | cm::PORT_SPACE_IB => {}
            space if DATAGRAMS.contains(&space) => return answer(Err(libc::EOPNOTSUPP)),
            _ => return answer(Err(libc::EINVAL)),
        }
        let own = if channel.is_none() { rdma_create_event_channel() } else { None };
        let own = own.map(|channel| &*Box::leak(channel));
        let sync = channel.is_none();
        let Some(channel) = channel.or(own) else { return -1 };
        let id = Id::create(channel, sync);
        id.head.context.store(context, Ordering::Release);
        *out = Box::into_raw(id);
        0
    }

    fn rdma_destroy_id(id: Option<Box<Id>>) -> c_int {
        let Some(id) = id else { return answer(Err(libc::EINVAL)) };
        cm::destroy(id);
        0
    }
}

export_waiting! {
    fn rdma_bind_addr(id: Option<&Id>, local: *const u8) -> c_int {
        let Some((id, local)) = id.zip(address(local)) else { return answer(Err(libc::EINVAL)) };
        answer(bind(id, local))
    }

    fn rdma_resolve_addr(id: Option<&Id>, source: *const u8, peer: *const u8, timeout_ms: c_int) -> c_int {
        let Some((id, peer)) = id.zip(address(peer)) else { return answer(Err(libc::EINVAL)) };
        let limit = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
        answer(resolve(id, address(source), peer, limit))
    }

    fn rdma_resolve_route(id: Option<&Id>, _timeout_ms: c_int) -> c_int {
        let Some(id) = id else { return answer(Err(libc::EINVAL)) };
        {
            let mut inner = lock(&id.state.inner);
            if inner.stage != Stage::AddrResolved {
                return answer(Err(libc::EINVAL));
            }
            inner.stage = Stage::RouteResolved;
            // The device has the only route.
            id.state.report(ROUTE_RESOLVED, 0);
        }
        answer(complete(id))
    }

    fn rdma_connect(id: Option<&Id>, given: Option<&ConnParam>) -> c_int {
        let Some(id) = id else { return answer(Err(libc::EINVAL)) };
        answer(connect(id, given.unwrap_or(&ConnParam::default())))
    }

    fn rdma_establish(id: Option<&Id>) -> c_int {
        answer(id.ok_or(libc::EINVAL).and_then(Id::establish))
    }

    fn rdma_listen(id: Option<&Id>, backlog: c_int) -> c_int {
        let Some(id) = id else { return answer(Err(libc::EINVAL)) };
        answer(listen(id, backlog))
    }

    fn rdma_accept(id: Option<&Id>, given: Option<&ConnParam>) -> c_int {
        let Some(id) = id else { return answer(Err(libc::EINVAL)) };
        answer(accept(id, given.unwrap_or(&ConnParam::default())))
    }

    fn rdma_reject(id: Option<&Id>, private_data: *const u8, length: u8) -> c_int {
        let Some(id) = id else { return answer(Err(libc::EINVAL)) };
        if let Err(error) = requested(id) {
            return answer(Err(error));
        }
        let mut inner = lock(&id.state.inner);
        let rejected = inner.ids.first().ok_or(libc::EINVAL).and_then(|(connection, _)| {
            connection.reject(array(private_data, length.into())).map_err(failed)
        });
        if rejected.is_ok() {
            id.state.set_answered(&mut inner);
        }
        answer(rejected)
    }

    fn rdma_disconnect(id: Option<&Id>) -> c_int {
        let Some(id) = id else { return answer(Err(libc::EINVAL)) };
        answer(disconnect(id))
    }

    fn rdma_get_cm_event(channel: Option<&EventChannel>, out: Option<&mut *const CmEvent>) -> c_int {
        let Some((channel, out)) = channel.zip(out) else { return answer(Err(libc::EINVAL)) };
        let event = match channel.next() {
            Ok(event) => event,
            Err(error) => return failed_read(&error),
        };
        *out = Box::into_raw(event);
        0
    }

    fn rdma_ack_cm_event(event: Option<Box<CmEvent>>) -> c_int {
        let Some(event) = event else { return answer(Err(libc::EINVAL)) };
        cm::acknowledge(event);
        0
    }

    fn rdma_migrate_id(id: Option<&Id>, channel: Option<&EventChannel>) -> c_int {
        let Some(id) = id else { return answer(Err(libc::EINVAL)) };
        let own = if channel.is_none() { rdma_create_event_channel() } else { None };
        let sync = channel.is_none();
        let own = own.map(|channel| &*Box::leak(channel));
        let Some(to) = channel.or(own) else { return -1 };
        let from = id.head.channel.load(Ordering::Acquire);
        let was_sync = std::mem::replace(&mut lock(&id.state.inner).sync, sync);
        migrate(id, to);
        if was_sync {
            drop(crate::raw::take(from));
        }
        0
    }

    fn rdma_set_option(
        id: Option<&Id>,
        level: c_int,
        name: c_int,
        value: *const c_void,
        length: usize,
    ) -> c_int {
        let Some(id) = id.filter(|_| !value.is_null()) else { return answer(Err(libc::EINVAL)) };
        let length = c_int::try_from(length).unwrap_or(c_int::MAX);
        answer(set_option(id, (level, name), array(value.cast(), length)))
    }

    fn rdma_notify(id: Option<&Id>, _event: c_int) -> c_int {
        // An iWARP connection needs no event of its queue pair.
        let connected = |id: &&Id| matches!(lock(&id.state.inner).stage, Stage::Connected | Stage::Requested);
        answer(id.filter(connected).map(|_| ()).ok_or(libc::EINVAL))
    }

    fn rdma_get_src_port(id: Option<&Id>) -> u16 {
        id.and_then(|id| id.head.src.get()).map_or(0, |address| address.port().to_be())
    }

    fn rdma_get_dst_port(id: Option<&Id>) -> u16 {
        id.and_then(|id| id.head.dst.get()).map_or(0, |address| address.port().to_be())
    }

    fn rdma_get_devices(count: Option<&mut c_int>) -> *const Option<&'static OpenContext> {
        let opens = devices().iter().flatten().map(|device| context_of(device).ok());
        let mut opens: Vec<_> = opens.flatten().map(Some).collect();
        if opens.is_empty() {
            errno::set_errno(errno::Errno(libc::ENODEV));
            return ptr::null();
        }
        if let Some(count) = count {
            *count = c_int::try_from(opens.len()).unwrap_or(0);
        }
        opens.push(None);
        // The program does not state the length when it frees the list: eight bytes for each device stay.
        opens.leak().as_ptr()
    }

    fn rdma_free_devices(_list: *const c_void) {}

    fn rdma_init_qp_attr(id: Option<&Id>, attr: *mut QpAttr, mask: Option<&mut c_int>) -> c_int {
        let Some((_, mask)) = id.zip(mask).filter(|_| !attr.is_null()) else { return answer(Err(libc::EINVAL)) };
        let state = object(attr.cast_const()).map_or(0, |attr: &QpAttr| attr.qp_state);
        let Some(bits) = qp::connection_mask(state) else { return answer(Err(libc::EINVAL)) };
        write(attr, 0, QpAttr { qp_state: state, qp_access_flags: qp::ACCESS, port_num: 1, ..QpAttr::default() });
        *mask = bits;
        0
    }

    fn rdma_event_str(event: c_int) -> *const c_char {
        crate::names::cm_event(event).as_ptr()
    }
}
