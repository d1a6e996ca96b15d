//! Work for a tracer of memory accesses: in-order segments for one connection and for another, so that the lines
//! accessed for one only belong to that connection. `benches/per-packet/tests/lines.rs` runs it under valgrind.

use std::ptr::from_ref;
use std::sync::atomic::{AtomicBool, Ordering};

use tcp_stack::{Event, RxFrame};

use super::frames::Frame;
use super::lab::{Lab, MSS};
use super::{TcpError, echo};

/// Number of established connections.
const CONNECTIONS: usize = 256;
/// The two traced connections, which share no line of any table.
const WATCHED: [usize; 2] = [80, 160];
/// Consecutive segments of a connection.
const RUN: u64 = 5;
/// Rounds of the warm-up, and traced rounds.
const ROUNDS: [u64; 2] = [4, 30];

/// Written when work for the first connection begins, when work for the second begins, and when it ends.
static MARKS: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

/// Returns the addresses of the marks.
pub fn marks() -> [usize; 3] {
    MARKS.each_ref().map(|mark| from_ref(mark).addr())
}

/// Connection of the segment before each traced one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Flow {
    /// The previous segment belongs to the same connection.
    Same,
    /// The previous segment belongs to another connection.
    Other,
    /// As `Other`; each segment is a request that is answered, and acknowledges the previous answer.
    Answered,
}

/// Receives in-order segments. The marks enclose the work from the receipt of a segment until the application has
/// freed its data or the answer is sent. Returns the number of marked segments.
pub fn run(flow: Flow) -> Result<u64, TcpError> {
    let mut lab = Lab::with(CONNECTIONS, |config| {
        if flow != Flow::Answered {
            // The receive window starts at its maximum.
            config.receive_window_initial_bytes = config.receive_window_bytes;
        }
    });
    let process = if flow == Flow::Answered { answer } else { deliver };
    lab.connect(CONNECTIONS)?;
    let (mut marked, mut bytes) = (0_u64, 0_u64);
    let [warm_up, watched] = ROUNDS;
    for round in 0..warm_up.wrapping_add(watched) {
        for (peer, mark) in WATCHED.into_iter().zip(&MARKS) {
            for at in 0..RUN {
                if flow != Flow::Same {
                    bytes = bytes.wrapping_add(process(&mut lab, 0, None));
                }
                let counts = round >= warm_up && (flow != Flow::Same || at > 0);
                bytes = bytes.wrapping_add(process(&mut lab, peer, counts.then_some(mark)));
                marked = marked.wrapping_add(u64::from(counts));
            }
        }
    }
    let all =
        warm_up.wrapping_add(watched) * RUN * WATCHED.len() as u64 * if flow == Flow::Same { 1 } else { 2 };
    TcpError::unless_all("delivered", "bytes", bytes, all.wrapping_mul(MSS as u64))?;
    Ok(marked)
}

/// Builds a segment, receives it, and sends an acknowledgment if one is due. Returns the delivered bytes.
fn deliver(lab: &mut Lab, peer: usize, mark: Option<&AtomicBool>) -> u64 {
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

/// Builds a request and answers it with its own bytes. Returns the bytes of the answers.
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
