//! The other process of a memif link: the program itself, started as the target.
//!
//! ```text
//!  initiator ── lines of JSON ──▶ target's standard input
//!            ◀── lines of JSON ── its standard output
//! ```
//! The pipes carry jobs, addresses of regions and results, but no payload. While a benchmark runs, each node sends
//! one line: that it has finished.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::clock::pause;
use crate::{Gate, Stopwatch};

/// Longest wait for the other process, seconds: it starts DPDK and touches its memory.
const TIMEOUT_S: f64 = 30.0;
/// Line that reports that a node has finished its part.
const FINISHED: &str = "finished";
/// Name of the hidden subcommand.
pub(super) const COMMAND: &str = "target";

type Pipe = Mutex<Box<dyn Write + Send>>;

/// Counts the nodes that have finished their part of a benchmark, and records a failure.
#[derive(Default)]
pub(super) struct Rendezvous {
    arrived: AtomicUsize,
    failed: Gate,
    /// Pipe to the node in the other process, if there is one.
    pipe: Option<Pipe>,
}

impl Rendezvous {
    /// Reports that this node has finished.
    ///
    /// # Errors
    /// The other process has exited.
    pub(super) fn arrive(&self) -> Result<()> {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        self.pipe.as_ref().map_or(Ok(()), |pipe| write_line(pipe, FINISHED))
    }

    /// Returns the number of nodes that have finished.
    #[inline]
    pub(super) fn arrived(&self) -> usize {
        self.arrived.load(Ordering::Acquire)
    }

    /// Runs a node's part, and records its failure: the other node would wait for ever.
    pub(super) fn guard<T>(&self, part: impl FnOnce() -> Result<T>) -> Result<T> {
        let result = part();
        if result.is_err() {
            self.failed.close();
        }
        result
    }

    /// Returns true if no node has failed.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.failed.is_open()
    }
}

fn write_line(pipe: &Pipe, line: &str) -> Result<()> {
    let mut pipe = pipe.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(pipe, "{line}").and_then(|()| pipe.flush()).context("the other process has exited")
}

/// The other process of a memif link, with a pipe in each direction.
pub(super) struct PeerProcess {
    rendezvous: Arc<Rendezvous>,
    lines: Receiver<String>,
    /// The target's process; `None` in that process itself.
    child: Option<Child>,
}

