//! Filters of system calls (seccomp(2)). A refused call fails with EPERM: a driver that makes an unforeseen call
//! reports an error, and the daemon is not killed.
//!
//! The daemon's filter refuses the calls that start programs, change the machine or examine other processes. DPDK's
//! drivers make many others when they open a port. A worker makes few calls, of which its filter is the list.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use libc::c_long;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

/// Calls that no thread of the daemon makes.
const REFUSED_TO_ALL: &[c_long] = &[
    // Other programs, and other processes. Calls of threads are `clone` and `clone3`.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_ptrace,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise,
    libc::SYS_migrate_pages,
    // Users, groups, namespaces, roots.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    // The machine.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_vhangup,
    libc::SYS_personality,
    libc::SYS_modify_ldt,
    libc::SYS_mknod,
    libc::SYS_mknodat,
    // Keys, and interfaces of the kernel that only attackers would want here.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_lookup_dcookie,
    libc::SYS_fanotify_init,
    libc::SYS_vmsplice,
];

/// Calls of a worker: frames in and out through descriptors that are open, sleep, memory, the end of a thread.
const ALLOWED_TO_WORKERS: &[c_long] = &[
    // Frames: TAP, AF_PACKET, AF_XDP, memif, pcap, and interrupts of cards.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_ioctl,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_fcntl,
    libc::SYS_close,
    // TCP ports that a program wants, where the kernel has the addresses: of sockets that another thread has opened.
    libc::SYS_bind,
    libc::SYS_listen,
    // Sleep and wake.
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    // Memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_getrandom,
    // The thread, its signals and its end.
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_getcpu,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Applies the daemon's filter to the calling thread and those that it starts.
///
/// # Errors
/// The kernel has no seccomp filters.
pub(super) fn filter_daemon() -> Result<()> {
    apply(REFUSED_TO_ALL, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))
}

/// Applies a worker's filter to the calling thread, in addition to those that it inherited.
///
/// # Errors
/// The kernel has no seccomp filters.
pub(super) fn filter_worker() -> Result<()> {
    apply(ALLOWED_TO_WORKERS, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow)
}

/// Applies a filter that answers `listed` to the calls in `calls`, and `others` to all others.
fn apply(calls: &[c_long], others: SeccompAction, listed: SeccompAction) -> Result<()> {
    let rules: BTreeMap<i64, _> = calls.iter().map(|call| (*call, Vec::new())).collect();
    let arch =
        TargetArch::try_from(std::env::consts::ARCH).context("no system call filters on this processor")?;
    let filter = SeccompFilter::new(rules, others, listed, arch).context("a filter of system calls")?;
    let program = BpfProgram::try_from(filter).context("a filter of system calls")?;
    apply_filter(&program).context(
        "cannot filter system calls: the kernel has no seccomp, or the service manager forbids it (systemd: \
         SystemCallFilter=seccomp); `filter_system_calls = false` in [privileges] goes without",
    )
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::process::Command;

    use super::*;

    /// Runs `f` on a thread of its own, to which the filter of `apply` applies.
    fn on_thread<T: Send + 'static>(apply: fn() -> Result<()>, f: fn() -> T) -> T {
        let run = move || {
            apply().unwrap();
            f()
        };
        std::thread::spawn(run).join().unwrap()
    }

    #[test]
    fn the_daemon_opens_files_and_sockets_but_changes_no_root() {
        let error = on_thread(filter_daemon, || {
            File::open("/proc/self/status").unwrap();
            std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            std::thread::spawn(|| ()).join().unwrap();
            rustix::process::chroot("/").unwrap_err()
        });
        assert_eq!(error, rustix::io::Errno::PERM);
    }

    #[test]
    fn no_thread_starts_a_program() {
        for filter in [filter_daemon, filter_worker] {
            let error = on_thread(filter, || Command::new("/bin/true").status().unwrap_err());
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        }
    }

    #[test]
    fn a_worker_uses_open_descriptors_and_memory_but_opens_nothing() {
        on_thread(filter_worker, || {
            let (mut reader, mut writer) = (vec![0; 1 << 20], std::io::sink());
            writer.write_all(&reader).unwrap();
            std::io::repeat(7).read_exact(&mut reader).unwrap();
            std::thread::park_timeout(std::time::Duration::from_millis(1));
            assert_eq!(File::open("/dev/null").unwrap_err().raw_os_error(), Some(libc::EPERM));
            for socket in [
                std::net::UdpSocket::bind("127.0.0.1:0").unwrap_err(),
                std::net::TcpListener::bind("127.0.0.1:0").unwrap_err(),
            ] {
                assert_eq!(socket.raw_os_error(), Some(libc::EPERM));
            }
        });
    }
}
