"""Writes which fields PyTorch's generated nodes of autograd have, as C++ (src/autograd/node_fields.cpp includes it).

    python tools/node_fields.py torch/include/torch/csrc/autograd/generated/Functions.h build/node_fields.inc

A node's fields stand behind the last of its functions, one a line. A node with a line that is no field is left out.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_STRUCT = re.compile(r"struct (?:TORCH_API )?(\w+) : public (?:Node|TraceableFunction) \{")
_FIELD = re.compile(r"  [\w:<>, ]+[\w>] (\w+)(?: = [\w.:]+)?;")
_LAST_FUNCTION = "apply_with_saved("


def nodes(header: str) -> dict[str, list[str]]:
    """The fields of each node."""
    found: dict[str, list[str]] = {}
    name, fields, behind, sound = "", list[str](), False, True
    for line in header.splitlines():
        if begin := _STRUCT.fullmatch(line):
            name, fields, behind, sound = begin[1], [], False, True
        elif line == "};" and name:
            if sound and behind:
                found[name] = fields
            name = ""
        elif name and behind and line.strip():
            field = _FIELD.fullmatch(line)
            sound = sound and field is not None
            fields.extend([field[1]] if field else [])
        elif name and _LAST_FUNCTION in line:
            behind = True
    return found


def main(header: str, output: str) -> None:
    lines = [
        f"NODE({name}, {' '.join(f'FIELD({field})' for field in fields)})"
        for name, fields in nodes(Path(header).read_text()).items()
    ]
    text = "\n".join(lines) + "\n"
    path = Path(output)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
