use super::*;

const STREAM: StreamId = StreamId(7);
const ORIGIN: Origin = Origin::new(STREAM, None);
const BOTH: Access = Access::from_bits(3).unwrap();

fn table(capacity: usize) -> StagTable {
    StagTable::new(capacity, [42; 32])
}

fn on(stream: u64) -> Origin {
    Origin::new(StreamId(stream), None)
}

#[test]
fn a_granted_window_can_be_used_to_its_last_byte() {
    let mut table = table(4);
    let range = GrantedRange { region: RegionId(2), offset: 1000, bytes: 100, base_to: 5000 };
    let stag = table.grant_range(range, BOTH, Scope::Stream(STREAM)).unwrap();
    let placement = table.check_place(stag, 5001, 99, ORIGIN).unwrap();
    assert_eq!((placement.region(), placement.offset(), placement.len()), (RegionId(2), 1001, 99));
    let fetch = table.check_fetch(stag, 5000, 100, ORIGIN).unwrap();
    assert_eq!((fetch.offset(), fetch.len()), (1000, 100));
}

#[test]
fn each_refusal_and_their_order() {
    let mut table = table(4);
    let range = GrantedRange { region: RegionId(2), offset: 0, bytes: 100, base_to: 5000 };
    let stag = table.grant_range(range, Access::REMOTE_READ, Scope::Stream(STREAM)).unwrap();
    let other_key = Stag(stag.0 ^ 1);
    let other_index = Stag(stag.0 ^ 0x100);
    use AccessError::*;
    let fetch = |stag, to, len, origin| table.check_fetch(stag, to, len, origin).map(|_| ());
    // Wrong in every way: the first failing check is reported.
    assert_eq!(fetch(other_key, u64::MAX, 2, on(8)), Err(InvalidStag));
    assert_eq!(fetch(other_index, 5000, 1, ORIGIN), Err(InvalidStag));
    assert_eq!(fetch(Stag(0), 5000, 1, ORIGIN), Err(InvalidStag));
    assert_eq!(table.check_place(stag, u64::MAX, 2, on(8)), Err(NotAssociated));
    assert_eq!(table.check_place(stag, u64::MAX, 2, ORIGIN), Err(Rights));
    assert_eq!(fetch(stag, u64::MAX, 2, ORIGIN), Err(Wrap));
    assert_eq!(fetch(stag, u64::MAX, 1, ORIGIN), Err(Wrap));
    assert_eq!(fetch(stag, u64::MAX - 1, 1, ORIGIN), Err(Bounds));
    assert_eq!(fetch(stag, 4999, 1, ORIGIN), Err(Bounds));
    assert_eq!(fetch(stag, 5100, 1, ORIGIN), Err(Bounds));
    assert_eq!(fetch(stag, 5000, 101, ORIGIN), Err(Bounds));
    assert_eq!(fetch(stag, 5100, 0, ORIGIN), Ok(()));
}

#[test]
fn a_protection_domain_admits_its_streams_only() {
    let mut table = table(4);
    let stag = table.grant(RegionId(0), 10, BOTH, Scope::Pd(PdId(3))).unwrap();
    let check = |pd| table.check_place(stag, 0, 1, Origin::new(STREAM, pd)).map(|_| ());
    assert_eq!(check(Some(PdId(3))), Ok(()));
    assert_eq!(check(Some(PdId(4))), Err(AccessError::NotAssociated));
    assert_eq!(check(None), Err(AccessError::NotAssociated));
}

#[test]
fn capacity_is_kept_and_given_back() {
    let mut table = table(3);
    let grant = |table: &mut StagTable| table.grant(RegionId(0), 1, BOTH, Scope::Stream(STREAM));
    let stags: Vec<_> = (0..3).map(|_| grant(&mut table).unwrap()).collect();
    assert_eq!(grant(&mut table), Err(GrantError::NoResources));
    assert!(table.revoke(stags[1]));
    assert!(!table.revoke(stags[1]), "a second time");
    assert_eq!(table.check_place(stags[1], 0, 1, ORIGIN), Err(AccessError::InvalidStag));
    assert!(table.check_place(stags[0], 0, 1, ORIGIN).is_ok());
    assert!(table.check_place(stags[2], 0, 1, ORIGIN).is_ok());
    assert!(grant(&mut table).is_ok());
    assert_eq!(table.len(), 3);
}

