"""`python(...)`: what `subprocess.run([sys.executable, "-P", ...])` does, without the two seconds that `import torch` takes.

The program runs in a process that has imported torch and nothing of ours: forked from one that each test process keeps.
What a program finds is what the command gives it: arguments, environment, folder, modules, `atexit` and the exit status.
Tests of imports themselves, of terminals and of processes that are started otherwise use subprocess.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

# Takes requests from its standard input, a socket: a text, and three files to write to: the program's output, its errors,
# and how it ended. A process in between waits for the program, so that this one never does.
SERVER = """
import atexit, json, os, runpy, signal, socket, sys, threading, types, warnings
import torch, torch._logging._internal
requests = socket.socket(fileno=os.dup(0))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)

def program():
    while True:
        request, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not request:
            return None
        waits = os.fork()
        if waits == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            pid = os.fork()
            if pid == 0:
                os.setsid()
                os.dup2(files[0], 1)
                os.dup2(files[1], 2)
                for file in files:
                    os.close(file)
                requests.close()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                return json.loads(request)
            os.write(files[2], b"%d\\n" % pid)
            for file in files[:2]:
                os.close(file)
            _, status = os.waitpid(pid, 0)
            try:
                os.write(files[2], b"%d\\n" % os.waitstatus_to_exitcode(status))
            finally:  # nobody may be there who asks
                os._exit(0)
        for file in files:
            os.close(file)

def run(args):
    kind, *arguments = args
    while kind == "-W":
        warnings.simplefilter(arguments[0])
        kind, *arguments = arguments[1:]
    if kind == "-m":
        sys.argv = arguments
        return runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    if kind == "-c":
        text, name, sys.argv = arguments[0], "<string>", ["-c", *arguments[1:]]
    else:
        text, name, sys.argv = open(kind).read(), kind, [kind, *arguments]
        main.__file__ = kind
    exec(compile(text, name, "exec"), main.__dict__)

request = program()
if request is not None:
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in inherited if path and path not in sys.path]
    if os.environ.keys() & {"TORCH_LOGS", "TORCH_TRACE", "TORCH_COMPILE_DEBUG"}:  # what torch has read before
        torch._logging._internal.LOG_TRACE_HANDLER = None
        torch._logging._internal._init_logs()
    status = 0
    try:
        run(request["args"])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        status = 1
        error.__traceback__ = error.__traceback__.tb_next.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
    # As at any end, but for the objects, whose end would copy all of their memory.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
"""


@functools.cache
def server() -> socket.socket:
    """Of this process. (Of a forked one: its own.)"""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-P", "-c", SERVER], stdin=theirs, env=environment)
    theirs.close()

    def close() -> None:
        ours.close()
        process.wait()

    atexit.register(close)
    return ours


def python(
    *args: str | Path,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout: float = 120,
    check: bool = False,
    whole: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs `python -P ARGS` (`-W ignore` first, then a file, `-c` or `-m`) to its end, with one thread unless `env` says
    otherwise. `whole`: of tests that see how Python and torch start, or the frames below the program's."""
    environment = {"OMP_NUM_THREADS": "1", **(os.environ if env is None else env)}
    if whole:
        command = [sys.executable, "-P", *map(str, args)]
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=cwd, timeout=timeout, check=check
        )
    request = {"args": [*map(str, args)], "env": environment, "cwd": str(cwd or os.getcwd())}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        ended, theirs = os.pipe()
        socket.send_fds(server(), [json.dumps(request).encode()], [out.fileno(), errors.fileno(), theirs])
        os.close(theirs)
        with open(ended, "rb", buffering=0) as lines:
            pid = int(lines.readline())
            if not select.select([lines], [], [], timeout)[0]:
                os.killpg(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired([*map(str, args)], timeout)
            code = int(lines.readline())
        for file in (out, errors):
            file.seek(0)
        done = subprocess.CompletedProcess([*map(str, args)], code, out.read(), errors.read())
    if check:
        done.check_returncode()
    return done
