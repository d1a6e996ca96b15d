//! `struct virtio_net_hdr`, which lies before each frame of a packet socket with `PACKET_VNET_HDR`: the work on the
//! frame that is left to its receiver (virtio 1.2 §5.1.6).

use tcp_stack::TxOffload;

/// Length of the header, bytes.
pub(super) const HEADER_BYTES: usize = 10;

/// Offset of the checksum in a TCP header.
pub(super) const TCP_CHECKSUM_OFFSET: u16 = 16;

/// The longest headers of a segment, bytes: Ethernet with a tag, IPv4 and TCP with all options.
pub(super) const HEADERS_MAX: usize = 18 + 60 + 60;

const NEEDS_CHECKSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
/// The first segment has CWR set.
const GSO_ECN: u8 = 0x80;

/// The kind of segments in a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Gso {
    /// The frame is one packet.
    #[default]
    None,
    /// Segments of TCP over IPv4.
    Tcp4,
    /// Segments of TCP over IPv6.
    Tcp6,
    /// Packets of another protocol.
    Other,
}

/// The header of one frame. A peer with CAP_NET_RAW at the other end of a veth chooses its fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// The checksum field holds the pseudo-header's sum: the data never left this machine, or the kernel has verified
    /// them.
    pub(super) needs_checksum: bool,
    /// A card has verified the checksum.
    pub(super) data_valid: bool,
    pub(super) gso: Gso,
    /// Length of the headers, bytes; a hint.
    pub(super) headers_len: u16,
    /// Payload of each segment but the last, bytes.
    pub(super) gso_size: u16,
    /// Offset in the frame from which on the checksum is computed.
    pub(super) checksum_start: u16,
    /// Offset of the checksum from there.
    pub(super) checksum_offset: u16,
}

impl Header {
    /// Reads a header of the kernel's.
    pub(super) fn parse(bytes: [u8; HEADER_BYTES]) -> Self {
        let [flags, gso, rest @ ..] = bytes;
        let [headers_len, gso_size, checksum_start, checksum_offset] = fields(rest);
        Self {
            needs_checksum: flags & NEEDS_CHECKSUM != 0,
            data_valid: flags & DATA_VALID != 0,
            gso: match gso & !GSO_ECN {
                0 => Gso::None,
                GSO_TCP4 => Gso::Tcp4,
                GSO_TCP6 => Gso::Tcp6,
                _ => Gso::Other,
            },
            headers_len,
            gso_size,
            checksum_start,
            checksum_offset,
        }
    }

    /// Returns the header of a frame to send.
    pub(super) fn of(offload: &TxOffload) -> Self {
        if !offload.tcp_checksum {
            return Self::default();
        }
        let network = u16::from(offload.l2_len).saturating_add(u16::from(offload.l3_len));
        let gso = match (offload.segment, offload.ipv6) {
            (0, _) => Gso::None,
            (_, false) => Gso::Tcp4,
            (_, true) => Gso::Tcp6,
        };
        Self {
            needs_checksum: true,
            data_valid: false,
            gso,
            headers_len: network.saturating_add(u16::from(offload.l4_len)),
            gso_size: offload.segment,
            checksum_start: network,
            checksum_offset: TCP_CHECKSUM_OFFSET,
        }
    }

    /// Returns the bytes of the header.
    pub(super) fn bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let (kinds, rest) = bytes.split_at_mut(2);
        let gso = match self.gso {
            Gso::None | Gso::Other => 0,
            Gso::Tcp4 => GSO_TCP4,
            Gso::Tcp6 => GSO_TCP6,
        };
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = flag(self.needs_checksum, NEEDS_CHECKSUM) | flag(self.data_valid, DATA_VALID);
        kinds.copy_from_slice(&[flags, gso]);
        let fields = [self.headers_len, self.gso_size, self.checksum_start, self.checksum_offset];
        for (to, field) in rest.as_chunks_mut::<2>().0.iter_mut().zip(fields) {
            *to = field.to_ne_bytes();
        }
        bytes
    }
}

/// The four fields behind flags and kind, in the machine's byte order.
fn fields(bytes: [u8; 8]) -> [u16; 4] {
    let mut fields = [0; 4];
    for (field, pair) in fields.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *field = u16::from_ne_bytes(*pair);
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_is_written() {
        let run = TxOffload {
            l2_len: 18,
            l3_len: 40,
            l4_len: 32,
            ipv6: true,
            tcp_checksum: true,
            segment: 1428,
            ..TxOffload::default()
        };
        let header = Header::of(&run);
        assert_eq!(header.bytes()[..2], [1, 4]);
        assert_eq!((header.headers_len, header.gso_size, header.checksum_start), (90, 1428, 58));
        assert_eq!(Header::parse(header.bytes()), header);
        let one = Header::of(&TxOffload { segment: 0, ..run });
        assert_eq!((one.gso, one.needs_checksum, one.checksum_offset), (Gso::None, true, 16));
        assert_eq!(Header::of(&TxOffload { tcp_checksum: false, ..run }), Header::default());
        assert_eq!(Header::default().bytes(), [0; 10]);
    }

    #[test]
    fn kinds_are_those_of_virtio() {
        let kind = |gso| Header::parse([0, gso, 0, 0, 0, 0, 0, 0, 0, 0]).gso;
        assert_eq!([0, 1, 4, 0x81, 0x84].map(kind), [Gso::None, Gso::Tcp4, Gso::Tcp6, Gso::Tcp4, Gso::Tcp6]);
        assert!([2, 3, 5, 7, 0x7f].map(kind).iter().all(|kind| *kind == Gso::Other));
        assert!(Header::parse([2, 0, 0, 0, 0, 0, 0, 0, 0, 0]).data_valid);
    }
}
