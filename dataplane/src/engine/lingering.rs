//! Connections that programs have left: TCP still delivers what has completed, and waits for the peer's FIN. They count
//! for their users: a user who leaves more than allowed has the oldest reset.

use std::collections::HashMap;
use std::time::Duration;

use iwarp_shared_verbs::worker::UserId;
use tcp_stack::ConnId;

use crate::transport::Deadlines;

/// Lingering connections of each user, by the end of their time.
#[derive(Debug, Default)]
pub(super) struct Lingering(HashMap<UserId, Deadlines>);

impl Lingering {
    /// Adds a connection. Returns the oldest of its user if there are more than `most` now.
    pub(super) fn add(&mut self, user: UserId, conn: ConnId, until: Duration, most: u32) -> Option<ConnId> {
        let of_user = self.0.entry(user).or_insert_with(|| Deadlines::new(0));
        of_user.change(conn, None, Some(until));
        if of_user.len() > most as usize { of_user.first_conn() } else { None }
    }

    #[cfg(test)]
    pub(super) fn count(&self, user: UserId) -> usize {
        self.0.get(&user).map_or(0, Deadlines::len)
    }

    /// Removes a connection that has ended.
    pub(super) fn remove(&mut self, user: UserId, conn: ConnId, until: Duration) {
        if let Some(of_user) = self.0.get_mut(&user) {
            of_user.change(conn, Some(until), None);
            if of_user.len() == 0 {
                self.0.remove(&user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_connection_of_a_user_with_too_many_ends() {
        let mut lingering = Lingering::default();
        let (conn, at) = (|index| ConnId::new(index, 1), Duration::from_secs);
        for second in 0..3 {
            assert_eq!(lingering.add(UserId(1), conn(second), at(60 + u64::from(second)), 3), None);
            assert_eq!(lingering.add(UserId(2), conn(10 + second), at(60), 3), None, "another user's");
        }
        assert_eq!(lingering.add(UserId(1), conn(3), at(63), 3), Some(conn(0)));
        lingering.remove(UserId(1), conn(0), at(60));
        lingering.remove(UserId(1), conn(2), at(62));
        assert_eq!(lingering.count(UserId(1)), 2);
        assert_eq!(lingering.add(UserId(1), conn(4), at(64), 3), None, "one has ended meanwhile");
        for (user, first) in [(UserId(1), [1, 3, 4]), (UserId(2), [10, 11, 12])] {
            for at_second in 0..100 {
                for index in first {
                    lingering.remove(user, conn(index), at(at_second));
                }
            }
        }
        assert!(lingering.0.is_empty(), "nothing is kept of users without connections");
    }
}
