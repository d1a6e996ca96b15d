/*
 * endings server ADDRESS COUNT SIZE
 * endings client ADDRESS COUNT SIZE
 *
 * Each of COUNT connections carries one message. As soon as it has completed, the client ends without rdma_disconnect:
 * in turn by destroying the queue pair and the id, by destroying the endpoint, by moving the queue pair to the error
 * state, by exit, and by SIGKILL. The server compares each message; none may be missing.
 */
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT "7471"
#define CLIENTS 4
/* Connections of a client that lives on. */
#define ROUNDS 8

static size_t size;
static atomic_int arrived, lost;
static pthread_mutex_t done_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t done = PTHREAD_COND_INITIALIZER;

static uint8_t expected(size_t at)
{
	return (uint8_t)(at * 7 ^ at >> 8);
}

static struct rdma_addrinfo *resolve(const char *address, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *found;

	if (rdma_getaddrinfo(address, PORT, &hints, &found)) {
		perror("rdma_getaddrinfo");
		exit(1);
	}
	return found;
}

static struct ibv_qp_init_attr queues(void)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };

	init.cap.max_send_wr = init.cap.max_recv_wr = init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	return init;
}

static void *serve(void *argument)
{
	struct rdma_cm_id *id = argument;
	uint8_t *buffer = calloc(1, size);
	struct ibv_mr *mr = rdma_reg_msgs(id, buffer, size);
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
	int right = 0;

	if (mr && !rdma_post_recv(id, NULL, buffer, size, mr) && !rdma_accept(id, NULL) &&
	    rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == size) {
		right = 1;
		for (size_t at = 0; at < size; at++)
			right &= buffer[at] == expected(at);
	}
	if (!right)
		fprintf(stderr, "a message is lost: %s, %u bytes\n", ibv_wc_status_str(wc.status), wc.byte_len);
	rdma_disconnect(id);
	if (mr)
		rdma_dereg_mr(mr);
	rdma_destroy_ep(id);
	free(buffer);
	pthread_mutex_lock(&done_lock);
	atomic_fetch_add(right ? &arrived : &lost, 1);
	pthread_cond_signal(&done);
	pthread_mutex_unlock(&done_lock);
	return NULL;
}

static int server(const char *address, int count)
{
	struct rdma_addrinfo *found = resolve(address, RAI_PASSIVE);
	struct ibv_qp_init_attr init = queues();
	struct rdma_cm_id *listener, *id;

	if (rdma_create_ep(&listener, found, NULL, &init) || rdma_listen(listener, 0)) {
		perror("listen");
		return 1;
	}
	for (int at = 0; at < count; at++) {
		pthread_t thread;

		if (rdma_get_request(listener, &id)) {
			perror("rdma_get_request");
			return 1;
		}
		if (pthread_create(&thread, NULL, serve, id)) {
			perror("pthread_create");
			return 1;
		}
		pthread_detach(thread);
	}
	pthread_mutex_lock(&done_lock);
	while (arrived + lost < count)
		pthread_cond_wait(&done, &done_lock);
	pthread_mutex_unlock(&done_lock);
	printf("%d messages arrived, %d lost\n", arrived, lost);
	return lost ? 1 : 0;
}

/* Sends a message on a connection of its own, and returns the id once it has completed. */
static struct rdma_cm_id *send_one(const char *address, uint8_t *message)
{
	struct rdma_addrinfo *found = resolve(address, 0);
	struct ibv_qp_init_attr init = queues();
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;

	if (rdma_create_ep(&id, found, NULL, &init) || !(mr = rdma_reg_msgs(id, message, size)) ||
	    rdma_connect(id, NULL) || rdma_post_send(id, NULL, message, size, mr, 0) ||
	    rdma_get_send_comp(id, &wc) != 1 || wc.status != IBV_WC_SUCCESS) {
		perror("the client cannot send");
		exit(1);
	}
	rdma_freeaddrinfo(found);
	/* The memory is revoked before the connection ends. */
	if (rdma_dereg_mr(mr))
		exit(1);
	return id;
}

/* One process: some connections that it ends itself, and one that ends with it. */
static void process(const char *address, int rounds, int killed)
{
	uint8_t *message = malloc(size);
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };

	for (size_t at = 0; at < size; at++)
		message[at] = expected(at);
	for (int round = 0; round < rounds; round++) {
		struct rdma_cm_id *id = send_one(address, message);

		if (round == rounds - 1) {
			if (killed)
				raise(SIGKILL);
			_exit(0);
		}
		switch (round % 3) {
		case 0:
			rdma_destroy_qp(id);
			rdma_destroy_id(id);
			break;
		case 1:
			rdma_destroy_ep(id);
			break;
		default:
			if (ibv_modify_qp(id->qp, &error, IBV_QP_STATE))
				exit(1);
			rdma_destroy_ep(id);
		}
	}
}

static int client(const char *address, int count)
{
	int failed = 0, running = 0, killed = 0, status;

	while (count > 0 || running > 0) {
		if (count > 0 && running < CLIENTS) {
			int rounds = count < ROUNDS ? count : ROUNDS;

			count -= rounds;
			running++;
			killed = !killed;
			if (fork() == 0)
				process(address, rounds, killed);
			continue;
		}
		wait(&status);
		running--;
		failed |= WIFSIGNALED(status) ? WTERMSIG(status) != SIGKILL : WEXITSTATUS(status);
	}
	return failed;
}

int main(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "endings server|client ADDRESS COUNT SIZE\n");
		return 2;
	}
	size = strtoull(argv[4], NULL, 0);
	return strcmp(argv[1], "server") ? client(argv[2], atoi(argv[3])) : server(argv[2], atoi(argv[3]));
}
