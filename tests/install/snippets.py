"""The programs of the documents that users of torch.compile read, as they stand there.

A row is the snippet's text, what a test has to define before it, what stands in the places that the document leaves
open (`model = ...`), and what the document says that the user sees: a function of the program's names, its output and
its log. Each program of the documents is here; docs/coverage.md lists those that need what is to come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

import magneto


class Seen(NamedTuple):
    """What a program did."""

    names: Mapping[str, Any]
    output: str
    logs: Mapping[str, list[str]]
    warnings: list[str]
    error: BaseException | None


class Snippet(NamedTuple):
    """One row."""

    text: str
    check: Callable[[Seen], None]
    before: str = ""
    raises: bool = False
    known_wrong: str = ""  # why it is not run
    holes: tuple[tuple[str, str], ...] = ()  # what the document leaves open, and what stands there

    def program(self) -> str:
        """What is run."""
        text = self.text
        for hole, filling in self.holes:
            assert hole in text, hole
            text = text.replace(hole, filling, 1)
        return self.before + text


def _equal(got: Any, want: Any) -> None:
    assert got == want, (got, want)


def _has(texts: list[str], part: str) -> None:
    assert any(part in text for text in texts), texts


def _runs(seen: Seen) -> None:
    assert magneto.stats()["graphs"] >= 1


def _nothing(seen: Seen) -> None:
    pass


def _explained(seen: Seen) -> None:
    assert "Dynamo produced 3 graphs, with 2 graph breaks and 6 ops." in seen.output
    assert "Break reasons:" in seen.output and "\n1. InputOutput: call of builtins.print\n" in seen.output
    assert 'print("woo")' in seen.output and "if b.sum() < 0:" in seen.output
    names = seen.names
    assert len(names["graphs"]) == 3 and list(map(len, names["ops_per_graph"])) == [3, 2, 1]
    assert len(names["out_guards"]) == 3 and all(isinstance(guard, str) for guard in names["out_guards"][0])


def _shows(seen: Seen, *texts: str) -> None:
    position = 0
    for text in texts:
        found = seen.output.find(text, position)
        assert found >= 0, (text, seen.output)
        position = found


def _profiled(seen: Seen) -> None:
    assert "Torchdynamo Profiler Report" in seen.output
    assert "InputOutput: call of builtins.print" in seen.output and "in my_model" in seen.output


def _refused(word: str) -> Callable[[Seen], None]:
    def check(seen: Seen) -> None:
        assert word in str(seen.error), seen.error

    return check


def _backend_failed(seen: Seen) -> None:
    assert isinstance(seen.error, magneto.exc.BackendFailed) and isinstance(seen.error.__cause__, AssertionError)


def _breaks(*causes: str) -> Callable[[Seen], None]:
    def check(seen: Seen) -> None:
        text = "\n".join(seen.logs["graph_breaks"])
        for cause in causes:
            assert cause in text, text

    return check


def _recompiles(*reasons: str) -> Callable[[Seen], None]:
    def check(seen: Seen) -> None:
        text = "\n".join(seen.logs["recompiles"])
        assert "Recompiling function fn in" in text or "Recompiling function fn" in text
        for reason in reasons:
            assert reason in text, text

    return check


def _guarded(seen: Seen) -> None:
    text = "\n".join(seen.logs["guards"])
    assert text.startswith("GUARDS:") and "TENSOR_MATCH: check_tensor(L['x'], Tensor, DispatchKeySet(CPU" in text
    assert "torch.float32" in text and "size=[3, 3], stride=[3, 1]" in text


def _limited(seen: Seen) -> None:
    (text,) = [text for text in seen.warnings if "hit config.cache_size_limit (8)" in text]
    assert "\n    function: 'fn' (" in text and "playground.py:" in text
    assert "\n    last reason: 0/7: tensor 'L['x']' size mismatch at index 0. expected 8, actual 9" in text


def _holds(*facts: bool) -> None:
    assert all(facts), facts


def _noopython(seen: Seen) -> None:
    assert isinstance(seen.error, torch._dynamo.exc.Unsupported) and "builtins.print" in str(seen.error)


TORCHDYNAMO = "import torch, torchdynamo\n"
DYNAMO = "import torch\nimport torch._dynamo as dynamo\n"
EXAMPLE = "example_input = torch.randn(4)\nmodel = torch.nn.ReLU()\n"

SNIPPETS: dict[str, Snippet] = {
    # The first troubleshooting pages, of the package torchdynamo.
    "torchdynamo-block": Snippet(
        """with torchdynamo.optimize(...):
   some_fun(x)
   ...
