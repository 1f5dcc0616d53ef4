//! Keys and values in the formats that attention reads.

use crate::device::{self, PyDevice, detached};
use crate::error::Result;
use pascaline::kv::{KvFormat, KvTensor};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keys or values [tokens, heads, dim] of one sequence: ``KvTensor(tokens, heads, dim, format="f32", device="cpu")``.
///
/// format: "f32", "f16", "bf16", "q8_0", or "e2" to "e7" for 16-bit floats with that many exponent bits. ``rope_append`` writes
/// it, ``attention_over`` reads it. Raises UnsupportedError, TooLargeError, OutOfMemoryError.
#[pyclass(frozen, name = "KvTensor", module = "pascaline")]
pub struct PyKvTensor {
    inner: Mutex<KvTensor>,
}

impl PyKvTensor {
    /// For one op at a time. Do not wait for it while holding the GIL.
    pub fn locked(&self) -> MutexGuard<'_, KvTensor> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyKvTensor {
    #[new]
    #[pyo3(signature = (tokens, heads, dim, format = "f32", device = None))]
    fn new(
        py: Python,
        tokens: usize,
        heads: usize,
        dim: usize,
        format: &str,
        device: Option<&Bound<'_, PyAny>>,
    ) -> Result<Self> {
        let (format, device) = (format.parse::<KvFormat>()?, device::given(device, "cpu")?);
        let made = detached(py, || KvTensor::uninitialized([tokens, heads, dim], format, &device))?;
        Ok(Self { inner: Mutex::new(made) })
    }

    /// (tokens, heads, dim)
    #[getter]
    fn shape(&self, py: Python) -> (usize, usize, usize) {
        let [tokens, heads, dim] = py.detach(|| self.locked().dims());
        (tokens, heads, dim)
    }

    /// The format of its values.
    #[getter]
    fn format(&self, py: Python) -> &'static str {
        py.detach(|| self.locked().format().name())
    }

    /// Bytes of memory, padding and scales included.
    #[getter]
    fn nbytes(&self, py: Python) -> usize {
        py.detach(|| self.locked().bytes())
    }

    /// The device that it is on.
    #[getter]
    fn device(&self, py: Python) -> PyDevice {
        PyDevice { inner: py.detach(|| self.locked().device()) }
    }
}
