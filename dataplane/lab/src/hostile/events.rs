//! A program that has the worker raise events all the time, of as many objects as a call has requests and of objects
//! that it destroys, and never takes one.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use iwarp_shared_verbs::methods::REQUESTS_MAX;
use iwarp_shared_verbs::{Request, Response};
use serde_json::json;

use super::raw::Raw;
use super::{Attack, Target};

/// Most KiB by which the daemon may grow. Without a bound it would by some 6 MiB in a second.
const GROWTH_KIB_MAX: u64 = 4 << 10;

pub(super) fn run(target: &Target) -> Result<Attack> {
    let mut raw = Raw::open(&target.socket, 1 << 20)?;
    let Ok([Response::Pd(pd)]) = <[Response; 1]>::try_from(raw.succeed(&[Request::AllocPd])?) else {
        bail!("no protection domain")
    };
    let create = Request::CreateSrq { pd, max_wr: 4, max_sge: 1 };
    // The device merges the events that one object raises between two polls.
    let made = raw.succeed(&vec![create.clone(); REQUESTS_MAX])?;
    let arming = |made: &Response| match made {
        Response::Srq(srq, _) => Some(Request::ModifySrq(*srq, 2)),
        _ => None,
    };
    let arm: Vec<_> = made.iter().filter_map(arming).collect();
    raw.succeed(&arm)?;
    let before = resident_kib(&target.socket)?;
    let (until, mut events) = (target.end(), 0_u64);
    while Instant::now() < until {
        events += u64::try_from(raw.succeed(&arm)?.len())?;
        // An event of an object that goes before anybody has taken it.
        let Some(Response::Srq(other, _)) = raw.succeed(std::slice::from_ref(&create))?.pop() else {
            bail!("no queue")
        };
        raw.succeed(&[Request::ModifySrq(other, 2), Request::DestroySrq(other)])?;
    }
    let growth = resident_kib(&target.socket)?.saturating_sub(before);
    ensure!(events > 10_000, "{events} events only");
    ensure!(growth <= GROWTH_KIB_MAX, "the daemon has grown by {growth} KiB with {events} events");
    Ok((json!({ "case": "events", "events": events, "growth_kib": growth }), Box::new(raw)))
}

/// Returns the memory of the daemon in KiB.
fn resident_kib(socket: &Path) -> Result<u64> {
    let stream = std::os::unix::net::UnixStream::connect(socket)?;
    let daemon = rustix::net::sockopt::socket_peercred(&stream)?.pid.as_raw_nonzero();
    let status = std::fs::read_to_string(format!("/proc/{daemon}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
