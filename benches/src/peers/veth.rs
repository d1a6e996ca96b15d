//! A veth pair between two network namespaces: the link for the kernel's TCP.
//!
//! ```text
//!  namespace client, 10.78.0.1 ── client0 ═══ server0 ── namespace server, 10.78.0.2
//! ```

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

/// Address of the client, which sends.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// Address of the server, which receives.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// Features by which a veth carries packets of 64 KiB, and packets without a checksum, which no wire does.
const OFFLOADS: [&str; 5] = ["tso", "gso", "gro", "tx", "rx"];

/// Prefix of the namespaces' names; the process ID of their owner follows.
const PREFIX: &str = "iwarp-bench-";

/// Configuration of a veth pair.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct VethConfig {
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// True if the veth pair avoids segmentation, merging and checksums. If false, the kernel does the work that a
    /// plain Ethernet port takes.
    pub offloads: bool,
}

impl std::fmt::Display for VethConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "veth, MTU {}, offloads {}", self.mtu, if self.offloads { "on" } else { "off" })
    }
}

/// One end of the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// The end that sends.
    Client,
    /// The end that receives.
    Server,
}

/// A veth pair; dropping it removes its namespaces.
#[derive(Debug)]
pub struct Veth {
    wire: VethConfig,
    client: String,
    server: String,
}

impl Veth {
    /// Makes two namespaces and the pair between them.
    ///
    /// # Errors
    /// `ip` or `ethtool` fails: both must be installed, and need root.
    pub fn new(wire: VethConfig) -> Result<Self> {
        remove_orphans();
        let name = |host| format!("{PREFIX}{}-{host}", std::process::id());
        let pair = Self { wire, client: name("client"), server: name("server") };
        for namespace in [&pair.client, &pair.server] {
            run("ip", &["netns", "add", namespace])?;
            run("ip", &["-n", namespace, "link", "set", "lo", "up"])?;
        }
        let (client, server) = (pair.client.as_str(), pair.server.as_str());
        run(
            "ip",
            &[
                "-n", client, "link", "add", "client0", "type", "veth", "peer", "name", "server0", "netns",
                server,
            ],
        )?;
        for (namespace, device, address) in [(client, "client0", CLIENT), (server, "server0", SERVER)] {
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

    /// Returns the configuration of the pair.
    pub fn wire(&self) -> VethConfig {
        self.wire
    }

    /// Returns the namespace of a host, for `ip netns exec`.
    pub fn namespace(&self, host: Host) -> &str {
        match host {
            Host::Client => &self.client,
            Host::Server => &self.server,
        }
    }

    /// Returns the network device of a host.
    pub const fn device(host: Host) -> &'static str {
        match host {
            Host::Client => "client0",
            Host::Server => "server0",
        }
    }

    /// Moves the calling thread into the namespace of a host, where it opens its sockets from then on.
    ///
    /// # Errors
    /// The kernel refuses the namespace.
    pub fn enter(&self, host: Host) -> Result<()> {
        let path = Path::new("/run/netns").join(self.namespace(host));
        let file = File::open(&path).with_context(|| path.display().to_string())?;
        let network = Some(rustix::thread::LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), network)
            .with_context(|| format!("entering {}", path.display()))
    }

    /// Drops this fraction of the IP packets that arrive at either end, at random; 0 drops none.
    ///
    /// # Errors
    /// `nft` fails: it must be installed.
    pub fn lose(&self, fraction: f64) -> Result<()> {
        /// The resolution of the fraction.
        const PARTS: f64 = 100_000.0;
        let parts = (fraction * PARTS).round();
        let chosen = format!("numgen random mod {PARTS} < {parts}");
        // nftables refuses a comparison that is always true.
        let chosen = if parts < PARTS { chosen.as_str() } else { "" };
        let rules = format!(
            "flush ruleset; add table inet lossy; \
             add chain inet lossy arrival {{ type filter hook prerouting priority -300 ; }}; \
             add rule inet lossy arrival {chosen} drop"
        );
        let rules = if parts > 0.0 { rules.as_str() } else { "flush ruleset" };
        for namespace in [&self.client, &self.server] {
            run("ip", &["netns", "exec", namespace, "nft", rules])?;
        }
        Ok(())
    }

    /// Returns a counter of the sending kernel's TCP, by its name in /proc/net/netstat.
    ///
    /// # Errors
    /// The kernel has no such counter.
    pub fn tcp_counter(&self, name: &str) -> Result<u64> {
        let text = run("ip", &["netns", "exec", &self.client, "cat", "/proc/net/netstat"])?;
        counter_of(&text, name).with_context(|| format!("no counter {name}"))
    }

