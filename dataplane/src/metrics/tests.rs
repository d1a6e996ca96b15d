//! The exporter against real sockets, and its text against the grammar of OpenMetrics 1.0.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use iwarp_config::Config;
use iwarp_counters::Histogram;
use tokio::sync::oneshot;

use super::family::{merged, plain};
use super::*;
use crate::dpdk::TelemetryGroup;
use crate::worker::{Published, WorkerStats};

/// Sample of the text: name, labels with their values, value.
type Parsed = (String, Vec<(String, String)>, u64);

/// Parses a text strictly, and returns its samples.
///
/// # Panics
/// The text breaks a rule of the format.
fn parse(text: &str) -> Vec<Parsed> {
    let body = text.strip_suffix("# EOF\n").expect("the text ends with EOF");
    let (mut samples, mut families, mut labels_seen) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    let mut lines = body.lines().peekable();
    while let Some(line) = lines.next() {
        let (name, help) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')).expect(line);
        assert!(is_name(name) && families.insert(name.to_owned()), "{name}");
        assert!(!help.is_empty() && is_escaped(help), "{help}");
        let kind =
            lines.next().and_then(|rest| rest.strip_prefix("# TYPE ")).and_then(|rest| rest.split_once(' '));
        let (typed, kind) = kind.expect("the type follows the help");
        assert_eq!(typed, name);
        let suffix = match kind {
            "counter" => "_total",
            "gauge" => "",
            other => panic!("{other} is not a type in use"),
        };
        let before = samples.len();
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let (id, value) = line.rsplit_once(' ').expect(line);
            assert!(labels_seen.insert(id.to_owned()), "{id} occurs twice");
            let (sample, labels) = id
                .split_once('{')
                .map_or((id, ""), |(name, rest)| (name, rest.strip_suffix('}').expect("the labels end")));
            assert_eq!(sample.strip_suffix(suffix), Some(name), "{sample}");
            // Seconds have a fraction, and are compared elsewhere.
            let seconds =
                name.ends_with("_seconds") && value.parse::<f64>().is_ok_and(|seconds| seconds >= 0.0);
            let value = if seconds { 0 } else { value.parse().expect(value) };
            samples.push((sample.to_owned(), labels_of(labels), value));
        }
        assert!(samples.len() > before, "{name} has no sample");
    }
    samples
}

fn is_name(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|letter| letter.is_ascii_alphabetic() || letter == '_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

/// Returns true if every quote is escaped, and every backslash starts an escape.
fn is_escaped(text: &str) -> bool {
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        let valid = match letter {
            '\\' => letters.next().is_some_and(|letter| ['\\', '"', 'n'].contains(&letter)),
            '"' => false,
            _ => true,
        };
        if !valid {
            return false;
        }
    }
    true
}

fn labels_of(text: &str) -> Vec<(String, String)> {
    let mut labels = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, quoted) = rest.split_once("=\"").expect("a label has a value");
        let ends = |(at, _): &(usize, &str)| is_escaped(&quoted[..*at]);
        let (end, _) = quoted.match_indices('"').find(ends).expect("the value ends");
        assert!(is_name(name), "{name}");
        labels.push((name.to_owned(), quoted[..end].to_owned()));
        rest = quoted[end + 1..].trim_start_matches(',');
    }
    labels
}

fn family(group: &str, name: &str, kind: Kind, samples: &[(Option<&str>, u64)]) -> Family {
    let sample = |(label, value): &(Option<&str>, u64)| Sample {
        label: label.map(|label| ("port", label.to_owned())),
        value: *value,
        durations: None,
    };
    let (group, name, help) =
        (group.to_owned(), name.to_owned(), "The \"help\",\non two \\ lines.".to_owned());
    Family { group, name, help, kind, samples: samples.iter().map(sample).collect() }
}

