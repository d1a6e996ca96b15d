#!/usr/bin/env python3
"""hostile_peers.py ATTACK HOST PORT REGION SECONDS: peers of a region service that break the rules of MPA, DDP, RDMAP.

Written from RFC 5044, 5041, 5040 and 6581, sharing no code with the product. These run once, and again until the
seconds are over; the exit code is 0 if the service has answered each connection as it must:

requests    MPA Requests with each value of the flags and of the revision, of wrong lengths, and cut at each byte
violations  one wrong FPDU for each connection: the service ends it, with the Terminate of the RFC if that is known
trickle     a Write and a Read of honest peers, one byte at a time: both are done
reads       RDMA Reads of one byte, as many at once as the service takes
endings     a reset, a close and a half-close at each stage of a connection
early       the same at the stages before a whole MPA Request: for a program that takes any request
numbers     requests for queue pairs that are connected by number, at their port, each rejected with its status. REGION:
            the number of a queue pair there that waits for its peer, for whose sake 10,000 requests are held or
            rejected, at most 64 of this host's at a time

This one goes on until it is ended, after the line "all are open":

unread      COUNT connections (an argument behind SECONDS) that ask for 2 GiB by each Read, and never read
"""
import itertools
import random
import resource
import select
import socket
import struct
import sys
import time

KEY = b"MPA ID Req Frame"
REPLY_KEY = b"MPA ID Rep Frame"
# Seconds in which the service must end a connection, and answer.
ENDS_S = 2
READ_MAX = 1 << 31
TABLE = []
for number in range(256):
    for _ in range(8):
        number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
    TABLE.append(number)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return struct.pack("<I", crc ^ 0xFFFFFFFF)


def fpdu(ulpdu, length=None):
    body = struct.pack(">H", len(ulpdu) if length is None else length) + ulpdu
    body += bytes(-len(body) % 4)
    return body + crc32c(body)


def tagged(stag, offset, payload, ddp=0xC1, rdmap=0x40):
    return struct.pack(">BBIQ", ddp, rdmap, stag, offset) + payload


def untagged(opcode, queue, msn, offset=0, payload=b"", ddp=0x41, rdmap=0x40):
    return struct.pack(">BBIIII", ddp, rdmap | opcode, 0, queue, msn, offset) + payload


def read(grant, msn, length, start=0, stag=None, **wrong):
    """Returns an RDMA Read Request (RFC 5040 §4.4), from a byte of the region, into sink STag 1."""
    own, base, _ = grant
    source = struct.pack(">IQ", own if stag is None else stag, (base + start) & (1 << 64) - 1)
    return untagged(1, wrong.pop("queue", 1), msn, payload=struct.pack(">IQI", 1, 0, length) + source, **wrong)


def mpa_request(private=None, flags=0x40, revision=1, length=None):
    private = wanted() if private is None else private
    return KEY + struct.pack(">BBH", flags, revision, len(private) if length is None else length) + private


def wanted(name=None, access=3, name_len=None, token_len=0):
    name = REGION if name is None else name
    return b"IWR1" + bytes((access, len(name) if name_len is None else name_len, token_len, 0)) + name


