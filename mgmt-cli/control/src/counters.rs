//! Counters.

use std::fmt;

use serde::de::{Deserialize as De, Deserializer, MapAccess, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use crate::status::WorkerStatus;

/// The reply of `stats`: sums over the workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatsReply {
    /// Counters by layer, from the queues of the ports up to the control socket.
    pub groups: Vec<CounterGroup>,
    /// How busy the workers are.
    pub workers: Vec<WorkerStatus>,
}

/// The counters of one layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterGroup {
    /// The layer.
    pub group: String,
    /// Its counters.
    pub counters: Vec<CounterRow>,
}

/// One counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterRow {
    /// Its name.
    pub name: String,
    /// What it counts.
    pub help: String,
    /// How many since the daemon's start.
    pub value: u64,
}

/// Frames, FPDUs or requests that were dropped or refused for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropRow {
    /// The layer that dropped them: the name of its group in [`StatsReply`].
    pub layer: String,
    /// The reason.
    pub reason: String,
    /// What the reason means.
    pub help: String,
    /// How many since the daemon's start.
    pub count: u64,
}

/// Counters by name, an object in JSON; keeps the order in which they were given.
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
