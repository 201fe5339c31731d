"""`magneto.install()`: whose names are whose, before, meanwhile and afterwards."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch

import magneto
from magneto import _doctor, _history, _test_settings, exc
from magneto._install import config_modules, modules, settings, table

ROOT = Path(__file__).parents[2]
X = torch.ones(3)
SERVED = (*table.PREFIXES, *table.ALIASES)


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@pytest.mark.usefixtures("installed")
def test_torch_compile_is_ours() -> None:
    compiled = torch.compile(add_one, fullgraph=True, backend="eager")
    assert type(compiled).__module__ == "magneto._C" and torch.equal(compiled(X), X + 1)
    assert isinstance(torch.compile(torch.nn.ReLU()), magneto.OptimizedModule)
    module = torch.nn.Linear(3, 3)
    module.compile()
    torch.testing.assert_close(module(X), torch.nn.functional.linear(X, module.weight, module.bias))
    assert magneto.stats()["graphs"] == 2


def test_who_holds_torch_compile_already_gets_ours() -> None:
    held = torch.compile
    body, defaults = held.__code__, held.__kwdefaults__
    magneto.install()
    try:
        assert held is torch.compile and type(held(add_one)).__module__ == "magneto._C"
    finally:
        magneto.uninstall()
    assert held.__code__ is body and held.__kwdefaults__ == defaults


def test_all_is_as_before_afterwards() -> None:
    def state() -> tuple[object, ...]:
        loaded = {name: id(module) for name, module in sys.modules.items() if name.startswith(SERVED)}
        return loaded, dict(vars(torch)), list(sys.meta_path), torch.compile.__code__, torch.export.export.__code__

    def use() -> None:
        import torchdynamo

        assert torch._dynamo.config.verbose is False and torchdynamo is torch._dynamo
        weights = [torch.ones(2, requires_grad=True)]
        optimizer = torch.optim.SGD(weights, lr=0.1)
        weights[0].sum().backward()
        optimizer.step()

    before = state()
    for _ in range(2):
        magneto.install()
        magneto.install()
        use()
        magneto.uninstall()
        magneto.uninstall()
    after = state()
    assert after == before
    assert not any(hasattr(method, "__dynamo_disable") for method in vars(torch.optim.Optimizer).values())


def test_a_compiler_that_is_loaded_is_changed_and_put_back() -> None:
    """Stands for PyTorch's: a package of that name with some of its functions, and a program that holds them."""
    real, config = types.ModuleType("torch._dynamo"), types.ModuleType("torch._dynamo.config")

    def optimize(backend: str = "inductor", *, nopython: bool = False) -> str:
        return "PyTorch's"

    real.optimize, real.config, real.__path__, config.verbose = optimize, config, [], "PyTorch's"
    config.get_config_copy = dict
    before = dict(vars(real))
    missing = object()
    saved = {name: sys.modules.get(name, missing) for name in ("torch._dynamo", "torch._dynamo.config")}
    attribute = vars(torch).get("_dynamo", missing)
    sys.modules |= {"torch._dynamo": real, "torch._dynamo.config": config}
    torch._dynamo = real
    try:
        magneto.install()
        import torch._dynamo as again

        assert again is not real
        assert torch.equal(optimize("eager")(add_one)(X), X + 1)  # who holds the function
        assert torch.equal(real.optimize("eager")(add_one)(X), X + 1)  # who holds the module
        assert real.config.verbose is False
        magneto.uninstall()
        assert sys.modules["torch._dynamo"] is real is torch._dynamo and vars(real) == before
        assert optimize(nopython=True) == "PyTorch's" and config.verbose == "PyTorch's"
    finally:
        magneto.uninstall()
        del torch._dynamo
        for name, module in saved.items():
            del sys.modules[name]
            if module is not missing:
                sys.modules[name] = module
        if attribute is not missing:
            torch._dynamo = attribute


LIBRARY = """
import torch
from torch._dynamo import config, explain, graph_break, mark_dynamic, optimize
from torch._dynamo.comptime import comptime
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import compile_times, counters
from torch._inductor import config as inductor_config
config.cache_size_limit = 5

@torch.compile(backend="eager", fullgraph=True)
def compiled(x):
    return x.sin() + 1

@torch.compiler.disable
def disabled(x):
    return x * 2

module = torch.compile(torch.nn.ReLU())
no_such_backend = torch.compile(disabled, backend="cudagraphs")
"""

