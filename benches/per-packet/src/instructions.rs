//! Work for an instruction counter: each case repeats one operation within `counted`, and its preparation outside.
//! `benches/per-packet/tests/instructions.rs` runs the cases under valgrind.

use std::hint::black_box;

use rdma::mpa::{Deframer, DeframerConfig, Framer, MpaStats};
use rdma::wire::Stag;
use rdma::wire::ddp::TaggedHeader;
use rdma::{Access, Memory, Origin, Scope, StagTable, StreamId, VecMemory};
use tcp_stack::wire::TcpFlags;
use tcp_stack::{Buf, BufClass, BufPool, Event};

use super::lab::{Lab, MSS};
use super::verbs::Pair;
use super::{BURST, TcpError, echo};
use crate::{PAYLOADS, build_write, write_len};

/// Name of the function whose instructions count.
pub const COUNTED: &str = "per_packet::instructions::counted";

/// Bursts of a case that run before those that count.
const WARM_UP: u32 = 64;

/// An operation whose instructions count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Case {
    /// Receives a full in-order segment: its event, freeing its buffer, its share of an acknowledgment.
    Receive,
    /// Sends a full segment: its buffer allocated, queued, transmitted.
    Send,
    /// Processes the acknowledgment of a full segment; each acknowledges two.
    Acknowledge,
    /// Answers a one-byte request of one of 64 connections.
    Echo,
    /// Answers a one-byte request of one of 8192 connections.
    EchoOfMany,
    /// Builds the FPDU of an RDMA Write of 1428 bytes, with CRC.
    FpduBuild,
    /// Places such an FPDU: parsed, CRC and access checked, payload copied.
    FpduPlace,
    /// Sends an RDMA Write of 64 bytes: posted, built into a segment shared with others, completed.
    WriteSmall,
    /// Places such a Write from its segment.
    PlaceSmall,
    /// Sends such a Write alone, in a segment of its own.
    WriteAlone,
    /// Places such a Write alone.
    PlaceAlone,
    /// Sends a Send of 64 bytes: posted, built, completed.
    SendSmall,
    /// Receives such a Send: buffer posted, message placed, completed.
    TakeSmall,
}

impl Case {
    /// All cases, in the order of the table of reviewed counts.
    pub const ALL: [Self; 13] = [
        Self::Receive,
        Self::Send,
        Self::Acknowledge,
        Self::Echo,
        Self::EchoOfMany,
        Self::FpduBuild,
        Self::FpduPlace,
        Self::WriteSmall,
        Self::PlaceSmall,
        Self::WriteAlone,
        Self::PlaceAlone,
        Self::SendSmall,
        Self::TakeSmall,
    ];

    /// Returns the name in the table of reviewed counts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::Send => "send",
            Self::Acknowledge => "acknowledge",
            Self::Echo => "echo",
            Self::EchoOfMany => "echo-of-many",
            Self::FpduBuild => "fpdu-build",
            Self::FpduPlace => "fpdu-place",
            Self::WriteSmall => "write-small",
            Self::PlaceSmall => "place-small",
            Self::WriteAlone => "write-alone",
            Self::PlaceAlone => "place-alone",
            Self::SendSmall => "send-small",
            Self::TakeSmall => "take-small",
        }
    }
}

/// Runs an operation; only its instructions count.
#[inline(never)]
fn counted(act: &mut dyn FnMut()) {
    act();
}

/// Operation of a small message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Message {
    Write,
    Send,
}

/// The node whose work counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Initiator,
    Target,
}