def connect():
    sock = socket.create_connection((HOST, PORT), timeout=ENDS_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def receive(sock, count):
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionError(f"closed after {len(data)} of {count} bytes")
        data += piece
    return data


def grant_of(sock):
    """Reads the reply of the service. Returns STag, base and length."""
    key, flags, _, length = struct.unpack(">16sBBH", receive(sock, 20))
    reply = receive(sock, length)
    assert key == REPLY_KEY and not flags & 0x20 and reply[4] == 0, f"not granted: {flags:#x} {reply.hex()}"
    return struct.unpack(">8xI4xQQ", reply)


def granted():
    sock = connect()
    sock.sendall(mpa_request())
    return sock, grant_of(sock)


def send(sock, data):
    """Sends as much as the service takes before it ends the connection."""
    try:
        sock.sendall(data)
    except (ConnectionError, TimeoutError):
        pass


def until_end(sock, keep=1 << 20):
    """Reads until the service ends the connection, which it must in time. Returns the first bytes."""
    deadline, data = time.monotonic() + ENDS_S, b""
    try:
        while True:
            sock.settimeout(max(deadline - time.monotonic(), 0.001))
            piece = sock.recv(1 << 20)
            if not piece:
                return data
            data += piece[:max(keep - len(data), 0)]
    except ConnectionError:
        return data
    finally:
        sock.close()


def half_close(sock):
    try:
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def reset(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def must_end(what, sock, end=half_close):
    """Ends a peer's half, if `end` does, and fails if the service does not end the other one."""
    end(sock)
    try:
        return until_end(sock)
    except TimeoutError:
        sys.exit(f"{what}: the connection has not ended {ENDS_S} s later")


def all_requests():
    """Yields the name of a request, its bytes, and true if the service must end the connection by itself."""
    whole = mpa_request()
    for flags in range(256):
        yield f"flags {flags:#x}", mpa_request(flags=flags), False
        yield f"flags {flags:#x}, revision 2", mpa_request(bytes(4) + wanted(), flags, 2), False
    for revision in range(256):
        yield f"revision {revision}", mpa_request(revision=revision), False
    for length in (0, 1, 3, 7, len(wanted()) - 1, len(wanted()) + 1, 256, 512):
        yield f"length {length}", mpa_request(length=length), False
    for length in (513, 1024, 32767, 65535):
        yield f"length {length}", mpa_request(length=length), True
    for cut in range(len(whole)):
        yield f"{cut} bytes of a request", whole[:cut], False
    for at in range(16):
        yield f"key, byte {at}", whole[:at] + b"\0" + whole[at + 1:], True
    for length in range(256):
        yield f"name of {length} bytes", mpa_request(wanted(name_len=length)), False
        yield f"token of {length} bytes", mpa_request(wanted(token_len=length)), False
    for length in (0, 1, 2, 3):
        yield f"revision 2, {length} bytes", mpa_request(bytes(length), 0x50, 2), False
    yield "512 bytes", mpa_request(bytes(512)), False
    yield "bytes behind it", whole + bytes(100000), False


def requests():
    count = 0
    for name, data, by_itself in all_requests():
        sock = connect()
        send(sock, data)
        must_end(name, sock, (lambda _: None) if by_itself else half_close)
        count += 1
    return count


def all_violations(grant):
    """Yields the name of a violation, its FPDUs, and the Terminates that may answer: layer, type, code (RFC 5040 §4.8,
    RFC 5041 §7.1, RFC 5044 §8); none if any end will do."""
    stag, base, size = grant
    byte = tagged(stag, base, b"x")
    good = fpdu(byte)
    yield "CRC", good[:-1] + bytes((good[-1] ^ 1,)), {(2, 0, 2)}
    yield "CRC of a Read", fpdu(read(grant, 1, 1))[:-4] + bytes(4), {(2, 0, 2)}
    for name, other in ("index", stag + 0x100 & 0xFFFFFFFF), ("key", stag ^ 1), ("zero", 0):
        yield f"STag: {name}, Write", fpdu(tagged(other, base, b"x")), {(1, 1, 0)}
        yield f"STag: {name}, Read", fpdu(read(grant, 1, 1, stag=other)), {(0, 1, 0)}
    for name, start in ("behind", size), ("across", size - 1), ("far", size + (1 << 40)):
        yield f"{name} the end, Write", fpdu(tagged(stag, base + start, b"xx")), {(1, 1, 1)}
        yield f"{name} the end, Read", fpdu(read(grant, 1, 2, start)), {(0, 1, 1)}
    yield "a Read of 4 GiB", fpdu(read(grant, 1, 0xFFFFFFFF)), {(0, 1, 1)}
    yield "wrap, Write", fpdu(tagged(stag, (1 << 64) - 1, b"xx")), {(1, 1, 3)}
    yield "wrap, Read", fpdu(read(grant, 1, 2, (1 << 64) - 1 - base)), {(0, 1, 4)}
    for queue in (3, 4, 0xFFFFFFFF):
        yield f"queue {queue}", fpdu(untagged(3, queue, 1)), {(1, 2, 1)}
    for msn in (0, 2, 1000, 0xFFFFFFFF):
        yield f"MSN {msn}", fpdu(read(grant, msn, 1)), {(1, 2, 2), (1, 2, 3)}
    yield "MSN again", fpdu(read(grant, 1, 1)) * 2, {(1, 2, 2), (1, 2, 3)}
    yield "offset", fpdu(read(grant, 1, 1, offset=4)), {(1, 2, 4)}
    yield "a Send without a buffer", fpdu(untagged(3, 0, 1, payload=b"x" * 100)), {(1, 2, 2)}
    for version in (0, 2, 3):
        yield f"DDP version {version}, Write", fpdu(tagged(stag, base, b"x", ddp=0xC0 | version)), {(1, 1, 4)}
        yield f"DDP version {version}, Read", fpdu(read(grant, 1, 1, ddp=0x40 | version)), {(1, 2, 6)}
        yield f"RDMAP version {version}", fpdu(tagged(stag, base, b"x", rdmap=version << 6)), {(0, 2, 5)}
    for opcode in range(12, 16):
        yield f"opcode {opcode}", fpdu(untagged(opcode, 0, 1)), {(0, 2, 6)}
    yield "a Read Response that nobody asked for", fpdu(tagged(stag, base, b"x", rdmap=0x42)), set()
    yield "a Terminate", fpdu(untagged(7, 2, 1, payload=bytes((0x20, 2, 0, 0)))), set()
    yield "a Terminate of no bytes", fpdu(untagged(7, 2, 1)), set()
    for length in (0, 1, 2, 13, 17):
        yield f"{length} bytes", fpdu(byte[:2] + bytes(32), length)[:-4], set()
        yield f"{length} bytes, whole", fpdu((byte[:2] + bytes(32))[:length]), set()
    for length in (0, 27, 29, 60):
        yield f"a Read Request of {length} bytes", fpdu(untagged(1, 1, 1, payload=bytes(length))), set()
    yield "65535 bytes that end early", fpdu(byte, 65535), set()
    yield "65535 bytes", fpdu(tagged(stag, base, bytes(65535 - 14))), set()
    yield "random bytes", random.Random(1).randbytes(100000), set()


def terminate_in(name, data):
    """Returns the layer, type and code of the Terminate in what the service has sent; None without one."""
    while len(data) >= 6:
        length = 2 + struct.unpack(">H", data[:2])[0]
        end = length + -length % 4
        if end + 4 > len(data):
            # A reset has cut it off.
            return None
        if crc32c(data[:end]) != data[end:end + 4]:
            sys.exit(f"{name}: the CRC of the answer is wrong: {data[:64].hex()}")
        if data[3] & 0xF == 7:
            return data[20] >> 4, data[20] & 0xF, data[21]
        data = data[end + 4:]
    return None


def violations():
    first, grant = granted()
    reset(first)
    names = [name for name, _, _ in all_violations(grant)]
    for at, name in enumerate(names):
        sock, grant = granted()
        # Those before it are short.
        _, data, answers = next(itertools.islice(all_violations(grant), at, None))
        send(sock, data)
        # Without a known answer, the peer ends its half: what it has sent may be the beginning of an FPDU.
        code = terminate_in(name, must_end(name, sock, half_close if not answers else lambda _: None))
        if answers and code not in answers:
            sys.exit(f"{name}: answered by {code}, not by one of {answers}")
    return len(names)


def trickle():
    """Peers whose bytes come one at a time, in turns."""
    socks = [connect() for _ in range(20)]
    say(socks, [mpa_request()] * len(socks))
    grants = [grant_of(sock) for sock in socks]
    texts = [struct.pack(">I", number) * 4 for number in range(len(socks))]
    work = []
    for number, (stag, base, _) in enumerate(grants):
        put = fpdu(tagged(stag, base + 64 * number, texts[number]))
        work.append(put + fpdu(read(grants[number], 1, 16, 64 * number)))
    say(socks, work)
    for sock, text in zip(socks, texts):
        answer = receive(sock, 2 + 14 + 16 + 4)
        assert answer[16:32] == text, f"read {answer.hex()}, not {text.hex()}"
        sock.close()
    return len(socks)


def say(socks, texts):
    for at in range(max(map(len, texts))):
        for sock, text in zip(socks, texts):
            sock.sendall(text[at:at + 1])


def reads():
    """Batches of small Reads on several connections at once: each response is waited for."""
    opened, batch, count = [granted() for _ in range(8)], 64, 0
    answer = 2 + 14 + 1 + 3 + 4
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        for sock, grant in opened:
            sock.sendall(b"".join(fpdu(read(grant, count + n, 1)) for n in range(1, batch + 1)))
        for sock, _ in opened:
            receive(sock, batch * answer)
        count += batch
    for sock, _ in opened:
        sock.close()
    return count * len(opened)


def stages(early):
    """Yields the name of a stage, and a connection in it."""
    yield "connected", connect()
    sock = connect()
    sock.sendall(mpa_request()[:30])
    yield "half a request", sock
    if early:
        return
    sock = connect()
    sock.sendall(mpa_request())
    yield "a reply that is not read", sock
    yield "granted", granted()[0]
    sock, (stag, base, _) = granted()
    sock.sendall(fpdu(tagged(stag, base, bytes(1000)))[:500])
    yield "half an FPDU", sock
    sock, grant = granted()
    sock.sendall(fpdu(read(grant, 1, 1 << 20)))
    yield "a Read whose response is not read", sock
    sock, grant = granted()
    sock.sendall(b"".join(fpdu(read(grant, msn, 1 << 20)) for msn in range(1, 9)))
    receive(sock, 100000)
    yield "a part of a Read Response", sock
    sock, (stag, base, _) = granted()
    for at in range(4):
        sock.sendall(fpdu(tagged(stag, base + 1000 * at, bytes(1000), ddp=0x81)))
    yield "a part of a Write", sock


def endings(early=False):
    count = 0
    for end in (reset, socket.socket.close):
        for _, sock in stages(early):
            end(sock)
            count += 1
    for name, sock in stages(early):
        must_end(f"half-close: {name}", sock)
        count += 1
    return count


def global_id(address):
    """Returns an IPv4 address as a GID of RoCE v2."""
    return bytes(10) + b"\xff\xff" + socket.inet_aton(address)


def link_request(receiver, sender_gid, receiver_gid, kind=1, sender=5, magic=b"IWQ1"):
    """Returns the private data of rdma/src/verbs/rendezvous/wire.rs."""
    head = magic + struct.pack(">BBHIIII", kind, 68, 7, sender, receiver, 77, 0xFFFFFFFF)
    return head + sender_gid + receiver_gid + random.randbytes(8) + bytes((12, 0, 0, 0))


def rejection(what, sock):
    """Returns the status of the reply, which must reject."""
    head = receive(sock, 20)
    private = receive(sock, struct.unpack(">H", head[18:])[0])
    if head[:16] != REPLY_KEY or not head[16] & 0x20 or private[:4] != b"IWQ1":
        sys.exit(f"{what}: answered by {(head + private).hex()}")
    sock.close()
    return private[8]


NO_SUCH, HELD_TOO_LONG, ANOTHER_PEER, BUSY, MALFORMED = 1, 2, 3, 5, 6


def all_links(waiting, own, peer):
    """Yields the name of a request, its private data, and the status that rejects it."""
    good, other = link_request(waiting, own, peer), global_id("10.79.0.9")
    for length in range(len(good)):
        yield f"{length} bytes", good[:length], MALFORMED
    for kind in (0, 3, 255):
        yield f"type {kind}", link_request(waiting, own, peer, kind), MALFORMED
    yield "magic", link_request(waiting, own, peer, magic=b"IWR1"), MALFORMED
    for kind in (1, 2):
        yield f"a third host's GID, type {kind}", link_request(waiting, other, peer, kind), ANOTHER_PEER
        yield f"for a third host, type {kind}", link_request(waiting, own, other, kind), ANOTHER_PEER
        yield f"an IPv6 GID, type {kind}", link_request(waiting, bytes(15) + b"\1", peer, kind), ANOTHER_PEER
    for number in (0, waiting ^ 1 << 17, waiting + (1 << 18), 0xFFFFFF, 0xFFFFFFFF):
        yield f"queue pair {number:#x}", link_request(number, own, peer), NO_SUCH


def numbers():
    waiting = int(REGION, 0)
    first = connect()
    own, peer = global_id(first.getsockname()[0]), global_id(HOST)
    first.close()
    count = 0
    for name, private, status in all_links(waiting, own, peer):
        sock = connect()
        send(sock, mpa_request(private))
        answer = rejection(name, sock)
        if answer != status:
            sys.exit(f"{name}: rejected with status {answer}, not {status}")
        count += 1
    halves = [connect() for _ in range(100)]
    for sock in halves:
        send(sock, mpa_request(link_request(waiting, own, peer))[:60])
    open_now, done = [], 0
    while done + len(open_now) < 10000:
        batch = [connect() for _ in range(100)]
        for sock in batch:
            send(sock, mpa_request(link_request(waiting, own, peer)))
        open_now += batch
        done += answered(open_now, 64)
        if done == 36:
            time.sleep(0.2)
            if answered(open_now, 64) > 0 or len(open_now) != 64:
                sys.exit(f"{len(open_now)} requests of a host are held, not 64")
    for sock in halves + open_now:
        reset(sock)
    return count + len(halves) + len(open_now) + done


def answered(open_now, most):
    """Takes rejections until this many connections are without, and returns their number."""
    deadline, count = time.monotonic() + 3 * ENDS_S, 0
    while True:
        left = 0 if len(open_now) <= most else max(0, deadline - time.monotonic())
        ready = select.select(open_now, [], [], left)[0]
        if not ready and len(open_now) <= most:
            return count
        if not ready:
            sys.exit(f"{len(open_now)} requests of a host have no answer, more than {most} are held")
        for sock in ready:
            status = rejection("one of many", sock)
            if status not in (BUSY, HELD_TOO_LONG):
                sys.exit(f"one of many: rejected with status {status}")
            open_now.remove(sock)
        count += len(ready)


def unread(count):
    held = [granted() for _ in range(count)]
    print("all are open", flush=True)
    for sock, grant in held:
        sock.setblocking(False)
        for msn in range(1, 101):
            try:
                sock.send(fpdu(read(grant, msn, min(READ_MAX, grant[2]))))
            except OSError:
                break
    print(f"{count} connections, 100 Reads each, that nobody reads", flush=True)
    while True:
        time.sleep(60)


ATTACKS = {"requests": requests, "violations": violations, "trickle": trickle, "reads": reads, "endings": endings,
           "early": lambda: endings(early=True), "numbers": numbers}
ATTACK, HOST, PORT, REGION = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].encode()
SECONDS = float(sys.argv[5])
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
if ATTACK == "unread":
    unread(int(sys.argv[6]))
begin, done, rounds = time.monotonic(), 0, 0
while rounds == 0 or time.monotonic() - begin < SECONDS:
    done += ATTACKS[ATTACK]()
    rounds += 1
print(f"{ATTACK}: {done} in {rounds} rounds, {time.monotonic() - begin:.1f} s")
