"""Random kernels: loops, strides, dtypes, masks, reductions, gathers and scans, and buffers that fit them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from kernel_support import DTYPES

FLOATS = ["f32", "f64", "bf16", "f16"]
INTEGERS = ["i8", "i16", "i32", "i64", "u8"]
EXTENTS = [1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 65, 130]

UNARY = {
    "F": [
        "neg",
        "abs",
        "sign",
        "floor",
        "ceil",
        "trunc",
        "round",
        "exp",
        "sigmoid",
        "tanh",
        "erf",
        "sin",
        "atan",
        "expm1",
    ],
    "I": ["neg", "abs", "sign", "not"],
    "B": ["not"],
}
BINARY = {
    "F": ["add", "sub", "mul", "min", "max", "copysign", "div"],
    "I": ["add", "sub", "mul", "min", "max", "and", "or", "xor", "div", "floordiv", "mod", "fmod", "shl", "shr"],
    "B": ["and", "or", "xor"],
}
COMPARE = ["eq", "ne", "lt", "le", "gt", "ge"]
REDUCE = {
    "F": ["sum", "max", "min", "argmax", "argmin", "welford"],
    "I": ["sum", "prod", "max", "min", "argmax", "argmin"],
    "B": ["any", "all"],
}
SCAN = {"F": ["sum", "max", "min", "argmax"], "I": ["sum", "prod", "max", "argmin"], "B": []}


def value_dtype(dtype: str) -> str:
    return "f32" if dtype in ("bf16", "f16") else dtype


def kind(dtype: str) -> str:
    return "B" if dtype == "bool" else "F" if dtype in FLOATS else "I"


@dataclass
class Case:
    text: str
    tensors: list[torch.Tensor]
    symbols: tuple[int, ...]
    outputs: list[int] = field(default_factory=list)


class Generator:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.torch = torch.Generator().manual_seed(seed)
        self.buffers: list[str] = []
        self.tensors: list[torch.Tensor] = []
        self.outputs: list[int] = []
        self.lines: list[str] = []
        self.values = 0
        self.variables = 0
        self.symbols: list[int] = []

    def data(self, dtype: str, size: int) -> torch.Tensor:
        if dtype == "bool":
            return torch.rand(size, generator=self.torch) > 0.5
        if kind(dtype) == "I":
            low, high = (0, 255) if dtype == "u8" else (-100, 100)
            return torch.randint(low, high, (size,), generator=self.torch).to(DTYPES[dtype])
        values = torch.randn(size, generator=self.torch, dtype=torch.float64) * 3
        if self.random.random() < 0.3 and size:  # some hostile values
            hostile = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan")], dtype=torch.float64)
            at = torch.randint(0, size, (max(1, size // 20),), generator=self.torch)
            values[at] = hostile[torch.randint(0, 5, at.shape, generator=self.torch)]
        return values.to(DTYPES[dtype])

    def buffer(self, dtype: str, role: str, size: int, tensor: torch.Tensor | None = None) -> int:
        self.buffers.append(f"b{len(self.buffers)} {role} {dtype}[{size}]")
        self.tensors.append(self.data(dtype, size) if tensor is None else tensor)
        return len(self.buffers) - 1

    def variable(self) -> int:
        self.variables += 1
        return self.variables - 1

    def extent(self, extent: int) -> str:
        """A number, or a symbol of that value."""
        if self.random.random() < 0.3:
            if extent not in self.symbols:
                self.symbols.append(extent)
            return f"s{self.symbols.index(extent)}"
        return str(extent)

    def define(self, dtype: str, code: str) -> tuple[int, str]:
        self.values += 1
        self.lines.append(f"    %{self.values - 1}:{dtype} = {code}")
        return self.values - 1, dtype

    def layout(self, loops: list[tuple[int, int]]) -> tuple[str, int]:
        """An injective index over the loops, with a random order of dimensions, gaps and an offset; and its size."""
        order = loops[:]
        self.random.shuffle(order)
        if self.random.random() < 0.6:
            order = loops[:]
        stride, terms, offset = 1, [], self.random.choice([0, 0, 3])
        if self.random.random() < 0.2:
            stride = 2
        for variable, extent in reversed(order):
            terms.append(f"{stride}*i{variable}")
            stride *= extent + self.random.choice([0, 0, 0, 1])
        return " + ".join([*terms, str(offset)]), stride + offset

    def load(self, loops: list[tuple[int, int]]) -> tuple[int, str]:
        dtype = self.random.choice(["f32"] * 4 + FLOATS + INTEGERS + ["bool"])
        used = [loop for loop in loops if self.random.random() < 0.8]  # the others broadcast
        index, size = self.layout(used)
        style = self.random.random()
        value = value_dtype(dtype)
        if style < 0.12 and loops:  # a shifted window with a mask
            variable, extent = self.random.choice(loops)
            at = self.define("i64", f"index i{variable} - 2")
            zero = self.define("i64", "constant 0")
            mask = self.define("bool", f"ge %{at[0]}, %{zero[0]}")
            other = self.define(value, "constant 1")
            buffer = self.buffer(dtype, "in", max(extent, 1))
            return self.define(value, f"load b{buffer}[i{variable} - 2] if %{mask[0]} else %{other[0]}")
        if style < 0.24 and loops:  # a gather through checked, wrapped indices
            variable, extent = self.random.choice(loops)
            rows = self.random.choice([1, 4, 50])
            indices = torch.randint(-rows, rows, (extent,), generator=self.torch)
            index_buffer = self.buffer("i64", "in", extent, indices)
            raw = self.define("i64", f"load b{index_buffer}[i{variable}]")
            row = self.define("i64", f'bounds %{raw[0]} < {rows} "index {{index}} of {{size}}"')
            buffer = self.buffer(dtype, "in", rows * 3)
            return self.define(value, f"load b{buffer}[3*%{row[0]} + 1]")
        if style < 0.32 and loops:  # a reshape that does not cancel
            variable, extent = self.random.choice(loops)
            buffer = self.buffer(dtype, "in", 7 * 40)
            return self.define(value, f"load b{buffer}[i{variable}%7 + 7*(i{variable}//7)%40]")
        return self.define(value, f"load b{self.buffer(dtype, 'in', size)}[{index}]")

    def compute(self, pool: list[tuple[int, str]]) -> tuple[int, str]:
        x = self.random.choice(pool)
        same = [v for v in pool if v[1] == x[1]]
        y = self.random.choice(same)
        style = self.random.random()
        if style < 0.3:
            return self.define(x[1], f"{self.random.choice(UNARY[kind(x[1])])} %{x[0]}")
        if style < 0.65:
            return self.define(x[1], f"{self.random.choice(BINARY[kind(x[1])])} %{x[0]}, %{y[0]}")
        if style < 0.75:
            return self.define("bool", f"{self.random.choice(COMPARE)} %{x[0]}, %{y[0]}")
        if style < 0.85:
            bools = [v for v in pool if v[1] == "bool"]
            if bools:
                return self.define(x[1], f"select %{self.random.choice(bools)[0]}, %{x[0]}, %{y[0]}")
        # To an integer only from one: floats may be anything there.
        targets = ["f32", "f64"] if kind(x[1]) == "F" else ["f32", "f64", "i32", "i64", "u8", "bool"]
        return self.define(self.random.choice(targets), f"cast %{x[0]}")

    def store(self, loops: list[tuple[int, int]], value: tuple[int, str]) -> None:
        dtype = self.random.choice(["f32", "bf16", "f16"]) if value[1] == "f32" else value[1]
        index, size = self.layout(loops)
        buffer = self.buffer(dtype, "out", size, torch.zeros(size, dtype=DTYPES[dtype]))
        self.outputs.append(buffer)
        self.lines.append(f"    store b{buffer}[{index}], %{value[0]}")

    def case(self) -> Case:
        parallel = [(self.variable(), self.random.choice(EXTENTS)) for _ in range(self.random.randint(0, 3))]
        while _product(parallel) > 2000:
            parallel.pop()
        head = ", ".join(f"i{v} < {self.extent(e)}" for v, e in parallel)
        rows: list[tuple[int, str]] = []
        for _ in range(self.random.randint(0, 2)):
            if self.random.random() < 0.2:
                self.rows_added(parallel)
            self.stage(parallel, rows)
        self.lines.append("  row {")
        pool = [*rows, self.load(parallel)]
        for _ in range(self.random.randint(1, 5)):
            pool.append(self.compute(pool))
        self.store(parallel, pool[-1])
        self.store(parallel, self.random.choice(pool))
        self.lines.append("  }")
        text = 'kernel "random" {\n'
        if self.symbols:
            text += "  symbols " + ", ".join(f"s{i}" for i in range(len(self.symbols))) + "\n"
        text += "".join(f"  {buffer}\n" for buffer in self.buffers)
        if parallel:
            text += f"  parallel {head}\n"
        return Case(text + "\n".join(self.lines) + "\n}\n", self.tensors, tuple(self.symbols), self.outputs)

    def stage(self, parallel: list[tuple[int, int]], rows: list[tuple[int, str]]) -> None:
        scans = self.random.random() < 0.2
        count = 1 if scans else self.random.choice([1, 1, 2])
        loops = [
            (self.variable(), self.random.choice(EXTENTS if _product(parallel) < 200 else EXTENTS[:8]))
            for _ in range(count)
        ]
        while _product(parallel + loops) > 20_000 and len(loops) > 1:
            loops.pop()
        self.lines.append("  stage " + ", ".join(f"i{v} < {self.extent(e)}" for v, e in loops) + " {")
        pool = [*rows, self.load(parallel + loops)]
        if self.random.random() < 0.5:
            pool.append(self.load(parallel + loops))
        for _ in range(self.random.randint(0, 4)):
            pool.append(self.compute(pool))
        if scans:
            x = self.random.choice(pool)
            if SCAN[kind(x[1])]:
                pool.append(self.fold("scan", self.random.choice(SCAN[kind(x[1])]), x, loops))
        if self.random.random() < 0.5 or scans:
            self.store(parallel + loops, pool[-1])
        found = []
        for _ in range(self.random.randint(0 if scans else 1, 2)):
            x = self.random.choice(pool)
            names = REDUCE[kind(x[1])] + (["sum.wide"] if x[1] == "f32" else [])
            found.append(self.fold("reduce", self.random.choice(names), x, loops))
        self.lines.append("  }")
        rows.extend(found)
        welfords = [v for v in found if self.lines[-1] and v in found and self.is_welford(v)]
        if welfords:
            self.lines.append("  row {")
            rows.extend(self.define(v[1], f"welford.m2 %{v[0]}") for v in welfords)
            self.lines.append("  }")

    def rows_added(self, parallel: list[tuple[int, int]]) -> None:
        """Rows of one tensor to rows of another, at places that may be the same; or single elements to any column."""
        row, column = ((self.variable(), self.random.choice(EXTENTS[:10])) for _ in range(2))
        by_element = self.random.random() < 0.3
        self.lines.append(f"  stage i{row[0]} < {self.extent(row[1])}, i{column[0]} < {self.extent(column[1])} {{")
        pool = [self.load([*parallel, row, column])]
        for _ in range(self.random.randint(0, 2)):
            pool.append(self.compute(pool))
        value = next(v for v in reversed([*pool, self.define("f32", "constant 2")]) if v[1] != "bool")
        index, size = self.layout([*parallel, column])
        rows = self.random.choice([1, 3, 9])
        count = row[1] * column[1] if by_element else row[1]
        places = self.buffer("i64", "in", count, torch.randint(0, rows, (count,), generator=self.torch))
        at = f"{column[1]}*i{row[0]} + i{column[0]}" if by_element else f"i{row[0]}"
        place = self.define("i64", f"load b{places}[{at}]")
        dtype = self.random.choice(["f32", "bf16", "f16"]) if value[1] == "f32" else value[1]
        buffer = self.buffer(dtype, "inout", rows * size)
        self.outputs.append(buffer)
        self.lines.append(f"    store.add b{buffer}[{size}*%{place[0]} + {index}], %{value[0]}")
        self.lines.append("  }")

    def is_welford(self, value: tuple[int, str]) -> bool:
        return any(line.startswith(f"    %{value[0]}:") and "welford" in line for line in self.lines)

    def fold(self, what: str, name: str, x: tuple[int, str], loops: list[tuple[int, int]]) -> tuple[int, str]:
        if name == "welford":  # of infinities a mean is NaN or infinite, by the order
            x = self.define(x[1], f"tanh %{x[0]}")
        if name == "sum.wide":
            return self.define("f64", f"reduce.sum.wide %{x[0]}")
        if not name.startswith("arg"):
            return self.define(x[1], f"{what}.{name} %{x[0]}")
        flat = "0"
        for variable, extent in loops:
            flat = f"({flat})*{extent} + i{variable}"
        at = self.define("i64", f"index {flat}")
        return self.define("i64", f"{what}.{name} %{x[0]}, %{at[0]}")


def _product(loops: list[tuple[int, int]]) -> int:
    result = 1
    for _, extent in loops:
        result *= extent
    return result
