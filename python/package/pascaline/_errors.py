"""The exceptions that the package raises. All are an Error; each is also the built-in exception that fits it.

The fields of an error are attributes: ``error.op``, ``error.argument``, ``error.expected``, ``error.found``.
"""

from typing import Any


class Error(Exception):
    """Anything that the library refuses or that fails in it."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no field {name!r}")


class ShapeError(Error, ValueError):
    """A shape that does not fit the op or the other arguments. Fields: op, argument, expected, found."""


class DTypeError(Error, TypeError):
    """An element type that the op does not take for this argument. Fields: op, argument, expected, found."""


class LayoutError(Error, ValueError):
    """A view with strides that the op does not take. Fields: op, argument, needed."""


class TooLargeError(Error, ValueError):
    """A tensor larger than the kernels' 32-bit indices reach. Fields: op, argument, elements, limit."""


class DeviceMismatchError(Error, ValueError):
    """Arguments on different devices or streams. Fields: op, argument, expected, found."""


class SharedOutputError(Error, ValueError):
    """An output whose memory other tensors still refer to. Fields: op."""


class UnsupportedError(Error, ValueError):
    """A value that the op does not support. Fields: op, argument, value, reason."""


class CheckpointError(Error, ValueError):
    """A file of a model that can't be used. Fields: file, item, reason."""


class TuningError(Error, ValueError):
    """A table by which kernels are chosen can't be read. Fields: file, reason."""


class ImageError(Error, ValueError):
    """A picture that can't be used. Fields: file, reason."""


class PromptError(Error, ValueError):
    """A prompt that can't be made into tokens. Fields: reason."""


class NotFiniteError(Error, ArithmeticError):
    """A result that must be finite and is not. Fields: what, value, index."""


class UnknownDeviceError(Error, ValueError):
    """A device name that is not known. Fields: name."""


class DeviceError(Error, RuntimeError):
    """A device, its driver or its memory fails."""


class NoDeviceError(DeviceError):
    """The GPU was asked for and can't be used. Fields: reason."""


class ModuleLoadError(DeviceError):
    """The driver refused the kernels. Fields: code, log."""


class OutOfMemoryError(DeviceError, MemoryError):
    """The device has no memory left for this. Nothing was launched. Fields: device, requested, free, total."""


class DriverError(DeviceError):
    """A driver call failed; the device is still usable. Fields: call, code, text."""


class DeviceLostError(DeviceError):
    """A kernel fault or a lost device: the process can't use this GPU any more. Fields: call, code, text."""
