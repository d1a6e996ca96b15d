//! A thread of this process as the kernel sees it (proc(5)): for the log, when a worker does not poll.

use std::fmt;
use std::time::Duration;

/// State of a thread, and its work since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadState {
    thread: u32,
    /// Letter of the state: R runs or waits for a CPU, S sleeps, D waits uninterruptibly.
    state: char,
    /// Function of the kernel in which it waits; empty if the kernel does not tell.
    wait_channel: String,
    /// System call that it is in, with its arguments, or `running`; empty if the kernel does not tell.
    system_call: String,
    /// Functions of the kernel that it is in, if the daemon may know.
    stack: String,
    /// CPU that it has run on last.
    cpu: u32,
    /// Page faults that waited for a disk.
    major_faults: u64,
    /// Time on a CPU.
    ran: Duration,
    /// Time in the run queue of a CPU, which ran others.
    queued: Duration,
}

impl ThreadState {
    /// Reads the state of a thread; `None` if it has ended.
    pub(crate) fn read(thread: u32) -> Option<Self> {
        let read = |name| std::fs::read_to_string(format!("/proc/self/task/{thread}/{name}"));
        let text = |name| read(name).unwrap_or_default().trim().to_owned();
        let stack = read("stack").unwrap_or_default();
        let functions = stack.lines().filter_map(|line| line.split_whitespace().nth(1));
        let state = Self {
            thread,
            wait_channel: text("wchan"),
            system_call: text("syscall"),
            stack: functions.collect::<Vec<_>>().join(" "),
            ..Self::default()
        };
        state.with(&read("stat").ok()?, &read("schedstat").unwrap_or_default())
    }

    /// Adds the content of `stat` and `schedstat`.
    fn with(mut self, stat: &str, schedstat: &str) -> Option<Self> {
        // The name, in parentheses, may contain any character.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        self.state = fields.next()?.chars().next()?;
        // Fields 12 and 39; that before is field 3.
        self.major_faults = fields.nth(8)?.parse().ok()?;
        self.cpu = fields.nth(26)?.parse().ok()?;
        let mut times = schedstat.split_whitespace().map(|field| field.parse().map(Duration::from_nanos));
        let mut time = || times.next().and_then(Result::ok).unwrap_or_default();
        (self.ran, self.queued) = (time(), time());
        Some(self)
    }

    /// Returns what the thread does, and what it has done since `before`, for the log.
    pub(crate) fn since<'a>(&'a self, before: &'a Self) -> impl fmt::Display + 'a {
        Since { now: self, before }
    }
}

struct Since<'a> {
    now: &'a ThreadState,
    before: &'a ThreadState,
}

impl fmt::Display for Since<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { now, before } = self;
        let unknown = |text: &str| if text.is_empty() { "unknown".to_owned() } else { text.to_owned() };
        let ms = |now: Duration, before: Duration| now.saturating_sub(before).as_millis();
        write!(
            f,
            "thread {} is in state {} on CPU {}, wait channel {}, system call {}",
            now.thread,
            now.state,
            now.cpu,
            unknown(&now.wait_channel),
            unknown(&now.system_call),
        )?;
        if !now.stack.is_empty() {
            write!(f, ", in {}", now.stack)?;
        }
        write!(
            f,
            "; since it was last seen to poll it ran for {} ms, waited for a CPU for {} ms, and had {} page faults \
             from disk",
            ms(now.ran, before.ran),
            ms(now.queued, before.queued),
            now.major_faults.saturating_sub(before.major_faults),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const STAT: &str = "4711 (a) b (c) D 1 4711 4711 0 -1 4194368 120 0 7 0 15 3 0 0 20 0 5 0 100 1 2 3 4 5 6 7 8 \
                        9 10 11 12 13 14 15 17 6 0 0 0 0 0 0 0 0 0 0 0 0 0";

    #[test]
    fn the_fields_of_the_kernel_are_found_behind_any_name() {
        let empty = ThreadState { thread: 4711, ..ThreadState::default() };
        let state = empty.clone().with(STAT, "5000000 2000000000 77").unwrap();
        assert_eq!((state.state, state.major_faults), ('D', 7));
        assert_eq!((state.ran, state.queued), (Duration::from_millis(5), Duration::from_secs(2)));
        let text = state.since(&ThreadState::default()).to_string();
        assert!(text.starts_with("thread 4711 is in state D on CPU 6, wait channel unknown"), "{text}");
        assert!(
            text.ends_with("ran for 5 ms, waited for a CPU for 2000 ms, and had 7 page faults from disk"),
            "{text}"
        );
        assert_eq!(empty.clone().with("nonsense", ""), None);
        assert!(empty.with(STAT, "").is_some(), "a kernel without schedstat");
    }

    #[test]
    fn a_thread_that_sleeps_is_told_from_one_that_runs() {
        let (sender, receiver) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            sender.send(u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap()).unwrap();
            ends.recv().unwrap_err();
        });
        let number = receiver.recv().unwrap();
        let mut state = ThreadState::read(number).unwrap();
        while state.state != 'S' {
            std::thread::yield_now();
            state = ThreadState::read(number).unwrap();
        }
        assert!(!state.system_call.is_empty() && state.system_call != "running", "{state:?}");
        let own = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        assert_eq!(ThreadState::read(own).unwrap().state, 'R');
        drop(end);
        thread.join().unwrap();
        assert_eq!(ThreadState::read(u32::MAX), None);
    }
}
