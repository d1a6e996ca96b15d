//! Reads source prefixes under the rule of the configuration ([`rdma::service::parse_prefix`]): of messages, and of
//! command lines.

use ipnet::IpNet;
use serde::de::{Deserialize as _, Deserializer};

/// Parses a prefix, or an address that stands for itself.
///
/// # Errors
/// The text is no prefix. The message names the mistake, and a text to write instead.
pub fn parse_prefix(text: &str) -> Result<IpNet, String> {
    rdma::service::parse_prefix(text).map_err(|error| format!("{error}: {}", error.help()))
}

fn parse<E: serde::de::Error>(text: &str) -> Result<IpNet, E> {
    parse_prefix(text).map_err(E::custom)
}

/// Deserializes a list of prefixes.
pub(crate) fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    Vec::<String>::deserialize(deserializer)?.iter().map(|text| parse(text)).collect()
}

/// Deserializes a prefix that may be missing.
pub(crate) fn option<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpNet>, D::Error> {
    Option::<String>::deserialize(deserializer)?.map(|text| parse(&text)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request is held to the same rule as the command line and the configuration.
    #[test]
    fn requests_are_read_alike() {
        let ask = |allow: &str| {
            let request =
                serde_json::json!({"name": "lab", "bytes": 1, "access": ["remote-read"], "allow": [allow]});
            crate::params::<crate::RegionRegisterMethod>(request)
        };
        assert_eq!(ask("fd77::1").unwrap().allow, ["fd77::1/128".parse::<IpNet>().unwrap()]);
        for (text, reason) in [("10.77.0.99/24", "did you mean \"10.77.0.0/24\""), ("lan", "not a prefix")] {
            let refused = ask(text).unwrap_err();
            assert_eq!(refused.data.kind, crate::ErrorKind::InvalidParams);
            assert!(refused.message.contains(reason), "{refused}");
        }
    }

    /// `conn.close` takes an address, too, and refuses a prefix that could mean one host or its network.
    #[test]
    fn the_peers_of_a_close_are_read_alike() {
        let ask = |peer: &str| crate::params::<crate::ConnCloseMethod>(serde_json::json!({"peer": peer}));
        assert_eq!(ask("fd77::1").unwrap().peer, Some("fd77::1/128".parse::<IpNet>().unwrap()));
        assert_eq!(crate::params::<crate::ConnCloseMethod>(serde_json::json!({"id": 7})).unwrap().peer, None);
        let refused = ask("10.77.0.99/24").unwrap_err();
        assert_eq!(refused.data.kind, crate::ErrorKind::InvalidParams);
        assert!(refused.message.contains("did you mean \"10.77.0.0/24\""), "{refused}");
    }
}
