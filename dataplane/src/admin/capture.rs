//! Captures of frames for a client of the control socket: one at a time, on one port or on all.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use iwarp_control::{CaptureMethod, CaptureStart, Capturing, ErrorKind, ErrorObject, params};
use iwarp_engine::Clock;
use serde_json::Value;
use tokio::sync::mpsc::{self, Sender};
use tokio::time::MissedTickBehavior;

use super::{ControlHandler, WorkerHandle, report};
use crate::capture::{TapReader, pcapng, tap};
use crate::control::{Peer, Reply};
use crate::worker::Command;

/// Interval at which the rings of a capture are read.
const READ_INTERVAL: Duration = Duration::from_millis(5);
/// Reads between two reports of the number of dropped frames: a second.
const READS_PER_REPORT: u64 = 200;
/// Chunks that wait for the client.
const CHUNKS_WAITING: usize = 4;
/// Most bytes of a chunk, but for the last frame in it.
const CHUNK_BYTES: usize = 1 << 20;

/// A capture that runs.
#[derive(Debug)]
struct Running {
    workers: Rc<Vec<WorkerHandle>>,
    /// Ports by the number of their interface in the file, with the readers of all workers.
    ports: Vec<(usize, Vec<TapReader>)>,
    clock: Clock,
    /// Time since 1970 at which the clock was zero.
    epoch_ns: u64,
    bytes_per_read: usize,
    /// Frames seen and dropped of each port, as last reported.
    reported: Vec<(u64, u64)>,
}

