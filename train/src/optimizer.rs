//! Steps: AdamW or gradient descent with momentum, clipping, schedules.

use crate::parameters::Parameters;
use pascaline::ops::{self, AdamW, AdamW8bitTensor, AdamWTensor, Moment, Moments8bit, Sgd, SgdTensor};
use pascaline::{Device, Error, Result, Tensor};

/// Which optimiser.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    /// AdamW, with two moments for each parameter.
    AdamW {
        /// β₁ and β₂.
        betas: [f32; 2],
        /// Added to the root of the second moment.
        eps: f32,
    },
    /// AdamW with both moments stored in 8 bits (Dettmers et al. 2021).
    AdamW8bit {
        /// β₁ and β₂.
        betas: [f32; 2],
        /// Added to the root of the second moment.
        eps: f32,
    },
    /// Gradient descent, with one moment for each parameter.
    Sgd {
        /// The factor of the last step's momentum.
        momentum: f32,
    },
}

impl Default for Method {
    fn default() -> Self {
        Self::AdamW { betas: [0.9, 0.999], eps: 1e-8 }
    }
}

impl Method {
    /// AdamW with the usual β₁, β₂ and eps and moments in 8 bits.
    pub fn adamw8bit() -> Self {
        Self::AdamW8bit { betas: [0.9, 0.999], eps: 1e-8 }
    }

    /// Bytes of the moments of so many elements.
    pub fn bytes(&self, elements: usize) -> usize {
        match self {
            Self::AdamW { .. } => 8 * elements,
            Self::AdamW8bit { .. } => 2 * elements + elements / 32,
            Self::Sgd { .. } => 4 * elements,
        }
    }
}

/// The moments of a parameter.
enum Moments {
    Two([Tensor; 2]),
    InEightBits(Moments8bit),
    One(Tensor),
}

/// How the learning rate changes after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decay {
    /// It stays the same.
    #[default]
    Constant,
    /// Linearly to 0.
    Linear,
    /// To 0 along half a cosine (Loshchilov & Hutter 2017, "SGDR", without restarts).
    Cosine,
}

/// The learning rate of each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The largest learning rate.
    pub peak: f32,
    /// Steps in which it grows linearly from 0.
    pub warmup: u32,
    /// The number of all steps.
    pub total: u32,
    /// The decay after the warm-up.
    pub decay: Decay,
}

impl Schedule {
    /// The same learning rate always.
    pub fn constant(peak: f32) -> Self {
        Self { peak, warmup: 0, total: 0, decay: Decay::Constant }
    }

    /// The learning rate of a step; the first is number 1.
    pub fn rate(&self, step: u32) -> f32 {
        if step < self.warmup {
            return self.peak * step as f32 / self.warmup as f32;
        }
        let rest = self.total.saturating_sub(self.warmup).max(1);
        let done = (step - self.warmup).min(rest) as f32 / rest as f32;
        match self.decay {
            Decay::Constant => self.peak,
            Decay::Linear => self.peak * (1.0 - done),
            Decay::Cosine => self.peak * 0.5 * (1.0 + (std::f32::consts::PI * done).cos()),
        }
    }
}

/// An optimiser and its moments.
pub struct Optimizer {
    method: Method,
    schedule: Schedule,
    /// For matrices; vectors do not decay.
    weight_decay: f32,
    /// The largest norm of all gradients together, to which they are clipped.
    max_norm: Option<f32>,
    step: u32,
    /// For each parameter, by number, if it is trained.
    moments: Vec<Option<Moments>>,
}

/// The learning rate and the gradients' norm of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The learning rate.
    pub rate: f32,
    /// The norm of the gradients before clipping, if they are clipped.
    pub norm: Option<f64>,
}

impl Optimizer {
    /// An optimiser without clipping.
    pub fn new(method: Method, schedule: Schedule, weight_decay: f32) -> Self {
        Self { method, schedule, weight_decay, max_norm: None, step: 0, moments: Vec::new() }
    }

    /// Clips gradients: scales them down together to this norm if theirs is larger.
    pub fn clip(self, max_norm: f32) -> Self {
        Self { max_norm: Some(max_norm), ..self }
    }

    /// The moments in f32 by the names of parameters, to be stored: `‹parameter›.first` and `‹parameter›.second`. Those in 8 bits are
    /// restored to the same bits.
    pub(crate) fn moments(&self, parameters: &Parameters) -> Result<Vec<(String, Tensor)>> {
        let mut all = Vec::new();
        for (parameter, moments) in parameters.iter().zip(&self.moments) {
            let [first, second] = match moments {
                None => continue,
                Some(Moments::Two(moments)) => moments.clone().map(Some),
                Some(Moments::One(momentum)) => [Some(momentum.clone()), None],
                Some(Moments::InEightBits(moments)) => {
                    let of = |moment| {
                        Tensor::from_slice(&moments.to_vec(moment)?, [moments.elements()], &Device::Cpu)
                    };
                    [Some(of(Moment::First)?), Some(of(Moment::Second)?)]
                }
            };
            let named = [("first", first), ("second", second)];
            let some = named.into_iter().filter_map(|(part, moment)| Some((part, moment?)));
            all.extend(some.map(|(part, moment)| (format!("{}.{part}", parameter.name()), moment)));
        }
        Ok(all)
    }

