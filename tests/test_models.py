"""Real models: each is captured in one graph and gives eager's results, with every kind of backend."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import models
import pytest
import torch
from compare import assert_same

import magneto


class Recorder:
    """A backend that a user could write: keeps what it was given and runs the graph module as it is."""

    def __init__(self) -> None:
        self.calls: list[tuple[torch.fx.GraphModule, list[Any]]] = []

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        self.calls.append((graph_module, example_inputs))
        return graph_module.forward


BACKENDS: dict[str, Callable[[], Any]] = {
    "eager": lambda: "eager",
    "aot_eager": lambda: "aot_eager",
    "magneto": lambda: "magneto",
    "custom": Recorder,
}
# Backends that run eager's own kernels, in eager's order: their results are eager's bit for bit.
SAME_KERNELS = {"eager", "aot_eager", "custom"}


@contextmanager
def compiled_path() -> Iterator[None]:
    """Eager, but where a program asks whether it is being compiled, it is told yes: it takes the path we captured."""
    previous = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = previous


@cache
def model(name: str) -> torch.nn.Module:
    return models.build(name)


@cache
def expected(name: str, seed: int) -> tuple[Any, Any]:
    """Eager's result, and eager's along the path of compiled programs."""
    with torch.no_grad():
        plain = model(name)(**models.inputs(name, seed))
        with compiled_path():
            return plain, model(name)(**models.inputs(name, seed))


def check(actual: Any, name: str, seed: int, backend: str) -> None:
    plain, same_path = expected(name, seed)
    assert_same(actual, plain)
    assert_same(actual, same_path, exact=backend in SAME_KERNELS)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", models.FIRST)
def test_one_graph(name: str, backend: str) -> None:
    expected(name, 0), expected(name, 1)
    chosen = BACKENDS[backend]()
    compiled = magneto.compile(model(name), backend=chosen, fullgraph=True)
    with torch.no_grad():
        check(compiled(**models.inputs(name, 0)), name, 0, backend)
        check(compiled(**models.inputs(name, 0)), name, 0, backend)
        check(compiled(**models.inputs(name, 1)), name, 1, backend)
    stats = magneto.stats()
    assert (stats["graphs"], stats["breaks"], stats["recompiles"]) == (1, 0, 0)
    assert stats["ops"] > 0
    if isinstance(chosen, Recorder):
        [(graph_module, example_inputs)] = chosen.calls
        assert isinstance(graph_module, torch.fx.GraphModule)
        assert all(isinstance(value, torch.Tensor) for value in example_inputs)
        placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
        assert len(placeholders) == len(example_inputs)


@pytest.mark.parametrize("name", models.FIRST)
def test_inference_mode(name: str) -> None:
    expected(name, 0)
    compiled = magneto.compile(model(name), backend="aot_eager", fullgraph=True)
    with torch.inference_mode():
        check(compiled(**models.inputs(name, 0)), name, 0, "aot_eager")
        check(compiled(**models.inputs(name, 0)), name, 0, "aot_eager")


@pytest.mark.parametrize("name", models.FIRST)
@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_another_shape_is_another_capture(name: str, backend: str) -> None:
    compiled = magneto.compile(model(name), backend=backend, fullgraph=True, dynamic=False)
    with torch.no_grad():
        for batch in (2, 3, 2):
            given = models.FIRST[name].inputs(batch=batch)
            assert_same(compiled(**copy.deepcopy(given)), model(name)(**given))
    assert magneto.stats()["graphs"] == 2
    assert magneto.stats()["recompiles"] == 1


@pytest.mark.parametrize("name", models.FIRST)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
def test_gradients(name: str, backend: str) -> None:
    """Results and gradients are eager's. (What is summed is weighted: a plain sum of what a norm gave has the gradient 0,
    and eager's is rounding.)"""
    ours = models.build(name)
    models.spread_zeros(ours)
    theirs = copy.deepcopy(ours)
    compiled = magneto.compile(ours, backend=backend, fullgraph=True)
    for seed in (0, 1):
        for module, call in ((ours, compiled), (theirs, theirs)):
            module.zero_grad()
            output = call(**models.inputs(name, seed))
            sum(
                (value * torch.linspace(-1, 1, value.numel()).view_as(value)).sum()
                for value in output.values()
                if isinstance(value, torch.Tensor)
            ).backward()
        for (key, left), (_, right) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
            if right.grad is None:
                assert left.grad is None, key
            else:
                torch.testing.assert_close(left.grad, right.grad, rtol=2e-4, atol=2e-5, msg=f"gradient of {key}")


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "vit", "mixtral"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_hidden_states(name: str, backend: str) -> None:
    """Keyword arguments change what is returned; hooks of transformers collect it."""
    given = {**models.inputs(name), "output_hidden_states": True}
    compiled = magneto.compile(model(name), backend=backend)
    with torch.no_grad():
        want = model(name)(**given)
        assert_same(compiled(**given), want)
        assert_same(compiled(**given), want)


