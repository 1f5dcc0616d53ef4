"""Every op against numpy, on the CPU and on the virtual GPU."""

import math

import numpy as np
import pytest

import pascaline as p

# float32 sums in another order; float16 results are rounded once more
CLOSE = {np.float32: dict(rtol=1e-5, atol=1e-5), np.float16: dict(rtol=2e-3, atol=2e-3)}
FLOATS = [np.float32, np.float16]


@pytest.fixture
def make(rng, device):
    return lambda *shape, dtype=np.float32: p.Tensor(rng.standard_normal(shape).astype(dtype), device=device)


def close(found, expected, dtype=np.float32):
    found = found.numpy()
    assert np.isfinite(found.astype(np.float64)).all() and found.dtype == dtype
    np.testing.assert_allclose(found.astype(np.float64), expected, **CLOSE[dtype])


def wide(*tensors):
    arrays = [t.numpy().astype(np.float64) for t in tensors]
    return arrays if len(arrays) > 1 else arrays[0]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_erf(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows(make, dtype):
    x, w, b = make(5, 48, dtype=dtype), make(48, dtype=dtype), make(48, dtype=dtype)
    xw, ww, bw = wide(x, w, b)
    close(p.softmax(x), softmax(xw), dtype)
    close(p.rms_norm(x, w, 1e-6), xw / np.sqrt((xw**2).mean(-1, keepdims=True) + 1e-6) * ww, dtype)
    centred = xw - xw.mean(-1, keepdims=True)
    close(p.layer_norm(x, w, b), centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * ww + bw, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_elementwise(make, dtype):
    x, y = make(3, 40, dtype=dtype), make(3, 40, dtype=dtype)
    xw, yw = wide(x, y)
    close(p.add(x, y), xw + yw, dtype)
    close(p.mul(x, y), xw * yw, dtype)
    close(p.scale(x, 0.5), xw * 0.5, dtype)
    close(p.silu_mul(x, y), silu(xw) * yw, dtype)
    close(p.gelu_erf(x), gelu_erf(xw), dtype)
    close(p.gelu_tanh(x), gelu_tanh(xw), dtype)
    bias = make(40, dtype=dtype)
    biased = xw + wide(bias)
    for name, of in (("identity", lambda v: v), ("silu", silu), ("gelu_erf", gelu_erf), ("gelu_tanh", gelu_tanh)):
        close(p.activate(x, bias, name), of(biased), dtype)
    close(p.activate(x, None, "swiglu"), silu(xw[:, :20]) * xw[:, 20:], dtype)


def test_reductions(make):
    x = make(4, 33)
    close(p.sum(x), wide(x).sum(-1))
    close(p.max(x), wide(x).max(-1))
    assert p.argmax(x).tolist() == wide(x).argmax(-1).tolist() and p.argmax(x).dtype == np.uint32


def test_layouts(make):
    x, y = make(2, 3, 8), make(2, 3, 8)
    np.testing.assert_array_equal(p.transpose(x).numpy(), np.swapaxes(x.numpy(), -1, -2))
    np.testing.assert_array_equal(p.copy(x.swap_dims(0, 1)).numpy(), np.swapaxes(x.numpy(), 0, 1))
    np.testing.assert_array_equal(p.cat([x, y], 1).numpy(), np.concatenate([x.numpy(), y.numpy()], 1))
    np.testing.assert_array_equal(p.cat([x, y], -1).numpy(), np.concatenate([x.numpy(), y.numpy()], -1))
    np.testing.assert_array_equal(p.stack([x, y]).numpy(), np.stack([x.numpy(), y.numpy()]))
    assert p.cast(x, "f16").dtype == np.float16
    with pytest.raises(p.Error):
        p.cat([], 0)


def test_embedding(make):
    table, ids = make(10, 8), np.array([1, 9, 0, 1], np.uint32)
    np.testing.assert_array_equal(p.embedding(table, ids).numpy(), table.numpy()[ids])
    with pytest.raises(p.DTypeError):
        p.embedding(table, np.array([1.0], np.float32))


@pytest.mark.parametrize("dtype", FLOATS)
def test_products(make, dtype):
    a, b = make(3, 5, 16, dtype=dtype), make(16, 12, dtype=dtype)
    close(p.matmul(a, b), wide(a) @ wide(b), dtype)
    transposed = make(12, 16, dtype=dtype)
    close(p.matmul(a, transposed.swap_dims()), wide(a) @ wide(transposed).T, dtype)
    c = make(3, 5, 12, dtype=dtype)
    close(p.addmm(c, a, b, alpha=2.0, beta=0.5), 2 * wide(a) @ wide(b) + 0.5 * wide(c), dtype)


@pytest.mark.parametrize("rows", [1, 12])
def test_linear(make, rows):
    x, w, b, residual, norm = make(rows, 32), make(16, 32), make(16), make(rows, 16), make(32)
    xw, ww, bw = wide(x, w, b)
    close(p.linear(x, w), xw @ ww.T)
    close(p.linear(x, w, b, activation="silu", residual=residual), silu(xw @ ww.T + bw) + wide(residual))
    normed = xw / np.sqrt((xw**2).mean(-1, keepdims=True) + 1e-6) * wide(norm)
    close(p.linear(x, w, norm=norm), normed @ ww.T)
    half = p.cast(w, "f16")
    close(p.linear(x, half), xw @ wide(half).T)
    gated = xw @ ww.T
    close(p.linear(x, w, activation="swiglu"), silu(gated[:, :8]) * gated[:, 8:])


def reference_attention(q, k, v, mask=None, scale=None):
    groups = q.shape[-3] // k.shape[-3]
    k, v = np.repeat(k, groups, -3), np.repeat(v, groups, -3)
    scores = q @ np.swapaxes(k, -1, -2) * (scale or q.shape[-1] ** -0.5)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    return softmax(scores) @ v


@pytest.mark.parametrize("dtype", FLOATS)
def test_attention(make, dtype):
    q, k, v = make(2, 4, 7, 32, dtype=dtype), make(2, 2, 9, 32, dtype=dtype), make(2, 2, 9, 32, dtype=dtype)
    qw, kw, vw = wide(q, k, v)
    close(p.attention(q, k, v), reference_attention(qw, kw, vw), dtype)
    close(p.attention(q, k, v, scale=0.1), reference_attention(qw, kw, vw, scale=0.1), dtype)
    causal = np.tril(np.ones((7, 9), bool), 2)
    close(p.attention(q, k, v, causal=True), reference_attention(qw, kw, vw, causal), dtype)
    with pytest.raises(p.UnsupportedError):
        p.attention(make(1, 4, 12), make(1, 4, 12), make(1, 4, 12))


def test_rope_and_a_cache(make, device):
    x, angles = make(5, 3, 16), make(5, 8).numpy()
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = np.split(wide(x), 2, -1)
    rotated = np.concatenate([a * cos[:, None] - b * sin[:, None], b * cos[:, None] + a * sin[:, None]], -1)
    close(p.rope(x, cos, sin), rotated)

    qkv = make(5, 2 + 1 + 1, 16)
    k, v = (p.KvTensor(8, 1, 16, device=device) for _ in range(2))
    q = p.rope_append(qkv, cos, sin, k, v, 0)
    a, b = np.split(wide(qkv), 2, -1)
    rotated = np.concatenate([a * cos[:, None] - b * sin[:, None], b * cos[:, None] + a * sin[:, None]], -1)
    close(q, rotated[:, :2])
    heads = np.swapaxes(rotated, 0, 1)
    values = np.swapaxes(wide(qkv)[:, 3:], 0, 1)
    out = p.attention_over(p.copy(q.swap_dims(0, 1)), k, v, 5, causal=True)
    close(out, reference_attention(heads[:2], heads[2:3], values, np.tril(np.ones((5, 5), bool))))
    close(p.attention_cached(p.copy(q.swap_dims(0, 1)), k, v, 0, causal=True), out.numpy())
    assert k.shape == (8, 1, 16) and k.format == "f32" and k.nbytes == 8 * 16 * 4
    with pytest.raises(p.UnsupportedError):
        p.attention_over(p.copy(q.swap_dims(0, 1)), k, v, 9)
    with pytest.raises(p.UnsupportedError):
        p.rope_append(qkv, cos, sin, k, k, 0)


@pytest.mark.parametrize("format, most", [("i8", 0.01), ("q8_0", 0.01), ("q4_0", 0.12), ("q4_k", 0.1), ("q5_k", 0.05),
                                          ("q6_k", 0.03), ("iq4_nl", 0.1), ("iq4_xs", 0.1)])
def test_quantised_matrices(make, format, most):
    w, x = make(12, 256), make(3, 256)
    q = p.quantize(w, format)
    assert q.shape == (12, 256) and q.format == format and q.nbytes < w.nbytes
    values = p.dequantize(q)
    error = np.linalg.norm(wide(values) - wide(w)) / np.linalg.norm(wide(w))
    assert 0 < error < most
    exact = wide(x) @ wide(values).T
    for y in (p.quant_matmul(x, q), p.quant_linear(x, q), p.quant_matmul_rows(p.quantize_rows(x), q)):
        assert np.linalg.norm(wide(y) - exact) / np.linalg.norm(exact) < 0.01
    np.testing.assert_array_equal(p.quant_embedding(q, np.array([3], np.uint32)).numpy(), values.numpy()[3:4])
    np.testing.assert_array_equal(p.fake_quantize(w, format).numpy(), values.numpy())


def test_scales_may_be_chosen(make):
    w = make(8, 256)
    error = {}
    for scales in ("absmax", "least_error", 0.999):
        error[scales] = np.linalg.norm(wide(p.dequantize(p.quantize(w, "q4_0", scales))) - wide(w))
    assert error["least_error"] < error["absmax"] and error[0.999] > 0
    with pytest.raises(p.UnsupportedError):
        p.quantize(w, "q4_0", 1.5)
    with pytest.raises(p.UnsupportedError):
        p.quantize(w, "q3_0")


def test_straight_through_gradient(make):
    dy, x = make(4, 8), make(4, 8)
    expected = np.where(np.abs(wide(x)) <= 0.5, wide(dy), 0.0)
    close(p.fake_quantize_gradient(dy, x, 0.5), expected)


def test_float16_of_any_exponent(make):
    x, w = make(3, 32), make(8, 32)
    encoded = p.float16_encode(w, 8)
    assert encoded.exponent_bits == 8 and encoded.shape == (8, 32)
    values = wide(p.float16_decode(encoded))
    assert 0 < np.abs(values - wide(w)).max() < 0.02
    close(p.float16_matmul(x, encoded), wide(x) @ values.T)
    with pytest.raises(p.UnsupportedError):
        p.float16_encode(w, 9)


def test_block_masks(make):
    q, k, v = make(2, 48, 16), make(2, 48, 16), make(2, 48, 16)
    for mask in (
        p.BlockMask.causal(16, 48, 48),
        p.BlockMask.sliding_window(16, 48, 48, before=10),
        p.BlockMask.global_window(16, 48, 48, 4, before=5, after=2),
        p.BlockMask.strided(16, 48, 48, 7),
        p.BlockMask.from_matrix(np.tril(np.ones((48, 48), bool)) & (np.arange(48) % 3 == 0), 16),
        p.choose_blocks(q, k, 16, top_k=2),
    ):
        assert 0 < mask.density <= 1 and mask.blocks > 0
        seen = np.array([[[mask.attends(h, i, j) for j in range(48)] for i in range(48)] for h in range(mask.heads)])
        expected = reference_attention(*wide(q, k, v), seen)
        close(p.sparse_attention(q, k, v, mask), expected)
    assert p.BlockMask.dense(16, 48, 48).density == 1.0
    close(p.block_mean(q, 16), wide(q).reshape(2, 3, 16, 16).mean(2))
    with pytest.raises(p.UnsupportedError):
        p.choose_blocks(q, k, 16)
    with pytest.raises(p.UnsupportedError):
        p.BlockMask.causal(17, 48, 48)


@pytest.mark.parametrize("call", [
    lambda x: p.softmax(p.Tensor([1, 2])),
    lambda x: p.add(x, x.narrow(0, 0, 1)),
    lambda x: p.rms_norm(x, np.zeros(3, np.float32)),
    lambda x: p.rms_norm(x, np.zeros(8, np.float32), -1.0),
    lambda x: p.layer_norm(x, np.zeros(8, np.float16), np.zeros(8, np.float32)),
    lambda x: p.softmax(x.swap_dims()),
    lambda x: p.linear(x, np.zeros((4, 7), np.float32)),
    lambda x: p.linear(x, np.zeros((4, 8), np.float32), activation="relu"),
    lambda x: p.matmul(p.cast(x, "f16"), np.zeros((8, 2), np.float32)),
    lambda x: p.rope(x, x, x),
    lambda x: p.attention(x, x, x),
    lambda x: p.quantize(p.Tensor(np.zeros((2, 0), np.float32)), "q8_0"),
    lambda x: p.float16_decode(p.float16_encode(p.cast(x, "f16"), 5)),
    lambda x: p.zeros((1 << 40, 1 << 40)),
])
def test_what_does_not_fit_is_a_typed_error(make, call):
    with pytest.raises(p.Error):
        call(make(4, 8))


@pytest.mark.parametrize("call", [
    lambda: p.softmax(),
    lambda: p.softmax(None),
    lambda: p.softmax("text"),
    lambda: p.scale(np.zeros(2, np.float32), "two"),
    lambda: p.quantize(np.zeros((2, 32), np.float32), 8),
    lambda: p.quant_linear(np.zeros((2, 32), np.float32), np.zeros((2, 32), np.float32)),
])
def test_what_is_no_argument_is_a_type_error(call):
    with pytest.raises(TypeError):
        call()


def test_docstrings_and_signatures():
    for name in dir(p):
        thing = getattr(p, name)
        if callable(thing) and not name.startswith("_"):
            assert thing.__doc__ and len(thing.__doc__) > 9, name
