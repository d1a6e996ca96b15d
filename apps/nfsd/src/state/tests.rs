//! The state machine as RFC 8881 specifies it. Files are numbers here.

use std::collections::BTreeSet;
use std::time::Duration;

use super::client::SessionMade;
use super::lock::Denied;
use super::*;

const FILE: &[u8] = b"file";
const CHANNEL: Channel =
    Channel { request_bytes: 1 << 20, response_bytes: 1 << 20, cached_bytes: 4096, operations: 16, slots: 4 };
const LIMITS: StateLimits = StateLimits {
    clients_max: 3,
    sessions_max: 2,
    slots_max: 4,
    opens_max: 4,
    locks_max: 6,
    cached_bytes_max: 4096,
    lease: Duration::from_secs(90),
    grace: Duration::from_secs(120),
};

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn state() -> State<u32> {
    State::new(LIMITS, 7, BTreeSet::new())
}

fn exchange(owner: &[u8], verifier: u8, user: u32) -> ExchangeId<'_> {
    ExchangeId { owner, verifier: [verifier; 8], user, address: [10, 0, 0, 1].into(), update: false }
}

fn new_session(client: u64, sequence: u32) -> NewSession {
    NewSession { client, sequence, user: 0, asked: CHANNEL, offered: CHANNEL }
}

/// A confirmed client and its session.
fn join(state: &mut State<u32>, now: Duration, owner: &[u8]) -> (u64, SessionMade) {
    let (client, sequence, _) = state.exchange_id(now, &exchange(owner, 1, 0)).unwrap();
    (client, state.create_session(now, &new_session(client, sequence)).unwrap())
}

/// A client that may open files.
fn ready(state: &mut State<u32>, owner: &[u8]) -> u64 {
    let (client, _) = join(state, at(0), owner);
    state.reclaim_complete(client).unwrap();
    client
}

fn new_open<'a>(client: u64, owner: &'a [u8], access: u32, deny: u32) -> NewOpen<'a, u32> {
    let held = |bit| (access & bit != 0).then_some(bit);
    NewOpen { client, owner, file: FILE, access, deny, read: held(READ), write: held(WRITE) }
}

fn lock(client: u64, stateid: Stateid, owner: Option<&[u8]>, range: (u64, u64), write: bool) -> Lock<'_> {
    let span = Span::new(range.0, range.1).unwrap();
    Lock { client, file: FILE, stateid, owner, span, write, reclaim: false }
}

#[test]
fn a_client_is_known_by_owner_verifier_and_user() {
    let mut state = state();
    let (first, sequence, confirmed) = state.exchange_id(at(0), &exchange(b"a", 1, 0)).unwrap();
    assert_eq!((sequence, confirmed), (1, false));
    let (second, ..) = state.exchange_id(at(0), &exchange(b"a", 1, 0)).unwrap();
    assert_ne!(first, second, "an unconfirmed record is replaced");
    assert_eq!(state.create_session(at(0), &new_session(first, 1)), Err(Status::StaleClientId));
    state.create_session(at(0), &new_session(second, 1)).unwrap();
    assert_eq!(state.exchange_id(at(0), &exchange(b"a", 1, 0)), Ok((second, 2, true)));
    // An update needs a confirmed record with the same verifier and user.
    let update = |owner, verifier, user| ExchangeId { update: true, ..exchange(owner, verifier, user) };
    assert_eq!(state.exchange_id(at(0), &update(b"a", 1, 0)), Ok((second, 2, true)));
    assert_eq!(state.exchange_id(at(0), &update(b"b", 1, 0)), Err(Status::NoEnt));
    assert_eq!(state.exchange_id(at(0), &update(b"a", 2, 0)), Err(Status::NotSame));
    assert_eq!(state.exchange_id(at(0), &update(b"a", 1, 5)), Err(Status::Perm));
}

