//! iperf3: measures the goodput of the kernel's TCP.

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::process::Program;
use super::veth::{SERVER, Veth, VethConfig};
use super::{Budget, Options};
use crate::Samples;

/// Default bytes of a write() and of a read().
const MESSAGE: u64 = 64 << 10;
const PORT: u16 = 5201;

/// Result of one message size.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct IperfReport {
    /// Configuration of the veth pair.
    pub wire: VethConfig,
    /// Bytes of a write() and of a read().
    pub message_bytes: u64,
    /// The sender's congestion control.
    pub congestion_control: String,
    /// Goodput at the receiver, Gbit/s.
    pub gbps: Samples,
    /// Retransmitted segments per second.
    pub retransmits: Samples,
    /// Mean bytes of a frame; above the MTU with offloads.
    pub frame_bytes: f64,
}

/// The used part of iperf3's JSON output.
#[derive(Debug, Deserialize)]
struct Answer {
    end: EndSection,
}

#[derive(Debug, Deserialize)]
struct EndSection {
    sum_sent: Sum,
    sum_received: Sum,
    sender_tcp_congestion: String,
}

#[derive(Debug, Deserialize)]
struct Sum {
    seconds: f64,
    bits_per_second: f64,
    #[serde(default)]
    retransmits: f64,
}

/// One run of iperf3.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Goodput at the receiver, Gbit/s.
    pub(crate) gbps: f64,
    /// Retransmitted segments per second.
    pub(crate) retransmits: f64,
    /// The sender's congestion control.
    pub(crate) congestion_control: String,
}

/// Sends for a time with write() and read() calls of `message_bytes`.
pub(crate) fn once(program: &Program<'_>, message_bytes: u64, seconds: u32, control: &str) -> Result<Run> {
    let [server, port] = [SERVER.to_string(), PORT.to_string()];
    let [message, seconds] = [message_bytes.to_string(), seconds.to_string()];
    let _serving = program.serve(PORT, &["-s", "-1", "-p", &port])?;
    let output =
        program.call(&["-c", &server, "-p", &port, "-t", &seconds, "-l", &message, "-C", control, "-J"])?;
    let Answer { end } = serde_json::from_str(&output).context("iperf3's output")?;
    Ok(Run {
        gbps: end.sum_received.bits_per_second / 1e9,
        retransmits: end.sum_sent.retransmits / end.sum_sent.seconds.max(f64::MIN_POSITIVE),
        congestion_control: end.sender_tcp_congestion,
    })
}

/// Measures each message size.
pub(crate) fn run(
    options: &Options,
    veth: &Veth,
    wire: VethConfig,
    budget: &Budget,
) -> Result<Vec<IperfReport>> {
    let sizes = if options.size.is_empty() { &[MESSAGE][..] } else { &options.size };
    sizes.iter().map(|size| measure(options, veth, wire, budget, *size)).collect()
}

fn measure(
    options: &Options,
    veth: &Veth,
    wire: VethConfig,
    budget: &Budget,
    message_bytes: u64,
) -> Result<IperfReport> {
    let program = Program { veth, cores: options.cores, name: "iperf3", environment: &[], budget };
    let (mut gbps, mut retransmits, mut name) = (Vec::new(), Vec::new(), String::new());
    let before = veth.received()?;
    for _ in 0..options.runs {
        let run = once(&program, message_bytes, options.duration, &options.congestion_control)?;
        gbps.push(run.gbps);
        retransmits.push(run.retransmits);
        name = run.congestion_control;
    }
    let after = veth.received()?;
    let (frames, bytes) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    Ok(IperfReport {
        wire,
        message_bytes,
        congestion_control: name,
        gbps: Samples::new(gbps)?,
        retransmits: Samples::new(retransmits)?,
        frame_bytes: bytes as f64 / frames.max(1) as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_is_parsed() {
        let output = r#"{"start": {"version": "iperf 3.12"}, "end": {
            "sum_sent": {"seconds": 2.0, "bytes": 5, "bits_per_second": 7e9, "retransmits": 12, "sender": true},
            "sum_received": {"seconds": 2.0, "bytes": 5, "bits_per_second": 6.5e9, "sender": true},
            "sender_tcp_congestion": "cubic", "receiver_tcp_congestion": "cubic"}}"#;
        let Answer { end } = serde_json::from_str(output).unwrap();
        assert_eq!((end.sum_received.bits_per_second, end.sum_sent.retransmits), (6.5e9, 12.0));
        assert_eq!(end.sender_tcp_congestion, "cubic");
        assert!(serde_json::from_str::<Answer>(r#"{"error": "unable to connect"}"#).is_err());
    }
}
