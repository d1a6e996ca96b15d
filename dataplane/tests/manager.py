"""A service manager for lifecycle.sh: records the notifications of a daemon, or stops one of its threads.

manager.py listen SOCKET FILE: appends every notification (sd_notify(3)) that arrives at SOCKET to FILE.
manager.py stop THREAD SECONDS: stops one thread (ptrace(2)) for a time, while the others of its process run.
"""
import ctypes
import os
import socket
import sys
import time

PTRACE_ATTACH, PTRACE_DETACH = 16, 17
WALL = 0x40000000  # wait for threads too (waitpid(2))


def listen(path, record):
    """Appends every datagram to a file, line by line."""
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(path)
    with open(record, "w", buffering=1, encoding="utf-8") as file:
        while True:
            file.write(manager.recv(65536).decode() + "\n")


def ptrace(request, thread):
    """Calls ptrace(2) without address and data."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(request, thread, None, None) != 0:
        raise OSError(ctypes.get_errno(), f"ptrace of thread {thread}")


def stop(thread, seconds):
    """Stops a thread for some seconds, or until its process is killed."""
    ptrace(PTRACE_ATTACH, thread)
    os.waitpid(thread, WALL)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        # A killed process does not end before its tracer has waited for the thread.
        stopped, _ = os.waitpid(thread, WALL | os.WNOHANG)
        if stopped:
            return
        time.sleep(0.05)
    ptrace(PTRACE_DETACH, thread)


if __name__ == "__main__":
    if sys.argv[1] == "listen":
        listen(sys.argv[2], sys.argv[3])
    else:
        stop(int(sys.argv[2]), float(sys.argv[3]))
