//! The library's errors as Python exceptions: the classes of `pascaline/_errors.py`, with the fields as attributes.

use pascaline::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The error of a function of this module.
pub enum Failure {
    Library(Error),
    Python(PyErr),
}

/// The result of a function that can fail in the library or in Python.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Python(error) => error,
            Failure::Library(error) => {
                Python::attach(|py| exception(py, &error).unwrap_or_else(|failed| failed))
            }
        }
    }
}

/// The error for a value that is not supported.
pub fn unsupported(
    op: &'static str,
    argument: &'static str,
    value: impl ToString,
    reason: impl Into<String>,
) -> Failure {
    Error::Unsupported { op, argument, value: value.to_string(), reason: reason.into() }.into()
}

fn exception(py: Python, error: &Error) -> PyResult<PyErr> {
    let fields = PyDict::new(py);
    macro_rules! fields {
        ($class:literal, $($name:ident),*) => {{
            $(fields.set_item(stringify!($name), $name)?;)*
            $class
        }};
    }
    let class = match error {
        Error::Shape { op, argument, expected, found } => {
            let found = found.dims().to_vec();
            fields!("ShapeError", op, argument, expected, found)
        }
        Error::DType { op, argument, expected, found } => {
            let found = found.name();
            fields!("DTypeError", op, argument, expected, found)
        }
        Error::Layout { op, argument, needed } => fields!("LayoutError", op, argument, needed),
        Error::TooLarge { op, argument, elements, limit } => {
            fields!("TooLargeError", op, argument, elements, limit)
        }
        Error::DeviceMismatch { op, argument, expected, found } => {
            fields!("DeviceMismatchError", op, argument, expected, found)
        }
        Error::SharedOutput { op } => fields!("SharedOutputError", op),
        Error::Unsupported { op, argument, value, reason } => {
            fields!("UnsupportedError", op, argument, value, reason)
        }
        Error::Checkpoint { file, item, reason } => fields!("CheckpointError", file, item, reason),
        Error::Tuning { file, reason } => fields!("TuningError", file, reason),
        Error::Image { file, reason } => fields!("ImageError", file, reason),
        Error::Prompt { reason } => fields!("PromptError", reason),
        Error::NotFinite { what, value, index } => fields!("NotFiniteError", what, value, index),
        Error::UnknownDevice { name } => fields!("UnknownDeviceError", name),
        Error::NoDevice { reason } => fields!("NoDeviceError", reason),
        Error::ModuleLoad { code, log } => fields!("ModuleLoadError", code, log),
        Error::OutOfMemory { device, requested, free, total } => {
            fields!("OutOfMemoryError", device, requested, free, total)
        }
        Error::Driver { call, code, text } => fields!("DriverError", call, code, text),
        Error::DeviceLost { call, code, text } => fields!("DeviceLostError", call, code, text),
        _ => "Error",
    };
    let class = py.import("pascaline._errors")?.getattr(class)?;
    let value = class.call((error.to_string(),), Some(&fields))?;
    match value.is_instance_of::<pyo3::exceptions::PyException>() {
        true => Ok(PyErr::from_value(value)),
        false => Ok(PyRuntimeError::new_err(error.to_string())),
    }
}

/// The error of a DLPack or numpy type that no tensor has.
pub fn no_such_type(op: &'static str, name: impl Into<String>) -> Failure {
    let (value, reason) = (name.into(), "elements are float32, float16 or uint32".into());
    Error::Unsupported { op, argument: "dtype", value, reason }.into()
}