/// Runs `bursts` bursts of a case after a warm-up; returns the number of counted operations.
pub fn run(case: Case, bursts: u32) -> Result<u64, TcpError> {
    let wanted = u64::from(bursts).saturating_mul(BURST as u64);
    let done = match case {
        Case::Receive => receive(bursts)?,
        Case::Send => send(bursts, true)?,
        Case::Acknowledge => send(bursts, false)?,
        Case::Echo => answer(bursts, 64)?,
        Case::EchoOfMany => answer(bursts, 8192)?,
        Case::FpduBuild => build(bursts),
        Case::FpduPlace => place(bursts),
        Case::WriteSmall => small(bursts, BURST, Message::Write, Role::Initiator),
        Case::PlaceSmall => small(bursts, BURST, Message::Write, Role::Target),
        Case::WriteAlone => small(bursts, 1, Message::Write, Role::Initiator),
        Case::PlaceAlone => small(bursts, 1, Message::Write, Role::Target),
        Case::SendSmall => small(bursts, BURST, Message::Send, Role::Initiator),
        Case::TakeSmall => small(bursts, BURST, Message::Send, Role::Target),
    };
    TcpError::unless_all("finished", "rounds", done, wanted)?;
    Ok(done)
}

/// Runs `act` outside of [`counted`] during the warm-up, then within it.
fn when_warm(burst: u32, act: &mut dyn FnMut()) {
    if burst < WARM_UP { act() } else { counted(act) }
}

fn receive(bursts: u32) -> Result<u64, TcpError> {
    let mut lab = Lab::new(1);
    lab.connect(1)?;
    let mut bytes = 0_u64;
    for burst in 0..bursts.saturating_add(WARM_UP) {
        let mut frames: Vec<_> = (0..BURST).filter_map(|_| lab.next_segment(0, MSS)).collect();
        when_warm(burst, &mut || {
            lab.take(frames.drain(..));
            while let Some(event) = lab.stack.poll_event() {
                if let Event::Data { conn, segment, .. } = event {
                    bytes = bytes.wrapping_add(segment.len() as u64);
                    lab.stack.consumed(conn, segment.len());
                }
            }
            lab.drain(&mut |_| {});
        });
    }
    Ok((bytes / MSS as u64).saturating_sub(u64::from(WARM_UP) * BURST as u64))
}

/// Sends full segments and processes their acknowledgments; `counts` selects which of the two counts.
fn send(bursts: u32, counts: bool) -> Result<u64, TcpError> {
    let mut lab = Lab::new(1);
    lab.connect(1)?;
    let Some(conn) = lab.conn(0) else { return Ok(0) };
    let mut done = 0_u64;
    for burst in 0..bursts.saturating_add(WARM_UP) {
        let (send_bursts, ack_bursts) = if counts { (burst, 0) } else { (0, burst) };
        let mut sent = 0_u64;
        when_warm(send_bursts, &mut || {
            for _ in 0..BURST {
                let Some(mut buf) = lab.pool.alloc(BufClass::Data) else { break };
                if buf.append(MSS).is_some() && lab.stack.send(lab.now, conn, buf).is_err() {
                    break;
                }
            }
            lab.drain(&mut |frame| sent = sent.wrapping_add(u64::from(frame.buf.is_shared())));
        });
        let mut acks = Vec::new();
        for newest in 1..=sent {
            if let Some(peer) = lab.peers.first_mut() {
                peer.ack += u32::try_from(MSS).unwrap_or(0);
            }
            if newest % 2 == 0 || newest == sent {
                acks.extend(lab.segment(0, TcpFlags::ACK, 0));
            }
        }
        let mut acks = acks.into_iter();
        when_warm(ack_bursts, &mut || {
            lab.take(&mut acks);
            while lab.stack.poll_event().is_some() {}
        });
        if burst >= WARM_UP {
            done = done.wrapping_add(sent);
        }
    }
    Ok(done)
}

fn answer(bursts: u32, connections: usize) -> Result<u64, TcpError> {
    let mut lab = Lab::new(connections);
    lab.connect(connections)?;
    let mut order = echo::Order::new(connections);
    let mut done = 0_u64;
    for burst in 0..bursts.saturating_add(WARM_UP) {
        let peers: Vec<_> = (0..BURST).map(|_| order.next()).collect();
        let mut requests: Vec<_> = peers.iter().filter_map(|peer| lab.next_segment(*peer, 1)).collect();
        let mut answered = 0;
        when_warm(burst, &mut || answered = echo::serve(&mut lab, &mut requests));
        for peer in peers {
            if let Some(peer) = lab.peers.get_mut(peer) {
                peer.ack += 1;
            }
        }
        if burst >= WARM_UP {
            done = done.wrapping_add(answered);
        }
    }
    Ok(done)
}

