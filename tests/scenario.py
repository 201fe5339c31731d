"""Scenarios: small programs whose every call is observed in eager and compiled, and must look the same.

A scenario is a function that takes `start`. It makes its own state, gets a call from `start(function, *watched)`, and
calls it as often as it likes, changing the state in between. Each call is written down as text: what it returned or
raised, what it printed, and the arguments and watched objects afterwards, with identities, aliasing and tensor metadata.
The scenario runs once in eager and once per backend; the texts must be equal (floats within rounding, where code was
generated).
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import re
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import magneto
from magneto import _test_settings

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, type(...), slice, range)
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.MethodType)

BACKENDS = ("magneto", "eager")

Scenario = Callable[[Callable[..., "Call"]], Any]


def v(factor: float = 1.0) -> torch.Tensor:
    """What most scenarios give their programs: six numbers."""
    return torch.arange(1.0, 7.0) * factor


@contextlib.contextmanager
def restored(owner: Any, *names: str) -> Iterator[None]:
    """Attributes that are set meanwhile are set back."""
    before = [getattr(owner, name) for name in names]
    try:
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(owner, name, value)


class Describer:
    """Text for objects; the same object (or tensor memory) gets the same number wherever it is met."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.kept: list[Any] = []

    def __call__(self, value: Any) -> str:
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, _NAMED):
            return f"<{type(value).__name__} {getattr(value, '__qualname__', value)}>"
        if type(value) is tuple:  # equal ones may be one object or two: nobody should care
            return self.contents(value)
        if id(value) in self.numbers:
            return f"#{self.numbers[id(value)]}"
        number = self.numbers.setdefault(id(value), len(self.numbers) + 1)
        self.kept.append(value)
        return f"#{number}=" + self.contents(value)

    def contents(self, value: Any) -> str:
        name = type(value).__qualname__
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, (np.ndarray, np.generic)):
            facts = f"{value.dtype} {value.shape} {value.strides} {value.tolist()}"
            return f"{name}({facts}{self.memory_of(value) if isinstance(value, np.ndarray) else ''})"
        if isinstance(value, (list, tuple, deque)):
            text = f"{name}({', '.join(map(self, value))})"
        elif isinstance(value, dict):
            text = f"{name}({', '.join(f'{self(k)}: {self(v)}' for k, v in value.items())})"
        elif isinstance(value, (set, frozenset)):
            text = f"{name}({', '.join(sorted(map(self, value)))})"
        elif isinstance(value, BaseException):
            text = f"{name}{self(value.args)}"
        else:
            text = name
        slots = [slot for base in type(value).__mro__ for slot in getattr(base, "__slots__", ()) if slot[:2] != "__"]
        state = {slot: getattr(value, slot) for slot in slots if hasattr(value, slot)} | getattr(value, "__dict__", {})
        if state:
            text += "{" + ", ".join(f"{key}={self(item)}" for key, item in state.items()) + "}"
        return text

    def memory_of(self, array: np.ndarray) -> str:
        root: Any = array
        while isinstance(root, np.ndarray) and root.base is not None:
            root = root.base
        address = root.untyped_storage().data_ptr() if isinstance(root, torch.Tensor) else array.ctypes.data
        if isinstance(root, np.ndarray):
            address = root.ctypes.data
        memory = self.storages.setdefault(address, len(self.storages) + 1) if array.size else 0
        base = self(array.base) if isinstance(array.base, np.ndarray) else type(array.base).__name__
        return f" memory {memory} owns={array.flags.owndata} writable={array.flags.writeable} base={base}"

    def tensor(self, value: torch.Tensor) -> str:
        if value.layout != torch.strided or value.is_quantized:
            plain = value.dequantize() if value.is_quantized else value.to_dense()
            self.kept.append(plain)  # its memory is not another's later
            return f"{value.layout} {self.tensor(plain)}"
        storage = value.untyped_storage().data_ptr() if value.numel() else 0
        memory = self.storages.setdefault(storage, len(self.storages) + 1)
        facts = f"{value.dtype} {tuple(value.shape)} {value.stride()}+{value.storage_offset()} memory {memory}"
        grad = f" requires_grad={value.requires_grad} leaf={value.is_leaf} inference={value.is_inference()}"
        return f"{type(value).__name__}({facts}{grad} {value.detach().tolist()})"


