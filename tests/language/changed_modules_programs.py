"""Modules and tensors whose parts are exchanged between calls: parameters, buffers, hooks, modes, views, dtypes."""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from scenario import Registry, v
from torch import nn

scenario = Registry()


@scenario
def parameter_dicts_changed(start):

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.ParameterDict({"a": nn.Parameter(v()), "b": nn.Parameter(v(2))})

        def forward(self, x):
            for name, p in self.p.items():
                x = x * p + len(name)
            if "c" in self.p:
                x = x - self.p["c"]
            return (x, len(self.p))

    net = Net()
    c = start(net)
    c(v())
    net.p["c"] = nn.Parameter(v(3))
    c(v())
    del net.p["a"]
    c(v())
    net.p.update({"b": nn.Parameter(v(5))})
    c(v())
    net.p.b = nn.Parameter(v(6))
    c(v())


@scenario
def parameter_lists_changed(start):

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.ParameterList([nn.Parameter(v()), nn.Parameter(v(2))])

        def forward(self, x):
            for i, p in enumerate(self.p):
                x = x * p + i
            return (x, self.p[-1] + 1, len(self.p))

    net = Net()
    c = start(net)
    c(v())
    net.p.append(nn.Parameter(v(3)))
    c(v())
    net.p[0] = nn.Parameter(v(4))
    c(v())
    net.p[0], net.p[1] = net.p[1], net.p[0]
    c(v())
    net.p.extend([v(7)])
    c(v())


@scenario
def hooks_added_and_removed(start):
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(6))
    log = []
    c = start(net, log)
    c(v())

    def pre(module, args):
        log.append("pre")
        return (args[0] * 2,)

    def post(module, args, out):
        log.append("post")
        return out + 1

    first = net[0].register_forward_pre_hook(pre)
    c(v())
    second = net.register_forward_hook(post)
    c(v())
    first.remove()
    c(v())
    third = nn.modules.module.register_module_forward_hook(lambda m, a, o: o * 3)
    try:
        c(v())
    finally:
        third.remove()
    c(v())
    second.remove()
    c(v())
    net[0].register_forward_hook(lambda m, a, k, o: o + len(k), with_kwargs=True, always_call=True)
    c(v())


@scenario
def buffers_replaced_and_registered(start):

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(6))
            self.register_buffer("count", torch.tensor(0), persistent=False)
            self.register_buffer("none", None)

        def forward(self, x):
            self.count += 1
            self.mean = self.mean * 0.5 + x * 0.5
            return x - self.mean if self.none is None else x * self.none

    net = Net()
    c = start(net, net)
    c(v())
    c(v())
    net.mean = torch.ones(6)
    c(v())
    net.none = v(2)
    c(v())
    net.none = None
    c(v())
    net.register_buffer("mean", torch.ones(1))
    c(v())
    del net.count
    c(v())
    net.count = 5
    c(v())


@scenario
def gradients_switched(start):
    net = nn.Linear(6, 2)
    with torch.no_grad():
        net.weight.fill_(0.5)
        net.bias.fill_(1.0)

    def program(x):
        y = net(x)
        return (y, y.requires_grad, net.weight.requires_grad)

    c = start(program)
    c(v())
    net.requires_grad_(False)
    c(v())
    net.bias.requires_grad_(True)
    c(v())
    c(v().requires_grad_())
    with torch.no_grad():
        c(v())
    net.weight.requires_grad_()
    c(v())
    net.weight = nn.Parameter(net.weight.detach() * 2, requires_grad=False)
    c(v())


@scenario
def modes_of_parts(start):
    net = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(1.0), nn.Sequential(nn.Dropout(1.0)))
    c = start(net, net)
    x = torch.stack([v(), v(2), v(3)])
    c(x)
    net[1].eval()
    c(x)
    net.eval()
    c(x)
    net[2].train()
    c(x)
    net[2].training = False
    net[0].track_running_stats = False
    c(x)
    net[2][0].train()
    net[2][0].p = 0.0
    c(x)
    net.train()
    c(x)


