//! `librspreload.so`: the stream sockets of a program that does not know RDMA become rsockets (`iwarp-run --preload`).
//!
//! The library's functions come before those of the C library. A socket of the program stays a socket of the system,
//! which reserves its number; as long as an rsocket lies over it, calls go there. When `bind` or `connect` names an
//! address that no RDMA device has or reaches, or one of no peer, the rsocket is closed, and the system's socket takes
//! over.
//!
//! It also shows the files of RDMA devices to programs (`iwarp-run --roce`) where mount namespaces are forbidden: paths
//! below `/sys/class/infiniband` and `/dev/infiniband` lead to a folder that `IWARP_PRELOAD_FILES` names. Without
//! `--preload`, `iwarp-run` sets `IWARP_PRELOAD_PEERS` to no peer, and all sockets stay the kernel's.
//!
//! | file | content |
//! |---|---|
//! | `calls.rs` | the functions of the C library and of librdmacm |
//! | `files.rs` | calls with paths |
//! | `overlay.rs` | rsockets by the number of the system's socket |
//! | `peers.rs` | the peers of rsockets |
//! | `redirect.rs` | paths that lead to a folder |
//! | `sockets.rs` | calls for one socket |
//! | `transfers.rs` | more of them: files, several messages, `ioctl`, the signal of a broken pipe |
//! | `waits.rs` | calls for several: `poll`, `select` |

mod calls;
pub mod files;
mod overlay;
mod peers;
mod redirect;
pub mod sockets;
pub mod transfers;
pub mod waits;
