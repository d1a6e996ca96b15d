//! Timers: one wheel per stack, one node per connection.

mod kind;
mod wheel;

pub(crate) use kind::{Deadlines, TimerKind, Timers};
#[cfg(test)]
pub(crate) use wheel::NODE_BYTES;
pub(crate) use wheel::Wheel;
