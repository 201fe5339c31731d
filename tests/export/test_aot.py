"""magneto.aot_compile and aot_load: the compiled model's results from one file, in this process and in another one."""

from __future__ import annotations

import copy
import hashlib
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fresh
import pytest
import torch
from compare import assert_same
from torch import nn
from torch.export import Dim

import magneto
from magneto import exc

X = torch.linspace(-1, 1, 24).view(6, 4)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.project = nn.Linear(4, 48), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.embed(x).view(1, x.shape[0], 3, 16).transpose(1, 2).unbind(1)
        scores = (q @ k.transpose(-1, -2)).softmax(-1)
        return x + self.project(torch.nn.functional.gelu((scores @ v)[0]))


class Counts(nn.Module):
    """Writes buffers and gives one, a named result, constants, an argument as it is, a view of one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("steps", torch.zeros(1))
        self.scale = torch.arange(8.0)[::2]

    def forward(self, x: torch.Tensor, *, options: dict[str, Any], up: bool = True) -> Any:
        self.steps.add_(1)
        y = self.norm(x) * self.scale + options["shift"] * torch.tensor([1.0, 2, 3, 4])
        return {"y": y if up else -y, "steps": self.steps, "same": x, "view": x.t(), "rest": (1.5, None, "text")}


def convolve() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3)
    )


def numbers(x: torch.Tensor) -> Any:
    return x.topk(2).values, x.argmax(-1), x.to(torch.bfloat16) + 1, (x > 0).sum(), torch.cat([x, x]).sort(0)[0]


SHIFT = {"options": {"shift": torch.ones(4), "n": 2}}
PROGRAMS: dict[str, tuple[Callable[[], Any], tuple[Any, ...], dict[str, Any]]] = {
    "attention": (lambda: Attention(), (X,), {}),
    "buffers": (lambda: Counts(), (X,), SHIFT),
    "training off": (lambda: Counts().eval(), (X,), {**SHIFT, "up": False}),
    "convolution": (convolve, (torch.linspace(-1, 1, 768).view(1, 3, 16, 16),), {}),
    "lstm": (lambda: nn.LSTM(4, 8, batch_first=True), (X.view(2, 3, 4),), {}),
    "numbers": (lambda: numbers, (X,), {}),
}


def made(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    make, args, kwargs = PROGRAMS[name]
    torch.manual_seed(0)
    return make(), args, kwargs


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_of_the_compiled_model(name: str, tmp_path: Path) -> None:
    model, args, kwargs = made(name)
    twin = copy.deepcopy(model)
    path = magneto.aot_compile(model, args, kwargs, path=tmp_path / "folder" / "p.mag")
    loaded, compiled = magneto.aot_load(path), magneto.compile(twin)
    with torch.no_grad():
        for _ in range(3):
            assert_same(loaded(*args, **kwargs), compiled(*args, **kwargs))
    if isinstance(model, nn.Module):  # which stays as it was
        assert_same(model.state_dict(), made(name)[0].state_dict())


def halves(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (x.softmax(0) + y)[: x.shape[0] // 2] if x.shape[0] % 2 == 0 else x * y


def test_sizes_that_vary(tmp_path: Path) -> None:
    rows = Dim("rows", min=2, max=64)
    shapes = {"x": {0: rows}, "y": {0: rows}}
    loaded = magneto.aot_load(magneto.aot_compile(halves, (X, X), dynamic_shapes=shapes, path=tmp_path / "p"))
    compiled = magneto.compile(halves, dynamic=True)
    for count in (2, 6, 40, 64):
        x, y = torch.randn(count, 4), torch.randn(count, 4)
        assert_same(loaded(x, y), compiled(x, y))
        assert_same(loaded(x.t().contiguous().t(), y), compiled(x, y))
    model, args, _ = made("attention")
    loaded = magneto.aot_load(
        magneto.aot_compile(model, args, dynamic_shapes=({0: Dim("n", max=99)},), path=tmp_path / "q")
    )
    with torch.no_grad():
        for count in (2, 7, 99):
            x = torch.randn(count, 4)
            assert_same(loaded(x), magneto.compile(model, dynamic=True)(x))


WRONG_ARGUMENTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "dtype": ((X.double(), X), r"\*args\[0\] to have dtype torch.float32, but got torch.float64"),
    "rank": ((X, X[0]), r"\*args\[1\] to have 2 dimensions, got 1"),
    "fixed size": ((X, X[:, :2]), r"\*args\[1\].shape\[1\] to be equal to 4, but got 2"),
    "same size": ((X, X[:4]), r"\*args\[1\].shape\[0\] to be equal to \*args\[0\].shape\[0\], which is 6, but got 4"),
    "range": ((torch.ones(66, 4), torch.ones(66, 4)), r"shape\[0\] to be <= 64, but got 66"),
    "condition": ((X[:5], X[:5]), r"Guard failed: .*2\)"),
    "device": ((X.to("meta"), X), r"\*args\[0\] to be a dense tensor on the CPU, but got one on meta"),
    "layout": ((X.to_sparse(), X), r"\*args\[0\] to be a dense tensor on the CPU"),
    "object": ((X, 3), r"\*args\[1\] to be a tensor, but got int"),
    "form": ((X,), "takes arguments of the form"),
}


def test_sizes_that_vary_in_any_dimension(tmp_path: Path) -> None:
    """Arguments that lie otherwise are copied, as where one size alone varies."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GELU(), nn.AdaptiveAvgPool2d(2)).eval()
    sizes = ({0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO},)
    path = magneto.aot_compile(model, (torch.randn(2, 3, 8, 6),), dynamic_shapes=sizes, path=tmp_path / "p")
    loaded = magneto.aot_load(path)
    with torch.no_grad():
        for x in (torch.randn(4, 3, 5, 7), torch.randn(1, 3, 9, 2), torch.randn(2, 3, 6, 8).transpose(2, 3)):
            torch.testing.assert_close(loaded(x), model(x), rtol=1e-5, atol=1e-5)


