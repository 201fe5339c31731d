"""The process is changed between calls: PyTorch's switches, its methods and functions, the environment, sets in it."""

import contextlib
import os
import random
import sys
import time
import types
from unittest.mock import patch

import torch
import torch.nn.functional as F
from scenario import Registry, restored, v

scenario = Registry()


@contextlib.contextmanager
def switched(owner, name, value):
    """PyTorch's own tests, which others of ours import, forbid to set switches but in its context managers."""
    before = getattr(owner, name)
    with torch.backends.__allow_nonbracketed_mutation():
        setattr(owner, name, value)
    try:
        yield
    finally:
        with torch.backends.__allow_nonbracketed_mutation():
            setattr(owner, name, before)


def switches(owner, name, values):
    def scenario_of(start):

        def program(x):
            return (x + 1, getattr(owner, name))

        c = start(program)
        c(v())
        for value in values:
            with switched(owner, name, value):
                c(v())
        c(v())

    return scenario_of


for owner, name, values in (
    (torch.backends.cudnn, "benchmark", (True, False)),
    (torch.backends.cudnn, "deterministic", (True, False)),
    (torch.backends.cudnn, "allow_tf32", (False, True)),
    (torch.backends.mkldnn, "enabled", (False, True)),
    (torch.backends.mkldnn, "deterministic", (True, False)),
    (torch.backends.opt_einsum, "enabled", (False, True)),
    (torch.backends.opt_einsum, "strategy", ("greedy", "auto")),
    (torch.backends.cuda.matmul, "allow_tf32", (True, False)),
    (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", (False, True)),
):
    made = switches(owner, name, values)
    made.__name__ = f"switch_{owner.__class__.__name__}_{name}"
    scenario(made)


@scenario
def questions_about_switches(start):

    def program(x):
        return (
            x + 1,
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_anomaly_enabled(),
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.backends.cuda.flash_sdp_enabled(),
        )

    c = start(program)
    c(v())
    precision = torch.get_float32_matmul_precision()
    threads = torch.get_num_threads()
    try:
        torch.set_float32_matmul_precision("medium")
        c(v())
        torch.set_float32_matmul_precision("high")
        c(v())
    finally:
        torch.set_float32_matmul_precision(precision)
    c(v())
    try:
        torch.use_deterministic_algorithms(True)
        c(v())
        torch.use_deterministic_algorithms(True, warn_only=True)
        c(v())
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.no_grad():
        c(v())
    with torch.inference_mode():
        c(v())
    with torch.autograd.detect_anomaly():
        c(v())
    with torch.autograd.detect_anomaly(check_nan=False):
        c(v())
    try:
        torch.set_num_threads(threads + 1)
        c(v())
    finally:
        torch.set_num_threads(threads)
    try:
        torch.backends.cuda.enable_flash_sdp(False)
        c(v())
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
    c(v())


@scenario
def precision_of_matrix_products(start):

    def program(x):
        return x + 1 if torch.get_float32_matmul_precision() == "highest" else x - 1

    c = start(program)
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high", "medium", "highest"):
            torch.set_float32_matmul_precision(precision)
            c(v())
    finally:
        torch.set_float32_matmul_precision(before)


@scenario
def anomaly_mode(start):

    def program(x):
        return x + 1 if torch.is_anomaly_enabled() else x - 1

    c = start(program)
    c(v())
    with torch.autograd.detect_anomaly():
        c(v())
    c(v())


@scenario
def device_of_new_tensors(start):

    def program(x):
        return (x + 1, torch.get_default_device())

    c = start(program)
    c(v())
    with torch.device("meta"):
        c(torch.ones(3, device="cpu"))
    try:
        torch.set_default_device("cpu")
        c(v())
    finally:
        torch.set_default_device(None)
    c(v())


@scenario
def limit_of_recursion(start):

    def program(x):
        return x + sys.getrecursionlimit()

    c = start(program)
    before = sys.getrecursionlimit()
    try:
        c(v())
        sys.setrecursionlimit(before + 17)
        c(v())
    finally:
        sys.setrecursionlimit(before)
    c(v())


@scenario
def environment(start):

    def program(x):
        n = float(os.environ.get("HUNT_SCALE", "1"))
        if "HUNT_NEG" in os.environ:
            n = -n
        return (x * n, os.getenv("HUNT_NAME", "none"))

    c = start(program)
    for name in ("HUNT_SCALE", "HUNT_NEG", "HUNT_NAME"):
        os.environ.pop(name, None)
    try:
        c(v())
        os.environ["HUNT_SCALE"] = "3"
        c(v())
        os.environ["HUNT_NEG"] = ""
        c(v())
        os.environ["HUNT_SCALE"] = "4"
        os.environ["HUNT_NAME"] = "n"
        c(v())
        del os.environ["HUNT_NEG"]
        c(v())
    finally:
        for name in ("HUNT_SCALE", "HUNT_NEG", "HUNT_NAME"):
            os.environ.pop(name, None)
    c(v())


@scenario
def modules_loaded(start):

    def program(x):
        return (x + 1, "hunt_loaded" in sys.modules, sys.modules.get("hunt_loaded") is None)

    c = start(program)
    c(v())
    sys.modules["hunt_loaded"] = types.ModuleType("hunt_loaded")
    c(v())
    del sys.modules["hunt_loaded"]
    c(v())


@scenario
def paths_and_arguments_of_the_process(start):

    def program(x):
        return (x + 1, len(sys.path), sys.argv[0], len(sys.argv), sys.maxsize, sys.platform)

    c = start(program)
    argv = list(sys.argv)
    try:
        c(v())
        sys.argv[0] = "other"
        sys.path.append("nowhere")
        c(v())
        sys.argv.append("more")
        c(v())
    finally:
        sys.argv[:] = argv
        sys.path.remove("nowhere")
    c(v())


@scenario
def time_is_read(start):

    def program(x):
        a = time.time()
        b = time.perf_counter()
        y = x + 1
        return (y, time.time() >= a, time.perf_counter() > b, a > 1e9)

    c = start(program)
    c(v())
    c(v())


@scenario
def time_differs(start):
    seen = []

    def program(x):
        seen.append(time.time_ns())
        return x + len(set(seen))

    c = start(program)
    [c(v()) for _ in range(3)]


@scenario
def state_of_python_s_random_numbers(start):

    def program(x):
        return (x * random.random(), random.randint(0, 100), random.choice([1, 2, 3]))

    c = start(program)
    random.seed(3)
    c(v())
    c(v())
    random.seed(3)
    c(v())
    state = random.getstate()
    c(v())
    random.setstate(state)
    c(v())


@scenario
def addition_of_tensors_replaced(start):

    def program(x):
        return x + 1

    c = start(program)
    before = torch.Tensor.__add__
    c(v())
    try:
        torch.Tensor.__add__ = lambda s, o: s.mul(100)
        c(v())
    finally:
        torch.Tensor.__add__ = before
    c(v())
    del torch.Tensor.__add__
    c(v())


def patched_operators():
    # Not of items and lengths: CPython has two slots for such a name and never gives both back, which PyTorch itself
    # trips over later in the process.
    cases = {
        "__radd__": lambda x: 1 + x,
        "__iadd__": lambda x: patched_in_place(x),
        "__neg__": lambda x: -x,
        "__abs__": lambda x: abs(x),
        "__invert__": lambda x: ~(x > 2),
        "__lt__": lambda x: x < 3,
        "__eq__": lambda x: x == 3,
        "__matmul__": lambda x: x @ x,
        "__pow__": lambda x: x**2,
        "__rpow__": lambda x: 2**x,
        "__mod__": lambda x: x % 2,
        "__iter__": lambda x: [i.neg() for i in x],
        "__contains__": lambda x: (x.shape[0] in x.shape, x.neg()),
        "__and__": lambda x: (x > 1) & (x < 3),
        "__truediv__": lambda x: x / 3,
        "__rtruediv__": lambda x: 3 / x,
        "__floordiv__": lambda x: x // 3,
        "__rsub__": lambda x: 3 - x,
        "__hash__": lambda x: ({x: 1}[x], x.neg()),
        "__mul__": lambda x: (x.neg(), sum([x, x]), torch.ones(3) * 2),
        "__sub__": lambda x: __import__("operator").sub(x, 1),
        "__rmul__": lambda x: 2 * torch.nn.functional.relu(x),
    }
    for name, program in cases.items():

        def patched(start, name=name, program=program):
            c = start(program)
            c(v())
            with patch.object(torch.Tensor, name, replacement(name)):
                c(v())
                c(v())
            c(v())

        patched.__name__ = f"tensor{name}replaced"
        scenario(patched)


def replacement(name):
    if name == "__hash__":
        return lambda s: 3
    if name == "__contains__":
        return lambda s, o: True
    if name == "__iter__":
        return lambda s: iter([s.mul(5)])
    return lambda s, *rest: s.mul(100)


def patched_in_place(x):
    x = x.clone()
    x += 1
    return x


patched_operators()


@scenario
def method_of_tensors_replaced(start):

    def program(x):
        return (x.relu() + x.sum(), x.view(2, 3), x.softmax(0))

    c = start(program)
    c(v(-1.0))
    for name, other in (
        ("relu", lambda s: s * 2),
        ("sum", lambda s, *a: s.mul(3)),
        ("view", lambda s, *a: s.reshape(3, 2)),
        ("softmax", lambda s, *a: s),
    ):
        with patch.object(torch.Tensor, name, other):
            c(v(-1.0))
    c(v(-1.0))


@scenario
def property_of_tensors_replaced(start):

    def program(x):
        return (x.shape[0], x.dtype, x.T, x.neg(), x.device, x.ndim, x.is_cuda)

    c = start(program)
    c(v().view(2, 3))
    for name, other in (
        ("shape", property(lambda s: (7,))),
        ("dtype", property(lambda s: "d")),
        ("T", property(lambda s: s)),
        ("device", 5),
        ("ndim", 5),
        ("is_cuda", True),
    ):
        with patch.object(torch.Tensor, name, other):
            c(v().view(2, 3))
    c(v().view(2, 3))


@scenario
def functions_of_torch_replaced(start):

    def program(x):
        return (torch.add(x, 1), F.relu(x), torch.nn.functional.hardtanh(x), torch.ops.aten.neg(x), torch.relu(x))

    c = start(program)
    c(v(-1.0))
    for owner, name, other in (
        (torch, "add", lambda a, b: a * 7),
        (F, "relu", lambda a: a * 7),
        (F, "hardtanh", lambda a: a * 7),
        (torch, "relu", lambda a: a * 7),
    ):
        with patch.object(owner, name, other):
            c(v(-1.0))
    c(v(-1.0))


@scenario
def functions_of_torch_replaced_below_others(start):
    m = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Softmax(0), torch.nn.LayerNorm(6))

    def program(x):
        return (F.relu(x), m(x), F.softmax(x, 0), F.layer_norm(x, (6,)), F.normalize(x, dim=0))

    c = start(program)
    c(v(-1.0))
    for owner, name, other in (
        (torch, "relu", lambda a: a * 7),
        (torch, "layer_norm", lambda a, *rest: a * 7),
        (F, "softmax", lambda a, *rest, **more: a * 7),
        (F, "relu", lambda a, *rest, **more: a * 7),
        (torch.Tensor, "softmax", lambda a, *rest, **more: a * 7),
        (torch.Tensor, "norm", lambda a, *rest, **more: a * 7),
        (torch.Tensor, "clamp_min", lambda a, *rest, **more: a * 9),
    ):
        with patch.object(owner, name, other):
            c(v(-1.0))
    c(v(-1.0))


