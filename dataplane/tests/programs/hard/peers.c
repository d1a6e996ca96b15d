/*
 * Peers without the library, on a TCP socket of the kernel (RFC 5044 sections 4 and 7, RFC 5041 section 4.3): slow
 * ones, and ones that stop, reset the connection or close half of it.
 */
#include "common.h"

#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

enum { REQUEST = 20, BURST = 48, FPDU_MAX = 65536, UNTAGGED = 18 };

static uint32_t crc32c(const uint8_t *bytes, size_t count)
{
	static uint32_t table[256];
	uint32_t crc = UINT32_MAX;

	if (!table[1])
		for (uint32_t byte = 0; byte < 256; byte++) {
			table[byte] = byte;
			for (int bit = 0; bit < 8; bit++)
				table[byte] = table[byte] >> 1 ^ (table[byte] & 1 ? 0x82f63b78 : 0);
		}
	while (count--)
		crc = crc >> 8 ^ table[(crc ^ *bytes++) & 0xff];
	return ~crc;
}

/* An FPDU of a whole Send. Returns its bytes. */
static size_t make_fpdu(uint8_t *out, uint32_t number, uint32_t msn)
{
	size_t ulpdu = UNTAGGED + size, bytes = (2 + ulpdu + 3) / 4 * 4;
	uint32_t crc;

	memset(out, 0, bytes);
	out[0] = (uint8_t)(ulpdu >> 8);
	out[1] = (uint8_t)ulpdu;
	out[2] = 0x41;
	out[3] = 0x43;
	out[14] = (uint8_t)(msn >> 8);
	out[15] = (uint8_t)msn;
	make_message(out + 2 + UNTAGGED, 7, number);
	crc = crc32c(out, bytes);
	memcpy(out + bytes, &crc, 4);
	return bytes + 4;
}

static int raw_connect(int buffer)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	struct timeval patience = { .tv_sec = 15 };

	NEED(fd >= 0);
	if (buffer)
		NEED(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer)) == 0);
	NEED(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
	NEED(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) == 0);
	NEED(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) == 0);
	NEED(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
	return fd;
}

static void put(int fd, const uint8_t *bytes, size_t count, size_t piece)
{
	while (count) {
		ssize_t done = send(fd, bytes, count < piece ? count : piece, MSG_NOSIGNAL);

		NEED(done > 0);
		bytes += done;
		count -= (size_t)done;
		if (piece == 1)
			usleep(1000);
	}
}

static void get(int fd, uint8_t *bytes, size_t count)
{
	while (count) {
		ssize_t done = recv(fd, bytes, count, 0);

		NEED(done > 0);
		bytes += done;
		count -= (size_t)done;
	}
}

static void negotiate(int fd, size_t piece)
{
	static const uint8_t request[REQUEST] = "MPA ID Req Frame\x40\x01\0";
	uint8_t reply[REQUEST], rest[512];

	put(fd, request, sizeof(request), piece);
	get(fd, reply, sizeof(reply));
	NEED(!memcmp(reply, "MPA ID Rep Frame", 16) && !(reply[16] & 0x20));
	get(fd, rest, (size_t)reply[18] << 8 | reply[19]);
}

/* Receives the answer to a message, in as many FPDUs as it has. */
static void get_answer(int fd, uint32_t number)
{
	uint8_t *fpdu = malloc(FPDU_MAX + 64), *message = calloc(1, size);
	size_t done = 0, ulpdu, bytes;
	struct head head;
	uint32_t crc;

	do {
		get(fd, fpdu, 2);
		ulpdu = (size_t)fpdu[0] << 8 | fpdu[1];
		bytes = (2 + ulpdu + 3) / 4 * 4;
		get(fd, fpdu + 2, bytes + 2);
		crc = crc32c(fpdu, bytes);
		NEED(!memcmp(fpdu + bytes, &crc, 4) && ulpdu >= UNTAGGED && (fpdu[3] & 0xf) == 3);
		NEED(done + ulpdu - UNTAGGED <= size);
		memcpy(message + done, fpdu + 2 + UNTAGGED, ulpdu - UNTAGGED);
		done += ulpdu - UNTAGGED;
	} while (!(fpdu[2] & 0x40));
	NEED(is_message(message, done, &head) && head.tag == (7 | ANSWER) && head.number == number);
	free(fpdu);
	free(message);
}

/* The server ends the connection within the time. */
static void see_end(int fd)
{
	uint8_t bytes[4096];
	ssize_t got;

	while ((got = recv(fd, bytes, sizeof(bytes), 0)) > 0)
		;
	NEED(got == 0 || errno == ECONNRESET);
}

static void reset(int fd)
{
	struct linger linger = { .l_onoff = 1 };

	NEED(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
}

int raw(char **arguments)
{
	const char *how = arguments[0];
	uint8_t *fpdu = malloc(FPDU_MAX + 64);
	size_t answer_size = size;
	int is_late = strstr(how, "late") != NULL, is_stall = !strcmp(how, "stall") || !strcmp(how, "stall-close");
	int fd = raw_connect(is_stall ? 32768 : 0);
	size_t bytes = make_fpdu(fpdu, 1, 1);

	if (!strcmp(how, "bytes")) {
		negotiate(fd, 1);
		size = 500;
		put(fd, fpdu, make_fpdu(fpdu, 1, 1), 1);
		size = answer_size;
		get_answer(fd, 1);
	} else if (is_stall) {
		negotiate(fd, REQUEST);
		for (uint32_t number = 1; number <= BURST; number++)
			put(fd, fpdu, make_fpdu(fpdu, number, number), FPDU_MAX);
		sleep(2);
		for (uint32_t number = 1; number <= BURST && !strcmp(how, "stall"); number++)
			get_answer(fd, number);
	} else {
		if (is_late) {
			negotiate(fd, REQUEST);
			put(fd, fpdu, bytes, bytes);
			get_answer(fd, 1);
			make_fpdu(fpdu, 2, 2);
		}
		/* Half of a request, or of an FPDU. */
		if (!strstr(how, "silent") && !strstr(how, "clean"))
			put(fd, is_late ? fpdu : (const uint8_t *)"MPA ID Req", is_late ? bytes / 2 : 10, bytes);
		if (strstr(how, "stop"))
			sleep(2);
		if (strstr(how, "reset"))
			reset(fd);
		if (strstr(how, "half")) {
			NEED(shutdown(fd, SHUT_WR) == 0);
			see_end(fd);
		}
		if (strstr(how, "silent"))
			sleep(2);
	}
	close(fd);
	free(fpdu);
	return 0;
}