fn build(bursts: u32) -> u64 {
    let [payload, _] = PAYLOADS;
    let (bytes, mut out) = (vec![0x5a; payload], vec![0; write_len(payload)]);
    let mut done = 0_u64;
    for burst in 0..bursts.saturating_add(WARM_UP) {
        when_warm(burst, &mut || {
            for _ in 0..BURST {
                let built = build_write(Framer::new(true), Stag(1), black_box(&bytes), &mut out);
                done = done.wrapping_add(u64::from(built && burst >= WARM_UP));
            }
        });
    }
    done
}

fn place(bursts: u32) -> u64 {
    const REGION: usize = 1 << 20;
    let [payload, _] = PAYLOADS;
    let mut memory = VecMemory::new();
    let mut stags = StagTable::new(64, [7; 32]);
    let stream = StreamId(1);
    let stag = memory.add(vec![0; REGION]).and_then(|region| {
        stags.grant(region, REGION as u64, Access::REMOTE_WRITE, Scope::Stream(stream)).ok()
    });
    let Some(stag) = stag else { return 0 };
    let mut fpdu = vec![0; write_len(payload)];
    build_write(Framer::new(true), stag, &vec![0x5a; payload], &mut fpdu);
    let (mut stats, mut at, mut done) = (MpaStats::default(), 0_u64, 0_u64);
    let mut deframer = Deframer::<&[u8]>::new(0, DeframerConfig::default());
    let origin = Origin::new(stream, None);
    for burst in 0..bursts.saturating_add(WARM_UP) {
        when_warm(burst, &mut || {
            for _ in 0..BURST {
                let found = deframer.next_whole(at, black_box(&fpdu[..]), &mut stats);
                at = at.wrapping_add(fpdu.len() as u64);
                let Some(Ok(ulpdu)) = found else { continue };
                let header = ulpdu.contiguous().and_then(|ulpdu| TaggedHeader::parse(ulpdu).ok());
                let Some((header, bytes)) = header else { continue };
                let to = header.offset.0;
                let token = stags.check_place(header.stag, to, bytes.len(), origin);
                let placed = token.map(|token| memory.place(token, bytes));
                done = done.wrapping_add(u64::from(placed.is_ok() && burst >= WARM_UP));
            }
        });
    }
    done
}

/// Sends small messages, `together` per burst; returns the number placed after the warm-up.
fn small(bursts: u32, together: usize, message: Message, role: Role) -> u64 {
    let Some(Pair { mut initiator, mut target }) = Pair::new() else { return 0 };
    let peer = (message == Message::Write).then(|| target.region());
    let (mut posted, mut taken) = (0_u64, 0_u64);
    let bursts =
        (0..bursts.saturating_add(WARM_UP)).flat_map(|burst| (0..BURST / together).map(move |_| burst));
    for burst in bursts {
        let [initiator_burst, target_burst] = if role == Role::Initiator { [burst, 0] } else { [0, burst] };
        if message == Message::Send {
            when_warm(target_burst, &mut || (0..together).for_each(|_| _ = target.post_buffer()));
        }
        when_warm(initiator_burst, &mut || {
            let done = (0..together).filter(|_| initiator.post(peer)).count();
            initiator.transmit();
            initiator.poll();
            posted = posted.wrapping_add(done as u64);
        });
        let mut segments = initiator.sent();
        when_warm(target_burst, &mut || {
            segments.drain(..).for_each(|segment| target.receive(segment));
            taken = taken.wrapping_add(target.poll());
        });
    }
    let placed = if message == Message::Write { target.writes_placed() } else { taken };
    placed.min(posted).saturating_sub(u64::from(WARM_UP) * BURST as u64)
}
