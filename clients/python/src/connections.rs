//! Listeners, requests of peers to connect, and connections.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use iwarp_verbs::{CmEvent, CmEventKind, CmId, ConnParam, ErrorCode, Id, QueuePair as VerbsQp};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::device::{Device, Object, Rank, detach, duration, lock};
use crate::errors::{Class, Failure};
use crate::queue_pair::QueuePair;

/// Ports that a listener tries, if the program leaves the choice.
const PORTS_TRIED: usize = 64;
/// First of the ports that programs choose from.
const EPHEMERAL: u16 = 49_152;

/// Resolves `HOST:PORT`. The caller is detached: a resolver may ask the network.
pub(crate) fn resolve(address: &str) -> Result<SocketAddr, Failure> {
    let unknown = |reason: String| {
        let message =
            format!("the address `{address}`: {reason}; write HOST:PORT, and an IPv6 address in brackets");
        Failure::Os(Class::Error, libc::EADDRNOTAVAIL, message)
    };
    let mut found = address.to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    found.next().ok_or_else(|| unknown("it names no host".to_owned()))
}

/// A listener or connection of a device, until the program or the device closes it. The queue pair of a connection
/// stays as long.
pub(crate) struct Connected {
    device: Arc<Device>,
    id: CmId,
    what: &'static str,
    /// The id is dropped first: the queue pair is idle then.
    value: Mutex<Option<(Arc<Id>, Option<VerbsQp>)>>,
}

impl Connected {
    fn new(device: &Arc<Device>, what: &'static str, id: Id, qp: Option<VerbsQp>) -> Arc<Self> {
        let handle = id.handle();
        device.watch(handle);
        let value = Mutex::new(Some((Arc::new(id), qp)));
        let connected = Arc::new(Self { device: Arc::clone(device), id: handle, what, value });
        let object: Arc<dyn Object> = Arc::clone(&connected) as _;
        device.add(Arc::downgrade(&object));
        connected
    }

    fn get(&self) -> Result<Arc<Id>, Failure> {
        self.device.check()?;
        let value = lock(&self.value);
        value.as_ref().map(|(id, _)| Arc::clone(id)).ok_or_else(|| Failure::closed(self.what))
    }

    /// Returns the next event.
    fn poll(&self) -> Result<Option<CmEvent>, Failure> {
        drop(self.get()?);
        self.device.poll_event(self.id)
    }
}

impl Object for Connected {
    fn rank(&self) -> Rank {
        Rank::Connection
    }

    fn close(&self) {
        if self.device.is_child() {
            return;
        }
        let value = lock(&self.value).take();
        if let Some((id, qp)) = value {
            self.device.unwatch(self.id);
            drop(id);
            drop(qp);
        }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.close();
    }
}

/// A listener (`rdma_listen`), from which the requests of peers are taken.
#[pyclass(frozen, weakref, module = "ironwarp")]
pub(crate) struct Listener {
    listener: Arc<Connected>,
    address: SocketAddr,
}

impl Listener {
    /// Listens at an address. For port 0, at a port that nothing else uses.
    pub(crate) fn listen(device: &Arc<Device>, address: SocketAddr, backlog: u16) -> Result<Self, Failure> {
        let backlog = NonZeroU16::new(backlog)
            .ok_or_else(|| Failure::Value("a backlog of 0: at least one request must wait".to_owned()))?;
        if address.port() != 0 {
            return Self::listen_at(device, address, backlog);
        }
        let mut listening =
            Self::listen_at(device, SocketAddr::new(address.ip(), free_port(address)), backlog);
        for _ in 1..PORTS_TRIED {
            if listening.is_ok() {
                break;
            }
            let address = SocketAddr::new(address.ip(), free_port(address));
            listening = Self::listen_at(device, address, backlog);
        }
        listening
    }

    fn listen_at(device: &Arc<Device>, address: SocketAddr, backlog: NonZeroU16) -> Result<Self, Failure> {
        let id = device.check()?.create_id(Some(address))?;
        let listener = Connected::new(device, "listener", id, None);
        let id = listener.get()?;
        id.listen(backlog, &ConnParam::default())?;
        // A device executes a request before it answers the next one: the event of a failure is there then.
        let (local, _) = id.addresses()?;
        if listener.poll()?.is_some() {
            let message = format!(
                "cannot listen at {address}: the address is not of this machine, in use, or for a user with a \
                 privilege; choose another one"
            );
            return Err(Failure::Os(Class::Error, libc::EADDRNOTAVAIL, message));
        }
        Ok(Self { listener, address: local.unwrap_or(address) })
    }
}

/// Returns a port that the kernel has free; one of the ephemeral ports in turn if the address is not the kernel's.
fn free_port(address: SocketAddr) -> u16 {
    static COUNT: AtomicU16 = AtomicU16::new(0);
    let bound = TcpListener::bind((address.ip(), 0)).and_then(|listener| listener.local_addr());
    let in_turn = || EPHEMERAL.saturating_add(COUNT.fetch_add(1, Ordering::Relaxed) % (u16::MAX - EPHEMERAL));
    bound.map_or_else(|_| in_turn(), |address| address.port())
}

