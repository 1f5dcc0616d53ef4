//! The counts of a launch on the virtual GPU and its estimated time on Pascal cards, for people and as JSON.

use super::failure::Failure;
use super::ptxas::Registers;
use super::screen::{Screen, Style};
use super::table::{self, Column, digits, percent};
use pascaline_virtual_gpu::{Card, Class, Counters, LaunchReport, Multiprocessor, Traffic, estimate};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The assumptions of the cost model; virtual-gpu/COSTS.md explains them.
pub(super) const MODEL: [&str; 2] = [
    "model: the slowest of compute, shared memory, L2, DRAM and latency, plus 5 µs for the launch, 1.5 µs in a graph; at boost clock",
    "with a perfect cache and DRAM at 80 % of its published bandwidth; off by 5–25 % (virtual-gpu/COSTS.md)",
];

/// The costs of a launch, or of several with equal counts.
#[derive(Serialize)]
pub(super) struct Costs {
    pub kernel: String,
    /// The number of launches with these counts.
    pub launches: usize,
    grid: [u32; 3],
    block: [u32; 3],
    /// Static and dynamic shared memory of a block.
    shared_bytes: u32,
    in_graph: bool,
    registers: u32,
    /// Whether the number of registers is from ptxas; otherwise it is estimated.
    registers_from_ptxas: bool,
    blocks_per_sm: u32,
    /// Resident warps of an SM as a share of 64.
    occupancy: f64,
    counts: Counts,
    /// Counts of one launch.
    pub estimates: Vec<OnCard>,
    #[serde(skip)]
    counters: Counters,
}

/// The counts of one launch.
#[derive(Serialize)]
struct Counts {
    warp_instructions: u64,
    thread_instructions: u64,
    /// Warp instructions by class.
    mix: BTreeMap<&'static str, u64>,
    ffma_share: f64,
    dp4a_share: f64,
    /// 32-byte sectors.
    global_loads: Access,
    global_stores: Access,
    global_atomics: Access,
    sectors_per_request: f64,
    /// Wavefronts.
    shared_loads: Access,
    shared_stores: Access,
    bank_conflicts: u64,
    bank_conflicts_per_access: f64,
    local: Access,
    distinct_sectors: u64,
    branches: u64,
    divergent_branches: u64,
    barriers: u64,
    operations: u64,
    /// Operations per byte of global traffic.
    arithmetic_intensity: f64,
}

#[derive(Serialize)]
struct Access {
    requests: u64,
    units: u64,
    bytes: u64,
}

/// The time of several launches, one after another.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Total {
    pub launches: usize,
    cards: Vec<TotalOnCard>,
}

#[derive(Debug, PartialEq, Serialize)]
struct TotalOnCard {
    card: &'static str,
    name: &'static str,
    seconds: f64,
}

impl Total {
    pub fn sum<'a>(all: impl Iterator<Item = &'a Costs>) -> Self {
        let mut total = Self { launches: 0, cards: Vec::new() };
        for costs in all {
            total.launches += costs.launches;
            for one in &costs.estimates {
                let seconds = costs.launches as f64 * one.seconds;
                match total.cards.iter_mut().find(|sum| sum.card == one.card) {
                    Some(sum) => sum.seconds += seconds,
                    None => total.cards.push(TotalOnCard { card: one.card, name: one.name, seconds }),
                }
            }
        }
        total
    }

    /// Prints it as a table.
    pub fn print(&self, title: &str, screen: &mut Screen) -> Result<(), Failure> {
        let title = format!("{title}, {} launches", self.launches);
        let table =
            screen.table(vec![Column::left("", CARD_WIDTH.max(title.len())), Column::right("time", 8)]);
        screen.line(&table.header(&title))?;
        for TotalOnCard { name, seconds, .. } in &self.cards {
            let time = table::time(Duration::from_secs_f64(*seconds));
            screen.line(&table.row(&[(format!("  {name}"), Style::Plain), (time, Style::Plain)]))?;
        }
        Ok(())
    }
}

/// Fits every card's name, indented.
const CARD_WIDTH: usize = 21;

/// Estimated seconds on a card: of the launch, and for each resource alone.
#[derive(Serialize)]
pub(super) struct OnCard {
    card: &'static str,
    name: &'static str,
    pub seconds: f64,
    pub bound: &'static str,
    compute: f64,
    shared: f64,
    l2: f64,
    dram: f64,
    latency: f64,
}

impl From<Traffic> for Access {
    fn from(Traffic { requests, units, bytes }: Traffic) -> Self {
        Self { requests, units, bytes }
    }
}

impl Counts {
    fn new(c: &Counters) -> Self {
        let used = Class::ALL.into_iter().filter(|&class| c.warps(class) > 0);
        Self {
            warp_instructions: c.warp_total(),
            thread_instructions: c.thread_total(),
            mix: used.map(|class| (class.name(), c.warps(class))).collect(),
            ffma_share: c.share(Class::Ffma),
            dp4a_share: c.share(Class::Dp4a),
            global_loads: c.global_loads.into(),
            global_stores: c.global_stores.into(),
            global_atomics: c.atomics.into(),
            sectors_per_request: c.sectors_per_request(),
            shared_loads: c.shared_loads.into(),
            shared_stores: c.shared_stores.into(),
            bank_conflicts: c.bank_conflicts,
            bank_conflicts_per_access: c.conflicts_per_access(),
            local: c.local.into(),
            distinct_sectors: c.distinct_sectors,
            branches: c.branches,
            divergent_branches: c.divergent_branches,
            barriers: c.barriers,
            operations: c.operations(),
            arithmetic_intensity: c.arithmetic_intensity(),
        }
    }
}

