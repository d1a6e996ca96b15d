//! Contexts: open devices, their asynchronous events, and the channel on which an event loop waits.

use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::Arc;

use iwarp_verbs::{
    AsyncEvent as VerbsEvent, ConnParam, Context as VerbsContext, DeviceInfo as Info, QpNum, RtrOptions,
};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::connections::{Connecting, Connection, Listener, resolve};
use crate::device::{Device, detach, duration};
use crate::errors::Failure;
use crate::memory::Pd;
use crate::queue_pair::QueuePair;
use crate::queues::CompletionQueue;
use crate::server::RegionServer;

/// A device of the daemon, or the device of a process.
#[pyclass(frozen, get_all, module = "ironwarp")]
pub(crate) struct DeviceInfo {
    /// Name of the device.
    name: String,
    /// Addresses of the device, with their prefixes.
    addresses: Vec<String>,
    /// Largest IP packet in bytes.
    mtu: u16,
}

impl DeviceInfo {
    fn new(info: &Info) -> Self {
        let addresses = info.addresses.iter().map(ToString::to_string).collect();
        Self { name: info.name.clone(), addresses, mtu: info.mtu }
    }
}

#[pymethods]
impl DeviceInfo {
    fn __repr__(&self) -> String {
        format!("DeviceInfo(name={:?}, addresses={:?}, mtu={})", self.name, self.addresses, self.mtu)
    }
}

/// An open device (`ibv_context`).
#[pyclass(frozen, weakref, module = "ironwarp")]
pub(crate) struct Context {
    device: Arc<Device>,
}

impl Context {
    fn of(context: VerbsContext) -> Self {
        Self { device: Device::new(context) }
    }
}

#[pymethods]
impl Context {
    /// Opens a device in this process, over the kernel's TCP: without a daemon, and without a privilege.
    #[classmethod]
    fn embedded(_class: &Bound<'_, PyType>, py: Python<'_>) -> PyResult<Self> {
        Ok(Self::of(detach(py, VerbsContext::embedded).map_err(Failure::from)?))
    }

    /// Opens a device of the daemon: that of the given name, or the first.
    #[classmethod]
    #[pyo3(signature = (socket = None, device = None))]
    fn open(
        _class: &Bound<'_, PyType>,
        py: Python<'_>,
        socket: Option<PathBuf>,
        device: Option<&str>,
    ) -> PyResult<Self> {
        let socket = socket.unwrap_or_else(|| iwarp_verbs::DEFAULT_SOCKET.into());
        Ok(Self::of(detach(py, || VerbsContext::open(socket, device)).map_err(Failure::from)?))
    }

    /// Device of the context.
    #[getter]
    fn device(&self) -> PyResult<DeviceInfo> {
        Ok(DeviceInfo::new(self.device.check()?.device()))
    }

    /// True until the context is closed or the daemon has ended, in the process that has opened the context.
    #[getter]
    fn is_open(&self) -> bool {
        self.device.is_open()
    }

    /// Allocates a protection domain (`ibv_alloc_pd`).
    fn alloc_pd(&self) -> PyResult<Pd> {
        let pd = self.device.check()?.alloc_pd().map_err(Failure::from)?;
        Ok(Pd::new(&self.device, pd))
    }

    /// Creates a completion queue with room for `cqe` completions (`ibv_create_cq`).
    #[pyo3(signature = (cqe = 128))]
    fn create_cq(&self, cqe: u32) -> PyResult<CompletionQueue> {
        let cq = self.device.check()?.create_cq(cqe).map_err(Failure::from)?;
        Ok(CompletionQueue::new(&self.device, cq))
    }

    /// Listens for peers at HOST:PORT (`rdma_listen`); the kernel selects a port for port 0.
    #[pyo3(signature = (address, backlog = 16))]
    fn listen(&self, py: Python<'_>, address: &str, backlog: u16) -> PyResult<Listener> {
        Ok(detach(py, || Listener::listen(&self.device, resolve(address)?, backlog))?)
    }

    /// Connects a queue pair to HOST:PORT (`rdma_connect`), and waits for the answer of the peer.
    #[pyo3(signature = (qp, address, private_data = None, timeout = 10.0, *, peer_to_peer = false))]
    fn connect(
        &self,
        py: Python<'_>,
        qp: &Bound<'_, QueuePair>,
        address: &str,
        private_data: Option<&[u8]>,
        timeout: Option<f64>,
        peer_to_peer: bool,
    ) -> PyResult<Connection> {
        let timeout = duration(timeout)?;
        let connecting = self.start_connect(py, qp, address, private_data, peer_to_peer)?;
        let event = self.device.wait(py, timeout, || connecting.poll_event())?;
        connecting.finish(event.ok_or_else(|| Failure::timed_out(&format!("{address} has not answered")))?)
    }

