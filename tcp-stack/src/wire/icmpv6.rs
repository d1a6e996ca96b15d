//! ICMP for IPv6 (RFC 4443). The bodies of neighbor discovery messages are in `ndp`.

use super::{IpProtocol, ParseError, QuotedTcp, Sum, truncated};
use core::net::Ipv6Addr;

/// The message of an ICMPv6 header, by type and code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmpv6Message {
    /// Destination unreachable (RFC 4443 §3.1).
    Unreachable {
        /// Code: the reason (RFC 4443 §3.1).
        code: u8,
    },
    /// Packet too big (RFC 4443 §3.2).
    PacketTooBig {
        /// MTU of the next hop, bytes.
        mtu: u32,
    },
    /// Hop limit exceeded in transit (0), or fragment reassembly time exceeded (1).
    TimeExceeded {
        /// Code: 0 or 1.
        code: u8,
    },
    /// Parameter problem (RFC 4443 §3.4).
    ParameterProblem {
        /// Code of the parameter problem.
        code: u8,
    },
    /// Echo request: identifier and sequence number.
    EchoRequest([u8; 4]),
    /// Echo reply: identifier and sequence number.
    EchoReply([u8; 4]),
    /// Router solicitation (RFC 4861 §4.1).
    RouterSolicitation,
    /// Router advertisement (RFC 4861 §4.2).
    RouterAdvertisement,
    /// Neighbor solicitation (RFC 4861 §4.3).
    NeighborSolicitation,
    /// Neighbor advertisement (RFC 4861 §4.4), with its router (R), solicited (S) and override (O) flags.
    NeighborAdvertisement {
        /// R: the sender is a router.
        router: bool,
        /// S: sent in answer to a solicitation.
        solicited: bool,
        /// O: overrides a link address known before.
        overrides: bool,
    },
    /// A message of any other type.
    Unknown {
        /// Type of the message; below 128 it is an error.
        kind: u8,
        /// Code of the message.
        code: u8,
    },
}

/// An ICMPv6 message's header.
///
/// ```text
///  0        1        2                 4                                   8
/// +--------+--------+-----------------+-----------------------------------+------
/// |  type  |  code  |    checksum     | identifier, sequence | MTU | R S O| data, packet quoted, target
/// +--------+--------+-----------------+-----------------------------------+------
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmpv6Header {
    /// Type, code and their fields.
    pub message: Icmpv6Message,
}

impl Icmpv6Header {
    /// Length of a header, bytes.
    pub const LEN: usize = 8;
    const ROUTER: u8 = 0x80;
    const SOLICITED: u8 = 0x40;
    const OVERRIDE: u8 = 0x20;

    /// Parses a message; returns the header and the rest. The checksum is not verified: see
    /// [`Self::is_checksum_valid`].
    ///
    /// A message of neighbor discovery with a code other than zero is unknown (RFC 4861 §7.1 has it discarded).
    pub fn parse(message: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let Some(([kind, code, _, _, rest @ ..], body)) = message.split_first_chunk::<{ Self::LEN }>() else {
            return Err(truncated(Self::LEN, message.len()));
        };
        let [flags, ..] = *rest;
        let code = *code;
        let message = match (*kind, code) {
            (1, _) => Icmpv6Message::Unreachable { code },
            (2, _) => Icmpv6Message::PacketTooBig { mtu: u32::from_be_bytes(*rest) },
            (3, _) => Icmpv6Message::TimeExceeded { code },
            (4, _) => Icmpv6Message::ParameterProblem { code },
            (128, 0) => Icmpv6Message::EchoRequest(*rest),
            (129, 0) => Icmpv6Message::EchoReply(*rest),
            (133, 0) => Icmpv6Message::RouterSolicitation,
            (134, 0) => Icmpv6Message::RouterAdvertisement,
            (135, 0) => Icmpv6Message::NeighborSolicitation,
            (136, 0) => Icmpv6Message::NeighborAdvertisement {
                router: flags & Self::ROUTER != 0,
                solicited: flags & Self::SOLICITED != 0,
                overrides: flags & Self::OVERRIDE != 0,
            },
            (kind, _) => Icmpv6Message::Unknown { kind, code },
        };
        Ok((Self { message }, body))
    }

    /// Returns true if a whole message has the correct checksum.
    pub fn is_checksum_valid(src: Ipv6Addr, dst: Ipv6Addr, message: &[u8]) -> bool {
        let pseudo_header = Sum::pseudo_header(src.into(), dst.into(), IpProtocol::ICMPV6, message.len());
        pseudo_header.join(Sum::of(message)).is_valid()
    }

    /// Returns true if the message reports an error about the packet that it quotes.
    pub const fn is_error(&self) -> bool {
        matches!(
            self.message,
            Icmpv6Message::Unreachable { .. }
                | Icmpv6Message::PacketTooBig { .. }
                | Icmpv6Message::TimeExceeded { .. }
                | Icmpv6Message::ParameterProblem { .. }
        )
    }

    /// Returns the TCP segment that the body of an error quotes, or `None` if it quotes anything else or too little of
    /// it.
    pub fn quoted_tcp(body: &[u8]) -> Option<QuotedTcp> {
        QuotedTcp::in_ipv6(body)
    }

    /// Writes the header with the checksum over the pseudo-header, itself and `body`.
    ///
    /// The last four bytes of the header are zero if the message has no field for them.
    pub fn emit(&self, src: Ipv6Addr, dst: Ipv6Addr, body: &[u8], out: &mut [u8; Self::LEN]) {
        let zero = [0; 4];
        let (kind, code, rest) = match self.message {
            Icmpv6Message::Unreachable { code } => (1, code, zero),
            Icmpv6Message::PacketTooBig { mtu } => (2, 0, mtu.to_be_bytes()),
            Icmpv6Message::TimeExceeded { code } => (3, code, zero),
            Icmpv6Message::ParameterProblem { code } => (4, code, zero),
            Icmpv6Message::EchoRequest(rest) => (128, 0, rest),
            Icmpv6Message::EchoReply(rest) => (129, 0, rest),
            Icmpv6Message::RouterSolicitation => (133, 0, zero),
            Icmpv6Message::RouterAdvertisement => (134, 0, zero),
            Icmpv6Message::NeighborSolicitation => (135, 0, zero),
            Icmpv6Message::NeighborAdvertisement { router, solicited, overrides } => {
                let flag = |set, bit| if set { bit } else { 0 };
                let flags = flag(router, Self::ROUTER)
                    | flag(solicited, Self::SOLICITED)
                    | flag(overrides, Self::OVERRIDE);
                (136, 0, [flags, 0, 0, 0])
            }
            Icmpv6Message::Unknown { kind, code } => (kind, code, zero),
        };
        let [r0, r1, r2, r3] = rest;
        *out = [kind, code, 0, 0, r0, r1, r2, r3];
        let len = Self::LEN.saturating_add(body.len());
        let sum = Sum::pseudo_header(src.into(), dst.into(), IpProtocol::ICMPV6, len)
            .join(Sum::of(out))
            .join(Sum::of(body));
        let [c0, c1] = sum.checksum().to_be_bytes();
        *out = [kind, code, c0, c1, r0, r1, r2, r3];
    }
}