@scenario
def code_of_a_function_of_torch_replaced(start):

    def program(x):
        return F.relu(x)

    c = start(program)
    c(v(-1.0))
    with restored(F.relu, "__code__"):
        F.relu.__code__ = (lambda input, inplace=False: input * 7).__code__
        c(v(-1.0))
    c(v(-1.0))


class Item:
    def __init__(self, n):
        self.n = n


@scenario
def set_of_objects(start):
    a, b, d = Item(1), Item(2), Item(3)
    s = {a, b}

    def program(x):
        return (x * len(s), a in s, d in s, sum(i.n for i in s))

    c = start(program)
    c(v())
    s.add(d)
    c(v())
    s.discard(a)
    c(v())
    d.n = 50
    c(v())
    s.clear()
    c(v())


ITEMS = {torch.float32, torch.float16}
FUNCTIONS = {switched, len}


@scenario
def set_of_dtypes(start):

    def program(x):
        return x + 1 if x.dtype in ITEMS else x - 1

    c = start(program)
    c(v())
    try:
        ITEMS.discard(torch.float32)
        c(v())
        c(v().half())
        ITEMS.add(torch.float64)
        c(v().double())
    finally:
        ITEMS.clear()
        ITEMS.update((torch.float32, torch.float16))
    c(v())