    /// Continues after `step` steps, with stored moments: `read` returns those that exist, by name.
    pub(crate) fn resume(
        &mut self,
        step: u32,
        parameters: &Parameters,
        read: impl Fn(&str, &Tensor) -> Result<Option<Tensor>>,
    ) -> Result<()> {
        self.step = step;
        self.moments.clear();
        for parameter in parameters.iter() {
            let part = |part: &str| read(&format!("{}.{part}", parameter.name()), parameter.value());
            self.moments.push(match (self.method, part("first")?, part("second")?) {
                (Method::AdamW { .. }, Some(first), Some(second)) => Some(Moments::Two([first, second])),
                (Method::AdamW8bit { .. }, Some(first), Some(second)) => {
                    let (first, second) = (first.to_vec()?, second.to_vec()?);
                    let device = parameter.value().device();
                    Some(Moments::InEightBits(Moments8bit::from_f32(&first, &second, &device)?))
                }
                (Method::Sgd { .. }, Some(momentum), _) => Some(Moments::One(momentum)),
                _ => None,
            });
        }
        Ok(())
    }

    /// The options, by which a stored state is told from that of another run.
    pub(crate) fn describe(&self) -> String {
        format!("{:?} {:?} {} {:?}", self.method, self.schedule, self.weight_decay, self.max_norm)
    }

    /// How many steps were made.
    pub fn steps(&self) -> u32 {
        self.step
    }

    /// Updates the parameters by their gradients, and drops these. Parameters without a gradient are not changed.
    ///
    /// # Errors
    /// [`Error::NotFinite`] if the norm is not finite, before anything is changed; or a device error.
    pub fn step(&mut self, parameters: &mut Parameters) -> Result<Step> {
        let mut norm = None;
        let mut gradient_scale = 1.0;
        if let Some(max_norm) = self.max_norm {
            let all: Vec<&Tensor> = parameters.iter().filter_map(|parameter| parameter.found()).collect();
            let found = ops::squared_norm(&all)?.sqrt();
            if !found.is_finite() {
                return Err(Error::NotFinite {
                    what: "the norm of the gradients",
                    value: found.to_string(),
                    index: 0,
                });
            }
            if found > f64::from(max_norm) {
                gradient_scale = (f64::from(max_norm) / found) as f32;
            }
            norm = Some(found);
        }
        self.prepare(parameters)?;
        self.step += 1;
        let rate = self.schedule.rate(self.step);
        match self.method {
            Method::AdamW { betas, eps } => {
                let options = AdamW { lr: rate, betas, eps, step: self.step, gradient_scale };
                let mut all = Vec::new();
                for (parameter, moments) in parameters.iter_mut().zip(&mut self.moments) {
                    let (parameter, Some(gradient)) = parameter.for_step() else { continue };
                    let Some(Moments::Two([first, second])) = moments else { continue };
                    let weight_decay = if parameter.dims().len() > 1 { self.weight_decay } else { 0.0 };
                    all.push(AdamWTensor { parameter, gradient, first, second, weight_decay });
                }
                ops::adamw_step(&mut all, &options)?;
            }
            Method::AdamW8bit { betas, eps } => {
                let options = AdamW { lr: rate, betas, eps, step: self.step, gradient_scale };
                let mut all = Vec::new();
                for (parameter, moments) in parameters.iter_mut().zip(&mut self.moments) {
                    let (parameter, Some(gradient)) = parameter.for_step() else { continue };
                    let Some(Moments::InEightBits(moments)) = moments else { continue };
                    let weight_decay = if parameter.dims().len() > 1 { self.weight_decay } else { 0.0 };
                    all.push(AdamW8bitTensor { parameter, gradient, moments, weight_decay });
                }
                ops::adamw8bit_step(&mut all, &options)?;
            }
            Method::Sgd { momentum } => {
                let options = Sgd { lr: rate, momentum, gradient_scale };
                let mut all = Vec::new();
                for (parameter, moments) in parameters.iter_mut().zip(&mut self.moments) {
                    let (parameter, Some(gradient)) = parameter.for_step() else { continue };
                    let Some(Moments::One(momentum)) = moments else { continue };
                    let weight_decay = if parameter.dims().len() > 1 { self.weight_decay } else { 0.0 };
                    all.push(SgdTensor { parameter, gradient, momentum, weight_decay });
                }
                ops::sgd_step(&mut all, &options)?;
            }
        }
        parameters.zero_gradients();
        Ok(Step { rate, norm })
    }

    /// Allocates the moments that are missing.
    fn prepare(&mut self, parameters: &Parameters) -> Result<()> {
        self.moments.resize_with(parameters.iter().count(), || None);
        for (parameter, moments) in parameters.iter().zip(&mut self.moments) {
            let value = parameter.value();
            if moments.is_none() && parameter.found().is_some() {
                *moments = Some(match self.method {
                    Method::AdamW { .. } => Moments::Two([value.zeros_like()?, value.zeros_like()?]),
                    Method::AdamW8bit { .. } => {
                        Moments::InEightBits(Moments8bit::zeros(value.shape().elements(), &value.device())?)
                    }
                    Method::Sgd { .. } => Moments::One(value.zeros_like()?),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_rise_and_fall() {
        let schedule = |decay| Schedule { peak: 1.0, warmup: 10, total: 110, decay };
        for decay in [Decay::Constant, Decay::Linear, Decay::Cosine] {
            assert_eq!(schedule(decay).rate(5), 0.5);
            assert_eq!(schedule(decay).rate(10), 1.0);
        }
        assert_eq!(schedule(Decay::Constant).rate(1000), 1.0);
        assert_eq!(schedule(Decay::Linear).rate(60), 0.5);
        assert!((schedule(Decay::Cosine).rate(60) - 0.5).abs() < 1e-6);
        assert!((schedule(Decay::Cosine).rate(35) - 0.853_553_4).abs() < 1e-6); // (1 + cos 45°) / 2
        for decay in [Decay::Linear, Decay::Cosine] {
            assert!(schedule(decay).rate(110).abs() < 1e-6 && schedule(decay).rate(500).abs() < 1e-6);
        }
    }
}