#[test]
fn the_text_follows_the_grammar() {
    let largest = u64::MAX;
    let families = vec![
        family("tcp", "segments_in", Kind::Counter, &[(Some("a"), 0), (Some("b\"\\\n"), largest)]),
        family("now", "established", Kind::Gauge, &[(None, 7)]),
    ];
    let samples = parse(&text(families).unwrap());
    let port = |name: &str| vec![("port".to_owned(), name.to_owned())];
    assert_eq!(
        samples,
        [
            ("iwarp_tcp_segments_in_total".to_owned(), port("a"), 0),
            ("iwarp_tcp_segments_in_total".to_owned(), port("b\\\"\\\\\\n"), largest),
            ("iwarp_now_established".to_owned(), Vec::new(), 7),
        ]
    );
    assert_eq!(text(Vec::new()).unwrap(), "# EOF\n");
}

#[test]
fn nanoseconds_are_exported_in_seconds() {
    let families = vec![
        family("worker", "busy_ns", Kind::Counter, &[(None, 1_500_000_001)]),
        family("now", "rtt_ns", Kind::Gauge, &[(None, 250)]),
    ];
    let text = text(families).unwrap();
    let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(samples, ["iwarp_worker_busy_seconds_total{} 1.500000001", "iwarp_now_rtt_seconds{} 2.5e-7"]);
}

/// <https://prometheus.io/docs/instrumenting/exposition_formats/>: in a help text, only the backslash and the line feed
/// are escaped.
#[test]
fn the_plain_text_names_a_counter_in_full() {
    let families = || {
        vec![
            family("tcp", "segments_in", Kind::Counter, &[(Some("a"), 0), (Some("b\"\\\n"), 7)]),
            family("now", "established", Kind::Gauge, &[(None, 7)]),
        ]
    };
    assert_eq!(
        plain(&text(families()).unwrap()),
        r#"# HELP iwarp_tcp_segments_in_total The "help",\non two \\ lines.
# TYPE iwarp_tcp_segments_in_total counter
iwarp_tcp_segments_in_total{port="a"} 0
iwarp_tcp_segments_in_total{port="b\"\\\n"} 7
# HELP iwarp_now_established The "help",\non two \\ lines.
# TYPE iwarp_now_established gauge
iwarp_now_established{} 7
"#
    );
    assert_eq!(plain(&text(Vec::new()).unwrap()), "");
}

#[test]
fn every_declared_counter_of_a_worker_is_a_family_with_its_help() {
    let stats = WorkerStats { iterations: 11, commands: 13, ..WorkerStats::default() };
    let published = Published::new(&(&stats, [].as_slice()));
    published.publish(&(&stats, [].as_slice()));
    let totals = published.totals();
    assert_eq!(totals.len(), WorkerStats::COUNT);
    let families = Family::of_block("worker", Kind::Counter, Some(("worker", "0")), |f| stats.visit(f));
    for ((row, total), family) in totals.iter().zip(&families) {
        assert_eq!((row.name, row.help.trim(), *total), (&*family.name, &*family.help, family.sum()));
    }
    assert_eq!(parse(&text(families).unwrap()).len(), WorkerStats::COUNT);
}

