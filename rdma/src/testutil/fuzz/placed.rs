//! Writes that arrive in any order, some of them twice with other bytes: bytes placed out-of-order are placed once,
//! where the peer may write, and the memory equals that of the same stream in order.

use super::Input;
use super::shape::{Shape, end};
use crate::testutil::STREAM;
use crate::testutil::Side;
use crate::testutil::bytes::{SEND, TAGGED_LAST, TAGGED_MORE, UNTAGGED_LAST, WRITE, tagged, untagged};
use crate::{Access, EndpointConfig, GrantedRange, OutOfOrderPolicy, RegionId, Scope, Stag, StreamState};

/// Bytes of the window, and of the guards before and after it.
const WINDOW: usize = 4096;
const GUARD: usize = 64;
const UNTOUCHED: u8 = 0xa5;
/// Number of operations before the rest of the stream is delivered in order.
const TURNS: usize = 200;

/// Byte that every Write stores at an offset, so that their order does not matter.
const fn pattern_byte(to: usize) -> u8 {
    (to.wrapping_mul(7) ^ (to >> 8)) as u8 | 1
}

/// A stream split into chunks, and its expected result.
struct Made {
    chunks: Vec<Vec<u8>>,
    window: Vec<u8>,
    fpdus: u64,
    writes: u64,
    /// True if all of it is valid.
    honest: bool,
}

/// Progress of a run.
struct Run {
    side: Side,
    lab: RegionId,
    stag: Stag,
    /// Start of each chunk, relative to the first.
    starts: Vec<u64>,
    base: u64,
    /// True for each chunk that the side has placed.
    taken: Vec<bool>,
    /// Number of chunks delivered.
    delivered: usize,
    /// Contents of the window when the right to it ended.
    frozen: Option<Vec<u8>>,
}

pub(super) fn placed(input: &mut Input<'_>, shape: Shape) {
    let bits = input.byte();
    let config = EndpointConfig {
        receive_queue: 2,
        out_of_order: input.pick(&[
            OutOfOrderPolicy::Aligned,
            OutOfOrderPolicy::Markers,
            OutOfOrderPolicy::Off,
        ]),
        last_out_of_order: bits & 1 != 0,
        placed_runs_max: input.pick(&[32, 2, 1]),
        ..EndpointConfig::default()
    };
    let (mut side, lab) = shape.responder(config, vec![UNTOUCHED; WINDOW + 2 * GUARD]);
    let range = GrantedRange { region: lab, offset: GUARD as u64, bytes: WINDOW as u64, base_to: 0 };
    let stag = side.stags.grant_range(range, Access::REMOTE_WRITE, Scope::Stream(STREAM)).unwrap();
    let made = make(input, shape, stag);
    let starts =
        made.chunks.iter().scan(0, |at, chunk| Some(core::mem::replace(at, *at + chunk.len() as u64)));
    let mut run = Run {
        lab,
        stag,
        starts: starts.collect(),
        base: side.position,
        taken: vec![false; made.chunks.len()],
        delivered: 0,
        frozen: None,
        side,
    };
    for _ in 0..TURNS {
        if input.is_empty() || run.delivered >= made.chunks.len() {
            break;
        }
        run.turn(input, &made);
        run.check();
    }
    while run.delivered < made.chunks.len() {
        run.deliver(&made, None);
        run.check();
    }
    run.judge(&made);
}