""",
        _runs,
        TORCHDYNAMO + "x = torch.ones(3)\ndef some_fun(x):\n    return x + 1\n",
        holes=(("optimize(...)", "optimize('eager')"),),
    ),
    "torchdynamo-cache-size-limit": Snippet(
        "torchdynamo.config.cache_size_limit = <your desired cache limit>\n",
        lambda seen: _equal(magneto.config.cache_size_limit, 16),
        TORCHDYNAMO,
        holes=(("<your desired cache limit>", "16"),),
    ),
    "torchdynamo-profiler": Snippet(
        """prof = torchdynamo.utils.CompilationProfiler()
with torchdynamo.optimize(prof):
   my_model()
print(prof.report())
""",
        _profiled,
        TORCHDYNAMO + "def my_model():\n    x = torch.ones(3)\n    print(end='')\n    return x + 1\n",
    ),
    "torchdynamo-nopython": Snippet(
        "torchdynamo.optimize(<compiler>, nopython=True)(fn)(torch.ones(3))",
        _noopython,
        TORCHDYNAMO + "def fn(x):\n    print(x.shape)\n    return x + 1\n",
        raises=True,
        holes=(("<compiler>", "'eager'"),),
    ),
    "torchdynamo-debug": Snippet(
        "torchdynamo.config.debug = True\ntorchdynamo.optimize('eager')(lambda x: x + 1)(torch.ones(3))\n",
        lambda seen: _has(seen.logs["graph_code"], "def forward"),
        TORCHDYNAMO,
    ),
    # The Dynamo troubleshooting guide.
    "guide-dict-key": Snippet(  # an error then; a tensor is a key like others here
        """import torch

import torch._dynamo as dynamo


@dynamo.optimize("eager")
def test_assertion_error():
    y = torch.ones(200, 200)
    z = {y: 5}
    return z


test_assertion_error()
""",
        _nothing,
    ),
    "guide-backend-error": Snippet(  # an error of its lowering then; here it is called
        """import torch

import torch._dynamo as dynamo

model = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(5)])

@dynamo.optimize("inductor")
def test_backend_error():

    y = torch.ones(200, 200)
    x = torch.ones(200, 200)
    z = x + y
    a = torch.ops.aten._foobar(z)  # dummy function which errors
    return model(a)


test_backend_error()
""",
        _runs,
    ),
    "guide-toy-compiler": Snippet(
        """import torch

import torch._dynamo as dynamo

model = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(5)])

# toy compiler which fails if graph contains relu
def toy_compiler(gm: torch.fx.GraphModule, _):
    for node in gm.graph.nodes:
        if node.target == torch.relu:
            assert False

    return gm


@dynamo.optimize(toy_compiler)
def test_backend_error():
    y = torch.ones(200, 200)
    x = torch.ones(200, 200)
    z = x + y
    a = torch.relu(z)
    return model(a)


test_backend_error()
""",
        _backend_failed,
        raises=True,
    ),
    "guide-function": Snippet(
        """@dynamo.optimize(...)
def some_fun(x):
    ...

some_fun(x)
...
""",
        _runs,
        DYNAMO + "x = torch.ones(3)\n",
        holes=(("optimize(...)", "optimize('eager')"), ("    ...", "    return x + 1")),
    ),
    "guide-nopython": Snippet(
        """@dynamo.optimize(<compiler>, nopython=True)
def toy_example(a, b):
   ...
""",
        lambda seen: _equal(seen.names["toy_example"](torch.ones(3), torch.ones(3)).tolist(), [2.0] * 3),
        DYNAMO,
        holes=(("<compiler>", "'eager'"), ("   ...", "   return a + b")),
    ),
    "guide-explain": Snippet(
        """import torch
import torch._dynamo as dynamo

def toy_example(a, b):
    x = a / (torch.abs(a) + 1)
    print("woo")
    if b.sum() < 0:
        b = b * -1
    return x * b


explanation, out_guards, graphs, ops_per_graph = dynamo.explain(toy_example, torch.randn(10), torch.randn(10))
print(explanation)
""",
        _explained,
        "import torch\ntorch.manual_seed(3)  # a `b` whose sum is above nought: three graphs either way\n",
    ),
    "guide-profiler": Snippet(
        """prof = dynamo.utils.CompilationProfiler()

