//! How many packet buffers received data may retain: segments behind gaps, and what the application keeps of the segments
//! that it was handed ([`Stack::retain`](crate::Stack::retain)).
//!
//! The port fills its receive queue from the same pool, and everything that is sent comes from it; so what is retained is
//! bounded for all connections together, and in it each listener, each source and each connection is. A connection may
//! retain as much as its listener, its source and all together have left: n connections that take all they may leave a
//! part of n + 1. Beyond that it may retain [`GUARANTEED`] buffers as long as there is anything left at all, and that there
//! is: when seven eighths are used, or the pool itself runs short, those that have retained something longest
//! give it up. Whole messages that the application takes at once are never retained, and cost nothing here.

use crate::accounts::Account;

/// Buffers that every connection may retain, whatever its listener and its source have.
const GUARANTEED: u32 = 8;

/// The packet buffers that received data may retain, and does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveBudget {
    /// At most, buffers.
    limit: u32,
    /// Those of the pool that are kept for sending and for reception.
    reserve: u32,
    used: u32,
    /// Buffers that the pool had left when it was looked at last.
    available: u32,
}

impl ReceiveBudget {
    /// At most `limit` of `buffers`, of which an eighth is kept for sending and for reception.
    pub(crate) const fn new(limit: u32, buffers: u32) -> Self {
        Self { limit, reserve: buffers / 8, used: 0, available: u32::MAX }
    }

    /// Buffers that are retained.
    pub(crate) const fn used(&self) -> u32 {
        self.used
    }

    /// Buffers that may be retained.
    pub(crate) const fn limit(&self) -> u32 {
        self.limit
    }

    /// So many buffers are left in the pool.
    pub(crate) const fn observe(&mut self, available: u32) {
        self.available = available;
    }

    /// What is retained may be reclaimed as long as it is more than this: as little cannot be why the pool is short.
    const fn floor(&self) -> u32 {
        self.limit / 16
    }

    /// Whether those that retain something are to give it up: before the limit, and before the pool's reserve, is touched.
    /// `asked` buffers are about to be given up.
    pub(crate) const fn is_short(&self, asked: u32) -> bool {
        let used = self.used.saturating_sub(asked);
        let nearly_used = used > self.limit.saturating_sub(self.limit / 8);
        let pool_is_short =
            self.available.saturating_add(asked) < self.reserve.saturating_add(self.reserve / 2);
        nearly_used || (pool_is_short && used > self.floor())
    }

    /// Whether the pool has little more left than what is kept for sending and for reception.
    pub(crate) const fn pool_is_short(&self) -> bool {
        self.available < self.reserve.saturating_add(self.reserve / 2)
    }

    /// Whether a connection that will then retain `retained` buffers may do so; its listener and its source have what their
    /// accounts say.
    pub(crate) fn allows(&self, retained: u32, (listener, source): (Account, Account)) -> bool {
        let left = self.limit.saturating_sub(self.used);
        let pool_is_short = self.available <= self.reserve && self.used > self.floor();
        if left == 0 || pool_is_short {
            return false;
        }
        let left_to_listener = self.limit.saturating_sub(self.limit / 8).saturating_sub(listener.buffers);
        let left_to_source = self.limit.saturating_sub(self.limit / 4).saturating_sub(source.buffers);
        retained <= GUARANTEED.max(left.min(left_to_listener).min(left_to_source))
    }

    /// A connection that has retained `before` buffers retains `after`.
    pub(crate) const fn change(&mut self, before: u32, after: u32) {
        self.used = self.used.saturating_sub(before).saturating_add(after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: (Account, Account) =
        (Account { connections: 0, buffers: 0 }, Account { connections: 0, buffers: 0 });

    /// What one connection takes that takes all it may.
    fn take_all(budget: &mut ReceiveBudget, listener: &mut Account, source: &mut Account) -> u32 {
        let mut retained = 0;
        while budget.allows(retained + 1, (*listener, *source)) {
            budget.change(retained, retained + 1);
            retained += 1;
            listener.buffers += 1;
            source.buffers += 1;
        }
        retained
    }

    #[test]
    fn connections_of_one_source_leave_a_quarter_to_others() {
        for limit in [1024, 4096, 8192, 32_768, 65_536] {
            let mut budget = ReceiveBudget::new(limit, limit * 2);
            let (mut listener, mut source) = NOBODY;
            let first = take_all(&mut budget, &mut listener, &mut source);
            assert!(
                (limit * 3 / 8..=limit * 3 / 8 + 1).contains(&first),
                "{first} of {limit}: half of its source's"
            );
            for _ in 1..10 {
                assert!(take_all(&mut budget, &mut listener, &mut source) >= GUARANTEED);
            }
            assert!(source.buffers <= limit * 3 / 4 + 10 * GUARANTEED, "{source:?} of {limit}");
            let honest = take_all(&mut budget, &mut listener, &mut Account::default());
            assert!(honest >= (limit / 16).saturating_sub(10 * GUARANTEED), "{honest} of {limit}");
            let elsewhere = take_all(&mut budget, &mut Account::default(), &mut Account::default());
            assert!(elsewhere >= (limit / 32).saturating_sub(10 * GUARANTEED), "{elsewhere} of {limit}");
        }
    }

    #[test]
    fn reclaim_begins_before_the_limit_and_before_the_reserve_is_touched() {
        let mut budget = ReceiveBudget::new(4096, 8192);
        assert!(!budget.is_short(0) && budget.allows(1, NOBODY));
        budget.change(0, 4096 * 7 / 8 + 1);
        assert!(budget.is_short(0) && budget.allows(1, NOBODY), "there is still something for everybody");
        budget.change(0, 4096 / 8 - 1);
        assert!(budget.is_short(0) && !budget.allows(1, NOBODY), "all is used");
        budget.change(budget.used(), 1000);
        assert!(!budget.is_short(0));
        budget.observe(8192 / 8 + 100);
        assert!(budget.is_short(0) && budget.allows(1, NOBODY), "others have taken the pool's buffers");
        budget.observe(8192 / 8);
        assert!(budget.is_short(0) && !budget.allows(1, NOBODY), "the reserve is not touched");
        budget.change(budget.used(), 4096 / 16);
        assert!(!budget.is_short(0) && budget.allows(1, NOBODY), "so little is not why");
    }
}
