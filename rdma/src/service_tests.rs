use super::*;
use crate::memory::Origin;
use core::net::{Ipv4Addr, Ipv6Addr};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
const STREAM: StreamId = StreamId(5);
const BOTH: Access = Access::from_bits(3).unwrap();

fn entry(name: &str) -> RegionEntry {
    RegionEntry {
        name: name.into(),
        region: RegionId(9),
        offset: 0,
        bytes: 1 << 20,
        access: BOTH,
        token: None,
        allow: Vec::new(),
    }
}

fn service() -> RegionService {
    let mut service = RegionService::new(8, 1);
    service.add(entry("lab")).unwrap();
    service.add(RegionEntry { access: Access::REMOTE_READ, ..entry("lab-ro") }).unwrap();
    service.add(RegionEntry { token: Token::new(b"open sesame"), ..entry("secret") }).unwrap();
    let allow = vec![Prefix::new(IpAddr::V4(Ipv4Addr::new(10, 77, 0, 128)), 25).unwrap()];
    service.add(RegionEntry { allow, ..entry("near") }).unwrap();
    service
}

fn stags() -> StagTable {
    StagTable::new(4, [1; 32])
}

fn ask(service: &RegionService, request: &[u8], peer: IpAddr) -> Answer {
    service.answer(request, peer, STREAM, &mut stags())
}

fn refused(answer: &Answer, status: Status) {
    assert!(!answer.accept);
    assert_eq!((answer.status, answer.region), (status, None));
    let mut reply = [0; REPLY_LEN];
    reply[..5].copy_from_slice(&[b'I', b'W', b'R', b'1', status as u8]);
    assert_eq!(answer.reply, reply);
    assert_eq!(decode_reply(&answer.reply), Err(ServiceError::Refused(status)));
}

#[test]
fn a_replaced_region_is_granted_by_its_new_rules() {
    let mut service = service();
    assert!(service.replace(RegionEntry { access: Access::REMOTE_READ, ..entry("lab") }));
    refused(&ask(&service, &encode_request("lab", BOTH, b"").unwrap(), PEER), Status::NotPermitted);
    assert!(ask(&service, &encode_request("lab", Access::REMOTE_READ, b"").unwrap(), PEER).accept);
    assert!(!service.replace(entry("none")));
    assert!(service.get("none").is_none());
}

#[test]
fn the_bytes_of_a_request_and_its_answer() {
    let request = encode_request("lab", BOTH, b"").unwrap();
    assert_eq!(request, b"IWR1\x03\x03\x00\x00lab");
    let request = encode_request("lab", BOTH, b"tok").unwrap();
    assert_eq!(request, b"IWR1\x03\x03\x03\x00labtok");

    let mut stags = stags();
    let answer = service().answer(&request, PEER, STREAM, &mut stags);
    let grant = decode_reply(&answer.reply).unwrap();
    let mut expected = b"IWR1\x00\x03\x00\x00".to_vec();
    expected.extend_from_slice(&grant.stag.0.to_be_bytes());
    expected.extend_from_slice(&[0; 12]);
    expected.extend_from_slice(&(1u64 << 20).to_be_bytes());
    assert_eq!(answer.reply.as_slice(), expected);
    assert!(answer.accept);
    assert_eq!(answer.region, Some(RegionId(9)));

    // The STag is valid on this stream for the whole region, and on no other stream.
    let own = Origin::new(STREAM, None);
    assert!(stags.check_place(grant.stag, grant.base_to, 1 << 20, own).is_ok());
    assert!(stags.check_place(grant.stag, grant.base_to, (1 << 20) + 1, own).is_err());
    let other = Origin::new(StreamId(6), None);
    assert!(stags.check_place(grant.stag, grant.base_to, 1, other).is_err());
}

#[test]
fn only_the_wanted_rights_are_granted() {
    let mut stags = stags();
    let request = encode_request("lab", Access::REMOTE_READ, b"").unwrap();
    let grant = decode_reply(&service().answer(&request, PEER, STREAM, &mut stags).reply).unwrap();
    assert_eq!(grant.access, Access::REMOTE_READ);
    let own = Origin::new(STREAM, None);
    assert!(stags.check_fetch(grant.stag, 0, 1, own).is_ok());
    assert!(stags.check_place(grant.stag, 0, 1, own).is_err());
}

