"""The public API: what users call, and what they are told when they call it wrongly."""

from __future__ import annotations

import copy
import functools
import io
import logging
import os
import pickle
import threading
import warnings
from collections.abc import Callable
from typing import Any

import fresh
import pytest
import torch

import magneto
from magneto import _testing, exc

X = torch.arange(4.0)


def add_one(x: torch.Tensor) -> torch.Tensor:
    """Adds one."""
    return x + 1


def printing(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    print("printing")
    return x.cos()


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.second = torch.nn.Linear(8, 2)
        self.register_buffer("offset", torch.ones(2))
        self.name = "network"

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.second(self.first(x).relu()) * scale + self.offset

    def halved(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x) / 2


# -- compile -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["magneto", "inductor", "aot_eager", "eager"])
def test_function(backend: str) -> None:
    compiled = magneto.compile(add_one, backend=backend)
    for value in (X, X * 2):
        assert torch.equal(compiled(value), value + 1)
    stats = magneto.stats()
    assert (stats["frames"], stats["graphs"], stats["ops"], stats["breaks"], stats["recompiles"]) == (1, 1, 1, 0, 0)


def test_compiled_functions_look_like_their_original() -> None:
    compiled = magneto.compile(add_one)
    assert (compiled.__name__, compiled.__doc__, compiled.__module__) == ("add_one", "Adds one.", __name__)
    assert compiled.__wrapped__ is add_one


def test_decorator_without_arguments() -> None:
    @magneto.compile
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert torch.equal(function(X), X * 2)
    assert magneto.stats()["graphs"] == 1


def test_decorator_with_arguments() -> None:
    @magneto.compile(fullgraph=True, backend="eager")
    def function(x: torch.Tensor, *, times: int = 3) -> torch.Tensor:
        return x * times

    assert torch.equal(function(X), X * 3)
    assert torch.equal(function(X, times=4), X * 4)
    assert magneto.stats()["graphs"] == 2


def test_methods() -> None:
    network = Network()
    compiled = magneto.compile(network.halved)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), network.halved(X))
    assert magneto.stats()["graphs"] == 1