#[test]
fn a_restarted_client_loses_its_state_when_it_is_confirmed() {
    let mut state = state();
    let client = ready(&mut state, b"a");
    let stateid = state.open(new_open(client, b"o", READ, 0)).unwrap();
    let (again, sequence, confirmed) = state.exchange_id(at(1), &exchange(b"a", 2, 0)).unwrap();
    assert!(again != client && !confirmed);
    assert_eq!(state.test_stateid(client, stateid), Status::Ok, "the new client is not confirmed yet");
    state.create_session(at(1), &new_session(again, sequence)).unwrap();
    assert_eq!(state.test_stateid(client, stateid), Status::BadStateId);
    assert_eq!(state.create_session(at(1), &new_session(client, 2)), Err(Status::StaleClientId));
}

#[test]
fn create_session_is_executed_once_for_each_sequence() {
    let mut state = state();
    let (client, made) = join(&mut state, at(0), b"a");
    assert_eq!(state.create_session(at(0), &new_session(client, 1)), Ok(made));
    for sequence in [0, 3, u32::MAX] {
        assert_eq!(state.create_session(at(0), &new_session(client, sequence)), Err(Status::SeqMisordered));
    }
    let small = NewSession { asked: Channel { response_bytes: 100, ..CHANNEL }, ..new_session(client, 2) };
    assert_eq!(state.create_session(at(0), &small), Err(Status::TooSmall));
    assert_eq!(
        state.create_session(at(0), &small),
        Err(Status::TooSmall),
        "the repetition has the same result"
    );
    let second = state.create_session(at(0), &new_session(client, 3)).unwrap();
    assert_ne!(second.id, made.id);
    assert_eq!(state.create_session(at(0), &new_session(client, 4)), Err(Status::NoSpc), "two at most");
    assert_eq!(state.destroy_client(client), Err(Status::ClientIdBusy));
    state.destroy_session(made.id).unwrap();
    state.destroy_session(second.id).unwrap();
    assert_eq!(state.destroy_session(second.id), Err(Status::BadSession));
    state.destroy_client(client).unwrap();
    assert_eq!(state.destroy_client(client), Err(Status::StaleClientId));
}

#[test]
fn a_slot_executes_each_call_once() {
    let mut state = state();
    let (client, made) = join(&mut state, at(0), b"a");
    let call = |slot, sequence| Sequence { session: made.id, sequence, slot, highest_slot: slot.max(1) };
    let new = Ok(Turn::New { client, channel: CHANNEL });
    for slot in 0..4 {
        assert_eq!(state.sequence(at(0), &call(slot, 0)), Err(Status::SeqMisordered));
        assert_eq!(state.sequence(at(0), &call(slot, 2)), Err(Status::SeqMisordered));
        assert_eq!(state.sequence(at(0), &call(slot, 1)), new);
        assert_eq!(state.sequence(at(0), &call(slot, 1)), Err(Status::Delay), "it is being executed");
        assert_eq!(state.sequence(at(0), &call(slot, 2)), Err(Status::SeqMisordered));
        state.finish(&call(slot, 1), Some(vec![1, 2]));
        assert_eq!(state.sequence(at(0), &call(slot, 1)), Ok(Turn::Repeated(vec![1, 2])));
        assert_eq!(state.sequence(at(0), &call(slot, 2)), new);
        state.finish(&call(slot, 2), None);
        assert_eq!(state.sequence(at(0), &call(slot, 2)), Err(Status::RetryUncachedRep));
        assert_eq!(state.sequence(at(0), &call(slot, 1)), Err(Status::SeqMisordered));
    }
    assert_eq!(state.sequence(at(0), &call(4, 1)), Err(Status::BadSlot));
    let high = Sequence { highest_slot: 4, ..call(0, 3) };
    assert_eq!(state.sequence(at(0), &high), Err(Status::BadHighSlot));
    let other = Sequence { session: SessionId([0; 16]), ..call(0, 3) };
    assert_eq!(state.sequence(at(0), &other), Err(Status::BadSession));
}

