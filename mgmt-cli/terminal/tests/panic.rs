//! A panic of any thread ends a program, although panics unwind.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::thread;

/// Number of the signal SIGABRT, see signal(7).
const SIGABRT: i32 = 6;

/// Tells the test that it is the child.
const CHILD: &str = "IRONWARP_PANICS";

#[test]
fn a_panic_of_any_thread_ends_the_process() {
    if std::env::var_os(CHILD).is_some() {
        iwarp_terminal::abort_on_panic();
        let thread = thread::spawn(|| panic!("the thread's message"));
        assert!(thread.join().is_err(), "only an unwinding panic lets the join return");
        std::process::exit(0);
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "a_panic_of_any_thread_ends_the_process"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert_eq!(child.status.signal(), Some(SIGABRT), "{child:?}");
    assert!(String::from_utf8_lossy(&child.stderr).contains("the thread's message"), "{child:?}");
}
