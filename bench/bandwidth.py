"""Generated kernels against eager and the machine's copy bandwidth, 64 MB of data each way at most:

.venv/bin/python -P bench/bandwidth.py [threads]
"""

from __future__ import annotations

import sys
import time

import torch
import torch.nn.functional as F

from magneto import _C

ROWS, COLUMNS = 4096, 4096  # 64 MB of f32


def softmax(rows: int, columns: int) -> str:
    return f"""kernel "softmax" {{
  b0 in f32[{rows * columns}]
  b1 out f32[{rows * columns}]
  parallel i0 < {rows}
  stage i1 < {columns} {{
    %0:f32 = load b0[{columns}*i0 + i1]
    %1:f32 = reduce.max %0
  }}
  stage i2 < {columns} {{
    %2:f32 = load b0[{columns}*i0 + i2]
    %3:f32 = sub %2, %1
    %4:f32 = exp %3
    %5:f32 = reduce.sum %4
    store b1[{columns}*i0 + i2], %4
  }}
  row {{
    %6:f32 = reciprocal %5
  }}
  stage i3 < {columns} {{
    %7:f32 = load b1[{columns}*i0 + i3]
    %8:f32 = mul %7, %6
    store b1[{columns}*i0 + i3], %8
  }}
}}"""


def layer_norm(rows: int, columns: int) -> str:
    return f"""kernel "layer_norm" {{
  b0 in f32[{rows * columns}]
  b1 in f32[{columns}]
  b2 in f32[{columns}]
  b3 out f32[{rows * columns}]
  parallel i0 < {rows}
  stage i1 < {columns} {{
    %0:f32 = load b0[{columns}*i0 + i1]
    %1:f32 = reduce.sum %0
  }}
  row {{
    %2:f32 = constant {1 / columns}
    %3:f32 = mul %1, %2
  }}
  stage i2 < {columns} {{
    %4:f32 = load b0[{columns}*i0 + i2]
    %5:f32 = sub %4, %3
    %6:f32 = mul %5, %5
    %7:f32 = reduce.sum %6
  }}
  row {{
    %8:f32 = mul %7, %2
    %9:f32 = constant 1e-05
    %10:f32 = add %8, %9
    %11:f32 = rsqrt %10
  }}
  stage i3 < {columns} {{
    %12:f32 = load b0[{columns}*i0 + i3]
    %13:f32 = sub %12, %3
    %14:f32 = mul %13, %11
    %15:f32 = load b1[i3]
    %16:f32 = mul %14, %15
    %17:f32 = load b2[i3]
    %18:f32 = add %16, %17
    store b3[{columns}*i0 + i3], %18
  }}
}}"""


def pointwise(count: int, body: str, inputs: int = 1) -> str:
    buffers = "\n".join(f"b{i} in f32[{count}]" for i in range(inputs))
    loads = "\n".join(f"%{i}:f32 = load b{i}[i0]" for i in range(inputs))
    return f"""kernel "pointwise" {{
  {buffers}
  b{inputs} out f32[{count}]
  parallel i0 < {count}
  row {{
    {loads}
    {body}
  }}
}}"""


GELU = """%1:f32 = constant 0.70710677
    %2:f32 = mul %0, %1
    %3:f32 = erf %2
    %4:f32 = constant 1
    %5:f32 = add %3, %4
    %6:f32 = constant 0.5
    %7:f32 = mul %0, %6
    %8:f32 = mul %7, %5
    store b1[i0], %8"""


def row_sum(rows: int, columns: int, along: int) -> str:
    outer, inner = (rows, columns) if along == 1 else (columns, rows)
    index = f"{columns}*i0 + i1" if along == 1 else f"{columns}*i1 + i0"
    return f"""kernel "sum" {{
  b0 in f32[{rows * columns}]
  b1 out f32[{outer}]
  parallel i0 < {outer}
  stage i1 < {inner} {{
    %0:f32 = load b0[{index}]
    %1:f32 = reduce.sum %0
  }}
  row {{
    store b1[i0], %1
  }}
}}"""


