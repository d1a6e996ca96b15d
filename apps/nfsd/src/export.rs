//! Exports: what clients mount, with which rights, and file handles that they cannot forge.

use std::fmt;
use std::hash::Hasher;

use ipnet::IpNet;
use iwarp_rpc::message::Credential;
use iwarp_server::{Peer, User};
use siphasher::sip::SipHasher24;

use crate::backend::Backend;
use crate::codec::HANDLE_MAX;

/// Bytes of the seal at the end of a handle.
const SEAL: usize = 8;

/// Users that become the anonymous one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// Nobody, except callers without a credential.
    None,
    /// The user and the group 0.
    #[default]
    Root,
    /// All users become the anonymous one.
    All,
}

/// Rights of the clients in a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Addresses of the clients.
    pub clients: IpNet,
    /// True if the clients may change something.
    pub write: bool,
    /// Users that are squashed.
    pub squash: Squash,
    /// The anonymous user and group.
    pub anonymous: (u32, u32),
}

/// An export: a name, its content and its clients.
#[derive(Debug)]
pub struct Export {
    /// Path by which clients mount it, such as `/data`.
    pub path: String,
    /// Content of the export.
    pub backend: Box<dyn Backend>,
    /// Rights by prefix. The longest prefix that contains a client's address counts.
    pub rules: Vec<Rule>,
    /// True if clients over TCP may have ports that any user of their machine can have.
    pub insecure: bool,
}

impl Export {
    /// Returns the rule for a client; a client without one has no access.
    pub(crate) fn rule(&self, peer: Peer) -> Option<&Rule> {
        self.rule_of_address(peer).filter(|_| peer.is_privileged || self.insecure)
    }

    /// Returns the rule for a client, whatever its port is. A program of this machine that has an address of the daemon
    /// can state any user: the rule must be for that address alone.
    pub(crate) fn rule_of_address(&self, peer: Peer) -> Option<&Rule> {
        let matching = self.rules.iter().filter(|rule| rule.clients.contains(&peer.address));
        let rule = matching.max_by_key(|rule| rule.clients.prefix_len())?;
        let is_of_host = rule.clients.prefix_len() == rule.clients.max_prefix_len();
        (is_of_host || !peer.is_local).then_some(rule)
    }
}

impl Rule {
    /// Returns the user that a caller becomes: the anonymous one without a credential of AUTH_SYS.
    pub(crate) fn user(&self, credential: &Credential) -> User {
        let (uid, gid) = self.anonymous;
        let anonymous = User { uid, gid, groups: Vec::new() };
        let sys = match credential {
            Credential::None | Credential::Other(_) => return anonymous,
            Credential::Sys(_) if self.squash == Squash::All => return anonymous,
            Credential::Sys(sys) => sys,
        };
        let group = |group: u32| if self.squash == Squash::Root && group == 0 { gid } else { group };
        let groups = sys.groups.iter().map(|gid| group(*gid)).collect();
        let uid = if self.squash == Squash::Root && sys.uid == 0 { uid } else { sys.uid };
        User { uid, gid: group(sys.gid), groups }
    }
}

/// Reason why exports are not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportError {
    /// A path does not begin with `/`, or is longer than 1024 bytes.
    Path(String),
    /// Two exports have the same path, or paths with the same number.
    Duplicate(String),
    /// The handles of an export's content are too long.
    Handle(String),
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => {
                write!(f, "export {path:?}: the path must begin with / and have at most 1024 bytes")
            }
            Self::Duplicate(path) => {
                write!(f, "export {path:?}: another export has this path; choose a different one")
            }
            Self::Handle(path) => {
                write!(f, "export {path:?}: the file handles of its file system are too long")
            }
        }
    }
}

impl std::error::Error for ExportError {}

/// Seals and opens handles: the number of the export, the handle of the backend, and a hash of both under a key.
#[derive(Debug)]
pub(crate) struct Seals([u8; 16]);

impl Seals {
    pub(crate) fn new(key: [u8; 16]) -> Self {
        Self(key)
    }

    fn hash(&self, bytes: &[u8]) -> [u8; SEAL] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(bytes);
        hasher.finish().to_be_bytes()
    }

    /// Returns the number of an export, which is the same after a restart.
    pub(crate) fn number(&self, path: &str) -> u32 {
        let [a, b, c, d, ..] = self.hash(path.as_bytes());
        u32::from_be_bytes([a, b, c, d])
    }

    /// Returns the handle for clients; `None` if it is too long for them.
    pub(crate) fn seal(&self, export: u32, object: &[u8]) -> Option<Vec<u8>> {
        let mut handle = [&export.to_be_bytes(), object].concat();
        let seal = self.hash(&handle);
        handle.extend_from_slice(&seal);
        (handle.len() <= HANDLE_MAX).then_some(handle)
    }

    /// Returns the number of the export and the handle of the backend; `None` for a handle that was not sealed with
    /// this key.
    pub(crate) fn open<'a>(&self, handle: &'a [u8]) -> Option<(u32, &'a [u8])> {
        let (sealed, seal) = handle.split_last_chunk::<SEAL>()?;
        let (export, object) = sealed.split_first_chunk()?;
        (self.hash(sealed) == *seal).then_some((u32::from_be_bytes(*export), object))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use iwarp_rpc::message::AuthSys;
    use proptest::prelude::*;

    use super::*;

    fn rule(squash: Squash) -> Rule {
        Rule { clients: IpNet::default(), write: true, squash, anonymous: (65534, 65533) }
    }

    fn sys(uid: u32, gid: u32, groups: &[u32]) -> Credential {
        Credential::Sys(AuthSys { uid, gid, groups: groups.to_vec() })
    }

    #[test]
    fn squashing_replaces_users_and_groups() {
        let user = |uid, gid, groups: &[u32]| User { uid, gid, groups: groups.to_vec() };
        let none = user(65534, 65533, &[]);
        assert_eq!(rule(Squash::Root).user(&sys(0, 0, &[0, 4])), user(65534, 65533, &[65533, 4]));
        assert_eq!(rule(Squash::Root).user(&sys(5, 0, &[6])), user(5, 65533, &[6]));
        assert_eq!(rule(Squash::None).user(&sys(0, 0, &[0])), user(0, 0, &[0]));
        assert_eq!(rule(Squash::All).user(&sys(5, 6, &[7])), none);
        for squash in [Squash::None, Squash::Root, Squash::All] {
            assert_eq!(rule(squash).user(&Credential::None), none);
            assert_eq!(rule(squash).user(&Credential::Other(6)), none);
        }
    }

    proptest! {
        #[test]
        fn handles_open_only_as_sealed(
            key: [u8; 16], export: u32, object in prop::collection::vec(any::<u8>(), 0..=52), at: prop::sample::Index,
            flip in 1..=255_u8,
        ) {
            let seals = Seals::new(key);
            let handle = seals.seal(export, &object).unwrap();
            prop_assert_eq!(seals.open(&handle), Some((export, &object[..])));
            let mut forged = handle.clone();
            forged[at.index(handle.len())] ^= flip;
            prop_assert_eq!(seals.open(&forged), None);
            prop_assert_eq!(seals.open(&handle[..at.index(handle.len())]), None);
            prop_assert_eq!(seals.seal(export, &[0; 53]), None);
        }
    }
}
