//! Bytes built by hand from the figures of the RFCs, without the code under test.

const CRC32C: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);

/// Builds an FPDU (RFC 5044 §4.1): ULPDU_Length, ULPDU, pad, CRC.
pub fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut fpdu = (ulpdu.len() as u16).to_be_bytes().to_vec();
    fpdu.extend_from_slice(ulpdu);
    fpdu.resize(fpdu.len().next_multiple_of(4), 0);
    let crc = CRC32C.checksum(&fpdu);
    fpdu.extend_from_slice(&crc.to_le_bytes());
    fpdu
}

/// Appends an FPDU to a stream with markers (RFC 5044 §4.3).
pub fn append_marked(stream: &mut Vec<u8>, ulpdu: &[u8]) {
    let unmarked = fpdu(ulpdu);
    let begin = stream.len();
    let mut length_at = None;
    for (index, word) in unmarked.chunks(4).enumerate() {
        if stream.len().is_multiple_of(512) {
            let back = length_at.map_or(0, |at: usize| stream.len() - at);
            stream.extend([0, 0]);
            stream.extend((back as u16).to_be_bytes());
        }
        if index == 0 {
            length_at = Some(stream.len());
        }
        stream.extend_from_slice(word);
    }
    let field = stream.len() - 4;
    let crc = CRC32C.checksum(&stream[begin..field]).to_le_bytes();
    stream[field..].copy_from_slice(&crc);
}

/// Splits a stream into ULPDUs; panics if an FPDU is malformed.
pub fn ulpdus(mut stream: &[u8]) -> Vec<Vec<u8>> {
    let mut ulpdus = Vec::new();
    while !stream.is_empty() {
        let len = usize::from(u16::from_be_bytes([stream[0], stream[1]]));
        let covered = (2 + len).next_multiple_of(4);
        let crc = CRC32C.checksum(&stream[..covered]).to_le_bytes();
        assert_eq!(stream[covered..covered + 4], crc, "CRC of FPDU {}", ulpdus.len());
        assert!(stream[2 + len..covered].iter().all(|pad| *pad == 0), "pad of FPDU {}", ulpdus.len());
        ulpdus.push(stream[2..2 + len].to_vec());
        stream = &stream[covered + 4..];
    }
    ulpdus
}

/// Builds an enhanced MPA Request or Reply with CRCs.
pub fn mpa(key: &[u8; 16], ird: u16, ord: u16, private_data: &[u8]) -> Vec<u8> {
    let mut frame = key.to_vec();
    frame.extend_from_slice(&[0x50, 2]);
    frame.extend_from_slice(&(private_data.len() as u16 + 4).to_be_bytes());
    frame.extend_from_slice(&ird.to_be_bytes());
    frame.extend_from_slice(&ord.to_be_bytes());
    frame.extend_from_slice(private_data);
    frame
}

/// Key of an MPA Request (RFC 5044 §7.1.1).
pub const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
/// Key of an MPA Reply (RFC 5044 §7.1.1).
pub const REPLY: &[u8; 16] = b"MPA ID Rep Frame";

/// DDP control byte of a tagged segment, the last of its message; version 1 (RFC 5041 §4.1).
pub const TAGGED_LAST: u8 = 0xc1;
/// Tagged segment, not the last of its message.
pub const TAGGED_MORE: u8 = 0x81;
/// Untagged segment, the last of its message.
pub const UNTAGGED_LAST: u8 = 0x41;
/// Untagged segment, not the last of its message.
pub const UNTAGGED_MORE: u8 = 0x01;
/// Opcode byte of an RDMA Write, as the others with RDMAP version 1 (RFC 5040 §4.1).
pub const WRITE: u8 = 0x40;
/// Opcode byte of a Read Request.
pub const READ_REQUEST: u8 = 0x41;
/// Opcode byte of a Read Response.
pub const READ_RESPONSE: u8 = 0x42;
/// Opcode byte of a Send.
pub const SEND: u8 = 0x43;
/// Opcode byte of a Send with Invalidate.
pub const SEND_INVALIDATE: u8 = 0x44;
/// Opcode byte of a Send with Solicited Event.
pub const SEND_SE: u8 = 0x45;
/// Opcode byte of a Send with Solicited Event and Invalidate.
pub const SEND_SE_INVALIDATE: u8 = 0x46;
/// Opcode byte of a Terminate message.
pub const TERMINATE: u8 = 0x47;

/// Builds a tagged DDP segment (RFC 5041 §4.2): control bytes, STag, tagged offset, payload.
pub fn tagged(control: u8, op: u8, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    let mut segment = vec![control, op];
    segment.extend_from_slice(&stag.to_be_bytes());
    segment.extend_from_slice(&to.to_be_bytes());
    segment.extend_from_slice(payload);
    segment
}

/// Builds an untagged DDP segment (RFC 5041 §4.3): control bytes, word reserved for the ULP, then queue number, message
/// sequence number and message offset, and the payload.
pub fn untagged(control: u8, op: u8, word: u32, [qn, msn, mo]: [u32; 3], payload: &[u8]) -> Vec<u8> {
    let mut segment = vec![control, op];
    for word in [word, qn, msn, mo] {
        segment.extend_from_slice(&word.to_be_bytes());
    }
    segment.extend_from_slice(payload);
    segment
}

/// Builds the header of a Read Request (RFC 5040 §4.4).
pub fn read_header(sink: u32, sink_to: u64, size: u32, source: u32, source_to: u64) -> Vec<u8> {
    let mut header = sink.to_be_bytes().to_vec();
    header.extend_from_slice(&sink_to.to_be_bytes());
    header.extend_from_slice(&size.to_be_bytes());
    header.extend_from_slice(&source.to_be_bytes());
    header.extend_from_slice(&source_to.to_be_bytes());
    header
}

/// Builds a Read Request whose sink is at tagged offset 0x1000.
pub fn read_request(msn: u32, sink: u32, size: u32, source: u32, source_to: u64) -> Vec<u8> {
    let header = read_header(sink, 0x1000, size, source, source_to);
    untagged(UNTAGGED_LAST, READ_REQUEST, 0, [1, msn, 0], &header)
}

/// Builds a Terminate message: control word, then `rest`.
pub fn terminate(word: [u8; 4], rest: &[u8]) -> Vec<u8> {
    let mut message = word.to_vec();
    message.extend_from_slice(rest);
    untagged(UNTAGGED_LAST, TERMINATE, 0, [2, 1, 0], &message)
}

/// Builds the Terminate about a segment: its DDP header, then `request`.
pub fn terminate_about(kind: u8, code: u8, flags: u8, segment: &[u8], request: &[u8]) -> Vec<u8> {
    let header = if segment[0] & 0x80 != 0 { 14 } else { 18 };
    let mut rest = (segment.len() as u16).to_be_bytes().to_vec();
    rest.extend_from_slice(&segment[..header]);
    rest.extend_from_slice(request);
    terminate([kind, code, flags, 0], &rest)
}
