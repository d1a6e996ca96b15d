//! A node, and the client or server on it, until one of them, or a signal, ends.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use dataplane::dpdk::RegisteredThread;
use dataplane::verbs::{Node, NodeOptions};
use dataplane::worker::Clock;
use iwarp_config::Config;
use iwarp_remote::{Crc, Get, Ping, Put, Remote};
use iwarp_rping::{Client, ClientPlan, Fault, Place, Server, ServerPlan, Summary, Tally, Voice};
use iwarp_terminal::Output;
use rdma::CrcPolicy;
use rdma::verbs::ConnParam;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::args::{Args, Mpa, Over, Region, With};
use crate::region::NodeConnector;

/// How long a peer may overlook our first message before it is given a nudge.
const POKE_AFTER: Duration = Duration::from_millis(100);
/// How long the peer may take to close too.
const FAREWELL: Duration = Duration::from_secs(2);
/// Bytes of a text that a client sends, and of the longest that a server takes, if nothing else is said.
const CLIENT_SIZE: u32 = 64;
const SERVER_SIZE: u32 = 1 << 20;

/// What a program ends with.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    summary: Summary,
    /// Connections that ended otherwise than well.
    failed: u64,
    /// Why the program did not come to its end.
    error: Option<String>,
}

/// Runs until the end.
pub(crate) fn run(args: Args, config: &Config) -> Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The second one ends the program at once.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("cannot catch signals")?;
    }
    let (command, over) = match args.region {
        None => return run_rping(&args, config, &stop),
        Some(Region::Put(With { what, over })) => (Remote::Put(what), over),
        Some(Region::Get(With { what, over })) => (Remote::Get(what), over),
        Some(Region::Ping(With { what, over })) => (Remote::Ping(what), over),
    };
    reach_region(&command, &over, config, &stop)
}

/// A node of this thread.
fn node(config: &Config, options: &NodeOptions) -> Result<(Option<RegisteredThread>, Node)> {
    let eal = Node::start_dpdk(&[config])?;
    let mut node = Node::open(&eal, config, options, &Clock::start())?;
    Ok((node.enter()?, node))
}

/// `put`, `get`, `ping`.
fn reach_region(command: &Remote, over: &Over, config: &Config, stop: &AtomicBool) -> Result<ExitCode> {
    let (Remote::Put(Put { connect, .. })
    | Remote::Get(Get { connect, .. })
    | Remote::Ping(Ping { connect, .. })) = command;
    let mut options = NodeOptions::new(config);
    options.endpoint.poke_after = Some(POKE_AFTER);
    options.endpoint.mpa.crc = policy(connect.crc);
    let (_thread, mut node) = node(config, &options)?;
    let output = if over.json { Output::json() } else { Output::plain() };
    let mut connector = NodeConnector { node: &mut node, stop };
    let outcome = iwarp_remote::run(&mut connector, command, over.timeout, &output);
    // A connection that has failed is not worth waiting for.
    let farewell = if outcome.is_ok() { FAREWELL } else { Duration::ZERO };
    node.finish(farewell);
    Ok(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(output.fail(&failure).code()),
    })
}