@dynamo.optimize(prof)
def my_model():
    ...

my_model()
print(prof.report())
""",
        _profiled,
        DYNAMO,
        holes=(("    ...", "    print(torch.ones(3))"),),
    ),
    "guide-repro": Snippet(  # `.cuda()`, and a backend that its author had registered as "None"
        """import torch
import torch._dynamo as dynamo
from torch import tensor, device
import torch.fx as fx
from torch._dynamo.testing import rand_strided
from math import inf
from torch._dynamo.debug_utils import run_fwd_maybe_bwd


from torch.nn import *
class Repro(torch.nn.Module):
    def __init__(self):
        super().__init__()



    def forward(self, add):
        relu = torch.relu(add);  add = None
        return (relu,)


mod = Repro().cuda()
opt_mod = dynamo.optimize("None")(mod)


args = [((200, 200), (200, 1), torch.float32, 'cpu', False)]
args = [rand_strided(sh, st, dt, dev).requires_grad_(rg) for (sh, st, dt, dev, rg) in args]


with torch.cuda.amp.autocast(enabled=False):
    ref = run_fwd_maybe_bwd(mod, args)
    res = run_fwd_maybe_bwd(opt_mod, args)
""",
        lambda seen: _equal(torch.equal(seen.names["ref"][0][0], seen.names["res"][0][0]), True),
        holes=((".cuda()", ""), ('"None"', '"eager"')),
    ),
    "guide-repro-lowering": Snippet(
        """import torch
from torch import tensor, device
import torch.fx as fx
from torch._dynamo.testing import rand_strided
from math import inf
from torch.fx.experimental.proxy_tensor import make_fx

# torch version: 1.13.0a0+gitfddfc44
# torch cuda version: 11.6
# torch git version: fddfc4488afb207971c54ad4bf58130fdc8a4dc5


# CUDA Info:
# nvcc: NVIDIA (R) Cuda compiler driver
# Copyright (c) 2005-2022 NVIDIA Corporation
# Built on Thu_Feb_10_18:23:41_PST_2022
# Cuda compilation tools, release 11.6, V11.6.112
# Build cuda_11.6.r11.6/compiler.30978841_0

# GPU Hardware Info:
# NVIDIA A100-SXM4-40GB : 8


from torch.nn import *
class Repro(torch.nn.Module):
    def __init__(self):
        super().__init__()



    def forward(self, add):
        _foobar = torch.ops.aten._foobar.default(add);  add = None
        return (_foobar,)

args = [((200, 200), (200, 1), torch.float32, 'cpu')]
args = [rand_strided(shape, stride, dtype, device) for shape, stride, dtype, device in args]
mod = make_fx(Repro())(*args)

from torch._inductor.compile_fx import compile_fx_inner

compiled = compile_fx_inner(mod, args)
compiled(*args)
""",
        _refused("aten._foobar"),
        raises=True,
    ),
    "guide-log-level": Snippet(
        """import logging
torch._dynamo.config.log_level = logging.DEBUG
torch._dynamo.config.verbose = True
torch._dynamo.optimize("eager")(lambda x: x + 1)(torch.ones(3))
""",
        lambda seen: _has(seen.logs["graph_code"], "def forward"),
        "import torch\n",
    ),
    "guide-files": Snippet(
        """torch._dynamo.config.replay_record_enabled = True
torch._dynamo.config.repro_after = "aot"
torch._dynamo.config.base_dir = "/tmp"
""",
        lambda seen: _holds(
            magneto.config.replay_record_enabled,
            magneto.config.repro_after == "aot",
            magneto.config.debug_dir == "/tmp",
        ),
        "import torch\n",
    ),
    "guide-compile-times": Snippet(
        "print(torch._dynamo.utils.compile_times())",
        lambda seen: _shows(
            seen, "TorchDynamo compilation metrics:", "Runtimes (s)", "compile.capture ", "compile.backend"
        ),
        "import torch\ntorch.compile(lambda x: x + 1)(torch.ones(3))\n",
    ),
    "guide-inductor-debug": Snippet(
        "torch._inductor.config.debug = True\ntorch.compile(lambda x: x + 1)(torch.ones(3))\n",
        lambda seen: _has(seen.logs["output_code"], "arena"),
        "import torch\n",
    ),
    # Debugging Dynamo.
    "debugging-explain": Snippet(
        """import torch._dynamo