#[test]
fn a_malformed_request_is_refused() {
    let service = service();
    let good = encode_request("lab", BOTH, b"tok").unwrap();
    assert!(ask(&service, &good, PEER).accept);
    for len in 0..good.len() {
        refused(&ask(&service, &good[..len], PEER), Status::Malformed);
    }
    let with = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at] = byte;
        bad
    };
    let mut longer = good.clone();
    longer.push(0);
    let mut name_too_long = b"IWR1\x01\x40\x00\x00".to_vec();
    name_too_long.extend_from_slice(&[b'x'; 64]);
    let mut token_too_long = b"IWR1\x01\x01\x21\x00x".to_vec();
    token_too_long.extend_from_slice(&[b'x'; 33]);
    let bad = [
        with(0, b'X'),    // magic
        with(3, b'2'),    // version
        with(4, 0x08),    // an unknown right
        with(4, 0x83),    // an unknown right beside known ones
        with(5, 0),       // no name
        with(5, 2),       // lengths that do not add up
        with(5, 4),       //
        with(6, 2),       //
        with(6, 4),       //
        with(7, 1),       // the reserved byte
        with(8, 0xff),    // not UTF-8
        longer,           // an byte too many
        name_too_long,    //
        token_too_long,   //
        b"IWR1".to_vec(), //
        vec![0x49; 512],  //
    ];
    for request in bad {
        refused(&ask(&service, &request, PEER), Status::Malformed);
    }
}

#[test]
fn an_unknown_name_is_refused() {
    let service = service();
    for name in ["la", "labs", "LAB"] {
        let request = encode_request(name, BOTH, b"").unwrap();
        refused(&ask(&service, &request, PEER), Status::NoSuchRegion);
    }
}

#[test]
fn more_rights_than_the_region_grants_are_refused() {
    let service = service();
    for access in [Access::REMOTE_WRITE, BOTH, Access::REMOTE_READ | Access::REMOTE_ATOMIC] {
        let request = encode_request("lab-ro", access, b"").unwrap();
        refused(&ask(&service, &request, PEER), Status::NotPermitted);
    }
    assert!(ask(&service, &encode_request("lab-ro", Access::REMOTE_READ, b"").unwrap(), PEER).accept);
}

#[test]
fn the_token_must_be_the_token() {
    let service = service();
    let with = |token: &[u8]| ask(&service, &encode_request("secret", BOTH, token).unwrap(), PEER);
    assert!(with(b"open sesame").accept);
    for wrong in [&b""[..], b"open sesam", b"open sesame\0", b"Open sesame", &[0; 32], b"x"] {
        refused(&with(wrong), Status::NotPermitted);
    }
    let longest = [b'x'; TOKEN_MAX];
    let token = Token::new(&longest).unwrap();
    assert!(token.matches(&longest));
    assert!(!token.matches(&longest[1..]));
    assert!(Token::new(&[]).is_none() && Token::new(&[0; TOKEN_MAX + 1]).is_none());
    assert_eq!(format!("{token:?}"), "Token(…)");
}

#[test]
fn only_admitted_sources_are_served() {
    let service = service();
    let request = encode_request("near", BOTH, b"").unwrap();
    refused(&ask(&service, &request, PEER), Status::NotPermitted);
    let near = Ipv4Addr::new(10, 77, 0, 200);
    assert!(ask(&service, &request, near.into()).accept);
    assert!(ask(&service, &request, near.to_ipv6_mapped().into()).accept);
    refused(&ask(&service, &request, Ipv6Addr::LOCALHOST.into()), Status::NotPermitted);
}

#[test]
fn prefixes() {
    let prefix = |addr: &str, len| Prefix::new(addr.parse().unwrap(), len);
    let addr = |addr: &str| addr.parse::<IpAddr>().unwrap();
    let any = prefix("0.0.0.0", 0).unwrap();
    assert!(any.contains(addr("255.1.2.3")) && !any.contains(addr("::1")));
    let host = prefix("10.0.0.1", 32).unwrap();
    assert!(host.contains(addr("10.0.0.1")) && !host.contains(addr("10.0.0.0")));
    let six = prefix("fd77::", 64).unwrap();
    assert!(six.contains(addr("fd77::1:2:3:4")) && !six.contains(addr("fd77:0:0:1::1")));
    let mapped = prefix("::ffff:10.0.0.0", 104).unwrap();
    assert!(mapped.contains(addr("10.200.0.1")) && !mapped.contains(addr("11.0.0.0")));
    assert!(prefix("10.0.0.0", 33).is_none() && prefix("::", 129).is_none());
}

#[test]
fn no_stag_left() {
    let service = service();
    let mut stags = StagTable::new(1, [1; 32]);
    let request = encode_request("lab", BOTH, b"").unwrap();
    assert!(service.answer(&request, PEER, STREAM, &mut stags).accept);
    refused(&service.answer(&request, PEER, StreamId(6), &mut stags), Status::NoResources);
    stags.revoke_stream(STREAM);
    assert!(service.answer(&request, PEER, StreamId(6), &mut stags).accept);
}

#[test]
fn a_refusal_grants_nothing() {
    let service = service();
    let mut stags = stags();
    for (name, token) in [("secret", &b"no"[..]), ("near", b""), ("none", b"")] {
        let request = encode_request(name, BOTH, token).unwrap();
        assert!(!service.answer(&request, PEER, STREAM, &mut stags).accept);
    }
    assert!(stags.is_empty());
}

