"""Whole kernels against PyTorch: the shapes that fusion makes, their edges, and what may go wrong."""

from __future__ import annotations

import struct

import pytest
import torch
import torch.nn.functional as F
from kernel_support import (
    DTYPES,
    SOFTMAX,
    TARGETS,
    compiled,
    interpret,
    pointwise,
    run,
    softmax,
    softmax_in_scratch,
    transposed,
)

from magneto import _C, _testing


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "columns"), [(64, 1024), (3, 7), (5, 1), (1, 100), (2, 33), (7, 64), (1, 4097)])
def test_softmax(rows, columns, target):
    x, y = torch.randn(rows, columns) * 5, torch.empty(rows, columns)
    run(softmax(rows, columns), [x, y], target=target)
    torch.testing.assert_close(y, F.softmax(x, -1))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "i16", "i64"])
@pytest.mark.parametrize(("n", "m"), [(64, 64), (65, 130), (1, 200), (200, 1), (17, 300), (0, 5), (128, 63)])
def test_transposed_reads(n, m, dtype, target):
    for known in (False, True):
        x = torch.randint(-50, 50, (n, m)).to(DTYPES[dtype])
        y = torch.randint(-50, 50, (m, n)).to(DTYPES[dtype])
        out = torch.empty_like(x)
        run(transposed(n, m, dtype, known=known), [x, y, out], () if known else (n, m), target)
        assert torch.equal(out, x + y.t())


@pytest.mark.parametrize("target", TARGETS)
def test_zero_sizes_touch_nothing(target):
    empty = torch.empty(0)
    guard = torch.full((4,), 7.0)
    run(transposed(0, 0, "f32"), [empty, empty, guard], (0, 0), target)
    run(transposed(0, 0, "f32"), [empty, empty, guard], (0, 9), target)
    run(transposed(0, 0, "f32"), [empty, empty, guard], (9, 0), target)
    assert torch.equal(guard, torch.full((4,), 7.0))


@pytest.mark.parametrize("target", TARGETS)
def test_reductions_of_nothing_have_their_identity(target):
    text = """kernel "nothing" {
      symbols s0
      b0 in f32[s0]
      b1 in i64[s0]
      b2 out f32[4]
      b3 out i64[3]
      parallel i9 < 1
      stage i0 < s0 {
        %0:f32 = load b0[i0]
        %1:i64 = load b1[i0]
        %2:i64 = index i0
        %3:f32 = reduce.sum %0
        %4:f32 = reduce.prod %0
        %5:f32 = reduce.max %0
        %6:f32 = reduce.min %0
        %7:i64 = reduce.max %1
        %8:i64 = reduce.argmin %0, %2
        %9:i64 = reduce.sum %1
      }
      row {
        store b2[0], %3
        store b2[1], %4
        store b2[2], %5
        store b2[3], %6
        store b3[0], %7
        store b3[1], %8
        store b3[2], %9
      }
    }"""
    floats, integers = torch.ones(4), torch.ones(3, dtype=torch.int64)
    run(text, [torch.empty(0), torch.empty(0, dtype=torch.int64), floats, integers], (0,), target)
    assert floats.tolist() == [0, 1, -torch.inf, torch.inf]
    assert integers.tolist() == [-(2**63), 0, 0]


@pytest.mark.parametrize("target", TARGETS)
def test_nan_rules_of_reductions(target):
    text = """kernel "nan" {
      b0 in f32[200]
      b1 out f32[2]
      b2 out i64[2]
      stage i0 < 200 {
        %0:f32 = load b0[i0]
        %1:i64 = index i0
        %2:f32 = reduce.max %0
        %3:f32 = reduce.min %0
        %4:i64 = reduce.argmax %0, %1
        %5:i64 = reduce.argmin %0, %1
      }
      row {
        store b1[0], %2
        store b1[1], %3
        store b2[0], %4
        store b2[1], %5
      }
    }"""
    for positions in ([], [0], [199], [37, 150], [64]):
        x = torch.randn(200).round()
        x[positions] = torch.nan
        values, places = torch.empty(2), torch.empty(2, dtype=torch.int64)
        run(text, [x, values, places], target=target)
        torch.testing.assert_close(values, torch.stack([x.max(), x.min()]), rtol=0, atol=0, equal_nan=True)
        # Eager's argmax of several equal values is the first one's index, too.
        assert places.tolist() == [x.argmax().item(), x.argmin().item()]


