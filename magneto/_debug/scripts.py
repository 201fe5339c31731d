"""Scripts that show a failure in a process of their own: `repro.py`, and `minifier_launcher.py` with the whole."""

from __future__ import annotations

import enum
import errno
import hashlib
import inspect
import os
import platform
import re
import sys
import tempfile
import textwrap
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from magneto import _files, _log, config

# A tensor with so few elements stands in the script; of others only dtype and geometry do, where random values show
# the failure as well, else a file beside the script holds them.
FEW = 16


def folder(name: str = "minifier") -> Path:
    """Where scripts go: `torchdynamo_debug/run_<time>-pid_<pid>/minifier` below `debug_dir`, or the current folder.

    Where that can't be, the same below a folder of its own in the system's for temporary files, which is said. Raises
    OSError."""
    root = Path(config.debug_dir or os.getcwd())
    below = Path("torchdynamo_debug", _run_name(), name)
    path = root / below
    try:
        path.mkdir(parents=True, exist_ok=True)
        _need_room(path)
    except OSError as error:
        path = _substitute(root, error) / below
        path.mkdir(parents=True, exist_ok=True)
    return path


def _need_room(path: Path) -> None:
    disk = os.statvfs(path)
    if disk.f_blocks and not disk.f_bavail:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def is_usual(place: Path) -> bool:
    """Not what `folder` takes where debug_dir or the current folder can't be written."""
    return not any(place.is_relative_to(other) for other in _others.values())


_others: dict[Path, Path] = {}  # a folder that can't be written -> what is written instead


def _substitute(root: Path, error: OSError) -> Path:
    if root not in _others:
        _others[root] = Path(tempfile.mkdtemp(prefix="magneto-"))
        _log.announce(
            f"{root} can't be written: {error.strerror}. What tools write goes to {_others[root]}: set "
            "magneto.config.debug_dir to a folder with room, if it should be elsewhere. The program goes on."
        )
    return _others[root]


_names: dict[int, str] = {}


def _run_name() -> str:
    """One for each process."""
    now = time.strftime("%Y_%m_%d_%H_%M_%S")
    return _names.setdefault(os.getpid(), f"run_{now}_{time.time_ns() // 1000 % 1000000:06d}-pid_{os.getpid()}")


def write(path: Path, text: str, shown: bool = True) -> bool:
    """Writes a file at once or not at all; what keeps it from that is said. `shown`: with the text, else it is lost."""
    try:
        _files.write_whole(path, lambda out: out.write(text.encode("utf-8", "replace")))
    except OSError as error:
        say_unwritten(path, error, f" The file itself:\n{text}" if shown else "")
        return False
    return True


def say_unwritten(path: Path, error: OSError, more: str = "") -> None:
    """A file of these tools can't be written: why, and what to do."""
    reason = error.strerror or str(error)
    text = (
        f"{path} can't be written: {reason}. Set magneto.config.debug_dir to a folder with room; the program goes on."
        + more
    )
    if text not in _said:
        _said.add(text)
        _log.announce(text)


_said: set[str] = set()


def environment() -> str:
    """Versions, as comments."""
    import magneto

    return (
        f"# Magneto {magneto.__version__}\n"
        f"# torch version: {torch.__version__}\n"
        f"# torch cuda version: {torch.version.cuda}\n"
        f"# torch git version: {torch.version.git_version}\n"
        f"# Python {platform.python_version()}, {platform.platform()}, {torch.backends.cpu.get_cpu_capability()}\n"
    )


def settings() -> str:
    """Lines that set what is not at its default."""
    quiet = ("repro_after", "repro_level", "debug_dir", "disk_cache_dir", "disk_cache_key_file", "strict")
    return "".join(
        f"magneto.config.{name} = {value!r}\n"
        for name, value in config.current().items()
        if value != config.SETTINGS[name].default and name not in quiet
    )


def variables() -> str:
    """Lines that set the environment variables that say how to compile, and unset those that ask for a repro."""
    repro = ("TORCHDYNAMO_REPRO_AFTER", "TORCHDYNAMO_REPRO_LEVEL")
    parts = ("TORCH", "DYNAMO", "INDUCTOR", "MAGNETO")
    lines = ["import os"]
    lines += [
        f"os.environ[{name!r}] = {value!r}"
        for name, value in sorted(os.environ.items())
        if any(part in name for part in parts) and name not in repro and "KEY" not in name
    ]
    lines += [f"os.environ.pop({name!r}, None)" for name in repro]
    return "\n".join(lines) + "\n"


