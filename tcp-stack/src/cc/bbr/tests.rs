//! The draft's example test cases (appendix), on a model of a path.

mod losses;

use super::*;
use crate::cc::{BBR_LOSS_PERCENT, CWND_MAX};
use crate::config::TcpConfig;
use crate::recovery::RateSample;

const MSS: u32 = 1000;
/// Bandwidth of 10 MB/s, which at 40 ms makes a BDP of 400 segments.
const BANDWIDTH: u64 = 10_000_000;
const RTT: Duration = Duration::from_millis(40);
const BDP: u32 = 400_000;

fn ms(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

/// Acknowledgments per round trip.
const STEPS: u32 = 8;

/// A path of that bandwidth and round-trip time.
struct Path {
    cc: Bbr,
    window: CongestionWindow,
    now: Instant,
    in_flight: u32,
    /// The part of it that was in flight at the start of the round, and is delivered in it.
    due: u32,
    step: u32,
    /// The load and C.delivered at each step of the last round trip, when the segments were sent.
    sent: [(LoadStamp, u32); STEPS as usize],
    delivered: u32,
    lost: u32,
    bandwidth: u64,
    rtt: Duration,
    /// Bytes that the application sends per round trip, if it limits the rate.
    offered: Option<u32>,
}

impl Path {
    fn new() -> Self {
        let mut path = Self {
            cc: Bbr::new(1, BBR_LOSS_PERCENT),
            window: CongestionWindow::initial(MSS, &TcpConfig::default()),
            now: ms(1_000),
            in_flight: 10 * MSS,
            due: 0,
            step: 0,
            sent: [(LoadStamp::unloaded(false).with_load(10 * MSS, 0), 0); STEPS as usize],
            delivered: 0,
            lost: 0,
            bandwidth: BANDWIDTH,
            rtt: RTT,
            offered: None,
        };
        path.cc.init_pacing_rate(&path.window, Some(RTT));
        path
    }

    /// Advances by an eighth of a round trip: the path delivers at its rate what was in flight at the start of the
    /// round, and the sender sends as pacing and window allow.
    fn step(&mut self) {
        self.now += self.rtt / STEPS;
        let step = self.step % STEPS;
        if step == 0 {
            self.due = self.in_flight.min(self.bytes(self.bandwidth));
        }
        let delivered = (self.due / (STEPS - step)).min(self.in_flight);
        self.due -= delivered;
        let (load, prior_delivered) = self.sent[step as usize];
        self.acknowledge(delivered, load, prior_delivered);
        let room = self.window.cwnd.saturating_sub(self.in_flight);
        let sent = self.bytes(self.cc.pacing_rate()).min(self.offered.unwrap_or(u32::MAX)) / STEPS;
        self.in_flight += sent.min(room);
        self.sent[step as usize] = (self.load(), self.delivered);
        self.step += 1;
    }

    fn round(&mut self) {
        for _ in 0..STEPS {
            self.step();
        }
    }

    /// Returns the load of a segment that is sent now.
    fn load(&self) -> LoadStamp {
        LoadStamp::unloaded(self.offered.is_some()).with_load(self.in_flight, self.lost)
    }

    fn bytes(&self, rate: u64) -> u32 {
        u32::try_from(rate * u64::try_from(self.rtt.as_nanos()).unwrap() / 1_000_000_000).unwrap()
    }

    fn acknowledge(&mut self, delivered: u32, load: LoadStamp, prior_delivered: u32) {
        let prior_in_flight = self.in_flight;
        self.in_flight -= delivered;
        self.delivered = self.delivered.wrapping_add(delivered);
        let rate = RateSample {
            delivered: self.delivered.wrapping_sub(prior_delivered),
            interval_ns: u64::try_from(self.rtt.as_nanos()).unwrap(),
            prior_delivered,
            app_limited: load.app_limited(),
            load,
        };
        let sample = PathSample {
            now: self.now,
            rtt: Some(self.rtt),
            rate: Some(rate),
            delivered,
            delivered_total: self.delivered,
            lost: self.lost,
            in_flight: self.in_flight,
            prior_in_flight,
            initial_cwnd: 10 * MSS,
            sack: true,
        };
        self.cc.on_ack(&mut self.window, &sample);
    }

    /// Loses `ranges` of the oldest segments in flight, which do not follow each other.
    fn lose(&mut self, ranges: u32) {
        let (load, _) = self.sent[(self.step % STEPS) as usize];
        for range in 0..ranges {
            self.in_flight -= MSS;
            self.lost = self.lost.wrapping_add(MSS);
            let lost = LostSegment {
                now: self.now,
                load,
                seq: range * 3 * MSS,
                size: MSS,
                lost: self.lost,
                delivered: self.delivered,
                sack: true,
            };
            self.cc.on_segment_lost(&self.window, &lost);
        }
    }

    /// Loses the same, and begins a recovery.
    fn lose_and_recover(&mut self, ranges: u32) {
        self.lose(ranges);
        assert_eq!(self.cc.on_loss(&self.window), self.window.cwnd);
    }

    /// Advances until a state begins; returns the number of rounds.
    fn until(&mut self, state: State) -> u32 {
        let start = self.step;
        while self.cc.state != state {
            self.step();
            assert!(self.step - start < 4_000, "{state:?} never comes: {:?} {:?}", self.cc, self.window);
        }
        (self.step - start).div_ceil(STEPS)
    }

    fn at(state: State) -> Self {
        let mut path = Self::new();
        path.until(state);
        path
    }
}

fn near(a: u64, b: u64, percent: u64) -> bool {
    a.abs_diff(b) <= b * percent / 100
}

#[test]
fn the_first_flight_is_paced_at_the_startup_gain() {
    let mut cc = Bbr::new(0, BBR_LOSS_PERCENT);
    let window = CongestionWindow::initial(MSS, &TcpConfig::default());
    // 10 000 bytes in 40 ms, times 2.77.
    cc.init_pacing_rate(&window, Some(RTT));
    assert!(near(cc.pacing_rate(), 250_000 * 277 / 100, 1));
    // Without a sample: in 1 ms.
    cc.init_pacing_rate(&window, None);
    assert!(near(cc.pacing_rate(), 27_700_000, 1));
}

#[test]
fn startup_doubles_until_the_rate_is_flat_for_three_rounds() {
    let mut path = Path::new();
    let mut rates = alloc::vec::Vec::new();
    while path.cc.state == State::Startup {
        path.round();
        rates.push(path.cc.bw().get());
    }
    for pair in rates.windows(2).take(4) {
        assert!(pair[1] >= pair[0] * 19 / 10, "{rates:?}");
    }
    assert!((8..=11).contains(&rates.len()), "{rates:?}");
    assert!(near(path.cc.max_bw().get(), BANDWIDTH, 1));
    assert!(path.cc.has(FULL_BW_NOW) && path.cc.has(FULL_BW_REACHED) && path.cc.full_bw_count == 3);
    assert_eq!(path.cc.state, State::Drain);
}

#[test]
fn drain_paces_at_half_the_rate_until_a_bdp_is_in_flight() {
    let mut path = Path::at(State::Drain);
    assert!(near(path.cc.pacing_rate(), BANDWIDTH * 99 / 200, 1));
    assert!(path.in_flight > BDP);
    path.step();
    assert_eq!(path.cc.state, State::Drain);
    path.in_flight = BDP;
    path.step();
    assert!(path.cc.is_in_a_probe_bw_state());
}

#[test]
fn drain_ends_after_three_rounds_if_the_bandwidth_was_overestimated() {
    let mut path = Path::at(State::Drain);
    path.bandwidth = BANDWIDTH / 10;
    let rounds = path.until(State::ProbeBwDown);
    assert_eq!(rounds, 4);
    assert!(path.in_flight > BDP);
}

#[test]
fn the_cycle_is_down_cruise_refill_up() {
    let mut path = Path::at(State::ProbeBwDown);
    let mut states = alloc::vec::Vec::new();
    for _ in 0..4_000 {
        path.step();
        if path.cc.state != State::ProbeRtt && states.last() != Some(&path.cc.state) {
            states.push(path.cc.state);
        }
    }
    let up = states.iter().position(|state| *state == State::ProbeBwUp).unwrap();
    let cycle = [State::ProbeBwUp, State::ProbeBwDown, State::ProbeBwCruise, State::ProbeBwRefill];
    assert_eq!(states[up..up + 4], cycle, "{states:?}");
    // One percent less than the path's bandwidth, so that no queue remains.
    path.until(State::ProbeBwCruise);
    path.round();
    assert!(near(path.cc.pacing_rate(), BANDWIDTH * 99 / 100, 1));
}

#[test]
fn probes_are_two_to_three_seconds_apart_and_seeds_draw_them() {
    let mut waits = alloc::collections::BTreeSet::new();
    for seed in 0..100 {
        let mut cc = Bbr::new(seed, BBR_LOSS_PERCENT);
        cc.start_probe_bw_down(ms(0), 0);
        assert!((2_000..3_000).contains(&cc.phase_end_ms), "{}", cc.phase_end_ms);
        assert!(cc.rounds_since_probe_up <= 1);
        waits.insert(cc.phase_end_ms);
    }
    assert!(waits.len() > 80);
    // A path whose BDP is 20 segments is probed as often as a Reno flow would fill it.
    let mut path = Path::new();
    path.bandwidth = 20 * u64::from(MSS) * 25;
    path.until(State::ProbeBwCruise);
    let rounds = path.until(State::ProbeBwRefill);
    assert!((10..=20).contains(&rounds), "{rounds}");
}

#[test]
fn up_ends_on_a_plateau() {
    let mut path = Path::at(State::ProbeBwUp);
    assert_eq!((path.cc.pacing_gain(), path.cc.cwnd_gain()), (125, 225));
    assert_eq!(path.until(State::ProbeBwDown), 3);
    assert!(!path.cc.has(PREV_PROBE_TOO_HIGH));
    assert_eq!(path.cc.inflight_longterm, INFINITY, "nothing was lost");
}

#[test]
fn without_loss_an_application_limited_probe_goes_on() {
    let mut path = Path::at(State::ProbeBwUp);
    path.offered = Some(100 * MSS);
    for _ in 0..20 {
        path.round();
        assert_eq!(path.cc.state, State::ProbeBwUp);
    }
    let mut path = Path::new();
    path.offered = Some(10 * MSS);
    for _ in 0..50 {
        path.round();
    }
    assert_eq!(path.cc.state, State::Startup);
}

#[test]
fn down_ends_when_the_queue_is_gone_and_headroom_is_left() {
    let mut path = Path::at(State::ProbeBwUp);
    path.until(State::ProbeBwDown);
    assert_eq!(path.cc.pacing_gain(), 90);
    path.until(State::ProbeBwCruise);
    assert!(path.in_flight <= BDP + BDP / STEPS);
    path.cc.inflight_longterm = 200 * MSS;
    assert_eq!(path.cc.inflight_with_headroom(&path.window), 170 * MSS);
    path.round();
    assert!(path.window.cwnd <= path.cc.inflight_longterm * 86 / 100, "{:?} {:?}", path.window, path.cc);
}

#[test]
fn down_ends_after_its_time_even_if_the_queue_stays() {
    let mut path = Path::at(State::ProbeBwUp);
    path.until(State::ProbeBwDown);
    path.bandwidth = BANDWIDTH / 20;
    // A new minimum postpones ProbeRTT.
    path.rtt = RTT * 9 / 10;
    let start = path.now;
    while path.cc.state == State::ProbeBwDown {
        path.in_flight = path.in_flight.max(BDP * 3 / 2);
        path.round();
    }
    assert_eq!(path.cc.state, State::ProbeBwRefill);
    assert!((2_000..3_100).contains(&(path.now - start).as_millis()));
}

#[test]
fn every_five_seconds_the_round_trip_time_is_measured_anew() {
    let mut path = Path::at(State::ProbeBwCruise);
    path.rtt = RTT * 5 / 4;
    let start = path.now;
    path.until(State::ProbeRtt);
    assert!((4_000..5_300).contains(&(path.now - start).as_millis()), "{:?}", path.now - start);
    assert!(near(path.window.cwnd.into(), u64::from(BDP) / 2, 2), "{:?}", path.window);
    let before = path.cc.prior_cwnd;
    assert!(before > BDP);
    path.rtt = RTT;
    let start = path.now;
    while path.cc.state == State::ProbeRtt {
        assert!(path.window.cwnd <= BDP * 2 / 3);
        path.round();
    }
    assert!((200..=330).contains(&(path.now - start).as_millis()), "{:?}", path.now - start);
    assert_eq!(path.cc.state, State::ProbeBwCruise);
    assert!(path.window.cwnd >= before - 8_000, "the window is restored");
    assert_eq!(path.cc.min_rtt_ns, 40_000_000);
}

#[test]
fn in_startup_the_measurement_leads_back_to_startup() {
    let mut path = Path::new();
    path.offered = Some(50 * MSS);
    for _ in 0..20 {
        path.round();
    }
    path.rtt = RTT * 2;
    path.until(State::ProbeRtt);
    path.rtt = RTT;
    path.round();
    while path.cc.state == State::ProbeRtt {
        path.round();
    }
    assert_eq!(path.cc.state, State::Startup);
}

#[test]
fn a_pause_replaces_the_measurement_and_the_restart_is_at_the_rate_of_the_path() {
    let mut path = Path::at(State::ProbeBwUp);
    path.now += Duration::from_secs(60);
    path.cc.on_restart(&mut path.window, path.now, path.delivered);
    assert!(near(path.cc.pacing_rate(), BANDWIDTH * 99 / 100, 1));
    path.round();
    assert_ne!(path.cc.state, State::ProbeRtt, "the pause has drained the queue");
}

#[test]
fn aggregated_acknowledgments_enlarge_the_window_for_ten_rounds() {
    let mut path = Path::at(State::ProbeBwCruise);
    let before = path.window.cwnd;
    // After a silence of two round trips 300 segments are acknowledged at once, and 300 more.
    path.now += RTT;
    path.in_flight = 600 * MSS;
    let (load, delivered) = (path.load(), path.delivered);
    path.acknowledge(300 * MSS, load, delivered);
    path.acknowledge(290 * MSS, load, delivered);
    assert!(path.cc.extra_acked() > 500 * MSS, "{}", path.cc.extra_acked());
    path.in_flight = BDP;
    path.round();
    assert!(path.window.cwnd > before + 200 * MSS, "{} {before}", path.window.cwnd);
    for _ in 0..11 {
        path.round();
    }
    assert!(path.cc.extra_acked() < 450 * MSS, "{}", path.cc.extra_acked());
}

/// The segment that fills a hole acknowledges all that arrived behind it.
#[test]
fn the_end_of_a_recovery_is_no_aggregation() {
    let mut path = Path::at(State::ProbeBwCruise);
    for _ in 0..12 {
        path.round();
    }
    let before = path.cc.extra_acked();
    path.lose_and_recover(1);
    path.in_flight = 600 * MSS;
    let (load, delivered) = (path.load(), path.delivered);
    path.acknowledge(300 * MSS, load, delivered);
    path.cc.on_recovery_exit(&mut path.window);
    path.acknowledge(290 * MSS, load, delivered);
    assert!(path.cc.extra_acked() <= before, "{} {before}", path.cc.extra_acked());
}

#[test]
fn a_path_of_less_than_a_segment_gets_four() {
    let mut path = Path::new();
    path.bandwidth = 20_000;
    for _ in 0..60 {
        path.round();
    }
    assert!(path.cc.has(FULL_BW_REACHED));
    assert!(path.window.cwnd >= 4 * MSS && path.window.cwnd <= 8 * MSS, "{:?}", path.window);
    assert!(path.cc.pacing_rate() <= 25_000);
}

#[test]
fn ten_times_the_bandwidth_is_found_and_forgotten() {
    let mut path = Path::at(State::ProbeBwUp);
    path.round();
    path.lose(30);
    assert!(path.cc.inflight_longterm < INFINITY);
    path.bandwidth = 10 * BANDWIDTH;
    let start = path.now;
    while path.cc.max_bw().get() < BANDWIDTH * 95 / 10 {
        path.round();
        assert!(path.now - start < Duration::from_secs(15), "{:?}", path.cc);
    }
    path.bandwidth = BANDWIDTH;
    let start = path.now;
    while path.cc.max_bw().get() > BANDWIDTH * 11 / 10 {
        path.round();
        assert!(path.now - start < Duration::from_secs(20), "{:?}", path.cc);
    }
}

#[test]
fn application_limited_samples_do_not_lower_the_bandwidth() {
    let mut path = Path::at(State::ProbeBwRefill);
    path.offered = Some(10 * MSS);
    for _ in 0..50 {
        path.round();
    }
    assert!(near(path.cc.max_bw().get(), BANDWIDTH, 1));
}

#[test]
fn extreme_samples_are_harmless() {
    let mut random = crate::testutil::Random::new(3);
    let mut path = Path::new();
    let word = |random: &mut crate::testutil::Random| u32::try_from(random.below(1 << 32)).unwrap();
    for step in 0..20_000 {
        path.now += Duration::from_nanos(random.below(1 << 34));
        let load = LoadStamp::unloaded(random.below(2) == 0);
        let load = load.with_load(word(&mut random) >> 2 >> random.below(29), word(&mut random));
        let rate = RateSample {
            delivered: word(&mut random),
            interval_ns: random.below(1 << 40).max(1),
            prior_delivered: word(&mut random),
            app_limited: load.app_limited(),
            load,
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
            initial_cwnd: 10 * MSS,
            sack: random.below(2) == 0,
        };
        let lost = LostSegment {
            now: path.now,
            load,
            seq: word(&mut random),
            size: word(&mut random) >> 16,
            lost: word(&mut random),
            delivered: word(&mut random),
            sack: sample.sack,
        };
        match random.below(20) {
            0 => drop(path.cc.on_loss(&path.window)),
            1 => path.cc.undo(&mut path.window),
            2 => path.cc.on_recovery_exit(&mut path.window),
            3 => path.cc.on_restart(&mut path.window, path.now, word(&mut random)),
            4 => path.cc.on_segment_lost(&path.window, &lost),
            5 => path.cc.on_mark(),
            _ => path.cc.on_ack(&mut path.window, &sample),
        }
        assert!(path.window.cwnd >= 4 * MSS && path.window.cwnd <= CWND_MAX, "{step}: {:?}", path.window);
        assert!(path.cc.pacing_rate() > 0);
    }
}

#[test]
fn the_state_is_small() {
    assert!(size_of::<Bbr>() <= 92, "{}", size_of::<Bbr>());
}