    /// Returns the frames that the server has received, and their bytes.
    ///
    /// # Errors
    /// `ip` fails, or its output has another form.
    pub fn received(&self) -> Result<(u64, u64)> {
        let answer =
            run("ip", &["-n", &self.server, "-j", "-s", "link", "show", "dev", Self::device(Host::Server)])?;
        let answer: serde_json::Value = serde_json::from_str(&answer)?;
        let counter =
            |name| answer.pointer(&format!("/0/stats64/rx/{name}")).and_then(|value| value.as_u64());
        counter("packets").zip(counter("bytes")).context("ip shows no counters")
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        for namespace in [&self.client, &self.server] {
            // This fails for a namespace that was never made.
            let _ = run("ip", &["netns", "del", namespace]);
        }
    }
}

/// Returns a value of a text in the form of /proc/net/netstat: lines of names, each before one of their values.
fn counter_of(text: &str, name: &str) -> Option<u64> {
    let lines: Vec<&str> = text.lines().collect();
    lines.chunks(2).find_map(|pair| {
        let [names, values] = pair else { return None };
        let place = names.split_whitespace().position(|word| word == name)?;
        values.split_whitespace().nth(place)?.parse().ok()
    })
}

/// Removes the namespaces of processes that were killed before they removed them.
fn remove_orphans() {
    let Ok(namespaces) = fs::read_dir("/run/netns") else { return };
    for name in namespaces.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            // This fails if another process removes it at the same time.
            let _ = run("ip", &["netns", "del", &name]);
        }
    }
}

/// Runs a program to its end and returns its standard output.
///
/// # Errors
/// The program cannot be started, or it fails; the error has the end of its output.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).output().with_context(|| program.to_owned())?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        bail!("{program} {}: {}: {}", args.join(" "), output.status, last_lines(&said));
    }
    String::from_utf8(output.stdout).with_context(|| format!("{program}: output that is no text"))
}

/// Returns the last lines of a program's output, which have the reason of a failure.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.get(lines.len().saturating_sub(4)..).unwrap_or_default().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_the_output_of_the_program() {
        let error = run("sh", &["-c", "echo so it goes >&2; exit 3"]).unwrap_err().to_string();
        assert!(error.contains("so it goes") && error.contains('3'), "{error}");
        assert!(run("no-such-program", &[]).is_err());
        assert_eq!(run("echo", &["well"]).unwrap(), "well\n");
    }

    #[test]
    fn counters_are_found_by_name() {
        let text = "TcpExt: SyncookiesSent TCPTimeouts\nTcpExt: 3 17\nIpExt: InNoRoutes\nIpExt: 5\n";
        assert_eq!(counter_of(text, "TCPTimeouts"), Some(17));
        assert_eq!(counter_of(text, "InNoRoutes"), Some(5));
        assert_eq!(counter_of(text, "TCPLossProbes"), None);
    }

    #[test]
    fn a_pair_carries_frames_of_its_mtu_until_it_is_dropped() {
        let veth = Veth::new(VethConfig { mtu: 1500, offloads: false }).unwrap();
        let client = veth.namespace(Host::Client).to_owned();
        assert!(Path::new("/run/netns").join(&client).exists());
        let ping =
            ["netns", "exec", &client, "ping", "-c", "2", "-i", "0.2", "-M", "do", "-s", "1472", "10.78.0.2"];
        run("ip", &ping).unwrap();
        let (frames, bytes) = veth.received().unwrap();
        assert!(frames >= 2 && bytes >= 3028, "{frames} frames, {bytes} bytes");
        let shown = run("ip", &["netns", "exec", &client, "ethtool", "-k", "client0"]).unwrap();
        assert!(shown.contains("generic-segmentation-offload: off"), "{shown}");
        assert!(shown.contains("tx-checksumming: off"), "{shown}");
        assert_eq!(veth.tcp_counter("TCPTimeouts").unwrap(), 0);
        veth.lose(1.0).unwrap();
        assert!(run("ip", &["netns", "exec", &client, "ping", "-c", "1", "-W", "1", "10.78.0.2"]).is_err());
        veth.lose(0.0).unwrap();
        run("ip", &["netns", "exec", &client, "ping", "-c", "1", "-W", "5", "10.78.0.2"]).unwrap();
        // The next pair removes the namespaces of processes that have exited; no process ID is this large.
        let orphan = format!("{PREFIX}99999999-client");
        run("ip", &["netns", "add", &orphan]).unwrap();
        remove_orphans();
        assert!(!Path::new("/run/netns").join(orphan).exists());
        assert!(Path::new("/run/netns").join(&client).exists());
        drop(veth);
        assert!(!Path::new("/run/netns").join(client).exists());
    }
}