    /// Connects a queue pair, and awaits the answer of the peer.
    #[pyo3(signature = (qp, address, private_data = None, *, peer_to_peer = false))]
    fn connect_async<'py>(
        slf: &Bound<'py, Self>,
        qp: &Bound<'py, QueuePair>,
        address: &str,
        private_data: Option<&[u8]>,
        peer_to_peer: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let aio = slf.py().import("ironwarp._aio")?;
        aio.call_method1("connect", (slf, qp, address, private_data, peer_to_peer))
    }

    /// Begins to connect a queue pair.
    #[pyo3(name = "_start_connect")]
    fn start_connect(
        &self,
        py: Python<'_>,
        qp: &Bound<'_, QueuePair>,
        address: &str,
        private_data: Option<&[u8]>,
        peer_to_peer: bool,
    ) -> PyResult<Connecting> {
        self.device.check()?;
        let peer = detach(py, || resolve(address))?;
        let rtr = peer_to_peer.then_some(RtrOptions { send: false, write: true, read: true });
        let param = ConnParam { private_data: private_data.unwrap_or_default(), rtr, ..ConnParam::default() };
        Ok(Connecting::start(&self.device, qp, peer, &param)?)
    }

    /// Offers regions to peers by name, at these addresses; without one, at 127.0.0.1:7400.
    #[pyo3(signature = (addresses = vec![]))]
    fn serve_regions(&self, py: Python<'_>, addresses: Vec<String>) -> PyResult<RegionServer> {
        let context = self.device.check()?;
        let server = detach(py, || -> Result<_, Failure> {
            let addresses =
                addresses.iter().map(|address| resolve(address)).collect::<Result<Vec<_>, _>>()?;
            Ok(context.serve_regions(&addresses)?)
        });
        Ok(RegionServer::new(&self.device, server?))
    }

    /// Returns the next asynchronous event without waiting, or None (`ibv_get_async_event`).
    fn poll_async_event(&self) -> PyResult<Option<AsyncEvent>> {
        Ok(self.device.poll_async_event()?.map(AsyncEvent::of))
    }

    /// Returns the next asynchronous event of a queue pair, for the package.
    #[pyo3(name = "_poll_qp_event")]
    fn poll_qp_event(&self, qp_num: u32) -> PyResult<Option<AsyncEvent>> {
        Ok(self.device.poll_qp_event(QpNum(qp_num))?.map(AsyncEvent::of))
    }

    /// Waits for the next asynchronous event.
    #[pyo3(signature = (timeout = None))]
    fn get_async_event(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<AsyncEvent> {
        let event = self.device.wait(py, duration(timeout)?, || self.device.poll_async_event())?;
        Ok(AsyncEvent::of(event.ok_or_else(|| Failure::timed_out("no event has come"))?))
    }

    /// Closes the device and all of its objects. Fails while views of its memory are in use, and changes nothing then.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Ok(detach(py, || self.device.close())?)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    #[getter]
    fn _channel(&self) -> Channel {
        Channel(Arc::clone(&self.device))
    }
}

/// Returns the devices of the daemon.
#[pyfunction]
#[pyo3(signature = (socket = None))]
pub(crate) fn devices(py: Python<'_>, socket: Option<PathBuf>) -> PyResult<Vec<DeviceInfo>> {
    let socket = socket.unwrap_or_else(|| iwarp_verbs::DEFAULT_SOCKET.into());
    let devices = detach(py, || VerbsContext::devices(socket)).map_err(Failure::from)?;
    Ok(devices.iter().map(DeviceInfo::new).collect())
}

/// Descriptors of a device, on which one event loop at a time waits.
#[pyclass(frozen, module = "ironwarp")]
pub(crate) struct Channel(pub(crate) Arc<Device>);

#[pymethods]
impl Channel {
    /// Number that no other device has while this one exists.
    #[getter]
    fn key(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Descriptors that are readable when there may be a completion or an event.
    fn descriptors(&self) -> PyResult<(i32, i32)> {
        let context = self.0.check()?;
        Ok((context.completion_fd().as_raw_fd(), context.event_fd().as_raw_fd()))
    }

    /// Claims the descriptors. Returns false if another event loop has them.
    fn claim(&self) -> bool {
        self.0.claim_loop()
    }

    /// Gives the descriptors back.
    fn free(&self) {
        self.0.free_loop();
    }

    /// Fails unless the device can still have events.
    fn check(&self) -> PyResult<()> {
        let context = self.0.check()?;
        Ok(if context.is_open() { Ok(()) } else { Err(Failure::from(iwarp_verbs::Error::Lost)) }?)
    }
}

/// An asynchronous event of a queue pair or completion queue (`ibv_async_event`).
#[pyclass(frozen, get_all, module = "ironwarp")]
pub(crate) struct AsyncEvent {
    /// Kind of the event.
    kind: &'static str,
    /// Number of the queue pair, if the event concerns one.
    qp_num: Option<u32>,
    /// Reason in the words of the RFCs, if the event has one.
    reason: Option<String>,
}

impl AsyncEvent {
    fn of(event: VerbsEvent) -> Self {
        let (kind, reason) = match event {
            VerbsEvent::CqError(_) => ("cq_error", None),
            VerbsEvent::QpFatal(_, code) => ("qp_fatal", Some(code)),
            VerbsEvent::QpRequestError(_, code) => ("qp_request_error", Some(code)),
            VerbsEvent::QpAccessError(_, code) => ("qp_access_error", Some(code)),
            VerbsEvent::QpTerminated(_, code) => ("qp_terminated", Some(code)),
            VerbsEvent::QpLastWqeReached(_) => ("qp_last_wqe_reached", None),
            VerbsEvent::SrqLimitReached(_) => ("srq_limit_reached", None),
        };
        Self { kind, qp_num: event.qp().map(|qp| qp.0), reason: reason.map(|code| code.to_string()) }
    }
}

#[pymethods]
impl AsyncEvent {
    fn __repr__(&self) -> String {
        let reason = self.reason.as_deref().unwrap_or("");
        format!("AsyncEvent(kind={:?}, qp_num={:?}, reason={reason:?})", self.kind, self.qp_num)
    }
}
