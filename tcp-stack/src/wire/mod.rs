//! Wire formats, one header per file.
//!
//! Every header parses from a slice and emits into one, without state. Unknown values of enumerated fields are kept,
//! not rejected. Parsing never panics, on any bytes.

mod address;
mod arp;
mod checksum;
mod ecn;
mod ethernet;
mod flow;
mod icmpv4;
mod icmpv6;
mod ipv4;
mod ipv4_option;
mod ipv6;
mod ndp;
mod quoted;
mod rss;
mod tcp;
mod tcp_option;

pub(crate) use address::solicited_node;
pub use address::{Ipv4Cidr, Ipv6Cidr, MacAddr};
pub use arp::{ArpOperation, ArpPacket};
pub use checksum::Sum;
pub use ecn::EcnField;
pub use ethernet::{EtherType, EthernetHeader};
pub use flow::{Flow, flow_hash, peek_flow};
pub use icmpv4::{Icmpv4Header, Icmpv4Message};
pub use icmpv6::{Icmpv6Header, Icmpv6Message};
pub use ipv4::Ipv4Header;
pub(crate) use ipv4_option::Ipv4Options;
pub use ipv6::{FragmentHeader, Ipv6Header, UpperLayer};
pub use ndp::{NeighborAdvertisement, NeighborSolicitation};
pub use quoted::QuotedTcp;
pub use rss::Rss;
pub use tcp::{TcpFlags, TcpHeader};
pub use tcp_option::{SackBlocks, SackRange, TcpOptions, Timestamps};

/// The protocol number of an upper-layer protocol or an IPv6 extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpProtocol(pub u8);

impl IpProtocol {
    /// IPv6 hop-by-hop options (RFC 8200 §4.3).
    pub const HOP_BY_HOP: Self = Self(0);
    /// ICMP for IPv4 (RFC 792).
    pub const ICMPV4: Self = Self(1);
    /// The Transmission Control Protocol (RFC 9293).
    pub const TCP: Self = Self(6);
    /// IPv6 routing header (RFC 8200 §4.4).
    pub const ROUTING: Self = Self(43);
    /// IPv6 fragment header (RFC 8200 §4.5).
    pub const FRAGMENT: Self = Self(44);
    /// ICMP for IPv6 (RFC 4443).
    pub const ICMPV6: Self = Self(58);
    /// IPv6 destination options (RFC 8200 §4.6).
    pub const DESTINATION_OPTIONS: Self = Self(60);
}

/// The reason why bytes are not a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// The bytes end before the header, or before the length that the header gives.
    Truncated {
        /// Bytes required, counted from the start.
        need: usize,
        /// Bytes that were there.
        have: usize,
    },
    /// A version, hardware type or size field that names another protocol.
    Version,
    /// An impossible length field, such as a header shorter than its fixed part.
    Length,
    /// More IPv6 extension headers, or options in them, than the limits allow.
    TooManyExtensions,
    /// An unknown IPv6 extension header or option that must not be skipped, or one out of place.
    Extension,
}

/// Returns the error for `have` bytes where `need` are needed.
#[cold]
#[inline(never)]
fn truncated(need: usize, have: usize) -> ParseError {
    ParseError::Truncated { need, have }
}
