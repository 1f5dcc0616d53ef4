"""Converts objects that numpy accepts to arrays that a Tensor can share memory with."""

from typing import Any, Optional, Tuple

import numpy as np

from ._errors import DTypeError, UnsupportedError

_TYPES = ("float32", "float16", "uint32")


def prepared(
    given: Any, dtype: Optional[str], copy: Optional[bool]
) -> Tuple[np.ndarray, int, Tuple[int, ...], Tuple[int, ...], str]:
    """The array that a tensor can share memory with, its address, shape, strides in elements, and type.

    ``copy`` is as for numpy 2: True for always, None for if needed, False to raise if it is needed.
    """
    has_type = hasattr(given, "dtype")
    array = np.asarray(given)
    if dtype is None and array.dtype.name not in _TYPES:
        dtype = _of_python_numbers(array) if not has_type else None
        if dtype is None:
            raise DTypeError(
                f"Tensor: array is {array.dtype.name}, expected float32, float16 or uint32; "
                f"`dtype=` or `.astype(…)` converts it",
                op="Tensor",
                argument="array",
                expected="float32, float16 or uint32",
                found=array.dtype.name,
            )
    wanted = array.dtype.name if dtype is None else dtype
    if wanted == "uint32" and array.dtype.name != "uint32":
        _check_indices(array)
    item = np.dtype(wanted)
    shared = array.dtype == item and array.dtype.isnative and array.flags.aligned
    if array.size and not all(stride >= 0 and stride % item.itemsize == 0 for stride in array.strides):
        shared = False
    if copy is False and not shared and has_type:
        raise UnsupportedError(
            "Tensor: copy = False is not supported: the array's type or strides need a copy",
            op="Tensor",
            argument="copy",
            value="False",
            reason="the array's type or strides need a copy",
        )
    if copy or not shared:
        array = np.array(array, dtype=item, order="C", copy=True)
    strides = tuple(stride // item.itemsize for stride in array.strides)
    return array, array.__array_interface__["data"][0], array.shape, strides, wanted


def _of_python_numbers(array: np.ndarray) -> Optional[str]:
    """The type for numbers that have none of their own."""
    if array.dtype.kind == "f":
        return "float32"
    if array.dtype.kind in "iu" and (array.size == 0 or array.min() >= 0):
        return "uint32"
    return "float32" if array.dtype.kind in "iu" else None


def _check_indices(array: np.ndarray) -> None:
    """Refuses values that uint32 can't hold."""
    if array.size == 0:
        return
    if array.dtype.kind not in "iufb" or array.min() < 0 or array.max() > 0xFFFFFFFF or np.any(array != np.trunc(array)):
        raise DTypeError(
            f"Tensor: array is {array.dtype.name} with values that uint32 can't hold",
            op="Tensor",
            argument="array",
            expected="whole numbers from 0 to 4294967295",
            found=array.dtype.name,
        )
