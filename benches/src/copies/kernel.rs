//! Kernel TCP over a veth pair: write() from a buffer, read() into one.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::{Options, REGION, RunResult};
use crate::clock::{softirq_cpu_time, thread_cpu_time};
use crate::hosts::prefaulted;
use crate::peers::{Host, SERVER, Veth, VethConfig};
use crate::{Gate, Stopwatch, on_two_cores};

/// Bytes of a write and of a read.
const MESSAGE: usize = 64 << 10;
const PORT: u16 = 7400;

/// Measures one run over the pair.
pub(super) fn measure(options: &Options, veth: &Veth) -> Result<RunResult> {
    let (client, server) = connection(veth, &options.congestion_control)?;
    let (gate, softirq) = (Gate::default(), softirq_cpu_time());
    let time = Duration::from_secs_f64(options.duration);
    let ((sent, client_cpu), (received, server_cpu, seconds)) = on_two_cores(
        options.cores,
        || Ok((send(client, &gate, time)?, thread_cpu_time())),
        || {
            let outcome = receive(server);
            gate.close();
            let (bytes, seconds) = outcome?;
            Ok((bytes, thread_cpu_time(), seconds))
        },
    )?;
    Ok(RunResult {
        delivered: received,
        copied: [sent, received],
        seconds,
        cpu: [client_cpu, server_cpu, softirq_cpu_time().saturating_sub(softirq)],
        idle: Duration::ZERO,
    })
}

/// Connects client and server. A socket stays in the namespace of the thread that made it.
fn connection(veth: &Veth, congestion_control: &str) -> Result<(TcpStream, TcpStream)> {
    let listener = on_host(veth, Host::Server, || Ok(TcpListener::bind((SERVER, PORT))?))?;
    let client = on_host(veth, Host::Client, || Ok(TcpStream::connect((SERVER, PORT))?))?;
    rustix::net::sockopt::set_tcp_congestion(&client, congestion_control)
        .with_context(|| format!("congestion control {congestion_control}"))?;
    let (server, _) = listener.accept()?;
    Ok((client, server))
}

fn on_host<T: Send>(veth: &Veth, host: Host, make: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let made = thread::scope(|scope| {
        let maker = scope.spawn(|| {
            veth.enter(host)?;
            make()
        });
        maker.join()
    });
    made.map_err(|_| anyhow!("a thread panicked"))?
}

/// Writes the buffer repeatedly; returns the bytes written.
fn send(mut to: TcpStream, gate: &Gate, time: Duration) -> Result<u64> {
    let source = prefaulted(REGION);
    let (watch, mut bytes) = (Stopwatch::start(), 0);
    for message in source.chunks_exact(MESSAGE).cycle() {
        if watch.elapsed() >= time || !gate.is_open() {
            break;
        }
        to.write_all(message)?;
        bytes += message.len() as u64;
    }
    Ok(bytes)
}

/// Reads into the buffer until the end; returns the bytes, and the seconds from the first to the last.
fn receive(mut from: TcpStream) -> Result<(u64, f64)> {
    let mut region = prefaulted(REGION);
    let (mut bytes, mut watch) = (0, None);
    loop {
        for message in region.chunks_exact_mut(MESSAGE) {
            let taken = from.read(message)?;
            let watch = watch.get_or_insert_with(Stopwatch::start);
            if taken == 0 {
                return Ok((bytes, watch.seconds()));
            }
            bytes += taken as u64;
        }
    }
}

/// Makes a veth pair and measures all runs over it.
pub(super) fn measure_over(options: &Options, wire: VethConfig) -> Result<Vec<RunResult>> {
    let veth = Veth::new(wire)?;
    (0..options.runs).map(|_| measure(options, &veth)).collect()
}