USES_LIBRARY = """
import sys, torch, library
theirs, bodies = sys.modules["torch._dynamo"], (torch.compile.__code__, library.explain.__code__)
import magneto
magneto.install()
x = torch.ones(3)
assert magneto.config.cache_size_limit == 5  # what it has set before
library.config.suppress_errors = library.inductor_config.trace.graph_diagram = True
assert magneto.config.suppress_errors and "diagram" not in magneto.config.debug_dump_without
assert torch._inductor.config is library.inductor_config and torch._dynamo.config is library.config

assert torch.equal(library.compiled(x), x.sin() + 1) and torch.equal(library.module(x), x)
assert magneto.stats()["graphs"] == 2 and library.counters["stats"]["unique_graphs"] == 2
try:
    library.no_such_backend(x)
except NotImplementedError as error:
    assert "cudagraphs" in str(error)

@torch.compile(backend="eager")
def function(x):
    library.comptime.print_graph()
    y = library.disabled(x)
    library.graph_break()
    return library.compiled(y)

assert torch.equal(function(x), (x * 2).sin() + 1)
assert sum(magneto.stats()["break_reasons"].values()) == 2, magneto.stats()
try:
    torch.compile(lambda x: print(x), fullgraph=True)(x)
except library.Unsupported:
    print("caught")
assert type(library.explain(function)(x)).__module__ == "magneto._explain"
assert torch.equal(library.optimize("eager")(torch.cos)(x), x.cos()) and "compile.capture" in library.compile_times()
magneto.uninstall()
assert sys.modules["torch._dynamo"] is theirs is torch._dynamo
assert bodies == (torch.compile.__code__, library.explain.__code__)
assert library.config is theirs.config and library.config.suppress_errors is False
graphs = magneto.stats()["graphs"]
assert torch.equal(library.compiled(x), x.sin() + 1) and magneto.stats()["graphs"] == graphs
"""


