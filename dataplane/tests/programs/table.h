/*
 * A table of calls: one row for each symbol, whose function makes the call with good and with bad arguments, and
 * compares result, errno and effect with the manual page. A file of rows ends with an array of `struct row`.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct row {
	const char *symbol;
	void (*check)(void);
};

static const char *row_symbol;
static int failures;

#define EXPECT(condition)                                                                                            \
	do {                                                                                                         \
		if (!(condition)) {                                                                                  \
			fprintf(stderr, "%s: line %d: %s: errno %d\n", row_symbol, __LINE__, #condition, errno);     \
			failures++;                                                                                  \
		}                                                                                                    \
	} while (0)

/* A call that returns this value. */
#define RETURNS(value, call)                                                                                         \
	do {                                                                                                         \
		long result_ = (long)(call);                                                                         \
		if (result_ != (long)(value)) {                                                                      \
			fprintf(stderr, "%s: line %d: %s: %ld instead of %s\n", row_symbol, __LINE__, #call,         \
				result_, #value);                                                                    \
			failures++;                                                                                  \
		}                                                                                                    \
	} while (0)

/* A call that returns this value and sets errno. */
#define FAILS(value, error, call)                                                                                    \
	do {                                                                                                         \
		errno = 0;                                                                                           \
		RETURNS(value, call);                                                                                \
		if (errno != (error)) {                                                                              \
			fprintf(stderr, "%s: line %d: %s: errno %d instead of %s\n", row_symbol, __LINE__, #call,    \
				errno, #error);                                                                      \
			failures++;                                                                                  \
		}                                                                                                    \
	} while (0)
