//! The end of a program after a panic.

/// Lets a panic of any thread end the process with SIGABRT, once its message is written.
///
/// Panics unwind; without this call a thread would die alone.
pub fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}
