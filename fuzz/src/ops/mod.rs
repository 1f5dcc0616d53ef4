//! Ops on the CPU and on the virtual GPU: the same call must have the same verdict, and results that differ no more than roundings do.
//!
//! An input's bytes are choices: the op, its shapes and types, how each operand lies in a larger storage, and, rarely, a mistake. Both devices
//! replay the same choices. Outputs are compared with all of their storage, so a write beside a view is found, and a write by a call
//! that is refused.

mod attention;
mod call;
mod gradients;
mod plain;
mod quantized;
mod sparse;

pub use call::Call;

use pascaline::{Device, Error, Result};
use std::sync::OnceLock;

/// An op with its arguments chosen.
type Op = (&'static str, fn(&mut Call) -> Result<()>);

/// All that are called.
fn all() -> &'static [Op] {
    static ALL: OnceLock<Vec<Op>> = OnceLock::new();
    ALL.get_or_init(|| [plain::OPS, attention::OPS, quantized::OPS, gradients::OPS, sparse::OPS].concat())
}

/// A call's verdict and the contents of all outputs, each with what it may differ by: an absolute and a relative part.
struct Outcome {
    name: &'static str,
    text: String,
    verdict: Result<(), Error>,
    outputs: Vec<(Vec<f64>, [f64; 2])>,
}

fn run(choices: &[u8], device: &Device) -> Outcome {
    let mut call = Call::new(choices, device);
    let (name, op) = all()[call.below(all().len())];
    let verdict = op(&mut call);
    let (text, outputs) = call.finish();
    Outcome { name, text, verdict, outputs }
}

/// The devices: both live as long as the process.
fn devices() -> &'static [Device; 2] {
    static DEVICES: OnceLock<[Device; 2]> = OnceLock::new();
    DEVICES.get_or_init(|| [Device::Cpu, Device::virtual_gpu().expect("nothing has used a real driver")])
}

/// The target: panics where the devices differ.
pub fn ops(choices: &[u8]) {
    if let Some(difference) = difference(choices) {
        panic!("{difference}");
    }
}

/// How the devices differ on these choices.
pub fn difference(choices: &[u8]) -> Option<String> {
    let [cpu, gpu] = devices();
    let (cpu, gpu) = (run(choices, cpu), run(choices, gpu));
    let Outcome { name, text, .. } = &cpu;
    if cpu.verdict != gpu.verdict {
        return Some(format!("{name}: {text}: the CPU says {:?}, the GPU {:?}", cpu.verdict, gpu.verdict));
    }
    for (number, ((a, [abs, rel]), (b, _))) in cpu.outputs.iter().zip(&gpu.outputs).enumerate() {
        if a.len() != b.len() {
            return Some(format!("{name}: {text}: output {number} has {} and {} values", a.len(), b.len()));
        }
        let is_near =
            |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= abs + rel * a.abs();
        if let Some(at) = a.iter().zip(b).position(|pair| !is_near(pair)) {
            return Some(format!(
                "{name}: {text}: output {number} at {at} is {:e} on the CPU, {:e} on the GPU",
                a[at], b[at]
            ));
        }
    }
    None
}

/// The verdict of a call: its op, and whether it was accepted. For counting what a search reaches.
pub fn verdict(choices: &[u8]) -> (&'static str, bool) {
    let outcome = run(choices, &devices()[0]);
    (outcome.name, outcome.verdict.is_ok())
}

/// Random choices for one call, by number.
pub fn random(seed: u64) -> [u8; 96] {
    let mut state = seed;
    std::array::from_fn(|_| {
        // splitmix64
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) as u8
    })
}
