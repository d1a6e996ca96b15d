//! Tests of verbs on two hosts in memory. Every run is a function of its seed.

mod connections;
mod contexts;
mod work;

use iwarp_engine::testutil::hosts as lab;
