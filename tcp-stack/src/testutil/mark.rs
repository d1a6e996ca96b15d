//! Changes of the ECN field on the way: marking by congested routers, and bleaching.

use crate::wire::{EcnField, EtherType, EthernetHeader, Sum};

/// Changes the ECN field of the IP packet in a frame; returns `false` if the frame holds none.
pub(super) fn rewrite(frame: &mut [u8], change: impl FnOnce(EcnField) -> EcnField) -> bool {
    let Ok((ethernet, _)) = EthernetHeader::parse(frame) else { return false };
    let Some(packet) = frame.get_mut(ethernet.header_len()..) else { return false };
    match (ethernet.ethertype, packet) {
        (EtherType::IPV4, packet @ &mut [version, class, ..]) => {
            let len = usize::from(version & 0xf).saturating_mul(4);
            let Some(header) = packet.get_mut(..len) else { return false };
            let new = class & !3 | change(EcnField::of(class)).bits();
            let Some(field) = header.get_mut(1) else { return false };
            *field = new;
            if let Some(checksum) = header.get_mut(10..12) {
                checksum.fill(0);
            }
            let checksum = Sum::of(header).checksum().to_be_bytes();
            if let Some(field) = header.get_mut(10..12) {
                field.copy_from_slice(&checksum);
            }
            true
        }
        (EtherType::IPV6, [_, second, ..]) => {
            // The class is the low half of the first byte and the high half of the second.
            let new = change(EcnField::of(*second >> 4)).bits();
            *second = *second & 0xcf | new << 4;
            true
        }
        _ => false,
    }
}

/// Marks the packet in a frame as a congested router does (RFC 3168 §5); returns `false` if it is not ECN-capable.
pub fn mark_congestion(frame: &mut [u8]) -> bool {
    let mut marked = false;
    rewrite(frame, |field| {
        marked = field != EcnField::NotEct;
        if marked { EcnField::Ce } else { field }
    });
    marked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testutil::WireSegment;
    use crate::wire::{Ipv4Header, Ipv6Header};
    use alloc::vec::Vec;
    use etherparse::PacketBuilder;

    fn class(frame: &[u8]) -> u8 {
        let (ethernet, packet) = EthernetHeader::parse(frame).unwrap();
        match ethernet.ethertype {
            EtherType::IPV4 => Ipv4Header::parse(packet).unwrap().0.traffic_class,
            _ => Ipv6Header::parse(packet).unwrap().0.traffic_class,
        }
    }

    #[test]
    fn only_ecn_capable_packets_are_marked_and_nothing_else_changes() {
        let mut frames = [Vec::new(), Vec::new()];
        let [v4, v6] = &mut frames;
        let ethernet = || PacketBuilder::ethernet2([2; 6], [4; 6]).single_vlan(7.try_into().unwrap());
        ethernet().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).tcp(1, 2, 3, 4).write(v4, b"text").unwrap();
        ethernet().ipv6([1; 16], [2; 16], 64).tcp(1, 2, 3, 4).write(v6, b"text").unwrap();
        for frame in frames {
            let mut marked = frame.clone();
            assert!(!mark_congestion(&mut marked));
            assert_eq!(marked, frame);
            assert!(rewrite(&mut marked, |_| EcnField::Ect0));
            assert_eq!(class(&marked), 2);
            assert!(mark_congestion(&mut marked));
            assert_eq!(class(&marked), 3);
            assert!(WireSegment::parse(&marked).unwrap().is_some());
            assert!(rewrite(&mut marked, |_| EcnField::NotEct));
            assert_eq!(marked, frame);
        }
    }
}
