"""Logs as TORCH_TRACE writes them, made up: large ones, several ranks, names that would break a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class LogFile:
    """One process's log."""

    def __init__(self, folder: Path, pid: int = 100, rank: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"dedicated_log_torch_trace_{'' if rank is None else f'rank_{rank}_'}{pid}.log"
        self.pid = pid
        self.rank = rank
        self.strings: dict[str, int] = {}
        self.lines: list[str] = []

    def record(
        self, name: str, metadata: Any, payload: str | None = None, compile_id: tuple[int, int] = (0, 0)
    ) -> None:
        fields: dict[str, Any] = {name: metadata}
        if self.rank is not None:
            fields["rank"] = self.rank
        if name != "str":
            fields |= {"frame_id": compile_id[0], "frame_compile_id": compile_id[1], "attempt": 0}
        self.lines.append(f"V1122 02:00:00.000000 {self.pid} magneto/_trace.py:44] {json.dumps(fields)}")
        if payload is not None:
            self.lines += ["\t" + line for line in payload.split("\n")]

    def data(self, name: str, value: Any, compile_id: tuple[int, int]) -> None:
        self.record("artifact", {"name": f"magneto_{name}", "encoding": "json"}, json.dumps(value), compile_id)

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings)
            self.record("str", [text, self.strings[text]])
        return self.strings[text]

    def compile(
        self,
        compile_id: tuple[int, int],
        *,
        file: str,
        line: int,
        name: str,
        stack: list[tuple[str, int, str]] = [],
        begin: float = 1000.0,
        fail: tuple[str, str] | None = None,
        data: dict[str, Any] = {},
    ) -> None:
        """A whole compile: `data` by the names of its events."""
        frames = [
            {"line": at, "name": function, "filename": self.string(where), "loc": "call()"}
            for where, at, function in [*stack, (file, line, name)]
        ]
        self.record("dynamo_start", {"stack": frames}, compile_id=compile_id)
        for event, value in data.items():
            self.data(event, value, compile_id)
        metrics = {"co_name": name, "entire_frame_compile_time_s": 0.02, "guard_count": 3}
        metrics |= {"fail_type": fail and fail[0], "fail_reason": fail and fail[1]}
        self.record("compilation_metrics", metrics, compile_id=compile_id)
        for stage, from_, seconds in (
            ("compile", 0.0, 0.02),
            ("compile.capture", 0.0, 0.012),
            ("compile.backend", 0.012, 0.008),
        ):
            event = {"name": stage, "ph": "X", "ts": (begin + from_) * 1e6, "dur": seconds * 1e6}
            self.record("chromium_event", {}, json.dumps(event), compile_id)

    def write(self) -> Path:
        self.path.write_text("\n".join(self.lines) + "\n", encoding="utf-8")
        return self.path


def large_graph(nodes: int, file: str) -> dict[str, Any]:
    """The events of a graph of so many calls, fused by fives."""
    torch = [[f"%{n + 1}: f32[64, 256] = torch.sin(%{n})", file, 2 + n % 40, "forward"] for n in range(nodes)]
    aten = [[f"%{n + 1}: f32[64, 256] = aten.sin.default(%{n})", n] for n in range(nodes)]
    code = 'kernel "" {\n  b0 in f32[16384]\n  b1 out f32[16384]\n  parallel i0 < 16384\n  row {\n'
    code += "    %0:f32 = load b0[i0]\n" + "".join(f"    %{n + 1}:f32 = sin %{n}\n" for n in range(5))
    code += "    store b1[i0], %5\n  }\n}\n"
    groups = nodes // 5
    kernels = [
        {
            **{"name": "sin", "code": 0, "variant": 0, "roles": "rw", "units": 64, "serial": True},
            "operators": list(range(5 * g, 5 * g + 5)),
            "values": [5 * g, *range(5 * g, 5 * g + 5)],
            "registers": [g, g + 1],
        }
        for g in range(groups)
    ]
    size = 64 * 256 * 4
    registers = [["arena", "f32[64, 256]", 5 * g, size * (g % 2), size, max(g - 1, 0), g] for g in range(groups + 1)]
    program = {
        **{"inputs": [[0, "L['x']", "f32[64, 256]"]], "aten": aten, "codes": [code], "kernels": kernels},
        **{"registers": registers, "arena": 2 * size, "prepared": 0, "once": [], "outputs": [groups]},
        "steps": [{"kernel": g} for g in range(groups)],
    }
    runs = {"steps": [[10, 4000.0 + g, 50000.0] for g in range(groups)]}
    graph = {"inputs": [[0, "L['x']", "f32[64, 256]"]], "torch": torch, "aten": aten, "outputs": [nodes]}
    texts = [
        "",
        "GLOBAL_STATE: ___check_global_state()",
        f"{file}:2 in forward",
        "TENSOR_MATCH: \x01",
        "DictGetItemGuardAccessor",
    ]
    sources: list[list[Any]] = [[-1, 0, 0, [1, 0, -1], []]]
    sources += [[0, len(texts) + n, 4, [3, 2, n], []] for n in range(200)]
    guards = {"texts": texts + [f"L['x{n}']" for n in range(200)], "nodes": sources}
    costs = {"ops": [20.0 + n % 7 for n in range(200)], "hot": 310.0}
    return {"graph": graph, "program": program, "runs": runs, "guards": guards, "guard_costs": costs}
