//! Many concurrent connections: all open before any moves data, all move data at the same time, all data is verified,
//! all close with FIN. `dataplane/tests/load.sh` runs it as `lab load`.

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

use crate::clients::{chargen_byte, connect, many_files};

/// Connections opened concurrently, per service and host.
const OPENING: usize = 64;
/// Bytes per read or write; small, because many connections share the processor.
const PIECE: usize = 16 << 10;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Addresses of the server
    #[arg(required = true)]
    hosts: Vec<IpAddr>,
    /// Connections to each service of each host
    #[arg(long, default_value_t = 1000)]
    each: usize,
    /// Bytes that each connection moves in each direction of its service; chargen may send more
    #[arg(long, default_value_t = 64 << 10)]
    bytes: usize,
    /// Time that all connections stay open before they move data, milliseconds
    #[arg(long, default_value_t = 500)]
    hold_ms: u64,
    /// Time limit of the whole run, in seconds
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

/// State shared by the connections.
struct Plan {
    bytes: usize,
    hold: Duration,
    opened: Barrier,
    moved: Barrier,
}

/// Runs all connections. Returns the connections, the bytes, and the times at which all were open, done and closed.
pub(crate) async fn run(options: Options) -> Result<Value> {
    many_files()?;
    let all = options.each * options.hosts.len() * SERVICES.len();
    let begin = Instant::now();
    let plan = Arc::new(Plan {
        bytes: options.bytes,
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
        let (mut opened, mut moved, mut bytes) = (Duration::ZERO, Duration::ZERO, 0);
        while let Some(result) = tasks.join_next().await {
            let one = result.context("a client failed")??;
            (opened, moved) = (opened.max(one.opened - begin), moved.max(one.moved - begin));
            bytes += one.bytes;
        }
        anyhow::Ok((opened, moved, bytes))
    };
    let limit = Duration::from_secs(options.limit_s);
    let (opened, moved, bytes) = timeout(limit, all_of_them).await.context("not done in time")??;
    let seconds = |time: Duration| (time.as_secs_f64() * 1e3).round() / 1e3;
    Ok(json!({
        "connections": all, "bytes": bytes, "opened_s": seconds(opened), "moved_s": seconds(moved),
        "closed_s": seconds(begin.elapsed()),
    }))
}

/// Result of one connection, with times.
struct Done {
    bytes: u64,
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
    let mut bytes = match service {
        Service::Echo => echo(&mut stream, k, plan.bytes).await?,
        Service::Discard => discard(&mut stream, plan.bytes).await?,
        Service::Chargen => chargen(&mut stream, 0, plan.bytes as u64).await?,
    };
    let moved = Instant::now();
    plan.moved.wait().await;
    stream.shutdown().await?;
    // Chargen still sends its queued bytes; echo and discard send no more. Then each connection closes with FIN.
    bytes += match service {
        Service::Chargen => chargen(&mut stream, bytes, u64::MAX).await?,
        Service::Echo | Service::Discard => {
            let more = stream.read(&mut [0; 1]).await?;
            ensure!(more == 0, "bytes that nobody asked for");
            0
        }
    };
    Ok(Done { bytes, opened, moved })
}

/// Sends `bytes` bytes and receives the same; returns the bytes of both directions.
async fn echo(stream: &mut TcpStream, k: usize, bytes: usize) -> Result<u64> {
    let byte = |at: usize| (at.wrapping_mul(31) ^ (at >> 8) ^ k).to_le_bytes()[0];
    let (mut from, mut to) = stream.split();
    let talk = async {
        let mut at = 0;
        while at < bytes {
            let piece: Vec<u8> = (at..bytes.min(at + PIECE)).map(byte).collect();
            to.write_all(&piece).await?;
            at += piece.len();
        }
        anyhow::Ok(())
    };
    let listen = async {
        let (mut at, mut piece) = (0, vec![0; PIECE]);
        while at < bytes {
            let read = from.read(&mut piece).await?;
            ensure!(read > 0, "closed after {at} bytes");
            let right = piece.iter().take(read).enumerate().all(|(k, found)| *found == byte(at + k));
            ensure!(right, "the echo differs after {at} bytes");
            at += read;
        }
        ensure!(at == bytes, "more comes back than was sent");
        Ok(())
    };
    tokio::try_join!(talk, listen)?;
    Ok(bytes as u64 * 2)
}

/// Sends a number of bytes.
async fn discard(stream: &mut TcpStream, bytes: usize) -> Result<u64> {
    let piece = vec![b'x'; PIECE];
    let mut at = 0;
    while let Some(part) = piece.get(..PIECE.min(bytes - at)).filter(|part| !part.is_empty()) {
        stream.write_all(part).await?;
        at += part.len();
    }
    Ok(at as u64)
}

/// Receives and compares bytes of the chargen pattern, or all until the end of the stream if `bytes` is `u64::MAX`.
/// Returns the bytes received.
async fn chargen(stream: &mut TcpStream, from: u64, bytes: u64) -> Result<u64> {
    let (mut read_bytes, mut piece) = (0, vec![0; PIECE]);
    while read_bytes < bytes {
        let read = stream.read(&mut piece).await?;
        if read == 0 {
            ensure!(bytes == u64::MAX, "closed after {read_bytes} bytes");
            break;
        }
        let mut positions = from + read_bytes..;
        let right = piece.iter().take(read).zip(&mut positions).all(|(found, at)| *found == chargen_byte(at));
        ensure!(right, "the pattern differs after {} bytes", from + read_bytes);
        read_bytes += read as u64;
    }
    Ok(read_bytes)
}