#[test]
fn regions_come_and_go_within_the_limit() {
    let mut service = RegionService::new(2, 1);
    assert_eq!(service.add(entry("")), Err(AddError::Name(NameError::Empty)));
    assert_eq!(service.add(entry(&"x".repeat(64))), Err(AddError::Name(NameError::TooLong(64))));
    assert_eq!(service.add(entry("l\u{202e}ab")), Err(AddError::Name(NameError::Invisible('\u{202e}'))));
    service.add(entry(&"x".repeat(63))).unwrap();
    service.add(entry("b")).unwrap();
    assert_eq!(service.add(entry("b")), Err(AddError::Exists));
    assert_eq!(service.add(entry("c")), Err(AddError::Full));
    assert_eq!(service.remove("b"), Some(RegionId(9)));
    assert_eq!(service.remove("b"), None);
    assert!(service.get("b").is_none());
    service.add(entry("c")).unwrap();
    assert_eq!(service.get("c").unwrap().bytes, 1 << 20);
    assert_eq!(service.len(), 2);
}

#[test]
fn only_answers_are_read_as_answers() {
    let answer = ask(&service(), &encode_request("lab", BOTH, b"").unwrap(), PEER);
    for len in 0..REPLY_LEN {
        assert_eq!(decode_reply(&answer.reply[..len]), Err(ServiceError::NotAnAnswer));
    }
    let mut other = answer.reply;
    other[0] = b'J';
    assert_eq!(decode_reply(&other), Err(ServiceError::NotAnAnswer));
    let mut other = answer.reply;
    other[4] = 5;
    assert_eq!(decode_reply(&other), Err(ServiceError::UnknownStatus(5)));
}

#[test]
fn requests_that_cannot_be_written() {
    assert!(encode_request("", BOTH, b"").is_none());
    assert!(encode_request(&"x".repeat(64), BOTH, b"").is_none());
    assert!(encode_request("x", BOTH, &[0; 33]).is_none());
    assert!(encode_request("x", Access::REMOTE_INVALIDATE, b"").is_none());
    assert_eq!(encode_request(&"x".repeat(63), BOTH, &[0; 32]).unwrap().len(), REQUEST_MAX);
}

/// UAX #9 §2: the explicit directional formatting characters; and other characters that a list does not show.
#[test]
fn names_have_no_invisible_characters() {
    let bidirectional =
        ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}').chain(['\u{200e}', '\u{200f}', '\u{61c}']);
    let others = ('\0'..=' ').filter(|c| *c != ' ').chain('\u{7f}'..='\u{9f}').chain([
        '\u{ad}',
        '\u{200b}',
        '\u{200d}',
        '\u{2028}',
        '\u{2029}',
        '\u{2060}',
        '\u{feff}',
        '\u{e0041}',
    ]);
    let service = service();
    for character in bidirectional.chain(others) {
        let name = format!("la{character}b");
        assert_eq!(check_name(&name), Err(NameError::Invisible(character)), "U+{:04X}", u32::from(character));
        assert_eq!(encode_request(&name, Access::REMOTE_READ, b""), None);
        let mut request = MAGIC.to_vec();
        request.extend([Access::REMOTE_READ.bits(), u8::try_from(name.len()).unwrap(), 0, 0]);
        request.extend(name.as_bytes());
        refused(&ask(&service, &request, PEER), Status::Malformed);
    }
    for name in ["lab", "x+4k", "a b", "Größe", "данные", "データ", "نطاق", "e\u{301}", "🦀", &"x".repeat(63)]
    {
        assert_eq!(check_name(name), Ok(()), "{name}");
    }
    let said = NameError::Invisible('\u{202e}').to_string();
    assert!(said.contains("U+202E") && said.is_ascii(), "{said}");
}

#[test]
fn a_region_begins_at_its_offset_in_the_memory() {
    let mut service = RegionService::new(1, 1);
    service.add(RegionEntry { offset: 100, bytes: 50, ..entry("part") }).unwrap();
    let mut stags = StagTable::new(4, [1; 32]);
    let request = encode_request("part", BOTH, b"").unwrap();
    let answer = service.answer(&request, PEER, STREAM, &mut stags);
    let grant = decode_reply(&answer.reply).unwrap();
    assert_eq!((grant.base_to, grant.bytes), (0, 50));
    let range = GrantedRange { region: RegionId(9), offset: 100, bytes: 50, base_to: 0 };
    assert_eq!(stags.opened_by(grant.stag), Some((range, BOTH)));
    let origin = Origin::new(STREAM, None);
    let placed = stags.check_place(grant.stag, 7, 43, origin).unwrap();
    assert_eq!((placed.offset(), placed.len()), (107, 43));
    assert_eq!(stags.check_place(grant.stag, 7, 44, origin), Err(crate::AccessError::Bounds));
    stags.revoke(grant.stag);
    assert_eq!(stags.opened_by(grant.stag), None);
}
