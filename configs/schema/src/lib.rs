//! Configuration files of iwarpd and iwarp-nfsd: parser, checks, reports of mistakes, memory plan.
//!
//! ```text
//! text ──toml──▶ table with spans ──check──▶ Config        every value in range, every default filled in
//!                                     └────▶ ConfigErrors  every mistake at once, with its place and advice
//! ```
//!
//! The file is traversed as a table with source positions, not deserialized into a struct: a deserializer stops at the
//! first mistake, and the report must contain all. A key that no check reads is unknown, and is reported with the
//! nearest known key.
//!
//! A key is one row of a table of `keys!`: field, type, default, allowed values, effect of a reload. The functions
//! below the table check combinations of keys.
//!
//! With a [`Machine`] the checks also compare the file with the machine: cores, interfaces, groups, hugepages.
//!
//! [`memory_plan`] computes the hugepages and the ordinary memory that a configuration needs, before anything is
//! started.
#![forbid(unsafe_code)]

mod check;
mod document;
mod errors;
mod keys;
mod machine;
mod nfsd;
mod plan;
mod read;
mod reload;
#[cfg(feature = "testutil")]
#[allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]
pub mod testutil;
mod text;
mod types;

#[cfg(test)]
mod tests;

pub use check::nfsd::{Nfs, NfsdClients, NfsdControl, NfsdExport, NfsdRdma, NfsdState, NfsdTcp};
pub use check::{
    Applications, Control, Drain, Ip, Limits, Listener, Log, Memory, Metrics, Mpa, Neighbor, Placement, Port,
    Privileges, Region, Tcp, UserLimits, Workers,
};
pub use document::manual_pages;
pub use errors::{ConfigErrors, Mistake, Source};
pub use machine::Machine;
pub use nfsd::{Nfsd, NfsdContent, NfsdSquash};
pub use plan::{Kind, MemoryPlan, PlanItem, connection_window_bytes, connection_window_line, memory_plan};
pub use reload::{Line, Plan, Refusals, RegionDiff, Step, plan};
pub use text::{RegionName, parse_size, token_from_file, token_from_text};
pub use types::{
    Addresses, CONTEXTS_MAX, Config, Driver, Hugepages, Idle, LogFormat, LogLevel, Memif, MemifRole,
    MetricsAddress, NEIGHBORS_MAX, OnLoss, PORTS_MAX, Pcap, PortRange, Service, WORKERS_MAX,
};
