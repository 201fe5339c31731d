"""What is made of weights alone is kept, and every write to a weight is noticed."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import resource
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

import magneto

X = torch.randn(2, 16, 24, 24)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 8, 3)).eval()


def check(model: nn.Module, compiled: Callable[..., torch.Tensor]) -> None:
    with torch.no_grad():
        for _ in range(2):
            expected = model(X)
            # Sums of some hundred products: rounded at the size of the products.
            torch.testing.assert_close(compiled(X), expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()))


def steps_of(compiled: Callable[..., torch.Tensor], kind: str = "") -> int:
    """How many kernels and library's operators on convolutions a call runs."""
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        compiled(X)
    return sum(event.name.startswith(("magneto::", "mkldnn::")) and kind in event.name for event in profile.events())


def test_work_on_weights_is_done_once() -> None:
    model = network()
    compiled = magneto.compile(model)
    check(model, compiled)
    kept = steps_of(compiled)
    for change in (in_place, through_numpy):
        change(model[0].weight)
        assert steps_of(compiled) == kept + 2  # both weights are reordered
        assert steps_of(compiled) == kept
        check(model, compiled)
    # What is changed again and again is not kept: that would copy it at each change.
    in_place(model[0].weight)
    assert [steps_of(compiled) for _ in range(3)] == [kept + 2] * 3
    address = model[0].weight.data_ptr()
    in_place(model[0].weight)
    assert model[0].weight.data_ptr() == address


def in_place(weight: nn.Parameter) -> None:
    with torch.no_grad():
        weight.mul_(-2)


def optimizer(weight: nn.Parameter) -> None:
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], 0.5).step()


def fused_optimizer(weight: nn.Parameter) -> None:
    weight.grad = torch.ones_like(weight)
    torch.optim.AdamW([weight], 0.5, fused=True).step()


def through_numpy(weight: nn.Parameter) -> None:
    weight.detach().numpy()[...] = 3


def through_dlpack(weight: nn.Parameter) -> None:
    torch.from_dlpack(weight.detach()).add_(1)


def through_its_storage(weight: nn.Parameter) -> None:
    weight.untyped_storage().copy_(torch.randn(weight.shape).untyped_storage())


def by_address(weight: nn.Parameter) -> None:
    ctypes.memset(weight.data_ptr(), 0, weight.numel() * 4)


def shared(weight: nn.Parameter) -> None:
    weight.share_memory_()
    weight.data.mul_(3)


def another_tensor(weight: nn.Parameter) -> None:
    weight.data = torch.randn(weight.shape)


def set_(weight: nn.Parameter) -> None:
    weight.data.set_(torch.randn(weight.shape))


def swapped(weight: nn.Parameter) -> None:
    torch.utils.swap_tensors(weight, nn.Parameter(torch.randn(weight.shape)))


WRITES = [
    in_place,
    lambda weight: weight.data.mul_(3),
    lambda weight: weight.detach().zero_(),
    lambda weight: weight.data.view(-1)[3:5].fill_(7),
    lambda weight: torch.nn.init.normal_(weight),
    lambda weight: torch._foreach_add_([weight.data], 1),
    lambda weight: torch.mul(weight.data, 2, out=weight.data),
    optimizer,
    fused_optimizer,
    through_numpy,
    through_dlpack,
    through_its_storage,
    by_address,
    shared,
    another_tensor,
    set_,
    swapped,
]


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_writes_are_noticed(write: Callable[[nn.Parameter], None]) -> None:
    model = network()
    compiled = magneto.compile(model)
    check(model, compiled)
    write(model[0].weight)
    check(model, compiled)
    write(model[2].weight)
    check(model, compiled)


def test_loading_a_state() -> None:
    model = network()
    compiled = magneto.compile(model)
    check(model, compiled)
    other = {name: torch.randn(value.shape) for name, value in model.state_dict().items()}
    model.load_state_dict(other)
    check(model, compiled)
    model.load_state_dict({name: torch.randn(value.shape) for name, value in other.items()}, assign=True)
    check(model, compiled)


