"""One framework's part of one benchmark, in a process of its own: `worker.py <benchmark> <framework> <json options>`.

Prints one JSON object on the last line of stdout. Frameworks: `magneto` and `peer` (torch.compile). Times in seconds.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "tests")]  # the patterns, the model zoo
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import exits
import sizes
import torch

Function = Callable[..., Any]


def timed(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


class Framework:
    """The same three operations for both."""

    def __init__(self, name: str) -> None:
        if name == "magneto":
            import magneto

            self.compile: Function = lambda fn, backend, dynamic=None: magneto.compile(
                fn, backend=backend, dynamic=dynamic
            )
            self.reset: Function = magneto.reset
            self.captures: Function = lambda: magneto.stats()["cache_entries"]
            self.held: Function = lambda: sum(magneto.stats()["memory"].values())
        else:
            import torch._dynamo as dynamo
            from torch._dynamo.utils import counters

            dynamo.config.cache_size_limit = 1000
            if name == "frozen":  # weights are constants, in the layout of the libraries
                from torch._inductor import config

                config.freezing = True
            self.compile = torch.compile
            self.reset = lambda: (dynamo.reset(), counters.clear())
            self.captures = lambda: counters["stats"]["unique_graphs"]
            self.held = lambda: 0
        self.name = name
        # What a first compile imports or initialises is not part of any figure.
        self.compile(lambda x: x * 2 + 1, backend="eager")(torch.ones(2))
        self.reset()

    def guard_check(self, compiled: Function, function: Function, values: dict[str, Any]) -> Callable[[int], float]:
        """Times one check of the guards of a function's capture, in seconds, after so many bytes were written."""
        if self.name == "magneto":
            from magneto import _testing

            inputs = tuple(value for value in values.values() if isinstance(value, torch.Tensor))
            return lambda evicted: _testing.time_guards(compiled, inputs, 20 if evicted else 2000, evicted)
        from torch._dynamo.eval_frame import _debug_get_cache_entry_list

        (entry,) = _debug_get_cache_entry_list(function.__code__)
        other = bytearray(64 << 20)

        def check(evicted: int) -> float:
            if not evicted:
                return timed(lambda: [entry.guard_manager.check(values) for _ in range(50)]) / 50
            times = []
            for turn in range(20):
                other[::64] = bytes([turn]) * (len(other) // 64)
                times.append(timed(lambda: entry.guard_manager.check(values)))
            return statistics.median(times)

        return check


# -- first call --------------------------------------------------------------------------------------------------------

_TEXT = {"vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
_LONG = {**_TEXT, "intermediate_size": 256, "max_position_embeddings": 128}
# name in the zoo: sizes of the config, sizes of the inputs
FIRST_CALL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bert": (_LONG, {}),
    "gpt2": ({"vocab_size": 1000, "n_embd": 128, "n_layer": 4, "n_head": 4}, {}),
    "llama": ({**_LONG, "num_key_value_heads": 2}, {}),
    "t5": ({"vocab_size": 1000, "d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 4}, {}),
    "vit": ({"hidden_size": 128, "num_hidden_layers": 4, "intermediate_size": 256}, {}),
    "resnet": ({"embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048], "depths": [3, 4, 6, 3]}, {}),
}


def first_call(framework: Framework, repeats: int) -> dict[str, Any]:
    """Per model: the first call of a fresh compile, and a later one of the same program."""
    import models

    result: dict[str, Any] = {}
    with torch.no_grad():
        for name, (sizes, shape) in FIRST_CALL.items():
            model, given = models.build(name, **sizes), models.inputs(name, **shape)
            model(**given)
            firsts, steadies = [], []
            for _ in range(repeats):
                framework.reset()
                compiled = framework.compile(model, backend="eager")
                firsts.append(timed(lambda: compiled(**given)))  # noqa: B023
                steadies.append(min(timed(lambda: compiled(**given)) for _ in range(5)))  # noqa: B023
            result[name] = {"first": firsts, "steady": steadies}
    return result


# -- import ------------------------------------------------------------------------------------------------------------


def import_time(name: str) -> dict[str, Any]:
    """Importing the framework after torch."""
    if name == "magneto":
        return {"seconds": timed(lambda: __import__("magneto"))}
    return {"seconds": timed(lambda: __import__("torch._dynamo"))}


# -- overhead of a call ------------------------------------------------------------------------------------------------


def plus_one() -> tuple[Function, tuple[Any, ...]]:
    return (lambda x: x + 1), (torch.ones(4),)


def forty_arguments() -> tuple[Function, tuple[Any, ...]]:
    names = ", ".join(f"a{index}" for index in range(40))
    scope: dict[str, Any] = {"torch": torch}
    exec(f"def forty({names}):\n    return torch.cat([{names}])\n", scope)
    return scope["forty"], tuple(torch.ones(2) for _ in range(40))


def hundred_layers() -> tuple[Function, tuple[Any, ...]]:
    layers: list[torch.nn.Module] = []
    for _ in range(100):
        layers += [torch.nn.Linear(8, 8), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers).eval(), (torch.ones(1, 8),)


OVERHEAD = {"x + 1": plus_one, "40 tensor arguments": forty_arguments, "100 layers": hundred_layers}


def per_call(function: Function, arguments: tuple[Any, ...], budget: float = 0.5) -> float:
    """Median over batches of the mean time of a call in a batch."""
    loops, spent = 1, 0.0
    while spent < budget / 25:  # a batch takes about a 20th of the budget
        start = time.perf_counter()
        for _ in range(loops):
            function(*arguments)
        spent = time.perf_counter() - start
        loops = loops * 2 if spent < budget / 25 else loops
    batches = []
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(loops):
            function(*arguments)
        batches.append((time.perf_counter() - start) / loops)
    return statistics.median(batches)


def own_time(function: Function, arguments: tuple[Any, ...]) -> float:
    """The operators alone: TorchScript's interpreter runs them in a loop, without Python and without fusing.

    Its own cost, some tens of nanoseconds per operator, is in the figure.
    """
    warnings.simplefilter("ignore")  # TorchScript is deprecated
    torch._C._jit_set_profiling_executor(False)
    torch._C._set_graph_executor_optimize(False)
    if isinstance(function, torch.nn.Module):
        function.requires_grad_(False)
    names = [f"a{index}" for index in range(len(arguments))]
    source = (
        "from torch import Tensor\n"
        f"def loop(n: int, {', '.join(f'{name}: Tensor' for name in names)}) -> Tensor:\n"
        f"    out = {names[0]}\n    for i in range(n):\n        out = body({', '.join(names)})\n    return out\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "own_time_loop.py"  # TorchScript reads the source of what it compiles
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("own_time_loop", path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        module.__dict__["body"] = torch.jit.trace(lambda *values: function(*values), arguments, check_trace=False)
        spec.loader.exec_module(module)
        loop = torch.jit.script(module.loop)
    loop(10, *arguments)
    return statistics.median(timed(lambda: loop(200, *arguments)) / 200 for _ in range(30))


def overhead(framework: Framework, backend: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    with torch.no_grad():
        for name, program in OVERHEAD.items():
            function, arguments = program()
            compiled = framework.compile(function, backend=backend)
            for _ in range(50):
                compiled(*arguments)
            result[name] = {"call": per_call(compiled, arguments), "eager": per_call(function, arguments)}
    return result


# -- steady state ------------------------------------------------------------------------------------------------------


def interleaved(ours: Function, eager: Function, budget: float) -> tuple[float, float]:
    """Seconds of a call of each: the least of batches that take turns, so that a busy machine is so for both."""

    def batch(function: Function, loops: int) -> float:
        return timed(lambda: [function() for _ in range(loops)]) / loops

    loops = [max(1, round(budget / 40 / max(batch(function, 1), 1e-7))) for function in (ours, eager)]
    times: tuple[list[float], list[float]] = ([], [])
    start = time.perf_counter()
    while len(times[0]) < 5 or time.perf_counter() - start < budget:
        for function, number, found in zip((ours, eager), loops, times, strict=True):
            found.append(batch(function, number))
    return min(times[0]), min(times[1])


def tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors_of(item)] if isinstance(value, (list, tuple)) else []


def check(
    name: str,
    compiled: Function,
    function: Function,
    arguments: Any,
    named: Any,
    exact: list[torch.Tensor] | None = None,
) -> None:
    """Results and changed arguments are eager's, or there is no figure.

    A result may differ from eager's where `exact`, the results of the same program on float64, says that it is no
    further off than twice eager's own, or than a millionth of the largest: some gradients are zero but for rounding (of
    a bias that a softmax takes away again).
    """
    found = []
    for call in (function, compiled):
        given = copy.deepcopy((arguments, named))
        torch.manual_seed(0)
        result = call(*given[0], **given[1])
        found.append(tensors_of([result, *given]))
    compare(name, found[0], found[1], exact)


def compare(
    name: str, wanted: list[torch.Tensor], found: list[torch.Tensor], exact: list[torch.Tensor] | None = None
) -> None:
    """The same of tensors that are there."""
    assert len(wanted) == len(found), f"{name}: {len(found)} results, eager {len(wanted)}"
    for number, (want, got) in enumerate(zip(wanted, found, strict=True)):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), f"{name}: another dtype or shape"
        scale = want.abs().max().item() if want.is_floating_point() and want.numel() else 0.0
        if torch.allclose(got, want, rtol=1e-3, atol=1e-4 * scale, equal_nan=True):
            continue
        assert exact is not None, f"{name}: other results"
        ours, eager = ((result - exact[number]).norm().item() for result in (got, want))
        assert ours <= max(2 * eager, 1e-6 * max(result.norm().item() for result in exact)), (
            f"{name}: result {number} is off by {ours:.3g}, eager's by {eager:.3g}"
        )


def resident() -> int:
    """Bytes of memory that the process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def steady(framework: Framework, backend: str, kind: str, row: str, batch: int, budget: float) -> dict[str, Any]:
    """Of patterns or of a model: the first call, a later call, and eager's."""
    programs: dict[str, tuple[Function, dict[str, Any], tuple[Any, ...]]] = {}
    if kind == "patterns":
        from patterns import patterns

        chosen = row.split(",") if row else None
        for name, (function, arguments) in patterns().items():
            if chosen is None or name in chosen:
                programs[name] = (function, {}, arguments)
    else:
        import steady_models

        programs[f"{row}, batch {batch}"] = (steady_models.build(row), steady_models.inputs(row, batch), ())
    result: dict[str, Any] = {}
    with torch.no_grad():
        for name, (function, named, arguments) in programs.items():

            def eager(function: Function = function, named: Any = named, arguments: Any = arguments) -> Any:
                return function(*arguments, **named)

            eager()
            framework.reset()
            before = resident()
            eager_peak = peak_during(eager) - before
            compiled = framework.compile(function, backend=backend)

            def ours(compiled: Function = compiled, named: Any = named, arguments: Any = arguments) -> Any:
                return compiled(*arguments, **named)

            first = timed(ours)
            grown = resident() - before
            held = framework.held()
            ours()
            peak = peak_during(ours) - before
            check(name, compiled, function, arguments, named)
            call, call_eager = interleaved(ours, eager, budget)
            result[name] = {
                "compile": first - call,
                "call": call,
                "eager": call_eager,
                "memory": grown,
                "held": held,
                "peak": peak,
                "eager peak": eager_peak,
            }
    return result


def training(framework: Framework, backend: str, row: str, batch: int, budget: float) -> dict[str, Any]:
    """Of a model: the first step (forward and backward), a later one, and eager's. Dropout is off: the peer draws other
    random numbers than eager."""
    import steady_models

    model, named = steady_models.build(row), steady_models.inputs(row, batch)

    # Of a model that ends in a norm the sum of squares has no gradient but rounding: so results have aims.
    with torch.random.fork_rng():
        aims = [torch.randn_like(x) for x in tensors_of(dict(model(**named))) if x.requires_grad]

    def step(forward: Function, of: torch.nn.Module = model, given: dict[str, Any] = named) -> list[torch.Tensor]:
        of.zero_grad()
        results = [x for x in tensors_of(dict(forward(**given))) if x.requires_grad]
        loss = torch.stack([(x - aim).pow(2).mean() for x, aim in zip(results, aims, strict=True)]).sum()
        loss.backward()
        return [loss.detach(), *(weight.grad for weight in of.parameters() if weight.grad is not None)]

    step(model)
    before = resident()
    eager_peak = peak_during(lambda: step(model)) - before
    compiled = framework.compile(model, backend=backend)
    first = timed(lambda: step(compiled))
    grown, held = resident() - before, framework.held()
    step(compiled)
    peak = peak_during(lambda: step(compiled)) - before
    double = copy.deepcopy(model).double()
    wide = {key: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for key, x in named.items()}
    check(row, lambda: step(compiled), lambda: step(model), (), {}, step(double, double, wide))
    del double, wide
    call, call_eager = interleaved(lambda: step(compiled), lambda: step(model), budget)
    seconds = {"compile": first - call, "call": call, "eager": call_eager}
    return {
        f"{row}, batch {batch}": {
            **seconds,
            "memory": grown,
            "held": held,
            "peak": peak,
            "eager peak": eager_peak,
        }
    }


def compare_trained(row: str, found: Any) -> None:
    """Losses, averages of gradients and weights after some steps. AdamW divides each element's gradient by its size:
    where that is zero but for rounding, the element moves by the learning rate either way, in eager too, and where a
    ReLU is at zero but for rounding, a unit has a gradient or none. So these are compared as a whole."""
    import training_steps

    wanted, exact = (training_steps.trained(row, dtype) for dtype in (torch.float32, torch.float64))
    compare(row, wanted.losses(), found.losses(), exact.losses())
    start = training_steps.ROWS[row](torch.float64, lambda function: function).weights()
    for name, ours, eager, right, before in (
        ("averages of gradients", *(of.averages() for of in (found, wanted, exact)), 0),
        ("weights", *(of.weights() for of in (found, wanted, exact)), start),
    ):
        error, eagers, moved = ((x - right).norm().item() for x in (ours, eager, before))
        assert error <= max(2 * eagers, 1e-3 * moved), (
            f"{row}: the {name} are off by {error:.3g}, eager's by {eagers:.3g}; they have moved by {moved:.3g}"
        )


def steps(framework: Framework, backend: str, row: str, batch: int, budget: float) -> dict[str, Any]:
    """Whole training steps: the first ones, a later one, and eager's. `compile`: what the steps that are compared take
    longer than as many later ones."""
    import training_steps

    def compile(function: Any) -> Any:
        return framework.compile(function, backend=backend)

    eager = training_steps.trained(row, torch.float32)
    before = resident()
    eager_peak = peak_during(eager.step) - before
    ours = training_steps.ROWS[row](torch.float32, compile)
    first = timed(lambda: [ours.step() for _ in range(training_steps.STEPS)])
    grown, held = resident() - before, framework.held()
    compare_trained(row, ours)
    peak = peak_during(ours.step) - before
    call, call_eager = interleaved(ours.step, eager.step, budget)
    seconds = {"compile": first - training_steps.STEPS * call, "call": call, "eager": call_eager}
    return {row: {**seconds, "memory": grown, "held": held, "peak": peak, "eager peak": eager_peak}}


def peak_during(call: Callable[[], Any]) -> int:
    """The most memory, in bytes, that the process holds while `call` runs twice."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the high-water mark starts anew
    call()
    call()
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def bandwidth() -> dict[str, Any]:
    """Compiled programs and the machine's copy."""
    import bandwidth as programs

    rate, found = programs.measure()
    return {"copy": rate, "programs": found}


def layout_rows() -> dict[str, Any]:
    import layouts

    with torch.no_grad():
        return layouts.measure()


def long_graph(framework: Framework, backend: str, lengths: list[int]) -> dict[str, Any]:
    """First call of one graph of many operators, generated code included: cheap ones, dear ones, reductions."""

    def program(x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n // 10):
            x = x * 0.5 + y
            y = torch.tanh(y - x)
            x = x - x.mean(-1, keepdim=True)
            y = torch.relu(y) + x.amax(-1, keepdim=True)
            x = x.sigmoid()
        return x + y

    x, result = torch.randn(16, 32), {}
    with torch.no_grad():
        for length in lengths:
            framework.reset()
            compiled = framework.compile(program, backend=backend, dynamic=False)
            first = timed(lambda: compiled(x, x, length))  # noqa: B023
            result[str(length)] = first - min(timed(lambda: compiled(x, x, length)) for _ in range(3))  # noqa: B023
            check("long graph", compiled, program, (x, x, length), {})
    return result


def operators(framework: Framework | None) -> dict[str, Any]:
    """The time of the operators of each overhead program."""
    with torch.no_grad():
        return {name: own_time(*program()) for name, program in OVERHEAD.items()}


# -- long programs -----------------------------------------------------------------------------------------------------


def chained(framework: Framework, backend: str, lengths: list[int]) -> dict[str, Any]:
    """First call of a program of many additions, minus a later call."""

    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            x = x + 1
        return x

    x, result = torch.ones(4), {}
    with torch.no_grad():
        for length in lengths:
            framework.reset()
            compiled = framework.compile(program, backend=backend, dynamic=False)
            first = timed(lambda: compiled(x, length))  # noqa: B023
            result[str(length)] = first - min(timed(lambda: compiled(x, length)) for _ in range(3))  # noqa: B023
            check("chained adds", compiled, program, (x, length), {})
    return result


def main() -> None:
    benchmark, name, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    sys.setrecursionlimit(100_000)
    if benchmark == "import":
        result = import_time(name)
    elif benchmark == "operators":
        result = operators(None)
    elif benchmark == "bandwidth":
        result = bandwidth()
    elif benchmark == "layouts":
        result = layout_rows()
    else:
        functions: dict[str, Function] = {
            "first_call": first_call,
            "overhead": overhead,
            "chained": chained,
            "steady": steady,
            "training": training,
            "steps": steps,
            "long_graph": long_graph,
            "another_entry": exits.another_entry,
            "loop": exits.loop,
            "depth": exits.depth,
            "module_guards": exits.module_guards,
            **{name: getattr(sizes, name) for name in ("size_guards", "decisions", "reshapes", "dynamic_compile")},
            "generation": sizes.generation,
            "lengths": sizes.lengths,
        }
        result = functions[benchmark](Framework(name), **options)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