def test_decorated_method() -> None:
    class Scaler:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        @magneto.compile
        def scale(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

        @staticmethod
        @magneto.compile
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @classmethod
        @magneto.compile
        def named(cls, x: torch.Tensor) -> Any:
            return x + 1, cls.__name__

    assert torch.equal(Scaler(2.0).scale(X), X * 2)
    assert torch.equal(Scaler(3.0).scale(X), X * 3)
    assert torch.equal(Scaler.double(X), X * 2)
    assert Scaler.named(X)[1] == "Scaler"


def test_compiling_twice_is_compiling_once() -> None:
    once = magneto.compile(add_one)
    twice = magneto.compile(once)
    assert twice.__wrapped__ is add_one
    module = magneto.compile(magneto.compile(Network()))
    assert isinstance(module._orig_mod, Network)


def test_disable_argument_gives_the_original() -> None:
    assert magneto.compile(add_one, disable=True) is add_one
    with magneto.config.patch(disable=True):
        assert magneto.compile(add_one) is add_one


def test_custom_backend() -> None:
    given: list[Any] = []

    def backend(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        given.append((graph_module, example_inputs))
        return lambda *inputs: [value * 10 for value in graph_module(*inputs)]

    compiled = magneto.compile(add_one, backend=backend)
    assert torch.equal(compiled(X), (X + 1) * 10)
    [(graph_module, [example])] = given
    assert isinstance(graph_module, torch.fx.GraphModule)
    assert torch.equal(example, X)
    assert "+ 1" in graph_module.code or "add" in graph_module.code


def test_custom_backend_gets_mode_and_options() -> None:
    given: dict[str, Any] = {}

    def backend(graph_module: Any, example_inputs: Any, **arguments: Any) -> Callable[..., Any]:
        given.update(arguments)
        return graph_module.forward

    magneto.compile(add_one, backend=backend, options={"anything": 1})(X)
    assert given == {"options": {"anything": 1}}
    given.clear()
    magneto.compile(add_one, backend=backend, mode="max-autotune")(X)
    assert given == {"mode": "max-autotune"}


def test_backend_that_raises() -> None:
    def backend(graph_module: Any, example_inputs: Any) -> Callable[..., Any]:
        raise ZeroDivisionError("in the backend")

    with pytest.raises(exc.BackendFailed) as caught:
        magneto.compile(add_one, backend=backend)(X)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.lenient
def test_suppressed_errors_go_on() -> None:  # what they say: tests/test_messages.py
    def backend(graph_module: Any, example_inputs: Any) -> Callable[..., Any]:
        raise ZeroDivisionError("in the backend")

    with magneto.config.patch(suppress_errors=True):
        assert torch.equal(magneto.compile(add_one, backend=backend)(X), X + 1)


def test_registered_backend() -> None:
    @magneto.register_backend(name="tests_own_backend")
    def backend(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return graph_module.forward

    assert "tests_own_backend" in magneto.list_backends()
    assert torch.equal(magneto.compile(add_one, backend="tests_own_backend")(X), X + 1)
    with pytest.raises(exc.InvalidValue, match="already registered"):
        magneto.register_backend(lambda graph_module, example_inputs: None, name="tests_own_backend")
    with pytest.raises(exc.InvalidValue, match="own backends"):
        magneto.register_backend(backend, name="eager")


def test_list_backends() -> None:
    assert {"magneto", "inductor", "aot_eager", "eager"} <= set(magneto.list_backends())


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"backend": "agere"}, exc.InvalidBackend, ["'agere'", "'eager'", "'magneto'"]),
        ({"backend": "indutor"}, exc.InvalidBackend, ["Did you mean 'inductor'?"]),
        ({"backend": 3}, exc.InvalidValue, ["backend", "3"]),
        ({"mode": "max_autotun"}, exc.InvalidMode, ["Did you mean 'max-autotune'?", "'reduce-overhead'"]),
        ({"options": {"cache_limit": 3}}, exc.InvalidOption, ["Did you mean 'cache_size_limit'?"]),
        ({"options": {"cache_size_limit": "3"}}, exc.InvalidValue, ["cache_size_limit", "int"]),
        ({"options": 3}, exc.InvalidValue, ["options"]),
        ({"options": {}, "mode": "default"}, exc.InvalidValue, ["mode", "options"]),
        ({"fullgraph": 1}, exc.InvalidValue, ["fullgraph"]),
        ({"dynamic": "yes"}, exc.InvalidValue, ["dynamic"]),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], words: list[str]) -> None:
    for attempt in (lambda: magneto.compile(add_one, **arguments), lambda: magneto.compile(**arguments)):
        with pytest.raises(error) as caught:
            attempt()
        for word in words:
            assert word in str(caught.value)


def test_unknown_argument() -> None:
    with pytest.raises(TypeError, match="fullgrap"):
        magneto.compile(add_one, fullgrap=True)  # type: ignore[call-overload]


@pytest.mark.parametrize("value", [3, "add_one", int, Network])
def test_what_can_not_be_compiled(value: Any) -> None:
    with pytest.raises(exc.InvalidValue, match="takes a function, a method or a module"):
        magneto.compile(value)


# -- compiled modules ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["magneto", "aot_eager", "eager"])
def test_module(backend: str) -> None:
    network = Network()
    compiled = magneto.compile(network, backend=backend)
    assert isinstance(compiled, torch.nn.Module)
    with torch.no_grad():
        for scale in (1.0, 1.0, 2.0):
            torch.testing.assert_close(compiled(X, scale=scale), network(X, scale=scale))
    assert magneto.stats()["graphs"] == 2


def test_module_attributes() -> None:
    network = Network()
    compiled = magneto.compile(network)
    assert compiled.name == "network" and compiled.first is network.first
    compiled.name = "renamed"
    assert network.name == "renamed"
    compiled.extra = torch.nn.Linear(1, 1)
    assert network.extra is compiled.extra
    del compiled.extra
    assert not hasattr(network, "extra")
    assert "halved" in dir(compiled)
    with pytest.raises(AttributeError, match="missing"):
        compiled.missing  # noqa: B018


