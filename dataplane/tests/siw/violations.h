/* Accesses that the peer must refuse: each ends its connection and changes no memory. */
#ifndef VIOLATIONS_H
#define VIOLATIONS_H

#include "conn.h"

/* True if there is a violation of that name. */
bool violation_exists(const char *name);
/* Runs it on connections of its own. True if it was refused as it must be; detail says what happened. */
bool violation_run(const char *name, const struct target *target, char *detail, size_t detail_len);
/*
 * Connects, proves that the grant works, prints HOLDING, waits for a line on standard input, and then
 * tries the access again: true if it is refused.
 */
bool hold_run(enum conn_op op, const struct target *target, uint64_t seed, char *detail, size_t detail_len);

#endif
