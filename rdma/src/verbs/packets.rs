//! Properties of an id that concern the packets of the transport: local port and traffic class.

use core::net::SocketAddr;

use super::ids::CmId;
use super::{Device, VerbsError};

impl<C: AsRef<[u8]>> Device<C> {
    /// Allows the transport to open the connection that was just requested from another port than that of the local
    /// address, if that is in use.
    ///
    /// # Errors
    /// `NoSuchObject`. `State`: it is not about to be opened.
    pub fn allow_any_port(&mut self, id: CmId) -> Result<(), VerbsError> {
        let entry = self.ids.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        entry.details.pending_connect.as_mut().ok_or(VerbsError::State)?.any_port = true;
        Ok(())
    }

    /// Returns true if the connection may have any local port.
    pub fn allows_any_port(&self, id: CmId) -> bool {
        let pending = self.ids.get(id.0).and_then(|entry| entry.details.pending_connect.as_ref());
        pending.is_some_and(|pending| pending.any_port)
    }

    /// Notes the local end from which the transport opens the connection.
    pub fn opening_from(&mut self, id: CmId, local: SocketAddr) {
        if let Some(entry) = self.ids.get_mut(id.0) {
            entry.details.local = Some(local);
        }
    }

    /// Sets the traffic class of the packets of a connection (`RDMA_OPTION_ID_TOS`), or of those that a listener
    /// accepts. The transport's adapter applies it, and asks for that of a new stream by [`Self::traffic_class`].
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn set_traffic_class(&mut self, id: CmId, class: u8) -> Result<(), VerbsError> {
        self.ids.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?.traffic_class = class;
        Ok(())
    }

    /// Returns the traffic class of an id; 0 if the program has set none.
    pub fn traffic_class(&self, id: CmId) -> u8 {
        self.ids.get(id.0).map_or(0, |entry| entry.traffic_class)
    }
}