def test_module_names_are_those_of_torch_compile() -> None:
    network = Network()
    compiled = magneto.compile(network)
    names = [f"_orig_mod.{name}" for name in network.state_dict()]
    assert list(compiled.state_dict()) == names
    assert [name for name, _ in compiled.named_parameters()] == [name for name in names if "offset" not in name]
    assert all(left is right for left, right in zip(compiled.parameters(), network.parameters(), strict=True))
    other = magneto.compile(Network())
    other.load_state_dict(compiled.state_dict())
    assert torch.equal(other.first.weight, network.first.weight)


def test_module_train_and_eval() -> None:
    network = torch.nn.Sequential(torch.nn.Dropout(0.5))
    compiled = magneto.compile(network)
    assert compiled.training
    assert torch.equal(compiled.eval()(X), X)
    assert not network.training and not network[0].training
    compiled.train()
    assert network.training and network[0].training
    torch.manual_seed(1)
    want = network(X)
    torch.manual_seed(1)
    assert torch.equal(compiled(X), want)


def test_module_conversion() -> None:
    network = Network()
    compiled = magneto.compile(network)
    with torch.no_grad():
        compiled(X)
        assert compiled.double() is compiled
        assert network.first.weight.dtype == torch.float64
        torch.testing.assert_close(compiled(X.double()), network(X.double()))


def test_module_hooks() -> None:
    network = Network()
    compiled = magneto.compile(network)
    with torch.no_grad():
        plain = compiled(X)
        handle = compiled.register_forward_hook(lambda module, args, output: output + 100)
        torch.testing.assert_close(compiled(X), plain + 100)
        torch.testing.assert_close(network(X), plain + 100)
        before = network.register_forward_pre_hook(lambda module, args: (args[0] * 0,))
        torch.testing.assert_close(compiled(X), network(X))
        before.remove()
        handle.remove()
        torch.testing.assert_close(compiled(X), plain)


def test_module_copies_and_pickles() -> None:
    compiled = magneto.compile(Network(), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        want = compiled(X)
        for other in (copy.deepcopy(compiled), copy.copy(compiled), pickle.loads(pickle.dumps(compiled))):
            assert isinstance(other, magneto.OptimizedModule)
            assert torch.equal(other(X), want)
        duplicate = copy.deepcopy(compiled)
        duplicate.first.weight.zero_()
        assert torch.equal(compiled(X), want) and not torch.equal(duplicate(X), want)
        buffer = io.BytesIO()
        torch.save(compiled.state_dict(), buffer)
        # The original copies and pickles as if it had never been compiled.
        original = compiled._orig_mod
        for other in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
            assert type(other) is Network and torch.equal(other(X), want)


def test_module_in_a_module() -> None:
    outer = torch.nn.Sequential(magneto.compile(Network()), torch.nn.ReLU())
    with torch.no_grad():
        torch.testing.assert_close(outer(X), outer[0]._orig_mod(X).relu())
        whole = magneto.compile(outer)
        torch.testing.assert_close(whole(X), outer(X))


def test_module_is_trained() -> None:
    torch.manual_seed(0)
    ours, x, y = Network(), torch.randn(16, 4), torch.randn(16, 2)
    theirs = copy.deepcopy(ours)
    compiled = magneto.compile(ours)
    for module, call in ((ours, compiled), (theirs, theirs)):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(call(x), y).backward()
            optimizer.step()
    for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(left, right)


def test_module_containers() -> None:
    compiled = magneto.compile(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh()))
    assert len(compiled) == 2 and isinstance(compiled[1], torch.nn.Tanh)
    assert [type(layer).__name__ for layer in compiled] == ["ReLU", "Tanh"]
    assert bool(magneto.compile(torch.nn.ReLU()))
    with pytest.raises(TypeError):
        len(magneto.compile(torch.nn.ReLU()))


def test_a_hit_runs_no_python() -> None:
    compiled = magneto.compile(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), backend="aot_eager")
    with torch.no_grad():
        compiled(X)
        compiled(X)
        assert _testing.frames_test(functools.partial(compiled, X)) == 0
        assert _testing.frames_test(lambda: compiled(X)) == 1


