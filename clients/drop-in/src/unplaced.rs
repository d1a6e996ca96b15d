//! Requests for connections that wait for a place in the backlog of their listener.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cm::{Entry, IdState};
use crate::context::{Shared, lock};

/// Longest time that a request waits for a place in its listener's backlog while the program fetches none of the
/// listener's requests. The kernel's CM rejects it at once; its events come one by one, and those of the daemon
/// together. A request that the program fetches makes place for the next one at once, without the thread that
/// distributes events.
const UNPLACED: Duration = Duration::from_millis(500);
/// Most requests that wait so.
const UNPLACED_MAX: usize = 128;

/// Queues a request if there is a place in its listener's backlog, or has it wait for one.
#[allow(clippy::disallowed_methods, reason = "the start of a time limit")]
pub(crate) fn place_request(shared: &Shared, request: Entry) {
    let mut unplaced = lock(&shared.unplaced);
    let is_first = !unplaced.iter().any(|(_, other)| Arc::ptr_eq(&other.state, &request.state));
    match if is_first { request.place() } else { Some(request) } {
        None => {}
        Some(request) if unplaced.len() < UNPLACED_MAX => unplaced.push((Instant::now(), request)),
        Some(request) => {
            drop(unplaced);
            request.reject();
        }
    }
}

/// Queues the requests for which there is a place now; the time of the others of the same listener begins again. Every
/// thread that fetches one calls it, so that it does not ask the daemon: it neither rejects nor drops a request.
#[allow(clippy::disallowed_methods, reason = "the start of a time limit")]
pub(crate) fn place_requests(shared: &Shared) {
    let mut unplaced = lock(&shared.unplaced);
    let mut placed: Vec<Arc<IdState>> = Vec::new();
    for (since, request) in std::mem::take(&mut *unplaced) {
        let listener = Arc::clone(&request.state);
        match if listener.id().is_some() { request.place() } else { Some(request) } {
            Some(request) => unplaced.push((since, request)),
            None => placed.push(listener),
        }
    }
    for (since, request) in unplaced.iter_mut() {
        if placed.iter().any(|listener| Arc::ptr_eq(listener, &request.state)) {
            *since = Instant::now();
        }
    }
}

/// Queues the requests for which there is a place now. Rejects those that have waited too long, and drops those whose
/// listener is destroyed. Returns true if some still wait.
#[allow(clippy::disallowed_methods, reason = "the end of a time limit")]
pub(crate) fn settle_requests(shared: &Shared) -> bool {
    place_requests(shared);
    let mut unplaced = lock(&shared.unplaced);
    let is_over =
        |(since, request): &mut (Instant, Entry)| request.state.id().is_none() || since.elapsed() >= UNPLACED;
    let over: Vec<_> = unplaced.extract_if(.., is_over).collect();
    let some_wait = !unplaced.is_empty();
    drop(unplaced);
    for (_, request) in over {
        if request.state.id().is_some() {
            request.reject();
        }
    }
    some_wait
}
