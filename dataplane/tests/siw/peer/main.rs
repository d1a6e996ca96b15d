//! Our end of the ping-pong test with soft-iWARP, in either role: RDMA Writes, RDMA Reads and the four Sends alternate
//! between both ends, and every byte is checked. `dataplane/tests/siw/turns.h` specifies the exchange; `iwpeer` there
//! is the other end, and `dataplane/tests/siw/turns.sh` runs both.
//!
//! ```text
//! siw-peer --config peer.toml --connect 10.77.0.3:7500 --qps 4 --slots 8 --turns 200
//! siw-peer --config peer.toml --listen 10.77.0.4:7500 --qps 4
//! ```
//! Prints `LISTENING` when it listens, one `RESULT turns ok …` line for each connection, and an error if objects are
//! left.

mod params;
mod stream;

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Parser, ValueEnum};
use dataplane::verbs::{Node, NodeOptions};
use iwarp_config::Config;
use iwarp_engine::Clock;
use rdma::verbs::{AsyncEvent, CmEvent, CmEventKind, CmId, ConnParam, Limits, WorkCompletion};
use rdma::wire::mpa::RtrOptions;
use tcp_stack::Instant;

use params::Params;
use stream::Stream;

/// Longest wait for the peer's closes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Completions per poll of a completion queue.
const COMPLETIONS: usize = 32;

/// Exchange data with a peer in ping-pong.
#[derive(Debug, Parser)]
struct Args {
    /// Configuration file of the port, in the daemon's format.
    #[arg(long)]
    config: PathBuf,
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
    /// Start with a ready-to-receive message of one of these kinds; connecting end only.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    rtr: Vec<Rtr>,
    /// End with a Write to an invalidated STag, which the peer must refuse; connecting end only.
    #[arg(long)]
    trespass: bool,
    /// Longest time without a completion or event, seconds.
    #[arg(long, default_value_t = 30)]
    timeout: u64,
}

/// A ready-to-receive message without bytes (RFC 6581 §9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Rtr {
    Send,
    Write,
    Read,
}

impl Args {
    /// Returns the kinds of ready-to-receive messages to offer; `None` for the client-server model.
    fn rtr(&self) -> Option<RtrOptions> {
        let has = |kind| self.rtr.contains(&kind);
        let options = RtrOptions { send: has(Rtr::Send), write: has(Rtr::Write), read: has(Rtr::Read) };
        Some(options).filter(|options| !options.is_empty())
    }

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
    streams: Vec<Stream>,
    /// Number of connections that have not ended.
    left: usize,
    moved: Instant,
    timeout: Duration,
}

impl Program {
    fn start(node: &mut Node, args: &Args) -> Result<Self> {
        let param = ConnParam {
            responder_resources: args.ird,
            initiator_depth: args.ord,
            revision: args.revision,
            ..ConnParam::default()
        };
        let mut program = Self {
            streams: Vec::new(),
            left: args.qps.into(),
            moved: node.now(),
            timeout: Duration::from_secs(args.timeout),
        };
        if let Some(local) = args.listen {
            let device = node.device_mut();
            let id = device.create_id(Some(local))?;
            device.listen(id, NonZeroU16::new(args.qps).context("--qps 0")?, &param)?;
            println!("LISTENING");
            return Ok(program);
        }
        let params = args.params()?;
        for _ in 0..args.qps {
            let id = node.device_mut().create_id(None)?;
            let stream = Stream::new(node, id, params, true)?;
            let (qp, peer) = (stream.qp, args.connect.context("--connect")?);
            program.streams.push(stream);
            let private_data = &params.encode();
            let param = ConnParam { private_data, rtr: args.rtr(), ..param };
            node.device_mut().connect(id, qp, peer, &param)?;
        }
        Ok(program)
    }

    /// Handles events and completions. Returns true when all connections have ended.
    fn poll_once(&mut self, node: &mut Node) -> Result<bool> {
        let now = node.now();
        while let Some(event) = node.device_mut().poll_async_event() {
            self.on_async(event)?;
        }
        let mut taken = [WorkCompletion::default(); COMPLETIONS];
        for stream in &mut self.streams {
            let count = node
                .engine_mut()
                .device_mut()
                .poll_cq(stream.cq, &mut taken)
                .map_err(|error| anyhow!("{error:?}"))?;
            for wc in taken.iter().take(count) {
                self.moved = now;
                stream.completed(node.engine_mut(), wc)?;
            }
            stream.end_if_done(node.engine_mut(), now)?;
        }
        while let Some(event) = node.device_mut().poll_cm_event() {
            self.moved = now;
            self.on_event(node, event)?;
        }
        ensure!(now < self.moved + self.timeout, "nothing has moved for {:?}", self.timeout);
        Ok(self.left == 0)
    }

