"""Calls that are neither Python nor plain operators: TorchScript, torch.ops, custom operators, loggers."""

from __future__ import annotations

import functools
import logging
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import magneto

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TorchScript is deprecated

    @torch.jit.script
    def scaled(x: torch.Tensor, factor: int):
        return torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * factor) * x

    @torch.jit.script
    def doubled(x: torch.Tensor, factor: int):
        return x * factor * 2

    @torch.jit.script
    def last_size(x: torch.Tensor):
        return x.size(-1)

    @torch.jit.script
    def first_number(x: torch.Tensor):
        return int(x[0].item())

    @torch.jit.script
    def signed(x: torch.Tensor):
        if bool(x.sum() > 0):
            return x + 1
        return x - 1

    @torch.jit.script
    def printed(x: torch.Tensor):
        print("seen")
        return x + 1

    @torch.jit.script
    def raised(x: torch.Tensor):
        if x.dim() == 1:
            raise ValueError("one dimension")
        return x


BACKENDS = ["eager", "aot_eager", "magneto"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_script_function(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return scaled(x + 1, 3) - last_size(x)

    compiled = magneto.compile(program, backend=backend, fullgraph=True)
    for x in (torch.randn(4), torch.randn(2, 3), torch.randn(4)):
        for _ in range(3):  # TorchScript optimises after it has profiled
            assert torch.equal(compiled(x), program(x))
    assert magneto.stats()["recompiles"] == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_script_function_gradients(backend: str) -> None:
    compiled = magneto.compile(lambda x: scaled(x, 3).sum(), backend=backend, fullgraph=True)
    for _ in range(3):
        ours, theirs = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
        compiled(ours).backward()
        scaled(theirs, 3).sum().backward()
        assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [first_number, signed])
def test_script_function_that_reads_data(function: Callable[..., Any], backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x + 1) * function(x) + 1

    compiled = magneto.compile(program, backend=backend)
    for x in (torch.ones(3), -torch.ones(3) * 5):
        assert torch.equal(compiled(x), program(x))
    assert magneto.stats()["breaks"] == 1


def test_script_function_with_effects(capfd: pytest.CaptureFixture[str]) -> None:
    compiled = magneto.compile(lambda x: printed(x) * 2, backend="aot_eager")
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
    assert capfd.readouterr().out.count("seen") == 3


def test_script_function_that_raises() -> None:
    def program(x: torch.Tensor) -> Any:
        return raised(x + 1)

    compiled = magneto.compile(program, backend="aot_eager")
    with pytest.raises(torch.jit.Error, match="one dimension"):
        compiled(torch.ones(2))
    assert torch.equal(compiled(torch.ones(2, 2)), torch.full((2, 2), 2.0))


@pytest.mark.parametrize(
    "callables",
    [
        (scaled, doubled),
        (torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor),
        (torch.ops.aten.add, torch.ops.aten.mul),
    ],
)
def test_callables_are_guarded_by_identity(callables: tuple[Any, Any]) -> None:
    compiled = magneto.compile(lambda x, function: function(x, 3), backend="aot_eager", fullgraph=True)
    x = torch.full((4,), 5.0)
    for _ in range(2):
        for function in callables:
            assert torch.equal(compiled(x, function), function(x, 3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_custom_operator_with_a_fake_kernel(backend: str) -> None:
    """Counted as an operator without a native rule; no fallback, so strict mode accepts it."""

    @torch.library.custom_op(f"magneto_tests::twice_{backend}", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    program = getattr(torch.ops.magneto_tests, f"twice_{backend}")
    compiled = magneto.compile(lambda x: program(x + 1) - 1, backend=backend, fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
    assert list(magneto.stats()["meta_kernels"]) == [f"magneto_tests.twice_{backend}.default"]
    assert not magneto.stats()["fallbacks"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_place_operator_with_a_number_on_the_left(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        total, scale = 0, 2.0
        total += x
        scale *= x
        total -= scale
        return total

    compiled = magneto.compile(program, backend=backend, fullgraph=True)
    x = torch.randn(3)
    before = x.clone()
    assert torch.equal(compiled(x), program(before))
    assert torch.equal(x, before)


def test_loggers_follow_their_level(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("magneto_tests.calls")

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        logger.info("seen")
        return y * 2

    compiled = magneto.compile(program, backend="aot_eager")
    logger.setLevel(logging.WARNING)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
    assert (magneto.stats()["breaks"], len(caplog.records)) == (0, 0)
    logger.setLevel(logging.INFO)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
    assert len(caplog.records) == 2
    logger.setLevel(logging.WARNING)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
    assert len(caplog.records) == 2


def test_errors_of_operators_in_the_eager_backend(capfd: pytest.CaptureFixture[str]) -> None:
    """The module's own call wrapper, which prints to stderr, is not on the way of an operator's error."""
    compiled = magneto.compile(lambda x, i: torch.gather(x, 0, i), backend="eager", fullgraph=True)
    assert compiled(torch.ones(2), torch.tensor([1])) == 1
    with pytest.raises(RuntimeError, match="out of bounds"):
        compiled(torch.ones(2), torch.tensor([7]))
    assert not capfd.readouterr().err


@functools.lru_cache(256)
def recipe(pattern: str, names: tuple[str, ...]) -> list[object]:
    return [pattern.split(), len(names) + 2.0]


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.names: tuple[str, ...] = ()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * recipe("a b", self.names)[1] + len(recipe("b", tuple({}))[0])


def test_tuples_are_keys_of_an_lru_cache() -> None:
    """The empty one, whether an attribute has it or the program makes it, as einops does, and others by their value."""
    layer = Layer()
    compiled = magneto.compile(layer, fullgraph=True)
    x = torch.ones(2)
    assert compiled(x).tolist() == [3.0, 3.0]
    layer.names = ("one",)
    assert compiled(x).tolist() == [4.0, 4.0]
    recipe("a b", ("one",))[1] = 9.0  # what the cache has is the program's own
    assert compiled(x).tolist() == [10.0, 10.0]
    recipe.cache_clear()
    assert compiled(x).tolist() == [4.0, 4.0]
    layer.names = ()
    assert compiled(x).tolist() == [3.0, 3.0]


def test_what_an_lru_cache_has() -> None:
    """A call that is remembered has no effect; one that is not, has."""
    written: list[str] = []

    class Log:
        @functools.lru_cache(None)  # noqa: B019
        def once(self, text: str) -> None:
            written.append(text)

    log = Log()

    def program(x: torch.Tensor) -> torch.Tensor:
        log.once("seen")
        return x + 1

    log.once("seen")
    compiled = magneto.compile(program, backend="eager", fullgraph=True)
    for _ in range(3):
        compiled(torch.ones(2))
    log.once("other")
    compiled(torch.ones(2))
    assert written == ["seen", "other"] and magneto.stats()["recompiles"] == 0
    Log.once.cache_clear()
    compiled = magneto.compile(program, backend="eager")
    for _ in range(3):
        compiled(torch.ones(2))
    assert written == ["seen", "other", "seen"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_device_context(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        with torch.device("cpu"):
            y = x + torch.ones(2)
        return y, torch.zeros(1).device.type

    compiled = magneto.compile(program, backend=backend, fullgraph=True)
    for _ in range(3):
        assert compiled(torch.ones(2))[0].tolist() == [2.0, 2.0]
    assert magneto.stats()["recompiles"] == 0
    assert torch._C._len_torch_function_stack() == 0


def test_exit_inside_a_device_context() -> None:
    depths: list[int] = []

    @magneto.disable
    def seen() -> None:
        depths.append(torch._C._len_torch_function_stack())

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.device("cpu"):
            y = x + torch.ones(2)
            seen()
            y = y * torch.full((2,), 2.0)
        seen()
        return y

    compiled = magneto.compile(program, backend="eager")
    for _ in range(20):
        assert compiled(torch.ones(2)).tolist() == [4.0, 4.0]
    assert depths == [1, 0] * 20
    assert magneto.stats()["recompiles"] == 0 and magneto.stats()["breaks"] == 2


def test_other_device_context() -> None:
    def program(x: torch.Tensor) -> str:
        with torch.device("meta"):
            made = torch.ones(2)
        return made.device.type

    compiled = magneto.compile(program, backend="eager")
    for _ in range(12):
        assert compiled(torch.ones(2)) == "meta"
    inner = magneto.compile(lambda: torch.ones(2).device.type, backend="eager")
    for device in ("cpu", "meta", "cpu", "meta"):
        with torch.device(device):
            assert inner() == device


def test_lock_held_across_an_exit() -> None:
    """The bound `__exit__` on the stack is another object at each call."""
    lock = threading.Lock()

    def program(x: torch.Tensor) -> torch.Tensor:
        with lock:
            y = x + 1
        return y * 2

    compiled = magneto.compile(program, backend="eager")
    for _ in range(20):
        assert compiled(torch.ones(2)).tolist() == [4.0, 4.0]
    assert magneto.stats()["recompiles"] == 0
    other = threading.Lock()
    lock, released = other, lock
    assert compiled(torch.ones(2)).tolist() == [4.0, 4.0]
    assert not other.locked() and not released.locked()


def test_bound_builtin_of_another_object() -> None:
    def program(add: Callable[[Any], None], x: torch.Tensor) -> torch.Tensor:
        add(x + 1)
        return x

    compiled = magneto.compile(program, backend="eager")
    for _ in range(3):
        for items in ([], [5]):
            before = len(items)
            compiled(items.append, torch.ones(2))
            assert len(items) == before + 1 and items[-1].tolist() == [2.0, 2.0]
    items = [1]
    compiled(items.extend, torch.ones(2))
    assert len(items) == 3
    names = compiled = magneto.compile(lambda method, x: (x + 1, method.__self__, method.__name__), backend="eager")
    for text in ("a", "b"):
        assert names(text.upper, torch.ones(2))[1:] == (text, "upper")
        assert names(text.__add__, torch.ones(2))[1:] == (text, "__add__")
        assert names(text.__eq__, torch.ones(2))[1:] == (text, "__eq__")


def test_cond_is_a_branch() -> None:
    """Both are in the graph; a condition in Python is a branch of the capture. (Before, PyTorch's dispatch of it was walked
    through.)"""

    def choose(x: torch.Tensor, n: int) -> torch.Tensor:
        y = x.sin()
        y = torch.cond(y.sum() > 0, lambda a, b: a + b, lambda a, b: a - b, (y, n))
        return torch.cond(n > 2, torch.cos, torch.neg, (y,)) * 2

    compiled = magneto.compile(choose)
    for value, number in ((1.0, 2), (-1.0, 2), (1.0, 3)):
        x = torch.full((3,), value)
        y = x.sin()
        y = y + number if y.sum() > 0 else y - number
        assert torch.allclose(compiled(x, number), (y.cos() if number > 2 else -y) * 2)
    assert not magneto.stats()["break_reasons"]

    x = torch.ones(3, requires_grad=True)
    compiled(x, 2).sum().backward()
    assert torch.allclose(x.grad, -2 * torch.ones(3).cos())


def test_what_a_compiled_function_was_before() -> None:
    inner = magneto.compile(lambda x: x * 2)

    def program(x: torch.Tensor) -> torch.Tensor:
        function = inner
        while hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        return function(x) + 1

    compiled = magneto.compile(program)
    assert compiled(torch.ones(1)).item() == 3 and magneto.stats()["breaks"] == 0
    inner.__wrapped__ = lambda x: x * 5
    assert compiled(torch.ones(1)).item() == program(torch.ones(1)).item() == 6


@pytest.mark.parametrize("starred", [object(), 3, None, len], ids=["object", "int", "None", "function"])
def test_what_is_starred_and_no_iterable_is_told_in_pythons_words(starred: Any) -> None:
    def add(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return x + len(rest)

    def program(x: torch.Tensor) -> str:
        try:
            add(*starred)
        except TypeError as error:
            return str(error)
        return ""

    x = torch.ones(1)
    assert magneto.compile(program)(x) == program(x) != ""
