"""Tensors: numpy and DLPack in and out, memory that is shared, errors, threads, leaks."""

import gc
import sys
import threading

import numpy as np
import pytest

import pascaline
from pascaline import Device, Tensor


def array(*shape, dtype=np.float32):
    return np.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint32])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (2, 3), (2, 0, 3), (2, 3, 4, 5)])
def test_arrays_go_in_and_out(device, dtype, shape):
    x = array(*shape, dtype=dtype)
    t = Tensor(x, device=device)
    assert (t.shape, t.dtype, t.ndim, t.size, t.nbytes) == (x.shape, x.dtype, x.ndim, x.size, x.nbytes)
    assert t.device == Device(device)
    np.testing.assert_array_equal(t.numpy(), x)
    assert t.numpy().dtype == dtype and t.tolist() == x.tolist()
    np.testing.assert_array_equal(np.asarray(t), x)


def test_host_memory_is_shared_and_not_written():
    x = array(4, 6)
    t = Tensor(x)
    assert t.data_ptr() == x.ctypes.data and np.shares_memory(t.numpy(), x)
    assert not t.numpy().flags.writeable and t.numpy(copy=True).flags.writeable
    x[0, 0] = 50.0
    assert t.tolist()[0][0] == 50.0
    copied = Tensor(x, copy=True)
    assert copied.data_ptr() != x.ctypes.data
    x[0, 0] = 60.0
    assert copied.tolist()[0][0] == 50.0


