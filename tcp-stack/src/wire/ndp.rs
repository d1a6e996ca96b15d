//! Bodies of neighbor discovery messages (RFC 4861 §4.3, §4.4), which follow the ICMPv6 header.

use super::{MacAddr, ParseError, truncated};
use core::net::Ipv6Addr;

const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;
/// Limit of options per message; a normal message has one.
const OPTIONS_MAX: usize = 8;
/// Length of a body with its link address option, bytes.
const LEN: usize = 24;

/// Neighbor solicitation: asks for the link address of the target.
///
/// ```text
///  0                 16        17       18               24
/// +-----------------+---------+--------+----------------+
/// | target address  |    1    |   1    | source address |   the option is optional
/// +-----------------+---------+--------+----------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighborSolicitation {
    /// Address that is to be resolved.
    pub target: Ipv6Addr,
    /// Link address of the sender.
    pub source_mac: Option<MacAddr>,
}

impl NeighborSolicitation {
    /// Length as emitted, bytes.
    pub const LEN: usize = LEN;

    /// Parses a body; unknown options are ignored.
    ///
    /// RFC 4861 §7.1.1: "All included options have a length that is greater than zero."
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        let (target, source_mac) = parse(body, SOURCE_LINK_ADDRESS)?;
        Ok(Self { target, source_mac })
    }

    /// Writes the body with `source_mac`, or the unspecified link address without one.
    pub fn emit(&self, out: &mut [u8; LEN]) {
        emit(self.target, SOURCE_LINK_ADDRESS, self.source_mac.unwrap_or_default(), out);
    }
}

/// Neighbor advertisement: gives the link address of the target.
///
/// ```text
///  0                 16        17       18               24
/// +-----------------+---------+--------+----------------+
/// | target address  |    2    |   1    | target address |   the option is optional
/// +-----------------+---------+--------+----------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighborAdvertisement {
    /// Address that the advertisement is about.
    pub target: Ipv6Addr,
    /// Link address of the target.
    pub target_mac: Option<MacAddr>,
}

impl NeighborAdvertisement {
    /// Length as emitted, bytes.
    pub const LEN: usize = LEN;

    /// Parses a body; unknown options are ignored.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        let (target, target_mac) = parse(body, TARGET_LINK_ADDRESS)?;
        Ok(Self { target, target_mac })
    }

    /// Writes the body with `target_mac`, or the unspecified link address without one.
    pub fn emit(&self, out: &mut [u8; LEN]) {
        emit(self.target, TARGET_LINK_ADDRESS, self.target_mac.unwrap_or_default(), out);
    }
}

fn parse(body: &[u8], wanted: u8) -> Result<(Ipv6Addr, Option<MacAddr>), ParseError> {
    let Some((target, mut options)) = body.split_first_chunk::<16>() else {
        return Err(truncated(16, body.len()));
    };
    let mut link_address = None;
    for _ in 0..OPTIONS_MAX {
        let Some(([kind, units], _)) = options.split_first_chunk::<2>() else { break };
        let len = usize::from(*units).wrapping_mul(8);
        if len == 0 {
            return Err(ParseError::Length);
        }
        let Some((option, rest)) = options.split_at_checked(len) else {
            return Err(truncated(len, options.len()));
        };
        if *kind == wanted
            && let &[_, _, a, b, c, d, e, f] = option
        {
            link_address = Some(MacAddr([a, b, c, d, e, f]));
        }
        options = rest;
    }
    Ok((Ipv6Addr::from_octets(*target), link_address))
}

fn emit(target: Ipv6Addr, kind: u8, mac: MacAddr, out: &mut [u8; LEN]) {
    let Some((to, rest)) = out.split_first_chunk_mut::<16>() else { return };
    let Some((option, _)) = rest.split_first_chunk_mut::<8>() else { return };
    *to = target.octets();
    let MacAddr([a, b, c, d, e, f]) = mac;
    *option = [kind, 1, a, b, c, d, e, f];
}