#[test]
fn a_histogram_counts_in_seconds_up_to_each_bound() {
    let mut durations = Histogram::default();
    for micros in [1, 1500, 1500, 60_000_000] {
        durations.record(Duration::from_micros(micros));
    }
    let label = Some(("worker", "0".to_owned()));
    let samples = vec![Sample { label, value: durations.count(), durations: Some(Box::new(durations)) }];
    let family = Family { samples, ..family("verbs", "completion_seconds", Kind::Histogram, &[]) };
    let [TelemetryGroup { counters, .. }] = &telemetry(std::slice::from_ref(&family))[..] else { panic!() };
    let counter = |name: &CStr, value| (name.to_owned(), value);
    assert_eq!(*counters, [counter(c"completion_count", 4), counter(c"completion_sum_ns", 60_003_001_000)]);
    let text = text(vec![family]).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[1], "# TYPE iwarp_verbs_completion_seconds histogram");
    assert_eq!(lines[2], "iwarp_verbs_completion_seconds_sum{worker=\"0\"} 60.003001");
    assert_eq!(lines[3], "iwarp_verbs_completion_seconds_count{worker=\"0\"} 4");
    assert_eq!(lines[4], "iwarp_verbs_completion_seconds_bucket{le=\"0.000001024\",worker=\"0\"} 1");
    let bucket = |line: &str| {
        let (id, count) = line.rsplit_once(' ').unwrap();
        let bound = id.split('"').nth(1).unwrap();
        (bound.replace("+Inf", "inf").parse::<f64>().unwrap(), count.parse::<u64>().unwrap())
    };
    let buckets: Vec<(f64, u64)> = lines[4..4 + Histogram::BUCKETS].iter().map(|line| bucket(line)).collect();
    assert!(buckets.is_sorted(), "{buckets:?}");
    let up_to = |seconds: f64| buckets.iter().rfind(|(bound, _)| *bound <= seconds).unwrap().1;
    assert_eq!((up_to(0.001), up_to(0.003), up_to(10.0)), (1, 3, 3));
    assert_eq!(*buckets.last().unwrap(), (f64::INFINITY, 4));
    assert_eq!(lines.last(), Some(&"# EOF"));
}

#[test]
fn samples_of_one_family_stand_together() {
    let families = [("a", 1), ("b", 2)].map(|(port, value)| {
        [
            family("port", "rx", Kind::Counter, &[(Some(port), value)]),
            family("port", "tx", Kind::Counter, &[(Some(port), value * 10)]),
        ]
    });
    let merged = merged(families.into_iter().flatten());
    assert_eq!(
        merged.iter().map(|duration| (duration.name.as_str(), duration.sum())).collect::<Vec<_>>(),
        [("rx", 3), ("tx", 30)]
    );
    assert_eq!(parse(&text(merged).unwrap()).len(), 4);
}

#[test]
fn telemetry_has_the_sums_by_group() {
    let families = [
        family("tcp", "in", Kind::Counter, &[(Some("a"), 1), (Some("b"), 2)]),
        family("port", "in", Kind::Counter, &[(None, 5)]),
        family("tcp", "out", Kind::Gauge, &[(None, u64::MAX)]),
    ];
    let groups = telemetry(&families);
    let named = |at: usize| {
        let counters = groups[at].counters.iter().map(|(name, value)| (name.to_str().unwrap(), *value));
        (groups[at].name.to_str().unwrap(), counters.collect::<Vec<_>>())
    };
    assert_eq!(named(0), ("tcp", vec![("in", 3), ("out", u64::MAX)]));
    assert_eq!((named(1), groups.len()), (("port", vec![("in", 5)]), 2));
}

/// Counts how often it is asked.
#[derive(Default)]
struct Fake(Cell<u64>);

impl Source for Fake {
    async fn families(&self) -> Vec<Family> {
        self.0.set(self.0.get() + 1);
        // Larger than the buffers of a socket: a client that does not read blocks the writer.
        let samples: Vec<Sample> = (0..200_000)
            .map(|port| Sample {
                label: Some(("port", format!("p{port}"))),
                value: self.0.get(),
                durations: None,
            })
            .collect();
        vec![Family { samples, ..family("fake", "asked", Kind::Counter, &[]) }]
    }
}

/// An exporter on a thread of its own, which is stopped and joined when this is dropped.
struct Running {
    stop: Option<oneshot::Sender<oneshot::Sender<(MetricsStats, u64)>>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(table: &str) -> Self {
        Self::start_after(table, || ())
    }

