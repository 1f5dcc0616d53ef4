//! Rotary angles: tables of cosines and sines, and those of the decoder.

use super::config::TextConfig;
use rayon::prelude::*;
use std::sync::{Mutex, PoisonError};

/// Cosines and sines of rotary angles, each [positions, head_dim / 2]: angle i rotates elements i and
/// i + head_dim / 2 of a head. Computed in f64.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RopeTables {
    /// [positions, head_dim / 2]
    pub cos: Vec<f32>,
    /// [positions, head_dim / 2]
    pub sin: Vec<f32>,
}

impl RopeTables {
    /// Of so many angles, for a planned device, which reads none.
    pub fn unknown(count: usize) -> Self {
        Self { cos: vec![0.0; count], sin: vec![0.0; count] }
    }

    /// Empty, with room for so many angles.
    pub fn with_capacity(angles: usize) -> Self {
        Self { cos: Vec::with_capacity(angles), sin: Vec::with_capacity(angles) }
    }
}

/// θ⁻²ⁱᐟᵈ for i < d / 2.
pub fn frequencies(theta: f64, dim: usize) -> Vec<f64> {
    (0..dim / 2).map(|i| theta.powf(-((2 * i) as f64) / dim as f64)).collect()
}

/// The axis of a position by whose coordinate angle `i` rotates: those at 1, 4, 7, … < 3·section\[1\] with the height, those at 2, 5, 8, …
/// < 3·section\[2\] with the width, the others with the time.
fn axis_of(config: &TextConfig, i: usize) -> usize {
    match i % 3 {
        axis @ (1 | 2) if i < 3 * config.mrope_section[axis] => axis,
        _ => 0,
    }
}

/// The decoder's rotary angles at these positions.
pub fn text_rope(config: &TextConfig, axes: &[[u32; 3]]) -> RopeTables {
    let frequencies = frequencies(config.rope_theta, config.head_dim);
    let rotations = |position: &[u32; 3]| {
        let angle = |(i, frequency): (usize, &f64)| f64::from(position[axis_of(config, i)]) * frequency;
        frequencies.iter().enumerate().map(angle).map(f64::sin_cos).collect::<Vec<_>>()
    };
    // a position takes 1 to 2 µs
    let rows: Vec<_> = axes.par_iter().with_min_len(64).map(rotations).collect();
    let rotations = rows.iter().flatten();
    let (cos, sin) = rotations.map(|&(sin, cos)| (cos as f32, sin as f32)).unzip();
    RopeTables { cos, sin }
}

/// The decoder's rotary angles at the positions that were asked for, and those in between: they take a thirtieth of the time of a prompt's
/// pass on a large GPU, and the GPU waits for them.
#[derive(Debug, Default)]
pub struct KnownAngles(
    /// Row p is for position p on all axes.
    Mutex<RopeTables>,
);

impl KnownAngles {
    /// The angles at these positions.
    pub fn at(&self, config: &TextConfig, axes: &[[u32; 3]]) -> RopeTables {
        let half = config.head_dim / 2;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let held = (known.cos.len() / half.max(1)) as u32;
        if let Some(most) = axes.iter().flatten().max().filter(|most| **most >= held) {
            // in advance, so that not every token extends the table
            let more: Vec<_> = (held..=most.saturating_add(255)).map(|position| [position; 3]).collect();
            let RopeTables { cos, sin } = text_rope(config, &more);
            known.cos.extend(cos);
            known.sin.extend(sin);
        }
        let axis: Vec<_> = (0..half).map(|i| axis_of(config, i)).collect();
        let of = |table: &[f32]| {
            let mut values = Vec::with_capacity(axes.len() * half);
            for position in axes {
                let places = axis.iter().enumerate().map(|(i, axis)| position[*axis] as usize * half + i);
                values.extend(places.map(|place| table[place]));
            }
            values
        };
        RopeTables { cos: of(&known.cos), sin: of(&known.sin) }
    }
}
