"""What steers captures under torch.compile's names: each has its effect, or says that it has none."""

from __future__ import annotations

import functools
import operator
import unittest
import unittest.mock
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import magneto
from magneto import exc

pytestmark = pytest.mark.usefixtures("installed")
X = torch.ones(3)


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def counted(name: str, run: Callable[[], Any]) -> int:
    """By how much a count of stats() grows."""
    before = magneto.stats()[name]
    run()
    return magneto.stats()[name] - before


def said(run: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(one.message) for one in caught]


# Compiled callables.


def test_a_compiled_function_may_be_the_wrapper_of_another() -> None:
    compiled = functools.wraps(add_one)(torch.compile(lambda x: x * 2))
    assert compiled.__wrapped__ is add_one and compiled.__name__ == "add_one" and torch.equal(compiled(X), X * 2)
    assert torch.equal(compiled._torchdynamo_orig_callable(X), X * 2)
    assert torch.equal(magneto.compile(compiled)(X), X * 2)


def test_what_was_compiled_and_how_can_be_asked_for() -> None:
    compiled = torch.compile(add_one, options={"max_autotune": True})
    assert compiled._torchdynamo_orig_callable is add_one
    assert compiled.get_compiler_config()["max_autotune"] is True
    module = torch.compile(torch.nn.Linear(3, 3))
    assert torch.equal(module.dynamo_ctx(add_one)(X), X + 1)


@pytest.mark.parametrize("model", [add_one, torch.nn.Linear(3, 3)])
def test_scripts_of_compiled_callables_are_those_of_the_originals(model: Any) -> None:
    assert torch.equal(torch.jit.script(torch.compile(model))(X), model(X))


