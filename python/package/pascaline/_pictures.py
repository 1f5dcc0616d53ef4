"""Pictures as 8-bit RGB."""

from typing import Any, Tuple

import numpy as np

from ._errors import ImageError


def rgb(picture: Any, name: str) -> Tuple[int, int, bytes]:
    """(height, width, pixels) of a PIL image, or of an array of 8-bit values [h, w, 3], [h, w, 4] or [h, w].

    An array's fourth channel is dropped, as Pillow's ``convert("RGB")`` does.
    """
    if hasattr(picture, "convert") and hasattr(picture, "size"):
        picture = picture.convert("RGB")
        width, height = picture.size
        return height, width, picture.tobytes()
    array = np.asarray(picture)
    if array.dtype != np.uint8:
        raise ImageError(
            f"image {name}: its values are {array.dtype.name}, expected uint8", file=name, reason="not uint8"
        )
    if array.ndim == 2:
        array = np.repeat(array[:, :, None], 3, axis=2)
    if array.ndim != 3 or array.shape[2] not in (3, 4):
        reason = f"its shape is {array.shape}, expected [h, w, 3], [h, w, 4] or [h, w]"
        raise ImageError(f"image {name}: {reason}", file=name, reason=reason)
    height, width = array.shape[:2]
    return height, width, np.ascontiguousarray(array[:, :, :3]).tobytes()
