//! Ids of librdmacm, and the events of the daemon on their way to them.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use iwarp_verbs::{CmEvent as VerbsEvent, CmEventKind, ErrorCode};

use crate::abi_cm::{Address, ConnParam, EventHead, IdHead};
use crate::context::{OpenContext, Shared, context_at, lock};
use crate::device_list::is_roce;
use crate::event_channel::EventChannel;
use crate::objects::Pd;
use crate::qp::{ERROR, QPT_RC, Qp};
use crate::queue::Queue;
use crate::raw::{object, take};
use crate::unplaced::{place_request, place_requests};

/// Longest wait for the end of a connection that the program has closed, before its id is destroyed.
const SETTLE: Duration = Duration::from_secs(2);

/// `RDMA_PS_TCP`, the port space of streams.
pub(crate) const PORT_SPACE_TCP: c_int = 0x0106;
/// `RDMA_PS_IB`: that of any reliable connection, whose addresses may be those of IP.
pub(crate) const PORT_SPACE_IB: c_int = 0x013f;

// Values of `enum rdma_cm_event_type`.
pub(crate) const ADDR_RESOLVED: c_int = 0;
pub(crate) const ADDR_ERROR: c_int = 1;
pub(crate) const ROUTE_RESOLVED: c_int = 2;
pub(crate) const CONNECT_REQUEST: c_int = 4;
const CONNECT_RESPONSE: c_int = 5;
const CONNECT_ERROR: c_int = 6;
const UNREACHABLE: c_int = 7;
pub(crate) const REJECTED: c_int = 8;
pub(crate) const ESTABLISHED: c_int = 9;
const DISCONNECTED: c_int = 10;
const DEVICE_REMOVAL: c_int = 11;

/// Listener or connection (`struct rdma_cm_id`).
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Id {
    pub(crate) head: IdHead,
    pub(crate) state: Arc<IdState>,
}

/// State of an id, which events have a handle of.
#[derive(Debug)]
pub(crate) struct IdState {
    /// Address of the [`Id`].
    pub(crate) address: AtomicU64,
    pub(crate) channel: Mutex<Arc<Queue<Entry>>>,
    pub(crate) inner: Mutex<Inner>,
    /// Wakes those who wait for a change of `inner`.
    changed: Condvar,
    /// Most requests for connections that the program has not fetched from the channel, and their number.
    backlog: AtomicU32,
    unfetched: AtomicU32,
    /// True once `rdma_destroy_id` was called: changes while `channel` is locked.
    leaving: AtomicBool,
    /// Events that the program has received and not acknowledged.
    pub(crate) unacknowledged: AtomicU32,
}

/// Most unfetched requests of a listener, also without a backlog; the kernel's default.
const BACKLOG_MAX: u32 = 1024;

/// Place in the backlog of a listener, until the program has fetched the request, or it is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<IdState>);

