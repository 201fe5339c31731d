"""Guards on tensors and on the state of the interpreter and the thread."""

import gc

import pytest
import torch
from guard_support import Guards, X


def test_tensor_messages():
    guards = Guards((X, "tensor", torch.ones(3, 4)))
    assert guards(torch.zeros(3, 4))
    assert guards.why(torch.zeros(4, 4)) == "tensor 'L['x']' size mismatch at index 0. expected 3, actual 4"
    assert guards.why(torch.zeros(3, 4).double()) == "tensor 'L['x']' dtype mismatch. expected Float, actual Double"
    assert guards.why(torch.zeros(4, 3).t()) == "tensor 'L['x']' stride mismatch at index 0. expected 4, actual 1"
    assert guards.why(torch.zeros(3)) == "tensor 'L['x']' rank mismatch. expected 2, actual 1"
    assert guards.why(torch.zeros(3, 4, requires_grad=True)) == (
        "tensor 'L['x']' requires_grad mismatch. expected requires_grad=0"
    )
    assert Guards((X, "tensor", torch.ones(1, requires_grad=True))).why(torch.ones(1)) == (
        "tensor 'L['x']' requires_grad mismatch. expected requires_grad=1"
    )
    assert "dispatch key set mismatch. expected DispatchKeySet(CPU" in guards.why(torch.zeros(3, 4, device="meta"))
    assert guards.why(torch.nn.Parameter(torch.zeros(3, 4), requires_grad=False)) == (
        "expected type of 'L['x']' to be <class 'torch.Tensor'>, but found <class 'torch.nn.parameter.Parameter'>"
    )
    assert guards.why(7) == "expected type of 'L['x']' to be <class 'torch.Tensor'>, but found <class 'int'>"


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(2, 3),
        torch.zeros(3, 2, 1),
        torch.zeros(()),
        torch.zeros(0),
        torch.zeros(3, 2).to(torch.int32),
        torch.zeros(3, 2, requires_grad=True),
        torch.zeros(2, 3).t(),
        torch.zeros(3, 2).to_sparse(),
        torch.zeros(3, 2, device="meta"),
        torch.zeros(3, 2, dtype=torch.complex64).conj(),
        torch.zeros(3, 4)[:, ::2],
        torch.nested.nested_tensor([torch.zeros(2)]),
        torch.quantize_per_tensor(torch.zeros(3, 2), 1.0, 0, torch.qint8),
        torch.zeros(3, 2, dtype=torch.complex64).imag,
        None,
        [1.0],
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_tensors_fail(other):
    assert not Guards((X, "tensor", torch.zeros(3, 2)))(other)


def test_inference_tensor_is_another_kind():
    with torch.inference_mode():
        inference = torch.zeros(2)
    assert not Guards((X, "tensor", torch.zeros(2)))(inference)
    assert Guards((X, "tensor", inference))(inference)


def test_tensor_changes():
    def changed(change, tensor=None):
        tensor = torch.zeros(2, 3) if tensor is None else tensor
        direct, entry = Guards((X, "tensor", tensor)), Guards((X + (("item", "k"),), "tensor", tensor))
        held = {"k": tensor}
        assert direct(tensor) and entry(held) and entry(held)
        change(tensor)
        assert direct(tensor) == entry(held)
        return not direct(tensor)

    def swap_data(tensor, data):
        tensor.data = data

    assert changed(lambda t: t.resize_(3, 3))
    assert changed(lambda t: t.t_())
    assert changed(lambda t: t.unsqueeze_(0))
    assert changed(lambda t: t.requires_grad_())
    assert changed(lambda t: swap_data(t, torch.zeros(2, 4)))
    assert changed(lambda t: swap_data(t, torch.zeros(2, 3, dtype=torch.float64)))
    assert changed(lambda t: t.mul_(torch.ones(1, requires_grad=True)))
    assert not changed(lambda t: t.add_(1))
    assert not changed(lambda t: swap_data(t, torch.zeros(2, 3)))
    module = torch.nn.Linear(2, 2)
    guards = Guards((X + (("attr", "_parameters"), ("item", "weight")), "tensor", module.weight))
    assert guards(module)
    module.double()
    assert not guards(module)
    module.float()
    assert guards(module)
    module.requires_grad_(False)
    assert not guards(module)


def test_view_whose_base_came_to_require_grad():
    base = torch.zeros(4)
    view = base[:2]
    guards = Guards((X, "tensor", view))
    assert guards(view)
    base.requires_grad_()
    assert view.requires_grad != guards(view)


def test_many_dimensions_and_scalars():
    for shape in ((), (1,), (0, 5), (1, 2, 3, 4, 5, 6, 7)):
        guards = Guards((X, "tensor", torch.zeros(shape)))
        assert guards(torch.ones(shape)) and not guards(torch.ones((*shape, 2)))


def test_grad_is_followed():
    leaf = torch.ones(2, requires_grad=True)
    guards = Guards((X + (("grad",),), "tensor", torch.ones(2)))
    assert not guards(leaf)
    leaf.sum().backward()
    assert guards(leaf) and guards.values(leaf)[0] is leaf.grad
    leaf.grad = None
    assert not guards(leaf)
    assert Guards((X + (("grad",),), "equals", None))(leaf)
    hidden = torch.ones(2, requires_grad=True)
    hidden.sum().backward()  # no Python object of the gradient exists before the guard makes one
    first = Guards((X + (("grad",),), "require")).values(hidden)[0]
    gc.collect()
    assert first is hidden.grad and torch.equal(first, torch.ones(2))


def test_global_state():
    guards = Guards((None, "global_state"))
    assert guards()
    with torch.no_grad():
        assert guards.why() == "global state: grad mode changed: was True, is False"
    with torch.inference_mode():
        assert not guards()
    with torch.autocast("cpu"):
        assert guards.why() == "global state: autocast on CPU changed: was False, is True"
    torch.use_deterministic_algorithms(True)
    try:
        assert "deterministic algorithms changed" in guards.why()
    finally:
        torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float64)
    try:
        assert guards.why() == "global state: default dtype changed: was Float, is Double"
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.overrides.BaseTorchFunctionMode():
        assert guards.why() == "global state: number of torch function modes changed: was 0, is 1"
    with torch._C.DisableTorchFunctionSubclass():
        assert not guards()
    with torch._C.DisableTorchFunction():
        assert not guards()
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Mode():
        assert "dispatch keys changed" in guards.why()
    seen = []
    torch.vmap(lambda x: seen.append(guards()) or x)(torch.ones(2))
    assert seen == [False]
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert guards.why() == f"global state: number of threads changed: was {threads}, is {threads + 1}"
    finally:
        torch.set_num_threads(threads)
    assert guards()
    with torch.no_grad():
        inside = Guards((None, "global_state"))
        assert inside()
    assert not inside()
