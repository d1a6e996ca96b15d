//! `iwarpctl capture`: writes the frames of the daemon's ports to a file or to stdout, in the pcapng format.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use iwarp_control::{CaptureMethod, CaptureStart, ClientError};
use iwarp_terminal::clock::Clock;
use iwarp_terminal::{Failure, Output};
use serde::Serialize;

use crate::args::{Capture, Global};
use crate::command;

/// Block types of pcapng: a frame, and the statistics of an interface.
const ENHANCED_PACKET: u32 = 6;
const INTERFACE_STATISTICS: u32 = 5;
/// The longest block that the daemon writes, in bytes: a frame of 65,535 bytes with its header.
const BLOCK_BYTES_MAX: usize = 66_000;

/// The result of a capture that has ended by itself.
#[derive(Debug, Default, Serialize)]
struct Captured {
    /// Frames written to the file.
    frames: u64,
    /// Frames that the daemon dropped, as far as it has reported them.
    dropped: u64,
    /// The same by interface.
    #[serde(skip)]
    dropped_of: BTreeMap<u32, u64>,
}

/// Captures until the count or the time is reached, the reader of stdout has gone, or the daemon ends.
pub(crate) fn run(options: &Capture, global: &Global, output: &Output) -> Result<(), Failure> {
    let Capture { file, port, conn, filter, snap, buffer, rate, count, seconds } = options;
    let to_stdout = file == Path::new("-");
    let mut client = command::connect(global)?;
    client.call::<CaptureMethod>(&CaptureStart {
        port: port.clone(),
        conn: *conn,
        filter: filter.clone(),
        snap_bytes: *snap,
        buffer_bytes: *buffer,
        bytes_per_s_max: *rate,
    })?;
    let mut sink: Box<dyn Write> = if to_stdout {
        Box::new(io::stdout().lock())
    } else {
        Box::new(File::create(file).map_err(|error| Failure::file(file, "create", &error))?)
    };
    let clock = Clock::start();
    let mut blocks = Blocks::default();
    let mut captured = Captured::default();
    loop {
        let left = seconds.map(|seconds| seconds.saturating_sub(clock.now()));
        if left == Some(Duration::ZERO) {
            break;
        }
        match client.next_bytes(left) {
            Ok(bytes) => blocks.add(&bytes),
            Err(ClientError::Timeout { .. }) if left.is_some() => break,
            Err(error) => return Err(error.into()),
        }
        let whole = blocks.take(&mut captured, *count)?;
        match sink.write_all(&whole).and_then(|()| sink.flush()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(Failure::pipe_closed()),
            Err(error) => return Err(Failure::file(file, "write", &error)),
        }
        if count.is_some_and(|count| captured.frames >= count) {
            break;
        }
    }
    if to_stdout {
        return Ok(());
    }
    output.result(&captured, |captured| {
        format!("{} frames captured, {} dropped\n", captured.frames, captured.dropped)
    })
}

impl Captured {
    /// Reads the number of dropped frames from a block of statistics: the value of its last option.
    fn dropped(&mut self, block: &[u8]) {
        // The option isb_ifdrop with its 8 bytes, the end of options (4) and the length of the block (4) end the block.
        let value = block.len().checked_sub(16).and_then(|at| block.get(at..)?.first_chunk().copied());
        if let (Some(interface), Some(dropped)) = (number(block, 8), value.map(u64::from_ne_bytes)) {
            self.dropped_of.insert(interface, dropped);
        }
        self.dropped = self.dropped_of.values().fold(0, |sum, dropped| sum.saturating_add(*dropped));
    }
}

/// Cuts the stream into blocks: only whole ones are written, so that a file is whole whenever the capture ends.
#[derive(Debug, Default)]
struct Blocks {
    pending: Vec<u8>,
}

impl Blocks {
    fn add(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// Removes the whole blocks, up to the last frame that is wanted, and counts their frames.
    fn take(&mut self, captured: &mut Captured, count: Option<u64>) -> Result<Vec<u8>, Failure> {
        let mut end = 0_usize;
        while count.is_none_or(|count| captured.frames < count) {
            let rest = self.pending.get(end..).unwrap_or_default();
            let (Some(kind), Some(length)) = (number(rest, 0), number(rest, 4)) else { break };
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if !(12..=BLOCK_BYTES_MAX).contains(&length) {
                let message = format!("the daemon sent a block of {length} bytes");
                return Err(Failure::new(iwarp_control::Exit::Failed, "malformed_reply", message));
            }
            let Some(block) = rest.get(..length) else { break };
            if kind == ENHANCED_PACKET {
                captured.frames = captured.frames.saturating_add(1);
            } else if kind == INTERFACE_STATISTICS {
                captured.dropped(block);
            }
            end = end.saturating_add(length);
        }
        let rest = self.pending.split_off(end);
        Ok(std::mem::replace(&mut self.pending, rest))
    }
}

/// Returns the number in this machine's byte order at an offset.
fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}
