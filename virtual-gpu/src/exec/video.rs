//! Video instructions in one thread, as the PTX ISA's pseudocode has them.

use crate::ptx::video::{Relation, Second, Selectors, Video, VideoOp, WHOLE};

pub(super) fn video(v: Video, s: Selectors, a: u32, b: u32, c: u32) -> u32 {
    if v.lanes > 1 {
        return lanes(v, s, a, b, c);
    }
    let (x, y) = (part(a, s.a as u8, v.a_signed), part(b, s.b as u8, v.b_signed));
    if v.op == VideoOp::Mad {
        return multiply_add(v, s, x, y, c);
    }
    let mut t = operate(v.op, x, y);
    if v.sat {
        t = saturate(t, bits(s.d), v.d_signed);
    }
    let third = part(c, WHOLE, v.d_signed);
    match v.second {
        Second::Add => (t + third) as u32,
        Second::Min => t.min(third) as u32,
        Second::Max => t.max(third) as u32,
        Second::Merge => {
            let field = ((1u64 << bits(s.d)) - 1) as u32;
            let at = shift(s.d);
            (t as u32 & field) << at | c & !(field << at)
        }
    }
}

/// Lowest bit of a selected part.
fn shift(part: u8) -> u32 {
    match part {
        0..4 => 8 * u32::from(part),
        4..6 => 16 * u32::from(part - 4),
        _ => 0,
    }
}

fn bits(part: u8) -> u32 {
    match part {
        0..4 => 8,
        4..6 => 16,
        _ => 32,
    }
}

fn part(x: u32, part: u8, signed: bool) -> i128 {
    extend(x >> shift(part), bits(part), signed)
}

/// The lower bits as a number.
fn extend(x: u32, bits: u32, signed: bool) -> i128 {
    let up = 32 - bits;
    if signed { i128::from((x << up) as i32 >> up) } else { i128::from(x << up >> up) }
}

fn saturate(t: i128, bits: u32, signed: bool) -> i128 {
    if signed { t.clamp(-1 << (bits - 1), (1 << (bits - 1)) - 1) } else { t.clamp(0, (1 << bits) - 1) }
}

fn operate(op: VideoOp, x: i128, y: i128) -> i128 {
    match op {
        VideoOp::Add => x + y,
        VideoOp::Sub => x - y,
        VideoOp::AbsDiff => (x - y).abs(),
        VideoOp::Avrg => (x + y + i128::from(x + y >= 0)) >> 1,
        VideoOp::Min => x.min(y),
        VideoOp::Max => x.max(y),
        // y is unsigned
        VideoOp::Shl { clamp } => x << if clamp { y.min(32) } else { y & 31 },
        VideoOp::Shr { clamp } => x >> if clamp { y.min(32) } else { y & 31 },
        VideoOp::Mad => x * y,
        VideoOp::Set(relation) => i128::from(match relation {
            Relation::Eq => x == y,
            Relation::Ne => x != y,
            Relation::Lt => x < y,
            Relation::Le => x <= y,
            Relation::Gt => x > y,
            Relation::Ge => x >= y,
        }),
    }
}

fn multiply_add(v: Video, s: Selectors, x: i128, y: i128, c: u32) -> u32 {
    // c has the product's sign; the result is signed too if c is subtracted
    let signed_product = v.a_signed || v.b_signed || s.negate_product;
    let signed = signed_product || s.negate_c;
    let product = if s.negate_product { -(x * y) } else { x * y };
    let c = extend(c, 32, signed_product);
    let c = if s.negate_c { -c } else { c };
    let t = (product + c + i128::from(s.plus_one)) >> s.scale;
    (if v.sat { saturate(t, 32, signed) } else { t }) as u32
}

fn lanes(v: Video, s: Selectors, a: u32, b: u32, c: u32) -> u32 {
    let width = 32 / u32::from(v.lanes);
    let lane = |selector: u16, n: u32, signed: bool| {
        let pair = u64::from(b) << 32 | u64::from(a);
        extend((pair >> (width * u32::from(selector >> (4 * n) & 7))) as u32, width, signed)
    };
    let field = ((1u64 << width) - 1) as u32;
    let mut sum = c;
    let mut merged = 0;
    for n in 0..u32::from(v.lanes) {
        let mut t = operate(v.op, lane(s.a, n, v.a_signed), lane(s.b, n, v.b_signed));
        if v.sat {
            t = saturate(t, width, v.d_signed);
        }
        let at = width * n;
        if s.d >> n & 1 != 0 {
            sum = sum.wrapping_add(t as u32);
            merged |= (t as u32 & field) << at;
        } else {
            merged |= c & field << at;
        }
    }
    if v.second == Second::Add { sum } else { merged }
}
