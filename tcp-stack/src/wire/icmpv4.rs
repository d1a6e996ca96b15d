//! ICMP for IPv4 (RFC 792).

use super::{IpProtocol, ParseError, QuotedTcp, Sum, truncated};

/// The message of an ICMP header, by type and code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmpv4Message {
    /// Echo request: identifier and sequence number.
    EchoRequest([u8; 4]),
    /// Echo reply: identifier and sequence number.
    EchoReply([u8; 4]),
    /// Destination unreachable, except fragmentation needed.
    Unreachable {
        /// Code, the reason (RFC 1122 §3.2.2.1).
        code: u8,
    },
    /// Fragmentation needed and DF set.
    FragmentationNeeded {
        /// MTU of the next hop, bytes; zero from a router older than RFC 1191.
        mtu: u16,
    },
    /// Time to live exceeded in transit (0), or fragment reassembly time exceeded (1).
    TimeExceeded {
        /// Code: 0 or 1.
        code: u8,
    },
    /// Parameter problem: a header field is wrong.
    ParameterProblem {
        /// Code of the parameter problem.
        code: u8,
    },
    /// A message of any other type.
    Unknown {
        /// Type of the message.
        kind: u8,
        /// Code of the message.
        code: u8,
    },
}

/// An ICMP message's header.
///
/// ```text
///  0        1        2                 4                                   8
/// +--------+--------+-----------------+-----------------------------------+------
/// |  type  |  code  |    checksum     | identifier, sequence | unused,MTU | data, or the packet quoted
/// +--------+--------+-----------------+-----------------------------------+------
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmpv4Header {
    /// Type, code and their fields.
    pub message: Icmpv4Message,
}

impl Icmpv4Header {
    /// Length of a header, bytes.
    pub const LEN: usize = 8;

    /// Parses a message; returns the header and the rest. The checksum is not verified: see
    /// [`Self::is_checksum_valid`].
    pub fn parse(message: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let Some(([kind, code, _, _, rest @ ..], body)) = message.split_first_chunk::<{ Self::LEN }>() else {
            return Err(truncated(Self::LEN, message.len()));
        };
        let [_, _, m0, m1] = *rest;
        let code = *code;
        let message = match (*kind, code) {
            (0, 0) => Icmpv4Message::EchoReply(*rest),
            (8, 0) => Icmpv4Message::EchoRequest(*rest),
            // RFC 1191 §4: the MTU is "in the low-order 16 bits of the ICMP header field" that was unused.
            (3, 4) => Icmpv4Message::FragmentationNeeded { mtu: u16::from_be_bytes([m0, m1]) },
            (3, _) => Icmpv4Message::Unreachable { code },
            (11, _) => Icmpv4Message::TimeExceeded { code },
            (12, _) => Icmpv4Message::ParameterProblem { code },
            (kind, _) => Icmpv4Message::Unknown { kind, code },
        };
        Ok((Self { message }, body))
    }

    /// Returns true if a whole message has the correct checksum.
    pub fn is_checksum_valid(message: &[u8]) -> bool {
        Sum::of(message).is_valid()
    }

    /// Returns true if the message reports an error about the packet that it quotes.
    pub const fn is_error(&self) -> bool {
        matches!(
            self.message,
            Icmpv4Message::Unreachable { .. }
                | Icmpv4Message::FragmentationNeeded { .. }
                | Icmpv4Message::TimeExceeded { .. }
                | Icmpv4Message::ParameterProblem { .. }
        )
    }

    /// Returns the TCP segment that the body of an error quotes, or `None` if it quotes anything else or too little of
    /// it.
    pub fn quoted_tcp(body: &[u8]) -> Option<QuotedTcp> {
        QuotedTcp::in_ipv4(body)
    }

    /// Writes the header with the checksum over itself and `body`.
    pub fn emit(&self, body: &[u8], out: &mut [u8; Self::LEN]) {
        let zero = [0; 4];
        let (kind, code, rest) = match self.message {
            Icmpv4Message::EchoReply(rest) => (0, 0, rest),
            Icmpv4Message::EchoRequest(rest) => (8, 0, rest),
            Icmpv4Message::FragmentationNeeded { mtu } => {
                let [m0, m1] = mtu.to_be_bytes();
                (3, 4, [0, 0, m0, m1])
            }
            Icmpv4Message::Unreachable { code } => (3, code, zero),
            Icmpv4Message::TimeExceeded { code } => (11, code, zero),
            Icmpv4Message::ParameterProblem { code } => (12, code, zero),
            Icmpv4Message::Unknown { kind, code } => (kind, code, zero),
        };
        let [r0, r1, r2, r3] = rest;
        *out = [kind, code, 0, 0, r0, r1, r2, r3];
        let [c0, c1] = Sum::of(out).join(Sum::of(body)).checksum().to_be_bytes();
        *out = [kind, code, c0, c1, r0, r1, r2, r3];
    }

    /// The protocol number of ICMP.
    pub const PROTOCOL: IpProtocol = IpProtocol::ICMPV4;
}
