//! Messages about the daemon's counters.

use std::fmt;

use serde::de::{Deserialize as De, Deserializer, MapAccess, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use crate::worker::WorkerStatus;

/// The reply to `stats`: sums over the workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatsReply {
    /// Counters by layer, from the queues of the ports up to the control socket.
    pub groups: Vec<CounterGroup>,
    /// The load of each worker.
    pub workers: Vec<WorkerStatus>,
}

/// The counters of one layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterGroup {
    /// The name of the layer.
    pub group: String,
    /// The counters of the layer.
    pub counters: Vec<CounterRow>,
}

/// A counter with its help text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterRow {
    /// The name of the counter.
    pub name: String,
    /// The events that it counts.
    pub help: String,
    /// The count since the start of the daemon.
    pub value: u64,
}

/// Frames, FPDUs or requests that were dropped or refused for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropRow {
    /// The layer that dropped them: the name of its group in [`StatsReply`].
    pub layer: String,
    /// The name of the reason.
    pub reason: String,
    /// The meaning of the reason.
    pub help: String,
    /// The count since the start of the daemon.
    pub count: u64,
}

/// Counters by name: an object in JSON that keeps their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedCounters(pub Vec<(String, u64)>);

impl Serialize for NamedCounters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de> De<'de> for NamedCounters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = NamedCounters;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of counters")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NamedCounters, A::Error> {
                let mut counters = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    counters.push(entry);
                }
                Ok(NamedCounters(counters))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}
