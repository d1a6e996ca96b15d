//! What a tracer of memory accesses watches: segments in order, received for one connection and then for another, so
//! that what is touched for the one only is the one's own.

use std::ptr::from_ref;
use std::sync::atomic::{AtomicBool, Ordering};

use tcp_stack::{Event, RxFrame};

use super::frames::Frame;
use super::lab::{Lab, MSS};
use super::{TcpError, echo};

/// Connections, and two of them that share no line of any table.
const CONNECTIONS: usize = 256;
const WATCHED: [usize; 2] = [80, 160];
/// Segments of a connection in a row.
const RUN: u64 = 5;
/// Runs of each that are not watched, and that are.
const ROUNDS: [u64; 2] = [4, 30];

/// Written to when the work for the first connection begins, when that for the other does, and when it ends.
static MARKS: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

/// Where the marks are in memory.
pub fn marks() -> [usize; 3] {
    MARKS.each_ref().map(|mark| from_ref(mark).addr())
}

/// Whose segment the one before was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Flow {
    /// The same connection's.
    Same,
    /// Another one's.
    Other,
    /// Another one's, too; each is a request that is answered, and acknowledges the answer before.
    Answered,
}

/// Receives segments in order, marked from before a segment is taken until the application has let go of its data, or the
/// answer has left. Returns how many.
pub fn run(flow: Flow) -> Result<u64, TcpError> {
    let mut lab = Lab::with(CONNECTIONS, |config| {
        if flow != Flow::Answered {
            // A window that has grown as large as it may.
            config.receive_window_initial_bytes = config.receive_window_bytes;
        }
    });
    let turn = if flow == Flow::Answered { answer } else { turn };
    lab.connect(CONNECTIONS)?;
    let (mut marked, mut bytes) = (0_u64, 0_u64);
    let [warm_up, watched] = ROUNDS;
    for round in 0..warm_up.wrapping_add(watched) {
        for (peer, mark) in WATCHED.into_iter().zip(&MARKS) {
            for at in 0..RUN {
                if flow != Flow::Same {
                    bytes = bytes.wrapping_add(turn(&mut lab, 0, None));
                }
                let counts = round >= warm_up && (flow != Flow::Same || at > 0);
                bytes = bytes.wrapping_add(turn(&mut lab, peer, counts.then_some(mark)));
                marked = marked.wrapping_add(u64::from(counts));
            }
        }
    }
    let all =
        warm_up.wrapping_add(watched) * RUN * WATCHED.len() as u64 * if flow == Flow::Same { 1 } else { 2 };
    TcpError::unless_all("delivered", "bytes", bytes, all.wrapping_mul(MSS as u64))?;
    Ok(marked)
}

/// A segment is made, received, and acknowledged if that is due. Returns the bytes that were delivered.
fn turn(lab: &mut Lab, peer: usize, mark: Option<&AtomicBool>) -> u64 {
    let Some(frame) = lab.next_segment(peer, MSS) else { return 0 };
    let [.., end] = &MARKS;
    if let Some(mark) = mark {
        mark.store(true, Ordering::SeqCst);
    }
    let bytes = receive(lab, frame);
    end.store(true, Ordering::SeqCst);
    lab.drain(&mut |_| {});
    bytes
}

/// A request is made, and answered with itself. Returns the bytes of the answers that left.
fn answer(lab: &mut Lab, peer: usize, mark: Option<&AtomicBool>) -> u64 {
    let mut requests: Vec<_> = lab.next_segment(peer, MSS).into_iter().collect();
    let [.., end] = &MARKS;
    if let Some(mark) = mark {
        mark.store(true, Ordering::SeqCst);
    }
    let answers = echo::serve(lab, &mut requests);
    end.store(true, Ordering::SeqCst);
    if let Some(peer) = lab.peers.get_mut(peer) {
        peer.ack += u32::try_from(MSS).unwrap_or(0);
    }
    answers.wrapping_mul(MSS as u64)
}

#[inline(never)]
fn receive(lab: &mut Lab, frame: RxFrame<Frame>) -> u64 {
    let mut bytes = 0_u64;
    lab.take([frame]);
    while let Some(event) = lab.stack.poll_event() {
        if let Event::Data { conn, segment, .. } = event {
            bytes = bytes.wrapping_add(segment.len() as u64);
            lab.stack.consumed(conn, segment.len());
        }
    }
    bytes
}
