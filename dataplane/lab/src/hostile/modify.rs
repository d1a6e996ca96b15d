//! A full completion queue, and another queue pair of it that goes to Error and Idle 256 times with each call.

use std::time::Instant;

use anyhow::{Result, ensure};
use iwarp_shared_verbs::Request;
use iwarp_shared_verbs::methods::REQUESTS_MAX;
use rdma::verbs::QpState;
use serde_json::json;

use super::raw::Raw;
use super::{Attack, Target};

const QUEUE_PAIRS: usize = 33;
/// Completions of each but the last: together as many as ring and queue have room for.
const BUFFERS: u16 = 4095;
const COMPLETIONS: u32 = 65_536;

pub(super) fn run(target: &Target) -> Result<Attack> {
    let mut raw = Raw::open(&target.socket, 64 << 20)?;
    let (pd, cq, place) = raw.objects(COMPLETIONS)?;
    let mut pairs = raw.queue_pairs((pd, cq), BUFFERS, QUEUE_PAIRS)?;
    let (modified, _) = pairs.pop().unwrap_or_else(|| unreachable!("there are {QUEUE_PAIRS}"));
    raw.flush_buffers(&pairs, BUFFERS.into())?;
    ensure!(raw.completions(&place)? == u64::from(COMPLETIONS), "the program's ring is not full");
    let states = [QpState::Error, QpState::Idle].map(|state| Request::ModifyQp(modified, state));
    let requests: Vec<_> = states.iter().cloned().cycle().take(REQUESTS_MAX).collect();
    let (until, mut done) = (target.end(), 0_usize);
    while Instant::now() < until {
        done += raw.succeed(&requests)?.len();
    }
    ensure!(!raw.has_overrun(&place)?, "the completion queue was to be full, not in error");
    Ok((json!({ "case": "modify", "modified": done }), Box::new(raw)))
}
