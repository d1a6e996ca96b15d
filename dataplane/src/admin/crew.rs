//! The workers, as the control side sees them: somewhere to send commands, counters to read.

use std::sync::{Arc, Mutex, PoisonError};

use iwarp_control::{ErrorKind, ErrorObject};
use rtrb::Producer;
use tokio::sync::oneshot;

use crate::worker::{Command, Published};

/// One worker.
#[derive(Debug)]
pub struct Member {
    /// The CPU that it is pinned to.
    pub core: u16,
    /// Its counters.
    pub published: Arc<Published>,
    commands: Mutex<Producer<Command>>,
}

impl Member {
    /// A worker that takes commands from the other end of `commands`.
    pub fn new(core: u16, published: Arc<Published>, commands: Producer<Command>) -> Self {
        Self { core, published, commands: Mutex::new(commands) }
    }

    /// Hands the worker a command. It is carried out between two rounds.
    ///
    /// # Errors
    /// The ring is full: the worker does not keep up, or has ended.
    pub fn send(&self, command: Command) -> Result<(), ErrorObject> {
        let mut ring = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        ring.push(command).map_err(|_| {
            ErrorObject::new(
                ErrorKind::NoResources,
                format!("the worker on core {} takes no commands", self.core),
            )
            .with_help(
                "too many requests at once, or the worker is stuck: `iwarpctl status` shows its rounds",
            )
        })
    }

    /// Hands the worker a command and waits for its answer.
    ///
    /// # Errors
    /// As [`Member::send`]; and when the worker ends before it answers.
    pub async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, ErrorObject> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply))?;
        answer.await.map_err(|_| {
            ErrorObject::new(ErrorKind::Internal, format!("the worker on core {} has ended", self.core))
        })
    }
}
