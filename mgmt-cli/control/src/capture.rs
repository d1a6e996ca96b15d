//! Capture of frames: the parameters of `capture`, and the filter expression.

use std::fmt;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The most terms of a filter.
pub const FILTER_TERMS_MAX: usize = 16;

/// A filter of frames: every term must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The terms, at most [`FILTER_TERMS_MAX`]; a filter without terms admits every frame.
    pub terms: Vec<Term>,
}

/// A term of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// True if the test must fail.
    pub negated: bool,
    /// The test of the frame.
    pub test: Test,
}

/// A test of a frame. One about a header that the frame does not have fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// The source or the destination is in the prefix.
    Host(IpNet),
    /// The source is in the prefix.
    Source(IpNet),
    /// The destination is in the prefix.
    Destination(IpNet),
    /// The source or the destination is this TCP or UDP port.
    Port(u16),
    /// The source is this TCP or UDP port.
    SourcePort(u16),
    /// The destination is this TCP or UDP port.
    DestinationPort(u16),
    /// The frame is ARP.
    Arp,
    /// The frame is IPv4.
    Ipv4,
    /// The frame is IPv6.
    Ipv6,
    /// The frame has this IP protocol number.
    Protocol(u8),
    /// One of these TCP flags is set; the bits are those of the header (RFC 9293 §3.1).
    Flags(u8),
    /// The frame was received.
    Received,
    /// The frame was sent.
    Sent,
}

/// The names of the TCP flags, from bit 0 on.
const FLAGS: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];

/// The tests that are one word.
const WORDS: [(&str, Test); 9] = [
    ("arp", Test::Arp),
    ("ip", Test::Ipv4),
    ("ip6", Test::Ipv6),
    ("tcp", Test::Protocol(6)),
    ("udp", Test::Protocol(17)),
    ("icmp", Test::Protocol(1)),
    ("icmp6", Test::Protocol(58)),
    ("in", Test::Received),
    ("out", Test::Sent),
];

/// The error of an expression that is no filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FilterError(String);

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let mut words = text.split_whitespace().peekable();
        let mut terms = Vec::new();
        while words.peek().is_some() {
            if !terms.is_empty() && words.next_if_eq(&"and").is_some() && words.peek().is_none() {
                return Err(FilterError("`and` is followed by nothing".to_owned()));
            }
            let negated = words.next_if_eq(&"not").is_some();
            terms.push(Term { negated, test: test(&mut words)? });
        }
        if terms.len() > FILTER_TERMS_MAX {
            return Err(FilterError(format!("a filter has at most {FILTER_TERMS_MAX} terms")));
        }
        Ok(Self { terms })
    }
}

fn test<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<Test, FilterError> {
    let Some(word) = words.next() else { return Err(FilterError("`not` is followed by nothing".to_owned())) };
    if let Some((_, test)) = WORDS.iter().find(|(name, _)| *name == word) {
        return Ok(*test);
    }
    let kind = match word {
        "host" => |text: &str| prefix(text).map(Test::Host),
        "src" => |text: &str| prefix(text).map(Test::Source),
        "dst" => |text: &str| prefix(text).map(Test::Destination),
        "port" => |text: &str| port(text).map(Test::Port),
        "sport" => |text: &str| port(text).map(Test::SourcePort),
        "dport" => |text: &str| port(text).map(Test::DestinationPort),
        "flags" => |text: &str| flags(text).map(Test::Flags),
        _ => {
            return Err(FilterError(format!(
                "`{word}` is no test; the tests are host, src and dst with an address or prefix, port, sport and \
                 dport with a number, flags with names joined by commas, and arp, ip, ip6, tcp, udp, icmp, icmp6, \
                 in, out"
            )));
        }
    };
    words.next().ok_or_else(|| FilterError(format!("`{word}` is followed by nothing"))).and_then(kind)
}

fn prefix(text: &str) -> Result<IpNet, FilterError> {
    rdma::service::parse_prefix(text).map_err(|error| FilterError(format!("`{text}`: {error}")))
}

fn port(text: &str) -> Result<u16, FilterError> {
    text.parse().map_err(|_| FilterError(format!("`{text}` is not a port: 0 to 65535")))
}

