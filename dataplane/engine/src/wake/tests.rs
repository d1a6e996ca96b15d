//! Programs that do to their descriptors what they can, and the thread that wakes them.

use std::os::fd::AsRawFd;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::testutil::{USER, taken, wait_readable, wakes};
use super::*;

fn readable(fd: &impl AsFd) -> bool {
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&Timespec::default())) == Ok(1)
}

#[test]
fn a_program_is_woken_for_each_time_it_has_slept() {
    let (waker, woken) = wakes().waker(USER).unwrap();
    assert_eq!(taken(&woken), 0);
    for _ in 0..100 {
        waker.wake();
        wait_readable(&woken);
        assert_eq!(rustix::io::read(&woken, &mut [0; 8]), Ok(1));
        assert!(!readable(&woken));
    }
}

/// The program clears its flag O_NONBLOCK and never reads. An event counter that it had filled would block the writer.
#[test]
fn a_program_that_makes_its_descriptor_blocking_and_never_reads_blocks_nobody() {
    let (waker, woken) = wakes().waker(USER).unwrap();
    fcntl_setfl(&woken, fcntl_getfl(&woken).unwrap() - OFlags::NONBLOCK).unwrap();
    let (other, other_woken) = wakes().waker(USER + 1).unwrap();
    for _ in 0..100 {
        waker.wake();
        other.wake();
        wait_readable(&other_woken);
        rustix::io::read(&other_woken, &mut [0; 8]).unwrap();
    }
    let kept = rustix::io::read(&woken, &mut [0; 4096]).unwrap();
    assert!((1..=8).contains(&kept), "{kept} bytes wait for a program that does not read");
}

#[test]
fn a_program_can_send_nothing_to_the_daemon() {
    let (_waker, woken) = wakes().waker(USER).unwrap();
    assert_eq!(send(&woken, &[1], SendFlags::NOSIGNAL), Err(Errno::PIPE));
    let fds = [woken.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
    let sent = rustix::net::sendmsg(&woken, &[io::IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL);
    assert_eq!(sent, Err(Errno::PIPE));
}

#[test]
fn a_program_that_has_closed_its_end_or_one_direction_harms_nobody() {
    let (waker, woken) = wakes().waker(USER).unwrap();
    shutdown(&woken, Shutdown::Read).unwrap();
    waker.wake();
    let (gone, ended) = wakes().waker(USER).unwrap();
    drop(ended);
    gone.wake();
    drop(gone);
    let (other, other_woken) = wakes().waker(USER).unwrap();
    other.wake();
    wait_readable(&other_woken);
}

/// Sets of epoll, each with the descriptor.
fn sets(of: &OwnedFd, count: usize) -> Vec<OwnedFd> {
    let set = |_| {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        epoll::add(&set, of, epoll::EventData::new_u64(0), epoll::EventFlags::IN).ok().map(|()| set)
    };
    (0..count).map_while(set).collect()
}

/// The program adds its descriptor to as many epoll sets as it may, and is woken all the time.
#[test]
fn a_program_with_many_epoll_sets_delays_no_other_user() {
    let (waker, woken) = wakes().waker(USER).unwrap();
    rustix::process::setrlimit(rustix::process::Resource::Nofile, {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        rustix::process::Rlimit { current: limit.maximum, ..limit }
    })
    .unwrap();
    let sets = sets(&woken, 15_000);
    let (other, other_woken) = wakes().waker(USER + 1).unwrap();
    let clock = Clock::start();
    let (begin, mut longest) = (clock.now(), Duration::ZERO);
    let mut rounds = 0_u32;
    let mut read = 0;
    while clock.now().saturating_since(begin) < Duration::from_secs(1) {
        let marked = clock.now();
        waker.wake();
        other.wake();
        wait_readable(&other_woken);
        rustix::io::read(&other_woken, &mut [0; 8]).unwrap();
        read += rustix::io::read(&woken, &mut [0; 64]).unwrap_or(0);
        longest = longest.max(clock.now().saturating_since(marked));
        rounds += 1;
    }
    println!("{} sets: {rounds} wakes of the other, {read} of this one, {longest:?} at most", sets.len());
    assert!(rounds > 1000 && read > 0, "{rounds}, {read}");
    // Served in 1.4 ms each, it would have as many as the other.
    assert!(u32::try_from(read).unwrap() < rounds / 4, "{read} of {rounds}");
}

#[test]
fn a_doorbell_wakes_once_for_each_ring_and_nothing_is_left_when_it_ends() {
    let (doorbell, counter) = wakes().doorbell(USER).unwrap();
    let ring = || rustix::io::write(&counter, &1_u64.to_ne_bytes()).unwrap();
    assert!(!readable(&doorbell));
    for _ in 0..3 {
        ring();
        assert!(readable(&doorbell));
        Doorbell::clear(doorbell.as_fd());
        assert!(!readable(&doorbell), "the count stays, its change is forgotten");
    }
    let set = Arc::downgrade(&doorbell.set);
    drop(doorbell);
    let (settled, woken) = wakes().waker(USER).unwrap();
    settled.wake();
    wait_readable(&woken);
    while set.strong_count() > 0 {
        std::thread::yield_now();
    }
    ring();
}

/// A program that keeps its end of the pair learns that its context is gone, and the place is free.
#[test]
fn places_are_used_again() {
    for _ in 0..DOORBELL_QUEUES_MAX + 256 {
        let mut made = wakes().waker(USER + 2);
        while made.is_err() {
            std::thread::yield_now();
            made = wakes().waker(USER + 2);
        }
        let (waker, woken) = made.unwrap();
        drop(waker);
        if woken.as_fd().as_raw_fd() % 64 == 0 {
            wait_readable(&woken);
            assert_eq!(rustix::io::read(&woken, &mut [0; 8]), Ok(0), "its end");
        }
    }
}
