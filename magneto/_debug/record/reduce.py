"""Smaller texts of a program: without statements, without what is around others, with simpler expressions.

Each candidate is a whole text in which every line that is left keeps its number, so that the places of functions in a
record hold for it, too.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

Lines = list[str]
Fails = Callable[[str], bool]
"""Whether a text still shows the failure."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def function_at(tree: ast.Module, name: str, line: int) -> Function | None:
    """The function of that name whose decorators, if it has any, begin in that line."""
    for node in ast.walk(tree):
        if isinstance(node, Function) and node.name == name and first_line(node) == line:
            return node
    return None


def first_line(node: ast.stmt) -> int:
    """With decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


class Reducer:
    """Reduces one function of a text."""

    def __init__(self, text: str, name: str, line: int, fails: Fails) -> None:
        self.text = text
        self._name, self._line, self._fails = name, line, fails

    def run(self) -> bool:
        """Until nothing of it can go. Whether anything went."""
        before = self.text
        passes = (self._drop, self._unwrap, self._simplify, self._inline)
        changed = True
        while changed:
            changed = False
            for one in passes:
                changed |= one()
        return self.text != before

    def _bodies(self) -> Iterator[list[ast.stmt]]:
        function = function_at(ast.parse(self.text), self._name, self._line)
        if function is not None:
            yield from _bodies(function)

    def _try(self, lines: Lines | None) -> bool:
        if lines is None:
            return False
        text = "".join(lines)
        if text == self.text:
            return False
        try:
            compile(text, "candidate", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
        if not self._fails(text):
            return False
        self.text = text
        return True

    def _drop(self) -> bool:
        """Statements, by halves, the last ones first."""
        changed, number = False, 0
        while True:
            bodies = list(self._bodies())
            if number >= len(bodies):
                return changed
            changed |= self._drop_of(number, len(bodies[number]))
            number += 1

    def _drop_of(self, number: int, count: int) -> bool:
        changed, size = False, count
        while size:
            end = count
            while end > 0:
                body = self._body(number)
                start = max(0, end - size)
                chosen = body[start:end]
                end = start
                is_pass = len(body) == len(chosen) and all(isinstance(one, ast.Pass) for one in chosen)
                if chosen and not is_pass and self._try(_without(self._lines(), body, chosen)):
                    changed = True
                    count = min(count, len(self._body(number)))
                    end = min(end, count)
            size = 0 if size == 1 else (size + 1) // 2
        return changed

    def _body(self, number: int) -> list[ast.stmt]:
        bodies = list(self._bodies())
        return bodies[number] if number < len(bodies) else []

    def _lines(self) -> Lines:
        return self.text.splitlines(keepends=True)

    def _unwrap(self) -> bool:
        """Of an `if` one branch, of a loop one round, of `with` and `try` the block."""
        return self._any(lambda lines, statement: _unwrapped(lines, statement))

    def _simplify(self) -> bool:
        """A part of an expression in its place."""
        return self._any(lambda lines, statement: _simplified(lines, statement))

    def _inline(self) -> bool:
        """A value in the place of its name."""
        return self._any(lambda lines, statement: self._inlined(lines, statement))

    def _inlined(self, lines: Lines, statement: ast.stmt) -> Iterator[Lines]:
        function = function_at(ast.parse(self.text), self._name, self._line)
        if function is None or not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            return
        name = statement.targets[0].id
        loads = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name]
        users = [
            one
            for body in _bodies(function)
            for one in body
            if isinstance(one, _SIMPLE) and one.lineno > statement.lineno and _loads(one, name)
        ]
        if len(statement.targets) > 1 or len(loads) - 1 != sum(_loads(one, name) for one in users) or not users:
            return
        if not isinstance(statement.value, ast.Name) and len(loads) != 2:
            return
        _blank(lines, statement.lineno, statement.end_lineno or statement.lineno)
        for one in users:
            indent = _indent(self._lines(), one)
            _Substitute(name, statement.value).visit(one)
            _blank(lines, one.lineno, one.end_lineno or one.lineno)
            lines[one.lineno - 1] = f"{indent}{ast.unparse(one)}\n"
        yield lines

    def _any(self, candidates: Callable[[Lines, ast.stmt], Iterator[Lines | None]]) -> bool:
        changed = again = True
        changed = False
        while again:
            again = any(
                self._try(lines)
                for body in self._bodies()
                for statement in body
                for lines in candidates(self._lines(), statement)
            )
            changed |= again
        return changed


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """All blocks in a function, outer ones first."""
    blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
    blocks += [handler.body for handler in getattr(node, "handlers", [])]
    blocks = [block for block in blocks if block and isinstance(block[0], ast.stmt)]
    yield from blocks
    for block in blocks:
        for statement in block:
            yield from _bodies(statement)


def _indent(lines: Lines, statement: ast.stmt) -> str:
    return lines[first_line(statement) - 1][: statement.col_offset]


def _without(lines: Lines, body: list[ast.stmt], chosen: list[ast.stmt]) -> Lines:
    indent = _indent(lines, body[0])
    for statement in chosen:
        _blank(lines, first_line(statement), statement.end_lineno or statement.lineno)
    if len(chosen) == len(body):
        lines[first_line(body[0]) - 1] = f"{indent}pass\n"
    return lines


def _blank(lines: Lines, first: int, last: int) -> None:
    for number in range(first, last + 1):
        lines[number - 1] = "\n"


def _unwrapped(lines: Lines, statement: ast.stmt) -> Iterator[Lines | None]:
    if isinstance(statement, (ast.With, ast.Try)):
        yield _lifted(list(lines), statement, statement.body, "")
    elif isinstance(statement, ast.If):
        yield _lifted(list(lines), statement, statement.body, "")
        yield _lifted(list(lines), statement, statement.orelse, "")
    elif isinstance(statement, ast.While):
        yield _lifted(list(lines), statement, statement.body, "")
    elif isinstance(statement, ast.For):
        head = f"{ast.unparse(statement.target)} = next(iter({ast.unparse(statement.iter)}))"
        yield _lifted(list(lines), statement, statement.body, head)


def _lifted(lines: Lines, statement: ast.stmt, block: list[ast.stmt], head: str) -> Lines | None:
    """The block in the statement's place, `head` in front of it."""
    if not block or first_line(block[0]) == statement.lineno:
        return None
    less = block[0].col_offset - statement.col_offset
    indent = _indent(lines, statement)
    first, last = first_line(block[0]), block[-1].end_lineno or block[-1].lineno
    kept = {number: lines[number - 1] for number in range(first, last + 1)}
    _blank(lines, statement.lineno, statement.end_lineno or statement.lineno)
    for number, line in kept.items():
        lines[number - 1] = line[less:] if line[:less].isspace() else line
    if head:
        lines[statement.lineno - 1] = f"{indent}{head}\n"
    return lines