@pytest.mark.parametrize("name", ["bert", "llama", "vit"])
def test_return_tuple(name: str) -> None:
    given = {**models.inputs(name), "return_dict": False}
    compiled = magneto.compile(model(name), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert_same(compiled(**given), model(name)(**given))


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "qwen2", "opt"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_decoding_with_a_cache(name: str, backend: str) -> None:
    """Each step changes the cache that it was given: that write reaches the caller's object, and eager's values."""
    prompt = models.tokens(length=5)["input_ids"]
    compiled = magneto.compile(model(name), backend=backend, dynamic=False)
    with torch.no_grad():
        ours = compiled(input_ids=prompt, use_cache=True)
        theirs = model(name)(input_ids=prompt, use_cache=True)
        for _ in range(3):
            assert_same(ours, theirs)
            token = theirs.logits[:, -1:].argmax(-1)
            our_cache, their_cache = ours.past_key_values, theirs.past_key_values
            ours = compiled(input_ids=token, past_key_values=our_cache)
            theirs = model(name)(input_ids=token, past_key_values=their_cache)
            assert ours.past_key_values is our_cache
    assert_same(ours.past_key_values, theirs.past_key_values)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_hooks(backend: str) -> None:
    """Forward hooks and pre-hooks of inner modules are captured with them and may change what passes."""
    bert = models.build("bert")
    seen: list[tuple[int, ...]] = []
    bert.encoder.layer[0].register_forward_hook(lambda module, args, output: output * 2)
    bert.encoder.layer[1].register_forward_pre_hook(lambda module, args: seen.append(tuple(args[0].shape)))
    given = models.inputs("bert")
    compiled = magneto.compile(bert, backend=backend, fullgraph=True)
    with torch.no_grad():
        want = bert(**given)
        assert len(seen) == 1
        assert_same(compiled(**given), want)
        assert_same(compiled(**given), want)
    assert seen == [seen[0]] * 3


@pytest.mark.parametrize("name", ["bert", "llama", "resnet"])
def test_weights_changed_in_between(name: str) -> None:
    """Weights are read at each call: optimizers, `.data` and load_state_dict may change them."""
    module = models.build(name)
    compiled = magneto.compile(module, backend="aot_eager", fullgraph=True)
    given = models.inputs(name)
    with torch.no_grad():
        before = compiled(**given)
        for parameter in module.parameters():
            parameter.data.mul_(1.01)
        after = compiled(**given)
        assert_same(after, module(**given))
    assert not torch.equal(before[0], after[0])


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_train_and_eval_are_different_captures(name: str) -> None:
    module = models.build(name)
    compiled = magneto.compile(module, backend="aot_eager")
    given = models.inputs(name)
    with torch.no_grad():
        compiled(**given)
        for training in (True, False):
            compiled.train(training)
            torch.manual_seed(3)
            want = module(**given)
            torch.manual_seed(3)
            assert_same(compiled(**given), want)


@pytest.mark.parametrize("kind", ["single", "multi", "regression"])
def test_labels_that_decide_the_problem_type(kind: str) -> None:
    """Such a head writes into its configuration, whose fields are checked against their annotations: what
    `Trainer(torch_compile=True)` trains."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(**sizes, vocab_size=20, num_labels=1 if kind == "regression" else 3)
    eager = BertForSequenceClassification(config).eval()
    compiled = magneto.compile(copy.deepcopy(eager), backend="aot_eager", fullgraph=True)
    ids = torch.arange(12).view(2, 6)
    labels = {"single": torch.tensor([0, 2]), "multi": torch.ones(2, 3), "regression": torch.ones(2)}[kind]
    for _ in range(2):
        want, got = eager(ids, labels=labels), compiled(ids, labels=labels)
        assert_same(got.loss, want.loss, exact=True)
    assert compiled.config.problem_type == eager.config.problem_type is not None
