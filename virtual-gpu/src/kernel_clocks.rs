//! The clocks of a launch of one of the project's kernels on the busiest multiprocessor, from the simulation of its machine code.

use crate::counters::{Class, Counters};
use crate::hot_loops::{Clocks, HotLoop, Part};

/// How often a warp ran the loops of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Runs {
    /// The loop around the hot one.
    pub around: f64,
    pub pass: f64,
}

impl Runs {
    /// From the multiply-adds of a launch of so many warps, and from its special functions or its barriers. Without any to tell, the loop
    /// around runs once.
    pub fn of(hot: &HotLoop, c: &Counters, warps: f64) -> Self {
        let HotLoop { pass, around, start, .. } = hot;
        let products = (c.warps(hot.class) as f64 / warps - start.multiply_adds).max(0.0);
        let barriers = (c.barriers as f64 / warps - start.barriers).max(0.0);
        // products = around · around.multiply_adds + passes · pass.multiply_adds, and the same of barriers
        let determinant = around.barriers * pass.multiply_adds - around.multiply_adds * pass.barriers;
        let arounds = if *around == Part::default() {
            0.0
        } else if around.special > 0.0 {
            (c.warps(Class::Special) as f64 / warps - start.special).max(0.0) / around.special
        } else if determinant > 0.0 {
            (barriers * pass.multiply_adds - products * pass.barriers) / determinant
        } else {
            1.0
        };
        let most = if around.multiply_adds > 0.0 { products / around.multiply_adds } else { f64::MAX };
        let arounds = arounds.clamp(0.0, most);
        let passes = (products - arounds * around.multiply_adds) / pass.multiply_adds;
        Self { around: arounds, pass: passes.max(0.0) }
    }

    /// Instructions of the main pipe that a warp issues for its path.
    pub fn main(&self, hot: &HotLoop) -> f64 {
        hot.start.main + self.around * hot.around.main + self.pass * hot.pass.main
    }

    /// Clocks of a set of so many resident blocks: between one block and all that fit, along a straight line.
    fn set(&self, hot: &HotLoop, blocks: f64) -> f64 {
        let all = |of: &Clocks| of.start + self.around * of.around + self.pass * of.pass;
        let (one, full) = (all(&hot.one), all(&hot.full));
        if hot.blocks > 1.0 { one + (full - one) * (blocks - 1.0) / (hot.blocks - 1.0) } else { full }
    }

    /// Clocks of a multiprocessor for `blocks`, of which `resident` are at work at a time: full sets one after the other and a rest.
    pub fn clocks(&self, hot: &HotLoop, blocks: f64, resident: f64) -> f64 {
        let resident = resident.min(hot.blocks).max(1.0);
        let (sets, rest) = ((blocks / resident).floor(), blocks % resident);
        sets * self.set(hot, resident) + if rest > 0.0 { self.set(hot, rest) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Class;
    use crate::hot_loops::hot_loop;

    fn counters(class: Class, multiply_adds: f64, barriers: f64) -> Counters {
        let mut counters = Counters { barriers: barriers as u64, ..Counters::default() };
        counters.warp_instructions[class as usize] = multiply_adds as u64;
        counters
    }

    #[test]
    fn runs_are_those_that_explain_the_counts() {
        for kernel in ["matmul_tile128_nn_f32", "quant_tile128_q4_0", "attention_backward_kv_d128_f32"] {
            let hot = hot_loop(kernel).unwrap();
            let (around, pass) = (if hot.around.main > 0.0 { 7.0 } else { 0.0 }, 40.0);
            let sum = |of: fn(&Part) -> f64| of(&hot.start) + around * of(&hot.around) + pass * of(&hot.pass);
            let (products, barriers) = (sum(|part| part.multiply_adds), sum(|part| part.barriers));
            let runs = Runs::of(&hot, &counters(hot.class, 16.0 * products, 16.0 * barriers), 16.0);
            assert!(
                (runs.around - around).abs() < 1e-6 && (runs.pass - pass).abs() < 1e-6,
                "{kernel}: {runs:?}"
            );
        }
    }

    /// In attention the loop around has the exponentials of a tile, and the products of all chunks of its values.
    #[test]
    fn exponentials_tell_how_many_tiles_there_were() {
        for (kernel, chunks) in [
            ("attention_prefill_d64_f32", 4.0),
            ("attention_prefill_d128_f32", 8.0),
            ("attention_int8_prefill_d64", 1.0),
        ] {
            let hot = hot_loop(kernel).unwrap();
            let tiles = 5.0;
            let products = tiles * (hot.around.multiply_adds + chunks * hot.pass.multiply_adds);
            let mut c = counters(hot.class, 4.0 * products, 0.0);
            let special = hot.start.special + tiles * hot.around.special;
            c.warp_instructions[Class::Special as usize] = (4.0 * special) as u64;
            assert_eq!(Runs::of(&hot, &c, 4.0), Runs { around: tiles, pass: tiles * chunks }, "{kernel}");
        }
    }

    /// As if a pass of the loop around had the products and barriers of a pass of the hot one: the equations are one.
    #[test]
    fn a_loop_around_that_counts_do_not_tell_runs_once() {
        let mut hot = hot_loop("attention_prefill_d128_f32").unwrap();
        hot.around = Part { special: 0.0, ..hot.pass };
        let (products, barriers) = (
            hot.around.multiply_adds + 9.0 * hot.pass.multiply_adds,
            hot.around.barriers + 9.0 * hot.pass.barriers,
        );
        let runs = Runs::of(&hot, &counters(hot.class, 4.0 * products, 4.0 * barriers), 4.0);
        assert_eq!(runs, Runs { around: 1.0, pass: 9.0 });
    }

    #[test]
    fn counts_below_those_of_the_path_run_nothing() {
        let hot = hot_loop("quant_tile128_q4_0").unwrap();
        let runs = Runs::of(&hot, &Counters::default(), 8.0);
        assert_eq!(runs, Runs { around: 0.0, pass: 0.0 });
    }

    #[test]
    fn clocks_grow_with_the_blocks() {
        for kernel in ["matmul_tile64x128_nn_f32", "quant_tile64_q4_k", "attention_decode_d128_r4_f16"] {
            let hot = hot_loop(kernel).unwrap();
            let runs = Runs { around: 1.0, pass: 30.0 };
            let clocks: Vec<_> = (1..20).map(|n| runs.clocks(&hot, f64::from(n), 99.0)).collect();
            assert!(clocks.is_sorted_by(|a, b| a < b), "{kernel}: {clocks:?}");
        }
    }

    #[test]
    fn a_block_more_than_a_full_set_costs_another_start() {
        let hot = hot_loop("matmul_tile128_nn_f32").unwrap();
        let runs = Runs { around: 0.0, pass: 30.0 };
        let [full, more] = [2.0, 3.0].map(|blocks| runs.clocks(&hot, blocks, 2.0));
        assert!(more - full > hot.one.start + 30.0 * hot.one.pass - 1.0, "{full} {more}");
        // fewer resident blocks than ptxas's registers allow, as with dynamic shared memory
        assert!(runs.clocks(&hot, 2.0, 1.0) > full);
    }

    #[test]
    fn the_start_is_most_of_a_short_launch() {
        let hot = hot_loop("matmul_tile128_nn_f32").unwrap();
        let share = |pass: f64| hot.one.start / Runs { around: 0.0, pass }.clocks(&hot, 1.0, 2.0);
        assert!(share(1.0) > 0.5 && share(500.0) < 0.05);
    }
}