#[test]
fn a_limit_holds_for_new_stags() {
    let mut table = table(3);
    let grant = |table: &mut StagTable| table.grant(RegionId(0), 1, BOTH, Scope::Stream(STREAM));
    let first = grant(&mut table).unwrap();
    table.set_limit(1);
    assert_eq!(grant(&mut table), Err(GrantError::NoResources));
    table.set_limit(0);
    assert!(table.check_place(first, 0, 1, ORIGIN).is_ok(), "valid ones stay");
    table.set_limit(100);
    let granted = (0..10).filter(|_| grant(&mut table).is_ok()).count();
    assert_eq!(granted, 2, "no more than the capacity");
}

#[test]
fn the_rights_of_a_stream_are_those_of_all_its_stags() {
    let mut table = table(4);
    assert_eq!(table.access_of(STREAM), Access::NONE);
    for access in [Access::REMOTE_READ, Access::REMOTE_WRITE] {
        table.grant(RegionId(0), 1, access, Scope::Stream(STREAM)).unwrap();
    }
    table.grant(RegionId(0), 1, Access::REMOTE_ATOMIC, Scope::Stream(StreamId(99))).unwrap();
    assert_eq!(table.access_of(STREAM), BOTH);
    table.revoke_stream(STREAM);
    assert_eq!(table.access_of(STREAM), Access::NONE);
}

#[test]
fn a_window_beyond_the_end_of_offsets_is_not_granted() {
    let mut table = table(1);
    let range = GrantedRange { region: RegionId(0), offset: 0, bytes: 2, base_to: u64::MAX - 1 };
    assert_eq!(table.grant_range(range, BOTH, Scope::Stream(STREAM)), Err(GrantError::Range));
    let range = GrantedRange { base_to: 0, offset: u64::MAX, ..range };
    assert_eq!(table.grant_range(range, BOTH, Scope::Stream(STREAM)), Err(GrantError::Range));
    assert!(table.is_empty());
}

#[test]
fn a_stream_takes_its_stags_with_it() {
    let mut table = table(64);
    let mut grant = |stream| table.grant(RegionId(0), 1, BOTH, Scope::Stream(StreamId(stream))).unwrap();
    let of_one: Vec<_> = (0..5).map(|_| grant(1)).collect();
    let of_two: Vec<_> = (0..5).map(|_| grant(2)).collect();
    // The first, last and middle STag of the list.
    for at in [4, 0, 2] {
        assert!(table.revoke(of_one[at]));
    }
    assert_eq!(table.revoke_stream(StreamId(1)), 2);
    assert_eq!(table.revoke_stream(StreamId(1)), 0);
    assert_eq!(table.len(), 5);
    assert!(of_one.iter().all(|stag| table.check_place(*stag, 0, 1, on(1)).is_err()));
    assert!(of_two.iter().all(|stag| table.check_place(*stag, 0, 1, on(2)).is_ok()));
}

#[test]
fn a_region_takes_its_stags_with_it() {
    let mut table = table(64);
    for at in 0..20u32 {
        table.grant(RegionId(at % 2), 1, BOTH, Scope::Stream(StreamId(u64::from(at % 3)))).unwrap();
    }
    assert_eq!(table.grants_of(RegionId(1)), 10);
    assert_eq!(table.revoke_region(RegionId(1)), 10);
    assert_eq!((table.grants_of(RegionId(1)), table.grants_of(RegionId(0)), table.len()), (0, 10, 10));
    table.issuer.next = CYCLE - 10;
    let domain = Scope::Pd(PdId(1));
    let of_domain = table.grant(RegionId(0), 1, BOTH, domain).unwrap();
    assert_eq!(table.revoke_region(RegionId(0)), 11);
    assert!(!table.revoke(of_domain));
    assert!(table.is_empty() && table.streams.is_empty());
    assert_eq!(table.entries.len(), 10, "the old ones are in quarantine");
}

