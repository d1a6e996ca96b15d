//! Timers: the wheel of a stack, with one node per connection, and the timers of a connection.

mod kind;
mod wheel;

pub(crate) use kind::{Deadlines, TimerKind, Timers};
#[cfg(test)]
pub(crate) use wheel::NODE_BYTES;
pub(crate) use wheel::Wheel;
