/* Children beside a stream: none of them disturbs it, whatever it calls, and one survives the end of the parent. */
#include "endings.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

enum { FORK_TAG = 5 };

static struct link forked;
static struct progress *fork_progress;

static void *fork_traffic(void *argument)
{
	(void)argument;
	stream_send(&forked, FORK_TAG, 1, fork_progress);
	return NULL;
}

/* What a child may try with the objects of its parent: nothing has an effect. */
static void child_calls(void)
{
	struct ibv_sge sge = { (uintptr_t)forked.notes[0], NOTE, forked.notes_mr->lkey };
	int number, devices = 0;
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct rdma_event_channel *own;
	struct ibv_context *context = NULL;
	struct ibv_device **list;
	struct rdma_cm_id *id;
	struct ibv_wc wc;

	NEED(link_post(&forked, IBV_WR_SEND, 77, sge, 0, IBV_SEND_SIGNALED) != 0);
	NEED(ibv_poll_cq(forked.cq, 1, &wc) <= 0);
	errno = 0;
	NEED(ibv_reg_mr(forked.id->pd, forked.notes, NOTE, 0) == NULL && errno);
	NEED(ibv_create_cq(forked.id->verbs, 4, NULL, NULL, 0) == NULL);
	NEED(ibv_modify_qp(forked.id->qp, &error, IBV_QP_STATE) != 0);
	errno = 0;
	NEED(rdma_disconnect(forked.id) != 0 && errno);
	list = ibv_get_device_list(&devices);
	if (list && list[0])
		context = ibv_open_device(list[0]);
	number = context ? 0 : errno;
	own = rdma_create_event_channel();
	if (own && rdma_create_id(own, &id, NULL, RDMA_PS_TCP) == 0)
		rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 500);
	dprintf(1, "child: %d devices, open: %s\n", devices, number ? strerror(number) : "yes");
}

static void fork_one(unsigned kind)
{
	pid_t child = fork();
	int status;

	NEED(child >= 0);
	if (child == 0) {
		alarm(3);
		if (kind == 0)
			usleep(20000);
		else if (kind == 1)
			execl("/bin/true", "true", NULL);
		else
			child_calls();
		_exit(0);
	}
	NEED(waitpid(child, &status, 0) == child);
	if (status)
		fprintf(stderr, "child of kind %u: status %#x\n", kind, status);
	NEED(status == 0);
}

int fork_beside(char **arguments)
{
	unsigned count = number_of(arguments[0]);
	unsigned long before;
	pthread_t thread;
	pid_t child;

	open_channel();
	fork_progress = make_progress();
	link_connect(&forked, memory(SLOTS * BLOCK), SLOTS * BLOCK, (struct offer){ .what = KILLED, .tag = FORK_TAG });
	NEED(pthread_create(&thread, NULL, fork_traffic, NULL) == 0);
	for (unsigned at = 0; at < count; at++) {
		before = fork_progress->completed;
		fork_one(at % 6);
		for (int tries = 0; fork_progress->completed == before && tries < 1000; tries++)
			usleep(1000);
		/* The parent goes on. */
		NEED(fork_progress->completed > before);
	}
	child = fork();
	NEED(child >= 0);
	if (child == 0) {
		alarm(20);
		pause();
	}
	printf("child %d, %lu blocks\n", child, fork_progress->completed);
	fflush(stdout);
	if (!strcmp(arguments[1], "kill"))
		raise(SIGKILL);
	exiting = 1;
	exit(0);
}