/// Marks that a capture runs, until it is dropped.
#[derive(Debug)]
struct Busy(Rc<Cell<bool>>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl ControlHandler {
    /// Begins a capture, which ends with the client's connection.
    pub(super) async fn capture(&self, peer: &Peer, given: Value) -> Result<Reply, ErrorObject> {
        let asked = params::<CaptureMethod>(given)?;
        check(&asked)?;
        let conn = self.ends_of(asked.conn).await?;
        if self.capturing.replace(true) {
            return Err(ErrorObject::new(ErrorKind::InUse, "another capture runs")
                .with_help("end it first: one client captures at a time"));
        }
        let busy = Busy(Rc::clone(&self.capturing));
        let ports = self.ports_of(asked.port.as_deref(), conn.map(|(port, _)| port))?;
        let mut header = Vec::new();
        pcapng::section(&mut header);
        ports.iter().for_each(|(_, name)| pcapng::interface(&mut header, name, asked.snap_bytes));
        let wall_ns = u64::try_from(self.clock.wall().as_nanos()).unwrap_or(u64::MAX);
        let mut running = Running {
            workers: Rc::clone(&self.workers),
            ports: Vec::new(),
            clock: self.clock.clone(),
            epoch_ns: wall_ns.saturating_sub(self.clock.now().as_nanos()),
            bytes_per_read: per_read(asked.bytes_per_s_max),
            reported: vec![(0, 0); ports.len()],
        };
        for (port, _) in &ports {
            let taps = ports.len().saturating_mul(self.workers.len()).max(1);
            running.begin(*port, &asked, conn.map(|(_, ends)| ends), taps).await?;
        }
        let (sender, stream) = mpsc::channel(CHUNKS_WAITING);
        // The channel is empty.
        let _ = sender.try_send(header.into());
        let names: Vec<String> = ports.into_iter().map(|(_, name)| name).collect();
        tracing::info!(ports = names.join(","), pid = peer.pid, uid = peer.uid, "capture begins");
        tokio::task::spawn_local(async move {
            running.run(&sender).await;
            drop(busy);
            tracing::info!("capture ends");
        });
        Ok(Reply::new(Capturing { ports: names }).with_stream(stream))
    }

    /// Returns port and ends of a connection.
    async fn ends_of(
        &self,
        conn: Option<u64>,
    ) -> Result<Option<(usize, (SocketAddr, SocketAddr))>, ErrorObject> {
        let Some(id) = conn else { return Ok(None) };
        let info = report::conn(&self.workers, &self.names().await, self.clock.now(), id).await?;
        Ok(Some((report::unpack(id).port, (info.local, info.remote))))
    }

    /// Returns index and name of the ports to capture: the port of the connection, the named one, or all.
    fn ports_of(
        &self,
        name: Option<&str>,
        of_conn: Option<usize>,
    ) -> Result<Vec<(usize, String)>, ErrorObject> {
        let ports = self.ports.borrow();
        let all = ports.iter().enumerate().map(|(index, entry)| (index, entry.spec.name.clone()));
        let chosen: Vec<(usize, String)> = all
            .filter(|(index, port)| {
                name.is_none_or(|name| name == port) && of_conn.is_none_or(|conn| conn == *index)
            })
            .collect();
        match (chosen.is_empty(), name) {
            (true, Some(name)) => Err(ErrorObject::new(
                ErrorKind::NoSuchObject,
                format!("there is no port `{name}`, or the connection is on another one"),
            )
            .with_help("`iwarpctl port list` shows those there are")),
            _ => Ok(chosen),
        }
    }
}

/// Checks the numbers of a request.
fn check(asked: &CaptureStart) -> Result<(), ErrorObject> {
    let bounds = [
        ("snap_bytes", u64::from(asked.snap_bytes), 14..=65_535),
        ("buffer_bytes", asked.buffer_bytes, 65_536..=64 << 20),
        ("bytes_per_s_max", asked.bytes_per_s_max, 65_536..=1 << 30),
    ];
    let wrong = bounds.into_iter().find(|(_, value, range)| !range.contains(value));
    wrong.map_or(Ok(()), |(name, value, range)| {
        let message = format!("{name}: {value} is out of range: {} to {}", range.start(), range.end());
        Err(ErrorObject::new(ErrorKind::InvalidParams, message))
    })
}

/// Returns the bytes that may be read at a time.
fn per_read(bytes_per_s: u64) -> usize {
    let bytes = u128::from(bytes_per_s).saturating_mul(READ_INTERVAL.as_millis()) / 1000;
    usize::try_from(bytes).unwrap_or(CHUNK_BYTES).clamp(1, CHUNK_BYTES)
}

impl Running {
    /// Begins the capture of a port on every worker, with a share of the memory for each.
    async fn begin(
        &mut self,
        port: usize,
        asked: &CaptureStart,
        conn: Option<(SocketAddr, SocketAddr)>,
        taps: usize,
    ) -> Result<(), ErrorObject> {
        let bytes = usize::try_from(asked.buffer_bytes).unwrap_or(usize::MAX) / taps;
        let snap_bytes = usize::try_from(asked.snap_bytes).unwrap_or(usize::MAX);
        let mut readers = Vec::new();
        for handle in self.workers.iter() {
            let (tap, reader) = tap(asked.filter.clone(), conn, snap_bytes, bytes);
            handle.ask(|reply| Command::Capture { port, tap: Some(tap), reply }).await?;
            readers.push(reader);
        }
        self.ports.push((port, readers));
        Ok(())
    }

    /// Passes frames on until the client has gone, and ends the capture.
    async fn run(mut self, client: &Sender<Arc<[u8]>>) {
        let mut interval = tokio::time::interval(READ_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
        for read in 1_u64.. {
            tokio::select! {
                _ = interval.tick() => {}
                () = client.closed() => break,
            }
            // While the client does not read, frames stay in the rings, and are dropped and counted there.
            let Ok(place) = client.try_reserve() else { continue };
            let mut chunk = Vec::new();
            for ((_, readers), interface) in self.ports.iter_mut().zip(0..) {
                for reader in readers {
                    reader.read(&mut chunk, interface, self.epoch_ns, self.bytes_per_read);
                }
            }
            if read.is_multiple_of(READS_PER_REPORT) {
                self.report(&mut chunk);
            }
            if !chunk.is_empty() {
                place.send(chunk.into());
            }
        }
        for handle in self.workers.iter() {
            for (port, _) in &self.ports {
                // Fails if the worker has ended. The memory is freed here, not by the worker.
                drop(handle.ask(|reply| Command::Capture { port: *port, tap: None, reply }).await);
            }
        }
    }

    /// Appends the numbers of frames seen and dropped, if they have changed.
    fn report(&mut self, chunk: &mut Vec<u8>) {
        let time_ns = self.epoch_ns.saturating_add(self.clock.now().as_nanos());
        for (((_, readers), reported), interface) in self.ports.iter().zip(&mut self.reported).zip(0..) {
            let sum = |(seen, dropped): (u64, u64), more: (u64, u64)| {
                (seen.saturating_add(more.0), dropped.saturating_add(more.1))
            };
            let now = readers.iter().map(TapReader::seen_and_dropped).fold((0, 0), sum);
            if std::mem::replace(reported, now) != now {
                pcapng::statistics(chunk, interface, time_ns, now);
            }
        }
    }
}
