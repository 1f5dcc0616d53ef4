//! Which matmul kernel, and how k is split: a pure function of the problem and the card's [`Table`].

pub use super::query::{Layouts, Query, Types};
use super::table::Table;
use crate::problem::matmul::Variant;
use crate::tensor::MAX_ELEMENTS;
use kernels_gpu::matmul::regtile::{self, FAMILIES, Family, Size, strided};
use kernels_gpu::matmul::vector;

/// Warps wanted per multiprocessor in the few-row kernels that have 4 KiB of b in flight for each.
const NT_WARPS: u32 = 12;
/// Warps wanted per multiprocessor in those that have 2 KiB.
const NN_WARPS: u32 = 24;
/// How much longer than the fastest kernel a kernel with less energy may take, when those are preferred. The governor's next
/// step would reduce the duty by a tenth, so a kernel that avoids this step loses nothing.
pub const LOW_POWER_SLOWER: f64 = 1.1;
/// The most splits of k: more cost more to add than they save.
const MAX_SPLITS: u32 = 32;
/// A product that takes fewer clocks by its estimate is not cut: choosing the cut would take the host as long as it saves.
const LEAST_CUT_CLOCKS: f64 = 100_000.0;
/// What a cut must save to be taken: estimates are not exact.
const CUT_SAVES: f64 = 0.03;

/// A kernel, without its types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    Tile(Size, Layouts),
    Strided,
    /// Few rows, and b the transpose of a row-major matrix.
    VectorNt(VectorRows),
    /// Few rows, up to four, and a row-major b.
    VectorNn(VectorRows),
}

/// The most rows that a kernel handles, in the order of the kernels' tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VectorRows {
    One,
    Four,
    Eight,
}

/// A kernel and its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub kernel: Kernel,
    /// Number of blocks along x.
    pub blocks: u32,
    pub splits: u32,
    /// The length in k of each split but the last.
    pub k_chunk: u32,
    /// For `VectorNt`: 2^log_parts warps of a block share a column.
    pub log_parts: u32,
}

/// The family of this name.
fn family(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == name)
}

/// These operands' layouts, if the family has kernels for them.
fn layouts(family: &Family, q: &Query) -> Option<Layouts> {
    q.tile_layouts.filter(|&layouts| (layouts as usize) < family.layouts)
}

/// Number of blocks that cover c.
fn blocks(family: &Family, q: &Query) -> u32 {
    q.m.div_ceil(family.bm) * q.n.div_ceil(family.bn)
}

/// The length of a split in k is a multiple of this.
fn step(family: &Family) -> u32 {
    regtile::BK * family.slices
}

/// Divides `k` into about `splits` splits of a multiple of `step`: their length, and their actual number.
fn split(k: u32, splits: u32, step: u32) -> (u32, u32) {
    let chunk = k.div_ceil(splits.max(1)).next_multiple_of(step);
    (chunk, k.div_ceil(chunk))
}

/// The numbers of splits to consider.
fn split_candidates(q: &Query, step: u32) -> impl Iterator<Item = u32> {
    let outputs = q.batch as u64 * q.m as u64 * q.n as u64;
    let by_memory = (MAX_ELEMENTS as u64 / outputs.max(1)).clamp(1, MAX_SPLITS.into()) as u32;
    let most = (q.k / (4 * step)).clamp(1, by_memory);
    (0..=MAX_SPLITS.ilog2()).map(|power| 1 << power).take_while(move |&splits| splits <= most)
}

/// Bytes of partial sums that the product needs besides its operands.
pub fn scratch_bytes(table: &Table, q: &Query) -> usize {
    let whole = |q: &Query| match select(table, q, Variant::Auto, None) {
        Some(Plan { splits: splits @ 2.., .. }) => {
            [splits, q.batch, q.m, q.n].iter().map(|&factor| factor as usize).product::<usize>()
                * size_of::<f32>()
        }
        _ => 0,
    };
    match cut(table, q) {
        // the sums of the first product are freed before the second one's are there
        Some(cut) => cut.queries(q).iter().map(whole).max().unwrap_or(0),
        None => whole(q),
    }
}

/// A product that is computed as two: so many rows or columns of c, and those after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Rows(u32),
    Columns(u32),
}