class Unwritable(Exception):
    """Something of a graph has no text that a script could have."""


def model(module: torch.fx.GraphModule) -> str:
    """The class Repro: the graph's code, and what its attributes are made by."""
    lines = ["class Repro(torch.nn.Module):", "    def __init__(self) -> None:", "        super().__init__()"]
    used = sorted({str(node.target) for node in module.graph.nodes if node.op in ("get_attr", "call_module")})
    for name in used:
        lines.append(f"        {_attribute(module, name)}")
    code = _python_code(module)
    return "\n".join(lines) + "\n\n" + textwrap.indent(code, "    ") + "\n"


_IMPORTED = re.compile(r"^(?:torch\.)?fx\._symbolic_trace|^wrap\(", re.MULTILINE)


def _python_code(module: torch.fx.GraphModule) -> str:
    code = module.graph.python_code("self")
    for name, value in code.globals.items():
        known = name in ("torch", "inf", "nan", "NoneType", "device", "fx_pytree", "pytree", "math", "operator")
        if not known and not re.match(r"[\w.]+$", getattr(value, "__module__", None) or ""):
            raise Unwritable(f"the graph calls {name}, which a script can't name")
    lines = []
    for name, value in code.globals.items():
        if name in ("torch", "inf", "nan", "device", "NoneType", "fx_pytree", "pytree"):
            continue
        home, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if inspect.ismodule(value):
            lines.append(f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}")
        elif home == "__main__" or home is None or own is None or "<" in own:
            raise Unwritable(f"the graph calls {name} of {home or 'no module'}, which a script can't import")
        elif "." in own:
            lines += [f"import {home}", f"{name} = {home}.{own}"]
        elif name != own or home != "builtins":
            lines.append(f"from {home} import {own}" + (f" as {name}" if name != own else ""))
    body = textwrap.dedent(code.src).strip()
    return body if not lines else body.replace(":\n", ":\n    " + "\n    ".join(lines) + "\n", 1)


def _attribute(module: Any, name: str) -> str:
    value = module
    for part in name.split("."):
        value = getattr(value, part)
    if "." in name:
        raise Unwritable(f"the graph has the attribute {name} of a submodule")
    if isinstance(value, torch.nn.Parameter):
        return f"self.{name} = torch.nn.Parameter({_made(value)}, requires_grad={value.requires_grad})"
    if isinstance(value, torch.Tensor):
        return f"self.register_buffer({name!r}, {_made(value)})"
    if isinstance(value, torch.nn.Module) and type(value).__module__.startswith("torch.nn"):
        return f"self.{name} = torch.nn.{value!r}" + ("" if value.training else ".eval()")
    raise Unwritable(f"the graph has the object {name} of type {type(value).__name__}")


def _made(x: torch.Tensor) -> str:
    """A tensor that is like this one: its values where they are few."""
    x = x.detach()
    if x.numel() <= FEW:
        return f"torch.tensor({x.tolist()!r}, dtype={x.dtype}, device='{x.device}')"
    return f"rand_strided({tuple(x.shape)}, {x.stride()}, {x.dtype}, '{x.device}')"


def arguments(inputs: Sequence[Any], file: str = "") -> str:
    """Lines that make `args`. `file`: the name of a file of values beside the script, of `torch.save`."""
    if file:
        return (
            "from magneto._debug.scripts import load_inputs\n\n"
            f"args = load_inputs(os.path.join(os.path.dirname(os.path.abspath(__file__)), {file!r}))\n"
        )
    rows = []
    for x in inputs:
        if isinstance(x, torch.Tensor):
            rows.append(f"({tuple(x.shape)}, {tuple(x.stride())}, {x.dtype}, '{x.device}', {x.requires_grad})")
        else:
            rows.append(repr(x))
    return (
        "torch.manual_seed(0)\n"
        f"args = [{', '.join(rows)}]\n"
        "args = [rand_strided(*x[:4]).requires_grad_(x[4]) if isinstance(x, tuple) else x for x in args]\n"
    )


