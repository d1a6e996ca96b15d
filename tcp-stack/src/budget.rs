//! The budget of packet buffers that received data retains: out-of-order segments, and buffers of delivered
//! segments that the application keeps ([`Stack::retain`](crate::Stack::retain)).
//!
//! The port fills its receive queue from the same pool, and so does transmission. Retained buffers are therefore
//! limited for all connections together, and within that for each listener, source and connection. A connection may
//! retain as many as its listener, its source and all connections together have left: n connections that take all
//! they may leave 1 / (n + 1). Beyond that it may retain [`GUARANTEED`] buffers while any are left. To ensure that,
//! the connections that have retained something longest must give it up when seven eighths are used or the pool
//! runs short. A short segment between two gaps counts as a buffer, although it shares one with others: its
//! bookkeeping is limited, too. Messages that the application consumes at once are never retained and cost nothing
//! here.

use crate::accounts::Account;

/// Buffers that every connection may retain, regardless of its listener and its source.
const GUARANTEED: u32 = 8;

/// Limit and present use of retained packet buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveBudget {
    /// Upper bound of `used`, buffers.
    limit: u32,
    /// Buffers of the pool reserved for transmission and reception.
    reserve: u32,
    used: u32,
    /// Free buffers of the pool at the last observation.
    available: u32,
}

impl ReceiveBudget {
    /// Makes a budget of at most `limit` of the pool's `buffers`, of which an eighth is reserved for transmission
    /// and reception.
    pub(crate) const fn new(limit: u32, buffers: u32) -> Self {
        Self { limit, reserve: buffers / 8, used: 0, available: u32::MAX }
    }

    /// Returns the buffers retained now.
    pub(crate) const fn used(&self) -> u32 {
        self.used
    }

    /// Returns the limit of retained buffers.
    pub(crate) const fn limit(&self) -> u32 {
        self.limit
    }

    /// Notes the number of free buffers in the pool.
    pub(crate) const fn observe(&mut self, available: u32) {
        self.available = available;
    }

    /// Returns the number of retained buffers below which none are reclaimed: so few cannot be the cause of a short
    /// pool.
    const fn floor(&self) -> u32 {
        self.limit / 16
    }

    /// True if retained buffers must be given up, before the limit is reached or the pool's reserve is touched.
    /// `asked` buffers are already being given up.
    pub(crate) const fn is_short(&self, asked: u32) -> bool {
        let used = self.used.saturating_sub(asked);
        let nearly_used = used > self.limit.saturating_sub(self.limit / 8);
        let pool_is_short =
            self.available.saturating_add(asked) < self.reserve.saturating_add(self.reserve / 2);
        nearly_used || (pool_is_short && used > self.floor())
    }

    /// True if the pool has little more left than its reserve.
    pub(crate) const fn pool_is_short(&self) -> bool {
        self.available < self.reserve.saturating_add(self.reserve / 2)
    }

    /// True if a connection may retain `retained` buffers in all; `listener` and `source` are its accounts.
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

    /// Changes the buffers that a connection retains from `before` to `after`.
    pub(crate) const fn change(&mut self, before: u32, after: u32) {
        self.used = self.used.saturating_sub(before).saturating_add(after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: (Account, Account) =
        (Account { connections: 0, buffers: 0 }, Account { connections: 0, buffers: 0 });

    /// Retains as many buffers as one connection may; returns their number.
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
    fn connections_of_one_listener_leave_an_eighth_to_others() {
        for limit in [1024, 4096, 8192, 32_768, 65_536] {
            let mut budget = ReceiveBudget::new(limit, limit * 2);
            let mut listener = Account::default();
            for _ in 0..10 {
                // Each from a source of its own.
                assert!(take_all(&mut budget, &mut listener, &mut Account::default()) >= GUARANTEED);
            }
            let share = limit * 7 / 8;
            assert!(
                (share - share / 64..=share + 10 * GUARANTEED).contains(&listener.buffers),
                "{listener:?} of {limit}"
            );
            let elsewhere = take_all(&mut budget, &mut Account::default(), &mut Account::default());
            assert!(elsewhere >= (limit / 16).saturating_sub(10 * GUARANTEED), "{elsewhere} of {limit}");
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
