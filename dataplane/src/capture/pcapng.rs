//! Blocks of a pcapng file (draft-ietf-opsawg-pcapng): section header, interface description, enhanced packet and
//! interface statistics, in this machine's byte order.
//!
//! Four blocks of a fixed layout need no library: `pcap-file`, which writes them, is a release candidate and brings a
//! second version of a macro library.

use super::Direction;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINKTYPE_ETHERNET: u16 = 1;

/// Option codes: end of options; program that wrote the section; name and resolution of an interface; flags of a
/// packet; frames received and dropped by an interface.
const END: u16 = 0;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;

/// Appends a block: its type, the length, the body padded to four bytes, and the length again.
fn block(to: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let begin = to.len();
    to.extend(kind.to_ne_bytes());
    to.extend([0; 4]);
    body(to);
    pad(to);
    let length = u32::try_from(to.len().saturating_sub(begin).saturating_add(4)).unwrap_or(u32::MAX);
    to.extend(length.to_ne_bytes());
    if let Some(field) = to.get_mut(begin.saturating_add(4)..begin.saturating_add(8)) {
        field.copy_from_slice(&length.to_ne_bytes());
    }
}

/// Appends zeros up to a multiple of four. Every block begins at one.
fn pad(to: &mut Vec<u8>) {
    to.resize(to.len().next_multiple_of(4), 0);
}

fn option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    to.extend(code.to_ne_bytes());
    to.extend(u16::try_from(value.len()).unwrap_or(u16::MAX).to_ne_bytes());
    to.extend(value);
    pad(to);
}

/// Appends the section header.
pub(crate) fn section(to: &mut Vec<u8>) {
    block(to, SECTION_HEADER, |to| {
        to.extend(BYTE_ORDER_MAGIC.to_ne_bytes());
        to.extend([1_u16.to_ne_bytes(), 0_u16.to_ne_bytes()].concat());
        // The section's length is not known.
        to.extend(u64::MAX.to_ne_bytes());
        option(to, SHB_USERAPPL, concat!("iwarpd ", env!("CARGO_PKG_VERSION")).as_bytes());
        option(to, END, &[]);
    });
}

/// Appends the description of an interface, whose times are nanoseconds.
pub(crate) fn interface(to: &mut Vec<u8>, name: &str, snap_bytes: u32) {
    block(to, INTERFACE_DESCRIPTION, |to| {
        to.extend([LINKTYPE_ETHERNET.to_ne_bytes(), [0; 2]].concat());
        to.extend(snap_bytes.to_ne_bytes());
        option(to, IF_NAME, name.as_bytes());
        option(to, IF_TSRESOL, &[9]);
        option(to, END, &[]);
    });
}

/// Appends the header of a frame that has `length` bytes and was captured at `time_ns` since 1970, and its bytes.
pub(crate) fn frame(
    to: &mut Vec<u8>,
    interface: u32,
    (time_ns, length, direction): (u64, u32, Direction),
    bytes: (&[u8], &[u8]),
) {
    block(to, ENHANCED_PACKET, |to| {
        to.extend(interface.to_ne_bytes());
        time(to, time_ns);
        let captured = bytes.0.len().saturating_add(bytes.1.len());
        to.extend(u32::try_from(captured).unwrap_or(u32::MAX).to_ne_bytes());
        to.extend(length.to_ne_bytes());
        to.extend(bytes.0);
        to.extend(bytes.1);
        pad(to);
        let flags: u32 = match direction {
            Direction::Received => 1,
            Direction::Sent => 2,
        };
        option(to, EPB_FLAGS, &flags.to_ne_bytes());
        option(to, END, &[]);
    });
}

/// Appends how many frames of an interface met the filter, and how many of them are missing.
pub(crate) fn statistics(to: &mut Vec<u8>, interface: u32, time_ns: u64, (seen, dropped): (u64, u64)) {
    block(to, INTERFACE_STATISTICS, |to| {
        to.extend(interface.to_ne_bytes());
        time(to, time_ns);
        option(to, ISB_IFRECV, &seen.to_ne_bytes());
        option(to, ISB_IFDROP, &dropped.to_ne_bytes());
        option(to, END, &[]);
    });
}

/// Appends a time: the upper 32 bits, then the lower.
fn time(to: &mut Vec<u8>, time_ns: u64) {
    let [a, b, c, d, e, f, g, h] = time_ns.to_be_bytes();
    to.extend(u32::from_be_bytes([a, b, c, d]).to_ne_bytes());
    to.extend(u32::from_be_bytes([e, f, g, h]).to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    /// Walks over the blocks, and returns the type of each.
    fn kinds(file: &[u8]) -> Vec<u32> {
        let (mut at, mut kinds) = (0, Vec::new());
        while at < file.len() {
            let length = number(file, at + 4) as usize;
            assert!(length.is_multiple_of(4) && at + length <= file.len(), "{length} at {at}");
            assert_eq!(number(file, at + length - 4) as usize, length, "the length is repeated");
            kinds.push(number(file, at));
            at += length;
        }
        kinds
    }

    #[test]
    fn blocks_of_all_lengths_are_whole() {
        let mut file = Vec::new();
        section(&mut file);
        for name in ["p", "p0", "eth", "a port"] {
            interface(&mut file, name, 65_535);
        }
        for length in 0..20 {
            let bytes = vec![7; length];
            for split in 0..=length {
                let parts = bytes.split_at(split);
                frame(&mut file, 0, (1, u32::try_from(length).unwrap(), Direction::Sent), parts);
            }
        }
        statistics(&mut file, 0, 2, (210, 3));
        let kinds = kinds(&file);
        assert_eq!(&kinds[..5], [SECTION_HEADER, 1, 1, 1, 1]);
        assert_eq!((kinds.len(), kinds.last()), (5 + 210 + 1, Some(&INTERFACE_STATISTICS)));
    }

    #[test]
    fn a_time_is_split_into_its_halves() {
        let mut file = Vec::new();
        frame(&mut file, 3, (0x1234_5678_9abc_def0, 100, Direction::Received), (b"abcd", b""));
        assert_eq!([8, 12, 16, 20, 24].map(|at| number(&file, at)), [3, 0x1234_5678, 0x9abc_def0, 4, 100]);
        assert_eq!(&file[28..32], b"abcd");
    }
}
