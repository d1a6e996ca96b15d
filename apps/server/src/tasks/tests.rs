//! Tasks on an engine that a test controls.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, memfd_create};

use super::*;
use crate::region::testing::memory;
use crate::transfer::Operation;

impl Key for u32 {
    fn client(&self) -> IpAddr {
        IpAddr::from((*self / 1000).to_be_bytes())
    }
}

/// Begins a task on this thread. Returns its result if it does not have to wait.
fn begin<T: Send + 'static>(
    tasks: &mut Tasks<u32, T>,
    key: u32,
    task: impl FnOnce(Io) -> Execution<T>,
) -> Option<(u32, T)> {
    tasks.begin(key, task);
    run(tasks).pop()
}

/// Executes the tasks that are ready. Returns the results of those that are done.
fn run<T>(tasks: &mut Tasks<u32, T>) -> Vec<(u32, T)> {
    let mut done = Vec::new();
    while let Some(mut running) = tasks.next(1) {
        loop {
            let polled = running.poll();
            running = match tasks.settle(running, polled) {
                Settled::Again(again) => again,
                Settled::Done(key, result) => break done.push((key, result)),
                Settled::Waits => break,
            };
        }
    }
    done
}

/// Goes on with tasks whose transfers have ended.
fn ended<T>(tasks: &mut Tasks<u32, T>) -> Vec<(u32, T)> {
    tasks.ended();
    run(tasks)
}

/// An engine whose operations end when the test says so.
#[derive(Clone, Debug, Default)]
struct Slow(Arc<Mutex<SlowState>>);

#[derive(Debug, Default)]
struct SlowState {
    started: VecDeque<(u64, Transfer)>,
    ended: VecDeque<(u64, Transfer)>,
    in_flight_most: usize,
}

impl Engine for Slow {
    fn start(&mut self, number: u64, transfer: Transfer) {
        assert!(transfer.next().is_some(), "nothing to do");
        let mut state = self.0.lock().unwrap();
        state.started.push_back((number, transfer));
        state.in_flight_most = state.in_flight_most.max(state.started.len());
    }

    fn ended(&mut self) -> Option<(u64, Transfer)> {
        self.0.lock().unwrap().ended.pop_front()
    }
}

impl Slow {
    /// Ends an operation that was started. Returns it.
    fn end(&self, at: usize, result: Result<u32, Errno>) -> Operation {
        let mut state = self.0.lock().unwrap();
        let (number, mut transfer) = state.started.remove(at).unwrap();
        let operation = transfer.next().unwrap();
        transfer.advance(result);
        state.ended.push_back((number, transfer));
        operation
    }

    fn started(&self) -> usize {
        self.0.lock().unwrap().started.len()
    }
}

type Done = Result<u32, Errno>;

fn tasks<T: Send + 'static>(in_flight_max: u16) -> (Tasks<u32, T>, Slow, Arc<TransferStats>) {
    let (slow, stats) = (Slow::default(), Arc::<TransferStats>::default());
    (Tasks::on(Some(Box::new(slow.clone())), in_flight_max, Arc::clone(&stats)), slow, stats)
}

fn file() -> Arc<OwnedFd> {
    Arc::new(memfd_create("tasks", MemfdFlags::CLOEXEC).unwrap())
}

/// A task that writes `length` bytes.
fn write(
    file: &Arc<OwnedFd>,
    length: u32,
    durability: Durability,
) -> impl FnOnce(Io) -> Execution<Done> + use<> {
    let file = Arc::clone(file);
    let data = move || Written::Own(vec![1; length as usize].into());
    move |io| Box::pin(async move { io.write(&file, None, (0, length), data, durability).await })
}

fn gauges(stats: &TransferStats) -> [u64; 4] {
    [&stats.in_flight, &stats.waiting, &stats.done, &stats.waited].map(value)
}

#[test]
fn without_an_engine_no_task_waits() {
    let stats = Arc::<TransferStats>::default();
    let mut tasks = Tasks::on(None, 1, Arc::clone(&stats));
    let done = begin(&mut tasks, 3, write(&file(), 5, Durability::File));
    assert_eq!(done, Some((3, Ok(5))));
    assert_eq!(gauges(&stats), [0; 4]);
}