def test_classes() -> None:
    @torch.compile(backend="eager")
    class Double(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    @torch.compile(backend="eager")
    class Triple:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * 3

    assert counted("graphs", lambda: torch.equal(Double()(X), X * 2) and torch.equal(Triple()(X), X * 3)) == 2
    with pytest.raises(exc.InvalidValue, match="can't be called"):
        torch.compile(type("Plain", (), {}))


def test_wrong_arguments_say_so() -> None:
    for call in (
        lambda: torch.compile(add_one, mode=["default"]),
        lambda: torch.compile(add_one, mode=3),
        lambda: torch.compile(add_one, backend=["eager"]),
        lambda: magneto.config.patch(3),
        lambda: torch._dynamo.config.patch([1]),
        lambda: magneto.set_stance(["default"]),
    ):
        with pytest.raises(exc.MagnetoError):
            call()


# Settings.


def test_settings_are_patched_as_mock_patches_them() -> None:
    for target, name, value in (
        (torch._dynamo.config, "suppress_errors", True),
        (torch._dynamo.config, "verbose", True),
        (torch._dynamo.config, "optimize_ddp", False),
        (torch._inductor.config, "max_autotune", True),
        (torch._inductor.config.triton, "cudagraphs", True),
        (torch._inductor.config.cpp, "threads", 3),
    ):
        before = getattr(target, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with unittest.mock.patch.object(target, name, value):
                assert getattr(target, name) == value
        assert getattr(target, name) == before


def test_modes_of_data_parallel_training() -> None:
    """torch._dynamo.config.optimize_ddp: a bool, or what PyTorch calls it."""
    for mode, cuts in ((False, False), ("no_optimization", False), (True, True), ("ddp_optimizer", True)):
        with torch._dynamo.config.patch(optimize_ddp=mode):
            assert magneto.config.optimize_ddp is cuts
            assert torch._dynamo.utils.get_optimize_ddp_mode() == ("ddp_optimizer" if cuts else "no_optimization")
    with pytest.raises(exc.InvalidValue, match="optimize_ddp is one of"):
        torch._dynamo.config.optimize_ddp = "some"


@pytest.mark.parametrize("config", ["torch._dynamo.config", "magneto.config"])
def test_settings_are_patched_for_a_class_of_tests(config: str) -> None:
    patch = eval(config, {"torch": torch, "magneto": magneto}).patch

    @patch(cache_size_limit=3)
    class Test(unittest.TestCase):
        def test_it(self) -> None:
            assert magneto.config.cache_size_limit == 3

    assert isinstance(Test, type)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Test).run(result)
    assert result.testsRun == 1 and result.wasSuccessful(), result.errors
    assert magneto.config.cache_size_limit == 8


def test_settings_that_are_no_constants_of_the_source_have_their_values() -> None:
    assert torch._inductor.config.is_fbcode() is False
    assert isinstance(torch._inductor.config.cpp.cxx, tuple) and torch._dynamo.config.debug_dir_root is not None
    assert "max_autotune" in torch._inductor.config.shallow_copy_dict()
    torch._inductor.config.load_config({"max_autotune": True})
    assert magneto.config.max_autotune
    magneto.config.max_autotune = False


def test_settings_and_options_without_effect_say_so() -> None:
    def set_them() -> None:
        torch._inductor.config.freezing = True
        torch._dynamo.config.guard_nn_modules = False
        torch._inductor.config.freezing = False
        torch._dynamo.config.guard_nn_modules = True

    assert [line.split(" changes")[0] for line in said(set_them)] == [
        "torch._inductor.config.freezing",
        "torch._dynamo.config.guard_nn_modules",
    ]
    for name, value in {
        "trace.graph_diagram": True,
        "epilogue_fusion": False,
        "freezing": True,
        "trace.debug_dir": "x",
        "triton.cudagraphs": True,
        "max_fusion_size": 3,
    }.items():
        before = magneto.config.current()
        (line,) = said(lambda name=name, value=value: torch.compile(add_one, options={name: value})(X))
        assert name in line and "changes" in line and magneto.config.current() == before
        assert not said(lambda name=name, value=value: torch.compile(add_one, options={name: value})(X))


def test_options_of_one_callable_hold_for_it_alone() -> None:
    before = magneto.config.current()
    torch.compile(lambda x: x * 17, options={"fx_graph_cache": False, "max_autotune": False})(X)
    assert magneto.config.current() == before
    with pytest.raises(exc.InvalidOption, match="max_autotun"):
        torch._inductor.compile(torch.fx.symbolic_trace(add_one), [X], options={"max_autotun": True})


def test_arguments_of_marks_without_effect_say_so() -> None:
    for mark in (
        lambda: magneto.mark_dynamic(torch.ones(3), 0, hint_override=5),
        lambda: magneto.mark_dynamic(torch.ones(3), 0, specialize_on=[lambda size: size == 3]),
        lambda: magneto.mark_unbacked(torch.ones(3), 0, strict=True),
    ):
        (line,) = said(mark)
        assert "changes nothing" in line


def test_the_mode_lite_generates_no_code() -> None:
    assert counted("kernels", lambda: torch.compile(lambda x: x * 2 + 1, mode="lite")(X)) == 0


# Marks, regions, stances.


def test_a_function_is_disallowed() -> None:
    torch._dynamo.disallow_in_graph([torch.special.erfcx])

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.special.erfcx(x.sin()).cos()

    compiled = torch.compile(function, backend="eager")
    assert counted("breaks", lambda: torch.equal(compiled(X), function(X))) == 1


def test_a_function_is_forbidden() -> None:
    def never(x: torch.Tensor) -> torch.Tensor:
        return x

    assert torch._dynamo.forbid_in_graph(never) is never
    with pytest.raises(AssertionError, match="forbidden callable .*never"):
        torch.compile(lambda x: never(x) + 1, backend="eager")(X)
    assert never(X) is X


def test_a_function_is_substituted() -> None:
    def index_of(a: Any, b: Any, /) -> int:
        for index, item in enumerate(a):
            if item == b:
                return index
        raise ValueError("sequence.index(x): x not in sequence")

    with pytest.raises(TypeError, match="Signature mismatch"):
        torch._dynamo.substitute_in_graph(operator.indexOf)(lambda a: a)
    wrapped = torch._dynamo.substitute_in_graph(operator.indexOf)(index_of)
    assert wrapped([1, 2], 2) == 1
    compiled = torch.compile(lambda x: x * operator.indexOf([5, 6, 7], 7), backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), X * 2)
    with pytest.raises(ValueError, match="Duplicate"):
        torch._dynamo.substitute_in_graph(operator.indexOf)(index_of)