def test_arguments_that_do_not_fit(tmp_path: Path) -> None:
    rows = Dim("rows", min=2, max=64)
    path = magneto.aot_compile(halves, (X, X), dynamic_shapes=({0: rows}, {0: rows}), path=tmp_path / "p")
    loaded = magneto.aot_load(path)
    for name, (args, text) in WRONG_ARGUMENTS.items():
        with pytest.raises((RuntimeError, ValueError), match=text):
            loaded(*args)
        assert name


def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.add_(y).sin()


def test_arguments_that_are_written(tmp_path: Path) -> None:
    loaded = magneto.aot_load(magneto.aot_compile(writes, (X.clone(), X), path=tmp_path / "p"))
    x = X.clone()
    assert_same((loaded(x, X), x), ((X + X).sin(), X + X))
    with pytest.raises((RuntimeError, ValueError), match="share memory with one that the program writes"):
        loaded(x, x)
    with pytest.raises((RuntimeError, ValueError), match="strides of the example"):
        loaded(X.t().contiguous().t(), X)


OTHER = """
import sys, torch, magneto
loaded = magneto.aot_load(sys.argv[1])
x = torch.linspace(-1, 1, 24).view(6, 4)
torch.save(loaded(x), sys.argv[2])
loaded_modules = [name for name in sys.modules if name.split(".")[:2] in (["torch", "_dynamo"], ["torch", "_inductor"])]
maps = open("/proc/self/maps").read()
print(loaded_modules, "libmagneto_codegen" in maps)
"""


def test_another_process_compiles_nothing(tmp_path: Path) -> None:
    model, args, kwargs = made("attention")
    path = magneto.aot_compile(model, args, kwargs, path=tmp_path / "p")
    environment = {**os.environ, "MAGNETO_CACHE_DIR": str(tmp_path / "none")}
    done = fresh.python("-c", OTHER, path, str(tmp_path / "r"), check=True, env=environment)
    assert done.stdout.split() == ["[]", "False"]
    with torch.no_grad():
        assert_same(torch.load(tmp_path / "r"), magneto.compile(model)(*args))


# -- files


