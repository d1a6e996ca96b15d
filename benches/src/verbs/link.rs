//! What joins the two ends, and how they play a game over it: in two threads of this process, or in two processes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use dataplane::dpdk::Eal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::bandwidth::Bulk;
use super::latency::PingPong;
use super::load::Load;
use super::pair::{self, End, Terms};
use super::partner::{Meeting, Partner};
use crate::clock::pause;
use crate::{Stopwatch, on_core, on_two_cores};

/// How long a link may take to go down when the other end has gone.
const PARTING: Duration = Duration::from_secs(5);
/// What DPDK's thread may take after that to free what belonged to it.
const CLEARED: Duration = Duration::from_millis(20);

/// What joins the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// A pair of ring ports in one process: buffers are handed over.
    Ring,
    /// Memory that two processes share: net_memif copies every frame into it, and out of it.
    Memif,
}

impl Link {
    /// Its name in tables.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Memif => "memif",
        }
    }

    /// The MTUs that are measured unless told otherwise.
    pub(super) const fn usual_mtus(self) -> &'static [u16] {
        match self {
            Self::Ring => &[1500, 9000],
            Self::Memif => &[1500],
        }
    }
}

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The initiator.
    Near,
    /// The target.
    Far,
}

impl Side {
    /// Its number: of addresses and CPUs.
    pub(super) const fn index(self) -> usize {
        match self {
            Self::Near => 0,
            Self::Far => 1,
        }
    }
}

/// What two ends do together, each in its thread, until both have seen enough.
pub(super) trait Game: Clone + Sync {
    /// What the initiator has seen.
    type Near: Send;
    /// What the target has seen.
    type Far: Send + Serialize + DeserializeOwned;

    /// The initiator's part.
    fn near(&self, end: &mut End, meeting: &Meeting) -> Result<Self::Near>;
    /// The target's part.
    fn far(&self, end: &mut End, meeting: &Meeting) -> Result<Self::Far>;
    /// For the target's process.
    fn order(self) -> Play;
}

/// A game that the target's process is asked to join.
#[derive(Serialize, Deserialize)]
pub(super) enum Play {
    Bulk(Bulk),
    PingPong(PingPong),
}

/// What the target's process is asked to do.
#[derive(Serialize, Deserialize)]
pub(super) struct Order {
    load: Load,
    terms: Terms,
    /// Where the ports meet.
    socket: PathBuf,
    play: Play,
}

/// DPDK, and the other process if there is one.
pub(super) struct Wire {
    eal: Eal,
    /// With memif: the target, the folder of sockets, and how many there have been.
    other: Option<(Partner, tempfile::TempDir, u32)>,
}

impl Wire {
    /// Starts DPDK with memory enough for the largest of the ends that are to come, and the other process.
    ///
    /// # Errors
    /// There is not enough memory, or no other process.
    pub(super) fn new(load: &Load) -> Result<Self> {
        let other = match load.link {
            Link::Ring => None,
            Link::Memif => Some((Partner::start()?, tempfile::tempdir()?, 0)),
        };
        let sides: &[Side] = if other.is_some() { &[Side::Near] } else { &[Side::Near, Side::Far] };
        Ok(Self { eal: pair::start_dpdk(load, sides)?, other })
    }

    /// DPDK.
    pub(super) const fn eal(&self) -> &Eal {
        &self.eal
    }

    /// Opens both ends, and lets them play; what each has seen.
    ///
    /// # Errors
    /// Not enough memory, a CPU that cannot be had, a connection that fails, or the other process does.
    pub(super) fn play<G: Game>(
        &mut self,
        load: &Load,
        terms: &Terms,
        game: &G,
    ) -> Result<(G::Near, G::Far)> {
        let Some((partner, folder, count)) = &mut self.other else {
            let ([mut left, mut right], meeting) = (pair::open(&self.eal, load, terms)?, Meeting::default());
            return on_two_cores(
                load.cores,
                || meeting.guard(|| game.near(&mut left, &meeting)),
                || meeting.guard(|| game.far(&mut right, &meeting)),
            );
        };
        *count += 1;
        let socket = folder.path().join(count.to_string());
        let (load, terms, play) = (load.clone(), *terms, game.clone().order());
        partner.tell(&Order { load: load.clone(), terms, socket: socket.clone(), play })?;
        let near = join(&self.eal, partner, (&load, &terms, &socket), Side::Near, |end, meeting| {
            game.near(end, meeting)
        })?;
        Ok((near, partner.hear(|| {})?))
    }
}

/// Opens one end, finds the other in the other process, and plays.
fn join<T: Send>(
    eal: &Eal,
    partner: &Partner,
    (load, terms, socket): (&Load, &Terms, &Path),
    side: Side,
    play: impl FnOnce(&mut End, &Meeting) -> Result<T> + Send,
) -> Result<T> {
    let mut end = pair::open_one(eal, load, terms, (side, socket), partner)?;
    // What comes before its buffers are posted would have none: an end that may be sent to does not poll until it plays.
    let meeting = partner.meet(side == Side::Near, || {
        end.node.poll();
    })?;
    let cpu = load.cores.0.get(side.index()).copied().context("an end has a core")?;
    let outcome = on_core(cpu, || meeting.guard(|| play(&mut end, &meeting)))?;
    part(end, side, partner)?;
    Ok(outcome)
}

/// Closes the port of the initiator, then that of the target: when one goes, a thread of DPDK's clears up behind the other,
/// and 22.11 frees what they shared twice if that is closed meanwhile.
fn part(end: End, side: Side, partner: &Partner) -> Result<()> {
    match side {
        Side::Near => {
            drop(end);
            partner.tell(&())
        }
        Side::Far => {
            partner.hear::<()>(|| {})?;
            let watch = Stopwatch::start();
            while end.node.port().link()?.up && watch.elapsed() < PARTING {
                std::thread::yield_now();
            }
            pause(CLEARED);
            drop(end);
            Ok(())
        }
    }
}

/// The target's process: does what it is asked to until there is nothing more.
///
/// # Errors
/// Not enough memory, a connection that fails, or the initiator is gone.
pub fn serve() -> Result<()> {
    let partner = Partner::parent();
    let mut eal = None;
    while let Some(Order { load, terms, socket, play }) = partner.hear_at_last()? {
        if eal.is_none() {
            eal = Some(pair::start_dpdk(&load, &[Side::Far])?);
        }
        let eal = eal.as_ref().context("DPDK has been started")?;
        let at = (&load, &terms, socket.as_path());
        match play {
            Play::Bulk(game) => answer(eal, &partner, at, &game)?,
            Play::PingPong(game) => answer(eal, &partner, at, &game)?,
        }
    }
    Ok(())
}

fn answer<G: Game>(eal: &Eal, partner: &Partner, at: (&Load, &Terms, &Path), game: &G) -> Result<()> {
    let seen = join(eal, partner, at, Side::Far, |end, meeting| game.far(end, meeting))?;
    partner.tell(&seen)
}
