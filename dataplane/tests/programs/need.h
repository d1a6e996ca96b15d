/* A condition that a program of the tests needs: without it, the program ends and says where. */
#pragma once
#include <stdio.h>
#include <stdlib.h>

#define NEED(condition)                                                                                              \
	do {                                                                                                         \
		if (!(condition)) {                                                                                  \
			fprintf(stderr, "%s, line %d: %s: %m\n", __FILE__, __LINE__, #condition);                    \
			exit(1);                                                                                     \
		}                                                                                                    \
	} while (0)
