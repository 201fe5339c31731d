"""Magneto never uses PyTorch's own compiler: proved in fresh processes in which it can't be imported."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).parent

# Runs in each child first. `import torch` itself loads some of these modules; nothing more may come.
PRELUDE = """
import sys
import torch

FORBIDDEN = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch._subclasses", "torch._decomp",
             "torch._refs", "torch._prims", "torch._export", "torch.export", "torch.fx.experimental", "sympy")

def forbidden(name):
    return any(name == prefix or name.startswith(prefix + ".") for prefix in FORBIDDEN)

class Wall:
    def find_spec(self, name, path=None, target=None):
        if forbidden(name):
            raise ImportError(f"{name} must not be imported")
        return None

loaded_by_torch = {name for name in sys.modules if forbidden(name)}
"""

PROGRAM = """
sys.meta_path.insert(0, Wall())
import magneto

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query = torch.nn.Linear(8, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.register_buffer("scale", torch.ones(8))
    def forward(self, x, *, mask=None):
        h = torch.nn.functional.scaled_dot_product_attention(self.query(x), x, x, attn_mask=mask)
        return {"hidden": self.norm(x + h) * self.scale, "shape": tuple(h.shape)}

def same(got, want):
    # torch.testing.assert_close imports part of PyTorch's compiler itself.
    assert got.dtype == want.dtype and torch.allclose(got, want, rtol=1.3e-6, atol=1e-5), (got, want)

def breaking(x):
    x = x.sin()
    print("in the middle", x.sum().item() > 100)
    return x.cos()

def custom(graph_module, example_inputs):
    assert "def forward" in graph_module.code  # print_readable() of torch.fx imports part of the compiler
    return graph_module.forward

for backend in ("eager", "aot_eager", "magneto", custom):
    magneto.reset()
    block = Block()
    x, mask = torch.randn(2, 5, 8), torch.ones(5, 5, dtype=torch.bool)
    compiled = magneto.compile(block, backend=backend, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            got, want = compiled(x, mask=mask), block(x, mask=mask)
            same(got["hidden"], want["hidden"])
            assert got["shape"] == want["shape"]
        compiled(torch.randn(3, 5, 8), mask=mask)
    compiled(x).__getitem__("hidden").sum().backward()
    assert block.query.weight.grad is not None
    same(magneto.compile(breaking, backend=backend)(x), breaking(x))
print(magneto.explain(breaking)(torch.randn(3)))
assert magneto.stats()["graphs"] >= 2, magneto.stats()
new = {name for name in sys.modules if forbidden(name)} - loaded_by_torch
assert not new, sorted(new)
print("isolated")
"""

# transformers imports torch._dynamo by itself. Once its model has run in eager, each forbidden module is replaced by
# one that raises when it is used: only the modules of PyTorch's compiler proper, which an eager forward does not need.
TRANSFORMERS = """
import types
sys.path.insert(0, {tests!r})
import models

bert = models.build("bert")
given = models.inputs("bert")
with torch.no_grad():
    want = bert(**given)

class Tripwire(types.ModuleType):
    def __getattribute__(self, name):
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise AssertionError(f"{{object.__getattribute__(self, '__name__')}}.{{name}} was used")

PROPER = ("torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes", "sympy")
for name in list(sys.modules):
    if name.startswith(PROPER) and name not in loaded_by_torch:
        wire = sys.modules[name] = Tripwire(name)
        parent, _, child = name.rpartition(".")
        if parent in sys.modules and not isinstance(sys.modules[parent], Tripwire):
            setattr(sys.modules[parent], child, wire)

sys.meta_path.insert(0, Wall())
import magneto
for backend in ("eager", "aot_eager", "magneto"):
    compiled = magneto.compile(bert, backend=backend, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            # torch.testing.assert_close imports part of PyTorch's compiler itself.
            assert torch.allclose(compiled(**given).last_hidden_state, want.last_hidden_state)
print("isolated")
"""

# PyTorch's shape functions of these are Python code that loads its compiler: seconds, in the first call.
RARE_OPERATORS = """
sys.meta_path.insert(0, Wall())
import magneto
import torch.nn.functional as F

x, image, rows = torch.rand(4, 4), torch.rand(1, 4, 8, 8), torch.randint(0, 4, (2, 3))
CALLS = [
    lambda: F.embedding_bag(rows, x),
    lambda: F.binary_cross_entropy(x, x),
    lambda: F.huber_loss(x, x + 1),
    lambda: F.grid_sample(image, torch.zeros(1, 3, 3, 2), align_corners=False),
    lambda: F.pixel_shuffle(image, 2),
    lambda: F.unfold(image, 2),
    lambda: F.interpolate(image[0], scale_factor=2.0, mode="nearest-exact"),
    lambda: F.bilinear(x, x, torch.ones(2, 4, 4)),
    lambda: torch.special.zeta(x + 2, x + 1),
    lambda: torch.linalg.inv(torch.eye(4) + x),
    lambda: torch.linalg.pinv(x),
    lambda: torch.cdist(x, x),
    lambda: torch.cross(x[:, :3], x[:, 1:], dim=1),
    lambda: torch.rot90(x),
    lambda: torch.diag_embed(x),
    lambda: torch.searchsorted(x[0].sort().values, x),
    lambda: torch.fft.hfft(x),
    lambda: torch.slice_scatter(x, x[:2], 0, 1, 3),
    lambda: torch.randint_like(x, 5),
    lambda: torch.normal(0.0, 1.0, (3,)),
    lambda: torch.empty(3).cauchy_(),
]
for call in CALLS:
    for dynamic in (False, True):
        torch.manual_seed(0)
        want = call()
        torch.manual_seed(0)
        got = magneto.compile(call, fullgraph=True, dynamic=dynamic)()
        assert got.dtype == want.dtype and got.stride() == want.stride(), (got, want)
        assert torch.allclose(got, want, rtol=1e-4, atol=1e-4), (got, want)
print("isolated")
"""

# The same on tensors that are too large for zeros to be tried (meta_kernel.cpp), with more kinds of operators. What `import
# torch` has loaded of the compiler can't be kept from being imported: each function of it is made to raise when it is
# called.
LARGE_OPERATORS = """
import gc, types
sys.meta_path.insert(0, Wall())
import magneto
import torch.nn.functional as F

def trap():
    raise AssertionError("a function of PyTorch's compiler was called")

def disarmed(code):
    there = trap.__code__
    return code.replace(co_code=there.co_code, co_consts=there.co_consts, co_names=there.co_names,
                        co_stacksize=there.co_stacksize, co_exceptiontable=there.co_exceptiontable)

PARTS = (*FORBIDDEN, "torch._meta_registrations", "torch._prims_common", "torch._inductor", "torch._guards")
functions = [f for f in gc.get_objects() if type(f) is types.FunctionType
             and any(str(f.__module__) == part or str(f.__module__).startswith(part + ".") for part in PARTS)]
assert len(functions) > 1000, len(functions)
# Eager itself asks these, at each call or at each import.
ASKED = {{"disable", "is_compiling", "_disable_dynamo", "justknobs_check"}}
for function in functions:
    if function.__name__ not in ASKED:
        function.__code__ = disarmed(function.__code__)

n = 1 << 19
x, y = torch.rand(n), torch.rand(n)
square, image = torch.rand(800, 800), torch.rand(2, 6, 256, 256)
volume, grid = torch.rand(1, 4, 32, 64, 64), torch.rand(2, 400, 400, 2) * 2 - 1
places = torch.randint(0, 6, (2, 256, 256))
LSTM, sequence = torch.nn.LSTM(64, 64).requires_grad_(False), torch.rand(300, 32, 64)
CALLS = {{
{calls}
}}
problems = []
for name, call in CALLS.items():
    magneto.reset()
    torch.manual_seed(0)
    want = call()
    torch.manual_seed(0)
    try:
        got = magneto.compile(call, fullgraph=True, backend="aot_eager")()
    except Exception as error:
        problems.append((name, type(error).__name__, str(error)[:300]))
        continue
    for one, other in zip(got, want) if isinstance(want, (tuple, list)) else [(got, want)]:
        if (one.dtype, one.shape, one.stride()) != (other.dtype, other.shape, other.stride()):
            problems.append((name, one.shape, one.stride(), other.shape, other.stride()))
        elif not (torch.equal(one, other) or one.is_floating_point() and torch.allclose(one, other, equal_nan=True)):
            problems.append((name, "values"))
    if used := magneto.stats()["python_meta_kernels"]:
        problems.append((name, used))
assert not problems, "\\n".join(map(str, problems))
print("isolated", flush=True)
import os
os._exit(0)  # at exit, functions of the compiler are called
"""

LARGE_CALLS = """
grid_sample: F.grid_sample(image, grid, align_corners=False)
grid_sample of a volume: F.grid_sample(volume, torch.zeros(1, 32, 64, 64, 3), align_corners=True)
affine_grid: F.affine_grid(torch.rand(2, 2, 3), (2, 3, 512, 512), align_corners=False)
upsample, nearest: F.interpolate(image, scale_factor=2)
upsample, bilinear: F.interpolate(image, (300, 300), mode="bilinear")
upsample, antialias: F.interpolate(image, (128, 128), mode="bilinear", antialias=True)
upsample, nearest-exact: F.interpolate(image, (300, 300), mode="nearest-exact")
upsample of a volume: F.interpolate(volume, scale_factor=2)
upsample of a volume, trilinear: F.interpolate(volume, (16, 32, 32), mode="trilinear")
nll_loss2d: F.cross_entropy(image, places)
nll_loss2d, each: F.nll_loss(image, places, reduction="none")
binary_cross_entropy: F.binary_cross_entropy(x, y)
huber_loss: F.huber_loss(x, y)
soft_margin_loss: F.soft_margin_loss(x, y)
multi_margin_loss: F.multi_margin_loss(square, torch.arange(800))
multilabel_margin_loss: F.multilabel_margin_loss(square, torch.full((800, 800), -1))
reflection pad of a volume: F.pad(volume, (1, 1, 2, 2, 1, 1), mode="reflect")
replication pad of a volume: F.pad(volume, (1, 1, 2, 2, 1, 1), mode="replicate")
circular pad: F.pad(image, (1, 1, 2, 2), mode="circular")
cdist: torch.cdist(square, square[:90])
cdist of few: torch.cdist(torch.rand(20, 20000), torch.rand(20, 20000))
pdist: F.pdist(square)
unfold: F.unfold(image, 3, padding=1)
fold: F.fold(torch.rand(2, 54, 254 * 254), (256, 256), 3)
pixel_shuffle: F.pixel_shuffle(torch.rand(2, 16, 128, 128), 2)
pixel_unshuffle: F.pixel_unshuffle(image, 2)
channel_shuffle: F.channel_shuffle(image, 3)
max_pool3d: F.max_pool3d(volume, 2)
avg_pool3d: F.avg_pool3d(volume, 2)
adaptive pools of a volume: F.adaptive_avg_pool3d(volume, 5), F.adaptive_max_pool3d(volume, 5)
lp_pool: F.lp_pool2d(image, 2, 3)
grouped convolution: F.conv2d(image, torch.rand(6, 2, 3, 3), groups=3)
transposed convolution: F.conv_transpose2d(image, torch.rand(6, 2, 3, 3), stride=2)
convolution of a volume: F.conv3d(volume, torch.rand(2, 4, 3, 3, 3))
embedding_bag: F.embedding_bag(torch.arange(n).view(-1, 4) % 9000, torch.rand(9000, 64), mode="max")
lstm: LSTM(sequence)[0]
histc: torch.histc(x, 10)
kthvalue: torch.kthvalue(square, 3)
median: torch.nanmedian(square, 0)
nansum: torch.nansum(square, 0)
count_nonzero: torch.count_nonzero(square, 1)
logcumsumexp: torch.logcumsumexp(square, 0)
renorm: torch.renorm(square, 2, 0, 1.0)
trace: torch.trace(square)
addbmm: torch.addbmm(square, square[None], square[None])
addr: torch.addr(square, square[0], square[1])
diag_embed: torch.diag_embed(square[:, :100])
diagonal_scatter: torch.diagonal_scatter(square, square[0])
slice_scatter: torch.slice_scatter(square, square[:90], 0, 0, 90)
select_scatter: torch.select_scatter(square, square[0], 0, 3)
block_diag: torch.block_diag(square, square)
zeta: torch.special.zeta(x + 2, y + 1)
bessel: torch.special.bessel_j0(x)
chebyshev: torch.special.chebyshev_polynomial_t(x, 3)
xlog1py: torch.special.xlog1py(2.0, x)
polygamma: torch.polygamma(1, x + 1)
igamma: torch.igamma(x, y)
heaviside: torch.heaviside(x, y)
normal: torch.normal(x, y)
poisson: torch.poisson(x)
rrelu: F.rrelu(x, training=True)
rot90: torch.rot90(square)
inverse: torch.linalg.inv(square + 800 * torch.eye(800))
solve: torch.linalg.solve(square + 800 * torch.eye(800), square)
qr: torch.linalg.qr(square)
cholesky: torch.linalg.cholesky(square @ square.T + 800 * torch.eye(800))
determinant: torch.linalg.slogdet(square)
lu: torch.linalg.lu_factor(square)[0]
cross: torch.linalg.cross(torch.rand(300000, 3), torch.rand(300000, 3))
fft: torch.fft.rfft(x)
copies of views: torch.ops.aten.permute_copy(square, [1, 0])
add, out: torch.add(x, y, out=torch.empty(n))
matmul, out: torch.mm(square, square, out=torch.empty(800, 800))
sort, out: torch.sort(square, out=(torch.empty(800, 800), torch.empty(800, 800, dtype=torch.long)))
foreach: torch._foreach_mul([x, y], 2.0)
foreach, in place: torch._foreach_add_([x.clone(), y.clone()], [y, x])
foreach norm: torch._foreach_norm([x, y])
"""

# Once torch.compile has run in the process, Module.__init__ keeps notes: a counter that each of its compilations raises.
BESIDE = """
import magneto

def doubled(x):
    return x * 2

class Slicing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
    def forward(self, x):
        for layer in self.layers[:2]:  # a new ModuleList
            x = layer(x).relu()
        return x

torch.compile(doubled, backend="eager")(torch.ones(2))
model, x = Slicing(), torch.ones(2, 4)
compiled = magneto.compile(model, backend="eager", fullgraph=True)
for n in range(3):
    assert torch.equal(compiled(x), model(x))
    torch.compile(lambda x: x + n, backend="eager")(x)
print(magneto.stats()["cache_entries"], "captures")
"""

IMPORT = """
before = set(sys.modules)
import magneto
new = {name.partition(".")[0] for name in set(sys.modules) - before}
assert not any(forbidden(name) or name.startswith("torch.fx") for name in set(sys.modules) - before)
assert new <= {"magneto"}, new
print("isolated")
"""


def run(code: str, **environment: str) -> str:
    process = subprocess.run(
        [sys.executable, "-P", "-c", PRELUDE + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MAGNETO_STRICT": "1", **environment},
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_compiler_of_pytorch_is_never_imported() -> None:
    output = run(PROGRAM)
    assert output.endswith("isolated\n")


def test_compiler_of_pytorch_is_never_used_with_transformers() -> None:
    assert run(TRANSFORMERS.format(tests=str(HERE))).endswith("isolated\n")


def test_logs_need_no_compiler_of_pytorch() -> None:
    assert run(PROGRAM, TORCH_LOGS="graph_breaks,guards,recompiles,graph_code").endswith("isolated\n")


def test_rare_operators_need_no_compiler_of_pytorch() -> None:
    assert run(RARE_OPERATORS).endswith("isolated\n")


def test_operators_on_large_tensors_need_no_python_of_pytorch() -> None:
    lines = [line.split(": ", 1) for line in LARGE_CALLS.strip().splitlines()]
    calls = "".join(f"    {name!r}: lambda: ({call}),\n" for name, call in lines)
    assert run(LARGE_OPERATORS.format(calls=calls)).endswith("isolated\n")


def test_works_beside_the_compiler_of_pytorch() -> None:
    assert run(BESIDE).endswith("1 captures\n")


def test_import_is_light() -> None:
    """How long it takes is a row of the benchmark."""
    run(IMPORT)


@pytest.mark.parametrize("name", ["magneto", "src"])
def test_no_source_names_the_compiler_in_code(name: str) -> None:
    """No import statement of ours names it; what runs is proved above."""
    forbidden = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch._subclasses", "sympy", "torch._decomp")
    root = HERE.parent / name
    for file in [*root.rglob("*.py"), *root.rglob("*.cpp"), *root.rglob("*.h")]:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            code = line.split("//")[0] if file.suffix != ".py" else line.split("#")[0]
            imports = "import" in code.lower() and '"""' not in code
            assert not (imports and any(word in code for word in forbidden)), f"{file}:{number}: {line.strip()}"
