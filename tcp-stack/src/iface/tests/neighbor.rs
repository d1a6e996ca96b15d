use super::*;
use std::net::Ipv4Addr;
use std::vec::Vec;

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);
const SECOND: Duration = Duration::from_secs(1);

fn ip(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 77, 0, last).into()
}

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn cache(capacity: usize) -> NeighborCache {
    NeighborCache::new(capacity, (1, 2))
}

/// Runs the timers until `until`; returns the solicitations with their times in seconds.
fn run(cache: &mut NeighborCache, until: Instant) -> Vec<(u64, Option<MacAddr>)> {
    let mut sent = Vec::new();
    while let Some(deadline) = cache.next_deadline().filter(|deadline| *deadline <= until) {
        cache.handle_timeouts(deadline, &mut |solicit| {
            sent.push((deadline.as_millis() / 1000, solicit.to));
        });
    }
    sent
}

fn advert(mac: MacAddr, solicited: bool, overrides: bool) -> Advert {
    Advert { mac: Some(mac), solicited, overrides }
}

fn state(cache: &NeighborCache, ip: IpAddr) -> &'static str {
    let Some(entry) = cache.index.get(&ip).and_then(|slot| cache.entries.get(*slot as usize)) else {
        return "none";
    };
    match entry.state {
        State::Incomplete { .. } => "incomplete",
        State::Reachable { .. } => "reachable",
        State::Stale => "stale",
        State::Delay { .. } => "delay",
        State::Probe { .. } => "probe",
        State::Contested { .. } => "contested",
        State::Failed { .. } => "failed",
        State::Static => "fixed",
    }
}

/// Returns a cache whose only neighbor is in state `wanted`, with the link address A if it has one.
fn in_state(wanted: &str) -> (NeighborCache, Instant) {
    let mut cache = cache(4);
    let mut now = at(0);
    match wanted {
        "none" => {}
        "stale" => cache.on_solicited_by(at(0), ip(1), A),
        "delay" | "probe" => {
            cache.on_solicited_by(at(0), ip(1), A);
            assert_eq!(cache.resolve(now, ip(1)), Lookup::Ready(A));
            if wanted == "probe" {
                now = at(5_000);
                run(&mut cache, now);
            }
        }
        _ => {
            assert!(matches!(cache.resolve(now, ip(1)), Lookup::Resolving(Some(_))));
            if wanted == "reachable" {
                assert!(cache.on_advert(now, ip(1), advert(A, true, true)));
            } else if wanted == "failed" {
                now = at(3_000);
                run(&mut cache, now);
            }
        }
    }
    assert_eq!(state(&cache, ip(1)), wanted);
    (cache, now)
}

#[test]
fn resolution_sends_three_solicitations_a_second_apart() {
    let mut cache = cache(4);
    let asked = Lookup::Resolving(Some(Solicit { target: ip(1), to: None }));
    assert_eq!(cache.resolve(at(0), ip(1)), asked);
    for _ in 0..100 {
        assert_eq!(cache.resolve(at(10), ip(1)), Lookup::Resolving(None));
    }
    assert_eq!(run(&mut cache, at(2_999)), [(1, None), (2, None)]);
    assert_eq!(run(&mut cache, at(10_000)), []);
    assert_eq!((state(&cache, ip(1)), cache.counts.failed), ("failed", 1));
    // No answer: no solicitation for a second.
    assert_eq!(cache.resolve(at(3_900), ip(1)), Lookup::Unreachable);
    assert_eq!(cache.resolve(at(4_000), ip(1)), asked);
    assert_eq!(cache.resolutions(), 0);
}