impl Place {
    /// Takes a place; `None` if all are taken. One thread at a time distributes the events of a device.
    fn take(listener: &Arc<IdState>) -> Option<Self> {
        let most = listener.backlog.load(Ordering::Acquire);
        let take = |taken: u32| taken.checked_add(1).filter(|taken| *taken <= most);
        let taken = listener.unfetched.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        taken.is_ok().then(|| Self(Arc::clone(listener)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.unfetched.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Stage of an id: which calls it accepts, as the states of the kernel's CM say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It is new: it has neither address nor device.
    #[default]
    Idle,
    /// It has a local address, and maybe a device.
    Bound,
    /// The resolution of its peer with this number is under way.
    Resolving(u64),
    /// It has a device and a peer.
    AddrResolved,
    /// It has a route, and can connect.
    RouteResolved,
    /// A peer has asked for a connection, and waits for an answer.
    Requested,
    /// It has connected, accepted or rejected.
    Connected,
    /// It receives requests of peers.
    Listening,
}

/// Who completes a connection that an id requests. On a device of RoCE, a program that connects a queue pair of its own
/// changes it once the peer has answered, and establishes the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Handshake {
    /// The library: the program gets `RDMA_CM_EVENT_ESTABLISHED`.
    #[default]
    OfLibrary,
    /// The program, which waits for the peer's answer.
    Requested,
    /// The program, by `rdma_establish`: the peer has accepted.
    Answered,
}

/// Variable state of an id.
#[derive(Debug, Default)]
pub(crate) struct Inner {
    /// Ids of the daemon: of the connection, or a listener on each device.
    pub(crate) ids: Vec<(iwarp_verbs::Id, Arc<Shared>)>,
    /// True if `rdma_bind_addr` has chosen the port, for a program that left it open.
    pub(crate) any_port: bool,
    /// True for a listener that does not receive connections of the other family (`RDMA_OPTION_ID_AFONLY`).
    pub(crate) one_family: bool,
    /// True for an id without a channel of the program.
    pub(crate) sync: bool,
    /// Calls that the id accepts.
    pub(crate) stage: Stage,
    /// Number of resolutions that have begun.
    pub(crate) resolutions: u64,
    /// Traffic class of its packets (`RDMA_OPTION_ID_TOS`).
    pub(crate) traffic_class: u8,
    /// Who completes the connection that the id has requested.
    pub(crate) handshake: Handshake,
    /// True once the program has closed the connection.
    pub(crate) closed: bool,
    /// True once the connection has ended, or could not be made.
    ended: bool,
    /// True if the program has destroyed the queue pair of the id by itself.
    abandoned: bool,
    /// True if the address of a listener is not available.
    pub(crate) refused: bool,
    /// Parameters of queue pairs for connections of a listener (`rdma_create_ep`).
    pub(crate) qp_init: Option<crate::endpoint::QpInit>,
}

/// A peer's request for a connection.
#[derive(Debug)]
pub(crate) struct ConnectRequest {
    connection: iwarp_verbs::Id,
    shared: Arc<Shared>,
    local: SocketAddr,
    peer: SocketAddr,
}

/// An event on its way.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) state: Arc<IdState>,
    pub(crate) kind: c_int,
    pub(crate) status: c_int,
    pub(crate) private_data: Box<[u8]>,
    /// Inbound and outbound reads at a time.
    depths: (u8, u8),
    /// New connection of a listener.
    pub(crate) request: Option<ConnectRequest>,
    /// The request's place in the backlog.
    place: Option<Place>,
}

/// Event of an id (`struct rdma_cm_event`).
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CmEvent {
    pub(crate) head: EventHead,
    private_data: Box<[u8]>,
    state: Arc<IdState>,
}

impl Entry {
    pub(crate) fn new(state: &Arc<IdState>, kind: c_int, status: c_int) -> Self {
        let (private_data, depths, request) = (Box::default(), (0, 0), None);
        Self { state: Arc::clone(state), kind, status, private_data, depths, request, place: None }
    }

    /// Queues a request if there is a place in its listener's backlog; returns it otherwise.
    pub(crate) fn place(mut self) -> Option<Self> {
        self.place = Place::take(&self.state);
        if self.place.is_none() {
            return Some(self);
        }
        let state = Arc::clone(&self.state);
        state.push(self);
        None
    }

    /// Rejects the request that the entry carries.
    pub(crate) fn reject(self) {
        if let Some(request) = self.request {
            // Fails only if the peer has gone.
            let _ = request.connection.reject(&[]);
        }
    }
}

impl IdState {
    /// Returns the id; `None` once it is destroyed.
    pub(crate) fn id(&self) -> Option<&Id> {
        let address = usize::try_from(self.address.load(Ordering::Acquire)).ok()?;
        object(ptr::with_exposed_provenance::<Id>(address))
    }

    /// Returns true for a request that the program has neither accepted nor rejected.
    fn is_unanswered(&self) -> bool {
        self.waits_for_answer(&lock(&self.inner))
    }

    fn waits_for_answer(&self, inner: &Inner) -> bool {
        self.address.load(Ordering::Acquire) != 0 && inner.stage == Stage::Requested
    }

    /// Waits until the program has accepted, rejected or destroyed a request. Returns false if it has not in this time.
    pub(crate) fn wait_answered(&self, longest: Duration) -> bool {
        let inner = lock(&self.inner);
        let waited = self.changed.wait_timeout_while(inner, longest, |inner| self.waits_for_answer(inner));
        waited.is_ok_and(|(_, time)| !time.timed_out())
    }

    /// Notes that the program has answered a request.
    pub(crate) fn set_answered(&self, inner: &mut Inner) {
        inner.stage = Stage::Connected;
        self.changed.notify_all();
    }

    /// Queues an event, unless the id is about to be destroyed.
    pub(crate) fn push(&self, entry: Entry) {
        let channel = lock(&self.channel);
        if !self.leaving.load(Ordering::Acquire) {
            channel.push(entry);
        }
    }