@scenario
def set_of_functions(start):

    def program(x):
        return (x + 1 if switched in FUNCTIONS else x - 1, len in FUNCTIONS, max in FUNCTIONS)

    c = start(program)
    c(v())
    try:
        FUNCTIONS.discard(switched)
        c(v())
        FUNCTIONS.add(max)
        c(v())
    finally:
        FUNCTIONS.clear()
        FUNCTIONS.update((switched, len))
    c(v())


@scenario
def set_of_tuples(start):
    s = {(1, 2), (3, "a")}

    def program(x):
        return (x + len(s), (1, 2) in s, (4, 5) in s, frozenset({1}) in s)

    c = start(program)
    c(v())
    s.add((4, 5))
    c(v())
    s.add(frozenset({1}))
    c(v())
    s.discard((1, 2))
    c(v())


@scenario
def set_in_an_attribute(start):

    class K:
        def __init__(self):
            self.seen = set()
            self.kinds = frozenset({torch.float32})

        def f(self, x):
            if self not in self.seen and x.dtype in self.kinds:
                return x + 1
            return x - 1

    k = K()

    def program(x):
        return k.f(x)

    c = start(program)
    c(v())
    k.seen.add(k)
    c(v())
    k.seen.clear()
    c(v())
    k.kinds = frozenset({torch.float64})
    c(v())


