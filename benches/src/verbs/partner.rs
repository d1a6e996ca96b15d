//! The other process of a memif link: the program itself, started as the target.
//!
//! ```text
//!  initiator ── lines of JSON ──▶ target's standard input
//!            ◀── lines of JSON ── its standard output
//! ```
//! They carry what both are to do, where their regions are, and what the target has seen; no payload. While messages flow
//! there is one line each way: that an end has seen enough.

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

/// Seconds that the other process is waited for: it starts DPDK and touches its memory.
const PATIENCE: f64 = 30.0;
/// The line that says that an end has seen enough.
const ENOUGH: &str = "enough";
/// The name of the hidden subcommand.
pub(super) const COMMAND: &str = "target";

type Pipe = Mutex<Box<dyn Write + Send>>;

/// Where both ends learn that the other has seen enough, or has failed.
#[derive(Default)]
pub(super) struct Meeting {
    arrived: AtomicUsize,
    failed: Gate,
    /// To the end in the other process, if it is in one.
    pipe: Option<Pipe>,
}

impl Meeting {
    /// This end has seen enough.
    ///
    /// # Errors
    /// The other process is gone.
    pub(super) fn arrive(&self) -> Result<()> {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        self.pipe.as_ref().map_or(Ok(()), |pipe| write_line(pipe, ENOUGH))
    }

    /// Ends that have seen enough.
    #[inline]
    pub(super) fn arrived(&self) -> usize {
        self.arrived.load(Ordering::Acquire)
    }

    /// What an end does; the other is told when it fails, for it would wait.
    pub(super) fn guard<T>(&self, play: impl FnOnce() -> Result<T>) -> Result<T> {
        let outcome = play();
        if outcome.is_err() {
            self.failed.close();
        }
        outcome
    }

    /// Whether no end has failed.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.failed.is_open()
    }
}

fn write_line(pipe: &Pipe, line: &str) -> Result<()> {
    let mut pipe = pipe.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(pipe, "{line}").and_then(|()| pipe.flush()).context("the other process is gone")
}

/// The other process.
pub(super) struct Partner {
    meeting: Arc<Meeting>,
    lines: Receiver<String>,
    /// Of the initiator's: the target's process.
    child: Option<Child>,
}

impl Partner {
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

    /// The process that has started this one as its target.
    pub(super) fn parent() -> Self {
        Self::over(std::io::stdout(), std::io::stdin(), None)
    }

    fn over<W: Write + Send + 'static>(
        output: W,
        input: impl Read + Send + 'static,
        child: Option<Child>,
    ) -> Self {
        let pipe: Pipe = Mutex::new(Box::new(output));
        let meeting = Arc::new(Meeting { pipe: Some(pipe), ..Meeting::default() });
        let (told, lines) = mpsc::channel();
        let reader = Arc::clone(&meeting);
        thread::spawn(move || {
            for line in BufReader::new(input).lines().map_while(Result::ok) {
                if line == ENOUGH {
                    reader.arrived.fetch_add(1, Ordering::AcqRel);
                } else if told.send(line).is_err() {
                    break;
                }
            }
            reader.failed.close();
        });
        Self { meeting, lines, child }
    }

    /// Tells the other process something.
    ///
    /// # Errors
    /// It is gone.
    pub(super) fn tell(&self, what: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(what)?;
        self.meeting.pipe.as_ref().map_or(Ok(()), |pipe| write_line(pipe, &line))
    }

    /// What the other process tells next; `meanwhile` is called until it does.
    ///
    /// # Errors
    /// It is gone, says something else, or says nothing for too long.
    pub(super) fn hear<T: DeserializeOwned>(&self, mut meanwhile: impl FnMut()) -> Result<T> {
        let watch = Stopwatch::start();
        while watch.seconds() < PATIENCE {
            match self.lines.try_recv() {
                Ok(line) => return serde_json::from_str(&line).with_context(|| line.clone()),
                Err(TryRecvError::Disconnected) => bail!("the other process is gone"),
                Err(TryRecvError::Empty) => meanwhile(),
            }
        }
        bail!("the other process has said nothing for {PATIENCE} s")
    }

    /// What the other process tells next, however long that takes; `None` when it has nothing more to say.
    ///
    /// # Errors
    /// It says something else.
    pub(super) fn hear_at_last<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let line = self.lines.recv().ok();
        line.map(|line| serde_json::from_str(&line).with_context(|| line.clone())).transpose()
    }

    /// Where both meet next: both have come so far, and neither has seen enough. One of them is `first`; `meanwhile` is called
    /// until the other has come, and not when it may have begun already.
    ///
    /// # Errors
    /// As [`Self::hear`].
    pub(super) fn meet(&self, first: bool, meanwhile: impl FnMut()) -> Result<Arc<Meeting>> {
        // The other says that it has seen enough only after it has heard the last of this.
        self.meeting.arrived.store(0, Ordering::Release);
        if first {
            self.tell(&())?;
            self.hear::<()>(meanwhile)?;
            self.tell(&())?;
        } else {
            self.hear::<()>(meanwhile)?;
            self.tell(&())?;
            self.hear::<()>(thread::yield_now)?;
        }
        Ok(Arc::clone(&self.meeting))
    }
}

impl Drop for Partner {
    /// The target ends by itself when it reads no more orders; if it does not, it is ended.
    fn drop(&mut self) {
        if let (Some(pipe), Some(_)) = (&self.meeting.pipe, &self.child) {
            *pipe.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(std::io::sink());
        }
        let Some(child) = &mut self.child else { return };
        let watch = Stopwatch::start();
        while watch.seconds() < PATIENCE / 3.0 {
            match child.try_wait() {
                Ok(Some(_)) => return,
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

    fn pair() -> [Partner; 2] {
        let ((a, b), (c, d)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        [Partner::over(a, c, None), Partner::over(d, b, None)]
    }

    #[test]
    fn both_hear_each_other_and_meet_again_and_again() {
        let [near, mut far] = pair();
        for round in 0..3_u32 {
            near.tell(&round).unwrap();
            assert_eq!(far.hear::<u32>(|| {}).unwrap(), round);
            let other = thread::spawn(move || {
                let meeting = far.meet(false, thread::yield_now).unwrap();
                (far, meeting)
            });
            let meeting = near.meet(true, thread::yield_now).unwrap();
            meeting.arrive().unwrap();
            let (back, other) = other.join().unwrap();
            far = back;
            other.arrive().unwrap();
            while near.meeting.arrived() < 2 || other.arrived() < 2 {
                thread::yield_now();
            }
        }
        near.tell(&"words").unwrap();
        assert!(far.hear::<u32>(|| {}).is_err());
    }

    #[test]
    fn that_the_other_is_gone_is_noticed() {
        let ((ours, theirs), (_unused, output)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let near = Partner::over(output, ours, None);
        assert!(near.meeting.is_open());
        drop(theirs);
        assert_eq!(near.hear_at_last::<u32>().unwrap(), None);
        while near.meeting.is_open() {
            thread::yield_now();
        }
        assert!(near.hear::<u32>(|| {}).is_err());
    }
}
