//! Bytes of any Python object with a contiguous buffer.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PySlice};

use crate::errors::Failure;

/// A view of an object's bytes.
pub(crate) struct Bytes<'py>(Bound<'py, PyAny>);

impl<'py> Bytes<'py> {
    /// Views the bytes of an object, also of an array with several dimensions.
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let view = PyMemoryView::from(object)?;
        if !view.getattr("c_contiguous")?.extract::<bool>()? {
            let reason = "the buffer is not contiguous: copy it to a contiguous one".to_owned();
            return Err(Failure::Buffer(reason).into());
        }
        // Python does not cast a view without elements.
        if view.getattr("nbytes")?.extract::<usize>()? == 0 {
            return Ok(Self(PyMemoryView::from(&pyo3::types::PyBytes::new(object.py(), b""))?.into_any()));
        }
        Ok(Self(view.call_method1("cast", ("B",))?))
    }

    pub(crate) fn len(&self) -> PyResult<usize> {
        self.0.len()
    }

    /// Returns the buffer of all bytes.
    pub(crate) fn whole(&self) -> PyResult<PyBuffer<u8>> {
        PyBuffer::get(&self.0)
    }

    /// Returns the buffer of some of the bytes.
    pub(crate) fn part(&self, start: usize, end: usize) -> PyResult<PyBuffer<u8>> {
        let range = PySlice::new(self.0.py(), isize::try_from(start)?, isize::try_from(end)?, 1);
        PyBuffer::get(&self.0.get_item(range)?)
    }
}
