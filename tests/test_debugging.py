"""Looking at a compile: logs, the debug directory, `magneto.debug_dump`, profiler ranges."""

from __future__ import annotations

import os
from pathlib import Path

import fresh
import pytest
import torch
import torch.nn.functional as F

import magneto
from magneto import exc

# Large enough that the product is the library's: small ones are generated.
X, W, B = torch.randn(96, 64), torch.randn(64, 64), torch.randn(64)


def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = F.layer_norm(x @ w, (64,), b, b)
    z = F.gelu(y) + x
    return torch.softmax(z, -1), z.sort(-1)[0]


LINE = block.__code__.co_firstlineno

STAGES = {
    "captured": [f"# {__file__}:{LINE + 2} in block", "gelu("],
    "guards": ["L['x']"],
    "functional": ["aten._softmax.default"],
    "normal_form": ["aten.mm.default"],
    "expressions": ["reduce.sum", "erf", f"test_debugging.py:{LINE + 2} in block", "call aten.mm.default"],
    "fusion": ["kernel, rows [96], stages over [64]", "call aten.sort.default"],
    "loops": ['kernel "', f'origin "aten.gelu.default at {__file__}:{LINE + 2} in block"', "parallel i0 < 96"],
    "diagram": ["<svg ", "_softmax", "aten.sort.default", "buffer "],
    "schedule": ["kernel 0 magneto::", "lanes", "units"],
    "llvm_ir": ["define void @magneto_kernel", f"test_debugging.py:{LINE + 2} in block"],
    "assembly": ["magneto_kernel:", f"test_debugging.py:{LINE + 2} in block"],
    "buffers": ["arena: ", "steps 0 to "],
    "plan": ["out aten.mm.default(", "kernel 0 magneto::", "96 units"],
    "data": ['"kernels":[{"name":', '"arena":'],
    "hints": [f"aten.sort.default at {__file__}:{LINE + 3} in block is called, not generated: it has no rule"],
    "profile": [" ms  compile.backend\n", " ms  compile.backend.code_generation\n"],
}


def test_debug_dump() -> None:
    with torch.no_grad():
        graphs = magneto.debug_dump(block, X, W, B)
        assert magneto.debug_dump(block)(X, W, b=B)[0].keys() == graphs[0].keys()
    assert list(graphs[0]) == list(STAGES) and len(graphs) == 1
    for stage, texts in STAGES.items():
        for text in texts:
            assert text in graphs[0][stage], (stage, text)


def test_debug_dump_of_several_graphs() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        print(end="")
        return x.cos()

    graphs = magneto.debug_dump(function, X)
    assert ["aten.sin" in graph["normal_form"] for graph in graphs] == [True, False]
    with pytest.raises(exc.InvalidValue, match="takes a callable"):
        magneto.debug_dump(3)


def test_debug_dump_of_a_backward() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), x.exp().tan()

    graphs = magneto.debug_dump(function, X.clone().requires_grad_())
    assert [graph.get("part", "forward") for graph in graphs] == ["forward", "backward", "backward"]
    shown = [[f"aten.{name}" in graph["normal_form"] for name in ("sin", "cos", "tan.")] for graph in graphs]
    assert shown == [[True, False, True], [False, True, False], [False, False, False]]
    assert "guards" in graphs[0] and "guards" not in graphs[1]


def test_equal_kernels_are_shown_once() -> None:
    x = torch.randn(64, 64)  # two kernels around a library's product
    graph = magneto.debug_dump(lambda x, y: torch.mm(x.relu(), y).relu(), x, x.t())[0]
    assert graph["assembly"].count("magneto_kernel:") == 1
    assert "the same code as kernel 0" in graph["assembly"]


def test_fusion_says_why_not() -> None:
    graph = magneto.debug_dump(lambda x: (x.sum(0), x.sum(1)), torch.randn(64, 64))[0]
    assert "not in 0: it reduces over other loops" in graph["fusion"]


def test_hints_for_what_is_not_compiled() -> None:
    graph = magneto.debug_dump(lambda x: x.clone().requires_grad_(), X)[0]  # a leaf that is made inside
    assert "torch.no_grad()" in graph["hints"] and "captured" in graph and "loops" not in graph
    graph = magneto.debug_dump(lambda x: x * 2, torch.ones(3, dtype=torch.complex64))[0]
    assert "one by one" in graph["hints"]