def test_a_library_that_used_the_compiler_before(tmp_path: Path) -> None:
    """PyTorch's compiler itself is loaded, and functions are compiled and disabled by it."""
    (tmp_path / "library.py").write_text(LIBRARY)
    process = subprocess.run(
        [sys.executable, "-c", USES_LIBRARY], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert process.returncode == 0, process.stderr
    assert "def forward(self" in process.stdout and "caught\n" in process.stdout, process.stdout


@pytest.mark.usefixtures("installed")
def test_functorch_compile() -> None:
    from functorch.compile import aot_function, make_boxed_func

    assert make_boxed_func(add_one)([X]).tolist() == [2, 2, 2]
    with pytest.raises(exc.InvalidValue, match="compiler of the forward"):
        aot_function(add_one, None)


MISTYPED = {
    "from torch._dynamo import optmize": "'optimize'",
    "import torch._dynamo.utlis": "'utils'",
    "from functorch.compile import make_boxed_fun": "'make_boxed_func'",
    "torch._dynamo.explan": "'explain'",
    "torch._dynamo.config.cache_size_limt = 3": "'cache_size_limit'",
    "torch._dynamo.config.patch(verbos=True)": "'verbose'",
    "torch._inductor.config.trace.enabld = True": "'trace.enabled'",
    "torch._inductor.config.trace.graph_diagrm = True": "'trace.graph_diagram'",
    "torch._dynamo.config.replay_record_enable = True": "'replay_record_enabled'",
    "torch._dynamo.config.repro_aftr = 'aot'": "'repro_after'",
    "torch._dynamo.config.suppress_error = True": "'suppress_errors'",
    "torch._inductor.config.max_autotun": "'max_autotune'",
    "from torch._dynamo.comptime import comptime; comptime.print_grph()": "'print_graph'",
    "torch.compile(len, mode='max-autotun')": "'max-autotune'",
    "torch.compile(len, backend='induktor')": "'inductor'",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("code", MISTYPED)
def test_a_mistyped_name_names_the_nearest(code: str) -> None:
    with pytest.raises(exc.InvalidName, match="Did you mean") as raised:
        exec(code, {"torch": torch})
    assert f"Did you mean {MISTYPED[code]}?" in str(raised.value) and len(str(raised.value)) < 1500


@pytest.mark.usefixtures("installed")
def test_set_logs_takes_the_documents_names() -> None:
    with pytest.raises(TypeError, match="Unknown log 'graph_break'. Did you mean 'graph_breaks'"):
        torch._logging.set_logs(graph_break=True)
    torch._logging.set_logs(aot_joint_graphs=True)
    torch._logging.set_logs()


@pytest.mark.usefixtures("installed")
def test_errors_are_those_that_probing_programs_expect() -> None:
    assert not hasattr(torch._dynamo, "no_such_name")
    with pytest.raises(ImportError, match="Did you mean 'symbolic_convert'"):
        from torch._dynamo import symbolic_convrt  # noqa: F401
    with pytest.raises(ImportError):
        from torch._dynamo import no_such_name  # noqa: F401
    with pytest.raises(NotImplementedError, match="graph_diagram, which draws it"):
        importlib.import_module("torch._functorch.partitioners").draw_graph()


# What libraries import when they are loaded.
LIBRARIES = (
    "from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex",  # transformers
    "from torch._dynamo import allow_in_graph",  # einops
    "from torch._dynamo import is_compiling as dynamo_is_compiling",  # torchao
    "from torch._dynamo.utils import warn_once",
    "from torch._dynamo.utils import counters",
    "import torch._inductor.config",
    "from torch.fx.experimental.symbolic_shapes import has_free_symbols, guard_or_false",  # torch.distributed
    "from torch._dynamo.eval_frame import OptimizedModule",
)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("code", LIBRARIES)
def test_what_libraries_import(code: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(code, {})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("installed")
def test_every_row_leads_somewhere() -> None:
    for module, rows in table.MODULES.items():
        served = importlib.import_module(module)
        if not isinstance(served, (modules.Shim, config_modules.ConfigModule)):
            continue  # symbolic_shapes, where another test of this process has loaded it
        assert set(table.names_of(module)) <= set(dir(served))
        for row in rows:
            assert getattr(served, row.name) is not None
            assert row.state in (table.WORKS, table.REPLACED, table.NO_EFFECT, table.TO_COME)
            assert row.note or row.state == table.WORKS, row
    for name, rows in (("torch._dynamo.config", settings.DYNAMO), ("torch._inductor.config", settings.INDUCTOR)):
        module = importlib.import_module(name)
        for setting, row in rows.items():
            module._read(setting)
            assert row.note or row.state == table.WORKS, setting


@pytest.mark.usefixtures("installed")
def test_settings() -> None:
    config = torch._dynamo.config
    config.recompile_limit = 5
    assert magneto.config.cache_size_limit == config.cache_size_limit == 5
    with config.patch(cache_size_limit=3, suppress_errors=True):
        assert (magneto.config.cache_size_limit, magneto.config.suppress_errors) == (3, True)
    assert (magneto.config.cache_size_limit, magneto.config.suppress_errors) == (5, False)
    with pytest.warns(UserWarning, match=r"torch\._inductor\.config\.max_fusion_size: Magneto has no such setting"):
        torch._inductor.config.max_fusion_size = 3
    assert torch._inductor.config.max_fusion_size == 3 and torch._inductor.config.cpp.threads == -1
    torch._inductor.config.trace.enabled = True
    assert magneto.config.debug_dump
    magneto.config.debug_dump = False


@pytest.mark.usefixtures("installed")
def test_log_file(tmp_path: Path) -> None:
    torch._dynamo.config.log_file = str(tmp_path / "log.txt")
    torch._dynamo.config.debug = True
    torch.compile(add_one)(X)
    settings.forget_logs()
    assert "GUARDS:" in (tmp_path / "log.txt").read_text()


@pytest.mark.usefixtures("installed")
def test_notes_are_said_once_at_the_programs_line() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            torch._dynamo.config.specialize_int = True
            torch._dynamo.config.dynamic_shapes = False
            torch._dynamo.config.dynamic_shapes = True
            torch._dynamo.config.specialize_int = False
    assert len(said) == 2 and {Path(one.filename) for one in said} == {Path(__file__)}


@pytest.mark.usefixtures("installed")
def test_notes_end_no_program() -> None:
    """...that makes errors of warnings: what is said changes nothing of what it does."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch._dynamo.config.specialize_int = True
    assert torch._dynamo.config.specialize_int
    torch._dynamo.config.specialize_int = False


@pytest.mark.usefixtures("installed")
def test_counters_and_test_backends() -> None:
    from torch._dynamo.testing import CompileCounter, EagerAndRecordGraphs
    from torch._dynamo.utils import counters

    counters.clear()
    counter, recorder = CompileCounter(), EagerAndRecordGraphs()

    def printing(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        print(end="")
        return x.cos().relu()

    torch._dynamo.optimize(counter)(printing)(X)
    torch.compile(printing, backend=recorder)(X)
    assert (counter.frame_count, counter.op_count, len(recorder.graphs)) == (2, 3, 2)
    assert counters["stats"] == {"unique_graphs": 4, "calls_captured": 6}
    assert sum(counters["graph_break"].values()) == 2
    assert "'unique_graphs': 4" in repr(counters)
    counters.clear()
    assert not counters


@pytest.mark.usefixtures("installed")
def test_profiler_lists_recompiles() -> None:
    profiler = torch._dynamo.utils.CompileProfiler()
    compiled = torch._dynamo.optimize(profiler, dynamic=False)(add_one)
    for size in range(1, 12):  # above the limit, which does not hold for it
        compiled(torch.ones(size))
    report = profiler.report()
    assert report.count("size mismatch at index 0. expected") == 11 and "No graph breaks detected." in report
    assert (
        re.search(r"10 +│ size 0 of x", report) and "leave out dynamic=False" in report and "mark_dynamic" not in report
    )
    assert "Set torch._dynamo.config.cache_size_limit to 11 to avoid being cache limited." in report


@pytest.mark.usefixtures("installed")
def test_graph_break_and_stances() -> None:
    @torch.compile(backend="eager")
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    assert torch.equal(function(X), X.sin().cos()) and magneto.stats()["breaks"] == 1
    graphs = magneto.stats()["graphs"]
    with torch.compiler.set_stance("force_eager"):
        torch.compile(add_one)(X)
    assert magneto.stats()["graphs"] == graphs
    # torch.compiler has the two from 2.12.
    torch._dynamo.backends.registry.set_default_backend("eager")
    assert torch._dynamo.backends.registry.get_default_backend() == "eager"
    torch._dynamo.backends.registry.set_default_backend(None)
    torch.compiler.reset()
    assert magneto.stats()["graphs"] == 0


def test_index_by_tensors_gathers() -> None:
    from magneto._install.attention import TransformGetItemToIndex, fill_order, stride_order

    table_, index = torch.arange(12).reshape(3, 4), torch.tensor([2, 0])
    with TransformGetItemToIndex():
        got = torch.vmap(lambda i: table_[i, i])(index)
    assert got.tolist() == [10, 0]
    assert fill_order([12, 1, 4]) == [1, 2, 0] and stride_order([12, 1, 4]) == [2, 0, 1]
    assert fill_order([1, 1]) == [1, 0]


def run(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "magneto", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def test_run_a_script(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 3\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch, torch._dynamo, beside\n"
        "assert __name__ == '__main__' and __file__ == sys.argv[0]\n"
        "f = torch.compile(lambda x: x + beside.VALUE, backend=sys.argv[1])\n"
        "print(f(torch.ones(2)).tolist(), type(f).__module__, sorted(n for n in sys.modules if n.startswith('sympy')))\n"
        "sys.exit(5)\n"
    )
    process = run("run", str(script), "eager")
    assert (process.returncode, process.stdout) == (5, "[4.0, 4.0] magneto._C []\n"), process.stderr


def test_a_traceback_is_the_program_s(tmp_path: Path) -> None:
    """Without the frames that run it."""
    (tmp_path / "fails.py").write_text("def f():\n    raise ValueError('mine')\nf()\n")
    lines = run("run", "fails.py", cwd=tmp_path).stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and 'fails.py", line 3, in <module>' in lines[1], lines
    assert lines[-1] == "ValueError: mine" and not any("runpy" in line for line in lines), lines


def test_command_line_errors() -> None:
    process = run("rnu")
    assert process.returncode == 2 and "Did you mean 'run'?" in process.stderr
    process = run("run", "no_such_script.py")
    assert process.returncode == 2 and "there is no such file" in process.stderr


def test_doctor() -> None:
    process = run("doctor", "env", TORCHDYNAMO_DISABLE="1")
    assert process.returncode == 0, process.stdout + process.stderr
    for part in ("versions", "ABI", "CPU", "threads", "cache on disk", "backend magneto", "nothing is compiled"):
        assert part in process.stdout
    assert "Magneto works here; " in process.stdout.splitlines()[-1]


def test_doctor_names_problems_and_remedies(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        _test_settings.patch(fail_stage="compile.backend.lowering"),
        magneto.config.patch(disk_cache_dir="/dev/null/cache", strict=False),
    ):
        assert _doctor.main() == 1
    text = capsys.readouterr().out
    assert "/dev/null/cache can't be made" in text and "-> set MAGNETO_CACHE_DIR to a folder of your own" in text
    assert "in the stage compile.backend.lowering" in text and "-> report this with the traceback" in text
    # The cache, and the four backends that lower.
    assert text.endswith("\n5 problems: Magneto does not work here as it should.\n")
    with magneto.config.patch(disk_cache_dir="/proc/no/cache"):
        assert "can't be made" in _doctor._cache().detail
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4 * (os.cpu_count() or 1))
    assert _doctor._threads().remedy.startswith("torch.set_num_threads(")
    monkeypatch.setattr(_doctor._C, "__file__", "/no/such/_C.so")
    assert "rebuild with LLVM" in _doctor._code_generation().remedy


def test_the_page_lists_every_name() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    for module, rows in table.MODULES.items():
        assert f"`{module}`" in page
        for row in rows:
            assert f"`{row.name}`" in page, row.name
    for setting in (*settings.DYNAMO, *settings.INDUCTOR, *settings.FUNCTORCH, *settings.ENVIRONMENT):
        assert f"`{setting}`" in page, setting


def named(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return named(x) + named(x * 2)


def test_only_functions_of_a_name_are_captured() -> None:
    """TORCHDYNAMO_DEBUG_FUNCTION."""
    model = Model()
    with magneto.config.patch(debug_function="named"):
        compiled = magneto.compile(model, backend="eager")
        assert torch.equal(compiled(X), model(X)) and torch.equal(compiled(X), model(X))
        assert [row.function for row in _history.rows("capture")] == ["named"]
        assert torch.equal(magneto.compile(named, backend="eager")(X), named(X))
    assert magneto.stats()["graphs"] == 2 and magneto.why(named).verdict == "runs compiled"
    assert torch.equal(compiled(X), model(X)) and magneto.stats()["graphs"] == 3


@pytest.mark.parametrize("by", ["variable", "setting"])
def test_the_debug_directory_is_announced(tmp_path: Path, by: str) -> None:
    (tmp_path / "repro.py").write_text(
        "import torch, torch._inductor.config as config\n"
        + ("config.trace.enabled = True\n" if by == "setting" else "")
        + "config.trace.debug_dir = 'traces'\n"
        "config.trace.graph_diagram = config.trace.compile_profile = True\n"
        "config.trace.output_code = False\n"
        "model = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.LayerNorm(10), torch.nn.ReLU()).eval()\n"
        "with torch.no_grad():\n"
        "    torch.compile(model)(torch.ones(2, 10))\n"
    )
    variables = {"TORCHINDUCTOR_TRACE": "1"} if by == "variable" else {}
    process = run("run", "repro.py", cwd=tmp_path, **variables)
    assert process.returncode == 0, process.stderr
    (line,) = [line for line in process.stderr.splitlines() if " debug trace: " in line]
    folder = tmp_path / line.partition(" debug trace: ")[2]
    assert folder.name == "0_forward"
    names = {file.name for file in folder.iterdir()}
    assert {"ir_pre_fusion.txt", "ir_post_fusion.txt", "graph_diagram.svg", "compile_profile.txt"} <= names
    assert not {"plan.txt", "kernels.s"} & names
    assert (folder / "graph_diagram.svg").read_text().startswith("<svg ")