#[test]
fn states_of_a_neighbor_that_answers() {
    let (mut cache, _) = in_state("reachable");
    assert_eq!((cache.resolutions(), cache.counts.resolved), (1, 1));
    let mut now = at(0) + cache.reachable;
    assert_eq!(cache.resolve(now - SECOND, ip(1)), Lookup::Ready(A));
    assert_eq!((state(&cache, ip(1)), run(&mut cache, now)), ("reachable", Vec::new()));
    // REACHABLE has expired: still used, probed five seconds later, then answered or confirmed.
    assert_eq!(cache.resolve(now, ip(1)), Lookup::Ready(A));
    assert_eq!((state(&cache, ip(1)), run(&mut cache, now + SECOND)), ("delay", Vec::new()));
    now += Duration::from_millis(5_050);
    assert_eq!(run(&mut cache, now).len(), 1);
    assert_eq!(state(&cache, ip(1)), "probe");
    assert_eq!(cache.resolve(now, ip(1)), Lookup::Ready(A));
    cache.confirm(now, ip(1));
    assert_eq!((state(&cache, ip(1)), run(&mut cache, now + SECOND * 5)), ("reachable", Vec::new()));
}

#[test]
fn states_of_a_neighbor_that_left() {
    let (mut cache, now) = in_state("delay");
    // The known link address first, then a broadcast at once.
    assert_eq!(run(&mut cache, at(8_050)), [(5, Some(A)), (6, Some(A)), (7, Some(A)), (8, None)]);
    assert_eq!(
        (state(&cache, ip(1)), cache.resolve(at(8_050), ip(1))),
        ("incomplete", Lookup::Resolving(None))
    );
    assert_eq!(run(&mut cache, now + SECOND * 20), [(9, None), (10, None)]);
    assert_eq!((state(&cache, ip(1)), cache.counts.failed), ("failed", 1));
    let asked = Lookup::Resolving(Some(Solicit { target: ip(1), to: None }));
    assert_eq!(cache.resolve(at(12_050), ip(1)), asked);
}

/// RFC 4861 appendix C, and §7.2.5: state before, solicited, override, the known link address or another; state and
/// link address after. Another link address of a neighbor in use leads to a solicitation first.
#[test]
fn table_of_advertisements() {
    let known = ["reachable", "stale", "delay", "probe"];
    for before in known {
        for (solicited, overrides, mac, after, now_at) in [
            (true, false, Some(A), "reachable", A),
            (true, true, Some(A), "reachable", A),
            (true, true, Some(B), if before == "stale" { "reachable" } else { "contested" }, A),
            (true, false, None, "reachable", A),
            (false, true, Some(B), if before == "stale" { "stale" } else { "contested" }, A),
            (false, true, Some(A), before, A),
            (false, false, Some(A), before, A),
            (false, false, None, before, A),
            (true, false, Some(B), if before == "reachable" { "stale" } else { before }, A),
            (false, false, Some(B), if before == "reachable" { "stale" } else { before }, A),
        ] {
            let (mut cache, now) = in_state(before);
            assert!(cache.on_advert(now, ip(1), Advert { mac, solicited, overrides }));
            let what = (before, solicited, overrides, mac);
            assert_eq!(state(&cache, ip(1)), after, "{what:?}");
            // The stale entry here has not been used.
            let follows = before == "stale" && mac == Some(B) && overrides;
            let now_at = if follows { B } else { now_at };
            assert_eq!(cache.resolve(now, ip(1)), Lookup::Ready(now_at), "{what:?}");
        }
    }
    for before in ["incomplete", "failed"] {
        for (solicited, overrides, after) in [
            (true, false, "reachable"),
            (true, true, "reachable"),
            (false, false, "stale"),
            (false, true, "stale"),
        ] {
            let (mut cache, now) = in_state(before);
            assert!(cache.on_advert(now, ip(1), Advert { mac: None, solicited, overrides }));
            assert_eq!((state(&cache, ip(1)), cache.resolutions()), (before, 0));
            assert!(cache.on_advert(now, ip(1), advert(B, solicited, overrides)));
            assert_eq!((state(&cache, ip(1)), cache.resolutions()), (after, 1));
            assert_eq!(cache.resolve(now, ip(1)), Lookup::Ready(B));
        }
    }
    let (mut cache, now) = in_state("none");
    assert!(!cache.on_advert(now, ip(1), advert(A, true, true)));
    assert_eq!(state(&cache, ip(1)), "none");
}