    /// Queues an event without parameters.
    pub(crate) fn report(self: &Arc<Self>, kind: c_int, status: c_int) {
        self.push(Entry::new(self, kind, status));
    }

    /// Sets the backlog of a listener (`rdma_listen`).
    pub(crate) fn set_backlog(&self, backlog: c_int) {
        let wanted = u32::try_from(backlog).ok().filter(|wanted| (1..=BACKLOG_MAX).contains(wanted));
        self.backlog.store(wanted.unwrap_or(BACKLOG_MAX), Ordering::Release);
    }

    /// Waits, for a limited time, until a connection that the program has closed has ended: what was posted before
    /// still reaches the peer.
    pub(crate) fn settle(&self) {
        let inner = lock(&self.inner);
        let waits = |inner: &mut Inner| inner.closed && !inner.ended;
        drop(self.changed.wait_timeout_while(inner, SETTLE, waits));
    }

    /// Waits until the program has acknowledged all events of the id.
    pub(crate) fn wait_acknowledged(&self) {
        let inner = lock(&self.inner);
        drop(self.changed.wait_while(inner, |_| self.unacknowledged.load(Ordering::Acquire) > 0));
    }

    /// Returns the event for the peer's answer, or for a connection that was accepted.
    fn answer(&self) -> c_int {
        let mut inner = lock(&self.inner);
        if inner.handshake != Handshake::Requested {
            return ESTABLISHED;
        }
        inner.handshake = Handshake::Answered;
        CONNECT_RESPONSE
    }

    /// Returns true for a connection that the program is about to establish.
    pub(crate) fn is_answered(&self) -> bool {
        lock(&self.inner).handshake == Handshake::Answered
    }

    fn end(&self) {
        lock(&self.inner).ended = true;
        self.changed.notify_all();
    }

    /// Calls `change` with the queue pair of the id, which is not destroyed meanwhile.
    fn with_qp(&self, change: impl FnMut(&Qp)) {
        let _held = lock(&self.inner);
        self.id().and_then(|id| object(id.head.qp.load(Ordering::Acquire))).into_iter().for_each(change);
    }

    /// Forgets a queue pair that is destroyed, by `rdma_destroy_qp` or without the id.
    pub(crate) fn forget_qp(&self, qp: &Qp) {
        let mut inner = lock(&self.inner);
        if let Some(id) = self.id() {
            let qp = ptr::from_ref(qp).cast_mut();
            let none = ptr::null_mut();
            inner.abandoned =
                id.head.qp.compare_exchange(qp, none, Ordering::AcqRel, Ordering::Acquire).is_ok();
        }
    }

    /// Changes the state that the program sees of the queue pair.
    fn set_qp_state(&self, state: u32) {
        self.with_qp(|qp| qp.head.state.store(state, Ordering::Release));
    }
}

impl Id {
    /// Creates an id on a channel. The program destroys it.
    pub(crate) fn create(channel: &EventChannel, sync: bool) -> Box<Self> {
        let state = Arc::new(IdState {
            address: AtomicU64::new(0),
            channel: Mutex::new(channel.queue()),
            inner: Mutex::new(Inner { sync, ..Inner::default() }),
            changed: Condvar::new(),
            backlog: AtomicU32::new(BACKLOG_MAX),
            unfetched: AtomicU32::new(0),
            leaving: AtomicBool::new(false),
            unacknowledged: AtomicU32::new(0),
        });
        let head = IdHead {
            verbs: AtomicPtr::default(),
            channel: AtomicPtr::new(ptr::from_ref(channel).cast_mut()),
            context: AtomicPtr::default(),
            qp: AtomicPtr::default(),
            src: Address::default(),
            dst: Address::default(),
            ibaddr: [0; 5],
            path_rec: 0,
            num_paths: 0,
            ps: PORT_SPACE_TCP,
            port_num: AtomicU8::new(0),
            event: AtomicPtr::default(),
            send_cq_channel: AtomicPtr::default(),
            send_cq: AtomicPtr::default(),
            recv_cq_channel: AtomicPtr::default(),
            recv_cq: AtomicPtr::default(),
            srq: AtomicPtr::default(),
            pd: AtomicPtr::default(),
            qp_type: AtomicI32::new(QPT_RC),
        };
        let id = Box::new(Self { head, state });
        let address = ptr::from_ref(id.as_ref()).expose_provenance();
        id.state.address.store(address as u64, Ordering::Release);
        id
    }