def transposed_add(size: int) -> str:
    return f"""kernel "transposed_add" {{
  b0 in f32[{size * size}]
  b1 in f32[{size * size}]
  b2 out f32[{size * size}]
  parallel i0 < {size}, i1 < {size}
  row {{
    %0:f32 = load b0[{size}*i0 + i1]
    %1:f32 = load b1[{size}*i1 + i0]
    %2:f32 = add %0, %1
    store b2[{size}*i0 + i1], %2
  }}
}}"""


def seconds(*calls, least: float = 1.0) -> list[float]:
    """The least of each, measured in turn, so that a machine that is busy for a while is so for all."""
    times: list[list[float]] = [[] for _ in calls]
    begin = time.perf_counter()
    while len(times[0]) < 6 or time.perf_counter() - begin < least:
        for call, found in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            found.append(time.perf_counter() - start)
    return [min(found) for found in times]


def measure() -> tuple[float, dict[str, dict[str, float]]]:
    """Bytes a second of a copy; for each kernel its seconds, its bandwidth relative to a copy's, eager's, compiling."""
    x, y, out = torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS), torch.empty(ROWS, COLUMNS)
    weight, bias = torch.randn(COLUMNS), torch.randn(COLUMNS)
    sums = torch.empty(COLUMNS)
    count = x.numel()
    copy = pointwise(count, "store b1[i0], %0")
    rows = [
        ("copy", copy, (x, out), lambda: out.copy_(x), 2),
        ("gelu", pointwise(count, GELU), (x, out), lambda: F.gelu(x), 2),
        (
            "x*y + x",
            pointwise(count, "%2:f32 = mul %0, %1\n%3:f32 = add %2, %0\nstore b2[i0], %3", 2),
            (x, y, out),
            lambda: x * y + x,
            3,
        ),
        ("softmax", softmax(ROWS, COLUMNS), (x, out), lambda: F.softmax(x, -1), 2),
        ("softmax, rows of 64", softmax(count // 64, 64), (x, out), lambda: F.softmax(x.view(-1, 64), -1), 2),
        (
            "layer norm",
            layer_norm(ROWS, COLUMNS),
            (x, weight, bias, out),
            lambda: F.layer_norm(x, (COLUMNS,), weight, bias),
            2,
        ),
        ("sum of rows", row_sum(ROWS, COLUMNS, 1), (x, sums), lambda: x.sum(1), 1),
        ("sum of columns", row_sum(ROWS, COLUMNS, 0), (x, sums), lambda: x.sum(0), 1),
        ("transposed add", transposed_add(ROWS), (x, y, out), lambda: x + y.t(), 3),
    ]
    least_copy = float("inf")
    found: dict[str, dict[str, float]] = {}
    for name, text, tensors, eager, passes in rows:
        before = time.perf_counter()
        kernel = _C.kernel_compile(text)
        made = time.perf_counter() - before
        mine, theirs, copied = seconds(
            lambda kernel=kernel, tensors=tensors: _C.kernel_run(kernel, tensors), eager, lambda: out.copy_(x)
        )
        least_copy = min(least_copy, copied)
        share = passes * copied / 2 / mine
        found[name] = {"seconds": mine, "of copy": share, "eager": theirs, "compile": made}
    return 2 * count * 4 / least_copy, found


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    bandwidth, found = measure()
    print(f"{torch.get_num_threads()} thread(s); copy bandwidth {bandwidth / 1e9:.1f} GB/s")
    print(f"{'kernel':22}{'ms':>8}{'of copy':>9}{'eager ms':>10}{'faster':>8}{'compile ms':>12}")
    for name, row in found.items():
        mine, theirs = row["seconds"], row["eager"]
        print(
            f"{name:22}{mine * 1e3:8.2f}{row['of copy']:9.0%}{theirs * 1e3:10.2f}{theirs / mine:8.2f}"
            f"{row['compile'] * 1e3:12.1f}"
        )


if __name__ == "__main__":
    main()
