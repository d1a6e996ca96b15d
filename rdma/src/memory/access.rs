//! Access rights of peers, and of the owner's own work requests, to a region.

use core::fmt;
use core::ops::{BitAnd, BitOr};

/// Set of rights. The low three bits are those of the region service on the wire.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "u8", into = "u8")
)]
pub struct Access(u8);

#[cfg(feature = "serde")]
impl From<Access> for u8 {
    fn from(access: Access) -> Self {
        access.0
    }
}

#[cfg(feature = "serde")]
impl TryFrom<u8> for Access {
    type Error = &'static str;

    fn try_from(bits: u8) -> Result<Self, Self::Error> {
        if bits & 0x80 == 0 { Ok(Self(bits)) } else { Err("a bit of the rights has no meaning") }
    }
}

impl Access {
    /// The set without rights.
    pub const NONE: Self = Self(0);
    /// A peer may fetch (RDMA Read).
    pub const REMOTE_READ: Self = Self(1);
    /// A peer may place (RDMA Write).
    pub const REMOTE_WRITE: Self = Self(2);
    /// A peer may perform atomic operations.
    pub const REMOTE_ATOMIC: Self = Self(4);
    /// A peer may invalidate the STag (Send with Invalidate).
    pub const REMOTE_INVALIDATE: Self = Self(8);

    /// Local work requests may fetch.
    pub const LOCAL_READ: Self = Self(0x10);
    /// Local work requests may place.
    pub const LOCAL_WRITE: Self = Self(0x20);
    /// Memory windows may be bound to the region.
    pub const WINDOW_BIND: Self = Self(0x40);

    /// Rights of a peer, with their names in configuration and display.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("remote-read", Self::REMOTE_READ),
        ("remote-write", Self::REMOTE_WRITE),
        ("remote-atomic", Self::REMOTE_ATOMIC),
        ("remote-invalidate", Self::REMOTE_INVALIDATE),
    ];

    /// Rights of local work requests, with their names in display.
    const LOCAL_NAMES: [(&'static str, Self); 3] = [
        ("local-read", Self::LOCAL_READ),
        ("local-write", Self::LOCAL_WRITE),
        ("window-bind", Self::WINDOW_BIND),
    ];

    /// All rights that there are.
    pub const ALL: Self = Self(0x7f);

    /// All rights of a peer.
    pub const REMOTE: Self = Self(0x0f);

    /// Rights that a region can grant, and a queue pair can deny: all of a peer but the invalidation of its STag.
    pub const REGION: Self = Self(0x07);
    /// Names of the rights that a region can grant, in files, on the command line and on the control socket.
    pub const REGION_NAMES: [&'static str; 3] = ["remote-read", "remote-write", "remote-atomic"];

    /// Returns the set of a peer's rights with these bits; `None` if a bit has no meaning.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits & !0x0f == 0 { Some(Self(bits)) } else { None }
    }

    /// Returns the bits of the set.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns the rights that a queue pair with this set, a part of [`Self::REGION`], leaves to accesses of its
    /// stream: the others are not its to deny.
    #[must_use]
    pub const fn of_stream(self) -> Self {
        Self(self.0 & Self::REGION.0 | Self::ALL.0 & !Self::REGION.0)
    }

    /// Returns true if every right of `other` is in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the names of the rights in the set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let all = Self::NAMES.into_iter().chain(Self::LOCAL_NAMES);
        all.filter(move |(_, right)| self.contains(*right)).map(|(name, _)| name)
    }

    /// Returns a peer's right by name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, right)| right)
    }

    /// Returns a right by name, if a region can grant it.
    pub fn from_region_name(name: &str) -> Option<Self> {
        Self::from_name(name).filter(|right| Self::REGION.contains(*right))
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Access {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// Displays `remote-read,remote-write`, or `none` for the empty set.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (at, name) in self.names().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            f.write_str(name)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Access({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::Access;

    #[test]
    fn names_round_trip_and_unknown_bits_are_refused() {
        for (name, right) in Access::NAMES {
            assert_eq!(Access::from_name(name), Some(right));
            assert_eq!(right.to_string(), name);
            assert_eq!(Access::from_bits(right.bits()), Some(right));
        }
        assert_eq!(Access::from_name("local-write"), None);
        let grantable: Vec<_> = Access::REGION_NAMES.into_iter().map(Access::from_region_name).collect();
        assert!(grantable.iter().all(Option::is_some));
        assert_eq!(Access::REGION.names().collect::<Vec<_>>(), Access::REGION_NAMES);
        for wrong in ["local", "local-read", "remote-invalidate", ""] {
            assert_eq!(Access::from_region_name(wrong), None, "{wrong}");
        }
        assert_eq!(Access::from_bits(0x10), None);
        assert_eq!((Access::REMOTE_READ | Access::REMOTE_WRITE).to_string(), "remote-read,remote-write");
        assert_eq!(Access::NONE.to_string(), "none");
        let local = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::WINDOW_BIND;
        assert_eq!(local.to_string(), "local-read,local-write,window-bind");
        assert!((local & Access::REMOTE).is_empty());
    }
}
