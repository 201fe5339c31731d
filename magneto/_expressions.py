"""What the program computes at an instruction, as it writes it: for messages that name the user's own expressions."""

from __future__ import annotations

import ast
import dis
import functools
import itertools
import linecache
import types

_LONGEST = 60  # characters of an expression in a message


def at(code: types.CodeType, offset: int) -> str:
    """The expression that the instruction is part of; empty where the source does not say."""
    positions = next(itertools.islice(code.co_positions(), offset // 2, None), None)
    if positions is None:
        return ""
    first_line, last_line, first, last = positions
    if first_line is None or last_line is None or first is None or last is None:
        return ""
    lines = [linecache.getline(code.co_filename, line) for line in range(first_line, last_line + 1)]
    if not all(lines) or (first_line, first) == (last_line, last):
        return ""
    as_bytes = [line.encode() for line in lines]  # positions count bytes
    as_bytes[-1] = as_bytes[-1][:last]
    as_bytes[0] = as_bytes[0][first:]
    return _short(b"".join(as_bytes).decode(errors="replace"))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3].rstrip() + "..."


def on_stack(code: types.CodeType, offset: int, index: int) -> str:
    """What lies at a place of the value stack (0: its bottom) in front of an instruction."""
    if (pushed := _pushed_at(code, offset, index)) is None:
        return ""
    instruction = _instructions(code)[pushed]
    text = at(code, pushed)
    if instruction.opname in ("FOR_ITER", "SEND") and text:
        return f"the next of {text}"
    if instruction.opname == "BEFORE_WITH":
        return f"the exit of {text}" if text else ""
    if instruction.argval is not None and instruction.opname.startswith("LOAD_") and not text:
        return str(instruction.argval)
    return text


@functools.lru_cache(maxsize=32)
def _instructions(code: types.CodeType) -> dict[int, dis.Instruction]:
    return {one.offset: one for one in dis.get_instructions(code)}


def _pushed_at(code: types.CodeType, offset: int, index: int) -> int | None:
    """The offset of the instruction that pushed the value, by the depths of the stack along the code."""
    depth: int | None = 0
    at_target: dict[int, int] = {}
    pushed: dict[int, int] = {}
    for one in _instructions(code).values():
        depth = at_target.get(one.offset, depth)
        if one.offset >= offset:
            break
        if depth is None:
            continue
        argument = one.arg if one.opcode >= dis.HAVE_ARGUMENT else None
        if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
            at_target.setdefault(int(one.argval), depth + dis.stack_effect(one.opcode, argument, jump=True))
        effect = dis.stack_effect(one.opcode, argument, jump=False)
        after = depth + effect
        if one.opname == "SWAP":
            top, other = depth - 1, depth - (one.arg or 1)
            pushed[top], pushed[other] = pushed.get(other, one.offset), pushed.get(top, one.offset)
        for place in [place for place in pushed if place >= after]:
            del pushed[place]
        if effect > 0:
            pushed |= dict.fromkeys(range(depth, after), one.offset)
        elif after > 0 and one.opname.startswith(_GIVES):
            pushed[after - 1] = one.offset
        depth = None if one.opname in _ENDS else depth + effect
    return pushed.get(index)


# Instructions that put a result in the place of what they take.
_GIVES = ("BINARY_", "BUILD_", "CALL", "COMPARE_OP", "CONTAINS_OP", "FORMAT_", "IS_OP", "LOAD_", "UNARY_")
_ENDS = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD"}


def use_of(name: str, line: str) -> str:
    """What a line does with an expression: "loop" over so many, "branch", "index", or "" for anything else."""
    try:
        tree = ast.parse(_statement(line))
        wanted = ast.unparse(ast.parse(name, mode="eval"))
    except (SyntaxError, ValueError):
        return ""

    def holds(node: ast.AST | None) -> bool:
        return node is not None and any(
            isinstance(one, ast.expr) and ast.unparse(one) == wanted for one in ast.walk(node)
        )

    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) and holds(node.iter):
            return "loop"
        if isinstance(node, ast.If | ast.While | ast.IfExp) and holds(node.test):
            return "branch"
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and holds(node.slice):
            return "index"
    return ""


def _statement(line: str) -> str:
    """A line of a program as something that can be parsed by itself."""
    text = line.strip()
    if text.startswith(("elif ", "else:", "except", "finally:")):
        text = "if " + text.removeprefix("elif ") if text.startswith("elif ") else "pass"
    return text + " pass" if text.endswith(":") else text
