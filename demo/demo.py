"""The demo: compiles real models, checks them against eager and prints what it cost and what it gave.

Run it with `make demo`; with `PEER=1` torch.compile runs beside (its default backend; `PEER=eager` or another name
chooses one), which takes some minutes more. Writes demo/report.md.
"""

from __future__ import annotations

import importlib
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))  # the model zoo
os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore", category=UserWarning, module="transformers")

import torch
from rich.console import Console
from rich.live import Live
from rich.table import Table

PEER = os.environ.get("PEER", "0")
PEER_BACKEND = "inductor" if PEER == "1" else PEER
ROUNDS = 15

WIDE = {"vocab_size": 8000, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8}
TEXT = {**WIDE, "intermediate_size": 1024, "max_position_embeddings": 512}
# name in the zoo, what to call it, sizes of the config, sizes of the inputs
MODELS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("bert", "BERT", TEXT, {"length": 64}),
    ("gpt2", "GPT-2", {"vocab_size": 8000, "n_embd": 256, "n_layer": 4, "n_head": 8}, {"length": 64}),
    ("llama", "Llama", {**TEXT, "num_key_value_heads": 4}, {"length": 64}),
    ("mixtral", "Mixtral (experts)", {**TEXT, "num_key_value_heads": 4, "num_local_experts": 4}, {"length": 32}),
    ("t5", "T5", {"vocab_size": 8000, "d_model": 256, "d_kv": 32, "d_ff": 1024, "num_layers": 4}, {"length": 64}),
    ("vit", "ViT", {**WIDE, "intermediate_size": 1024, "image_size": 112, "patch_size": 16}, {"size": 112}),
    (
        "resnet",
        "ResNet-50",
        {"embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048], "depths": [3, 4, 6, 3]},
        {"size": 64},
    ),
    ("whisper", "Whisper", {"d_model": 256, "encoder_layers": 4, "decoder_layers": 4, "encoder_ffn_dim": 1024}, {}),
]  # fmt: skip


@dataclass
class Result:
    """One row of the table; times in seconds."""

    name: str
    parameters: int = 0
    capture: float | None = None
    graphs: int = 0
    breaks: int = 0
    ops: int = 0
    eager_call: float | None = None
    call: float | None = None
    peer_first: float | None = None
    peer_call: float | None = None
    error: str = ""
    state: str = "waiting"


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def first_tensor(output: Any) -> torch.Tensor:
    return next(value for value in output.values() if isinstance(value, torch.Tensor))


def measure(result: Result, key: str, config: dict[str, Any], shape: dict[str, Any], show: Callable[[], None]) -> None:
    import models

    import magneto

    def phase(text: str) -> None:
        result.state = text
        show()

    phase("building")
    model, given = models.build(key, **config), models.inputs(key, **shape)
    result.parameters = sum(parameter.numel() for parameter in model.parameters())
    runs: dict[str, Callable[[], Any]] = {"eager": lambda: model(**given)}
    with torch.no_grad():
        phase("eager")
        runs["eager"]()
        result.eager_call, want = min((timed(runs["eager"]) for _ in range(3)), key=lambda pair: pair[0])

        phase("capturing")
        magneto.reset()
        compiled = magneto.compile(model)
        runs["magneto"] = lambda: compiled(**given)
        first, got = timed(runs["magneto"])
        result.capture = max(0.0, first - result.eager_call)
        stats = magneto.stats()
        result.graphs, result.breaks, result.ops = stats["graphs"], stats["breaks"], stats["ops"]
        torch.testing.assert_close(first_tensor(got), first_tensor(want), rtol=1e-4, atol=1e-5)

        if PEER != "0":
            phase(f"torch.compile ({PEER_BACKEND})")
            torch._dynamo.reset()
            peer = torch.compile(model, backend=PEER_BACKEND)
            runs["peer"] = lambda: peer(**given)
            first, _ = timed(runs["peer"])
            result.peer_first = max(0.0, first - result.eager_call)

        phase("timing")
        times: dict[str, list[float]] = {name: [] for name in runs}
        for run in runs.values():
            run()
        deadline = time.perf_counter() + 1.0 * len(runs)
        for _ in range(ROUNDS):  # in turn, so that a busy machine is unfair to nobody
            for name, run in runs.items():
                times[name].append(timed(run)[0])
            if time.perf_counter() > deadline:
                break
        result.eager_call = statistics.median(times["eager"])
        result.call = statistics.median(times["magneto"])
        result.peer_call = statistics.median(times["peer"]) if "peer" in times else None
    phase("done")


def milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:,.1f}"


HEADERS = ["model", "weights", "capture ms", "graphs", "breaks", "ops", "eager ms", "magneto ms", "speed"]
PEER_HEADERS = ["peer compile ms", "peer ms", "peer compile / ours"]


def cells(result: Result) -> list[str]:
    row = [
        result.name,
        f"{result.parameters / 1e6:.1f} M" if result.parameters else "",
        milliseconds(result.capture),
        *([str(result.graphs), str(result.breaks), str(result.ops)] if result.capture is not None else ["", "", ""]),
        milliseconds(result.eager_call),
        milliseconds(result.call),
        f"{result.eager_call / result.call:.2f}x" if result.call and result.eager_call else "",
    ]
    if PEER != "0":
        ratio = result.peer_first / result.capture if result.peer_first and result.capture else None
        row += [milliseconds(result.peer_first), milliseconds(result.peer_call), f"{ratio:.0f}x" if ratio else ""]
    return row


def table(results: list[Result]) -> Table:
    view = Table(title="magneto.compile: real models, no gradients")
    for header in [*HEADERS, *(PEER_HEADERS if PEER != "0" else []), "state"]:
        view.add_column(header, justify="left" if header in ("model", "state") else "right")
    for result in results:
        colour = {"done": "green", "waiting": "dim", "failed": "red"}.get(result.state, "yellow")
        view.add_row(*cells(result), f"[{colour}]{result.state}[/]")
    return view


def report(results: list[Result], seconds: float) -> Path:
    """The table as Markdown, with what it was measured on."""
    import magneto

    headers = [*HEADERS, *(PEER_HEADERS if PEER != "0" else [])]
    lines = [
        "# Magneto demo",
        "",
        f"Magneto {magneto.__version__}, PyTorch {torch.__version__}, CPython {sys.version.split()[0]}, "
        f"{torch.get_num_threads()} threads; {seconds:.0f} s in all. Capture: first call minus an eager call; "
        "ms: a call afterwards; speed: eager's time over Magneto's.",
        "",
        f"| {' | '.join(headers)} |",
        f"|{'|'.join('---' for _ in headers)}|",
        *(f"| {' | '.join(cells(result))} |" for result in results),
        *(f"\n{result.name} failed: {result.error}" for result in results if result.error),
    ]
    path = HERE / "report.md"
    path.write_text("\n".join(lines) + "\n")
    return path


def main() -> int:
    console = Console(width=None if sys.stdout.isatty() else 140)
    start = time.perf_counter()
    with console.status("Importing PyTorch, transformers and Magneto"):
        import models  # noqa: F401
        import transformers

        import magneto

        transformers.logging.set_verbosity_error()
        magneto.compile(torch.nn.Linear(2, 2))(torch.ones(1, 2))
        if PEER != "0":
            importlib.import_module("torch._dynamo")  # no part of its compile time

    results = [Result(title) for _, title, _, _ in MODELS]
    with Live(table(results), console=console, auto_refresh=False) as live:

        def show() -> None:
            if console.is_terminal:
                live.update(table(results), refresh=True)

        for result, (key, _, config, shape) in zip(results, MODELS, strict=True):
            try:
                measure(result, key, config, shape, show)
            except Exception as error:
                result.state, result.error = "failed", f"{type(error).__name__}: {str(error).splitlines()[0]}"
            if not console.is_terminal:
                print(f"{result.name}: {result.state} {result.error}".rstrip(), flush=True)
        live.update(table(results), refresh=True)

    for result in results:
        if result.error:
            console.print(f"[red]{result.name} failed:[/] {result.error}", highlight=False)
    path = report(results, time.perf_counter() - start)
    console.print(f"{time.perf_counter() - start:.0f} s; report: {path.relative_to(Path.cwd())}")
    if PEER == "0":
        console.print("PEER=1 make demo: the same beside torch.compile (some minutes more)")
    return int(any(result.error for result in results))


if __name__ == "__main__":
    sys.exit(main())
