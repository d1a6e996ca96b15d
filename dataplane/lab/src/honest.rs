//! Honest clients at a steady rate: each opens, has some bytes echoed, closes, and is counted.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, timeout};

use crate::clients::{connect, many_files};

/// Bytes sent to the echo service per client.
const BYTES: usize = 1000;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Addresses of the server, used in rotation
    #[arg(required = true)]
    hosts: Vec<IpAddr>,
    /// TCP port of the echo service
    #[arg(long, default_value_t = 7)]
    port: u16,
    /// Clients started per second
    #[arg(long, default_value_t = 200)]
    rate: u32,
    /// Time during which clients are started
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Time limit of a client, from its SYN to its end
    #[arg(long, default_value_t = 5000)]
    limit_ms: u64,
}

/// Number of successful clients, and their connect times.
pub(crate) async fn run(options: Options) -> Result<Value> {
    many_files()?;
    let all = (options.rate * options.seconds) as usize;
    let mut clients = JoinSet::new();
    let mut ticks = interval(Duration::from_secs(1) / options.rate.max(1));
    for (k, host) in options.hosts.iter().copied().cycle().take(all).enumerate() {
        ticks.tick().await;
        let limit = Duration::from_millis(options.limit_ms);
        let port = options.port;
        clients.spawn(async move { timeout(limit, one(host, port, k)).await.context("too slow").flatten() });
    }
    let (mut connect_ms, mut failures) = (Vec::new(), BTreeMap::<String, u32>::new());
    for result in clients.join_all().await {
        match result {
            Ok(connected) => connect_ms.push(connected.as_secs_f64() * 1e3),
            Err(error) => *failures.entry(error.root_cause().to_string()).or_default() += 1,
        }
    }
    connect_ms.sort_by(f64::total_cmp);
    let at = |share: f64| {
        // The index of a percentile in a short list.
        let position = (connect_ms.len().saturating_sub(1) as f64 * share).round();
        connect_ms.iter().zip(0_u32..).find(|(_, k)| f64::from(*k) >= position).map(|(ms, _)| *ms)
    };
    Ok(json!({
        "clients": all,
        "succeeded": connect_ms.len(),
        "failures": failures,
        "connect_ms": { "p50": at(0.5), "p99": at(0.99), "max": at(1.0) },
    }))
}

/// Runs one client and returns its connect time.
async fn one(host: IpAddr, port: u16, k: usize) -> Result<Duration> {
    let begin = Instant::now();
    let mut stream = connect(host, port, None).await?;
    let connected = begin.elapsed();
    let question: Vec<u8> = (0..BYTES).map(|at| (at * 7 + k).to_le_bytes()[0]).collect();
    stream.write_all(&question).await?;
    stream.shutdown().await?;
    let mut answer = Vec::with_capacity(BYTES);
    stream.read_to_end(&mut answer).await?;
    ensure!(answer == question, "the echo is not what was sent");
    Ok(connected)
}
