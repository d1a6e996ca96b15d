//! Protection domains, and registered memory as a Python buffer.
//!
//! JUSTIFICATION: Python's buffer protocol hands out pointers, and registering a program's memory is unsafe, because
//! peers write it. All unsafe code of the package is in this file.
#![allow(unsafe_code, reason = "exports and registers memory; listed in UNSAFE.md")]

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use iwarp_verbs::{Access, Mr, ProtectionDomain, Sge as VerbsSge};
use pyo3::buffer::PyBuffer;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::bytes::Bytes;
use crate::device::{Device, Object, Rank, Slot, detach, lock};
use crate::errors::Failure;
use crate::queue_pair::{QpSizes, QueuePair};
use crate::queues::CompletionQueue;

/// Rights by which a device writes memory.
const WRITES: [Access; 3] = [Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];

/// Returns the rights with these bits.
pub(crate) fn access(bits: u32) -> Result<Access, Failure> {
    let all = [
        Access::REMOTE_READ,
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC,
        Access::REMOTE_INVALIDATE,
        Access::LOCAL_READ,
        Access::LOCAL_WRITE,
        Access::WINDOW_BIND,
    ];
    let named = all.into_iter().filter(|right| bits & u32::from(right.bits()) != 0);
    let rights = named.fold(Access::NONE, |rights, right| rights | right);
    match u32::from(rights.bits()) == bits {
        true => Ok(rights),
        false => Err(Failure::Value(format!("rights of {bits:#x}: combine members of ironwarp.Access"))),
    }
}

/// A protection domain (`ibv_pd`): queue pairs use the memory of their domain only.
#[pyclass(frozen, weakref, module = "ironwarp", name = "ProtectionDomain")]
pub(crate) struct Pd {
    slot: Arc<Slot<ProtectionDomain>>,
}

impl Pd {
    pub(crate) fn new(device: &Arc<Device>, pd: ProtectionDomain) -> Self {
        Self { slot: Slot::new(device, "protection domain", Rank::Rest, pd) }
    }
}

#[pymethods]
impl Pd {
    /// Allocates zeroed memory and registers it with these rights.
    #[pyo3(signature = (length, access))]
    fn alloc_mr(&self, py: Python<'_>, length: i64, access: u32) -> PyResult<MemoryRegion> {
        let pd = self.slot.get()?;
        let (bytes, rights) = (self::length(length)?, self::access(access)?);
        let mr = detach(py, || pd.alloc_mr(bytes, rights)).map_err(Failure::from)?;
        Ok(MemoryRegion::new(&self.slot.device, mr, None, rights))
    }

    /// Registers the memory of an object with a contiguous buffer, and holds the buffer until it is deregistered.
    #[pyo3(signature = (buffer, access))]
    fn reg_mr(&self, buffer: &Bound<'_, PyAny>, access: u32) -> PyResult<MemoryRegion> {
        let pd = self.slot.get()?;
        let rights = self::access(access)?;
        let held = Bytes::of(buffer)?.whole()?;
        let memory = held.as_slice_ptr().filter(|memory| !memory.is_empty());
        let memory =
            memory.ok_or_else(|| Failure::Value("an empty buffer cannot be registered".to_owned()))?;
        if held.readonly() && WRITES.into_iter().any(|right| rights.contains(right)) {
            let reason = "the buffer is read-only, and the rights let it be written: register a writable one";
            return Err(Failure::Buffer(reason.to_owned()).into());
        }
        // SAFETY: `held` keeps the object's memory where it is, and `MemoryRegion` keeps `held` until the memory
        // region is dropped. No Rust reference to the bytes exists; Python accesses them as memory that others change.
        let mr = unsafe { pd.reg_mr(memory.cast(), memory.len(), rights) }.map_err(Failure::from)?;
        Ok(MemoryRegion::new(&self.slot.device, mr, Some(held), rights))
    }

