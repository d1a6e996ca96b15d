//! Procedures of MOUNT and NFS, and operations of a COMPOUND, by the names and numbers of the RFCs.

use nfs3_types::nfs3::nfsstat3;
use nfs3_types::xdr_codec::Unpack;

use crate::status::Status;

/// Declares procedures of a program: their names, their numbers, and the sections of the RFC that define them.
macro_rules! procedures {
    ($(#[$meta:meta])* $name:ident ($rfc:literal) { $($variant:ident = $number:literal, $section:literal;)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u32)]
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "the names of the RFC")]
        pub enum $name {
            $(#[doc = concat!($rfc, " §", $section)] $variant = $number,)+
        }

        impl $name {
            /// All of them, by number.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the one with a number.
            #[must_use]
            pub const fn new(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl From<$name> for u32 {
            fn from(known: $name) -> Self {
                known as Self
            }
        }
    };
}

procedures! {
    /// Procedures of MOUNT version 3.
    MountProc ("RFC 1813") {
        NULL = 0, "5.2.0";
        MNT = 1, "5.2.1";
        DUMP = 2, "5.2.2";
        UMNT = 3, "5.2.3";
        UMNTALL = 4, "5.2.4";
        EXPORT = 5, "5.2.5";
    }
}

procedures! {
    /// Procedures of NFS version 3.
    Nfs3Proc ("RFC 1813") {
        NULL = 0, "3.3.0";
        GETATTR = 1, "3.3.1";
        SETATTR = 2, "3.3.2";
        LOOKUP = 3, "3.3.3";
        ACCESS = 4, "3.3.4";
        READLINK = 5, "3.3.5";
        READ = 6, "3.3.6";
        WRITE = 7, "3.3.7";
        CREATE = 8, "3.3.8";
        MKDIR = 9, "3.3.9";
        SYMLINK = 10, "3.3.10";
        MKNOD = 11, "3.3.11";
        REMOVE = 12, "3.3.12";
        RMDIR = 13, "3.3.13";
        RENAME = 14, "3.3.14";
        LINK = 15, "3.3.15";
        READDIR = 16, "3.3.16";
        READDIRPLUS = 17, "3.3.17";
        FSSTAT = 18, "3.3.18";
        FSINFO = 19, "3.3.19";
        PATHCONF = 20, "3.3.20";
        COMMIT = 21, "3.3.21";
    }
}

procedures! {
    /// Procedures of NFS version 4.
    Nfs4Proc ("RFC 8881") {
        NULL = 0, "16.1";
        COMPOUND = 1, "16.2";
    }
}

procedures! {
    /// Operations of a COMPOUND of NFS version 4.1; those of §17 are of version 4.0 only.
    Nfs4Op ("RFC 8881") {
        ACCESS = 3, "18.1";
        CLOSE = 4, "18.2";
        COMMIT = 5, "18.3";
        CREATE = 6, "18.4";
        DELEGPURGE = 7, "18.5";
        DELEGRETURN = 8, "18.6";
        GETATTR = 9, "18.7";
        GETFH = 10, "18.8";
        LINK = 11, "18.9";
        LOCK = 12, "18.10";
        LOCKT = 13, "18.11";
        LOCKU = 14, "18.12";
        LOOKUP = 15, "18.13";
        LOOKUPP = 16, "18.14";
        NVERIFY = 17, "18.15";
        OPEN = 18, "18.16";
        OPENATTR = 19, "18.17";
        OPEN_CONFIRM = 20, "17";
        OPEN_DOWNGRADE = 21, "18.18";
        PUTFH = 22, "18.19";
        PUTPUBFH = 23, "18.20";
        PUTROOTFH = 24, "18.21";
        READ = 25, "18.22";
        READDIR = 26, "18.23";
        READLINK = 27, "18.24";
        REMOVE = 28, "18.25";
        RENAME = 29, "18.26";
        RENEW = 30, "17";
        RESTOREFH = 31, "18.27";
        SAVEFH = 32, "18.28";
        SECINFO = 33, "18.29";
        SETATTR = 34, "18.30";
        SETCLIENTID = 35, "17";
        SETCLIENTID_CONFIRM = 36, "17";
        VERIFY = 37, "18.31";
        WRITE = 38, "18.32";
        RELEASE_LOCKOWNER = 39, "17";
        BACKCHANNEL_CTL = 40, "18.33";
        BIND_CONN_TO_SESSION = 41, "18.34";
        EXCHANGE_ID = 42, "18.35";
        CREATE_SESSION = 43, "18.36";
        DESTROY_SESSION = 44, "18.37";
        FREE_STATEID = 45, "18.38";
        GET_DIR_DELEGATION = 46, "18.39";
        GETDEVICEINFO = 47, "18.40";
        GETDEVICELIST = 48, "18.41";
        LAYOUTCOMMIT = 49, "18.42";
        LAYOUTGET = 50, "18.43";
        LAYOUTRETURN = 51, "18.44";
        SECINFO_NO_NAME = 52, "18.45";
        SEQUENCE = 53, "18.46";
        SET_SSV = 54, "18.47";
        TEST_STATEID = 55, "18.48";
        WANT_DELEGATION = 56, "18.49";
        DESTROY_CLIENTID = 57, "18.50";
        RECLAIM_COMPLETE = 58, "18.51";
        ILLEGAL = 10_044, "18.52";
    }
}

/// A program, as counters name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Program {
    Nfs3,
    Nfs4,
    Mount,
    /// No procedure has executed the call.
    Rpc,
}

impl Program {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nfs3 => "nfs3",
            Self::Nfs4 => "nfs4",
            Self::Mount => "mount",
            Self::Rpc => "rpc",
        }
    }

    /// Returns the name of a status. Those of MOUNT are a part of those of NFS version 3.
    pub(crate) fn status_name(self, status: u32) -> String {
        let nfs3 =
            || nfsstat3::unpack(&mut &status.to_be_bytes()[..]).map(|(status, _)| format!("{status:?}"));
        let name = if self == Self::Nfs4 { Status::name(status).map(str::to_owned) } else { nfs3().ok() };
        name.unwrap_or_else(|| format!("status {status}"))
    }
}

