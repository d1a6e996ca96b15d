/* Messages, connection events and the subcommands: what all files of this program use. */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "../need.h"

enum { PATIENCE_MS = 8000, ANSWER = 0x80000000 };

/* Begin of each message. */
struct head {
	uint32_t tag, number, bytes, unused;
};

/* Private data: memory that the peer may reach, and what is done with it. */
struct offer {
	uint64_t address;
	uint32_t key;
	uint16_t what;
	uint16_t tag;
};

struct event {
	int kind, status;
	struct rdma_cm_id *id;
	struct offer offer;
};

/* The address of the command line, as bytes and as text. */
extern struct sockaddr_in address;
extern const char *address_text, *port_text;
extern struct rdma_event_channel *channel;
/* Bytes of a message, with its head. */
extern size_t size;

double now(void);
unsigned number_of(const char *text);
/* Zeroed memory of its own mapping. */
void *memory(size_t bytes);
void make_nonblocking(int fd);
/* The number of open descriptors: once there are no more than these, or else when it has not changed for a second. */
unsigned settled_descriptors(unsigned expected);

/* Bytes that follow from a tag, a number and their place. */
void fill(uint8_t *bytes, size_t count, uint32_t tag, uint32_t number);
int is_filled(const uint8_t *bytes, size_t count, uint32_t tag, uint32_t number);
/* A message: its head, and bytes that follow from that. */
void make_message(uint8_t *message, uint32_t tag, uint32_t number);
int is_message(const uint8_t *message, size_t bytes, struct head *head);

void open_channel(void);
struct rdma_cm_id *listening(void);
/* The next event. Returns 0 if there is none within the time. */
int next_event(struct event *event, int ms);
/* Takes the events of a completion channel. */
void take_cq_events(struct ibv_comp_channel *of);

/* The subcommands, with their arguments after ADDRESS PORT, and SIZE where there is one. */
int echo(char **arguments);
int ping(char **arguments);
int crowd(char **arguments);
int fill_up(char **arguments);
int threads(char **arguments);
int raw(char **arguments);
int rewritten_server(char **arguments);
int rewritten(char **arguments);
int vanish_server(char **arguments);
int vanish(char **arguments);
int fault(char **arguments);
int stream_server(char **arguments);
int stream(char **arguments);
int fork_beside(char **arguments);
int canceled(char **arguments);
int canceled_sockets(char **arguments);
int destroyed(char **arguments);
int strangers(char **arguments);
int no_answers(char **arguments);
int few_descriptors(char **arguments);
int filtered(char **names);
