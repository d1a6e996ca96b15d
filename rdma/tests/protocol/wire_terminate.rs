//! The Terminate message, against RFC 5040 §4.8 and as Linux soft-iWARP sends it.

use proptest::prelude::*;
use rdma::wire::ddp::{Header, TaggedHeader, UntaggedHeader};
use rdma::wire::rdmap::ReadRequest;
use rdma::wire::terminate::{BitOrder, Control, Terminate};
use rdma::wire::{MessageOffset, Msn, ParseError, QueueNumber, Stag, TaggedOffset};

fn read(word: [u8; 4]) -> (u8, u8, u8, BitOrder) {
    let (control, order) = Control::parse(word);
    (control.layer, control.etype, control.code, order)
}

#[test]
fn captured_words_are_recognized_in_both_orders() {
    use BitOrder::{Rfc, Swapped};
    let rows = [
        // MPA CRC error.
        ([0x20, 0x02, 0x00, 0x00], (2, 0, 2, Rfc)),
        ([0x02, 0x02, 0x00, 0x00], (2, 0, 2, Swapped)),
        // DDP untagged, no buffer; with DDP header.
        ([0x12, 0x02, 0xC0, 0x00], (1, 2, 2, Rfc)),
        ([0x21, 0x02, 0x03, 0x00], (1, 2, 2, Swapped)),
        // RDMAP protection, access rights; with both headers.
        ([0x01, 0x02, 0xE0, 0x00], (0, 1, 2, Rfc)),
        ([0x10, 0x02, 0x07, 0x00], (0, 1, 2, Swapped)),
        // Insufficient IRD and no matching RTR option (RFC 6581 §8): never with headers.
        ([0x20, 0x06, 0x00, 0x00], (2, 0, 6, Rfc)),
        ([0x02, 0x06, 0x00, 0x00], (2, 0, 6, Swapped)),
        ([0x20, 0x07, 0x00, 0x00], (2, 0, 7, Rfc)),
        // RDMAP remote operation: FF is no MPA error.
        ([0x02, 0xFF, 0x00, 0x00], (0, 2, 0xFF, Rfc)),
        ([0x02, 0x06, 0xC0, 0x00], (0, 2, 6, Rfc)),
        ([0x20, 0x06, 0x03, 0x00], (0, 2, 6, Swapped)),
        // DDP versions: without headers, as the layout is unknown.
        ([0x12, 0x06, 0x00, 0x00], (1, 2, 6, Rfc)),
        ([0x21, 0x06, 0x00, 0x00], (1, 2, 6, Swapped)),
        // The same in both orders, and an error in neither.
        ([0x00, 0x00, 0x00, 0x00], (0, 0, 0, Rfc)),
        ([0x9F, 0x77, 0x00, 0x00], (9, 15, 0x77, Rfc)),
        // Flags in both positions: as without flags.
        ([0x12, 0x02, 0xFF, 0x00], (1, 2, 2, Rfc)),
    ];
    for (word, expected) in rows {
        assert_eq!(read(word), expected, "{word:02x?}");
    }
}

fn untagged() -> Header {
    Header::Untagged(UntaggedHeader {
        last: true,
        version: 1,
        ulp_control: 0x41,
        ulp_word: 0,
        queue: QueueNumber::READ_REQUEST,
        msn: Msn(7),
        offset: MessageOffset(0),
    })
}

fn tagged() -> Header {
    Header::Tagged(TaggedHeader {
        last: false,
        version: 1,
        ulp_control: 0x40,
        stag: Stag(0x0102_0304),
        offset: TaggedOffset(0x1000),
    })
}

fn request() -> ReadRequest {
    ReadRequest {
        sink_stag: Stag(1),
        sink_offset: TaggedOffset(2),
        size: 3,
        source_stag: Stag(4),
        source_offset: TaggedOffset(5),
    }
}

fn emit(message: &Terminate) -> Vec<u8> {
    let mut out = [0; Terminate::LEN_MAX];
    let len = message.emit(&mut out);
    out[..len].to_vec()
}

#[test]
fn the_three_layouts_are_as_drawn() {
    let bare = Terminate::new(2, 0, 2, None, None);
    assert_eq!(emit(&bare), [0x20, 0x02, 0x00, 0x00]);

    let ddp = Terminate::new(1, 1, 1, Some((0x0102, tagged())), None);
    let expected = [0x11, 1, 0xC0, 0, 0x01, 0x02, 0x81, 0x40, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0x10, 0];
    assert_eq!(emit(&ddp), expected);

    let rdmap = Terminate::new(0, 1, 2, Some((46, untagged())), Some(request()));
    let mut expected = vec![0x01, 2, 0xE0, 0, 0, 46];
    expected.extend([0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0]);
    expected.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5]);
    assert_eq!(emit(&rdmap), expected);
    assert_eq!(expected.len(), Terminate::LEN_MAX);

    for message in [bare, ddp, rdmap] {
        assert_eq!(Terminate::parse(&emit(&message)), Ok((message, BitOrder::Rfc)));
    }
}

#[test]
fn a_read_request_without_its_ddp_header_is_left_out() {
    let message = Terminate::new(0, 1, 2, None, Some(request()));
    assert_eq!(emit(&message), [0x01, 2, 0, 0]);
}

#[test]
fn missing_headers_do_not_hide_the_error() {
    let whole = emit(&Terminate::new(0, 1, 2, Some((46, untagged())), Some(request())));
    for have in 0..whole.len() {
        let parsed = Terminate::parse(&whole[..have]);
        if have < Control::LEN {
            assert_eq!(parsed.unwrap_err(), ParseError::Truncated { need: 4, have });
            continue;
        }
        let (message, _) = parsed.unwrap();
        assert_eq!((message.control.layer, message.control.etype, message.control.code), (0, 1, 2));
        assert_eq!(message.segment_length.is_some(), have >= 6);
        assert_eq!(message.ddp_header.is_some(), have >= 24);
        assert_eq!(message.rdma_header, None);
    }
}

proptest! {
    #[test]
    fn control_words_with_flags_survive_the_round_trip(layer in 0u8..16, etype in 0u8..16, code: u8, flags in 1u8..8) {
        let control = Control {
            layer, etype, code,
            segment_length: flags & 4 != 0, ddp_header: flags & 2 != 0, rdma_header: flags & 1 != 0,
        };
        prop_assert_eq!(Control::parse(control.emit()), (control, BitOrder::Rfc));
        let [kinds, code, flags, _] = control.emit();
        let swapped = [kinds.rotate_left(4), code, flags.reverse_bits(), 0];
        prop_assert_eq!(Control::parse(swapped), (control, BitOrder::Swapped));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
        prop_assert_eq!(Terminate::parse(&bytes).is_ok(), bytes.len() >= 4);
    }
}
