"""One framework's part of one benchmark, in a process of its own: `worker.py <benchmark> <framework> <json options>`.

Prints one JSON object on the last line of stdout. Frameworks: `magneto` and `peer` (torch.compile). Times in seconds.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "tests")]  # the patterns, the model zoo
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import exits
import sizes
import torch
import training
from measuring import Function, check, interleaved, peak_during, per_call, resident, timed


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
            self.planned: Function = lambda: magneto.stats()["saved_bytes"]
            self.memory_budget: Function = lambda share: magneto.config.patch(activation_memory_budget=share)
        else:
            import torch._dynamo as dynamo
            from torch._dynamo.utils import counters
            from torch._functorch import config as partition_config

            dynamo.config.cache_size_limit = 1000
            if name == "frozen":  # weights are constants, in the layout of the libraries
                from torch._inductor import config

                config.freezing = True
            self.compile = torch.compile
            self.reset = lambda: (dynamo.reset(), counters.clear())
            self.captures = lambda: counters["stats"]["unique_graphs"]
            self.held = self.planned = lambda: 0
            self.memory_budget = lambda share: partition_config.patch(activation_memory_budget=share)
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


def steady(framework: Framework, backend: str, kind: str, row: str, batch: int, budget: float) -> dict[str, Any]:
    """Of patterns or of a model: the first call, a later call, and eager's."""
    programs: dict[str, tuple[Function, dict[str, Any], tuple[Any, ...]]] = {}
    if kind.endswith("patterns"):
        patterns = importlib.import_module(kind).patterns
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
            "training": training.training,
            "training_patterns": training.patterns,
            "training_memory": training.memory,
            "training_overhead": training.overhead,
            "joint_stages": training.joint_stages,
            "steps": training.steps,
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