@scenario
def set_of_modules_that_have_been_seen(start):
    m = torch.nn.Linear(6, 6)
    n = torch.nn.Linear(6, 6)
    frozen = {m}

    def program(x):
        for k in (m, n):
            x = k(x) if k in frozen else x.neg()
        return x

    c = start(program)
    c(v())
    frozen.add(n)
    c(v())
    frozen.discard(m)
    c(v())


@scenario
def set_of_tensors(start):
    a, b = v(), v(2)
    s = {a}

    def program(x):
        return (x + len(s), a in s, b in s)

    c = start(program)
    c(v())
    s.add(b)
    c(v())
    s.discard(a)
    c(v())


@scenario
def set_that_is_written_with_objects_in_it(start):
    a, b = Item(1), Item(2)
    s = {a}

    def program(x, i):
        s.add(i)
        return (x + len(s), i in s, a in s, sorted(k.n for k in s))

    c = start(program)
    c(v(), b)
    c(v(), b)
    s.discard(a)
    c(v(), a)
    c(v(), Item(3))


@scenario
def members_of_an_enum(start):
    import enum

    class Color(enum.Enum):
        RED = 1
        BLUE = 2

    warm = {Color.RED}

    def program(x, color):
        return x + 1 if color in warm else x - 1

    c = start(program)
    c(v(), Color.RED)
    c(v(), Color.BLUE)
    warm.add(Color.BLUE)
    c(v(), Color.BLUE)
    warm.discard(Color.RED)
    c(v(), Color.RED)
