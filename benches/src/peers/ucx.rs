//! ucx_perftest: one-sided operations over the kernel's TCP.

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::process::Program;
use super::veth::{FAR, Veth, Wire};
use super::{Budget, Options};
use crate::Samples;

const PORT: u16 = 13_337;
/// Operations that are not waited for, where that is what is measured.
const OUTSTANDING: u32 = 256;
/// It is told a number of messages, not a time: a first run of a twentieth of them tells how many take the time.
const TRIAL: u32 = 20;

/// What is measured.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UcxTest {
    /// Puts, one after the other without waiting.
    Put,
    /// Gets, one after the other without waiting.
    Get,
    /// Puts to and fro.
    PutLatency,
}

impl UcxTest {
    const fn name(self) -> &'static str {
        match self {
            Self::Put => "ucp_put_bw",
            Self::Get => "ucp_get",
            Self::PutLatency => "ucp_put_lat",
        }
    }
}

impl std::fmt::Display for UcxTest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::PutLatency => "put to and fro",
        })
    }
}

/// What is run on every wire: the test, the bytes of a message, how many of them at most.
const TESTS: [(UcxTest, u32, u32); 4] = [
    (UcxTest::Put, 64 << 10, 20_000),
    (UcxTest::Get, 64 << 10, 20_000),
    (UcxTest::Put, 64, 300_000),
    (UcxTest::PutLatency, 64, 50_000),
];

/// What ucx_perftest has measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct UcxReport {
    /// Over what.
    pub wire: Wire,
    /// Which test.
    pub test: UcxTest,
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Messages of a run.
    pub iterations: u32,
    /// 10⁹ bit/s, over the whole run.
    pub gbps: Samples,
    /// Messages per second, over the whole run.
    pub messages_per_second: Samples,
    /// Median of the round trip, µs: twice what ucx_perftest shows. Of the test to and fro only.
    pub round_trip_us: Option<Samples>,
}

/// One line of ucx_perftest's CSV.
#[derive(Debug, PartialEq)]
struct Line {
    median_us: f64,
    mega_bytes_per_second: f64,
    messages_per_second: f64,
}

/// Runs every test as often as asked.
pub(crate) fn run(options: &Options, veth: &Veth, wire: Wire, budget: &Budget) -> Result<Vec<UcxReport>> {
    let environment = ["UCX_TLS=tcp", "UCX_NET_DEVICES=@", "UCX_WARN_UNUSED_ENV_VARS=n"];
    let program =
        Program { veth, cores: options.cores, name: "ucx_perftest", environment: &environment, budget };
    TESTS.iter().map(|test| measure(options, &program, wire, *test)).collect()
}

fn measure(
    options: &Options,
    program: &Program<'_>,
    wire: Wire,
    (test, message_bytes, most): (UcxTest, u32, u32),
) -> Result<UcxReport> {
    let trial = once(program, test, message_bytes, most / TRIAL)?;
    let iterations = lasting(trial.messages_per_second, options.duration, most);
    let lines = (0..options.runs).map(|_| once(program, test, message_bytes, iterations));
    let lines = lines.collect::<Result<Vec<Line>>>()?;
    let samples = |of: fn(&Line) -> f64| Samples::new(lines.iter().map(of).collect());
    let round_trip = || samples(|line| line.median_us * 2.0);
    Ok(UcxReport {
        wire,
        test,
        message_bytes,
        iterations,
        // Its megabyte has 2²⁰ bytes.
        gbps: samples(|line| line.mega_bytes_per_second * f64::from(1 << 20) * 8.0 / 1e9)?,
        messages_per_second: samples(|line| line.messages_per_second)?,
        round_trip_us: (test == UcxTest::PutLatency).then(round_trip).transpose()?,
    })
}

/// Messages that take so many seconds at such a rate; not fewer than were tried, and `most` at most.
#[expect(clippy::cast_possible_truncation, reason = "it lies between two u32")]
fn lasting(per_second: f64, seconds: u32, most: u32) -> u32 {
    let wanted = per_second * f64::from(seconds);
    wanted.clamp(f64::from(most / TRIAL), f64::from(most)) as u32
}

/// One run.
fn once(program: &Program<'_>, test: UcxTest, message_bytes: u32, iterations: u32) -> Result<Line> {
    let [port, size, count] = [PORT.into(), message_bytes, iterations].map(|it| it.to_string());
    let (far, outstanding) = (FAR.to_string(), OUTSTANDING.to_string());
    let _server = program.serve(PORT, &["-p", &port])?;
    let mut args = vec![far.as_str(), "-p", &port, "-t", test.name(), "-s", &size, "-n", &count, "-v"];
    if test != UcxTest::PutLatency {
        args.extend(["-O", &outstanding]);
    }
    parse(&program.call(&args)?)
}

/// The last line of the CSV is the whole run's.
fn parse(said: &str) -> Result<Line> {
    let mut lines = said.lines().map(str::trim).skip_while(|line| !line.starts_with("iterations,"));
    let names: Vec<&str> = lines.next().context("ucx_perftest printed no CSV")?.split(',').collect();
    let last = lines.filter(|line| line.split(',').count() == names.len()).last();
    let last = last.context("no line of results")?;
    let field = |wanted: &str| {
        let mut fields = names.iter().zip(last.split(','));
        let Some((_, field)) = fields.find(|(name, _)| **name == wanted) else {
            bail!("no {wanted}: {last}")
        };
        field.parse::<f64>().with_context(|| format!("{wanted}: {field}"))
    };
    Ok(Line {
        median_us: field("50.0_percentile_lat")?,
        mega_bytes_per_second: field("overall_bw")?,
        messages_per_second: field("overall_mr")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts() {
        let said = "\
            iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
            5000,9.0,441.9,325.8,141.42,100.0,2263,1000\n\
            20000,10.353,441.956,325.884,141.42,191.79,2263,3069\n";
        let line = Line { median_us: 10.353, mega_bytes_per_second: 191.79, messages_per_second: 3069.0 };
        assert_eq!(parse(said).unwrap(), line);
    }

    #[test]
    fn a_run_lasts_as_long_as_asked_within_bounds() {
        assert_eq!(lasting(1000.0, 2, 20_000), 2000);
        assert_eq!(lasting(1e6, 2, 20_000), 20_000);
        assert_eq!(lasting(1.0, 2, 20_000), 1000, "as many as the trial had");
    }

    #[test]
    fn what_is_no_result_is_an_error() {
        assert!(parse("").is_err());
        assert!(parse("iterations,50.0_percentile_lat\n").is_err());
        assert!(parse("iterations,overall_bw\n5,fast\n").is_err());
    }
}
