//! Many connections at once: all open before any moves data, all move data at the same time, all are verified, all
//! close in good order.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Barrier, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::clients::{chargen_octet, connect, many_files};

/// Connections that are being opened at the same time, per service and host.
const OPENING: usize = 64;
/// Octets that a connection reads or writes at a time: so many connections share the processor.
const PIECE: usize = 16 << 10;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Where
    #[arg(required = true)]
    hosts: Vec<IpAddr>,
    /// Connections to each service of each host
    #[arg(long, default_value_t = 1000)]
    each: usize,
    /// Octets that each connection moves, at least, in each direction that its service has
    #[arg(long, default_value_t = 64 << 10)]
    octets: usize,
    /// How long all of them stay open before they move data, milliseconds
    #[arg(long, default_value_t = 500)]
    hold_ms: u64,
    /// What all of it may take
    #[arg(long, default_value_t = 50)]
    limit_s: u64,
}

#[derive(Clone, Copy)]
enum Service {
    Echo,
    Discard,
    Chargen,
}

const SERVICES: [(&str, u16, Service); 3] =
    [("echo", 7, Service::Echo), ("discard", 9, Service::Discard), ("chargen", 19, Service::Chargen)];

/// What the connections agree on.
struct Plan {
    octets: usize,
    hold: Duration,
    opened: Barrier,
    moved: Barrier,
}

/// How many connections of each kind did all that they should. Any failure is an error.
pub(crate) async fn run(options: Options) -> Result<Value> {
    many_files()?;
    let all = options.each * options.hosts.len() * SERVICES.len();
    let begin = Instant::now();
    let plan = Arc::new(Plan {
        octets: options.octets,
        hold: Duration::from_millis(options.hold_ms),
        opened: Barrier::new(all),
        moved: Barrier::new(all),
    });
    let mut tasks = JoinSet::new();
    for (name, port, service) in SERVICES {
        for host in options.hosts.iter().copied() {
            let opening = Arc::new(Semaphore::new(OPENING));
            for k in 0..options.each {
                let (plan, opening) = (Arc::clone(&plan), Arc::clone(&opening));
                tasks.spawn(async move {
                    let one = one(service, host, port, k, &plan, &opening).await;
                    one.with_context(|| format!("{name}, {host}, connection {k}"))
                });
            }
        }
    }
    let all_of_them = async {
        let (mut opened, mut moved, mut octets) = (Duration::ZERO, Duration::ZERO, 0);
        while let Some(result) = tasks.join_next().await {
            let one = result.context("a client failed")??;
            (opened, moved) = (opened.max(one.opened - begin), moved.max(one.moved - begin));
            octets += one.octets;
        }
        anyhow::Ok((opened, moved, octets))
    };
    let limit = Duration::from_secs(options.limit_s);
    let (opened, moved, octets) = timeout(limit, all_of_them).await.context("not done in time")??;
    let seconds = |it: Duration| (it.as_secs_f64() * 1e3).round() / 1e3;
    Ok(json!({
        "connections": all, "octets": octets, "opened_s": seconds(opened), "moved_s": seconds(moved),
        "closed_s": seconds(begin.elapsed()),
    }))
}

/// What one connection has done, and when.
struct Done {
    octets: u64,
    opened: Instant,
    moved: Instant,
}

async fn one(
    service: Service,
    host: IpAddr,
    port: u16,
    k: usize,
    plan: &Plan,
    opening: &Semaphore,
) -> Result<Done> {
    let mut stream = {
        let _turn = opening.acquire().await?;
        connect(host, port, None).await?
    };
    let opened = Instant::now();
    plan.opened.wait().await;
    tokio::time::sleep(plan.hold).await;
    let mut octets = match service {
        Service::Echo => echo(&mut stream, k, plan.octets).await?,
        Service::Discard => discard(&mut stream, plan.octets).await?,
        Service::Chargen => chargen(&mut stream, 0, plan.octets as u64).await?,
    };
    let moved = Instant::now();
    plan.moved.wait().await;
    stream.shutdown().await?;
    // Chargen still sends what it had queued; the others are silent. Then each closes in good order.
    octets += match service {
        Service::Chargen => chargen(&mut stream, octets, u64::MAX).await?,
        Service::Echo | Service::Discard => {
            let more = stream.read(&mut [0; 1]).await?;
            ensure!(more == 0, "octets that nobody asked for");
            0
        }
    };
    Ok(Done { octets, opened, moved })
}

/// Sends so many octets and receives the same; how many went both ways.
async fn echo(stream: &mut TcpStream, k: usize, octets: usize) -> Result<u64> {
    let octet = |at: usize| (at.wrapping_mul(31) ^ (at >> 8) ^ k).to_le_bytes()[0];
    let (mut from, mut to) = stream.split();
    let talk = async {
        let mut at = 0;
        while at < octets {
            let piece: Vec<u8> = (at..octets.min(at + PIECE)).map(octet).collect();
            to.write_all(&piece).await?;
            at += piece.len();
        }
        anyhow::Ok(())
    };
    let listen = async {
        let (mut at, mut piece) = (0, vec![0; PIECE]);
        while at < octets {
            let read = from.read(&mut piece).await?;
            ensure!(read > 0, "closed after {at} octets");
            let right = piece.iter().take(read).enumerate().all(|(k, it)| *it == octet(at + k));
            ensure!(right, "the echo differs after {at} octets");
            at += read;
        }
        ensure!(at == octets, "more comes back than was sent");
        Ok(())
    };
    tokio::try_join!(talk, listen)?;
    Ok(octets as u64 * 2)
}

/// Sends so many octets.
async fn discard(stream: &mut TcpStream, octets: usize) -> Result<u64> {
    let piece = vec![b'x'; PIECE];
    let mut at = 0;
    while let Some(part) = piece.get(..PIECE.min(octets - at)).filter(|part| !part.is_empty()) {
        stream.write_all(part).await?;
        at += part.len();
    }
    Ok(at as u64)
}

/// Receives and compares at least so many octets of the pattern, or all that come; how many.
async fn chargen(stream: &mut TcpStream, from: u64, octets: u64) -> Result<u64> {
    let (mut read_octets, mut piece) = (0, vec![0; PIECE]);
    while read_octets < octets {
        let read = stream.read(&mut piece).await?;
        if read == 0 {
            ensure!(octets == u64::MAX, "closed after {read_octets} octets");
            break;
        }
        let mut positions = from + read_octets..;
        let right = piece.iter().take(read).zip(&mut positions).all(|(it, at)| *it == chargen_octet(at));
        ensure!(right, "the pattern differs after {} octets", from + read_octets);
        read_octets += read as u64;
    }
    Ok(read_octets)
}
