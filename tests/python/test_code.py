"""Decoded bytecode against the standard library's own disassembler."""

import dis
import importlib.util
import os
import pathlib
import sys
import types

import pytest

from magneto import _testing

STDLIB = """
abc argparse ast asyncio.base_events asyncio.tasks base64 bisect calendar cmd code codecs collections
_collections_abc concurrent.futures.thread configparser contextlib copy csv dataclasses datetime decimal difflib dis
email.message enum fractions functools gettext glob gzip heapq html.parser http.client importlib._bootstrap inspect
io ipaddress json.decoder json.encoder logging logging.handlers mailbox numbers opcode operator optparse os pathlib
pdb pickle pickletools platform plistlib pprint queue random re re._compiler re._parser sched selectors shlex
shutil smtplib socket sqlite3 ssl statistics string subprocess tarfile tempfile textwrap threading tokenize
traceback types typing unittest.mock urllib.request uuid warnings weakref xml.dom.minidom zipfile
""".split()


def codes_in(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes_in(const)


VERSION = sys.version_info[:2]
RENAMED = {
    "LOAD_CLOSURE": "LOAD_FAST",
    "LOAD_FAST_BORROW": "LOAD_FAST",
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": "LOAD_FAST_LOAD_FAST",
    "LOAD_FAST_CHECK": "LOAD_FAST",
    "POP_ITER": "POP_TOP",
}
COMMON_CONSTANTS = (AssertionError, NotImplementedError, tuple, all, any)
INTRINSICS = {3: "STOPITERATION_ERROR", 5: "UNARY_POSITIVE", 6: "LIST_TO_TUPLE"}


def canonical(name, arg):
    """Name and arguments that an instruction has after decoding, whatever the version."""
    if name.startswith("JUMP_FORWARD") or name.startswith("JUMP_BACKWARD"):
        return "JUMP", arg, -1
    if name.startswith("POP_JUMP_"):
        return name.replace("FORWARD_", "").replace("BACKWARD_", ""), arg, -1
    if name == "CALL_INTRINSIC_1":
        return INTRINSICS.get(arg, name), arg, -1
    if name == "CALL_INTRINSIC_2" and arg == 1:
        return "PREP_RERAISE_STAR", arg, -1
    if VERSION >= (3, 12) and name == "LOAD_ATTR":
        return "LOAD_METHOD" if arg & 1 else "LOAD_ATTR", arg >> 1, -1
    if VERSION == (3, 12) and name == "COMPARE_OP":
        return name, arg >> 4, -1
    if VERSION >= (3, 13):
        if name == "COMPARE_OP":
            return name, arg >> 5 | arg & 16, -1
        if name.count("_FAST") == 2:
            return RENAMED.get(name, name), arg >> 4, arg & 15
        if name in ("FORMAT_SIMPLE", "FORMAT_WITH_SPEC"):
            return "FORMAT_VALUE", 4 if name == "FORMAT_WITH_SPEC" else 0, -1
        if name == "END_FOR":
            return "POP_TOP", arg, -1
        if name == "MAKE_FUNCTION":
            return name, 0, -1
    if VERSION >= (3, 14):
        if name == "BINARY_OP" and arg == 26:
            return "BINARY_SUBSCR", arg, -1
        if name == "CALL_FUNCTION_EX":
            return name, 1, -1
    return RENAMED.get(name, name), arg, -1


def expected(code):
    """What `_testing.decode` must give, by way of `dis`."""
    units = len(code.co_code) // 2
    rows, index_of, start, keywords = [], {}, None, -1
    added = []  # constants that are not the code's own
    lines = {}
    for begin, end, line in code.co_lines():
        for unit in range(begin // 2, end // 2):
            lines[unit] = -1 if line is None else line
    for unit in sorted(lines):  # what sets the function up
        if lines[unit] >= 0:
            break
        lines[unit] = code.co_firstlineno
    for instr in dis.get_instructions(code):
        unit = instr.offset // 2
        index_of[unit] = len(rows)
        start = unit if start is None else start
        if instr.opname in ("EXTENDED_ARG", "NOT_TAKEN", "PRECALL"):
            continue
        if instr.opname == "KW_NAMES":
            keywords = instr.arg
            continue
        is_jump = instr.opcode in dis.hasjrel and instr.opname != "END_ASYNC_FOR"
        target = instr.argval // 2 if is_jump else -1
        arg = instr.arg
        if arg is None:  # dis hides the argument byte of opcodes that ignore it
            arg = code.co_code[instr.offset + 1]
        name, arg, second = canonical(instr.opname, arg)
        if name == "LOAD_COMMON_CONSTANT" and arg == 0:
            name = "LOAD_ASSERTION_ERROR"
        elif name in ("LOAD_COMMON_CONSTANT", "LOAD_SMALL_INT"):
            value = COMMON_CONSTANTS[arg] if name == "LOAD_COMMON_CONSTANT" else arg
            if value not in added:
                added.append(value)
            name, arg = "LOAD_CONST", len(code.co_consts) + added.index(value)
        parts = 0  # instructions in front of it that are parts of it
        if name == "CALL_KW":
            assert rows[-1][0] == "LOAD_CONST"
            name, keywords, parts = "CALL", rows[-1][1], 1
        elif name == "CALL" and arg == 0 and rows[-1][0] == "LOAD_SPECIAL":
            assert [row[0] for row in rows[-5:]] == ["COPY", "LOAD_SPECIAL", "SWAP", "SWAP", "LOAD_SPECIAL"]
            name, parts = "BEFORE_ASYNC_WITH" if rows[-1][1] else "BEFORE_WITH", 5
        if parts:
            start = rows[-parts][2]
            del rows[-parts:]
            index_of.update({unit: len(rows) for unit in index_of if unit >= start})
        if name == "CALL":
            second, keywords = keywords, -1
        rows.append([name, arg, start, unit, len(rows) + 1, target, lines[unit], second])
        start = None
    index_of[units] = len(rows)
    for row in rows:
        if row[5] >= 0:
            row[5] = index_of[row[5]]
            if row[0] == "FOR_ITER":
                row[5] += {(3, 11): 0, (3, 12): 1}.get(VERSION, 2)
    handlers = [
        (index_of[e.start // 2], index_of[e.end // 2], index_of[e.target // 2], e.depth, e.lasti)
        for e in dis._parse_exception_table(code)
    ]
    return [tuple(row) for row in rows], handlers


def effects(code):
    """How each instruction of `_testing.decode` changes the stack's depth when it does not jump, by way of `dis`."""
    result, total = [], 0
    for instr in dis.get_instructions(code):
        total += dis.stack_effect(instr.opcode, instr.arg if instr.opcode >= dis.HAVE_ARGUMENT else None, jump=False)
        result.append((instr.offset // 2, total))
    return dict(result)


def check(code):
    for each in codes_in(code):
        instrs, handlers = _testing.decode(each)
        wanted_instrs, wanted_handlers = expected(each)
        assert instrs == wanted_instrs, each
        assert handlers == wanted_handlers, each
        for target in {0, len(instrs) - 1, *(h[0] for h in handlers), *(h[1] for h in handlers)}:
            covering = [h[2] for h in handlers if h[0] <= target < h[1]]
            assert _testing.handler_of(each, target) == (covering[0] if covering else -1)
        before, depths = 0, effects(each)
        for row, (pops, pushes) in zip(instrs, _testing.stack_effects(each)):
            if row[0] not in IRREGULAR:
                assert pushes - pops == depths[row[3]] - before, row
            before = depths[row[3]]
        _testing.forget_code(each)


# Of these `dis` counts the entries that a jump or an exception leaves.
IRREGULAR = ("SEND", "RETURN_VALUE", "RETURN_CONST", "RERAISE", "RETURN_GENERATOR", "CLEANUP_THROW", "END_ASYNC_FOR")


@pytest.mark.parametrize("name", STDLIB)
def test_standard_library(name):
    path = pathlib.Path(os.__file__).parent.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    check(compile(path.read_bytes(), str(path), "exec", dont_inherit=True))


MODELS = "bert gpt2 llama mixtral t5 vit whisper deberta_v2 mamba sam".split()


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize("name", MODELS)
def test_transformers_models(name):
    folder = pathlib.Path(importlib.util.find_spec("transformers").origin).parent
    path = folder / "models" / name / f"modeling_{name}.py"
    check(compile(path.read_bytes(), str(path), "exec", dont_inherit=True))


def test_extended_arguments():
    """Arguments of two and three bytes, jump targets on an EXTENDED_ARG prefix."""
    body = "\n".join(f"    if x{i} > {i}.5: y{i} = g{i}(x{i}, k={i})" for i in range(3000))
    code = compile(f"def f(x):\n  while x:\n{body}\n", "<generated>", "exec")
    instrs, _ = _testing.decode(code.co_consts[0])
    assert max(row[1] for row in instrs) > 0xFFFF
    assert any(row[5] >= 0 and instrs[row[5]][2] < instrs[row[5]][3] for row in instrs)
    check(code)


def test_quickened_code_is_decoded_unspecialised():
    def f(n):
        total = 0
        for i in range(n):
            total += i * 2
        return total

    before = _testing.decode(f.__code__)
    _testing.forget_code(f.__code__)
    for _ in range(100):
        f(100)
    assert _testing.decode(f.__code__) == before


if hasattr(sys, "monitoring"):  # from 3.12 on

    def test_instrumented_code_is_decoded_plain():
        def f(n):
            for i in range(n):
                n += i
            return n

        before = _testing.decode(f.__code__)
        _testing.forget_code(f.__code__)
        events = sys.monitoring.events
        sys.monitoring.use_tool_id(4, "test")
        try:
            for event in (events.LINE, events.INSTRUCTION, events.PY_RETURN, events.JUMP):
                sys.monitoring.register_callback(4, event, lambda *args: None)
            every = events.LINE | events.INSTRUCTION | events.PY_RETURN | events.JUMP
            sys.monitoring.set_local_events(4, f.__code__, every)
            f(3)
            assert _testing.decode(f.__code__) == before
        finally:
            sys.monitoring.set_local_events(4, f.__code__, 0)
            sys.monitoring.free_tool_id(4)


def test_a_code_object_is_kept_until_forgotten():
    code = compile("x = 1", "<kept>", "exec")
    count = sys.getrefcount(code)
    _testing.decode(code)
    assert sys.getrefcount(code) == count + 1
    _testing.decode(code)
    assert sys.getrefcount(code) == count + 1
    _testing.forget_code(code)
    assert sys.getrefcount(code) == count