#[pymethods]
impl Listener {
    /// Address that peers connect to, with the port that the kernel has selected.
    #[getter]
    fn address(&self) -> String {
        self.address.to_string()
    }

    /// Waits for a peer that wants to connect (`rdma_get_request`).
    #[pyo3(signature = (timeout = None))]
    fn get_request(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<ConnectRequest> {
        let listener = &self.listener;
        let event = listener.device.wait(py, duration(timeout)?, || listener.poll())?;
        let event = event.ok_or_else(|| Failure::timed_out("no peer has asked to connect"))?;
        Ok(self.request(event)?)
    }

    /// Returns the next peer that wants to connect, without waiting, or None.
    fn poll_request(&self) -> PyResult<Option<ConnectRequest>> {
        let event = self.listener.poll()?;
        Ok(event.map(|event| self.request(event)).transpose()?)
    }

    /// Awaits a peer that wants to connect.
    fn get_request_async<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("ironwarp._aio")?.call_method1("request", (slf,))
    }

    /// Stops listening. Requests that nobody has taken are closed.
    fn close(&self, py: Python<'_>) {
        detach(py, || self.listener.close());
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }

    #[getter]
    fn _channel(&self) -> crate::context::Channel {
        crate::context::Channel(Arc::clone(&self.listener.device))
    }
}

impl Listener {
    fn request(&self, event: CmEvent) -> Result<ConnectRequest, Failure> {
        let CmEventKind::ConnectRequest { local, peer, private_data, .. } = event.kind else {
            let message = format!("the listener at {} has ended; listen again", self.address);
            return Err(Failure::Os(Class::Error, libc::EADDRNOTAVAIL, message));
        };
        let device = &self.listener.device;
        let id = device.check()?.id(event.id);
        let request = Connected::new(device, "request to connect", id, None);
        Ok(ConnectRequest { request, local, peer, private_data })
    }
}

/// A peer that wants to connect. The connection is closed if it is neither accepted nor rejected.
#[pyclass(frozen, module = "ironwarp")]
pub(crate) struct ConnectRequest {
    request: Arc<Connected>,
    local: SocketAddr,
    peer: SocketAddr,
    private_data: Box<[u8]>,
}

#[pymethods]
impl ConnectRequest {
    /// Private data of the peer.
    #[getter]
    fn private_data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.private_data)
    }

    /// Address of the peer.
    #[getter]
    fn peer(&self) -> String {
        self.peer.to_string()
    }

    /// Connects the peer to a queue pair (`rdma_accept`). The queue pair keeps the connection.
    #[pyo3(signature = (qp, private_data = None))]
    fn accept(&self, py: Python<'_>, qp: &QueuePair, private_data: Option<&[u8]>) -> PyResult<Connection> {
        let answer = private_data.unwrap_or_default();
        let handle = qp.handle()?;
        let id = self.request.get()?;
        detach(py, || id.accept(&handle, answer)).map_err(Failure::from)?;
        if let Some((_, of_connection)) = lock(&self.request.value).as_mut() {
            *of_connection = Some(handle);
        }
        qp.keep(&self.request);
        let (local, peer) = (Some(self.local), Some(self.peer));
        let private_data = self.private_data.clone();
        Ok(Connection {
            connection: Arc::clone(&self.request),
            local,
            peer,
            private_data,
            has_ended: Mutex::default(),
        })
    }

    /// Rejects the peer (`rdma_reject`), which receives the private data.
    #[pyo3(signature = (private_data = None))]
    fn reject(&self, py: Python<'_>, private_data: Option<&[u8]>) -> PyResult<()> {
        let id = self.request.get()?;
        detach(py, || id.reject(private_data.unwrap_or_default())).map_err(Failure::from)?;
        drop(id);
        detach(py, || self.request.close());
        Ok(())
    }
}

/// A connection that is being made.
#[pyclass(frozen, module = "ironwarp")]
pub(crate) struct Connecting {
    connection: Arc<Connected>,
    peer: SocketAddr,
    qp: Py<QueuePair>,
}

impl Connecting {
    pub(crate) fn start(
        device: &Arc<Device>,
        qp: &Bound<'_, QueuePair>,
        peer: SocketAddr,
        param: &ConnParam<'_>,
    ) -> Result<Self, Failure> {
        let handle = qp.get().handle()?;
        let id = device.check()?.create_id(None)?;
        let connection = Connected::new(device, "connection", id, Some(handle.clone()));
        connection.get()?.connect(&handle, peer, param)?;
        Ok(Self { connection, peer, qp: qp.clone().unbind() })
    }

    pub(crate) fn poll_event(&self) -> Result<Option<CmEvent>, Failure> {
        self.connection.poll()
    }

