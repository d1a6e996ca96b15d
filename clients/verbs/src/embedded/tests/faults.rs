//! Memory that the program unmaps while it is registered.
#![allow(unsafe_code, reason = "maps and unmaps memory, and registers it")]

use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::*;

const BYTES: u32 = 300_000;

/// Maps new memory, which the caller unmaps.
fn mapped() -> NonNull<u8> {
    let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping, anywhere.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), BYTES as usize, rights, flags) };
    NonNull::new(start.unwrap().cast()).unwrap()
}

fn unmap(start: NonNull<u8>) {
    // SAFETY: all of a mapping of `mapped`, which nothing refers to.
    unsafe { munmap(start.as_ptr().cast(), BYTES as usize) }.unwrap();
}

/// Registers all of a mapping.
fn registered(pd: &ProtectionDomain, start: NonNull<u8>, rights: Access) -> Mr {
    // SAFETY: it is accessed by the device alone; that it goes before the registration is what the handler is for.
    unsafe { pd.reg_mr(start, BYTES as usize, rights) }.unwrap()
}

/// Waits until the other end has closed the connection.
fn ends(end: &End) {
    while !matches!(
        end.context.wait_event(WAIT).unwrap(),
        Some(Event::Cm(CmEvent { kind: CmEventKind::Disconnected, .. }))
    ) {}
}

#[test]
fn a_program_outlives_memory_that_it_unmaps_before_it_deregisters() {
    survive_unmapped_memory();
    let all = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    for (round, len) in [8, 64, 300, 70_000, BYTES].into_iter().enumerate() {
        for case in 0..4 {
            let [client, server] = pair("127.0.0.1");
            let ours = client.pd.alloc_mr(u64::from(BYTES), all).unwrap();
            let gone = mapped();
            let theirs =
                if case == 3 { registered(&client.pd, gone, all) } else { registered(&server.pd, gone, all) };
            // A peer's Write and Read, a message to a buffer, and one from there.
            let (remote_addr, rkey) = (theirs.addr(), theirs.rkey());
            let op = match case {
                0 => SendOp::RdmaWrite { remote_addr, rkey },
                1 => SendOp::RdmaRead { remote_addr, rkey },
                _ => SendOp::SEND,
            };
            let buffer = server.pd.alloc_mr(u64::from(BYTES), all).unwrap();
            let received = if case == 2 { theirs.sge(0, len) } else { buffer.sge(0, len) };
            server.qp.post_recv(&[RecvWr { wr_id: 1, sg_list: &[received] }]).unwrap();
            unmap(gone);
            client.post(7, op, &[if case == 3 { theirs.sge(0, len) } else { ours.sge(0, len) }]);
            ends(&server);
            assert_ne!(server.polled().status, WcStatus::Success, "round {round}, case {case}");
            ends(&client);
        }
    }
}

#[test]
fn a_fault_elsewhere_ends_the_process_as_before() {
    const NAME: &str = "IRONWARP_TEST_FAULT";
    if std::env::var_os(NAME).is_some() {
        survive_unmapped_memory();
        let gone = mapped();
        unmap(gone);
        // SAFETY: none; this ends the process.
        unsafe { gone.as_ptr().write_volatile(1) };
        return;
    }
    let test = "embedded::tests::faults::a_fault_elsewhere_ends_the_process_as_before";
    let mut child = Command::new(std::env::current_exe().unwrap());
    let ended = child.args(["--exact", test, "--nocapture"]).env(NAME, "1").output().unwrap();
    assert_eq!(ended.status.signal(), Some(libc::SIGSEGV), "{ended:?}");
}