# -- guards and recompiling ------------------------------------------------------------------------------------------


def test_recompiles_are_counted() -> None:
    compiled = magneto.compile(add_one, dynamic=False)
    for value in (X, X.double(), torch.ones(2, 2), X, X.double()):
        assert torch.equal(compiled(value), value + 1)
    stats = magneto.stats()
    assert (stats["graphs"], stats["recompiles"], stats["cache_entries"]) == (3, 2, 3)


def test_globals_closures_and_defaults_are_guarded() -> None:
    factor = 2.0

    def function(x: torch.Tensor, power: int = 2) -> torch.Tensor:
        return (x**power) * factor + OFFSETS["value"]

    compiled = magneto.compile(function)
    global OFFSETS
    for factor, offset in ((2.0, 0.0), (3.0, 0.0), (3.0, 5.0)):  # noqa: B007
        OFFSETS = {"value": offset}
        torch.testing.assert_close(compiled(X), function(X))
    function.__defaults__ = (3,)
    torch.testing.assert_close(compiled(X), function(X))


OFFSETS = {"value": 0.0}


def test_grad_mode_is_guarded() -> None:
    compiled = magneto.compile(add_one)
    leaf = X.clone().requires_grad_()
    assert compiled(leaf).requires_grad
    with torch.no_grad():
        assert not compiled(leaf).requires_grad
    assert compiled(leaf).requires_grad


@pytest.mark.lenient
def test_cache_limit_is_visible() -> None:
    def function(x: torch.Tensor, number: int) -> torch.Tensor:
        return x.repeat(number + 1)

    with magneto.config.patch(cache_size_limit=2):
        compiled = magneto.compile(function, dynamic=False)
        with pytest.warns(RuntimeWarning, match="cache_size_limit"):
            for number in range(4):
                assert torch.equal(compiled(X, number), X.repeat(number + 1))
    assert magneto.stats()["cache_entries"] == 2


@pytest.mark.lenient
def test_accumulated_cache_limit_is_visible() -> None:
    def make(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: x + number

    with magneto.config.patch(accumulated_cache_size_limit=3):
        compiled = [magneto.compile(make(number)) for number in range(5)]
        with pytest.warns(RuntimeWarning, match="accumulated_cache_size_limit"):
            for number, function in enumerate(compiled):
                assert torch.equal(function(X), X + number)
        assert magneto.stats()["cache_entries"] == 3
        assert magneto.stats()["fallbacks"] == {"accumulated_cache_size_limit": 2}
        del compiled, function  # what is gone does not count
        assert torch.equal(magneto.compile(make(9), fullgraph=True)(X), X + 9)
        assert magneto.stats()["cache_entries"] == 4


@pytest.mark.parametrize("in_place", [False, True])
def test_each_compiled_module_has_limits_of_its_own(in_place: bool) -> None:
    blocks = [torch.nn.Linear(3, width + 1) for width in range(8)]
    with magneto.config.patch(accumulated_cache_size_limit=3):
        called: list[Any] = [magneto.compile(block, backend="aot_eager") for block in blocks]
        if in_place:
            called = [magneto.compile(block._call_impl, backend="aot_eager") for block in blocks]
        for _ in range(2):
            for function in called:
                function(torch.ones(2, 3))
    assert magneto.stats()["frames"] == len(blocks)
    assert not magneto.stats()["fallbacks"]


def test_error_on_recompile() -> None:
    compiled = magneto.compile(add_one, dynamic=False)
    compiled(X)
    with magneto.config.patch(error_on_recompile=True):
        compiled(X)
        with pytest.raises(exc.RecompileError, match=r"L\['x'\]"):
            compiled(torch.ones(2, 2))


def test_reset_forgets() -> None:
    compiled = magneto.compile(add_one)
    compiled(X)
    magneto.reset()
    stats = magneto.stats()
    assert (stats["graphs"], stats["cache_entries"]) == (0, 0)
    assert torch.equal(compiled(X), X + 1)
    assert magneto.stats()["graphs"] == 1


def test_wrong_call_is_pythons_error() -> None:
    compiled = magneto.compile(add_one)
    for call in (lambda f: f(), lambda f: f(X, X), lambda f: f(y=X)):
        with pytest.raises(TypeError) as want:
            call(add_one)
        with pytest.raises(TypeError) as got:
            call(compiled)
        assert str(got.value) == str(want.value)


@pytest.mark.threads
def test_threads() -> None:
    compiled = magneto.compile(Network())
    network = compiled._orig_mod
    failures: list[BaseException] = []

    def work(size: int) -> None:
        try:
            x = torch.randn(size, 4)
            with torch.no_grad():
                for _ in range(50):
                    torch.testing.assert_close(compiled(x), network(x))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(size,)) for size in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# -- the other functions -----------------------------------------------------------------------------------------------