# Explain what's happening during compilation
explanation = torch._dynamo.explain(model)(example_input)
print(explanation)

# Or use logging
# TORCH_LOGS="+graph_breaks" python script.py
""",
        lambda seen: _has([seen.output], "Graph Count: 1\nGraph Break Count: 0\nOp Count: 1\nBreak Reasons:\n"),
        "import torch\n" + EXAMPLE,
    ),
    "debugging-graph-breaks": Snippet(
        """# Bad: causes graph break
if x.sum() > 0:
    return x * 2

# Good: use torch.where for simple conditionals
return torch.where(x.sum() > 0, x * 2, x)

# Bad: graph break from .item()
threshold = x.mean().item()

# Good: keep as tensor
threshold = x.mean()
""",
        _breaks("DataDependentBranch", "if x.sum() > 0:", "DataDependentValue", "threshold = x.mean().item()"),
        "import torch\n",
        holes=(
            ("if x.sum() > 0:\n    return x * 2\n", "def bad(x):\n    if x.sum() > 0:\n        return x * 2\n"),
            ("return torch.where", "def good(x):\n    return torch.where"),
            (
                "threshold = x.mean().item()",
                "def bad_value(x):\n    threshold = x.mean().item()\n    return x > threshold",
            ),
            (
                "threshold = x.mean()\n",
                "def good_value(x):\n    threshold = x.mean()\n    return x > threshold\n\n"
                "torch.compile(bad)(torch.ones(3)), torch.compile(bad_value)(torch.ones(3))\n"
                "torch.compile(good, fullgraph=True)(torch.ones(3))\n"
                "torch.compile(good_value, fullgraph=True)(torch.ones(3))\n",
            ),
        ),
    ),
    "debugging-cache-size-limit": Snippet(
        """import torch._dynamo
torch._dynamo.config.cache_size_limit = 8  # Reduce to catch issues faster

# Log guard failures
# TORCH_LOGS="+guards" python script.py
""",
        lambda seen: _equal(magneto.config.cache_size_limit, 8),
    ),
    "debugging-dynamic": Snippet(
        """# Enable dynamic shapes to avoid shape-based recompilations
@torch.compile(dynamic=True)
def fn(x):
    return x * 2

# Or mark specific dimensions as dynamic
from torch._dynamo import mark_dynamic
mark_dynamic(tensor, dim=0)  # Batch dimension is dynamic
""",
        lambda seen: _equal(seen.names["tensor"]._dynamo_dynamic_indices, {0}),
        "import torch\ntensor = torch.ones(3)\n",
    ),
    "debugging-errors": Snippet(
        """import torch._dynamo

# Don't suppress errors - see the full traceback
torch._dynamo.config.suppress_errors = False

# Get verbose output
torch._dynamo.config.verbose = True

# Trace what Dynamo is doing
# TORCH_LOGS="+dynamo" python script.py
""",
        lambda seen: _equal((magneto.config.suppress_errors, magneto.config.verbose), (False, True)),
    ),
    "debugging-configurations": Snippet(
        """import torch._dynamo.config as config

# Debugging
config.verbose = True                    # Verbose logging
config.suppress_errors = False           # Show full errors
config.cache_size_limit = 8              # Max cached graphs per function

# Graph break control
config.assume_static_by_default = True   # Treat shapes as static by default
config.automatic_dynamic_shapes = False  # Disable auto dynamic shapes

# Performance tuning
config.inline_inbuilt_nn_modules = True  # Inline nn.Module forward calls
""",
        lambda seen: _equal((magneto.config.automatic_dynamic_shapes, seen.warnings), (False, [])),
    ),
    "debugging-export": Snippet(
        """from torch.fx import symbolic_trace

@torch.compile(backend="eager")  # Use eager backend to just see the graph
def fn(x):
    return x * 2 + 1

# Or use export to get the graph
from torch.export import export
exported = export(fn, (example_input,))
print(exported.graph_module.graph)
""",
        lambda seen: _shows(seen, "call_function[target=torch.ops.aten.mul.Tensor](args = (%x, 2)", "return (add,)"),
        "import torch\n" + EXAMPLE,
    ),
    "debugging-disable": Snippet(
        """import torch._dynamo

# Skip a function entirely
@torch._dynamo.disable
def do_not_compile(x):
    # This will run in eager mode
    return complex_python_code(x)

# Or disable for a block
with torch._dynamo.disable():
    result = uncompilable_code()
