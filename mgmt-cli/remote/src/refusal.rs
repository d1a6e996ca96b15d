//! Failures of a peer, in words.

use std::net::SocketAddr;
use std::time::Duration;

use iwarp_control::Exit;
use iwarp_terminal::Failure;
use iwarp_verbs::{Ending, ErrorCode, RemoteError, ServiceError, Status};

use crate::options::Target;

/// The failure of a connection to a region; the peer may be silent for `timeout`.
pub(super) fn of(error: RemoteError, target: &Target, timeout: Duration) -> Failure {
    match error {
        RemoteError::Target { .. } => Failure::usage(error.to_string()),
        RemoteError::Unreachable { cause, .. } => unreachable(target, &cause.to_string()),
        RemoteError::Refused { peer, cause, .. } => rejected(cause, target, peer),
        RemoteError::TimedOut { .. } => silent(target, timeout),
        RemoteError::Closed { peer, cause, .. } => ended(peer, &cause),
        RemoteError::Bounds(_) | RemoteError::Right { .. } => {
            Failure::new(Exit::Failed, "out_of_bounds", error.to_string())
        }
        RemoteError::Device(_) | RemoteError::Interrupted { .. } => {
            Failure::new(Exit::Failed, "device", error.to_string())
        }
    }
}

/// The failure of a connection that has ended.
fn ended(peer: SocketAddr, cause: &Ending) -> Failure {
    match cause {
        Ending::Terminated(code) => terminated(peer, *code),
        Ending::Protocol(code) => offended(peer, *code),
        Ending::NotIwarp => no_agreement(peer, "its MPA reply is missing or wrong"),
        Ending::NoReads => {
            let message = format!("{peer} answers no RDMA Reads, which prove that Writes have arrived");
            Failure::new(Exit::Failed, "protocol", message)
        }
        Ending::Lost | Ending::Before | Ending::Local(_) => lost(peer, &cause.to_string()),
    }
}

/// The failure of a connection that nothing answers.
fn unreachable(target: &Target, error: &str) -> Failure {
    Failure::new(Exit::Unreachable, "unreachable", format!("cannot reach {target}: {error}"))
        .with_help("is the address right, and does the peer listen there?")
}

/// The failure of a rejected connection; the private data of the reply gives the reason.
fn rejected(error: ServiceError, target: &Target, peer: SocketAddr) -> Failure {
    let region = &target.region.name;
    match error {
        ServiceError::Refused(Status::NoSuchRegion) => {
            Failure::new(Exit::NoSuchObject, "no_such_object", format!("{peer} has no region `{region}`"))
                .with_help(no_such_region_help(target))
        }
        ServiceError::Refused(Status::NotPermitted) => {
            let message = format!("{peer} does not permit this access to region `{region}`");
            Failure::new(Exit::Permission, "not_permitted", message).with_help(
                "the region may lack the right, want a token (--token-file), or want another source address",
            )
        }
        ServiceError::Refused(Status::NoResources) => Failure::new(
            Exit::Failed,
            "no_resources",
            format!("{peer} has no STag left for region `{region}`"),
        )
        .with_help("try again later, or raise limits.grants_max there"),
        ServiceError::Refused(Status::Malformed | Status::Ok) => Failure::new(
            Exit::Failed,
            "protocol",
            format!("{peer} could not read the request for region `{region}`"),
        ),
        ServiceError::NotAnAnswer | ServiceError::UnknownStatus(_) => {
            Failure::new(Exit::Failed, "protocol", format!("{peer} does not grant regions: {error}"))
                .with_help("the port has to be a listener with `service = \"region\"`")
        }
    }
}

/// Explains that a name may end like an offset: `x+4k` is offset 4096 of region `x`.
fn no_such_region_help(target: &Target) -> String {
    let help = "names are exact; on the peer, `iwarpctl region list` shows them";
    match target.offset {
        0 => help.to_owned(),
        offset => format!(
            "{help}; offset {offset} was asked for: if `+` and a size end the name itself, write +0 behind it"
        ),
    }
}

/// The failure of a TCP connection without an MPA agreement.
fn no_agreement(peer: SocketAddr, why: &str) -> Failure {
    Failure::new(Exit::Failed, "protocol", format!("{peer} does not answer as an iWARP peer: {why}"))
        .with_help("is that port a listener with `service = \"region\"`?")
}

/// The failure of a stream that the peer terminated.
fn terminated(peer: SocketAddr, code: ErrorCode) -> Failure {
    Failure::new(Exit::Failed, "terminated", format!("{peer} ended the connection: {code}"))
}

/// The failure of a stream that we terminated because of the peer's error.
fn offended(peer: SocketAddr, code: ErrorCode) -> Failure {
    Failure::new(Exit::Failed, "protocol", format!("{peer} sent what cannot be accepted: {code}"))
}

/// The failure of a connection that ended with work outstanding.
fn lost(peer: SocketAddr, why: &str) -> Failure {
    Failure::new(Exit::Failed, "connection_lost", format!("the connection to {peer} was lost: {why}"))
}

/// The failure of a peer that was silent for the time limit.
fn silent(target: &Target, waited: Duration) -> Failure {
    Failure::new(Exit::Failed, "timeout", format!("{target} was silent for {} s", waited.as_secs_f32()))
        .with_help("--timeout SECS waits longer")
}

/// The failure of a stream that is longer than the region.
pub(super) fn longer_than_region(target: &Target, placed: u64) -> Failure {
    let message = format!(
        "the stream is longer than the {placed} bytes of region `{}` from offset {}; that many were placed",
        target.region.name, target.offset
    );
    Failure::new(Exit::Failed, "out_of_bounds", message)
}

/// The failure of a range that ends beyond the region.
pub(super) fn outside(target: &Target, length: u64, bytes: u64) -> Failure {
    let message = format!(
        "{length} bytes from offset {} do not fit region `{}`, which has {bytes} bytes",
        target.offset, target.region.name
    );
    Failure::new(Exit::Failed, "out_of_bounds", message)
}
