//! Messages and private data of rsockets, as rdma-core has them on the wire.

/// Entries of a list of targets.
pub(super) const TARGETS: u32 = 2;
/// Bytes of a target.
pub(super) const TARGET_BYTES: usize = 16;
/// Bytes of an entry of a map of buffers.
pub(super) const IOMAP_BYTES: usize = 24;
/// Bytes of a message.
pub(super) const MESSAGE_BYTES: usize = 4;
/// Bytes of the encoding of [`ConnData`].
pub(super) const CONN_DATA_BYTES: usize = 40;

/// Version of the protocol.
const VERSION: u8 = 1;
/// Flag of a sender whose byte order is that of the network.
const FLAG_NETWORK_ORDER: u8 = 1 << 0;
/// Flag of a sender that has a map of buffers.
const FLAG_IOMAP: u8 = 1 << 1;
const OWN_FLAGS: u8 = FLAG_IOMAP | if cfg!(target_endian = "big") { FLAG_NETWORK_ORDER } else { 0 };

// Types of messages, in the upper three bits.
const OP_BITS: u32 = 29;
const DATA: u32 = 0;
const GRANT: u32 = 4;
const MAPPED: u32 = 6;
const CONTROL: u32 = 7;

// Control messages.
const DISCONNECT: u32 = 0;
const SHUTDOWN: u32 = 2;

/// A message. It is in the byte order of the machine, as rdma-core's messages on iWARP are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// This many bytes were written into the receive buffer.
    Data(u32),
    /// Data messages up to this number may be sent, and a target may have been written.
    Grant(u16),
    /// An entry of the map of buffers was written.
    Mapped,
    /// The peer sends no more.
    Shutdown,
    /// The peer has closed the stream.
    Disconnect,
    /// A message without an effect, such as a sign of life.
    Other,
}

impl Message {
    pub(super) fn encode(self) -> [u8; MESSAGE_BYTES] {
        let (op, data) = match self {
            Self::Data(length) => (DATA, length),
            Self::Grant(allowed) => (GRANT, allowed.into()),
            Self::Mapped => (MAPPED, 0),
            Self::Shutdown => (CONTROL, SHUTDOWN),
            Self::Disconnect => (CONTROL, DISCONNECT),
            Self::Other => (CONTROL, 1),
        };
        (op << OP_BITS | data).to_ne_bytes()
    }

    pub(super) fn decode(bytes: [u8; MESSAGE_BYTES]) -> Self {
        let word = u32::from_ne_bytes(bytes);
        let data = word & ((1 << OP_BITS) - 1);
        match (word >> OP_BITS, data) {
            (DATA, length) => Self::Data(length),
            // The number of a message has 16 bits; rdma-core sends more, of which those above do not count.
            (GRANT, allowed) => Self::Grant((allowed & 0xffff) as u16),
            (MAPPED, _) => Self::Mapped,
            (CONTROL, DISCONNECT) => Self::Disconnect,
            (CONTROL, SHUTDOWN) => Self::Shutdown,
            _ => Self::Other,
        }
    }
}

/// Memory that its owner lets the peer write (`struct rs_sge`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) address: u64,
    pub(super) key: u32,
    /// Bytes, or entries for a list.
    pub(super) length: u32,
}

impl Target {
    pub(super) fn to_bytes(self) -> [u8; TARGET_BYTES] {
        join(&[&self.address.to_ne_bytes(), &self.key.to_ne_bytes(), &self.length.to_ne_bytes()])
    }

    /// Returns what the last eight bytes state, without the address.
    pub(super) fn of_last_word(word: u64) -> Self {
        let bytes = word.to_ne_bytes();
        Self {
            address: 0,
            key: u32::from_ne_bytes(part(&bytes, 0)),
            length: u32::from_ne_bytes(part(&bytes, 4)),
        }
    }

    pub(super) fn from_bytes(bytes: &[u8; TARGET_BYTES]) -> Self {
        Self {
            address: u64::from_ne_bytes(part(bytes, 0)),
            key: u32::from_ne_bytes(part(bytes, 8)),
            length: u32::from_ne_bytes(part(bytes, 12)),
        }
    }
}

/// A buffer and the offset that its owner has given it (`struct rs_iomap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IoMap {
    pub(super) offset: u64,
    pub(super) target: Target,
}

impl IoMap {
    pub(super) fn to_bytes(self) -> [u8; IOMAP_BYTES] {
        join(&[&self.offset.to_ne_bytes(), &self.target.to_bytes()])
    }

    pub(super) fn from_bytes(bytes: &[u8; IOMAP_BYTES]) -> Self {
        Self { offset: u64::from_ne_bytes(part(bytes, 0)), target: Target::from_bytes(&part(bytes, 8)) }
    }
}

/// Private data of a connect request and of its reply (`struct rs_conn_data`), in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnData {
    /// Messages that the other side may send at first.
    pub(super) credits: u16,
    /// Entries of the map of buffers, behind the list of targets.
    pub(super) iomaps: u16,
    /// List of targets that the other side writes.
    pub(super) targets: Target,
    /// Target that the other side writes first.
    pub(super) buffer: Target,
}

