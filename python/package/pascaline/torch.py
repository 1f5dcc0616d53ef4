"""The ops for torch: registered with ``torch.library``, on torch's own memory and current stream.

Each function uses the kernels where they fit and torch's own implementation elsewhere. ``report()`` says how often each was used,
and why. The kernels take float32 and float16 (linear maps also float32 with float16 weights) on the CPU and on CUDA devices of
compute capability 6.1 or newer. The gradients of softmax, norms, attention and RoPE use kernels too; a gradient of a
gradient, and those of the other ops, are torch's.

The ops are ``torch.ops.pascaline.*`` too; they have fake implementations and gradients, so ``torch.compile`` works with them.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from typing import Any, Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _native
from ._native import BlockMask, QuantTensor

__all__ = [
    "QuantLinear",
    "attention",
    "layer_norm",
    "linear",
    "quantize",
    "report",
    "reset_report",
    "rms_norm",
    "rope",
    "scaled_dot_product_attention",
    "softmax",
    "sparse_attention",
    "swiglu",
]

_FLOATS = (torch.float32, torch.float16)
_PLAIN = (Tensor, torch.nn.Parameter)
_MAX_ELEMENTS = 2**31 - 1

_kernels: Counter[str] = Counter()
_torch: Counter[Tuple[str, str]] = Counter()
_problems: Dict[int, Optional[str]] = {}


def report() -> Dict[str, Dict[str, Any]]:
    """How often each op ran on the kernels, and on torch's implementation by reason, since ``reset_report``.

    ``{"softmax": {"kernels": 3, "torch": {"float64 tensors": 1}}, …}``. Gradients count as ``softmax_backward`` and so on.
    """
    ops = sorted(set(_kernels) | {op for op, _ in _torch})
    return {
        op: {"kernels": _kernels[op], "torch": {reason: n for (of, reason), n in sorted(_torch.items()) if of == op}}
        for op in ops
    }


def reset_report() -> None:
    """Counts from zero again."""
    _kernels.clear()
    _torch.clear()


def _place(x: Tensor) -> Tuple[int, int]:
    """The device's index, −1 for the CPU, and its current stream."""
    index = x.get_device()
    return (index, 0) if index < 0 else (index, torch._C._cuda_getCurrentRawStream(index))


def _problem(*tensors: Tensor) -> Optional[str]:
    """Why the kernels can't take these tensors; None if they can."""
    index = tensors[0].get_device()
    for x in tensors:
        if x.dtype not in _FLOATS:
            return f"{_name(x.dtype)} tensors"
        if not (x.is_cuda or x.is_cpu):
            return f"{x.device.type} tensors"
        if x.get_device() != index:
            return "tensors on several devices"
        if x.layout is not torch.strided or x.is_neg():
            return "tensors that are not plain memory"
        if x.numel() > _MAX_ELEMENTS:
            return "tensors of 2^31 elements or more"
    return None if index < 0 else _device_problem(index)


def _device_problem(index: int) -> Optional[str]:
    if index not in _problems:
        _problems[index] = _native.torch_device_problem(index)
    if _problems[index] is None and index != torch.cuda.current_device():
        return "tensors on another device than the current one"
    return _problems[index]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def _is_plain(*tensors: Optional[Tensor]) -> bool:
    """Whether a call needs neither a gradient nor tracing, so that it can bypass torch's dispatcher."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    grad = torch.is_grad_enabled()
    for x in tensors:
        if x is not None and (type(x) not in _PLAIN or (grad and x.requires_grad)):
            return False
    return True


def _same_type(*tensors: Tensor) -> Optional[str]:
    return None if len({x.dtype for x in tensors}) == 1 else "tensors of several types"


class _Op:
    """An op: its kernel where that fits, torch's implementation elsewhere."""

    def __init__(self, name: str) -> None:
        self.name = name

    def falls_back(self, reason: str) -> None:
        _torch[self.name, reason] += 1

    def runs(self) -> None:
        _kernels[self.name] += 1


def _backward_by_torch(name: str) -> None:
    _torch[f"{name}_backward", "there is no kernel"] += 1