#[test]
fn a_lease_ends_unless_it_is_renewed() {
    let mut state = state();
    let (client, made) = join(&mut state, at(0), b"a");
    state.reclaim_complete(client).unwrap();
    let stateid = state.open(new_open(client, b"o", READ, 0)).unwrap();
    let call = |sequence| Sequence { session: made.id, sequence, slot: 0, highest_slot: 0 };
    for (time, sequence) in [(80, 1), (170, 2)] {
        assert!(state.sequence(at(time), &call(sequence)).is_ok());
        state.finish(&call(sequence), None);
    }
    assert_eq!(state.test_stateid(client, stateid), Status::Ok);
    assert_eq!(state.sequence(at(261), &call(3)), Err(Status::BadSession));
    assert!(state.files.is_empty() && state.opens.is_empty() && state.clients.is_empty());
    assert_eq!(state.record(), Some(BTreeSet::new()));
}

#[test]
fn share_reservations_exclude_other_owners() {
    let mut state = state();
    let (a, b) = (ready(&mut state, b"a"), ready(&mut state, b"b"));
    let modes = [(READ, 0), (WRITE, 0), (READ, WRITE), (WRITE, READ), (READ | WRITE, READ | WRITE)];
    for (access, deny) in modes {
        for (other_access, other_deny) in modes {
            let first = state.open(new_open(a, b"o", access, deny)).unwrap();
            let second = state.open(new_open(b, b"o", other_access, other_deny));
            let conflict = other_access & deny != 0 || access & other_deny != 0;
            assert_eq!(second.is_err(), conflict, "{access} {deny} {other_access} {other_deny}");
            match second {
                Ok(stateid) => assert_eq!(state.close(b, stateid, FILE), Ok(Stateid::INVALID)),
                Err(status) => assert_eq!(status, Status::ShareDenied),
            }
            state.close(a, first, FILE).unwrap();
        }
    }
    assert!(state.files.is_empty() && state.opens.is_empty());
}

#[test]
fn an_open_is_upgraded_and_downgraded() {
    let mut state = state();
    let a = ready(&mut state, b"a");
    let first = state.open(new_open(a, b"o", READ, 0)).unwrap();
    assert_eq!(state.held(a, first, FILE, false), Ok(Held::Open(READ)));
    assert_eq!(state.held(a, first, FILE, true), Err(Status::OpenMode));
    let both = state.open(new_open(a, b"o", WRITE, READ)).unwrap();
    assert_eq!((both.other, both.seqid), (first.other, first.seqid + 1));
    assert_eq!(state.held(a, both, FILE, true), Ok(Held::Open(WRITE)));
    assert_eq!(state.held(a, first, FILE, false), Err(Status::OldStateId));
    assert_eq!(state.held(a, Stateid { seqid: 0, ..first }, FILE, false), Ok(Held::Open(READ)));
    assert_eq!(state.held(a, Stateid { seqid: 9, ..first }, FILE, false), Err(Status::BadStateId));
    assert_eq!(state.held(a, both, b"another", false), Err(Status::BadStateId));
    assert_eq!(state.downgrade(a, both, FILE, (READ, WRITE)), Err(Status::Inval));
    assert_eq!(state.downgrade(a, both, FILE, (0, 0)), Err(Status::Inval));
    let less = state.downgrade(a, both, FILE, (READ, 0)).unwrap();
    assert_eq!(state.held(a, less, FILE, true), Err(Status::OpenMode));
    assert_eq!(state.free_stateid(a, less), Err(Status::LocksHeld));
    state.close(a, less, FILE).unwrap();
    assert_eq!(state.close(a, less, FILE), Err(Status::BadStateId));
}

#[test]
fn a_stateid_is_that_of_its_client_and_start() {
    let mut state = state();
    let (a, b) = (ready(&mut state, b"a"), ready(&mut state, b"b"));
    let stateid = state.open(new_open(a, b"o", READ, WRITE)).unwrap();
    assert_eq!(state.test_stateid(b, stateid), Status::BadStateId);
    let mut next = State::<u32>::new(LIMITS, 8, BTreeSet::new());
    let a = ready(&mut next, b"a");
    assert_eq!(next.test_stateid(a, stateid), Status::StaleStateId);
    // Special stateids: READ with all bits set ignores reservations, everything else respects them.
    assert_eq!(state.held(b, Stateid::ANONYMOUS, FILE, false), Ok(Held::Special));
    assert_eq!(state.held(b, Stateid::ANONYMOUS, FILE, true), Err(Status::Locked));
    assert_eq!(state.held(b, Stateid::BYPASS, FILE, true), Err(Status::Locked));
    assert_eq!(state.test_stateid(b, Stateid::BYPASS), Status::BadStateId);
}