impl Cut {
    /// Whether both products have elements.
    pub fn fits(self, m: u32, n: u32) -> bool {
        match self {
            Self::Rows(rows) => 0 < rows && rows < m,
            Self::Columns(columns) => 0 < columns && columns < n,
        }
    }

    /// The two products.
    fn queries(self, q: &Query) -> [Query; 2] {
        match self {
            Self::Rows(m) => [Query { m, ..*q }, Query { m: q.m - m, ..*q }],
            Self::Columns(n) => [Query { n, ..*q }, Query { n: q.n - n, ..*q }],
        }
    }
}

/// Where to cut a product, if that saves time: a few rows past the last full tile are those of a whole row of tiles, and a few tiles past
/// the last that all multiprocessors have take as long as one for each.
pub(super) fn cut(table: &Table, q: &Query) -> Option<Cut> {
    let whole = clocks(table, q)?;
    if whole < LEAST_CUT_CLOCKS {
        return None;
    }
    let rows = FAMILIES.iter().map(|family| Cut::Rows(q.m / family.bm * family.bm));
    let columns = FAMILIES.iter().map(|family| {
        let full = blocks(family, q) / q.multiprocessors * q.multiprocessors;
        Cut::Columns(full / q.m.div_ceil(family.bm) * family.bn)
    });
    let mut candidates: Vec<Cut> = Vec::with_capacity(2 * FAMILIES.len());
    for cut in rows.chain(columns) {
        if cut.fits(q.m, q.n) && !candidates.contains(&cut) {
            candidates.push(cut);
        }
    }
    let timed = candidates.into_iter().filter_map(|cut| {
        let [first, second] = cut.queries(q);
        Some((cut, clocks(table, &first)? + clocks(table, &second)? + table.launch_clocks))
    });
    let (cut, time) = timed.min_by(|(_, x), (_, y)| x.total_cmp(y))?;
    (time < (1.0 - CUT_SAVES) * whole).then_some(cut)
}

/// The estimate for the kernel that [`select`] chooses, if it is one of those that tables have estimates for.
fn clocks(table: &Table, q: &Query) -> Option<f64> {
    match choose(table, q) {
        (Variant::Tile(name), splits) => Some(table.clocks(q, family(name)?, splits.unwrap_or(1))),
        (Variant::Vector, _) => Some(table.streamed(q)),
        _ => None,
    }
}

/// The plan for this product; `None` if `variant` does not support it.
pub(super) fn select(table: &Table, q: &Query, variant: Variant, splits: Option<u32>) -> Option<Plan> {
    let plan = |kernel, blocks, splits, step| {
        let (k_chunk, splits) = split(q.k, splits, step);
        Some(Plan { kernel, blocks, splits, k_chunk, log_parts: 0 })
    };
    match variant {
        Variant::Auto => {
            let (variant, best) = choose(table, q);
            select(table, q, variant, splits.or(best))
        }
        Variant::Tile(name) => {
            let family = family(name)?;
            let splits = splits.unwrap_or_else(|| best_splits(table, q, family).0);
            let kernel = Kernel::Tile(family.size, layouts(family, q)?);
            plan(kernel, blocks(family, q), splits, step(family))
        }
        Variant::Strided => {
            let blocks = q.m.div_ceil(strided::BM) * q.n.div_ceil(strided::BN);
            // its tile is that of the 64 × 64 kernels
            let splits = splits.unwrap_or_else(|| best_splits(table, q, Size::Tile64.family()).0);
            plan(Kernel::Strided, blocks, splits, regtile::BK)
        }
        Variant::Vector => {
            let nt = |rows| (Kernel::VectorNt(rows), choose_parts(q));
            let (kernel, log_parts) = match q.vector_layouts? {
                Layouts::Nt if q.m <= 1 => nt(VectorRows::One),
                Layouts::Nt if q.m <= 4 => nt(VectorRows::Four),
                Layouts::Nt if q.m <= vector::MAX_M => nt(VectorRows::Eight),
                Layouts::Nn if q.m <= 1 => (Kernel::VectorNn(VectorRows::One), 0),
                Layouts::Nn if q.m <= vector::NN_MAX_M => (Kernel::VectorNn(VectorRows::Four), 0),
                _ => return None,
            };
            let (columns, warps, step) = match kernel {
                Kernel::VectorNt(_) => {
                    (vector::NT_COLUMNS * (vector::WARPS >> log_parts), NT_WARPS, vector::K_STEP)
                }
                _ => (vector::NN_COLUMNS, NN_WARPS, vector::NN_STEP),
            };
            let blocks = q.n.div_ceil(columns);
            let splits = splits.unwrap_or_else(|| vector_splits(q, blocks, warps, step));
            Some(Plan { log_parts, ..plan(kernel, blocks, splits, step)? })
        }
        Variant::Rows(_) | Variant::Columns(_) => None, // two plans
    }
}

