//! A service whose calls wait in system calls until the test lets them go.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Barrier;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

use rustix::fs::{MemfdFlags, memfd_create};

use super::*;
use crate::counters::TransferStats;
use crate::kernel::Durability;
use crate::tasks::Engine;
use crate::transfer::Transfer;

/// Time in which a call that waits for nothing is answered, on a machine that does other work.
const SOON: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    client: u8,
    number: u32,
}

impl Key for Call {
    fn client(&self) -> IpAddr {
        IpAddr::from([10, 0, 0, self.client])
    }
}

type Work = Box<dyn FnOnce() + Send>;

/// Messages that the service has not seen, and a count of wakes.
#[derive(Default)]
struct Line {
    calls: Mutex<Vec<(Call, Work)>>,
    wakes: Mutex<u64>,
    woken: Condvar,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").finish_non_exhaustive()
    }
}

impl Line {
    fn call(&self, client: u8, number: u32, work: impl FnOnce() + Send + 'static) {
        self.calls.lock().unwrap().push((Call { client, number }, Box::new(work)));
        self.ring();
    }

    fn ring(&self) {
        *self.wakes.lock().unwrap() += 1;
        self.woken.notify_all();
    }
}

impl Wait for Arc<Line> {
    fn wait(&self, most: Duration) -> Result<()> {
        let wakes = self.wakes.lock().unwrap();
        *self.woken.wait_timeout_while(wakes, most, |wakes| *wakes == 0).unwrap().0 = 0;
        Ok(())
    }

    fn wake(&self) {
        self.ring();
    }
}

struct Calls {
    line: Arc<Line>,
    tasks: Tasks<Call, ()>,
    answers: Sender<Call>,
    fails_at: u32,
    file: Arc<OwnedFd>,
}

/// Disk that answers each transfer after [`DISK`], any number at a time.
#[derive(Debug)]
struct Disk {
    started: VecDeque<(Instant, u64, Transfer)>,
    line: Arc<Line>,
}

const DISK: Duration = Duration::from_millis(2);

impl Engine for Disk {
    #[allow(clippy::disallowed_methods, reason = "the disk takes its time")]
    fn start(&mut self, number: u64, transfer: Transfer) {
        self.started.push_back((now(), number, transfer));
        let line = Arc::clone(&self.line);
        std::thread::spawn(move || {
            std::thread::sleep(DISK);
            line.ring();
        });
    }

    fn ended(&mut self) -> Option<(u64, Transfer)> {
        let (started, ..) = self.started.front()?;
        if started.elapsed() < DISK {
            return None;
        }
        let (_, number, mut transfer) = self.started.pop_front()?;
        transfer.advance(Ok(0));
        Some((number, transfer))
    }
}

impl Service for Calls {
    type Key = Call;
    type Result = ();
    type Wait = Arc<Line>;

    fn turn(&mut self) -> Result<bool> {
        let calls = std::mem::take(&mut *self.line.calls.lock().unwrap());
        let busy = self.tasks.ended() || !calls.is_empty();
        for (call, work) in calls {
            anyhow::ensure!(call.number != self.fails_at, "the service has ended");
            let file = Arc::clone(&self.file);
            self.tasks.begin(call, move |io| {
                Box::pin(async move {
                    work();
                    // With an engine, the call waits for its disk, too.
                    io.sync(&file, Durability::Data).await.unwrap();
                })
            });
        }
        Ok(busy)
    }

    fn arm(&mut self) {}

    fn waiting(&self) -> Arc<Line> {
        Arc::clone(&self.line)
    }

    fn calls(&mut self) -> &mut Tasks<Call, ()> {
        &mut self.tasks
    }

    fn answer(&mut self, call: Call, (): ()) {
        let _ = self.answers.send(call);
    }
}

/// Runs a crew while `test` calls it; returns the result of the crew.
fn crew(count_max: u16, test: impl FnOnce(&Arc<Line>, &Receiver<Call>)) -> Result<()> {
    crew_with(count_max, false, test)
}

/// As [`crew`]; with a disk, each call waits for that, too.
fn crew_with(count_max: u16, has_disk: bool, test: impl FnOnce(&Arc<Line>, &Receiver<Call>)) -> Result<()> {
    let line = Arc::<Line>::default();
    let (answers, answered) = channel();
    let disk = Disk { started: VecDeque::new(), line: Arc::clone(&line) };
    let engine: Option<Box<dyn Engine>> = if has_disk { Some(Box::new(disk)) } else { None };
    let tasks = Tasks::on(engine, 64, Arc::<TransferStats>::default());
    let file = Arc::new(memfd_create("crew", MemfdFlags::CLOEXEC).unwrap());
    let service = Calls { line: Arc::clone(&line), tasks, answers, fails_at: u32::MAX, file };
    let ends = Arc::new(std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        let asked = Arc::clone(&ends);
        let run = move || {
            Crew::new("crew", count_max).run(service, &|| asked.load(std::sync::atomic::Ordering::Acquire))
        };
        let running = scope.spawn(run);
        test(&line, &answered);
        ends.store(true, std::sync::atomic::Ordering::Release);
        running.join().unwrap()
    })
}

