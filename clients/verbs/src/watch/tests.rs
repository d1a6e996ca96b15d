//! A watch of a region whose daemon is a thread of this process.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

use iwarp_control::{Request, Response, params, transfer};
use iwarp_shared_verbs::notification_ring;
use iwarp_shared_verbs::worker::NotificationRing;
use rdma::{Access, Message};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::*;
use crate::tests::bell_ends;

const RINGS: usize = 2;
const WAIT: Duration = Duration::from_secs(60);

/// The workers' side of a watch.
struct Workers {
    rings: Vec<NotificationRing<Words>>,
    /// The daemon's end of the program's bell.
    end: OwnedFd,
    /// Ends once the program has ended the watch.
    daemon: JoinHandle<()>,
}

impl Workers {
    fn push(&mut self, ring: usize, message: Message<'_>, written: u64) {
        if self.rings[ring].push(&rdma::Notification { message, solicited: false, written }) {
            self.wake();
        }
    }

    fn close(&mut self) {
        let due: Vec<bool> = self.rings.iter_mut().map(NotificationRing::close).collect();
        if due.contains(&true) {
            self.wake();
        }
    }

    fn wake(&self) {
        assert_eq!(rustix::io::write(&self.end, &[1]), Ok(1));
    }
}

fn sealed(bytes: u64) -> OwnedFd {
    let fd = memfd_create("watch", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, bytes.next_multiple_of(4096)).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    fd
}

/// Watches the region `lab` of 100 bytes. The daemon ends when the program ends the watch, or, with `dies`, at once.
fn watched(dies: bool) -> (Watch, Workers) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("verbs.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let shape = notification_ring(4).unwrap();
    let ring_bytes = (notification_ring_words(shape) * RINGS * 8) as u64;
    let (memory, rings) = (sealed(100), sealed(ring_bytes));
    let (end, its_end) = bell_ends();
    let words = Words(Arc::new(map(&rings, ring_bytes, 4096).unwrap()));
    let ring = |number| NotificationRing::new(words.clone(), number, shape).unwrap();
    let worker_rings = (0..RINGS).map(ring).collect();
    let daemon = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).split(b'\n');
        let mut next = || Request::from_line(&lines.next().unwrap().unwrap()).unwrap();
        let Request { id, params: given, .. } = next();
        let WatchRegion { name } = params::<WatchRegionMethod>(given).unwrap();
        let access = Access::REMOTE_WRITE;
        let rings_count = u32::try_from(RINGS).unwrap();
        let watching =
            Watching { watch: 5, name, bytes: 100, page_bytes: 4096, access, rings: rings_count, shape };
        let line = Response::success(id, watching).to_line().unwrap();
        transfer::send(&stream, &line, &[memory.as_fd(), rings.as_fd(), its_end.as_fd()]).unwrap();
        if !dies {
            let Request { id, params: given, .. } = next();
            assert_eq!(params::<UnwatchRegionMethod>(given).unwrap(), UnwatchRegion { watch: 5 });
            let line = Response::success(id, iwarp_control::NoParams {}).to_line().unwrap();
            transfer::send(&stream, &line, &[]).unwrap();
        }
    });
    let watch = watch(&socket, "lab").unwrap();
    (watch, Workers { rings: worker_rings, end, daemon })
}

fn is_readable(watch: &Watch) -> bool {
    poll(&mut [PollFd::new(&watch.fd(), PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
}

fn immediate(number: u64) -> Message<'static> {
    Message::Immediate(number.to_be_bytes())
}

#[test]
fn the_descriptor_is_readable_while_there_may_be_messages() {
    let (watch, mut workers) = watched(false);
    assert_eq!((watch.region().name(), watch.region().len()), ("lab", 100));
    assert!(is_readable(&watch), "there may be messages already");
    assert!(watch.poll().unwrap().is_none() && !is_readable(&watch));
    for round in 0..3_u64 {
        workers.push(1, immediate(round), 40 + round);
        workers.push(0, Message::Send(b"hello"), 0);
        assert!(is_readable(&watch));
        let taken = [watch.poll().unwrap().unwrap(), watch.poll().unwrap().unwrap()];
        let (send, other) =
            if taken[0].written == 0 { (&taken[0], &taken[1]) } else { (&taken[1], &taken[0]) };
        assert_eq!(send.content, Content::Send(b"hello".to_vec().into()));
        assert_eq!((&*other.region, other.written), ("lab", 40 + round));
        assert_eq!(other.content, Content::Immediate(round.to_be_bytes()));
        assert!(watch.poll().unwrap().is_none() && !is_readable(&watch), "round {round}");
    }
    for number in 0..7 {
        workers.push(0, immediate(number), 0);
    }
    assert_eq!(watch.lost(), 3);
    drop(watch);
    workers.daemon.join().unwrap();
}

#[test]
fn a_thread_that_waits_is_woken() {
    let (watch, mut workers) = watched(false);
    assert!(watch.wait(Duration::from_millis(10)).unwrap().is_none());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| watch.wait(WAIT).unwrap().unwrap().written);
        workers.push(1, immediate(0), 7);
        assert_eq!(waiting.join().unwrap(), 7);
    });
    drop(watch);
    workers.daemon.join().unwrap();
}

#[test]
fn a_region_that_goes_ends_the_watch_after_the_last_message() {
    let (watch, mut workers) = watched(false);
    assert!(watch.poll().unwrap().is_none());
    workers.push(0, immediate(1), 0);
    workers.close();
    assert!(watch.wait(WAIT).unwrap().is_some());
    assert!(matches!(watch.wait(WAIT), Err(Error::RegionGone(name)) if name == "lab"));
    drop(watch);
    workers.daemon.join().unwrap();
}

#[test]
fn the_end_of_the_daemon_ends_the_watch_after_the_last_message() {
    let (watch, mut workers) = watched(true);
    workers.push(0, immediate(1), 0);
    workers.daemon.join().unwrap();
    assert!(watch.poll().unwrap().is_some());
    assert!(matches!(watch.wait(WAIT), Err(Error::Lost)) && is_readable(&watch));
}
