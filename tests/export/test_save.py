"""torch.export.save and load: the same program again, from a file that nothing in runs."""

from __future__ import annotations

import errno
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from compare import assert_same
from torch import nn
from torch.export import Dim, export, load, save
from torch.utils import _pytree as pytree

from magneto import exc
from magneto._export import container, saved

pytestmark = pytest.mark.usefixtures("installed")


X = torch.linspace(-1, 1, 12).view(3, 4)


class Point(NamedTuple):
    x: Any
    y: Any


pytree._register_namedtuple(Point, serialized_type_name="test_save.Point")


class Block(nn.Module):
    """Parameters (two of them one), buffers of both kinds, constants, a named tuple, writes, a condition on a size."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("steps", torch.zeros(1), persistent=False)
        self.scale = torch.arange(8.0)[::2]

    def forward(self, x: torch.Tensor, *, options: dict[str, Any]) -> Any:
        self.steps.add_(1)
        y = self.norm(self.second(self.first(x))) * self.scale + torch.tensor([1.0, 2, 3, float("inf")])
        if x.shape[0] % 3 == 0:
            y = torch.cond(y.sum() > 0, lambda y: y + 1, lambda y: y - options["shift"], (y,))
        return Point(y.to(torch.float64).to(memory_format=torch.contiguous_format), [x, 1.5, None])


def numbers(x: torch.Tensor) -> Any:
    return x.clamp(float("-inf"), 0.3), x[:, ::2].chunk(2), x.max(0), torch.arange(4, dtype=torch.int8), x.shape[1]


PROGRAMS: dict[str, tuple[Callable[[], Any], tuple[Any, ...], dict[str, Any], Any]] = {
    "module": (Block, (X,), {"options": {"shift": torch.ones(4), "n": 2}}, ({0: Dim.DYNAMIC(max=12)},)),
    "function": (lambda: numbers, (X,), {}, None),
    "nothing": (lambda: lambda x: x, (X,), {}, None),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("as_file", [False, True], ids=["path", "file"])
def test_the_program_again(name: str, as_file: bool, tmp_path: Path) -> None:
    make, args, kwargs, shapes = PROGRAMS[name]
    program = export(make(), args, kwargs, dynamic_shapes=None if shapes is None else (*shapes, *[None] * len(kwargs)))
    target: Any = io.BytesIO() if as_file else tmp_path / "folder" / "program.pt2"
    save(program, target, extra_files={"notes.txt": "as trained"})
    if as_file:
        target.seek(0)
    notes = {"notes.txt": ""}
    again = load(target, extra_files=notes)
    assert notes == {"notes.txt": "as trained"}
    assert str(again) == str(program)
    assert str(again.graph) == str(program.graph)
    assert again.range_constraints == program.range_constraints
    assert list(again.state_dict) == list(program.state_dict)
    assert_same(again.example_inputs, program.example_inputs)
    assert [type(each) for each in again.state_dict.values()] == [type(each) for each in program.state_dict.values()]
    for value in (1.0, -1.0):
        x = [X * value, *args[1:]]
        assert_same(again.module()(*x, **kwargs), program.module()(*x, **kwargs))
    assert_same(dict(again.named_buffers()), dict(program.named_buffers()))
    with pytest.raises((RuntimeError, ValueError), match="Expected input|tree spec"):
        again.module()(X.double(), **kwargs)


def test_sizes_and_training_after_loading(tmp_path: Path) -> None:
    make, args, kwargs, shapes = PROGRAMS["module"]
    program = export(make(), args, kwargs, dynamic_shapes=(*shapes, None))
    save(program, tmp_path / "p")
    module, twin = load(tmp_path / "p").module(), program.module()
    for rows in (6, 9):
        x = torch.randn(rows, 4)
        assert_same(module(x, **kwargs), twin(x, **kwargs))
    with pytest.raises(RuntimeError, match="Guard failed"):
        module(torch.randn(4, 4), **kwargs)
    with pytest.raises(RuntimeError, match="to be <= 12"):
        module(torch.randn(15, 4), **kwargs)
    assert [name for name, _ in module.named_parameters()].count("first.weight") == 1
    assert len(list(module.parameters())) == len(list(twin.parameters())) == 5


def test_a_loaded_program_is_trained(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4))
    save(export(model, (X,)), tmp_path / "p")
    module = load(tmp_path / "p").module()
    for each in (module, model):
        each(X).sin().sum().backward()
    for ours, theirs in zip(module.parameters(), model.parameters(), strict=True):
        assert_same(ours.grad, theirs.grad)


def test_the_file_has_no_pickle(tmp_path: Path) -> None:
    save(export(nn.Linear(4, 4), (X,)), tmp_path / "p")
    with zipfile.ZipFile(tmp_path / "p") as file:
        assert sorted(file.namelist()) == ["data", "program.json"]
        info = file.getinfo("data")
        content = (tmp_path / "p").read_bytes()
    name, extra = (int.from_bytes(content[info.header_offset + at :][:2], "little") for at in (26, 28))
    assert (info.header_offset + 30 + name + extra) % 64 == 0


# -- files that are none


def changed(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    data = json.loads(parts["program.json"])
    change(data)
    parts["program.json"] = json.dumps(data).encode()
    with zipfile.ZipFile(path, "w") as file:
        for name, content in parts.items():
            file.writestr(name, content)


def node(data: dict[str, Any], op: str) -> dict[str, Any]:
    return next(row for row in data["graph"]["nodes"] if row["op"] == op)


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "version": (lambda data: data.update(version=9), "is of version 9, and this Magneto reads version 3"),
    "format": (lambda data: data.update(format="x"), "is no exported program"),
    "part": (lambda data: data.pop("inputs"), "is damaged .'inputs'"),
    "operator": (
        lambda data: node(data, "call_function").update(target="nolib.op.default"),
        "nolib.op.default.*import",
    ),
    "function": (lambda data: node(data, "call_function").update(target="operator.attrgetter"), "damaged"),
    "module": (lambda data: node(data, "call_function").update(target="aten.__class__.mro"), "damaged|no operator"),
    "method": (lambda data: node(data, "call_function").update(op="call_method"), "a node of kind 'call_method'"),
    "code": (lambda data: node(data, "placeholder").update(target="x=print('ran')"), "is no name"),
    "keyword": (lambda data: node(data, "call_function")["kwargs"].update({"a=print('ran'), b": 1}), "is no name"),
    "condition": (lambda data: data["checks"]["conditions"].append("print('ran')"), "the condition"),
    "path": (lambda data: data["inputs"][0].update(target="a');print('ran"), "is no name"),
    "tensor": (lambda data: data["tensors"]["weight"].update(offset=64000), "not in the file"),
    "sizes": (lambda data: data["tensors"]["weight"].update(shape=[1 << 40, 4]), "not in the file"),
    "negative": (lambda data: data["tensors"]["weight"].update(offset=-64), "sizes that are none"),
    "import": (
        lambda data: data["call"]["in_spec"].update(
            type="collections.defaultdict", context={"default_factory_module": "this", "default_factory_name": "s"}
        ),
        "is imported",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_of_a_stranger(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "program.pt2"
    save(export(nn.Linear(4, 4), (X,)), path)
    change, text = WRONG[name]
    changed(path, change)
    with pytest.raises(exc.InvalidProgram, match=text):
        load(path).module()(X)
    assert "ran" not in capsys.readouterr().out


def test_each_byte_counts(tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    save(export(nn.Linear(4, 4), (X,)), path)
    content = path.read_bytes()
    expected = load(path).module()(X)
    for at in range(0, len(content), 7):
        for damaged in (content[:at], content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]):
            path.write_bytes(damaged)
            try:
                loaded = saved.load(path)
            except exc.InvalidProgram as error:
                assert str(path) in str(error)
                continue
            assert_same(loaded.module()(X), expected)


class Full(io.BytesIO):
    def write(self, content: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = export(nn.Linear(4, 4), (X,))
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="can't be written .*give a path in a folder with room"):
        save(program, tmp_path / "file" / "p")
    monkeypatch.setattr(container.Data, "write", lambda self, out: Full().write(b""))
    with pytest.raises(OSError, match=r"can't be written \(No space left on device\)"):
        save(program, tmp_path / "p")
    assert sorted(os.listdir(tmp_path)) == ["file"]


def test_what_cannot_be_saved() -> None:
    class Pair(NamedTuple):
        first: Any

    with pytest.raises(exc.NotYet, match="in a namedtuple, which pytree knows no text for"):
        save(export(lambda x: Pair(x + 1), (X,)), io.BytesIO())
