//! Connections that programs have left: TCP still delivers what has completed, and waits for the peer's FIN. They count
//! for their users: a user who leaves more than allowed has the oldest reset.

use std::collections::HashMap;
use std::time::Duration;

use iwarp_shared_verbs::worker::UserId;
use tcp_stack::ConnId;

use crate::transport::Deadlines;

/// Connections that programs have left, and that linger.
#[derive(Debug, Default)]
pub(super) struct Lingering {
    /// User of each connection.
    users: HashMap<ConnId, UserId>,
    /// Connections of each user, by the end of their time.
    conns: HashMap<UserId, Deadlines>,
}

impl Lingering {
    /// Adds a connection. Returns the oldest of its user if there are more than `most` now.
    pub(super) fn add(&mut self, user: UserId, conn: ConnId, until: Duration, most: u32) -> Option<ConnId> {
        self.users.insert(conn, user);
        let of_user = self.conns.entry(user).or_insert_with(|| Deadlines::new(0));
        of_user.change(conn, None, Some(until));
        if of_user.len() > most as usize { of_user.first_conn() } else { None }
    }

    #[cfg(any(test, feature = "testutil"))]
    pub(super) fn count(&self, user: UserId) -> usize {
        self.conns.get(&user).map_or(0, Deadlines::len)
    }

    /// Removes a connection that has ended, if it is one of these.
    pub(super) fn remove(&mut self, conn: ConnId, until: Option<Duration>) {
        if self.users.is_empty() {
            return;
        }
        let Some((user, until)) = self.users.remove(&conn).zip(until) else { return };
        if let Some(of_user) = self.conns.get_mut(&user) {
            of_user.change(conn, Some(until), None);
            if of_user.len() == 0 {
                self.conns.remove(&user);
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
        lingering.remove(conn(0), Some(at(60)));
        lingering.remove(conn(2), Some(at(62)));
        lingering.remove(conn(2), Some(at(62)));
        assert_eq!(lingering.count(UserId(1)), 2);
        assert_eq!(lingering.add(UserId(1), conn(4), at(64), 3), None, "one has ended meanwhile");
        let ends = [(1, 61), (3, 63), (4, 64), (10, 60), (11, 60), (12, 60)];
        ends.into_iter().for_each(|(index, second)| lingering.remove(conn(index), Some(at(second))));
        assert!(lingering.conns.is_empty() && lingering.users.is_empty(), "nothing is kept");
    }
}
