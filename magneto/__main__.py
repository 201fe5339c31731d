"""`python -m magneto`: runs programs written for torch.compile under Magneto, and looks whether all is well.

python -m magneto run script.py [arguments...]
python -m magneto run -m module [arguments...]
python -m magneto explain script.py [arguments...]          # ...and shows captures, breaks, recompiles, fallbacks
python -m magneto why FUNCTION script.py [arguments...]     # ...and shows how that function ran, and why
python -m magneto report [-o FILE] DIR
python -m magneto report [-o FILE] --live script.py [arguments...]
python -m magneto doctor                                    # looks whether this installation works
python -m magneto doctor script.py [arguments...]           # what is at fault where it fails when it is compiled
python -m magneto doctor --report page.html script.py       # ...and a page with what was found
python -m magneto doctor --before FIRST.py script.py [...]  # ...where it fails after another script alone
python -m magneto replay [--show] FILE.rec                  # a frame whose capture failed, again (or what is recorded)
python -m magneto minify FILE.rec [-o repro.py]             # ...and reduced to the shortest function that fails so
python -m magneto --version
"""

from __future__ import annotations

import os
import platform
import runpy
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import magneto
from magneto import exc


def run(arguments: list[str]) -> int:
    """Runs a script or a module as `python` would, with torch.compile and the names around it Magneto's."""
    return _run(arguments, {})


def explain(arguments: list[str]) -> int:
    """Runs a program as `run` does; afterwards, all captures, breaks, recompiles and fallbacks, with counts."""
    from magneto import _history

    return _run(arguments, {}, lambda: print(repr(_history.summary())))


def why(arguments: list[str]) -> int:
    """Runs a program as `run` does; afterwards, how a function of it ran, and where under CPython, why."""
    from magneto import _history

    names: dict[str, Any] = {}
    return _run(arguments[1:], names, lambda: print(repr(_history.why_named(arguments[0], names))))


def _run(arguments: list[str], names: dict[str, Any], finish: Callable[[], None] = lambda: None) -> int:
    """`names` gets the program's; `finish` is called when it has run, however it ended."""
    if not arguments or arguments == ["-m"]:
        return _usage()
    if arguments[0] != "-m" and not Path(arguments[0]).exists():
        print(f"python -m magneto: can't open file {arguments[0]!r}: there is no such file", file=sys.stderr)
        return 2
    magneto.install()
    _show_the_program_s_frames_only()
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            sys.path.insert(0, "")
            names |= runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
            names |= runpy.run_path(arguments[0], run_name="__main__")
    except BaseException as error:  # also an exit
        traceback = error.__traceback__
        while traceback is not None:
            if (
                traceback.tb_frame.f_globals.get("__name__") == "__main__"
                and "runpy" not in traceback.tb_frame.f_globals
            ):
                names |= traceback.tb_frame.f_globals
            traceback = traceback.tb_next
        raise
    finally:
        finish()
    return 0


def _show_the_program_s_frames_only() -> None:
    """A traceback begins with the program, as under `python`."""
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None) -> None:
        inner = traceback
        while inner and inner.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            inner = inner.tb_next
        show(kind, error.with_traceback(inner or traceback), inner or traceback)

    sys.excepthook = hook


def doctor(arguments: list[str]) -> int:
    """Checks this installation; with a script: finds what is at fault where it fails when it is compiled."""
    if arguments in ([], ["env"]):
        from magneto import _doctor

        return _doctor.main()
    from magneto._debug import doctor as debug

    return debug.main(arguments)


def report(arguments: list[str]) -> int:
    """Writes a page that shows what the compiler did."""
    from magneto._report import command

    return command.main(arguments)


def replay(arguments: list[str]) -> int:
    """Captures a recorded frame again."""
    from magneto._debug.record import replay as recorded

    return recorded.main(arguments)


def minify(arguments: list[str]) -> int:
    """Reduces the program of a recorded frame."""
    from magneto._debug.record import minify as recorded

    return recorded.main(arguments)


COMMANDS: Mapping[str, Callable[[list[str]], int]] = {
    "run": run,
    "explain": explain,
    "why": why,
    "report": report,
    "doctor": doctor,
    "replay": replay,
    "minify": minify,
}


def _usage() -> int:
    print(__doc__, file=sys.stderr)
    return 2


def main(arguments: list[str]) -> int:
    """The process's exit status."""
    try:
        status = _main(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has seen enough (`| head`)
        if arguments[0] == "run":  # the program's own
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _main(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("-V", "--version"):
        print(f"Magneto {magneto.__version__} (PyTorch {torch.__version__}, CPython {platform.python_version()})")
        return 0
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    command = COMMANDS.get(arguments[0])
    if command is None:
        print(exc.InvalidName("command", arguments[0], COMMANDS), file=sys.stderr)
        return 2
    return command(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
