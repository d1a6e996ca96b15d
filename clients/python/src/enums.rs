//! Enumerations of the package, which are Python's, and their values here.

use iwarp_verbs::{Access, QpState, WcOpcode, WcStatus};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// Class of the package, which is imported once.
struct Class {
    name: &'static str,
    class: PyOnceLock<Py<PyType>>,
}

impl Class {
    const fn new(name: &'static str) -> Self {
        Self { name, class: PyOnceLock::new() }
    }

    fn member<'py>(&self, py: Python<'py>, value: u32) -> PyResult<Bound<'py, PyAny>> {
        self.class.import(py, "ironwarp._enums", self.name)?.call1((value,))
    }
}

static ACCESS: Class = Class::new("Access");
static OPCODE: Class = Class::new("Opcode");
static STATE: Class = Class::new("QpState");
static STATUS: Class = Class::new("Status");

pub(crate) fn access(py: Python<'_>, access: Access) -> PyResult<Bound<'_, PyAny>> {
    ACCESS.member(py, access.bits().into())
}

/// Returns the status, whose value is that of `ibv_wc_status`.
pub(crate) fn status(py: Python<'_>, status: WcStatus) -> PyResult<Bound<'_, PyAny>> {
    STATUS.member(py, status.number().into())
}

/// Returns the opcode, whose value is that of `ibv_wc_opcode`.
pub(crate) fn opcode(py: Python<'_>, opcode: WcOpcode) -> PyResult<Bound<'_, PyAny>> {
    OPCODE.member(py, opcode.number().into())
}

/// States of a queue pair with their values in Python.
const STATES: [(QpState, u32); 5] = [
    (QpState::Idle, 0),
    (QpState::Rts, 1),
    (QpState::Closing, 2),
    (QpState::Terminate, 3),
    (QpState::Error, 4),
];

pub(crate) fn state(py: Python<'_>, state: QpState) -> PyResult<Bound<'_, PyAny>> {
    let value = STATES.into_iter().find(|(known, _)| *known == state).map_or(4, |(_, value)| value);
    STATE.member(py, value)
}

/// Returns the state of a value; `None` if there is none.
pub(crate) fn state_of(value: u32) -> Option<QpState> {
    STATES.into_iter().find(|(_, known)| *known == value).map(|(state, _)| state)
}
