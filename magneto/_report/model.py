"""From the records of a log to what the page shows: plain lists and dicts, which become the page's JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from magneto._advice import advice, place_parts
from magneto._report.log import Log, Record
from magneto._report.source import Sources

Data = dict[str, Any]

# What the log has under names of its own, and the page shows as texts.
_TEXTS = {
    "dynamo_output_graph": "captured graph as Python",
    "aot_inference_graph": "ATen graph, functional",
    "inductor_post_grad_graph": "ATen graph, normal form",
    "inductor_output_code": "plan",
}
# What the page shows in views of its own, and better.
_SHOWN_OTHERWISE = {"loops", "dynamo_graph_break_reason", "recompile_reasons", "dynamo_error"}


def build(logs: list[Log], assembly: Callable[[str, int], str] | None = None) -> list[Data]:
    """A run for each process. `assembly(loop IR, variant)` gives the machine code of a kernel."""
    return [_Run(log, assembly).data for log in logs]


class _Run:
    def __init__(self, log: Log, assembly: Callable[[str, int], str] | None) -> None:
        self.sources = Sources()
        self.assembly = assembly
        self.codes: dict[tuple[str, int], int] = {}
        self.compiles: dict[tuple[int, int], Data] = {}
        self.data: Data = {
            "label": f"rank {log.rank}" if log.rank is not None else f"process {log.pid}",
            "rank": log.rank,
            "pid": log.pid,
            "log": log.path.name,
            "problems": log.problems,
            "codes": [],
            "findings": [],  # of the debugging tools: magneto/_debug/findings.py
        }
        for record in log.records:
            if record.name == "artifact" and record.metadata["name"] == "magneto_finding":
                self._add_finding(record)
            elif record.compile_id is not None:
                self._add(record, self._compile(record.compile_id))
        compiles = list(self.compiles.values())
        for compile_ in compiles:
            self._finish(compile_)
        self.data["compiles"] = compiles
        self.data["sections"] = self.sources.sections

    def _compile(self, compile_id: tuple[int, int]) -> Data:
        if compile_id not in self.compiles:
            frame, number = compile_id
            self.compiles[compile_id] = {
                "id": f"{frame}/{number}",
                "frame": frame,
                "number": number,
                "stages": [],
                "stack": [],
                "texts": {},
            }
        return self.compiles[compile_id]

    def _add(self, record: Record, to: Data) -> None:
        match record.name:
            case "dynamo_start":
                to["stack"] = [
                    [frame["filename"], frame["line"], frame["name"], frame.get("loc") or ""]
                    for frame in record.metadata["stack"]
                ]
            case "compilation_metrics":
                to["metrics"] = record.metadata
            case "chromium_event":
                if (event := self._json(record, to)) and "dur" in event:  # PyTorch's own are instants, or beginnings
                    to["stages"].append([event["name"], event["ts"] / 1e6, event["dur"] / 1e6])
            case "artifact":
                self._add_artifact(record, to)
            case name if name in _TEXTS:
                to["texts"][_TEXTS[name]] = record.payload

    def _add_artifact(self, record: Record, to: Data) -> None:
        name = record.metadata["name"]
        match name.removeprefix("magneto_") if name.startswith("magneto_") else None:
            case None if name in _SHOWN_OTHERWISE:
                pass
            case None:
                to["texts"][name.lower().replace("_", " ")] = record.payload
            case "graph":
                if graph := self._json(record, to):
                    to["self"] = graph.get("self", "")
                    to.update(inputs=graph["inputs"], torch=graph["torch"], captured=graph["aten"])
            case "program":
                if program := self._json(record, to):
                    to.setdefault("programs", []).append(self._program(program))
            case "runs":
                if (runs := self._json(record, to)) is not None:
                    to.setdefault("all_runs", []).append(runs)
            case "break":
                if found := self._json(record, to):
                    to["break"] = {"explanation": "", "hint": "", **found, **_advice_in(found.get("text", ""))}
            case "source":
                self.sources.texts.update(self._json(record, to) or {})
            case other:
                to[other] = self._json(record, to)

    def _add_finding(self, record: Record) -> None:
        if found := self._json(record, {"id": "a finding"}):
            self.data["findings"].append(found)

    def _json(self, record: Record, compile_: Data) -> Any:
        try:
            return json.loads(record.payload)
        except ValueError:
            self.data["problems"].append(f"[{compile_['id']}] {record.name}: the record's text is cut off")
            return None

    def _program(self, program: Data) -> Data:
        """Kernels refer to the run's codes: equal code is there once for all graphs."""
        for kernel in program["kernels"]:
            kernel["code"] = self._code(program["codes"][kernel["code"]], kernel["variant"])
        del program["codes"]
        return program

    def _code(self, text: str, variant: int) -> int:
        key = (text, variant)
        if key not in self.codes:
            self.codes[key] = len(self.codes)
            assembly = self.assembly(text, variant) if self.assembly else ""
            self.data["codes"].append({"loops": text.splitlines(), "assembly": _instructions(assembly)})
        return self.codes[key]

    def _finish(self, compile_: Data) -> None:
        programs, runs = compile_.get("programs", []), compile_.get("all_runs", [])
        if not compile_.get("training"):  # of several attempts the last one is used
            compile_["programs"], compile_["all_runs"] = programs[-1:], runs[-1:]
        which = 0 if compile_.get("training") else -1
        compile_["program"] = programs[which] if programs else None
        compile_["runs"] = runs[which] if runs else None
        metrics = compile_.pop("metrics", None)
        stack = compile_["stack"]
        place: list[Any] = stack[-1] if stack else ["?", 0, "?", ""]
        compile_.update(file=place[0], line=place[1], name=".".join(filter(None, (compile_.pop("self", ""), place[2]))))
        compile_["seconds"] = metrics and metrics.get("entire_frame_compile_time_s")
        guards = compile_.get("guards")
        counted = sum(len(node[3]) // 3 for node in guards["nodes"]) if guards else 0
        compile_["guard_count"] = counted or (metrics or {}).get("guard_count", 0)
        if metrics and metrics.get("fail_type"):
            compile_["failure"] = {"type": metrics["fail_type"], "text": metrics.get("fail_reason") or ""}
        compile_["state"] = _state(compile_, metrics)
        compile_["varies"] = _varying(compile_.get("recompile") or ())
        places = [(place[0], place[1], place[2])]
        places += [(call[1], call[2], call[3]) for call in compile_.get("torch", ()) if call[1]]
        places += [(file, line, name) for file, line, name in (compile_.get("break") or {}).get("stack", ())]
        needed = [(file, line, "") for _, _, file, line in compile_["varies"] if file]
        for file, line, name in needed:
            self.sources.sections_of([(file, line, name)])
        compile_["sections"] = self.sources.sections_of(places)


def _varying(entries: Sequence[Data]) -> list[tuple[str, str, str, int]]:
    """What differed from the newest of the entries that did not serve: what, what would stop it, file and line that
    need it."""
    if not entries:
        return []
    newest = entries[0]
    guards = [re.sub(r"(:|\.) (expected|actual) .*", "", text) for text in newest["failures"]]
    places = newest.get("places") or [""] * len(guards)
    found = [
        (advice(guard + newest["condition"], place), place_parts(place))
        for guard, place in zip(guards, places, strict=True)
    ]
    return [(said.what, said.remedy, file, line) for said, (file, line) in found]


def _advice_in(text: str) -> dict[str, str]:
    """What a break's text says of it, with the program's own names in it."""
    found = {}
    for key, label in (("explanation", "Explanation"), ("hint", "Hint")):
        if line := re.search(rf"^\s*{label}: (.*)$", text, re.MULTILINE):
            found[key] = line[1]
    return found


# What the assembler needs and a reader does not.
_DIRECTIVE = re.compile(r"\s+\.(?!loc|long|quad|byte|short|zero|ascii)|\.L(tmp|func_)")
_CONSTANT = re.compile(r"\s*\.(long|quad|byte|short|zero|ascii)|\.LCPI")


def _instructions(assembly: str) -> list[str]:
    """The instructions, behind them the constants."""
    lines = [line for line in assembly.splitlines() if line.strip() and not _DIRECTIVE.match(line)]
    constants = [line for line in lines if _CONSTANT.match(line)]
    return [line for line in lines if not _CONSTANT.match(line)] + constants


_LIMITS = ("cache_size_limit", "accumulated_cache_size_limit")


def _state(compile_: Data, metrics: Data | None) -> str:
    if metrics is None:
        return "unfinished"
    if "failure" in compile_:
        return "limited" if compile_["failure"]["type"] in _LIMITS else "failed"
    if compile_.get("break"):
        return "broken"
    return "recompiled" if compile_["number"] > 0 else "captured"
