"""What people write around models: schedules, registries, configurations, caches, searches, messages."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import enum
import functools
import heapq
import itertools
import math
import operator
import pathlib
import re
import statistics
import string
import sys
import types
import typing
from typing import Any

import torch
import torch.nn.functional as F
from programs import Programs, vector

programs = Programs()


def matrix(rows=3, columns=4):
    return torch.arange(float(rows * columns)).reshape(rows, columns) / 7 - 0.5


def matrices(*shapes):
    return tuple((lambda shape=shape: (matrix(*shape),)) for shape in shapes)


# -- messages that are not needed -----------------------------------------------------------------------------------------


@programs()
def message_of_a_tensor_is_dropped(x):
    total = x.sum()
    message = f"the sum is {total}, of {x.shape}, the largest {x.max():.3f}"
    return x / total


@programs()
def message_of_a_tensor_is_given_to_a_function_that_drops_it(x):
    def check(ok, message, *rest):
        if not ok:
            raise ValueError(message)
        return x

    return check(x.dim() == 1, f"{x.sum()} and {x.mean()!s}", str(x.min()), repr(x)) + 1


@programs(breaks=True)
def message_of_a_tensor_is_returned(x):
    message = f"sum {x.sum()}"
    y = x + 1
    return y, message, f"<{message}>", f"{message:>20}", f"{x}", str(x.sum()), repr(x.max())


@programs(breaks=True)
def message_of_a_tensor_is_read_afterwards(x):
    message = f"sum {x.sum()}"
    y = x + 1
    if "21" in message:
        y = y * 2
    return y, len(message)


@programs(breaks=True)
def message_of_a_tensor_as_a_key(x):
    names = {f"{x.sum()}": 1}
    return x + names["21.0"], list(names)


@programs(breaks=True)
def message_of_a_tensor_is_raised(x):
    try:
        raise ValueError(f"bad sum {x.sum()}")
    except ValueError as error:
        return x + 1, str(error), error.args


@programs(breaks=True)
def message_with_a_bad_format(x):
    try:
        f"{x.sum():d}"
    except ValueError as error:
        return x, str(error)


@programs(breaks=True)
def message_with_a_format_for_a_vector(x):
    try:
        message = f"{x:.2f}"
    except TypeError as error:
        return x, str(error)
    return x, message


@programs(breaks=True)
def messages_are_collected(x):
    log = []
    for i in range(3):
        x = x * 1.5
        log.append(f"step {i}: {x.sum():.1f}")
    return x, log, "; ".join(log)


@programs(breaks=True)
def message_is_kept_in_an_object(x):
    class Note:
        pass

    note = Note()
    note.text = f"{x.mean()}"
    y = x * 2
    return y, note.text


@programs(breaks=True)
def message_is_compared_and_tested(x):
    message = f"{x.sum()}"
    y = x + 1
    return (
        y,
        message == "21.0",
        bool(message),
        message is None,
        message != "",
        message < "z",
        message + "!",
        message * 2,
    )


@programs(breaks=True)
def message_is_handed_to_c_code(x):
    message = f"{x.sum()}"
    y = x + 1
    return (
        y,
        sorted([message, "a"]),
        tuple([message]),
        isinstance(message, str),
        type(message),
        message[0],
        list(message),
    )


@programs(breaks=True)
def message_with_a_default_that_is_falsy(x):
    message = f"{x.sum()}" or "nothing"
    return x + 1, message, not message


@programs(breaks=True)
def message_in_a_loop_over_it(x):
    message = f"{x.sum()}"
    y = x + 1
    for character in message:
        if character == "1":
            y = y + 1
    return y


@programs(breaks=True)
def message_is_formatted_again(x):
    message = f"{x.sum()}"
    y = x + 1
    return y, "{}".format(message), "%s" % message, message.upper(), f"{message!r}", hash(message) == hash("21.0")


# -- shapes and sizes -----------------------------------------------------------------------------------------------------


@programs(*matrices((3, 4), (2, 6), (3, 4)))
def rearranged_by_named_axes(x):
    pattern, sizes = "a b -> b a", dict(zip("ab", x.shape, strict=True))
    left, right = (side.split() for side in pattern.split("->"))
    y = x.permute(*[left.index(name) for name in right])
    return y, {name: sizes[name] for name in right}, y.reshape(math.prod(sizes.values()))


@programs(*matrices((4, 6), (6, 4)))
def patches_by_unfold_and_views(x):
    h, w = x.shape
    p = x.reshape(h // 2, 2, w // 2, 2).transpose(1, 2).flatten(2)
    q = x.unfold(0, 2, 2).unfold(1, 2, 2)
    return p, torch.equal(p.reshape(-1, 4), q.reshape(-1, 4)) if False else q.shape, [*p.shape[:2], p.shape[-1]]


@programs(*matrices((3, 4), (2, 2)))
def shape_is_matched(x):
    match x.shape:
        case (3, n):
            return x.sum(1), n
        case (a, b) if a == b:
            return x @ x, a
        case _:
            return x, None


@programs(*matrices((3, 4), (5, 2)))
def sizes_as_keys_and_texts(x):
    names = {4: "wide", 2: "narrow"}
    rows, columns = x.size()
    return (
        x * rows,
        names.get(columns, "?"),
        f"{rows}x{columns}",
        "x".join(map(str, x.shape)),
        repr(x.shape),
        str(x.size()),
    )


@programs(*matrices((3, 4), (1, 4)))
def broadcasting_by_hand(x):
    shapes = [x.shape, (4,), torch.Size([2, 1, 1])]
    out = torch.broadcast_shapes(*shapes)
    return x.expand(out), tuple(out), len(out), x.new_zeros(out) + torch.ones(4)


@programs(*matrices((5, 3), (4, 3)))
def chunks_and_windows(x):
    windows = [x[i : i + 2] for i in range(0, x.shape[0], 2)]
    pairs = [(a - b).abs().sum() for a, b in itertools.pairwise(x)]
    return windows, torch.stack(pairs), x.chunk(2), list(x.split([1, x.shape[0] - 1]))


# -- registries, configurations, dispatch ---------------------------------------------------------------------------------


ACTIVATIONS: dict[str, Any] = {}


def activation(name):
    def register(function):
        ACTIVATIONS[name] = function
        return function

    return register


@activation("twice")
def _twice(x):
    return 2 * x


@activation("swish")
def _swish(x):
    return x * torch.sigmoid(x)


@programs(
    lambda: (vector(), "twice"), lambda: (vector(), "swish"), lambda: (vector(), "relu"), lambda: (vector(), "none")
)
def function_by_its_name(x, name):
    if name in ACTIVATIONS:
        return ACTIVATIONS[name](x)
    try:
        return getattr(F, name)(x - 3)
    except AttributeError as error:
        return x, str(error)


class Base:
    kinds: typing.ClassVar[dict[str, type]] = {}
    name = "base"

    def __init_subclass__(cls, **options):
        super().__init_subclass__()
        cls.name = options.get("name", cls.__name__.lower())
        Base.kinds[cls.name] = cls

    def __init__(self, scale=1.0):
        self.scale = scale

    def __call__(self, x):
        return self.apply(x) * self.scale

    def apply(self, x):
        raise NotImplementedError(self.name)


class Shift(Base, name="shift"):
    def apply(self, x):
        return x + 1


class Square(Base):
    def apply(self, x):
        return x**2


@programs(
    lambda: (vector(), ["shift", "square"]),
    lambda: (vector(), ["square", "shift", "shift"]),
    lambda: (vector(), ["base"]),
)
def pipeline_of_registered_classes(x, names):
    steps = [Base.kinds[name](scale=0.5 * (i + 1)) if name in Base.kinds else Base() for i, name in enumerate(names)]
    try:
        for step in steps:
            x = step(x)
    except NotImplementedError as error:
        return x, type(error).__name__, str(error)
    return x, [type(step).__name__ for step in steps]


@dataclasses.dataclass(frozen=True)
class Config:
    width: int = 6
    rates: tuple[float, ...] = (0.5, 0.25)
    names: list[str] = dataclasses.field(default_factory=lambda: ["a", "b"])
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def total(self):
        return sum(self.rates) * self.width

    def with_(self, **changes):
        return dataclasses.replace(self, **changes)


@programs(
    lambda: (vector(), Config()), lambda: (vector(), Config(width=3, extra={"bias": 2.0})), lambda: (vector(), Config())
)
def frozen_configuration(x, config):
    changed = config.with_(rates=(1.0,), names=[*config.names, "c"])
    x = x * config.total + changed.total + config.extra.get("bias", 0)
    try:
        config.width = 4
    except dataclasses.FrozenInstanceError as error:
        return x, changed, str(error), config == Config(), dataclasses.asdict(changed)
    return x


class Mode(enum.Enum):
    SUM = "sum"
    MEAN = "mean"
    NONE = None

    def reduce(self, x):
        return {Mode.SUM: torch.sum, Mode.MEAN: torch.mean, Mode.NONE: lambda x: x}[self](x)

    @classmethod
    def of(cls, text):
        return cls[text.upper()] if isinstance(text, str) else cls(text)


@programs(*[(lambda mode=mode: (vector(), mode)) for mode in ("sum", "mean", None, "sum")])
def reduction_by_an_enum(x, mode):
    chosen = Mode.of(mode)
    return chosen.reduce(x), chosen.name, chosen.value, [m.name for m in Mode if m is not chosen], f"{chosen}"


class Dispatcher:
    @functools.singledispatchmethod
    def scale(self, value, x):
        raise TypeError(type(value).__name__)

    @scale.register
    def _(self, value: int, x):
        return x * value

    @scale.register
    def _(self, value: list, x):
        return [self.scale(item, x) for item in value]

    @scale.register(torch.Tensor)
    def _(self, value, x):
        return x * value.sum()


# 3.13's singledispatchmethod keeps the method of an object in a dict of weak references.
@programs(
    *(lambda: (vector(), 2), lambda: (vector(), [1, 3]), lambda: (vector(), torch.ones(2)), lambda: (vector(), "a")),
    breaks=sys.version_info >= (3, 13),
)
def method_dispatched_by_type(x, value):
    try:
        return Dispatcher().scale(value, x)
    except TypeError as error:
        return x, str(error)


@programs(breaks=True)
def options_are_merged_in_layers(x):
    defaults, file, line = {"a": 1, "b": 2}, {"b": 3}, {"c": 4}
    chain = collections.ChainMap(line, file, defaults)
    merged = {**defaults, **file, **line}
    space = types.SimpleNamespace(**merged)
    return x * chain["b"] + space.c, dict(chain) == merged, sorted(chain), vars(space)


@programs(breaks=True)
def template_and_path_texts(x):
    path = pathlib.PurePosixPath("runs") / f"{x.shape[0]:03d}" / "model.pt"
    text = string.Template("$name has $n").substitute(name="x", n=x.numel())
    return x + len(path.parts), str(path), path.suffix, path.stem, text, re.sub(r"\d+", "n", text)


# -- numbers --------------------------------------------------------------------------------------------------------------


@programs(*[(lambda step=step: (vector(), step)) for step in (0, 5, 10, 50, 100)])
def learning_rate_by_step(x, step):
    warm, total, base = 10, 100, 0.1
    if step < warm:
        rate = base * (step + 1) / warm
    else:
        rate = 0.5 * base * (1 + math.cos(math.pi * (step - warm) / (total - warm)))
    return x * rate, round(rate, 6)


@programs()
def statistics_of_numbers(x):
    values = [1.0, 2.5, 4.0, 8.0]
    return (
        x * statistics.median(values),
        math.fsum(values),
        math.dist((0, 0), (3, 4)),
        math.comb(5, 2),
    )


@programs(breaks=True)
def intervals_of_time(x):
    span = datetime.timedelta(hours=1, seconds=30)
    return x * span.total_seconds(), str(span), span > datetime.timedelta(hours=1), (span * 2).seconds


@programs()
def bits_and_bases(x):
    n = 37
    return (
        x * n.bit_count(),
        bin(n),
        n.bit_length(),
        [n >> k & 1 for k in range(6)],
        int("0x1f", 16),
        f"{n:#010b}",
        divmod(-n, 5),
    )


@programs()
def binary_search_for_a_number(x):
    low, high = 0.0, 10.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if middle * middle < 7 else (low, middle)
    return x * low, round(high, 2)


# -- loops over tensors ---------------------------------------------------------------------------------------------------


@programs(*matrices((4, 3), (2, 3)))
def recurrence_by_hand(x):
    h = torch.zeros(3)
    states = []
    for t, row in enumerate(x):
        h = torch.tanh(row + 0.5 * h) if t % 2 == 0 else torch.relu(row - h)
        states.append(h)
    return torch.stack(states), h


@programs(*matrices((4, 3), (2, 3)))
def scan_by_accumulate(x):
    sums = list(itertools.accumulate(x.unbind(0)))
    largest = functools.reduce(torch.maximum, x)
    return torch.stack(sums), largest, sum(x), sum(x, start=torch.ones(3))


@programs(*matrices((3, 4)))
def best_first_search_over_constants(x):
    graph = {"a": [("b", 2), ("c", 5)], "b": [("c", 1), ("d", 7)], "c": [("d", 2)], "d": []}
    queue, seen, order = [(0, "a")], {}, []
    while queue:
        cost, node = heapq.heappop(queue)
        if node in seen:
            continue
        seen[node] = cost
        order.append(node)
        for other, weight in graph[node]:
            heapq.heappush(queue, (cost + weight, other))
    return x * seen["d"], order, seen


@programs(*matrices((2, 5)))
def beams_are_kept_by_topk(x):
    scores, paths = torch.zeros(1), [[]]
    for _ in range(2):
        total = scores[:, None] + F.log_softmax(x.sum(0, keepdim=True), -1)
        scores, index = total.flatten().topk(2)
        scores = scores.sort().values
    return scores, index // 5, index % 5, paths


@programs()
def moving_average_in_a_closure(x):
    state = {"mean": torch.zeros(6), "count": 0}

    def update(value, decay=0.9):
        state["count"] += 1
        state["mean"] = decay * state["mean"] + (1 - decay) * value
        return state["mean"] / (1 - decay ** state["count"])

    return [update(x), update(x * 2), update(x * 3)], state


Pair = collections.namedtuple("Pair", "left right")


@programs()
def nested_structure_is_mapped(x):
    def walk(function, tree):
        if isinstance(tree, dict):
            return {key: walk(function, value) for key, value in tree.items()}
        if isinstance(tree, (list, tuple)) and not hasattr(tree, "_fields"):
            return type(tree)(walk(function, item) for item in tree)
        if isinstance(tree, tuple):
            return type(tree)(*(walk(function, item) for item in tree))
        return function(tree) if isinstance(tree, torch.Tensor) else tree

    tree = {"a": [x, (x + 1, 2)], "b": Pair(x * 2, None), "c": {"d": x.neg()}}
    return walk(lambda t: t.sum(), tree)


@programs()
def flatten_and_unflatten(x):
    leaves = []

    def flatten(tree):
        if isinstance(tree, (list, tuple)):
            return [flatten(item) for item in tree]
        leaves.append(tree)
        return len(leaves) - 1

    spec = flatten([x, [x + 1, (x * 2,)], x.sum()])
    doubled = [leaf * 2 for leaf in leaves]

    def unflatten(node):
        return [unflatten(item) for item in node] if isinstance(node, list) else doubled[node]

    return unflatten(spec), spec


@programs(*matrices((3, 3)))
def power_iteration_with_an_assertion(x):
    a = x + x.T
    v = torch.ones(3)
    for _ in range(5):
        v = a @ v
        assert v.shape == (3,), f"{v.shape} of {v}"
        v = v / v.norm()
    return v, v @ a @ v


@programs(*matrices((4, 4)))
def strides_negative_and_diagonals(x):
    return x.flip(0), x[torch.arange(3, -1, -1)], x.diagonal(1), x.tril().sum(), x[::2, 1::2], x[..., -1:], x[[0, -1]]


@programs(*matrices((4, 4)))
def assignments_through_views(x):
    y = x.clone()
    y[0], y[:, 1], y[2:, 2:] = 1.0, torch.arange(4.0), y[:2, :2]
    y.diagonal().fill_(9)
    row = y[3]
    row += 1
    row[0] *= 2
    y[y > 8] = 0
    return y, row


@programs(*matrices((4, 3), (5, 3)))
def mask_takes_values(x):
    y = x.clone()
    rows = x.sum(1) > 0
    y[rows] = torch.tensor([7.0, 8.0, 9.0])
    y[:, torch.tensor([True, False, True])] = torch.zeros(2)
    return y, y.index_put((rows,), torch.ones(3), accumulate=True), y.index_put((x > 0.3,), x[0, :1])


@programs(*matrices((4, 3), (2, 3)))
def mask_takes_as_many_values_as_it_has_places(x):
    y = x.clone()
    y[torch.arange(x.shape[0]) < 2] = torch.arange(6.0).view(2, 3)
    y[x >= x.max()] = torch.full((1,), 5.0)
    return y


@programs(*matrices((4, 3), (4, 3)))
def mask_takes_too_many_values(x):
    y = x.clone()
    y += 1
    try:
        y[x > 0.3] = torch.ones(2)
    except Exception as error:
        return y, type(error).__name__, str(error)
    return y


@programs(*matrices((4, 3), (4, 3)))
def mask_takes_one_size_and_then_another(x):
    y, few = x.clone(), x > 10
    few[0, 0] = True
    y[few] = torch.ones(1)
    try:
        y[few] = torch.ones(2)
    except Exception as error:
        return y, type(error).__name__
    return y


@programs(lambda: (matrix().requires_grad_(), torch.ones(4, requires_grad=True)), breaks=True)
def gradients_through_a_mask_that_takes_values(x, w):
    y = x * 2
    y[x.sum(1) > 0] = w * 3
    return y, torch.autograd.grad((y * y).sum(), [x, w])


@programs()
def tensors_in_conditions_of_containers(x):
    flags = {"scale": True, "shift": False}
    options = [(lambda t: t * 2, "scale"), (lambda t: t + 1, "shift"), (torch.neg, "missing")]
    chosen = [f for f, name in options if flags.get(name, True)]
    return functools.reduce(lambda value, f: f(value), chosen, x), len(chosen)


@programs()
def constants_become_tensors(x):
    table = torch.tensor([[1, 2], [3, 4]])
    ramp = torch.linspace(0, 1, 6)
    return (
        x * ramp,
        table.float().mean(),
        torch.tensor(3.5) * x,
        torch.as_tensor([True, False]).any(),
        torch.full_like(x, 2),
    )


# -- functions and closures -----------------------------------------------------------------------------------------------


@programs()
def composition_and_currying(x):
    def compose(*functions):
        return functools.reduce(lambda f, g: lambda value: g(f(value)), functions)

    add = lambda a: lambda b: a + b
    scale = functools.partial(operator.mul, 3)
    return compose(add(1), scale, torch.sqrt)(x), compose(abs)(x - 3)


@programs(breaks=True)
def memo_of_a_recursive_function(x):
    @functools.lru_cache(maxsize=None)
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    return x * fibonacci(15)


@programs()
def decorator_with_arguments_and_state(x):
    calls = []

    def traced(label, *, times=1):
        def wrap(function):
            @functools.wraps(function)
            def inner(*args, **kwargs):
                calls.append((label, function.__name__, len(args), sorted(kwargs)))
                result = function(*args, **kwargs)
                for _ in range(times - 1):
                    result = function(result, **kwargs)
                return result

            return inner

        return wrap

    @traced("t", times=3)
    def shift(value, by=1):
        return value + by

    return shift(x, by=2), calls, shift.__name__, shift.__wrapped__(x)


@programs()
def generator_pipeline_with_send(x):
    def running():
        total = None
        while True:
            value = yield total
            total = value if total is None else total + value

    g = running()
    next(g)
    out = [g.send(x * i) for i in (1, 2, 3)]
    g.close()
    return out


@programs()
def context_that_changes_and_restores(x):
    settings = {"scale": 1.0}

    @contextlib.contextmanager
    def using(**changes):
        before = dict(settings)
        settings.update(changes)
        try:
            yield settings
        finally:
            settings.clear()
            settings.update(before)

    with using(scale=2.0) as inner, using(shift=1.0):
        y = x * inner["scale"] + inner["shift"]
    return y, settings


@programs()
def exceptions_for_control(x):
    class Done(Exception):
        def __init__(self, value):
            super().__init__("done")
            self.value = value

    def search(level):
        if level == 3:
            raise Done(x * level)
        return search(level + 1)

    try:
        search(0)
    except Done as done:
        return done.value, str(done)


@programs()
def lazy_attribute_and_equality(x):
    class Lazy:
        def __init__(self, make):
            self._make = make

        def __getattr__(self, name):
            if name == "value":
                self.value = self._make()
                return self.value
            raise AttributeError(name)

        def __eq__(self, other):
            return isinstance(other, Lazy) and other._make is self._make

        __hash__ = None

    make = lambda: x + 1
    a, b = Lazy(make), Lazy(make)
    try:
        hash(a)
    except TypeError as error:
        return a.value, a == b, "value" in vars(a), "value" in vars(b), hasattr(a, "other"), str(error)


@programs()
def operators_of_a_small_algebra(x):
    @dataclasses.dataclass
    class Dual:
        value: Any
        slope: Any

        def __add__(self, other):
            other = other if isinstance(other, Dual) else Dual(other, 0)
            return Dual(self.value + other.value, self.slope + other.slope)

        __radd__ = __add__

        def __mul__(self, other):
            other = other if isinstance(other, Dual) else Dual(other, 0)
            return Dual(self.value * other.value, self.value * other.slope + self.slope * other.value)

        __rmul__ = __mul__

    d = Dual(x, torch.ones(6))
    y = 3 * d * d + d + 1
    return y.value, y.slope, sum([d, d, d]).slope


# -- modules of one's own -------------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self, width, *, residual=True, norm=None):
        super().__init__()
        self.inner = torch.nn.Linear(width, width)
        self.norm = norm or torch.nn.Identity()
        self.residual = residual
        self.calls = 0

    def forward(self, x, *, scale: float = 1.0):
        self.calls += 1
        y = self.norm(torch.tanh(self.inner(x))) * scale
        return x + y if self.residual else y

    def extra_repr(self):
        return f"residual={self.residual}"


@programs.made(lambda: (vector(),), lambda: (vector(),), lambda: (vector(2.0),))
def counter_and_options_of_a_module():
    torch.manual_seed(0)
    blocks = torch.nn.ModuleList([Block(6), Block(6, residual=False, norm=torch.nn.LayerNorm(6))])

    def program(x):
        outputs = {}
        for i, block in enumerate(blocks):
            x = outputs[f"block{i}"] = block(x, scale=1 / (i + 1))
        return outputs, [block.calls for block in blocks], repr(blocks[0])

    return program


@programs.made(lambda: (vector(),), lambda: (vector(),))
def norm_of_the_parameters():
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(6), Block(6))

    def program(x):
        decay = sum(p.pow(2).sum() for n, p in model.named_parameters() if n.endswith("weight"))
        sizes = {n: p.numel() for n, p in model.named_parameters()}
        return model(x).sum() + 0.1 * decay, sizes, sum(sizes.values()), [type(m).__name__ for m in model.modules()]

    return program


@programs.made(lambda: (vector(),), lambda: (vector(),), lambda: (vector(),))
def average_of_the_weights_is_kept():
    torch.manual_seed(0)
    model, shadow = torch.nn.Linear(6, 6), {}

    def program(x):
        y = model(x)
        with torch.no_grad():
            for name, p in model.named_parameters():
                shadow[name] = p.clone() if name not in shadow else shadow[name].lerp(p, 0.1)
        return y, list(shadow)

    program.watched = (shadow,)
    return program


@programs.made(lambda: (vector(),), lambda: (vector(),))
def features_are_caught_by_hooks():
    torch.manual_seed(0)
    model, caught = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2)), {}
    for name, part in model.named_children():
        part.register_forward_hook(lambda module, args, out, name=name: caught.__setitem__(name, out.detach()))

    def program(x):
        y = model(x)
        return y, caught["1"].sum(), sorted(caught)

    return program


@programs.made(lambda: (vector(),), lambda: (vector(),), lambda: (vector(3.0),))
def cache_that_grows_by_concatenation():
    class Cache:
        def __init__(self):
            self.keys = None

        def update(self, k):
            self.keys = k if self.keys is None else torch.cat([self.keys, k])
            return self.keys

        def __len__(self):
            return 0 if self.keys is None else self.keys.shape[0]

    cache = Cache()

    def program(x):
        past = len(cache)
        keys = cache.update(x[None])
        return keys.sum(0) * (past + 1), past, len(cache)

    return program


@programs.made(lambda: (vector(),), lambda: (vector(),))
def mask_and_positions_are_kept_as_buffers():
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.ones(8, 8).tril().bool(), persistent=False)
            self.register_buffer("inverse", 1 / 10 ** (torch.arange(0, 2) / 2))
            self.width = 3

        def forward(self, x):
            q = x.view(2, self.width)
            n = q.shape[0]
            angle = torch.outer(torch.arange(n), self.inverse)
            scores = (q @ q.T) / self.width**0.5
            scores = scores.masked_fill(~self.mask[:n, :n], torch.finfo(scores.dtype).min)
            return scores.softmax(-1) @ q, angle.cos()

    attention = Attention()
    return lambda x: attention(x)


@programs.made(lambda: (vector(), 0), lambda: (vector(), 1), lambda: (vector(), 5), lambda: (vector(), 0))
def layers_chosen_by_an_index():
    torch.manual_seed(0)
    layers = torch.nn.ModuleDict({"a": torch.nn.Linear(6, 6), "b": torch.nn.Linear(6, 6)})
    order = ["a", "b"]

    def program(x, index):
        try:
            return layers[order[index]](x), index
        except IndexError as error:
            return x, str(error)

    return program


# -- text and data in between ---------------------------------------------------------------------------------------------


@programs()
def vocabulary_and_tokens(x):
    text = "the cat and the dog and the bird"
    counts = collections.Counter(text.split())
    vocabulary = {word: i for i, (word, _) in enumerate(counts.most_common())}
    ids = torch.tensor([vocabulary[word] for word in text.split()])
    return x[ids % 6], ids.bincount(), vocabulary, text.title().swapcase()


@programs(*[(lambda words=words: (vector(), words)) for words in (["ab", "c"], ["abc"], ["ab", "c"])])
def padding_of_lists(x, words):
    longest = max(map(len, words))
    padded = [[ord(c) - 96 for c in word] + [0] * (longest - len(word)) for word in words]
    mask = torch.tensor([[1] * len(w) + [0] * (longest - len(w)) for w in words], dtype=torch.bool)
    return torch.tensor(padded) * x[0], mask, list(itertools.zip_longest(*words, fillvalue="-"))


@programs()
def slices_and_indices_by_name(x):
    fields = {"first": slice(0, 2), "rest": slice(2, None), "last": -1, "picked": [0, 3]}
    return {name: x[key] for name, key in fields.items()}, fields["first"].indices(6)


@programs()
def sorted_by_keys_of_tensors_sizes(x):
    parts = [x, x[:2], x[None], x.sum()]
    by_rank = sorted(parts, key=lambda t: (t.dim(), -t.numel()))
    groups = {k: [t.shape for t in g] for k, g in itertools.groupby(by_rank, key=torch.Tensor.dim)}
    return by_rank, groups, max(parts, key=torch.numel).shape, min(parts, key=lambda t: t.numel())
