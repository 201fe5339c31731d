"""The arguments of `compile`, checked, as the core takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magneto import _backends, _options, _shapes_spec, config, exc


def core_options(
    *,
    fullgraph: Any = False,
    dynamic: Any = None,
    backend: Any = "magneto",
    mode: Any = None,
    options: Any = None,
    disable: Any = False,
    recompile_limit: Any = None,
    name: Any = None,
    isolate_recompiles: Any = False,
    shapes_spec: Any = None,
) -> dict[str, Any]:
    """What the core gets; raises for names and types that are not valid."""
    flags = {"fullgraph": fullgraph, "disable": disable, "isolate_recompiles": isolate_recompiles}
    for argument, value in flags.items():
        if not isinstance(value, bool):
            raise exc.InvalidValue(f"{argument} must be True or False, not {value!r}")
    if name is not None and not isinstance(name, str):
        raise exc.InvalidValue(f"name must be a text or None, not {name!r}")
    if dynamic is not None and not isinstance(dynamic, bool):
        raise exc.InvalidValue(f"dynamic must be True, False or None, not {dynamic!r}")
    if mode is not None and (not isinstance(mode, str) or mode not in _options.MODES):
        raise exc.InvalidMode("mode", mode, _options.MODES)
    if mode in ("reduce-overhead", "max-autotune"):
        from magneto import _log  # the core loads it with the first compile

        if _log.enabled("cudagraphs"):
            _log.emit("cudagraphs", "skipping cudagraphs due to cpu device. Plans run from C++ and need none.")
    if mode is not None and options is not None:
        raise exc.InvalidValue("Either mode or options can be given, not both at the same time")
    if options is not None and not isinstance(options, Mapping):
        raise exc.InvalidValue(f"options must be a dict, not {options!r}")
    shapes = _shapes_spec.resolve(shapes_spec, dynamic)
    resolved = _backends.resolve(backend)
    if resolved == "magneto":
        resolved = _options.MODE_BACKENDS.get(mode or "", resolved)
    options = dict(options or {})
    if callable(resolved):
        resolved = _backends.with_arguments(resolved, mode, options)
        options = {}
    if getattr(resolved, "decompositions", None):  # magneto._aot.Compilers
        if dynamic:
            raise exc.InvalidValue("decompositions are for sizes that are numbers: not together with dynamic=True")
        dynamic = False
    settings = {} if callable(resolved) else _options.resolve(mode, options, backend)
    if recompile_limit is not None:
        config.check("cache_size_limit", recompile_limit)
        settings["cache_size_limit"] = recompile_limit
    return {
        "fullgraph": fullgraph,
        "dynamic": dynamic if shapes is None else False,  # what a specification does not name is part of the program
        "backend": resolved,
        "mode": mode or "default",
        "options": settings,
        "disable": disable,
        "name": name or "",
        "isolate_recompiles": isolate_recompiles,
        "shapes": shapes,
    }
