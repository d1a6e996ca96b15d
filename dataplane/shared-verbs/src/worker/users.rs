//! Turns of users: the worker's time is shared by the users that have contexts, and the share of each by its contexts.

use std::collections::VecDeque;

use rdma::verbs::CqId;

use super::ContextId;

/// User that a context belongs to. All contexts of a user have one share of the worker's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(pub u32);

/// Contexts of one user.
#[derive(Debug)]
pub(super) struct User {
    id: UserId,
    /// Open contexts, in the order in which they are served. Without one, the place is free.
    contexts: Vec<ContextId>,
    /// Index in `contexts` of the context that was served last.
    last: usize,
    /// Completion queues with completions to move to their rings.
    pub(super) cqs: VecDeque<CqId>,
}

impl User {
    /// Returns the context that is served next.
    #[inline]
    pub(super) fn next(&mut self) -> Option<ContextId> {
        self.last = self.last.checked_add(1).filter(|next| *next < self.contexts.len()).unwrap_or(0);
        self.contexts.get(self.last).copied()
    }

    pub(super) fn contexts(&self) -> &[ContextId] {
        &self.contexts
    }
}

/// Users with open contexts.
#[derive(Debug, Default)]
pub(super) struct Users {
    places: Vec<User>,
    /// Number of users that have contexts.
    count: usize,
    /// Index of the user who was served last.
    last: usize,
}

impl Users {
    /// Adds a context. Returns the index of its user.
    pub(super) fn add(&mut self, id: UserId, context: ContextId) -> usize {
        let known = self.places.iter().position(|user| user.id == id && !user.contexts.is_empty());
        let at = known.or_else(|| {
            self.count = self.count.saturating_add(1);
            self.places.iter().position(|user| user.contexts.is_empty())
        });
        let at = at.unwrap_or_else(|| {
            self.places.push(User { id, contexts: Vec::new(), last: 0, cqs: VecDeque::new() });
            self.places.len().saturating_sub(1)
        });
        if let Some(user) = self.places.get_mut(at) {
            user.id = id;
            user.contexts.push(context);
        }
        at
    }

    /// Removes a context of a user.
    pub(super) fn remove(&mut self, at: usize, context: ContextId) {
        let Some(user) = self.places.get_mut(at) else { return };
        user.contexts.retain(|of| *of != context);
        if user.contexts.is_empty() {
            self.count = self.count.saturating_sub(1);
        }
    }

    /// Number of users with contexts.
    #[inline]
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Number of turns after which each user has had one.
    #[inline]
    pub(super) fn turns(&self) -> usize {
        self.places.len()
    }

    /// Returns the index of the user whose turn it is.
    #[inline]
    pub(super) fn next_turn(&mut self) -> usize {
        self.last = self.last.checked_add(1).filter(|next| *next < self.places.len()).unwrap_or(0);
        self.last
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut User> {
        self.places.get_mut(at)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &User> {
        self.places.iter()
    }
}
