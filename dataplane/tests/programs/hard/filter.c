/* Runs another program without the system calls that container profiles refuse, and without others by name. */
#include "common.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { RULES_MAX = 200 };

static struct sock_filter rules[RULES_MAX];
static unsigned short rule_count;

static void rule(struct sock_filter one)
{
	NEED(rule_count < RULES_MAX);
	rules[rule_count++] = one;
}

#define LOAD(field)                                                                                                  \
	rule((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)offsetof(struct seccomp_data, field)))
#define IF_NOT_SKIP(test, value, skipped)                                                                            \
	rule((struct sock_filter)BPF_JUMP(BPF_JMP | (test) | BPF_K, (unsigned)(value), 0, skipped))
#define RETURN(value) rule((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, (value)))

static void refuse(long number, int error)
{
	IF_NOT_SKIP(BPF_JEQ, number, 1);
	RETURN(SECCOMP_RET_ERRNO | (unsigned)error);
}

/* Calls that the default profiles of container engines refuse without a capability, or on older kernels. */
static const long refused[] = {
	SYS_acct, SYS_add_key, SYS_bpf, SYS_clock_adjtime, SYS_clock_settime, SYS_delete_module, SYS_fanotify_init,
	SYS_finit_module, SYS_fsconfig, SYS_fsmount, SYS_fsopen, SYS_fspick, SYS_init_module, SYS_io_uring_enter,
	SYS_io_uring_register, SYS_io_uring_setup, SYS_kcmp, SYS_kexec_load, SYS_keyctl, SYS_lookup_dcookie, SYS_mbind,
	SYS_mount, SYS_move_mount, SYS_move_pages, SYS_name_to_handle_at, SYS_open_by_handle_at, SYS_open_tree,
	SYS_perf_event_open, SYS_pidfd_getfd, SYS_pivot_root, SYS_process_madvise, SYS_process_vm_readv,
	SYS_process_vm_writev, SYS_ptrace, SYS_quotactl, SYS_reboot, SYS_request_key, SYS_set_mempolicy, SYS_setns,
	SYS_settimeofday, SYS_swapoff, SYS_swapon, SYS_syslog, SYS_umount2, SYS_unshare, SYS_userfaultfd, SYS_vhangup,
};

static const struct { const char *name; long number; } named[] = {
	{ "memfd_create", SYS_memfd_create }, { "eventfd2", SYS_eventfd2 },	{ "getrandom", SYS_getrandom },
	{ "epoll_create1", SYS_epoll_create1 }, { "mlock", SYS_mlock },		{ "madvise", SYS_madvise },
	{ "membarrier", SYS_membarrier },	{ "rseq", SYS_rseq },
	{ "sched_setaffinity", SYS_sched_setaffinity },
};

int filtered(char **names)
{
	struct sock_fprog program = { .filter = rules };
	unsigned spaces = 0x7e020080;

	LOAD(nr);
	for (size_t at = 0; at < sizeof(refused) / sizeof(*refused); at++)
		refuse(refused[at], EPERM);
	for (; *names && strcmp(*names, "--"); names++) {
		if (!strcmp(*names, "threads")) {
			refuse(SYS_clone3, EAGAIN);
			IF_NOT_SKIP(BPF_JEQ, SYS_clone, 4);
			LOAD(args[0]);
			IF_NOT_SKIP(BPF_JSET, 0x10000, 1);
			RETURN(SECCOMP_RET_ERRNO | EAGAIN);
			LOAD(nr);
		}
		for (size_t at = 0; at < sizeof(named) / sizeof(*named); at++)
			if (!strcmp(*names, named[at].name))
				refuse(named[at].number, EPERM);
	}
	/* An older profile does not know it; the C library then makes threads by the older call. */
	refuse(SYS_clone3, ENOSYS);
	/* What would make namespaces. */
	IF_NOT_SKIP(BPF_JEQ, SYS_clone, 4);
	LOAD(args[0]);
	IF_NOT_SKIP(BPF_JSET, spaces, 1);
	RETURN(SECCOMP_RET_ERRNO | EPERM);
	LOAD(nr);
	RETURN(SECCOMP_RET_ALLOW);
	program.len = rule_count;
	NEED(*names && names[1]);
	NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	NEED(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	/* The filter is in effect. */
	NEED(syscall(SYS_io_uring_setup, 1, NULL) == -1 && errno == EPERM);
	NEED(syscall(SYS_userfaultfd, 0) == -1 && errno == EPERM);
	execvp(names[1], names + 1);
	perror(names[1]);
	return 127;
}
