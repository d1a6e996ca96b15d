//! The safe layer over DPDK: everything that may touch a raw DPDK pointer lives here.
//!
//! ```text
//! Eal ── once per process; the last handle on it shuts DPDK down
//!  ├─ Mempool ── the packet buffers of one worker; counts what is out
//!  │   ├─ MbufPool ── allocates from it on that worker, keeping a reserve for control frames
//!  │   └─ Mbuf ── one handle on one buffer; dropping it frees or un-shares
//!  ├─ Device ── one ethdev: configure, start, statistics; dropping it stops and closes
//!  │   └─ DeviceRx, DeviceTx ── bursts; each owned by one worker thread
//!  └─ RegisteredThread ── what a worker thread holds, so that it has a buffer cache of its own
//! ```
//!
//! Nothing outlives what it stands on: queues hold their device, devices their pools and the `Eal`; a pool
//! that is dropped while buffers are still out leaks instead of freeing.
//!
//! JUSTIFICATION: DPDK is a C library; calling it is unsafe by nature. Each file says in its `SAFETY:` lines
//! who keeps the invariant it relies on.

mod config;
mod connection;
mod descriptors;
mod device;
mod eal;
mod error;
mod info;
mod mbuf;
mod mempool;
mod messages;
mod pool;
mod queue;
mod release;
mod removal;
mod ring;
mod rss;
mod signals;
mod tap;
mod telemetry;
mod thread;
mod xdp;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod testutil;

pub use config::{DeviceConfig, Offloads};
pub use device::{Device, DeviceQueues};
pub use eal::{Eal, EalConfig, EalMemory, Iova};
pub use error::{DpdkError, Errno};
pub use info::{DeviceInfo, Link, PortStats};
pub use mbuf::Mbuf;
pub use mempool::{Mempool, MempoolConfig, PoolError};
pub(crate) use pool::worker_reserve;
pub use pool::{MbufPool, RESERVE_MIN, Reuse, WORKER_CACHE};
pub(crate) use queue::wait_on;
pub use queue::{BURST, DeviceRx, DeviceTx, OTHERS_MAX, RxQueueStats, TxBatch, TxQueueStats, Wake, wait_for};
pub(crate) use release::ReleaseLast;
pub use ring::{RING_QUEUES_MAX, Ring};
pub use signals::RealtimeSignalsOccupied;
pub use tap::{Tap, TapInterface};
pub use telemetry::{Telemetry, TelemetryGroup};
pub use thread::{RegisteredThread, is_registered};
