//! Completion queues and work completions.

use std::sync::Arc;

use iwarp_verbs::{CompletionQueue as VerbsCq, WcStatus, WorkCompletion as Wc};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::device::{Device, Rank, Slot, detach, duration};
use crate::enums;
use crate::errors::Failure;

/// Most completions that one call returns.
const POLLED_MAX: usize = 65_536;

/// A completion queue (`ibv_cq`).
#[pyclass(frozen, weakref, module = "ironwarp")]
pub(crate) struct CompletionQueue {
    slot: Arc<Slot<VerbsCq>>,
}

impl CompletionQueue {
    pub(crate) fn new(device: &Arc<Device>, cq: VerbsCq) -> Self {
        Self { slot: Slot::new(device, "completion queue", Rank::Rest, cq) }
    }

    pub(crate) fn handle(&self) -> Result<VerbsCq, Failure> {
        self.slot.get()
    }
}

/// Takes at most `count` completions.
fn take(cq: &VerbsCq, count: usize) -> Result<Vec<WorkCompletion>, Failure> {
    let mut taken = vec![Wc::default(); count];
    let found = cq.poll(&mut taken)?;
    taken.truncate(found);
    Ok(taken.into_iter().map(WorkCompletion).collect())
}

/// Takes completions, or arms the queue if there are none.
fn take_or_arm(cq: &VerbsCq, count: usize) -> Result<Option<Vec<WorkCompletion>>, Failure> {
    let mut taken = take(cq, count)?;
    if taken.is_empty() {
        cq.req_notify(false);
        taken = take(cq, count)?;
    }
    Ok(Some(taken).filter(|taken| !taken.is_empty()))
}

fn count(count: i64) -> Result<usize, Failure> {
    let least = usize::try_from(count).ok().filter(|count| *count > 0);
    let wrong = || Failure::Value(format!("{count} completions: ask for at least one"));
    Ok(least.ok_or_else(wrong)?.min(POLLED_MAX))
}

#[pymethods]
impl CompletionQueue {
    /// Returns at most `count` completions, the oldest first, without waiting (`ibv_poll_cq`).
    #[pyo3(signature = (count = 16))]
    fn poll(&self, count: i64) -> PyResult<Vec<WorkCompletion>> {
        Ok(take(&self.slot.get()?, self::count(count)?)?)
    }

    /// Waits until there are completions, and returns at most `count` of them.
    #[pyo3(signature = (timeout = None, count = 16))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>, count: i64) -> PyResult<Vec<WorkCompletion>> {
        let (cq, count) = (self.slot.get()?, self::count(count)?);
        let taken = self.slot.device.wait(py, duration(timeout)?, || take_or_arm(&cq, count))?;
        Ok(taken.ok_or_else(|| Failure::timed_out("no completion has come"))?)
    }

    /// Returns completions; if there are none, arms the queue for the channel, and returns an empty list.
    #[pyo3(signature = (count = 16))]
    fn poll_or_arm(&self, count: i64) -> PyResult<Vec<WorkCompletion>> {
        Ok(take_or_arm(&self.slot.get()?, self::count(count)?)?.unwrap_or_default())
    }

    /// Awaits completions: returns at most `count` of them.
    #[pyo3(signature = (count = 16))]
    fn completions<'py>(slf: &Bound<'py, Self>, count: i64) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("ironwarp._aio")?.call_method1("completions", (slf, count))
    }

    fn __aiter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("ironwarp._aio")?.call_method1("Completions", (slf,))
    }

    /// Gives the queue room for `cqe` completions (`ibv_resize_cq`).
    fn resize(&self, py: Python<'_>, cqe: u32) -> PyResult<()> {
        let cq = self.slot.get()?;
        Ok(detach(py, || cq.resize(cqe)).map_err(Failure::from)?)
    }

    /// Channel on which an event loop waits for this queue.
    #[getter]
    fn _channel(&self) -> crate::context::Channel {
        crate::context::Channel(Arc::clone(&self.slot.device))
    }
}

/// A work completion (`ibv_wc`).
#[pyclass(frozen, module = "ironwarp")]
pub(crate) struct WorkCompletion(Wc);

#[pymethods]
impl WorkCompletion {
    /// Number that the request was posted with.
    #[getter]
    fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// Result of the request.
    #[getter]
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        enums::status(py, self.0.status)
    }

    /// Operation of the request.
    #[getter]
    fn opcode<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        enums::opcode(py, self.0.opcode)
    }

    /// Length of the message in bytes.
    #[getter]
    fn byte_len(&self) -> u32 {
        self.0.byte_len
    }

    /// Immediate Data that was received: eight bytes, or None.
    #[getter]
    fn imm_data<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.0.imm_data.map(|data| PyBytes::new(py, &data))
    }

    /// True if the peer asked for an event.
    #[getter]
    fn solicited(&self) -> bool {
        self.0.solicited
    }

    /// Number of the queue pair.
    #[getter]
    fn qp_num(&self) -> u32 {
        self.0.qp_num.0
    }

    /// True if the request succeeded.
    #[getter]
    fn ok(&self) -> bool {
        self.0.status == WcStatus::Success
    }

    /// Raises CompletionError if the request failed; returns the completion otherwise.
    fn raise_for_status<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let Wc { wr_id, status, .. } = slf.get().0;
        if status == WcStatus::Success {
            return Ok(slf.clone());
        }
        let py = slf.py();
        let message = format!("work request {wr_id}: {status}; asynchronous events may say why");
        let class = py.import("ironwarp._errors")?.getattr("CompletionError")?;
        let error = class.call1((libc::EIO, message))?;
        error.setattr("completion", slf)?;
        error.setattr("status", enums::status(py, status)?)?;
        Err(PyErr::from_value(error))
    }

    fn __repr__(&self) -> String {
        let Wc { wr_id, status, opcode, byte_len, .. } = self.0;
        format!("WorkCompletion(wr_id={wr_id}, status={status:?}, opcode={opcode:?}, byte_len={byte_len})")
    }
}