def test_an_alias_made_before() -> None:
    model = network()
    array = model[0].weight.detach().numpy()
    view = model[2].weight.data[1:]
    compiled = magneto.compile(model)
    check(model, compiled)
    array[...] = 1
    check(model, compiled)
    view.mul_(5)
    check(model, compiled)
    array[0] = -1
    check(model, compiled)


def test_memory_of_somebody_else() -> None:
    memory = torch.randn(32 * 16 * 9).numpy()
    model = network()
    model[0].weight = nn.Parameter(torch.from_numpy(memory).view(32, 16, 3, 3))
    compiled = magneto.compile(model)
    check(model, compiled)
    memory[:100] = 2
    check(model, compiled)


def test_an_alias_made_and_dropped_between_calls() -> None:
    model = network()
    compiled = magneto.compile(model)
    check(model, compiled)
    array = model[0].weight.detach().numpy()
    check(model, compiled)
    array[...] = 2
    check(model, compiled)
    del array
    check(model, compiled)


def test_trained_all_the_time() -> None:
    model = network()
    compiled = magneto.compile(model)
    for _ in range(6):
        check(model, compiled)
        in_place(model[0].weight)


def test_weights_stay_the_callers() -> None:
    model = network()
    weight = model[0].weight
    before, version = weight.detach().clone(), weight._version
    compiled = magneto.compile(model)
    check(model, compiled)
    assert weight._version == version and torch.equal(weight, before)
    twin = copy.deepcopy(model)
    torch.save(model.state_dict(), io.BytesIO())
    in_place(weight)
    check(model, compiled)
    torch.testing.assert_close(twin[0].weight.detach(), before)
    del compiled
    magneto.reset()
    in_place(weight)
    assert torch.equal(weight, before * 4)


def test_what_was_trained_for_a_while_is_kept_again() -> None:
    model = network()
    compiled = magneto.compile(model)
    for _ in range(6):
        check(model, compiled)
        in_place(model[0].weight)
    assert steps_of(compiled, "reorder") == 2
    for _ in range(40):
        check(model, compiled)
    assert steps_of(compiled, "reorder") == 0


def test_an_evaluation_now_and_then() -> None:
    """Many calls between two changes: what is made of the weights stays worth keeping."""
    model = network()
    compiled = magneto.compile(model)
    for _ in range(5):
        for _ in range(10):
            check(model, compiled)
        in_place(model[0].weight)
    check(model, compiled)
    assert steps_of(compiled, "reorder") == 0


