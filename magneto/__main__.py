"""`python -m magneto`: runs programs written for torch.compile under Magneto, and looks whether all is well.

python -m magneto run script.py [arguments...]
python -m magneto run -m module [arguments...]
python -m magneto report [-o FILE] DIR
python -m magneto report [-o FILE] --live script.py [arguments...]
python -m magneto doctor env
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import magneto
from magneto import exc


def run(arguments: list[str]) -> int:
    """Runs a script or a module as `python` would, with torch.compile and the names around it Magneto's."""
    if not arguments or arguments == ["-m"]:
        return _usage()
    magneto.install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, "")
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return 0
    script = Path(arguments[0])
    if not script.exists():
        print(f"python -m magneto run: can't open file {str(script)!r}: there is no such file", file=sys.stderr)
        return 2
    sys.argv = arguments
    sys.path.insert(0, str(script.resolve().parent))
    runpy.run_path(str(script), run_name="__main__")
    return 0


def doctor(arguments: list[str]) -> int:
    """Checks this installation."""
    if arguments != ["env"]:
        return _usage()
    from magneto import _doctor

    return _doctor.main()


def report(arguments: list[str]) -> int:
    """Writes a page that shows what the compiler did."""
    from magneto._report import command

    return command.main(arguments)


COMMANDS: Mapping[str, Callable[[list[str]], int]] = {"run": run, "report": report, "doctor": doctor}


def _usage() -> int:
    print(__doc__, file=sys.stderr)
    return 2


def main(arguments: list[str]) -> int:
    """The process's exit status."""
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