    /// Starts an exporter that accepts nobody before `clients`, which may connect, has returned.
    fn start_after(table: &str, clients: impl FnOnce()) -> Self {
        let port = "[[port]]\ndriver = 'tap'\ninterface = 'iw0'\naddresses = ['192.0.2.2/24']\n";
        let config = Config::parse("test.toml", &format!("{port}[metrics]\n{table}\n")).unwrap();
        let (stop, stopped) = oneshot::channel::<oneshot::Sender<(MetricsStats, u64)>>();
        let (bound, ready) = std::sync::mpsc::channel();
        let (go, gone) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let exporter = Exporter::bind(&config.metrics.unwrap()).unwrap();
                let (stats, source) = (exporter.stats(), Rc::new(Fake::default()));
                bound.send(()).unwrap();
                gone.recv().unwrap();
                tokio::select! {
                    ended = exporter.run(Rc::clone(&source)) => panic!("{ended:?}"),
                    reply = stopped => drop(reply.unwrap().send((stats.read(), source.0.get()))),
                }
            });
        });
        ready.recv().unwrap();
        clients();
        go.send(()).unwrap();
        Self { stop: Some(stop), thread: Some(thread) }
    }

    /// Stops the exporter. Returns its counters, and how often it asked its source.
    fn stop(mut self) -> (MetricsStats, u64) {
        let (sender, receiver) = oneshot::channel();
        self.stop.take().unwrap().send(sender).unwrap();
        let stats = receiver.blocking_recv().unwrap();
        self.thread.take().unwrap().join().unwrap();
        stats
    }
}

/// Returns an address whose port was free just now.
fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Sends a request and returns the reply; an error of the connection ends it.
fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = connect(address);
    // The exporter may have refused before it has read everything.
    let _ = stream.write_all(request);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    String::from_utf8(reply).unwrap()
}

const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: it\r\nAccept: application/openmetrics-text\r\n\r\n";

#[test]
fn a_scrape_is_answered_over_tcp_and_over_a_unix_socket() {
    let address = free_address();
    let running = Running::start(&format!("listen = '{address}'"));
    let reply = ask(address, GET);
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(
        head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"),
        "{head}"
    );
    assert_eq!(parse(body).len(), 200_000);
    let head = ask(address, b"HEAD /metrics HTTP/1.1\r\nHost: it\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    for accept in ["", "Accept: text/plain\r\n"] {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: it\r\n{accept}\r\n");
        let reply = ask(address, request.as_bytes());
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
        assert!(head.contains("vary: accept"), "{head}");
        assert!(
            body.starts_with("# HELP iwarp_fake_asked_total The \"help\",\\non two \\\\ lines.\n"),
            "{}",
            &body[..99]
        );
        assert!(!body.contains("# EOF") && body.lines().count() == 200_002);
    }
    assert_eq!(running.stop().0, MetricsStats { scrapes: 4, ..MetricsStats::default() });

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.sock");
    let running = Running::start(&format!("listen = '{}'\nmode = '0600'", path.display()));
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(GET).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 ") && reply.ends_with("# EOF\n"));
    running.stop();
    assert!(!path.exists(), "the file goes with the exporter");
}

/// Clients of the Unix socket that send descriptors whose close blocks are the only ones that wait.
#[test]
fn a_descriptor_that_blocks_delays_no_other_client() {
    use std::os::fd::AsFd as _;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.sock");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut ends = Vec::new();
    // The exporter's is the last copy of each descriptor: were it the test's, the test would wait.
    let running = Running::start_after(&format!("listen = '{}'\nmode = '0600'", path.display()), || {
        for bytes in [&b"G"[..], GET] {
            let mut lingering = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            ends.push(listener.accept().unwrap());
            rustix::net::sockopt::set_socket_linger(&lingering, Some(Duration::from_secs(3600))).unwrap();
            lingering.set_nonblocking(true).unwrap();
            while lingering.write(&[0; 1 << 16]).is_ok() {}
            let hostile = UnixStream::connect(&path).unwrap();
            iwarp_control::transfer::send(&hostile, bytes, &[lingering.as_fd()]).unwrap();
        }
    });
    for _ in 0..2 {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.write_all(GET).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 200 ") && reply.ends_with("# EOF\n"));
    }
    running.stop();
}