    fn on_async(&mut self, event: AsyncEvent) -> Result<()> {
        let (AsyncEvent::QpTerminated(qp, _)
        | AsyncEvent::QpAccessError(qp, _)
        | AsyncEvent::QpRequestError(qp, _)
        | AsyncEvent::QpFatal(qp, _)) = event
        else {
            bail!("{event:?}")
        };
        let stream = self.streams.iter_mut().find(|stream| stream.qp == qp);
        stream.with_context(|| format!("{event:?}"))?.on_async(event);
        Ok(())
    }

    fn on_event(&mut self, node: &mut Node, event: CmEvent) -> Result<()> {
        let id = event.id;
        match event.kind {
            CmEventKind::ConnectRequest { private_data, .. } => {
                let stream = Stream::new(node, id, Params::decode(&private_data)?, false)?;
                node.device_mut().accept(id, stream.qp, b"")?;
                self.streams.push(stream);
            }
            CmEventKind::Established { .. } => self.stream(id)?.established(node.engine_mut())?,
            CmEventKind::Disconnected => {
                // Completions from before the end are still queued.
                self.drain(node, id)?;
                self.stream(id)?.disconnected()?;
                self.left = self.left.saturating_sub(1);
            }
            kind => bail!("connection {}: {kind:?}", id.0),
        }
        Ok(())
    }

    fn drain(&mut self, node: &mut Node, id: CmId) -> Result<()> {
        let now = node.now();
        let stream = self.stream(id)?;
        let mut taken = [WorkCompletion::default(); COMPLETIONS];
        while let Ok(count @ 1..) = node.device_mut().poll_cq(stream.cq, &mut taken) {
            for wc in taken.iter().take(count) {
                stream.completed(node.engine_mut(), wc)?;
            }
            stream.end_if_done(node.engine_mut(), now)?;
        }
        Ok(())
    }

    fn stream(&mut self, id: CmId) -> Result<&mut Stream> {
        self.streams.iter_mut().find(|stream| stream.id == id).context("an event of no connection of ours")
    }

    /// Destroys all objects, prints the results and checks that nothing is left.
    fn finish(self, node: &mut Node, begun: Instant) -> Result<()> {
        ensure!(self.streams.iter().all(Stream::is_over), "a connection is left");
        let ms = (node.now() - begun).as_millis();
        ensure!(node.finish(CLOSE_TIMEOUT), "a connection was not closed in good order");
        for stream in self.streams {
            let (id, counts) = (stream.id, stream.destroy(node.engine_mut())?);
            node.device_mut().destroy_id(id)?;
            println!(
                "RESULT turns ok sends={} writes={} reads={} invalidated={} solicited={} bytes={} ms={ms}",
                counts.sends, counts.writes, counts.reads, counts.invalidated, counts.solicited, counts.bytes
            );
        }
        let (stags, connections) = (node.engine().stags(), node.engine().connections());
        ensure!((stags, connections) == (0, 0), "left behind: {stags} STags, {connections} connections");
        Ok(())
    }
}

fn run(args: &Args) -> Result<()> {
    let config = Config::load(&args.config)?;
    let eal = Node::start_dpdk(&[&config])?;
    let mut options = NodeOptions::new(&config);
    let windows = u32::from(args.qps).saturating_mul(256).min(8192);
    options.limits = Limits { mws: u16::try_from(windows)?, ..Limits::default() };
    let mut node = Node::open(&eal, &config, &options, &Clock::start())?;
    let _thread = node.enter()?;
    let begun = node.now();
    let mut program = Program::start(&mut node, args)?;
    let ended = node.run(|node| match program.poll_once(node) {
        Ok(false) => ControlFlow::Continue(()),
        Ok(true) => ControlFlow::Break(Ok(())),
        Err(error) => ControlFlow::Break(Err(error)),
    });
    if let Err(error) = ended {
        // Resets the connections before the port closes, so that the peer sees the error.
        drop(program.streams);
        node.finish(Duration::from_secs(1));
        return Err(error);
    }
    program.finish(&mut node, begun)
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("RESULT turns FAIL {error:#}");
            ExitCode::FAILURE
        }
    }
}
