//! The text that names a region of a peer: `HOST:PORT/NAME`.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::str::FromStr;

use rdma::service::check_name;

use super::error::RemoteError;
use crate::offer::REGION_PORT;

/// A region of a peer, as `HOST:PORT/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionTarget {
    /// Name or address of the peer, without brackets.
    pub host: String,
    /// TCP port of the peer.
    pub port: u16,
    /// Name of the region.
    pub name: String,
}

impl RegionTarget {
    /// Resolves the host to its addresses.
    pub(super) fn addresses(&self) -> io::Result<impl Iterator<Item = SocketAddr> + use<>> {
        (self.host.as_str(), self.port).to_socket_addrs()
    }
}

/// Parses the text `HOST:PORT/NAME` or `HOST/NAME`, where an IPv6 address stands in brackets.
impl FromStr for RegionTarget {
    type Err = RemoteError;

    fn from_str(text: &str) -> Result<Self, RemoteError> {
        let wrong = |reason: &str| RemoteError::Target { target: text.to_owned(), reason: reason.to_owned() };
        let (address, name) = text.split_once('/').ok_or_else(|| wrong("write HOST:PORT/NAME"))?;
        check_name(name).map_err(|error| wrong(&error.to_string()))?;
        let (host, port) = match address.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(|| wrong("`]` is missing"))?;
                (host, if port.is_empty() { None } else { Some(port) })
            }
            None => match address.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err(wrong("write an IPv6 address in brackets: [ADDRESS]:PORT/NAME"));
                }
                Some((host, _)) => (host, address.get(host.len()..)),
                None => (address, None),
            },
        };
        let port = match port.map(|port| port.strip_prefix(':').and_then(|port| port.parse().ok())) {
            None => REGION_PORT,
            Some(Some(port @ 1..)) => port,
            Some(_) => return Err(wrong("the port must be a number from 1 to 65535")),
        };
        if host.is_empty() {
            return Err(wrong("the host is missing: write HOST:PORT/NAME"));
        }
        Ok(Self { host: host.to_owned(), port, name: name.to_owned() })
    }
}

impl fmt::Display for RegionTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, name } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}/{name}")
        } else {
            write!(f, "{host}:{port}/{name}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_ports_and_names_are_read_and_written_alike() {
        for (text, shown) in [
            ("10.0.0.2:7000/lab", "10.0.0.2:7000/lab"),
            ("host/lab", "host:7400/lab"),
            ("[::1]/a/b", "[::1]:7400/a/b"),
            ("[fd77::2]:1/x+4k", "[fd77::2]:1/x+4k"),
        ] {
            assert_eq!(text.parse::<RegionTarget>().unwrap().to_string(), shown, "{text}");
        }
    }

    #[test]
    fn a_wrong_text_is_an_error_that_quotes_it() {
        for text in [
            "",
            "lab",
            "host:7000",
            "host:7000/",
            ":7000/lab",
            "/lab",
            "host:0/lab",
            "host:70000/lab",
            "host:/lab",
            "::1/lab",
            "fd77::2:7000/lab",
            "[::1:7000/lab",
            "[::1]7000/lab",
            "[]:1/lab",
            "host:7000/l\u{202e}ab",
        ] {
            let error = text.parse::<RegionTarget>().unwrap_err();
            assert!(
                matches!(&error, RemoteError::Target { target, .. } if target == text),
                "{text}: {error}"
            );
        }
    }
}