GATHER = """kernel "gather" {
  b0 in i64[40]
  b1 in f32[30]
  b2 out f32[120]
  parallel i0 < 40, i1 < 3
  row {
    %0:i64 = load b0[i0]
    %1:i64 = bounds %0 < 10 "index {index} is out of bounds for dimension 0 with size {size}"
    %2:f32 = load b1[3*%1 + i1]
    store b2[3*i0 + i1], %2
  }
}"""


@pytest.mark.parametrize("target", TARGETS)
def test_indices_wrap_and_are_checked(target):
    table, out = torch.randn(10, 3), torch.empty(40, 3)
    indices = torch.randint(-10, 10, (40,))
    run(GATHER, [indices, table, out], target=target)
    assert torch.equal(out, table[indices])
    for position, index in ((0, 10), (39, -11), (17, 2**62), (20, -(2**63))):
        wrong = indices.clone()
        wrong[position] = index
        message = f"index {index} is out of bounds for dimension 0 with size 10"
        with pytest.raises(IndexError, match=message):
            run(GATHER, [wrong, table, out], target=target)
        with pytest.raises(IndexError, match=message):
            interpret(GATHER, [wrong, table, out])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("offset", [1, 3, 7])
def test_no_alignment_is_needed(offset, target):
    """Pointers at odd elements; and nothing beyond the last element is touched."""
    whole = torch.randn(1100)
    x = whole[offset : offset + 1000]
    memory = torch.full((1100,), 5.0)
    out = memory[offset : offset + 1000]
    run(softmax(10, 100), [x, out], target=target)
    torch.testing.assert_close(out.view(10, 100), F.softmax(x.view(10, 100), -1))
    assert (memory[:offset] == 5).all() and (memory[offset + 1000 :] == 5).all()


