//! The gradients of ops. The reference is a formula in f64, which a test compares with central differences of the forward pass
//! in f64.

mod activate;
mod attention;
mod cross_entropy;
mod embedding;
mod fake_quantize;
mod norm;
mod rope;
mod silu_mul;
mod softmax;

use super::{Case, HostTensor, Purpose, Tolerance, case, data};
use pascaline::{DType, Result, Shape, Tensor, TensorMut};

/// The description of a gradient.
struct About {
    /// The op that computes it.
    op: &'static str,
    /// As [`Case::id`], without the op.
    sizes: String,
    dtype: DType,
    purpose: Purpose,
    /// The shape and type of the gradient.
    gradient: (Shape, DType),
    tolerance: Tolerance,
}

/// An op with a gradient with respect to one of its arguments.
trait Differentiable: Send + Sync {
    fn about(&self) -> About;

    /// The shape of the forward result, and so of dy.
    fn forward_shape(&self) -> Shape;

    /// The type of dy.
    fn dy_dtype(&self) -> DType {
        self.about().dtype
    }

    /// The op's arguments besides dy.
    fn arguments(&self) -> Vec<HostTensor>;

    /// As [`About::sizes`].
    fn sizes(&self) -> String {
        self.about().sizes
    }

    /// As [`About::gradient`].
    fn gradient(&self) -> (Shape, DType) {
        self.about().gradient
    }

    /// Runs the op.
    fn run(&self, y: TensorMut, dy: &Tensor, arguments: &[Tensor]) -> Result<()>;

    /// The gradient by its formula.
    fn formula(&self, dy: &[f64], arguments: &[Vec<f64>]) -> Vec<f64>;

    /// These rows of the gradient. Ops whose rows are costly and independent compute only these.
    fn formula_rows(&self, dy: &[f64], arguments: &[Vec<f64>], rows: &[usize]) -> Vec<f64> {
        let all = self.formula(dy, arguments);
        let (_, cols) = self.gradient().0.rows_cols();
        rows.iter().flat_map(|r| all[r * cols..(r + 1) * cols].iter().copied()).collect()
    }

    /// The value of the argument with respect to which the gradient is taken.
    #[cfg_attr(not(test), allow(dead_code))] // only central differences need it
    fn point(&self, arguments: &[Vec<f64>]) -> Vec<f64>;

    /// The forward result at a point.
    #[cfg_attr(not(test), allow(dead_code))] // only central differences need it
    fn forward(&self, point: &[f64], arguments: &[Vec<f64>]) -> Vec<f64>;

    fn flops(&self) -> f64;
}

struct Gradient<D>(D);

fn boxed<D: Differentiable + 'static>(all: Vec<D>) -> Vec<Box<dyn Case>> {
    all.into_iter().map(|of| Box::new(Gradient(of)) as Box<dyn Case>).collect()
}

impl<D: Differentiable> Case for Gradient<D> {
    fn about(&self) -> case::About {
        let About { op, sizes, dtype, purpose, gradient, tolerance } = self.0.about();
        case::About { op, id: format!("{op}_{dtype}/{sizes}"), purpose, output: gradient, tolerance }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let dy = data::normal(&self.id(), "dy", self.0.forward_shape(), self.0.dy_dtype());
        std::iter::once(dy).chain(self.0.arguments()).collect()
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        self.0.run(y, &inputs[0], &inputs[1..])
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let inputs = wide(inputs);
        self.0.formula_rows(&inputs[0], &inputs[1..], rows)
    }

    fn flops(&self) -> f64 {
        self.0.flops()
    }

    fn compute_bound(&self) -> bool {
        let elements = self.0.forward_shape().elements() + self.0.gradient().0.elements();
        self.0.flops() > 1000.0 * elements as f64
    }
}

fn wide(inputs: &[HostTensor]) -> Vec<Vec<f64>> {
    inputs.iter().map(|input| input.values.iter().map(|&x| f64::from(x)).collect()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let ops = [
        boxed(attention::all()),
        boxed(attention::all_sparse()),
        boxed(softmax::all()),
        boxed(norm::all()),
        boxed(activate::all()),
        boxed(silu_mul::all()),
        boxed(rope::all()),
        boxed(embedding::all()),
        boxed(cross_entropy::all()),
        boxed(fake_quantize::all()),
    ];
    ops.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements of a gradient that are compared.
    const SAMPLED: usize = 12;
    /// The step, for functions whose values and derivatives are about 1.
    const STEP: f64 = 1e-5;

    fn compare<D: Differentiable>(of: &D) {
        let case = |name: &str| format!("{}: {name}", of.sizes());
        let arguments = wide(&of.arguments());
        let dy = match of.forward_shape().rank() {
            1 => vec![1.0], // a loss
            _ => wide(&[data::normal(&of.sizes(), "dy", of.forward_shape(), DType::F32)]).remove(0),
        };
        let (point, formula) = (of.point(&arguments), of.formula(&dy, &arguments));
        assert_eq!(formula.len(), point.len(), "{}", case("as many derivatives as values"));
        let largest = formula.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
        for sample in 0..SAMPLED.min(point.len()) {
            let i = sample * point.len() / SAMPLED.min(point.len());
            let at = |shift: f64| {
                let mut point = point.clone();
                point[i] += shift;
                dot(&dy, &of.forward(&point, &arguments))
            };
            let difference = (at(STEP) - at(-STEP)) / (2.0 * STEP);
            let error = (difference - formula[i]).abs();
            let message = format!("derivative {i}: {} by the formula, {difference}", formula[i]);
            assert!(error <= 1e-6 * largest.max(1.0), "{}", case(&message));
        }
    }

    /// Those that are small enough for central differences.
    fn compare_small<D: Differentiable>(all: Vec<D>) {
        let small =
            all.iter().filter(|of| of.about().purpose == Purpose::Test && of.about().dtype == DType::F32);
        small.filter(|of| of.forward_shape().elements() < 20_000).for_each(compare);
    }

    #[test]
    fn formulas_are_the_derivatives() {
        compare_small(attention::all());
        compare_small(attention::all_sparse());
        compare_small(softmax::all());
        compare_small(norm::all());
        compare_small(activate::all());
        compare_small(silu_mul::all());
        compare_small(rope::all());
        compare_small(embedding::all());
        compare_small(cross_entropy::all());
        compare_small(fake_quantize::all());
    }
}