/// RFC 4861 §7.2.3: a solicitation makes an entry for its sender.
#[test]
fn table_of_solicitations() {
    for (before, mac, after) in [
        ("none", A, "stale"),
        ("incomplete", A, "stale"),
        ("failed", A, "stale"),
        ("reachable", A, "reachable"),
        ("stale", A, "stale"),
        ("delay", A, "delay"),
        ("probe", A, "probe"),
        ("stale", B, "stale"),
        ("reachable", B, "contested"),
        ("delay", B, "contested"),
        ("probe", B, "contested"),
    ] {
        let (mut cache, now) = in_state(before);
        let resolutions = cache.resolutions();
        cache.on_solicited_by(at(0), ip(1), mac);
        assert_eq!(state(&cache, ip(1)), after, "{before} {mac}");
        let became_known = matches!(before, "incomplete" | "failed");
        assert_eq!(cache.resolutions() - resolutions, u32::from(became_known));
        assert_eq!(cache.resolve(now, ip(1)), Lookup::Ready(if after == "contested" { A } else { mac }));
    }
}

#[test]
fn confirmation_needs_an_address() {
    for (before, after) in [
        ("none", "none"),
        ("incomplete", "incomplete"),
        ("failed", "failed"),
        ("stale", "reachable"),
        ("delay", "reachable"),
        ("probe", "reachable"),
    ] {
        let (mut cache, now) = in_state(before);
        cache.confirm(now, ip(1));
        assert_eq!(state(&cache, ip(1)), after);
    }
}

#[test]
fn a_suspected_neighbor_is_probed() {
    for (before, after) in [
        ("none", "none"),
        ("incomplete", "incomplete"),
        ("failed", "failed"),
        ("reachable", "probe"),
        ("stale", "probe"),
        ("delay", "probe"),
        ("probe", "probe"),
    ] {
        let (mut cache, now) = in_state(before);
        cache.suspect(now, ip(1));
        assert_eq!(state(&cache, ip(1)), after);
    }
    // Three requests, the first at once; then a broadcast.
    let (mut cache, now) = in_state("reachable");
    cache.suspect(now, ip(1));
    cache.suspect(now, ip(1));
    assert_eq!(run(&mut cache, now + SECOND * 3), [(0, Some(A)), (1, Some(A)), (2, Some(A)), (3, None)]);
}

#[test]
fn a_full_cache_keeps_entries_in_use() {
    let mut cache = cache(8);
    for last in 0..8 {
        cache.on_solicited_by(at(0), ip(last), A);
    }
    for last in 0..4 {
        assert_eq!(cache.resolve(at(0), ip(last)), Lookup::Ready(A));
    }
    let table = cache.index.capacity();
    // A thousand unwanted neighbors evict each other, not those in use.
    for stranger in 0..1000_u32 {
        cache.on_solicited_by(at(0), Ipv4Addr::from_bits(0x0a4e_0000 | stranger).into(), B);
    }
    assert_eq!((cache.entries.len(), cache.index.len(), cache.index.capacity()), (8, 8, table));
    for last in 0..4 {
        assert_eq!(cache.resolve(at(0), ip(last)), Lookup::Ready(A), "{last}");
    }
    assert_eq!(cache.counts.evicted, 1000);
    // A wanted neighbor gets an entry even if all are in use; an unwanted one does not.
    let strangers: Vec<IpAddr> = cache.entries.iter().map(|entry| entry.ip).collect();
    for known in strangers {
        cache.resolve(at(0), known);
    }
    cache.on_solicited_by(at(0), ip(200), B);
    assert_eq!((state(&cache, ip(200)), cache.counts.refused), ("none", 1));
    assert!(matches!(cache.resolve(at(0), ip(201)), Lookup::Resolving(Some(_))));
    assert_eq!((cache.entries.len(), cache.index.len()), (8, 8));
}

#[test]
fn timers_work_in_ticks() {
    let mut cache = cache(1024);
    for last in 0..=255 {
        cache.resolve(Instant::from_micros(u64::from(last) * 190), ip(last));
    }
    // 256 requests of one tick are repeated together.
    let deadline = cache.next_deadline().unwrap();
    assert_eq!(deadline, at(1_000));
    cache.handle_timeouts(deadline - Duration::from_nanos(1), &mut |_| panic!("too early"));
    let (mut sent, mut calls) = (0, 0);
    while cache.next_deadline().is_some_and(|deadline| deadline <= at(1_100)) {
        let deadline = cache.next_deadline().unwrap();
        cache.handle_timeouts(deadline, &mut |_| sent += 1);
        calls += 1;
    }
    assert_eq!((sent, calls), (256, 2));
}

