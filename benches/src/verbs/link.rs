//! Runs a two-sided benchmark over a link: in two threads (rings), in two processes (memif), or in one thread of an
//! application of `iwarpd`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use dataplane::dpdk::Eal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::daemon::Daemon;
use super::load::{Link, Load};
use super::node::{BenchNode, PairSetup, Role};
use super::nodes;
use super::peer_process::{PeerProcess, Rendezvous};
use super::program::{Program, ProgramEnd};
use crate::clock::pause;
use crate::{Stopwatch, on_core, on_two_cores};

/// Longest wait for a link to go down after the other end has closed.
const LINK_DOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for DPDK's thread to free the memory of a closed port.
const PORT_CLEANUP: Duration = Duration::from_millis(20);

/// A benchmark with one part per node; each part runs in its own thread until both have their results.
pub(super) trait TwoSided: Clone + Sync + Serialize + DeserializeOwned {
    /// Selects the implementation in the target's process.
    const KIND: BenchKind;
    /// Result of the initiator.
    type Initiated: Send;
    /// Result of the target.
    type Served: Send + Serialize + DeserializeOwned;

    /// Runs the initiator's part.
    fn initiate(&self, node: &mut BenchNode, rendezvous: &Rendezvous) -> Result<Self::Initiated>;
    /// Runs the target's part.
    fn serve(&self, node: &mut BenchNode, rendezvous: &Rendezvous) -> Result<Self::Served>;
    /// Runs both parts in this thread: the work of the nodes is a daemon's.
    fn run_program(&self, ends: &mut [ProgramEnd; 2]) -> Result<(Self::Initiated, Self::Served)>;
}

/// Benchmarks that the target's process can join.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum BenchKind {
    /// Bulk transfer, `bandwidth::Bulk`: as many messages as possible.
    Bulk,
    /// Ping-pong, `latency::PingPong`: one message at a time.
    PingPong,
}

/// Request to the target's process: one benchmark over one connection.
#[derive(Serialize, Deserialize)]
pub(super) struct Job {
    load: Load,
    setup: PairSetup,
    /// Socket of the memif ports.
    socket: PathBuf,
    kind: BenchKind,
    /// The benchmark of this kind.
    bench: serde_json::Value,
}

impl Job {
    pub(super) const fn kind(&self) -> BenchKind {
        self.kind
    }
}

/// The target's process of a memif link, as the initiator sees it.
struct Remote {
    process: PeerProcess,
    /// Folder of the memif sockets.
    folder: tempfile::TempDir,
    /// Sockets made so far.
    sockets: u32,
}

/// DPDK, and the target's process if the link is memif.
pub(super) struct Harness {
    eal: Eal,
    remote: Option<Remote>,
}

impl Harness {
    /// Starts the target's process, if any, and DPDK with memory for the largest pair of `load`.
    ///
    /// # Errors
    /// There is not enough memory, or the process cannot be started.
    pub(super) fn new(load: &Load) -> Result<Self> {
        let remote = match load.link {
            Link::Ring | Link::Daemon => None,
            Link::Memif => {
                let (process, folder) = (PeerProcess::start()?, tempfile::tempdir()?);
                Some(Remote { process, folder, sockets: 0 })
            }
        };
        let roles: &[Role] = match load.link {
            Link::Ring => &[Role::Initiator, Role::Target],
            // With a daemon, for the hand-off without a protocol alone.
            Link::Memif | Link::Daemon => &[Role::Initiator],
        };
        Ok(Self { eal: nodes::start_dpdk(load, roles)?, remote })
    }

    pub(super) const fn eal(&self) -> &Eal {
        &self.eal
    }

