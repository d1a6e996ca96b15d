//! Requests of programs, which are executed in parts between poll iterations: the users in turn, and the requests of
//! one user one after the other.

use std::collections::VecDeque;
use std::task::Poll;
use std::time::Duration;

use iwarp_shared_verbs::worker::{ContextId, UserId};
use iwarp_shared_verbs::{Request, Response};
use rdma::verbs::{MemoryRegion, VerbsError};
use tcp_stack::Instant;
use tokio::sync::oneshot;

use super::WorkerPort;
use super::context_command::{Executed, NewMr, Released};

/// Time after which a poll iteration executes no further part. A part takes a few microseconds.
const SLICE: Duration = Duration::from_micros(20);
/// Time, as a multiple of that which requests have taken, that is left to frames and posted work before the next part.
const REST: u32 = 3;

/// Requests of programs that are not done.
#[derive(Debug)]
pub struct Jobs<J = Job> {
    /// Jobs by user, those of a user in the order of their arrival.
    users: Vec<(UserId, VecDeque<J>)>,
    /// Index in `users` of the user who had the last turn.
    last: usize,
    /// Time before which nothing is executed.
    not_before: Instant,
}

impl<J> Default for Jobs<J> {
    fn default() -> Self {
        Self { users: Vec::new(), last: 0, not_before: Instant::default() }
    }
}

/// Requests of one command.
#[derive(Debug)]
pub struct Job {
    /// Index of the port.
    pub(super) port: usize,
    context: ContextId,
    work: Work,
}

#[derive(Debug)]
enum Work {
    Execute { requests: VecDeque<Request>, done: Executed, reply: oneshot::Sender<Executed> },
    Register { mr: Box<NewMr>, reply: oneshot::Sender<Result<MemoryRegion, VerbsError>> },
    Close { released: Vec<Released>, reply: oneshot::Sender<Vec<Released>> },
    Done,
}

impl<J> Jobs<J> {
    /// Returns true if no request waits.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Adds a job behind the others of its user.
    pub(super) fn push(&mut self, user: UserId, job: J) {
        match self.users.iter_mut().find(|(id, _)| *id == user) {
            Some((_, jobs)) => jobs.push_back(job),
            None => self.users.push((user, VecDeque::from([job]))),
        }
    }

    /// Executes parts of requests until [`SLICE`] has passed by the clock, unless it is too early for that. `run_part`
    /// executes one part and returns true once the job is done.
    #[cold]
    pub(super) fn run(
        &mut self,
        clock: &mut dyn FnMut() -> Instant,
        run_part: &mut dyn FnMut(Instant, &mut J) -> bool,
    ) {
        let begin = clock();
        if begin < self.not_before {
            return;
        }
        let mut now = begin;
        while !self.is_empty() && now.saturating_since(begin) < SLICE {
            self.last = self.last.checked_add(1).filter(|next| *next < self.users.len()).unwrap_or(0);
            let Some((_, jobs)) = self.users.get_mut(self.last) else { break };
            if jobs.front_mut().is_none_or(|job| run_part(now, job)) {
                jobs.pop_front();
            }
            if jobs.is_empty() {
                self.users.swap_remove(self.last);
            }
            now = clock();
        }
        self.not_before = now + now.saturating_since(begin) * REST;
    }
}

impl Job {
    /// Executes requests in order.
    pub(super) fn execute(
        (port, context): (usize, ContextId),
        requests: Vec<Request>,
        reply: oneshot::Sender<Executed>,
    ) -> Self {
        let done = Executed { results: Vec::with_capacity(requests.len()), released: Vec::new() };
        Self { port, context, work: Work::Execute { requests: requests.into(), done, reply } }
    }

    /// Attaches memory and registers it.
    pub(super) fn register(
        (port, context): (usize, ContextId),
        mr: Box<NewMr>,
        reply: oneshot::Sender<Result<MemoryRegion, VerbsError>>,
    ) -> Self {
        Self { port, context, work: Work::Register { mr, reply } }
    }

