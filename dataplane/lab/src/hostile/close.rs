//! Contexts with hundreds of queue pairs and a full completion queue, which are closed at once.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::raw::Raw;
use super::{Attack, Target};

const QUEUE_PAIRS: usize = 960;
/// Receive buffers of each: with all of them, the completion queue overruns.
const BUFFERS: u16 = 256;
/// Completions of the program's ring, and of the worker's queue behind it.
const COMPLETIONS: u32 = 65_536;
const QUEUE_BYTES: u64 = 128 << 20;

/// Starts programs that fill a context, and kills each once its context is full: the daemon closes it.
pub(super) fn run(target: &Target) -> Result<Attack> {
    let (until, mut closed) = (target.end(), 0_u32);
    while closed == 0 || Instant::now() < until {
        let mut full = Command::new(std::env::current_exe()?);
        let full = full.args(["hostile", "full"]).arg(&target.socket).stdout(Stdio::piped());
        let mut program = full.spawn()?;
        let mut report = String::new();
        let output = program.stdout.take().context("a pipe")?;
        BufReader::new(output).read_line(&mut report)?;
        program.kill()?;
        program.wait()?;
        ensure!(report.contains("\"full\""), "the program that fills a context has failed: {report}");
        closed += 1;
    }
    Ok((json!({ "case": "close", "closed": closed, "queue_pairs": QUEUE_PAIRS }), Box::new(())))
}

/// Opens a context and fills its completion queue.
pub(super) fn full(target: &Target) -> Result<Attack> {
    let mut raw = Raw::open(&target.socket, QUEUE_BYTES)?;
    let (pd, cq, place) = raw.objects(COMPLETIONS)?;
    let pairs = raw.queue_pairs((pd, cq), BUFFERS, QUEUE_PAIRS)?;
    raw.flush_buffers(&pairs, BUFFERS.into())?;
    ensure!(raw.completions(&place)? == u64::from(COMPLETIONS), "the program's ring is not full");
    ensure!(raw.has_overrun(&place)?, "the worker's queue is not full");
    Ok((json!({ "case": "full", "queue_pairs": pairs.len() }), Box::new(raw)))
}