/// Number of warps that read b if each reads whole columns.
fn vector_warps(q: &Query) -> u32 {
    q.n.div_ceil(vector::NT_COLUMNS).saturating_mul(q.batch).max(1)
}

/// The smallest power of two of warps per column that keeps the memory busy, as long as k is enough for all their lanes.
fn choose_parts(q: &Query) -> u32 {
    let wanted = NT_WARPS * q.multiprocessors;
    let useful = |parts: u32| q.k >> parts >= vector::K_STEP;
    let most = vector::WARPS.ilog2();
    (0..most).find(|&parts| vector_warps(q) << parts >= wanted || !useful(parts + 1)).unwrap_or(most)
}

/// The splits of k that are needed besides a block's own warps, for so many warps per multiprocessor.
fn vector_splits(q: &Query, blocks: u32, warps: u32, step: u32) -> u32 {
    let own = blocks.saturating_mul(q.batch).max(1).saturating_mul(vector::WARPS);
    let wanted = warps * q.multiprocessors / own;
    split_candidates(q, step).take_while(|&splits| splits <= wanted.max(1)).last().unwrap_or(1)
}

/// The families and numbers of splits worth timing: no tiles twice as tall as c where there are smaller ones.
pub fn candidates(q: &Query) -> Vec<(&'static str, u32)> {
    let families =
        FAMILIES.iter().filter(|family| layouts(family, q).is_some() && family.bm / 2 < q.m.max(32));
    let most = 16 * q.multiprocessors;
    families
        .flat_map(|family| {
            split_candidates(q, step(family))
                .filter(move |&splits| splits == 1 || blocks(family, q).saturating_mul(splits) <= most)
                .map(|splits| (family.name, splits))
        })
        .collect()
}

/// The kernel for this product, and for tiles the number of splits.
fn choose(table: &Table, q: &Query) -> (Variant, Option<u32>) {
    match q.vector_layouts {
        Some(Layouts::Nt) if q.m <= vector::MAX_M => return (Variant::Vector, None),
        Some(Layouts::Nn) if q.m <= vector::NN_MAX_M => return (Variant::Vector, None),
        _ => {}
    }
    let tiles = FAMILIES.iter().filter(|family| layouts(family, q).is_some());
    let estimates: Vec<_> = tiles.map(|family| (family, best_splits(table, q, family))).collect();
    let clocks = |&&(_, (_, clocks)): &&(&Family, (u32, f64))| clocks;
    let Some(mut best) = estimates.iter().min_by(|x, y| clocks(x).total_cmp(&clocks(y))) else {
        return (Variant::Strided, None);
    };
    if let (true, Some(least)) = (q.low_power, table.energy(best.0, best.1.1)) {
        let affordable = estimates.iter().filter(|one| clocks(one) <= LOW_POWER_SLOWER * clocks(&best));
        let measured = affordable.filter_map(|one| Some((one, table.energy(one.0, one.1.1)?)));
        let sparing = measured.filter(|&(_, energy)| energy < least).min_by(|x, y| x.1.total_cmp(&y.1));
        best = sparing.map_or(best, |(one, _)| one);
    }
    let (family, (splits, _)) = best;
    (Variant::Tile(family.name), Some(*splits))
}