def _backward_by_kernels(name: str, *tensors: Tensor, problem: Optional[str] = None) -> bool:
    """Whether the kernels take these tensors of one type for a gradient. They have no gradient of the gradient."""
    if not _is_plain(*tensors):
        problem = "a gradient of the gradient, or tracing"
    problem = problem or _problem(*tensors) or _same_type(*tensors)
    if problem is None:
        _kernels[f"{name}_backward"] += 1
    else:
        _torch[f"{name}_backward", problem] += 1
    return problem is None


_library = torch.library.Library("pascaline", "DEF")


def _define(schema: str, implementation: Any, fake: Any, setup: Any, backward: Any) -> Any:
    """Registers an op with its fake implementation and its gradient."""
    name = schema.split("(", 1)[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, implementation, "CPU")
    _library.impl(name, implementation, "CUDA")
    torch.library.register_fake(f"pascaline::{name}", fake, lib=_library)
    torch.library.register_autograd(f"pascaline::{name}", backward, setup_context=setup, lib=_library)
    return getattr(torch.ops.pascaline, name).default


# softmax


_SOFTMAX = _Op("softmax")


def _softmax(x: Tensor) -> Tensor:
    problem = _problem(x)
    if problem is not None:
        _SOFTMAX.falls_back(problem)
        return torch.softmax(x, -1).contiguous()
    x = x.contiguous()
    out = torch.empty_like(x)
    _native.torch_softmax(out, x, *_place(x))
    _SOFTMAX.runs()
    return out


def _softmax_setup(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _softmax_backward(ctx: Any, grad: Tensor) -> Tensor:
    (y,) = ctx.saved_tensors
    if _backward_by_kernels("softmax", grad, y):
        dx = torch.empty_like(y)
        _native.torch_softmax_backward(dx, grad.contiguous(), y, *_place(y))
        return dx
    return y * (grad - (grad * y).sum(-1, keepdim=True))


_softmax_op = _define(
    "softmax(Tensor x) -> Tensor",
    _softmax,
    lambda x: torch.empty_like(x, memory_format=torch.contiguous_format),
    _softmax_setup,
    _softmax_backward,
)


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Softmax over the last dimension; another ``dim`` is moved there and back."""
    if dim not in (-1, x.dim() - 1):
        return softmax(x.transpose(dim, -1)).transpose(dim, -1)
    return _softmax(x) if _is_plain(x) else _softmax_op(x)


# RMS norm


_RMS_NORM = _Op("rms_norm")


def _rms_norm_by_torch(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.double() if x.dtype == torch.float64 else x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    problem = _problem(x, weight) or _same_type(x, weight)
    if problem is not None:
        _RMS_NORM.falls_back(problem)
        return _rms_norm_by_torch(x, weight, eps).contiguous()
    x, weight = x.contiguous(), weight.contiguous()
    out = torch.empty_like(x)
    _native.torch_rms_norm(out, x, weight, eps, *_place(x))
    _RMS_NORM.runs()
    return out


def _rms_norm_fake(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    dtype = torch.promote_types(x.dtype, weight.dtype)
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def _rms_norm_setup(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _rms_norm_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    x, weight = ctx.saved_tensors
    if _backward_by_kernels("rms_norm", grad, x, weight):
        x, weight = x.contiguous(), weight.contiguous()
        dx = torch.empty_like(x)
        dweight = torch.empty_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        _native.torch_rms_norm_backward(dx, dweight, grad.contiguous(), x, weight, ctx.eps, *_place(x))
        return dx, None if dweight is None else dweight.to(weight.dtype), None
    wide = x if x.dtype == torch.float64 else x.float()
    inverse = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + ctx.eps)
    normed = wide * inverse
    scaled = grad * weight
    dx = inverse * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))
    dweight = (grad * normed).reshape(-1, x.shape[-1]).sum(0)
    return dx.to(x.dtype), dweight.to(weight.dtype), None


_rms_norm_op = _define(
    "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    _rms_norm,
    _rms_norm_fake,
    _rms_norm_setup,
    _rms_norm_backward,
)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """RMS norm over the last dimension. x: [.., n]; weight: [n]."""
    return _rms_norm(x, weight, eps) if _is_plain(x, weight) else _rms_norm_op(x, weight, eps)


# LayerNorm


_LAYER_NORM = _Op("layer_norm")


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    problem = _problem(x, weight, bias) or _same_type(x, weight, bias)
    if problem is not None:
        _LAYER_NORM.falls_back(problem)
        return F.layer_norm(x, weight.shape, weight, bias, eps).contiguous()
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    out = torch.empty_like(x)
    _native.torch_layer_norm(out, x, weight, bias, eps, *_place(x))
    _LAYER_NORM.runs()
    return out


def _layer_norm_setup(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, ctx.eps = inputs
    ctx.save_for_backward(x, weight, bias)


def _layer_norm_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    x, weight, bias = ctx.saved_tensors
    if _backward_by_kernels("layer_norm", grad, x, weight):
        x, weight = x.contiguous(), weight.contiguous()
        dx, sums = torch.empty_like(x), None
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            sums = tuple(torch.empty_like(weight, dtype=torch.float32) for _ in range(2))
        _native.torch_layer_norm_backward(dx, sums, grad.contiguous(), x, weight, ctx.eps, *_place(x))
        return (dx, *((None, None) if sums is None else (d.to(weight.dtype) for d in sums)), None)
    wide = x if x.dtype == torch.float64 else x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    inverse = torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + ctx.eps)
    normed = centred * inverse
    scaled = grad * weight
    mean = scaled.mean(-1, keepdim=True)
    dx = inverse * (scaled - mean - normed * (scaled * normed).mean(-1, keepdim=True))
    rows = (-1, x.shape[-1])
    dweight, dbias = (grad * normed).reshape(rows).sum(0), grad.reshape(rows).sum(0)
    return dx.to(x.dtype), dweight.to(weight.dtype), dbias.to(bias.dtype), None


_layer_norm_op = _define(
    "layer_norm(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor",
    _layer_norm,
    lambda x, weight, bias, eps: torch.empty_like(x, memory_format=torch.contiguous_format),
    _layer_norm_setup,
    _layer_norm_backward,
)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Layer norm over the last dimension. x: [.., n]; weight, bias: [n]."""
    call = _layer_norm if _is_plain(x, weight, bias) else _layer_norm_op
    return call(x, weight, bias, eps)


# linear


_LINEAR = _Op("linear")


def _linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    tensors = (x, weight) if bias is None else (x, weight, bias)
    problem = _problem(*tensors)
    if problem is None and (x.dtype, weight.dtype) == (torch.float16, torch.float32):
        problem = "float16 tensors with float32 weights"
    if problem is None and bias is not None and bias.dtype != x.dtype:
        problem = "a bias of another type"
    if problem is not None:
        _LINEAR.falls_back(problem)
        return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype)).contiguous()
    x, weight = x.contiguous(), weight.contiguous()
    bias = None if bias is None else bias.contiguous()
    out = torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=x.device)
    _native.torch_linear(out, x, weight, bias, *_place(x))
    _LINEAR.runs()
    return out