#[test]
fn locks_exclude_other_owners_where_they_overlap() {
    let mut state = state();
    let (a, b) = (ready(&mut state, b"a"), ready(&mut state, b"b"));
    let open_a = state.open(new_open(a, b"o", READ | WRITE, 0)).unwrap();
    let open_b = state.open(new_open(b, b"o", READ | WRITE, 0)).unwrap();
    let held = state.lock(&lock(a, open_a, Some(b"l"), (100, 100), true)).unwrap();
    for (range, write, free) in [
        ((0, 100), true, true),
        ((200, u64::MAX), true, true),
        ((0, 101), false, false),
        ((199, 1), false, false),
        ((0, u64::MAX), true, false),
    ] {
        let span = Span::new(range.0, range.1).unwrap();
        let tested = state.test_lock(b, (b"l", FILE), span, write);
        assert_eq!(tested.is_ok(), free, "{range:?}");
        assert_eq!(state.test_lock(a, (b"l", FILE), span, write), Ok(()), "no owner conflicts with itself");
        if !free {
            let denied =
                Denied { span: Span::new(100, 100).unwrap(), write: true, client: a, owner: b"l".to_vec() };
            assert_eq!(tested, Err(LockError::Denied(denied)));
        }
    }
    // A downgrade of the middle to a read lock leaves two write locks; both owners may read there.
    let held = state.lock(&lock(a, held, None, (120, 10), false)).unwrap();
    let other = state.lock(&lock(b, open_b, Some(b"l"), (120, 10), false)).unwrap();
    assert!(state.lock(&lock(b, other, None, (119, 1), false)).is_err());
    assert!(state.lock(&lock(a, held, None, (120, 10), true)).is_err(), "b reads");
    assert_eq!(state.free_stateid(b, other), Err(Status::LocksHeld));
    let other = state.unlock(b, other, FILE, Span::new(0, u64::MAX).unwrap()).unwrap();
    state.free_stateid(b, other).unwrap();
    let held = state.lock(&lock(a, held, None, (120, 10), true)).unwrap();
    assert_eq!(state.files[FILE].ranges.len(), 1, "adjacent ranges are one again");
    state.close(a, open_a, FILE).unwrap();
    assert_eq!(state.test_stateid(a, held), Status::BadStateId, "the locks go with the open");
    assert!(state.files[FILE].ranges.is_empty() && state.clients[&a].ranges == 0);
}

#[test]
fn a_lock_needs_an_open_of_its_kind_and_a_valid_range() {
    let mut state = state();
    let a = ready(&mut state, b"a");
    let open = state.open(new_open(a, b"o", READ, 0)).unwrap();
    let refused = state.lock(&lock(a, open, Some(b"l"), (0, 1), true));
    assert_eq!(refused, Err(LockError::Status(Status::OpenMode)));
    assert_eq!(Span::new(5, 0), Err(Status::Inval));
    assert_eq!(Span::new(u64::MAX, 2), Err(Status::Inval));
    assert_eq!(Span::new(u64::MAX, 1).unwrap().offset_and_length(), (u64::MAX, u64::MAX));
    assert_eq!(Span::new(5, u64::MAX).unwrap().offset_and_length(), (5, u64::MAX));
    assert_eq!(Span::new(5, 7).unwrap().offset_and_length(), (5, 7));
}