fn flags(text: &str) -> Result<u8, FilterError> {
    text.split(',').try_fold(0, |bits, name| {
        let bit = FLAGS.iter().position(|flag| *flag == name);
        let bit = bit.and_then(|bit| 1_u8.checked_shl(u32::try_from(bit).ok()?));
        let known = || FilterError(format!("`{name}` is no TCP flag; the flags are {}", FLAGS.join(", ")));
        Ok(bits | bit.ok_or_else(known)?)
    })
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Term { negated, test }) in self.terms.iter().enumerate() {
            f.write_str(if at > 0 { " and " } else { "" })?;
            f.write_str(if *negated { "not " } else { "" })?;
            match test {
                Test::Host(net) => write!(f, "host {net}")?,
                Test::Source(net) => write!(f, "src {net}")?,
                Test::Destination(net) => write!(f, "dst {net}")?,
                Test::Port(port) => write!(f, "port {port}")?,
                Test::SourcePort(port) => write!(f, "sport {port}")?,
                Test::DestinationPort(port) => write!(f, "dport {port}")?,
                Test::Flags(bits) => {
                    let set = |at: &usize| {
                        bits.checked_shr(u32::try_from(*at).unwrap_or(8)).is_some_and(|bits| bits & 1 == 1)
                    };
                    let names: Vec<&str> =
                        FLAGS.iter().enumerate().filter(|(at, _)| set(at)).map(|(_, name)| *name).collect();
                    write!(f, "flags {}", names.join(","))?;
                }
                word => {
                    let name = WORDS.iter().find(|(_, test)| test == word).map_or("ip", |(name, _)| *name);
                    f.write_str(name)?;
                }
            }
        }
        Ok(())
    }
}

impl Serialize for Filter {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Filter {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The parameters of `capture`. A member that is absent has its default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CaptureStart {
    /// The port, by name; without one, all ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// The connection, by number; without one, all connections and everything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conn: Option<u64>,
    /// The filter of frames.
    pub filter: Filter,
    /// The most bytes of a frame that are captured: 14 to 65,535.
    pub snap_bytes: u32,
    /// The memory of the capture, in bytes: 65,536 to 67,108,864.
    pub buffer_bytes: u64,
    /// The most bytes per second that are captured: 65,536 to 1,073,741,824.
    pub bytes_per_s_max: u64,
}

impl Default for CaptureStart {
    fn default() -> Self {
        Self {
            port: None,
            conn: None,
            filter: Filter::default(),
            snap_bytes: 65_535,
            buffer_bytes: 4 << 20,
            bytes_per_s_max: 64 << 20,
        }
    }
}

/// The reply to `capture`. A file in the pcapng format follows it until the client disconnects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capturing {
    /// The ports whose frames are captured. Their positions are the interface numbers of the file.
    pub ports: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read_and_written() {
        for text in [
            "",
            "tcp",
            "host 10.77.0.1/32 and not port 22",
            "not arp and src fd77::/64 and dst 0.0.0.0/0 and sport 1 and dport 65535",
            "in and tcp and flags syn,rst",
            "flags fin,syn,rst,psh,ack,urg,ece,cwr and out and ip6 and icmp6",
        ] {
            let filter: Filter = text.parse().unwrap();
            assert_eq!(filter.to_string(), text);
        }
        // `and` may be left out, and an address is a prefix.
        let short: Filter = "tcp host 10.77.0.1 not in".parse().unwrap();
        assert_eq!(short.to_string(), "tcp and host 10.77.0.1/32 and not in");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, named) in [
            ("tcpp", "`tcpp` is no test"),
            ("tcp or udp", "`or` is no test"),
            ("host", "`host` is followed by nothing"),
            ("host 10.0.0.1/8", "10.0.0.1/8"),
            ("port 65536", "`65536` is not a port"),
            ("flags syn,foo", "`foo` is no TCP flag"),
            ("not", "`not` is followed by nothing"),
            ("tcp and", "`and` is followed by nothing"),
            (&"tcp ".repeat(17), "at most 16 terms"),
        ] {
            let error = text.parse::<Filter>().unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
