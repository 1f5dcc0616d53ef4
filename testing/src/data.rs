//! Test data from fixed seeds.

use super::HostTensor;
use pascaline::{DType, Shape};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rayon::prelude::*;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Values drawn by one generator: large tensors are filled by several, in parallel.
const CHUNK: usize = 1 << 16;

/// A generator seeded by the case's id and the argument's name.
pub fn rng(id: &str, argument: &str) -> StdRng {
    StdRng::seed_from_u64(seed(id, argument))
}

fn seed(id: &str, argument: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (id, argument).hash(&mut hasher);
    hasher.finish()
}

/// The part of an id that names the case's kind of data; nothing if it is the usual one.
pub fn label(data: impl Debug) -> String {
    match format!("{data:?}").to_lowercase() {
        normal if normal == "normal" => String::new(),
        kind => format!(",data={kind}"),
    }
}

/// Approximately normal, mean 0 and variance 1 (Irwin–Hall of four uniforms).
pub fn normal(id: &str, argument: &str, shape: impl Into<Shape>, dtype: DType) -> HostTensor {
    let (seed, shape) = (seed(id, argument), shape.into());
    let mut values = vec![0.0; shape.elements()];
    values.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, values)| {
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(chunk as u64));
        for value in values {
            let sum: f32 = (0..4).map(|_| rng.random::<f32>()).sum();
            *value = (sum - 2.0) * 3f32.sqrt();
        }
    });
    HostTensor::new(shape, dtype, values)
}

/// The cosines and the sines of normal angles.
pub fn angles(id: &str, shape: [usize; 2]) -> [HostTensor; 2] {
    let angles = normal(id, "angles", shape, DType::F32).values;
    [f32::cos, f32::sin]
        .map(|f| HostTensor::new(shape, DType::F32, angles.iter().map(|&angle| f(angle)).collect()))
}

/// Whole numbers from −4 to 4: products and sums of up to 2²⁰ of them are exact in f32, so results must be equal.
pub fn small_integers(id: &str, argument: &str, shape: impl Into<Shape>, dtype: DType) -> HostTensor {
    let mut rng = rng(id, argument);
    fill(shape.into(), dtype, &mut || rng.random_range(-4..=4) as f32)
}

/// Normal, and one value in 64 is a hundred times as large.
pub fn outliers(id: &str, argument: &str, shape: impl Into<Shape>, dtype: DType) -> HostTensor {
    let mut tensor = normal(id, argument, shape, dtype);
    let mut rng = rng(id, "outliers");
    for value in &mut tensor.values {
        if rng.random_range(0..64) == 0 {
            *value *= 100.0;
        }
    }
    HostTensor::new(tensor.shape, dtype, tensor.values)
}

fn fill(shape: Shape, dtype: DType, draw: &mut dyn FnMut() -> f32) -> HostTensor {
    let values = (0..shape.elements()).map(|_| draw()).collect();
    HostTensor::new(shape, dtype, values)
}
