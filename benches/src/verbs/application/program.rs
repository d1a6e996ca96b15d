//! A program with a context on each of the daemon's two ports.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use iwarp_verbs::{
    Access, CmEventKind, CompletionQueue, ConnParam, Context, Data, Event, Id, Mr, ProtectionDomain, QpCap,
    QpOptions, QueuePair, RecvWr, SendFlags, SendOp, SendWr, WcStatus, WorkCompletion,
};

use super::super::load::Operation;
use super::super::node::PairSetup;
use super::work::{BATCH, Ends, Region, Side, Traffic, post_batch};
use crate::Stopwatch;
use crate::clock::thread_cpu_time;
use crate::samples::median;

/// Address that the target listens at.
const TARGET: ([u8; 4], u16) = ([10, 99, 1, 2], 18_515);
/// Longest wait for an event.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time over which the CPU time of a wait is measured.
const IDLE: Duration = Duration::from_secs(2);

/// One end: a context with one connection.
struct End {
    /// Dropped first: its objects are destroyed before what they use.
    id: Option<Id>,
    qp: QueuePair,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    source: Mr,
    sink: Mr,
    context: Context,
}

/// Both ends of a link, connected.
pub(super) struct Program([End; 2]);

impl End {
    fn open(socket: &Path, device: &str, region: u64, setup: &PairSetup) -> Result<Self> {
        let context = Context::open(socket, Some(device))?;
        let pd = context.alloc_pd()?;
        let depth = setup.send_depth.max(setup.receive_depth);
        let (send_cq, recv_cq) = (context.create_cq(depth.into())?, context.create_cq(depth.into())?);
        let cap = QpCap {
            max_send_wr: setup.send_depth,
            max_recv_wr: setup.receive_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let options = QpOptions { send_cq: &send_cq, recv_cq: &recv_cq, srq: None, cap, sq_sig_all: false };
        let qp = pd.create_qp(&options)?;
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let (source, sink) = (pd.alloc_mr(region, access)?, pd.alloc_mr(region, access)?);
        Ok(Self { id: None, qp, send_cq, recv_cq, source, sink, context })
    }

    fn event(&self) -> Result<CmEventKind> {
        match self.context.wait_event(TIMEOUT)? {
            Some(Event::Cm(event)) => Ok(event.kind),
            other => bail!("connecting: {other:?}"),
        }
    }

    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize> {
        self.recv_cq.poll(out).map_err(|error| anyhow!("poll: {error:?}"))
    }
}

impl Program {
    /// Opens both contexts and connects them.
    ///
    /// # Errors
    /// The daemon refuses, or the connection fails.
    pub(super) fn connect(socket: &Path, region: u64, setup: &PairSetup) -> Result<Self> {
        let mut initiator = End::open(socket, "p0", region, setup)?;
        let mut target = End::open(socket, "p1", region, setup)?;
        let (address, param) = (SocketAddr::from(TARGET), ConnParam::default());
        let listener = target.context.create_id(Some(address))?;
        listener.listen(NonZeroU16::MIN, &param)?;
        let id = initiator.context.create_id(None)?;
        id.connect(&initiator.qp, address, &param)?;
        initiator.id = Some(id);
        let requested = match target.context.wait_event(TIMEOUT)? {
            Some(Event::Cm(event)) if matches!(event.kind, CmEventKind::ConnectRequest { .. }) => event.id,
            other => bail!("connecting: {other:?}"),
        };
        let id = target.context.id(requested);
        id.accept(&target.qp, &[])?;
        target.id = Some(id);
        for end in [&initiator, &target] {
            let event = end.event()?;
            ensure!(matches!(event, CmEventKind::Established { .. }), "connecting: {event:?}");
        }
        Ok(Self([initiator, target]))
    }

    fn end(&self, side: Side) -> &End {
        let [initiator, target] = &self.0;
        if side == Side::Initiator { initiator } else { target }
    }

    /// Returns the time of this thread to post and poll one Write of 64 bytes, nanoseconds, all signaled, in batches of
    /// 32: the median of the batches. Polls that find nothing do not count.
    pub(super) fn post_and_poll(&mut self, messages: u64) -> Result<f64> {
        let traffic = Traffic { operation: Operation::Write, size: 64, messages, depth: BATCH as u64 };
        let (mut times, mut posted) = (Vec::new(), 0);
        let mut out = [WorkCompletion::default(); BATCH];
        while posted < messages {
            let watch = Stopwatch::start();
            let count = post_batch(self, &traffic, posted, true)?;
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
                let polled = self.poll_send(Side::Initiator, &mut out)?;
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
            for (from, to) in [(Side::Initiator, Side::Target), (Side::Target, Side::Initiator)] {
                let (from, to) = (self.end(from), self.end(to));
                let list = [from.source.sge(0, 64)];
                let wr = SendWr {
                    wr_id: 0,
                    op: SendOp::Send { invalidate: None },
                    data: Data::List(&list),
                    flags: SendFlags::SIGNALED,
                };
                from.qp.post_send(&[wr]).map_err(|(_, error)| anyhow!("post_send: {error:?}"))?;
                let mut out = [WorkCompletion::default()];
                while to.poll(&mut out)? == 0 {
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
            self.end(Side::Target).context.wait(IDLE.saturating_sub(watch.elapsed()))?;
        }
        Ok((thread_cpu_time().saturating_sub(before), watch.elapsed()))
    }
}

fn receive(end: &End) -> Result<()> {
    let list = [end.sink.sge(0, 64)];
    let posted = end.qp.post_recv(&[RecvWr { wr_id: 0, sg_list: &list }]);
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

impl Ends for Program {
    fn post_send(&mut self, side: Side, requests: &[SendWr<'_>]) -> Result<()> {
        self.end(side).qp.post_send(requests).map_err(|(_, error)| anyhow!("post_send: {error:?}"))
    }

    fn post_recv(&mut self, side: Side, buffers: &[RecvWr<'_>]) -> Result<()> {
        self.end(side).qp.post_recv(buffers).map_err(|(_, error)| anyhow!("post_recv: {error:?}"))
    }

    fn poll_send(&mut self, side: Side, out: &mut [WorkCompletion]) -> Result<usize> {
        self.end(side).send_cq.poll(out).map_err(|error| anyhow!("poll: {error:?}"))
    }

    fn poll_recv(&mut self, side: Side, out: &mut [WorkCompletion]) -> Result<usize> {
        self.end(side).poll(out)
    }

    fn step(&mut self) {
        std::hint::spin_loop();
    }

    fn regions(&self, side: Side) -> [Region; 2] {
        let End { source, sink, .. } = self.end(side);
        [source, sink].map(|mr| Region { addr: mr.addr(), lkey: mr.lkey(), rkey: mr.rkey(), bytes: mr.len() })
    }

    fn store(&mut self, side: Side, at: u64, word: u64) -> Result<()> {
        Ok(self.end(side).source.write(at, &word.to_ne_bytes())?)
    }

    fn load(&self, side: Side, at: u64) -> Result<u64> {
        let mut word = [0; 8];
        self.end(side).sink.read(at, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }
}
