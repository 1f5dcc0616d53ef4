"""Attention weights of a text layer, for inspection: computed in numpy from the model's hidden states and the checkpoint's weights.

The kernels never have these weights in memory. This module computes the same layer's arithmetic in float32.
"""

import json
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from ._native import Qwen3VL

__all__ = ["attention_map", "attention_weights"]

_LAYER = "model.language_model.layers.{layer}."


class _Safetensors:
    """The tensors of a checkpoint's files, read one at a time."""

    def __init__(self, directory: Path) -> None:
        self.places: Dict[str, Tuple[Path, int, Dict[str, Any]]] = {}
        for file in sorted(directory.glob("*.safetensors")):
            with open(file, "rb") as opened:
                size = int.from_bytes(opened.read(8), "little")
                for name, entry in json.loads(opened.read(size)).items():
                    if name != "__metadata__":
                        self.places[name] = (file, 8 + size, entry)

    def read(self, name: str) -> np.ndarray:
        """A tensor as float32."""
        if name not in self.places:
            raise ValueError(f"the checkpoint has no tensor {name}")
        file, base, entry = self.places[name]
        begin, end = entry["data_offsets"]
        with open(file, "rb") as opened:
            opened.seek(base + begin)
            data = opened.read(end - begin)
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(data, {"F32": np.float32, "F16": np.float16}[entry["dtype"]]).astype(np.float32)
        return np.asarray(values.reshape(entry["shape"]))


def _rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight)


def _angles(config: Dict[str, Any], positions: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """cos and sin [tokens, head_dim/2] of interleaved M-RoPE: frequencies 1, 4, 7, … rotate by the row, 2, 5, 8, … by the column."""
    half = config["head_dim"] // 2
    frequencies = config["rope_theta"] ** (-np.arange(half, dtype=np.float64) / half)
    axis = np.zeros(half, dtype=int)
    for of in (1, 2):
        axis[of : 3 * config["mrope_section"][of] : 3] = of
    angles = positions[:, axis] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """x: [tokens, heads, head_dim]."""
    first, second = np.split(x, 2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def _weights(model: Qwen3VL, trace: Dict[str, Any], layer: int) -> np.ndarray:
    config = model.config
    layers = config["num_hidden_layers"]
    if not 0 <= layer < layers:
        raise ValueError(f"layer {layer}: the model has {layers}, counted from 0")
    hidden = trace["hidden"][layer].numpy(copy=True)
    ids = np.array(trace["ids"])
    # After each of the first layers a picture's features are added, which the trace's layer outputs do not include.
    if layer > 0 and trace["deepstack"] and layer <= len(trace["deepstack"][0]):
        added = np.concatenate([image[layer - 1].numpy() for image in trace["deepstack"]])
        hidden[ids == config["image_token_id"]] += added
    files, name = _Safetensors(Path(model.path)), _LAYER.format(layer=layer)
    eps, dim = config["rms_norm_eps"], config["head_dim"]
    x = _rms_norm(hidden, files.read(name + "input_layernorm.weight"), eps)
    heads = {}
    cos, sin = _angles(config, np.array(trace["positions"], dtype=np.float64))
    for of in "qk":
        projected = (x @ files.read(f"{name}self_attn.{of}_proj.weight").T).reshape(len(ids), -1, dim)
        normed = _rms_norm(projected, files.read(f"{name}self_attn.{of}_norm.weight"), eps)
        heads[of] = _rotate(normed, cos, sin).swapaxes(0, 1)
    keys = np.repeat(heads["k"], len(heads["q"]) // len(heads["k"]), 0)
    scores = heads["q"] @ keys.swapaxes(-1, -2) * dim**-0.5
    scores = np.where(np.tri(len(ids), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def attention_weights(model: Qwen3VL, prompt: Any, images: Any = None, *, layer: int = -1) -> np.ndarray:
    """How much each token of a prompt attends to each other in a text layer: [heads, tokens, tokens] float32, each row's sum is 1.

    For models loaded from a directory of safetensors. ``layer`` counts from 0, or from the end if negative. Raises ValueError for a
    layer that does not exist, and the errors of ``Qwen3VL.generate``.
    """
    layers = model.config["num_hidden_layers"]
    return _weights(model, model.trace(prompt, images), layer + layers if layer < 0 else layer)


def attention_map(
    model: Qwen3VL, prompt: Any, images: Any, *, layer: int = -1, token: int = -1, head: Optional[int] = None
) -> List[np.ndarray]:
    """How much a token of a prompt attends to each place of each image: a list of [rows, columns], a place being the patches of one
    image token. ``token`` is the last if not given; ``head`` is one head, or None for the mean of all.
    """
    layers = model.config["num_hidden_layers"]
    trace = model.trace(prompt, images)
    weights = _weights(model, trace, layer + layers if layer < 0 else layer)[:, token]
    row = weights.mean(0) if head is None else weights[head]
    at_images = row[np.array(trace["ids"]) == model.config["image_token_id"]]
    maps, start, side = [], 0, model.config["spatial_merge_size"]
    for frames, rows, columns in trace["grids"]:
        count = frames * rows * columns // side**2
        maps.append(at_images[start : start + count].reshape(frames * rows // side, columns // side))
        start += count
    return maps
