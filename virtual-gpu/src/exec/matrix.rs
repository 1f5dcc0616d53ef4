//! Matrices that a warp holds: `mma` and `ldmatrix`, with the fragments of the PTX ISA document.
//!
//! Products are exact in f32. They are added to c in f32, rounded to nearest, k ascending; an f16 result is rounded once more at the
//! end. Hardware adds several at once and cuts off, so its last bits differ.

use half::f16;

use super::access::addresses;
use super::block::{Block, Check};
use super::float::canonical;
use super::lane::What;
use super::regs::{FULL, LANES};
use super::scratch::{SHARED, bytes_at, checked, no_race, party};
use super::shape::Count;
use super::warp::Warp;
use crate::finding::FindingKind;
use crate::ptx::inst::{Function, Inst, Row};
use crate::ptx::matrix::{LoadMatrix, Mma, Shape};

/// Rows and columns of the elements that a lane holds, by their number.
type Place = fn(usize, usize) -> (usize, usize);

/// What a matrix has more of in lanes 16 to 31.
fn upper(lane: usize) -> usize {
    if lane < 16 { 0 } else { 4 }
}

/// A matrix of m8n8k4 with an index from the lane and one from the element, as (lane's, element's).
fn by_lane(lane: usize, i: usize) -> (usize, usize) {
    (lane % 4 + upper(lane), i)
}

fn by_element(lane: usize, i: usize) -> (usize, usize) {
    (lane % 4, i + upper(lane))
}

/// The places of a, b, and the single and half elements of c.
fn places(shape: Shape) -> [Place; 4] {
    let single: Place = |lane, i| ((lane & 1) + (i & 2) + upper(lane), (i & 4) + (lane & 2) + (i & 1));
    match shape {
        Shape::M8N8K4 { a_by_columns, b_by_columns } => {
            let a: Place = if a_by_columns {
                |lane, i| {
                    let (k, row) = by_element(lane, i);
                    (row, k)
                }
            } else {
                by_lane
            };
            let b: Place = if b_by_columns {
                |lane, i| {
                    let (column, k) = by_lane(lane, i);
                    (k, column)
                }
            } else {
                by_element
            };
            [a, b, single, by_lane]
        }
        Shape::M16N8K8 => {
            let c: Place = |lane, i| (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2);
            [c, |lane, i| (2 * (lane % 4) + i, lane / 4), c, c]
        }
    }
}

/// A matrix of at most 16 rows and 8 columns.
type Matrix = [[f32; 8]; 16];

/// Gathers what the lanes hold.
fn gather(w: &Warp, rows: &[Row], single: bool, lanes: &[usize], place: Place) -> Matrix {
    let mut m = [[0.0; 8]; 16];
    for &lane in lanes {
        for (n, &row) in rows.iter().enumerate() {
            let word = w.regs.row32(row)[lane];
            if single {
                let (row, column) = place(lane, n);
                m[row][column] = f32::from_bits(word);
                continue;
            }
            for (half, bits) in [word as u16, (word >> 16) as u16].into_iter().enumerate() {
                let (row, column) = place(lane, 2 * n + half);
                m[row][column] = f16::from_bits(bits).to_f32();
            }
        }
    }
    m
}

fn scatter(w: &mut Warp, rows: &[Row], single: bool, lanes: &[usize], place: Place, m: &Matrix) {
    let at = |(row, column): (usize, usize)| canonical(m[row][column]);
    let half = |x: f32| if x.is_nan() { 0x7fff } else { f16::from_f32(x).to_bits() };
    for &lane in lanes {
        for (n, &row) in rows.iter().enumerate() {
            w.regs.row32_mut(row)[lane] = match single {
                true => at(place(lane, n)).to_bits(),
                false => {
                    let pair = [0, 1].map(|h| u32::from(half(at(place(lane, 2 * n + h)))));
                    pair[0] | pair[1] << 16
                }
            };
        }
    }
}

