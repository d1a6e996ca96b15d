//! Our end of the ping-pong test with soft-iWARP, in either role, as a program of the daemon: RDMA Writes, RDMA Reads
//! and the four Sends alternate between both ends, and every byte is checked. `dataplane/tests/siw/turns.h` specifies
//! the exchange; `iwpeer` there is the other end, and `dataplane/tests/siw/turns.sh` runs both.
//!
//! ```text
//! lab turns --socket verbs.sock --connect 10.77.0.3:7500 --qps 4 --slots 8 --turns 200
//! lab turns --socket verbs.sock --listen 10.77.0.2:7500 --qps 4
//! ```
//! Prints `LISTENING` when it listens. The report has the work of each connection.

mod params;
mod stream;

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use iwarp_verbs::{AsyncEvent, CmEvent, CmEventKind, CmId, ConnParam, Context, Event, Id, WorkCompletion};
use serde_json::{Value, json};

use params::Params;
use stream::Stream;

/// Completions per poll of a completion queue.
const COMPLETIONS: usize = 32;
/// Memory of the queues that the program shares with the daemon, bytes per connection and exchange.
const QUEUE_BYTES: u64 = 64 << 10;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Verbs socket of the daemon.
    #[arg(long)]
    socket: PathBuf,
    /// Connect to this address.
    #[arg(long, conflicts_with = "listen", required_unless_present = "listen")]
    connect: Option<SocketAddr>,
    /// Listen at this address.
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Number of connections of the run.
    #[arg(long, default_value_t = 1)]
    qps: u16,
    /// Concurrent exchanges on each connection; connecting end only.
    #[arg(long, default_value_t = 4)]
    slots: u16,
    /// Messages of each exchange, an even number; connecting end only.
    #[arg(long, default_value_t = 64)]
    turns: u32,
    /// Longest Read, Write and Send, bytes; connecting end only.
    #[arg(long, default_value_t = 65536)]
    bytes: u32,
    /// Seed of all lengths and data; connecting end only.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Most outstanding RDMA Reads of the peer (IRD).
    #[arg(long, default_value_t = 16)]
    ird: u16,
    /// Most outstanding RDMA Reads of this end (ORD).
    #[arg(long, default_value_t = 16)]
    ord: u16,
    /// MPA revision; connecting end only.
    #[arg(long, default_value_t = 2)]
    revision: u8,
    /// End with a Write to an invalidated STag, which the peer must refuse; connecting end only.
    #[arg(long)]
    trespass: bool,
    /// Longest time without a completion or event, seconds.
    #[arg(long, default_value_t = 30)]
    timeout: u64,
}

impl Options {
    fn params(&self) -> Result<Params> {
        let params = Params {
            slots: self.slots,
            connector_reads: self.ord > 0,
            listener_reads: self.ird > 0,
            trespass: self.trespass,
            turns: self.turns,
            bytes: self.bytes,
            seed: self.seed,
        };
        Params::decode(&params.encode())
    }
}

/// The connections of one run.
struct Program {
    context: Context,
    listener: Option<Id>,
    streams: Vec<Stream>,
    wanted: usize,
    moved: Instant,
    timeout: Duration,
}

impl Program {
    fn start(options: &Options) -> Result<Self> {
        let param = ConnParam {
            responder_resources: options.ird,
            initiator_depth: options.ord,
            revision: options.revision,
            ..ConnParam::default()
        };
        let queue_bytes = QUEUE_BYTES * (64 + 16 * u64::from(options.qps));
        let mut program = Self {
            context: Context::open_sized(&options.socket, None, Some(queue_bytes))?,
            listener: None,
            streams: Vec::new(),
            wanted: options.qps.into(),
            moved: Instant::now(),
            timeout: Duration::from_secs(options.timeout),
        };
        if let Some(local) = options.listen {
            let id = program.context.create_id(Some(local))?;
            id.listen(NonZeroU16::new(options.qps).context("--qps 0")?, &param)?;
            program.listener = Some(id);
            println!("LISTENING");
            return Ok(program);
        }
        let (params, peer) = (options.params()?, options.connect.context("--connect")?);
        let private_data = &params.encode();
        for _ in 0..options.qps {
            let id = program.context.create_id(None)?;
            let stream = Stream::new(&program.context, id, params, true)?;
            stream.id.connect(&stream.qp, peer, &ConnParam { private_data, ..param })?;
            program.streams.push(stream);
        }
        Ok(program)
    }

