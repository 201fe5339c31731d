"""The minifier: from a graph that a backend fails on to the smallest one that fails in the same way, as a script.

Candidates run in forked children (children.py), so that a crash, a hang or too much memory is an answer. The search is
the core's (src/debug/reduce.h); this module asks the questions and writes the scripts.
"""

from __future__ import annotations

import contextlib
import copy
import shutil
import tempfile
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from magneto import _log, config, exc
from magneto._debug import children, findings, fx_graphs, same, scripts
from magneto._debug.children import Outcome

Compile = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]


def compile_graph(module: Any, inputs: Sequence[Any], backend: Any, dynamic: bool = False) -> Callable[..., Any]:
    """The graph on a backend: a name, or a callable that gets it as torch.compile would hand it over."""
    from magneto import _api

    if not isinstance(backend, str):
        if isinstance(module, torch.fx.GraphModule):  # backends may change what they get
            module = torch.fx.GraphModule(module, copy.deepcopy(module.graph))
        made = backend(module, list(inputs))
        if not callable(made):
            raise exc.BackendCompilerFailed(f"the backend returned {made!r}, which can't be called")
        return made  # type: ignore[no-any-return]
    if hasattr(module, "real_recompile"):  # a lazy graph module: else its first call makes its code
        module.real_recompile()
    forward = getattr(module, "forward", module)
    return _api.compile(forward, backend=backend, fullgraph=True, dynamic=dynamic)  # type: ignore[no-any-return]


shared_kernels = ""  # of a search that this one is part of, which removes it


