//! RDMA verbs for a program that is its own dataplane: a [`Node`] polls an [`Engine`](crate::engine::Engine) on a DPDK
//! port in the program's own thread.

mod node;
#[cfg(test)]
mod tests;

pub use node::{Node, NodeOptions, PortEngine};
