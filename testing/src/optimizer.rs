//! Steps of optimisers, over two tensors at once.

use super::{About, Case, HostTensor, Purpose, Tolerance, data};
use pascaline::ops::{self, AdamW, AdamWTensor, Sgd, SgdTensor};
use pascaline::{DType, Result, Tensor, TensorMut};

/// The value that is compared after the step.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    Parameter,
    First,
    Second,
}

#[derive(Clone, Copy)]
struct Step {
    n: usize,
    is_adam: bool,
    of: Of,
    purpose: Purpose,
}

const DECAY: f32 = 0.1;
const ADAMW: AdamW = AdamW { lr: 0.01, betas: [0.9, 0.99], eps: 1e-6, step: 3, gradient_scale: 0.5 };
const SGD: Sgd = Sgd { lr: 0.01, momentum: 0.9, gradient_scale: 0.5 };

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut all = Vec::new();
    for (is_adam, of) in [
        (true, Of::Parameter),
        (true, Of::First),
        (true, Of::Second),
        (false, Of::Parameter),
        (false, Of::First),
    ] {
        for n in [0, 1, 255, 16_384, 16_385, 40_000] {
            all.push(Step { n, is_adam, of, purpose: Purpose::Test });
        }
    }
    for is_adam in [true, false] {
        all.push(Step { n: 100 << 20, is_adam, of: Of::Parameter, purpose: Purpose::Bench });
    }
    all.into_iter().map(|case| Box::new(case) as Box<dyn Case>).collect()
}

impl Case for Step {
    fn about(&self) -> About {
        let op = if self.is_adam { "adamw" } else { "sgd" };
        let of = match self.of {
            Of::Parameter => "parameter",
            Of::First => "first",
            Of::Second => "second",
        };
        let id = format!("{op}_f32/of={of},n={}", self.n);
        About {
            op,
            id,
            purpose: self.purpose,
            output: ([self.n].into(), DType::F32),
            tolerance: Tolerance::new(5e-7, 1e-6, "a few operations in f32 on numbers about 1"),
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let id = self.id();
        let values = |name: &str| data::normal(&id, name, [self.n], DType::F32);
        let mut second = values("second");
        second.values.iter_mut().for_each(|x| *x *= *x);
        vec![values("parameter"), values("gradient"), values("first"), second]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let [parameter, gradient, first, second] = inputs else { return Ok(()) };
        let (mut parameter, mut first, mut second) =
            (ops::copy(parameter)?, ops::copy(first)?, ops::copy(second)?);
        let device = gradient.device();
        // a second tensor, so that the table has more than one
        let other = || Tensor::ones([5], DType::F32, &device);
        let (mut p, g, mut m, mut v) = (other()?, other()?, other()?, other()?);
        if self.is_adam {
            let (first, second) = (&mut first, &mut second);
            let own = AdamWTensor { parameter: &mut parameter, gradient, first, second, weight_decay: DECAY };
            let (first, second) = (&mut m, &mut v);
            let other = AdamWTensor { parameter: &mut p, gradient: &g, first, second, weight_decay: 0.0 };
            ops::adamw_step(&mut [other, own], &ADAMW)?;
        } else {
            let momentum = &mut first;
            let own = SgdTensor { parameter: &mut parameter, gradient, momentum, weight_decay: DECAY };
            let other = SgdTensor { parameter: &mut p, gradient: &g, momentum: &mut m, weight_decay: 0.0 };
            ops::sgd_step(&mut [other, own], &SGD)?;
        }
        ops::copy_into(
            y,
            match self.of {
                Of::Parameter => &parameter,
                Of::First => &first,
                Of::Second => &second,
            },
        )
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let [beta1, beta2] = ADAMW.betas.map(f64::from);
        let one = |i: usize| {
            let [p, g, m, v] = [0, 1, 2, 3].map(|input| f64::from(inputs[input].values[i]));
            let g = g * f64::from(ADAMW.gradient_scale);
            let (lr, decay) = (f64::from(ADAMW.lr), f64::from(DECAY));
            let [p, m, v] = match self.is_adam {
                true => {
                    let (m, v) = (beta1 * m + (1.0 - beta1) * g, beta2 * v + (1.0 - beta2) * g * g);
                    let [m_hat, v_hat] = [m / (1.0 - beta1.powi(3)), v / (1.0 - beta2.powi(3))];
                    [p * (1.0 - lr * decay) - lr * m_hat / (v_hat.sqrt() + f64::from(ADAMW.eps)), m, v]
                }
                false => {
                    let m = f64::from(SGD.momentum) * m + g + decay * p;
                    [p - lr * m, m, 0.0]
                }
            };
            match self.of {
                Of::Parameter => p,
                Of::First => m,
                Of::Second => v,
            }
        };
        // the output has one row
        rows.iter().flat_map(|_| (0..self.n).map(one)).collect()
    }

    fn flops(&self) -> f64 {
        12.0 * self.n as f64
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        4.0 * self.n as f64 * if self.is_adam { 7.0 } else { 5.0 }
    }
}
