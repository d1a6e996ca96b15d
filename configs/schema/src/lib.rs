//! iwarpd's configuration file: parsed, checked, explained.
//!
//! ```text
//! text ──toml──▶ table with spans ──check──▶ Config        every value in range, every default filled in
//!                                     └────▶ ConfigErrors  every mistake at once: file, line, column, key, range, what to do
//! ```
//!
//! The file is walked as a table that knows where each value stands, rather than deserialized into a
//! struct, because a deserializer stops at its first mistake and the reader of a report wants all of them.
//! A key that no check asked for is unknown, and is reported with the nearest known one.
//!
//! With a [`Machine`] the check also compares the file with the machine: cores, interfaces, groups, hugepages.
//!
//! [`memory_plan`] says what a configuration costs in hugepages and in ordinary memory before anything is started.
#![forbid(unsafe_code)]

mod check;
mod errors;
mod machine;
mod plan;
mod read;
mod text;
mod types;

#[cfg(test)]
mod tests;

pub use errors::{ConfigErrors, Mistake, Source};
pub use machine::Machine;
pub use plan::{Kind, MemoryPlan, PlanItem, connection_window_bytes, connection_window_line, memory_plan};
pub use text::{Access, RegionName, Token, parse_size};
pub use types::{
    Config, Control, Crc, Driver, Hugepages, Idle, Ip, LastSegment, Limits, Listener, Log, LogLevel, Markers,
    Memif, MemifRole, Memory, Mpa, NEIGHBORS_MAX, Neighbor, OnLoss, OutOfOrderPolicy, PORTS_MAX, Pcap,
    Placement, Port, Region, Service, Tcp, WORKERS_MAX, Workers,
};
