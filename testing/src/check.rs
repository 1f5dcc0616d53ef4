//! Runs a case on a device and compares with the reference.

use super::{Case, HostTensor, Purpose, Tolerance};
use half::f16;
use pascaline::{DType, Device, Result, Tensor, TensorMut};
use rayon::prelude::*;
use std::fmt;

/// Guard elements before and after the output, which the op must not write. A multiple of 64, so that the output keeps
/// the alignment of an allocation.
const GUARD: usize = 256;

/// Rows of a bench case that are compared.
const SAMPLED_ROWS: usize = 8;

/// The result of a check.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The largest |result − reference| among the elements compared.
    pub max_error: f64,
    /// The largest error as a share of its element's tolerance; at most 1 in a passing case.
    pub worst_share: f64,
    /// The tolerance of the comparison.
    pub tolerance: Tolerance,
    /// Whether it passed, or the first fault.
    pub verdict: Verdict,
}

/// Pass, or the first fault.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// All compared elements are within the tolerance.
    Pass,
    /// An element is not.
    Wrong {
        /// Its index in the output.
        index: usize,
        /// The result.
        got: f64,
        /// The reference.
        want: f64,
    },
    /// The op wrote outside its output.
    GuardOverwritten {
        /// Element index relative to the output's first.
        index: isize,
    },
    /// The result was not the same when the op ran again.
    NotRepeatable {
        /// The first index that differs.
        index: usize,
    },
}

/// A function that computes a case's output.
pub type Run<'a> = dyn Fn(TensorMut, &[Tensor]) -> Result<()> + 'a;

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass => f.write_str("right"),
            Self::Wrong { index, got, want } => write!(f, "y[{index}] is {got:e}, expected {want:e}"),
            Self::GuardOverwritten { index } => write!(f, "it wrote outside its output, at element {index}"),
            Self::NotRepeatable { index } => write!(f, "y[{index}] differed between two runs"),
        }
    }
}

impl Outcome {
    /// Whether it passed.
    pub fn passed(&self) -> bool {
        self.verdict == Verdict::Pass
    }
}

/// Runs `case` twice on `device`, into an output that is poisoned and guarded on both sides, and compares: all
/// elements of a test case, sampled rows of a bench case.
///
/// # Errors
/// The error of the op or the device; a wrong result is an [`Outcome`].
pub fn check(case: &dyn Case, device: &Device) -> Result<Outcome> {
    let inputs = case.inputs();
    let on_device = inputs.iter().map(|input| input.to(device)).collect::<Result<Vec<_>>>()?;
    check_with(case, device, &inputs, &on_device, &|y, x| case.run(y, x))
}

/// As [`check()`], with `inputs` that were made and copied to the device before, and with `run` instead of the case's
/// own: its baseline, or a library's function for the same work.
///
/// # Errors
/// As [`check()`].
pub fn check_with(
    case: &dyn Case,
    device: &Device,
    inputs: &[HostTensor],
    on_device: &[Tensor],
    run: &Run,
) -> Result<Outcome> {
    let got = run_guarded(case, device, on_device, run)?;
    let again = run_guarded(case, device, on_device, run)?;

    let tolerance = case.tolerance();
    let mut outcome = Outcome { max_error: 0.0, worst_share: 0.0, tolerance, verdict: Verdict::Pass };
    let elements = got.len() - 2 * GUARD;
    let poison = poison(case.output().1);
    let is_poison = |value: f64| value == poison || (value.is_nan() && poison.is_nan());
    let mut guards = (0..GUARD).chain(GUARD + elements..got.len());
    if let Some(index) = guards.find(|i| !is_poison(got[*i])) {
        outcome.verdict = Verdict::GuardOverwritten { index: index as isize - GUARD as isize };
        return Ok(outcome);
    }
    let differs = |i: &usize| got[GUARD + i].to_bits() != again[GUARD + i].to_bits();
    if let Some(index) = (0..elements).into_par_iter().find_first(differs) {
        outcome.verdict = Verdict::NotRepeatable { index };
        return Ok(outcome);
    }
    compare(case, inputs, &got[GUARD..GUARD + elements], &mut outcome);
    Ok(outcome)
}

/// The output of one run with its guards, in f64 (exact for every element type).
fn run_guarded(case: &dyn Case, device: &Device, inputs: &[Tensor], run: &Run) -> Result<Vec<f64>> {
    let (shape, dtype) = case.output();
    let elements = shape.elements();
    let mut values = vec![poison(dtype) as f32; elements + 2 * GUARD];
    if let Some(initial) = case.initial() {
        values[GUARD..GUARD + elements].copy_from_slice(&initial.values);
    }
    let mut guarded = HostTensor::new([values.len()], dtype, values).to(device)?;
    run(guarded.view_mut()?.narrow(0, GUARD, elements)?.reshape(shape)?, inputs)?;
    to_f64(&guarded)
}

/// NaN, or for indices a number that no result has.
fn poison(dtype: DType) -> f64 {
    if dtype.is_float() { f64::NAN } else { 16_777_215.0 }
}

fn to_f64(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(match tensor.dtype() {
        DType::F32 => tensor.to_vec::<f32>()?.into_par_iter().map(f64::from).collect(),
        DType::F16 => tensor.to_vec::<f16>()?.into_par_iter().map(f64::from).collect(),
        DType::U32 => tensor.to_vec::<u32>()?.into_par_iter().map(f64::from).collect(),
    })
}

fn compare(case: &dyn Case, inputs: &[HostTensor], got: &[f64], outcome: &mut Outcome) {
    let (rows, cols) = case.output().0.rows_cols();
    if got.is_empty() {
        return;
    }
    let sampled: Vec<usize> = match case.purpose() {
        Purpose::Test => (0..rows).collect(),
        Purpose::Bench => {
            let mut sampled: Vec<_> =
                (0..SAMPLED_ROWS).map(|i| i * (rows - 1) / (SAMPLED_ROWS - 1)).collect();
            sampled.dedup();
            sampled
        }
    };
    let reference = case.reference(inputs, &sampled);
    assert_eq!(reference.len(), sampled.len() * cols, "{}: the reference has the rows asked for", case.id());
    let Tolerance { abs, rel, .. } = outcome.tolerance;
    for (r, want) in sampled.iter().zip(reference.chunks(cols)) {
        for (c, &want) in want.iter().enumerate() {
            let index = r * cols + c;
            let got = got[index];
            if got == want || (got.is_nan() && want.is_nan()) {
                continue;
            }
            let error = (got - want).abs();
            let allowed = abs + rel * want.abs();
            let within = error <= allowed; // false for NaN
            if !within && outcome.verdict == Verdict::Pass {
                outcome.verdict = Verdict::Wrong { index, got, want };
            }
            let error = if error.is_nan() { f64::INFINITY } else { error };
            outcome.max_error = outcome.max_error.max(error);
            outcome.worst_share =
                outcome.worst_share.max(if within && allowed == 0.0 { 0.0 } else { error / allowed });
        }
    }
}
