//! ONC RPC headers (RFC 5531): calls byte by byte, and every reply to a call that is not executed.

#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "lengths are small, and a test may panic"
)]

use iwarp_rpc::message::{
    AuthStatus, AuthSys, Call, CallError, Credential, NotExecuted, auth_error, executed, not_executed,
};
use iwarp_rpc::xdr::Reader;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn read(bytes: &[u8]) -> Result<Call, CallError> {
    Call::read(&mut Reader::new(bytes))
}

fn refused(bytes: &[u8]) -> Vec<u8> {
    match read(bytes) {
        Err(CallError::Refused(reply)) => reply,
        other => panic!("{other:?}"),
    }
}

/// A call with AUTH_SYS: stamp 9, machine "host", user 1000, group 100, groups as given.
fn call_of(groups: &[u32], count: u32) -> Vec<u8> {
    let mut body = words(&[9, 4]);
    body.extend(b"host");
    body.extend(words(&[1000, 100, count]));
    body.extend(words(groups));
    let mut bytes = words(&[7, 0, 2, 100_003, 3, 1, 1, body.len() as u32]);
    bytes.extend(body);
    bytes.extend(words(&[0, 0]));
    bytes
}

#[test]
fn a_call_names_its_program_and_its_user() {
    for count in 0..=16 {
        let groups: Vec<u32> = (0..count).collect();
        let mut bytes = call_of(&groups, count);
        bytes.extend([1, 2, 3, 4]);
        let mut reader = Reader::new(&bytes);
        let user = AuthSys { uid: 1000, gid: 100, groups };
        let call =
            Call { xid: 7, program: 100_003, version: 3, procedure: 1, credential: Credential::Sys(user) };
        assert_eq!(Call::read(&mut reader), Ok(call));
        assert_eq!(reader.rest(), [1, 2, 3, 4], "the arguments follow");
    }
}

#[test]
fn a_call_may_be_anonymous_or_of_another_flavor() {
    let call = read(&words(&[7, 0, 2, 1, 2, 3, 0, 0, 0, 0])).unwrap();
    assert_eq!((call.program, call.version, call.procedure), (1, 2, 3));
    assert_eq!(call.credential, Credential::None);
    let call = read(&words(&[7, 0, 2, 1, 2, 3, 6, 4, 0x1111, 0, 0])).unwrap();
    assert_eq!(call.credential, Credential::Other(6));
}

#[test]
fn what_is_no_call_has_no_answer() {
    for bytes in [&[][..], &[0, 0, 0, 7], &words(&[7, 1, 0, 0, 0, 0]), &words(&[7, 2, 2, 0, 0])] {
        assert_eq!(read(bytes), Err(CallError::NotACall));
    }
}

#[test]
fn calls_that_cannot_be_read_are_refused_by_reason() {
    let bad_credential = auth_error(7, AuthStatus::BadCredential);
    assert_eq!(bad_credential, words(&[7, 1, 1, 1, 1]));
    assert_eq!(auth_error(7, AuthStatus::TooWeak), words(&[7, 1, 1, 1, 5]));
    assert_eq!(refused(&words(&[7, 0, 3, 1, 2, 3, 0, 0, 0, 0])), words(&[7, 1, 1, 0, 2, 2]), "RPC version 3");
    assert_eq!(refused(&words(&[7, 0, 2, 1, 2])), not_executed(7, NotExecuted::GarbageArguments));
    assert_eq!(refused(&words(&[7, 0, 2, 1, 2, 3, 0, 404])), bad_credential, "401 bytes or more");
    assert_eq!(refused(&words(&[7, 0, 2, 1, 2, 3, 0, 0, 0])), bad_credential, "no verifier");
    assert_eq!(refused(&words(&[7, 0, 2, 1, 2, 3, 1, 4, 0, 0, 0])), bad_credential, "AUTH_SYS cut off");
    assert_eq!(refused(&call_of(&[0; 17], 17)), bad_credential, "17 groups");
    assert_eq!(refused(&call_of(&[0; 3], 4)), bad_credential, "a group is missing");
}

#[test]
fn replies_are_accepted_with_their_status() {
    assert_eq!(executed(7).into_bytes(), words(&[7, 1, 0, 0, 0, 0]));
    let mismatch = NotExecuted::VersionMismatch { low: 3, high: 4 };
    for (status, expected) in [
        (NotExecuted::ProgramUnavailable, &[7, 1, 0, 0, 0, 1][..]),
        (mismatch, &[7, 1, 0, 0, 0, 2, 3, 4]),
        (NotExecuted::ProcedureUnavailable, &[7, 1, 0, 0, 0, 3]),
        (NotExecuted::GarbageArguments, &[7, 1, 0, 0, 0, 4]),
        (NotExecuted::SystemError, &[7, 1, 0, 0, 0, 5]),
    ] {
        assert_eq!(not_executed(7, status), words(expected));
    }
}
