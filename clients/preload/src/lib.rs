//! `librspreload.so`: the stream sockets of a program that does not know RDMA become rsockets (`iwarp-run --preload`).
//!
//! The library's functions come before those of the C library. A socket of the program stays a socket of the system,
//! which reserves its number; as long as an rsocket lies over it, calls go there. When `bind` or `connect` names an
//! address that no RDMA device has or reaches, or one of no peer, the rsocket is closed, and the system's socket takes
//! over.
//!
//! | file | content |
//! |---|---|
//! | `calls.rs` | the functions of the C library and of librdmacm |
//! | `overlay.rs` | rsockets by the number of the system's socket |
//! | `peers.rs` | the peers of rsockets |
//! | `sockets.rs` | calls for one socket |
//! | `transfers.rs` | more of them: files, several messages, `ioctl`, the signal of a broken pipe |
//! | `waits.rs` | calls for several: `poll`, `select` |

mod calls;
mod overlay;
mod peers;
pub mod sockets;
pub mod transfers;
pub mod waits;
