//! A process that forks: the child can use none of its parent's objects, and the parent's go on.
#![allow(unsafe_code, reason = "forks; listed in UNSAFE.md")]

use std::sync::atomic::Ordering;

use super::*;

/// Runs `check` in a child of this process, and returns the number of the first check that failed there.
fn in_child(check: impl FnOnce() -> Option<i32>) -> Option<i32> {
    // SAFETY: the child calls `check` only, which locks nothing that another thread of this process may hold, and ends
    // without running what is registered for the end of a process.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no fork");
    if child == 0 {
        let failed = check().unwrap_or(0);
        // SAFETY: ends the child.
        unsafe { libc::_exit(failed) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child was killed: {status:#x}");
    Some(libc::WEXITSTATUS(status)).filter(|status| *status != 0)
}

#[test]
fn a_child_can_use_none_of_its_parents_objects_and_the_parent_goes_on() {
    let daemon = Daemon::start();
    let context = Context::open(&daemon.socket, None).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64).unwrap();
    let srq = pd.create_srq(4, 1).unwrap();
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, ..QpCap::default() };
    let qp = pd.create_qp(&QpOptions { cap, ..QpOptions::new(&cq) }).unwrap();
    // In this state it accepts work.
    qp.modify(QpState::Error).unwrap();
    let words =
        || -> Vec<u64> { context.0.words.as_ref().iter().map(|word| word.load(Ordering::Relaxed)).collect() };
    let (before, buffer) = (words(), [RecvWr { wr_id: 1, sg_list: &[] }]);
    let wr = SendWr { wr_id: 1, op: SendOp::SEND, data: Data::List(&[]), flags: SendFlags::SIGNALED };
    let failed = in_child(|| {
        qp.begin_batch();
        cq.req_notify(false);
        let checks = [
            qp.add_to_batch(&wr) == Err(PostError::NoSuchObject),
            {
                qp.end_batch();
                qp.abort_batch();
                qp.post_send(&[wr]) == Err((0, PostError::NoSuchObject))
            },
            qp.post_recv(&buffer) == Err((0, PostError::NoSuchObject)),
            srq.post_recv(&buffer) == Err((0, PostError::NoSuchObject)),
            cq.poll(&mut [WorkCompletion::default()]) == Err(PollError::NoSuchObject),
            cq.is_inherited() && !cq.take_left_event(),
            context.poll_event().is_none() && context.poll_completion().is_none(),
            matches!(context.wait(WAIT), Err(Error::Lost)),
            matches!(context.wait_event(WAIT), Err(Error::Lost)),
            matches!(context.wait_completion(WAIT), Err(Error::Lost)),
            matches!(context.create_cq(1), Err(Error::Lost)),
            matches!(qp.modify(QpState::Idle), Err(Error::Lost)),
            matches!(cq.resize(128), Err(Error::Lost)),
        ];
        drop((qp.clone(), cq.clone(), context.clone()));
        checks.iter().position(|passed| !passed).and_then(|at| i32::try_from(at + 1).ok())
    });
    assert_eq!(failed, None);
    assert!(words() == before, "the child has changed the queues");
    assert!(!cq.is_inherited());
    send(&qp, 7, SendFlags::default()).unwrap();
    qp.post_recv(&buffer).unwrap();
    srq.post_recv(&buffer).unwrap();
    assert!(words() != before);
}

/// A child that shares its parent's memory until it runs another program (vfork) leaves the parent's objects usable.
#[test]
fn starting_programs_changes_nothing() {
    let daemon = Daemon::start();
    let context = Context::open(&daemon.socket, None).unwrap();
    // The standard library uses posix_spawn.
    assert!(std::process::Command::new("true").status().unwrap().success());
    assert!(!context.0.is_child());
    context.create_cq(4).unwrap();
}

#[test]
fn a_child_may_open_a_context_of_its_own() {
    let here = process::Here::new().unwrap();
    assert!(!here.is_child());
    let failed = in_child(|| {
        let own = process::Here::new();
        (!here.is_child() || own.is_ok_and(|own| own.is_child())).then_some(1)
    });
    assert_eq!(failed, None);
}

#[test]
fn a_child_has_no_news_of_its_parents_device() {
    let context = Context::embedded().unwrap();
    assert!(!context.has_news());
    context.wake_helper();
    assert!(context.has_news());
    assert_eq!(in_child(|| (context.has_news() || !context.is_inherited()).then_some(1)), None);
    context.take_news();
    assert!(!context.has_news() && !context.is_inherited());
}