/// Resolution of many addresses evicts no entry through which a connection makes progress.
#[test]
fn resolving_many_addresses_evicts_no_entry_in_use() {
    let mut cache = cache(8);
    for last in 0..4 {
        cache.on_solicited_by(at(0), ip(last), A);
        cache.confirm(at(0), ip(last));
    }
    let mut refused = 0;
    for stranger in 0..1000_u32 {
        let stranger: IpAddr = Ipv4Addr::from_bits(0x0a4e_0000 | stranger).into();
        refused += u32::from(cache.resolve(at(1_000), stranger) == Lookup::NoRoom);
    }
    assert_eq!(refused, 0);
    for last in 0..4 {
        assert_eq!(cache.resolve(at(1_000), ip(last)), Lookup::Ready(A), "{last}");
    }
    // After a minute without progress they may be evicted.
    for stranger in 0..1000_u32 {
        cache.resolve(at(60_000), Ipv4Addr::from_bits(0x0a4f_0000 | stranger).into());
    }
    assert_eq!(state(&cache, ip(0)), "none");
    assert_eq!((cache.entries.len(), cache.index.len()), (8, 8));
}

/// Two stations claim the address of an unused neighbor, alternating: it moves at most once a second.
#[test]
fn a_flapping_address_is_followed_once_a_second() {
    for solicited in [false, true] {
        let (mut cache, _) = in_state("stale");
        assert!(cache.on_advert(at(100), ip(1), advert(B, solicited, true)));
        let before = state(&cache, ip(1));
        for n in 0..50 {
            cache.on_advert(at(101 + n), ip(1), advert(A, solicited, true));
            cache.on_solicited_by(at(101 + n), ip(1), A);
        }
        assert_eq!(state(&cache, ip(1)), before);
        assert_eq!((cache.counts.moved, cache.counts.flapping, cache.counts.contested), (1, 100, 0));
        cache.on_advert(at(1_100), ip(1), advert(A, solicited, true));
        assert_eq!(cache.resolve(at(1_100), ip(1)), Lookup::Ready(A));
        assert_eq!(cache.counts.moved, 2);
    }
}

/// Claims to the address of a neighbor: a solicited advertisement, an announcement, a solicitation of our address.
const CLAIMS: [fn(&mut NeighborCache, Instant, MacAddr); 3] = [
    |cache, now, mac| assert!(cache.on_advert(now, ip(1), advert(mac, true, true))),
    |cache, now, mac| assert!(cache.on_advert(now, ip(1), advert(mac, false, true))),
    |cache, now, mac| cache.on_solicited_by(now, ip(1), mac),
];

/// Runs the timers until `until`; returns the solicitations with their times in milliseconds.
fn run_ms(cache: &mut NeighborCache, until: Instant) -> Vec<(u128, Option<MacAddr>)> {
    let mut sent = Vec::new();
    while let Some(deadline) = cache.next_deadline().filter(|deadline| *deadline <= until) {
        cache.handle_timeouts(deadline, &mut |solicit| sent.push((deadline.as_millis().into(), solicit.to)));
    }
    sent
}

/// One forged frame: the known link address is solicited and answers; packets go there throughout.
#[test]
fn a_false_claim_changes_nothing() {
    for claim in CLAIMS {
        for before in ["reachable", "delay", "probe"] {
            let (mut cache, now) = in_state(before);
            let at_ms = now.as_millis();
            claim(&mut cache, now, B);
            assert_eq!((state(&cache, ip(1)), cache.resolve(now, ip(1))), ("contested", Lookup::Ready(A)));
            assert_eq!(cache.lookup_ready(now, ip(1)), Some(A));
            let asked = now + Duration::from_millis(50);
            assert_eq!(run_ms(&mut cache, asked).first(), Some(&(at_ms.into(), Some(A))), "{before}");
            // Acknowledgments of earlier packets confirm nothing; only an answer does.
            cache.confirm(asked, ip(1));
            assert_eq!(state(&cache, ip(1)), "contested");
            assert!(cache.on_advert(asked, ip(1), Advert { mac: None, solicited: true, overrides: false }));
            assert_eq!((state(&cache, ip(1)), cache.resolve(asked, ip(1))), ("reachable", Lookup::Ready(A)));
            let NeighborCounts { contested, upheld, moved, failed, .. } = cache.counts;
            assert_eq!((contested, upheld, moved, failed), (1, 1, 0, 0));
            assert_eq!(run_ms(&mut cache, now + SECOND * 5), []);
        }
    }
}