    /// Returns the context of the id, once it has a device.
    pub(crate) fn verbs(&self) -> Option<&OpenContext> {
        object(self.head.verbs.load(Ordering::Acquire))
    }

    /// Gives the id a device, with a protection domain.
    pub(crate) fn set_verbs(&self, open: &'static OpenContext) {
        let pd = open.pd.get_or_init(|| {
            crate::objects::ibv_alloc_pd(Some(open)).map_or(0, |pd| Box::into_raw(pd).expose_provenance())
        });
        self.head.verbs.store(ptr::from_ref(open).cast_mut(), Ordering::Release);
        self.head.pd.store(ptr::with_exposed_provenance_mut::<Pd>(*pd), Ordering::Release);
        self.head.port_num.store(1, Ordering::Release);
    }

    /// Notes, before the request, who is to complete the connection: the event may come first.
    pub(crate) fn begin_handshake(&self) {
        let by_program = is_roce() && self.head.qp.load(Ordering::Acquire).is_null();
        lock(&self.state.inner).handshake =
            if by_program { Handshake::Requested } else { Handshake::OfLibrary };
    }

    /// Completes a connection of an id without a queue pair, whose peer has answered. It carries messages already: an
    /// iWARP connection is established by its first.
    pub(crate) fn establish(&self) -> Result<(), c_int> {
        let mut inner = lock(&self.state.inner);
        if inner.handshake != Handshake::Answered || !self.head.qp.load(Ordering::Acquire).is_null() {
            return Err(libc::EINVAL);
        }
        inner.handshake = Handshake::OfLibrary;
        Ok(())
    }

