"""pascaline.torch on the CPU, and on the GPU where torch has one: results, gradients, fake implementations, compilation."""

import math


import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import pascaline  # noqa: E402
import pascaline.torch as pt  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
DTYPES = [torch.float32, torch.float16]
# of float16 results, whose sums are float32 on both sides; of float32 ones torch's own order of sums differs
TOLERANCE = {torch.float32: dict(rtol=2e-5, atol=2e-5), torch.float16: dict(rtol=2e-3, atol=2e-3)}


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    pt.reset_report()


def randn(*shape, dtype=torch.float32, device="cpu", grad=False):
    return torch.randn(*shape, dtype=torch.float64).to(dtype=dtype, device=device).requires_grad_(grad)


def close(found, expected, dtype):
    torch.testing.assert_close(found.to(torch.float64), expected.to(torch.float64), **TOLERANCE[dtype])


def on_kernels(name, count=1):
    assert pt.report()[name] == {"kernels": count, "torch": {}}


def rms_norm(x, weight, eps):
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
class TestForward:
    def test_softmax(self, device, dtype):
        x = randn(3, 5, 33, dtype=dtype, device=device)
        close(pt.softmax(x), F.softmax(x.float(), -1), dtype)
        on_kernels("softmax")
        close(pt.softmax(x, 1), F.softmax(x.float(), 1), dtype)

    def test_rms_norm(self, device, dtype):
        x, weight = randn(4, 7, 48, dtype=dtype, device=device), randn(48, dtype=dtype, device=device)
        close(pt.rms_norm(x, weight, 1e-6), rms_norm(x, weight, 1e-6), dtype)
        on_kernels("rms_norm")

    def test_layer_norm(self, device, dtype):
        x = randn(4, 7, 48, dtype=dtype, device=device)
        weight, bias = randn(48, dtype=dtype, device=device), randn(48, dtype=dtype, device=device)
        close(pt.layer_norm(x, weight, bias, 1e-5), F.layer_norm(x, (48,), weight, bias, 1e-5), dtype)
        on_kernels("layer_norm")

    @pytest.mark.parametrize("rows", [1, 3, 40])
    def test_linear(self, device, dtype, rows):
        x, weight = randn(2, rows, 64, device=device), randn(96, 64, dtype=dtype, device=device) / 8
        bias = randn(96, device=device)
        close(pt.linear(x, weight, bias), F.linear(x.double(), weight.double(), bias.double()), dtype)
        close(pt.linear(x, weight), F.linear(x.double(), weight.double()), dtype)
        on_kernels("linear", 2)

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("shape", [(2, 4, 2, 9, 9, 32), (1, 6, 6, 17, 17, 64), (3, 4, 1, 1, 1, 128)])
    def test_attention(self, device, dtype, causal, shape):
        batch, heads, kv_heads, q_len, kv_len, dim = shape
        q = randn(batch, heads, q_len, dim, dtype=dtype, device=device)
        k, v = (randn(batch, kv_heads, kv_len, dim, dtype=dtype, device=device) for _ in range(2))
        expected = F.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), is_causal=causal, enable_gqa=True
        )
        close(pt.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True), expected, dtype)
        # as models have it: heads and tokens exchanged, no copy
        found = pt.attention(q.transpose(1, 2).contiguous().transpose(1, 2), k, v, causal=causal)
        close(found, expected, dtype)
        on_kernels("attention", 2)

    def test_causal_attention_ends_at_the_last_key(self, device, dtype):
        q, k, v = (randn(1, 2, n, 32, dtype=dtype, device=device) for n in (3, 8, 8))
        mask = torch.ones(3, 8, dtype=torch.bool, device=device).tril(5)
        expected = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=mask)
        close(pt.attention(q, k, v, causal=True), expected, dtype)

    def test_rope(self, device, dtype):
        x = randn(5, 3, 32, dtype=dtype, device=device)
        angles = randn(5, 16, device=device)
        close(pt.rope(x, angles.cos(), angles.sin()), rotate(x, angles.cos(), angles.sin()), dtype)
        on_kernels("rope")

    def test_swiglu(self, device, dtype):
        gate, up = randn(5, 40, dtype=dtype, device=device), randn(5, 40, dtype=dtype, device=device)
        close(pt.swiglu(gate, up), F.silu(gate.float()) * up.float(), dtype)
        on_kernels("swiglu")

    def test_strided_and_empty_tensors(self, device, dtype):
        x = randn(8, 6, dtype=dtype, device=device).t()
        close(pt.softmax(x), F.softmax(x.float(), -1), dtype)
        assert pt.softmax(x[:0]).shape == (0, 8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("format, tolerance", [("q8_0", 0.02), ("q4_0", 0.2), ("q4_k", 0.2)])
def test_quantised_linear(device, format, tolerance):
    dense = torch.nn.Linear(256, 96).to(device)
    quantised = pt.QuantLinear.of(dense, format)
    x = randn(5, 256, device=device, grad=True)
    y = quantised(x)
    values = torch.from_numpy(pascaline.dequantize(pt._quantized[quantised._number].weight).numpy(copy=True))
    exact = F.linear(x.detach(), values.to(device), dense.bias)
    error = (y - exact).norm() / exact.norm()
    assert error < 0.01, "x is rounded to 8 bits; the matrix's values are the same"
    assert (y - dense(x)).norm() / dense(x).norm() < tolerance
    y.sum().backward()
    torch.testing.assert_close(x.grad, values.to(device).sum(0).expand(5, -1))
    torch.testing.assert_close(quantised.bias.grad, torch.full((96,), 5.0, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_block_masks(device):
    q, k, v = (randn(1, 2, 64, 32, device=device) for _ in range(3))
    mask = pascaline.BlockMask.sliding_window(16, 64, 64, before=20)
    dense = torch.tensor([[mask.attends(0, i, j) for j in range(64)] for i in range(64)], device=device)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=dense)
    close(pt.sparse_attention(q, k, v, mask), expected, torch.float32)


ARGUMENTS = {
    "softmax": lambda r: (r(3, 8),),
    "rms_norm": lambda r: (r(3, 8), r(8), 1e-6),
    "layer_norm": lambda r: (r(3, 8), r(8), r(8), 1e-5),
    "linear": lambda r: (r(3, 8), r(4, 8), r(4)),
    "attention": lambda r: (r(1, 4, 3, 16), r(1, 2, 5, 16), r(1, 2, 5, 16), True, 0.25),
    "rope": lambda r: (r(3, 2, 8), r(3, 4), r(3, 4)),
    "swiglu": lambda r: (r(3, 8), r(3, 8)),
}


BY_KERNELS = ("softmax", "rms_norm", "layer_norm", "attention")


def op(name):
    return getattr(torch.ops.pascaline, name).default


@pytest.mark.parametrize("name", ARGUMENTS)
def test_gradients_of_torchs_implementation_are_right(name):
    """In float64, where numerical gradients are sharp: the formulas."""
    arguments = ARGUMENTS[name](lambda *shape: randn(*shape, dtype=torch.float64, grad=True))
    assert torch.autograd.gradcheck(op(name), arguments)
    assert set(pt.report()[name]["torch"]) == {"float64 tensors"}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_gradients_through_the_kernels_are_the_same(name, device):
    arguments = ARGUMENTS[name](lambda *shape: randn(*shape, device=device, grad=True))
    wide = [a.detach().double().requires_grad_() if isinstance(a, torch.Tensor) else a for a in arguments]
    grad = randn(*op(name)(*arguments).shape, device=device)
    (op(name)(*arguments) * grad).sum().backward()
    (op(name)(*wide) * grad.double()).sum().backward()
    for found, expected in zip(arguments, wide):
        if isinstance(found, torch.Tensor):
            close(found.grad, expected.grad, torch.float32)
    if name in BY_KERNELS:
        assert pt.report()[f"{name}_backward"] == {"kernels": 1, "torch": {"float64 tensors": 1}}
    elif name == "rope":
        assert pt.report()["rope_backward"]["torch"] == {"gradients of the angles": 2}
    else:
        assert pt.report()[f"{name}_backward"]["torch"] == {"there is no kernel": 2}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", [*BY_KERNELS, "rope"])
def test_gradients_by_the_kernels_alone(name, dtype, device):
    """Of the first argument: weights and angles are frozen. In both types, and of a view that is not contiguous."""
    size = {"attention": (1, 3, 4, 16), "rope": (3, 8, 2)}.get(name, (8, 3))
    x = randn(*size, dtype=dtype, device=device, grad=True)
    rest = [a if name == "attention" or not isinstance(a, torch.Tensor) else a.detach() for a in ARGUMENTS[name](
        lambda *shape: randn(*shape, dtype=torch.float32 if name == "rope" else dtype, device=device)
    )[1:]]
    view = {"attention": lambda x: x.transpose(1, 2), "rope": lambda x: x.transpose(1, 2)}.get(name, lambda x: x.t())
    wide = x.detach().double().requires_grad_()
    y = op(name)(view(x), *rest)
    grad = randn(*y.shape, dtype=dtype, device=device)
    (y * grad).sum().backward()
    (op(name)(view(wide), *(a.double() if isinstance(a, torch.Tensor) else a for a in rest)) * grad.double()).sum().backward()
    close(x.grad, wide.grad, dtype)
    assert pt.report()[f"{name}_backward"]["kernels"] == 1


def test_a_gradient_of_the_gradient_is_torchs():
    x = randn(3, 8, grad=True)
    (first,) = torch.autograd.grad(pt.softmax(x).pow(2).sum(), x, create_graph=True)
    first.sum().backward()
    wide = x.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(F.softmax(wide, -1).pow(2).sum(), wide, create_graph=True)
    expected.sum().backward()
    close(x.grad, wide.grad, torch.float32)
    assert "a gradient of the gradient, or tracing" in pt.report()["softmax_backward"]["torch"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_opcheck(name, device):
    for grad in (False, True):
        arguments = ARGUMENTS[name](lambda *shape: randn(*shape, device=device, grad=grad))
        torch.library.opcheck(op(name), arguments)


def test_a_linear_map_without_bias_has_gradients():
    x, weight = randn(3, 8, grad=True), randn(4, 8, grad=True)
    pt.linear(x, weight).sum().backward()
    torch.testing.assert_close(x.grad, weight.detach().sum(0).expand(3, -1))
    torch.testing.assert_close(weight.grad, x.detach().sum(0).expand(4, -1))


def test_tracing_sees_the_op():
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda x: pt.softmax(x) + 1)(randn(2, 8))
    assert any(node.target is op("softmax") for node in graph.graph.nodes)


def test_opcheck_of_a_quantised_linear_map():
    quantised = pt.QuantLinear.of(torch.nn.Linear(64, 8), "q8_0")
    arguments = (randn(3, 64, grad=True), quantised._number, 8, quantised.bias)
    torch.library.opcheck(torch.ops.pascaline.quant_linear.default, arguments)


def block(x, q_weight, norm, cos, sin):
    h = pt.linear(pt.rms_norm(x, norm), q_weight)
    q = pt.rope(h.view(x.shape[0], 2, 16), cos, sin).transpose(0, 1)
    return pt.softmax(pt.swiglu(pt.attention(q, q, q, causal=True), q))


@pytest.mark.parametrize("device", DEVICES)
def test_compile_goes_through_without_a_break(device):
    angles = randn(5, 8, device=device)
    x, weight, norm = randn(5, 32, device=device, grad=True), randn(32, 32, device=device), randn(32, device=device)
    arguments = (x, weight, norm, angles.cos(), angles.sin())
    expected = block(*arguments)
    (expected_grad,) = torch.autograd.grad(expected.square().sum(), x)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    found = compiled(*arguments)
    (grad,) = torch.autograd.grad(found.square().sum(), x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(grad, expected_grad)


def test_what_is_not_ours_is_torchs_and_counted():
    x = randn(4, 8)
    assert torch.equal(pt.softmax(x.double()), F.softmax(x.double(), -1))
    assert torch.equal(pt.softmax(x.bfloat16()), F.softmax(x.bfloat16(), -1))
    q = randn(1, 2, 4, 24 + 4)
    torch.testing.assert_close(pt.scaled_dot_product_attention(q, q, q), F.scaled_dot_product_attention(q, q, q))
    mask = torch.zeros(4, 4)
    pt.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    assert pt.report() == {
        "attention": {"kernels": 0, "torch": {"a mask": 1, "heads of 28": 1}},
        "softmax": {"kernels": 0, "torch": {"bfloat16 tensors": 1, "float64 tensors": 1}},
    }


def test_errors_are_raised_and_not_hidden():
    with pytest.raises(pascaline.ShapeError):
        pt.linear(randn(2, 8), randn(3, 9))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dlpack_shares_memory_both_ways(device, dtype):
    x = randn(3, 8, dtype=dtype, device=device)
    ours = pascaline.from_dlpack(x.t())
    assert ours.data_ptr() == x.data_ptr() and ours.strides == x.t().stride() and ours.shape == (8, 3)
    back = torch.from_dlpack(ours)
    assert back.data_ptr() == x.data_ptr() and torch.equal(back, x.t())
    made = torch.from_dlpack(pascaline.softmax(pascaline.from_dlpack(x)))
    close(made, F.softmax(x.float(), -1), dtype)


def test_tensors_are_made_of_torchs():
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    assert pascaline.Tensor(x).numpy().tolist() == x.tolist()
    assert pascaline.Tensor(x, device="cpu", dtype=torch.float16).dtype == np.float16
    assert math.isclose(pascaline.sum(x).tolist()[1], 12.0)
