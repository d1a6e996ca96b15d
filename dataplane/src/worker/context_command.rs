//! Commands about the contexts of other processes, on one port of the worker.

pub use iwarp_engine::NewMr;
use iwarp_engine::Wakers;
use iwarp_engine::memory::{Backing, SharedWords};
use iwarp_shared_verbs::worker::{ContextId, ContextStats, CqStats, ObjectLimits, UserId};
use iwarp_shared_verbs::{Request, Response};
use rdma::RegionId;
use rdma::verbs::{CqId, MemoryRegion, VerbsError};
use tcp_stack::Instant;
use tokio::sync::oneshot;

use super::WorkerPort;
use super::jobs::Job;

/// Memory that the worker does not access any more. The control thread unmaps it.
pub type Released = (RegionId, Backing);

/// Results of the requests of [`ContextCommand::Execute`].
#[derive(Debug)]
pub struct Executed {
    /// Result of each request, in order.
    pub results: Vec<Result<Response, VerbsError>>,
    /// Memory of the memory regions that the requests have deregistered.
    pub released: Vec<Released>,
}

/// A command about a context.
#[derive(Debug)]
pub enum ContextCommand {
    /// Opens a context on the port.
    Open {
        /// Memory of the context, zero.
        memory: SharedWords,
        /// User whose share of the worker's time the context has.
        user: UserId,
        /// Limits of its objects.
        limits: ObjectLimits,
        /// Descriptors that end the sleep of the program and of the worker.
        wakers: Box<Wakers>,
        /// Receives the context, or the engine's error.
        reply: oneshot::Sender<Result<ContextId, VerbsError>>,
    },
    /// Executes requests, in parts between which frames are processed.
    Execute {
        /// Context that the requests belong to.
        context: ContextId,
        /// Requests, executed in order.
        requests: Vec<Request>,
        /// Receives the result of each request.
        reply: oneshot::Sender<Executed>,
    },
    /// Attaches memory and registers it.
    Register {
        /// Context that the memory region belongs to.
        context: ContextId,
        /// Memory region to register.
        mr: Box<NewMr>,
        /// Receives the memory region. After an error, the worker does not access the memory.
        reply: oneshot::Sender<Result<MemoryRegion, VerbsError>>,
    },
    /// Reports the counters of a context.
    Stats {
        /// Context that is reported.
        context: ContextId,
        /// Receives the counters, if the context is open.
        reply: oneshot::Sender<Option<ContextStats>>,
    },
    /// Reports the counters of completion queues. Bounded by the sender.
    CqStats {
        /// Context that the queues belong to.
        context: ContextId,
        /// Queues that are reported, in order.
        cqs: Vec<CqId>,
        /// Receives the counters of each queue, if it is there.
        reply: oneshot::Sender<Vec<Option<CqStats>>>,
    },
    /// Reports to all contexts of the port how its link is.
    Link {
        /// True if the link has come up.
        up: bool,
    },
    /// Closes a context: its objects are destroyed, its connections reset.
    Close {
        /// Context that is to be closed.
        context: ContextId,
        /// Receives the memory of its memory regions.
        reply: oneshot::Sender<Vec<Released>>,
    },
}

impl WorkerPort {
    /// Carries out a command about a context of this port, the worker's `port`th, or makes it a job if it may take
    /// long. The requester may have gone; the answer is then dropped.
    pub(super) fn run_context_command(
        &mut self,
        port: usize,
        command: ContextCommand,
    ) -> Option<(UserId, Job)> {
        match command {
            ContextCommand::Open { memory, user, limits, wakers, reply } => {
                let _ = reply.send(self.engine_mut().context_open(memory, user, limits, *wakers));
            }
            ContextCommand::Execute { context, requests, reply } => {
                return Some(self.job(context, Job::execute((port, context), requests, reply)));
            }
            ContextCommand::Register { context, mr, reply } => {
                return Some(self.job(context, Job::register((port, context), mr, reply)));
            }
            ContextCommand::Stats { context, reply } => {
                let _ = reply.send(self.engine().context_stats(context));
            }
            ContextCommand::CqStats { context, cqs, reply } => {
                let stats = cqs.iter().map(|cq| self.engine().cq_stats(context, *cq));
                let _ = reply.send(stats.collect());
            }
            ContextCommand::Link { up } => self.engine_mut().contexts_set_link(up),
            ContextCommand::Close { context, reply } => {
                return Some(self.job(context, Job::close((port, context), reply)));
            }
        }
        None
    }

    /// Returns a job with the user of its context. A context that is not open has none; the job will say so.
    fn job(&self, context: ContextId, job: Job) -> (UserId, Job) {
        (self.engine().context_user(context).unwrap_or_default(), job)
    }

    pub(super) fn register(
        &mut self,
        now: Instant,
        context: ContextId,
        mr: NewMr,
    ) -> Result<MemoryRegion, VerbsError> {
        self.engine_mut().context_register(now, context, mr)
    }

    pub(super) fn detach_memory(&mut self, region: RegionId) -> Option<Released> {
        self.engine_mut().memory_mut().detach(region).map(|memory| (region, memory))
    }
}
