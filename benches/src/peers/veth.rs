//! A veth pair between two network namespaces: the wire that the kernel's TCP runs over.
//!
//! ```text
//!  namespace near, 10.78.0.1 ── near0 ═══ far0 ── namespace far, 10.78.0.2
//! ```

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

/// The address of the near end: the client, the sender.
pub const NEAR: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// The address of the far end: the server, the receiver.
pub const FAR: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// The features that let a veth pass on what no wire carries: packets of 64 KiB, and packets without a checksum.
const OFFLOADS: [&str; 5] = ["tso", "gso", "gro", "tx", "rx"];

/// What the names of namespaces begin with; the number of the process that they are of follows.
const PREFIX: &str = "iwarp-bench-";

/// What the wire is.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Wire {
    /// Bytes of an IP packet at most.
    pub mtu: u16,
    /// Whether segmentation, merging and checksums are left out, as a veth pair can. Without, the kernel does what it
    /// would have to do over a plain Ethernet port.
    pub offloads: bool,
}

impl std::fmt::Display for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "veth, MTU {}, offloads {}", self.mtu, if self.offloads { "on" } else { "off" })
    }
}

/// One end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client's.
    Near,
    /// The server's.
    Far,
}

/// The pair; gone with its namespaces when dropped.
#[derive(Debug)]
pub struct Veth {
    wire: Wire,
    near: String,
    far: String,
}

impl Veth {
    /// Makes two namespaces, and the pair between them.
    ///
    /// # Errors
    /// Those of `ip` and `ethtool`: one needs root for this, and the programs.
    pub fn new(wire: Wire) -> Result<Self> {
        remove_orphans();
        let name = |side| format!("{PREFIX}{}-{side}", std::process::id());
        let pair = Self { wire, near: name("near"), far: name("far") };
        for namespace in [&pair.near, &pair.far] {
            run("ip", &["netns", "add", namespace])?;
            run("ip", &["-n", namespace, "link", "set", "lo", "up"])?;
        }
        let (near, far) = (pair.near.as_str(), pair.far.as_str());
        run(
            "ip",
            &["-n", near, "link", "add", "near0", "type", "veth", "peer", "name", "far0", "netns", far],
        )?;
        for (namespace, device, address) in [(near, "near0", NEAR), (far, "far0", FAR)] {
            run("ip", &["-n", namespace, "addr", "add", &format!("{address}/24"), "dev", device])?;
            run("ip", &["-n", namespace, "link", "set", device, "mtu", &wire.mtu.to_string(), "up"])?;
            let mut ethtool = vec!["netns", "exec", namespace, "ethtool", "-K", device];
            for feature in OFFLOADS {
                ethtool.extend([feature, if wire.offloads { "on" } else { "off" }]);
            }
            run("ip", &ethtool)?;
        }
        Ok(pair)
    }

    /// What it is.
    pub fn wire(&self) -> Wire {
        self.wire
    }

    /// The namespace of a side, as `ip netns exec` wants it.
    pub fn namespace(&self, side: Side) -> &str {
        match side {
            Side::Near => &self.near,
            Side::Far => &self.far,
        }
    }

    /// The device of a side.
    pub const fn device(side: Side) -> &'static str {
        match side {
            Side::Near => "near0",
            Side::Far => "far0",
        }
    }

    /// Moves the calling thread into the namespace of a side: its sockets are that side's from then on.
    ///
    /// # Errors
    /// The kernel's.
    pub fn enter(&self, side: Side) -> Result<()> {
        let path = Path::new("/run/netns").join(self.namespace(side));
        let file = File::open(&path).with_context(|| path.display().to_string())?;
        let network = Some(rustix::thread::LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), network)
            .with_context(|| format!("entering {}", path.display()))
    }

    /// Frames, and their bytes, that the far end has received.
    ///
    /// # Errors
    /// Those of `ip`; an answer of another form.
    pub fn received(&self) -> Result<(u64, u64)> {
        let answer =
            run("ip", &["-n", &self.far, "-j", "-s", "link", "show", "dev", Self::device(Side::Far)])?;
        let answer: serde_json::Value = serde_json::from_str(&answer)?;
        let counter = |name| answer.pointer(&format!("/0/stats64/rx/{name}")).and_then(|it| it.as_u64());
        counter("packets").zip(counter("bytes")).context("ip shows no counters")
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        for namespace in [&self.near, &self.far] {
            // One that was never made cannot be removed: nothing is left to be done then.
            let _ = run("ip", &["netns", "del", namespace]);
        }
    }
}

/// Removes the namespaces of processes that were killed before they could do it themselves.
fn remove_orphans() {
    let Ok(namespaces) = fs::read_dir("/run/netns") else { return };
    for name in namespaces.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            // Another process may be doing the same.
            let _ = run("ip", &["netns", "del", &name]);
        }
    }
}

/// Runs a program to its end; what it has written to its standard output.
///
/// # Errors
/// It cannot be started; it fails, with what it says.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).output().with_context(|| program.to_owned())?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        bail!("{program} {}: {}: {}", args.join(" "), output.status, last_lines(&said));
    }
    String::from_utf8(output.stdout).with_context(|| format!("{program}: output that is no text"))
}

/// The end of what a program says: where the reason of a failure is.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.get(lines.len().saturating_sub(4)..).unwrap_or_default().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_the_program_said() {
        let error = run("sh", &["-c", "echo so it goes >&2; exit 3"]).unwrap_err().to_string();
        assert!(error.contains("so it goes") && error.contains('3'), "{error}");
        assert!(run("no-such-program", &[]).is_err());
        assert_eq!(run("echo", &["well"]).unwrap(), "well\n");
    }

    #[test]
    fn a_pair_carries_frames_of_its_mtu_and_vanishes() {
        let veth = Veth::new(Wire { mtu: 1500, offloads: false }).unwrap();
        let near = veth.namespace(Side::Near).to_owned();
        assert!(Path::new("/run/netns").join(&near).exists());
        let ping =
            ["netns", "exec", &near, "ping", "-c", "2", "-i", "0.2", "-M", "do", "-s", "1472", "10.78.0.2"];
        run("ip", &ping).unwrap();
        let (frames, bytes) = veth.received().unwrap();
        assert!(frames >= 2 && bytes >= 3028, "{frames} frames, {bytes} bytes");
        let shown = run("ip", &["netns", "exec", &near, "ethtool", "-k", "near0"]).unwrap();
        assert!(shown.contains("generic-segmentation-offload: off"), "{shown}");
        assert!(shown.contains("tx-checksumming: off"), "{shown}");
        // What a process that is no more has left goes with the next pair; numbers of processes end below this one.
        let orphan = format!("{PREFIX}99999999-near");
        run("ip", &["netns", "add", &orphan]).unwrap();
        remove_orphans();
        assert!(!Path::new("/run/netns").join(orphan).exists());
        assert!(Path::new("/run/netns").join(&near).exists());
        drop(veth);
        assert!(!Path::new("/run/netns").join(near).exists());
    }
}
