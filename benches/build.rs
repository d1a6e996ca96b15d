//! Passes the commit of the build to the reports: from git, or from the variable `IRONWARP_COMMIT`.

use std::process::Command;

/// Returns the output of git; `None` without git or outside a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
}

fn main() {
    println!("cargo::rerun-if-env-changed=IRONWARP_COMMIT");
    if let Ok(commit) = std::env::var("IRONWARP_COMMIT") {
        return println!("cargo::rustc-env=IRONWARP_COMMIT={commit}");
    }
    let commit = git(&["describe", "--always", "--dirty", "--abbrev=12"]).unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=IRONWARP_COMMIT={commit}");
    for name in ["HEAD", "logs/HEAD", "index"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}