#[test]
fn every_limit_holds() {
    let mut state = state();
    let a = ready(&mut state, b"a");
    let opens =
        [b"1", b"2", b"3", b"4"].map(|owner| state.open(new_open(a, owner, READ | WRITE, 0)).unwrap());
    assert_eq!(state.open(new_open(a, b"5", READ, 0)), Err(Status::Delay));
    assert!(state.open(new_open(a, b"4", READ, 0)).is_ok(), "an upgrade needs no place");
    let mut held = state.lock(&lock(a, opens[0], Some(b"l"), (0, 1), true)).unwrap();
    for at in 1..6 {
        held = state.lock(&lock(a, held, None, (at * 10, 5), true)).unwrap();
    }
    let full = Err(LockError::Status(Status::Delay));
    assert_eq!(state.lock(&lock(a, held, None, (100, 1), true)), full);
    assert_eq!(state.lock(&lock(a, opens[1], Some(b"m"), (100, 1), true)), full);
    let split = Span::new(12, 1).unwrap();
    assert_eq!(
        state.unlock(a, held, FILE, split),
        Err(Status::Delay),
        "the hole would make two ranges of one"
    );
    assert_eq!(state.lockers.len(), 1);
    let held = state.unlock(a, held, FILE, Span::new(10, 20).unwrap()).unwrap();
    assert!(state.lock(&lock(a, held, None, (100, 1), true)).is_ok());
}

#[test]
fn after_a_restart_the_recorded_clients_reclaim_first() {
    let mut state = state();
    let a = ready(&mut state, b"a");
    ready(&mut state, b"b");
    let record = state.record().unwrap();
    assert_eq!(record, BTreeSet::from([b"a".to_vec(), b"b".to_vec()]));
    assert_eq!(state.record(), None, "nothing has changed since");
    assert_eq!(state.may_claim(a, true), Err(Status::NoGrace));

    let mut state = State::<u32>::new(LIMITS, 8, record.clone());
    let (a, _) = join(&mut state, at(1), b"a");
    let (c, _) = join(&mut state, at(1), b"c");
    assert_eq!(state.may_claim(a, false), Err(Status::Grace));
    assert_eq!(state.may_claim(a, true), Ok(()));
    assert_eq!(state.may_claim(c, true), Err(Status::ReclaimBad), "it had no state");
    assert_eq!(state.held(c, Stateid::ANONYMOUS, FILE, false), Err(Status::Grace));
    let open = state.open(new_open(a, b"o", READ | WRITE, 0)).unwrap();
    let reclaimed = Lock { reclaim: true, ..lock(a, open, Some(b"l"), (0, 5), true) };
    state.lock(&reclaimed).unwrap();
    state.reclaim_complete(a).unwrap();
    assert_eq!(state.reclaim_complete(a), Err(Status::CompleteAlready));
    assert_eq!(state.may_claim(a, true), Err(Status::NoGrace));
    assert_eq!(state.record(), Some(record), "b may still come, after another restart, too");
    assert!(state.in_grace());
    let (b, _) = join(&mut state, at(2), b"b");
    state.reclaim_complete(b).unwrap();
    assert!(!state.in_grace(), "all have reclaimed");
    assert_eq!(state.may_claim(a, false), Ok(()));
    assert_eq!(state.may_claim(c, false), Err(Status::Grace), "c must say RECLAIM_COMPLETE first");
}

#[test]
fn the_grace_period_ends_after_its_time() {
    let mut state = State::<u32>::new(LIMITS, 8, BTreeSet::from([b"gone".to_vec()]));
    let (a, _) = join(&mut state, at(80), b"a");
    state.reclaim_complete(a).unwrap();
    assert_eq!(state.may_claim(a, false), Err(Status::Grace));
    state.sweep(at(119));
    assert_eq!(state.may_claim(a, false), Err(Status::Grace));
    state.sweep(at(120));
    assert_eq!(state.may_claim(a, false), Ok(()));
    assert_eq!(state.record(), Some(BTreeSet::from([b"a".to_vec()])));
}

/// As [`exchange`], from the address 10.0.0.`host`.
fn exchange_from(host: u8, owner: &[u8]) -> ExchangeId<'_> {
    ExchangeId { address: [10, 0, 0, host].into(), ..exchange(owner, 1, 0) }
}

