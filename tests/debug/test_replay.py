"""Record and replay: frames whose capture fails become files that fail in the same way elsewhere."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import io
import logging
import math
import os
import re
import subprocess
import types
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fresh
import numpy
import pytest
import torch

import magneto
from magneto._debug import record
from magneto._debug.record import container, replay, show


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with magneto.config.patch(debug_dir=str(tmp_path), replay_record_enabled=True):
        yield tmp_path


def records(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.rec"))


def refusing(gm: Any, inputs: Any) -> Any:
    raise ValueError(f"no backend for {len(inputs)} inputs")


# -- values


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


class Flags(enum.IntFlag):
    A = 1
    B = 4


class Point(NamedTuple):
    x: int
    y: int = 3

    def length(self) -> float:
        return math.hypot(self.x, self.y)


@dataclasses.dataclass(order=True)
class Inner:
    numbers: list[float]
    name: str = "inner"


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner
    colour: Colour = Colour.RED
    cache: dict[str, int] = dataclasses.field(default_factory=dict, compare=False)


@dataclasses.dataclass(slots=True)
class Slim:
    x: int
    y: float = 0.5


class Base:
    kind = "base"

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(self).__qualname__ == type(other).__qualname__ and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.kind)


class Derived(Base):
    __slots__ = ("extra",)

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.extra = [value]

    @property
    def twice(self) -> Any:
        return self.value * 2


class Words(dict[str, int]):
    limit = 3


class Names(list[str]):
    pass


def local_class() -> Any:
    factor = 3

    class Local:
        def scaled(self, x: int) -> int:
            return x * factor

        def __eq__(self, other: object) -> bool:
            return self.scaled(2) == other.scaled(2) == 6  # type: ignore[attr-defined]

    return Local()


VALUES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "bools": lambda: [True, False],
    "numbers": lambda: [0, -1, 2**70, 1.5, -0.0, 1e300, math.inf, -math.inf],
    "text": lambda: "ü\n\ud800'\"",
    "bytes": lambda: [b"\x00\xff", bytearray(b"ab")],
    "complex": lambda: complex(-0.0, math.inf),
    "slices": lambda: [slice(1, None, 2), range(3, 9, 2), ..., NotImplemented],
    "nested": lambda: {"a": [1, (2, {3, 4}), frozenset({5})], (1, "b"): {"c": None}},
    "ordered": lambda: collections.OrderedDict([("b", 1), ("a", 2)]),
    "counter": lambda: collections.Counter("abca"),
    "default": lambda: collections.defaultdict(list, {"a": [1]}),
    "deque": lambda: collections.deque([1, 2, 3], maxlen=4),
    "proxy": lambda: types.MappingProxyType({"a": 1}),
    "namespace": lambda: types.SimpleNamespace(a=1, b=[2]),
    "torch": lambda: [torch.float16, torch.device("cpu"), torch.Size([2, 3]), torch.strided, torch.channels_last],
    "library": lambda: [torch.sin, torch.nn.functional.gelu, torch.Tensor.add_, len, math.sqrt, torch.nn.Linear, math],
    "operators": lambda: [torch.ops.aten.add.Tensor, torch.ops.aten.add],
    "numpy": lambda: [numpy.float32(1.5), numpy.int64(-3)],
    "pattern": lambda: re.compile("a+", re.IGNORECASE),
    "alias": lambda: list[int],
    "enums": lambda: [Colour.RED, Colour.BLUE, Flags.A | Flags.B],
    "tuples": lambda: [Point(1), Point(2, 5)],
    "dataclass": lambda: Outer(Inner([1.0, 2.0]), Colour.BLUE, {"a": 1}),
    "slots": lambda: [Slim(1), Slim(2, 2.5)],
    "objects": lambda: [Base(1), Derived("x")],
    "keys": lambda: {Base(1): 1, Derived(2): 2},
    "subclasses": lambda: [Words(a=1), Names(["x"])],
    "local class": local_class,
    "exception": lambda: [repr(ValueError("a", 3))],
}


def keep(value: Any) -> Any:
    return value


def through_file(value: Any, tmp_path: Path) -> Any:
    path = tmp_path / "value.rec"
    made = record.record_of(keep, (value,), {})
    made.data["failure"] = {"type": "", "text": ""}
    container.write(path, made)
    read = container.read(path)
    assert show.text(read)
    return replay.rebuild(read).args[0]


def same_value(a: Any, b: Any) -> bool:
    """Equal, of like types; classes of the program are made anew."""
    if type(a).__qualname__ != type(b).__qualname__:
        return False
    if dataclasses.is_dataclass(a):
        return all(same_value(getattr(a, x.name), getattr(b, x.name)) for x in dataclasses.fields(a))
    if isinstance(a, enum.Enum):
        return bool((a.name, a.value) == (b.name, b.value))
    if isinstance(a, dict) and not isinstance(a, collections.Counter):
        return len(a) == len(b) and all(
            same_value(k, m) and same_value(v, w) for (k, v), (m, w) in zip(a.items(), b.items(), strict=True)
        )
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, float):
        return repr(a) == repr(b)
    return bool(a == b)


@pytest.mark.parametrize("name", VALUES)
def test_values_survive(name: str, tmp_path: Path) -> None:
    value = VALUES[name]()
    assert same_value(value, through_file(value, tmp_path))


def test_objects_are_shared_and_lead_to_themselves(tmp_path: Path) -> None:
    shared: list[Any] = [1]
    value: dict[str, Any] = {"a": shared, "b": shared}
    value["self"] = value
    base = Base(value)
    value["base"] = base
    back = through_file(value, tmp_path)
    assert back["a"] is back["b"] and back["self"] is back and back["base"].value is back


def test_arrays_and_generators(tmp_path: Path) -> None:
    array = numpy.arange(6, dtype=numpy.int16).reshape(2, 3)
    generator = torch.Generator().manual_seed(3)
    made, again = through_file([array, generator], tmp_path)
    assert made.dtype == array.dtype and (made == array).all()
    assert torch.equal(torch.rand(3, generator=again), torch.rand(3, generator=generator))


def test_functions_with_what_they_read(tmp_path: Path) -> None:
    def scaled(factor: int) -> Any:
        def times(x: int, *, more: int = 2) -> int:
            return x * factor + more

        return times

    functions = [scaled(3), lambda x: x - 1, lambda x: x + 1, functools.partial(scaled(2), more=7), Point(3, 4).length]
    times, less, more, partial, length = through_file(functions, tmp_path)
    assert (times(2), times(2, more=0), less(5), more(5), partial(1), length()) == (8, 6, 4, 6, 9, 5.0)


@functools.lru_cache(maxsize=5)
def cached(x: int) -> int:
    return x + 1


def test_wrapped_functions(tmp_path: Path) -> None:
    disabled, remembered, compiled = through_file([magneto.disable(cached), cached, magneto.compile(keep)], tmp_path)
    assert disabled(1) == remembered(1) == 2 and remembered.cache_parameters()["maxsize"] == 5
    assert compiled(4) == 4 and type(compiled) is type(magneto.compile(keep))


# -- tensors


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    return {
        "plain": x,
        "transposed": x.t(),
        "view": x[1:, ::2],
        "expanded": torch.randn(3, 1).expand(3, 5),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "half": x.half(),
        "bfloat16": x.bfloat16(),
        "float8": x.to(torch.float8_e4m3fn),
        "ints": torch.arange(5, dtype=torch.int16),
        "bools": x > 0,
        "complex": torch.randn(3, dtype=torch.complex64),
        "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
        "leaf": torch.randn(3, requires_grad=True),
        "made": torch.randn(3, requires_grad=True) * 2,
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
        "meta": torch.empty(3, 4, device="meta"),
        "channels_last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    }


@pytest.mark.parametrize("name", tensors())
def test_tensors_survive(name: str, tmp_path: Path) -> None:
    x = tensors()[name]
    y = through_file(x, tmp_path)
    assert (type(x), x.dtype, x.shape, x.stride(), x.storage_offset()) == (
        *(type(y), y.dtype, y.shape, y.stride(), y.storage_offset()),
    )
    assert (x.requires_grad, x.is_leaf, x.is_conj(), x.device) == (y.requires_grad, y.is_leaf, y.is_conj(), y.device)
    if x.device.type != "meta":
        assert torch.equal(x.detach().to(torch.complex128), y.detach().to(torch.complex128))


def test_tensors_that_share_memory(tmp_path: Path) -> None:
    x = torch.zeros(4, 4)
    y = torch.ones(2, requires_grad=True)
    y.grad = torch.full((2,), 7.0)
    a, row, again, leaf = through_file([x, x[1], x, y], tmp_path)
    row.fill_(3)
    assert a is again and a[1].tolist() == [3.0] * 4 and a.sum() == 12
    assert leaf.grad.tolist() == [7.0, 7.0]


def test_large_tensors_get_random_values_of_their_range(tmp_path: Path) -> None:
    indices, weights = torch.randint(3, 9, (1000,)), torch.randn(2000) * 5 + 100
    with magneto.config.patch(replay_record_mb=0):
        first = through_file([indices, weights], tmp_path)
        text = show.text(container.read(tmp_path / "value.rec"))
        again = through_file([indices, weights], tmp_path)
    assert (tmp_path / "value.rec").stat().st_size < 10000 and "random values" in text
    assert int(first[0].min()) >= 3 and int(first[0].max()) <= 8
    assert abs(float(first[1].mean()) - 100) < 1 and abs(float(first[1].std()) - 5) < 1
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


# -- what can't be stored

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "file": (lambda: io.StringIO(), r"argument value: an object of type _io.StringIO can't be recorded"),
    "generator": (lambda: {"a": [x for x in ()], "b": (x for x in ())}, r"argument value\['b'\]: .*generator"),
    "lock": (lambda: Base(__import__("threading").Lock()), r"argument value\.value: .*lock"),
    "sparse": (lambda: [torch.eye(3).to_sparse()], r"argument value\[0\]: a tensor of layout torch.sparse_coo"),
    "exec": (lambda: eval("lambda x: x"), r"argument value: the source of <lambda> is not to be had"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    make, pattern = REFUSED[name]
    value = make()

    def program(value: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    with pytest.raises(magneto.exc.BackendCompilerFailed), caplog.at_level(logging.WARNING):
        magneto.compile(program, backend=refusing)(value, torch.ones(2))
    assert re.search("There is no record of .*program: " + pattern, caplog.text) and not records(folder)


# -- programs

OFFSETS = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 4.0])}
unstorable = io.StringIO()  # read by a function that is not the frame


def helper(x: torch.Tensor, key: str) -> torch.Tensor:
    return x + OFFSETS[key]


def reads_files(x: torch.Tensor) -> torch.Tensor:
    print("value", file=unstorable)
    return x


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        self.register_buffer("count", torch.tensor(3))

    def forward(self, x: torch.Tensor, prints: bool = True) -> torch.Tensor:
        y = helper(self.linear(x), "b")
        if prints:
            print("in the middle")
        return y

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return super().__repr__() and self.linear(x).cos()  # type: ignore[return-value]


def closure() -> Any:
    scale = torch.tensor(2.0)

    def program(x: torch.Tensor, *rest: int, deep: Outer, **more: Any) -> torch.Tensor:
        y = helper(x, "a") * scale + sum(rest) + deep.inner.numbers[0] + more["extra"]
        print(y)
        return y

    return program


def aliasing(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return (y * 2).sum()


def several_parts(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    print("one")
    x.mul_(2)
    print("two")
    return torch.ops.aten.add(x.sin(), 1)


def inlined(x: torch.Tensor) -> torch.Tensor:
    print("inlined")
    return x.sin()


def outer(x: torch.Tensor) -> torch.Tensor:
    return inlined(x + 1) * 2


def call_closure(backend: Any) -> Any:
    return magneto.compile(closure(), fullgraph=True, backend=backend)(
        torch.ones(2), 1, 2, deep=Outer(Inner([0.5])), extra=1.5
    )


def call_aliasing(backend: Any) -> Any:
    x = torch.zeros(3, 2)
    return magneto.compile(aliasing, backend=refusing)(x, x.t())


def second_graph(gm: Any, inputs: Any) -> Any:
    if any(node.target is torch.sin or node.target == "sin" for node in gm.graph.nodes):
        raise IndexError("the part with sin")
    return gm.forward


PROGRAMS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "module": (
        lambda backend: magneto.compile(Block(2), fullgraph=True, backend=backend)(torch.ones(3, 2)),
        "forward_Unsupported",
    ),
    "method": (
        lambda backend: magneto.compile(Block(2).encode, backend=refusing)(torch.ones(3, 2)),
        "encode_ValueError",
    ),
    "closure": (call_closure, "program_Unsupported"),
    "aliasing": (call_aliasing, "aliasing_ValueError"),
    "several parts": (
        lambda backend: magneto.compile(several_parts, backend=second_graph)(torch.ones(3)),
        "several_parts_IndexError",
    ),
    "inlined": (
        lambda backend: magneto.compile(outer, backend=second_graph)(torch.ones(3)),
        "outer_IndexError",
    ),
    "dynamic": (
        lambda backend: magneto.compile(helper, dynamic=True, backend=refusing)(torch.ones(2), "a"),
        "helper_ValueError",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    call, file = PROGRAMS[name]
    with pytest.raises(magneto.exc.MagnetoError) as raised, caplog.at_level(logging.WARNING):
        call("eager")
    (path,) = records(folder)
    assert path.name.startswith(file) and path.parent.name == "error_recordings"
    assert f"Last frame execution written to {path}." in caplog.text and "torch._dynamo.replay('" in caplog.text
    assert raised.value.record_filename == str(path)
    magneto.reset()
    with pytest.raises(type(raised.value)) as again:
        replay.replay(path)
    assert without_places(str(again.value)) == without_places(str(raised.value))
    assert records(folder) == [path]


def without_places(text: str) -> str:
    return re.sub(r'File ".*?"|0x\w+|at \S+:|\(\S+:\d+\)', "", text)


def test_what_is_said_of_a_replay(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(magneto.exc.MagnetoError):
        magneto.compile(helper, backend=refusing)(torch.ones(2), "a")
    (path,) = records(folder)
    capfd.readouterr()
    assert replay.main([str(path)]) == 1
    said = capfd.readouterr().err
    assert "the frame helper (" in said and "A replay runs code that the record holds (helper, refusing; from" in said
    assert said.index("A replay runs code") < said.index("no backend for") and "it fails as it was recorded" in said
    assert replay.main(["--show", str(path)]) == 0
    shown = capfd.readouterr().out
    assert "return x + OFFSETS[key]" in shown and "key = 'a'" in shown and "grad_mode: True" in shown


def test_the_process_is_as_recorded(folder: Path, tmp_path: Path) -> None:
    seen: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Any:
        import torch

        state = (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_default_dtype())
        raise ValueError(f"{state} {torch.are_deterministic_algorithms_enabled()} {float(torch.rand(())):.9f} end")

    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(5)
    try:
        with torch.no_grad(), torch.autocast("cpu"), pytest.raises(magneto.exc.MagnetoError) as raised:
            magneto.compile(keep_sin, backend=backend)(torch.ones(2))
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
    (path,) = records(folder)
    before = torch.get_rng_state()
    magneto.reset()
    with pytest.raises(magneto.exc.MagnetoError) as again:
        replay.replay(path)
    first, second = str(raised.value.__cause__), str(again.value.__cause__)
    assert first.rpartition(" ")[0].split()[:-1] == second.rpartition(" ")[0].split()[:-1] and "(False, True" in first
    assert torch.equal(before, torch.get_rng_state()) and torch.get_default_dtype() is torch.float32
    assert not seen


def keep_sin(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def test_what_other_functions_read_may_be_left_out(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return reads_files(x.sin())

    with pytest.raises(magneto.exc.MagnetoError), caplog.at_level(logging.WARNING):
        magneto.compile(program, fullgraph=True)(torch.ones(2))
    (path,) = records(folder)
    assert "1 values that other functions read are left out" in caplog.text
    assert "global unstorable of reads_files: an object of type _io.StringIO" in show.text(container.read(path))


def test_a_part_that_fails_in_a_later_call(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its frame began before it was known that there would be a failure."""
    fails: list[int] = []

    def backend(gm: Any, inputs: Any) -> Any:
        if fails:
            raise ValueError("later")
        return gm.forward

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x + 1
        print("break")
        return x.sum() + y.cos()

    compiled = magneto.compile(program, backend=backend, dynamic=False)
    compiled(torch.ones(2), torch.ones(2))
    fails.append(1)
    with pytest.raises(magneto.exc.MagnetoError), caplog.at_level(logging.WARNING):
        compiled(torch.ones(2), torch.ones(3))
    assert not records(folder) and "goes on in the middle of the frame" in caplog.text
    assert "magneto.reset()" in caplog.text


