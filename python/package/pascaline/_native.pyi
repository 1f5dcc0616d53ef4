# The compiled part of the package. Its docstrings say more: help(pascaline.softmax).

from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, Literal, Optional, Sequence, Tuple, Type, Union, final

import numpy as np

# An object that numpy accepts, or a Tensor.
_ArrayLike = Any
_PathLike = Union[str, PathLike[str]]
_DeviceLike = Union[str, Device]
_DTypeLike = Any
_Activation = Literal["identity", "silu", "gelu_tanh", "gelu_erf", "gelu", "swiglu"]
_StopReason = Literal["eos", "stop_string", "max_new_tokens", "context_full", "cancelled"]
# A path, the bytes of a file, a PIL image, or a uint8 array [h, w, 3], [h, w, 4] or [h, w].
_Picture = Any
# A str, or messages {"role", "content"}.
_Prompt = Union[str, Sequence[Dict[str, Any]]]
# (frames, frames per second)
_Video = Tuple[Union[_PathLike, Sequence[_Picture]], float]

__version__: str
__all__ = [
    "BlockMask",
    "Device",
    "Float16Tensor",
    "KvTensor",
    "Output",
    "QuantRows",
    "QuantTensor",
    "Qwen3VL",
    "Statistics",
    "Tensor",
    "TextStream",
    "__version__",
    "activate",
    "add",
    "addmm",
    "arange",
    "argmax",
    "attention",
    "attention_cached",
    "attention_over",
    "block_mean",
    "cast",
    "cat",
    "choose_blocks",
    "copy",
    "dequantize",
    "doctor",
    "embedding",
    "fake_quantize",
    "fake_quantize_gradient",
    "fit",
    "float16_decode",
    "float16_encode",
    "float16_matmul",
    "from_dlpack",
    "full",
    "gelu_erf",
    "gelu_tanh",
    "layer_norm",
    "linear",
    "matmul",
    "max",
    "mul",
    "ones",
    "quant_embedding",
    "quant_linear",
    "quant_matmul",
    "quant_matmul_rows",
    "quantize",
    "quantize_checkpoint",
    "quantize_rows",
    "randn",
    "rms_norm",
    "rope",
    "rope_append",
    "scale",
    "silu_mul",
    "softmax",
    "sparse_attention",
    "stack",
    "sum",
    "torch_attention",
    "torch_attention_backward",
    "torch_device_problem",
    "torch_layer_norm",
    "torch_layer_norm_backward",
    "torch_linear",
    "torch_quant_linear",
    "torch_quantize",
    "torch_rms_norm",
    "torch_rms_norm_backward",
    "torch_rope",
    "torch_silu_mul",
    "torch_softmax",
    "torch_softmax_backward",
    "torch_sparse_attention",
    "transpose",
    "zeros",
]

