"""tools/structure.py finds what it is there for, in small trees."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

_PLACE = Path(__file__).parents[2] / "tools" / "structure.py"
_SPEC = importlib.util.spec_from_file_location("structure", _PLACE)
assert _SPEC and _SPEC.loader
structure = importlib.util.module_from_spec(_SPEC)
sys.modules["structure"] = structure  # dataclasses look their module up
_SPEC.loader.exec_module(structure)

TABLE: dict[str, Any] = {
    "layers": {
        "order": [["python"], ["shapes"], ["graph"], ["capture"]],
        "apart": {"shapes": []},
        "everywhere": {"capture/breaks.h": "needs nothing"},
        "allow": {},
    },
    "confined": {r"\b_Py[A-Z]\w*": {"to": ["python/abi"], "because": "there are wrappers"}},
    "files": {"limit": 9, "allow": {}},
    "functions": {"limit": 4, "allow": {}},
    "classes": {"functions": 2, "members": 1, "foreign": ["c10"], "allow": {}},
    "operators": {"allow": {}},
    "words": {r"\w+_instead\b": "substitute"},
}


def offences(tmp_path: Path, tree: dict[str, str], **changed: dict[str, Any]) -> list[str]:
    for name, text in tree.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    table = {key: {**value, **changed.get(key, {})} for key, value in TABLE.items()}
    return structure.Lint(tmp_path, table).offences()


def test_an_include_from_a_layer_above(tmp_path: Path) -> None:
    files = {
        "src/capture/a.h": '#include "graph/b.h"\n#include "capture/breaks.h"\n',
        "src/graph/b.h": '#include "capture/a.h"\n#include "capture/breaks.h"\n#include <vector>\n',
        "src/shapes/c.h": '#include "python/d.h"\n',
        "src/shapes/bindings.cpp": '#include "python/d.h"\n',
    }
    edge = {"graph/b.h -> capture/a.h": "for now"}
    assert offences(tmp_path, files) == [
        'src/graph/b.h: includes "capture/a.h": `graph` may not include from `capture`',
        'src/shapes/c.h: includes "python/d.h": `shapes` may not include from `python`',
    ]
    assert len(offences(tmp_path, files, layers={"allow": edge})) == 1
    (gone,) = offences(tmp_path, {**files, "src/graph/b.h": "", "src/shapes/c.h": ""}, layers={"allow": edge})
    assert "needed no more" in gone


def test_confined_names(tmp_path: Path) -> None:
    files = {
        "src/python/abi/a.h": "int _PyFirst();\n",
        "src/python/b.h": "\n#if defined(_PySecond)\n#endif\n",
        "src/graph/c.h": '// _PyThird\nconst char* text = "_PyFourth";\n',
    }
    assert offences(tmp_path, files) == [
        "src/python/b.h:2: `_PySecond` stands in src/python/abi alone: there are wrappers"
    ]


def test_a_folder_without_a_layer(tmp_path: Path) -> None:
    (found,) = offences(tmp_path, {"src/new/a.cpp": ""})
    assert "`new` is in no row" in found


def test_two_definitions_of_one_name(tmp_path: Path) -> None:
    text = "namespace m::runtime {\n\nclass Registers final : public Base<int> {\n  int a_;\n};\n\n}  // namespace\n"
    files = {"src/graph/a.h": text, "src/graph/b.h": text.replace("class", "struct"), "src/graph/c.h": "struct X;\n"}
    (found,) = offences(tmp_path, files)
    assert found == "src/graph/a.h:3: `m::runtime::Registers` is defined again in src/graph/b.h:3"


@pytest.mark.parametrize(
    "text",
    [
        "namespace m {\nnamespace {\nstruct Local {\n};\n}\n}\n",  # a file's own
        "namespace m {\nvoid f() {\n  struct Local {};\n}\n}\n".replace("f()", "f(int NAME)"),  # a function's own
        "struct Outer::NAME {\n};\n",
        '// struct Commented {\nconst char* text = "struct Quoted {";\n',
    ],
)
def test_definitions_that_may_be_alike(tmp_path: Path, text: str) -> None:
    files = {"src/graph/a.cpp": text.replace("NAME", "a"), "src/graph/b.cpp": text.replace("NAME", "b")}
    assert offences(tmp_path, files) == []


def test_lengths(tmp_path: Path) -> None:
    body = "namespace m {\n\nBox::Box(int a)\n    : a_{a} {\n  if (a) {\n    g();\n  }\n}\n\n}\n"
    (over_file, over_function) = offences(tmp_path, {"src/graph/a.cpp": body})
    assert over_file == "src/graph/a.cpp: 10 lines, more than 9"
    assert over_function == "src/graph/a.cpp m::Box::Box: 6 lines, more than 4"
    allow = {"src/graph/a.cpp": {"lines": 10, "because": "so"}}
    assert offences(tmp_path, {"src/graph/a.cpp": body}, files={"allow": allow}) == [over_function]
    (longer, _) = offences(tmp_path, {"src/graph/a.cpp": body + "\n"}, files={"allow": allow})
    assert longer == "src/graph/a.cpp: 11 lines, more than 10"
    (needless,) = offences(tmp_path, {"src/graph/a.cpp": ""}, files={"allow": allow})
    assert "needed no more" in needless


def test_classes(tmp_path: Path) -> None:
    box = """class Box : public Base {
 public:
  explicit Box(int a) : a_{a} {}
  Box(const Box&) = delete;
  int get(const std::map<int, F>& m = {}) const { return a_; }
  enum class Kind { Small, Large };
 private:
  void hidden();
  static int count_;
  int a_{1};
};
"""
    struct = "struct Pair {\n  int a = f(1, 2), b;\n  std::map<int, int (*)(int)> c;\n  void first();\n};\n"
    wide = {"files": {"limit": 99}}
    assert offences(tmp_path, {"src/graph/a.h": box}, **wide) == []
    (functions,) = offences(
        tmp_path, {"src/graph/a.h": box.replace(" private", "  Kind kind() const;\n private")}, **wide
    )
    assert functions == "src/graph/a.h: `Box` has 3 public functions, more than 2"
    (members,) = offences(tmp_path, {"src/graph/a.h": f"namespace m {{\n{struct}}}\n"}, **wide)
    assert members == "src/graph/a.h: `m::Pair` has 3 data members, more than 1"
    allow = {"src/graph/a.h m::Pair": {"members": 3, "because": "so"}}
    assert offences(tmp_path, {}, classes={"allow": allow}, **wide) == []
    (needless,) = offences(tmp_path, {"src/graph/a.h": ""}, classes={"allow": allow})
    assert "needed no more" in needless


def test_overrides_of_foreign_interfaces(tmp_path: Path) -> None:
    node = """class Node final : public c10::Node {
 public:
  int first() override { return 1; }
  int second() const override;
  int third() override;
  int own();
};
"""
    wide = {"files": {"limit": 99}}
    assert offences(tmp_path, {"src/graph/a.h": node}, **wide) == []
    for bases in ("Base", "public c10::Node, private Base", "m::Node"):
        (functions,) = offences(tmp_path, {"src/graph/a.h": node.replace("public c10::Node", bases)}, **wide)
        assert functions == "src/graph/a.h: `Node` has 4 public functions, more than 2"


def test_words(tmp_path: Path) -> None:
    (found,) = offences(tmp_path, {"docs/a.md": "one\nthe call_instead of it, instead\n"})
    assert found == "docs/a.md:2: `call_instead`: say substitute"


def test_rows_are_lowered_and_taken_out(tmp_path: Path) -> None:
    rows = '"src/graph/a.cpp" = { lines = 30, because = "x" }\n"src/graph/b.cpp" = { lines = 30, because = "x" }\n'
    allow = {f"src/graph/{name}.cpp": {"lines": 30, "because": "x"} for name in "ab"}
    files = {"src/graph/a.cpp": "\n" * 12, "src/graph/b.cpp": ""}
    offences(tmp_path, files)
    lint = structure.Lint(tmp_path, {**TABLE, "files": {"limit": 9, "allow": allow}})
    assert structure.shrunk(rows, lint) == '"src/graph/a.cpp" = { lines = 12, because = "x" }\n'


def test_names_of_operators_outside_their_rows(tmp_path: Path) -> None:
    rows = "".join(f'OP("aten::{name}", unknown, (none), (none), (none), (none))\n' for name in ("a", "b", "c", "d"))
    files = {
        "src/ops/x.def": rows,
        "src/graph/a.cpp": 'const char* const kList[] = {"a", "b",\n  "c", "d"};\n',
        "src/graph/b.cpp": 'bool is_a(String s) { return s == "aten::a"; }  // "aten::b"\n',
        "src/graph/c.cpp": 'const char* const kOthers[] = {"a", "b", "c", "else"};\n',
        "src/capture/d.cpp": 'const char* const kOfPython[] = {"a", "b", "c", "d"};\n',
    }
    order = {"order": [["python"], ["shapes"], ["ops"], ["graph"], ["capture"]]}
    listed = "src/graph/a.cpp:1: a list of operators (a, ...): a fact of them goes to src/ops"
    named = "src/graph/b.cpp: names 1 operators of ATen: what is known of one goes to its row in src/ops"
    assert offences(tmp_path, files, layers=order) == [listed, named]
    allow = {"src/graph/b.cpp": {"names": 1, "because": "finds it"}, "src/graph/a.cpp": {"names": 1, "because": "-"}}
    needless = "structure.toml: [operators.allow] 'src/graph/a.cpp' is needed no more: take it out"
    assert offences(tmp_path, files, layers=order, operators={"allow": allow}) == [listed, needless]