#[test]
fn a_durable_write_is_answered_after_its_sync() {
    let (mut tasks, slow, _) = tasks(4);
    assert_eq!(begin(&mut tasks, 0, write(&file(), 10, Durability::Data)), None);
    assert_eq!(slow.end(0, Ok(4)), Operation::Write(0));
    assert_eq!(ended(&mut tasks), []);
    assert_eq!(slow.end(0, Err(Errno::INTR)), Operation::Write(4));
    assert_eq!(ended(&mut tasks), []);
    assert_eq!(slow.end(0, Ok(6)), Operation::Write(4));
    assert_eq!(ended(&mut tasks), [], "the data is not durable");
    assert_eq!(slow.end(0, Ok(0)), Operation::Sync(true));
    assert_eq!(ended(&mut tasks), [(0, Ok(10))]);

    assert_eq!(begin(&mut tasks, 1, write(&file(), 10, Durability::File)), None);
    slow.end(0, Ok(10));
    assert_eq!(ended(&mut tasks), []);
    assert_eq!(slow.end(0, Err(Errno::IO)), Operation::Sync(false));
    assert_eq!(ended(&mut tasks), [(1, Err(Errno::IO))]);
}

#[test]
fn a_slow_task_delays_no_other_one() {
    let (mut tasks, slow, stats) = tasks(2);
    assert_eq!(begin(&mut tasks, 0, write(&file(), 1, Durability::None)), None);
    for key in 1..100 {
        assert_eq!(begin(&mut tasks, key, write(&file(), 1, Durability::None)), None);
        slow.end(1, Ok(1));
        assert_eq!(ended(&mut tasks), [(key, Ok(1))]);
    }
    assert_eq!(gauges(&stats), [1, 0, 99, 0]);
    slow.end(0, Ok(1));
    assert_eq!(ended(&mut tasks), [(0, Ok(1))]);
}

#[test]
fn tasks_wait_for_room_in_order_and_without_memory() {
    let (mut tasks, slow, stats) = tasks(1);
    assert_eq!(begin(&mut tasks, 0, write(&file(), 1, Durability::None)), None);
    let copied = Arc::new(Mutex::new(Vec::new()));
    for key in [1, 2] {
        let (file, copied) = (file(), Arc::clone(&copied));
        let data = move || {
            copied.lock().unwrap().push(key);
            Written::Own(vec![1].into())
        };
        let task = |io: Io| -> Execution<Done> {
            Box::pin(async move { io.write(&file, None, (0, 1), data, Durability::None).await })
        };
        assert_eq!(begin(&mut tasks, key, task), None);
    }
    assert_eq!(*copied.lock().unwrap(), [0; 0], "data is copied when there is room");
    assert_eq!((slow.started(), gauges(&stats)), (1, [1, 2, 0, 2]));
    slow.end(0, Ok(1));
    assert_eq!(ended(&mut tasks), [(0, Ok(1))]);
    assert_eq!((slow.started(), gauges(&stats)), (1, [1, 1, 1, 2]));
    assert_eq!(*copied.lock().unwrap(), [1]);
    slow.end(0, Ok(1));
    assert_eq!(ended(&mut tasks), [(1, Ok(1))]);
    assert_eq!((*copied.lock().unwrap()).len(), 2);
}

#[test]
fn a_read_from_the_page_cache_is_no_transfer() {
    let mut on_disk = tempfile::tempfile().unwrap();
    io::Write::write_all(&mut on_disk, &[7; 5000]).unwrap();
    let on_disk = Arc::new(OwnedFd::from(on_disk));
    let (mut tasks, slow, stats) = tasks(1);
    // There is no room, and none is needed.
    begin(&mut tasks, 0, |io| {
        Box::pin(async move { io.sync(&file(), Durability::Data).await.map(|_| vec![]) })
    });
    for (offset, length, expected) in [(0, 5000, 5000), (4000, 5000, 1000), (9000, 10, 0), (5, 0, 0)] {
        let file = Arc::clone(&on_disk);
        let read = begin(&mut tasks, 1, move |io| {
            let room = Room::new(memory(8192), 0..8192, 100);
            Box::pin(async move {
                let read = io.read(&file, offset, length, Some(&room)).await?;
                let Content::Placed(span) = read else { return Err(Errno::NOBUFS) };
                span.copy(0, span.length()).map_err(|_| Errno::FAULT)
            })
        });
        if let Some(read) = read {
            assert_eq!(read, (1, Ok(vec![7; expected])));
        } else {
            // tmpfs cannot tell.
            return;
        }
    }
    assert_eq!((value(&stats.cached), slow.started()), (4, 1));
}

