//! Steps of optimisers: one launch for all parameters.

use super::check::Check;
use crate::problem::optimizer::{AdamW, AdamWTensor, Sgd, SgdTensor};
use crate::{DType, Device, Result, Tensor, cpu, gpu};

/// A step of AdamW for all parameters.
///
/// ```
/// use pascaline::ops::{self, AdamW, AdamWTensor};
/// use pascaline::{DType, Device, Tensor};
/// let mut parameter = Tensor::full(1.0f32, [1], &Device::Cpu)?;
/// let gradient = Tensor::full(0.5f32, [1], &Device::Cpu)?;
/// let (mut first, mut second) = (parameter.zeros_like()?, parameter.zeros_like()?);
/// let (parameter_mut, first, second) = (&mut parameter, &mut first, &mut second);
/// let one = AdamWTensor { parameter: parameter_mut, gradient: &gradient, first, second, weight_decay: 0.0 };
/// ops::adamw_step(&mut [one], &AdamW { lr: 0.25, ..AdamW::default() })?;
/// assert!((parameter.to_vec::<f32>()?[0] - 0.75).abs() < 1e-6); // the first step is lr, whatever the gradient
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::SharedOutput`](crate::Error::SharedOutput) if another tensor shares a parameter's storage or a moment's,
/// [`Error::Unsupported`](crate::Error::Unsupported) for a step of 0.
pub fn adamw_step(tensors: &mut [AdamWTensor], options: &AdamW) -> Result<()> {
    let check = Check("adamw_step");
    if options.step == 0 {
        return Err(check.unsupported("step", 0, "the first step is number 1"));
    }
    let mut device = None;
    for AdamWTensor { parameter, gradient, first, second, .. } in tensors.iter_mut() {
        let all =
            [("parameter", &**parameter), ("gradient", *gradient), ("first", first), ("second", second)];
        alike(check, &all, &mut device)?;
        parameter.view_mut()?;
        first.view_mut()?;
        second.view_mut()?;
    }
    match device {
        None => Ok(()),
        Some(Device::Cpu) => cpu::optimizer::adamw(tensors, options),
        Some(Device::Cuda(device)) => gpu::optimizer::adamw(&device, tensors, options),
    }
}

/// A step of gradient descent with momentum for all parameters.
///
/// ```
/// use pascaline::ops::{self, Sgd, SgdTensor};
/// use pascaline::{DType, Device, Tensor};
/// let mut parameter = Tensor::full(1.0f32, [1], &Device::Cpu)?;
/// let gradient = Tensor::full(2.0f32, [1], &Device::Cpu)?;
/// let mut momentum = parameter.zeros_like()?;
/// let one = SgdTensor { parameter: &mut parameter, gradient: &gradient, momentum: &mut momentum, weight_decay: 0.0 };
/// ops::sgd_step(&mut [one], &Sgd { lr: 0.25, momentum: 0.9, gradient_scale: 1.0 })?;
/// assert_eq!(parameter.to_vec::<f32>()?, [0.5]);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`adamw_step`].
pub fn sgd_step(tensors: &mut [SgdTensor], options: &Sgd) -> Result<()> {
    let mut device = None;
    for SgdTensor { parameter, gradient, momentum, .. } in tensors.iter_mut() {
        let all = [("parameter", &**parameter), ("gradient", *gradient), ("momentum", momentum)];
        alike(Check("sgd_step"), &all, &mut device)?;
        parameter.view_mut()?;
        momentum.view_mut()?;
    }
    match device {
        None => Ok(()),
        Some(Device::Cpu) => cpu::optimizer::sgd(tensors, options),
        Some(Device::Cuda(device)) => gpu::optimizer::sgd(&device, tensors, options),
    }
}

/// The sum of the squares of all elements; its root is the norm for gradient clipping. Waits for the device.
///
/// `tensors`: f32, contiguous.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::from_slice(&[3.0f32], [1], &Device::Cpu)?;
/// let y = Tensor::from_slice(&[0.0f32, 4.0], [2], &Device::Cpu)?;
/// assert_eq!(ops::squared_norm(&[&x, &y])?, 25.0);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn squared_norm(tensors: &[&Tensor]) -> Result<f64> {
    let mut device = None;
    for tensor in tensors {
        alike(Check("squared_norm"), &[("tensor", *tensor)], &mut device)?;
    }
    match device {
        None => Ok(0.0),
        Some(Device::Cpu) => cpu::optimizer::squared_norm(tensors),
        Some(Device::Cuda(device)) => gpu::optimizer::squared_norm(&device, tensors),
    }
}

/// Checks that all are f32, contiguous, of one shape and on the device that `first` is on.
pub(super) fn alike(
    check: Check,
    tensors: &[(&'static str, &Tensor)],
    common: &mut Option<Device>,
) -> Result<()> {
    let Some(((_, first), _)) = tensors.split_first() else { return Ok(()) };
    let device = common.get_or_insert_with(|| first.device());
    for &(argument, tensor) in tensors {
        check.dtype(argument, tensor, DType::F32)?;
        check.contiguous(argument, tensor)?;
        check.shape(argument, tensor, first.dims(), first.shape().to_string())?;
        if !tensor.device().same(device) {
            return Err(check.elsewhere(argument, &tensor.device(), device));
        }
    }
    Ok(())
}
