"""Calls an operator on real tensors and on fakes of them, and says how what is known about the results differs."""

import warnings

import torch

from magneto import _testing

warnings.filterwarnings("ignore")


def resolve(name):
    """The torch.ops callable of a schema name: "aten::add.Tensor"."""
    namespace, _, operator = name.partition("::")
    base, _, overload = operator.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def tensors_in(value):
    """The tensors of a nest of tuples and lists, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def copy_of(value):
    """A deep copy of a nest of tensors with the same geometry; tensors that share storage go on sharing it."""
    storages = {}

    def copy(value):
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            if storage._cdata not in storages:
                storages[storage._cdata] = storage.clone()
            new = torch.empty(0, dtype=value.dtype)
            return new.set_(storages[storage._cdata], value.storage_offset(), value.size(), value.stride())
        if isinstance(value, (tuple, list)):
            return type(value)(copy(item) for item in value)
        return value

    return copy(value)


def aliases(results, arguments):
    """For each result: the argument that it is, or those whose storage it shares."""

    def found(result):
        for i, argument in enumerate(arguments):
            if result is argument:
                return f"is {i}"
        storage = result.untyped_storage()._cdata
        return [i for i, argument in enumerate(arguments) if argument.untyped_storage()._cdata == storage]

    return [found(result) for result in results]


def describe(tensor):
    return (tensor.dtype, tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset())


def geometry_of(arguments):
    """The arguments as a person reads them in a failure."""

    def show(value):
        if isinstance(value, torch.Tensor):
            return f"{str(value.dtype)[6:]}{list(value.size())}/{list(value.stride())}"
        if isinstance(value, (tuple, list)):
            return "[" + ", ".join(map(show, value)) + "]"
        return repr(value)

    return ", ".join(map(show, arguments))


def run(op, arguments, keywords):
    """(descriptions, aliases) of a call's results and arguments; both change in place."""
    results = op(*arguments, **keywords)
    found, given = tensors_in(results), tensors_in(arguments)
    return [describe(tensor) for tensor in found], aliases(found, given), [describe(tensor) for tensor in given]


def difference(op, arguments, keywords):
    """(what differs or None, whether only native rules ran) of one call.

    A call that the rule declines is another stage's to answer (the meta kernel's), and isn't compared here.
    """
    with torch.no_grad():
        try:
            real, error = run(op, copy_of(arguments), keywords), None
        except Exception as raised:
            real, error = None, raised
        fake = []
        copies = copy_of(arguments)
        _, _, facts = _testing.fake_run(lambda *given: fake.append(run(op, given, keywords)), tuple(copies))
    if facts["meta"] or facts["refusal"]:
        return None, False
    fake_error = facts["error"]
    if error is not None or fake_error is not None:
        if error is not None and fake_error is not None and type(error) is fake_error[0]:
            return None, False
        return f"eager raised {error!r:.300}, the fake {fake_error!r:.300}", False
    if real == fake[0]:
        return None, facts["native"] > 0
    return f"eager {real}, the fake {fake[0]}", True
