//! Copies of modules with other tensors.

use crate::{Result, Tensor};

/// A function from a module's tensors to those of a copy of the module.
pub(super) type Map<'a> = dyn FnMut(&Tensor) -> Result<Tensor> + 'a;