def test_training_between_evaluations() -> None:
    """Weights and running statistics as an optimizer's step and `train()` leave them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 8, 1)).eval()
    compiled = magneto.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        check(model, compiled)
        model.train()
        compiled(X).square().mean().backward()
        optimizer.step()
        model.eval()
        check(model, compiled)
        with torch.no_grad():
            model[1].running_mean.numpy()[...] += 1
        check(model, compiled)


def test_weights_that_cannot_be_watched_stay_as_they_are() -> None:
    model = network().requires_grad_(requires_grad=False)
    compiled = magneto.compile(model)
    check(model, compiled)
    assert steps_of(compiled, "reorder") == 0


def test_convolutions_take_no_memory_from_the_system_at_each_call() -> None:
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 3, 3)).eval()
    x = torch.randn(4, 3, 160, 160)
    compiled = magneto.compile(model)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        compiled(x)
        pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert pages < 100  # what lies between the convolutions is 3,200


def test_a_weight_that_is_frozen_later() -> None:
    model = network()
    compiled = magneto.compile(model)
    check(model, compiled)
    model.requires_grad_(requires_grad=False)
    check(model, compiled)
    model[0].weight.numpy()[...] = 2
    check(model, compiled)


@pytest.mark.parametrize("settings", [{"groups": 16}, {"stride": 2, "padding": 1}, {"dilation": 2}, {"bias": False}])
def test_convolutions(settings: dict[str, int]) -> None:
    model = nn.Sequential(nn.Conv2d(16, 32, 3, **settings), nn.ReLU()).eval()
    compiled = magneto.compile(model)
    check(model, compiled)
    assert steps_of(compiled, "mkldnn") == 1
    check(model.to(memory_format=torch.channels_last), compiled)


@pytest.mark.parametrize("sizes", [(0, 16, 9, 9), (1, 16, 3, 3), (1, 16, 9, 3), (3, 16, 3, 3)])
def test_convolutions_of_hardly_anything(sizes: tuple[int, ...]) -> None:
    model = nn.Conv2d(16, 32, 3).eval().to(memory_format=torch.channels_last)
    x = torch.randn(sizes).to(memory_format=torch.channels_last)
    compiled = magneto.compile(model)
    with torch.no_grad():
        for _ in range(2):
            result, expected = compiled(x), model(x)
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
            assert result.stride() == expected.stride()


def test_no_number_is_lost_in_a_convolution() -> None:
    """The library's own activations turn NaN into zero."""
    model = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()).eval()
    x = X.clone()
    x[0, :, 3, 3], x[1, :, 9, 9] = float("nan"), float("inf")
    with torch.no_grad():
        torch.testing.assert_close(magneto.compile(model)(x), model(x), equal_nan=True, rtol=1e-4, atol=1e-5)


def test_without_the_library() -> None:
    model = network()
    compiled = magneto.compile(model)
    with torch.backends.mkldnn.flags(enabled=False):
        check(model, compiled)
        assert steps_of(compiled, "mkldnn") == 0


def test_first_called_in_inference_mode() -> None:
    model = network()
    compiled = magneto.compile(model)
    with torch.inference_mode():
        first = compiled(X)
    check(model, compiled)
    in_place(model[0].weight)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(X), model(X), rtol=1e-4, atol=1e-5)
    check(model, compiled)
    assert first.is_inference()


def test_two_programs_share_a_weight() -> None:
    model = network()
    first, second = magneto.compile(model), magneto.compile(lambda x: model(x) + 1)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(first(X) + 1, second(X))
            in_place(model[0].weight)


def test_threads() -> None:
    model = network()
    compiled = magneto.compile(model)
    check(model, compiled)
    in_place(model[0].weight)
    expected = model(X).detach()
    failures = []

    def work() -> None:
        with torch.no_grad():
            for _ in range(20):
                if not torch.allclose(compiled(X), expected, rtol=1e-4, atol=1e-5):
                    failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_memory_is_counted_and_has_a_budget() -> None:
    def held(name: str) -> int:
        gc.collect()
        return magneto.stats()["memory"][name]

    before = {name: held(name) for name in ("arenas", "weights")}
    model = network()
    compiled = magneto.compile(model)
    check(model, compiled)
    plain = sum(weight.nbytes for weight in (model[0].weight, model[2].weight))
    assert plain <= held("weights") - before["weights"] < 3 * plain
    assert held("arenas") > before["arenas"]
    magneto.reset()
    del compiled
    assert {name: held(name) for name in before} == before
    magneto.config.prepared_weights_mb = 0
    try:
        compiled = magneto.compile(model)
        check(model, compiled)
        assert held("weights") == before["weights"]
    finally:
        magneto.config.prepared_weights_mb = 1024


def test_a_result_takes_the_place_of_an_operand_that_is_needed_no_more() -> None:
    def attention(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax((x @ x.mT) * 0.125 + 1, -1) @ x

    x = torch.randn(4, 128, 64)
    before = magneto.stats()["memory"]["arenas"]
    compiled = magneto.compile(attention)
    torch.testing.assert_close(compiled(x), attention(x))
    assert magneto.stats()["memory"]["arenas"] - before == 4 * 128 * 128 * 4
