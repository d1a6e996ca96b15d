//! The options of an IPv4 header (RFC 791 §3.1): checks that they are well formed, and finds incomplete source routes.

/// The result of checking the options of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ipv4Options {
    /// The packet is addressed to the host that its header names.
    Plain,
    /// An incomplete source route: the packet is addressed to another host.
    Routed,
    /// The options are malformed.
    Malformed,
}

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const RECORD_ROUTE: u8 = 7;
const TIMESTAMP: u8 = 68;
const LOOSE_SOURCE_ROUTE: u8 = 131;
const STRICT_SOURCE_ROUTE: u8 = 137;

impl Ipv4Options {
    /// Checks the bytes after the fixed part of a header.
    ///
    /// Unknown options are skipped by their length, as RFC 1122 §3.2.1.8 has it: "each MUST silently ignore any option
    /// it doesn't understand".
    #[cold]
    #[inline(never)]
    pub(crate) fn read(mut options: &[u8]) -> Self {
        let mut routes = 0_u8;
        let mut routed = false;
        loop {
            let (kind, len) = match options {
                [] | [END, ..] => break,
                [NO_OPERATION, rest @ ..] => {
                    options = rest;
                    continue;
                }
                [_] => return Self::Malformed,
                [kind, len, ..] => (*kind, usize::from(*len)),
            };
            // The length counts kind and length, too.
            let Some((option, rest)) = options.split_at_checked(len).filter(|_| len >= 2) else {
                return Self::Malformed;
            };
            options = rest;
            // RFC 791 §3.1: "The pointer is relative to this option, and the smallest legal value for the pointer is
            // 4", for a timestamp 5.
            let least = match kind {
                LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE | RECORD_ROUTE => 4,
                TIMESTAMP => 5,
                _ => continue,
            };
            let pointer = match option {
                [_, _, pointer, ..] if *pointer >= least && len.saturating_add(1) >= usize::from(least) => {
                    *pointer
                }
                _ => return Self::Malformed,
            };
            if matches!(kind, LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE) {
                routes = routes.saturating_add(1);
                // "If the pointer is greater than the length, the source route is empty (and the recorded route full)".
                routed = usize::from(pointer) <= len;
            }
        }
        match routes {
            0 => Self::Plain,
            1 if routed => Self::Routed,
            1 => Self::Plain,
            // RFC 791 §3.1, of both: "Appears at most once in a datagram."
            _ => Self::Malformed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Ipv4Options::{Malformed, Plain, Routed};

    #[test]
    fn options_are_plain_routed_or_malformed() {
        for (options, meaning) in [
            (&[][..], Plain),
            (&[1, 1, 1, 0], Plain),
            // The bytes after the end of options are padding.
            (&[0, 131, 255, 4], Plain),
            // Router alert (RFC 2113); an unassigned option.
            (&[148, 4, 0, 0], Plain),
            (&[222, 2, 1, 222, 3, 9], Plain),
            // The next hop is the first; the last; none is left.
            (&[131, 7, 4, 10, 0, 0, 9, 0], Routed),
            (&[137, 11, 8, 10, 0, 0, 9, 10, 0, 0, 8, 0], Routed),
            (&[1, 131, 11, 11, 10, 0, 0, 9, 10, 0, 0, 8], Routed),
            (&[131, 7, 8, 10, 0, 0, 9, 0], Plain),
            (&[137, 11, 12, 10, 0, 0, 9, 10, 0, 0, 8, 0], Plain),
            (&[131, 3, 4, 0], Plain),
            // Recorded routes and timestamps, with room and without.
            (&[7, 7, 4, 0, 0, 0, 0, 0], Plain),
            (&[7, 7, 8, 10, 0, 0, 9, 0], Plain),
            (&[68, 8, 5, 0, 0, 0, 0, 0], Plain),
            (&[68, 4, 5, 0], Plain),
            // No length; an impossible one; one that reaches beyond the header.
            (&[1, 1, 1, 131], Malformed),
            (&[148, 0, 0, 0], Malformed),
            (&[148, 1, 0, 0], Malformed),
            (&[148, 5, 0, 0], Malformed),
            (&[1, 148, 4, 0], Malformed),
            // No pointer, and one into the option's own header.
            (&[131, 2, 1, 1], Malformed),
            (&[131, 7, 3, 10, 0, 0, 9, 0], Malformed),
            (&[7, 7, 3, 0, 0, 0, 0, 0], Malformed),
            (&[7, 2, 1, 1], Malformed),
            (&[68, 8, 4, 0, 0, 0, 0, 0], Malformed),
            (&[68, 3, 5, 0], Malformed),
            // Two source routes.
            (&[131, 7, 8, 10, 0, 0, 9, 137, 7, 8, 10, 0, 0, 9, 0, 0], Malformed),
            (&[131, 7, 8, 10, 0, 0, 9, 131, 7, 4, 10, 0, 0, 9, 0, 0], Malformed),
        ] {
            assert_eq!(Ipv4Options::read(options), meaning, "{options:?}");
        }
    }
}