impl Costs {
    /// The costs of one launch on the given cards.
    pub fn new(report: &LaunchReport, registers: &Registers, cards: &[&'static Card]) -> Self {
        let per_thread = registers.per_thread(&report.kernel);
        let threads: u32 = report.block.iter().product();
        let blocks_per_sm = Multiprocessor::SM_61.resident_blocks(threads, per_thread, report.shared_bytes);
        let on_card = |card: &&'static Card| {
            let e = estimate(report, card, per_thread);
            OnCard {
                card: card.id,
                name: card.name,
                seconds: e.time,
                bound: e.bound.name(),
                compute: e.compute,
                shared: e.shared,
                l2: e.l2,
                dram: e.dram,
                latency: e.latency,
            }
        };
        Self {
            kernel: report.kernel.clone(),
            launches: 1,
            grid: report.grid,
            block: report.block,
            shared_bytes: report.shared_bytes,
            in_graph: report.in_graph,
            registers: per_thread,
            registers_from_ptxas: registers.exact,
            blocks_per_sm,
            occupancy: Multiprocessor::SM_61.occupancy(threads, per_thread, report.shared_bytes),
            counts: Counts::new(&report.counters),
            estimates: cards.iter().map(on_card).collect(),
            counters: report.counters,
        }
    }

    /// The costs of all launches; equal ones are merged.
    pub fn all(reports: &[LaunchReport], registers: &Registers, cards: &[&'static Card]) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for report in reports {
            let same = |costs: &&mut Self| {
                costs.kernel == report.kernel
                    && (costs.grid, costs.block) == (report.grid, report.block)
                    && (costs.shared_bytes, costs.in_graph) == (report.shared_bytes, report.in_graph)
                    && costs.counters == report.counters
            };
            match all.iter_mut().find(same) {
                Some(costs) => costs.launches += 1,
                None => all.push(Self::new(report, registers, cards)),
            }
        }
        all
    }

    /// Prints the counts as lines and the estimates as a table.
    pub fn print(&self, screen: &mut Screen) -> Result<(), Failure> {
        let Self { grid, block, shared_bytes, registers, blocks_per_sm, counts, .. } = self;
        let times = if self.launches > 1 { format!(", {} launches", self.launches) } else { String::new() };
        let kernel = screen.colours.paint(Style::Heading, &self.kernel);
        screen.line(&kernel)?;
        screen.line(&format!("  grid {}, block {}{times}", dimensions(grid), dimensions(block)))?;
        let sign = if self.registers_from_ptxas { "" } else { "about " };
        let occupancy = percent(self.occupancy);
        let text = format!(
            "  {sign}{registers} registers, {shared_bytes} bytes of shared memory: {blocks_per_sm} blocks per SM, occupancy {occupancy}"
        );
        screen.text(&text, Style::Plain)?;
        let mut mix: Vec<_> = counts.mix.iter().collect();
        mix.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), **name));
        let share = |count: u64| percent(count as f64 / counts.warp_instructions.max(1) as f64);
        let head = format!(
            "  {} warp instructions ({} of threads): ",
            counts.warp_instructions, counts.thread_instructions
        );
        let parts: Vec<_> = mix.iter().map(|(name, count)| format!("{name} {}", share(**count))).collect();
        screen.long_text(&(head + &parts.join(", ")))?;
        let multiply = match counts.dp4a_share > counts.ffma_share {
            true => format!("dp4a {}", percent(counts.dp4a_share)),
            false => format!("FFMA {}", percent(counts.ffma_share)),
        };
        let text = format!(
            "  {multiply}, {:.2} sectors/request, {:.2} bank conflicts/access, {} of {} branches diverge, {} op/byte",
            counts.sectors_per_request,
            counts.bank_conflicts_per_access,
            counts.divergent_branches,
            counts.branches,
            digits(counts.arithmetic_intensity),
        );
        screen.text(&text, Style::Plain)?;
        let table = screen.table(vec![
            Column::left("", CARD_WIDTH),
            Column::right("time", 8),
            Column::left("bound by", 13),
            Column::right("compute", 8),
            Column::right("shared", 8).rank(2),
            Column::right("L2", 8).rank(1),
            Column::right("DRAM", 8),
            Column::right("latency", 8),
        ]);
        screen.line(&table.header("  card"))?;
        for e in &self.estimates {
            let time = |seconds: f64| table::time(Duration::from_secs_f64(seconds));
            let mut cells = vec![
                (format!("  {}", e.name), Style::Plain),
                (time(e.seconds), Style::Plain),
                (e.bound.to_owned(), Style::Plain),
            ];
            cells.extend([e.compute, e.shared, e.l2, e.dram, e.latency].map(|s| (time(s), Style::Faint)));
            screen.line(&table.row(&cells))?;
        }
        Ok(())
    }
}

/// Prints the model's assumptions and the source of the register counts.
pub(super) fn print_assumptions(registers: &Registers, screen: &mut Screen) -> Result<(), Failure> {
    screen.say_what_is_left_out()?;
    match screen.width {
        Some(_) => screen.faint(&MODEL.join(" "))?,
        None => MODEL.iter().try_for_each(|line| screen.faint(line))?,
    }
    screen.faint(&format!("registers: {}", registers.source))
}

/// `4×2` for (4, 2, 1).
fn dimensions([x, y, z]: &[u32; 3]) -> String {
    match (y, z) {
        (1, 1) => x.to_string(),
        (_, 1) => format!("{x}×{y}"),
        _ => format!("{x}×{y}×{z}"),
    }
}
