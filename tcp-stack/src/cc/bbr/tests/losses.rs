//! Losses, marks, and losses that were none.

use super::*;

/// All three conditions are needed: a recovery, a loss rate above 2 %, and six ranges.
#[test]
fn startup_ends_after_a_round_of_many_losses_even_if_the_application_limits_it() {
    for (ranges, recovers, ends) in [(6, true, true), (5, true, false), (6, false, false), (20, true, true)] {
        let mut path = Path::new();
        path.offered = Some(100 * MSS);
        for _ in 0..6 {
            path.round();
        }
        assert_eq!(path.cc.state, State::Startup);
        path.lose(ranges);
        if recovers {
            path.cc.on_loss(&path.window);
        }
        path.round();
        path.round();
        assert_eq!(path.cc.has(FULL_BW_REACHED), ends, "{ranges} ranges, recovery: {recovers}");
        assert_eq!(path.cc.inflight_longterm != INFINITY, ends);
    }
    // The loss of 6 of 400 segments is less than 2 %.
    let mut path = Path::new();
    while path.in_flight < 390 * MSS {
        path.round();
    }
    path.lose_and_recover(6);
    path.round();
    assert!(!path.cc.has(FULL_BW_REACHED));
}

/// "bw_shortterm = max(bw_latest, BBR.Beta * BBR.bw_shortterm)", once per round trip, until the next probe.
#[test]
fn while_cruising_a_loss_follows_the_delivery_rate_down() {
    let mut path = Path::at(State::ProbeBwCruise);
    path.round();
    let window = path.window.cwnd;
    path.bandwidth = BANDWIDTH / 2;
    path.lose_and_recover(10);
    let mut before = path.cc.bw().get();
    for round in 0..6 {
        path.round();
        path.lose(10);
        let now = path.cc.bw().get();
        assert!(now >= before * 69 / 100 && now <= before, "{round}: {before} to {now}");
        before = now;
    }
    assert!(near(before, BANDWIDTH / 2, 3), "{before}");
    assert!(path.window.cwnd < window * 7 / 10, "{:?}", path.window);
    assert!(near(path.cc.max_bw().get(), BANDWIDTH, 1), "the long-term model stays");
    path.cc.on_recovery_exit(&mut path.window);
    path.bandwidth = BANDWIDTH;
    path.until(State::ProbeBwRefill);
    assert!(near(path.cc.bw().get(), BANDWIDTH, 1), "the short-term model is discarded");
}

#[test]
fn a_spurious_loss_in_startup_changes_nothing() {
    let mut path = Path::new();
    path.offered = Some(100 * MSS);
    for _ in 0..6 {
        path.round();
    }
    path.lose_and_recover(20);
    path.round();
    path.round();
    assert!(path.cc.has(FULL_BW_REACHED) && path.cc.inflight_longterm < INFINITY);
    path.cc.undo(&mut path.window);
    path.cc.on_recovery_exit(&mut path.window);
    assert_eq!((path.cc.state, path.cc.inflight_longterm), (State::Startup, INFINITY));
    assert!(!path.cc.has(FULL_BW_REACHED));
    path.offered = None;
    path.until(State::Drain);
    assert!(near(path.cc.max_bw().get(), BANDWIDTH, 1));
}

#[test]
fn a_spurious_loss_in_a_probe_repeats_the_probe() {
    for after_timeout in [false, true] {
        let mut path = Path::at(State::ProbeBwUp);
        path.round();
        let before = path.window.cwnd;
        path.lose_and_recover(30);
        if after_timeout {
            path.window.cwnd = MSS;
        }
        assert_eq!(path.cc.state, State::ProbeBwDown);
        path.cc.undo(&mut path.window);
        path.cc.on_recovery_exit(&mut path.window);
        assert_eq!((path.cc.state, path.cc.inflight_longterm), (State::ProbeBwRefill, INFINITY));
        assert!(path.window.cwnd >= before);
        assert!(path.until(State::ProbeBwUp) <= 2);
    }
}

#[test]
fn after_a_timeout_the_window_grows_by_what_is_delivered() {
    let mut path = Path::at(State::ProbeBwCruise);
    let before = path.window.cwnd;
    path.cc.on_loss(&path.window);
    path.window.cwnd = MSS;
    path.now += RTT;
    let (load, delivered) = (path.load(), path.delivered);
    path.acknowledge(MSS, load, delivered);
    assert_eq!(path.window.cwnd, 4 * MSS, "the least");
    path.acknowledge(4 * MSS, load, delivered);
    assert_eq!(path.window.cwnd, 8 * MSS);
    path.cc.on_recovery_exit(&mut path.window);
    assert_eq!(path.window.cwnd, before);
}

/// The draft leaves the response to marks open, but it "MUST treat any CE marks as congestion".
#[test]
fn a_mark_ends_startup_and_probes_and_reduces_what_is_in_flight() {
    let mut path = Path::new();
    for _ in 0..5 {
        path.round();
    }
    path.cc.on_mark();
    path.step();
    assert!(path.cc.has(FULL_BW_REACHED) && path.cc.inflight_longterm < INFINITY);
    assert_eq!(path.cc.state, State::Drain);

    let mut path = Path::at(State::ProbeBwUp);
    path.round();
    path.cc.on_mark();
    path.step();
    assert!(matches!(path.cc.state, State::ProbeBwDown | State::ProbeBwCruise), "{:?}", path.cc.state);
    assert!(path.cc.inflight_longterm <= BDP * 3 / 2);

    let mut path = Path::at(State::ProbeBwCruise);
    path.round();
    let (mut expected, bandwidth) = (path.window.cwnd, path.cc.bw());
    for _ in 0..3 {
        path.cc.on_mark();
        path.round();
        expected = expected * 7 / 10;
        assert!(path.window.cwnd <= expected, "{:?} {expected}", path.window);
    }
    assert_eq!(path.cc.bw(), bandwidth, "a mark tells nothing of the rate");
}

#[test]
fn up_ends_on_loss_even_if_the_application_limits_it() {
    for app_limited in [false, true] {
        let mut path = Path::at(State::ProbeBwUp);
        path.offered = app_limited.then_some(200 * MSS);
        path.round();
        assert_eq!(path.cc.state, State::ProbeBwUp);
        let sent = path.sent[(path.step % STEPS) as usize].0.in_flight();
        path.lose(30);
        assert_eq!(path.cc.state, State::ProbeBwDown);
        assert!(path.cc.has(PREV_PROBE_TOO_HIGH) && !path.cc.has(IS_BW_PROBE_SAMPLE));
        if app_limited {
            assert_eq!(path.cc.inflight_longterm, INFINITY, "says nothing of the path");
        } else {
            // Where the losses crossed 2 %.
            assert!(path.cc.inflight_longterm <= sent && path.cc.inflight_longterm > sent * 9 / 10);
        }
    }
}

/// The probe after one that lost ends where that one lost; if it loses nothing, the next one follows at once.
#[test]
fn a_probe_after_losses_is_a_precaution() {
    let mut path = Path::at(State::ProbeBwUp);
    path.round();
    path.lose(30);
    let limit = path.cc.inflight_longterm;
    path.until(State::ProbeBwUp);
    let rounds = path.until(State::ProbeBwDown);
    assert!(rounds <= 3 && path.cc.has(PREV_PROBE_PRECAUTIONARY), "{rounds}");
    assert!(path.cc.inflight_longterm >= limit);
    // Back to the probe at once.
    let rounds = path.until(State::ProbeBwUp);
    assert!(rounds <= 3, "{rounds}");
}
