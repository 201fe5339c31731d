"""Processes that have imported torch and Magneto, and nothing else has happened in them: forked from one that did so once.

As `subprocess.Popen` with a program's text, without the seconds that the imports take each time."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any

# Takes requests from its standard input, a socket: a text, and three files to write to. Answers with a process's id.
SERVER = """
import json, os, signal, socket, sys, traceback
sys.path[:0] = {paths!r}
import torch, magneto
torch.set_num_threads(1)
for module in {modules!r}:
    __import__(module)
requests = socket.socket(fileno=0)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits: the files' ends tell

while True:
    request, files, _, _ = socket.recv_fds(requests, 1 << 16, 3)
    if not request:
        break
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        requests.detach()
        os.dup2(files[0], 1)
        os.dup2(files[1], 2)
        os.close(files[0])  # read until all its writers are gone
        try:
            exec(compile(json.loads(request), "<forked>", "exec"), {{"__name__": "__main__"}})
            sys.stdout.flush()
            os.write(files[2], b"0")
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(0)
    for file in files:
        os.close(file)
    requests.send(b"%d" % pid)
"""


class Server:
    """The process that others are forked from; `modules` are imported in it too, from `paths`."""

    def __init__(self, paths: list[str], modules: list[str]) -> None:
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = SERVER.format(paths=paths, modules=modules)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen([sys.executable, "-P", "-c", code], stdin=theirs, env=environment)
        theirs.close()

    def run(self, code: str) -> Forked:
        return Forked(self, code)

    def close(self) -> None:
        self.requests.close()
        self.process.wait()


class Forked:
    """What is used of `subprocess.Popen`."""

    def __init__(self, server: Server, code: str) -> None:
        out, theirs = os.pipe()
        self.stdout = open(out)
        self.errors, self.status = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile()
        files = [theirs, self.errors.fileno(), self.status.fileno()]
        socket.send_fds(server.requests, [json.dumps(code).encode()], files)
        os.close(theirs)
        self.pid = int(server.requests.recv(32))
        self.returncode: int | None = None

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def communicate(self, **_: Any) -> tuple[str, str]:
        with self.stdout, self.errors, self.status:
            out = self.stdout.read()
            self.errors.seek(0)
            self.status.seek(0)
            self.returncode = 0 if self.status.read() else 1
            return out, self.errors.read()
