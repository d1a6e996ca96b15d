//! Scripts of segments against one stack: `tests/scripts/<mechanism>/*.pkt`.
//!
//! A script plays the peer and the application; it must contain everything that the stack sends and reports.
//!
//! ```text
//! config sack on                    before all other lines; see `configure`
//! +0   ! listen                     after this many ms, the application acts; see `act`
//! +0   < S 0(0) win 1000 <mss 1460> the peer sends: flags, sequence number, length, ack, win, options
//! +0   <+ . 1(9) ack 1              the same, in one burst with the next: the stack does not send between
//! +0   > S. 0(0) ack 1              the stack must send; fields that are not given are not compared
//! +40  > . 1(0) ack 1001            … 40 ms later, within 2 ms
//!      * data 0 1000                the stack must report this event
//! +500 -                            no segment or event for 500 ms
//!      ? state established          checks a property; see `look`
//!      = first                      names the stack's last timestamp, for `<ts 7 first>`
//! ```
//! Flags are `S F R P . U`, `E` for ECE, `W` for CWR and `A` for AE; `ecn none|ect0|ect1|ce` after the length is the
//! ECN field of the IP header, which is zero in the peer's packets without it. Each script runs over IPv4 and IPv6, or
//! over one of them if its name begins with `v4_` or `v6_`. Over IPv6 the link's MTU is 20 bytes larger, so that
//! segments have the same length. Sequence numbers are relative to each side's initial one, except after `=`. Both
//! streams carry a pattern that is checked byte for byte, retransmissions included.

#![allow(clippy::unwrap_used, reason = "what a test builds is right")]

mod lab;
mod line;
mod net;
mod path;
mod setup;

use lab::Lab;
use setup::{Setup, configure};
use std::path::Path;

/// Returns the families that a script runs over, true for IPv6, by its name.
fn families(file: &str) -> &'static [bool] {
    match file.get(..3) {
        Some("v4_") => &[false],
        Some("v6_") => &[true],
        _ => &[false, true],
    }
}

fn run(script: &str, ipv6: bool) {
    let mut setup = Setup::new(ipv6);
    let lines = script.lines().enumerate().map(|(i, line)| (i + 1, line.trim()));
    let lines: Vec<_> = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).collect();
    for (_, line) in &lines {
        if let Some(config) = line.strip_prefix("config ") {
            let (key, value) = config.split_once(' ').unwrap();
            configure(&mut setup, key, value.trim());
        }
    }
    let mut lab = Lab::new(&setup);
    for (number, line) in lines.into_iter().filter(|(_, line)| !line.starts_with("config ")) {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lab.step(line)));
        assert!(done.is_ok(), "line {number}: {line}");
    }
    lab.finish();
}

/// Runs all scripts of a folder.
fn folder(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts").join(name);
    let mut paths: Vec<_> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    let mut failed = Vec::new();
    for path in paths {
        let script = std::fs::read_to_string(&path).unwrap();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        for ipv6 in families(&file) {
            println!("--- {file}, IPv6 {ipv6}");
            if std::panic::catch_unwind(|| run(&script, *ipv6)).is_err() {
                failed.push(format!("{file}, IPv6 {ipv6}"));
            }
        }
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
}

macro_rules! folders {
    ($($name:ident),+) => {
        $(#[test]
        fn $name() {
            folder(stringify!($name));
        })+

        #[test]
        fn every_folder_is_run() {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
            for entry in std::fs::read_dir(path).unwrap() {
                let name = entry.unwrap().file_name();
                let known = [$(stringify!($name)),+];
                assert!(known.iter().any(|known| name == *known), "{name:?} is not run");
            }
        }
    };
}

folders!(
    handshake,
    cookies,
    close,
    reset,
    data,
    loss,
    window,
    options,
    time_wait,
    icmp,
    congestion,
    ecn,
    path,
    fragment,
    out_of_order,
    offload
);
