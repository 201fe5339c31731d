"""Gradients, hooks, checkpoints, modules and model outputs, with what they hang on changed between calls."""

import copy
import dataclasses
from typing import Optional

import torch
from scenario import Registry, v
from transformers.utils import ModelOutput

scenario = Registry()


@dataclasses.dataclass
class Out(ModelOutput):
    loss: Optional[torch.Tensor] = None
    logits: Optional[torch.Tensor] = None
    extra: Optional[tuple] = None


@scenario
def model_output_out(start):

    def program(x, full):
        return Out(logits=x + 1, extra=(x, x * 2)) if full else Out(loss=x.sum(), logits=x)

    c = start(program)
    r = c(v(), True)
    c(v(), False)
    c(v(), True)


@scenario
def model_output_in(start):

    def program(o):
        o["logits"] = o.logits * 2
        return (o.logits + 1, o[0], o.to_tuple(), list(o.keys()), o.get("loss") is None, len(o), "extra" in o)

    c = start(program)
    c(Out(logits=v()))
    c(Out(logits=v(2)))
    c(Out(loss=v()[0], logits=v()))
    o = Out(logits=v(), extra=(v(),))
    c(o)
    c(o)


@scenario
def model_output_attribute_set(start):

    def program(o, x):
        o.loss = x.sum()
        o.note = "n"
        return (o, o.loss)

    c = start(program)
    c(Out(logits=v()), v())
    c(Out(loss=v(), logits=v()), v())


@scenario
def checkpoint_part(start):
    from torch.utils.checkpoint import checkpoint

    lin = torch.nn.Linear(6, 6)

    def part(x):
        return torch.tanh(lin(x) / 6)

    def program(x):
        return checkpoint(part, x, use_reentrant=False) * 2

    out = []
    c = start(program, out)
    for i in range(2):
        x = v().requires_grad_()
        y = c(x)
        y.sum().backward()
        out.append(x.grad)
        out.append(lin.weight.grad.clone())
    with torch.no_grad():
        c(v())


@scenario
def checkpoint_dropout(start):
    from torch.utils.checkpoint import checkpoint

    def part(x):
        return torch.nn.functional.dropout(x, 0.5) * 2

    def program(x):
        return checkpoint(part, x, use_reentrant=False).sin()

    out = []
    c = start(program, out)
    for i in range(2):
        x = v().requires_grad_()
        c(x).sum().backward()
        out.append(x.grad)
    c(v())


@scenario
def hooks_on_results_and_params(start):
    lin = torch.nn.Linear(6, 2)
    log = []

    def program(x):
        return lin(x).relu()

    c = start(program, log)
    lin.weight.register_hook(lambda g: log.append("w"))
    lin.weight.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.sum().item()))
    y = c(v())
    y.register_hook(lambda g: g * 2)
    y.sum().backward()
    c(v())
    log.append(lin.weight.grad)
    c(v())


@scenario
def full_backward_hooks(start):
    m = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.Tanh())
    log = []

    def program(x):
        return m(x)

    c = start(program, log)
    x = v().requires_grad_()
    c(x).sum().backward()
    h = m[0].register_full_backward_hook(lambda mod, gi, go: log.append(go[0].clone()))
    c(x).sum().backward()
    h.remove()
    c(x).sum().backward()
    log.append(x.grad)
    c(x)


@scenario
def backward_in_loop_with_optimizer(start):
    m = torch.nn.Linear(6, 1)
    opt = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)

    def program(x, t):
        opt.zero_grad()
        loss = ((m(x) - t) ** 2).mean()
        loss.backward()
        opt.step()
        return loss.detach()

    c = start(program, *m.parameters())
    [c(v(), torch.tensor(1.0)) for _ in range(4)]


@scenario
def backward_with_retain_inside(start):
    w = v().requires_grad_()

    def program(x):
        y = (w * x).sum()
        y.backward(retain_graph=True)
        g = w.grad.clone()
        y.backward()
        return (g, w.grad)

    c = start(program, w)
    c(v())
    w.grad = None
    c(v())


@scenario
def accumulation_over_calls(start):
    w = torch.ones(6).requires_grad_()

    def program(x):
        return (w * x).sin()

    c = start(program, w)
    ys = [c(v(i)) for i in range(3)]
    [y.sum().backward() for y in reversed(ys)]
    g = start(lambda: w.grad)
    g()


@scenario
def backward_through_two_compiled(start):
    f = start(lambda x: x.sin() * 2)
    g = start(lambda x: x.exp())
    x = v().requires_grad_()
    y = g(f(x))
    y.sum().backward()
    start(lambda: x.grad)()


@scenario
def grad_of_results_partially_used(start):
    w = v().requires_grad_()

    def program(x):
        return (x * w, (x + w).sum(), x.detach() * w)

    c = start(program, w)
    a, b, d = c(v())
    b.backward()
    c(v())
    (a.sum() + d.sum()).backward()
    start(lambda: w.grad)()


@scenario
def set_grad_enabled_inside(start):
    w = v().requires_grad_()

    def program(x, on):
        with torch.set_grad_enabled(on):
            y = x * w
        z = y + w.detach()
        torch.set_grad_enabled(on)
        r = w * 2
        torch.set_grad_enabled(True)
        return (y, z, r)

    c = start(program)
    c(v(), True)
    c(v(), False)
    c(v(), True)


@scenario
def inference_tensors(start):

    def program(x, w):
        return (x * w, x.is_inference(), x + 1)

    c = start(program)
    w = v()
    with torch.inference_mode():
        t = v()
        c(t, w)
    c(t, w)
    c(v(), w)
    try:
        c(t, w.clone().requires_grad_())
    except RuntimeError:
        pass


