//! `iwarpctl top`: workers, ports, connections, regions and applications with their rates, live on a terminal.
//!
//! ```text
//!  sample ──► rates ──► tables: rows ──► model: sorted, filtered ──► draw
//!  keys ──────────────────────────────────────┘
//! ```
//!
//! A thread of its own asks the daemon, so that keys have an effect while the daemon is silent. Another one reads the
//! keys, so that signals and the loss of the terminal have an effect, too: crossterm reads a terminal that is gone
//! again and again, and does not return.

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
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use iwarp_control::Exit;
use iwarp_terminal::clock::Clock;
use iwarp_terminal::{Failure, Output};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use self::draw::Theme;
use self::model::{Action, Model};
use self::sample::Sample;
use self::screen::Screen;
use crate::args::{Global, Top};
use crate::command;
use crate::watch::Session;

/// The longest wait for a key or a sample: signals and the loss of the terminal are noticed in between.
const INPUT_WAIT: Duration = Duration::from_millis(50);
/// The shortest one, while the daemon is expected to answer.
const INPUT_WAIT_MIN: Duration = Duration::from_millis(10);

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
    let (give, inputs) = mpsc::channel();
    read_keys(give.clone());
    let ask = start_sampler(global, clock, give);
    let ended = follow(&mut model, &mut screen, theme, (&ask, &inputs), &signal, clock);
    drop(screen);
    match signal.load(Ordering::Relaxed) {
        0 => ended.map_err(|error| failed(&error)),
        // The parent sees the signal that ended this process.
        number => signal_hook::low_level::emulate_default_handler(i32::try_from(number).unwrap_or(SIGTERM))
            .map_err(|error| failed(&error)),
    }
}

fn failed(error: &io::Error) -> Failure {
    Failure::new(Exit::Failed, "terminal", format!("cannot use the terminal: {error}"))
}

/// Input of the loop, from the two other threads.
enum Input {
    /// A sample with its time, or the reason why there is none.
    Sample(Box<Result<(Sample, Duration), Failure>>),
    /// A key, or a new size of the terminal.
    Terminal(io::Result<Event>),
}

/// Starts the thread that asks the daemon: it takes the pause until the next question, and gives a sample.
fn start_sampler(global: &Global, clock: Clock, give: Sender<Input>) -> Sender<Duration> {
    let (ask, asked) = mpsc::channel::<Duration>();
    let global = global.clone();
    std::thread::spawn(move || {
        let mut session = Session::new(|| command::connect(&global));
        for pause in asked {
            let sample = session.ask(Some(pause), Sample::take);
            if give.send(Input::Sample(Box::new(sample.map(|sample| (sample, clock.now()))))).is_err() {
                return;
            }
        }
    });
    ask
}

/// Starts the thread that reads the terminal.
fn read_keys(give: Sender<Input>) {
    std::thread::spawn(move || {
        loop {
            let event = event::read();
            let failed = event.is_err();
            if give.send(Input::Terminal(event)).is_err() || failed {
                return;
            }
        }
    });
}

/// Returns true if nobody is at the other end of the terminal any more.
fn terminal_is_gone() -> bool {
    let stdout = io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    poll(&mut polled, Some(&Timespec::default())).is_ok()
        && polled.iter().any(|one| one.revents().intersects(gone))
}

/// Draws samples and handles keys until the user quits, a signal arrives, or the terminal is gone.
fn follow(
    model: &mut Model,
    screen: &mut Screen,
    theme: Theme,
    (ask, inputs): (&Sender<Duration>, &Receiver<Input>),
    signal: &AtomicUsize,
    clock: Clock,
) -> io::Result<()> {
    let mut asked_at = clock.now();
    let mut waits = false;
    screen.draw(model, theme)?;
    while signal.load(Ordering::Relaxed) == 0 {
        if terminal_is_gone() {
            return Err(io::Error::other("it is gone"));
        }
        let left = asked_at.saturating_add(model.interval).saturating_sub(clock.now());
        if left.is_zero() && !waits && !model.paused {
            (asked_at, waits) = (clock.now(), true);
            ask.send(model.interval).map_err(io::Error::other)?;
        }
        let wait = if model.paused { INPUT_WAIT } else { left.clamp(INPUT_WAIT_MIN, INPUT_WAIT) };
        match inputs.recv_timeout(wait) {
            Ok(Input::Sample(sample)) => {
                waits = false;
                match *sample {
                    Ok((sample, at)) => model.update(sample, at),
                    Err(failure) => model.problem = Some(failure.message),
                }
            }
            Ok(Input::Terminal(event)) => match event? {
                Event::Key(key) if key.kind != KeyEventKind::Release => match model.key(key) {
                    Action::None => {}
                    Action::Quit => return Ok(()),
                    Action::Redraw => screen.clear()?,
                    Action::Suspend => screen.suspend()?,
                },
                Event::Resize(..) => screen.clear()?,
                _ => {}
            },
            Err(RecvTimeoutError::Timeout) => continue,
            Err(error) => return Err(io::Error::other(error)),
        }
        screen.draw(model, theme)?;
    }
    Ok(())
}