@scenario
def layers_moved_in_lists(start):

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Tanh(), nn.Identity(), nn.ReLU()])
            self.heads = nn.ModuleDict({"a": nn.Identity()})

        def forward(self, x):
            x = x - 3
            for i, layer in enumerate(self.layers):
                x = layer(x) + i
            for name, head in self.heads.items():
                x = head(x) * (len(name) + 1)
            return (x, [n for n, _ in self.named_modules()])

    net = Net()
    c = start(net)
    c(v())
    net.layers[0], net.layers[2] = net.layers[2], net.layers[0]
    c(v())
    net.layers.insert(1, nn.Sigmoid())
    c(v())
    del net.layers[0]
    c(v())
    net.heads["long"] = nn.Tanh()
    c(v())
    net.heads.pop("a")
    c(v())
    net.layers = nn.ModuleList()
    c(v())
    net.add_module("extra", nn.ReLU())
    c(v())


@scenario
def state_loaded(start):
    net = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)).eval()
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.fill_(i + 1.0)
    saved = copy.deepcopy(net.state_dict())
    c = start(net)
    x = torch.stack([v(), v(2)])
    c(x)
    with torch.no_grad():
        net[0].weight.zero_()
    c(x)
    net.load_state_dict(saved)
    c(x)
    net.load_state_dict({k: t * 2 for k, t in saved.items()}, assign=True)
    c(x)
    net.double()
    c(x.double())
    net.float()
    c(x)
    nn.init.constant_(net[0].weight, 0.25)
    c(x)


@scenario
def models_copied_and_tied(start):

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 6)
            self.b = nn.Linear(6, 6)

        def forward(self, x):
            return (self.b(self.a(x)), self.a.weight is self.b.weight, sum(1 for _ in self.parameters()))

    net = Net()
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(0.1)

    def program(net, x):
        return net(x)

    c = start(program)
    c(net, v())
    net.b.weight = net.a.weight
    c(net, v())
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.a.weight.fill_(0.2)
    c(other, v())
    c(net, v())
    other.b.weight = nn.Parameter(torch.ones(6, 6))
    c(other, v())


@scenario
def views_of_arguments_written(start):

    def program(x, y):
        x[1:4].mul_(2)
        y.add_(1)
        row = x.view(2, 3)[1]
        row[0] = 100.0
        return (x, y, row, x.t() if x.dim() == 2 else x.flip(0))

    c = start(program)
    x = v()
    c(x, v(2))
    c(x, x)
    c(x, x[2:])
    c(x[:6], x.view(3, 2))
    z = torch.arange(12.0)
    c(z[::2], z[1::2])
    c(z[:6], z[3:9])
    c(z[3:9], z[:6])


@scenario
def writes_to_overlapping_views(start):

    def program(x):
        a = x[:4]
        b = x[2:]
        a += 1
        b *= 2
        a.copy_(b)
        x[1:].copy_(x[:-1].clone())
        x.view(2, 3).t()[0].zero_()
        return (a, b, x.sum())

    c = start(program)
    x = v()
    c(x)
    c(x)
    c(torch.arange(12.0)[::2])
    c(v().expand(1, 6)[0])


@scenario
def outputs_given_by_out(start):
    held = {"out": torch.zeros(6)}

    def program(x):
        torch.add(x, 1, out=held["out"])
        torch.mul(held["out"], x, out=x)
        y = torch.empty(0)
        r = torch.sub(x, 1, out=y)
        return (held["out"], x, r is y, y)

    c = start(program, held)
    c(v())
    held["out"] = torch.zeros(6, dtype=torch.float64)
    c(v())
    x = v()
    held["out"] = x
    c(x)
    big = torch.zeros(10)
    held["out"] = big[2:8]
    c(big[4:])
    held["out"] = torch.zeros(6, dtype=torch.int64)
    c(v())


