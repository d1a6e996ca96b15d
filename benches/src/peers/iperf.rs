//! iperf3: the goodput of the kernel's TCP.

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::process::Program;
use super::veth::{FAR, Veth, Wire};
use super::{Budget, Options};
use crate::Samples;

/// Bytes of an application's write, and of its read.
const MESSAGE: u32 = 64 << 10;
const PORT: u16 = 5201;

/// What iperf3 has measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct IperfReport {
    /// Over what.
    pub wire: Wire,
    /// Bytes of an application's write.
    pub message_bytes: u32,
    /// The sender's congestion control.
    pub congestion_control: String,
    /// Goodput at the receiver, 10⁹ bit/s.
    pub gbps: Samples,
    /// Retransmitted segments per second.
    pub retransmits: Samples,
    /// Bytes of a frame on the wire on average: above the MTU it is no frame of a plain wire.
    pub frame_bytes: f64,
}

/// The part of iperf3's answer that is looked at.
#[derive(Debug, Deserialize)]
struct Answer {
    end: End,
}

#[derive(Debug, Deserialize)]
struct End {
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

/// Runs it as often as asked.
pub(crate) fn run(options: &Options, veth: &Veth, wire: Wire, budget: &Budget) -> Result<IperfReport> {
    let program = Program { veth, cores: options.cores, name: "iperf3", environment: &[], budget };
    let (far, port, message) = (FAR.to_string(), PORT.to_string(), MESSAGE.to_string());
    let (seconds, control) = (options.duration.to_string(), options.congestion_control.as_str());
    let (mut gbps, mut retransmits, mut name) = (Vec::new(), Vec::new(), String::new());
    let before = veth.received()?;
    for _ in 0..options.runs {
        let _server = program.serve(PORT, &["-s", "-1", "-p", &port])?;
        let said =
            program.call(&["-c", &far, "-p", &port, "-t", &seconds, "-l", &message, "-C", control, "-J"])?;
        let Answer { end } = serde_json::from_str(&said).context("iperf3's answer")?;
        gbps.push(end.sum_received.bits_per_second / 1e9);
        retransmits.push(end.sum_sent.retransmits / end.sum_sent.seconds.max(f64::MIN_POSITIVE));
        name = end.sender_tcp_congestion;
    }
    let after = veth.received()?;
    let (frames, bytes) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    Ok(IperfReport {
        wire,
        message_bytes: MESSAGE,
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
    fn an_answer_is_read() {
        let said = r#"{"start": {"version": "iperf 3.12"}, "end": {
            "sum_sent": {"seconds": 2.0, "bytes": 5, "bits_per_second": 7e9, "retransmits": 12, "sender": true},
            "sum_received": {"seconds": 2.0, "bytes": 5, "bits_per_second": 6.5e9, "sender": true},
            "sender_tcp_congestion": "cubic", "receiver_tcp_congestion": "cubic"}}"#;
        let Answer { end } = serde_json::from_str(said).unwrap();
        assert_eq!((end.sum_received.bits_per_second, end.sum_sent.retransmits), (6.5e9, 12.0));
        assert_eq!(end.sender_tcp_congestion, "cubic");
        assert!(serde_json::from_str::<Answer>(r#"{"error": "unable to connect"}"#).is_err());
    }
}
