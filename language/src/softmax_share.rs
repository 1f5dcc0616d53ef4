//! A share of a softmax, as options have it.

use std::fmt;
use std::str::FromStr;

/// The share of each softmax that long prompts read, in millionths.
///
/// ```
/// use language::sparse::SoftmaxShare;
/// let share: SoftmaxShare = "0.95".parse()?;
/// assert_eq!((share.value(), share.to_string()), (0.95, "0.95".to_owned()));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftmaxShare(u32);

impl SoftmaxShare {
    const ONE: f64 = 1e6;

    /// A share above 0 and up to 1, rounded to millionths.
    pub fn new(share: f64) -> Option<Self> {
        let millionths = (share * Self::ONE).round();
        (share.is_finite() && (1.0..=Self::ONE).contains(&millionths)).then_some(Self(millionths as u32))
    }

    /// From 0 to 1.
    pub fn value(self) -> f32 {
        (f64::from(self.0) / Self::ONE) as f32
    }
}

impl FromStr for SoftmaxShare {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let share = text.parse().ok().and_then(Self::new);
        share.ok_or_else(|| format!("a share is a number above 0 and up to 1, as 0.95, not {text:?}"))
    }
}

impl fmt::Display for SoftmaxShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (f64::from(self.0) / Self::ONE).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_and_written() {
        for text in ["0.95", "1", "0.5", "0.000001"] {
            assert_eq!(text.parse::<SoftmaxShare>().map(|share| share.to_string()).as_deref(), Ok(text));
        }
        for text in ["0", "-0.5", "1.5", "95%", "nan", "inf", ""] {
            assert!(text.parse::<SoftmaxShare>().is_err_and(|error| error.contains(text)), "{text}");
        }
    }
}
