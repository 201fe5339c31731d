"""State dicts of compiled modules: with the prefix `_orig_mod.` and without, saved and loaded both ways."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from compare import assert_same

import magneto

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def make() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)).eval()


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_names_carry_the_prefix() -> None:
    model = make()
    compiled = magneto.compile(model)
    assert list(compiled.state_dict()) == ["_orig_mod." + name for name in model.state_dict()]
    assert list(compiled._orig_mod.state_dict()) == list(model.state_dict())
    assert list(dict(compiled.named_parameters())) == ["_orig_mod." + name for name in dict(model.named_parameters())]


@pytest.mark.parametrize("captured_first", [False, True])
@pytest.mark.parametrize("saved_compiled", [False, True])
def test_into_a_compiled_module(saved_compiled: bool, captured_first: bool) -> None:
    source, target = make(), make()
    compiled = magneto.compile(target)
    if captured_first:
        compiled(X)
    result = compiled.load_state_dict(
        through_a_file((magneto.compile(source) if saved_compiled else source).state_dict())
    )
    assert not result.missing_keys and not result.unexpected_keys
    assert_same(target.state_dict(), source.state_dict())
    assert_same(compiled(X), source(X))


def test_into_a_plain_module() -> None:
    """What is saved from a compiled module goes into a plain one without the prefix, by PyTorch's own helper."""
    source, target = make(), make()
    state = through_a_file(magneto.compile(source).state_dict())
    torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "_orig_mod.")
    target.load_state_dict(state)
    assert_same(target(X), source(X))


def test_compiled_part_of_a_larger_module() -> None:
    def larger(compiled: bool) -> torch.nn.Module:
        model = torch.nn.Sequential(make(), torch.nn.Linear(2, 2))
        if compiled:
            model[0] = magneto.compile(model[0])
        return model.eval()

    plain, mixed = larger(False), larger(True)
    assert "0._orig_mod.0.weight" in mixed.state_dict()
    result = mixed.load_state_dict(through_a_file(plain.state_dict()))
    assert not result.missing_keys and not result.unexpected_keys
    assert_same(mixed(X), plain(X))
    again = larger(True)
    again.load_state_dict(through_a_file(mixed.state_dict()))
    assert_same(again(X), plain(X))


def test_missing_and_unexpected_names_are_still_errors() -> None:
    compiled = magneto.compile(make())
    state = make().state_dict()
    state["surplus"] = state.pop("0.weight")
    with pytest.raises(RuntimeError, match=r"(?s)Missing.*0\.weight.*Unexpected.*surplus"):
        compiled.load_state_dict(state)
    result = compiled.load_state_dict(state, strict=False)
    assert result.missing_keys == ["_orig_mod.0.weight"] and result.unexpected_keys == ["_orig_mod.surplus"]
    wrong = make().state_dict()
    wrong["0.weight"] = torch.zeros(1, 1)
    with pytest.raises(RuntimeError, match="size mismatch for"):
        compiled.load_state_dict(wrong)


def test_the_given_state_dict_is_left_alone() -> None:
    state = make().state_dict()
    names = list(state)
    magneto.compile(make()).load_state_dict(state)
    assert list(state) == names


def test_assign_replaces_the_parameters() -> None:
    source, target = make(), make()
    compiled = magneto.compile(target)
    compiled(X)
    compiled.load_state_dict(source.state_dict(), assign=True)
    assert target[0].weight.data_ptr() == source[0].weight.data_ptr()
    assert_same(compiled(X), source(X))


def test_extra_state_and_hooks() -> None:
    class Extra(torch.nn.Linear):
        note: Any = None

        def get_extra_state(self) -> Any:
            return {"note": self.note}

        def set_extra_state(self, state: Any) -> None:
            self.note = state["note"]

    source, target = Extra(4, 2), Extra(4, 2)
    source.note = "kept"
    seen: list[str] = []
    target.register_load_state_dict_pre_hook(lambda module, state, *rest: seen.append("pre"))
    target.register_load_state_dict_post_hook(lambda module, keys: seen.append("post"))
    magneto.compile(target).load_state_dict(source.state_dict())
    assert target.note == "kept" and seen == ["pre", "post"]


def test_optimizer_state_goes_both_ways() -> None:
    def train(model: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(X).square().sum().backward()
        optimizer.step()

    plain = make()
    twin = copy.deepcopy(plain)
    compiled = magneto.compile(twin)
    ours = torch.optim.Adam(compiled.parameters(), lr=0.1)
    theirs = torch.optim.Adam(plain.parameters(), lr=0.1)
    for _ in range(2):
        train(compiled, ours)
        train(plain, theirs)
    ours.load_state_dict(through_a_file(theirs.state_dict()))
    train(compiled, ours)
    train(plain, theirs)
    assert_same(twin.state_dict(), plain.state_dict())


def test_whole_modules_are_saved() -> None:
    compiled = magneto.compile(make())
    want = compiled(X)
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert isinstance(loaded, magneto.OptimizedModule)
    assert_same(loaded(X), want)


def test_module_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """nn.Module.compile calls torch.compile: where that is ours, the module stays itself and runs compiled."""
    monkeypatch.setattr(torch, "compile", magneto.compile)
    model = make()
    names = list(model.state_dict())
    model.compile(fullgraph=True)
    assert_same(model(X), model._call_impl(X))
    assert magneto.stats()["graphs"] == 1
    assert list(model.state_dict()) == names
    assert_same(copy.deepcopy(model)(X), model(X))
    assert_same(magneto.compile(model)(X), model(X))


def test_compile_of_a_compiled_module() -> None:
    compiled = magneto.compile(make(), backend="eager")
    want = compiled(X)
    graphs: list[Any] = []

    def backend(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph_module)
        return graph_module.forward

    compiled.compile(backend=backend)
    assert_same(compiled(X), want)
    assert len(graphs) == 1
    compiled.compile(disable=True)
    assert_same(compiled(X), want)
