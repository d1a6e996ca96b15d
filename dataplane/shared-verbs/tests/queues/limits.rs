//! Limits of a user's contexts together, and the state of a context before its first request.

use std::sync::atomic::Ordering;

use crate::common::*;
use iwarp_shared_verbs::worker::{ObjectLimits, UserId};
use iwarp_shared_verbs::{Request, Response};
use rdma::verbs::VerbsError;

/// Until the first request the program may still change the file of the memory, so that the worker leaves it alone.
#[test]
fn the_memory_of_a_context_is_read_from_its_first_request_on() {
    let mut lab = Lab::new();
    let (context, memory) = lab.open(0);
    let before: Vec<u64> = memory.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    memory.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    assert!(!lab.contexts[0].has_rung() && !lab.contexts[0].waits() && lab.contexts[0].sleep());
    lab.contexts[0].awake();
    assert!(memory.iter().all(|word| word.load(Ordering::Relaxed) == u64::MAX));
    memory.iter().zip(before).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    lab.request(0, context, &Request::AllocPd).unwrap();
    memory.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    assert!(lab.contexts[0].has_rung());
}

/// One user has no more ids than its share over all its contexts, and all users together leave the rest of the device's
/// table to its other client.
#[test]
fn ids_are_limited_by_user_and_in_total() {
    let mut lab = Lab::new();
    let limits = ObjectLimits { ids: 3, ids_of_all: 5, ..LIMITS };
    let mut open = |user| lab.contexts[0].open(shared_memory(), UserId(user), limits).unwrap();
    let contexts = [open(1), open(1), open(2), open(3)];
    let mut made = [0; 4];
    let mut last = None;
    for round in 0..3 {
        for (at, context) in contexts.iter().enumerate() {
            if let Ok(Response::Id(id)) = lab.request(0, *context, &Request::CreateId(None)) {
                made[at] += 1;
                last = Some((*context, id));
            }
        }
        assert!(round > 0 || made == [1, 1, 1, 1]);
    }
    assert_eq!(made, [2, 1, 1, 1], "three of user 1, and five of all");
    let (context, id) = last.unwrap();
    lab.request(0, context, &Request::DestroyId(id)).unwrap();
    let refused = lab.request(0, contexts[1], &Request::CreateId(None));
    assert_eq!((context, refused.is_err()), (contexts[0], false), "a place is free again");
    assert_eq!(lab.request(0, contexts[2], &Request::CreateId(None)), Err(VerbsError::NoResources));
}
