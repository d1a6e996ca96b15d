//! Hosts of the client or the server: a node with its own dataplane, or an application of the daemon.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::{Context as _, Result};
use dataplane::verbs::{Node, PortEngine};
use iwarp_rping::{Application, TextMemory, Verbs};
use tcp_stack::Instant;

/// Provider of verbs, with its loop.
pub(crate) trait Host {
    type Verbs: Verbs;

    fn verbs(&mut self) -> &mut Self::Verbs;
    /// Returns the time of the current iteration.
    fn now(&self) -> Instant;
    /// Provides memory for texts of `size` bytes.
    fn memory(&mut self, size: u32) -> Result<TextMemory>;
    /// Returns true if a request, such as that to listen, has not been executed yet.
    fn has_request(&self) -> bool;
    /// Calls `program` in a loop until it breaks. Sleeps while there is no work.
    fn run<T>(&mut self, program: impl FnMut(&mut Self) -> ControlFlow<T>) -> Result<T>;
    /// Waits until all connections have closed, at most for `timeout`.
    fn finish(&mut self, timeout: Duration);
}

impl Host for Node {
    type Verbs = PortEngine;

    fn verbs(&mut self) -> &mut PortEngine {
        self.engine_mut()
    }

    fn now(&self) -> Instant {
        self.now()
    }

    fn memory(&mut self, size: u32) -> Result<TextMemory> {
        let (region, _) = self.add_region("rping", TextMemory::bytes(size)).context("no memory for texts")?;
        Ok(TextMemory { region: Some(region), size })
    }

    fn has_request(&self) -> bool {
        self.device().has_request()
    }

    fn run<T>(&mut self, program: impl FnMut(&mut Self) -> ControlFlow<T>) -> Result<T> {
        Ok(self.run(program))
    }

    fn finish(&mut self, timeout: Duration) {
        self.finish(timeout);
    }
}

impl Host for Application {
    type Verbs = Self;

    fn verbs(&mut self) -> &mut Self {
        self
    }

    fn now(&self) -> Instant {
        self.now()
    }

    fn memory(&mut self, size: u32) -> Result<TextMemory> {
        Ok(TextMemory { region: None, size })
    }

    fn has_request(&self) -> bool {
        // The daemon has answered each.
        false
    }

    fn run<T>(&mut self, program: impl FnMut(&mut Self) -> ControlFlow<T>) -> Result<T> {
        Ok(self.run(program)?)
    }

    fn finish(&mut self, _: Duration) {
        // The daemon closes the connections.
    }
}
