//! The clocks that a card takes for probes, beside the cost model's assumptions. `host/src/gpu/probe.rs` has the probes themselves.

use crate::environment::is_virtual;
use crate::failure::Failure;
use crate::screen::{Screen, Style};
use crate::table::Column;
use pascaline::cuda::CudaDevice;
use pascaline::internals::probe;
use serde::{Deserialize, Serialize};

/// Rounds of a launch, and launches, of which the fastest counts.
const ROUNDS: u32 = 64;
const LAUNCHES: u32 = 3;
/// On the virtual GPU, which has no clock and so checks the values only.
const VIRTUAL_ROUNDS: u32 = 4;
/// A measurement that differs more from the assumption is marked.
const NEAR: f64 = 0.1;

/// The section of a report.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Probes {
    /// The compiler in whose machine code the issue slots were counted.
    pub slots_of: String,
    pub probes: Vec<Probe>,
    /// Why there are no probes, or no clocks.
    pub message: Option<String>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Probe {
    pub id: String,
    pub what: String,
    /// Issue slots of a scheduler for each instruction, its share of the loop included.
    pub slots: Option<f64>,
    /// Clocks of one instruction: by the cost model, and measured.
    pub assumed_clocks: f64,
    pub measured_clocks: Option<f64>,
    pub right: bool,
}

impl Probe {
    /// Measured over assumed.
    pub fn ratio(&self) -> Option<f64> {
        Some(self.measured_clocks? / self.assumed_clocks)
    }
}

impl Probes {
    pub fn measure(device: &CudaDevice) -> Self {
        let (rounds, launches) = if is_virtual() { (VIRTUAL_ROUNDS, 1) } else { (ROUNDS, LAUNCHES) };
        let found = probe::run(device, rounds, launches);
        let message = match &found {
            Err(error) => Some(error.to_string()),
            Ok(_) => {
                is_virtual().then(|| "the virtual GPU has no clock; only values were checked".to_owned())
            }
        };
        let one = |finding: probe::Finding| Probe {
            id: finding.id.to_owned(),
            what: finding.what.to_owned(),
            slots: finding.slots,
            assumed_clocks: finding.assumed,
            measured_clocks: Some(finding.measured).filter(|_| !is_virtual()),
            right: finding.right,
        };
        let probes = found.unwrap_or_default().into_iter().map(one).collect();
        Self { slots_of: probe::COUNTED.to_owned(), probes, message }
    }

    pub fn is_wrong(&self) -> bool {
        self.probes.iter().any(|probe| !probe.right)
    }

    /// The remark that ends a line about them.
    pub fn remark(&self) -> String {
        match &self.message {
            _ if self.is_wrong() => ", WRONG VALUES".to_owned(),
            Some(message) => format!("; {message}"),
            None => String::new(),
        }
    }

    /// The meaning of the columns.
    pub fn legend(&self) -> String {
        format!(
            "Clocks are of one warp instruction: of a multiprocessor with 32 warps at work, or, where instructions follow each other, of \
             one warp. Issue slots are those of sm_61's machine code by {}; this driver's compiler may have allocated other registers. \
             Assumptions are sm_61's.",
            self.slots_of
        )
    }

    /// A page's section.
    pub fn markdown(&self) -> String {
        let mut page = "\n## Probes: clocks by the cost model and measured\n\n".to_owned();
        if let Some(message) = &self.message {
            page += &format!("{message}\n\n");
        }
        if self.probes.is_empty() {
            return page;
        }
        page += &self.legend();
        page += "\n\n| probe | | issue slots | assumed | measured | ratio | values |\n|---|---|---|---|---|---|---|\n";
        for probe in &self.probes {
            let [slots, assumed, measured, ratio] = probe.figures();
            let Probe { id, what, right, .. } = probe;
            let right = if *right { "right" } else { "WRONG" };
            page += &format!("| {id} | {what} | {slots} | {assumed} | {measured} | {ratio} | {right} |\n");
        }
        page
    }

    /// A table for a terminal.
    pub fn print(&self, screen: &mut Screen) -> Result<(), Failure> {
        if let Some(message) = &self.message {
            screen.line(&format!("probes: {message}"))?;
        }
        if self.probes.is_empty() {
            return Ok(());
        }
        let width = self.probes.iter().map(|probe| probe.what.chars().count()).max().unwrap_or(0);
        let table = screen.table(vec![
            Column::left("", width + 2),
            Column::right("slots", 6).rank(1),
            Column::right("assumed", 8),
            Column::right("measured", 8),
            Column::right("ratio", 7),
        ]);
        screen.line(&table.header("clocks of"))?;
        for probe in &self.probes {
            let [slots, assumed, measured, ratio] = probe.figures();
            let style = match probe.ratio() {
                _ if !probe.right => Style::Bad,
                Some(ratio) if (ratio - 1.0).abs() > NEAR => Style::Heading,
                _ => Style::Plain,
            };
            let ratio = if probe.right { ratio } else { "WRONG".to_owned() };
            let cells = [format!("  {}", probe.what), slots, assumed, measured, ratio];
            screen.line(&table.row(&cells.map(|cell| (cell, style))))?;
        }
        match self.is_wrong() {
            true => screen.text("VALUES ARE WRONG, so these clocks are of something else", Style::Bad)?,
            false => screen.text("all values are right", Style::Good)?,
        }
        screen.faint(&self.legend())
    }
}

impl Probe {
    /// Slots, assumed clocks, measured clocks, and their ratio.
    fn figures(&self) -> [String; 4] {
        let number = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.2}"));
        let ratio = self.ratio().map_or_else(String::new, |ratio| format!("{ratio:.2}×"));
        [number(self.slots), number(Some(self.assumed_clocks)), number(self.measured_clocks), ratio]
    }
}
