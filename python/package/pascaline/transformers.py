"""Hugging Face's models on the kernels: ``patch(model)`` and ``unpatch(model)``.

Linear maps, RMS and layer norms, attention and gated MLPs (SwiGLU) of a model are computed by ``pascaline.torch`` from then on, and by
torch where a kernel does not fit; ``pascaline.torch.report()`` says which. Weights stay where they are, and are shared.
"""

from __future__ import annotations

import functools
import types
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from . import torch as _ops

__all__ = ["KINDS", "is_patched", "patch", "unpatch"]

#: The kinds of modules that ``patch`` replaces.
KINDS = ("linear", "rms_norm", "layer_norm", "swiglu", "attention")

_NAME = "pascaline"
_STATE = "_pascaline_patch"


class _Patch:
    """The changes to a model, for restoring it."""

    def __init__(self) -> None:
        self.forwards: List[nn.Module] = []
        self.configs: List[Tuple[Any, Any]] = []
        self.counts: Dict[str, int] = dict.fromkeys(KINDS, 0)


def _linear(self: nn.Linear, x: Tensor) -> Tensor:
    return _ops.linear(x, self.weight, self.bias)


def _rms_norm(self: nn.Module, x: Tensor) -> Tensor:
    return _ops.rms_norm(x, self.weight, _eps(self))


def _layer_norm(self: nn.LayerNorm, x: Tensor) -> Tensor:
    return _ops.layer_norm(x, self.weight, self.bias, self.eps)


def _gated_mlp(self: nn.Module, x: Tensor) -> Tensor:
    return self.down_proj(_ops.swiglu(self.gate_proj(x), self.up_proj(x)))


def _eps(module: nn.Module) -> float:
    return float(getattr(module, "variance_epsilon", None) or getattr(module, "eps"))


def _is_rms_norm(module: nn.Module) -> bool:
    """Judged by its parts and by a test input: some models' norms scale by 1 + weight."""
    weight = getattr(module, "weight", None)
    if not type(module).__name__.endswith("RMSNorm") or not isinstance(weight, Tensor) or weight.dim() != 1:
        return False
    if {name for name, _ in module.named_parameters()} != {"weight"}:
        return False
    if getattr(module, "variance_epsilon", getattr(module, "eps", None)) is None:
        return False
    if weight.device.type == "meta":
        return False
    with torch.no_grad():
        probe = torch.linspace(-1.0, 2.0, weight.numel(), device=weight.device, dtype=weight.dtype)
        expected = _ops._rms_norm_by_torch(probe, weight, _eps(module))
        tolerance = 1e-5 if weight.dtype == torch.float32 else 1e-2
        return torch.allclose(module(probe).float(), expected.float(), rtol=tolerance, atol=tolerance)


def _is_gated_mlp(module: nn.Module) -> bool:
    """Whether its forward computes down(silu(gate(x)) · up(x)) and nothing else."""
    parts = {name for name, _ in module.named_children()}
    if not {"gate_proj", "up_proj", "down_proj", "act_fn"} == parts:
        return False
    activation = module.act_fn
    is_silu = isinstance(activation, nn.SiLU) or type(activation).__name__ in ("SiLUActivation", "SiLU")
    return is_silu and all(isinstance(getattr(module, name), nn.Linear) for name in parts - {"act_fn"})


