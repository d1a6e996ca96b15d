//! sockperf: measures round trips of the kernel's TCP.

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::process::Program;
use super::veth::{SERVER, Veth, VethConfig};
use super::{Budget, Options};
use crate::Samples;

const PORT: u16 = 11_111;
/// Bytes of a message.
const MESSAGE: u32 = 64;

/// Result of a ping-pong of 64 bytes.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SockperfReport {
    /// Configuration of the veth pair.
    pub wire: VethConfig,
    /// Bytes of a message.
    pub message_bytes: u32,
    /// True if both hosts spin on their sockets, as a poll-mode worker does on its port; false if they sleep.
    pub spins: bool,
    /// Median round trip, µs.
    pub p50_us: Samples,
    /// 99th percentile of the round trip, µs.
    pub p99_us: Samples,
    /// 99.9th percentile of the round trip, µs.
    pub p999_us: Samples,
}

/// Measures with sleeping and with spinning sockets.
pub(crate) fn run(
    options: &Options,
    veth: &Veth,
    wire: VethConfig,
    budget: &Budget,
) -> Result<Vec<SockperfReport>> {
    let program = Program { veth, cores: options.cores, name: "sockperf", environment: &[], budget };
    [false, true].map(|spins| measure(options, &program, wire, spins)).into_iter().collect()
}

fn measure(
    options: &Options,
    program: &Program<'_>,
    wire: VethConfig,
    spins: bool,
) -> Result<SockperfReport> {
    let (server, port, message) = (SERVER.to_string(), PORT.to_string(), MESSAGE.to_string());
    let seconds = options.duration.to_string();
    let common = ["--tcp", "-i", &server, "-p", &port];
    let mode: &[&str] = if spins { &["--nonblocked"] } else { &[] };
    let mut runs = Vec::new();
    for _ in 0..options.runs {
        let _serving = program.serve(PORT, &[&["server"], &common[..], mode].concat())?;
        let load = ["-m", &message, "-t", &seconds, "--mps=max", "--full-rtt"];
        let output = program.call(&[&["ping-pong"], &common[..], &load, mode].concat())?;
        runs.push([percentile(&output, 50.0)?, percentile(&output, 99.0)?, percentile(&output, 99.9)?]);
    }
    let samples = |of: fn(&[f64; 3]) -> f64| Samples::new(runs.iter().map(of).collect());
    Ok(SockperfReport {
        wire,
        message_bytes: MESSAGE,
        spins,
        p50_us: samples(|[p50, ..]| *p50)?,
        p99_us: samples(|[_, p99, _]| *p99)?,
        p999_us: samples(|[.., p999]| *p999)?,
    })
}

/// Parses a line like `sockperf: ---> percentile 99.900 = 8628.303`.
fn percentile(output: &str, wanted: f64) -> Result<f64> {
    let marked = format!("percentile {wanted:.3} =");
    let found = output.lines().find_map(|line| line.split_once(&marked));
    let (_, value) = found.with_context(|| format!("sockperf printed no {marked}"))?;
    value.trim().parse().with_context(|| format!("{marked} {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_parsed() {
        let output = "sockperf: ---> <MAX> observation = 24865.013\n\
            sockperf: ---> percentile 99.999 = 24865.013\n\
            sockperf: ---> percentile 99.900 = 8628.303\n\
            sockperf: ---> percentile 50.000 =   48.319\n";
        assert_eq!(percentile(output, 50.0).unwrap(), 48.319);
        assert_eq!(percentile(output, 99.9).unwrap(), 8628.303);
        assert!(percentile(output, 99.0).is_err());
        assert!(percentile("percentile 50.000 = soon", 50.0).is_err());
    }
}