/// The client or the server.
fn run_rping(args: &Args, config: &Config, stop: &AtomicBool) -> Result<ExitCode> {
    let endpoint = args.endpoint().map_err(|error| anyhow!(error))?;
    let voice = Voice { speaks: !args.json, shows_texts: args.verbose, debugs: args.debug };
    let (_thread, mut node) = node(config, &options(config, &args.mpa))?;
    let param = ConnParam {
        responder_resources: args.mpa.ird,
        initiator_depth: args.mpa.ord,
        revision: args.mpa.mpa_revision,
        rtr: args.mpa.rtr(),
        ..ConnParam::default()
    };
    let report = if args.server {
        serve(&mut node, args, endpoint, &param, stop, voice)
    } else {
        ping(&mut node, args, endpoint, &param, stop, voice)
    }?;
    node.finish(FAREWELL);
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        voice.complain(format_args!("{}", report.summary));
    }
    if let Some(error) = &report.error {
        voice.complain(format_args!("iwarp-rping: {error}"));
    }
    Ok(if report.error.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn policy(crc: Crc) -> CrcPolicy {
    match crc {
        Crc::On => CrcPolicy::Required,
        Crc::Off => CrcPolicy::IfPeerAsks,
    }
}

fn options(config: &Config, mpa: &Mpa) -> NodeOptions {
    let mut options = NodeOptions::new(config);
    options.endpoint.poke_after = Some(POKE_AFTER);
    let negotiation = &mut options.endpoint.mpa;
    negotiation.markers |= mpa.markers;
    negotiation.ird_max = negotiation.ird_max.max(mpa.ird);
    negotiation.ord_max = negotiation.ord_max.max(mpa.ord);
    if let Some(crc) = mpa.crc {
        options.endpoint.mpa.crc = policy(crc);
    }
    options
}

fn place(node: &mut Node, size: u32) -> Result<Place> {
    let (region, _) = node.add_region("rping", Place::bytes(size)).context("no memory for texts")?;
    Ok(Place { region, size })
}

fn ping(
    node: &mut Node,
    args: &Args,
    peer: SocketAddr,
    param: &ConnParam<'_>,
    stop: &AtomicBool,
    voice: Voice,
) -> Result<Report> {
    let size = args.size.unwrap_or(CLIENT_SIZE);
    let plan = ClientPlan {
        local: args.source.map(|source| SocketAddr::new(source, 0)),
        peer,
        count: args.count,
        size,
        validate: args.validate,
        patience: args.timeout,
    };
    let (place, now) = (place(node, size)?, node.now());
    let mut client = Client::new(node.verbs_mut(), plan, param, place, now, voice)?;
    let outcome = node.run(|node| {
        let now = node.now();
        if stop.load(Ordering::Relaxed) {
            client.stop(node.verbs_mut(), now);
        }
        client.poll(node.verbs_mut(), now).map_or(ControlFlow::Continue(()), ControlFlow::Break)
    });
    let tally = client.tally.clone();
    client.destroy(node.verbs_mut())?;
    let error = match outcome {
        Err(fault) => Some(format!("{peer}: {fault}")),
        Ok(()) if tally.rounds < args.count => {
            Some(format!("interrupted after {} of {} rounds", tally.rounds, args.count))
        }
        Ok(()) => None,
    };
    Ok(report("client", &tally, u64::from(error.is_some()), error))
}

fn serve(
    node: &mut Node,
    args: &Args,
    local: SocketAddr,
    param: &ConnParam<'_>,
    stop: &AtomicBool,
    voice: Voice,
) -> Result<Report> {
    let plan =
        ServerPlan { local, persistent: args.persistent, validate: args.validate, patience: args.timeout };
    let (size, clients) = (args.size.unwrap_or(SERVER_SIZE), if args.persistent { args.clients } else { 1 });
    let places = (0..clients).map(|_| place(node, size)).collect::<Result<Vec<_>>>()?;
    let mut server = Server::new(node.verbs_mut(), plan, param, places, voice)?;
    let mut listening = false;
    let outcome: Result<(), Fault> = node.run(|node| {
        let now = node.now();
        if stop.load(Ordering::Relaxed) {
            server.stop(node.verbs_mut(), now);
        }
        let over = server.poll(node.verbs_mut(), now);
        if over.is_none() && !listening && !node.verbs().device().has_request() {
            listening = true;
            // What a script waits for.
            voice.complain(format_args!("listening on {local}"));
        }
        over.map_or(ControlFlow::Continue(()), ControlFlow::Break)
    });
    let (tally, failed) = (server.tally.clone(), server.failed);
    server.destroy(node.verbs_mut())?;
    // A server that goes on has told of each of its clients.
    Ok(report("server", &tally, failed, outcome.err().map(|fault| fault.to_string())))
}

fn report(role: &'static str, tally: &Tally, failed: u64, error: Option<String>) -> Report {
    Report { summary: tally.summary(role), failed, error }
}
