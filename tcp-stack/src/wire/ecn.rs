//! The ECN field of an IP header (RFC 3168 §5).

/// The two low bits of the IPv4 and IPv6 traffic class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EcnField {
    /// Not-ECT: the transport does not use ECN; congestion drops the packet.
    #[default]
    NotEct,
    /// ECT(1): the transport uses ECN.
    Ect1,
    /// ECT(0): the transport uses ECN.
    Ect0,
    /// CE: a router marked the packet instead of dropping it.
    Ce,
}

impl EcnField {
    /// The field's bits in a traffic class.
    pub const MASK: u8 = 3;

    /// Returns the field of a traffic class; the other six bits (DSCP) are ignored.
    #[inline]
    pub const fn of(traffic_class: u8) -> Self {
        match traffic_class & Self::MASK {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// Returns the bits as on the wire, 0..=3.
    #[inline]
    pub const fn bits(self) -> u8 {
        match self {
            Self::NotEct => 0,
            Self::Ect1 => 1,
            Self::Ect0 => 2,
            Self::Ce => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codepoints are those of RFC 3168 §5, figure 1.
    #[test]
    fn codepoints_do_not_depend_on_the_dscp() {
        let figure =
            [(0b00, EcnField::NotEct), (0b01, EcnField::Ect1), (0b10, EcnField::Ect0), (0b11, EcnField::Ce)];
        for (bits, field) in figure {
            assert_eq!(field.bits(), bits);
            for dscp in 0..64_u8 {
                assert_eq!(EcnField::of(dscp << 2 | bits), field);
            }
        }
    }
}
