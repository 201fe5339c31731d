"""Which names of PyTorch's compiler are used: by PyTorch's own Python code, and by libraries."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from magneto._install import table

Names = set[tuple[str, str]]  # module and name; "" for the module itself


def is_compilers(name: str) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in table.PREFIXES)


def dotted(node: ast.expr) -> str:
    """The text of `a.b.c`; "" of all else."""
    if isinstance(node, ast.Attribute):
        around = dotted(node.value)
        return around and f"{around}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def used_in(source: str, package: str) -> Iterator[tuple[str, str]]:
    """The names of the compiler that a module of the package imports or writes out."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if is_compilers(alias.name))
        elif isinstance(node, ast.ImportFrom):
            around = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*around, *([node.module] if node.module else [])])
            for alias in node.names:
                if alias.name != "*" and (is_compilers(module) or is_compilers(f"{module}.{alias.name}")):
                    yield module, alias.name
        elif isinstance(node, ast.Attribute):
            module = dotted(node.value)
            if module in table.MODULES:
                yield module, node.attr


def in_folder(folder: Path, package: str) -> Names:
    """The same for all modules in a folder."""
    found: Names = set()
    for file in folder.rglob("*.py"):
        parts = [package, *file.relative_to(folder).parent.parts]
        if is_compilers(".".join([*parts, file.stem])):
            continue
        source = file.read_text(errors="replace")
        if not any(
            word in source for word in ("_dynamo", "_inductor", "symbolic_shapes", "aot_autograd", "functorch.compile")
        ):
            continue
        try:
            found |= set(used_in(source, ".".join(parts)))
        except SyntaxError:  # a newer Python's
            continue
    return found


def of_pytorch() -> Names:
    """Those that PyTorch's own modules use, wherever in their code."""
    return in_folder(Path(torch.__path__[0]), "torch")


def of_libraries() -> Names:
    """Those that libraries use, as `python -m install.compiler_names FOLDER...` has found them."""
    lines = (Path(__file__).parent / "library_names.txt").read_text().splitlines()
    return {tuple(line.split()[0].rsplit(":", 1)) for line in lines if line and not line.startswith("#")}  # type: ignore[misc]


def main(folders: list[str]) -> None:
    """Prints the lines of library_names.txt for folders that hold one library each."""
    users: dict[tuple[str, str], set[str]] = {}
    for folder in map(Path, folders):
        for name in in_folder(folder, folder.name):
            users.setdefault(name, set()).add(folder.name)
    for (module, name), libraries in sorted(users.items()):
        print(f"{module}:{name}", *sorted(libraries))


if __name__ == "__main__":
    main(sys.argv[1:])
