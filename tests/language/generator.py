"""Random Python programs around tensors: deterministic by seed, compared with eager, made smaller when they differ.

PYTHONPATH=tests python tests/language/generator.py 0 2000        # seeds, by hand
PYTHONPATH=tests python tests/language/generator.py 0 200 3       # with an exit forced after every third instruction
"""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from scenario import observe

import magneto
from magneto import _test_settings

PRELUDE = """
class Thing:
    kind = 2

    def __init__(self, n):
        self.n = n
        self.t = None

    def step(self, v):
        self.n += 1
        return v * self.n

    @property
    def twice(self):
        return self.n * 2

    def __add__(self, other):
        return Thing(self.n + (other.n if isinstance(other, Thing) else 1))


class Manager:
    def __init__(self, log, swallow):
        self.log = log
        self.swallow = swallow

    def __enter__(self):
        self.log.append("enter")
        return len(self.log)

    def __exit__(self, kind, value, traceback):
        self.log.append(kind and kind.__name__)
        return self.swallow


def numbers(n):
    try:
        for i in range(n):
            yield i
    finally:
        SEEN.append(n)


SEEN = []
TOTAL = 0
"""


class Writer:
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = 0
        self.loops = 0
        self.functions: list[str] = []

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def fresh(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def integer(self, depth: int = 0) -> str:
        if depth > 1 or self.random.random() < 0.4:
            return self.pick("n", "m", "0", "1", "2", "3", "len(v)", "len(d)", "o.n", "o.twice", "x.dim()", "o.kind")
        a, b = self.integer(depth + 1), self.integer(depth + 1)
        return self.pick(
            f"({a} + {b})", f"({a} - {b})", f"({a} * {b} % 7)", f"min({a}, {b})", f"({a} if {self.condition()} else {b})",
            f"sum(i for i in range({a} % 4))", f"abs({a})", f"int({self.condition()})", f"d.get('k', {a})",
        )  # fmt: skip

    def condition(self) -> str:
        a = self.integer(2)
        return self.pick(
            f"{a} > 1", f"{a} % 2 == 0", "'k' in d", "v", f"not {a}", "t is x", "isinstance(o, Thing)", f"n < {a} < 5", "o.t is None",
        )  # fmt: skip

    def tensor(self, depth: int = 0) -> str:
        if depth > 2 or self.random.random() < 0.3:
            return self.pick("x", "t", "u")
        a, b = self.tensor(depth + 1), self.tensor(depth + 1)
        call = [f"{self.random.choice(self.functions)}({a})"] if self.functions else []
        return self.pick(
            f"({a} + {b})", f"({a} * 0.5)", f"({a} - {self.integer(1)})", f"torch.relu({a})", f"-{a}", f"{a}.flip(0)",
            f"({a} if {self.condition()} else {b})", f"{a}.clamp(-9, 9)", f"o.step({a})", f"{a}[torch.tensor([3, 1, 0, 2])]",
            f"torch.stack([{a}, {b}]).sum(0)", f"torch.where({a} > 0, {a}, {b})", f"max([{a}, {b}], key=lambda q: q.dim())",
            f"[{a} + i for i in range(3)][-1]", f"(lambda q, k={self.integer(2)}: q + k)({a})", f"{a}.view(2, 2).t().reshape(4)", *call,
        )  # fmt: skip

    def error(self) -> str:
        return self.pick("ValueError", "KeyError", "ZeroDivisionError", "IndexError", "RuntimeError", "Exception")

    def refused(self) -> str:
        """What an operator refuses."""
        a = self.tensor(2)
        return self.pick(
            f"{a} + torch.ones(3)", f"{a}.view(3)", f"{a}[9]", f"{a}.expand(2)", f"torch.stack([{a}, torch.ones(3)])", f"{a} @ torch.ones(3)",
            f"{a}.sum({self.integer(1)})", f"{a}[:, {self.integer(2)}]", f"torch.cat([{a}, torch.ones(2, 2)])", f"{a} << 1", f"{a}.dot({a}.double())",
            f"{a}.split([{self.integer(2)}, {self.integer(2)}])[0]", f"{a}.transpose(0, 1)", f"~{a}", f"{a}.reshape({self.integer(2)}, 2)",
        )  # fmt: skip

    def simple(self) -> list[str]:
        target = self.pick("t", "t", "u")
        return self.pick(
            [f"{target} = {self.tensor()}"],
            [f"{target} = {self.tensor()}"],
            [f"m = {self.integer()}"],
            [f"n, m = {self.integer()}, {self.integer()}"],
            [f"m += {self.integer()}"],
            [f"d[{self.pick(repr('k'), repr('j'), 'm')}] = {self.pick(self.integer(), self.tensor())}"],
            [f"v.append({self.pick(self.integer(), self.tensor())})"],
            [f"v[{self.pick(0, -1, 5)}] = {self.integer()}"],
            ["v.pop()"],
            ["del d['k']"],
            [f"v += [{self.integer()}]"],
            [f"o.n = {self.integer()}"],
            [f"o.t = {self.tensor()}"],
            ["o = o + o" if self.random.random() < 0.3 else "o.extra = [t, m]"],
            [f"{target}.add_({self.integer()})"],
            [f"{target}[{self.pick(0, 1, 'm % 4')}] = {self.integer()}"],
            [f"{target} *= 0.5"],
            [f"log.append(('{self.pick('a', 'b')}', {self.integer()}))"],
            [f"print('seen', {self.integer()})"],
            [f"a, *b = [{self.integer()}, {self.integer()}, {self.integer()}]", "m = a + len(b)"],
            [f"s = {{i: t + i for i in range({self.integer()} % 3)}}", "log.append(sorted(s))"],
            [f"m = t.sum().item() > {self.integer()}"],
            [f"m = {self.integer()}", "log.append(f'{m} {m:>3}')"],
            [f"log.extend(numbers({self.integer()} % 4))"],
            ["Thing.kind = Thing.kind % 5 + 1"],
            [f"log.append({self.refused()})"],
            [f"raise {self.error()}('r')"] if self.random.random() < 0.3 else ["m -= 1"],
        )

    def block(self, depth: int, in_loop: bool = False) -> list[str]:
        lines: list[str] = []
        for _ in range(self.random.randint(1, 3)):
            lines += self.statement(depth, in_loop)
        return lines

    def statement(self, depth: int, in_loop: bool) -> list[str]:
        if depth > 2 or self.random.random() < 0.55:
            if in_loop and self.random.random() < 0.15:
                return [f"if {self.condition()}:", "    " + self.pick("break", "continue")]
            return self.simple()
        body = indent(self.block(depth + 1, in_loop))
        other = indent(self.block(depth + 1, in_loop))
        loop = indent(self.block(depth + 1, True))
        name = self.fresh("i")
        kind = self.random.randrange(11)
        if kind == 0:
            return [f"if {self.condition()}:", *body, "else:", *other]
        if kind == 1:
            return [f"if t.sum() > {self.integer()}:", *body]
        if kind == 2:
            over = self.pick(
                f"range({self.integer()} % 4)",
                "list(v)",
                "(x, t)",
                "enumerate([x, u])",
                "numbers(3)",
                "list(d.items())",
            )
            return [f"for {name} in {over}:", *loop, *self.pick([], ["else:", *other])]
        if kind == 3:
            return [f"{name} = 0", f"while {name} < {self.integer()} % 4:", f"    {name} += 1", *loop]
        if kind == 4:
            told = self.pick([""], [f" as e{name}", f"    log.append(str(e{name}))"])
            handler = [f"except {self.error()}{told[0]}:", *told[1:], *other]
            rest = self.pick([], ["else:", *indent(self.simple())], ["finally:", *indent(self.simple())])
            return ["try:", *body, *handler, *rest]
        if kind == 5:
            return ["try:", *body, "finally:", *indent(self.simple())]
        if kind == 6:
            return [f"with Manager(log, {self.pick(True, False)}) as {name}:", *body]
        if kind == 7:
            function = self.fresh("f")
            lines = [
                f"def {function}(q, k={self.integer(2)}):",
                *indent(
                    [
                        self.pick("nonlocal m", "pass"),
                        *self.pick(["m = k"], []),
                        *self.pick(["q = q + k"], ["q = q * 2"]),
                    ]
                ),
                f"    return {self.pick('q', 'q + t', 'o.step(q)')}",
                f"t = {function}({self.tensor(1)})",
            ]
            if depth == 0:
                self.functions.append(function)
            return lines
        if kind == 8:
            cases = [
                "match [m, d, o]:",
                "    case [0, _, _]:",
                *indent(body),
                "    case [_, {'k': int() as got}, _] if got > 1:",
            ]
            return [
                *cases,
                *indent(other),
                "    case [_, _, Thing(n=2)]:",
                "        log.append('two')",
                "    case _:",
                "        m += 1",
            ]
        if kind == 9:
            lines = [
                f"def {name}(k):",
                *indent(["for j in range(k):", "    got = yield t + j", "    log.append(got is None)"]),
            ]
            return [*lines, f"for {name}x in {name}({self.integer()} % 3):", f"    u = u + {name}x"]
        return [
            f"t = functools.reduce(lambda a, b: a + b, [{self.tensor(1)}, {self.tensor(1)}])",
            f"m = next(iter([{self.integer()}]))",
        ]

    def program(self) -> str:
        body: list[str] = []
        for _ in range(self.random.randint(2, 5)):
            body += self.statement(0, False)
        result = "    return x, t, u, n, m, v, d, o, log, list(SEEN)"
        start = ["t = x", "u = x + 1", "m = n"]
        return "\n".join([PRELUDE, "def program(x, n, v, d, o, log):", *indent(start), *indent(body), result, ""])


def indent(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def scenario_of(source: str) -> Callable[..., None]:
    def scenario(start: Callable[..., Any]) -> None:
        space: dict[str, Any] = {"torch": torch, "functools": __import__("functools"), "__name__": "generated"}
        exec(compile(source, "<generated>", "exec"), space)
        call = start(space["program"])
        thing = space["Thing"](1)
        for n in (1, 1, 2):
            call(torch.arange(4.0), n, [1, 2], {"k": 3}, thing, [])
            space["SEEN"].clear()

    return scenario


def difference(source: str, every: int = 0, backend: str = "aot_eager") -> str:
    """How the compiled program differs from eager; empty: it does not."""
    scenario = scenario_of(source)
    try:
        expected = observe(scenario, None)
    except Exception:
        return ""  # no program
    magneto.reset()
    with _test_settings.patch(exit_every=every), magneto.config.patch(cache_size_limit=1000, strict=True):
        actual = observe(scenario, lambda function: magneto.compile(function, backend=backend))
    for left, right in zip(actual, expected, strict=True):
        if left != right:
            return f"{left}\ninstead of\n{right}"
    return str(magneto.stats()["fallbacks"] or "")


def smaller(source: str) -> Iterator[str]:
    """Programs with one statement less, or with a compound statement replaced by its body."""
    count = sum(len(body) for body in bodies(ast.parse(source)))
    for index in range(count):
        for unwrap in (False, True):
            tree = ast.parse(source)
            place = 0
            for body in bodies(tree):
                if place <= index < place + len(body):
                    statement = body[index - place]
                    inner = getattr(statement, "body", None) if unwrap else []
                    if isinstance(inner, list) and not isinstance(statement, (ast.FunctionDef, ast.ClassDef)) | (
                        not unwrap
                    ):
                        body[index - place : index - place + 1] = inner or ([] if len(body) > 1 else [ast.Pass()])
                        yield ast.unparse(ast.fix_missing_locations(tree))
                    break
                place += len(body)


def bodies(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body:
                yield body


def shrink(source: str, every: int = 0, backend: str = "aot_eager", attempts: int = 400) -> str:
    improved = True
    while improved and attempts > 0:
        improved = False
        for candidate in smaller(source):
            attempts -= 1
            if attempts <= 0:
                break
            try:
                failing = difference(candidate, every, backend)
            except SyntaxError:
                continue
            if failing:
                source = candidate
                improved = True
                break
    return source


def main() -> None:
    first, last, *rest = map(int, sys.argv[1:])
    every = rest[0] if rest else 0
    found = 0
    for seed in range(first, last):
        source = Writer(seed).program()
        failing = difference(source, every)
        if failing:
            found += 1
            source = shrink(source, every)
            program = source[source.index("def program") :]
            print(f"--- seed {seed}\n{program}\n{difference(source, every)}", flush=True)
            if found >= 8:
                break
    print(f"{found} of {last - first} differ")


if __name__ == "__main__":
    main()