    /// Creates a queue pair (`ibv_create_qp`). Without `recv_cq`, both queues complete to `send_cq`.
    #[pyo3(signature = (send_cq, recv_cq = None, *, max_send_wr = 128, max_recv_wr = 128, max_send_sge = 1,
        max_recv_sge = 1, max_inline_data = 0, sq_sig_all = false))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python, all with defaults")]
    fn create_qp(
        &self,
        send_cq: &CompletionQueue,
        recv_cq: Option<&CompletionQueue>,
        max_send_wr: u16,
        max_recv_wr: u16,
        max_send_sge: u16,
        max_recv_sge: u16,
        max_inline_data: u16,
        sq_sig_all: bool,
    ) -> PyResult<QueuePair> {
        let pd = self.slot.get()?;
        let cqs = (send_cq.handle()?, recv_cq.unwrap_or(send_cq).handle()?);
        let sizes =
            QpSizes { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data, sq_sig_all };
        Ok(QueuePair::create(&self.slot.device, &pd, &cqs, &sizes)?)
    }
}

fn length(length: i64) -> Result<u64, Failure> {
    match u64::try_from(length) {
        Ok(bytes @ 1..) => Ok(bytes),
        _ => Err(Failure::Value(format!("a length of {length} bytes: memory has at least one byte"))),
    }
}

/// A memory region with its memory, and the buffer of another object that holds the memory in place, if any.
struct Registered {
    // Dropped first: nobody accesses the memory any more.
    mr: Mr,
    _held: Option<PyBuffer<u8>>,
}

/// Registered memory of a Python object.
struct Memory {
    device: Arc<Device>,
    registered: Mutex<Option<Registered>>,
    /// Views of the memory that the program uses: it stays until there is none.
    views: AtomicUsize,
}

impl Object for Memory {
    fn rank(&self) -> Rank {
        Rank::Memory
    }

    fn in_use(&self) -> Option<Failure> {
        let views = self.views.load(Ordering::Acquire);
        let reason =
            || format!("{views} views of the memory region are in use: release them, or delete the arrays");
        (views > 0).then(|| Failure::Buffer(reason()))
    }

    fn close(&self) {
        let mut registered = lock(&self.registered);
        let taken = if self.in_use().is_none() { registered.take() } else { None };
        // Dropped without the lock.
        drop(registered);
        drop(taken);
    }
}

/// A registered memory region (`ibv_mr`) and its memory, which is a writable buffer.
#[pyclass(frozen, weakref, module = "ironwarp")]
pub(crate) struct MemoryRegion {
    memory: Arc<Memory>,
    addr: u64,
    length: u64,
    lkey: u32,
    rkey: u32,
    access: Access,
    readonly: bool,
}

impl MemoryRegion {
    fn new(device: &Arc<Device>, mr: Mr, held: Option<PyBuffer<u8>>, access: Access) -> Self {
        let (addr, length, lkey, rkey) = (mr.addr(), mr.len(), mr.lkey().0, mr.rkey().0);
        let readonly = held.as_ref().is_some_and(|held| held.readonly());
        let registered = Mutex::new(Some(Registered { mr, _held: held }));
        let memory = Memory { device: Arc::clone(device), registered, views: AtomicUsize::new(0) };
        let memory = Arc::new(memory);
        let object: Arc<dyn Object> = Arc::clone(&memory) as _;
        device.add(Arc::downgrade(&object));
        Self { memory, addr, length, lkey, rkey, access, readonly }
    }

    /// Does something with the memory region.
    pub(crate) fn with<T>(&self, ask: impl FnOnce(&Mr) -> Result<T, Failure>) -> Result<T, Failure> {
        self.memory.device.check()?;
        let registered = lock(&self.memory.registered);
        ask(&registered.as_ref().ok_or_else(|| Failure::closed("memory region"))?.mr)
    }

