//! A program with a context on each of the daemon's two ports.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use iwarp_verbs::{
    Access, CmEventKind, CompletionQueue, ConnParam, Context, Data, Event, Id, Mr, ProtectionDomain,
    QpOptions, QpType, QueuePair, RecvWr, SendFlags, SendOp, SendWr, WcStatus, WorkCompletion,
};

use rdma::wire::Stag;

use super::application::work::{BATCH, Traffic, post_batch};
use super::end::{End, Region, fill_pattern};
use super::load::Operation;
use super::node::PairSetup;
use crate::Stopwatch;
use crate::clock::thread_cpu_time;
use crate::samples::median;

/// Address that the target listens at.
const TARGET: ([u8; 4], u16) = ([10, 99, 1, 2], 18_515);
/// Longest wait for an event.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time over which the CPU time of a wait is measured.
const IDLE: Duration = Duration::from_secs(2);

/// One end: a context with connected queue pairs.
pub(super) struct ProgramEnd {
    /// Dropped first: its objects are destroyed before what they use.
    ids: Vec<Id>,
    qps: Vec<QueuePair>,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    source: Mr,
    sink: Mr,
    /// Address and key of the other end's two regions.
    peer: [(u64, Stag); 2],
    /// True while a batch is open on one of the queue pairs.
    in_batch: bool,
    context: Context,
}

/// Both ends of a link, connected.
pub(super) struct Program(pub(super) [ProgramEnd; 2]);

impl ProgramEnd {
    fn open(socket: &Path, device: &str, region: u64, setup: &PairSetup) -> Result<Self> {
        let context = Context::open(socket, Some(device))?;
        let pd = context.alloc_pd()?;
        let [send_cqe, recv_cqe] = setup.cqe();
        let (send_cq, recv_cq) = (context.create_cq(send_cqe)?, context.create_cq(recv_cqe)?);
        let cap = setup.cap();
        let options = QpOptions {
            send_cq: &send_cq,
            recv_cq: &recv_cq,
            srq: None,
            cap,
            sq_sig_all: false,
            qp_type: QpType::Rc,
        };
        let qps = pd.create_qps(&options, setup.qps.into())?;
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let (source, sink) = (pd.alloc_mr(region, access)?, pd.alloc_mr(region, access)?);
        fill_pattern(region, &mut |at, bytes| Ok(source.write(at, bytes)?))?;
        let peer = [(0, Stag(0)); 2];
        Ok(Self { ids: Vec::new(), qps, send_cq, recv_cq, source, sink, peer, in_batch: false, context })
    }

    fn event(&self) -> Result<CmEventKind> {
        match self.context.wait_event(TIMEOUT)? {
            Some(Event::Cm(event)) => Ok(event.kind),
            other => bail!("connecting: {other:?}"),
        }
    }

    fn queue_pair(&self, qp: usize) -> Result<&QueuePair> {
        self.qps.get(qp).ok_or_else(|| anyhow!("the end has no queue pair {qp}"))
    }
}

impl Program {
    /// Opens both contexts and connects their queue pairs: pair i of one with pair i of the other.
    ///
    /// # Errors
    /// The daemon refuses, or a connection fails.
    pub(super) fn connect(socket: &Path, region: u64, setup: &PairSetup) -> Result<Self> {
        let mut initiator = ProgramEnd::open(socket, "p0", region, setup)?;
        let mut target = ProgramEnd::open(socket, "p1", region, setup)?;
        let keys = |end: &ProgramEnd| End::regions(end).map(|region| (region.addr, region.rkey));
        (initiator.peer, target.peer) = (keys(&target), keys(&initiator));
        let (address, param) = (SocketAddr::from(TARGET), ConnParam::default());
        let listener = target.context.create_id(Some(address))?;
        listener.listen(NonZeroU16::MIN, &param)?;
        for pair in 0..usize::from(setup.qps) {
            let id = initiator.context.create_id(None)?;
            id.connect(initiator.queue_pair(pair)?, address, &param)?;
            initiator.ids.push(id);
            let requested = match target.context.wait_event(TIMEOUT)? {
                Some(Event::Cm(event)) if matches!(event.kind, CmEventKind::ConnectRequest { .. }) => {
                    event.id
                }
                other => bail!("connecting: {other:?}"),
            };
            let id = target.context.id(requested);
            id.accept(target.queue_pair(pair)?, &[])?;
            target.ids.push(id);
            for end in [&initiator, &target] {
                let event = end.event()?;
                ensure!(matches!(event, CmEventKind::Established { .. }), "connecting: {event:?}");
            }
        }
        Ok(Self([initiator, target]))
    }

    /// Returns the time of this thread to post and poll one Write of 64 bytes, nanoseconds, all signaled, in batches of
    /// 32: the median of the batches. Polls that find nothing do not count.
    pub(super) fn post_and_poll(&mut self, messages: u64) -> Result<f64> {
        let traffic = Traffic { operation: Operation::Write, size: 64, messages, depth: BATCH as u64 };
        let (mut times, mut posted) = (Vec::new(), 0);
        let mut out = [WorkCompletion::default(); BATCH];
        while posted < messages {
            let watch = Stopwatch::start();
            let [initiator, target] = &mut self.0;
            let count = post_batch([initiator, target], &traffic, posted, true)?;
            let mut spent = watch.elapsed();
            posted += count as u64;
            // All have completed before they are polled, as for a program that does other work meanwhile.
            let pause = Stopwatch::start();
            while pause.elapsed() < Duration::from_micros(40) {
                std::hint::spin_loop();
            }
            let mut done = 0;
            while done < count {
                let watch = Stopwatch::start();
                let polled = initiator.poll_send(&mut out)?;
                if polled > 0 {
                    spent += watch.elapsed();
                }
                ensure!(out[..polled].iter().all(|wc| wc.status == WcStatus::Success), "a Write has failed");
                done += polled;
            }
            times.push(spent.as_nanos() as f64 / count as f64);
        }
        Ok(median(&times))
    }

