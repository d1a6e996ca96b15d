//! A misbehaving peer: a stack whose outgoing segments the simulator falsifies, withholds or repeats.

use super::Random;
use super::segment::rewrite;
use super::watch::WireSegment;
use crate::seq::SeqNum;
use crate::wire::{SackBlocks, SackRange, TcpFlags};
use alloc::vec;
use alloc::vec::Vec;

/// A kind of misbehavior.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Acknowledges data that was not sent.
    Unsent,
    /// Acknowledges everything that was sent, received or not.
    Optimistic,
    /// Sends random SACK blocks: sent or not, old, empty, reversed, overlapping.
    Sack,
    /// Sends random timestamp values and echoes.
    Timestamps,
    /// Shrinks its window at random.
    Shrink,
    /// Advertises a window of zero.
    Close,
    /// Advertises a window of one, unscaled.
    Sliver,
    /// Divides one acknowledgment into four.
    Divide,
    /// Sends one acknowledgment four times.
    Repeat,
    /// Sets a random urgent pointer.
    Urgent,
    /// Reports congestion (ECE) or a window reduction (CWR) that did not happen.
    Congested,
    /// Withholds every segment that begins at an even offset of the stream: the others arrive behind gaps that never
    /// close.
    Gaps,
}

impl Lie {
    /// All kinds, in the order of declaration.
    pub const ALL: [Self; 12] = [
        Self::Unsent,
        Self::Optimistic,
        Self::Sack,
        Self::Timestamps,
        Self::Shrink,
        Self::Close,
        Self::Sliver,
        Self::Divide,
        Self::Repeat,
        Self::Urgent,
        Self::Congested,
        Self::Gaps,
    ];
}

/// The misbehaving host of a scenario.
#[derive(Clone, Debug)]
pub struct Liar {
    /// Index of the host.
    pub host: usize,
    /// Segments out of a million that are replaced.
    pub chance: u32,
    /// Kinds of misbehavior, of which each replacement draws one.
    pub lies: Vec<Lie>,
}

impl Liar {
    /// Returns the frames that go on the wire instead of `frame`, or `None` to send it unchanged. `sent` is the peer's
    /// SND.NXT as seen on the wire, `iss` the liar's own initial sequence number.
    pub(super) fn replace(
        &self,
        random: &mut Random,
        seen: &WireSegment,
        frame: &[u8],
        sent: Option<SeqNum>,
        iss: Option<SeqNum>,
    ) -> Option<Vec<Vec<u8>>> {
        let flags = seen.header.flags;
        let is_plain = flags.contains(TcpFlags::ACK) && !flags.intersects(TcpFlags::SYN | TcpFlags::RST);
        if !is_plain || !random.chance(self.chance) {
            return None;
        }
        let lie = *self.lies.get(random.index(self.lies.len()))?;
        let ack = seen.header.ack;
        match lie {
            Lie::Repeat => Some(vec![frame.to_vec(); 4]),
            Lie::Gaps => {
                let offset = seen.header.seq.distance_from(iss? + 1);
                (seen.payload_len > 0 && offset.is_multiple_of(2)).then(Vec::new)
            }
            Lie::Divide => [3, 2, 1, 0]
                .into_iter()
                .map(|back| rewrite(frame, |header, _| header.ack = ack - back * 100))
                .collect(),
            _ => Some(vec![distort(random, lie, frame, sent.unwrap_or(ack))?]),
        }
    }
}

fn any(random: &mut Random) -> u32 {
    u32::try_from(random.below(1 << 32)).unwrap_or(0)
}

/// Returns a random number whose magnitude is random, too.
fn stride(random: &mut Random) -> u32 {
    any(random) >> random.below(32).min(31)
}

fn distort(random: &mut Random, lie: Lie, frame: &[u8], sent: SeqNum) -> Option<Vec<u8>> {
    rewrite(frame, |header, options| match lie {
        Lie::Unsent => header.ack = sent + stride(random),
        Lie::Optimistic => header.ack = sent,
        Lie::Sack => {
            options.sack = SackBlocks::EMPTY;
            for _ in 0..random.between(1, 4) {
                let from = if random.below(2) == 0 { header.ack } else { sent };
                let start = match random.below(3) {
                    // The next segment that it lacks: reneging follows.
                    0 => from,
                    1 => from + stride(random),
                    _ => from - stride(random),
                };
                let end = if random.below(4) == 0 { start - stride(random) } else { start + stride(random) };
                options.sack.push(SackRange { start, end });
            }
        }
        Lie::Timestamps => {
            if let Some(timestamps) = &mut options.timestamps {
                timestamps.echo = timestamps.echo.wrapping_sub(stride(random));
                // A clock that jumps makes its own later segments look old (PAWS): seldom enough to make progress.
                if random.below(16) == 0 {
                    timestamps.value = any(random);
                }
            }
        }
        Lie::Shrink => header.window = u16::try_from(random.below(header.window.into())).unwrap_or(0),
        Lie::Close => header.window = 0,
        Lie::Sliver => header.window = 1,
        Lie::Urgent => {
            header.flags |= TcpFlags::URG;
            header.urgent = u16::from_be_bytes([random.byte(), random.byte()]);
        }
        Lie::Congested => {
            header.flags |= if random.below(2) == 0 { TcpFlags::ECE } else { TcpFlags::CWR };
        }
        Lie::Divide | Lie::Repeat | Lie::Gaps => {}
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;

    #[test]
    fn every_lie_changes_the_segment_and_is_well_formed() {
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        let mut frame = Vec::new();
        let ack = builder.tcp(1, 2, 100, 1000).ack(70_000);
        let ack = ack.options_raw(&[1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 9]).unwrap();
        ack.write(&mut frame, b"text").unwrap();
        let seen = WireSegment::parse(&frame).unwrap().unwrap();
        let mut random = Random::new(3);
        for lie in Lie::ALL {
            let liar = Liar { host: 0, chance: 1_000_000, lies: vec![lie] };
            let sent = Some(SeqNum::new(80_000));
            let frames = liar.replace(&mut random, &seen, &frame, sent, Some(SeqNum::new(99))).unwrap();
            assert!(frames.iter().all(|frame| WireSegment::parse(frame).unwrap().is_some()), "{lie:?}");
            assert_ne!(frames, [frame.clone()], "{lie:?}");
        }
        let honest = Liar { host: 0, chance: 0, lies: Lie::ALL.to_vec() };
        assert_eq!(honest.replace(&mut random, &seen, &frame, None, None), None);
    }
}
