"""Decoded bytecode against the standard library's own disassembler."""

import dis
import importlib.util
import os
import pathlib
import sys
import types

import pytest

from magneto import _C

STDLIB = """
abc argparse ast asyncio.base_events asyncio.tasks base64 bisect calendar cmd code codecs collections
collections.abc concurrent.futures.thread configparser contextlib copy csv dataclasses datetime decimal difflib dis
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


def as_in_311(name, arg):
    """Opcode and argument in the one form that instructions have after decoding."""
    if sys.version_info >= (3, 12) and name == "LOAD_ATTR":
        return "LOAD_METHOD" if arg & 1 else "LOAD_ATTR", arg >> 1
    if sys.version_info >= (3, 12) and name == "COMPARE_OP":
        return name, arg >> 4
    return name, arg


def expected(code):
    """What `_C.decode` must give, by way of `dis`."""
    units = len(code.co_code) // 2
    rows, index_of, start = [], {}, None
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
        if instr.opname == "EXTENDED_ARG":
            continue
        target = instr.argval // 2 if instr.opcode in dis.hasjrel else -1
        arg = instr.arg
        if arg is None:  # dis hides the argument byte of opcodes that ignore it
            arg = code.co_code[instr.offset + 1]
        name, arg = as_in_311(instr.opname, arg)
        rows.append([name, arg, start, unit, len(rows) + 1, target, lines[unit]])
        start = None
    index_of[units] = len(rows)
    for row in rows:
        if row[5] >= 0:
            row[5] = index_of[row[5]]
    handlers = [
        (index_of[e.start // 2], index_of[e.end // 2], index_of[e.target // 2], e.depth, e.lasti)
        for e in dis._parse_exception_table(code)
    ]
    return [tuple(row) for row in rows], handlers


def check(code):
    for each in codes_in(code):
        instrs, handlers = _C.decode(each)
        wanted_instrs, wanted_handlers = expected(each)
        assert instrs == wanted_instrs, each
        assert handlers == wanted_handlers, each
        for target in {0, len(instrs) - 1, *(h[0] for h in handlers), *(h[1] for h in handlers)}:
            covering = [h[2] for h in handlers if h[0] <= target < h[1]]
            assert _C.handler_of(each, target) == (covering[0] if covering else -1)
        _C.forget_code(each)


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
    instrs, _ = _C.decode(code.co_consts[0])
    assert max(row[1] for row in instrs) > 0xFFFF
    assert any(row[5] >= 0 and instrs[row[5]][2] < instrs[row[5]][3] for row in instrs)
    check(code)


def test_quickened_code_is_decoded_unspecialised():
    def f(n):
        total = 0
        for i in range(n):
            total += i * 2
        return total

    before = _C.decode(f.__code__)
    _C.forget_code(f.__code__)
    for _ in range(100):
        f(100)
    assert _C.decode(f.__code__) == before


if hasattr(sys, "monitoring"):  # from 3.12 on

    def test_instrumented_code_is_decoded_plain():
        def f(n):
            for i in range(n):
                n += i
            return n

        before = _C.decode(f.__code__)
        _C.forget_code(f.__code__)
        events = sys.monitoring.events
        sys.monitoring.use_tool_id(4, "test")
        try:
            for event in (events.LINE, events.INSTRUCTION, events.PY_RETURN, events.JUMP):
                sys.monitoring.register_callback(4, event, lambda *args: None)
            every = events.LINE | events.INSTRUCTION | events.PY_RETURN | events.JUMP
            sys.monitoring.set_local_events(4, f.__code__, every)
            f(3)
            assert _C.decode(f.__code__) == before
        finally:
            sys.monitoring.set_local_events(4, f.__code__, 0)
            sys.monitoring.free_tool_id(4)


def test_a_code_object_is_kept_until_forgotten():
    code = compile("x = 1", "<kept>", "exec")
    count = sys.getrefcount(code)
    _C.decode(code)
    assert sys.getrefcount(code) == count + 1
    _C.decode(code)
    assert sys.getrefcount(code) == count + 1
    _C.forget_code(code)
    assert sys.getrefcount(code) == count
