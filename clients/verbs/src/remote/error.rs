//! Errors of a peer's region.

use std::net::SocketAddr;
use std::time::Duration;

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
    /// The connection has ended.
    #[error("the connection to {target} is closed: {reason}")]
    Closed {
        /// Region of the peer.
        target: String,
        /// Reason, as far as it is known.
        reason: String,
    },
    /// The device in this process fails.
    #[error(transparent)]
    Device(#[from] Error),
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