def test_it_does_not_show_any_more(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(magneto.exc.MagnetoError):
        magneto.compile(helper, backend=refusing)(torch.ones(2), "a")
    (path,) = records(folder)
    read = container.read(path)
    read.data["options"]["backend"] = "eager"
    container.write(path, read)
    assert replay.main([str(path)]) == 0 and "the failure does not show here" in capfd.readouterr().err
    assert torch.equal(replay.replay(path), torch.tensor([2.0, 3.0]))


# -- files


def damage(name: str, path: Path) -> None:
    data = path.read_bytes()
    if name == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif name == "flipped":
        middle = len(data) // 3
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :])
    elif name == "empty":
        path.write_bytes(b"")
    elif name == "text":
        path.write_text("import os\n")
    elif name == "another zip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("a.txt", "a")
    elif name == "missing":
        path.unlink()
    else:
        read = container.read(path)
        if name == "newer":
            read.data["version"] = 99
        elif name == "values":
            read = container.Record(read.data, {})
        elif name == "module":
            read.data["objects"].append({"kind": "import", "module": "no_such_module_x", "name": "f"})
            read.data["options"]["backend"] = {"at": len(read.data["objects"]) - 1}
        else:
            read.data["objects"][0] = {"kind": name}
        container.write(path, read)