def test_stats_keys() -> None:
    keys = {"frames", "graphs", "ops", "breaks", "break_reasons", "recompiles", "cache_entries", "fallbacks"}
    assert keys <= set(magneto.stats())


def test_disable() -> None:
    compiling: list[bool] = []

    @magneto.disable
    def outside(x: torch.Tensor) -> torch.Tensor:
        compiling.append(magneto.is_compiling())
        return x * 2

    compiled = magneto.compile(lambda x: outside(x + 1) - 1)
    assert torch.equal(compiled(X), (X + 1) * 2 - 1)
    assert compiling == [False]
    assert magneto.stats()["breaks"] == 1
    assert outside.__name__ == "outside"


def test_disable_without_recursion() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    compiled_inner = magneto.compile(inner)

    @magneto.disable(recursive=False)
    def outside(x: torch.Tensor) -> torch.Tensor:
        return compiled_inner(x) + 1

    assert torch.equal(outside(X), X * 3 + 1)
    assert magneto.stats()["graphs"] == 1


def test_disable_as_context_manager() -> None:
    compiled = magneto.compile(add_one)
    with magneto.disable():
        assert torch.equal(compiled(X), X + 1)
        with magneto.disable():
            compiled(X)
        compiled(X)
    assert magneto.stats()["graphs"] == 0
    compiled(X)
    assert magneto.stats()["graphs"] == 1


def test_is_compiling() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        if magneto.is_compiling() and torch.compiler.is_compiling():
            return x + 1
        return x - 1

    assert not magneto.is_compiling()
    assert torch.equal(magneto.compile(function, fullgraph=True)(X), X + 1)
    assert torch.equal(function(X), X - 1)


def test_allow_in_graph() -> None:
    @magneto.allow_in_graph
    def opaque(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    targets: list[Any] = []

    def backend(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        targets.extend(node.target for node in graph_module.graph.nodes if node.op == "call_function")
        return graph_module.forward

    compiled = magneto.compile(lambda x: opaque(x) * 2, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(X), opaque(X) * 2)
    assert opaque in targets and len(targets) == 2


def test_assume_constant_result() -> None:
    calls: list[int] = []

    @magneto.assume_constant_result
    def number() -> int:
        calls.append(1)
        return len(calls)

    compiled = magneto.compile(lambda x: x + number(), fullgraph=True)
    assert torch.equal(compiled(X), X + 1)
    assert torch.equal(compiled(X), X + 1)
    assert calls == [1]


def test_explain() -> None:
    for report in (magneto.explain(printing)(X), magneto.explain(printing, X)):
        assert (report.graph_count, report.graph_break_count, report.op_count) == (2, 1, 2)
        assert len(report.graphs) == 2 and [len(operators) for operators in report.ops_per_graph] == [1, 1]
        [reason] = report.break_reasons
        assert reason.reason
        assert reason.user_stack[-1].lineno == printing.__code__.co_firstlineno + 2
        assert reason.user_stack[-1].filename == __file__
        assert report.out_guards
        text = str(report)
        for line in ("Graph Count: 2", "Graph Break Count: 1", "Op Count: 2", "Break Reasons:", "Ops per Graph:"):
            assert line in text
        assert "Out Guards:" in text and "Compile Times:" in text


def test_explain_a_module() -> None:
    report = magneto.explain(magneto.compile(Network()))(X)
    assert (report.graph_count, report.graph_break_count) == (1, 0)
    assert report.op_count >= 5


# -- config ------------------------------------------------------------------------------------------------------------


def test_settings() -> None:
    assert magneto.config.cache_size_limit == 8
    magneto.config.cache_size_limit = 9
    try:
        assert magneto.config.current()["cache_size_limit"] == 9
    finally:
        magneto.config.cache_size_limit = 8
    for name in magneto.config.SETTINGS:
        assert name in magneto.config.help() and name in dir(magneto.config)


def test_unknown_setting() -> None:
    for attempt in (
        lambda: setattr(magneto.config, "cache_limit", 3),
        lambda: magneto.config.cache_limit,
        lambda: magneto.config.patch(cache_limit=3),
        lambda: magneto.config.help("cache_limit"),
    ):
        with pytest.raises(exc.InvalidSetting, match="Did you mean 'cache_size_limit'") as caught:
            attempt()
        assert "'suppress_errors'" in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("cache_size_limit", "8"), ("cache_size_limit", True), ("verbose", 1)])