@scenario
def custom_function_saved(start):

    class F(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, k):
            ctx.save_for_backward(x)
            ctx.k = k
            return x * k

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return (g * ctx.k + x * 0, None)

    def program(x, k):
        return F.apply(x, k).sin()

    out = []
    c = start(program, out)
    for k in (2, 3, 2.5):
        x = v().requires_grad_()
        c(x, k).sum().backward()
        out.append(x.grad)
    c(v(), 2)


@scenario
def dispatch_by_requires_grad(start):

    def program(x):
        return x * 2 if x.requires_grad else x * 3

    c = start(program)
    c(v())
    c(v().requires_grad_())
    with torch.no_grad():
        c(v().requires_grad_())


@scenario
def generators_exceptions(start):

    def gen(x, bad):
        try:
            yield x
            if bad:
                raise ValueError("bad")
            yield (x + 1)
        finally:
            log.append("closed")

    log = []

    def program(x, bad):
        out = []
        try:
            for t in gen(x, bad):
                out.append(t * 2)
        except ValueError as e:
            out.append(str(e))
        return out

    c = start(program, log)
    c(v(), False)
    c(v(), True)
    c(v(), False)


@scenario
def torch_function_mode(start):
    from torch.overrides import TorchFunctionMode

    class M(TorchFunctionMode):
        def __torch_function__(s, f, t, a=(), k=None):
            r = f(*a, **k or {})
            return r + 1 if f is torch.sin else r

    def program(x):
        return (torch.sin(x), x.cos())

    c = start(program)
    c(v())
    with M():
        c(v())
    c(v())


@scenario
def subclass_of_tensor(start):

    class T(torch.Tensor):
        pass

    class W(torch.Tensor):
        @classmethod
        def __torch_function__(cls, f, types, args=(), kwargs=None):
            log.append(getattr(f, "__name__", str(f)))
            return super().__torch_function__(f, types, args, kwargs or {})

    log = []

    def program(x):
        return (x + 1, x.sum(), x[0])

    c = start(program, log)
    c(v().as_subclass(T))
    c(v().as_subclass(W))
    c(v())


@scenario
def attr_set_in_forward(start):

    class M(torch.nn.Module):
        def __init__(s):
            super().__init__()
            s.n = 0
            s.register_buffer("b", torch.zeros(6))
            s.last = None

        def forward(s, x):
            s.n += 1
            s.b = s.b + x
            s.last = x * 2
            s.b.mul_(0.5)
            return s.b * s.n

    m = M()
    c = start(lambda x: m(x), m)
    [c(v()) for _ in range(3)]
    m.n = 10
    m.b.zero_()
    c(v())
    m.b = torch.ones(6)
    c(v())


@scenario
def deepcopy_of_module_between(start):
    m = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6))

    def program(mod, x):
        return mod(x)

    c = start(program)
    x = torch.arange(12.0).view(2, 6)
    c(m, x)
    m2 = copy.deepcopy(m)
    c(m2, x)
    m2.eval()
    c(m2, x)
    m.eval()
    c(m, x)
    m.train()
    m[1].momentum = 0.5
    c(m, x)
    m[1].track_running_stats = False
    c(m, x)
    m[1].running_mean = None
    m[1].running_var = None
    c(m, x)


@scenario
def dropout_p_changed(start):
    m = torch.nn.Dropout(0.5)
    c = start(lambda x: m(x))
    c(v())
    m.p = 0.9
    c(v())
    m.eval()
    c(v())
    m.train()
    m.p = 0.0
    c(v())
    m.inplace = True
    x = v()
    c(x)


@scenario
def parameter_list_changes(start):
    pl = torch.nn.ParameterList([torch.nn.Parameter(v()) for _ in range(2)])
    pd = torch.nn.ParameterDict({"a": torch.nn.Parameter(v())})
    ml = torch.nn.ModuleDict({"l": torch.nn.Linear(6, 6)})

    def program(x):
        for p in pl:
            x = x + p
        for k, p in pd.items():
            x = x * p
        for k, q in ml.items():
            x = q(x)
        return x

    c = start(program)
    c(v())
    pl.append(torch.nn.Parameter(v(3)))
    c(v())
    pd["b"] = torch.nn.Parameter(v(2))
    c(v())
    del pd["a"]
    c(v())
    ml["r"] = torch.nn.ReLU()
    c(v())
    ml.pop("l")
    c(v())
    pl[0] = torch.nn.Parameter(v(0))
    c(v())


@scenario
def tied_and_untied(start):
    a = torch.nn.Linear(6, 6)
    b = torch.nn.Linear(6, 6)
    b.weight = a.weight

    def program(x):
        return (b(a(x)), a.weight is b.weight)

    c = start(program)
    c(v())
    b.weight = torch.nn.Parameter(torch.eye(6))
    c(v())
    b.weight = a.weight
    c(v())
    with torch.no_grad():
        a.weight.add_(1)
    c(v())


@scenario
def swap_tensors(start):
    a = torch.nn.Parameter(v())
    b = torch.nn.Parameter(v(2).view(2, 3))

    def program(x):
        return (x * a.sum(), a.shape)

    c = start(program)
    c(v())
    torch.utils.swap_tensors(a, b)
    c(v())


@scenario
def resize_and_set(start):
    t = v()

    def program(x):
        return (x.sum() + t.sum(), t.shape)

    c = start(program)
    c(v())
    t.resize_(3)
    c(v())
    t.set_(v(5))
    c(v())
    t.unsqueeze_(0)
    c(v())
    t.requires_grad_()
    c(v())
    t.grad = torch.ones(1, 6)
    c(v())
    t.data = torch.ones(2)
    c(v())
