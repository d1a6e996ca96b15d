//! The ring through which the control side sends commands to one worker. A command ends the worker's sleep.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rtrb::{Consumer, Producer, RingBuffer};
use rustix::event::{EventfdFlags, eventfd};

use super::Command;

/// The control side's end of the ring.
#[derive(Debug)]
pub struct CommandSender {
    ring: Producer<Command>,
    /// Event counter that the worker sleeps on.
    wake: Arc<OwnedFd>,
}

/// The worker's end of the ring.
#[derive(Debug)]
pub struct Commands {
    ring: Consumer<Command>,
    wake: Arc<OwnedFd>,
}

/// Creates a ring for `capacity` commands.
///
/// # Errors
/// The process has no descriptor left for the event counter.
pub fn command_ring(capacity: usize) -> io::Result<(CommandSender, Commands)> {
    let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
    let (producer, consumer) = RingBuffer::new(capacity);
    Ok((CommandSender { ring: producer, wake: Arc::clone(&wake) }, Commands { ring: consumer, wake }))
}

impl CommandSender {
    /// Queues a command and wakes the worker.
    ///
    /// # Errors
    /// The ring is full; returns the command.
    pub fn push(&mut self, command: Command) -> Result<(), Command> {
        self.ring.push(command).map_err(|rtrb::PushError::Full(command)| command)?;
        // Fails only if the counter is at its maximum: the worker is to wake already.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        Ok(())
    }

    /// Returns true if the worker has ended.
    pub fn is_abandoned(&self) -> bool {
        self.ring.is_abandoned()
    }
}

impl Commands {
    /// Removes the oldest command.
    pub fn pop(&mut self) -> Option<Command> {
        self.ring.pop().ok()
    }

    /// Returns true if no command is queued.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Returns the event counter that each command increments.
    pub fn wake(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.wake)
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(counter: &OwnedFd) -> bool {
        poll(&mut [PollFd::new(counter, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn a_command_wakes_the_worker_and_a_full_ring_returns_it() {
        let (mut sender, mut commands) = command_ring(2).unwrap();
        let counter = commands.wake();
        assert!(commands.is_empty() && commands.pop().is_none() && !is_readable(&counter));
        sender.push(Command::Stop).unwrap();
        assert!(!commands.is_empty() && is_readable(&counter));
        sender.push(Command::Stop).unwrap();
        assert!(matches!(sender.push(Command::Stop), Err(Command::Stop)));
        assert!(commands.pop().is_some() && commands.pop().is_some() && commands.is_empty());
        assert!(!sender.is_abandoned());
        drop(commands);
        assert!(sender.is_abandoned());
    }
}
