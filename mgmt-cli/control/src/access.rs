//! Serde adapter of a region's rights: a set of type [`Access`] is a list of names in JSON, `["remote-read"]`.

use rdma::Access;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

pub(crate) fn serialize<S: Serializer>(access: &Access, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(access.names())
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Access, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    let right = |name: &str| {
        Access::from_region_name(name).ok_or_else(|| Error::unknown_variant(name, &Access::REGION_NAMES))
    };
    names.iter().try_fold(Access::NONE, |access, name| Ok(access | right(name)?))
}