def test_strides_are_kept():
    x = array(4, 6)
    for view in (x.T, x[::2], x[:, 1:4], np.broadcast_to(x[0], (3, 6))):
        t = Tensor(view)
        assert t.data_ptr() == view.ctypes.data and t.strides == tuple(s // 4 for s in view.strides)
        np.testing.assert_array_equal(t.numpy(), view)
        np.testing.assert_array_equal(pascaline.copy(t).numpy(), view)


def test_what_cannot_be_shared_is_copied_or_refused():
    x = array(4, 6)
    for other in (x[::-1], x.astype(">f4"), x[:, ::-1]):
        np.testing.assert_array_equal(Tensor(other).numpy(), other)
        with pytest.raises(pascaline.UnsupportedError):
            Tensor(other, copy=False)
    with pytest.raises(pascaline.UnsupportedError):
        Tensor(x, dtype="f16", copy=False)
    packed = np.zeros(9, dtype=np.uint8)[1:].view(np.float32)  # not aligned
    np.testing.assert_array_equal(Tensor(packed).numpy(), packed)


def test_memory_lives_as_long_as_someone_uses_it():
    x = array(1000)
    references = sys.getrefcount(x)
    t = Tensor(x)
    assert sys.getrefcount(x) > references
    view = t.narrow(0, 1, 3).numpy()
    del t
    gc.collect()
    assert view.tolist() == [1.0, 2.0, 3.0]
    del view
    gc.collect()
    pascaline.zeros(1)  # objects dropped without the GIL are released with the next call
    assert sys.getrefcount(x) == references
    made = pascaline.softmax(np.zeros((2, 4), np.float32)).numpy()
    gc.collect()
    assert made.tolist() == [[0.25] * 4] * 2


@pytest.mark.parametrize("given", [np.zeros(3), np.zeros(3, np.int64), np.zeros(3, bool), np.array(["a"]), np.zeros(2, np.complex64)])
def test_other_types_are_refused(given):
    with pytest.raises(pascaline.DTypeError) as raised:
        Tensor(given)
    assert isinstance(raised.value, TypeError) and raised.value.found == given.dtype.name


def test_types_are_converted_if_asked():
    assert Tensor(np.array([1.5, 2.5]), dtype="f32").tolist() == [1.5, 2.5]
    assert Tensor(np.array([1, 2]), dtype=np.uint32).dtype == np.uint32
    assert Tensor([1.5, 2.5]).dtype == np.float32 and Tensor([1, 2]).dtype == np.uint32
    assert Tensor([1.5], dtype="float16").dtype == np.float16
    assert Tensor(Tensor([1.5]), dtype="float16").dtype == np.float16
    for wrong in (np.array([-1]), np.array([1 << 33]), np.array([0.5])):
        with pytest.raises(pascaline.DTypeError):
            Tensor(wrong, dtype="u32")
    with pytest.raises(pascaline.UnsupportedError):
        Tensor([1.0], dtype="float64")


def test_dlpack_with_numpy_shares_memory():
    x = array(3, 4)
    t = pascaline.from_dlpack(x.T)
    assert t.data_ptr() == x.ctypes.data and t.strides == (1, 4)
    back = np.from_dlpack(t)
    assert back.ctypes.data == x.ctypes.data and back.strides == x.T.strides
    del t, x
    gc.collect()
    assert back.tolist() == array(3, 4).T.tolist()


def test_dlpack_between_tensors_on_any_device(device):
    x = Tensor(array(3, 4), device=device)
    y = pascaline.from_dlpack(x)
    assert y.data_ptr() == x.data_ptr() and y.device == x.device
    copy = pascaline.from_dlpack(_With(x, copy=True))
    assert copy.data_ptr() != x.data_ptr()
    host = pascaline.from_dlpack(_With(x, on=(1, 0)))
    assert host.device == "cpu" and host.tolist() == x.tolist()
    del x
    gc.collect()
    assert pascaline.scale(y, 2.0).tolist() == (array(3, 4) * 2).tolist()


class _With:
    """A producer that asks another for more."""

    def __init__(self, tensor, on=None, copy=None):
        self.tensor, self.on, self.copy = tensor, on, copy

    def __dlpack__(self, *, stream=None, max_version=None):
        stream = None if self.on else stream
        return self.tensor.__dlpack__(stream=stream, max_version=max_version, dl_device=self.on, copy=self.copy)

    def __dlpack_device__(self):
        return self.on or self.tensor.__dlpack_device__()


class _Old:
    """A producer from before DLPack 1.0."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, stream=None):
        return self.tensor.__dlpack__(stream=stream)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def test_unversioned_capsules(device):
    x = Tensor(array(3), device=device)
    assert pascaline.from_dlpack(_Old(x)).data_ptr() == x.data_ptr()


def test_capsules_that_nobody_takes_are_freed():
    x = Tensor(array(3))
    for version in (None, (1, 0)):
        capsule = x.__dlpack__(max_version=version)
        del capsule
    gc.collect()
    with pytest.raises(TypeError):
        pascaline.from_dlpack(_Capsule(x.__dlpack__(), twice=True))


class _Capsule:
    """Returns the same capsule each time."""

    def __init__(self, capsule, twice=False):
        self.capsule = capsule
        if twice:
            self.kept = pascaline.from_dlpack(self)

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return (1, 0)


def test_dlpack_refuses_what_it_cannot_hold():
    with pytest.raises(pascaline.UnsupportedError):
        pascaline.from_dlpack(np.zeros(3))
    with pytest.raises(pascaline.UnsupportedError):
        pascaline.from_dlpack(np.zeros(3, np.float32)[::-1])
    with pytest.raises(TypeError):
        pascaline.from_dlpack([1.0])
    with pytest.raises(BufferError):
        Tensor([1.0]).__dlpack__(stream=1)
    with pytest.raises(BufferError):
        Tensor([1.0]).__dlpack__(dl_device=(2, 0))


def test_views_and_moves(device):
    x = Tensor(array(4, 6), device=device)
    assert x.reshape(2, 12).shape == x.reshape((2, 12)).shape == (2, 12)
    np.testing.assert_array_equal(x.swap_dims().numpy(), array(4, 6).T)
    np.testing.assert_array_equal(x.narrow(1, 2, 3).numpy(), array(4, 6)[:, 2:5])
    assert not x.swap_dims().is_contiguous and x.swap_dims().contiguous().is_contiguous
    assert x.to("cpu").device == "cpu" and x.to(dtype="f16").dtype == np.float16
    with pytest.raises(pascaline.LayoutError):
        x.swap_dims().reshape(24)
    with pytest.raises(pascaline.ShapeError):
        x.reshape(5)
    with pytest.raises(pascaline.Error):
        x.narrow(2, 0, 1)
    assert len(x) == 4 and Tensor([7.0]).item() == 7.0
    assert repr(x) == f"Tensor(shape=(4, 6), dtype=float32, device='{device}')"


def test_made_from_a_rule(device):
    assert pascaline.zeros((2, 2), device=device).tolist() == [[0, 0], [0, 0]]
    assert pascaline.ones(2, dtype="u32", device=device).tolist() == [1, 1]
    assert pascaline.full(2, 7.5, device=device).tolist() == [7.5, 7.5]
    assert pascaline.arange(0, 3, dtype="u32", device=device).tolist() == [0, 1, 2]
    x, y = pascaline.randn((3, 4), 5, device=device), pascaline.randn((3, 4), 5)
    assert x.tolist() == y.tolist()


def test_devices():
    assert Device("cpu") == "cpu" and Device("cpu").index is None and not Device("cpu").is_cuda
    virtual = Device("virtual")
    assert virtual == Device("virtual") and hash(virtual) == hash("virtual") and virtual.type == "virtual"
    assert virtual.properties()["compute_capability"] == (6, 1)
    with pytest.raises(pascaline.UnknownDeviceError) as raised:
        Device("gpu")
    assert raised.value.name == "gpu"
    with pytest.raises(pascaline.NoDeviceError):
        Device("cuda:7")
    with pytest.raises(pascaline.UnsupportedError):
        Device("cpu").memory_statistics()


def test_the_pools_statistics_and_limit():
    device = Device("virtual")
    before = device.memory_statistics()
    x = pascaline.zeros(1 << 16, device=device)
    after = device.memory_statistics()
    assert after["live"] - before["live"] == 1 << 18 == x.nbytes
    assert after["live"] + after["free"] + after["pending"] == after["reserved"]
    device.set_memory_limit(after["reserved"])
    try:
        with pytest.raises(pascaline.OutOfMemoryError) as raised:
            pascaline.zeros(1 << 28, device=device)
        assert isinstance(raised.value, MemoryError) and raised.value.requested >= 1 << 30
    finally:
        device.set_memory_limit(None)
    del x
    gc.collect()
    assert device.memory_statistics()["live"] == before["live"]
    device.trim_memory()


def test_ten_thousand_calls_leave_nothing_behind(device):
    x = Tensor(array(8, 32), device=device)

    def work(count):
        for _ in range(count):
            y = pascaline.softmax(x)
            pascaline.from_dlpack(y)
            y.numpy()
            try:
                pascaline.add(x, array(3))
            except pascaline.ShapeError:
                pass

    calls = 10_000 if device == "cpu" else 1_000  # the virtual GPU interprets each
    work(calls // 10)
    gc.collect()
    memory, objects = _resident(), len(gc.get_objects())
    live = x.device.memory_statistics()["live"] if device != "cpu" else 0
    work(calls)
    gc.collect()
    assert len(gc.get_objects()) - objects < 100
    assert _resident() - memory < 8 << 20, "8 MiB for all, less than a kilobyte a call"
    if device != "cpu":
        assert x.device.memory_statistics()["live"] == live


def _resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_threads_run_at_once_and_agree(device):
    x = np.random.default_rng(0).standard_normal((16, 64), dtype=np.float32)
    expected = pascaline.softmax(Tensor(x, device=device)).numpy(copy=True)
    wrong = []

    def work():
        for _ in range(20):
            found = pascaline.softmax(Tensor(x, device=device)).numpy()
            if not np.array_equal(found, expected):
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong


def test_other_threads_run_during_an_op():
    a = np.ones((768, 768), np.float32)
    ticks, done = [0], threading.Event()

    def tick():
        while not done.is_set():
            ticks[0] += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    before = ticks[0]
    for _ in range(3):
        pascaline.matmul(a, a)
    counted = ticks[0] - before
    done.set()
    ticker.join()
    assert counted > 0


def test_errors_are_a_hierarchy_with_fields():
    with pytest.raises(pascaline.ShapeError, match="matmul: b has shape") as raised:
        pascaline.matmul(array(2, 3), array(2, 3))
    error = raised.value
    assert isinstance(error, (pascaline.Error, ValueError))
    assert (error.op, error.argument, error.found) == ("matmul", "b", [2, 3])
    for name in ("NoDeviceError", "DriverError", "DeviceLostError", "OutOfMemoryError", "ModuleLoadError"):
        assert issubclass(getattr(pascaline, name), (pascaline.DeviceError, RuntimeError))
    for error in vars(pascaline).values():
        if isinstance(error, type) and issubclass(error, Exception):
            assert issubclass(error, pascaline.Error)


def test_tensors_of_two_devices_do_not_meet():
    x = Tensor(array(2, 2), device="virtual")
    with pytest.raises(pascaline.DeviceMismatchError):
        pascaline.add(Tensor(array(2, 2)), x)
    assert pascaline.add(x, array(2, 2)).device == "virtual", "an array goes where the first argument is"
