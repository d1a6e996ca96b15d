"""crowd.py HOST PORT N SOURCE [SECONDS]: opens N silent connections from an address and keeps them open until it is
ended; reopens those that are reset. Prints the number of open connections once it is N, or after SECONDS, ten without
that argument."""

import errno
import resource
import select
import socket
import sys
import time

host, port, count, source = sys.argv[1].strip("[]"), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
patience = float(sys.argv[5]) if len(sys.argv) > 5 else 10
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
family = socket.AF_INET6 if ":" in host else socket.AF_INET
PENDING_MAX = 1024
poll = select.epoll()
pending, held = {}, {}


def connect():
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.bind((source, 0))
    if sock.connect_ex((host, port)) not in (0, errno.EINPROGRESS):
        sock.close()
        return False
    pending[sock.fileno()] = sock
    poll.register(sock, select.EPOLLOUT | select.EPOLLRDHUP)
    return True


begin, told = time.monotonic(), False
while True:
    while len(pending) + len(held) < count and len(pending) < PENDING_MAX and connect():
        pass
    for fd, events in poll.poll(0.1):
        sock = pending.pop(fd, None) or held.pop(fd)
        if events & (select.EPOLLERR | select.EPOLLHUP | select.EPOLLRDHUP):
            poll.unregister(fd)
            sock.close()
        else:
            held[fd] = sock
            poll.modify(fd, select.EPOLLRDHUP)
    if not told and (len(held) == count or time.monotonic() > begin + patience):
        print(f"{len(held)} of {count} open after {time.monotonic() - begin:.1f} s", flush=True)
        told = True