/// Builds Writes to anywhere in the window, and segments that a peer should not send.
fn make(input: &mut Input<'_>, shape: Shape, stag: Stag) -> Made {
    let (mut stream, mut cuts) = (Vec::new(), Vec::new());
    let mut made =
        Made { chunks: Vec::new(), window: vec![UNTOUCHED; WINDOW], fpdus: 0, writes: 0, honest: true };
    for _ in 0..usize::from(input.byte() % 24) {
        let to = input.below(WINDOW);
        let len = (usize::from(input.byte()) * 6).min(WINDOW - to);
        let payload: Vec<u8> = (to..to + len).map(pattern_byte).collect();
        let last = input.byte().is_multiple_of(4);
        let control = if last { TAGGED_LAST } else { TAGGED_MORE };
        let clean = tagged(control, WRITE, stag.0, to as u64, &payload);
        let mut ulpdu = clean.clone();
        match input.byte() {
            // Other bytes at the destination, another destination, or arbitrary bytes.
            250 => ulpdu[2 + usize::from(input.byte() % 12)] ^= 1 << (input.byte() % 8),
            251 => ulpdu = untagged(UNTAGGED_LAST, SEND, 0, [0, 1, 0], &payload),
            252 => ulpdu.truncate(input.below(ulpdu.len() + 1)),
            253 => ulpdu[14..].iter_mut().for_each(|byte| *byte = input.byte()),
            _ => {}
        }
        if ulpdu == clean {
            made.window[to..to + len].copy_from_slice(&payload);
        } else {
            made.honest = false;
        }
        let begin = stream.len();
        shape.append(&mut stream, &ulpdu);
        if input.byte() == 255 {
            let at = begin + input.below(stream.len() - begin);
            stream[at] ^= 1 << (input.byte() % 8);
            made.honest = false;
        }
        if input.rarely() {
            cuts.push(begin + input.below(stream.len() - begin));
        }
        if !input.rarely() {
            cuts.push(stream.len());
        }
        (made.fpdus, made.writes) = (made.fpdus + 1, made.writes + u64::from(last));
    }
    let mut at = 0;
    for cut in cuts.into_iter().chain([stream.len()]).filter(|cut| *cut > 0) {
        if cut > at {
            made.chunks.push(stream[at..cut].to_vec());
            at = cut;
        }
    }
    made
}

impl Run {
    fn turn(&mut self, input: &mut Input<'_>, made: &Made) {
        let behind = made.chunks.len() - self.delivered;
        let at = self.delivered + usize::from(input.byte()) % behind;
        match input.byte() % 16 {
            0..8 if at > self.delivered => self.offer(at, &made.chunks[at]),
            8 if at > self.delivered => {
                // Several chunks at once, from the middle of the first, as a sender retransmits with other segment
                // boundaries.
                let bytes: Vec<u8> = made.chunks[at..made.chunks.len().min(at + 3)].concat();
                let skip = input.below(made.chunks[at].len());
                self.side.out_of_order(self.base + self.starts[at] + skip as u64, &bytes[skip..]);
            }
            15 if input.rarely() => {
                self.side.stags.revoke(self.stag);
                let window = self.window().to_vec();
                self.frozen.get_or_insert(window);
            }
            // Placed bytes arrive a second time, with other contents.
            9 | 10 => self.deliver(made, Some(input.byte())),
            _ => self.deliver(made, None),
        }
    }

    fn offer(&mut self, at: usize, bytes: &[u8]) {
        if self.side.out_of_order(self.base + self.starts[at], bytes) {
            self.taken[at] = true;
        }
    }

    /// Delivers the next chunk in order; for a placed one its length, or other bytes.
    fn deliver(&mut self, made: &Made, lie: Option<u8>) {
        let Some(chunk) = made.chunks.get(self.delivered) else { return };
        match (self.taken[self.delivered], lie) {
            (false, _) => self.side.deliver(chunk),
            (true, None) => self.side.placed(chunk.len()),
            (true, Some(lie)) => {
                let (false_bytes, len) = (vec![lie; chunk.len()], usize::from(lie) % (chunk.len() + 1));
                self.side.deliver(&false_bytes[..len]);
                if len < chunk.len() {
                    self.side.placed(chunk.len() - len);
                }
            }
        }
        self.delivered += 1;
    }

    fn window(&self) -> &[u8] {
        &self.side.bytes(self.lab)[GUARD..][..WINDOW]
    }

    fn check(&self) {
        let bytes = self.side.bytes(self.lab);
        let guards = bytes[..GUARD].iter().chain(&bytes[GUARD + WINDOW..]);
        assert!(guards.copied().all(|byte| byte == UNTOUCHED), "an byte outside was written");
        assert_eq!(self.side.memory.faults(), 0);
        if let Some(frozen) = &self.frozen {
            assert!(self.window() == frozen, "written without a right");
        }
    }

    fn judge(mut self, made: &Made) {
        if made.honest && self.frozen.is_none() {
            assert_eq!(self.side.endpoint.info().state, StreamState::ReadyToSend);
            assert!(self.window() == made.window, "another memory than in order");
            let stats = &self.side.stats;
            assert_eq!((stats.mpa.fpdus_in, stats.rdmap.in_rdma_writes), (made.fpdus, made.writes));
        }
        end(&mut self.side);
        self.check();
    }
}
