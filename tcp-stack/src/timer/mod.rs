//! Timers: one wheel per stack, one node per connection.

mod kind;
mod wheel;

pub(crate) use kind::{TimerKind, Timers};
pub(crate) use wheel::Wheel;
