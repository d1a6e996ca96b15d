//! A completion queue with nearly all completions that it may have, which is resized again and again, 8 times with
//! each call: the daemon takes its time.

use std::time::Instant;

use anyhow::{Result, ensure};
use iwarp_shared_verbs::Request;
use serde_json::json;

use super::raw::Raw;
use super::{Attack, Target};

const QUEUE_PAIRS: usize = 16;
/// Receive buffers of each queue pair, and so its completions.
const BUFFERS: u16 = 4062;
const COMPLETIONS: u32 = 65_536;
const SMALLER: u32 = 65_000;
/// Requests of each call. Each counts for its user, with all entries, until the call is done.
const REQUESTS: usize = 8;

pub(super) fn run(target: &Target) -> Result<Attack> {
    let mut raw = Raw::open(&target.socket, 64 << 20)?;
    let (pd, cq, place) = raw.objects(COMPLETIONS)?;
    let pairs = raw.queue_pairs((pd, cq), BUFFERS, QUEUE_PAIRS)?;
    raw.flush_buffers(&pairs, BUFFERS.into())?;
    let completions = u64::from(BUFFERS) * u64::try_from(QUEUE_PAIRS)?;
    ensure!(raw.completions(&place)? == completions, "completions are missing");
    let sizes = [SMALLER, COMPLETIONS].map(|cqe| Request::ResizeCq(cq, cqe));
    let requests: Vec<_> = sizes.iter().cloned().cycle().take(REQUESTS).collect();
    let (until, mut resized) = (target.end(), 0_usize);
    while Instant::now() < until {
        resized += raw.succeed(&requests)?.len();
    }
    // A queue without those completions could be made small.
    ensure!(raw.execute(&[Request::ResizeCq(cq, 1)])?.iter().all(Result::is_err), "the completions are gone");
    Ok((json!({ "case": "resize", "resized": resized, "completions": completions }), Box::new(raw)))
}
