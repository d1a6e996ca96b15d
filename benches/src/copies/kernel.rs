//! The kernel's TCP: write() from a buffer, read() into one.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::{Moved, Options, REGION};
use crate::pair::touched;
use crate::peers::{FAR, Side, Veth, Wire};
use crate::{Gate, Stopwatch, cpu, on_two_cores};

/// Bytes of a write and of a read.
const MESSAGE: usize = 64 << 10;
const PORT: u16 = 7400;

/// Moves bytes for as long as asked.
pub(super) fn measure(options: &Options, veth: &Veth) -> Result<Moved> {
    let (client, server) = connection(veth, &options.congestion_control)?;
    let (gate, softirq) = (Gate::default(), cpu::softirq_threads());
    let time = Duration::from_secs_f64(options.duration);
    let ((sent, near_cpu), (received, far_cpu, seconds)) = on_two_cores(
        options.cores,
        || Ok((send(client, &gate, time)?, cpu::thread())),
        || {
            let outcome = receive(server);
            gate.close();
            let (bytes, seconds) = outcome?;
            Ok((bytes, cpu::thread(), seconds))
        },
    )?;
    Ok(Moved {
        delivered: received,
        copied: [sent, received],
        seconds,
        cpu: [near_cpu, far_cpu, cpu::softirq_threads().saturating_sub(softirq)],
        idle: Duration::ZERO,
    })
}

/// A connection from the near to the far end. A socket stays in the namespace of the thread that made it.
fn connection(veth: &Veth, congestion_control: &str) -> Result<(TcpStream, TcpStream)> {
    let listener = on_side(veth, Side::Far, || Ok(TcpListener::bind((FAR, PORT))?))?;
    let client = on_side(veth, Side::Near, || Ok(TcpStream::connect((FAR, PORT))?))?;
    rustix::net::sockopt::set_tcp_congestion(&client, congestion_control)
        .with_context(|| format!("congestion control {congestion_control}"))?;
    let (server, _) = listener.accept()?;
    Ok((client, server))
}

fn on_side<T: Send>(veth: &Veth, side: Side, make: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let made = thread::scope(|scope| {
        let maker = scope.spawn(|| {
            veth.enter(side)?;
            make()
        });
        maker.join()
    });
    made.map_err(|_| anyhow!("a thread panicked"))?
}

/// Writes the buffer over and over; the bytes that were taken.
fn send(mut to: TcpStream, gate: &Gate, time: Duration) -> Result<u64> {
    let source = touched(REGION);
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

/// Reads into the buffer until the end; the bytes, and the seconds from the first of them to the last.
fn receive(mut from: TcpStream) -> Result<(u64, f64)> {
    let mut region = touched(REGION);
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

/// Opens a pair of the kind and measures over it as often as asked.
pub(super) fn measure_over(options: &Options, wire: Wire) -> Result<Vec<Moved>> {
    let veth = Veth::new(wire)?;
    (0..options.runs).map(|_| measure(options, &veth)).collect()
}