/// An answer to a solicitation from before the claim does not end the contest.
#[test]
fn an_answer_before_the_solicitation_upholds_nothing() {
    let (mut cache, now) = in_state("reachable");
    CLAIMS[1](&mut cache, now, B);
    assert!(cache.on_advert(now, ip(1), advert(A, true, true)));
    assert_eq!((state(&cache, ip(1)), cache.counts.upheld), ("contested", 0));
}

/// Repeated claims cause one solicitation a second, and no other effect.
#[test]
fn repeated_claims_cost_one_solicitation_a_second() {
    for claim in CLAIMS {
        let (mut cache, _) = in_state("reachable");
        let mut asked = 0;
        for ms in 0..10_000 {
            claim(&mut cache, at(ms), B);
            for (_, to) in run_ms(&mut cache, at(ms)) {
                assert_eq!(to, Some(A));
                asked += 1;
                assert!(cache.on_advert(at(ms), ip(1), advert(A, true, true)));
            }
            cache.confirm(at(ms), ip(1));
            assert_eq!(cache.resolve(at(ms), ip(1)), Lookup::Ready(A));
        }
        assert_eq!((asked, cache.counts.moved, cache.counts.upheld), (10, 0, 10));
    }
}

/// A neighbor that returns with another card is found within 0.7 s, with or without an announcement.
#[test]
fn a_neighbor_that_moves_is_followed() {
    for claim in CLAIMS {
        for before in ["reachable", "delay", "probe"] {
            let (mut cache, now) = in_state(before);
            let at_ms = u128::from(now.as_millis());
            claim(&mut cache, now, B);
            let asked = [0, 200, 400].map(|ms| (at_ms + ms, Some(A)));
            let all: Vec<_> = asked.into_iter().chain([(at_ms + 600, None)]).collect();
            assert_eq!(run_ms(&mut cache, now + Duration::from_millis(650)), all, "{before}");
            let moved = now + Duration::from_millis(650);
            let resolutions = cache.resolutions();
            assert_eq!(cache.resolve(moved, ip(1)), Lookup::Resolving(None));
            assert!(cache.on_advert(moved, ip(1), advert(B, true, true)));
            assert_eq!((state(&cache, ip(1)), cache.resolve(moved, ip(1))), ("reachable", Lookup::Ready(B)));
            assert_eq!((cache.resolutions() - resolutions, cache.counts.moved), (1, 1));
        }
    }
}

/// A configured neighbor is never solicited, changed or evicted.
#[test]
fn a_static_neighbor_never_changes() {
    let mut cache = cache(8);
    cache.add_static(ip(1), A);
    cache.add_static(ip(1), B);
    cache.add_static(ip(2), A);
    for claim in CLAIMS {
        claim(&mut cache, at(1), B);
    }
    cache.confirm(at(1), ip(1));
    cache.suspect(at(1), ip(1));
    for stranger in 0..1000_u32 {
        cache.resolve(at(2), Ipv4Addr::from_bits(0x0a4e_0000 | stranger).into());
    }
    for fixed in [ip(1), ip(2)] {
        assert_eq!((state(&cache, fixed), cache.resolve(at(3), fixed)), ("fixed", Lookup::Ready(A)));
    }
    assert_eq!((cache.entries.len(), cache.index.len(), cache.counts.refused), (10, 10, 0));
    assert_eq!((cache.counts.contested, cache.counts.upheld, cache.counts.moved), (3, 3, 0));
}
