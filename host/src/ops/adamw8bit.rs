//! A step of AdamW with moments in 8 bits.

use super::check::Check;
use super::optimizer::alike;
use crate::problem::adamw8bit::AdamW8bitTensor;
use crate::problem::optimizer::AdamW;
use crate::{Device, Error, Result, cpu, gpu};

/// [`adamw_step`](super::adamw_step) with moments that are stored in 8 bits. They are decoded to f32 for the step, and
/// rounded to codes after it.
///
/// ```
/// use pascaline::ops::{self, AdamW, AdamW8bitTensor, Moments8bit};
/// use pascaline::{Device, Tensor};
/// let mut parameter = Tensor::full(1.0f32, [1], &Device::Cpu)?;
/// let gradient = Tensor::full(0.5f32, [1], &Device::Cpu)?;
/// let mut moments = Moments8bit::zeros(1, &Device::Cpu)?;
/// let one = AdamW8bitTensor { parameter: &mut parameter, gradient: &gradient, moments: &mut moments, weight_decay: 0.0 };
/// ops::adamw8bit_step(&mut [one], &AdamW { lr: 0.25, ..AdamW::default() })?;
/// assert!((parameter.to_vec::<f32>()?[0] - 0.75).abs() < 1e-6); // the first step is lr, whatever the gradient
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`adamw_step`](super::adamw_step).
pub fn adamw8bit_step(tensors: &mut [AdamW8bitTensor], options: &AdamW) -> Result<()> {
    let check = Check("adamw8bit_step");
    if options.step == 0 {
        return Err(check.unsupported("step", 0, "the first step is number 1"));
    }
    let mut device = None;
    for AdamW8bitTensor { parameter, gradient, moments, .. } in tensors.iter_mut() {
        alike(check, &[("parameter", &**parameter), ("gradient", *gradient)], &mut device)?;
        if moments.elements() != gradient.shape().elements() {
            let expected = format!("{} elements, as the parameter", gradient.shape().elements());
            let found = [moments.elements()].into();
            return Err(Error::Shape { op: check.0, argument: "moments", expected, found });
        }
        let there = parameter.device();
        for part in [&mut moments.codes, &mut moments.scales] {
            if !part.device().same(&there) {
                return Err(check.elsewhere("moments", &part.device(), &there));
            }
            check.contiguous("moments", &*part)?;
            part.view_mut()?;
        }
        parameter.view_mut()?;
    }
    match device {
        None => Ok(()),
        Some(Device::Cpu) => cpu::adamw8bit::step(tensors, options),
        Some(Device::Cuda(device)) => gpu::adamw8bit::step(&device, tensors, options),
    }
}