    /// Runs until all connections have ended.
    fn run(&mut self) -> Result<()> {
        while self.streams.len() < self.wanted || !self.streams.iter().all(Stream::is_over) {
            if self.poll_once()? {
                self.moved = Instant::now();
                continue;
            }
            ensure!(self.moved.elapsed() < self.timeout, "nothing has moved for {:?}", self.timeout);
            self.streams.iter().for_each(|stream| stream.cq.req_notify(false));
            if !self.poll_once()? {
                self.context.wait(Duration::from_secs(1))?;
            }
        }
        Ok(())
    }

    /// Handles completions and events. Returns true if there was one.
    fn poll_once(&mut self) -> Result<bool> {
        let mut moved = false;
        let mut events = Vec::new();
        // Completions from before an event are polled before it is handled.
        while let Some(event) = self.context.poll_event() {
            events.push(event);
        }
        for stream in &mut self.streams {
            moved |= drain(stream)?;
        }
        for event in events {
            moved = true;
            match event {
                Event::Cm(event) => self.on_event(event)?,
                Event::Async(event) => self.on_async(event)?,
                Event::PortActive | Event::PortDown => {}
                Event::DeviceFatal => bail!("iwarpd has ended"),
            }
        }
        for stream in &mut self.streams {
            stream.end_if_done()?;
            stream.check_end()?;
        }
        Ok(moved)
    }

    fn on_async(&mut self, event: AsyncEvent) -> Result<()> {
        let (AsyncEvent::QpTerminated(qp, _)
        | AsyncEvent::QpAccessError(qp, _)
        | AsyncEvent::QpRequestError(qp, _)
        | AsyncEvent::QpFatal(qp, _)) = event
        else {
            bail!("{event:?}")
        };
        let stream = self.streams.iter_mut().find(|stream| stream.qp.num() == qp);
        stream.with_context(|| format!("{event:?}"))?.on_async(event);
        Ok(())
    }

    fn on_event(&mut self, event: CmEvent) -> Result<()> {
        match event.kind {
            CmEventKind::ConnectRequest { private_data, .. } => {
                let id = self.context.id(event.id);
                let stream = Stream::new(&self.context, id, Params::decode(&private_data)?, false)?;
                stream.id.accept(&stream.qp, b"")?;
                self.streams.push(stream);
            }
            CmEventKind::Established { .. } => self.stream(event.id)?.established()?,
            CmEventKind::Disconnected => self.stream(event.id)?.on_disconnected(),
            kind => bail!("connection {}: {kind:?}", event.id.0),
        }
        Ok(())
    }

    fn stream(&mut self, id: CmId) -> Result<&mut Stream> {
        let stream = self.streams.iter_mut().find(|stream| stream.id.handle() == id);
        stream.context("an event of no connection of ours")
    }
}

/// Handles the completions of a stream. Returns true if there was one.
fn drain(stream: &mut Stream) -> Result<bool> {
    let mut moved = false;
    let mut taken = [WorkCompletion::default(); COMPLETIONS];
    loop {
        let count = stream.cq.poll(&mut taken).map_err(|error| anyhow!("poll: {error:?}"))?;
        for wc in taken.iter().take(count) {
            stream.completed(wc)?;
            stream.end_if_done()?;
        }
        if count == 0 {
            return Ok(moved);
        }
        moved = true;
    }
}

pub(crate) fn run(options: &Options) -> Result<Value> {
    let begun = Instant::now();
    let mut program = Program::start(options)?;
    program.run()?;
    let connections: Vec<Value> = program.streams.iter().map(|stream| stream.counts.report()).collect();
    Ok(json!({ "connections": connections, "ms": begun.elapsed().as_millis() }))
}