    /// Opens both nodes and runs the benchmark; returns the results of initiator and target.
    ///
    /// # Errors
    /// There is not enough memory, a CPU is not available, a connection fails, or the target's process does.
    pub(super) fn run<B: TwoSided>(
        &mut self,
        load: &Load,
        setup: &PairSetup,
        bench: &B,
    ) -> Result<(B::Initiated, B::Served)> {
        if load.link == Link::Daemon {
            // It ends with the run: its worker would disturb what is measured between two runs.
            let daemon = Daemon::start(load, setup, load.cores.0[1], "spin")?;
            return on_core(load.cores.0[0], || {
                bench.run_program(&mut Program::connect(&daemon.socket(), load.region, setup)?.0)
            });
        }
        let Some(Remote { process, folder, sockets }) = &mut self.remote else {
            let [mut initiator, mut target] = nodes::open(&self.eal, load, setup)?;
            let rendezvous = Rendezvous::default();
            return on_two_cores(
                load.cores,
                || rendezvous.guard(|| bench.initiate(&mut initiator, &rendezvous)),
                || rendezvous.guard(|| bench.serve(&mut target, &rendezvous)),
            );
        };
        *sockets += 1;
        let job = Job {
            load: load.clone(),
            setup: *setup,
            socket: folder.path().join(sockets.to_string()),
            kind: B::KIND,
            bench: serde_json::to_value(bench)?,
        };
        process.send(&job)?;
        let run = |node: &mut BenchNode, rendezvous: &Rendezvous| bench.initiate(node, rendezvous);
        let initiated = join(&self.eal, process, (load, setup, &job.socket), Role::Initiator, run)?;
        Ok((initiated, process.receive(|| {})?))
    }
}

/// The target's process: its DPDK and its pipes to the initiator.
pub(super) struct TargetHarness {
    initiator: PeerProcess,
    eal: Option<Eal>,
}

impl TargetHarness {
    pub(super) fn new() -> Self {
        Self { initiator: PeerProcess::parent(), eal: None }
    }

    /// Waits for the next job; `None` once the initiator has closed the pipe.
    pub(super) fn next_job(&self) -> Result<Option<Job>> {
        self.initiator.receive_until_closed()
    }

    /// Runs the target's part of a job and sends its result.
    pub(super) fn join<B: TwoSided>(&mut self, job: Job) -> Result<()> {
        let Job { load, setup, socket, bench, .. } = job;
        let bench: B = serde_json::from_value(bench)?;
        if self.eal.is_none() {
            self.eal = Some(nodes::start_dpdk(&load, &[Role::Target])?);
        }
        let eal = self.eal.as_ref().context("DPDK has been started")?;
        let run = |node: &mut BenchNode, rendezvous: &Rendezvous| bench.serve(node, rendezvous);
        let served = join(eal, &self.initiator, (&load, &setup, &socket), Role::Target, run)?;
        self.initiator.send(&served)
    }
}

/// Opens one node, connects it to the one in the other process, and runs its part.
fn join<T: Send>(
    eal: &Eal,
    peer: &PeerProcess,
    (load, setup, socket): (&Load, &PairSetup, &Path),
    role: Role,
    run: impl FnOnce(&mut BenchNode, &Rendezvous) -> Result<T> + Send,
) -> Result<T> {
    let mut node = nodes::open_one(eal, load, setup, (role, socket), peer)?;
    // A message that arrives before its receive buffer is posted would find none: once the other node may have started,
    // this one does not poll until it runs.
    let rendezvous = peer.synchronize(role == Role::Initiator, || {
        node.node.poll();
    })?;
    let cpu = load.cores.0.get(role.index()).copied().context("the node has no core")?;
    let result = on_core(cpu, || rendezvous.guard(|| run(&mut node, &rendezvous)))?;
    close(node, role, peer)?;
    Ok(result)
}

/// Closes the port of the initiator, then that of the target. When one closes, a DPDK thread cleans up behind the
/// other, and DPDK 22.11 frees the shared memory twice if that port is closed meanwhile.
fn close(node: BenchNode, role: Role, peer: &PeerProcess) -> Result<()> {
    match role {
        Role::Initiator => {
            drop(node);
            peer.send(&())
        }
        Role::Target => {
            peer.receive::<()>(|| {})?;
            let watch = Stopwatch::start();
            while node.node.port().link()?.up && watch.elapsed() < LINK_DOWN_TIMEOUT {
                std::thread::yield_now();
            }
            pause(PORT_CLEANUP);
            drop(node);
            Ok(())
        }
    }
}