    /// Returns the connection that the peer has accepted.
    pub(crate) fn finish(&self, event: CmEvent) -> PyResult<Connection> {
        let peer = self.peer;
        let (class, errno, reason) = match event.kind {
            CmEventKind::Established { private_data, .. } => {
                self.qp.get().keep(&self.connection);
                let addresses = self.connection.get()?.addresses().map_err(Failure::from)?;
                let (local, peer) = (addresses.0, addresses.1.or(Some(peer)));
                let connection = Arc::clone(&self.connection);
                return Ok(Connection { connection, local, peer, private_data, has_ended: Mutex::default() });
            }
            CmEventKind::Rejected { private_data } => return Err(rejected(peer, &private_data)),
            CmEventKind::Refused => {
                let reason = "nobody listens there; is the address right, and has the peer started?";
                (Class::ConnectionRefused, libc::ECONNREFUSED, reason)
            }
            CmEventKind::Unreachable => {
                let reason = "the peer does not answer; is the address right?";
                (Class::Error, libc::EHOSTUNREACH, reason)
            }
            CmEventKind::AddressError => {
                let reason = "no local address is free for the connection";
                (Class::Error, libc::EADDRNOTAVAIL, reason)
            }
            CmEventKind::ConnectError { code: ErrorCode::NO_ANSWER } => {
                let reason = "the peer accepts TCP's connection and does not answer; is the port right?";
                (Class::Timeout, libc::ETIMEDOUT, reason)
            }
            CmEventKind::ConnectRequest { .. }
            | CmEventKind::ConnectError { .. }
            | CmEventKind::Disconnected => {
                let reason = "the peer does not answer as an iWARP peer does; is the port right?";
                (Class::ConnectionLost, libc::ECONNRESET, reason)
            }
        };
        Err(Failure::Os(class, errno, format!("cannot connect to {peer}: {reason}")).into())
    }
}

/// Returns the exception for a peer that has rejected the connection, with the private data of the peer.
fn rejected(peer: SocketAddr, private_data: &[u8]) -> PyErr {
    let raise = |py: Python<'_>| -> PyResult<PyErr> {
        let message = format!("{peer} has rejected the connection; its private data may say why");
        let class = py.import("ironwarp._errors")?.getattr("Rejected")?;
        let error = class.call1((libc::ECONNREFUSED, message))?;
        error.setattr("private_data", PyBytes::new(py, private_data))?;
        Ok(PyErr::from_value(error))
    };
    Python::attach(raise).unwrap_or_else(|error| error)
}

#[pymethods]
impl Connecting {
    /// Returns the connection once the peer has accepted it; None until the peer has answered.
    fn poll(&self) -> PyResult<Option<Connection>> {
        let event = self.poll_event()?;
        event.map(|event| self.finish(event)).transpose()
    }

    /// Gives up.
    fn close(&self, py: Python<'_>) {
        detach(py, || self.connection.close());
    }

    #[getter]
    fn _channel(&self) -> crate::context::Channel {
        crate::context::Channel(Arc::clone(&self.connection.device))
    }
}

/// A connection of a queue pair. It ends when it is closed, or with its last queue pair and handle.
#[pyclass(frozen, weakref, module = "ironwarp")]
pub(crate) struct Connection {
    connection: Arc<Connected>,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    private_data: Box<[u8]>,
    has_ended: Mutex<bool>,
}

impl Connection {
    /// Returns something once the connection has ended.
    fn ended(&self) -> Result<Option<()>, Failure> {
        let mut has_ended = lock(&self.has_ended);
        while !*has_ended {
            let Some(event) = self.connection.poll()? else { return Ok(None) };
            // An accepted connection is established later.
            *has_ended = !matches!(event.kind, CmEventKind::Established { .. });
        }
        Ok(Some(()))
    }
}

#[pymethods]
impl Connection {
    /// Private data of the peer's answer, or of its request.
    #[getter]
    fn private_data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.private_data)
    }

    /// Local address, if it is known.
    #[getter]
    fn local(&self) -> Option<String> {
        self.local.map(|address| address.to_string())
    }

    /// Address of the peer.
    #[getter]
    fn peer(&self) -> Option<String> {
        self.peer.map(|address| address.to_string())
    }

    /// Closes the connection when its work is done (`rdma_disconnect`).
    fn disconnect(&self, py: Python<'_>) -> PyResult<()> {
        let id = self.connection.get()?;
        Ok(detach(py, || id.disconnect()).map_err(Failure::from)?)
    }

    /// Returns true once the connection has ended, as far as the device knows.
    fn has_ended(&self) -> PyResult<bool> {
        Ok(self.ended()?.is_some())
    }

    /// Waits until the connection has ended.
    #[pyo3(signature = (timeout = None))]
    fn wait_ended(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let ended = self.connection.device.wait(py, duration(timeout)?, || self.ended())?;
        Ok(ended.ok_or_else(|| Failure::timed_out("the connection has not ended"))?)
    }

    /// Awaits the end of the connection.
    fn wait_ended_async<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("ironwarp._aio")?.call_method1("ended", (slf,))
    }

    /// Resets the connection, unless it has ended.
    fn close(&self, py: Python<'_>) {
        detach(py, || self.connection.close());
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }

    #[getter]
    fn _channel(&self) -> crate::context::Channel {
        crate::context::Channel(Arc::clone(&self.connection.device))
    }
}
