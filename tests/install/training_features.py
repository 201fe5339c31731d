"""More of what eager PyTorch can do (eager_features.py): training, several processes, tools for tests."""

from __future__ import annotations

import os
import tempfile

import torch
from install.eager_features import Small, close, cube, features
from torch import nn


def with_one_process() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


# Training.


def every_optimizer():
    for name in torch.optim.__all__:
        kind = getattr(torch.optim, name, None)
        if not isinstance(kind, type) or kind in (torch.optim.Optimizer, torch.optim.SparseAdam, torch.optim.LBFGS):
            continue
        weight = nn.Parameter(torch.ones(3, 3))
        optimizer = kind([weight], lr=0.1)
        (weight**2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert not torch.equal(weight, torch.ones(3, 3)), name
        kind([weight], lr=0.1).load_state_dict(optimizer.state_dict())
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.LBFGS([weight])

    def closure():
        optimizer.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def a_training_loop():
    from torch.optim.lr_scheduler import CosineAnnealingLR
    from torch.optim.swa_utils import AveragedModel

    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    schedule, average = CosineAnnealingLR(optimizer, 5), AveragedModel(model)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(16, 4)), 4, num_workers=1)
    for (x,) in data:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
    assert torch.isfinite(loss)


def parametrizations():
    from torch.nn.utils import parametrizations, parametrize, prune

    for linear in (parametrizations.weight_norm(nn.Linear(3, 3)), parametrizations.spectral_norm(nn.Linear(3, 3))):
        assert parametrize.is_parametrized(linear) and linear(torch.rand(1, 3)).shape == (1, 3)
    prune.l1_unstructured(pruned := nn.Linear(3, 3), "weight", amount=2)
    assert (pruned.weight == 0).sum() == 2
    parametrizations.orthogonal(nn.Linear(3, 3))(torch.rand(1, 3))


def lazy_modules_and_hooks():
    model = nn.LazyLinear(3)
    seen = []
    model.register_forward_hook(lambda module, args, result: seen.append(result.shape))
    model.register_full_backward_hook(lambda module, grads, results: seen.append("backward"))
    model(torch.rand(2, 5, requires_grad=True)).sum().backward()
    assert seen == [(2, 3), "backward"]


def distributions():
    from torch import distributions as D

    normal = D.Normal(torch.zeros(2), torch.ones(2))
    close(D.kl_divergence(normal, normal), torch.zeros(2))
    for each in (
        normal,
        D.Gamma(torch.ones(2), torch.ones(2)),
        D.Categorical(torch.ones(3)),
        D.Dirichlet(torch.ones(3)),
    ):
        each.log_prob(each.sample())


def saving_and_copying():
    import copy
    import pickle

    with tempfile.TemporaryDirectory() as folder:
        file, model = os.path.join(folder, "model.pt"), nn.Linear(3, 3)
        torch.save(model.state_dict(), file)
        again = nn.Linear(3, 3)
        again.load_state_dict(torch.load(file, weights_only=True, mmap=True))
        close(again.weight, model.weight)
        torch.save(model, file)
        close(torch.load(file, weights_only=False).weight, model.weight)
    close(pickle.loads(pickle.dumps(copy.deepcopy(model))).weight, model.weight)


def profiling():
    from torch.profiler import ProfilerActivity, profile, record_function

    # Without stacks: PyTorch's own tracer of Python gives names of freed memory now and then (UnicodeDecodeError in up to
    # 18 of 40 processes that never heard of Magneto).
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        with record_function("mine"):
            torch.ones(3).sin()
    assert "mine" in profiler.key_averages().table()
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(os.path.join(folder, "trace.json"))


def benchmarks():
    from torch.utils.benchmark import Timer

    assert Timer("x.sin()", globals={"x": torch.ones(3)}).timeit(2).mean > 0


def random_numbers():
    torch.manual_seed(3)
    first = torch.rand(3)
    with torch.random.fork_rng():
        torch.rand(3)
    generator = torch.Generator().manual_seed(3)
    close(torch.rand(3, generator=generator), first)
    torch.seed()


# Several processes, of which there is one.


def data_parallel():
    with_one_process()
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 3))
    model(torch.rand(2, 3)).sum().backward()
    assert model.module.weight.grad is not None
    torch.distributed.all_reduce(torch.ones(2))
    gathered = [torch.zeros(2)]
    torch.distributed.all_gather(gathered, torch.ones(2))
    close(gathered[0], torch.ones(2))


def distributed_tensors():
    with_one_process()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    x = distribute_tensor(torch.rand(4, 4), mesh, [Shard(0)])
    y = (x @ x.t()).relu().redistribute(placements=[Replicate()])
    assert isinstance(y, DTensor)
    close(y.to_local(), (x.to_local() @ x.to_local().t()).relu())
    model = distribute_module(nn.Linear(4, 4), mesh)
    model(x).sum().backward()


