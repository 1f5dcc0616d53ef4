//! The cost model for the choice of a matmul kernel on a card: a rate for every tile size, and four numbers.
//!
//! `pascaline tune` makes a table for the present card. A user's table overrides the built-in one of the architecture.

use super::query::Query;
use crate::cuda::Properties;
use crate::{Error, Result};
use kernels_gpu::matmul::regtile::{FAMILIES, Family};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::{env, fs, io};

/// Multiply-adds per clock and multiprocessor, on all supported GPUs.
const FMA_PER_CLOCK: f64 = 128.0;
/// The weight of the squared logarithmic error of an estimate, relative to the logarithm of a lost factor. Enough to guide
/// the fit where no choice changes, and to keep the table plausible for other shapes.
const ESTIMATE_WEIGHT: f64 = 0.1;
/// The built-in tables, by compute capability; other cards use the first.
const BUILT_IN: [((i32, i32), &str); 2] =
    [((6, 1), include_str!("sm_61.json")), ((9, 0), include_str!("sm_90.json"))];

/// The parameters from which a product's time is estimated, for one card or architecture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// The origin of the numbers, in words.
    pub evidence: String,
    /// For each tile family, the share of the multiply-add rate that it reaches with unlimited warps. A family that is not
    /// listed is not used.
    pub rates: BTreeMap<String, f64>,
    /// Warps with which a multiprocessor reaches half its rate.
    pub half_rate_warps: f64,
    /// Clocks of a block before its first and after its last multiply-add.
    pub block_clocks: f64,
    /// Clocks that a second launch costs.
    pub launch_clocks: f64,
    /// Memory bandwidth in bytes per clock and multiprocessor.
    pub bytes_per_clock: f64,
    /// Power in W while each family runs back to back on a large product. Empty if it was not measured.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub watts: BTreeMap<String, f64>,
}

/// A measured time.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    pub q: Query,
    pub family: String,
    pub splits: u32,
    pub clocks: f64,
}

