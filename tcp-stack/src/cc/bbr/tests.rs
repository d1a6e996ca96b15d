use super::*;
use crate::config::TcpConfig;
use crate::recovery::RateSample;

const MSS: u32 = 1000;
/// Bandwidth of 10 MB/s, which at 40 ms makes a BDP of 400 segments.
const BANDWIDTH: u64 = 10_000_000;
const RTT: Duration = Duration::from_millis(40);

fn ms(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

/// A path of that bandwidth and round-trip time, sampled once per round trip.
struct Path {
    cc: Bbr,
    window: Window,
    now: Instant,
    in_flight: u32,
    delivered: u32,
    lost: u32,
    bandwidth: u64,
    rtt: Duration,
}

impl Path {
    fn new() -> Self {
        let mut path = Self {
            cc: Bbr::new(1),
            window: Window::initial(MSS, &TcpConfig::default()),
            now: ms(1_000),
            in_flight: 10 * MSS,
            delivered: 0,
            lost: 0,
            bandwidth: BANDWIDTH,
            rtt: RTT,
        };
        path.cc.init_pacing(&path.window, Some(RTT));
        path
    }

    /// Advances by a round trip: the path delivers what is in flight at its rate, and the sender sends as pacing and
    /// window allow.
    fn round(&mut self) {
        self.now += self.rtt;
        let prior = self.in_flight;
        let delivered = prior.min(self.bytes(self.bandwidth));
        let left = prior - delivered;
        self.tell(prior, delivered, left + self.sendable(left), false);
        self.in_flight = left + self.sendable(left);
    }

    fn sendable(&self, in_flight: u32) -> u32 {
        self.bytes(self.cc.pacing_rate()).min(self.window.cwnd.saturating_sub(in_flight))
    }

    /// Advances by a round trip with `in_flight` bytes in flight throughout.
    fn sample(&mut self, in_flight: u32, app_limited: bool) {
        self.now += self.rtt;
        let delivered = in_flight.min(self.bytes(self.bandwidth));
        self.in_flight = in_flight;
        self.tell(in_flight, delivered, in_flight, app_limited);
    }

    fn bytes(&self, rate: u64) -> u32 {
        u32::try_from(rate * u64::try_from(self.rtt.as_nanos()).unwrap() / 1_000_000_000).unwrap()
    }

    fn tell(&mut self, prior_in_flight: u32, delivered: u32, in_flight: u32, app_limited: bool) {
        let interval_ns = u64::try_from(self.rtt.as_nanos()).unwrap();
        let prior_delivered = self.delivered;
        self.delivered = self.delivered.wrapping_add(delivered);
        let sample = PathSample {
            now: self.now,
            rtt: Some(self.rtt),
            rate: Some(RateSample { delivered, interval_ns, prior_delivered, app_limited }),
            delivered,
            delivered_total: self.delivered,
            lost: self.lost,
            in_flight,
            prior_in_flight,
        };
        self.cc.on_ack(&mut self.window, &sample);
    }

    fn in_probe_bw() -> Self {
        let mut path = Self::new();
        for _ in 0..20 {
            path.round();
        }
        assert_eq!(path.cc.mode, Mode::ProbeBw);
        path
    }
}

#[test]
fn the_first_flight_is_paced_at_the_high_gain() {
    let mut cc = Bbr::new(0);
    let window = Window::initial(MSS, &TcpConfig::default());
    // 10 000 bytes in 40 ms, times 739/256.
    cc.init_pacing(&window, Some(RTT));
    assert!(cc.pacing_rate().abs_diff(250_000 * 739 / 256) < BW_UNIT);
    // Without a sample: in 1 ms.
    cc.init_pacing(&window, None);
    assert!(cc.pacing_rate().abs_diff(10_000_000 * 739 / 256) < BW_UNIT);
}

#[test]
fn startup_doubles_until_the_pipe_is_full_then_drains() {
    let mut path = Path::new();
    let mut rates = alloc::vec::Vec::new();
    while path.cc.mode == Mode::Startup {
        path.round();
        rates.push(path.cc.bandwidth());
    }
    // 250 kB/s, doubled until the path is full: less than six rounds to 10 MB/s, and three more.
    for pair in rates.windows(2).take(4) {
        assert!(pair[1] >= pair[0] * 19 / 10, "{rates:?}");
    }
    assert!((8..=11).contains(&rates.len()), "{rates:?}");
    assert!(path.cc.bandwidth().abs_diff(BANDWIDTH) < BANDWIDTH / 100);
    assert_eq!(path.cc.mode, Mode::Drain);
    assert!(path.cc.pacing_rate().abs_diff(BANDWIDTH * 88 / 256) < BANDWIDTH / 50);
    // A BDP of 400 kB, and three bursts of two segments.
    path.sample(410_000, false);
    assert_eq!(path.cc.mode, Mode::Drain);
    path.sample(400_000, false);
    assert_eq!(path.cc.mode, Mode::ProbeBw);
}

#[test]
fn the_window_is_two_bdps_and_three_bursts() {
    let mut path = Path::in_probe_bw();
    path.round();
    let quantum = Pacer::quantum(path.cc.pacing_rate(), MSS);
    assert!(path.window.cwnd.abs_diff(2 * 400_000 + 3 * quantum) < 8_000, "{:?}", path.window);
}

#[test]
fn the_gain_cycle_is_that_of_the_draft_and_never_begins_by_draining() {
    for seed in 0..200 {
        let mut cc = Bbr::new(seed);
        cc.enter_probe_bw(ms(1));
        assert_ne!(cc.pacing_gain, 192, "{seed}");
    }
    let mut path = Path::in_probe_bw();
    let mut gains = alloc::vec::Vec::new();
    for _ in 0..24 {
        path.now += Duration::from_micros(100);
        path.round();
        gains.push(path.cc.pacing_gain);
    }
    // The first phase lasts until the larger amount is in flight.
    gains.dedup_by(|a, b| (*a, *b) == (320, 320));
    let first = gains.iter().position(|gain| *gain == 320).unwrap();
    assert_eq!(gains[first..first + 9], [320, 192, 256, 256, 256, 256, 256, 256, 320]);
    // One percent less than the path's bandwidth, so that no queue remains.
    path.cc.pacing_gain = 256;
    path.cc.set_pacing_rate();
    assert!(path.cc.pacing_rate().abs_diff(BANDWIDTH * 99 / 100) < BANDWIDTH / 500);
}

#[test]
fn probing_finds_more_bandwidth_and_ten_rounds_forget_it() {
    let mut path = Path::in_probe_bw();
    path.bandwidth = 3 * BANDWIDTH;
    for _ in 0..60 {
        path.now += Duration::from_micros(100);
        path.round();
    }
    assert!(path.cc.bandwidth() > BANDWIDTH * 28 / 10, "{}", path.cc.bandwidth());
    path.bandwidth = BANDWIDTH;
    for _ in 0..12 {
        path.round();
    }
    assert!(path.cc.bandwidth() <= BANDWIDTH, "{}", path.cc.bandwidth());
}

#[test]
fn app_limited_samples_do_not_lower_the_bandwidth() {
    let mut path = Path::in_probe_bw();
    for _ in 0..50 {
        path.sample(10_000, true);
    }
    assert!(path.cc.bandwidth().abs_diff(BANDWIDTH) < BANDWIDTH / 100);
    let mut path = Path::new();
    for _ in 0..50 {
        path.sample(10_000, true);
    }
    assert_eq!(path.cc.mode, Mode::Startup, "nor of its being full");
}

#[test]
fn after_ten_seconds_the_round_trip_time_is_measured_anew() {
    let mut path = Path::in_probe_bw();
    path.rtt = RTT * 5 / 4;
    let mut rounds = 0;
    while path.cc.mode == Mode::ProbeBw {
        path.round();
        rounds += 1;
    }
    assert!((180..=205).contains(&rounds), "{rounds} of 50 ms");
    assert_eq!(path.window.cwnd, 4 * MSS);
    let before = path.cc.prior_cwnd;
    assert!(before > 800_000);
    path.rtt = RTT;
    let start = path.now;
    while path.cc.mode == Mode::ProbeRtt {
        path.sample(4 * MSS, true);
        assert!(path.cc.mode != Mode::ProbeRtt || path.window.cwnd <= 4 * MSS);
    }
    assert!((200..=280).contains(&(path.now - start).as_millis()));
    assert!(path.window.cwnd >= before - 8_000, "the window is restored");
    assert_eq!(path.cc.rtprop_ns, 40_000_000);
}

#[test]
fn a_loss_conserves_packets_for_a_round_and_then_restores_the_window() {
    let mut path = Path::in_probe_bw();
    path.round();
    let before = path.window.cwnd;
    assert_eq!(path.cc.on_loss(&path.window), before);
    path.lost += 20_000;
    path.sample(100_000, false);
    assert_eq!(path.window.cwnd, 200_000, "what is in flight, and as much as was delivered");
    for _ in 0..4 {
        path.round();
    }
    assert!(path.window.cwnd > 700_000, "{:?}", path.window);
    path.cc.on_recovery_exit(&mut path.window);
    assert!(path.window.cwnd >= before);
    assert!(path.cc.bandwidth().abs_diff(BANDWIDTH) < BANDWIDTH / 100, "loss is no measure of bandwidth");
}

#[test]
fn after_a_timeout_the_window_grows_by_what_is_delivered() {
    let mut path = Path::in_probe_bw();
    let before = path.window.cwnd;
    path.cc.on_loss(&path.window);
    path.cc.on_timeout();
    path.window.cwnd = MSS;
    path.sample(MSS, false);
    assert_eq!(path.window.cwnd, 4 * MSS, "the least");
    path.sample(4 * MSS, false);
    assert_eq!(path.window.cwnd, 8 * MSS);
    path.cc.on_recovery_exit(&mut path.window);
    assert_eq!(path.window.cwnd, before);
}

#[test]
fn a_restart_from_idle_is_at_the_rate_of_the_path_and_needs_no_probe() {
    let mut path = Path::in_probe_bw();
    path.cc.pacing_gain = 320;
    path.cc.set_pacing_rate();
    path.now += Duration::from_secs(60);
    path.cc.on_restart(&mut path.window, path.now);
    assert!(path.cc.pacing_rate().abs_diff(BANDWIDTH * 99 / 100) < BANDWIDTH / 500);
    path.round();
    assert_eq!(path.cc.mode, Mode::ProbeBw, "the pause has drained the queue");
}

#[test]
fn extreme_samples_are_harmless() {
    let mut random = crate::testutil::Random::new(3);
    let mut path = Path::new();
    let word = |random: &mut crate::testutil::Random| u32::try_from(random.below(1 << 32)).unwrap();
    for step in 0..20_000 {
        path.now += Duration::from_nanos(random.below(1 << 34));
        let rate = RateSample {
            delivered: word(&mut random),
            interval_ns: random.below(1 << 40).max(1),
            prior_delivered: word(&mut random),
            app_limited: random.below(2) == 0,
        };
        let sample = PathSample {
            now: path.now,
            rtt: (random.below(2) == 0).then(|| Duration::from_nanos(random.below(1 << 36))),
            rate: (random.below(8) != 0).then_some(rate),
            delivered: word(&mut random) >> random.below(32),
            delivered_total: word(&mut random),
            lost: word(&mut random),
            in_flight: word(&mut random) >> random.below(32),
            prior_in_flight: word(&mut random) >> random.below(32),
        };
        match random.below(20) {
            0 => drop(path.cc.on_loss(&path.window)),
            1 => path.cc.on_timeout(),
            2 => path.cc.on_recovery_exit(&mut path.window),
            3 => path.cc.on_restart(&mut path.window, path.now),
            _ => path.cc.on_ack(&mut path.window, &sample),
        }
        assert!(path.window.cwnd >= MSS && path.window.cwnd <= CWND_MAX, "{step}: {:?}", path.window);
        assert!(path.cc.pacing_rate() > 0);
    }
}

#[test]
fn the_state_is_small() {
    assert!(size_of::<Bbr>() <= 104, "{}", size_of::<Bbr>());
}
