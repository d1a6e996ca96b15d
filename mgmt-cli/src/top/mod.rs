//! `iwarpctl top`: workers, ports, connections, regions and applications with their rates, live on a terminal.
//!
//! ```text
//!  sample ──► rates ──► tables: rows ──► model: sorted, filtered ──► draw
//!  keys ──────────────────────────────────────┘
//! ```
//!
//! A thread of its own asks the daemon, so that keys have an effect while the daemon is silent.

mod draw;
mod model;
mod rates;
mod sample;
mod screen;
mod tables;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::Duration;

use iwarp_control::Exit;
use iwarp_terminal::clock::Clock;
use iwarp_terminal::{Failure, Output};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use self::draw::Theme;
use self::model::{Action, Model};
use self::sample::Sample;
use self::screen::Screen;
use crate::args::{Global, Top};
use crate::command;
use crate::watch::Session;

/// The longest wait for a key: signals and samples are noticed in between.
const KEY_WAIT: Duration = Duration::from_millis(50);
/// The shortest one, while the daemon is expected to answer.
const KEY_WAIT_MIN: Duration = Duration::from_millis(10);

/// Shows the tables until the user quits.
pub(crate) fn run(options: &Top, global: &Global, output: &Output) -> Result<(), Failure> {
    if !output.is_text() {
        let failure = Failure::usage("`top` is for people and has no JSON");
        return Err(
            failure.with_help("`iwarpctl -j stats --watch` writes counters with rates as lines of JSON")
        );
    }
    if !io::stdout().is_terminal() {
        let failure = Failure::usage("`top` needs a terminal, and stdout is none");
        return Err(failure.with_help("`iwarpctl stats --watch` writes to a file or a pipe"));
    }
    let clock = Clock::start();
    let first = Session::new(|| command::connect(global)).ask(None, Sample::take)?;
    let mut model = Model::new(options, first, clock.now());
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
        let value = usize::try_from(number).unwrap_or_default();
        signal_hook::flag::register_usize(number, Arc::clone(&signal), value)
            .map_err(|error| failed(&error))?;
    }
    let theme = Theme { colored: output.colors_results() };
    let mut screen = Screen::open().map_err(|error| failed(&error))?;
    let ended = follow(&mut model, &mut screen, theme, &sampler(global, clock), &signal, clock);
    drop(screen);
    ended.map_err(|error| failed(&error))?;
    match signal.load(Ordering::Relaxed) {
        0 => Ok(()),
        // The parent sees the signal that ended this process.
        number => signal_hook::low_level::emulate_default_handler(i32::try_from(number).unwrap_or(SIGTERM))
            .map_err(|error| failed(&error)),
    }
}

fn failed(error: &io::Error) -> Failure {
    Failure::new(Exit::Failed, "terminal", format!("cannot use the terminal: {error}"))
}

/// A thread that asks the daemon: takes the pause until the next question, and gives a sample with its time.
struct Sampler {
    ask: Sender<Duration>,
    samples: Receiver<Result<(Sample, Duration), Failure>>,
}

fn sampler(global: &Global, clock: Clock) -> Sampler {
    let (ask, asked) = mpsc::channel::<Duration>();
    let (give, samples) = mpsc::channel();
    let global = global.clone();
    std::thread::spawn(move || {
        let mut session = Session::new(|| command::connect(&global));
        for pause in asked {
            let sample = session.ask(Some(pause), Sample::take);
            if give.send(sample.map(|sample| (sample, clock.now()))).is_err() {
                return;
            }
        }
    });
    Sampler { ask, samples }
}

/// Draws samples and handles keys until the user quits or a signal arrives.
fn follow(
    model: &mut Model,
    screen: &mut Screen,
    theme: Theme,
    sampler: &Sampler,
    signal: &AtomicUsize,
    clock: Clock,
) -> io::Result<()> {
    let mut asked_at = clock.now();
    let mut waits = false;
    screen.draw(model, theme)?;
    while signal.load(Ordering::Relaxed) == 0 {
        let left = asked_at.saturating_add(model.interval).saturating_sub(clock.now());
        if left.is_zero() && !waits && !model.paused {
            (asked_at, waits) = (clock.now(), true);
            sampler.ask.send(model.interval).map_err(io::Error::other)?;
        }
        let mut changed = true;
        match sampler.samples.try_recv() {
            Ok(sample) => {
                waits = false;
                match sample {
                    Ok((sample, at)) => model.update(sample, at),
                    Err(failure) => model.problem = Some(failure.message),
                }
            }
            Err(TryRecvError::Empty) => changed = false,
            Err(error) => return Err(io::Error::other(error)),
        }
        if changed {
            screen.draw(model, theme)?;
        }
        let wait = if model.paused { KEY_WAIT } else { left.clamp(KEY_WAIT_MIN, KEY_WAIT) };
        if event::poll(wait)? {
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => match model.key(key) {
                    Action::None => {}
                    Action::Quit => return Ok(()),
                    Action::Redraw => screen.clear()?,
                    Action::Suspend => screen.suspend()?,
                },
                Event::Resize(..) => screen.clear()?,
                _ => {}
            }
            screen.draw(model, theme)?;
        }
    }
    Ok(())
}