def test_a_function_is_traced_without_looking_inside() -> None:
    @torch._dynamo.nonstrict_trace
    def opaque(tensors: dict[str, torch.Tensor], factor: int) -> torch.Tensor:
        torch._dynamo.graph_break()
        return tensors["a"] * factor

    compiled = torch.compile(lambda x: opaque({"a": x.sin()}, 2) + 1, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), X.sin() * 2 + 1)


def breaks_inside(x: torch.Tensor, on: bool) -> torch.Tensor:
    x = x + 1
    with torch._dynamo.error_on_graph_break(on):
        x = x * 2
        torch._dynamo.graph_break()
        x = x * 3
    torch._dynamo.graph_break()
    return x + 1


def test_breaks_are_errors_in_regions() -> None:
    want = (X + 1) * 6 + 1
    assert torch.equal(torch.compile(breaks_inside, backend="eager")(X, False), want)
    with pytest.raises(exc.Unsupported):
        torch.compile(breaks_inside, backend="eager")(X, True)
    compiled = torch.compile(breaks_inside, backend="eager")
    with torch._dynamo.error_on_graph_break(True), pytest.raises(exc.Unsupported):
        compiled(X, False)  # the break behind the inner region

    @torch._dynamo.error_on_graph_break(True)
    def all_of_it(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x

    with pytest.raises(exc.Unsupported):
        torch.compile(all_of_it, backend="eager")(X)
    for _ in range(2):  # no region is left over
        assert torch.equal(torch.compile(breaks_inside, backend="eager")(X, False), want)


def test_the_rest_of_a_frame_is_skipped() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch._dynamo.skip_frame("the rest is CPython's")
        return x.sin().cos()

    compiled = torch.compile(function, backend="eager")
    assert counted("graphs", lambda: [compiled(X), compiled(X)]) == 1
    assert torch.equal(compiled(X), function(X))
    with pytest.raises(exc.Unsupported):
        torch.compile(function, backend="eager", fullgraph=True)(X)


def test_a_backend_is_forced() -> None:
    graphs: list[Any] = []

    def backend(gm: Any, example_inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    compiled = torch.compile(lambda x: x * 19)
    want = compiled(X)
    with torch.compiler.set_stance(force_backend=backend):
        assert torch.equal(compiled(X), want) and torch.equal(compiled(X), want) and len(graphs) == 1
    compiled(X)
    decorated = magneto.set_stance(force_backend=backend)(lambda: torch.compile(lambda x: x * 23)(X))
    assert counted("kernels", decorated) == 0 and len(graphs) == 2
    assert counted("kernels", lambda: torch.compile(lambda x: x * 29)(X)) == 1
    with pytest.raises(RuntimeError, match="non-default stance"):
        torch.compiler.set_stance("force_eager", force_backend="eager")


def test_compiles_are_told_of() -> None:
    events: list[tuple[str, str]] = []
    start = torch._dynamo.on_compile_start(lambda args: events.append(("start", args.compile_id)))
    end = torch._dynamo.on_compile_end(lambda args: events.append(("end", args.compile_id)))
    try:
        compiled = torch.compile(add_one, backend="eager")
        compiled(X)
        compiled(X)
        assert [name for name, _ in events] == ["start", "end"] and len({number for _, number in events}) == 1
    finally:
        torch._dynamo.callback.callback_handler.remove_start_callback(start)
        torch._dynamo.callback.callback_handler.remove_end_callback(end)
    torch.compile(lambda x: x * 31, backend="eager")(X)
    assert len(events) == 2


def test_guards_that_fail_are_told_of() -> None:
    failures: list[Any] = []
    compiled = torch._dynamo.optimize("eager", guard_fail_fn=failures.append, dynamic=False)(add_one)
    compiled(torch.ones(3))
    assert not failures
    compiled(torch.ones(4))
    (failure,) = failures
    assert "size mismatch" in failure.reason and failure.orig_code is add_one.__code__
    torch._dynamo.callback.callback_handler.clear()


def test_limits_are_errors_where_the_documents_say() -> None:
    compiled = torch.compile(lambda x: x * 37, backend="eager", fullgraph=True, recompile_limit=1, dynamic=False)
    compiled(torch.ones(2))
    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit, match="size mismatch"):
        compiled(torch.ones(3))
    compiled = torch.compile(lambda x: x * 41, backend="eager", recompile_limit=1, dynamic=False)
    compiled(torch.ones(2))
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        with pytest.raises(torch._dynamo.exc.RecompileLimitExceeded):
            compiled(torch.ones(3))


# Backends and counts.


def test_a_backend_that_ends_in_compile_fx() -> None:
    def backend(gm: Any, example_inputs: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(gm, example_inputs)

    for fullgraph in (False, True):
        compiled = torch.compile(lambda x: x * 43 + 1, backend=backend, fullgraph=fullgraph)
        assert torch.equal(compiled(X), X * 43 + 1)


def test_kernels_are_counted() -> None:
    torch._inductor.metrics.reset()
    torch.compile(lambda x: x * 47)(X)
    assert torch._inductor.metrics.generated_kernel_count == 1
    torch._inductor.metrics.reset()
    assert torch._inductor.metrics.generated_kernel_count == 0


def test_a_backend_runs_under_modes() -> None:
    from torch._dynamo.backends.debugging import make_eager_backend_with_torch_function_mode
    from torch.overrides import TorchFunctionMode

    class Doubling(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {})) * 2

    backend = make_eager_backend_with_torch_function_mode(Doubling())
    assert torch.equal(torch.compile(torch.sin, backend=backend)(X), X.sin() * 2)


def test_a_failing_backend_is_what_programs_expect() -> None:
    def fails(gm: Any, example_inputs: Any) -> Any:
        raise KeyError("x")

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        torch.compile(add_one, backend=fails)(X)
    assert type(caught.value).__name__ == "BackendCompilerFailed"
    assert isinstance(caught.value.inner_exception, KeyError)
    assert isinstance(caught.value, torch._dynamo.exc.TorchDynamoException)


def test_comptime_knows_what_is_static() -> None:
    from torch._dynamo.comptime import comptime

    def static(x: torch.Tensor) -> torch.Tensor:
        comptime.assert_static(x.shape[0])
        return x * 2

    assert torch.equal(torch.compile(static, backend="eager", dynamic=False)(X), X * 2)
    with pytest.raises(AssertionError, match="expected static but got dynamic"):
        torch.compile(static, backend="eager", dynamic=True)(X)

    def forced(x: torch.Tensor) -> torch.Tensor:
        comptime.force_static(x.shape[0])
        comptime.assert_static(x.shape[0])
        return x * 2

    compiled = torch.compile(forced, backend="eager", dynamic=True)
    assert counted("graphs", lambda: [compiled(torch.ones(3)), compiled(torch.ones(4))]) == 2


def test_a_budget_for_saved_memory_by_the_peers_name() -> None:
    import torch._functorch.config as config

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8), torch.nn.Tanh())
    saved = []
    for budget in (1.0, 0.0):
        magneto.reset()
        with config.patch(activation_memory_budget=budget):
            assert magneto.config.activation_memory_budget == budget
            torch.compile(model)(torch.randn(4, 8, requires_grad=True)).sum().backward()
        saved.append(magneto.stats()["saved_bytes"])
    assert saved[0] > saved[1] and magneto.config.activation_memory_budget == 1
    with (
        pytest.warns(UserWarning, match="aggressive_recomputation changes nothing"),
        config.patch(aggressive_recomputation=True),
    ):
        pass


def test_the_breaks_in_optimizers_are_none() -> None:
    """PyTorch asks for two around each step, for what torch.compile makes of a whole one."""
    layer = torch.nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(layer.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = layer(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = torch.compile(step, fullgraph=True)
    assert counted("breaks", lambda: [compiled(X) for _ in range(3)]) == 0
