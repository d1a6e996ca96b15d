//! Identity and admission of control clients, for `server` and `connection`.

use std::io;

use tokio::net::UnixStream;

use super::groups;

/// Identity of a client, as recorded by the kernel when it connected (SO_PEERCRED, SO_PEERGROUPS).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process number, 0 if the process is in another PID namespace.
    pub pid: u32,
    /// Effective user number of the client.
    pub uid: u32,
    /// Effective group number of the client.
    pub gid: u32,
    /// Supplementary group numbers of the client.
    pub groups: Vec<u32>,
}

/// Admission rule. The kernel checks the mode of the socket file when a client connects. The server checks every client
/// again, because the mode may have been different at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// User number of the daemon.
    pub uid: u32,
    /// Group number of the socket, if its mode admits the group.
    pub gid: Option<u32>,
    /// True if the mode of the socket admits every user.
    pub everybody: bool,
}

impl Policy {
    /// Returns true for root, the daemon's own user and the members of the socket's group, or for everybody.
    pub fn admits(&self, peer: &Peer) -> bool {
        let member = |gid| peer.gid == gid || peer.groups.contains(&gid);
        self.everybody || peer.uid == 0 || peer.uid == self.uid || self.gid.is_some_and(member)
    }
}

impl Peer {
    /// Reads the identity of the client from the kernel.
    pub(super) fn of(stream: &UnixStream) -> io::Result<Self> {
        let credentials = stream.peer_cred()?;
        let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
        let (uid, gid) = (credentials.uid(), credentials.gid());
        Ok(Self { pid, uid, gid, groups: groups::of_peer(stream)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, gid: u32, groups: &[u32]) -> Peer {
        Peer { pid: 1, uid, gid, groups: groups.to_vec() }
    }

    #[test]
    fn root_the_daemon_and_the_group_are_admitted() {
        let policy = Policy { uid: 500, gid: Some(77), everybody: false };
        assert!(policy.admits(&peer(0, 0, &[])));
        assert!(policy.admits(&peer(500, 500, &[])));
        assert!(policy.admits(&peer(1000, 77, &[])));
        assert!(policy.admits(&peer(1000, 1000, &[4, 77])));
    }

    #[test]
    fn other_users_are_refused() {
        let policy = Policy { uid: 500, gid: Some(77), everybody: false };
        assert!(!policy.admits(&peer(1000, 1000, &[])));
        assert!(!policy.admits(&peer(77, 1000, &[500])), "a user's number is not a group's");
        let private = Policy { uid: 500, gid: None, everybody: false };
        assert!(!private.admits(&peer(1000, 77, &[77])));
        assert!(!private.admits(&peer(1000, 0, &[0])), "root's group is not root");
        assert!(Policy { everybody: true, ..private }.admits(&peer(1000, 77, &[])));
    }
}