def test_setting_of_a_wrong_type(name: str, value: Any) -> None:
    with pytest.raises(exc.InvalidValue, match=name):
        setattr(magneto.config, name, value)
    with pytest.raises(exc.InvalidValue, match="at least 1"):
        magneto.config.cache_size_limit = 0


def test_patch() -> None:
    with magneto.config.patch(cache_size_limit=3, verbose=True):
        assert (magneto.config.cache_size_limit, magneto.config.verbose) == (3, True)
        with magneto.config.patch({"cache_size_limit": 4}):
            assert magneto.config.cache_size_limit == 4
        assert magneto.config.cache_size_limit == 3

    @magneto.config.patch("cache_size_limit", 5)
    def patched(again: bool) -> list[int]:
        return [magneto.config.cache_size_limit, *(patched(False) if again else [])]

    assert patched(True) == [5, 5]
    with pytest.raises(ZeroDivisionError), magneto.config.patch(verbose=True):
        raise ZeroDivisionError
    assert (magneto.config.cache_size_limit, magneto.config.verbose) == (8, False)


# -- logs, warnings, versions ------------------------------------------------------------------------------------------

LOGGED = """
import torch, magneto
def function(x):
    x = x.sin()
    print("middle")
    return x.cos()
compiled = magneto.compile(function, dynamic=False)
compiled(torch.ones(3))
compiled(torch.ones(4))
"""


def logged(**settings: str) -> str:
    process = fresh.python("-c", LOGGED, env={**{k: v for k, v in os.environ.items() if k != "TORCH_LOGS"}, **settings})
    assert process.returncode == 0, process.stderr
    return process.stderr


def test_logs() -> None:
    assert logged() == ""
    text = logged(TORCH_LOGS="graph_breaks,guards,recompiles,graph_code")
    for artifact in ("graph_breaks", "guards", "recompiles", "graph_code"):
        assert f"[__{artifact}]" in text
    assert "L['x']" in text
    assert "size mismatch at index 0. expected 3, actual 4" in text
    assert "sin" in text and "cos" in text


def test_one_log_does_not_turn_on_another() -> None:
    text = logged(TORCH_LOGS="graph_breaks")
    assert "[__graph_breaks]" in text and "[__guards]" not in text


def test_logs_can_be_set_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_LOGS", raising=False)
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    try:
        torch._logging.set_logs(guards=True)
        logger = logging.getLogger("torch._dynamo")
        logger.addHandler(handler)
        magneto.compile(add_one)(X)
        assert any("L['x']" in record.getMessage() for record in records)
    finally:
        logging.getLogger("torch._dynamo").removeHandler(handler)
        torch._logging.set_logs()


def test_no_warnings_on_the_usual_path() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        magneto.compile(add_one)(X)
        with torch.no_grad():
            magneto.compile(Network())(X)


def test_another_pytorch_is_refused() -> None:
    code = "import torch; torch.__version__ = '2.99.0'\ntry: import magneto\nexcept ImportError as e: print(e)"
    output = fresh.python("-c", code, timeout=60).stdout
    assert "2.99.0" in output and torch.__version__.partition("+")[0] in output and "make build" in output
