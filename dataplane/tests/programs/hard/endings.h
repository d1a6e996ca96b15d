/* Streams of blocks, which the files on ends of processes and on children share. */
#pragma once
#include "link.h"

enum { SLOTS = 8, BLOCK = 1 << 16 };
/* By SIGKILL, by exit of the thread that sends or of another one, and by SIGKILL of an end that receives. */
enum ending { KILLED, EXITS, EXITS_BESIDE, KILLED_RECEIVER };

/* What a process reports to its parent. */
struct progress {
	atomic_int started;
	/* Sends that have completed, and the bytes that they and their Writes have. */
	atomic_ulong completed, bytes;
	/* Blocks after which it sends no more, or ends. */
	atomic_ulong last, exit_at;
};

/* Memory that children share with their parent. */
struct progress *make_progress(void);
/* Writes blocks, each with a note, until the connection ends, or all have arrived. */
void stream_send(struct link *link, uint32_t tag, unsigned seed, struct progress *progress);
