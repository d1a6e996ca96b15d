//! Status values of NFS version 4 (RFC 8881 §15.1).

use nfs3_types::nfs3::nfsstat3;

/// Declares the values, and the conversion of those that both versions have.
macro_rules! status {
    ($(shared $name:ident = $value:literal from $nfs3:ident,)* $(own $own:ident = $own_value:literal,)*) => {
        /// Result of an operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub(crate) enum Status {
            $($name = $value,)*
            $($own = $own_value,)*
        }

        impl Status {
            /// Returns the name of a value.
            pub(crate) fn name(value: u32) -> Option<&'static str> {
                match value {
                    $($value => Some(stringify!($name)),)*
                    $($own_value => Some(stringify!($own)),)*
                    _ => None,
                }
            }
        }

        impl From<nfsstat3> for Status {
            fn from(status: nfsstat3) -> Self {
                match status {
                    $(nfsstat3::$nfs3 => Self::$name,)*
                    _ => Self::Io,
                }
            }
        }
    };
}

status! {
    shared Ok = 0 from NFS3_OK,
    shared Perm = 1 from NFS3ERR_PERM,
    shared NoEnt = 2 from NFS3ERR_NOENT,
    shared Io = 5 from NFS3ERR_IO,
    shared NxIo = 6 from NFS3ERR_NXIO,
    shared Access = 13 from NFS3ERR_ACCES,
    shared Exist = 17 from NFS3ERR_EXIST,
    shared XDev = 18 from NFS3ERR_XDEV,
    shared NotDir = 20 from NFS3ERR_NOTDIR,
    shared IsDir = 21 from NFS3ERR_ISDIR,
    shared Inval = 22 from NFS3ERR_INVAL,
    shared FBig = 27 from NFS3ERR_FBIG,
    shared NoSpc = 28 from NFS3ERR_NOSPC,
    shared RoFs = 30 from NFS3ERR_ROFS,
    shared MLink = 31 from NFS3ERR_MLINK,
    shared NameTooLong = 63 from NFS3ERR_NAMETOOLONG,
    shared NotEmpty = 66 from NFS3ERR_NOTEMPTY,
    shared DQuot = 69 from NFS3ERR_DQUOT,
    shared Stale = 70 from NFS3ERR_STALE,
    shared BadHandle = 10001 from NFS3ERR_BADHANDLE,
    shared BadCookie = 10003 from NFS3ERR_BAD_COOKIE,
    shared NotSupp = 10004 from NFS3ERR_NOTSUPP,
    shared TooSmall = 10005 from NFS3ERR_TOOSMALL,
    shared ServerFault = 10006 from NFS3ERR_SERVERFAULT,
    shared BadType = 10007 from NFS3ERR_BADTYPE,
    shared Delay = 10008 from NFS3ERR_JUKEBOX,
    own Same = 10009,
    own Denied = 10010,
    own Locked = 10012,
    own Grace = 10013,
    own ShareDenied = 10015,
    own ClidInUse = 10017,
    own NoFileHandle = 10020,
    own MinorVersMismatch = 10021,
    own StaleClientId = 10022,
    own StaleStateId = 10023,
    own OldStateId = 10024,
    own BadStateId = 10025,
    own NotSame = 10027,
    own Symlink = 10029,
    own RestoreFh = 10030,
    own AttrNotSupp = 10032,
    own NoGrace = 10033,
    own ReclaimBad = 10034,
    own BadXdr = 10036,
    own LocksHeld = 10037,
    own OpenMode = 10038,
    own BadOwner = 10039,
    own BadName = 10041,
    own OpIllegal = 10044,
    own BadSession = 10052,
    own BadSlot = 10053,
    own CompleteAlready = 10054,
    own SeqMisordered = 10063,
    own SequencePos = 10064,
    own RepTooBig = 10066,
    own RepTooBigToCache = 10067,
    own RetryUncachedRep = 10068,
    own TooManyOps = 10070,
    own OpNotInSession = 10071,
    own ClientIdBusy = 10074,
    own BadHighSlot = 10077,
    own NotOnlyOp = 10081,
    own WrongType = 10083,
}

impl From<iwarp_rpc::xdr::XdrError> for Status {
    fn from(_: iwarp_rpc::xdr::XdrError) -> Self {
        Self::BadXdr
    }
}
