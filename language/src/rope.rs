//! Rotary angles: tables of cosines and sines, and those of the decoder.

use super::config::TextConfig;

/// Cosines and sines of rotary angles, each [positions, head_dim / 2]: angle i rotates elements i and
/// i + head_dim / 2 of a head. Computed in f64.
#[derive(Clone, Debug, PartialEq)]
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

    /// Appends an angle.
    pub fn push(&mut self, angle: f64) {
        let (sin, cos) = angle.sin_cos();
        self.cos.push(cos as f32);
        self.sin.push(sin as f32);
    }
}

/// θ⁻²ⁱᐟᵈ for i < d / 2.
pub fn frequencies(theta: f64, dim: usize) -> Vec<f64> {
    (0..dim / 2).map(|i| theta.powf(-((2 * i) as f64) / dim as f64)).collect()
}

/// The decoder's rotary angles at these positions. Of the frequencies, those at 1, 4, 7, … < 3·section\[1\] rotate with the
/// height, those at 2, 5, 8, … < 3·section\[2\] with the width, the others with the time.
pub fn text_rope(config: &TextConfig, axes: &[[u32; 3]]) -> RopeTables {
    let frequencies = frequencies(config.rope_theta, config.head_dim);
    let axis_of = |i: usize| match i % 3 {
        axis @ (1 | 2) if i < 3 * config.mrope_section[axis] => axis,
        _ => 0,
    };
    let mut tables = RopeTables::with_capacity(axes.len() * frequencies.len());
    for position in axes {
        for (i, frequency) in frequencies.iter().enumerate() {
            tables.push(f64::from(position[axis_of(i)]) * frequency);
        }
    }
    tables
}
