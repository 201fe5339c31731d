"""What guard checks cost: nanoseconds per check of a tensor, of the global state, and of 100 layers Linear and ReLU.

Usage: python bench/guards.py [layers]
"""

import collections
import sys
import time

import torch

from magneto import _testing

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def module_guards(path, module):
    """The guards that a call of `module` through `nn.Module.__call__` leaves, in the order of reading."""
    yield path, "type", type(module)
    yield path + (("attr", "training"),), "equals", module.training
    for hooks in HOOKS:
        yield path + (("attr", hooks),), "length", collections.OrderedDict, 0
    for kind in ("_buffers", "_modules", "_parameters"):
        entries = getattr(module, kind)
        yield path + (("attr", kind),), "length", dict, len(entries)
        for name, value in entries.items():
            entry = path + (("attr", kind), ("item", name))
            if isinstance(value, torch.nn.Module):
                yield from module_guards(entry, value)
            elif value is None:
                yield entry, "equals", None
            else:
                yield entry, "tensor", value
    yield None, "type_lookup", type(module), "forward", type(module).forward
    yield None, "type_lookup_missing", type(module), "__getattribute_extra__"


def report(what, guards, roots, rounds):
    start = time.thread_time()
    program = _testing.guards_compile(guards)
    compiled = time.thread_time() - start
    assert _testing.guards_check(program, roots) is not None, _testing.guards_explain(program, roots)
    best = min(_testing.guards_bench(program, roots, rounds) for _ in range(5))
    print(
        f"{what:<44} {best[0]:10.1f} ns   {best[2]:6} sources  {len(guards):6} guards  "
        f"compiled in {compiled * 1e3:.2f} ms"
    )


def main(layers):
    x = torch.ones(8, 8)
    roots = (None, (torch.nn.Sequential(), x), ())
    tensor = ((("local", 1, "x"),), "tensor", x)
    report("one tensor", [tensor], roots, 200_000)
    report("one tensor and the global state", [(None, "global_state"), tensor], roots, 200_000)
    model = torch.nn.Sequential(*[m for _ in range(layers) for m in (torch.nn.Linear(8, 8), torch.nn.ReLU())])
    roots = (None, (model, x), ())
    guards = [(None, "global_state"), tensor, *module_guards((("local", 0, "self"),), model)]
    report(f"{layers} x (Linear, ReLU), nothing changed", guards, roots, 2_000)
    failing = (None, (model, torch.ones(8, 9)), ())
    program = _testing.guards_compile(guards)
    _testing.guards_check(program, roots)
    print(f"{'the same, failing on the input':<44} {_testing.guards_bench(program, failing, 20_000)[0]:10.1f} ns")
    model[-1].train(False)
    assert _testing.guards_check(program, roots) is None
    print(f"{'the same, failing deep inside':<44} {_testing.guards_bench(program, roots, 20_000)[0]:10.1f} ns")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
