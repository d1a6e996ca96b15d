//! Headers of ONC RPC messages (RFC 5531), and the flavor AUTH_SYS.

use crate::xdr::{Reader, Writer, XdrError};

/// Version of ONC RPC.
const RPC_VERSION: u32 = 2;
/// Longest body of a credential or a verifier, in bytes (RFC 5531 §8.2).
const AUTH_BYTES_MAX: usize = 400;
/// Longest machine name of AUTH_SYS, in bytes (RFC 5531 appendix A).
const MACHINE_BYTES_MAX: usize = 255;
/// Most supplementary groups of AUTH_SYS.
pub const GROUPS_MAX: usize = 16;

/// User of AUTH_SYS (RFC 5531 appendix A). The peer states it, and nothing proves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthSys {
    /// ID of the user.
    pub uid: u32,
    /// ID of the primary group.
    pub gid: u32,
    /// Supplementary group IDs, at most [`GROUPS_MAX`].
    pub groups: Vec<u32>,
}

/// Credential of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// AUTH_NONE: the caller states no identity.
    None,
    /// AUTH_SYS: the caller states a user and groups.
    Sys(AuthSys),
    /// A flavor that this crate does not know.
    Other(u32),
}

/// Header of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Transaction ID of call and reply.
    pub xid: u32,
    /// Number of the program.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Number of the procedure.
    pub procedure: u32,
    /// Identity of the caller.
    pub credential: Credential,
}

/// Reason why a stream does not begin with the header of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The message is a reply, or too short for an XID: there is nobody to answer.
    NotACall,
    /// The caller gets this reply: another RPC version, or a credential that cannot be decoded.
    Refused(Vec<u8>),
}

/// Reason of AUTH_ERROR (RFC 5531 §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthStatus {
    /// AUTH_BADCRED: the credential cannot be decoded.
    BadCredential = 1,
    /// AUTH_TOOWEAK: the flavor is not accepted.
    TooWeak = 5,
}

/// Status of an accepted call that was not executed (RFC 5531 §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotExecuted {
    /// PROG_UNAVAIL: the program is not served here.
    ProgramUnavailable,
    /// PROG_MISMATCH: the program is served in these versions, both inclusive.
    VersionMismatch {
        /// Lowest version that is served.
        low: u32,
        /// Highest version that is served.
        high: u32,
    },
    /// PROC_UNAVAIL: the program has no such procedure.
    ProcedureUnavailable,
    /// GARBAGE_ARGS: the arguments cannot be decoded.
    GarbageArguments,
    /// SYSTEM_ERR: the server lacks a resource.
    SystemError,
}

impl Call {
    /// Reads the header. The arguments of the procedure follow it.
    ///
    /// # Errors
    /// The stream begins with something else.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, CallError> {
        let xid = reader.u32().map_err(|_| CallError::NotACall)?;
        if reader.u32() != Ok(0) {
            return Err(CallError::NotACall);
        }
        let garbage = |_: XdrError| CallError::Refused(not_executed(xid, NotExecuted::GarbageArguments));
        if reader.u32().map_err(garbage)? != RPC_VERSION {
            return Err(CallError::Refused(rpc_mismatch(xid)));
        }
        let mut word = || reader.u32().map_err(garbage);
        let (program, version, procedure) = (word()?, word()?, word()?);
        let bad = |_: XdrError| CallError::Refused(auth_error(xid, AuthStatus::BadCredential));
        let credential = Credential::read(reader).map_err(bad)?;
        reader.u32().and_then(|_| reader.opaque(AUTH_BYTES_MAX)).map_err(bad)?;
        Ok(Self { xid, program, version, procedure, credential })
    }
}

impl Credential {
    fn read(reader: &mut Reader<'_>) -> Result<Self, XdrError> {
        let flavor = reader.u32()?;
        let body = reader.opaque(AUTH_BYTES_MAX)?;
        match flavor {
            0 => Ok(Self::None),
            1 => AuthSys::read(&mut Reader::new(body)).map(Self::Sys),
            other => Ok(Self::Other(other)),
        }
    }
}

impl AuthSys {
    fn read(reader: &mut Reader<'_>) -> Result<Self, XdrError> {
        // The stamp and the name of the machine mean nothing to a server.
        reader.u32()?;
        reader.opaque(MACHINE_BYTES_MAX)?;
        let (uid, gid) = (reader.u32()?, reader.u32()?);
        let count = reader.u32()? as usize;
        if count > GROUPS_MAX {
            return Err(XdrError::TooLong);
        }
        let groups = (0..count).map(|_| reader.u32()).collect::<Result<_, _>>()?;
        Ok(Self { uid, gid, groups })
    }
}

/// Begins the reply to a call that was executed: the result of the procedure follows.
#[must_use]
pub fn executed(xid: u32) -> Writer {
    accepted(xid, 0)
}

/// Returns the reply to a call that was accepted, but not executed.
#[must_use]
pub fn not_executed(xid: u32, status: NotExecuted) -> Vec<u8> {
    let mut writer = match status {
        NotExecuted::ProgramUnavailable => accepted(xid, 1),
        NotExecuted::VersionMismatch { .. } => accepted(xid, 2),
        NotExecuted::ProcedureUnavailable => accepted(xid, 3),
        NotExecuted::GarbageArguments => accepted(xid, 4),
        NotExecuted::SystemError => accepted(xid, 5),
    };
    if let NotExecuted::VersionMismatch { low, high } = status {
        writer.u32(low);
        writer.u32(high);
    }
    writer.into_bytes()
}

/// Returns the reply to a call whose credential is not accepted.
#[must_use]
pub fn auth_error(xid: u32, status: AuthStatus) -> Vec<u8> {
    words([xid, 1, 1, 1, status as u32])
}

/// Returns the reply to a call of another RPC version.
fn rpc_mismatch(xid: u32) -> Vec<u8> {
    words([xid, 1, 1, 0, RPC_VERSION, RPC_VERSION])
}

/// Begins an accepted reply, with the verifier AUTH_NONE.
fn accepted(xid: u32, status: u32) -> Writer {
    let mut writer = Writer::new();
    [xid, 1, 0, 0, 0, status].into_iter().for_each(|word| writer.u32(word));
    writer
}

fn words<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_be_bytes).collect()
}
