//! Steps of AdamW with moments in 8 bits, over two tensors at once.

use super::{About, Case, HostTensor, Purpose, Tolerance, data};
use pascaline::ops::{self, AdamW, AdamW8bitTensor, Moment, Moments8bit};
use pascaline::{DType, Device, Result, Tensor, TensorMut};

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
    of: Of,
    purpose: Purpose,
}

const DECAY: f32 = 0.1;
const ADAMW: AdamW = AdamW { lr: 0.01, betas: [0.9, 0.99], eps: 1e-6, step: 3, gradient_scale: 0.5 };
/// Elements with a common scale.
const BLOCK: usize = 256;

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut all = Vec::new();
    for of in [Of::Parameter, Of::First, Of::Second] {
        for n in [0, 1, 255, 256, 257, 16_384, 16_385, 40_000] {
            all.push(Step { n, of, purpose: Purpose::Test });
        }
    }
    all.push(Step { n: 100 << 20, of: Of::Parameter, purpose: Purpose::Bench });
    all.into_iter().map(|case| Box::new(case) as Box<dyn Case>).collect()
}

/// The moments of a case's inputs, as they are stored.
fn moments(first: &[f32], second: &[f32], device: &Device) -> Result<Moments8bit> {
    Moments8bit::from_f32(first, second, device)
}

impl Case for Step {
    fn about(&self) -> About {
        let of = match self.of {
            Of::Parameter => "parameter",
            Of::First => "first",
            Of::Second => "second",
        };
        let id = format!("adamw8bit_f32/of={of},n={}", self.n);
        About {
            op: "adamw8bit",
            id,
            purpose: self.purpose,
            output: ([self.n].into(), DType::F32),
            tolerance: match self.of {
                Of::Parameter => Tolerance::new(1e-6, 1e-6, "a few operations in f32 on numbers about 1"),
                Of::First => Tolerance::new(
                    4.5 * 0.9 / 128.0,
                    0.0,
                    "half a step of the upper decade's levels, of a largest value below 4.5",
                ),
                Of::Second => Tolerance::new(
                    18.0 * 0.9 / 256.0,
                    0.0,
                    "half a step of the upper decade's levels, of a largest value below 18",
                ),
            },
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let id = self.id();
        let values = |name: &str| data::normal(&id, name, [self.n], DType::F32);
        let mut second = values("second");
        second.values.iter_mut().for_each(|x| *x *= *x);
        let [mut first, mut parameter, mut gradient] =
            [values("first"), values("parameter"), values("gradient")];
        for of in [&mut first, &mut second, &mut parameter, &mut gradient] {
            of.values.iter_mut().skip(3).step_by(100).for_each(|x| *x *= 1e-4); // more than one decade
        }
        vec![parameter, gradient, first, second]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let [parameter, gradient, first, second] = inputs else { return Ok(()) };
        let device = gradient.device();
        let mut parameter = ops::copy(parameter)?;
        let mut own = match self.purpose {
            Purpose::Test => moments(&first.to_vec()?, &second.to_vec()?, &device)?,
            // encoding on the host would be timed
            Purpose::Bench => Moments8bit::zeros(self.n, &device)?,
        };
        // a second tensor, so that the table has more than one, and one whose elements are not aligned
        let odd = || Tensor::ones([6], DType::F32, &device)?.narrow(0, 1, 5);
        let (mut p, g, mut of_p) = (odd()?, odd()?, Moments8bit::zeros(5, &device)?);
        let others =
            AdamW8bitTensor { parameter: &mut p, gradient: &g, moments: &mut of_p, weight_decay: 0.0 };
        let own_tensor =
            AdamW8bitTensor { parameter: &mut parameter, gradient, moments: &mut own, weight_decay: DECAY };
        ops::adamw8bit_step(&mut [others, own_tensor], &ADAMW)?;
        let of = |moment| Tensor::from_slice(&own.to_vec(moment)?, [self.n], &device);
        match self.of {
            Of::Parameter => ops::copy_into(y, &parameter),
            Of::First => ops::copy_into(y, &of(Moment::First)?),
            Of::Second => ops::copy_into(y, &of(Moment::Second)?),
        }
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let [beta1, beta2] = ADAMW.betas.map(f64::from);
        let stored = |moment| match self.purpose {
            Purpose::Test => moments(&inputs[2].values, &inputs[3].values, &Device::Cpu)
                .and_then(|moments| moments.to_vec(moment))
                .expect("a case's moments can be stored"),
            Purpose::Bench => vec![0.0; self.n],
        };
        let (first, second) = (stored(Moment::First), stored(Moment::Second));
        let one = |i: usize| {
            let [p, g] = [0, 1].map(|input| f64::from(inputs[input].values[i]));
            let (m, v) = (f64::from(first[i]), f64::from(second[i]));
            let g = g * f64::from(ADAMW.gradient_scale);
            let (lr, decay) = (f64::from(ADAMW.lr), f64::from(DECAY));
            let (m, v) = (beta1 * m + (1.0 - beta1) * g, beta2 * v + (1.0 - beta2) * g * g);
            let [m_hat, v_hat] = [m / (1.0 - beta1.powi(3)), v / (1.0 - beta2.powi(3))];
            let p = p * (1.0 - lr * decay) - lr * m_hat / (v_hat.sqrt() + f64::from(ADAMW.eps));
            match self.of {
                Of::Parameter => p,
                Of::First => m,
                Of::Second => v,
            }
        };
        let all: Vec<f64> = (0..self.n).map(one).collect();
        // the output has one row
        rows.iter().flat_map(|_| all.iter().copied()).collect()
    }

    fn flops(&self) -> f64 {
        12.0 * self.n as f64
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        (3.0 * 4.0 + 2.0 * 2.0) * self.n as f64 + 16.0 * self.n.div_ceil(BLOCK) as f64
    }
}
