//! A region of a peer, read and written by its name.

use std::cell::RefCell;
use std::sync::{Condvar, Mutex};

use iwarp_verbs::{
    Access, RegionOptions, RemoteError, RemoteRegion as VerbsRegion, connect_region as connect,
};
use iwarp_verbs::{decode_reply, encode_request};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::bytes::Bytes;
use crate::device::{SLICE, detach, duration, lock};
use crate::errors::{Class, Failure, of_service};

/// Bytes of a Python buffer that are copied at a time.
const COPIED_MAX: usize = 4 << 20;

thread_local! {
    /// Exception of a handler that has ended a call of this thread.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Runs handlers of signals, and returns true if one has raised an exception.
fn interrupted() -> bool {
    // At the end of the process there is no interpreter any more.
    if iwarp_verbs::is_exiting() {
        return false;
    }
    let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
    let is_raised = raised.is_some();
    RAISED.set(raised);
    is_raised
}

/// Returns the failure of a call: the exception of a handler, if one has ended the call.
fn failure(error: RemoteError) -> Failure {
    match (&error, RAISED.take()) {
        (RemoteError::Interrupted { .. }, Some(raised)) => Failure::Python(raised),
        _ => error.into(),
    }
}

/// Owner of the connection.
enum State {
    Free(Box<VerbsRegion>),
    /// A thread has the connection for a call; the others wait.
    InUse,
    Closed,
}

/// A region of a peer, over a connection of its own.
#[pyclass(frozen, weakref, module = "ironwarp")]
pub(crate) struct RemoteRegion {
    region: Mutex<State>,
    freed: Condvar,
    pid: u32,
    target: String,
    bytes: u64,
    access: Access,
    peer: String,
}

/// Connects to a region of a peer: HOST:PORT/NAME.
#[pyfunction]
#[pyo3(signature = (target, access = None, token = None, timeout = 10.0))]
pub(crate) fn connect_region(
    py: Python<'_>,
    target: &str,
    access: Option<u32>,
    token: Option<&[u8]>,
    timeout: Option<f64>,
) -> PyResult<RemoteRegion> {
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let access = access.map_or(Ok(both), crate::memory::access)?;
    let timeout = duration(timeout)?.unwrap_or(std::time::Duration::MAX);
    let options = RegionOptions::new(access).with_timeout(timeout).with_interrupted(interrupted);
    let options = match crate::server::token(token)? {
        Some(token) => options.with_token(token),
        None => options,
    };
    let region = detach(py, || connect(target, &options)).map_err(failure)?;
    Ok(RemoteRegion {
        pid: std::process::id(),
        target: target.to_owned(),
        bytes: region.bytes(),
        access: region.access(),
        peer: region.peer().to_string(),
        region: Mutex::new(State::Free(Box::new(region))),
        freed: Condvar::new(),
    })
}

impl RemoteRegion {
    /// Does something with the region while no other thread does. The caller is detached.
    fn with<T>(&self, ask: impl FnOnce(&mut VerbsRegion) -> Result<T, RemoteError>) -> Result<T, Failure> {
        let mut call = Call { of: self, region: Some(self.take()?) };
        let answer = call.region.as_deref_mut().map(ask).ok_or_else(|| Failure::closed("region"))?;
        drop(call);
        answer.map_err(failure)
    }

    /// Takes the connection, once no other thread has it. Handlers of signals run meanwhile.
    fn take(&self) -> Result<Box<VerbsRegion>, Failure> {
        let mut state = lock(&self.region);
        loop {
            match std::mem::replace(&mut *state, State::InUse) {
                State::Free(region) => return Ok(region),
                State::Closed => {
                    *state = State::Closed;
                    return Err(Failure::closed("region"));
                }
                State::InUse => {}
            }
            drop(self.freed.wait_timeout(state, SLICE));
            if interrupted()
                && let Some(raised) = RAISED.take()
            {
                return Err(Failure::Python(raised));
            }
            state = lock(&self.region);
        }
    }

    /// Leaves the connection to the next thread.
    fn give_back(&self, state: State) {
        *lock(&self.region) = state;
        self.freed.notify_all();
    }

    /// Fails unless the bytes are all inside the region, and returns their offset.
    fn check(&self, offset: i64, length: usize) -> Result<u64, Failure> {
        if std::process::id() != self.pid {
            return Err(Failure::child());
        }
        let start = u64::try_from(offset).ok();
        let end = start.and_then(|start| start.checked_add(u64::try_from(length).ok()?));
        match (start, end) {
            (Some(start), Some(end)) if end <= self.bytes => Ok(start),
            _ => {
                let Self { target, bytes, .. } = self;
                let message =
                    format!("{length} bytes at offset {offset} are not inside {target} of {bytes} bytes");
                Err(Failure::Value(message))
            }
        }
    }
}

/// A call that has the connection, until the call is over.
struct Call<'a> {
    of: &'a RemoteRegion,
    region: Option<Box<VerbsRegion>>,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.of.give_back(self.region.take().map_or(State::Closed, State::Free));
    }
}

