//! A program that uses up a core, and nothing of the daemon.

use std::time::Instant;

use serde_json::json;

use super::{Attack, Target};

pub(super) fn run(target: &Target) -> Attack {
    let (until, mut turns) = (target.end(), 0_u64);
    while Instant::now() < until {
        turns = std::hint::black_box(turns + 1);
    }
    (json!({ "case": "burn", "turns": turns }), Box::new(()))
}
