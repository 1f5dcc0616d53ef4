//! Filling the constant memory of a user's own PTX.

use super::fault::check;
use super::foreign::{NOT_FOUND, PtxModule};
use crate::{Error, Result};
use cuda_std::constant::Constant;
use cust::sys;
use std::ffi::CString;

impl PtxModule {
    /// Writes an array that [`cuda_std::constant!`] declares, on the stream of the module's device: launches queued before
    /// it read the old values, those after it the new.
    ///
    /// # Errors
    /// [`Error::ModuleLoad`] if the PTX has no such array or one of another size, [`Error::Unsupported`] for another number of values
    /// than the array's and while the stream is captured, a driver error.
    pub fn set_constant<C: Constant>(&self, _constant: C, values: &[C::Element]) -> Result<()> {
        if values.len() != C::LEN {
            return Err(Error::Unsupported {
                op: "set_constant",
                argument: "values",
                value: values.len().to_string(),
                reason: format!("{} has {} elements", C::NAME, C::LEN),
            });
        }
        let (address, bytes) = self.constant(C::NAME)?;
        if bytes != size_of_val(values) {
            let log = format!("constant {}: {bytes} bytes in the PTX, {} here", C::NAME, size_of_val(values));
            return Err(Error::ModuleLoad { code: NOT_FOUND, log });
        }
        let stream = self.device().stream();
        let Some(_lock) = stream.lock_to_enqueue() else {
            return Err(Error::Unsupported {
                op: "set_constant",
                argument: "stream",
                value: "being captured into a graph".to_owned(),
                reason: "a graph holds no copies from the host; do them before or after".into(),
            });
        };
        // SAFETY: the variable has as many bytes and is never unloaded. The driver has read the values, which are pageable memory, when it returns
        // (CUDA Driver API, "API synchronization behavior").
        let result =
            unsafe { sys::cuMemcpyHtoDAsync_v2(address, values.as_ptr().cast(), bytes, stream.raw()) };
        check("cuMemcpyHtoDAsync", result)
    }

    /// The address and size of a variable.
    fn constant(&self, name: &str) -> Result<(u64, usize)> {
        self.device().bind()?;
        let missing =
            |reason: &str| Error::ModuleLoad { code: NOT_FOUND, log: format!("constant {name}: {reason}") };
        let symbol = CString::new(name).map_err(|error| missing(&error.to_string()))?;
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: the module was loaded into the bound context and is never unloaded; the name is a C string.
        let result =
            unsafe { sys::cuModuleGetGlobal_v2(&mut address, &mut bytes, self.raw(), symbol.as_ptr()) };
        check("cuModuleGetGlobal", result).map_err(|error| match error {
            Error::Driver { code: NOT_FOUND, .. } => missing("the PTX has none of this name"),
            other => other,
        })?;
        Ok((address, bytes))
    }
}