/// The number of splits with the lowest estimate, and the estimate.
fn best_splits(table: &Table, q: &Query, family: &Family) -> (u32, f64) {
    split_candidates(q, step(family))
        .map(|splits| (splits, table.clocks(q, family, splits)))
        .min_by(|(_, x), (_, y)| x.total_cmp(y))
        .unwrap_or((1, 0.0))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const P4: u32 = 20;
    const MX330: u32 = 3;

    fn nt(m: u32, n: u32, k: u32, multiprocessors: u32) -> Query {
        Query::plain(Layouts::Nt, [m, n, k], multiprocessors)
    }

    fn sm_61() -> Table {
        Table::parse(include_str!("sm_61.json")).unwrap()
    }

    fn plan(q: &Query) -> Plan {
        select(&sm_61(), q, Variant::Auto, None).unwrap()
    }

    #[test]
    fn large_products_take_large_tiles_unsplit() {
        for multiprocessors in [MX330, P4] {
            let plan = plan(&nt(4096, 4096, 4096, multiprocessors));
            let tile128 = Kernel::Tile(Size::Tile128, Layouts::Nt);
            assert_eq!((plan.kernel, plan.splits, plan.blocks), (tile128, 1, 1024));
        }
    }

    /// The kernels that the cost model compares with cuBLAS: virtual-gpu/COSTS.md.
    #[test]
    fn square_products_on_a_gtx_1080_ti() {
        let kernels = [512, 1024, 2048, 4096].map(|n| {
            let plan = plan(&Query::plain(Layouts::Nn, [n; 3], 28));
            (plan.kernel, plan.splits)
        });
        let sizes = [Size::Tile64, Size::Tile64x128, Size::Tile64x128, Size::Tile128];
        assert_eq!(kernels, sizes.map(|size| (Kernel::Tile(size, Layouts::Nn), 1)));
    }

    /// A table in which `wide128` needs half the power of the others.
    pub(crate) fn sparing() -> Table {
        let watts = FAMILIES.iter().map(|family| (family.name.to_owned(), 20.0));
        Table { watts: watts.chain([("wide128".to_owned(), 10.0)]).collect(), ..sm_61() }
    }

    /// The tile size, and the number of splits.
    fn tile(table: &Table, q: &Query, low_power: bool) -> (Size, u32) {
        let plan = select(table, &Query { low_power, ..*q }, Variant::Auto, None).unwrap();
        let Kernel::Tile(size, Layouts::Nt) = plan.kernel else { unreachable!("tiles fit") };
        (size, plan.splits)
    }

    fn size(table: &Table, q: &Query, low_power: bool) -> Size {
        tile(table, q, low_power).0
    }

    #[test]
    fn less_energy_is_taken_where_it_is_asked_for_and_measured() {
        let large = nt(4096, 4096, 4096, P4);
        assert_eq!(size(&sparing(), &large, false), Size::Tile128);
        assert_eq!(size(&sparing(), &large, true), Size::Wide128);
        assert_eq!(size(&sm_61(), &large, true), Size::Tile128, "nothing is measured");
        // A table with power for only some families compares nothing: families without a figure are neither left nor chosen.
        for missing in ["tile128", "wide128"] {
            let mut table = sparing();
            table.watts.remove(missing);
            assert_eq!(size(&table, &large, true), Size::Tile128, "without {missing}");
        }
    }

    #[test]
    fn less_energy_costs_a_tenth_of_the_time_at_most() {
        // 16 rows leave seven eighths of a tile of 128 idle, which half the power does not compensate.
        let few = nt(16, 2048, 2048, P4);
        assert_eq!(size(&sparing(), &few, true), Size::Tile32);
        // However little power a kernel needs, it is not chosen beyond that limit.
        let mut table = sparing();
        table.watts.insert("wide128".into(), 0.001);
        assert_eq!(size(&table, &few, true), Size::Tile32);
        for dims in [[64, 2048, 2048], [256, 6144, 2048], [1024, 2048, 6144], [512; 3], [2048; 3]] {
            let q = Query::plain(Layouts::Nt, dims, MX330);
            let clocks = |low_power| {
                let (size, splits) = tile(&table, &q, low_power);
                table.clocks(&q, size.family(), splits)
            };
            assert!(clocks(true) <= LOW_POWER_SLOWER * clocks(false), "{q}");
        }
    }

    #[test]
    fn few_rows_stream_the_weights() {
        assert_eq!(plan(&nt(1, 2048, 2048, P4)).kernel, Kernel::VectorNt(VectorRows::One));
        assert_eq!(plan(&nt(3, 2048, 2048, P4)).kernel, Kernel::VectorNt(VectorRows::Four));
        assert_eq!(plan(&nt(8, 2048, 2048, P4)).kernel, Kernel::VectorNt(VectorRows::Eight));
        assert_eq!(plan(&nt(16, 2048, 2048, P4)).kernel, Kernel::Tile(Size::Tile32, Layouts::Nt));
        let nn = |m| plan(&Query { vector_layouts: Some(Layouts::Nn), ..nt(m, 2048, 2048, P4) }).kernel;
        assert_eq!(nn(1), Kernel::VectorNn(VectorRows::One));
        assert_eq!(nn(4), Kernel::VectorNn(VectorRows::Four));
        assert_eq!(nn(5), Kernel::Tile(Size::Tile32, Layouts::Nt));
    }

    #[test]
    fn products_are_cut_where_a_few_rows_or_tiles_take_long() {
        let of = |m, n, k, multiprocessors| cut(&sm_61(), &nt(m, n, k, multiprocessors));
        assert_eq!(of(1028, 6144, 2048, 30), Some(Cut::Rows(1024)), "four rows by a kernel that streams b");
        assert_eq!(of(1024, 6144, 2048, 30), None, "full tiles, 12.8 for each multiprocessor");
        assert_eq!(of(28, 2048, 2048, 30), None, "a small product");
        let found = of(640, 2048, 8192, 30);
        assert!(matches!(found, Some(Cut::Columns(_))), "{found:?}: 80 tiles, 2.7 for each multiprocessor");
    }

    /// Both parts of a cut have elements, and their estimates are less than that of the whole.
    #[test]
    fn cuts_save_time_and_leave_nothing_out() {
        let tables = [sm_61(), Table::parse(include_str!("sm_90.json")).unwrap()];
        let mut cuts = 0;
        for (table, multiprocessors) in tables.iter().zip([20, 132]) {
            for dims in [
                [1028, 6144, 2048],
                [1028, 2048, 2048],
                [1410, 4096, 2048],
                [333, 1000, 4096],
                [129, 151_936, 2048],
            ] {
                for layouts in [Layouts::Nn, Layouts::Nt, Layouts::Tn] {
                    let q = Query::plain(layouts, dims, multiprocessors);
                    let Some(found) = cut(table, &q) else { continue };
                    cuts += 1;
                    let [first, second] = found.queries(&q);
                    let elements = |q: &Query| u64::from(q.m) * u64::from(q.n);
                    assert_eq!(elements(&first) + elements(&second), elements(&q));
                    assert!(elements(&first) > 0 && elements(&second) > 0, "{q}: {found:?}");
                    let sum = clocks(table, &first).unwrap() + clocks(table, &second).unwrap();
                    assert!(sum < clocks(table, &q).unwrap(), "{q}: {found:?}");
                }
            }
        }
        assert!(cuts > 5, "{cuts}");
    }

    #[test]
    fn few_tiles_and_a_long_k_are_split() {
        let plan = plan(&nt(64, 64, 16384, P4));
        assert!(plan.splits > 4, "{plan:?}");
    }

    #[test]
    fn what_is_not_aligned_runs_strided() {
        let q = Query { tile_layouts: None, ..nt(100, 101, 103, P4) };
        assert_eq!(plan(&q).kernel, Kernel::Strided);
        assert_eq!(select(&sm_61(), &q, Variant::Tile("tile128"), None), None);
        assert_eq!(select(&sm_61(), &q, Variant::Vector, None), None, "100 rows");
    }

    #[test]
    fn the_parts_cover_k_and_none_is_empty() {
        for k in [1, 7, 8, 9, 255, 256, 257, 1000, 4096, 65537] {
            for wanted in 1..40 {
                for step in [8, 256] {
                    let (chunk, splits) = split(k, wanted, step);
                    assert!(chunk % step == 0 && splits <= wanted);
                    assert!(chunk * (splits - 1) < k && k <= chunk * splits, "{k} {wanted} {step}");
                }
            }
        }
    }
}
