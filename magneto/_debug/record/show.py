"""What a record holds, as text. Nothing is imported or run for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from magneto._debug.record import container


def what_runs(read: container.Record) -> str:
    """Whose code a replay runs."""
    with container.checked(read):
        return _what_runs(read)


def _what_runs(read: container.Record) -> str:
    frame, by = read.data["frame"], read.data["made_by"]
    functions = sorted({row["qualname"] for row in read.data["objects"] if row["kind"] in ("function", "class")})
    own = ", ".join(functions[:12]) + (f" and {len(functions) - 12} more" if len(functions) > 12 else "")
    files = ", ".join(read.data["sources"]) or "no file"
    modules = [name for name in read.data["imports"] if name.partition(".")[0] not in ("torch", "builtins", "magneto")]
    return (
        f"{read.path}: the frame {frame['qualname']} ({frame['file']}:{frame['line']}), recorded {by['time']} with "
        f"Magneto {by['magneto']}, PyTorch {by['torch']}, Python {by['python']}.\n"
        f"A replay runs code that the record holds ({own or 'none'}; from {files}) and imports "
        f"{', '.join(modules) or 'nothing but PyTorch'}."
    )


def text(read: container.Record) -> str:
    """All of it that people read."""
    with container.checked(read):
        return "\n".join(_lines(read))


def _lines(read: container.Record) -> Iterator[str]:
    data = read.data
    yield what_runs(read).replace("A replay runs", "A replay would run")
    failure = data["failure"]
    yield "\n== failure\n" + (failure["type"] + ": " if failure["type"] else "") + failure["text"].rstrip()
    yield "\n== arguments"
    for name, made in data["frame"]["arguments"]:
        yield f"{name} = {brief(data, made)}"
    for title, rows in _read(data):
        yield f"\n== {title}"
        yield from rows
    for file, source in data["sources"].items():
        yield f"\n== source: {file}"
        lines = source.splitlines()
        yield from (f"{number:5}  {line}" for number, line in enumerate(lines, 1) if line.strip())
    yield "\n== tensors' memory"
    for number, row in enumerate(data["storages"]):
        how = "values" if "values" in row else f"random values {row['random']}" if "random" in row else "no values"
        yield f"{number}: {row['nbytes']} bytes on {row['device']}, {how}, {row['uses']} tensors"
    yield "\n== process"
    yield from (f"{name}: {value}" for name, value in data["state"].items() if name != "random_state")
    yield "\n== settings"
    yield from (f"{name} = {value!r}" for name, value in data["settings"].items())
    yield from (f"compile({name}={brief(data, value)})" for name, value in data["options"].items())
    if data["left_out"]:
        yield "\n== left out"
        yield from data["left_out"].values()


def _read(data: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    function = data["objects"][data["frame"]["function"]]
    if function["kind"] != "function":
        return
    cells = [data["objects"][cell["at"]] for cell in function["closure"]]
    if cells:
        yield "closure", [brief(data, cell.get("content")) for cell in cells]
    for name, space in data["namespaces"].items():
        if space:
            yield f"globals of {name}", [f"{key} = {brief(data, made)}" for key, made in space.items()]


def brief(data: dict[str, Any], made: Any, depth: int = 2) -> str:
    """A value in a line."""
    if not isinstance(made, dict):
        return repr(made)
    if "float" in made:
        return str(made["float"])
    return _row(data, data["objects"][made["at"]], depth)[:300]


def _row(data: dict[str, Any], row: dict[str, Any], depth: int) -> str:
    kind = row["kind"]
    if kind == "tensor":
        grad = ", requires_grad" if row["requires_grad"] else ""
        geometry = f"{row['dtype']}{row['shape']} strides {row['stride']}"
        return f"{row.get('class', 'tensor')} {geometry}{grad}, memory {row['storage']}"
    if kind == "import":
        return f"{row['module']}.{row['name']}".rstrip(".")
    if kind in ("function", "class"):
        return f"{kind} {row['qualname']}"
    if kind == "instance":
        made = data["objects"][row["class"]["at"]]
        names = ", ".join(name for name, _ in row["state"] if not name.startswith("_"))
        return f"{_row(data, made, 0).removeprefix('class ')} object ({names})"
    if "items" in row and depth > 0 and kind != "class":
        items = [
            ": ".join(brief(data, part, depth - 1) for part in item)
            if isinstance(item, list)
            else brief(data, item, depth - 1)
            for item in row["items"][:8]
        ]
        return f"{kind} [{', '.join(items)}{', ...' if len(row['items']) > 8 else ''}]"
    if "value" in row:
        return f"{kind} {row['value']}"
    return str(kind)