PROGRAM = """
import torch, magneto
def block(x):
    return torch.softmax(x, -1).mm(x)
def other(x):
    return x.exp().sum(), x.sort()[0]
x = torch.randn(8, 8)
magneto.compile(block)(x)
magneto.compile(other)(x)
"""


def run(**settings: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TORCH")}
    process = fresh.python("-c", PROGRAM, env={**clean, **settings})
    assert process.returncode == 0, process.stderr
    return process.stderr


ARTIFACTS = {
    "aot_graphs": "aten._softmax.default",
    "post_grad_graphs": "aten._softmax.default",
    "ir_pre_fusion": "reduce.max",
    "ir_post_fusion": 'kernel "_softmax"',
    "fusion": "stages over [8]",
    "schedule": "lanes",
    "output_code": "arena: ",
    "kernel_code": "magneto_kernel:",
    "perf_hints": "is called, not generated",
}


@pytest.mark.parametrize("artifact", ARTIFACTS)
def test_each_log(artifact: str) -> None:
    text = run(TORCH_LOGS=artifact)
    assert f"[__{artifact}]" in text and ARTIFACTS[artifact] in text
    others = [other for other in ARTIFACTS if other != artifact and f"[__{other}]" in text]
    assert not others, others


def test_debug_directory(tmp_path: Path) -> None:
    text = run(TORCH_COMPILE_DEBUG="1", TORCH_COMPILE_DEBUG_DIR=str(tmp_path))
    (folder,) = (tmp_path / "torch_compile_debug").glob("run_*-pid_*/magneto")
    assert text.count(" debug trace: ") == 2 and f"0_block debug trace: {folder}/0_block" in text
    graphs = sorted(folder.iterdir())
    assert [graph.name for graph in graphs] == ["0_block", "1_other"]
    for graph in graphs:
        assert len(list(graph.iterdir())) == len(STAGES) - 2  # without diagram and profile
        assert "magneto_kernel" in (graph / "kernels.s").read_text()


def test_debug_directory_that_can_not_be_written(tmp_path: Path) -> None:
    assert run(TORCH_COMPILE_DEBUG="1", TORCH_COMPILE_DEBUG_DIR="/dev/null").count("can't write stages") == 1


def test_debug_directory_of_a_backward(tmp_path: Path) -> None:
    with magneto.config.patch(debug_dump=True, debug_dir=str(tmp_path)):
        x = X.clone().requires_grad_()
        magneto.compile(lambda x: (x.sin(), x.exp()))(x)
        magneto.compile(lambda x: x.tan())(x)
    (folder,) = tmp_path.glob("torch_compile_debug/*/magneto")
    names = sorted(graph.name.split("_", 1)[1] for graph in folder.iterdir())
    assert names == ["_lambda_", "_lambda_", "_lambda__backward", "_lambda__backward", "_lambda__backward_2"]
    (forward,), (backward,) = (
        [text for text in map(Path.read_text, folder.glob(pattern)) if "aten.sin" in text or "aten.cos" in text]
        for pattern in ("*_/aten_normal_form.txt", "*_backward/aten_normal_form.txt")
    )
    assert "aten.sin" in forward and "aten.cos" in backward and "aten.sin" not in backward


def test_debug_dump_as_a_setting(tmp_path: Path) -> None:
    with magneto.config.patch(debug_dump=True, debug_dir=str(tmp_path)):
        magneto.compile(lambda x: x + 1)(X)
    assert len(list(tmp_path.glob("torch_compile_debug/*/magneto/*/plan.txt"))) == 1
    magneto.compile(lambda x: x + 2)(X)
    assert len(list(tmp_path.glob("torch_compile_debug/*/magneto/*/plan.txt"))) == 1


def test_profilers_see_kernels_and_operators() -> None:
    compiled = magneto.compile(block)
    with torch.no_grad():
        compiled(X, W, B)
        with torch.profiler.profile() as profile:
            compiled(X, W, B)
    seen = [event.key for event in profile.key_averages()]
    assert "aten::mm" in seen and "aten::sort" in seen
    assert [name for name in seen if name.startswith("magneto::") and "softmax" in name]
