/*
 * Every symbol of libibverbs against its manual page.
 *
 *   table SYMBOLS [all]     SYMBOLS: clients/drop-in/symbols.txt; all: objects are destroyed in every order
 *
 * Each symbol that the library implements has a row (verbs_rows.h); each other one fails as SYMBOLS says. The program
 * prints what differs, and then exits with 1.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "table.h"
#include "verbs_rows.h"

/* Longest time of the program, seconds: a call that waits for ever ends it. */
enum { LIMIT = 60 };

/* A symbol without a function fails in the convention of its call. */
static void check_stub(const char *symbol, const char *version, const char *how)
{
	long (*call)(void) = (long (*)(void))dlvsym(RTLD_DEFAULT, symbol, version);
	int error = strcmp(how, "null") == 0 || strcmp(how, "minus") == 0 ? EOPNOTSUPP : 0;
	long expected = strcmp(how, "minus") == 0 ? -1 : strcmp(how, "error") == 0 ? EOPNOTSUPP : 0;

	row_symbol = symbol;
	EXPECT(call != NULL);
	if (call == NULL || strcmp(how, "data") == 0)
		return;
	FAILS(expected, error, call());
}

static int check_row(const char *symbol)
{
	for (size_t i = 0; i < sizeof(verbs_rows) / sizeof(verbs_rows[0]); i++) {
		if (strcmp(verbs_rows[i].symbol, symbol) == 0) {
			row_symbol = symbol;
			verbs_rows[i].check();
			return 1;
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	char line[256], symbol[128], version[64], how[32];
	int rows = 0, stubs = 0;
	FILE *list;

	alarm(LIMIT);
	row_symbol = "main";
	if (argc < 2 || !(list = fopen(argv[1], "r"))) {
		fprintf(stderr, "usage: %s SYMBOLS [all]\n", argv[0]);
		return 2;
	}
	open_device();
	while (fgets(line, sizeof(line), list)) {
		char *number = version;

		if (line[0] == '#' || sscanf(line, "%127s %63s %31s", symbol, version, how) != 3)
			continue;
		number += *number == '@';
		if (strncmp(number, "IBVERBS", 7) != 0)
			continue;
		if (strcmp(how, "rust") != 0) {
			check_stub(symbol, number, how);
			stubs++;
		} else if (check_row(symbol)) {
			rows++;
		} else {
			fprintf(stderr, "%s %s: there is no row\n", symbol, version);
			failures++;
		}
	}
	fclose(list);
	for (size_t i = 0; i < sizeof(inline_rows) / sizeof(inline_rows[0]); i++) {
		row_symbol = inline_rows[i].symbol;
		inline_rows[i].check();
	}
	row_symbol = "every order";
	every_order(argc > 2 ? 1 : 7);
	row_symbol = "ibv_close_device";
	close_with_objects();
	printf("%d rows, %d symbols without a function: %d failures\n", rows, stubs, failures);
	return rows == 0 || failures > 0;
}
