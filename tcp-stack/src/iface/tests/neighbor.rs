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

/// Runs the timers that are due until `until`; returns the solicitations with the second they came in.
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
        State::Failed { .. } => "failed",
    }
}

/// A cache whose only neighbor is in the state asked for, with the link address A where it has one.
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
fn a_neighbor_is_asked_once_a_second_three_times() {
    let mut cache = cache(4);
    let asked = Lookup::Resolving(Some(Solicit { target: ip(1), to: None }));
    assert_eq!(cache.resolve(at(0), ip(1)), asked);
    for _ in 0..100 {
        assert_eq!(cache.resolve(at(10), ip(1)), Lookup::Resolving(None));
    }
    assert_eq!(run(&mut cache, at(2_999)), [(1, None), (2, None)]);
    assert_eq!(run(&mut cache, at(10_000)), []);
    assert_eq!((state(&cache, ip(1)), cache.tally.failed), ("failed", 1));
    // No answer: it is not asked again for a second.
    assert_eq!(cache.resolve(at(3_900), ip(1)), Lookup::Unreachable);
    assert_eq!(cache.resolve(at(4_000), ip(1)), asked);
    assert_eq!(cache.resolutions(), 0);
}

#[test]
fn the_way_of_a_neighbor_that_is_there() {
    let (mut cache, _) = in_state("reachable");
    assert_eq!((cache.resolutions(), cache.tally.resolved), (1, 1));
    let mut now = at(0) + cache.reachable;
    assert_eq!(cache.resolve(now - SECOND, ip(1)), Lookup::Ready(A));
    assert_eq!((state(&cache, ip(1)), run(&mut cache, now)), ("reachable", Vec::new()));
    // Its time is over: still used, probed five seconds later, then answered or confirmed.
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
fn the_way_of_a_neighbor_that_left() {
    let (mut cache, now) = in_state("delay");
    assert_eq!(run(&mut cache, now + SECOND * 20), [(5, Some(A)), (6, Some(A)), (7, Some(A))]);
    assert_eq!(state(&cache, ip(1)), "failed");
    // The next packet starts from the beginning, at once.
    let asked = Lookup::Resolving(Some(Solicit { target: ip(1), to: None }));
    assert_eq!(cache.resolve(at(8_050), ip(1)), asked);
}

/// RFC 4861 appendix C, and §7.2.5: state before, solicited, override, the address known or another; the
/// state after, and the address.
#[test]
fn table_of_advertisements() {
    let known = ["reachable", "stale", "delay", "probe"];
    for before in known {
        for (solicited, overrides, mac, after, now_at) in [
            (true, false, Some(A), "reachable", A),
            (true, true, Some(A), "reachable", A),
            (true, true, Some(B), "reachable", B),
            (true, false, None, "reachable", A),
            (false, true, Some(B), "stale", B),
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

/// RFC 4861 §7.2.3: who asks for us makes itself known.
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
        ("reachable", B, "stale"),
        ("delay", B, "stale"),
        ("probe", B, "stale"),
    ] {
        let (mut cache, now) = in_state(before);
        let resolutions = cache.resolutions();
        cache.on_solicited_by(at(0), ip(1), mac);
        assert_eq!(state(&cache, ip(1)), after, "{before} {mac}");
        let became_known = matches!(before, "incomplete" | "failed");
        assert_eq!(cache.resolutions() - resolutions, u32::from(became_known));
        assert_eq!(cache.resolve(now, ip(1)), Lookup::Ready(mac));
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
fn doubt_leads_to_a_probe() {
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
        cache.doubt(now, ip(1));
        assert_eq!(state(&cache, ip(1)), after);
    }
    // Three requests, the first at once; then the next packet starts from the beginning.
    let (mut cache, now) = in_state("reachable");
    cache.doubt(now, ip(1));
    cache.doubt(now, ip(1));
    assert_eq!(run(&mut cache, now + SECOND * 9), [(0, Some(A)), (1, Some(A)), (2, Some(A))]);
    assert!(matches!(cache.resolve(now + SECOND * 9, ip(1)), Lookup::Resolving(Some(_))));
}

#[test]
fn memory_is_bounded_and_those_in_use_stay() {
    let mut cache = cache(8);
    for last in 0..8 {
        cache.on_solicited_by(at(0), ip(last), A);
    }
    for last in 0..4 {
        assert_eq!(cache.resolve(at(0), ip(last)), Lookup::Ready(A));
    }
    let table = cache.index.capacity();
    // A thousand strangers make themselves known: they displace each other, not those in use.
    for stranger in 0..1000_u32 {
        cache.on_solicited_by(at(0), Ipv4Addr::from_bits(0x0a4e_0000 | stranger).into(), B);
    }
    assert_eq!((cache.entries.len(), cache.index.len(), cache.index.capacity()), (8, 8, table));
    for last in 0..4 {
        assert_eq!(cache.resolve(at(0), ip(last)), Lookup::Ready(A), "{last}");
    }
    assert_eq!(cache.tally.evicted, 1000);
    // Whom we want to reach gets a place even when all are in use; a stranger does not.
    let strangers: Vec<IpAddr> = cache.entries.iter().map(|entry| entry.ip).collect();
    for known in strangers {
        cache.resolve(at(0), known);
    }
    cache.on_solicited_by(at(0), ip(200), B);
    assert_eq!((state(&cache, ip(200)), cache.tally.refused), ("none", 1));
    assert!(matches!(cache.resolve(at(0), ip(201)), Lookup::Resolving(Some(_))));
    assert_eq!((cache.entries.len(), cache.index.len()), (8, 8));
}

#[test]
fn timers_work_in_ticks() {
    let mut cache = cache(1024);
    for last in 0..=255 {
        cache.resolve(Instant::from_micros(u64::from(last) * 190), ip(last));
    }
    // 256 requests within a tick are repeated in one go.
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

/// Somebody makes us ask for one address after the other: who has a connection that moves keeps its place.
#[test]
fn asking_for_many_does_not_displace_those_in_use() {
    let mut cache = cache(8);
    for last in 0..4 {
        cache.on_solicited_by(at(0), ip(last), A);
        cache.confirm(at(0), ip(last));
    }
    let mut refused = 0;
    for stranger in 0..1000_u32 {
        let stranger: IpAddr = Ipv4Addr::from_bits(0x0a4e_0000 | stranger).into();
        refused += u32::from(cache.resolve(at(1_000), stranger) == Lookup::Unreachable);
    }
    assert_eq!(refused, 0);
    for last in 0..4 {
        assert_eq!(cache.resolve(at(1_000), ip(last)), Lookup::Ready(A), "{last}");
    }
    // A minute without progress, and they are as good as others.
    for stranger in 0..1000_u32 {
        cache.resolve(at(60_000), Ipv4Addr::from_bits(0x0a4f_0000 | stranger).into());
    }
    assert_eq!(state(&cache, ip(0)), "none");
    assert_eq!((cache.entries.len(), cache.index.len()), (8, 8));
}

/// Two stations claim one address, packet by packet: it moves once a second at most, and what was confirmed
/// for the one is not taken for the other.
#[test]
fn who_flaps_is_followed_once_a_second() {
    for solicited in [false, true] {
        let (mut cache, _) = in_state("reachable");
        assert!(cache.on_advert(at(100), ip(1), advert(B, solicited, true)));
        assert_eq!(cache.resolve(at(100), ip(1)), Lookup::Ready(B));
        let before = state(&cache, ip(1));
        for n in 0..50 {
            cache.on_advert(at(101 + n), ip(1), advert(A, solicited, true));
            cache.on_solicited_by(at(101 + n), ip(1), A);
            cache.confirm(at(101 + n), ip(1));
        }
        assert_eq!((cache.resolve(at(200), ip(1)), state(&cache, ip(1))), (Lookup::Ready(B), before));
        assert_eq!((cache.tally.moved, cache.tally.flapping), (1, 100));
        cache.on_advert(at(1_100), ip(1), advert(A, solicited, true));
        assert_eq!(cache.resolve(at(1_100), ip(1)), Lookup::Ready(A));
        assert_eq!(cache.tally.moved, 2);
    }
}

/// A neighbor that comes back with another card is followed at once.
#[test]
fn a_neighbor_that_moves_is_followed() {
    for before in ["reachable", "stale", "delay", "probe"] {
        let (mut cache, now) = in_state(before);
        cache.on_advert(now, ip(1), advert(B, false, true));
        assert_eq!(cache.resolve(now, ip(1)), Lookup::Ready(B));
        assert_eq!((state(&cache, ip(1)), cache.tally.moved), ("delay", 1), "{before}");
        // It is probed there, and confirmed by what arrives.
        assert_eq!(run(&mut cache, now + SECOND * 5 + SECOND / 10).last().map(|sent| sent.1), Some(Some(B)));
        cache.confirm(now + SECOND * 6, ip(1));
        assert_eq!(state(&cache, ip(1)), "reachable");
    }
}