    /// Sends messages of 64 bytes back and forth; each end waits for its event. Returns the median, nanoseconds.
    pub(super) fn event_round_trip(&mut self, count: u32) -> Result<f64> {
        let mut times = Vec::new();
        for end in &self.0 {
            end.recv_cq.req_notify(false);
            receive(end)?;
        }
        for _ in 0..count {
            let watch = Stopwatch::start();
            for (from, to) in [(0, 1), (1, 0)] {
                let (from, to) = (&self.0[from], &self.0[to]);
                let list = [from.source.sge(0, 64)];
                let wr = SendWr {
                    wr_id: 0,
                    op: SendOp::Send { invalidate: None },
                    data: Data::List(&list),
                    flags: SendFlags::SIGNALED,
                };
                from.queue_pair(0)?.post_send(&[wr]).map_err(|(_, error)| anyhow!("post_send: {error:?}"))?;
                let mut out = [WorkCompletion::default()];
                while to.recv_cq.poll(&mut out) == Ok(0) {
                    ensure!(to.context.wait(TIMEOUT)?, "no event");
                }
                ensure!(out[0].status == WcStatus::Success, "{out:?}");
                to.recv_cq.req_notify(false);
                receive(to)?;
            }
            times.push(watch.elapsed().as_nanos() as f64);
            for end in &self.0 {
                while end.send_cq.poll(&mut [WorkCompletion::default()]) == Ok(0) {
                    std::thread::yield_now();
                }
            }
        }
        Ok(median(&times))
    }

    /// Waits for an event that does not come. Returns the CPU time of this thread, and the time.
    pub(super) fn idle_wait(&self) -> Result<(Duration, Duration)> {
        let (before, watch) = (thread_cpu_time(), Stopwatch::start());
        while watch.elapsed() < IDLE {
            self.0[1].context.wait(IDLE.saturating_sub(watch.elapsed()))?;
        }
        Ok((thread_cpu_time().saturating_sub(before), watch.elapsed()))
    }
}

fn receive(end: &ProgramEnd) -> Result<()> {
    let list = [end.sink.sge(0, 64)];
    let posted = end.queue_pair(0)?.post_recv(&[RecvWr { wr_id: 0, sg_list: &list }]);
    posted.map_err(|(_, error)| anyhow!("post_recv: {error:?}"))
}

/// Opens contexts with queue pairs that do nothing.
pub(super) fn idle(
    socket: &Path,
    (contexts, queue_pairs): (usize, usize),
) -> Result<Vec<(Vec<QueuePair>, ProtectionDomain)>> {
    let open = |_| {
        let context = Context::open(socket, Some("p0"))?;
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(64)?);
        Ok((pd.create_qps(&QpOptions::new(&cq), queue_pairs)?, pd))
    };
    (0..contexts).map(open).collect()
}

impl End for ProgramEnd {
    fn queue_pairs(&self) -> usize {
        self.qps.len()
    }

    fn regions(&self) -> [Region; 2] {
        [&self.source, &self.sink].map(|mr| Region {
            addr: mr.addr(),
            lkey: mr.lkey(),
            rkey: mr.rkey(),
            bytes: mr.len(),
        })
    }

    fn peer_regions(&self) -> [(u64, Stag); 2] {
        self.peer
    }

    fn post_send(&mut self, qp: usize, requests: &[SendWr<'_>]) -> Result<()> {
        let qp = self.queue_pair(qp)?;
        let posted = match requests {
            [one] if self.in_batch => qp.add_to_batch(one),
            all => qp.post_send(all).map_err(|(_, error)| error),
        };
        posted.map_err(|error| anyhow!("post_send: {error:?}"))
    }

    fn post_recv(&mut self, qp: usize, buffers: &[RecvWr<'_>]) -> Result<()> {
        self.queue_pair(qp)?.post_recv(buffers).map_err(|(_, error)| anyhow!("post_recv: {error:?}"))
    }

    fn poll_send(&mut self, out: &mut [WorkCompletion]) -> Result<usize> {
        self.send_cq.poll(out).map_err(|error| anyhow!("poll: {error:?}"))
    }

    fn poll_recv(&mut self, out: &mut [WorkCompletion]) -> Result<usize> {
        self.recv_cq.poll(out).map_err(|error| anyhow!("poll: {error:?}"))
    }

    fn check_events(&mut self) -> Result<()> {
        self.context.poll_event().map_or(Ok(()), |event| bail!("{event:?}"))
    }

    fn step(&mut self) {
        std::hint::spin_loop();
    }

    fn write_source(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.source.write(at, bytes)?)
    }

    fn read_source(&self, at: u64, out: &mut [u8]) -> Result<()> {
        Ok(self.source.read(at, out)?)
    }

    fn read_sink(&self, at: u64, out: &mut [u8]) -> Result<()> {
        Ok(self.sink.read(at, out)?)
    }

    fn begin_batch(&mut self, qp: usize) {
        if let Ok(qp) = self.queue_pair(qp) {
            qp.begin_batch();
            self.in_batch = true;
        }
    }

    fn end_batch(&mut self, qp: usize) {
        if let Ok(qp) = self.queue_pair(qp) {
            qp.end_batch();
        }
        self.in_batch = false;
    }
}
