"""What sizes that vary cost, in the workers. bench/size_rows.py shows it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from measuring import timed

BATCHES = 50


def size_guards(framework: Any, backend: str) -> dict[str, Any]:
    """One check of the guards of a function of 20 tensors, whose sizes are 20 symbols, over that with numbers."""
    names = [f"x{index}" for index in range(20)]
    scope: dict[str, Any] = {}
    exec(f"def program({', '.join(names)}):\n    return {', '.join(f'{name} + 1' for name in names)}\n", scope)
    values = {name: torch.ones(index + 2) for index, name in enumerate(names)}
    result = {}
    for kind, dynamic in (("numbers", False), ("symbols", True)):
        framework.reset()
        program = scope["program"]
        compiled = framework.compile(program, backend=backend, dynamic=dynamic)
        with torch.no_grad():
            compiled(*values.values())
            check = framework.guard_check(compiled, program, values)
            result[kind] = min(check(0) for _ in range(50))
    return result


def decisions(framework: Any, count: int) -> dict[str, Any]:
    """Seconds for so many different questions, and how many answers differ from those that all small sizes give."""
    import itertools
    import operator
    import random

    from magneto import _testing

    choose = random.Random(0)
    operators = {"==": operator.eq, "!=": operator.ne, "<=": operator.le, "<": operator.lt}

    def expression(depth: int) -> str:
        if depth == 0 or choose.random() < 0.2:
            return choose.choice(["s0", "s1", "s2", str(choose.randint(0, 12))])
        left, right = expression(depth - 1), expression(depth - 1)
        kind = choose.choice("+-*/%")
        if kind == "/":
            return f"({left})//{choose.randint(2, 8)}"
        if kind == "%":
            return f"({left})%{choose.randint(2, 8)}"
        return f"({left}) {kind} ({right})"

    questions: set[tuple[str, str, str]] = set()
    while len(questions) < count:
        questions.add((expression(3), choose.choice(list(operators)), expression(2)))
    lines = [f"{left} {kind} {right}" for left, kind, right in questions]
    symbols = ["5 in 2..8", "3 in 2..8", "4 in 2..8"]
    seconds, answers = _testing.shapes_decide(symbols, lines)
    wrong = 0
    sizes = [dict(zip(("s0", "s1", "s2"), each, strict=True)) for each in itertools.product(range(2, 9), repeat=3)]
    for (left, kind, right), answer in itertools.islice(zip(questions, answers, strict=True), 2000):
        if answer is None:
            continue
        a, b = compile(left, "", "eval"), compile(right, "", "eval")
        wrong += any(operators[kind](eval(a, each), eval(b, each)) != answer for each in map(dict, sizes))
    decided = sum(answer is not None for answer in answers)
    return {"seconds": seconds, "wrong": wrong, "decided": decided, "count": count}


def reshapes(framework: Any, backend: str, counts: list[int]) -> dict[str, Any]:
    """The first call of a program of so many reshapes to symbolic sizes, less an eager call."""

    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            x = x.reshape(x.shape[1], x.shape[0])
        return x

    result: dict[str, Any] = {}
    for count in counts:
        framework.reset()
        x = torch.ones(64, 32)
        compiled = framework.compile(program, backend=backend, dynamic=True)
        eager = timed(lambda: program(x, count))  # noqa: B023
        result[str(count)] = timed(lambda: compiled(x, count)) - eager  # noqa: B023
    return result


def models_of(name: str) -> tuple[torch.nn.Module, Callable[[int], dict[str, torch.Tensor]]]:
    import models
    from worker import FIRST_CALL

    model = models.build(name, **FIRST_CALL[name][0])
    given = models.inputs(name)
    width = next(iter(given.values())).shape[1]

    def inputs(length: int) -> dict[str, torch.Tensor]:
        return {
            key: torch.cat([value] * (length // width + 1), 1)[:, :length].contiguous() for key, value in given.items()
        }

    return model, inputs


def dynamic_compile(framework: Any, backend: str) -> dict[str, Any]:
    """The first call with dynamic=True and with dynamic=False, and a call of the code at the same size."""
    result: dict[str, Any] = {}
    with torch.no_grad():
        for name in ("bert", "llama", "t5"):
            model, inputs = models_of(name)
            given = inputs(24)
            found: dict[str, float] = {}
            eager = timed(lambda: model(**given))  # noqa: B023
            for kind, dynamic in (("static", False), ("dynamic", True)):
                framework.reset()
                compiled = framework.compile(model, backend=backend, dynamic=dynamic)
                found[kind] = timed(lambda: compiled(**given)) - eager  # noqa: B023
                for _ in range(5):
                    compiled(**given)
                found[f"{kind} call"] = min(timed(lambda: compiled(**given)) for _ in range(30))  # noqa: B023
            found["eager call"] = min(timed(lambda: model(**given)) for _ in range(30))  # noqa: B023
            result[name] = found
    return result


def generation(framework: Any, backend: str, cache: str, tokens: int) -> dict[str, Any]:
    """Decoding with a cache: seconds for all tokens, the compiles among them, and of a second text."""
    import models
    import transformers
    from worker import FIRST_CALL

    model = models.build("llama", **FIRST_CALL["llama"][0])
    config = model.config

    def new_cache() -> Any:
        if cache == "DynamicCache":
            return transformers.DynamicCache()
        return transformers.StaticCache(config=config, max_batch_size=1, max_cache_len=tokens + 8)

    def generate(call: Callable[..., Any]) -> list[int]:
        past, ids, made = new_cache(), torch.tensor([[1, 2, 3, 4, 5]]), []
        position = torch.arange(5)
        for _ in range(tokens):
            out = call(ids, past_key_values=past, use_cache=True, cache_position=position)
            ids = out.logits[:, -1].argmax(-1, keepdim=True)
            position = position[-1:] + 1
            made.append(int(ids))
        return made

    with torch.no_grad():
        framework.reset()
        compiled = framework.compile(model, backend=backend)
        first = timed(lambda: generate(compiled))
        result = {"first": first, "captures": framework.captures()}
        pairs = [(timed(lambda: generate(compiled)), timed(lambda: generate(model))) for _ in range(3)]
        result["call"], result["eager"] = (min(each) for each in zip(*pairs, strict=True))
        result["same"] = generate(compiled) == generate(model)
    return result


def lengths(framework: Any, backend: str) -> dict[str, Any]:
    """Batches of 50 lengths, each once: captures and seconds, and seconds when they come again."""
    result: dict[str, Any] = {}
    with torch.no_grad():
        model, inputs = models_of("bert")
        batches = [inputs(length) for length in range(2, 2 + BATCHES)]
        framework.reset()
        compiled = framework.compile(model, backend=backend)
        result["first"] = timed(lambda: [compiled(**given) for given in batches])
        result["captures"] = framework.captures()
        result["again"] = statistics.median(timed(lambda: [compiled(**given) for given in batches]) for _ in range(5))
        result["eager"] = statistics.median(timed(lambda: [model(**given) for given in batches]) for _ in range(5))
    return result
