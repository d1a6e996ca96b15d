//! libibverbs and librdmacm for unmodified programs: `iwarpd` is the RDMA NIC that they open.
//!
//! One shared object has both names. Its functions have the signatures of `<infiniband/verbs.h>` and
//! `<rdma/rdma_cma.h>`, and are made of the calls of [`iwarp_verbs`]. `symbols.txt` lists every symbol of Debian's two
//! libraries, with its version; what iWARP does not have fails as the header says for that call.
//!
//! Pointers of a program are references here: `Option<&T>` for an object that it passes, `Option<Box<T>>` for one that
//! it destroys. As in every implementation, an invalid pointer is undefined behavior. Other accesses by pointer are in
//! `raw.rs`.
//!
//! | file | functions |
//! |---|---|
//! | `device_list.rs`, `devices.rs` | devices, queries of devices and ports |
//! | `objects.rs`, `qp.rs` | protection domains, memory, queues, queue pairs |
//! | `work.rs` | posting and polling |
//! | `cq_ex.rs`, `qp_ex.rs` | the same with the extended calls: iterators, `ibv_wr_*` |
//! | `rsocket/`, `sleepers.rs` | stream sockets over RDMA, and the threads that wait for them |
//! | `cm.rs`, `cm_calls.rs`, `options.rs`, `resolve.rs`, `endpoint.rs`, `addrinfo.rs` | connections |
//! | `users.rs` | counts of the users of objects, which are not destroyed meanwhile |
//! | `context.rs`, `queue.rs` | the thread that distributes the events of a context, and their queues |
#![allow(dead_code, reason = "fields that only C programs access")]

mod abi;
mod abi_cm;
mod abi_ex;
mod addresses;
mod addrinfo;
mod cm;
mod cm_calls;
mod context;
mod cq_ex;
mod datagrams;
mod device_list;
mod devices;
mod endpoint;
mod event_channel;
mod foreground;
#[cfg(test)]
mod layout_tests;
mod names;
mod numbered;
mod objects;
mod options;
mod qp;
mod qp_ex;
mod queue;
mod raw;
mod resolve;
mod rsocket;
mod sleepers;
mod unplaced;
mod users;
mod work;