def _replacement(module: nn.Module, kinds: Set[str]) -> Optional[Tuple[str, Callable[..., Tensor]]]:
    """The kind of a module and its new forward."""
    if "linear" in kinds and type(module) is nn.Linear:
        return "linear", _linear
    if "layer_norm" in kinds and type(module) is nn.LayerNorm:
        fits = len(module.normalized_shape) == 1 and module.weight is not None and module.bias is not None
        return ("layer_norm", _layer_norm) if fits else None
    if "swiglu" in kinds and _is_gated_mlp(module):
        return "swiglu", _gated_mlp
    if "rms_norm" in kinds and _is_rms_norm(module):
        return "rms_norm", _rms_norm
    return None


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Optional[Tensor],
    dropout: float = 0.0,
    scaling: Optional[float] = None,
    is_causal: Optional[bool] = None,
    **options: Any,
) -> Tuple[Tensor, None]:
    """transformers' interface of attention. query, key, value: [b, heads, tokens, dim]; returns [b, tokens, heads, dim]."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    if options.get("position_bias") is not None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        _ops._ATTENTION.falls_back("a position bias")
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal=is_causal, **options
        )
    out = _ops.scaled_dot_product_attention(
        query, key, value, attention_mask, dropout, causal, scale=scaling, enable_gqa=True
    )
    return out.transpose(1, 2).contiguous(), None


class _ReplacedSdpa(TorchFunctionMode):
    """Replaces calls of torch's scaled_dot_product_attention, for models that do not have transformers' interface."""

    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.scaled_dot_product_attention:
            function = _ops.scaled_dot_product_attention
        return function(*args, **(kwargs or {}))


def _replace_forward(module: nn.Module, forward: Callable[..., Any], state: _Patch) -> None:
    if "forward" in module.__dict__:
        raise ValueError(f"{type(module).__name__} has a forward of its own instance already, such as a hook's")
    module.forward = types.MethodType(forward, module)
    state.forwards.append(module)


def _patch_attention(model: nn.Module, state: _Patch) -> None:
    try:
        from transformers import AttentionInterface, PreTrainedModel
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    except ImportError:
        models: List[Any] = []
    else:
        models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
        if models:
            AttentionInterface.register(_NAME, _attention)
            AttentionMaskInterface.register(_NAME, sdpa_mask)
    if models:
        configs = {id(module.config): module.config for module in models}
        state.configs = [(config, config._attn_implementation) for config in configs.values()]
        for module in models:
            module.set_attn_implementation(_NAME)
        state.counts["attention"] = len(configs)
        return
    original = model.forward

    @functools.wraps(original)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with _ReplacedSdpa():
            return original(*args, **kwargs)

    _replace_forward(model, forward, state)
    state.counts["attention"] = 1


def patch(model: nn.Module, kinds: Iterable[str] = KINDS) -> Dict[str, int]:
    """Makes a model compute with the kernels; returns how many modules of each kind were replaced.

    ``kinds`` chooses among KINDS. The model is changed in place and stays an ordinary module: it can be moved, trained and saved.
    Raises ValueError for an unknown kind and if the model is patched already.
    """
    chosen = set(kinds)
    if unknown := chosen - set(KINDS):
        raise ValueError(f"unknown kinds {sorted(unknown)}; there are {', '.join(KINDS)}")
    if is_patched(model):
        raise ValueError("the model is patched already")
    state = _Patch()
    # Found before any is replaced, since recognising a norm runs it.
    found = [(module, _replacement(module, chosen)) for module in list(model.modules())]
    try:
        for module, replacement in found:
            if replacement is None:
                continue
            kind, forward = replacement
            _replace_forward(module, forward, state)
            state.counts[kind] += 1
        if "attention" in chosen:
            _patch_attention(model, state)
    except BaseException:
        _restore(state)
        raise
    model.__dict__[_STATE] = state
    return dict(state.counts)


def unpatch(model: nn.Module) -> None:
    """Undoes ``patch``. Raises ValueError if the model is not patched."""
    if not is_patched(model):
        raise ValueError("the model is not patched")
    _restore(model.__dict__.pop(_STATE))


def is_patched(model: nn.Module) -> bool:
    """Whether ``patch`` has changed the model."""
    return _STATE in model.__dict__


def _restore(state: _Patch) -> None:
    for module in state.forwards:
        del module.__dict__["forward"]
    for config, implementation in state.configs:
        config._attn_implementation_internal = implementation