_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)


def _simplified(lines: Lines, statement: ast.stmt) -> Iterator[Lines]:
    if not isinstance(statement, _SIMPLE) or statement.value is None:
        return
    if not isinstance(statement, (ast.Expr, ast.Return)):  # the value alone
        changed = list(lines)
        _blank(changed, statement.lineno, statement.end_lineno or statement.lineno)
        changed[statement.lineno - 1] = f"{_indent(lines, statement)}{ast.unparse(statement.value)}\n"
        yield changed
    count = sum(1 for _ in ast.walk(statement.value))
    for number in range(count):
        node = _nth(statement, number)
        for part in range(len(_parts(node))):
            other = copy.deepcopy(statement)
            replaced = _nth(other, number)
            _replace(other, replaced, _parts(replaced)[part])
            changed = list(lines)
            _blank(changed, statement.lineno, statement.end_lineno or statement.lineno)
            changed[statement.lineno - 1] = f"{_indent(lines, statement)}{ast.unparse(other)}\n"
            yield changed


def _loads(statement: ast.stmt, name: str) -> int:
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name) and node.id == name]
    return sum(isinstance(node.ctx, ast.Load) for node in names)


class _Substitute(ast.NodeTransformer):
    def __init__(self, name: str, value: ast.expr) -> None:
        self._name, self._value = name, value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        is_it = node.id == self._name and isinstance(node.ctx, ast.Load)
        return copy.deepcopy(self._value) if is_it else node


def _nth(statement: ast.stmt, number: int) -> ast.AST:
    return list(ast.walk(statement.value))[number]  # type: ignore[attr-defined]


def _parts(node: ast.AST) -> list[ast.expr]:
    """What may stand for an expression."""
    if isinstance(node, ast.Call):
        receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return [*receiver, *(one for one in node.args if not isinstance(one, ast.Starred))]
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.BoolOp):
        return list(node.values)
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, (ast.Tuple, ast.List)):
        return list(node.elts)
    if isinstance(node, (ast.Subscript, ast.Await)):
        return [node.value]
    return [node.operand] if isinstance(node, ast.UnaryOp) else []


def _replace(root: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(root):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
                return
            if isinstance(value, list):
                for i, item in enumerate(value):
                    if item is old:
                        value[i] = new
                        return


def unused_parameters(text: str, name: str, line: int) -> list[str]:
    """Of a function: plain parameters that its body does not read."""
    function = function_at(ast.parse(text), name, line)
    if function is None:
        return []
    read = {node.id for statement in function.body for node in ast.walk(statement) if isinstance(node, ast.Name)}
    if any(isinstance(node, ast.Name) and node.id == "super" for node in ast.walk(function)):
        return []
    arguments = function.args
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs) if one.arg not in read]


def with_parameters(text: str, name: str, line: int, left_out: set[str]) -> str | None:
    """The function with fewer parameters, without annotations and defaults. None: its head can't be written anew."""
    lines = text.splitlines(keepends=True)
    function = function_at(ast.parse(text), name, line)
    if function is None or first_line(function.body[0]) == function.lineno:
        return None
    arguments = copy.deepcopy(function.args)
    for kind in ("posonlyargs", "args", "kwonlyargs"):
        kept = [one for one in getattr(arguments, kind) if one.arg not in left_out]
        for one in kept:
            one.annotation = None
        setattr(arguments, kind, kept)
    for rest in (arguments.vararg, arguments.kwarg):
        if rest is not None:
            rest.annotation = None
    arguments.defaults, arguments.kw_defaults = [], [None] * len(arguments.kwonlyargs)
    indent = lines[function.lineno - 1][: function.col_offset]
    _blank(lines, function.lineno, first_line(function.body[0]) - 1)
    lines[function.lineno - 1] = f"{indent}def {name}({ast.unparse(arguments)}):\n"
    return "".join(lines)


def source_of(text: str, name: str, line: int) -> str:
    """The function's text by itself, without decorators and empty lines."""
    function = function_at(ast.parse(text), name, line)
    return "" if function is None else ast.unparse(_bare(function)) + "\n"


def _bare(function: Function) -> Function:
    bare = copy.deepcopy(function)
    bare.decorator_list, bare.returns = [], None
    for one in (*bare.args.posonlyargs, *bare.args.args, *bare.args.kwonlyargs, bare.args.vararg, bare.args.kwarg):
        if one is not None:
            one.annotation = None
    return bare