/// Whether the whole warp executes an instruction, as those on matrices ask for.
fn whole(b: &Block<'_>, w: &Warp, inst: &Inst, mask: u32) -> Check {
    if mask == FULL {
        return Ok(());
    }
    let lane = (!mask).trailing_zeros();
    let message = format!("an instruction on matrices without lane {lane}: all 32 lanes hold parts of them");
    Err(b.finding(FindingKind::NotConverged, inst.line, w.id * 32 + mask.trailing_zeros() % 32, message))
}

pub(super) fn multiply(b: &Block<'_>, w: &mut Warp, f: &Function, inst: &Inst, mma: Mma, mask: u32) -> Check {
    whole(b, w, inst, mask)?;
    let counts = mma.registers();
    let starts = [inst.d, inst.a, inst.b, inst.c];
    let [d, a, b, c] = std::array::from_fn(|n| &f.lists[starts[n] as usize..][..counts[n]]);
    let [a_place, b_place, single, half] = places(mma.shape);
    let of = |is_single: bool| if is_single { single } else { half };
    let (groups, height, depth) = match mma.shape {
        Shape::M8N8K4 { .. } => (4, 8, 4),
        Shape::M16N8K8 => (1, 16, 8),
    };
    let lanes_of = |group: usize| -> Vec<usize> {
        (0..LANES).filter(|lane| groups == 1 || lane % 16 / 4 == group).collect()
    };
    for group in 0..groups {
        let lanes = lanes_of(group);
        let a = gather(w, a, false, &lanes, a_place);
        let b = gather(w, b, false, &lanes, b_place);
        let mut sum = gather(w, c, mma.c_single, &lanes, of(mma.c_single));
        for row in 0..height {
            for column in 0..8 {
                sum[row][column] = (0..depth).fold(sum[row][column], |sum, k| sum + a[row][k] * b[k][column]);
            }
        }
        scatter(w, d, mma.d_single, &lanes, of(mma.d_single), &sum);
    }
    Ok(())
}

pub(super) fn load(
    b: &mut Block<'_>,
    w: &mut Warp,
    f: &Function,
    (inst, number): (&Inst, usize),
    LoadMatrix { matrices, transposed, addr_wide }: LoadMatrix,
    mask: u32,
) -> Check {
    const ROW: u8 = 16;
    whole(b, w, inst, mask)?;
    let what = What { verb: "load", bytes: ROW.into(), line: inst.line, loose: false };
    let at = addresses(w, inst, addr_wide);
    let matrices = usize::from(matrices);
    // lane 8·n + r has the address of row r of matrix n
    let mut rows = [[0u16; 8]; LANES];
    for lane in 0..8 * matrices {
        let o = checked::<SHARED>(b, w, what, lane, at[lane])?;
        if b.job.config.checks.races {
            let conflict = b.races.read(o, ROW.into(), party(w, what, lane));
            no_race(b, w, what, lane, at[lane], conflict)?;
        }
        rows[lane] = std::array::from_fn(|n| bytes_at(&b.shared, o + 2 * n, 2) as u16);
    }
    let given = FULL >> (LANES - 8 * matrices);
    let facts = b.facts(number, &at, given, ROW.into(), Count::Wavefronts);
    if b.job.config.traffic {
        b.counters.shared_loads.count(facts.units, given, ROW.into());
        b.counters.bank_conflicts += u64::from(facts.conflicts);
    }
    for (matrix, &register) in f.lists[inst.d as usize..][..matrices].iter().enumerate() {
        let element = |row: usize, column: usize| u32::from(rows[8 * matrix + row][column]);
        let d = w.regs.row32_mut(register);
        for (lane, d) in d.iter_mut().enumerate() {
            let (row, column) = (lane / 4, 2 * (lane % 4));
            *d = match transposed {
                false => element(row, column) | element(row, column + 1) << 16,
                true => element(column, row) | element(column + 1, row) << 16,
            };
        }
    }
    Ok(())
}