#[test]
fn an_error_before_the_transfer_frees_its_room() {
    let (mut tasks, slow, stats) = tasks(1);
    let file = file();
    let one = || Written::Own(vec![1].into());
    let bad = |io: Io| -> Execution<Done> {
        Box::pin(async move { io.write(&file, None, (0, 2), one, Durability::None).await })
    };
    assert_eq!(begin(&mut tasks, 0, bad), Some((0, Err(Errno::IO))));
    // An offset that no file has: a transfer without an operation.
    let file = self::file();
    let far = |io: Io| -> Execution<Done> {
        Box::pin(async move { io.write(&file, None, (u64::MAX, 1), one, Durability::None).await })
    };
    assert_eq!(begin(&mut tasks, 1, far), Some((1, Err(Errno::FBIG))));
    assert_eq!(gauges(&stats), [0, 0, 1, 0]);
    assert_eq!(begin(&mut tasks, 2, write(&self::file(), 1, Durability::None)), None);
    assert_eq!(slow.started(), 1);
}

/// A connection ends: its tasks go on, and file and memory stay until the kernel has ended the operation.
#[test]
fn memory_and_file_live_until_the_operation_has_ended() {
    let (mut tasks, slow, _) = tasks(1);
    let kernel = Arc::new(memfd_create("tasks", MemfdFlags::CLOEXEC).unwrap());
    let weak = Arc::downgrade(&kernel);
    let task = write(&kernel, 3, Durability::None);
    drop(kernel);
    assert_eq!(begin(&mut tasks, 0, task), None);
    drop(tasks);
    assert_eq!(weak.strong_count(), 1, "the engine has it");
    slow.end(0, Ok(3));
    assert_eq!(Slow::clone(&slow).ended().unwrap().0, 0);
    assert_eq!(weak.strong_count(), 0);
}

proptest! {
    /// Any order of tasks and ends: each task ends once, never more are in flight than allowed, no room is lost.
    #[test]
    fn every_task_ends_once(
        in_flight_max in 1..5_u16,
        steps in prop::collection::vec((any::<prop::sample::Index>(), 0..6_u8, 0..3_u8), 1..60),
    ) {
        let (mut tasks, slow, stats) = tasks(in_flight_max);
        let (mut begun, mut done) = (0_u32, Vec::new());
        for (at, result, kind) in &steps {
            let durability = [Durability::None, Durability::Data, Durability::File][usize::from(*kind)];
            let started = slow.started();
            if started == 0 || *result == 0 {
                done.extend(begin(&mut tasks, begun, write(&file(), 9, durability)).map(|(key, _)| key));
                begun += 1;
            } else {
                let results = [Ok(1), Ok(9), Err(Errno::INTR), Err(Errno::AGAIN), Err(Errno::IO)];
                slow.end(at.index(started), results[usize::from(*result) - 1]);
                done.extend(ended(&mut tasks).into_iter().map(|(key, _)| key));
            }
            prop_assert!(slow.started() <= in_flight_max.into());
            prop_assert_eq!(value(&stats.in_flight), slow.started() as u64);
        }
        while slow.started() > 0 {
            slow.end(0, Ok(9));
            done.extend(ended(&mut tasks).into_iter().map(|(key, _)| key));
        }
        done.sort_unstable();
        prop_assert_eq!(done, (0..begun).collect::<Vec<_>>());
        prop_assert_eq!(&gauges(&stats)[..2], &[0, 0]);
        prop_assert!(slow.0.lock().unwrap().in_flight_most <= in_flight_max.into());
    }
}

#[test]
fn nothing_is_read_behind_the_largest_offset() {
    let file = Arc::new(std::fs::File::open("/proc/self/exe").unwrap().into());
    let room = Room::new(memory(100), 0..100, 0);
    for offset in [u64::MAX, i64::MAX as u64, 1 << 63] {
        for room in [None, Some(&room)] {
            let read = at_once(Io::default().read(&file, offset, 9, room)).unwrap();
            assert!(
                matches!(&read, Content::Own(bytes) if bytes.is_empty())
                    || matches!(&read, Content::Placed(span) if span.length() == 0),
                "{offset}"
            );
        }
    }
}

/// A connection ends while the kernel reads: the registered memory stays mapped until the operation has ended.
#[test]
fn registered_memory_lives_until_the_kernel_has_read() {
    let (mut tasks, slow, _) = tasks(1);
    let registered = memory(8192);
    let weak = Arc::downgrade(&registered);
    let file = file();
    let read = begin(&mut tasks, 0, move |io| {
        let room = Room::new(registered, 0..8192, 0);
        Box::pin(async move { io.read(&file, 0, 5, Some(&room)).await.map(|_| 0) })
    });
    // tmpfs cannot tell, or the file is at its end.
    if read.is_some() {
        return;
    }
    drop(tasks);
    assert_eq!(weak.strong_count(), 1, "the engine has it");
    slow.end(0, Ok(5));
    assert_eq!(Slow::clone(&slow).ended().unwrap().0, 0);
    assert_eq!(weak.strong_count(), 0);
}