@final
class Device:
    def __new__(cls, name: str = "auto") -> Device: ...
    def synchronize(self) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def type(self) -> Literal["cpu", "cuda", "virtual"]: ...
    @property
    def index(self) -> Optional[int]: ...
    @property
    def is_cuda(self) -> bool: ...
    @property
    def stream(self) -> Optional[int]: ...
    def properties(self) -> Dict[str, Any]: ...
    def memory_info(self) -> Tuple[int, int]: ...
    def memory_statistics(self) -> Dict[str, Any]: ...
    def set_memory_limit(self, limit: Optional[int]) -> None: ...
    def trim_memory(self) -> None: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Tensor:
    def __new__(
        cls,
        array: _ArrayLike,
        device: Optional[_DeviceLike] = None,
        dtype: Optional[_DTypeLike] = None,
        copy: Optional[bool] = None,
    ) -> Tensor: ...
    @property
    def shape(self) -> Tuple[int, ...]: ...
    @property
    def strides(self) -> Tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def device(self) -> Device: ...
    @property
    def is_contiguous(self) -> bool: ...
    def data_ptr(self) -> int: ...
    def numpy(self, copy: bool = False) -> np.ndarray[Any, np.dtype[Any]]: ...
    @property
    def __array_interface__(self) -> Dict[str, Any]: ...
    def __array__(
        self, dtype: Optional[_DTypeLike] = None, copy: Optional[bool] = None
    ) -> np.ndarray[Any, np.dtype[Any]]: ...
    def __dlpack__(
        self,
        *,
        stream: Optional[int] = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> Tuple[int, int]: ...
    def tolist(self) -> Any: ...
    def item(self) -> Union[float, int]: ...
    def to(self, device: Optional[_DeviceLike] = None, dtype: Optional[_DTypeLike] = None) -> Tensor: ...
    def reshape(self, *shape: Union[int, Sequence[int]]) -> Tensor: ...
    def swap_dims(self, dim0: int = ..., dim1: int = ...) -> Tensor: ...
    def narrow(self, dim: int, start: int, length: int) -> Tensor: ...
    def contiguous(self) -> Tensor: ...
    def __len__(self) -> int: ...

@final
class QuantTensor:
    @property
    def shape(self) -> Tuple[int, int]: ...
    @property
    def format(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> Device: ...
    def to(self, device: _DeviceLike) -> QuantTensor: ...

@final
class QuantRows:
    @property
    def shape(self) -> Tuple[int, ...]: ...

@final
class Float16Tensor:
    @property
    def shape(self) -> Tuple[int, ...]: ...
    @property
    def exponent_bits(self) -> int: ...
    @property
    def device(self) -> Device: ...

@final
class KvTensor:
    def __new__(
        cls, tokens: int, heads: int, dim: int, format: str = "f32", device: Optional[_DeviceLike] = None
    ) -> KvTensor: ...
    @property
    def shape(self) -> Tuple[int, int, int]: ...
    @property
    def format(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> Device: ...

@final
class BlockMask:
    @staticmethod
    def dense(block: int, q_len: int, kv_len: int) -> BlockMask: ...
    @staticmethod
    def causal(block: int, q_len: int, kv_len: int) -> BlockMask: ...
    @staticmethod
    def sliding_window(block: int, q_len: int, kv_len: int, before: int, after: int = 0) -> BlockMask: ...
    @staticmethod
    def global_window(
        block: int, q_len: int, kv_len: int, global_tokens: int, before: int, after: int = 0
    ) -> BlockMask: ...
    @staticmethod
    def strided(block: int, q_len: int, kv_len: int, stride: int) -> BlockMask: ...
    @staticmethod
    def from_matrix(matrix: Any, block: int) -> BlockMask: ...
    def attends(self, head: int, i: int, j: int) -> bool: ...
    @property
    def density(self) -> float: ...
    @property
    def heads(self) -> int: ...
    @property
    def blocks(self) -> int: ...

@final
class Statistics:
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def prefill_tokens(self) -> int: ...
    @property
    def time_to_first_token(self) -> float: ...
    @property
    def prefill_tokens_per_second(self) -> float: ...
    @property
    def decode_tokens(self) -> int: ...
    @property
    def decode_tokens_per_second(self) -> float: ...
    @property
    def weight_bytes_per_token(self) -> int: ...
    @property
    def cache_bytes(self) -> int: ...
    @property
    def peak_bytes(self) -> Optional[int]: ...
    @property
    def paused_seconds(self) -> float: ...
    def as_dict(self) -> Dict[str, Any]: ...

@final
class Output:
    @property
    def text(self) -> str: ...
    @property
    def ids(self) -> List[int]: ...
    @property
    def stop_reason(self) -> _StopReason: ...
    @property
    def statistics(self) -> Statistics: ...

@final
class TextStream(Iterator[str]):
    def __iter__(self) -> TextStream: ...
    def __next__(self) -> str: ...
    def close(self) -> None: ...
    @property
    def output(self) -> Optional[Output]: ...
    def __enter__(self) -> TextStream: ...
    def __exit__(self, *_exception: Union[Type[BaseException], BaseException, TracebackType, None]) -> None: ...

@final
class Qwen3VL:
    @staticmethod
    def load(
        path: _PathLike,
        device: Optional[_DeviceLike] = None,
        dtype: Optional[str] = None,
        *,
        cache: Optional[str] = None,
        gpu_layers: Optional[int] = None,
        experts: Optional[str] = None,
        cached_experts: int = 0,
        vision: Optional[str] = None,
        mmproj: Optional[_PathLike] = None,
        tokens_per_pass: Optional[int] = None,
        sparse_prefill: Optional[float] = None,
        min_pixels: Optional[int] = None,
        max_pixels: Optional[int] = None,
        progress: Optional[Callable[[int, int], object]] = None,
    ) -> Qwen3VL: ...
    def generate(
        self,
        prompt: _Prompt,
        images: Union[_Picture, Sequence[_Picture], None] = None,
        *,
        videos: Optional[Sequence[_Video]] = None,
        max_new_tokens: Optional[int] = None,
        greedy: Optional[bool] = None,
        temperature: Optional[float] = None,
        top_k: Optional[int] = None,
        top_p: Optional[float] = None,
        min_p: Optional[float] = None,
        repetition_penalty: Optional[float] = None,
        presence_penalty: Optional[float] = None,
        frequency_penalty: Optional[float] = None,
        seed: Optional[int] = None,
        stop: Optional[Sequence[str]] = None,
        stop_at_eos: bool = True,
        on_text: Optional[Callable[[str], object]] = None,
    ) -> Output: ...
    def stream(
        self,
        prompt: _Prompt,
        images: Union[_Picture, Sequence[_Picture], None] = None,
        *,
        videos: Optional[Sequence[_Video]] = None,
        max_new_tokens: Optional[int] = None,
        greedy: Optional[bool] = None,
        temperature: Optional[float] = None,
        top_k: Optional[int] = None,
        top_p: Optional[float] = None,
        min_p: Optional[float] = None,
        repetition_penalty: Optional[float] = None,
        presence_penalty: Optional[float] = None,
        frequency_penalty: Optional[float] = None,
        seed: Optional[int] = None,
        stop: Optional[Sequence[str]] = None,
        stop_at_eos: bool = True,
    ) -> TextStream: ...
    def tokenize(
        self,
        prompt: _Prompt,
        images: Union[_Picture, Sequence[_Picture], None] = None,
        *,
        videos: Optional[Sequence[_Video]] = None,
    ) -> List[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def embed(
        self,
        text: str = "",
        images: Union[_Picture, Sequence[_Picture], None] = None,
        *,
        videos: Optional[Sequence[_Video]] = None,
        instruction: Optional[str] = None,
        dimensions: Optional[int] = None,
    ) -> List[float]: ...
    def relevance(
        self,
        query: str,
        document: str = "",
        images: Union[_Picture, Sequence[_Picture], None] = None,
        *,
        query_images: Union[_Picture, Sequence[_Picture], None] = None,
        instruction: Optional[str] = None,
    ) -> float: ...
    def trace(
        self,
        prompt: _Prompt,
        images: Union[_Picture, Sequence[_Picture], None] = None,
        *,
        videos: Optional[Sequence[_Video]] = None,
    ) -> Dict[str, Any]: ...
    @property
    def device(self) -> Device: ...
    @property
    def path(self) -> Path: ...
    @property
    def parameters(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def config(self) -> Dict[str, Any]: ...

def activate(x: _ArrayLike, bias: Optional[_ArrayLike] = None, activation: _Activation = "identity") -> Tensor: ...
def add(x: _ArrayLike, y: _ArrayLike) -> Tensor: ...
def addmm(c: _ArrayLike, a: _ArrayLike, b: _ArrayLike, alpha: float = 1.0, beta: float = 1.0) -> Tensor: ...
def arange(
    start: float,
    end: float,
    dtype: Optional[_DTypeLike] = None,
    device: Optional[_DeviceLike] = None,
) -> Tensor: ...
def argmax(x: _ArrayLike) -> Tensor: ...
def attention(
    q: _ArrayLike,
    k: _ArrayLike,
    v: _ArrayLike,
    *,
    causal: bool = False,
    scale: Optional[float] = None,
) -> Tensor: ...
def attention_cached(
    q: _ArrayLike,
    k: KvTensor,
    v: KvTensor,
    past: int,
    *,
    causal: bool = False,
    scale: Optional[float] = None,
) -> Tensor: ...
def attention_over(
    q: _ArrayLike,
    k: KvTensor,
    v: KvTensor,
    length: int,
    *,
    causal: bool = False,
    scale: Optional[float] = None,
) -> Tensor: ...
def block_mean(x: _ArrayLike, block: int) -> Tensor: ...
def cast(x: _ArrayLike, dtype: _DTypeLike) -> Tensor: ...
def cat(tensors: Sequence[_ArrayLike], dim: int = 0) -> Tensor: ...
def choose_blocks(
    q: _ArrayLike,
    k: _ArrayLike,
    block: int,
    *,
    top_k: Optional[int] = None,
    mass: Optional[float] = None,
    causal: bool = True,
    scale: Optional[float] = None,
) -> BlockMask: ...
def copy(x: _ArrayLike) -> Tensor: ...
def dequantize(w: QuantTensor, dtype: Optional[_DTypeLike] = None) -> Tensor: ...
def doctor() -> Dict[str, Any]: ...
def embedding(table: _ArrayLike, ids: _ArrayLike) -> Tensor: ...
def fake_quantize(x: _ArrayLike, format: str) -> Tensor: ...
def fake_quantize_gradient(dy: _ArrayLike, x: _ArrayLike, limit: float = ...) -> Tensor: ...
def fit(
    path: _PathLike,
    device: Optional[_DeviceLike] = None,
    *,
    card: Optional[str] = None,
    context: int = 4096,
    image: Optional[Tuple[int, int]] = ...,
    dtype: Optional[str] = None,
    cache: Optional[str] = None,
    gpu_layers: Optional[int] = None,
    vision: Optional[str] = None,
    memory_limit: Optional[int] = None,
    mmproj: Optional[_PathLike] = None,
) -> Dict[str, Any]: ...
def float16_decode(x: Float16Tensor) -> Tensor: ...
def float16_encode(x: _ArrayLike, exponent_bits: int, saturate: bool = False) -> Float16Tensor: ...
def float16_matmul(x: _ArrayLike, w: Float16Tensor) -> Tensor: ...
def from_dlpack(obj: Any, /) -> Tensor: ...
def full(
    shape: Union[int, Sequence[int]],
    value: float,
    dtype: Optional[_DTypeLike] = None,
    device: Optional[_DeviceLike] = None,
) -> Tensor: ...
def gelu_erf(x: _ArrayLike) -> Tensor: ...
def gelu_tanh(x: _ArrayLike) -> Tensor: ...
def layer_norm(x: _ArrayLike, weight: _ArrayLike, bias: _ArrayLike, eps: float = 1e-5) -> Tensor: ...
def linear(
    x: _ArrayLike,
    weight: _ArrayLike,
    bias: Optional[_ArrayLike] = None,
    *,
    activation: _Activation = "identity",
    residual: Optional[_ArrayLike] = None,
    norm: Optional[_ArrayLike] = None,
    norm_eps: float = 1e-6,
) -> Tensor: ...
def matmul(a: _ArrayLike, b: _ArrayLike) -> Tensor: ...
def max(x: _ArrayLike) -> Tensor: ...
def mul(x: _ArrayLike, y: _ArrayLike) -> Tensor: ...
def ones(
    shape: Union[int, Sequence[int]],
    dtype: Optional[_DTypeLike] = None,
    device: Optional[_DeviceLike] = None,
) -> Tensor: ...
def quant_embedding(table: QuantTensor, ids: _ArrayLike, dtype: Optional[_DTypeLike] = None) -> Tensor: ...
def quant_linear(
    x: _ArrayLike,
    w: QuantTensor,
    bias: Optional[_ArrayLike] = None,
    *,
    activation: _Activation = "identity",
    residual: Optional[_ArrayLike] = None,
    norm: Optional[_ArrayLike] = None,
    norm_eps: float = 1e-6,
) -> Tensor: ...
def quant_matmul(x: _ArrayLike, w: QuantTensor, bias: Optional[_ArrayLike] = None) -> Tensor: ...
def quant_matmul_rows(x: QuantRows, w: QuantTensor, bias: Optional[_ArrayLike] = None) -> Tensor: ...
def quantize(
    x: _ArrayLike,
    format: str,
    scales: Optional[Union[Literal["absmax", "least_error"], float]] = None,
) -> QuantTensor: ...
def quantize_checkpoint(checkpoint: _PathLike, folder: _PathLike, type: str = "Q4_K_M") -> Tuple[Path, Path]: ...
def quantize_rows(x: _ArrayLike) -> QuantRows: ...
def randn(
    shape: Union[int, Sequence[int]],
    seed: int,
    dtype: Optional[_DTypeLike] = None,
    device: Optional[_DeviceLike] = None,
) -> Tensor: ...
def rms_norm(x: _ArrayLike, weight: _ArrayLike, eps: float = 1e-6) -> Tensor: ...
def rope(x: _ArrayLike, cos: _ArrayLike, sin: _ArrayLike) -> Tensor: ...
def rope_append(
    qkv: _ArrayLike,
    cos: _ArrayLike,
    sin: _ArrayLike,
    k: KvTensor,
    v: KvTensor,
    at: int,
    *,
    q_norm: Optional[_ArrayLike] = None,
    k_norm: Optional[_ArrayLike] = None,
    eps: float = 1e-6,
) -> Tensor: ...
def scale(x: _ArrayLike, factor: float) -> Tensor: ...
def silu_mul(gate: _ArrayLike, up: _ArrayLike) -> Tensor: ...
def softmax(x: _ArrayLike) -> Tensor: ...
def sparse_attention(
    q: _ArrayLike,
    k: _ArrayLike,
    v: _ArrayLike,
    mask: BlockMask,
    *,
    scale: Optional[float] = None,
) -> Tensor: ...
def stack(tensors: Sequence[_ArrayLike], dim: int = 0) -> Tensor: ...
def sum(x: _ArrayLike) -> Tensor: ...
def torch_attention(
    out: Any,
    q: Any,
    k: Any,
    v: Any,
    causal: bool,
    scale: Optional[float],
    index: int,
    stream: int,
) -> None: ...
def torch_attention_backward(
    gradients: Tuple[Any, Any, Any],
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    causal: bool,
    scale: Optional[float],
    index: int,
    stream: int,
) -> None: ...
def torch_device_problem(index: int) -> Optional[str]: ...
def torch_layer_norm(out: Any, x: Any, weight: Any, bias: Any, eps: float, index: int, stream: int) -> None: ...
def torch_layer_norm_backward(
    dx: Any, sums: Optional[Tuple[Any, Any]], dy: Any, x: Any, weight: Any, eps: float, index: int, stream: int
) -> None: ...
def torch_linear(out: Any, x: Any, weight: Any, bias: Any, index: int, stream: int) -> None: ...
def torch_quant_linear(out: Any, x: Any, weight: QuantTensor, bias: Any, index: int, stream: int) -> None: ...
def torch_quantize(weight: Any, format: str, index: int, stream: int) -> QuantTensor: ...
def torch_rms_norm(out: Any, x: Any, weight: Any, eps: float, index: int, stream: int) -> None: ...
def torch_rms_norm_backward(
    dx: Any, dweight: Optional[Any], dy: Any, x: Any, weight: Any, eps: float, index: int, stream: int
) -> None: ...
def torch_rope(out: Any, x: Any, cos: Any, sin: Any, index: int, stream: int) -> None: ...
def torch_silu_mul(out: Any, gate: Any, up: Any, index: int, stream: int) -> None: ...
def torch_softmax(out: Any, x: Any, index: int, stream: int) -> None: ...
def torch_softmax_backward(dx: Any, dy: Any, y: Any, index: int, stream: int) -> None: ...
def torch_sparse_attention(
    out: Any,
    q: Any,
    k: Any,
    v: Any,
    mask: BlockMask,
    scale: Optional[float],
    index: int,
    stream: int,
) -> None: ...
def transpose(x: _ArrayLike) -> Tensor: ...
def zeros(
    shape: Union[int, Sequence[int]],
    dtype: Optional[_DTypeLike] = None,
    device: Optional[_DeviceLike] = None,
) -> Tensor: ...
