//! Takes turns with an iWARP implementation of another make, in either role: RDMA Writes, RDMA Reads and the four
//! Sends, every byte checked (`dataplane/tests/siw/turns.h` says how; `iwpeer` there is the other end).
//!
//! ```text
//! turns --config turns.toml --connect 10.77.0.3:7500 --qps 4 --slots 8 --turns 200
//! turns --config turns.toml --listen 10.77.0.4:7500 --qps 4
//! ```
//! Prints `LISTENING` when it listens, one `RESULT turns ok …` line for each connection, and what was left behind.

mod params;
mod stream;

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Parser;
use dataplane::verbs::{Node, NodeOptions};
use dataplane::worker::Clock;
use iwarp_config::Config;
use rdma::verbs::{AsyncEvent, CmEvent, CmEventKind, CmId, ConnParam, Limits, WorkCompletion};
use tcp_stack::Instant;

use params::Params;
use stream::Stream;

/// How long connections that have ended may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the peer may overlook our first message before it is given a nudge.
const POKE_AFTER: Duration = Duration::from_millis(100);
/// Completions taken at a time.
const COMPLETIONS: usize = 32;

/// Takes turns with a peer.
#[derive(Debug, Parser)]
struct Args {
    /// The configuration of the port, in the daemon's format.
    #[arg(long)]
    config: PathBuf,
    /// Connect to this address.
    #[arg(long, conflicts_with = "listen", required_unless_present = "listen")]
    connect: Option<SocketAddr>,
    /// Listen at this address.
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Connections.
    #[arg(long, default_value_t = 1)]
    qps: u16,
    /// Exchanges at a time on each; connecting.
    #[arg(long, default_value_t = 4)]
    slots: u16,
    /// Turns of each slot, an even number; connecting.
    #[arg(long, default_value_t = 64)]
    turns: u32,
    /// The longest Read, Write and Send; connecting.
    #[arg(long, default_value_t = 65536)]
    bytes: u32,
    /// Of all that is drawn; connecting.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The peer's Reads at a time.
    #[arg(long, default_value_t = 16)]
    ird: u16,
    /// Reads at a time.
    #[arg(long, default_value_t = 16)]
    ord: u16,
    /// MPA's revision; connecting.
    #[arg(long, default_value_t = 2)]
    revision: u8,
    /// End with a Write to an STag that was invalidated, which must be refused; connecting.
    #[arg(long)]
    trespass: bool,
    /// Seconds that may pass without a completion or event.
    #[arg(long, default_value_t = 30)]
    timeout: u64,
}

impl Args {
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

/// The connections, and what is left of them.
struct Program {
    streams: Vec<Stream>,
    /// Connections still to come to an end.
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
            let device = node.verbs_mut().device_mut();
            let id = device.create_id(Some(local))?;
            device.listen(id, NonZeroU16::new(args.qps).context("--qps 0")?, &param)?;
            println!("LISTENING");
            return Ok(program);
        }
        let params = args.params()?;
        for _ in 0..args.qps {
            let id = node.verbs_mut().device_mut().create_id(None)?;
            let stream = Stream::new(node, id, params, true)?;
            let (qp, peer) = (stream.qp, args.connect.context("--connect")?);
            program.streams.push(stream);
            let private_data = &params.encode();
            node.verbs_mut().device_mut().connect(id, qp, peer, &ConnParam { private_data, ..param })?;
        }
        Ok(program)
    }

    /// What there is to do between two rounds.
    fn poll_once(&mut self, node: &mut Node) -> Result<bool> {
        let now = node.now();
        while let Some(event) = node.verbs_mut().device_mut().poll_async_event() {
            self.on_async(event)?;
        }
        let mut taken = [WorkCompletion::default(); COMPLETIONS];
        for stream in &mut self.streams {
            let count = node
                .verbs_mut()
                .device_mut()
                .poll_cq(stream.cq, &mut taken)
                .map_err(|error| anyhow!("{error:?}"))?;
            for wc in taken.iter().take(count) {
                self.moved = now;
                stream.completed(node.verbs_mut(), wc)?;
            }
            stream.end_if_done(node.verbs_mut(), now)?;
        }
        while let Some(event) = node.verbs_mut().device_mut().poll_cm_event() {
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
                node.verbs_mut().device_mut().accept(id, stream.qp, b"")?;
                self.streams.push(stream);
            }
            CmEventKind::Established { .. } => self.stream(id)?.established(node.verbs_mut())?,
            CmEventKind::Disconnected => {
                // What it brought before it ended is waiting.
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
        while let Ok(count @ 1..) = node.verbs_mut().device_mut().poll_cq(stream.cq, &mut taken) {
            for wc in taken.iter().take(count) {
                stream.completed(node.verbs_mut(), wc)?;
            }
            stream.end_if_done(node.verbs_mut(), now)?;
        }
        Ok(())
    }

    fn stream(&mut self, id: CmId) -> Result<&mut Stream> {
        self.streams.iter_mut().find(|stream| stream.id == id).context("an event of no connection of ours")
    }

    /// Takes everything down, and says what was done and what is left.
    fn finish(self, node: &mut Node, begun: Instant) -> Result<()> {
        ensure!(self.streams.iter().all(Stream::is_over), "a connection is left");
        let ms = (node.now() - begun).as_millis();
        ensure!(node.finish(CLOSE_TIMEOUT), "a connection was not closed in good order");
        for stream in self.streams {
            let (id, counts) = (stream.id, stream.destroy(node.verbs_mut())?);
            node.verbs_mut().device_mut().destroy_id(id)?;
            println!(
                "RESULT turns ok sends={} writes={} reads={} invalidated={} solicited={} bytes={} ms={ms}",
                counts.sends, counts.writes, counts.reads, counts.invalidated, counts.solicited, counts.bytes
            );
        }
        let (stags, connections) = (node.verbs().stags(), node.verbs().connections());
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
    options.endpoint.poke_after = Some(POKE_AFTER);
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
        // The peer is to learn of it before the port goes.
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
