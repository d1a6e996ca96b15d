/*
 * Two MPI ranks that exchange messages from 1 byte to 4 MiB, in blocks that both check byte by byte: one after the
 * other, both at once, several on their way, and with MPI_Allreduce over 1 MiB.
 *
 *   ranks    run as two processes by mpirun; rank 0 prints the sizes, and `all N messages are right`
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { LONGEST = 4 << 20, FLIGHT = 8, SMALL = 65536, NUMBERS = 1 << 17 };

static int rank, messages;

/* Byte of a message, which depends on its place, its number and its sender. */
static unsigned char byte_at(size_t place, int number, int sender)
{
	return (unsigned char)(place * 131 + (place >> 8) * 7 + (size_t)number * 17 + (size_t)sender * 89 + 1);
}

static void fill(unsigned char *bytes, size_t size, int number)
{
	for (size_t i = 0; i < size; i++)
		bytes[i] = byte_at(i, number, rank);
}

static void check(const unsigned char *bytes, size_t size, int number, const MPI_Status *status)
{
	int count;

	MPI_Get_count(status, MPI_BYTE, &count);
	if ((size_t)count != size) {
		fprintf(stderr, "message %d: %d bytes instead of %zu\n", number, count, size);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	for (size_t i = 0; i < size; i++) {
		if (bytes[i] != byte_at(i, number, 1 - rank)) {
			fprintf(stderr, "message %d of %zu bytes: byte %zu is wrong\n", number, size, i);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
	}
	messages++;
}

/* One rank sends, and the other answers; then both send at once. */
static void exchange(unsigned char *out, unsigned char *in, size_t size, int number)
{
	MPI_Status status;

	fill(out, size, number);
	if (rank == 0)
		MPI_Send(out, (int)size, MPI_BYTE, 1, number, MPI_COMM_WORLD);
	MPI_Recv(in, (int)size, MPI_BYTE, 1 - rank, number, MPI_COMM_WORLD, &status);
	check(in, size, number, &status);
	if (rank == 1)
		MPI_Send(out, (int)size, MPI_BYTE, 0, number, MPI_COMM_WORLD);
	fill(out, size, number + 1);
	MPI_Sendrecv(out, (int)size, MPI_BYTE, 1 - rank, number, in, (int)size, MPI_BYTE, 1 - rank, number,
		     MPI_COMM_WORLD, &status);
	check(in, size, number + 1, &status);
}

/* Several messages on their way at once, received in the opposite order. */
static void many(unsigned char *out, unsigned char *in)
{
	MPI_Request sends[FLIGHT], receives[FLIGHT];
	MPI_Status states[FLIGHT];

	for (int i = 0; i < FLIGHT; i++) {
		int tag = FLIGHT - 1 - i;

		MPI_Irecv(in + tag * SMALL, SMALL, MPI_BYTE, 1 - rank, tag, MPI_COMM_WORLD, &receives[tag]);
	}
	for (int i = 0; i < FLIGHT; i++) {
		fill(out + i * SMALL, SMALL, i);
		MPI_Isend(out + i * SMALL, SMALL, MPI_BYTE, 1 - rank, i, MPI_COMM_WORLD, &sends[i]);
	}
	MPI_Waitall(FLIGHT, receives, states);
	for (int i = 0; i < FLIGHT; i++)
		check(in + i * SMALL, SMALL, i, &states[i]);
	MPI_Waitall(FLIGHT, sends, states);
}

static void reduce(void)
{
	long long *mine = malloc(NUMBERS * sizeof(*mine)), *sum = malloc(NUMBERS * sizeof(*sum));

	for (int i = 0; i < NUMBERS; i++)
		mine[i] = (long long)i * (rank + 1);
	MPI_Allreduce(mine, sum, NUMBERS, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < NUMBERS; i++) {
		if (sum[i] != (long long)i * 3) {
			fprintf(stderr, "MPI_Allreduce: number %d is %lld\n", i, sum[i]);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
	}
	free(mine);
	free(sum);
}

int main(int argc, char **argv)
{
	unsigned char *out = malloc(LONGEST), *in = malloc(LONGEST);
	int size;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (size != 2 || !out || !in) {
		fprintf(stderr, "%d ranks instead of 2, or no memory\n", size);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	for (size_t bytes = 1; bytes <= LONGEST; bytes *= 2) {
		exchange(out, in, bytes, 4);
		if (bytes > 1)
			exchange(out, in, bytes - 1, 6);
	}
	many(out, in);
	reduce();
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("all %d messages are right\n", messages);
	MPI_Finalize();
	free(out);
	free(in);
	return 0;
}
