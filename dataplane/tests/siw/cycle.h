/* Connections that come and go, in every way that a connection ends, and the depths of Reads agreed on. */
#ifndef CYCLE_H
#define CYCLE_H

#include "conn.h"

/*
 * Opens and ends `cycles` connections, `at_once` of them at a time. True if each went as its kind should;
 * detail counts the kinds.
 */
bool cycle_run(const struct target *target, int cycles, int at_once, char *detail, size_t detail_len);
/*
 * Connects, prints HOLDING, waits for a line on standard input; then posts as many Reads as the queue holds,
 * none waited for singly, and compares each with the region's pattern of seed. Without the right to Read, a
 * Write takes their place.
 */
bool depth_run(const struct target *target, uint64_t seed, char *detail, size_t detail_len);

#endif