impl PeerProcess {
    /// Starts the target's process.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start() -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the target's process")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = input.zip(output).context("the target has no pipes")?;
        Ok(Self::over::<ChildStdin>(input, output, Some(child)))
    }

    /// Connects to the process that has started this one as its target.
    pub(super) fn parent() -> Self {
        Self::over(std::io::stdout(), std::io::stdin(), None)
    }

    fn over<W: Write + Send + 'static>(
        output: W,
        input: impl Read + Send + 'static,
        child: Option<Child>,
    ) -> Self {
        let pipe: Pipe = Mutex::new(Box::new(output));
        let rendezvous = Arc::new(Rendezvous { pipe: Some(pipe), ..Rendezvous::default() });
        let (sender, lines) = mpsc::channel();
        let reader = Arc::clone(&rendezvous);
        thread::spawn(move || {
            for line in BufReader::new(input).lines().map_while(Result::ok) {
                if line == FINISHED {
                    reader.arrived.fetch_add(1, Ordering::AcqRel);
                } else if sender.send(line).is_err() {
                    break;
                }
            }
            reader.failed.close();
        });
        Self { rendezvous, lines, child }
    }

    /// Sends a value to the other process.
    ///
    /// # Errors
    /// The process has exited.
    pub(super) fn send(&self, value: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(value)?;
        self.rendezvous.pipe.as_ref().map_or(Ok(()), |pipe| write_line(pipe, &line))
    }

    /// Waits for the next value of the other process; calls `meanwhile` until it arrives.
    ///
    /// # Errors
    /// The process has exited, sends a value of another type, or sends none for 30 s.
    pub(super) fn receive<T: DeserializeOwned>(&self, mut meanwhile: impl FnMut()) -> Result<T> {
        let watch = Stopwatch::start();
        while watch.seconds() < TIMEOUT_S {
            match self.lines.try_recv() {
                Ok(line) => return serde_json::from_str(&line).with_context(|| line.clone()),
                Err(TryRecvError::Disconnected) => bail!("the other process has exited"),
                Err(TryRecvError::Empty) => meanwhile(),
            }
        }
        bail!("the other process has sent nothing for {TIMEOUT_S} s")
    }

    /// Waits for the next value without a limit; returns `None` once the other process has closed its pipe.
    ///
    /// # Errors
    /// The process sends a value of another type.
    pub(super) fn receive_until_closed<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let line = self.lines.recv().ok();
        line.map(|line| serde_json::from_str(&line).with_context(|| line.clone())).transpose()
    }

    /// Waits until both processes have called this; returns a rendezvous at which no node has finished. One of them is
    /// `first`. Calls `meanwhile` until the other process has called this, but not once it may have continued.
    ///
    /// # Errors
    /// As for [`Self::receive`].
    pub(super) fn synchronize(&self, first: bool, meanwhile: impl FnMut()) -> Result<Arc<Rendezvous>> {
        // The other process reports that it has finished only after it has received the last line of this exchange.
        self.rendezvous.arrived.store(0, Ordering::Release);
        if first {
            self.send(&())?;
            self.receive::<()>(meanwhile)?;
            self.send(&())?;
        } else {
            self.receive::<()>(meanwhile)?;
            self.send(&())?;
            self.receive::<()>(thread::yield_now)?;
        }
        Ok(Arc::clone(&self.rendezvous))
    }
}

impl Drop for PeerProcess {
    /// Closes the pipe, upon which the target exits; kills it if it does not exit within 10 s. Reports how a target
    /// ended that failed: a signal leaves no message of its own.
    fn drop(&mut self) {
        if let (Some(pipe), Some(_)) = (&self.rendezvous.pipe, &self.child) {
            *pipe.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(std::io::sink());
        }
        let Some(child) = &mut self.child else { return };
        let watch = Stopwatch::start();
        while watch.seconds() < TIMEOUT_S / 3.0 {
            match child.try_wait() {
                Ok(Some(status)) => {
                    if !status.success() {
                        eprintln!("the target's process ended: {status}");
                    }
                    return;
                }
                Ok(None) => pause(Duration::from_millis(10)),
                Err(_) => break,
            }
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> [PeerProcess; 2] {
        let ((a, b), (c, d)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        [PeerProcess::over(a, c, None), PeerProcess::over(d, b, None)]
    }

    #[test]
    fn processes_exchange_values_and_synchronize_repeatedly() {
        let [near, mut far] = pair();
        for round in 0..3_u32 {
            near.send(&round).unwrap();
            assert_eq!(far.receive::<u32>(|| {}).unwrap(), round);
            let other = thread::spawn(move || {
                let rendezvous = far.synchronize(false, thread::yield_now).unwrap();
                (far, rendezvous)
            });
            let rendezvous = near.synchronize(true, thread::yield_now).unwrap();
            rendezvous.arrive().unwrap();
            let (back, other) = other.join().unwrap();
            far = back;
            other.arrive().unwrap();
            while near.rendezvous.arrived() < 2 || other.arrived() < 2 {
                thread::yield_now();
            }
        }
        near.send(&"words").unwrap();
        assert!(far.receive::<u32>(|| {}).is_err());
    }

    #[test]
    fn the_exit_of_the_other_process_is_detected() {
        let ((ours, theirs), (_unused, output)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let near = PeerProcess::over(output, ours, None);
        assert!(near.rendezvous.is_open());
        drop(theirs);
        assert_eq!(near.receive_until_closed::<u32>().unwrap(), None);
        while near.rendezvous.is_open() {
            thread::yield_now();
        }
        assert!(near.receive::<u32>(|| {}).is_err());
    }
}