/// The choice of a table for a shape.
pub struct Outcome<'a> {
    pub q: Query,
    /// The fastest family and its splits.
    pub fastest: (&'a str, u32),
    pub chosen: (&'a str, u32),
    /// The time of the chosen kernel divided by that of the fastest.
    pub ratio: f64,
}

impl Table {
    /// Estimated clocks of `family` with k in `splits` splits; infinite for a family without a rate.
    pub fn clocks(&self, q: &Query, family: &Family, splits: u32) -> f64 {
        let Some(rate) = self.rates.get(family.name) else { return f64::INFINITY };
        let (tiles_m, tiles_n) = (f64::from(q.m.div_ceil(family.bm)), f64::from(q.n.div_ceil(family.bn)));
        let (batch, multiprocessors) = (f64::from(q.batch), f64::from(q.multiprocessors));
        let blocks = tiles_m * tiles_n * batch * f64::from(splits);
        let per_multiprocessor = (blocks / multiprocessors).ceil();
        let warps = per_multiprocessor.min(family.resident.into()) * f64::from(family.warps);
        let rate = FMA_PER_CLOCK * rate * warps / (warps + self.half_rate_warps);
        let work = f64::from(family.bm * family.bn) * f64::from(q.k.div_ceil(splits)) / rate;
        let rounds = (per_multiprocessor / f64::from(family.resident)).ceil();
        let compute = per_multiprocessor * work + rounds * self.block_clocks;
        // every tile row reads all of b, every tile column all of a
        let (rows, columns) = (f64::from(q.m) * tiles_n, f64::from(q.n) * tiles_m);
        let bytes_per_clock = self.bytes_per_clock * multiprocessors;
        let memory = batch * (rows + columns) * f64::from(q.k) * 4.0 / bytes_per_clock + self.block_clocks;
        let mut clocks = compute.max(memory);
        if splits > 1 {
            let bytes = batch * f64::from(q.m) * f64::from(q.n) * 4.0 * (2.0 * f64::from(splits) + 1.0);
            clocks += self.launch_clocks + bytes / bytes_per_clock;
        }
        clocks
    }

    /// Estimated clocks of a kernel that reads b once, for the few rows that such kernels compute.
    pub fn streamed(&self, q: &Query) -> f64 {
        let bytes = f64::from(q.batch) * f64::from(q.n) * f64::from(q.k) * 4.0;
        bytes / (self.bytes_per_clock * f64::from(q.multiprocessors)) + self.block_clocks
    }

    /// Clocks times watts, for comparing kernels; `None` if the family's power was not measured.
    pub fn energy(&self, family: &Family, clocks: f64) -> Option<f64> {
        self.watts.get(family.name).map(|watts| watts * clocks)
    }

    fn estimate(&self, sample: &Sample) -> f64 {
        let family = FAMILIES.iter().find(|family| family.name == sample.family);
        family.map_or(f64::INFINITY, |family| self.clocks(&sample.q, family, sample.splits))
    }

    /// For each shape of the samples, which are grouped by shape: the fastest kernel, and the one that the estimate chooses.
    pub fn outcomes<'a>(&self, samples: &'a [Sample]) -> Vec<Outcome<'a>> {
        let outcome = |group: &'a [Sample]| {
            let fastest = group.iter().min_by(|x, y| x.clocks.total_cmp(&y.clocks))?;
            let chosen = group.iter().min_by(|x, y| self.estimate(x).total_cmp(&self.estimate(y)))?;
            let kernel = |sample: &'a Sample| (&sample.family[..], sample.splits);
            let ratio = chosen.clocks / fastest.clocks;
            Some(Outcome { q: fastest.q, fastest: kernel(fastest), chosen: kernel(chosen), ratio })
        };
        samples.chunk_by(|x, y| x.q == y.q).filter_map(outcome).collect()
    }

    /// The loss of this table on the samples: the mean logarithm of the time lost by its choices, and the error of its
    /// estimates.
    fn loss(&self, samples: &[Sample]) -> f64 {
        let outcomes = self.outcomes(samples);
        let lost: f64 = outcomes.iter().map(|outcome| outcome.ratio.ln()).sum();
        let off = samples.iter().map(|sample| (self.estimate(sample) / sample.clocks).ln().powi(2));
        lost / outcomes.len().max(1) as f64 + ESTIMATE_WEIGHT * off.sum::<f64>() / samples.len().max(1) as f64
    }

    /// The table with the smallest loss on these samples, by coordinate descent in the numbers' logarithms.
    pub fn fit(samples: &[Sample]) -> Self {
        let rates = FAMILIES.iter().map(|family| (family.name.to_owned(), 0.8));
        let mut best = Self {
            evidence: "fitted to measured times by `pascaline tune`".into(),
            rates: rates.collect(),
            half_rate_warps: 4.0,
            block_clocks: 1500.0,
            launch_clocks: 3000.0,
            bytes_per_clock: 12.0,
            watts: BTreeMap::new(),
        };
        let mut least = best.loss(samples);
        let mut step = 2.0f64;
        while step > 1.002 {
            let before = least;
            for number in 0..best.rates.len() + 4 {
                for factor in [step, 1.0 / step] {
                    let mut table = best.clone();
                    table.scale(number, factor);
                    let loss = table.loss(samples);
                    if loss < least {
                        (best, least) = (table, loss);
                    }
                }
            }
            if least > before - 1e-6 {
                step = step.sqrt();
            }
        }
        best
    }

    /// Multiplies one of the parameters by a factor.
    fn scale(&mut self, number: usize, factor: f64) {
        let others = [
            &mut self.half_rate_warps,
            &mut self.block_clocks,
            &mut self.launch_clocks,
            &mut self.bytes_per_clock,
        ];
        if let Some(value) = others.into_iter().chain(self.rates.values_mut()).nth(number) {
            *value *= factor;
        }
    }

    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let table: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let others = [table.half_rate_warps, table.block_clocks, table.launch_clocks, table.bytes_per_clock];
        match table
            .rates
            .values()
            .chain(table.watts.values())
            .chain(&others)
            .all(|value| value.is_finite() && *value > 0.0)
        {
            true => Ok(table),
            false => Err("every number must be positive".into()),
        }
    }

    /// The table for a card: the user's if there is one, else the built-in one.
    fn load(card: &Properties) -> Result<Self> {
        if let Some(path) = user_file(&card.name) {
            let failed = |reason: String| Error::Tuning { file: path.display().to_string(), reason };
            match fs::read_to_string(&path) {
                Ok(text) => return Self::parse(&text).map_err(failed),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error.to_string())),
            }
        }
        Self::built_in(card.capability)
    }

    /// The built-in table of an architecture.
    pub fn built_in(capability: (i32, i32)) -> Result<Self> {
        let [(_, first), ..] = BUILT_IN;
        let text = BUILT_IN.iter().find(|(of, _)| *of == capability).map_or(first, |(_, text)| text);
        Self::parse(text).map_err(|reason| Error::Tuning { file: "the built-in table".into(), reason })
    }
}