DAMAGES = {
    "truncated": "is damaged",
    "flipped": "is damaged",
    "empty": "is damaged",
    "text": "is damaged",
    "another zip": "is no record of a frame",
    "missing": "There is no file",
    "newer": "is a record of version 99, and this Magneto reads up to version 1",
    "values": "is damaged",
    "module": "needs the module no_such_module_x: .* Install it",
    "no such kind": "objects of kind 'no such kind' are not known",
    "list": "is damaged",
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_files(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(magneto.exc.MagnetoError):
        magneto.compile(helper, backend=refusing)(torch.ones(2), "a")
    (path,) = records(folder)
    damage(name, path)
    capfd.readouterr()
    assert replay.main([str(path)]) == 2
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("python -m magneto replay: ")]
    assert len(said) == 1 and re.search(DAMAGES[name], said[0])
    with pytest.raises(magneto.exc.InvalidRecord):
        replay.replay(path)


def test_a_record_that_cannot_be_written(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: the program's error is what it is without the record."""

    def full(path: Path, made: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(container, "write", full)
    with pytest.raises(magneto.exc.BackendCompilerFailed, match="no backend for"), caplog.at_level(logging.WARNING):
        magneto.compile(helper, backend=refusing)(torch.ones(2), "a")
    assert "can't be written: No space left on device. Set magneto.config.debug_dir" in caplog.text


def test_nothing_is_written_unless_asked_for(tmp_path: Path) -> None:
    with magneto.config.patch(debug_dir=str(tmp_path)), pytest.raises(magneto.exc.MagnetoError):
        magneto.compile(helper, backend=refusing)(torch.ones(2), "a")
    assert not list(tmp_path.iterdir())


# -- fresh processes

_PROGRAM = """
import torch
import shapes_of_mine

torch._dynamo.config.replay_record_enabled = True


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = shapes_of_mine.activate(layer(x))
        return x


torch.compile(Net(), fullgraph=True)(torch.ones(2, 4))
"""

_HELPERS = """
import torch

LIMIT = 5


def activate(x):
    if x.shape[0] < LIMIT:
        open("/dev/null")
    return torch.relu(x)
"""


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(magneto.__file__).parents[1])}
    return fresh.python(*arguments, cwd=folder, env=environment)


def test_in_fresh_processes(tmp_path: Path) -> None:
    """The program's files are gone when the record is replayed."""
    program, elsewhere = tmp_path / "program", tmp_path / "elsewhere"
    program.mkdir(), elsewhere.mkdir()
    (program / "script.py").write_text(_PROGRAM)
    (program / "shapes_of_mine.py").write_text(_HELPERS)
    first = python(program, "-m", "magneto", "run", "script.py")
    (path,) = records(program)
    assert first.returncode == 1 and f"Last frame execution written to {path}." in first.stderr
    os.rename(path, elsewhere / "frame.rec")
    for file in ("script.py", "shapes_of_mine.py"):
        (program / file).unlink()
    again = python(elsewhere, "-m", "magneto", "replay", "frame.rec")
    assert again.returncode == 1 and "it fails as it was recorded" in again.stderr
    assert 'open("/dev/null")' in again.stderr and "Reason: InputOutput" in again.stderr
    code = "import magneto, torch; magneto.install(); torch._dynamo.replay('frame.rec')"
    by_name = python(elsewhere, "-c", code)
    assert by_name.returncode == 1 and "magneto.exc.Unsupported: Graph break in user code" in by_name.stderr
