//! A peer that is not installed is said to be missing, with the package that has it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

#[test]
fn what_is_not_installed_is_said() {
    // Nothing at all is to be found there.
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_iwarp-bench"))
        .args(["peers", "-m", "1500"])
        .env("PATH", folder.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("no peer could be measured"), "{errors}");
    for (program, package) in [("iperf3", "iperf3"), ("ucx_perftest", "ucx-utils"), ("sockperf", "sockperf")]
    {
        let why = format!("what: \"{program}\", why: \"not installed: apt-get install {package}\"");
        assert!(errors.contains(&why), "{program} is not said to be missing: {errors}");
    }
}
