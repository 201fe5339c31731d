"""Holds the sources to their structure: layers, one definition per name, lengths, words. `structure.py [root]`

What is asked for stands in structure.toml beside this file. Prints one line per offence, and fails if there is any:

- **layers**: a folder of src/ includes only from itself and from the folders of the rows above it.
- **definitions**: no two files define a class or an enum of one qualified name. (`make odr` has the linker compare
  whole definitions.)
- **confined**: what a version of CPython may change stands in the folders for it.
- **lengths**: of files, and of functions in C++ and Python.
- **classes**: how many public functions and data members one may have. What a class overrides of a base outside (one
  of PyTorch's or LLVM's) is not counted: the interface there says how many that are, and they are one part of it.
- **operators**: what is known of ATen's operators stands in the rows of src/ops. A name in another file is code that
  makes, finds or rewrites that very operator, counted in its `allow` row; a list of bare names is never one.
- **words**: those that the glossary has replaced.

An `allow` table lists what is still over a limit, and why. It can only shrink: what is over its own row fails, and
so does a row that nothing needs any more; `--shrink` takes those rows out and lowers the others to what is there.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_suffix(".toml")
CPP = (".h", ".cpp", ".def")
INCLUDE = re.compile(r'^\s*#\s*include "([^"]+)"', re.MULTILINE)
_LITERAL = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^()\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.DOTALL
)


@dataclasses.dataclass(frozen=True)
class Function:
    name: str
    line: int
    lines: int


@dataclasses.dataclass(frozen=True)
class Definition:
    """A class or an enum, by its qualified name."""

    name: str
    line: int


def without_literals(text: str) -> str:
    """C++ with comments, strings and directives blanked; line numbers stay."""
    blanked = _LITERAL.sub(
        lambda match: re.sub(r"[^\n]", " ", match[0]) if match[0][0] == "/" else _empty(match[0]), text
    )
    return re.sub(r"(?m)^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda match: "\n" * match[0].count("\n"), blanked)


def without_comments(text: str) -> str:
    """C++ with comments and strings blanked, directives left; line numbers stay."""
    return _LITERAL.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _empty(literal: str) -> str:
    return '""' + "\n" * literal.count("\n")


_LIST = re.compile(r'"\w+"(?:\s*,\s*"\w+")+')

_NAMESPACE = re.compile(r"\bnamespace\b\s*([\w:]*)\s*$")
_CLASS = re.compile(
    r"(?:^|\s)(?:class|struct|union|enum(?:\s+class|\s+struct)?)\s+(?:alignas\([^)]*\)\s*|\[\[[^\]]*\]\]\s*)*"
    r"((?:\w+::)*\w+(?:<[^{]*?>)?)\s*(?:final\s*)?(?::(?!:)[^{]*)?$"
)
_FUNCTION = re.compile(r"([\w:~]+(?:<[^()]*>)?|operator\s*[^\s\w(]+|operator\(\))\s*\(")


def _scope(header: str) -> tuple[str, str]:
    """What a brace behind `header` opens, in a namespace or a class: its kind and its name."""
    plain = header.strip()
    while plain.startswith("template"):
        plain = _after_template(plain)
    if match := _NAMESPACE.search(plain):
        return "namespace", match[1]
    if "(" not in plain and (match := _CLASS.search(plain)):
        return "class", re.sub(r"\s+", "", match[1])
    if match := _CLASS.fullmatch(re.sub(r"alignas\([^)]*\)", "", plain)):
        return "class", re.sub(r"\s+", "", match[1])
    if ")" in plain and (match := _FUNCTION.search(plain)):
        return "function", match[1]
    return "other", ""


def _after_template(text: str) -> str:
    depth = 0
    for index, char in enumerate(text):
        if char == "<":
            depth += 1
        elif char == ">":
            depth -= 1
            if depth == 0:
                return text[index + 1 :].lstrip()
    return ""


def scan(text: str) -> tuple[list[Function], list[Definition]]:
    """The functions and the named types of C++ in this project's layout (clang-format's Google style)."""
    text = without_literals(text)
    functions: list[Function] = []
    definitions: list[Definition] = []
    scopes: list[tuple[str, str, int]] = []  # kind, name, line
    header_start = 0
    line = 1
    for index, char in enumerate(text):
        if char == "\n":
            line += 1
        elif char == "{":
            if scopes and scopes[-1][0] not in ("namespace", "class"):
                scopes.append(("inner", "", line))
                continue
            # `: member_{value} {`: a member's initializer has no space in front of its brace.
            if text[index - 1].isalnum() or text[index - 1] in "_>":
                scopes.append(("initializer", "", line))
                continue
            header = text[header_start:index]
            kind, name = _scope(re.sub(r"\b(?:public|private|protected):", "", header))
            start = line - header.lstrip().count("\n")
            path = [outer for _, outer, _ in scopes if outer != "(anonymous)"]
            if kind == "class" and not any(outer == "(anonymous)" for _, outer, _ in scopes):
                definitions.append(Definition("::".join([*path, name]), line))
            scopes.append((kind, name or ("(anonymous)" if kind == "namespace" else ""), start))
            header_start = index + 1
        elif char == "}":
            if not scopes:
                continue  # a table's row of macros
            kind, name, start = scopes.pop()
            if kind == "function":
                path = [outer for _, outer, _ in scopes if outer and outer != "(anonymous)"]
                functions.append(Function("::".join([*path, name]), start, line - start + 1))
            if kind not in ("inner", "initializer"):
                header_start = index + 1
        elif char == ";" and (not scopes or scopes[-1][0] in ("namespace", "class")):
            header_start = index + 1
    return functions, definitions


@dataclasses.dataclass
class ClassSize:
    """Of a class or a struct: public functions without deleted ones, and data members without static ones. Overrides
    are no functions of its own where `foreign`: it derives from classes of namespaces outside alone."""

    name: str
    foreign: bool = False
    functions: int = 0
    members: int = 0


_ACCESS = re.compile(r"\b(public|private|protected)\s*:(?!:)")
_NO_MEMBER = re.compile(r"(?:friend|using|typedef|static_assert|static|class|struct|enum|union|template)\b")


_BASES = re.compile(r"(?<!:):(?!:)(.*)$", re.DOTALL)
_BASE = re.compile(r"(?:(?:public|protected|private|virtual)\s+)*(\w+)(::)?")


def _is_foreign(header: str, namespaces: list[str]) -> bool:
    """A class with bases, all of which are of such namespaces."""
    match = _BASES.search(header)
    bases = [_BASE.match(base.strip()) for base in _without_brackets(match[1]).split(",")] if match else []
    return bool(bases) and all(base and base[2] and base[1] in namespaces for base in bases)


def class_sizes(text: str, foreign: list[str]) -> list[ClassSize]:
    """`foreign`: namespaces whose classes are not ours."""
    text = without_literals(text)
    found: list[ClassSize] = []
    scopes: list[tuple[str, str, ClassSize | None]] = []  # kind, name, size
    access: list[str] = []  # of the classes among them
    start = parentheses = 0

    def count(statement: str, size: ClassSize, has_body: bool) -> None:
        for match in _ACCESS.finditer(statement):
            access[-1] = match[1]
        plain = _ACCESS.sub("", statement).strip()
        flat = _without_brackets(plain.split("=")[0] if not has_body and "operator" not in plain else plain)
        if "(" in flat:
            is_counted = not re.match(r"(?:friend|static_assert|using)\b", plain) and not plain.endswith("delete")
            is_counted &= not (size.foreign and re.search(r"\)[\w\s]*\boverride\b", plain))
            size.functions += access[-1] == "public" and is_counted
        elif plain and not has_body and not _NO_MEMBER.match(plain):
            size.members += 1 + _without_brackets(re.sub(r"\([^()]*\)", "", plain)).count(",")

    for index, char in enumerate(text):
        inside = scopes[-1] if scopes else ("namespace", "", None)
        if char in "()" and inside[0] != "inner":
            parentheses += 1 if char == "(" else -1
        elif char == "{":
            if inside[0] == "inner" or parentheses or text[index - 1].isalnum() or text[index - 1] in "_>=":
                scopes.append(("inner", "", None))
                continue
            kind, name = _scope(_ACCESS.sub("", text[start:index]))
            if inside[2] and kind in ("function", "other"):
                if re.search(r"=\s*$", text[start:index]):  # an initializer: its semicolon counts the member
                    scopes.append(("inner", "", None))
                    continue
                count(text[start:index], inside[2], has_body=True)
            elif inside[2]:
                for match in _ACCESS.finditer(text[start:index]):
                    access[-1] = match[1]
            size = None
            if kind == "class" and not re.search(r"\benum\b", text[start:index]):
                path = [outer for _, outer, _ in scopes if outer]
                size = ClassSize("::".join([*path, name]), _is_foreign(_ACCESS.sub("", text[start:index]), foreign))
                found.append(size)
                access.append("private" if re.search(r"\bclass\b[^<]*$", text[start:index]) else "public")
            scopes.append((kind if kind in ("namespace", "class") else "inner", name, size))
            start = index + 1
        elif char == "}" and scopes:
            kind, _, size = scopes.pop()
            if size:
                access.pop()
            if kind != "inner" or not _is_initializer(text, index):
                start = index + 1
        elif char == ";" and inside[0] != "inner":
            if inside[2]:
                count(text[start:index], inside[2], has_body=False)
            start = index + 1
    return found


def _is_initializer(text: str, end: int) -> bool:
    """The brace closes what a declaration is initialized with, rather than a body."""
    return text[end + 1 :].lstrip()[:1] in (";", ",", ")", "{") or text[end + 1 : end + 2] == "."


def _without_brackets(text: str) -> str:
    """Without what stands in <> and {}."""
    for pattern in (r"\{[^{}]*\}", r"<[^<>]*>"):
        previous = None
        while previous != text:
            previous, text = text, re.sub(pattern, "", text)
    return text


def python_functions(text: str) -> Iterator[Function]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield Function(node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1)


class Lint:
    def __init__(self, root: Path, table: dict[str, Any]) -> None:
        self.root = root
        self.table = table
        self.sources = {
            str(path.relative_to(root / "src")): path.read_text()
            for path in sorted((root / "src").rglob("*"))
            if path.suffix in CPP
        }
        self.scripts = {
            str(path.relative_to(root)): path.read_text()
            for folder in ("magneto", "tools")
            for path in sorted((root / folder).rglob("*.py"))
        }
        self.lengths: dict[str, int] = {}  # of what is over a limit
        self.counted: dict[str, int] = {}  # names of operators
        self.scanned = {name: scan(text) for name, text in self.sources.items() if not name.endswith(".def")}

    def offences(self) -> list[str]:
        return [
            *self.layers(),
            *self.definitions(),
            *self.confined(),
            *self.file_lengths(),
            *self.function_lengths(),
            *self.class_sizes(),
            *self.operators(),
            *self.words(),
        ]

    def layers(self) -> Iterator[str]:
        table = self.table["layers"]
        level = {folder: index for index, row in enumerate(table["order"]) for folder in row}
        unused = set(table["allow"])
        for name, text in self.sources.items():
            folder = name.split("/")[0]
            if "/" in name and folder not in level:
                yield f"src/{name}: the folder `{folder}` is in no row of [layers] order"
            for included in INCLUDE.findall(text):
                to = included.split("/")[0]
                if folder == to or "/" not in name or included in table["everywhere"]:
                    continue
                if to not in level or folder not in level:
                    continue  # said above, for the folder's own files
                legal = level[to] < level[folder]
                if folder in table["apart"]:  # but its bindings, which are its side to Python
                    legal = to in table["apart"][folder] or (to == "python" and name.endswith("/bindings.cpp"))
                if not legal and f"{name} -> {included}" in table["allow"]:
                    unused.discard(f"{name} -> {included}")
                elif not legal:
                    yield f'src/{name}: includes "{included}": `{folder}` may not include from `{to}`'
        for row in sorted(unused):
            yield f"structure.toml: [layers.allow] {row!r} is needed no more: take it out"

    def definitions(self) -> Iterator[str]:
        places: dict[str, list[str]] = collections.defaultdict(list)
        for name, (_, definitions) in self.scanned.items():
            for definition in definitions:
                places[definition.name].append(f"src/{name}:{definition.line}")
        for name, found in places.items():
            # One file per version of CPython: never two of them in one program.
            if len({re.sub(r"(cpython|layout)_\d+", r"\1", place.split(":")[0]) for place in found}) > 1:
                yield f"{found[0]}: `{name}` is defined again in {', '.join(found[1:])}"

    def confined(self) -> Iterator[str]:
        texts = {name: without_comments(text) for name, text in self.sources.items()}
        for pattern, row in self.table["confined"].items():
            for name, text in texts.items():
                if name.startswith(tuple(folder + "/" for folder in row["to"])):
                    continue
                for match in re.finditer(pattern, text):
                    line = text.count("\n", 0, match.start()) + 1
                    yield f"src/{name}:{line}: `{match[0]}` stands in src/{row['to'][0]} alone: {row['because']}"

    def file_lengths(self) -> Iterator[str]:
        lengths = {f"src/{name}": text.count("\n") for name, text in self.sources.items()}
        lengths |= {name: text.count("\n") for name, text in self.scripts.items()}
        yield from self._over("files", lengths)

    def function_lengths(self) -> Iterator[str]:
        lengths: dict[str, int] = {}
        for name, (functions, _) in self.scanned.items():
            for function in functions:
                key = f"src/{name} {function.name}"
                lengths[key] = max(lengths.get(key, 0), function.lines)
        for name, text in self.scripts.items():
            for function in python_functions(text):
                lengths[f"{name} {function.name}"] = function.lines
        yield from self._over("functions", lengths)

    def class_sizes(self) -> Iterator[str]:
        table = self.table["classes"]
        limits = {what: table[what] for what in ("functions", "members")}
        unused = set(table["allow"])
        for name, text in self.sources.items():
            for size in class_sizes(text, table["foreign"]) if not name.endswith(".def") else []:
                row = table["allow"].get(f"src/{name} {size.name}", {})
                for what, limit in limits.items():
                    have = getattr(size, what)
                    if have <= limit:
                        continue
                    if what in row:
                        unused.discard(f"src/{name} {size.name}")
                    if have > row.get(what, limit):
                        kind = "public functions" if what == "functions" else "data members"
                        yield f"src/{name}: `{size.name}` has {have} {kind}, more than {row.get(what, limit)}"
        for row_name in sorted(unused):
            yield f"structure.toml: [classes.allow] {row_name!r} is needed no more: take it out"

    def operators(self) -> Iterator[str]:
        rows = {
            match[1]
            for name, text in self.sources.items()
            if name.startswith("ops/")
            for match in re.finditer(r'\bOP\("\w+::(\w+)', text)
        }
        found: dict[str, int] = {}
        for name, text in self.sources.items():
            if name.startswith("ops/"):
                continue
            strings = [match[0] for match in _LITERAL.finditer(text) if match[0].startswith('"')]
            if count := sum(bool(re.match(r'"(?:aten|mkldnn)::\w', string)) for string in strings):
                found[f"src/{name}"] = count
            if name.startswith(("capture/", "dispatch/", "python/")):
                continue  # Python's functions have many of these names
            for match in _LIST.finditer(text):
                names = [string.strip(' \n"') for string in match[0].split(",")]
                if len(names) >= 4 and all(each in rows for each in names):
                    line = text.count("\n", 0, match.start()) + 1
                    yield f"src/{name}:{line}: a list of operators ({names[0]}, ...): a fact of them goes to src/ops"
        allow = self.table["operators"]["allow"]
        for name, count in found.items():
            if name not in allow:
                yield f"{name}: names {count} operators of ATen: what is known of one goes to its row in src/ops"
            elif count > allow[name]["names"]:
                yield f"{name}: names {count} operators of ATen, more than {allow[name]['names']}"
        for name in sorted(set(allow) - set(found)):
            yield f"structure.toml: [operators.allow] {name!r} is needed no more: take it out"
        self.counted = found

    def _over(self, what: str, lengths: dict[str, int]) -> Iterator[str]:
        limit, allow = self.table[what]["limit"], self.table[what]["allow"]
        for name, length in lengths.items():
            allowed = allow[name]["lines"] if name in allow else limit
            if length > limit and length > allowed:
                yield f"{name}: {length} lines, more than {allowed}"
        for row in sorted(name for name in allow if lengths.get(name, 0) <= limit):
            yield f"structure.toml: [{what}.allow] {row!r} is needed no more: take it out"
        self.lengths |= {name: length for name, length in lengths.items() if length > limit}

    def words(self) -> Iterator[str]:
        texts = {f"src/{name}": text for name, text in self.sources.items()}
        texts |= {name: text for name, text in self.scripts.items() if name.startswith("magneto/")}
        texts |= {
            str(path.relative_to(self.root)): path.read_text() for path in sorted((self.root / "docs").rglob("*.md"))
        }
        words = {re.compile(word): standard for word, standard in self.table["words"].items()}
        for name, text in texts.items():
            for word, standard in words.items():
                for match in word.finditer(text):
                    line = text.count("\n", 0, match.start()) + 1
                    yield f"{name}:{line}: `{match[0]}`: say {standard}"


def shrunk(text: str, lint: Lint) -> str:
    """The text of structure.toml without the rows that nothing needs, the others no higher than what is there."""
    needless = {
        match[1] for offence in lint.offences() if (match := re.search(r"\] '(.*)' is needed no more", offence))
    }
    lines = []
    for line in text.splitlines(keepends=True):
        name = line.split('"')[1] if line.startswith('"') else ""
        if name in needless:
            continue
        if name in lint.lengths:
            line = re.sub(r"lines = (\d+)", lambda m, n=name: f"lines = {min(int(m[1]), lint.lengths[n])}", line)  # type: ignore[misc]
        if name in lint.counted:
            line = re.sub(r"names = (\d+)", lambda m, n=name: f"names = {min(int(m[1]), lint.counted[n])}", line)  # type: ignore[misc]
        lines.append(line)
    return "".join(lines)


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if argument != "--shrink"]
    root = Path(arguments[0]) if arguments else Path(__file__).parents[1]
    if "--shrink" in sys.argv:
        text = TABLE.read_text()
        TABLE.write_text(shrunk(text, Lint(root, tomllib.loads(text))))
    offences = Lint(root, tomllib.loads(TABLE.read_text())).offences()
    print("\n".join(offences) or "structure: ok")
    return bool(offences)


if __name__ == "__main__":
    sys.exit(main())
