//! Settings of a socket that a reload changes while the server runs.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use iwarp_control::socket::{self, group_id};

use super::connection::ClientLimits;
use super::peer::Policy;
use super::server::{BindError, ServerConfig};

/// Settings of a socket, shared by its server and by those that change them.
#[derive(Clone, Debug)]
pub struct SharedSettings(Rc<Settings>);

#[derive(Debug)]
struct Settings {
    config: RefCell<ServerConfig>,
    policy: Cell<Policy>,
}

impl SharedSettings {
    /// Resolves the group of a configuration. Returns the settings, and the group of the socket file.
    ///
    /// # Errors
    /// There is no such group.
    pub(super) fn new(config: &ServerConfig) -> Result<(Self, u32), BindError> {
        let (policy, gid) = policy(config)?;
        let settings = Settings { config: RefCell::new(config.clone()), policy: Cell::new(policy) };
        Ok((Self(Rc::new(settings)), gid))
    }

    /// Returns the admission rule.
    pub fn policy(&self) -> Policy {
        self.0.policy.get()
    }

    /// Returns the settings. Not held across an await.
    pub(super) fn config(&self) -> Ref<'_, ServerConfig> {
        self.0.config.borrow()
    }

    /// Returns the time limits of a new client.
    pub(super) fn client_limits(&self) -> ClientLimits {
        let config = self.0.config.borrow();
        ClientLimits { line: config.idle_timeout, reply: config.reply_timeout, streams: true }
    }

    /// Changes mode and group of the socket file, and the limits. They hold for clients that connect from now on; the
    /// path does not change.
    ///
    /// # Errors
    /// There is no such group, or the system refuses. The settings are then as before.
    pub fn change(&self, config: &ServerConfig) -> Result<(), BindError> {
        let (policy, gid) = policy(config)?;
        let before = self.0.config.borrow().clone();
        if (before.mode, &before.group) != (config.mode, &config.group) {
            socket::admit(&before.socket, config.mode, gid)?;
        }
        self.0.policy.set(policy);
        self.0.config.replace(ServerConfig { socket: before.socket, ..config.clone() });
        Ok(())
    }
}

/// Returns the admission rule of a configuration, and the group of its socket file.
fn policy(config: &ServerConfig) -> Result<(Policy, u32), BindError> {
    let table = config.table;
    let group = config.group.as_deref().map(group_id).transpose();
    let group = group.map_err(|cause| BindError::Group { table, cause })?;
    let gid = group.unwrap_or_else(|| rustix::process::getegid().as_raw());
    let policy = Policy {
        uid: rustix::process::geteuid().as_raw(),
        gid: (config.mode & 0o060 != 0).then_some(gid),
        everybody: config.mode & 0o006 != 0,
    };
    Ok((policy, gid))
}