def test_damaged_files(tmp_path: Path) -> None:
    model, args, _ = made("attention")
    path = Path(magneto.aot_compile(model, args, path=tmp_path / "p"))
    content = path.read_bytes()
    data = struct.unpack_from("<11Q", content, 16)[9]
    expected = magneto.aot_load(path)(*args)
    for at in [*range(0, 200), *range(200, data, 997)]:
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        try:
            loaded = magneto.aot_load(path)
        except exc.InvalidProgram as error:
            assert str(path) in str(error)
        else:  # what stands between the parts and the tensors
            assert_same(loaded(*args), expected)
    for end in (0, 5, 100, 400, data // 2, len(content) - 1):
        path.write_bytes(content[:end])
        with pytest.raises(exc.InvalidProgram):
            magneto.aot_load(path)


def changed(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    data = struct.unpack_from("<11Q", content, 16)
    head = 16 + 88
    checked = content[:head] + content[head + 32 : data[7] + data[8]]
    checked = checked.replace(old, new)
    whole = checked[:head] + hashlib.blake2b(checked, digest_size=32).digest() + checked[head:]
    path.write_bytes(whole + content[data[7] + data[8] :])


CHANGES: dict[str, tuple[bytes, bytes, str]] = {
    "version": (struct.pack("<Q", 1), struct.pack("<Q", 7), "is of version 7, and this Magneto reads version 1"),
    "format": (b"magneto aot", b"magneto zip", "is no file of magneto.aot_compile"),
    "build": (b"layout ", b"layout 0", "was compiled by another build .torch"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_files_of_others(name: str, tmp_path: Path) -> None:
    path = Path(magneto.aot_compile(nn.ReLU(), (X,), path=tmp_path / "p"))
    old, new, text = CHANGES[name]
    if len(old) == len(new):
        content = path.read_bytes()
        path.write_bytes(content.replace(old, new, 1))
    else:
        content = path.read_bytes()
        begin = content.index(old)
        letter = content[begin + 7 : begin + 8]
        changed(path, content[begin : begin + 8], old + (b"0" if letter != b"0" else b"1"))
    with pytest.raises(exc.InvalidProgram, match=text):
        magneto.aot_load(path)


def test_a_file_of_another_machine(tmp_path: Path) -> None:
    path = Path(magneto.aot_compile(nn.GELU(), (X,), path=tmp_path / "p"))
    content = path.read_bytes()
    begin = content.index(b"machine ")
    letter = content[begin + 8 : begin + 9]
    changed(path, content[begin : begin + 9], b"machine " + (b"0" if letter != b"0" else b"1"))
    assert_same(magneto.aot_load(path)(X), magneto.compile(nn.GELU())(X))


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(exc.InvalidProgram, match=r"can't be read \(No such file"):
        magneto.aot_load(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(exc.InvalidProgram, match="is empty"):
        magneto.aot_load(tmp_path / "file")
    with pytest.raises(OSError, match="can't be written .*give a path in a folder with room"):
        magneto.aot_compile(nn.ReLU(), (X,), path=tmp_path / "file" / "p")


# -- what has no place in a file


@torch.library.custom_op("test_aot::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


REFUSED: dict[str, tuple[Callable[..., Any], type[Exception], str]] = {
    "operator": (lambda x: twice(x) + 1, exc.NotYet, "test_aot::twice is written in Python"),
    "region": (
        lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
        exc.NotYet,
        "cond.*chooses between graphs",
    ),
    "sizes from data": (lambda x: x.nonzero().sum() + 1, exc.NotYet, "only data says"),
    "nothing": (lambda x: x, exc.NotYet, "computes nothing"),
    "branch": (lambda x: x if x.sum() > 0 else -x, exc.Unsupported, "DataDependentBranch"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    program, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        magneto.aot_compile(program, (X,), path=tmp_path / "p")
    assert os.listdir(tmp_path) == []


def test_names_of_pytorch(tmp_path: Path) -> None:
    rows = Dim("rows", min=2, max=64)
    magneto.install()
    try:
        import torch._inductor as inductor

        model = Counts().eval()
        program = torch.export.export(model, (X,), SHIFT, dynamic_shapes=({0: rows}, None))
        path = inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
        loaded = inductor.aoti_load_package(path)
        module = program.module()
        for x in (X, torch.randn(9, 4)):
            with torch.no_grad():
                assert_same(loaded(x, **SHIFT), magneto.compile(module, dynamic=True)(x, **SHIFT))
        with pytest.raises(exc.InvalidValue, match="torch.export.export gave"):
            inductor.aoti_compile_and_package(model)
    finally:
        magneto.uninstall()


def test_a_convolution(tmp_path: Path) -> None:
    """PyTorch tells the shapes of its fused convolution in Python, and computes it in C++."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    x = torch.randn(2, 3, 8, 8)
    path = magneto.aot_compile(model, (x,), path=tmp_path / "convolution.mag")
    torch.testing.assert_close(magneto.aot_load(path)(x), model(x).detach())


def test_the_older_names(tmp_path: Path) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), torch.randn(3, 4)
    magneto.install()
    try:
        exported = torch.export.export(model, (x,))
        options = {"aot_inductor.output_path": str(tmp_path / "model.so")}
        paths = [
            torch._inductor.aot_compile(exported.module(), (x,)),
            torch._inductor.aot_compile(exported.module(), (x,), options=options),
            torch._export.aot_compile(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},)),
        ]
        assert paths[1] == options["aot_inductor.output_path"]
        for path in paths:
            with torch.no_grad():
                torch.testing.assert_close(torch._export.aot_load(path, "cpu")(x), model(x))
        with torch.no_grad():
            y = torch.randn(5, 4)
            torch.testing.assert_close(torch._export.aot_load(paths[2], "cpu")(y), model(y))
    finally:
        magneto.uninstall()