/// Returns the parts of a buffer that are copied one at a time; one empty part for no bytes.
fn parts(length: usize) -> impl Iterator<Item = (usize, usize)> {
    let starts = (0..length.max(1)).step_by(COPIED_MAX);
    starts.map(move |start| (start, length.min(start.saturating_add(COPIED_MAX))))
}

fn advanced(start: u64, by: usize) -> u64 {
    start.saturating_add(by as u64)
}

#[pymethods]
impl RemoteRegion {
    /// Reads bytes at an offset (RDMA Read).
    fn read<'py>(&self, py: Python<'py>, offset: i64, length: i64) -> PyResult<Bound<'py, PyBytes>> {
        let length = usize::try_from(length)
            .map_err(|_| Failure::Value(format!("a length of {length} bytes: give 0 or more")))?;
        let start = self.check(offset, length)?;
        PyBytes::new_with(py, length, |out| Ok(detach(py, || self.with(|region| region.read(start, out)))?))
    }

    /// Reads as many bytes at an offset as a writable buffer has, and returns their number.
    fn readinto(&self, py: Python<'_>, offset: i64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let bytes = Bytes::of(buffer)?;
        let length = bytes.len()?;
        let start = self.check(offset, length)?;
        if bytes.whole()?.readonly() && length > 0 {
            return Err(Failure::Buffer("the buffer is read-only: give a writable one".to_owned()).into());
        }
        let mut copied = vec![0; length.min(COPIED_MAX)];
        for (from, to) in parts(length) {
            let part = copied.get_mut(..to.saturating_sub(from)).unwrap_or_default();
            detach(py, || self.with(|region| region.read(advanced(start, from), part)))?;
            if !part.is_empty() {
                bytes.part(from, to)?.copy_from_slice(py, part)?;
            }
        }
        Ok(length)
    }

    /// Writes the bytes of a buffer to an offset (RDMA Write), and returns their number once they are in the peer's
    /// memory.
    fn write(&self, py: Python<'_>, offset: i64, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        if let Ok(bytes) = data.cast::<PyBytes>() {
            // Bytes never change.
            let bytes = bytes.as_bytes();
            let start = self.check(offset, bytes.len())?;
            detach(py, || self.with(|region| region.write(start, bytes)))?;
            return Ok(bytes.len());
        }
        let bytes = Bytes::of(data)?;
        let length = bytes.len()?;
        let start = self.check(offset, length)?;
        let mut copied = vec![0; length.min(COPIED_MAX)];
        for (from, to) in parts(length) {
            let part = copied.get_mut(..to.saturating_sub(from)).unwrap_or_default();
            if !part.is_empty() {
                bytes.part(from, to)?.copy_to_slice(py, part)?;
            }
            detach(py, || self.with(|region| region.write(advanced(start, from), part)))?;
        }
        Ok(length)
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.bytes)?)
    }

    /// Text that names the region.
    #[getter]
    fn target(&self) -> &str {
        &self.target
    }

    /// Address of the peer.
    #[getter]
    fn peer(&self) -> &str {
        &self.peer
    }

    /// Rights that the program has asked for.
    #[getter]
    fn access<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        crate::enums::access(py, self.access)
    }

    /// Ends the connection, once other threads' calls are over.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if std::process::id() != self.pid {
            return Ok(());
        }
        Ok(detach(py, || match self.take() {
            Ok(region) => {
                drop(region);
                self.give_back(State::Closed);
                Ok(())
            }
            // Closed already, or interrupted.
            Err(Failure::Os(..)) => Ok(()),
            Err(raised) => Err(raised),
        })?)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("<RemoteRegion {} of {} bytes>", self.target, self.bytes)
    }
}

/// Returns the private data that asks a peer for a region.
#[pyfunction]
#[pyo3(signature = (name, access, token = None))]
pub(crate) fn region_request(name: &str, access: u32, token: Option<&[u8]>) -> PyResult<Vec<u8>> {
    let token = crate::server::token(token)?;
    let bytes = token.as_ref().map_or(&[][..], |token| token.as_bytes());
    let request = encode_request(name, crate::memory::access(access)?, bytes);
    let wrong =
        || Failure::Value(format!("`{name}` is no name of a region, or the rights are not a region's"));
    Ok(request.ok_or_else(wrong)?)
}

/// Parses the private data of a peer's answer: key, tagged offset and length of the region.
#[pyfunction]
pub(crate) fn region_grant(target: &str, access: u32, private_data: &[u8]) -> PyResult<(u32, u64, u64)> {
    let wanted = crate::memory::access(access)?;
    let grant = decode_reply(private_data).map_err(|cause| {
        let (class, errno) = of_service(cause);
        let help = "; the region may be absent, lack the right, or want a token or another source address";
        Failure::Os(class, errno, format!("the peer does not grant {target}: {cause}{help}"))
    })?;
    if grant.base_to.checked_add(grant.bytes).is_none() || !grant.access.contains(wanted) {
        let message =
            format!("the peer's grant of {target} is not one that was asked for; is the port right?");
        return Err(Failure::Os(Class::RegionError, libc::EPROTO, message).into());
    }
    Ok((grant.stag.0, grant.base_to, grant.bytes))
}
