"""What a script of the minifier does when it is run: `python repro.py [run|minify]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch

from magneto import config, exc
from magneto._debug import children, findings, minify, names, same


def _parse(command: str, accuracy: bool, save_dir: str | None, autocast: bool, backend: Any) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=f"Shows a failure of a backend. Without arguments: {command}.")
    commands = parser.add_subparsers(dest="command", metavar="{run,minify}", required=True)
    for name, text in (("run", "runs the graph once, eager beside compiled"), ("minify", "finds a smaller graph")):
        one = commands.add_parser(name, help=text)
        one.add_argument("--accuracy", action="store_true", default=accuracy, help="compare results with eager's")
        one.add_argument("--no-accuracy", dest="accuracy", action="store_false", help="only run: does it fail?")
        one.add_argument("--save-dir", default=save_dir, metavar="DIR", help="where saved inputs are")
        one.add_argument("--no-save-dir", dest="save_dir", action="store_const", const=None, help="random inputs")
        one.add_argument("--autocast", action="store_true", default=autocast, help="under torch.autocast")
        one.add_argument("--no-autocast", dest="autocast", action="store_false")
        one.add_argument("--isolate", action="store_true", help="candidates always run in processes of their own")
        one.add_argument("--no-isolate", dest="isolate", action="store_false")
        one.add_argument("--only-fwd", action="store_true", help="no backward")
        one.add_argument("--backend", default=backend, metavar="BACKEND", help="another backend")
    return parser.parse_args(sys.argv[1:] or [command])


def run_after_dynamo(
    mod: torch.nn.Module,
    load_args: Any,
    *,
    command: str = "run",
    accuracy: bool | str = "",
    save_dir: str | None = None,
    autocast: bool = False,
    backend: Any = "inductor",
    **others: Any,
) -> None:
    """Of a captured graph, on a backend."""
    options = _parse(command, bool(accuracy), save_dir, autocast, backend)
    inputs = names.inputs_of(load_args, options.save_dir)
    with torch.autocast("cpu", enabled=options.autocast):
        if options.command == "minify":
            _minify("dynamo", mod, inputs, options)
        else:
            _run(mod, inputs, options)


def run_after_aot(
    mod: torch.nn.Module,
    load_args: Any,
    *,
    command: str = "run",
    accuracy: bool | str = "",
    save_dir: str | None = None,
    tracing_mode: str | None = None,
    **others: Any,
) -> None:
    """Of a graph of ATen operators, on the code generator."""
    options = _parse(command, bool(accuracy), save_dir, False, "inductor")
    inputs = names.inputs_of(load_args, options.save_dir)
    with torch.no_grad():
        if options.command == "minify":
            _minify("aot", mod, inputs, options)
        else:
            _run(mod, inputs, options)


def _run(mod: torch.nn.Module, inputs: Sequence[Any], options: argparse.Namespace) -> None:
    dynamic = any(not isinstance(x, torch.Tensor) for x in inputs)
    with config.patch(
        repro_after="", disk_cache=False, repro_forward_only=options.only_fwd or config.repro_forward_only
    ):
        compiled = minify.compile_graph(_graph(mod, inputs, options.backend), list(inputs), options.backend, dynamic)
        if not options.accuracy:
            same.results(compiled, inputs, options.only_fwd, same.parameters_of(mod))
            print("The graph ran; the failure does not show.")
            return
        found = same.differences(
            mod,
            compiled,
            inputs,
            options.only_fwd,
            ignore_integers=config.repro_ignore_non_fp,
            use_fp64=config.same_two_models_use_fp64,
            tolerance=config.repro_tolerance,
        )
    if found:
        findings.tell(findings.wrong("the graph", found))
        raise exc.AccuracyError("Bad accuracy detected. " + "; ".join(map(str, found)))
    print("The results are eager's; the failure does not show.")


def _graph(mod: torch.nn.Module, inputs: Sequence[Any], backend: Any) -> Any:
    """What a callable backend gets: a graph captured from the module. A name compiles the module itself."""
    if isinstance(backend, str):
        return mod
    import magneto

    graphs: list[Any] = []

    def keep(gm: Any, example_inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    magneto.compile(mod.forward, backend=keep, fullgraph=True)(*same.clone_inputs(inputs))
    return graphs[0]


def _minify(after: str, mod: torch.nn.Module, inputs: Sequence[Any], options: argparse.Namespace) -> None:
    import magneto

    level = 4 if options.accuracy else 2
    changes: dict[str, Any] = {"repro_after": after, "repro_level": level, "disk_cache": False}
    with config.patch(**changes, repro_forward_only=options.only_fwd or config.repro_forward_only):
        backend = options.backend if after == "dynamo" else "inductor"
        before = minify.published
        dynamic = True if any(not isinstance(x, torch.Tensor) for x in inputs) else None
        try:
            magneto.compile(mod.forward, backend=backend, fullgraph=True, dynamic=dynamic)(*same.clone_inputs(inputs))
        except Exception as error:
            if minify.published == before:
                raise
            print(f"It fails with: {children.of_exception(error)}")
        if minify.published == before:
            print(
                "The graph ran; the failure does not show any more. Nothing was written. --accuracy compares results, "
                "--backend takes another one; python -m magneto doctor script.py finds faults of more than a graph."
            )
            sys.exit(1)
