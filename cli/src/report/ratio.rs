//! Measured over estimated times: above 1 the card is slower than estimated.

use super::estimates::{By, Estimate};
use serde::Serialize;
use std::collections::BTreeMap;

/// A case that was timed and estimated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Ratio {
    pub id: String,
    pub measured_seconds: f64,
    pub estimated_seconds: f64,
    pub ratio: f64,
    pub by: By,
    pub bound: String,
    /// Whether the timed kernels differ from the counted ones: cards of other architectures choose other kernels.
    pub other_kernels: bool,
}

impl Ratio {
    /// From a case's median and the kernels that it launched; `None` without a time.
    pub fn new(estimate: &Estimate, median_ms: f64, variant: Option<&str>) -> Option<Self> {
        let measured_seconds = median_ms / 1e3;
        let ratio = measured_seconds / estimate.seconds;
        let counted = estimate.kernels.as_deref();
        (ratio > 0.0 && ratio.is_finite()).then(|| Self {
            id: estimate.id.clone(),
            measured_seconds,
            estimated_seconds: estimate.seconds,
            ratio,
            by: estimate.by,
            bound: estimate.bound.clone(),
            other_kernels: counted.is_some_and(|counted| variant.is_some_and(|variant| variant != counted)),
        })
    }

    fn factor_off(&self) -> f64 {
        self.ratio.max(1.0 / self.ratio)
    }

    /// The group that it is summarised in: the way of the estimate, and the resource.
    pub fn group(&self) -> (By, bool, &str) {
        (self.by, self.other_kernels, &self.bound)
    }
}

/// By how much several estimates are off.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Summary {
    pub by: Option<By>,
    pub other_kernels: bool,
    pub bound: Option<String>,
    pub cases: usize,
    /// The geometric mean of measured over estimated.
    pub geometric_mean: f64,
    /// The case whose estimate is off by the largest factor, and its ratio.
    pub worst: String,
    pub worst_ratio: f64,
}

impl Summary {
    /// Summarises these; `None` if there are none.
    pub fn new<'a>(ratios: impl IntoIterator<Item = &'a Ratio>) -> Option<Self> {
        let ratios: Vec<_> = ratios.into_iter().collect();
        let worst = ratios.iter().max_by(|a, b| a.factor_off().total_cmp(&b.factor_off()))?;
        let logarithms: f64 = ratios.iter().map(|ratio| ratio.ratio.ln()).sum();
        Some(Self {
            by: None,
            other_kernels: false,
            bound: None,
            cases: ratios.len(),
            geometric_mean: (logarithms / ratios.len() as f64).exp(),
            worst: worst.id.clone(),
            worst_ratio: worst.ratio,
        })
    }

    /// One summary for each way of estimating and each resource.
    pub fn by_group(ratios: &[Ratio]) -> Vec<Self> {
        let mut groups: BTreeMap<_, Vec<&Ratio>> = BTreeMap::new();
        for ratio in ratios {
            groups.entry(ratio.group()).or_default().push(ratio);
        }
        let summaries = groups.into_iter().filter_map(|((by, other_kernels, bound), ratios)| {
            Some(Self { by: Some(by), other_kernels, bound: Some(bound.to_owned()), ..Self::new(ratios)? })
        });
        summaries.collect()
    }

    /// The way of the estimates and the bounding resource, for people.
    pub fn title(&self) -> String {
        let Some(by) = self.by else { return "all".to_owned() };
        let others = if self.other_kernels { " of other kernels" } else { "" };
        format!("{}{others}, {}", by.name(), self.bound.as_deref().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(id: &str, by: By, bound: &str, measured: f64, estimated: f64) -> Ratio {
        let (id, bound, kernels) = (id.to_owned(), bound.to_owned(), Some("k".to_owned()));
        Ratio::new(&Estimate { id, seconds: estimated, by, bound, kernels }, measured * 1e3, Some("k"))
            .expect("times")
    }

    #[test]
    fn the_mean_is_geometric_and_the_worst_is_worst_in_either_direction() {
        let ratios = [
            ratio("a", By::Counts, "DRAM", 2.0, 1.0),
            ratio("b", By::Counts, "DRAM", 1.0, 8.0),
            ratio("c", By::Sizes, "compute", 3.0, 3.0),
        ];
        let all = Summary::new(&ratios).expect("some");
        assert_eq!((all.cases, all.worst.as_str(), all.worst_ratio), (3, "b", 0.125));
        assert!((all.geometric_mean - (0.25f64).cbrt()).abs() < 1e-12, "{all:?}");
        let groups = Summary::by_group(&ratios);
        let titles: Vec<_> = groups.iter().map(|group| (group.title(), group.cases)).collect();
        assert_eq!(titles, [("counts, DRAM".to_owned(), 2), ("sizes, compute".to_owned(), 1)]);
        assert_eq!(Summary::new([]), None);
    }

    #[test]
    fn other_kernels_are_told_apart() {
        let estimate = Estimate {
            id: "a".into(),
            seconds: 1.0,
            by: By::Counts,
            bound: "DRAM".into(),
            kernels: Some("k".into()),
        };
        let other = |variant| Ratio::new(&estimate, 1.0, Some(variant)).map(|ratio| ratio.other_kernels);
        assert_eq!((other("k"), other("l")), (Some(false), Some(true)));
        assert_eq!(Ratio::new(&estimate, 0.0, None), None);
    }
}
