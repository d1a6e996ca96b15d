//! Admission of requests: the limits of the program's user, and its local ports.

use std::cell::RefCell;

use iwarp_control::ErrorObject;
use iwarp_shared_verbs::Request;
use rdma::verbs::VerbsError;

use super::Applications;
use super::registry::App;
use super::usage::{Exceeded, Usage};

/// First port that every user may use, as Linux's `ip_unprivileged_port_start` by default.
const PORTS_UNPRIVILEGED: u16 = 1024;

/// Reason why a request does not reach the worker.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The user would exceed a limit.
    Limit(Exceeded),
    /// The port is for root.
    Port { uid: u32, port: u16 },
}

impl Refusal {
    pub(super) const fn cause(&self) -> VerbsError {
        match self {
            Self::Limit(_) => VerbsError::NoResources,
            Self::Port { .. } => VerbsError::NotPermitted,
        }
    }

    /// Returns what happened, and what to do.
    pub(super) fn reason(self) -> String {
        match self {
            Self::Limit(exceeded) => {
                let error = ErrorObject::from(exceeded);
                let help = error.data.help.unwrap_or_default();
                format!("{}; {help}", error.message)
            }
            Self::Port { uid, port } => format!(
                "user {uid} may not use port {port}: ports below {PORTS_UNPRIVILEGED} are for root; add it to \
                 applications.privileged_ports and reload, or choose another"
            ),
        }
    }
}

impl Applications {
    /// Checks requests that the program's user may be refused, and reserves what they add.
    pub(super) fn admit(&self, app: &RefCell<App>, requests: &[Request]) -> Vec<Result<(), Refusal>> {
        let uid = app.borrow().peer.uid;
        let permitted = |request: &Request| match request {
            Request::CreateId(Some(local)) => self.check_port(uid, local.port()),
            _ => Ok(()),
        };
        let permitted: Vec<Result<(), Refusal>> = requests.iter().map(permitted).collect();
        // One that is not permitted adds nothing.
        let adds = |(request, permitted): (&Request, &Result<(), Refusal>)| match permitted {
            Ok(()) => app.borrow().usage_of(request),
            Err(_) => Usage::default(),
        };
        let reserved =
            self.registry.reserve_each(app, requests.iter().zip(&permitted).map(adds), &self.limits());
        let both = |(permitted, reserved): (Result<(), Refusal>, Result<(), Exceeded>)| {
            permitted.and(reserved.map_err(Refusal::Limit))
        };
        permitted.into_iter().zip(reserved).map(both).collect()
    }

    /// Checks that a user may use a local port: those below 1024 are for root, and those of the configuration for
    /// everybody. A capability does not count: the socket does not tell in which user namespace a program has it.
    fn check_port(&self, uid: u32, port: u16) -> Result<(), Refusal> {
        let is_free = || self.settings.borrow().privileged_ports.contains(&port);
        if uid == 0 || port == 0 || port >= PORTS_UNPRIVILEGED || is_free() {
            return Ok(());
        }
        Err(Refusal::Port { uid, port })
    }
}
