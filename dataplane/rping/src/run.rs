//! Runs the client, the server or a region command, until it or a signal ends it. `main` calls [`run`].

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use dataplane::dpdk::RegisteredThread;
use dataplane::verbs::{Node, NodeOptions};
use iwarp_config::Config;
use iwarp_engine::Clock;
use iwarp_remote::{Get, Ping, Put, Remote};
use iwarp_rping::{Application, Client, ClientPlan, Error, Server, ServerPlan, Stats, Summary, Verbosity};
use iwarp_terminal::Output;
use rdma::verbs::ConnParam;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::host::Host;
use crate::region::NodeConnector;
use iwarp_rping::args::{Args, Mpa, Over, Region, With};

/// Longest wait for the peer's close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Default sizes: bytes of a client's text, and of the longest text that a server accepts.
const CLIENT_SIZE: u32 = 64;
const SERVER_SIZE: u32 = 1 << 20;

/// Result of the program, printed at its end.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    summary: Summary,
    /// Number of failed connections.
    failed: u64,
    /// Error that ended the program early.
    error: Option<String>,
}

/// Runs the command to its end.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let (command, over) = match args.region {
        None => return run_rping(&args),
        Some(Region::Put(With { what, over })) => (Remote::Put(what), over),
        Some(Region::Get(With { what, over })) => (Remote::Get(what), over),
        Some(Region::Ping(With { what, over })) => (Remote::Ping(what), over),
    };
    let stop = interrupts()?;
    match over.port_args.config() {
        Ok(config) => reach_region(&command, &over, &config, &stop),
        Err(message) => Ok(misconfigured(&message)),
    }
}

/// Catches the signals that end the program.
fn interrupts() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // A second signal ends the program at once.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("cannot catch signals")?;
    }
    Ok(stop)
}

fn misconfigured(message: &str) -> ExitCode {
    eprint!("{message}");
    ExitCode::from(2)
}

/// Opens a node and binds it to this thread.
fn node(config: &Config, options: &NodeOptions) -> Result<(Option<RegisteredThread>, Node)> {
    let eal = Node::start_dpdk(&[config])?;
    let mut node = Node::open(&eal, config, options, &Clock::start())?;
    Ok((node.enter()?, node))
}

/// Runs `put`, `get` or `ping`.
fn reach_region(command: &Remote, over: &Over, config: &Config, stop: &AtomicBool) -> Result<ExitCode> {
    let (Remote::Put(Put { connect, .. })
    | Remote::Get(Get { connect, .. })
    | Remote::Ping(Ping { connect, .. })) = command;
    let mut options = NodeOptions::new(config);
    options.endpoint.mpa.crc = connect.crc;
    let (_thread, mut node) = node(config, &options)?;
    let output = if over.json { Output::json() } else { Output::plain() };
    let mut connector = NodeConnector::new(&mut node, stop);
    let outcome = iwarp_remote::run(&mut connector, command, over.timeout, &output);
    // No wait for the close of a failed connection.
    let close_timeout = if outcome.is_ok() { CLOSE_TIMEOUT } else { Duration::ZERO };
    node.finish(close_timeout);
    Ok(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(output.fail(&failure).code()),
    })
}

/// Runs the client or the server, on a node or in a context of the daemon.
fn run_rping(args: &Args) -> Result<ExitCode> {
    let stop = interrupts()?;
    if let Some(socket) = &args.daemon {
        return run_on(&mut Application::open(socket)?, args, &stop);
    }
    let config = match args.port_args.config() {
        Ok(config) => config,
        Err(message) => return Ok(misconfigured(&message)),
    };
    let (_thread, mut node) = node(&config, &options(&config, &args.mpa))?;
    run_on(&mut node, args, &stop)
}

