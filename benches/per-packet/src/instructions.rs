//! What an instruction counter counts: each case does one thing over and over in `counted`, and the rest outside.

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

/// The name of the function whose instructions count.
pub const COUNTED: &str = "per_packet::instructions::counted";

/// Bursts that a case does before those that count.
const WARM_UP: u32 = 64;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Case {
    /// A full segment in order: received, its event taken, its buffer given back, its share of an acknowledgment.
    Receive,
    /// A full segment: its buffer taken, queued, sent.
    Send,
    /// A full segment's acknowledgment, by one that acknowledges two.
    Acknowledge,
    /// A request of one byte of one of 64 connections, and its answer.
    Echo,
    /// The same of one of 8192.
    EchoOfMany,
    /// An RDMA Write of 1428 bytes: its FPDU built, with CRC.
    FpduBuild,
    /// Such an FPDU: found, its CRC checked, its place checked, its payload copied.
    FpduPlace,
    /// An RDMA Write of 64 bytes: posted, built into a segment that it shares with others, its completion taken.
    WriteSmall,
    /// Such a Write: taken out of its segment, placed.
    PlaceSmall,
    /// The same Write alone: nothing else was posted, and its segment is its own.
    WriteAlone,
    /// The same alone: nothing else has come.
    PlaceAlone,
    /// A Send of 64 bytes: posted, built, its completion taken.
    SendSmall,
    /// Such a Send: its buffer posted, taken out of its segment, placed, its completion taken.
    TakeSmall,
}

impl Case {
    /// All of them.
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

    /// The name in the table of reviewed counts.
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

/// Does what counts.
#[inline(never)]
fn counted(act: &mut dyn FnMut()) {
    act();
}

/// What a small message is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Send,
}

/// The end whose work counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Near,
    Far,
}

/// So many bursts of a case, and before them some that do not count. Returns how many things were counted.
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
        Case::WriteSmall => small(bursts, BURST, Kind::Write, Side::Near),
        Case::PlaceSmall => small(bursts, BURST, Kind::Write, Side::Far),
        Case::WriteAlone => small(bursts, 1, Kind::Write, Side::Near),
        Case::PlaceAlone => small(bursts, 1, Kind::Write, Side::Far),
        Case::SendSmall => small(bursts, BURST, Kind::Send, Side::Near),
        Case::TakeSmall => small(bursts, BURST, Kind::Send, Side::Far),
    };
    TcpError::unless_all("finished", "rounds", done, wanted)?;
    Ok(done)
}

/// Runs `act` outside of [`counted`] at first, then within it.
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

/// Sends full segments, or takes their acknowledgments: one of them counts, the other is done outside.
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
    let origin = Origin { stream, pd: None };
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

/// Small messages from one side to the other, so many together; how many were placed after the warm-up.
fn small(bursts: u32, together: usize, kind: Kind, side: Side) -> u64 {
    let Some(Pair { mut near, mut far }) = Pair::new() else { return 0 };
    let peer = (kind == Kind::Write).then(|| far.region());
    let (mut posted, mut taken) = (0_u64, 0_u64);
    let bursts =
        (0..bursts.saturating_add(WARM_UP)).flat_map(|burst| (0..BURST / together).map(move |_| burst));
    for burst in bursts {
        let [near_burst, far_burst] = if side == Side::Near { [burst, 0] } else { [0, burst] };
        if kind == Kind::Send {
            when_warm(far_burst, &mut || (0..together).for_each(|_| _ = far.post_buffer()));
        }
        when_warm(near_burst, &mut || {
            let done = (0..together).filter(|_| near.post(peer)).count();
            near.transmit();
            near.poll();
            posted = posted.wrapping_add(done as u64);
        });
        let mut segments = near.sent();
        when_warm(far_burst, &mut || {
            segments.drain(..).for_each(|segment| far.take(segment));
            taken = taken.wrapping_add(far.poll());
        });
    }
    let placed = if kind == Kind::Write { far.writes_placed() } else { taken };
    placed.min(posted).saturating_sub(u64::from(WARM_UP) * BURST as u64)
}
