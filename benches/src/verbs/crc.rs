//! Adapters of the CRC policy to clap and serde: `on` and `off` in flags and reports.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use rdma::CrcPolicy;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

/// Returns clap's parser of a policy.
pub(super) fn parser() -> impl TypedValueParser<Value = CrcPolicy> {
    let value = |(name, policy)| {
        PossibleValue::new(name).help(match policy {
            CrcPolicy::Required => "Every FPDU has a CRC, as with real peers",
            CrcPolicy::IfPeerAsks => "Both nodes agree on FPDUs without CRC",
        })
    };
    PossibleValuesParser::new(CrcPolicy::NAMES.map(value))
        .try_map(|name| CrcPolicy::from_name(&name).ok_or("neither `on` nor `off`"))
}

pub(super) fn serialize<S: Serializer>(policy: &CrcPolicy, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(policy.name())
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CrcPolicy, D::Error> {
    policy(&String::deserialize(deserializer)?)
}

fn policy<E: Error>(name: &str) -> Result<CrcPolicy, E> {
    CrcPolicy::from_name(name).ok_or_else(|| E::unknown_variant(name, &["on", "off"]))
}

/// Serde adapter of a list of policies.
pub(super) mod list {
    use super::{CrcPolicy, Deserialize, Deserializer, Serializer, policy};

    pub(in super::super) fn serialize<S: Serializer>(
        policies: &[CrcPolicy],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(policies.iter().map(|policy| policy.name()))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<CrcPolicy>, D::Error> {
        Vec::<String>::deserialize(deserializer)?.iter().map(|name| policy(name)).collect()
    }
}