def _linear_fake(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _linear_setup(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight)


def _linear_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    _backward_by_torch("linear")
    x, weight = ctx.saved_tensors
    rows = grad.reshape(-1, grad.shape[-1])
    dx = grad @ weight.to(grad.dtype)
    dweight = (rows.transpose(0, 1) @ x.reshape(-1, x.shape[-1])).to(weight.dtype)
    dbias = None if ctx.bias_dtype is None else rows.sum(0).to(ctx.bias_dtype)
    return dx, dweight, dbias


_linear_op = _define(
    "linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor",
    _linear,
    _linear_fake,
    _linear_setup,
    _linear_backward,
)


def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """x·weightᵀ + bias. x: [.., k]; weight: [n, k], float32, or float16 (stored so, multiplied in float32); bias: [n]."""
    return _linear(x, weight, bias) if _is_plain(x, weight, bias) else _linear_op(x, weight, bias)


# quantised linear maps

# An op's arguments can only be tensors and numbers, so quantised matrices are passed by number.
_quantized: Dict[int, Any] = {}
_quantized_lock = threading.Lock()

_QUANT_LINEAR = _Op("quant_linear")


def _quant_linear(x: Tensor, weight: int, rows: int, bias: Optional[Tensor] = None) -> Tensor:
    entry = _quantized[weight]
    problem = _problem(x) if bias is None else _problem(x, bias)
    if problem is None and x.dtype != torch.float32:
        problem = f"{_name(x.dtype)} tensors"
    if problem is not None:
        _QUANT_LINEAR.falls_back(problem)
        dense = entry.dense(x)
        return F.linear(x, dense, None if bias is None else bias.to(x.dtype)).contiguous()
    x = x.contiguous()
    bias = None if bias is None else bias.to(x.dtype).contiguous()
    out = torch.empty((*x.shape[:-1], rows), dtype=x.dtype, device=x.device)
    _native.torch_quant_linear(out, x, entry.weight, bias, *_place(x))
    _QUANT_LINEAR.runs()
    return out


def _quant_linear_setup(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    x, ctx.weight, _, bias = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype


def _quant_linear_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    _backward_by_torch("quant_linear")
    dbias = None
    if ctx.bias_dtype is not None:
        dbias = grad.reshape(-1, grad.shape[-1]).sum(0).to(ctx.bias_dtype)
    return _quant_linear_gradient(grad, ctx.weight), None, None, dbias


_library.define("quant_linear_gradient(Tensor grad, int weight, int cols) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))


def _quant_linear_gradient_by_torch(grad: Tensor, weight: int, cols: int) -> Tensor:
    return (grad @ _quantized[weight].dense(grad)).contiguous()


_library.impl("quant_linear_gradient", _quant_linear_gradient_by_torch, "CPU")
_library.impl("quant_linear_gradient", _quant_linear_gradient_by_torch, "CUDA")
torch.library.register_fake(
    "pascaline::quant_linear_gradient", lambda grad, weight, cols: grad.new_empty((*grad.shape[:-1], cols)), lib=_library
)


def _quant_linear_gradient(grad: Tensor, weight: int) -> Tensor:
    return torch.ops.pascaline.quant_linear_gradient(grad, weight, _quantized[weight].weight.shape[1])


_quant_linear_op = _define(
    "quant_linear(Tensor x, int weight, int rows, Tensor? bias=None) -> Tensor",
    _quant_linear,
    lambda x, weight, rows, bias=None: x.new_empty((*x.shape[:-1], rows)),
    _quant_linear_setup,
    _quant_linear_backward,
)


class _Quantized:
    """A quantised matrix, and its values for torch's implementation."""

    def __init__(self, weight: QuantTensor) -> None:
        self.weight = weight

    def dense(self, like: Tensor) -> Tensor:
        values = torch.from_numpy(_native.dequantize(self.weight).numpy(copy=True))
        return values.to(device=like.device, dtype=like.dtype)


def quantize(weight: Tensor, format: str = "q8_0") -> QuantTensor:
    """A matrix [n, k] in a quantised format ("q8_0", "q4_0", "q4_k", …), on the device it is on."""
    weight = weight.detach().float().contiguous()
    problem = _problem(weight)
    if problem is not None:
        raise ValueError(f"quantize: {problem}")
    return _native.torch_quantize(weight, format, *_place(weight))


class QuantLinear(torch.nn.Module):
    """A linear map with a quantised matrix, in place of an ``nn.Linear``: ``QuantLinear.of(linear, "q4_k")``.

    The matrix is constant; gradients reach the input and the bias.
    """

    def __init__(self, weight: QuantTensor, bias: Optional[Tensor] = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.format = weight.format
        self.bias = None if bias is None else torch.nn.Parameter(bias.detach().clone())
        with _quantized_lock:
            self._number = max(_quantized, default=-1) + 1
            _quantized[self._number] = _Quantized(weight)

    @classmethod
    def of(cls, linear: torch.nn.Linear, format: str = "q8_0") -> QuantLinear:
        """The quantised form of a linear map."""
        return cls(quantize(linear.weight, format), linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        call = _quant_linear if _is_plain(x, self.bias) else _quant_linear_op
        return call(x, self._number, self.out_features, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, format={self.format}"

    def __del__(self) -> None:
        _quantized.pop(self.__dict__.get("_number", -1), None)


# attention


_ATTENTION = _Op("attention")


def _layout_problem(x: Tensor) -> bool:
    """Whether a copy is needed: the kernels take any strides that are multiples of 8, with 1 in the last dimension."""
    return x.stride(-1) != 1 or x.storage_offset() % 8 != 0 or any(s % 8 for s in x.stride()[:-1])


def _attention_problem(q: Tensor, k: Tensor, v: Tensor) -> Optional[str]:
    problem = _problem(q, k, v) or _same_type(k, v)
    if problem is not None:
        return problem
    if q.dtype == torch.float16 and k.dtype != torch.float16:
        return "tensors of several types"
    dim = q.shape[-1]
    if dim % 8 or not 16 <= dim <= 128:
        return f"heads of {dim}"
    if v.shape[-1] != dim or q.dim() not in (3, 4) or k.dim() != q.dim():
        return "shapes that the kernels do not have"
    return None


def _grouped(q: Tensor, k: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
    """Keys and values repeated for the query heads that share them."""
    groups = q.shape[-3] // max(k.shape[-3], 1)
    if groups > 1:
        k, v = k.repeat_interleave(groups, -3), v.repeat_interleave(groups, -3)
    return k.to(q.dtype), v.to(q.dtype)


def _causal_mask(q_len: int, kv_len: int, device: torch.device) -> Tensor:
    return torch.ones(q_len, kv_len, dtype=torch.bool, device=device).tril(kv_len - q_len)


def _weights(q: Tensor, k: Tensor, causal: bool, scale: float) -> Tensor:
    """softmax(scale · q kᵀ), with zeros for a query that attends to no key."""
    scores = q @ k.transpose(-1, -2) * scale
    if causal:
        scores = scores.masked_fill(~_causal_mask(q.shape[-2], k.shape[-2], q.device), -math.inf)
    return torch.softmax(scores, -1).nan_to_num(0.0) if causal else torch.softmax(scores, -1)


def _attention_by_torch(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    k, v = _grouped(q, k, v)
    return _weights(q, k, causal, scale) @ v


def _attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    problem = _attention_problem(q, k, v)
    if problem is not None:
        _ATTENTION.falls_back(problem)
        return _attention_by_torch(q, k, v, causal, scale).contiguous()
    q, k, v = (x.contiguous() if _layout_problem(x) else x for x in (q, k, v))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _native.torch_attention(out, q, k, v, causal, scale, *_place(q))
    _ATTENTION.runs()
    return out


def _attention_fake(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    return q.new_empty(q.shape)


def _attention_setup(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    q, k, v, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, output)


def _attention_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    q, k, v, out = ctx.saved_tensors
    if _backward_by_kernels("attention", grad, q, k, v, out, problem=_attention_problem(q, k, v)):
        grad, q, k, v = (x.contiguous() if _layout_problem(x) else x for x in (grad, q, k, v))
        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
        _native.torch_attention_backward((dq, dk, dv), grad, q, k, v, out, ctx.causal, ctx.scale, *_place(q))
        return dq, dk, dv, None, None
    many_k, many_v = _grouped(q, k, v)
    weights = _weights(q, many_k, ctx.causal, ctx.scale)
    dv = weights.transpose(-1, -2) @ grad
    dweights = grad @ many_v.transpose(-1, -2)
    dscores = weights * (dweights - (dweights * weights).sum(-1, keepdim=True)) * ctx.scale
    dq, dk = dscores @ many_k, dscores.transpose(-1, -2) @ q
    heads = k.shape[-3]
    if q.shape[-3] != heads:
        dk, dv = (d.unflatten(-3, (heads, -1)).sum(-3) for d in (dk, dv))
    return dq, dk.to(k.dtype), dv.to(v.dtype), None, None


_attention_op = _define(
    "attention(Tensor q, Tensor k, Tensor v, bool causal, float scale) -> Tensor",
    _attention,
    _attention_fake,
    _attention_setup,
    _attention_backward,
)


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: Optional[float] = None) -> Tensor:
    """softmax(scale · q kᵀ) v for each head. q: [b, q_heads, q_len, dim]; k, v: [b, kv_heads, kv_len, dim], or all without b.

    Query heads share kv heads evenly. ``causal``: query i attends to keys up to i + kv_len − q_len. ``scale``: None for 1/√dim.
    """
    call = _attention if _is_plain(q, k, v) else _attention_op
    return call(q, k, v, causal, q.shape[-1] ** -0.5 if scale is None else scale)


def sparse_attention(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, *, scale: Optional[float] = None) -> Tensor:
    """As ``attention``, over the keys that a block mask lets each query see. Without gradients; torch has no such op."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise NotImplementedError("sparse_attention has no gradient yet; use torch.no_grad()")
    problem = _attention_problem(q, k, v)
    if problem is not None:
        raise ValueError(f"sparse_attention: {problem}")
    q, k, v = (x.contiguous() if _layout_problem(x) else x for x in (q, k, v))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _native.torch_sparse_attention(out, q, k, v, mask, scale, *_place(q))
    _kernels["sparse_attention"] += 1
    return out


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``torch.nn.functional.scaled_dot_product_attention`` with the kernels where they fit.

    A mask or dropout is torch's, and so is a causal call with fewer keys than queries or more: torch aligns the diagonal at the
    beginning, the kernels at the end.
    """
    reason = None
    if attn_mask is not None:
        reason = "a mask"
    elif dropout_p > 0.0:
        reason = "dropout"
    elif is_causal and query.shape[-2] != key.shape[-2]:
        reason = "causal with other lengths of queries and keys"
    elif query.dim() not in (3, 4) or query.shape[:-3] != key.shape[:-3]:
        reason = "shapes that the kernels do not have"
    elif query.shape[-3] != key.shape[-3] and not enable_gqa:
        reason = "other numbers of heads"
    if reason is not None:
        _ATTENTION.falls_back(reason)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return attention(query, key, value, causal=is_causal, scale=scale)


# RoPE


_ROPE = _Op("rope")


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [tokens, heads, dim]; cos, sin: [tokens, dim/2]."""
    first, second = x.chunk(2, -1)
    cos, sin = cos[:, None, :].to(x.dtype), sin[:, None, :].to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    problem = _problem(x, cos, sin)
    if problem is None and not cos.dtype == sin.dtype == torch.float32:
        problem = "angles that are not float32"
    if problem is not None:
        _ROPE.falls_back(problem)
        return _rotated(x, cos, sin).contiguous()
    if x.stride(-1) != 1:
        x = x.contiguous()
    cos, sin = cos.contiguous(), sin.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _native.torch_rope(out, x, cos, sin, *_place(x))
    _ROPE.runs()
    return out


def _rope_setup(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _rope_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    x, cos, sin = ctx.saved_tensors
    dcos = dsin = None
    angles_need_it = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
    problem = "gradients of the angles" if angles_need_it else None
    if problem is None and not cos.dtype == sin.dtype == torch.float32:
        problem = "angles that are not float32"
    if _backward_by_kernels("rope", grad, x, problem=problem):
        grad = grad if grad.stride(-1) == 1 else grad.contiguous()
        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        _native.torch_rope(dx, grad, cos.contiguous(), (-sin).contiguous(), *_place(grad))
        return dx, None, None
    if angles_need_it:
        (a, b), (da, db) = x.chunk(2, -1), grad.chunk(2, -1)
        dcos, dsin = (da * a + db * b).sum(1).to(cos.dtype), (db * a - da * b).sum(1).to(sin.dtype)
    return _rotated(grad, cos, -sin), dcos, dsin


_rope_op = _define(
    "rope(Tensor x, Tensor cos, Tensor sin) -> Tensor",
    _rope,
    lambda x, cos, sin: x.new_empty(x.shape),
    _rope_setup,
    _rope_backward,
)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the pairs (i, i + dim/2) of each head by angles. x: [tokens, heads, dim]; cos, sin: [tokens, dim/2]."""
    return _rope(x, cos, sin) if _is_plain(x, cos, sin) else _rope_op(x, cos, sin)


# SwiGLU


_SWIGLU = _Op("swiglu")


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    problem = _problem(gate, up) or _same_type(gate, up)
    if problem is not None:
        _SWIGLU.falls_back(problem)
        return (F.silu(gate) * up).contiguous()
    gate, up = gate.contiguous(), up.contiguous()
    out = torch.empty_like(gate)
    _native.torch_silu_mul(out, gate, up, *_place(gate))
    _SWIGLU.runs()
    return out


def _swiglu_setup(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _swiglu_backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, Tensor]:
    _backward_by_torch("swiglu")
    gate, up = ctx.saved_tensors
    sigmoid = torch.sigmoid(gate)
    return grad * up * sigmoid * (1 + gate * (1 - sigmoid)), grad * gate * sigmoid


_swiglu_op = _define(
    "swiglu(Tensor gate, Tensor up) -> Tensor",
    _swiglu,
    lambda gate, up: torch.empty_like(gate, memory_format=torch.contiguous_format),
    _swiglu_setup,
    _swiglu_backward,
)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up, element by element, for tensors of one shape."""
    return _swiglu(gate, up) if _is_plain(gate, up) else _swiglu_op(gate, up)
