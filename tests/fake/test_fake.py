"""Fakes against eager: a callable run on fakes must give the metadata that eager's results have, or eager's exception.

Alone: OMP_NUM_THREADS=1 .venv/bin/python -m pytest tests/fake -q
"""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F

from magneto import _testing


def describe(value):
    """Metadata of the tensors in a nested result, in the form `_testing.fake_run` gives."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.stride(), value.storage_offset(), value.requires_grad
    if isinstance(value, (tuple, list)):
        return type(value)(map(describe, value)) if type(value) in (tuple, list) else tuple(map(describe, value))
    if isinstance(value, dict):
        return {key: describe(item) for key, item in value.items()}
    return value


def on_fakes(function, *args):
    metas, nodes, facts = _testing.fake_run(function, args)
    assert facts["alive"] == 0, "fakes outlived their session"
    return metas, nodes, facts


def check(function, *args):
    """Runs `function` on fakes and in eager; compares results or exceptions. Returns the recorded nodes."""
    metas, nodes, facts = on_fakes(function, *args)
    try:
        expected = function(*args)
    except Exception as error:  # noqa: BLE001
        assert facts["error"] is not None, f"eager raises {error!r}"
        assert facts["error"][0] is type(error), f"eager raises {error!r}, fakes {facts['error']!r}"
        assert facts["refusal"] is None
        return nodes
    assert facts["error"] is None, facts["error"]
    assert facts["refusal"] is None
    assert metas == describe(expected)
    return nodes


def tensors():
    torch.manual_seed(0)
    return dict(
        x=torch.randn(2, 3, 4),
        y=torch.randn(2, 3, 4),
        i=torch.arange(24).reshape(2, 3, 4),
        b=torch.rand(2, 3, 4) > 0.5,
        h=torch.randn(2, 3, 4, dtype=torch.bfloat16),
        d=torch.randn(4, dtype=torch.float64),
        c=torch.randn(3, 4, dtype=torch.complex64),
        s=torch.tensor(2.5),
        t=torch.randn(4, 3).t(),
        e=torch.empty(0, 3),
        im=torch.randn(2, 3, 8, 8),
        cl=torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),
        w=torch.randn(5, 3, 3, 3),
        v=torch.randn(10)[2:8:2],
    )


# Each row is an expression of the tensors above; `lambda`-free so that a failing one reads well.
EXPRESSIONS = """
x + 1
1 + x
x - y
x + i
x * 2.5
i * 2.5
i + True
i / 2
i // 2
x % 2
i ** 2
2 ** i
x ** y
x + 1j
1 - x
1 / x
-x
x + s
s + s
s + 1
b + 1
b + b
b * 1.0
h + 1
h + x
h * s
i + s
d + h
d + x
c + 1
c * x[0]
c.real + 1
c.imag
c.conj()
c.conj() + 1
c.abs()
torch.view_as_real(c)
torch.view_as_complex(torch.view_as_real(c))
x.t_() if x.dim() == 2 else x
x > 0
x > y
i == 3
(x > 0) & b
~b
i & 3
x.abs().sqrt().exp().log1p().tanh().sigmoid()
torch.where(b, x, y)
torch.where(b, x, 0.0)
torch.where(b, 1, 0)
torch.maximum(x, y)
x.clamp(0, 1)
x.clamp(min=s)
x.sum()
x.sum(1)
x.sum((0, 2), keepdim=True)
i.sum()
b.sum()
h.sum(-1)
x.mean(-1)
x.var(1)
x.std()
x.max()
x.max(1)
x.min(-1, keepdim=True)
x.argmax()
x.argmax(1)
x.amax((0, 1))
x.norm()
x.any()
b.all(1)
x.prod(0)
x.cumsum(1)
x.sort(1)
x.topk(2)
x.softmax(-1)
x.log_softmax(1)
h.softmax(-1)
x.logsumexp(1)
x.t() if x.dim() == 2 else x.mT
x.transpose(0, 1)
x.transpose(0, 1).contiguous()
x.permute(2, 0, 1)
x.view(6, 4)
x.view(-1)
x.reshape(-1)
x.transpose(0, 1).reshape(-1)
x.flatten(1)
x[0]
x[:, 1]
x[..., ::2]
x[:, None]
x[None, ..., -1]
x[1, 2, 3]
x[i[0, 0] % 2]
x[:, i[0, 0, :2] % 3]
x[[0, 1], [1, 2]]
x.unsqueeze(1).squeeze(1)
x.squeeze()
x.expand(5, 2, 3, 4)
x[:, :1].expand_as(x)
x.split(2, dim=-1)
x.chunk(2, -1)
x.unbind(1)
torch.tensor_split(x, 2, 2)
torch.cat([x, y], 1)
torch.cat([x, i], 0)
torch.cat([e, t])
torch.stack([x, y], -1)
torch.hstack([x, y])
x.narrow(1, 1, 2)
x.select(1, 2)
x.diagonal(0, 1, 2)
x.unfold(2, 2, 1)
x.as_strided((2, 2), (1, 2), 1)
x.repeat(1, 2, 1)
x.repeat_interleave(2, 1)
x.roll(1, 0)
x.flip(1)
x.tril()
x.movedim(0, 2)
x.index_select(1, i[0, 0, :2])
x.gather(1, i[:, :2] % 3)
x.scatter(1, i % 3, y)
x.scatter_add(1, i % 3, y)
x.masked_fill(b, 0)
x.masked_fill(b, s)
x.index_add(0, i[0, 0, :2] % 2, y)
torch.index_put(x, (i[0, 0, :2] % 2,), y[0])
x.to(torch.float64)
x.to(x.dtype)
x.to('cpu')
x.to(h)
x.half()
x.long()
x.bool()
x.type(torch.int32)
x.type_as(i)
x.clone()
t.clone()
t.contiguous()
x.contiguous()
cl.clone()
cl + 1
cl.contiguous()
im.to(memory_format=torch.channels_last)
im + cl
x.detach()
x.data
x.new_zeros(3)
x.new_full((2, 2), 3)
x.new_tensor([1, 2])
torch.empty_like(t)
torch.zeros_like(x)
torch.ones_like(cl)
torch.full_like(x, 3)
torch.rand_like(t)
torch.zeros(2, 3)
torch.ones(2, dtype=torch.int64)
torch.full((2,), 1)
torch.full((2,), 1.5)
torch.arange(5)
torch.arange(0, 1, 0.1)
torch.linspace(0, 1, 5)
torch.eye(3)
torch.randn(2, 3)
torch.randint(0, 5, (3,))
torch.randperm(4)
torch.empty(2, 3)
torch.empty_strided((2, 3), (1, 2))
torch.tensor([1, 2])
torch.tensor(3.0) + x
torch.tensor([1.0]) + i
torch.tensor(1.0) + i
torch.as_tensor(2) * x
torch.scalar_tensor(3) + i
torch.tril(torch.ones(4, 4)).bool()
torch.outer(d, d)
torch.einsum('bij,bkj->bik', x, y)
torch.matmul(x, t)
x @ y.mT
x[0] @ t
t @ x[0]
d @ d
x @ d.float()
torch.bmm(x, y.transpose(1, 2))
torch.baddbmm(x @ y.mT, x, y.mT)
torch.addmm(x[0] @ y[0].T, x[0], y[0].T)
F.linear(x, torch.ones(5, 4), torch.zeros(5))
F.relu(x)
F.gelu(x)
F.gelu(x, approximate='tanh')
F.silu(x)
F.leaky_relu(x)
F.elu(x)
F.softplus(x)
F.hardswish(x)
F.dropout(x, 0.5, training=True)
F.dropout(x, 0.5, training=False)
F.layer_norm(x, (4,))
F.layer_norm(h, (4,), torch.ones(4, dtype=torch.bfloat16))
F.rms_norm(x, (4,))
F.group_norm(im, 3)
F.batch_norm(im, torch.zeros(3), torch.ones(3))
F.batch_norm(im, torch.zeros(3), torch.ones(3), training=True)
F.instance_norm(im)
F.conv2d(im, w)
F.conv2d(cl, w)
F.conv2d(im, w, stride=2, padding=1)
F.conv_transpose2d(im, w.transpose(0, 1))
F.conv1d(im[:, :, 0], w[:, :, 0])
F.max_pool2d(im, 2)
F.max_pool2d(im, 2, return_indices=True)
F.avg_pool2d(im, 2)
F.adaptive_avg_pool2d(im, 1)
F.adaptive_avg_pool2d(cl, (2, 2))
F.interpolate(im, scale_factor=2)
F.interpolate(im, size=(5, 5), mode='bilinear')
F.pad(im, (1, 1, 0, 2))
F.pad(im, (1, 1, 1, 1), mode='reflect')
F.unfold(im, 2)
F.pixel_shuffle(im.repeat(1, 4, 1, 1), 2)
F.embedding(i % 5, w[:, 0, 0])
F.one_hot(i[0, 0], 4)
F.cross_entropy(x[0], i[0, :, 0] % 4)
F.mse_loss(x, y)
F.nll_loss(x[0].log_softmax(-1), i[0, :, 0] % 4)
F.binary_cross_entropy_with_logits(x, y)
F.kl_div(x, y.softmax(-1), reduction='batchmean')
F.cosine_similarity(x, y, -1)
F.normalize(x, dim=-1)
F.scaled_dot_product_attention(x[:, None], y[:, None], y[:, None])
F.scaled_dot_product_attention(x[:, None], y[:, None], y[:, None], is_causal=True)
F.scaled_dot_product_attention(x[:, None], y[:, None], y[:, None], attn_mask=b[:, None, :, :3])
F.grid_sample(im, torch.zeros(2, 4, 4, 2))
F.glu(x, -1)
torch.cdist(x, y)
torch.meshgrid(d, d, indexing='ij')
torch.broadcast_tensors(x, s)
torch.bucketize(x, d)
torch.searchsorted(d.sort().values, x.double())
torch.triu(x, 1)
torch.fft.rfft(x)
torch.isnan(x)
torch.isfinite(x)
torch.isinf(x).any()
torch.nan_to_num(x)
torch.finfo(x.dtype).min * x
torch.add(x, y, alpha=2)
torch.lerp(x, y, 0.5)
torch.addcmul(x, x, y, value=2)
torch.polar(x, y)
torch.complex(x, y)
torch.bernoulli(x.sigmoid())
torch.multinomial(x[0].softmax(-1), 2)
torch.kron(t, t)
torch.trace(t)
torch.block_diag(t, t)
torch.cross(x[:, :, :3], y[:, :, :3], dim=-1)
torch.linalg.norm(x, dim=-1)
torch.linalg.inv(x[0, :, :3])
torch.linalg.svd(x)
torch.diff(x)
torch.median(x, 1)
torch.mode(x, 1)
torch.histc(x)
torch.promote_types(x.dtype, i.dtype)
torch.result_type(x, i)
torch.can_cast(x.dtype, i.dtype)
v + 1
v.clone()
v.view(3)
e.sum()
e + 1
e.mean(0)
x.size(), x.numel(), x.is_contiguous(), len(x), x.element_size()
x.is_floating_point(), x.is_complex(), x.device.type, x.layout, x.ndim
x.untyped_storage().nbytes()
list(x)[1]
{'a': x + 1, 'b': [x, (y,)]}
# errors
x @ x
x + torch.ones(5)
x.view(7)
x.reshape(5, -1)
x[5]
x[0, 0, 0, 0]
x.sum(7)
x.transpose(0, 5)
torch.cat([x, s])
torch.cat([x, t])
torch.stack([x, t])
x.expand(3, 3, 4)
F.linear(x, torch.ones(5, 5))
F.conv2d(im, torch.ones(5, 4, 3, 3))
x.squeeze(9)
x.split([1, 1], 0)[5]
x.index_select(9, i[0, 0])
x.gather(1, x)
x.to('nonsense')
x.foo
torch.zeros(-1)
x.permute(0, 1)
torch.arange(0, 5, -1)
i.mean()
x & y
x.unflatten(1, (2, 2))
x.narrow(0, 1, 5)
b - b
-b
x.softmax(5)
F.embedding(x, w[:, 0, 0])
F.layer_norm(x, (5,))
F.cross_entropy(x[0], i[0, :2, 0])
torch.bmm(x, y)
x.t()
""".strip().splitlines()

EXPRESSIONS = [line for line in EXPRESSIONS if not line.startswith("#")]


def evaluate(source):
    code = compile(source, "<expression>", "eval")
    names = sorted(name for name in tensors() if name in code.co_names)
    environment = dict(torch=torch, F=F)

    def function(*args):
        return eval(code, {**environment, **dict(zip(names, args))})

    return function, [tensors()[name] for name in names]


@pytest.mark.parametrize("source", EXPRESSIONS)
def test_expression(source):
    function, args = evaluate(source)
    check(function, *args)


@pytest.mark.parametrize("source", EXPRESSIONS)
def test_expression_with_gradients(source):
    function, args = evaluate(source)
    args = [a.requires_grad_() if a.is_floating_point() and a.is_leaf else a for a in args]
    check(function, *args)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu")])
@pytest.mark.parametrize("source", EXPRESSIONS)
def test_expression_in_mode(source, mode):
    function, args = evaluate(source)

    def in_mode(*args):
        with mode():
            return function(*args)

    check(in_mode, *args)


@pytest.mark.parametrize("source", EXPRESSIONS)
def test_expression_on_inference_tensors(source):
    with torch.inference_mode():
        function, args = evaluate(source)
        args = [a.clone() for a in args]
        check(function, *args)


# -- views, in place, aliases ----------------------------------------------------------------------------------------


def test_in_place_keeps_the_value():
    def function(x):
        y = x.clone()
        z = y.add_(1).mul_(2)
        assert z is y
        y[0] = 0
        y[:, 1].fill_(3)
        y += x
        y.copy_(x)
        return y, z

    check(function, torch.randn(2, 3))


@pytest.mark.parametrize("name, args", [("t_", ()), ("transpose_", (0, 1)), ("unsqueeze_", (1,)), ("squeeze_", ())])
def test_in_place_metadata(name, args):
    check(lambda x: getattr(x.clone(), name)(*args), torch.randn(1, 3))


def test_metadata_change_under_a_detached_copy_is_refused():
    _, _, facts = on_fakes(lambda x: (x.data, x.t_()), torch.randn(2, 3))
    assert facts["refusal"][0] == "unsupported"


def test_out_argument_is_resized():
    check(lambda x: torch.add(x, 1, out=torch.empty(0)), torch.randn(2, 3))


def test_inputs_share_storage():
    base = torch.randn(4, 4)
    metas, _, _ = on_fakes(
        lambda b, v: b.untyped_storage()._cdata == v.untyped_storage()._cdata and v._base is None, base, base[1:]
    )
    assert metas is True


def test_wrapped_numbers_are_recorded_as_numbers():
    nodes = check(lambda x: (x + 1) * 2.5 + True, torch.randn(2))
    assert nodes == ["%1 = aten::add.Scalar(%0, 1, 1)", "%2 = aten::mul.Scalar(%1, 2.5)",
                     "%3 = aten::add.Scalar(%2, True, 1)"]  # fmt: skip


def test_new_tensor_is_copied_at_each_run():
    nodes = check(lambda: torch.tensor([1, 2]).add_(1))
    assert nodes[0] == "%1 = aten::lift_fresh_copy(%0)"


def test_inference_mode_decomposes():
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    with torch.inference_mode():
        inference = check(lambda x, w: F.linear(x, w), x.clone(), w.clone())
    assert inference == check(lambda x, w: F.linear(x, w), x, w)


def test_failed_operator_leaves_no_trace():
    def function(x):
        y = x + 1
        try:
            F.linear(y, torch.ones(7, 7))
        except RuntimeError:
            pass
        return y * 2

    nodes = check(function, torch.randn(2, 3))
    assert not any("mm" in node for node in nodes)


# -- autograd --------------------------------------------------------------------------------------------------------


def test_autograd_state():
    def function(x, w):
        y = (x @ w).relu()
        z = y.detach()
        assert y.grad_fn is not None and not y.is_leaf and z.is_leaf
        return y.sum(), z, y[0], torch.autograd.grad(y.sum(), w)

    check(function, torch.randn(2, 3), torch.randn(3, 4, requires_grad=True))


def test_input_with_history():
    w = torch.randn(3, requires_grad=True)

    def function(x):
        assert not x.is_leaf and x.requires_grad
        return x * 2

    check(function, w * 2)


def test_custom_function():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    check(lambda x: torch.autograd.grad(Double.apply(x).sum(), x), torch.randn(3, requires_grad=True))


# -- refusals --------------------------------------------------------------------------------------------------------

DATA_DEPENDENT = """
x.sum().item()
bool(x.sum())
int(x.sum())
float(x[0, 0])
x.nonzero()
x[x > 0]
x.masked_select(x > 0)
x.unique()
torch.equal(x, x)
torch.allclose(x, x)
torch.where(x > 0)
x.sum() and 1
repr(x)
F.one_hot(x.long())
torch.bincount(x[0].long())
torch.full((2,), x.sum())
torch.repeat_interleave(x, x[0].long(), 1)
""".strip().splitlines()


@pytest.mark.parametrize("source", DATA_DEPENDENT)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_data_dependent(source, mode):
    with mode():
        x = torch.randn(2, 3)
        _, _, facts = on_fakes(lambda x: eval(source, dict(x=x, torch=torch, F=F)), x)
    assert facts["error"][0] is RuntimeError
    assert facts["refusal"][0] == "data_dependent", facts


def escape(action):
    return pytest.param(action, id=action.__name__)


def numpy(x):
    x.numpy()


def data_ptr(x):
    x.data_ptr()


def tolist(x):
    x.tolist()


def deepcopy(x):
    copy.deepcopy(x)


def pickled(x):
    pickle.dumps(x)


def saved(x):
    torch.save(x, io.BytesIO())


def dlpack(x):
    torch.utils.dlpack.to_dlpack(x)


def set_data(x):
    x.data = x + 1


def set_storage(x):
    x.set_(x + 1)


def formatted(x):
    f"{x}"


ESCAPES = [numpy, data_ptr, tolist, deepcopy, pickled, saved, dlpack, set_data, set_storage, formatted]


@pytest.mark.parametrize("action", [escape(action) for action in ESCAPES])
def test_escape_raises_and_is_remembered(action):
    _, _, facts = on_fakes(action, torch.randn(2, 3))
    assert facts["error"] is not None
    assert facts["refusal"] is not None

    def swallowed(x):
        try:
            action(x)
        except Exception:  # noqa: BLE001
            pass

    _, _, facts = on_fakes(swallowed, torch.randn(2, 3))
    assert facts["error"] is None
    assert facts["refusal"] is not None


def test_leak_is_counted_and_harmless():
    kept = []
    _, _, facts = _testing.fake_run(lambda x: kept.append(x + 1), (torch.randn(3),))
    assert facts["alive"] == 1
    with pytest.raises(RuntimeError):
        kept[0] + 1
    _, _, facts = _testing.fake_run(lambda x: x + kept[0], (torch.randn(3),))
    assert facts["error"][0] is RuntimeError
    assert facts["alive"] == 0  # the kept one is its own session's
    kept.clear()


def test_state_is_restored():
    _testing.fake_run(lambda x: x @ x, (torch.randn(2, 3),))
    assert (torch.ones(2) + 1).tolist() == [2, 2]


@pytest.mark.parametrize("make", [lambda: torch.eye(3).to_sparse(), lambda: torch.eye(3).to_sparse_csr(),
                                  lambda: torch.quantize_per_tensor(torch.ones(3), 1, 0, torch.qint8)])  # fmt: skip
def test_unmodelled_input_is_refused(make):
    with pytest.raises(RuntimeError, match="can't be captured"):
        _testing.fake_run(lambda x: x, (make(),))


# -- models ----------------------------------------------------------------------------------------------------------


def block(x, mask, wqkv, wo, w1, w2, g):
    q, k, v = F.linear(F.layer_norm(x, (16,), g), wqkv).chunk(3, -1)
    q, k, v = (t.view(2, 5, 4, 4).transpose(1, 2) for t in (q, k, v))
    scores = (q @ k.transpose(-1, -2) / 2).masked_fill(~mask, float("-inf")).softmax(-1)
    x = x + F.linear((scores @ v).transpose(1, 2).reshape(2, 5, 16), wo)
    return x + F.linear(F.gelu(F.linear(x, w1)), w2)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_transformer_block(mode):
    with mode():
        args = [torch.randn(2, 5, 16), torch.ones(5, 5).tril().bool()]
        args += [torch.randn(*s) for s in [(48, 16), (16, 16), (64, 16), (16, 64), (16,)]]
        for weight in args[2:]:
            weight.requires_grad_(mode is torch.enable_grad)
        check(block, *args)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_bert(mode):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=50
    )
    model = transformers.BertModel(config).eval()
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    ids = torch.randint(0, 50, (2, 7))

    def function(state, ids):
        output = torch.func.functional_call(model, state, (ids,))
        return output.last_hidden_state, output.pooler_output

    with mode():
        check(function, state, ids)