""",
        lambda seen: _equal(seen.names["do_not_compile"](3), 3),
        "complex_python_code = lambda x: x\nuncompilable_code = lambda: 1\n",
    ),
    # torch.compile troubleshooting.
    "troubleshooting-graph-break": Snippet(
        """import torch

@torch.compile
def fn(x):
    x = x + 1
    with open("test.txt", "r") as f:
        return x + len(f.read())

fn(torch.ones(3, 3))
""",
        _breaks(
            "Graph break in user code at ",
            "playground.py:7\nReason: InputOutput: call of ",
            "User code traceback:\n  File ",
            'line 7, in fn\n    with open("test.txt", "r") as f:\n         ^^^^^^^^^^^^^^^^^^^^^\n',
        ),
        "import os, tempfile; os.chdir(tempfile.mkdtemp()); open('test.txt', 'w').close()\n",
    ),
    "troubleshooting-guards": Snippet(
        """import torch

@torch.compile
def fn(x):
    return x + 1

fn(torch.ones(3, 3))
""",
        _guarded,
    ),
    "troubleshooting-recompilation": Snippet(
        """import torch

@torch.compile
def fn(x):
    return x + 1

fn(torch.ones(3, 3))
fn(torch.ones(4, 4))
""",
        _recompiles("tensor 'L['x']' size mismatch at index 0. expected 3, actual 4"),
    ),
    "troubleshooting-dynamic": Snippet(
        """import torch

@torch.compile(dynamic=True)
def fn(x):
    return x + 1

fn(torch.ones(3, 3))
fn(torch.ones(4, 4))
""",
        lambda seen: (
            _equal((magneto.stats()["graphs"], seen.logs["recompiles"]), (1, [])),
            _has(seen.logs["dynamic"], "create_symbol s0 = 3 for L['x'].size()[0] [2, int_oo] at "),
            _has(seen.logs["dynamic"], "playground.py:5 in fn"),
        )[0],
    ),
    "troubleshooting-set-logs": Snippet(
        """import logging
torch._logging.set_logs(graph_breaks=True)
...
""",
        _breaks("InputOutput"),
        "import torch\n",
        holes=(
            (
                "...",
                "torch.compile(lambda x: (x + 1, print()), backend='eager')(torch.ones(3))\ntorch._logging.set_logs()",
            ),
        ),
    ),
    "troubleshooting-inference": Snippet(
        """# inference
model = ...
opt_model = torch.compile(model)

for _ in range(N_ITERS):
    inp = ...
    out = opt_model(inp)
""",
        lambda seen: _equal((magneto.stats()["graphs"], magneto.stats()["recompiles"]), (1, 0)),
        "import torch\nN_ITERS = 3\n",
        holes=(("model = ...", "model = torch.nn.Linear(3, 3).eval()"), ("inp = ...", "inp = torch.ones(2, 3)")),
    ),
    "troubleshooting-distributed": Snippet(
        """# DistributedDataParallel
model = ...
opt_model = torch.compile(model)
model_ddp = DistributedDataParallel(opt_model, ...)

for _ in range(N_ITERS):
    inp = ...
    out = model_ddp(inp)
""",
        lambda seen: (_equal(list(seen.names["out"].shape), [2, 3]), _runs(seen))[0],
        """import torch
from torch.nn.parallel import DistributedDataParallel
N_ITERS = 3
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
""",
        holes=(
            ("model = ...", "model = torch.nn.Linear(3, 3)"),
            ("(opt_model, ...)", "(opt_model)"),
            ("inp = ...", "inp = torch.ones(2, 3)"),
            ("out = model_ddp(inp)", "out = model_ddp(inp)\ntorch.distributed.destroy_process_group()"),
        ),
    ),
    "troubleshooting-training": Snippet(
        """# training
model = ...
opt = torch.optim.Adam(model.parameters())

@torch.compile
def train(mod, data):
    opt.zero_grad(True)
    pred = mod(data[0])
    loss = torch.nn.CrossEntropyLoss()(pred, data[1])
    loss.backward()
    opt.step()

for _ in range(N_ITERS):
    inp = ...
    train(model, inp)
""",
        lambda seen: _equal(seen.names["model"].weight.grad is not None, True),
        "import torch\nN_ITERS = 2\n",
        holes=(
            ("model = ...", "model = torch.nn.Linear(3, 3)"),
            ("inp = ...", "inp = (torch.ones(2, 3), torch.zeros(2, dtype=torch.long))"),
        ),
    ),
    "troubleshooting-disable": Snippet(
        """def bad1_inner(...):
    # skipped

