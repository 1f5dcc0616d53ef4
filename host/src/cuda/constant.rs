//! Filling the constant memory of a user's own PTX.

use super::fault::check;
use super::foreign::{NOT_FOUND, PtxModule};
use crate::{Error, Result};
use cuda_std::constant::Constant;
use cust::sys;

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
        let _lock = stream.lock_to_copy("set_constant")?;
        // SAFETY: the variable has as many bytes and is never unloaded. The driver has read the values, which are pageable memory, when it returns
        // (CUDA Driver API, "API synchronization behavior").
        let result =
            unsafe { sys::cuMemcpyHtoDAsync_v2(address, values.as_ptr().cast(), bytes, stream.raw()) };
        check("cuMemcpyHtoDAsync", result)
    }

    /// The address and size of a variable.
    fn constant(&self, name: &str) -> Result<(u64, usize)> {
        let (mut address, mut bytes) = (0, 0);
        self.find("constant", name, "cuModuleGetGlobal", |module, name| {
            // SAFETY: `find` gives the module, which was loaded into the bound context and is never unloaded, and a C string.
            unsafe { sys::cuModuleGetGlobal_v2(&mut address, &mut bytes, module, name) }
        })?;
        Ok((address, bytes))
    }
}
