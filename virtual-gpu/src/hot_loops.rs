//! The instructions of the hot loops of the project's own kernels, as ptxas compiled them. `scripts/sass-report --update` writes the
//! table.

use crate::counters::Class;
use std::collections::HashMap;
use std::sync::LazyLock;

/// One pass of a warp through a kernel's hot loop, in machine instructions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HotLoop {
    /// The kind of its multiply-adds.
    pub class: Class,
    pub multiply_adds: f64,
    /// All instructions.
    pub issued: f64,
    /// Instructions of the main pipe.
    pub main: f64,
    /// Issue slots: instructions, less those issued together with another, plus conflicts of register banks.
    pub slots: f64,
    /// Clocks of one warp alone that waits for nothing in memory, by the stall counts in the control codes.
    pub stalls: f64,
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
    let [multiply_adds, issued, main, slots, stalls] =
        [number()?, number()?, number()?, number()?, number()?];
    Some((kernel, HotLoop { class, multiply_adds, issued, main, slots, stalls }))
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
        assert_eq!(lines[0], "kernel,op,multiply_adds,issued,main,slots,stalls");
        assert_eq!(TABLE.len(), lines.len() - 1);
        for (kernel, one) in TABLE.iter() {
            assert!(one.multiply_adds <= one.main && one.main <= one.issued, "{kernel}: {one:?}");
            // a scheduler issues two at most, and a quarter of the slots are multiply-adds
            assert!(
                one.issued / 2.0 <= one.slots && one.slots <= 4.0 * one.multiply_adds,
                "{kernel}: {one:?}"
            );
        }
    }
}
