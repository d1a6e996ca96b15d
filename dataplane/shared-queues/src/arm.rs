//! Arming of a completion queue: the program asks for one event, and sleeps; the worker signals it once.
//!
//! The program arms, then polls the queue once more, and sleeps if it is empty. The worker publishes a completion, then
//! reads the arming. Each side writes before it reads, with a barrier between, so that at least one of them sees what
//! the other wrote: no completion is published without an event while the program sleeps.

use crate::sync::{AtomicU64, Ordering, fence};

/// Completions for which an armed queue raises an event (`ibv_req_notify_cq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// A solicited completion, or one with an error.
    Solicited,
    /// Any completion, whatever its status.
    Any,
}

/// Values of the word. A program may write others: they count as [`ANY`].
const DISARMED: u64 = 0;
const SOLICITED: u64 = 1;
const ANY: u64 = 2;

/// Word of a completion queue that says for which completion an event is due.
#[derive(Clone, Copy, Debug)]
pub struct Arm<'a>(pub &'a AtomicU64);

impl Arm<'_> {
    /// Asks for one event (program). The program polls the queue after this call, before it sleeps.
    pub fn arm(self, armed: Armed) {
        let value = match armed {
            Armed::Solicited => SOLICITED,
            Armed::Any => ANY,
        };
        self.0.store(value, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Returns true if an event is due, and disarms the queue (worker). Called after completions were published;
    /// `solicited` is true if one of them was solicited or has an error.
    #[inline]
    pub fn take_due(self, solicited: bool) -> bool {
        fence(Ordering::SeqCst);
        let armed = self.0.load(Ordering::Relaxed);
        if armed == DISARMED || (armed == SOLICITED && !solicited) {
            return false;
        }
        self.disarm()
    }

    /// Returns what the queue is armed for; `None` if it is not armed.
    #[inline]
    pub fn armed(self) -> Option<Armed> {
        match self.0.load(Ordering::Relaxed) {
            DISARMED => None,
            SOLICITED => Some(Armed::Solicited),
            _ => Some(Armed::Any),
        }
    }

    /// Disarms the queue. Returns false if it was not armed: the other side has raised the event, or nobody has armed.
    /// So each arming raises one event, whichever side finds a completion.
    #[inline]
    pub fn disarm(self) -> bool {
        self.0.swap(DISARMED, Ordering::AcqRel) != DISARMED
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_armed_queue_raises_one_event() {
        let word = AtomicU64::new(0);
        let arm = Arm(&word);
        assert!(!arm.take_due(true), "not armed");
        arm.arm(Armed::Any);
        assert_eq!([arm.take_due(false), arm.take_due(true)], [true, false]);
        arm.arm(Armed::Solicited);
        assert_eq!([arm.take_due(false), arm.take_due(true), arm.take_due(true)], [false, true, false]);
    }

    #[test]
    fn arming_for_any_completion_replaces_arming_for_solicited_ones() {
        let word = AtomicU64::new(0);
        Arm(&word).arm(Armed::Solicited);
        Arm(&word).arm(Armed::Any);
        assert!(Arm(&word).take_due(false));
    }

    #[test]
    fn a_program_that_disarms_first_raises_the_event_itself() {
        let word = AtomicU64::new(0);
        assert!(!Arm(&word).disarm(), "not armed");
        Arm(&word).arm(Armed::Any);
        assert_eq!(Arm(&word).armed(), Some(Armed::Any));
        assert_eq!([Arm(&word).disarm(), Arm(&word).take_due(true)], [true, false]);
        assert_eq!(Arm(&word).armed(), None);
        Arm(&word).arm(Armed::Any);
        assert_eq!([Arm(&word).take_due(true), Arm(&word).disarm()], [true, false]);
    }

    #[test]
    fn other_values_of_the_word_raise_one_event() {
        for value in [3, 1 << 40, u64::MAX] {
            let word = AtomicU64::new(value);
            assert_eq!([Arm(&word).take_due(false), Arm(&word).take_due(false)], [true, false]);
        }
    }
}
