//! An honest program of the daemon and an honest peer on the wire: each reads a few bytes of remote memory again and
//! again, opens a connection now and then, and notes how long it has waited.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use iwarp_verbs::{
    Access, CmEvent, CmEventKind, ConnParam, Context, Data, Event, Id, Mr, QpOptions, QueuePair,
    RegionConnection, RegionOptions, RegionShape, RegionTarget, SendFlags, SendOp, SendWr, WcStatus,
    WorkCompletion,
};
use serde_json::{Value, json};

/// Bytes of each RDMA Read.
const BYTES: u32 = 64;
/// Round trips of a connection. Then comes another one.
const ROUNDS: u32 = 100;
/// Longest time that either waits before it fails.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(clap::Args)]
pub(super) struct Options {
    /// Verbs socket of the daemon
    socket: PathBuf,
    /// Address of the daemon's port, and a free port number, for the program
    local: SocketAddr,
    /// Region of the daemon, for the peer
    #[arg(value_name = "HOST:PORT/REGION")]
    region: RegionTarget,
    /// Ends once this file exists
    #[arg(long)]
    until: PathBuf,
    /// Pause between two round trips, microseconds
    #[arg(long, default_value_t = 2000)]
    pause_us: u64,
}

/// Time without a round trip.
#[derive(Clone, Copy)]
struct Gaps {
    began: Instant,
    last: Instant,
    longest: Duration,
    count: u64,
}

impl Gaps {
    fn new() -> Self {
        let now = Instant::now();
        Self { began: now, last: now, longest: Duration::ZERO, count: 0 }
    }

    /// Notes a round trip.
    fn note(&mut self) {
        let now = Instant::now();
        self.longest = self.longest.max(now - self.last);
        self.last = now;
        self.count += 1;
    }

    fn report(&self) -> Value {
        let seconds = self.began.elapsed().as_secs_f64();
        json!({
            "count": self.count,
            "per_s": (self.count as f64 / seconds).round(),
            "longest_gap_ms": self.longest.max(self.last.elapsed()).as_millis(),
        })
    }
}

pub(super) fn run(options: &Options) -> Result<Value> {
    let peer = {
        let (region, until) = (options.region.clone(), options.until.clone());
        let pause = Duration::from_micros(options.pause_us);
        thread::spawn(move || peer(&region, &until, pause))
    };
    let program = program(options).context("the program")?;
    let peer = peer.join().map_err(|_| anyhow!("the peer has panicked"))?.context("the peer")?;
    Ok(json!({ "program": program.report(), "peer": peer.report() }))
}

/// Reads from the region, over the wire.
fn peer(region: &RegionTarget, until: &Path, pause: Duration) -> Result<Gaps> {
    let options = RegionOptions::new(Access::REMOTE_READ).with_timeout(PATIENCE);
    let shape = RegionShape { window_bytes: BYTES.into(), requests: 2, reads: 1 };
    let mut gaps = Gaps::new();
    while !until.exists() {
        let mut connection = RegionConnection::open(region, &options, &shape)?;
        for round in 0..ROUNDS.into() {
            connection.post_read(round, (0, BYTES), 0)?;
            connection.complete()?;
            gaps.note();
            thread::sleep(pause);
        }
    }
    Ok(gaps)
}

/// A connection of the program with itself.
pub(super) struct Pair {
    pub(super) client: QueuePair,
    pub(super) memory: Mr,
    remote: Mr,
    _server: QueuePair,
    _ids: [Id; 3],
}

fn cm_event(context: &Context) -> Result<CmEvent> {
    loop {
        match context.wait_event(PATIENCE)?.context("no event")? {
            Event::Cm(event) => return Ok(event),
            // The end of an earlier connection.
            Event::Async(_) | Event::PortActive | Event::PortDown => {}
            other => bail!("{other:?}"),
        }
    }
}

/// Reads from memory of its own, by way of the daemon.
fn program(options: &Options) -> Result<Gaps> {
    let context = Context::open(&options.socket, None)?;
    let pd = context.alloc_pd()?;
    let pause = Duration::from_micros(options.pause_us);
    let mut gaps = Gaps::new();
    while !options.until.exists() {
        let cq = context.create_cq(16)?;
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_READ;
        let [memory, remote] = [pd.alloc_mr(BYTES.into(), access)?, pd.alloc_mr(BYTES.into(), access)?];
        let [client, server] = [pd.create_qp(&QpOptions::new(&cq))?, pd.create_qp(&QpOptions::new(&cq))?];
        let pair = connect(&context, options.local, (client, server), (memory, remote))?;
        for _ in 0..ROUNDS {
            cq.req_notify(false);
            read(&pair)?;
            let mut out = [WorkCompletion::default(); 1];
            while cq.poll(&mut out).map_err(|error| anyhow!("poll: {error:?}"))? == 0 {
                context.wait_completion(PATIENCE)?.context("no completion")?;
            }
            ensure!(out.iter().all(|wc| wc.status == WcStatus::Success), "{out:?}");
            gaps.note();
            thread::sleep(pause);
        }
    }
    Ok(gaps)
}

fn read(Pair { client, memory, remote, .. }: &Pair) -> Result<()> {
    let op = SendOp::RdmaRead { remote_addr: remote.addr(), rkey: remote.rkey() };
    let sge = [memory.sge(0, BYTES)];
    let wr = SendWr { wr_id: 0, op, data: Data::List(&sge), flags: SendFlags::SIGNALED };
    client.post_send(&[wr]).map_err(|(_, error)| anyhow!("post_send: {error:?}"))
}

/// Connects two queue pairs of a program with each other.
pub(super) fn connect(
    context: &Context,
    local: SocketAddr,
    (client, server): (QueuePair, QueuePair),
    (memory, remote): (Mr, Mr),
) -> Result<Pair> {
    let (listener, id) = (context.create_id(Some(local))?, context.create_id(None)?);
    listener.listen(NonZeroU16::MIN, &ConnParam::default())?;
    id.connect(&client, local, &ConnParam::default())?;
    let accepted = loop {
        let event = cm_event(context)?;
        match event.kind {
            CmEventKind::ConnectRequest { .. } => break context.id(event.id),
            CmEventKind::Disconnected => {}
            other => bail!("{other:?}"),
        }
    };
    accepted.accept(&server, b"")?;
    loop {
        let event = cm_event(context)?;
        match event.kind {
            CmEventKind::Established { .. } if event.id == id.handle() => break,
            CmEventKind::Established { .. } | CmEventKind::Disconnected => {}
            other => bail!("{other:?}"),
        }
    }
    Ok(Pair { client, memory, remote, _server: server, _ids: [listener, id, accepted] })
}