@torch.compiler.disable
def bad1_outer(...):
    # skipped
    bad1_inner(...)

def bad2_inner(...)
    # traced

@torch.compiler.disable(recursive=False)
def bad2_outer(...):
    # skipped
    bad2_inner(...)

@torch.compile
def fn(...):
    # graph break
    bad1_outer(...)
    ...
    # graph break
    bad2_outer(...)
""",
        lambda seen: (
            _breaks("DisabledFunction")(seen),
            _equal(seen.names["fn"](torch.ones(3)).tolist(), [6.0] * 3),
            _equal(magneto.why(seen.names["bad1_inner"]).verdict.startswith("no capture has met it"), True),
            _equal(magneto.why(seen.names["bad2_inner"]).verdict, "runs compiled"),
        )[0],
        "import torch\n",
        holes=(
            ("bad1_inner(...):\n    # skipped", "bad1_inner(x):\n    return x + 1  # skipped"),
            ("bad1_outer(...):", "bad1_outer(x):"),
            ("    bad1_inner(...)", "    return bad1_inner(x)"),
            ("bad2_inner(...)\n    # traced", "bad2_inner(x):\n    return x + 2  # traced"),
            ("bad2_outer(...):", "bad2_outer(x):"),
            ("    bad2_inner(...)", "    return bad2_inner(x)"),
            ("def fn(...):", "def fn(x):"),
            ("    bad1_outer(...)\n    ...", "    x = bad1_outer(x)\n    x = x * 2"),
            ("    bad2_outer(...)", "    return bad2_outer(x)\n\nfn(torch.ones(3))"),
        ),
    ),
    "troubleshooting-data-dependent": Snippet(
        """import torch

@torch.compile
def fn(x):
    y = x.sum()
    if y > 0:
        return x + y.item()
    return x - y.item()

fn(torch.ones(3, 3))
""",
        _breaks("DataDependentBranch", "if y > 0:", "DataDependentValue", "return x + y.item()"),
    ),
    "troubleshooting-constant-condition": Snippet(
        """# old
x = torch.randn(3, 3)
@torch.compile
def fn(y):
    if x.sum() > 0:
        return y + x
    else:
        return y - x

# new
x = torch.randn(3, 3)
cond = (x.sum() > 0).item()
@torch.compile
def fn(y):
    if cond:
        return y + x
    else:
        return y - x
""",
        # What the data decide is chosen in the graph: the old program has no break, either.
        lambda seen: _equal(len([text for text in seen.logs["graph_breaks"] if "DataDependentBranch" in text]), 0),
        "import torch\n",
        holes=(
            ("\n# new", "fn(x)\n\n# new"),
            (
                "    if cond:\n        return y + x\n    else:\n        return y - x\n",
                "    if cond:\n        return y + x\n    else:\n        return y - x\n\nfn(x)\n",
            ),
        ),
    ),
    "troubleshooting-cond": Snippet(
        """# old
@torch.compile
def fn(x):
    if x.sum() > 0:
        return x + 1
    return x - 1

# new
@torch.compile
def fn(x):
    return torch.cond(
        x.sum() > 0,
        lambda x: x + 1,
        lambda x: x - 1,
        (x,),
    )
""",
        lambda seen: (
            _equal(seen.names["fn"](torch.ones(3)).tolist(), [2.0] * 3),
            _equal(seen.names["fn"](-torch.ones(3)).tolist(), [-2.0] * 3),
            _equal(set(magneto.stats()["break_reasons"]), set()),
        )[0],
        "import torch\n",
    ),
    "troubleshooting-logging": Snippet(
        """import torch

torch._dynamo.config.reorderable_logging_functions.add(print)

@torch.compile
def fn(x):
    x += 1
    print("log!")
    return torch.sin(x)

fn(torch.ones(3, 3))
""",
        lambda seen: _has([seen.output], "log!"),
    ),
    "troubleshooting-incorrect-code": Snippet(
        """import torch

@torch.compile
def fn(x):
    y = torch.sin(x, x)
    return y