def compiled_distributed_tensors():
    """Side exits: C++ of PyTorch dispatches their operators."""
    with_one_process()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    x = distribute_tensor(torch.rand(4, 4), mesh, [Shard(0)])

    def product(x):
        return (x @ x.t()).relu() * 2

    def of_local(x):
        return product(DTensor.from_local(x, mesh, [Shard(0)])).redistribute(placements=[Replicate()]).to_local() + 1

    compiled = torch.compile(product)
    for _ in range(2):
        y = compiled(x)
        assert isinstance(y, DTensor) and y.placements == product(x).placements
        close(y.to_local(), product(x).to_local())
    compiled = torch.compile(of_local)
    for _ in range(2):
        close(compiled(x.to_local()), of_local(x.to_local()))


def tensor_parallel():
    with_one_process()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (1,))
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), torch.rand(2, 4)
    want = model(x)
    model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    got = model(x)
    close(got, want.detach()) if not got.requires_grad else close(got.detach(), want.detach())
    got.sum().backward()


def sharded_data_parallel():
    with_one_process()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (1,))
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy())
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(2, 4)).sum().backward()
    optimizer.step()


def distributed_checkpoints():
    with_one_process()
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    model = nn.Linear(3, 3)
    with tempfile.TemporaryDirectory() as folder:
        state = get_model_state_dict(model)
        dcp.save(state, checkpoint_id=folder)
        dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state)


def collectives_as_functions():
    with_one_process()
    import torch.distributed._functional_collectives as collectives

    got = collectives.all_reduce(torch.ones(2), "sum", torch.distributed.group.WORLD)
    close(got + 0, torch.ones(2))


# What tests of PyTorch and of libraries are written with.


def with_expecttest() -> None:
    """PyTorch's own tests need it; of what they need of it, unittest has all."""
    import sys
    import types
    import unittest

    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase
    sys.modules.setdefault("expecttest", stand_in)


def tools_for_tests():
    with_expecttest()
    from torch.testing import assert_close, make_tensor
    from torch.testing._internal.common_utils import TestCase, parametrize, run_tests  # noqa: F401

    x = make_tensor((3, 3), dtype=torch.float32, device="cpu")
    assert_close(x, x.clone())

    class Test(TestCase):
        def test_one(self):
            self.assertEqual(x, x.clone())

    import unittest

    result = unittest.TextTestRunner(stream=open(os.devnull, "w")).run(
        unittest.defaultTestLoader.loadTestsFromTestCase(Test)
    )
    assert result.testsRun == 1 and result.wasSuccessful(), (result.errors, result.failures)


def database_of_operators():
    with_expecttest()
    from torch.testing._internal.common_methods_invocations import op_db

    (sin,) = (info for info in op_db if info.name == "sin")
    sample = next(iter(sin.sample_inputs("cpu", torch.float32)))
    close(sin(sample.input), sample.input.sin())


def functions_of_torch_compiler():
    assert torch.compiler.is_compiling() is False and torch.compiler.is_dynamo_compiling() is False
    assert torch.compiler.is_exporting() is False
    torch.compiler.cudagraph_mark_step_begin()
    torch.compiler.reset()
    assert "inductor" in torch.compiler.list_backends()
    assert torch.compiler.disable(torch.sin)(torch.zeros(1)) == 0
    assert torch.compiler.allow_in_graph(cube) is cube and torch.compiler.assume_constant_result(cube) is cube
    with torch.compiler.set_stance("default"):
        pass
    assert torch.compiler.wrap_numpy(lambda x: x + 1)(torch.zeros(1)).tolist() == [1]
    torch.compiler.save_cache_artifacts()


def weights_of_pytrees():
    import torch.utils._pytree as pytree

    leaves, spec = pytree.tree_flatten({"a": [torch.ones(1), 2], "b": (3,)})
    assert len(leaves) == 3 and pytree.tree_unflatten(leaves, spec)["b"] == (3,)
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec


def tracking_memory_and_modules():
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.distributed._tools.mod_tracker import ModTracker
    from torch.utils.module_tracker import ModuleTracker

    model = Small()
    with ModuleTracker() as tracker:
        model(torch.rand(2, 4))
    with ModTracker():
        model(torch.rand(2, 4))
    memory = MemTracker()
    memory.track_external(model)
    with memory:
        model(torch.rand(2, 4)).sum().backward()


def anomalies_and_determinism():
    import warnings

    torch.use_deterministic_algorithms(True)
    x = torch.zeros(1, requires_grad=True)
    with warnings.catch_warnings(), torch.autograd.detect_anomaly():
        warnings.simplefilter("ignore")
        try:
            (x / x).sqrt().backward()
        except RuntimeError as error:
            assert "nan" in str(error)


def numpy_and_dlpack():
    import numpy

    x = torch.arange(3.0)
    close(torch.from_numpy(x.numpy()), x)
    close(torch.from_dlpack(x), x)
    assert isinstance(numpy.asarray(x), numpy.ndarray)


def tensorboard_and_logging():
    import torch._logging

    torch._logging.set_logs(graph_breaks=True)
    torch._logging.set_logs()


FEATURES = features(globals())