    /// Returns an element for a range of the memory.
    pub(crate) fn element(&self, offset: i64, length: Option<i64>) -> Result<VerbsSge, Failure> {
        let outside = || {
            let length = length.map_or_else(|| "the bytes".to_owned(), |length| format!("{length} bytes"));
            Failure::Value(format!("{length} at offset {offset} are not inside {} bytes", self.length))
        };
        let start = u64::try_from(offset).ok().filter(|start| *start <= self.length).ok_or_else(outside)?;
        let rest = self.length.saturating_sub(start);
        let bytes = length.map_or(Ok(rest), u64::try_from).ok().filter(|bytes| *bytes <= rest);
        let bytes = u32::try_from(bytes.ok_or_else(outside)?);
        let bytes =
            bytes.map_err(|_| Failure::Value("an element has less than 4 GiB: give a length".to_owned()))?;
        self.with(|mr| Ok(mr.sge(start, bytes)))
    }
}

#[pymethods]
impl MemoryRegion {
    /// Address of the first byte, for work requests of peers and for lists.
    #[getter]
    fn addr(&self) -> u64 {
        self.addr
    }

    /// Key for local work requests.
    #[getter]
    fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Key for the peer.
    #[getter]
    fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Rights that the memory is registered with.
    #[getter]
    fn access<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        crate::enums::access(py, self.access)
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.length)?)
    }

    /// Returns an element of a scatter/gather list: `length` bytes at `offset`, or all from there on.
    #[pyo3(signature = (offset = 0, length = None))]
    fn sge(&self, offset: i64, length: Option<i64>) -> PyResult<Sge> {
        Ok(Sge(self.element(offset, length)?))
    }

    /// Returns a numpy array of the memory itself; numpy must be installed.
    #[pyo3(signature = (dtype, count = -1, offset = 0))]
    fn array<'py>(
        slf: &Bound<'py, Self>,
        dtype: &Bound<'py, PyAny>,
        count: isize,
        offset: isize,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("numpy")?.call_method1("frombuffer", (slf, dtype, count, offset))
    }

    /// Deregisters the memory region. Fails while views of its memory are in use.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.memory.device.is_child() {
            return Ok(());
        }
        if let Some(in_use) = self.memory.in_use() {
            return Err(in_use.into());
        }
        detach(py, || self.memory.close());
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    /// Exports the memory.
    ///
    /// # Safety
    /// The interpreter calls it with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let memory = &this.memory;
        if memory.device.is_child() {
            return Err(Failure::child().into());
        }
        let registered = lock(&memory.registered);
        let Some(Registered { mr, .. }) = registered.as_ref() else {
            return Err(Failure::closed("memory region").into());
        };
        let start: NonNull<u8> = mr.address();
        let length = ffi::Py_ssize_t::try_from(mr.len())?;
        let object = slf.as_ptr();
        // SAFETY: the interpreter's `view` is to be filled. The memory stays mapped while `views` is not 0: `close`
        // refuses, and the view holds a reference to the object, which holds the memory.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, object, start.as_ptr().cast(), length, this.readonly.into(), flags)
        };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        memory.views.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Ends an export of the memory.
    ///
    /// # Safety
    /// The interpreter calls it, once for each view that was filled.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.memory.views.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Element of a scatter/gather list (`ibv_sge`): bytes of registered memory.
#[pyclass(frozen, eq, module = "ironwarp")]
#[derive(PartialEq)]
pub(crate) struct Sge(pub(crate) VerbsSge);

#[pymethods]
impl Sge {
    /// Address of the first byte.
    #[getter]
    fn addr(&self) -> u64 {
        self.0.addr
    }

    /// Length in bytes.
    #[getter]
    fn length(&self) -> u32 {
        self.0.length
    }

    /// Key of the memory region.
    #[getter]
    fn lkey(&self) -> u32 {
        self.0.lkey.0
    }

    fn __repr__(&self) -> String {
        let VerbsSge { addr, length, lkey } = self.0;
        format!("Sge(addr={addr:#x}, length={length}, lkey={:#x})", lkey.0)
    }
}