fn run_on(host: &mut impl Host, args: &Args, stop: &AtomicBool) -> Result<ExitCode> {
    let endpoint = args.endpoint().map_err(|error| anyhow!(error))?;
    let verbosity = Verbosity { progress: !args.json, texts: args.verbose, events: args.debug };
    let param = ConnParam {
        responder_resources: args.mpa.ird,
        initiator_depth: args.mpa.ord,
        revision: args.mpa.mpa_revision,
        rtr: args.mpa.rtr(),
        ..ConnParam::default()
    };
    let report = if args.server {
        serve(host, args, endpoint, &param, stop, verbosity)
    } else {
        ping(host, args, endpoint, &param, stop, verbosity)
    }?;
    host.finish(CLOSE_TIMEOUT);
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        verbosity.print(format_args!("{}", report.summary));
    }
    if let Some(error) = &report.error {
        verbosity.print(format_args!("iwarp-rping: {error}"));
    }
    Ok(if report.error.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn options(config: &Config, mpa: &Mpa) -> NodeOptions {
    let mut options = NodeOptions::new(config);
    let negotiation = &mut options.endpoint.mpa;
    negotiation.markers |= mpa.markers;
    negotiation.ird_max = negotiation.ird_max.max(mpa.ird);
    negotiation.ord_max = negotiation.ord_max.max(mpa.ord);
    if let Some(crc) = mpa.crc {
        options.endpoint.mpa.crc = crc;
    }
    options
}

fn ping(
    host: &mut impl Host,
    args: &Args,
    peer: SocketAddr,
    param: &ConnParam<'_>,
    stop: &AtomicBool,
    verbosity: Verbosity,
) -> Result<Report> {
    let size = args.size.unwrap_or(CLIENT_SIZE);
    let plan = ClientPlan {
        local: args.source.map(|source| SocketAddr::new(source, 0)),
        peer,
        count: args.count,
        size,
        validate: args.validate,
        timeout: args.timeout,
    };
    let (memory, now) = (host.memory(size)?, host.now());
    let mut client = Client::new(host.verbs(), plan, param, memory, now, verbosity)?;
    let outcome = host.run(|host| {
        let now = host.now();
        if stop.load(Ordering::Relaxed) {
            client.stop(host.verbs(), now);
        }
        client.poll(host.verbs(), now).map_or(ControlFlow::Continue(()), ControlFlow::Break)
    })?;
    let stats = client.stats.clone();
    client.destroy(host.verbs())?;
    let error = match outcome {
        Err(error) => Some(format!("{peer}: {error}")),
        Ok(()) if stats.rounds < args.count => {
            Some(format!("interrupted after {} of {} rounds", stats.rounds, args.count))
        }
        Ok(()) => None,
    };
    Ok(report("client", &stats, u64::from(error.is_some()), error))
}

fn serve(
    host: &mut impl Host,
    args: &Args,
    local: SocketAddr,
    param: &ConnParam<'_>,
    stop: &AtomicBool,
    verbosity: Verbosity,
) -> Result<Report> {
    let plan =
        ServerPlan { local, persistent: args.persistent, validate: args.validate, timeout: args.timeout };
    let (size, clients) = (args.size.unwrap_or(SERVER_SIZE), if args.persistent { args.clients } else { 1 });
    let memories = (0..clients).map(|_| host.memory(size)).collect::<Result<Vec<_>>>()?;
    let mut server = Server::new(host.verbs(), plan, param, memories, verbosity)?;
    let mut listening = false;
    let outcome: Result<(), Error> = host.run(|host| {
        let now = host.now();
        if stop.load(Ordering::Relaxed) {
            server.stop(host.verbs(), now);
        }
        let over = server.poll(host.verbs(), now);
        if over.is_none() && !listening && !host.has_request() {
            listening = true;
            // Scripts wait for this line.
            verbosity.print(format_args!("listening on {local}"));
        }
        over.map_or(ControlFlow::Continue(()), ControlFlow::Break)
    })?;
    let (stats, failed) = (server.stats.clone(), server.failed);
    server.destroy(host.verbs())?;
    // A persistent server has reported the errors of its clients already.
    Ok(report("server", &stats, failed, outcome.err().map(|error| error.to_string())))
}

fn report(role: &'static str, stats: &Stats, failed: u64, error: Option<String>) -> Report {
    Report { summary: stats.summary(role), failed, error }
}
