//! The error of a quantised tensor.

use std::fmt;

/// The difference between a tensor and its reconstruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ErrorReport {
    /// √(Σ (x − y)² / Σ x²); 0 if both are zero everywhere.
    pub relative_rms: f64,
    /// The largest |x − y|.
    pub max: f64,
    /// The cosine of the angle between them; 1 if both are zero everywhere.
    pub cosine: f64,
}

impl ErrorReport {
    /// Compares `original` with `reconstructed`, up to the length of the shorter. A NaN on either side makes the numbers
    /// NaN.
    pub fn new(original: &[f32], reconstructed: &[f32]) -> Self {
        let (mut error, mut xx, mut yy, mut xy, mut max) = (0.0f64, 0.0f64, 0.0f64, 0.0f64, 0.0f64);
        for (&x, &y) in original.iter().zip(reconstructed) {
            let (x, y) = (f64::from(x), f64::from(y));
            let difference = (x - y).abs();
            error += difference * difference;
            xx += x * x;
            yy += y * y;
            xy += x * y;
            max = if difference > max || difference.is_nan() { difference } else { max };
        }
        let same = error == 0.0;
        Self {
            relative_rms: if same { 0.0 } else { (error / xx).sqrt() },
            max,
            cosine: if same { 1.0 } else { xy / (xx * yy).sqrt() },
        }
    }
}

impl fmt::Display for ErrorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { relative_rms, max, cosine } = self;
        write!(f, "relative RMS {relative_rms:.3e}, max {max:.3e}, cosine {cosine:.7}")
    }
}

#[cfg(test)]
mod tests {
    use super::ErrorReport;

    #[test]
    fn known_values() {
        let report = ErrorReport::new(&[3.0, 4.0], &[3.0, 4.5]);
        assert!((report.relative_rms - 0.1).abs() < 1e-12 && report.max == 0.5);
        assert!((report.cosine - (9.0 + 18.0) / (25.0f64 * 29.25).sqrt()).abs() < 1e-12);
        assert_eq!(ErrorReport::new(&[0.0], &[0.0]).cosine, 1.0);
        assert!(ErrorReport::new(&[1.0, 1.0], &[f32::NAN, 1.0]).max.is_nan());
        let report = ErrorReport { relative_rms: 0.0125, max: 4.0, cosine: 0.5 };
        assert_eq!(report.to_string(), "relative RMS 1.250e-2, max 4.000e0, cosine 0.5000000");
    }
}