class Call:
    """Calls a function and writes down what can be seen of it."""

    def __init__(
        self, function: Callable[..., Any], compiled: bool, watched: tuple[Any, ...], trace: list[str]
    ) -> None:
        self.function = function
        self.compiled = compiled
        self.watched = watched
        self.trace = trace

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = None
        failure: Any = None
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            try:
                result = self.function(*args, **kwargs)
            except Exception as error:
                failure = (type(error), str(error))
        describe = Describer()
        lines = [f"watched {describe(self.watched)}", f"arguments {describe((args, kwargs))}"]
        lines += [f"result {describe(result)}", f"raised {failure}", f"printed {printed.getvalue()!r}"]
        lines += [f"modes {torch.is_grad_enabled()} {torch.is_autocast_enabled('cpu')} {torch.get_default_dtype()}"]
        self.trace.append("\n".join(lines))
        return result

    def hits(self, *args: Any, **kwargs: Any) -> Any:
        """A call that an earlier capture must serve."""
        before = magneto.stats()["recompiles"]
        result = self(*args, **kwargs)
        assert magneto.stats()["recompiles"] == before, "recompiled"
        return result

    def recompiles(self, *args: Any, **kwargs: Any) -> Any:
        """A call that no earlier capture may serve."""
        before = magneto.stats()["recompiles"]
        result = self(*args, **kwargs)
        assert not self.compiled or magneto.stats()["recompiles"] > before, "an earlier capture was used"
        return result


@dataclasses.dataclass
class Registry:
    """The scenarios of one test file, for `pytest.mark.parametrize`."""

    scenarios: dict[str, tuple[Scenario, bool]] = dataclasses.field(default_factory=dict)

    def __call__(self, scenario: Scenario | None = None, *, breaks: bool = False) -> Any:
        """Decorator. `breaks`: the program can't be one graph."""
        if scenario is None:
            return lambda actual: self(actual, breaks=breaks)
        assert scenario.__name__ not in self.scenarios
        self.scenarios[scenario.__name__] = (scenario, breaks)
        return scenario

    def check(self, name: str, backend: str) -> None:
        check(*self.scenarios[name], backend=backend)


def observe(scenario: Scenario, compile_with: Callable[[Any], Any] | None) -> list[str]:
    trace: list[str] = []

    def start(function: Callable[..., Any], *watched: Any) -> Call:
        compiled = compile_with(function) if compile_with else function
        return Call(compiled, compile_with is not None, watched, trace)

    torch.manual_seed(0)
    scenario(start)
    trace.append(f"random {torch.rand(2).tolist()}")
    return trace


_FLOAT = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")


def same(left: str, right: str, backend: str) -> bool:
    """Equal texts. Generated code may round the last digits of a float otherwise than eager's kernels."""
    if left == right or backend != "magneto":
        return left == right
    if _FLOAT.sub("", left) != _FLOAT.sub("", right):
        return False
    pairs = zip(_FLOAT.findall(left), _FLOAT.findall(right), strict=True)
    return all(math.isclose(float(one), float(other), rel_tol=1e-6, abs_tol=1e-7) for one, other in pairs)


def check(scenario: Scenario, breaks: bool, *, backend: str, dynamic: bool | None = None, every: int = 0) -> None:
    """`every`: an exit is forced after every n-th instruction (0: none)."""
    expected = observe(scenario, None)
    magneto.reset()
    room = magneto.config.patch(cache_size_limit=1000) if every else contextlib.nullcontext()
    with _test_settings.patch(exit_every=every), room:
        actual = observe(scenario, lambda function: magneto.compile(function, backend=backend, dynamic=dynamic))
    for index, (left, right) in enumerate(zip(actual, expected, strict=True)):
        assert same(left, right, backend), f"call {index + 1}:\n{left}\ninstead of\n{right}"
    stats = magneto.stats()
    assert every or stats["frames"] > 0, "nothing was captured"
    if not breaks and not every:  # a forced exit is a break
        assert stats["breaks"] == 0, stats["break_reasons"]