/// A procedure or an operation, as counters name it: in the order of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Procedure {
    Nfs3(Nfs3Proc),
    Nfs4(Nfs4Proc),
    Operation(Nfs4Op),
    Mount(MountProc),
}

impl Procedure {
    /// Returns all that are counted. ILLEGAL stands for operations that do not exist.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let operations = Nfs4Op::ALL.iter().filter(|operation| **operation != Nfs4Op::ILLEGAL);
        let nfs4 =
            Nfs4Proc::ALL.iter().copied().map(Self::Nfs4).chain(operations.copied().map(Self::Operation));
        let nfs3 = Nfs3Proc::ALL.iter().copied().map(Self::Nfs3);
        nfs3.chain(nfs4).chain(MountProc::ALL.iter().copied().map(Self::Mount))
    }

    pub(crate) const fn program(self) -> Program {
        match self {
            Self::Nfs3(_) => Program::Nfs3,
            Self::Nfs4(_) | Self::Operation(_) => Program::Nfs4,
            Self::Mount(_) => Program::Mount,
        }
    }

    /// Returns the name in the RFC.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Nfs3(procedure) => format!("{procedure:?}"),
            Self::Nfs4(procedure) => format!("{procedure:?}"),
            Self::Operation(operation) => format!("{operation:?}"),
            Self::Mount(procedure) => format!("{procedure:?}"),
        }
    }

    /// Returns true if a result begins with a status. Of MOUNT, only MNT has one.
    pub(crate) fn has_status(self) -> bool {
        !matches!(self, Self::Mount(procedure) if procedure != MountProc::MNT)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use nfs3_types::mount::MOUNT_PROGRAM;
    use nfs3_types::nfs3::NFS_PROGRAM;

    use super::*;

    #[test]
    fn names_and_numbers_are_those_of_another_implementation() {
        for number in 0..30 {
            let known = Nfs3Proc::new(number).map(|known| format!("NFSPROC3_{known:?}"));
            assert_eq!(known, NFS_PROGRAM::try_from(number).ok().map(|other| format!("{other:?}")));
            let known = MountProc::new(number).map(|known| format!("MOUNTPROC3_{known:?}"));
            assert_eq!(known, MOUNT_PROGRAM::try_from(number).ok().map(|other| format!("{other:?}")));
        }
    }

    #[test]
    fn operations_have_consecutive_numbers() {
        let numbers: Vec<_> = Nfs4Op::ALL.iter().map(|operation| u32::from(*operation)).collect();
        assert_eq!(numbers, (3..=58).chain([10_044]).collect::<Vec<_>>());
        let known = |number| format!("{:?}", Nfs4Op::new(number).unwrap());
        assert_eq!([25, 38, 53].map(known), ["READ", "WRITE", "SEQUENCE"]);
        assert_eq!((Nfs4Op::new(2), Nfs4Op::new(59)), (None, None));
        assert!(Procedure::all().is_sorted(), "reports are in this order");
    }
}
