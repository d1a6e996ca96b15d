//! A peer that lies: an honest stack whose acknowledgments are changed on their way out.

use super::Random;
use super::segment::rewrite;
use super::watch::WireSegment;
use crate::seq::SeqNum;
use crate::wire::{SackBlocks, SackRange, TcpFlags};
use alloc::vec;
use alloc::vec::Vec;

/// What a lying peer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Acknowledges what was not sent.
    Unsent,
    /// Acknowledges all that was sent, come what may.
    Optimistic,
    /// Selectively acknowledges anything: sent or not, old, empty, backwards, overlapping.
    Sack,
    /// Any timestamps.
    Timestamps,
    /// A window that shrinks.
    Shrink,
    /// A window of zero.
    Close,
    /// A window of one, unscaled.
    Sliver,
    /// One acknowledgment in pieces.
    Divide,
    /// One acknowledgment four times.
    Repeat,
    /// An urgent pointer to anywhere.
    Urgent,
    /// Marks of congestion that nobody made.
    Congested,
}

impl Lie {
    /// Every lie.
    pub const ALL: [Self; 11] = [
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
    ];
}

/// Who lies, how, and how often.
#[derive(Clone, Debug)]
pub struct Liar {
    /// The host.
    pub host: usize,
    /// Chance out of a million segments.
    pub chance: u32,
    /// One of these.
    pub lies: Vec<Lie>,
}

impl Liar {
    /// What goes on the wire instead of a frame, if that is a segment and the liar lies this time;
    /// `sent` is the sequence number after the last that its peer sent.
    pub(super) fn replace(
        &self,
        random: &mut Random,
        seen: &WireSegment,
        frame: &[u8],
        sent: Option<SeqNum>,
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

/// A number that is small, or large, or anything.
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
                    // The next that it has not got, which it will take back.
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
                // A clock that runs ahead would make its own segments look old; now and then it does.
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
        Lie::Divide | Lie::Repeat => {}
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
        ack.write(&mut frame, &[]).unwrap();
        let seen = WireSegment::parse(&frame).unwrap().unwrap();
        let mut random = Random::new(3);
        for lie in Lie::ALL {
            let liar = Liar { host: 0, chance: 1_000_000, lies: vec![lie] };
            let sent = Some(SeqNum::new(80_000));
            let frames = liar.replace(&mut random, &seen, &frame, sent).unwrap();
            assert!(frames.iter().all(|frame| WireSegment::parse(frame).unwrap().is_some()), "{lie:?}");
            assert!(frames.len() > 1 || frames[0] != frame, "{lie:?}");
        }
        let honest = Liar { host: 0, chance: 0, lies: Lie::ALL.to_vec() };
        assert_eq!(honest.replace(&mut random, &seen, &frame, None), None);
    }
}
