#include "region.h"

#include <string.h>
#include <time.h>

static const uint8_t magic[4] = { 'I', 'W', 'R', '1' };

static void put_be(uint8_t *out, uint64_t value, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		out[i] = (uint8_t)(value >> (8 * (bytes - 1 - i)));
}

static uint64_t get_be(const uint8_t *in, size_t bytes)
{
	uint64_t value = 0;

	for (size_t i = 0; i < bytes; i++)
		value = value << 8 | in[i];
	return value;
}

size_t region_request_encode(const struct region_request *request, uint8_t out[REGION_REQUEST_MAX])
{
	memcpy(out, magic, sizeof(magic));
	out[4] = request->access;
	out[5] = request->name_len;
	out[6] = request->token_len;
	out[7] = 0;
	memcpy(out + 8, request->name, request->name_len);
	memcpy(out + 8 + request->name_len, request->token, request->token_len);
	return 8u + request->name_len + request->token_len;
}

bool region_request_decode(const uint8_t *data, size_t len, struct region_request *request)
{
	memset(request, 0, sizeof(*request));
	if (len < 8 || memcmp(data, magic, sizeof(magic)) != 0)
		return false;
	request->access = data[4];
	request->name_len = data[5];
	request->token_len = data[6];
	if (data[4] == 0 || (data[4] & ~(ACCESS_READ | ACCESS_WRITE | ACCESS_ATOMIC)) || data[7] != 0)
		return false;
	if (request->name_len == 0 || request->name_len > REGION_NAME_MAX ||
	    request->token_len > REGION_TOKEN_MAX)
		return false;
	if (len != 8u + request->name_len + request->token_len)
		return false;
	memcpy(request->name, data + 8, request->name_len);
	memcpy(request->token, data + 8 + request->name_len, request->token_len);
	return true;
}

void region_reply_encode(const struct region_reply *reply, uint8_t out[REGION_REPLY_LEN])
{
	memset(out, 0, REGION_REPLY_LEN);
	memcpy(out, magic, sizeof(magic));
	out[4] = reply->status;
	out[5] = reply->access;
	put_be(out + 8, reply->stag, 4);
	put_be(out + 16, reply->base, 8);
	put_be(out + 24, reply->length, 8);
}

bool region_reply_decode(const uint8_t *data, size_t len, struct region_reply *reply)
{
	if (len != REGION_REPLY_LEN || memcmp(data, magic, sizeof(magic)) != 0)
		return false;
	if (get_be(data + 6, 2) != 0 || get_be(data + 12, 4) != 0)
		return false;
	reply->status = data[4];
	reply->access = data[5];
	reply->stag = (uint32_t)get_be(data + 8, 4);
	reply->base = get_be(data + 16, 8);
	reply->length = get_be(data + 24, 8);
	return true;
}

int region_access_parse(const char *text)
{
	int access = 0;

	for (; *text; text++) {
		if (*text == 'r')
			access |= ACCESS_READ;
		else if (*text == 'w')
			access |= ACCESS_WRITE;
		else if (*text == 'a')
			access |= ACCESS_ATOMIC;
		else
			return -1;
	}
	return access ? access : -1;
}

uint64_t random_next(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* The eight pattern bytes that begin at offset 8 * index. */
static uint64_t pattern_word(uint64_t seed, uint64_t index)
{
	if (seed == 0)
		return 0;

	uint64_t state = seed * 0xd1342543de82ef95u + index * 0x9e3779b97f4a7c15u;

	return random_next(&state);
}

void pattern_fill(uint8_t *out, uint64_t seed, uint64_t offset, size_t len)
{
	while (len > 0) {
		uint64_t word = pattern_word(seed, offset / 8);
		size_t skip = offset % 8;
		size_t n = 8 - skip < len ? 8 - skip : len;

		memcpy(out, (const uint8_t *)&word + skip, n);
		out += n;
		offset += n;
		len -= n;
	}
}

size_t pattern_compare(const uint8_t *data, uint64_t seed, uint64_t offset, size_t len)
{
	uint8_t want[4096];

	for (size_t done = 0; done < len;) {
		size_t n = len - done < sizeof(want) ? len - done : sizeof(want);

		pattern_fill(want, seed, offset + done, n);
		if (memcmp(data + done, want, n) != 0) {
			size_t i = 0;

			while (data[done + i] == want[i])
				i++;
			return done + i;
		}
		done += n;
	}
	return len;
}

int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void sleep_ms(int ms)
{
	struct timespec span = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

	nanosleep(&span, NULL);
}
