//! The project's own kernels as ptxas compiled them: what a pass of the hot loop has, and the clocks that a simulation of the machine code
//! gives. `scripts/sass-report --update` writes the table.

use crate::counters::Class;
use std::collections::HashMap;
use std::sync::LazyLock;

/// What a warp does in a part of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Part {
    /// Multiply-adds of the kernel's kind.
    pub multiply_adds: f64,
    /// Instructions of the main pipe.
    pub main: f64,
    /// Barriers of its block.
    pub barriers: f64,
    /// Special functions, of kernels in which they tell how often the loop around runs, else 0. Not counted in the hot loop.
    pub special: f64,
}

/// Clocks of a set of resident blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Clocks {
    /// Before and after the loops.
    pub start: f64,
    /// Of a pass of the loop around the hot one, without those of the hot one.
    pub around: f64,
    /// Of a pass of the hot loop.
    pub pass: f64,
}

/// One kernel of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HotLoop {
    /// The kind of its multiply-adds.
    pub class: Class,
    /// Blocks that are resident together.
    pub blocks: f64,
    /// Issue slots of a pass: instructions, less those issued together with another, plus conflicts of register banks.
    pub slots: f64,
    pub pass: Part,
    pub around: Part,
    pub start: Part,
    /// With all resident blocks, and with one.
    pub full: Clocks,
    pub one: Clocks,
}

static TABLE: LazyLock<HashMap<&str, HotLoop>> =
    LazyLock::new(|| include_str!("hot_loops.csv").lines().skip(1).filter_map(row).collect());

fn row(line: &str) -> Option<(&str, HotLoop)> {
    let mut cells = line.split(',');
    let kernel = cells.next()?;
    let class = match cells.next()? {
        "FFMA" => Class::Ffma,
        "IDP" => Class::Dp4a,
        _ => return None,
    };
    let mut number = || cells.next()?.parse::<f64>().ok();
    let [blocks, multiply_adds, main, slots, barriers] =
        [number()?, number()?, number()?, number()?, number()?];
    let pass = Part { multiply_adds, main, barriers, special: 0.0 };
    let mut part =
        || Some(Part { multiply_adds: number()?, main: number()?, barriers: number()?, special: number()? });
    let (around, start) = (part()?, part()?);
    let mut clocks = || Some(Clocks { start: number()?, around: number()?, pass: number()? });
    let (full, one) = (clocks()?, clocks()?);
    Some((kernel, HotLoop { class, blocks, slots, pass, around, start, full, one }))
}

/// The hot loop of one of the project's kernels; none of another kernel.
pub(crate) fn hot_loop(kernel: &str) -> Option<HotLoop> {
    TABLE.get(kernel).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_read() {
        let lines: Vec<_> = include_str!("hot_loops.csv").lines().collect();
        let columns = "kernel,op,blocks,multiply_adds,main,slots,barriers,\
            around_multiply_adds,around_main,around_barriers,around_special,\
            start_multiply_adds,start_main,start_barriers,start_special,\
            full_start,full_around,full_pass,one_start,one_around,one_pass";
        assert_eq!(lines[0], columns);
        assert_eq!(TABLE.len(), lines.len() - 1);
        for (kernel, one) in TABLE.iter() {
            let pass = one.pass;
            assert!(pass.multiply_adds <= pass.main, "{kernel}: {one:?}");
            // a quarter of the slots are multiply-adds
            assert!(one.slots <= 4.0 * pass.multiply_adds, "{kernel}: {one:?}");
        }
    }

    /// Blocks that are resident together take longer than one, and no longer than one after the other.
    #[test]
    fn resident_blocks_hide_each_others_waits() {
        for (kernel, of) in TABLE.iter() {
            assert!(of.one.pass <= of.full.pass * 1.01, "{kernel}: {of:?}");
            assert!(of.full.pass <= of.one.pass * of.blocks * 1.05, "{kernel}: {of:?}");
        }
    }
}
