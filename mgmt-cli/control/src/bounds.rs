//! Limits of lengths and counts that both ends of the control socket check.

/// The version of the messages; a change that an old client would misread raises it.
pub const API: u32 = 1;
/// The path of the control socket if the configuration names none.
pub const DEFAULT_SOCKET: &str = "/run/iwarpd/control.sock";
/// The longest request line that the daemon reads, its newline included, in bytes.
pub const REQUEST_BYTES_MAX: usize = 64 * 1024;
/// The most connections that one `conn.list` reply names.
pub const CONNECTIONS_LISTED_MAX: usize = 65_536;
/// The most rows that one reply to `qp.list`, `cq.list` or `mr.list` names.
pub const OBJECTS_LISTED_MAX: usize = 16_384;
/// The longest reply line that a client reads, in bytes: the longest list at 1.5 KiB a connection.
pub const REPLY_BYTES_MAX: usize = CONNECTIONS_LISTED_MAX * 1536;
/// The longest name of a region in bytes of UTF-8; it has to fit one byte of a request's private data.
pub const REGION_NAME_BYTES_MAX: usize = rdma::service::NAME_MAX;
/// The longest token of a region in bytes.
pub const TOKEN_BYTES_MAX: usize = rdma::service::TOKEN_MAX;
/// The most source prefixes that one region can list.
pub const ALLOW_PREFIXES_MAX: usize = rdma::service::PREFIXES_MAX;
/// The most descriptors that travel with one reply.
pub const DESCRIPTORS_MAX: usize = 4;

// 64 prefixes of at most 43 bytes, a name and a token in JSON fit one request line many times over.
const _: () =
    assert!(ALLOW_PREFIXES_MAX * 64 + REGION_NAME_BYTES_MAX * 6 + TOKEN_BYTES_MAX * 2 < REQUEST_BYTES_MAX);
