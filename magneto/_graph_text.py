"""A captured torch.fx.GraphModule as text: code, table, sizes. (torch.fx's own printers load PyTorch's compiler.)

The core notes what each node's tensor is in `meta["tensor"]`: (dtype, sizes, strides, device). Sizes that differ from
run to run are texts: "s0".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_MADE = re.compile(r"\s+(\w+) = ")
_STACK = re.compile(r'\s*File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.*)\n\s*(?P<code>.*)')


def annotation(node: Any, full: bool = True) -> str:
    """`f32[s0, 3][3, 1]cpu`; without strides and device: `f32[s0, 3]`. An input that is a size: `Sym(s0)`. Empty where
    the node is neither."""
    if "tensor" not in node.meta:
        return f"Sym({node.target})" if node.op == "placeholder" else ""
    dtype, sizes, strides, device = node.meta["tensor"]
    return f"{dtype}[{_joined(sizes)}]" + (f"[{_joined(strides)}]{device}" if full else "")


def _joined(sizes: Iterable[int | str]) -> str:
    return ", ".join(map(str, sizes))


def code(module: Any, heading: str = "class GraphModule(torch.nn.Module):", full: bool = True) -> str:
    """The graph as Python, with the user's line above what it became and the tensors' dtypes and sizes."""
    nodes = {node.name: node for node in module.graph.nodes}
    placeholders = (node for node in nodes.values() if node.op == "placeholder")
    inputs = {node.target: f'{node.target}: "{annotation(node, full)}"' for node in placeholders}
    lines = [heading] if heading else []
    indent = "    " if heading else ""
    shown = None
    for line in module.code.strip().splitlines():
        made = _MADE.match(line)
        node = nodes.get(made[1]) if made else None
        trace = node.meta.get("stack_trace") if node else None
        if node is not None and trace and trace != shown and (place := _STACK.match(trace)):
            lines += [
                "",
                f"{indent}    # File: {place['file']}:{place['line']} in {place['function']}, code: {place['code']}",
            ]
            shown = trace
        if line.startswith("def forward"):
            line = re.sub(r"\w+", lambda word: inputs.get(word[0], word[0]), line)
        elif node is not None and node.op != "placeholder" and (tensor := annotation(node, full)):
            line = line.replace(f"{node.name} = ", f'{node.name}: "{tensor}" = ', 1)
        lines.append(indent + line)
    return "\n".join(lines) + "\n"


def table(module: Any) -> str:
    """One line for each node: opcode, name, target, args, kwargs."""
    rows = [("opcode", "name", "target", "args", "kwargs")]
    rows += [(node.op, node.name, str(node.target), str(node.args), str(node.kwargs)) for node in module.graph.nodes]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows.insert(1, tuple("-" * width for width in widths))  # type: ignore[arg-type]
    return "".join(_row(row, widths) + "\n" for row in rows)


def _row(cells: Iterable[str], widths: Iterable[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def sizes(module: Any) -> str:
    """`name: (s0, 3)` for each tensor."""
    tensors = [(node.name, node.meta["tensor"][1]) for node in module.graph.nodes if "tensor" in node.meta]
    return "".join(f"{name}: ({_joined(sizes)}{',' * (len(sizes) == 1)})\n" for name, sizes in tensors)
