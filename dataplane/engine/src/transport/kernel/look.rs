//! Events of sockets, by epoll.

use rustix::event::{Timespec, epoll};
use tcp_stack::ConnId;

use super::conn::Stage;
use super::{KernelTcp, LISTENER};

/// Events of epoll per look.
const EVENTS_PER_LOOK: usize = 64;

impl KernelTcp {
    /// Asks the kernel for events of sockets.
    pub(super) fn look(&mut self) {
        let mut found =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
                EVENTS_PER_LOOK];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.epoll, &mut found, Some(&none)).unwrap_or(0);
        (self.found, self.has_more) = (self.found.wrapping_add(count as u64), count == EVENTS_PER_LOOK);
        for event in found.iter().take(count) {
            let (flags, token) = (event.flags, event.data.u64());
            let index = (token & u64::from(u32::MAX)).try_into().unwrap_or(u32::MAX);
            if token & LISTENER != 0 {
                if let Some(Some(listener)) = self.listeners.get_mut(index as usize) {
                    listener.has_waiting = true;
                }
                continue;
            }
            let id = ConnId::new(index, (token >> 32).try_into().unwrap_or(u32::MAX));
            let Some(conn) = self.get_mut(id) else { continue };
            if conn.stage == Stage::Connecting {
                self.connected(id);
            }
            let Some(conn) = self.get_mut(id).filter(|conn| conn.stage == Stage::Open) else { continue };
            if flags.intersects(epoll::EventFlags::OUT) {
                conn.is_blocked = false;
            }
            let ends = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
            conn.may_read |= flags.intersects(epoll::EventFlags::IN | ends);
            conn.has_end |= flags.intersects(ends);
            self.queue_readable(id);
            self.queue_unsent(id);
        }
    }
}
