//! Errors of a peer's region.

use std::net::SocketAddr;
use std::time::Duration;

use rdma::ErrorCode;
use rdma::service::{ServiceError, Status};

use crate::error::Error;
use crate::mapping::OutOfBounds;

/// Error of [`connect_region`](crate::connect_region) and of a [`RemoteRegion`](crate::RemoteRegion).
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The text does not name a region of a peer, or the rights make no sense.
    #[error("`{target}` cannot be connected to: {reason}")]
    Target {
        /// Text that was given.
        target: String,
        /// Reason, and the form that is expected.
        reason: String,
    },
    /// Nobody answers at the addresses of the host.
    #[error("cannot reach {target}: {cause}; is the address right, and does the peer listen there?")]
    Unreachable {
        /// Region to connect to.
        target: String,
        /// Reason of the last address.
        cause: std::io::Error,
    },
    /// The peer does not grant the region.
    #[error("{peer} does not grant {target}: {cause}{}", refusal_help(cause))]
    Refused {
        /// Region to connect to.
        target: String,
        /// Address of the peer.
        peer: SocketAddr,
        /// Answer of the peer.
        cause: ServiceError,
    },
    /// The access is not inside the region. Nothing was sent.
    #[error(transparent)]
    Bounds(#[from] OutOfBounds),
    /// The program has not asked for the right as it has connected. Nothing was sent.
    #[error("{target} was connected to without {right}: name the right in `RegionOptions::access`")]
    Right {
        /// Region of the access.
        target: String,
        /// Right that the access needs.
        right: &'static str,
    },
    /// The peer has not answered in time. The connection has ended.
    #[error("{target} was silent for {} s; a longer `RegionOptions::timeout` waits longer", after.as_secs_f32())]
    TimedOut {
        /// Region of the peer.
        target: String,
        /// Timeout of the connection.
        after: Duration,
    },
    /// The program's [`RegionOptions::interrupted`](crate::RegionOptions::interrupted) has ended the call, and the
    /// connection.
    #[error("a signal has ended the access to {target}, and its connection")]
    Interrupted {
        /// Region of the peer.
        target: String,
    },
    /// The connection has ended.
    #[error("the connection to {target} is closed: {cause}")]
    Closed {
        /// Region of the peer.
        target: String,
        /// Address of the peer.
        peer: SocketAddr,
        /// Reason, as far as it is known.
        cause: Ending,
    },
    /// The device in this process fails.
    #[error(transparent)]
    Device(#[from] Error),
}

/// Reason for the end of a connection to a region.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ending {
    /// The peer has sent a Terminate.
    #[error("the peer has ended the connection: {0}")]
    Terminated(ErrorCode),
    /// The peer has broken the protocol. This side has ended the connection.
    #[error("the peer has broken the protocol: {0}")]
    Protocol(ErrorCode),
    /// The peer has not answered as an iWARP peer.
    #[error("the peer does not answer as an iWARP peer: its MPA reply is missing or wrong")]
    NotIwarp,
    /// The peer answers no RDMA Reads.
    #[error("the peer answers no RDMA Reads, which prove that Writes have arrived")]
    NoReads,
    /// The peer or the network has ended the connection.
    #[error("the peer has closed it, or the network has failed")]
    Lost,
    /// A call before has returned the reason.
    #[error("it has ended before")]
    Before,
    /// This side cannot use it.
    #[error("{0}")]
    Local(String),
}

/// Returns the end of a message about a refusal: the action that helps.
const fn refusal_help(cause: &ServiceError) -> &'static str {
    match cause {
        ServiceError::Refused(Status::NoSuchRegion) => {
            "; names are exact, as `iwarpctl region list` shows them there"
        }
        ServiceError::Refused(Status::NotPermitted) => {
            "; the region may lack the right, want a token, or want another source address"
        }
        ServiceError::NotAnAnswer | ServiceError::UnknownStatus(_) => {
            "; the port has to be one that serves regions"
        }
        ServiceError::Refused(_) => "",
    }
}