#[test]
fn another_principal_replaces_a_client_without_state() {
    let mut state = state();
    let client = ready(&mut state, b"a");
    let stateid = state.open(new_open(client, b"o", READ, 0)).unwrap();
    for verifier in [1, 2] {
        assert_eq!(state.exchange_id(at(1), &exchange(b"a", verifier, 5)), Err(Status::ClidInUse));
    }
    assert_eq!(state.test_stateid(client, stateid), Status::Ok, "nothing of it has changed");
    state.close(client, stateid, FILE).unwrap();
    let (other, sequence, confirmed) = state.exchange_id(at(1), &exchange(b"a", 1, 5)).unwrap();
    assert!(other != client && !confirmed);
    assert_eq!(state.create_session(at(1), &new_session(client, 2)), Err(Status::StaleClientId));
    assert!(state.sessions.is_empty(), "its session has gone with it");
    state.create_session(at(1), &NewSession { user: 5, ..new_session(other, sequence) }).unwrap();
    // State whose lease has expired does not count, even before it is searched for.
    state.reclaim_complete(other).unwrap();
    state.open(new_open(other, b"o", READ, 0)).unwrap();
    state.sweep(at(91));
    state.swept = at(92);
    assert!(state.exchange_id(at(92), &exchange(b"a", 1, 0)).is_ok());
    assert!(state.opens.is_empty());
}

#[test]
fn a_full_table_makes_room_for_a_client() {
    let mut state = state();
    // Three at most; a flood of one address takes the place of its own.
    for number in 0..20_u8 {
        state.exchange_id(at(number.into()), &exchange_from(2, &[number])).unwrap();
    }
    assert_eq!((state.clients.len(), state.evicted()), (3, 17));
    let (honest, sequence, _) = state.exchange_id(at(20), &exchange_from(1, b"honest")).unwrap();
    for number in 20..40_u8 {
        state.exchange_id(at(20), &exchange_from(2, &[number])).unwrap();
    }
    state.create_session(at(20), &new_session(honest, sequence)).unwrap();
    // Confirmed clients without opens do the same, and do not push one of another address out.
    for number in 40..60_u8 {
        let (id, sequence, _) = state.exchange_id(at(21), &exchange_from(2, &[number])).unwrap();
        state.create_session(at(21), &new_session(id, sequence)).unwrap();
    }
    state.reclaim_complete(honest).unwrap();
    assert!(state.open(new_open(honest, b"o", READ, 0)).is_ok());
    assert_eq!((state.clients.len(), state.sessions.len()), (3, 3));
}

#[test]
fn a_client_with_an_open_stays() {
    let mut state = state();
    let owners = [b"a", b"b", b"c"];
    let clients = owners.map(|owner| ready(&mut state, owner));
    let opens = clients.map(|client| state.open(new_open(client, b"o", READ, 0)).unwrap());
    assert_eq!(state.exchange_id(at(1), &exchange_from(2, b"d")), Err(Status::Delay));
    state.close(clients[1], opens[1], FILE).unwrap();
    let (last, ..) = state.exchange_id(at(1), &exchange_from(2, b"d")).unwrap();
    assert_eq!(state.test_stateid(clients[0], opens[0]), Status::Ok);
    assert!(!state.clients.contains_key(&clients[1]) && state.clients.contains_key(&last));
}

#[test]
fn lock_owners_are_limited() {
    let mut state = state();
    let a = ready(&mut state, b"a");
    let open = state.open(new_open(a, b"o", READ | WRITE, 0)).unwrap();
    let kept = state.lock(&lock(a, open, Some(b"kept"), (0, 1), true)).unwrap();
    let all = Span::new(0, u64::MAX).unwrap();
    for owner in 0..100_u8 {
        let held = state.lock(&lock(a, open, Some(&[owner]), (10, 1), true)).unwrap();
        state.unlock(a, held, FILE, all).unwrap();
        assert!(state.lockers.len() <= 6 && state.clients[&a].lockers == state.lockers.len());
    }
    assert_eq!(state.test_stateid(a, kept), Status::Ok, "one with a range stays");
    let held = state.lock(&lock(a, open, Some(b"freed"), (10, 1), true)).unwrap();
    let held = state.unlock(a, held, FILE, all).unwrap();
    let before = state.clients[&a].lockers;
    state.free_stateid(a, held).unwrap();
    assert_eq!(state.clients[&a].lockers, before - 1);
    state.close(a, open, FILE).unwrap();
    assert_eq!((state.clients[&a].lockers, state.lockers.len()), (0, 0));
}
