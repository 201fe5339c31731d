"""The tree of guards, which the core gives as JSON (src/guards/data.h), as the text that TORCH_LOGS=guards shows."""

from __future__ import annotations

from typing import Any


def text(data: dict[str, Any]) -> str:
    """`TREE_GUARD_MANAGER:` and what is below it."""
    texts, nodes = data["texts"], data["nodes"]
    names: list[str] = []
    children: list[list[int]] = [[] for _ in nodes]
    for number, (parent, name, *_) in enumerate(nodes):
        names.append(texts[name].replace("\x02", names[parent]) if parent >= 0 else "")
        if parent >= 0:
            children[parent].append(number)
    lines = ["TREE_GUARD_MANAGER:", "+- RootGuardManager"]
    pending = [(0, "| ")]
    while pending:
        number, indent = pending.pop()
        parent, _, accessor, checks, _ = nodes[number]
        above = names[parent] if parent >= 0 else ""
        if number:
            lines.append(f"{indent[:-2]}+- GuardManager: source={names[number]}, accessed_by={texts[accessor]}")
        for line, place in zip(checks[::3], checks[1::3], strict=True):
            where = f"  # {texts[place]}" if texts[place] else ""
            lines.append(f"{indent}+- {texts[line].replace(chr(1), names[number]).replace(chr(2), above)}{where}")
        pending += [(child, indent + "| ") for child in reversed(children[number])]
    return "\n".join(lines) + "\n"
