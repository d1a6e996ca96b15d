//! Goodput: measures the bytes that bulk connections deliver in a fixed time, from their SYN on.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::clients::{PIECE, connect, use_congestion};
use crate::tcp_info::bytes_acked;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Address of the server of chargen and discard
    host: IpAddr,
    #[arg(long, value_enum)]
    direction: Direction,
    /// Number of concurrent connections
    #[arg(long, default_value_t = 1)]
    connections: u16,
    /// Local port of the first connection; the others use the following ports, by which a relay identifies them
    #[arg(long, default_value_t = 40_000)]
    first_port: u16,
    /// Duration of the measurement
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Congestion control of the kernel, if not its default
    #[arg(long)]
    congestion: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Direction {
    /// Receive from chargen; counts the bytes read
    Receive,
    /// Send to discard; counts the bytes acknowledged
    Send,
}

/// Returns the bytes delivered by each connection. A connection that ends early is an error.
pub(crate) async fn run(options: Options) -> Result<Value> {
    let end = Instant::now() + Duration::from_secs_f64(options.seconds);
    let (options, mut tasks) = (Arc::new(options), JoinSet::new());
    for k in 0..options.connections {
        let from = options.first_port.checked_add(k).context("no such port")?;
        let options = Arc::clone(&options);
        tasks.spawn(async move { one(&options, from, end).await.with_context(|| format!("port {from}")) });
    }
    let delivered: Vec<u64> = tasks.join_all().await.into_iter().collect::<Result<_>>()?;
    let sum: u64 = delivered.iter().sum();
    let mbit_s = |bytes: u64| bytes as f64 * 8.0 / 1e6 / options.seconds;
    let each: Vec<f64> = delivered.iter().map(|bytes| mbit_s(*bytes)).collect();
    Ok(json!({ "seconds": options.seconds, "bytes": sum, "mbit_s": mbit_s(sum), "each_mbit_s": each }))
}

async fn one(options: &Options, from: u16, end: Instant) -> Result<u64> {
    let port = if options.direction == Direction::Receive { 19 } else { 9 };
    let Ok(stream) = timeout_at(end, connect(options.host, port, Some(from))).await else { return Ok(0) };
    let mut stream = stream?;
    if let Some(congestion) = &options.congestion {
        use_congestion(&stream, congestion)?;
    }
    let delivered = match options.direction {
        Direction::Receive => receive(&mut stream, end).await?,
        Direction::Send => {
            if let Ok(ended) = timeout_at(end, send(&mut stream)).await {
                ended?;
            }
            // Without the SYN.
            bytes_acked(&stream)?.saturating_sub(1)
        }
    };
    // Closes with a RST at once, so that frames in flight do not disturb the next measurement.
    stream.set_zero_linger()?;
    Ok(delivered)
}

async fn receive(stream: &mut TcpStream, end: Instant) -> Result<u64> {
    let (mut piece, mut delivered) = (vec![0; PIECE], 0);
    while let Ok(read) = timeout_at(end, stream.read(&mut piece)).await {
        match read? {
            0 => anyhow::bail!("the peer has closed after {delivered} bytes"),
            bytes => delivered += bytes as u64,
        }
    }
    Ok(delivered)
}

async fn send(stream: &mut TcpStream) -> Result<()> {
    let piece = vec![b'x'; PIECE];
    loop {
        stream.write_all(&piece).await?;
    }
}