def random_like(inputs: Sequence[Any]) -> list[Any]:
    """What `arguments` makes without a file."""
    from magneto._install.profiling import rand_strided

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [
            rand_strided(tuple(x.shape), x.stride(), x.dtype, x.device).requires_grad_(x.requires_grad)
            if isinstance(x, torch.Tensor)
            else x
            for x in inputs
        ]


def save_inputs(path: Path, inputs: Sequence[Any]) -> str:
    """Writes the values beside a script; gives the file's name. Raises OSError."""
    values = [(x.detach(), x.requires_grad) if isinstance(x, torch.Tensor) else (x, False) for x in inputs]
    name = f"inputs_{hashlib.sha256(repr([getattr(x, 'shape', x) for x in inputs]).encode()).hexdigest()[:12]}.pt"
    _files.write_whole(path / name, lambda out: torch.save(values, out))
    return name


def load_inputs(file: str) -> list[Any]:
    """What `save_inputs` wrote. A script without them ends with a sentence."""
    try:
        values = torch.load(file, weights_only=True)
        return [x.requires_grad_(needs) if isinstance(x, torch.Tensor) else x for x, needs in values]
    except FileNotFoundError:
        why = "is not there"
    except OSError as error:
        why = f"can't be read ({error.strerror})"
    except Exception as error:
        why = f"is damaged ({type(error).__name__})"
    sys.exit(
        f"{file} {why}: it has the values that show the failure. Copy it to this script's folder again, or write other "
        "inputs as `args` in the script."
    )


def backend_source(backend: Any) -> tuple[str, str]:
    """How a script gets a backend: lines that define it, and the expression for it."""
    if isinstance(backend, str):
        return "", repr(backend)
    if not inspect.isfunction(backend) or not backend.__name__.isidentifier():
        raise Unwritable(f"the backend {backend!r} is no function that a script could define or import")
    if backend.__module__ != "__main__" and "<locals>" not in backend.__qualname__:
        return f"from {backend.__module__} import {backend.__qualname__}\n", backend.__qualname__
    return _definitions(backend, set()), backend.__name__


def _definitions(function: Any, done: set[str]) -> str:
    """The source of a function of the program, and of what it reads around it."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise Unwritable(f"the source of {function.__qualname__} is not to be had: {error}") from None
    known = function.__globals__
    around = {name: known[name] for name in _names_in(function.__code__) if name in known}
    text = ""
    for name, value in {**around, **inspect.getclosurevars(function).nonlocals}.items():
        if name not in done and name not in _OF_EACH_MODULE:
            done.add(name)
            text += _definition(name, value, done, function)
    return text + "\n\n" + re.sub(r"^(@.*\n)+", "", source)


_OF_EACH_MODULE = ("__name__", "__file__", "__builtins__")  # which the body of a class reads: a script has its own


def _definition(name: str, value: Any, done: set[str], function: Any) -> str:
    """Lines that give `name` its value."""
    home = getattr(value, "__module__", None)
    if value is torch:
        return ""  # scripts import it
    if inspect.ismodule(value):
        return f"import {value.__name__} as {name}\n" if value.__name__ != name else f"import {name}\n"
    if isinstance(value, enum.Enum):
        made = type(value)
        if made.__module__ != "__main__" and made.__qualname__.isidentifier():
            return f"import {made.__module__}\n{name} = {made.__module__}.{made.__name__}.{value.name}\n"
    elif isinstance(value, (int, float, str, bool, bytes, type(None))):
        return f"{name} = {value!r}\n"
    own = str(getattr(value, "__name__", ""))
    if getattr(torch, own, None) is value:  # a built-in that does not know its module
        return f"{name} = torch.{own}\n"
    if inspect.isfunction(value) and (home == "__main__" or "<locals>" in value.__qualname__):
        defined = _definitions(value, done)
        return defined + ("\n" if value.__name__ == name else f"\n{name} = {value.__name__}\n")
    if home not in ("__main__", None) and "." not in getattr(value, "__qualname__", "."):
        return f"from {home} import {value.__qualname__} as {name}\n"
    raise Unwritable(f"{function.__qualname__} reads {name}, of type {type(value).__name__}")


def _names_in(code: types.CodeType) -> list[str]:
    names = list(code.co_names)
    for constant in code.co_consts:
        if inspect.iscode(constant):
            names += _names_in(constant)
    return names
