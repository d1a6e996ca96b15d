//! The workers, as the control side sees them: somewhere to send commands, counters to read.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use iwarp_control::{ErrorKind, ErrorObject};
use rtrb::Producer;
use tokio::sync::oneshot;

use crate::worker::{Command, Published};

/// How often whoever waits for an answer looks whether the worker still lives.
const PULSE: Duration = Duration::from_millis(100);

/// One worker.
#[derive(Debug)]
pub struct WorkerHandle {
    /// The CPU that it is pinned to.
    pub core: u16,
    /// Its counters.
    pub published: Arc<Published>,
    commands: Mutex<Producer<Command>>,
}

impl WorkerHandle {
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
    /// As [`WorkerHandle::send`]; and when the worker ends before it answers.
    pub async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, ErrorObject> {
        let (reply, mut answer) = oneshot::channel();
        self.send(command(reply))?;
        loop {
            // A command that a worker leaves behind keeps its reply open: nothing would ever come of it.
            let ended = self.has_ended();
            match tokio::time::timeout(PULSE, &mut answer).await {
                Ok(Ok(answer)) => return Ok(answer),
                Err(_) if !ended => {}
                Ok(Err(_)) | Err(_) => break,
            }
        }
        Err(ErrorObject::new(ErrorKind::Internal, format!("the worker on core {} has ended", self.core)))
    }

    /// Whether the worker is gone and takes no commands any more.
    pub fn has_ended(&self) -> bool {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).is_abandoned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::WorkerStats;

    #[tokio::test]
    async fn nobody_waits_for_a_worker_that_has_ended() {
        let stats = WorkerStats::default();
        let published = Arc::new(Published::new(&(&stats, [].as_slice())));
        let (producer, commands) = rtrb::RingBuffer::new(4);
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