    /// Closes the context, in parts.
    pub(super) fn close((port, context): (usize, ContextId), reply: oneshot::Sender<Vec<Released>>) -> Self {
        Self { port, context, work: Work::Close { released: Vec::new(), reply } }
    }

    /// Executes a part. Returns true once the job is done. The requester may have gone; the answer is then dropped.
    pub(super) fn run_part(&mut self, now: Instant, port: &mut WorkerPort) -> bool {
        let context = self.context;
        match &mut self.work {
            Work::Execute { requests, done, .. } => {
                if let Some(request) = requests.front() {
                    let part = port.engine_mut().context_execute_part(now, context, request);
                    let Poll::Ready(result) = part else { return false };
                    if let Ok(Response::Deregistered(region)) = result {
                        done.released.extend(port.detach_memory(region));
                    }
                    done.results.push(result);
                    requests.pop_front();
                }
                if !requests.is_empty() {
                    return false;
                }
            }
            Work::Close { released, .. } => {
                let mut region = None;
                let part = port.engine_mut().context_close_part(now, context, &mut |of| region = Some(of));
                released.extend(region.and_then(|region| port.detach_memory(region)));
                if part.is_pending() {
                    return false;
                }
            }
            Work::Register { .. } | Work::Done => {}
        }
        match std::mem::replace(&mut self.work, Work::Done) {
            Work::Execute { done, reply, .. } => drop(reply.send(done)),
            Work::Register { mr, reply } => drop(reply.send(port.register(now, context, *mr))),
            // The context may not have been open.
            Work::Close { released, reply } => drop(reply.send(released)),
            Work::Done => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: Duration = Duration::from_micros(3);

    /// Time that passes with each part.
    struct Lab {
        now: Instant,
        jobs: Jobs<(u32, u32)>,
        done: Vec<u32>,
    }

    impl Lab {
        /// Runs one poll iteration. Returns the parts that were executed, by user.
        fn run(&mut self) -> Vec<u32> {
            let Self { now, jobs, done } = self;
            let (time, mut parts) = (std::cell::Cell::new(*now), Vec::new());
            jobs.run(&mut || time.get(), &mut |_, (user, left)| {
                time.set(time.get() + PART);
                parts.push(*user);
                *left -= 1;
                if *left == 0 {
                    done.push(*user);
                }
                *left == 0
            });
            *now = time.get();
            parts
        }
    }

    fn lab(jobs: &[(u32, u32)]) -> Lab {
        let mut lab = Lab { now: Instant::default(), jobs: Jobs::default(), done: Vec::new() };
        for job in jobs {
            lab.jobs.push(UserId(job.0), *job);
        }
        lab
    }

    #[test]
    fn an_iteration_has_a_slice_and_the_next_one_comes_when_others_had_their_time() {
        let mut lab = lab(&[(1, 1000)]);
        let (mut parts, began) = (0, lab.now);
        for _ in 0..100 {
            let of_slice = lab.run();
            assert!(of_slice.len() <= 7, "{} parts of 3 µs in a slice of 20 µs", of_slice.len());
            parts += u32::try_from(of_slice.len()).unwrap();
            lab.now += Duration::from_micros(50);
        }
        let share = f64::from(parts) * 3.0 / (lab.now.saturating_since(began).as_micros() as f64);
        assert!((0.15..=0.25).contains(&share), "{share} of the time");
    }

    #[test]
    fn users_have_turns_however_many_requests_each_has() {
        let mut jobs = vec![(1, 500); 31];
        jobs.push((2, 3));
        let mut lab = lab(&jobs);
        let first = lab.run();
        assert_eq!(first.iter().filter(|user| **user == 2).count(), 3);
        assert_eq!(lab.done, [2]);
        while !lab.jobs.is_empty() {
            lab.now += Duration::from_micros(200);
            assert!(lab.run().iter().all(|user| *user == 1));
        }
        assert_eq!(lab.done.len(), 32);
    }
}
