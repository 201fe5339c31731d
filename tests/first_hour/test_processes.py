"""Pickling, and other processes: spawn, fork after a compile, DataLoader workers."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same

import magneto

X = torch.linspace(-1, 1, 6)


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


@magneto.compile
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x.cos() + 1


class Scaler:
    def __init__(self, by: float) -> None:
        self.by = by

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by

    @magneto.compile
    def compiled_scale(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.by


# -- pickling and copying ---------------------------------------------------------------------------------------------------


def test_decorated_function_is_pickled_by_name() -> None:
    decorated(X)
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert copy.deepcopy(decorated) is decorated and copy.copy(decorated) is decorated


def test_compiled_function_is_pickled_with_its_original() -> None:
    compiled = magneto.compile(plain, backend="aot_eager", fullgraph=True)
    compiled(X)
    loaded = pickle.loads(pickle.dumps(compiled))
    assert loaded.__wrapped__ is plain
    assert_same(loaded(X), plain(X))
    assert pickle.loads(pickle.dumps(loaded)).__wrapped__ is plain


def test_compiled_bound_method_goes_with_its_object() -> None:
    scaler = Scaler(3.0)
    loaded = pickle.loads(pickle.dumps(magneto.compile(scaler.scale)))
    assert loaded.__wrapped__.__self__ is not scaler
    assert_same(loaded(X), X * 3)
    assert_same(pickle.loads(pickle.dumps(scaler.compiled_scale))(X), X * 3)
    assert_same(pickle.loads(pickle.dumps(magneto.compile(scaler)))(X), X + 3)


def test_copied_object_has_methods_of_its_own() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = 2.0
            self.step = magneto.compile(self.scale)

        def scale(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

    model = Model()
    model.step(X)
    twin = copy.deepcopy(model)
    twin.by = 5.0
    assert_same((model.step(X), twin.step(X)), (X * 2, X * 5))


def test_what_can_not_be_pickled_is_named() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(magneto.compile(lambda x: x + 1))
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(magneto.compile(plain, backend=lambda gm, inputs: gm.forward))


def test_object_with_a_compiled_module_is_pickled() -> None:
    holder = {"model": magneto.compile(torch.nn.Linear(6, 2)), "function": decorated}
    want = holder["model"](X)
    loaded = pickle.loads(pickle.dumps(holder))
    assert_same(loaded["model"](X), want)
    assert loaded["function"] is decorated


# -- forked children ---------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], Any], seconds: float = 60.0) -> None:
    """Runs `work` in a forked child; fails if the child fails or hangs."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    deadline = threading.Timer(seconds, os.kill, (child, 9))
    deadline.start()
    _, status = os.waitpid(child, 0)
    deadline.cancel()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("backend", ["magneto", "aot_eager", "eager"])
def test_forked_child_uses_and_makes_captures(backend: str) -> None:
    compiled = magneto.compile(plain, backend=backend)
    compiled(X)

    def work() -> None:
        frames = magneto.stats()["frames"]
        assert_same(compiled(X), plain(X))
        assert magneto.stats()["frames"] == frames
        assert_same(compiled(X[:3]), plain(X[:3]))
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.Softmax(-1))
        assert_same(magneto.compile(model, backend=backend)(X), model(X))

    in_child(work)
    assert_same(compiled(X[:4]), plain(X[:4]))


def test_fork_while_other_threads_compile_and_run() -> None:
    stop = threading.Event()
    large = torch.randn(300, 300)

    def breaking(x: torch.Tensor, turn: int) -> torch.Tensor:
        y = x.sin() + turn
        print(end="")
        return y.softmax(-1) * 2

    def busy() -> None:
        turn = 0
        while not stop.is_set():
            compiled = magneto.compile(breaking)
            for _ in range(3):
                compiled(large, turn)
            turn += 1

    shared = magneto.compile(breaking)
    shared(large, 0)

    def run_shared() -> None:
        while not stop.is_set():
            shared(large, 0)

    threads = [threading.Thread(target=work) for work in (busy, run_shared, run_shared)]
    for thread in threads:
        thread.start()
    try:

        def work() -> None:
            assert gc.isenabled()
            assert_same(shared(large, 0), breaking(large, 0))
            assert_same(magneto.compile(breaking)(X, 1), breaking(X, 1))

        for _ in range(12):
            in_child(work)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_fork_inside_a_compiled_function() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        child = os.fork()
        y = y + 1
        if child == 0:
            os._exit(0 if torch.equal(y, x.sin() + 1) else 1)
        _, status = os.waitpid(child, 0)
        return y * (1 + status)

    compiled = magneto.compile(program)
    for _ in range(2):
        assert_same(compiled(X), X.sin() + 1)


class Transformed(torch.utils.data.Dataset):
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(X * index)


@pytest.mark.parametrize("captured_first", [False, True])
def test_data_loader_workers_after_a_compile(captured_first: bool) -> None:
    transform = magneto.compile(plain)
    model = magneto.compile(torch.nn.Linear(6, 2))
    model(X)
    if captured_first:
        transform(X)
    loader = torch.utils.data.DataLoader(Transformed(transform), batch_size=2, num_workers=2)
    for _ in range(2):
        batches = list(loader)
        assert_same(torch.cat(batches), torch.stack([plain(X * i) for i in range(8)]))
        model(batches[0])


def test_data_loader_inside_a_compiled_function() -> None:
    loader = torch.utils.data.DataLoader(Transformed(plain), batch_size=4, num_workers=1)

    def epoch(scale: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(6)
        for batch in loader:
            total = total + (batch * scale).sum(0)
        return total

    assert_same(magneto.compile(epoch)(X), epoch(X))


# -- spawned children --------------------------------------------------------------------------------------------------------

SPAWNING = """
import multiprocessing, sys
import torch
import magneto

def plain(x):
    return x.sin() + 1

@magneto.compile
def decorated(x):
    return x.cos() + 1

def work(queue, x, model, function):
    queue.put([t.tolist() for t in (decorated(x), model(x), function(x))])

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    x = torch.linspace(-1, 1, 6)
    model = magneto.compile(torch.nn.Linear(6, 2))
    function = magneto.compile(plain)
    want = (decorated(x), model(x), function(x))
    queue = context.Queue()
    child = context.Process(target=work, args=(queue, x, model, function))
    child.start()
    got = [torch.tensor(t) for t in queue.get(timeout=100)]
    child.join()
    assert child.exitcode == 0
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b.detach())
    with context.Pool(2) as pool:
        for a, b in zip(pool.map(function, [x, x * 2]), [plain(x), plain(x * 2)]):
            torch.testing.assert_close(a, b)
    print("ok")
"""


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.long), "fork"])
def test_start_methods(method: str, tmp_path: Any) -> None:
    script = tmp_path / "spawning.py"
    script.write_text(textwrap.dedent(SPAWNING))
    done = subprocess.run(
        [sys.executable, "-P", script, method],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0 and done.stdout == "ok\n", done.stderr
