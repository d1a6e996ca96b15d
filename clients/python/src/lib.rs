//! The Python package `ironwarp`: RDMA over IP, in a process or with `iwarpd`.
//!
//! The library has what calls the verbs; the package around it, in Python, has the enumerations, the exceptions and
//! what an event loop awaits. Calls that wait detach from the interpreter, let handlers of signals run ten times a
//! second, and end with the exception of such a handler.

#![allow(clippy::needless_pass_by_value, reason = "arguments from Python are values of their own")]

mod bytes;
mod connections;
mod context;
mod device;
mod enums;
mod errors;
mod memory;
mod queue_pair;
mod queues;
mod region;
mod server;

/// Contents of the library, for the package around it.
#[pyo3::pymodule(name = "_ironwarp", gil_used = true)]
mod library {
    /// Version of the package.
    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "the name that Python has for a version")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    use crate::connections::{ConnectRequest, Connecting, Connection, Listener};
    #[pymodule_export]
    use crate::context::{AsyncEvent, Channel, Context, DeviceInfo, devices};
    #[pymodule_export]
    use crate::memory::{MemoryRegion, Pd, Sge};
    #[pymodule_export]
    use crate::queue_pair::QueuePair;
    #[pymodule_export]
    use crate::queues::{CompletionQueue, WorkCompletion};
    #[pymodule_export]
    use crate::region::{RemoteRegion, connect_region, region_grant, region_request};
    #[pymodule_export]
    use crate::server::{Offer, RegionServer};
}