    pub(crate) fn is_sync(&self) -> bool {
        lock(&self.state.inner).sync
    }
}

/// Distributes an event of a context.
pub(crate) fn dispatch(shared: &Arc<Shared>, event: VerbsEvent) {
    let find = |id| lock(&shared.ids).get(&id).cloned();
    let state = match &event.kind {
        CmEventKind::ConnectRequest { listener, .. } => find(*listener),
        _ => find(event.id),
    };
    let Some(state) = state else {
        // The program has destroyed it. Nobody will answer a connect request.
        if let CmEventKind::ConnectRequest { .. } = event.kind {
            drop(shared.context.id(event.id));
        }
        return;
    };
    let depth = |depth: u16| u8::try_from(depth).unwrap_or(u8::MAX);
    let entry = |kind, status| Entry::new(&state, kind, status);
    let entry = match event.kind {
        CmEventKind::ConnectRequest {
            local,
            peer,
            private_data,
            responder_resources,
            initiator_depth,
            ..
        } => {
            let connection = shared.context.id(event.id);
            let depths = (depth(initiator_depth.unwrap_or(0)), depth(responder_resources.unwrap_or(0)));
            let request = Some(ConnectRequest { connection, shared: Arc::clone(shared), local, peer });
            let request = Entry { private_data, depths, request, ..entry(CONNECT_REQUEST, 0) };
            return place_request(shared, request);
        }
        CmEventKind::Established { private_data, responder_resources, initiator_depth, .. } => {
            let depths = (depth(responder_resources), depth(initiator_depth));
            state.with_qp(|qp| qp.established(depths));
            Entry { private_data, depths, ..entry(state.answer(), 0) }
        }
        CmEventKind::AddressError => {
            lock(&state.inner).refused = true;
            state.changed.notify_all();
            return;
        }
        failure => {
            state.set_qp_state(ERROR);
            state.end();
            // As from the kernel: a request that has ended before its answer has no events, and accepting it fails.
            if state.is_unanswered() {
                return;
            }
            match failure {
                CmEventKind::Rejected { private_data } => {
                    Entry { private_data, ..entry(REJECTED, -libc::ECONNREFUSED) }
                }
                // The kernel's CM makes a rejection of it, too.
                CmEventKind::Refused => entry(REJECTED, -libc::ECONNREFUSED),
                CmEventKind::Unreachable => entry(UNREACHABLE, -libc::ETIMEDOUT),
                CmEventKind::ConnectError { code } if !lock(&state.inner).abandoned => match code {
                    ErrorCode::NO_ANSWER => entry(UNREACHABLE, -libc::ETIMEDOUT),
                    ErrorCode::TCP_LOST => entry(REJECTED, -libc::ECONNRESET),
                    _ => entry(CONNECT_ERROR, -libc::EPROTO),
                },
                CmEventKind::ConnectError { .. } => entry(CONNECT_ERROR, -libc::EINVAL),
                _ => entry(DISCONNECTED, 0),
            }
        }
    };
    state.push(entry);
}

/// Reports that the daemon has ended.
pub(crate) fn device_removed(state: &Arc<IdState>) {
    state.set_qp_state(ERROR);
    state.end();
    state.report(DEVICE_REMOVAL, 0);
}

/// Makes an event for the program out of an entry of a channel.
pub(crate) fn event(entry: Entry, channel: &EventChannel) -> Box<CmEvent> {
    let Entry { state, kind, status, private_data, depths, request, place } = entry;
    let of = state.id();
    drop(place);
    if let Some(request) = &request {
        place_requests(&request.shared);
    }
    let (id, listen_id) = match (request, of) {
        (Some(request), Some(listener)) => {
            let id = accepted(listener, request, channel);
            (Box::into_raw(id).cast_const(), ptr::from_ref(listener))
        }
        (_, of) => (of.map_or(ptr::null(), ptr::from_ref), ptr::null()),
    };
    let conn = ConnParam {
        private_data: if private_data.is_empty() { ptr::null() } else { private_data.as_ptr() },
        private_data_len: u8::try_from(private_data.len()).unwrap_or(u8::MAX),
        responder_resources: depths.0,
        initiator_depth: depths.1,
        ..ConnParam::default()
    };
    let head = EventHead { id, listen_id, event: kind, status, conn, rest: [0; 4] };
    Box::new(CmEvent { head, private_data, state })
}

/// Creates the id of a connection that a listener has received.
pub(crate) fn accepted(listener: &Id, request: ConnectRequest, channel: &EventChannel) -> Box<Id> {
    let ConnectRequest { connection, shared, local, peer } = request;
    let sync = listener.is_sync();
    let own = if sync { crate::cm_calls::rdma_create_event_channel() } else { None };
    // A channel of an id without one is freed with the id.
    let own = own.map(|channel| &*Box::leak(channel));
    // Without one of its own, for want of descriptors, its events come to the listener's.
    let id = Id::create(own.unwrap_or(channel), own.is_some());
    id.head.context.store(listener.head.context.load(Ordering::Acquire), Ordering::Release);
    if let Some(open) = context_at(&shared, local.ip()) {
        id.set_verbs(open);
    }
    id.head.src.set(local);
    id.head.dst.set(peer);
    lock(&shared.ids).insert(connection.handle(), Arc::clone(&id.state));
    {
        let mut inner = lock(&id.state.inner);
        inner.stage = Stage::Requested;
        inner.traffic_class = lock(&listener.state.inner).traffic_class;
        inner.ids.push((connection, shared));
    }
    id
}

/// Frees an event, and counts it as acknowledged.
pub(crate) fn acknowledge(event: Box<CmEvent>) {
    let state = Arc::clone(&event.state);
    drop(event);
    // Fails only at zero: the program has acknowledged an event twice.
    let less = |count: u32| count.checked_sub(1);
    let _ = state.unacknowledged.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    drop(lock(&state.inner));
    state.changed.notify_all();
}

/// Destroys an id, and its channel if the program does not have it.
pub(crate) fn destroy(id: Box<Id>) {
    let event = id.head.event.swap(ptr::null_mut(), Ordering::AcqRel);
    if let Some(event) = take(event) {
        acknowledge(event);
    }
    id.state.settle();
    let (stage, ids) = {
        let mut inner = lock(&id.state.inner);
        // A resolution under way reports nothing more.
        (std::mem::replace(&mut inner.stage, Stage::Idle), std::mem::take(&mut inner.ids))
    };
    for (connection, shared) in &ids {
        lock(&shared.ids).remove(&connection.handle());
        // A request without an answer is rejected, as the kernel's CM does. Fails only if the peer has gone.
        if stage == Stage::Requested {
            let _ = connection.reject(&[]);
        }
    }
    drop(ids);
    let state = Arc::clone(&id.state);
    let channel = {
        let channel = lock(&state.channel);
        state.leaving.store(true, Ordering::Release);
        Arc::clone(&channel)
    };
    channel.remove(|entry| Arc::ptr_eq(&entry.state, &state));
    state.wait_acknowledged();
    {
        let _held = lock(&state.inner);
        state.address.store(0, Ordering::Release);
        state.changed.notify_all();
    }
    let own = if id.is_sync() { id.head.channel.load(Ordering::Acquire) } else { ptr::null_mut() };
    drop(id);
    drop(take(own));
}
