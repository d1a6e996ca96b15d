//! The control side's access to one worker: its command ring and its published counters. `ControlHandler` and its
//! reports use it; `setup` creates it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use iwarp_control::{ErrorKind, ErrorObject};
use tokio::sync::oneshot;

use crate::worker::{Command, CommandSender, Published};

/// Interval at which [`WorkerHandle::ask`] checks that the worker still runs.
const ENDED_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Command ring and published counters of one worker.
#[derive(Debug)]
pub struct WorkerHandle {
    /// CPU that the worker is pinned to.
    pub core: u16,
    /// Published counters of the worker.
    pub published: Arc<Published>,
    commands: Mutex<CommandSender>,
}

impl WorkerHandle {
    /// Creates a handle of the worker that reads the other end of `commands`.
    pub fn new(core: u16, published: Arc<Published>, commands: CommandSender) -> Self {
        Self { core, published, commands: Mutex::new(commands) }
    }

    /// Queues a command, which the worker carries out between two poll iterations.
    ///
    /// # Errors
    /// The ring is full: the worker is too slow, or has ended.
    pub fn send(&self, command: Command) -> Result<(), ErrorObject> {
        let mut ring = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        ring.push(command).map_err(|_| {
            ErrorObject::new(
                ErrorKind::NoResources,
                format!("the worker on core {} takes no commands", self.core),
            )
            .with_help(
                "too many requests at once, or the worker is stuck: `iwarpctl status` shows its iterations",
            )
        })
    }

    /// Queues a command and waits for its answer.
    ///
    /// # Errors
    /// Fails as [`WorkerHandle::send`] does, or if the worker ends before it answers.
    pub async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, ErrorObject> {
        let (reply, mut answer) = oneshot::channel();
        self.send(command(reply))?;
        loop {
            // A command left in the ring of an ended worker keeps its reply channel open: it would never be answered.
            // Read before the wait, so that an answer sent just before the end is received.
            let ended = self.has_ended();
            match tokio::time::timeout(ENDED_CHECK_INTERVAL, &mut answer).await {
                Ok(Ok(answer)) => return Ok(answer),
                Err(_) if !ended => {}
                Ok(Err(_)) | Err(_) => break,
            }
        }
        Err(ErrorObject::new(ErrorKind::Internal, format!("the worker on core {} has ended", self.core)))
    }

    /// Returns true if the worker has ended.
    pub fn has_ended(&self) -> bool {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).is_abandoned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{WorkerStats, command_ring};

    #[tokio::test]
    async fn a_request_to_a_worker_that_has_ended_fails() {
        let stats = WorkerStats::default();
        let published = Arc::new(Published::new(&(&stats, [].as_slice())));
        let (producer, commands) = command_ring(4).unwrap();
        let handle = WorkerHandle::new(3, published, producer);
        let asked = handle.ask(|reply| Command::RegionUse { region: rdma::RegionId(0), reply });
        let (answer, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(5), asked), async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            drop(commands);
        });
        let refused = answer.expect("it does not wait for ever").unwrap_err();
        assert!(refused.to_string().contains("the worker on core 3 has ended"), "{refused}");
        assert!(handle.has_ended());
    }
}
