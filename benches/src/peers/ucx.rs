//! ucx_perftest: measures one-sided operations over the kernel's TCP.

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::process::Program;
use super::veth::{SERVER, Veth, VethConfig};
use super::{Budget, Options};
use crate::Samples;

const PORT: u16 = 13_337;
/// Outstanding operations in the tests of rate.
const OUTSTANDING: u32 = 256;
/// Fraction of the messages in a trial run: ucx_perftest takes a number of messages, not a time, and the trial yields
/// it.
const TRIAL: u32 = 20;

/// A test of ucx_perftest.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UcxTest {
    /// Puts, with 256 operations outstanding.
    Put,
    /// Gets, with 256 operations outstanding.
    Get,
    /// Ping-pong of puts, one at a time.
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
            Self::PutLatency => "put ping-pong",
        })
    }
}

/// Bytes per run if the options name sizes; the number of puts stays within 4000 and 300,000.
const PUT_BYTES_MAX: u64 = 4 << 30;
/// Default tests: test, bytes of a message, largest number of messages.
const TESTS: [(UcxTest, u32, u32); 4] = [
    (UcxTest::Put, 64 << 10, 20_000),
    (UcxTest::Get, 64 << 10, 20_000),
    (UcxTest::Put, 64, 300_000),
    (UcxTest::PutLatency, 64, 50_000),
];

/// Result of one test with one message size.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct UcxReport {
    /// Configuration of the veth pair.
    pub wire: VethConfig,
    /// Test of ucx_perftest in this row.
    pub test: UcxTest,
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Number of messages per run.
    pub iterations: u32,
    /// Payload bandwidth over the whole run, Gbit/s.
    pub gbps: Samples,
    /// Messages per second over the whole run.
    pub messages_per_second: Samples,
    /// Median round trip of the ping-pong, µs: twice the one-way time that ucx_perftest prints.
    pub round_trip_us: Option<Samples>,
}

/// Fields of a line of ucx_perftest's CSV.
#[derive(Debug, PartialEq)]
struct Line {
    median_us: f64,
    mega_bytes_per_second: f64,
    messages_per_second: f64,
}

/// Runs every test as often as the options say.
pub(crate) fn run(
    options: &Options,
    veth: &Veth,
    wire: VethConfig,
    budget: &Budget,
) -> Result<Vec<UcxReport>> {
    let environment = ["UCX_TLS=tcp", "UCX_NET_DEVICES=@", "UCX_WARN_UNUSED_ENV_VARS=n"];
    let program =
        Program { veth, cores: options.cores, name: "ucx_perftest", environment: &environment, budget };
    if options.size.is_empty() {
        return TESTS.iter().map(|test| measure(options, &program, wire, *test)).collect();
    }
    let puts = options.size.iter().map(|size| {
        let messages = (PUT_BYTES_MAX / (*size).max(1)).clamp(4_000, 300_000);
        measure(options, &program, wire, (UcxTest::Put, u32::try_from(*size)?, u32::try_from(messages)?))
    });
    puts.collect()
}

fn measure(
    options: &Options,
    program: &Program<'_>,
    wire: VethConfig,
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
        // The megabyte of ucx_perftest has 2²⁰ bytes.
        gbps: samples(|line| line.mega_bytes_per_second * f64::from(1 << 20) * 8.0 / 1e9)?,
        messages_per_second: samples(|line| line.messages_per_second)?,
        round_trip_us: (test == UcxTest::PutLatency).then(round_trip).transpose()?,
    })
}

/// Returns the number of messages for the time at this rate, at least those of the trial and at most `most`.
#[expect(clippy::cast_possible_truncation, reason = "it lies between two u32")]
fn lasting(per_second: f64, seconds: u32, most: u32) -> u32 {
    let wanted = per_second * f64::from(seconds);
    wanted.clamp(f64::from(most / TRIAL), f64::from(most)) as u32
}

/// Runs the test once.
fn once(program: &Program<'_>, test: UcxTest, message_bytes: u32, iterations: u32) -> Result<Line> {
    let [port, size, count] = [PORT.into(), message_bytes, iterations].map(|number| number.to_string());
    let (server, outstanding) = (SERVER.to_string(), OUTSTANDING.to_string());
    let _serving = program.serve(PORT, &["-p", &port])?;
    let mut args = vec![server.as_str(), "-p", &port, "-t", test.name(), "-s", &size, "-n", &count, "-v"];
    if test != UcxTest::PutLatency {
        args.extend(["-O", &outstanding]);
    }
    parse(&program.call(&args)?)
}

/// Parses the last line of the CSV, which covers the whole run.
fn parse(output: &str) -> Result<Line> {
    let mut lines = output.lines().map(str::trim).skip_while(|line| !line.starts_with("iterations,"));
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
    fn the_last_line_of_the_csv_is_read() {
        let output = "\
            iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
            5000,9.0,441.9,325.8,141.42,100.0,2263,1000\n\
            20000,10.353,441.956,325.884,141.42,191.79,2263,3069\n";
        let line = Line { median_us: 10.353, mega_bytes_per_second: 191.79, messages_per_second: 3069.0 };
        assert_eq!(parse(output).unwrap(), line);
    }

    #[test]
    fn the_number_of_messages_fits_the_time_within_bounds() {
        assert_eq!(lasting(1000.0, 2, 20_000), 2000);
        assert_eq!(lasting(1e6, 2, 20_000), 20_000);
        assert_eq!(lasting(1.0, 2, 20_000), 1000, "at least the messages of the trial");
    }

    #[test]
    fn output_without_results_is_an_error() {
        assert!(parse("").is_err());
        assert!(parse("iterations,50.0_percentile_lat\n").is_err());
        assert!(parse("iterations,overall_bw\n5,fast\n").is_err());
    }
}