/// The path of the user's table for a card: `$XDG_CONFIG_HOME` or `~/.config`, then `pascaline/tune/‹card›.json`.
pub fn user_file(card: &str) -> Option<PathBuf> {
    let folder = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")))?;
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let card: String = card.chars().map(plain).collect();
    Some(config.join("pascaline/tune").join(card + ".json"))
}

/// The table for a card, read at its first use.
///
/// # Errors
/// [`Error::Tuning`] if the user's file can't be read or holds invalid numbers.
pub fn for_card(card: &Properties) -> Result<&'static Table> {
    static TABLES: Mutex<Option<HashMap<String, &'static Table>>> = Mutex::new(None);
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    let tables = tables.get_or_insert_default();
    if let Some(table) = tables.get(&card.name) {
        return Ok(table);
    }
    let table: &'static Table = Box::leak(Box::new(Table::load(card)?)); // one for each kind of card
    tables.insert(card.name.clone(), table);
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::matmul::select::{Layouts, candidates};

    #[test]
    fn built_in_tables_name_every_family_and_no_other() {
        for (_, text) in BUILT_IN {
            let table = Table::parse(text).unwrap();
            let families: Vec<_> = FAMILIES.iter().map(|family| family.name).collect();
            assert!(families.iter().all(|family| table.rates.contains_key(*family)));
            assert_eq!(table.rates.len(), families.len());
        }
    }

    /// A table as `tune` writes it for a card that reports its power.
    const WITH_POWER: &str = r#"{ "evidence": "", "rates": { "tile64": 0.9 }, "half_rate_warps": 2.0, "block_clocks": 1.0,
        "launch_clocks": 1.0, "bytes_per_clock": 1.0, "watts": { "tile64": 15.5 } }"#;

    #[test]
    fn tables_with_and_without_power_are_read_and_written() {
        for text in [WITH_POWER, BUILT_IN[0].1] {
            let table = Table::parse(text).unwrap();
            assert_eq!(table.watts.is_empty(), text != WITH_POWER);
            let written = serde_json::to_string(&table).unwrap();
            assert_eq!(Table::parse(&written), Ok(table));
            assert_eq!(written.contains("watts"), text == WITH_POWER);
        }
    }

    #[test]
    fn a_table_that_makes_no_sense_is_refused() {
        for text in [
            "",
            "{}",
            &WITH_POWER.replace("15.5", "-1"),
            &BUILT_IN[0].1.replace("\"tile128\": ", "\"tile128\": -"),
            &BUILT_IN[0].1.replace("\"rates\"", "\"rate\""),
        ] {
            assert!(Table::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn fitting_finds_the_choices_of_the_table_that_made_the_times() {
        let truth = Table {
            half_rate_warps: 9.0,
            block_clocks: 4000.0,
            launch_clocks: 9000.0,
            ..Table::parse(BUILT_IN[0].1).unwrap()
        };
        let samples: Vec<Sample> =
            [[16, 2048, 2048], [64, 6144, 2048], [256, 2048, 6144], [512; 3], [2048; 3]]
                .into_iter()
                .map(|dims| Query::plain(Layouts::Nt, dims, 20))
                .flat_map(|q| candidates(&q).into_iter().map(move |(family, splits)| (q, family, splits)))
                .map(|(q, name, splits)| {
                    let family = FAMILIES.iter().find(|family| family.name == name).unwrap();
                    Sample { q, family: name.to_owned(), splits, clocks: truth.clocks(&q, family, splits) }
                })
                .collect();
        for outcome in Table::fit(&samples).outcomes(&samples) {
            assert!(outcome.ratio < 1.02, "{}: {}", outcome.q, outcome.ratio);
        }
    }
}