fn(torch.ones(3, 3))
""",
        lambda seen: (
            _refused("sin() takes 1 positional argument but 2 were given")(seen),
            _breaks("playground.py:5\nReason: Exception: TypeError: sin() takes 1", "line 5, in fn", "torch.sin(x, x)")(
                seen
            ),
        )[0],
        raises=True,
    ),
    "troubleshooting-cache-size-limit": Snippet(
        """import torch

@torch.compile(dynamic=False)
def fn(x):
    return x + 1

for i in range(1, 10):
    fn(torch.ones(i))
""",
        _limited,
    ),
    "troubleshooting-constants": Snippet(
        """import torch

@torch.compile
def fn(x, c):
    return x + c

for i in range(1, 10):
    fn(torch.ones(i), 0.5 + i)
""",
        _recompiles("expected 1, actual 2"),
    ),
    "troubleshooting-tensors": Snippet(
        """# first example
for i in range(1, 10):
    fn(torch.ones(i), torch.tensor(0.5 + i))

# second example
opt = torch.optim.Adam(mod.parameters(), lr=torch.tensor(0.01))
sched = torch.optim.lr_scheduler.ExponentialLR(opt, torch.tensor(0.9))
""",
        lambda seen: _equal([text for text in seen.logs["recompiles"] if "L['c']" in text], []),
        """import torch
mod = torch.nn.Linear(3, 3)
fn = torch.compile(lambda x, c: x + c)
""",
    ),
    "troubleshooting-scheduler": Snippet(
        """import torch

mod = torch.nn.Linear(3, 3)
opt = torch.optim.Adam(mod.parameters(), lr=0.01)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)

@torch.compile
def fn(inp):
    opt.zero_grad(True)
    out = mod(inp).sum()
    out.backward()
    opt.step()
    sched.step()

for i in range(1, 10):
    fn(torch.ones(3, 3))
""",
        lambda seen: _equal(round(seen.names["sched"].get_last_lr()[0], 9), round(0.01 * 0.9**9, 9)),
    ),
    "troubleshooting-ablation": Snippet(
        """for backend in ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor"):
    torch.compile(fn, backend=backend)(torch.ones(3))
for mode in ("default", "reduce-overhead", "max-autotune"):
    torch.compile(fn, backend="inductor", mode=mode)(torch.ones(3))
for dynamic in (True, False, None):
    torch.compile(fn, dynamic=dynamic)(torch.ones(3))
""",
        lambda seen: _equal(magneto.stats()["graphs"], 10),
        "import torch\nfn = lambda x: x + 1\n",
    ),
    "troubleshooting-graph-code": Snippet(
        """import torch

def g(x, y):
    return x + y

@torch.compile(backend="eager")
def f(x):
    x = torch.sin(x)
    x = g(x, x)
    return x

f(torch.ones(3, 3))
""",
        lambda seen: _has(seen.logs["graph_code"], "torch.sin(l_x_)"),
    ),
    "troubleshooting-comptime-form": Snippet(
        """from torch._dynamo.comptime import comptime

@torch.compile
def f(...):
    ...
    comptime.breakpoint()
    ...
""",
        lambda seen: _shows(seen, "x = FakeTensor(..., size=(3,))"),
        """import sys, torch
sys.breakpointhook = lambda: sys._getframe(1).f_locals["ctx"].print_locals()
""",
        holes=(
            ("f(...)", "f(x)"),
            ("    ...\n", "    y = x + 1\n"),
            ("    ...\n", "    return y\n\nf(torch.ones(3))\n"),
        ),
    ),
    "troubleshooting-comptime": Snippet(
        """import torch
from torch._dynamo.comptime import comptime

@torch.compile(backend="eager")
def f(x):
    y = x + 1
    comptime.breakpoint()
    y = y + 1
    return y

f(torch.ones(3, 3))
""",
        lambda seen: _shows(
            seen,
            'playground.py", line 16, in f\n    comptime.breakpoint()\n',
            "x = FakeTensor(..., size=(3, 3))\ny = FakeTensor(..., size=(3, 3))\n",
            'def forward(self, L_x_: "f32[3, 3]"):\n    l_x_ = L_x_\n\n    # File: ',
            "playground.py:15 in f, code: y = x + 1\n",
            ': "f32[3, 3]" = l_x_ + 1',
        ),
        """import sys

def at_the_prompt():  # as in the document's session with pdb
    ctx = sys._getframe(1).f_locals["ctx"]
    ctx.print_bt()
    ctx.print_locals()
    ctx.print_graph()

sys.breakpointhook = at_the_prompt
""",
    ),
}