@scenario
def dtypes_promoted(start):
    held = {"s": torch.tensor(2.0, dtype=torch.float64), "n": np.float32(1.5)}

    def program(x):
        a = x * held["s"]
        b = x + held["n"]
        return (a, b, a.dtype, (x > 2) * held["s"], x // 2, torch.result_type(x, held["s"]), held["s"] * held["n"])

    c = start(program)
    c(v())
    c(torch.arange(6))
    held["s"] = torch.tensor(2)
    c(v())
    c(torch.arange(6, dtype=torch.int8))
    held["s"] = torch.tensor([2.0], dtype=torch.float64)
    c(v())
    held["n"] = np.int64(3)
    c(torch.arange(6, dtype=torch.int16))
    held["n"] = np.bool_(True)
    c(torch.arange(6, dtype=torch.uint8))
    held["s"] = True
    c(torch.arange(6) > 2)
    held["s"] = 1.5
    c(torch.arange(6).half())


@scenario
def default_dtype_changed(start):

    def program(x, values):
        a = torch.tensor(values)
        b = torch.arange(3) / 2
        z = torch.zeros(2)
        return (x + a.sum(), a.dtype, b, z, torch.get_default_dtype(), torch.full((2,), 1.5), x.new_zeros(1))

    c = start(program)
    c(v(), [1.0, 2.0])
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        c(v(), [1.0, 2.0])
        c(v(), [1, 2])
        torch.set_default_dtype(torch.bfloat16)
        c(v(), [1.0, 2.0])
    finally:
        torch.set_default_dtype(before)
    c(v(), [1.0, 2.0])


@scenario
def tensors_in_containers_exchanged(start):
    state = {"list": [v(), v(2)], "map": {"k": v(3)}, "pair": (v(4), 2)}

    def program(x):
        for t in state["list"]:
            x = x + t
        x = x * state["map"]["k"] + state["pair"][0] * state["pair"][1]
        state["list"].append(x)
        return x

    c = start(program, state)
    c(v())
    c(v())
    state["list"][0] = state["list"][1]
    c(v())
    state["list"][:] = [v(), v()[:1]]
    c(v())
    state["map"]["k"] = state["list"][0]
    c(v())
    state["pair"] = (v(4).double(), 3)
    c(v())


@scenario
def caches_kept_in_modules(start):

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = {}
            self.step = 0
            self.k = None

        def forward(self, x):
            key = (x.shape[0], x.dtype)
            if key not in self.cache:
                self.cache[key] = torch.arange(x.shape[0], dtype=x.dtype)
            self.k = x if self.k is None else torch.cat([self.k, x])
            self.step += 1
            return (x + self.cache[key], self.k.shape[0], self.step)

    net = Attention()
    c = start(net, net)
    c(v())
    c(v())
    c(v()[:3])
    c(v().double())
    net.cache.clear()
    net.k = None
    c(v())
    net.step = 100
    c(v())


@scenario
def functions_taken_from_tables(start):
    table = {"relu": F.relu, "silu": torch.tanh}
    order = ["relu", "silu"]

    def program(x):
        x = x - 3
        for name in order:
            x = table[name](x)
        act = getattr(F, order[-1], None) or table[order[-1]]
        return act(x)

    c = start(program)
    c(v())
    table["silu"] = torch.neg
    c(v())
    order.reverse()
    c(v())
    order.append("softplus")
    table["softplus"] = lambda x: x * 2
    c(v())


@scenario
def gradients_accumulated_and_cleared(start):
    w = nn.Parameter(v())

    def program(x):
        y = (x * w).sum()
        return (y, w.grad if w.grad is None else w.grad * 2)

    c = start(program, w)
    c(v()).__getitem__(0).backward()
    c(v())
    w.grad.zero_()
    c(v())[0].backward()
    w.grad = None
    c(v())
    w.grad = v(3)
    c(v())
    w.data = v(5)
    c(v())
    w.data = torch.ones(1)
    w.grad = None
    c(v())


@scenario
def shapes_devices_and_strides_change(start):

    def program(x):
        if x.is_contiguous() and x.dim() == 2:
            return x.view(-1) * 2
        if x.dim() == 0:
            return x + 1
        return (x.reshape(-1) * 3, x.stride(), tuple(x.shape))

    c = start(program)
    m = torch.arange(6.0).view(2, 3)
    for x in (m, m.t(), m[:, :1], m[:1], m.t().contiguous(), m[0], m[0, 0], m.expand(2, 2, 3), m[:, ::2], m[:0]):
        c(x)


@scenario
def subclasses_of_parameters_and_tensors(start):

    class Scaled(nn.Parameter):
        factor = 2.0

        def scaled(self):
            return self * self.factor

    w = Scaled(v())

    def program(x):
        return (x * w.scaled(), isinstance(w, nn.Parameter), type(w) is nn.Parameter)

    c = start(program)
    c(v())
    w.factor = 3.0
    c(v())
    del w.factor
    Scaled.factor = 4.0
    c(v())
    w.tag = 1
    c(v())
