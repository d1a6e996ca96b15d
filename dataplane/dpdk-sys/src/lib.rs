//! Bindings to the system's DPDK, generated at build time.
//!
//! Raw and unsafe: `dataplane::dpdk` is the layer to use. Nothing is committed, because the layout of DPDK's structures
//! changes from release to release; the generated file checks every size and offset at compile time. Fields of
//! structures that differ between releases are reached through [`field`]. Inline functions (the packet path among them)
//! are compiled by the C compiler into small wrappers, which costs about a nanosecond per burst and keeps DPDK's
//! receive callbacks working.
//!
//! The published crate of this name is another one, abandoned since 2018; this one is part of the workspace.
#![allow(
    missing_debug_implementations,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unnameable_types,
    unreachable_pub,
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    unused_qualifications,
    clippy::all,
    clippy::cast_possible_truncation,
    clippy::multiple_unsafe_ops_per_block,
    clippy::undocumented_unsafe_blocks,
    clippy::use_self,
    reason = "generated from C headers"
)]

pub mod field;

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