/// A call that waits until the gate is dropped.
fn hangs(gates: &mut Vec<Sender<()>>) -> impl FnOnce() + Send + use<> {
    let (gate, opens) = channel::<()>();
    gates.push(gate);
    move || assert!(opens.recv().is_err())
}

#[test]
fn a_call_that_hangs_delays_no_other_one() {
    for threads in [2, 3, 16] {
        let mut gates = Vec::new();
        crew(threads, |line, answered| {
            line.call(1, 0, hangs(&mut gates));
            for number in 1..200 {
                line.call(2, number, || {});
                assert_eq!(answered.recv_timeout(SOON), Ok(Call { client: 2, number }), "{threads} threads");
            }
            gates.clear();
            assert_eq!(answered.recv_timeout(SOON), Ok(Call { client: 1, number: 0 }));
        })
        .unwrap();
    }
}

#[test]
fn clients_that_hang_leave_threads_to_others() {
    for (threads, clients) in [(2, 1), (4, 2), (16, 4), (64, 6)] {
        let mut gates = Vec::new();
        crew(threads, |line, answered| {
            let mut hung = 0;
            for client in 1..=clients {
                for _ in 0..40 {
                    line.call(client, hung, hangs(&mut gates));
                    hung += 1;
                }
            }
            for number in 1000..1050 {
                line.call(99, number, || {});
                assert_eq!(answered.recv_timeout(SOON), Ok(Call { client: 99, number }), "{threads} threads");
            }
            gates.clear();
            let mut ended: Vec<_> = (0..hung).map(|_| answered.recv_timeout(SOON).unwrap().number).collect();
            ended.sort_unstable();
            assert_eq!(ended, (0..hung).collect::<Vec<_>>(), "each call is answered once");
        })
        .unwrap();
    }
}

/// Connections of one client (nconnect) are served at the same time: each call waits for the other one.
#[test]
fn calls_of_a_client_are_executed_at_the_same_time() {
    crew(4, |line, answered| {
        for round in 0..20 {
            let both = Arc::new(Barrier::new(2));
            for number in [2 * round, 2 * round + 1] {
                let both = Arc::clone(&both);
                line.call(1, number, move || {
                    both.wait();
                });
            }
            answered.recv_timeout(SOON).unwrap();
            answered.recv_timeout(SOON).unwrap();
        }
    })
    .unwrap();
}

#[test]
fn many_calls_of_many_clients_are_answered_once() {
    for threads in [1, 2, 5] {
        crew(threads, |line, answered| {
            for number in 0..5000_u32 {
                line.call((number % 7).to_le_bytes()[0], number, || {});
            }
            let mut numbers: Vec<_> =
                (0..5000).map(|_| answered.recv_timeout(SOON).unwrap().number).collect();
            numbers.sort_unstable();
            assert_eq!(numbers, (0..5000).collect::<Vec<_>>());
            assert_eq!(answered.recv_timeout(Duration::from_millis(5)), Err(RecvTimeoutError::Timeout));
        })
        .unwrap();
    }
}

#[test]
fn the_crew_ends_while_a_call_hangs_and_if_the_service_does() {
    let mut gates = Vec::new();
    let begin = now();
    crew(3, |line, answered| {
        line.call(1, 0, hangs(&mut gates));
        line.call(2, 1, || {});
        answered.recv_timeout(SOON).unwrap();
    })
    .unwrap();
    assert!(begin.elapsed() < SOON);
    let failed = crew(3, |line, answered| {
        line.call(1, u32::MAX, || {});
        assert!(answered.recv_timeout(SOON).is_err(), "it is not executed");
    });
    assert_eq!(failed.unwrap_err().to_string(), "the service has ended");
}

/// Four clients whose calls each wait 2 ms for the disk have nearly four times the calls of one.
#[test]
fn clients_wait_for_the_disk_at_the_same_time() {
    const CALLS: u32 = 100;
    let mut times = Vec::new();
    for clients in [1, 4] {
        crew_with(2, true, |line, answered| {
            let begin = now();
            (0..clients).for_each(|client| line.call(client, 1, || {}));
            for _ in 0..u32::from(clients) * CALLS {
                let Call { client, number } = answered.recv_timeout(SOON).unwrap();
                if number < CALLS {
                    line.call(client, number + 1, || {});
                }
            }
            times.push(begin.elapsed());
        })
        .unwrap();
    }
    let ratio = 4.0 * times[0].as_secs_f64() / times[1].as_secs_f64();
    println!("four clients have {ratio:.2} times the calls of one: {times:?}");
    assert!(ratio > 3.0, "{ratio}");
}