impl ConnData {
    pub(super) fn encode(&self) -> [u8; CONN_DATA_BYTES] {
        let target = |target: Target| {
            join::<TARGET_BYTES>(&[
                &target.address.to_be_bytes(),
                &target.key.to_be_bytes(),
                &target.length.to_be_bytes(),
            ])
        };
        let iomaps = scale(self.iomaps);
        let head = [VERSION, OWN_FLAGS];
        let (targets, buffer) = (target(self.targets), target(self.buffer));
        join(&[&head, &self.credits.to_be_bytes(), &[0, 0, 0, iomaps], &targets, &buffer])
    }

    /// Decodes private data; `None` for another version, or a peer with another byte order: its messages are not
    /// understood.
    pub(super) fn decode(private_data: &[u8]) -> Option<Self> {
        let bytes: &[u8; CONN_DATA_BYTES] = private_data.first_chunk()?;
        let [version, flags] = part(bytes, 0);
        if version != VERSION || (flags ^ OWN_FLAGS) & FLAG_NETWORK_ORDER != 0 {
            return None;
        }
        let target = |at: usize| Target {
            address: u64::from_be_bytes(part(bytes, at)),
            key: u32::from_be_bytes(part(bytes, at + 8)),
            length: u32::from_be_bytes(part(bytes, at + 12)),
        };
        let [iomaps] = part(bytes, 7);
        let iomaps = if flags & FLAG_IOMAP == 0 { 0 } else { unscale(iomaps) };
        Some(Self {
            credits: u16::from_be_bytes(part(bytes, 2)),
            iomaps,
            targets: target(8),
            buffer: target(24),
        })
    }
}

/// Returns a number of entries as one byte: up to 128 as it is, larger ones in units of 256.
pub(super) const fn scale(entries: u16) -> u8 {
    let [high, low] = entries.to_be_bytes();
    if entries <= 0x80 { low } else { 0x80 | high }
}

/// Returns the number of entries that [`scale`] has made one byte.
pub(super) const fn unscale(byte: u8) -> u16 {
    if byte <= 0x80 { byte as u16 } else { ((byte & 0x7f) as u16) << 8 }
}

fn join<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut out = [0; N];
    let bytes = parts.iter().flat_map(|part| part.iter());
    out.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    out
}

/// Returns `N` bytes from `at` on, zeros beyond the end.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.iter_mut().zip(bytes.iter().skip(at)).for_each(|(to, from)| *to = *from);
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    const DATA: ConnData = ConnData {
        credits: 384,
        iomaps: 100,
        targets: Target { address: 0x0102_0304_0506_0708, key: 0x1112_1314, length: 2 },
        buffer: Target { address: 0x2122_2324_2526_2728, key: 0x3132_3334, length: 65_536 },
    };

    /// The bytes of `struct rs_conn_data` of rdma-core for the same values, on a little-endian machine.
    #[test]
    #[cfg(target_endian = "little")]
    fn private_data_is_that_of_rdma_core() {
        let bytes = DATA.encode();
        assert_eq!(bytes[..8], [1, 2, 1, 0x80, 0, 0, 0, 100]);
        assert_eq!(bytes[8..24], [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0, 0, 0, 2]);
        assert_eq!(bytes[36..], [0, 1, 0, 0]);
        assert_eq!(ConnData::decode(&bytes), Some(DATA));
    }

    #[test]
    fn private_data_of_other_peers_is_refused() {
        let bytes = DATA.encode();
        assert_eq!(ConnData::decode(&bytes[..39]), None);
        let with = |at: usize, flip: u8| {
            let mut bytes = bytes;
            bytes[at] ^= flip;
            ConnData::decode(&bytes)
        };
        assert_eq!(with(0, 3), None, "another version");
        assert_eq!(with(1, FLAG_NETWORK_ORDER), None, "another byte order");
        assert_eq!(with(1, FLAG_IOMAP).unwrap().iomaps, 0, "a peer without a map");
    }

    #[test]
    fn the_last_word_of_a_target_states_its_length() {
        let bytes = DATA.buffer.to_bytes();
        let last = u64::from_ne_bytes(*bytes.last_chunk().unwrap());
        assert_eq!(Target::of_last_word(last), Target { address: 0, ..Target::from_bytes(&bytes) });
    }

    #[test]
    fn messages_survive() {
        let all = [
            (Message::Data(0x1fff_ffff), 0x1fff_ffff),
            (Message::Grant(0xffff), 0x8000_ffff),
            (Message::Mapped, 0xc000_0000),
            (Message::Disconnect, 0xe000_0000),
            (Message::Shutdown, 0xe000_0002),
        ];
        for (message, word) in all {
            assert_eq!(u32::from_ne_bytes(message.encode()), word);
            assert_eq!(Message::decode(message.encode()), message);
        }
        assert_eq!(Message::decode(0xe000_0001_u32.to_ne_bytes()), Message::Other);
        assert_eq!(Message::decode(0x8001_0005_u32.to_ne_bytes()), Message::Grant(5));
    }

    #[test]
    fn a_number_of_maps_is_rounded_down_to_what_a_byte_can_say() {
        for (entries, rounded) in [(0, 0), (100, 100), (128, 128), (1000, 768), (0x7fff, 0x7f00)] {
            assert_eq!(unscale(scale(entries)), rounded);
        }
    }
}
