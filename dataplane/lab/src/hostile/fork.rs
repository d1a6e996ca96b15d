//! A large program that forks again and again: each time the kernel locks its address space as long as it copies the
//! tables of its pages.
#![allow(unsafe_code, reason = "forks, and registers memory of the program")]

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use iwarp_verbs::{Access, Context, Data, QpOptions, SendFlags, SendOp, SendWr, WcStatus, WorkCompletion};
use serde_json::json;

use super::{Attack, Connecting, honest};

/// Bytes that the program has touched, each page.
const PROGRAM_BYTES: usize = 512 << 20;
const PAGE: usize = 4096;
const BYTES: usize = 64;

pub(super) fn run(options: &Connecting) -> Result<Attack> {
    let mut pages = vec![0_u8; PROGRAM_BYTES];
    pages.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    let until = options.target.end();
    // Memory that shares its page with other data, so that the kernel copies it.
    let shared = Box::leak(vec![7_u8; BYTES * 4].into_boxed_slice());
    let address = std::ptr::NonNull::from(&mut shared[..]).cast::<u8>();
    let context = Context::open(&options.target.socket, None)?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(64)?;
    let access = Access::LOCAL_READ | Access::LOCAL_WRITE;
    let own = pd.alloc_mr(BYTES as u64, access)?;
    // SAFETY: the memory lives as long as the program.
    let remote = unsafe { pd.reg_mr(address, BYTES, access | Access::REMOTE_READ)? };
    let qps = (pd.create_qp(&QpOptions::new(&cq))?, pd.create_qp(&QpOptions::new(&cq))?);
    let (remote_addr, rkey) = (remote.addr(), remote.rkey());
    let pair = honest::connect(&context, options.local, qps, (own, remote))?;
    let forks = std::thread::spawn(move || forks(until));
    let (mut reads, mut longest) = (0_u64, Duration::ZERO);
    while Instant::now() < until {
        let sge = [pair.memory.sge(0, u32::try_from(BYTES)?)];
        let op = SendOp::RdmaRead { remote_addr, rkey };
        let wr = SendWr { wr_id: 0, op, data: Data::List(&sge), flags: SendFlags::SIGNALED };
        let began = Instant::now();
        pair.client.post_send(&[wr]).map_err(|(_, error)| anyhow!("post_send: {error:?}"))?;
        let mut out = [WorkCompletion::default(); 1];
        while cq.poll(&mut out).map_err(|error| anyhow!("poll: {error:?}"))? == 0 {
            ensure!(began.elapsed() < Duration::from_secs(10), "no completion");
            std::thread::yield_now();
        }
        ensure!(out.iter().all(|wc| wc.status == WcStatus::Success), "{out:?}");
        (reads, longest) = (reads + 1, longest.max(began.elapsed()));
    }
    let forked = forks.join().map_err(|_| anyhow!("the thread has panicked"))??;
    ensure!(forked > 3 && reads > 3, "{forked} forks and {reads} reads only");
    let report = json!({
        "case": "fork", "forks": forked, "reads": reads, "longest_ms": longest.as_millis(),
    });
    Ok((report, Box::new((context, pair, pages))))
}

/// Forks until a time. Returns the number of children, all of which have ended.
fn forks(until: Instant) -> Result<u64> {
    let mut forked = 0;
    while Instant::now() < until {
        // SAFETY: the child ends at once, by a call that is safe after a fork.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child without running anything of the parent.
            unsafe { libc::_exit(0) };
        }
        let child = rustix::process::Pid::from_raw(child).context("fork")?;
        rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty())?;
        forked += 1;
    }
    Ok(forked)
}
