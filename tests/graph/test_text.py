"""The text form of a graph: what is printed parses back to a graph that prints the same."""

import pathlib

import pytest

from magneto import _testing

GOLDEN = pathlib.Path(__file__).parent / "golden"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.graph")), ids=lambda path: path.stem)
def test_golden_files_are_fixed_points(path):
    """A well-formed file is what the printer writes, and sound."""
    text = path.read_text()
    assert _testing.graph_roundtrip(text) == text
    assert _testing.graph_verify(text) == []


HOSTILE = [
    "torch.f() {}",
    "a {} {",
    "return (%0)",
    "}",
    "# not a comment",
    "%0: f32[1] = input",
    'x\\"y',
    "naïve ☃ 函数",
    "",
    "=" * 300,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_call_names(name):
    """Whatever a torch call is called, the text stays one line and keeps its structure."""
    head = name if not name.startswith("#") else "\\x23" + name[1:]
    block = (
        f"  {head} {{\n    %1: f32[2] = aten.relu.default(%0)\n  }}\n"
        if head
        else "  {\n    %1: f32[2] = aten.relu.default(%0)\n  }\n"
    )
    text = 'graph {\n  %0: f32[2] = input "x"\n' + block + "  return (%1)\n}\n"
    once = _testing.graph_roundtrip(text)
    assert _testing.graph_roundtrip(once) == once
    assert _testing.graph_verify(once) == []


@pytest.mark.parametrize("name", ["", '"', "\\", "\n", "\x00\x01\x7f", "%1: f32[2] = aten", "☃" * 50, "}\n"])
def test_hostile_input_names(name):
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    escaped = "".join(c if c >= " " and c != "\x7f" else f"\\x{ord(c):02x}" for c in escaped)
    text = f'graph {{\n  %0: f32[2] = input "{escaped}"\n  return (%0)\n}}\n'
    assert _testing.graph_roundtrip(text) == text


@pytest.mark.parametrize("location", ["a:b.py:12 in f", "x in y.py:3 in <lambda>", "☃.py:1 in g in h"])
def test_hostile_locations(location):
    text = f'graph {{\n  %0: f32[2] = input "x"\n  # {location}\n  f() {{}}\n  return (%0)\n}}\n'
    assert _testing.graph_roundtrip(text) == text


BROKEN = {
    "": "expected 'graph {'",
    "graph {\n": "no end",
    "graph {\n  return (%0": "expected ')'",
    "graph {\n  return ()\n}\nmore": "after the graph's end",
    'graph {\n  %0: q9[2] = input "x"\n  return ()\n}': "unknown dtype 'q9'",
    'graph {\n  %0: f32[2] = input "x\n  return ()\n}': "closing quote",
    'graph {\n  %99999999: f32[2] = input "x"\n  return ()\n}': "out of range",
    "graph {\n  %0: f32[2] = aten.nonsense.default()\n  return ()\n}": "unknown operator 'aten.nonsense.default'",
    "graph {\n  %0: f32[2] = aten.relu.default()\n  return ()\n}": "expected '%'",
    "graph {\n  %0: f32[2] = aten.add.Tensor(%0, %0)\n  return ()\n}": "'alpha' is missing",
    "graph {\n  %0: f32[2] = aten.relu.default(%0) x\n  return ()\n}": "end of the line",
    "graph {\n  %0: f32[2] = aten.ones.default([2], f32, <Generator>, None, None)\n  return ()\n}": "no text form",
    "graph {\n  f() {\n  return ()\n}": "block has no end",
    "graph {\n  # nowhere\n  return ()\n}": "file:line in function",
}


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_parse_errors_name_the_line_and_the_cause(text):
    with pytest.raises(ValueError, match="line [0-9]+, column [0-9]+") as error:
        _testing.graph_roundtrip(text)
    assert BROKEN[text] in str(error.value) or text.startswith("graph {\n  f()")


def test_large_constants_leave_their_values_out():
    import torch

    class Value:
        id = 0

    graph = _testing.torch_graph(Value, [], [torch.arange(100)], [], [0], [])
    assert "%0: i64[100] = constant ..." in _testing.torch_graph_print(graph)