/// A worker revokes between two bursts, and serves no peer meanwhile.
#[test]
#[cfg_attr(miri, ignore = "131,072 STags, against the clock")]
#[allow(clippy::disallowed_methods, reason = "what is tested is how long it takes")]
fn a_region_with_many_stags_revokes_them_at_once() {
    const COUNT: u32 = 1 << 17;
    let mut table = table(COUNT as usize);
    for at in 0..COUNT {
        table.grant(RegionId(at % 2), 1, BOTH, Scope::Stream(StreamId(u64::from(at / 3)))).unwrap();
    }
    let start = std::time::Instant::now();
    assert_eq!(table.revoke_region(RegionId(1)), COUNT as usize / 2);
    assert!(start.elapsed() < core::time::Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(table.len(), COUNT as usize / 2);
    let of_streams: usize = (0..COUNT).map(|at| table.revoke_stream(StreamId(at.into()))).sum();
    assert_eq!(of_streams, COUNT as usize / 2);
    assert!(table.is_empty() && table.entries.is_empty() && table.streams.is_empty());
}

#[test]
fn only_the_entitled_peer_invalidates() {
    let mut table = table(4);
    let kept = table.grant(RegionId(0), 1, BOTH, Scope::Stream(STREAM)).unwrap();
    let given = table.grant(RegionId(0), 1, Access::REMOTE_INVALIDATE, Scope::Stream(STREAM)).unwrap();
    assert_eq!(table.invalidate(kept, ORIGIN), Err(AccessError::Rights));
    assert_eq!(table.invalidate(given, on(9)), Err(AccessError::NotAssociated));
    assert_eq!(table.invalidate(given, ORIGIN), Ok(()));
    assert_eq!(table.invalidate(given, ORIGIN), Err(AccessError::InvalidStag));
    assert_eq!(table.len(), 1);
    // An STag that other streams may use, too.
    let shared = table.grant(RegionId(0), 1, Access::REMOTE_INVALIDATE, Scope::Pd(PdId(3))).unwrap();
    let of_domain = Origin::new(STREAM, Some(PdId(3)));
    assert_eq!(table.invalidate(shared, of_domain), Err(AccessError::Rights));
    assert_eq!(table.len(), 2);
}

#[test]
#[cfg_attr(miri, ignore = "65,536 grants")]
fn an_index_stays_in_quarantine() {
    let mut table = table(2);
    let grant = |table: &mut StagTable| table.grant(RegionId(0), 1, BOTH, Scope::Stream(STREAM)).unwrap();
    let old = grant(&mut table);
    // As if nearly all indices had been granted and revoked since.
    table.issuer.next = CYCLE - 10;
    assert!(table.revoke(old));
    assert_eq!(table.len(), 0);
    assert_eq!(table.check_place(old, 0, 1, ORIGIN), Err(AccessError::InvalidStag));
    for _ in 0..QUARANTINE {
        let stag = grant(&mut table);
        assert_ne!(index_of(stag), index_of(old));
        assert!(table.revoke(stag));
    }
    assert!(table.entries.is_empty(), "out of quarantine once passed over");
}

#[test]
fn a_live_index_is_skipped() {
    let mut table = table(2);
    let stream = Scope::Stream(STREAM);
    let old = table.grant(RegionId(0), 1, BOTH, stream).unwrap();
    table.issuer.next = CYCLE;
    let new = table.grant(RegionId(0), 1, BOTH, stream).unwrap();
    assert_ne!(index_of(old), index_of(new));
    assert!(table.check_place(old, 0, 1, ORIGIN).is_ok());
}

#[test]
fn grants_and_revocations_without_end_do_not_grow_the_table() {
    let mut table = table(16);
    let room = (table.entries.allocation_size(), table.streams.allocation_size());
    for round in 0..if cfg!(miri) { 200 } else { 20_000u64 } {
        let stream = StreamId(round);
        for _ in 0..1 + round % 16 {
            table.grant(RegionId(0), 1, BOTH, Scope::Stream(stream)).unwrap();
        }
        table.revoke_stream(stream);
    }
    assert_eq!((table.entries.allocation_size(), table.streams.allocation_size()), room);
}

#[test]
#[cfg_attr(miri, ignore = "millions of indices until the one comes")]
fn index_zero_is_passed_over() {
    let mut table = table(2);
    let zero = core::iter::repeat_with(|| table.issuer.issue()).find(|(stag, _)| index_of(*stag) == 0);
    table.issuer.next = zero.unwrap().1;
    let stag = table.grant(RegionId(0), 1, BOTH, Scope::Stream(STREAM)).unwrap();
    assert_ne!(index_of(stag), 0);
    assert_eq!(table.issuer.next, zero.unwrap().1 + 2);
}
