//! A program that does to its descriptors what would make their writer wait: it clears O_NONBLOCK, fills what it can,
//! never reads, and adds one of them to 15,000 epoll sets. Its completion queue is armed again at each completion.

use std::os::fd::OwnedFd;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use iwarp_shared_verbs::{QueuePlace, Request};
use rdma::verbs::QpState;
use rustix::event::epoll;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use super::raw::{Raw, receive_queue};
use super::{Attack, Target};

const SETS: usize = 15_000;
const COMPLETIONS: u32 = 64;
const BUFFERS: u16 = 64;

/// A context whose worker wakes the program for each completion.
struct Woken {
    raw: Raw,
    queue: QueuePlace,
    cq: iwarp_shared_verbs::CqPlace,
    produced: u64,
}

impl Woken {
    fn open(target: &Target) -> Result<Self> {
        let mut raw = Raw::open(&target.socket, 1 << 20)?;
        let (pd, cq, place) = raw.objects(COMPLETIONS)?;
        let (qp, places) = raw.queue_pairs((pd, cq), BUFFERS, 1)?.pop().context("a queue pair")?;
        raw.succeed(&[Request::ModifyQp(qp, QpState::Error)])?;
        let queue = receive_queue(&places)?;
        raw.post(&queue, 0)?;
        Ok(Self { raw, queue, cq: place, produced: 0 })
    }

    /// Arms the queue, takes what is in it, and has the worker add a completion.
    fn complete(&mut self) -> Result<()> {
        self.raw.arm(&self.cq)?;
        self.raw.take_completions(&self.cq)?;
        if self.raw.taken(&self.queue)? == self.produced {
            self.produced += 1;
            self.raw.produce(&self.queue, self.produced)?;
            self.raw.ring_all()?;
            self.raw.wake()?;
        }
        Ok(())
    }
}

/// Adds a descriptor to as many epoll sets as this program may have.
fn sets(fd: &OwnedFd) -> Result<Vec<OwnedFd>> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    let mut sets = Vec::with_capacity(SETS);
    for _ in 0..SETS {
        let Ok(set) = epoll::create(epoll::CreateFlags::CLOEXEC) else { break };
        epoll::add(&set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        sets.push(set);
    }
    ensure!(sets.len() > 900, "this program may have {} sets only", sets.len());
    Ok(sets)
}

pub(super) fn run(target: &Target) -> Result<Attack> {
    let (mut full, mut watched) = (Woken::open(target)?, Woken::open(target)?);
    for fd in full.raw.bells() {
        fcntl_setfl(fd, fcntl_getfl(fd)? - OFlags::NONBLOCK)?;
        // Fills an event counter, whose next writer waits. A socket that only the daemon may write to takes nothing.
        let _ = rustix::io::write(fd, &(u64::MAX - 1).to_ne_bytes());
    }
    let sets = sets(&watched.raw.bells()[0])?;
    let (until, mut rounds) = (target.end(), 0_u64);
    while Instant::now() < until {
        full.complete()?;
        watched.complete()?;
        rounds += 1;
    }
    let done = watched.produced.min(full.produced);
    ensure!(done > 100, "the worker has taken {done} requests only");
    let report = json!({ "case": "eventfd", "rounds": rounds, "requests": done, "sets": sets.len() });
    Ok((report, Box::new((full, watched, sets))))
}
