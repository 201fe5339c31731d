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