@dataclass
class Case:
    """What is asked of each candidate: whether the backend fails on it as it did on the whole."""

    backend: Any
    accuracy: bool = False
    dynamic: bool = False
    autocast: bool = False
    first: Outcome = field(default_factory=lambda: Outcome(children.OK))
    limit: float = 0.0
    asked: int = 0
    kernels: str = ""

    def __post_init__(self) -> None:
        """Candidates have most kernels in common: what one has compiled lies in a folder for the others."""
        self.kernels = shared_kernels
        if not shared_kernels:
            with contextlib.suppress(OSError):  # no room: each makes its own
                self.kernels = tempfile.mkdtemp()
                weakref.finalize(self, shutil.rmtree, self.kernels, ignore_errors=True)

    def settings(self) -> dict[str, Any]:
        """Of an attempt."""
        kept = bool(self.kernels)
        return {"repro_after": "", "disk_cache": kept, "disk_cache_dir": self.kernels, "debug_dump": False}

    def run(self, module: torch.fx.GraphModule, inputs: Sequence[Any], limit: float) -> Outcome:
        """One attempt in a child."""
        self.asked += 1
        return children.run(lambda: self._attempt(module, inputs), limit, children.available_mb())

    def begin(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
        """The attempt with the whole graph; whether it fails. Later ones may take no longer than it needs."""
        self.first = self.run(module, inputs, config.repro_seconds)
        if self.first.kind == children.TIME:
            fast = children.run(lambda: self._quick(module, inputs), config.repro_seconds)
            self.limit = min(float(config.repro_seconds), max(1.0, 10 * fast.seconds))
        else:
            self.limit = min(float(config.repro_seconds), max(2.0, 10 * self.first.seconds))
        return self.is_failure(self.first)

    def is_failure(self, outcome: Outcome) -> bool:
        """Not what eager does as well."""
        if outcome.kind == children.OK:
            return bool(self.accuracy and outcome.result)
        return not self.accuracy

    def fails(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
        """Whether a candidate fails as the whole did."""
        outcome = self.run(module, inputs, self.limit)
        if self.accuracy:
            return outcome.kind == children.OK and bool(outcome.result)
        return outcome.failed and outcome.is_like(self.first)

    def _attempt(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        only_forward = bool(config.repro_forward_only)
        with (
            config.patch(self.settings()),
            torch.autocast("cpu", enabled=self.autocast),
        ):
            if self.accuracy:
                return described(self.differences(module, inputs))
            try:
                compiled = compile_graph(module, same.clone_inputs(inputs), self.backend, self.dynamic)
                same.results(compiled, inputs, only_forward)
            except Exception as error:
                if _raises_alike(module, inputs, only_forward, error):
                    return None
                raise
        return None

    def differences(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[same.Difference]:
        """Compiled beside eager, in this process."""
        compiled = compile_graph(module, same.clone_inputs(inputs), self.backend, self.dynamic)
        return same.differences(
            module,
            compiled,
            inputs,
            bool(config.repro_forward_only),
            ignore_integers=config.repro_ignore_non_fp,
            use_fp64=config.same_two_models_use_fp64,
            tolerance=config.repro_tolerance,
        )

    def _quick(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
        """About as much work as an attempt that does not hang."""
        with config.patch(repro_after="", disk_cache=False):
            same.results(compile_graph(module, inputs, "eager", self.dynamic), inputs)


def described(found: Sequence[same.Difference]) -> list[list[Any]]:
    """What a child says of differences: their texts, with the first one's data."""
    return [[str(difference), difference.data() if not at else None] for at, difference in enumerate(found)]


def _raises_alike(module: Any, inputs: Sequence[Any], only_forward: bool, error: Exception) -> bool:
    """Eager raises the same: that is the program's own error, no fault of the backend's."""
    try:
        same.results(module, inputs, only_forward)
    except Exception as own:
        return children.of_exception(own).is_like(children.of_exception(error))
    return False


def reduce(case: Case, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The smallest graph that fails as `case.begin` saw it fail, with small sizes."""
    inputs = list(inputs)
    dynamic, case.dynamic = case.dynamic, False
    if dynamic and not case.fails(*_with_numbers(module, inputs)):
        case.dynamic = True  # the fault needs sizes that vary
        smaller, left = _reduce_structure(case, module, inputs)
    else:
        smaller, left = _reduce_structure(case, *_with_numbers(module, inputs))
    return fx_graphs.shrink(smaller, left, case.fails)


def _with_numbers(module: torch.fx.GraphModule, inputs: list[Any]) -> tuple[torch.fx.GraphModule, list[Any]]:
    return fx_graphs.without_number_inputs(module, inputs, lambda *candidate: True)


def _reduce_structure(case: Case, module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    def fails(candidate: torch.fx.GraphModule, given: list[Any]) -> bool:
        return case.fails(candidate, given)

    return fx_graphs.reduce(module, inputs, fails)


def calls_in(module: torch.fx.GraphModule) -> int:
    """The operators of a graph."""
    return sum(node.op.startswith("call") for node in module.graph.nodes)


# -- scripts

_HEADER = """\
# {what}
# Run it: python {name}{more}
{variables}
import torch
from torch import device, tensor
from math import inf, nan

import magneto

magneto.install()  # the names of torch.compile are Magneto's
rand_strided = torch._dynamo.testing.rand_strided

{settings}{environment}
"""

_TORCH_LEVEL = """\
{backend}
{model}

mod = Repro()

{arguments}
if __name__ == "__main__":
    run_repro = torch._dynamo.repro.after_dynamo.run_repro

    run_repro(mod, args, accuracy={accuracy!r}, command={command!r}, autocast={autocast!r}, backend={expression})
"""

_ATEN_LEVEL = """\
{model}

mod = Repro()

{arguments}
if __name__ == "__main__":
    run_repro = torch._dynamo.repro.after_aot.run_repro

    run_repro(mod, args, accuracy={accuracy!r}, command={command!r})
"""


def script(
    case: Case, module: torch.fx.GraphModule, inputs: Sequence[Any], command: str, level: str, file: str, name: str
) -> str:
    """The text of a script. `level`: "dynamo" or "aot". `file`: of values beside it; empty: random ones."""
    what = f"{calls_in(module)} operators on which the backend fails: {case_text(case)}".splitlines()[0][:110]
    head = _HEADER.format(
        what=what,
        name=name,
        more=" [run|minify]",
        variables=scripts.variables(),
        settings=scripts.settings(),
        environment=scripts.environment(),
    )
    definition, expression = scripts.backend_source(case.backend) if level == "dynamo" else ("", "")
    return head + (_TORCH_LEVEL if level == "dynamo" else _ATEN_LEVEL).format(
        backend=definition,
        expression=expression,
        model=scripts.model(module),
        arguments=scripts.arguments(inputs, file),
        accuracy=case.accuracy,
        command=command,
        autocast=case.autocast,
    )


def case_text(case: Case) -> str:
    """What it failed with."""
    if case.accuracy and case.first.result:
        return str(case.first.result[0][0])
    return str(case.first)


def write_script(
    case: Case, module: torch.fx.GraphModule, inputs: Sequence[Any], name: str, command: str, level: str, folder: Path
) -> Path | None:
    """Writes a script that shows the failure: with random inputs where they show it too, else with a file of them.
    None, and a sentence, if there can be none."""
    path, file = folder / name, ""
    try:
        if not case.fails(module, scripts.random_like(inputs)):
            file = scripts.save_inputs(folder, inputs)
        text = script(case, module, inputs, command, level, file, name)
    except scripts.Unwritable as reason:
        _log.announce(f"no script can show it: {reason}. The graph:\n{module.graph.python_code('self').src}")
        return None
    except OSError as error:
        scripts.say_unwritten(path, error, f" The graph:\n{module.graph.python_code('self').src}")
        return None
    return path if scripts.write(path, text) else None


def minify(case: Case, module: torch.fx.GraphModule, inputs: Sequence[Any], folder: Path) -> Path | None:
    """Reduces, and writes `repro.py`: in `folder`, and for convenience in `debug_dir` or the current folder."""
    start = time.perf_counter()
    before = calls_in(module)
    smaller, left = reduce(case, module, inputs)
    seconds = time.perf_counter() - start
    _log.announce(
        f"minified {before} operators to {calls_in(smaller)} in {seconds:.1f} s, {case.asked} attempts: "
        f"{case_text(case)}"
    )
    texts = [graph.graph.python_code("self").src for graph in (module, smaller)]
    tell(case, smaller, left, "graph", texts, (before, calls_in(smaller)), seconds)
    return publish(case, smaller, left, folder, "dynamo")


def tell(
    case: Case, graph: Any, inputs: Sequence[Any], level: str, texts: list[str], counts: tuple[int, int], seconds: float
) -> None:
    """Puts what was found into the log: the graph before and after, and the smallest one's first wrong value."""
    before, after = texts
    findings.tell(findings.minified(level, before, after, counts, case_text(case), seconds))
    if case.accuracy and (found := case.run(graph, inputs, case.limit).result):
        findings.tell(findings.wrong(f"the minified {level}", [one[1] or {} for one in found]))


published = 0  # how many scripts were written


def publish(case: Case, module: torch.fx.GraphModule, inputs: Sequence[Any], folder: Path, level: str) -> Path | None:
    """Writes repro.py twice, and says where."""
    global published
    path = write_script(case, module, inputs, "repro.py", "run", level, folder)
    if path is None:
        return None
    published += 1
    _log.announce(f"Writing checkpoint with {len(module.graph.nodes)} nodes to {path}")
    if not scripts.is_usual(folder):
        return path
    convenient = Path(config.debug_dir or Path.cwd()) / "repro.py"
    text = path.read_text(encoding="utf-8")
    try:
        for values in folder.glob("inputs_*.pt"):
            if values.name in text:
                shutil.copyfile(values, convenient.parent / values.name)
    except OSError as error:
        scripts.say_unwritten(convenient, error)
        return path
    if scripts.write(convenient, text, shown=False):
        _log.announce(f"Copying repro file for convenience to {convenient}")
    return path


# -- what the core calls in front of a backend, while `repro_after` is set


def after_dynamo(module: torch.fx.GraphModule, inputs: list[Any], backend: Any, dynamic: bool) -> None:
    """A captured graph is about to be handed to `backend`: tries it in a child, and writes what the level asks for.

    Levels: 1 a script when it fails, 2 minified, 3 the launcher even if it does not fail, 4 when results are not
    eager's. Raises where the process would not survive the real attempt, and for wrong results.
    """
    autocast = torch.is_autocast_enabled("cpu")
    case = Case(backend, accuracy=config.repro_level == 4, dynamic=dynamic, autocast=autocast)
    examine(
        case,
        module,
        inputs,
        lambda: write_launcher(case, module, inputs, "dynamo"),
        lambda folder: publish(case, module, inputs, folder, "dynamo"),
        lambda folder: minify(case, module, inputs, folder),
    )


def examine(
    case: Case,
    graph: Any,
    inputs: Sequence[Any],
    launch: Callable[[], Path | None],
    publish_whole: Callable[[Path], Path | None],
    publish_reduced: Callable[[Path], Path | None],
) -> None:
    """Tries a graph, and writes what the level asks for. What goes wrong with that itself is said, and is no error of
    the program's."""
    launcher = None
    try:
        if config.repro_level == 3:
            launcher = launch()
        if not case.begin(graph, inputs):
            return
        _log.announce(_FAILED[case.accuracy])
        folder = folder_for_scripts()
        if folder is None:
            pass
        elif config.repro_level == 1:
            publish_whole(folder)
        else:
            launcher = launcher or launch()
            publish_reduced(folder)
    except Exception as error:
        if config.strict:
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        _log.announce(
            f"The minifier could not go on: {type(error).__name__}: {error} "
            f"({Path(place.filename).name}:{place.lineno}). "
            "The program goes on as without it; TORCHDYNAMO_REPRO_LEVEL=1 writes the graph as it is."
        )
    raise_where_needed(case, launcher)


# Whether results are compared -> what the log says first.
_FAILED = {
    False: "Compiled Fx GraphModule failed. Creating script to minify the error.",
    True: "Accuracy failed for the compiled graph. Creating script to minify the error.",
}


def folder_for_scripts() -> Path | None:
    """None, and a sentence, if there can be none."""
    try:
        return scripts.folder()
    except OSError as error:
        scripts.say_unwritten(Path(error.filename or config.debug_dir), error)
        return None


def write_launcher(case: Case, module: torch.fx.GraphModule, inputs: list[Any], level: str) -> Path | None:
    """Writes `minifier_launcher.py` with the whole graph and its inputs."""
    folder = folder_for_scripts()
    if folder is None:
        return None
    path = folder / "minifier_launcher.py"
    file = ""
    try:
        file = scripts.save_inputs(folder, inputs)
        text = script(case, module, inputs, "minify", level, file, path.name)
    except scripts.Unwritable as reason:
        _log.announce(f"there is no launcher: {reason}")
        return None
    except OSError as error:
        scripts.say_unwritten(path, error)
        return None
    if not scripts.write(path, text, shown=False):
        return None
    _log.announce(f"Writing minified repro to:\n{path}")
    return path


def raise_where_needed(case: Case, launcher: Path | None) -> None:
    """An exception is raised by the real attempt itself; after a crash or a hang there must be none."""
    if not case.is_failure(case.first):
        return
    where = f" {launcher} has the graph." if launcher else ""
    if case.accuracy:
        error = exc.AccuracyError(f"Bad accuracy detected. {case_text(case)}.{where}")
        error.minifier_path = str(launcher or "")
        raise error
    if case.first.kind not in (children.OK, children.RAISED):
        raise exc.BackendCompilerFailed(f"The compiled graph was tried in a child process: {case.first}.{where}")


# -- functorch.compile.minifier


def minifier(
    fail_f: Any,
    inps: Any,
    module_fails: Any,
    dump_state: Any = None,
    *,
    save_dir: str | None = None,
    offload_to_disk: bool = False,
    skip_offload: bool = False,
    skip_sanity: bool = False,
    max_granularity: int | None = None,
) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The smallest graph for which `module_fails(graph, inputs)` is true, and inputs for it.

    Takes `(graph, inputs, fails)`, or as older documents have it `(fails, graph, inputs)`. `dump_state(graph, inputs)`
    is called with each smaller graph that fails. What has to do with disks and sizes of pieces changes nothing.
    """
    graph, inputs, fails = fail_f, inps, module_fails
    if not isinstance(graph, torch.fx.GraphModule):
        fails, graph, inputs = graph, inputs, module_fails
    if not isinstance(graph, torch.fx.GraphModule) or not callable(fails):
        raise exc.InvalidValue("minifier takes a torch.fx.GraphModule, its inputs and a function of both")
    if not skip_sanity and not fails(graph, list(inputs)):
        raise RuntimeError("Input graph did not fail the tester")

    def question(candidate: torch.fx.GraphModule, given: list[Any]) -> bool:
        failed = bool(fails(candidate, given))
        if failed and dump_state is not None:
            dump_state(candidate, given)
        return failed

    return fx_graphs.reduce(graph, inputs, question)