#[test]
fn other_requests_are_refused_and_counted() {
    let address = free_address();
    let running = Running::start(&format!("listen = '{address}'"));
    for (request, status) in [
        ("POST /metrics HTTP/1.1\r\nHost: it\r\nContent-Length: 3\r\n\r\nabc", "405"),
        ("GET / HTTP/1.1\r\nHost: it\r\n\r\n", "404"),
        ("GET /metrics/../etc/passwd HTTP/1.1\r\nHost: it\r\n\r\n", "404"),
        ("DELETE /other HTTP/1.0\r\n\r\n", "404"),
    ] {
        let reply = ask(address, request.as_bytes());
        assert!(
            reply.starts_with(&format!("HTTP/1.1 {status} "))
                || reply.starts_with(&format!("HTTP/1.0 {status} "))
        );
    }
    assert_eq!(running.stop().0, MetricsStats { refused_request: 4, ..MetricsStats::default() });
}

#[test]
fn hostile_input_ends_its_own_connection_only() {
    let address = free_address();
    let running = Running::start(&format!("listen = '{address}'"));
    let long_line = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000));
    let long_field = format!("GET /metrics HTTP/1.1\r\nA: {}\r\n\r\n", "x".repeat(100_000));
    let many_fields = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(1000));
    let binary: Vec<u8> = (0..=255).cycle().take(5000).collect();
    let tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec();
    let hostile = [long_line.into_bytes(), long_field.into_bytes(), many_fields.into_bytes(), binary, tls];
    for request in &hostile {
        let reply = ask(address, request);
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 4"), "{reply}");
        assert!(ask(address, GET).ends_with("# EOF\n"));
    }
    drop(connect(address));
    assert!(ask(address, GET).ends_with("# EOF\n"));
    let (stats, _) = running.stop();
    assert_eq!((stats.scrapes, stats.closed_error), (6, 5), "{stats:?}");
}

#[test]
fn silent_clients_and_those_that_do_not_read_lose_their_place_after_the_time_limit() {
    let address = free_address();
    let running = Running::start(&format!("listen = '{address}'\ntimeout_ms = 2000\nclients_max = 3"));
    let mut silent = connect(address);
    let mut slow = connect(address);
    slow.write_all(b"GET /metr").unwrap();
    let mut deaf = connect(address);
    deaf.write_all(GET).unwrap();
    let mut refused = connect(address);
    assert_eq!(refused.read(&mut [0; 1]).unwrap_or(0), 0, "there are as many clients as configured");
    for stream in [&mut silent, &mut slow] {
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "the time limit has passed");
    }
    let mut tries = 0;
    while !ask(address, GET).ends_with("# EOF\n") {
        tries += 1;
        assert!(tries < 100, "the places are not free again");
    }
    deaf.shutdown(Shutdown::Both).unwrap();
    let (stats, _) = running.stop();
    assert_eq!((stats.scrapes, stats.closed_slow), (2, 3), "{stats:?}");
    assert!(stats.refused_too_many >= 1, "{stats:?}");
}

#[test]
fn scrapes_in_quick_succession_share_one_text() {
    let address = free_address();
    let running = Running::start(&format!("listen = '{address}'"));
    #[allow(clippy::disallowed_methods, reason = "a test may read the time")]
    let begin = std::time::Instant::now();
    for _ in 0..50 {
        assert!(ask(address, GET).ends_with("# EOF\n"));
    }
    let texts_max = begin.elapsed().as_millis() / 100 + 1;
    let (stats, asked) = running.stop();
    assert_eq!(stats.scrapes, 50);
    assert!(u128::from(asked) <= texts_max, "{asked} texts, at most {texts_max} are due");
}