@pytest.mark.parametrize("target", TARGETS)
def test_scratch_belongs_to_a_row(target):
    x = torch.randn(64, 100).bfloat16()
    out = torch.empty_like(x)
    run(softmax_in_scratch(64, 100, "bf16"), [x, out], target=target)
    torch.testing.assert_close(out, F.softmax(x.float(), -1).bfloat16(), rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_in_place(target):
    """An input and an output in one memory, element by element."""
    x = torch.randn(1003)
    wanted = x.exp()
    run(pointwise("exp", "f32", 1003), [x, x], target=target)
    torch.testing.assert_close(x, wanted)


@pytest.mark.parametrize("target", TARGETS)
def test_welford_matches_var(target):
    text = """kernel "welford" {
      b0 in f32[30000]
      b1 out f32[30]
      parallel i0 < 30
      stage i1 < 1000 {
        %0:f32 = load b0[1000*i0 + i1]
        %1:f32 = reduce.welford %0
      }
      row {
        %2:f32 = welford.m2 %1
        %3:f32 = constant 999
        %4:f32 = div %2, %3
        store b1[i0], %4
      }
    }"""
    x, out = torch.randn(30, 1000) + 1000, torch.empty(30)
    run(text, [x, out], target=target)
    torch.testing.assert_close(out, x.double().var(1).float(), rtol=1e-4, atol=0)


def test_split_reductions():
    """The extent of a stage may depend on a parallel variable."""
    text = """kernel "split" {
      symbols s0
      b0 in f32[s0]
      b1 out f32[8]
      parallel i0 < 8
      stage i1 < min(1000, s0 - 1000*i0) {
        %0:f32 = load b0[1000*i0 + i1]
        %1:f32 = reduce.sum %0
      }
      row {
        store b1[i0], %1
      }
    }"""
    for size in (0, 1, 999, 1000, 1001, 7777):
        x, out = torch.randn(size), torch.full((8,), torch.nan)
        run(text, [x, out], (size,))
        torch.testing.assert_close(out.sum(), x.sum(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("target", TARGETS)
def test_cumulative_sum(target):
    text = """kernel "cumsum" {
      b0 in i32[700]
      b1 out i64[700]
      parallel i0 < 7
      stage i1 < 100 {
        %0:i32 = load b0[100*i0 + i1]
        %1:i64 = cast %0
        %2:i64 = scan.sum %1
        store b1[100*i0 + i1], %2
      }
    }"""
    x, out = torch.randint(-100, 100, (7, 100), dtype=torch.int32), torch.empty(7, 100, dtype=torch.int64)
    run(text, [x, out], target=target)
    assert torch.equal(out, x.cumsum(1))


def test_equal_kernels_are_compiled_once():
    before = _testing.kernel_stats()
    first = compiled(softmax(11, 13))
    second = compiled(softmax(11, 13).replace('"softmax"', '"another name"').replace('"x"', '"y"'))
    after = _testing.kernel_stats()
    assert (after[0] - before[0], after[1] - before[1]) == (2, 1)
    del first, second


def test_any_split_of_the_range_gives_the_same():
    units, grain = _testing.kernel_range(compiled(softmax(64, 1024)))
    assert units == 64 and 1 <= grain
    assert _testing.kernel_range(compiled(transposed(0, 0, "f32")), (100, 70))[0] in (2, 100, 7000)


def test_texts_can_be_looked_at():
    schedule, ir, assembly = _C.kernel_texts(softmax(64, 1024))
    assert "define void @magneto_kernel" in ir and "magneto_kernel:" in assembly


def test_threads_share_the_work():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        x, y = torch.randn(512, 1024), torch.empty(512, 1024)
        run(softmax(512, 1024), [x, y])
        torch.testing.assert_close(y, F.softmax(x, -1))
    finally:
        torch.set_num_threads(before)


def test_broken_kernels_are_refused():
    with pytest.raises(ValueError, match="before it is defined"):
        compiled(SOFTMAX.replace("exp %3", "exp %4"))


def test_kept_code_runs_and_damaged_code_is_refused():
    """What a cache would keep: the object file goes out and comes back; damaged bytes raise, they never crash."""
    text = softmax(9, 50)
    code, units, cost = _testing.kernel_generate(text)
    x, y = torch.randn(9, 50), torch.empty(9, 50)
    _testing.kernel_run(_testing.kernel_adopt(text, code, units, cost), (x, y))
    torch.testing.assert_close(y, F.softmax(x, -1))
    for length in [*range(0, len(code), 37)]:
        # The section table is at the end of the file: it is missed at any length.
        with pytest.raises(RuntimeError, match="damaged|defines no"):
            _testing.kernel_adopt(text, code[:length], units, cost)
    generator = torch.Generator().manual_seed(3)
    for at in torch.randint(0, len(code), (300,), generator=generator).tolist():
        broken = bytearray(code)
        broken[at] ^= 0xFF
        try:
            _testing.kernel_adopt(text, bytes(broken), units, cost)  # loaded at most: only checksums tell
        except RuntimeError:
            pass


def test_damaged_sizes_ask_for_no_memory():
    """A terabyte of symbols was asked for, and got: the process was killed."""
    text = softmax(9, 50)
    code, units, cost = _testing.kernel_generate(text)
    sections, count = struct.unpack_from("<Q", code, 40)[0], struct.unpack_from("<H", code, 60)[0]
    for i in range(count):
        at = sections + 64 * i
        if struct.unpack_from("<I", code, at + 4)[0] == 2:  # SHT_SYMTAB
            broken = bytearray(code)
            struct.pack_into("<Q", broken, at + 32, 24 << 40)
            with pytest.raises(RuntimeError, match="ends early"):
                _testing.kernel_adopt(text, bytes(broken), units, cost)
            break
    else:
        pytest.fail("no symbols")
