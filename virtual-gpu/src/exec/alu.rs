//! Instructions that only touch registers, over all 32 lanes at once. Long because the instruction set is: one
//! match with a line or a few per instruction.

use std::ops::Range;

use super::alu_float::{float_binary, float_test, float_unary, flush16, fma};
use super::bit_fields::{bit_mask, extend_bits};
use super::cvt;
use super::float::flush;
use super::line_costs::InstructionCost;
use super::regs::*;
use super::video::video;
use crate::counters::Counters;
use crate::ptx::inst::*;
use crate::ptx::video::Selectors;

/// Executes instructions from the range's first on, up to one that is not a register instruction or that no lane executes. Returns
/// where it stopped. `costs` has the instructions' costs, or nothing.
///
/// On x86-64 the same code is compiled a second time for AVX2 and FMA; `fast` says whether the CPU has them.
#[inline(always)]
pub(super) fn run(
    fast: Fast,
    r: &mut Regs,
    f: &Function,
    range: Range<u32>,
    active: u32,
    counts: (&mut Counters, &mut [InstructionCost]),
) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if fast.0 {
        // SAFETY: `Fast::detect` saw the features on this CPU.
        return unsafe { run_fast(r, f, range, active, counts) };
    }
    let _ = fast;
    run_portable(r, f, range, active, counts)
}

/// Compiled once, though the caller is inlined into code for both kinds of CPU.
#[inline(never)]
fn run_portable(
    r: &mut Regs,
    f: &Function,
    range: Range<u32>,
    active: u32,
    counts: (&mut Counters, &mut [InstructionCost]),
) -> u32 {
    run_any(r, f, range, active, counts)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn run_fast(
    r: &mut Regs,
    f: &Function,
    range: Range<u32>,
    active: u32,
    counts: (&mut Counters, &mut [InstructionCost]),
) -> u32 {
    run_any(r, f, range, active, counts)
}

#[inline(always)]
fn run_any(
    r: &mut Regs,
    f: &Function,
    range: Range<u32>,
    active: u32,
    (counters, costs): (&mut Counters, &mut [InstructionCost]),
) -> u32 {
    for pc in range.clone() {
        let inst = &f.code[pc as usize];
        let mask = if inst.guard == NONE { active } else { active & r.pred(inst.guard) };
        if mask == 0 || !execute(r, &f.lists, inst, mask) {
            return pc;
        }
        counters.warp_instructions[inst.class as usize] += 1;
        counters.thread_instructions[inst.class as usize] += u64::from(mask.count_ones());
        if let Some(cost) = costs.get_mut(pc as usize) {
            cost.warp_instructions += 1;
        }
    }
    range.end
}

/// Proof, if true, that the CPU has what `target_feature` enables: AVX2, FMA, BMI1, BMI2, LZCNT, POPCNT.
#[derive(Clone, Copy)]
pub(crate) struct Fast(bool);

impl Fast {
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        return Self(
            is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("lzcnt")
                && is_x86_feature_detected!("popcnt"),
        );
        #[cfg(not(target_arch = "x86_64"))]
        Self(false)
    }

    pub fn is_there(self) -> bool {
        self.0
    }
}

/// Evaluates an expression in which `$t` is the integer type that `$ty` says.
macro_rules! by_int {
    ($ty:expr, $t:ident => $e:expr) => { by_int_or_wider!($ty, $t, _Wider => $e) };
}

/// As [`by_int`], with `$w` as the type of twice the width.
macro_rules! by_int_or_wider {
    ($ty:expr, $t:ident, $w:ident => $e:expr) => {
        by_int_or_wider!(@ $ty, $t, $w, $e, U16 u16 u32, S16 i16 i32, U32 u32 u64, S32 i32 i64, U64 u64 u128, S64 i64 i128)
    };
    (@ $ty:expr, $t:ident, $w:ident, $e:expr, $($variant:ident $narrow:ident $wide:ident),*) => {
        match $ty {
            $(IntTy::$variant => {
                type $t = $narrow;
                type $w = $wide;
                $e
            })*
        }
    };
}

/// Executes a register instruction for the lanes of `mask`. False for others.
#[inline(always)]
fn execute(r: &mut Regs, lists: &[u32], i: &Inst, mask: u32) -> bool {
    let at = [i.d, i.a, i.b, i.c];
    match i.op {
        Op::Mov32 => map1::<u32, u32>(r, i.d, i.a, mask, |x| x),
        Op::Mov64 => map1::<u64, u64>(r, i.d, i.a, mask, |x| x),
        Op::IBin(op, ty) => int_binary(r, i, op, ty, mask),
        Op::ITri(op, ty) => int_ternary(r, i, op, ty, mask),
        Op::IUn(op, ty) => int_unary(r, i, op, ty, mask),
        Op::FBin(op, m) => float_binary(r, i, op, m, mask),
        Op::Fma(m) => fma(r, i, m, mask),
        Op::FUn(op, m) => float_unary(r, i, op, m, mask),
        Op::Setp { cmp, ty, logic, ftz } => {
            let t = compare(r, i, cmp, ty, ftz);
            let with = |t: u32| logic.map_or(t, |l| combine(l, t, r.pred(i.c)));
            let (p, q) = (with(t), with(!t));
            r.set_pred(i.d, p, mask);
            if i.e != NONE {
                r.set_pred(i.e, q, mask);
            }
        }
        Op::Set { cmp, ty, logic, ftz, one } => {
            let t = compare(r, i, cmp, ty, ftz);
            let t = logic.map_or(t, |l| combine(l, t, r.pred(i.c)));
            let mut out = [0u32; LANES];
            for (lane, o) in out.iter_mut().enumerate() {
                *o = if t >> lane & 1 != 0 { one } else { 0 };
            }
            u32::store(r, i.d, &out, mask);
        }
        Op::SetpHalves { cmp, logic, ftz } => {
            let [low, high] = compare_halves(r, i, cmp, logic, ftz);
            r.set_pred(i.d, low, mask);
            r.set_pred(i.e, high, mask);
        }
        Op::SetHalves { cmp, logic, ftz, one } => {
            let [low, high] = compare_halves(r, i, cmp, logic, ftz);
            let one = u32::from(one);
            let out = std::array::from_fn(|l| (one * (low >> l & 1)) | ((one * (high >> l & 1)) << 16));
            u32::store(r, i.d, &out, mask);
        }
        Op::Sel32 => select::<u32>(r, i, r.pred(i.c), mask),
        Op::Sel64 => select::<u64>(r, i, r.pred(i.c), mask),
        Op::Slct { wide, float, ftz } => {
            let c = u32::load(r, i.c);
            let mut t = 0;
            for (lane, &c) in c.iter().enumerate() {
                let x = f32::from_bits(c);
                let x = if ftz { flush(x) } else { x };
                t |= ((if float { x >= 0.0 } else { c as i32 >= 0 }) as u32) << lane;
            }
            if wide { select::<u64>(r, i, t, mask) } else { select::<u32>(r, i, t, mask) }
        }
        Op::PredLogic(l) => {
            let v = combine(l, r.pred(i.a), r.pred(i.b));
            r.set_pred(i.d, v, mask);
        }
        Op::Pack { wide, part_bits } => pack(r, lists, i, wide, part_bits, mask),
        Op::Unpack { wide, part_bits } => unpack(r, lists, i, wide, part_bits, mask),
        Op::Cvt(m) => cvt::execute(r, i, m, mask),
        Op::Carry { op, ty, carry_in, carry_out } => carry(r, i, op, ty, carry_in, carry_out, mask),
        Op::Bfi { wide } => bfi(r, i, wide, mask),
        Op::Shf { left, clamp } => map3::<u32, u32, u32, u32>(r, at, mask, |lo, hi, n| {
            let n = if clamp { n.min(32) } else { n & 31 };
            let v = (hi as u64) << 32 | lo as u64;
            if left { (v << n >> 32) as u32 } else { (v >> n) as u32 }
        }),
        Op::Lop3 => {
            let t = i.imm as u32;
            map3::<u32, u32, u32, u32>(r, at, mask, |a, b, c| {
                let mut out = 0;
                for n in 0..8 {
                    let pick = |x: u32, bit: u32| if bit != 0 { x } else { !x };
                    let term = pick(a, n & 4) & pick(b, n & 2) & pick(c, n & 1);
                    out |= term & (t >> n & 1).wrapping_neg();
                }
                out
            })
        }
        Op::Prmt(mode) => map3::<u32, u32, u32, u32>(r, at, mask, |a, b, c| prmt(mode, a, b, c)),
        // with constant signs, so that the common forms are vectorised
        Op::Dp4a => match (i.imm & 1 != 0, i.imm & 2 != 0) {
            (true, true) => map3::<u32, u32, u32, u32>(r, at, mask, |a, b, c| dp4a(a, b, c, true, true)),
            (false, false) => map3::<u32, u32, u32, u32>(r, at, mask, |a, b, c| dp4a(a, b, c, false, false)),
            (sa, sb) => map3::<u32, u32, u32, u32>(r, at, mask, |a, b, c| dp4a(a, b, c, sa, sb)),
        },
        Op::Dp2a { hi } => {
            let (sa, sb) = (i.imm & 1 != 0, i.imm & 2 != 0);
            map3::<u32, u32, u32, u32>(r, at, mask, |a, b, c| {
                (0..2).fold(c, |sum, n| {
                    let x = a >> (16 * n);
                    let x = if sa { x as i16 as i32 } else { x as u16 as i32 };
                    let y = b >> (8 * n + if hi { 16 } else { 0 });
                    let y = if sb { y as i8 as i32 } else { y as u8 as i32 };
                    sum.wrapping_add(x.wrapping_mul(y) as u32)
                })
            })
        }
        Op::Video(v) => {
            let s = Selectors::unpack(i.imm);
            map3::<u32, u32, u32, u32>(r, at, mask, |a, b, c| video(v, s, a, b, c));
        }
        Op::Testp { kind, wide } => {
            let x: [f64; LANES] = if wide {
                f64::load(r, i.a)
            } else {
                let x = f32::load(r, i.a);
                std::array::from_fn(|l| x[l] as f64)
            };
            let least = if wide { f64::MIN_POSITIVE } else { f32::MIN_POSITIVE as f64 };
            let mut t = 0;
            for (lane, x) in x.into_iter().enumerate() {
                let subnormal = x != 0.0 && x.abs() < least;
                let v = match kind {
                    Testp::Finite => x.is_finite(),
                    Testp::Infinite => x.is_infinite(),
                    Testp::Number => !x.is_nan(),
                    Testp::NotANumber => x.is_nan(),
                    Testp::Normal => x.is_finite() && x.abs() >= least,
                    Testp::Subnormal => subnormal,
                };
                t |= (v as u32) << lane;
            }
            r.set_pred(i.d, t, mask);
        }
        // d has the sign of a and the magnitude of b.
        Op::Copysign { wide: false } => {
            map2::<u32, u32, u32>(r, [i.d, i.a, i.b], mask, |a, b| (a & 1 << 31) | (b & !(1 << 31)))
        }
        Op::Copysign { wide: true } => {
            map2::<u64, u64, u64>(r, [i.d, i.a, i.b], mask, |a, b| (a & 1 << 63) | (b & !(1 << 63)))
        }
        _ => return false,
    }
    true
}

#[inline(always)]
fn combine(l: Logic, a: u32, b: u32) -> u32 {
    match l {
        Logic::And => a & b,
        Logic::Or => a | b,
        Logic::Xor => a ^ b,
    }
}

#[inline(always)]
fn select<T: Scalar>(r: &mut Regs, i: &Inst, t: u32, mask: u32) {
    let (a, b) = (T::load(r, i.a), T::load(r, i.b));
    let mut out = [T::default(); LANES];
    for l in 0..LANES {
        out[l] = if t >> l & 1 != 0 { a[l] } else { b[l] };
    }
    T::store(r, i.d, &out, mask);
}

#[inline(always)]
fn int_binary(r: &mut Regs, i: &Inst, op: IBin, ty: IntTy, mask: u32) {
    let at = [i.d, i.a, i.b];
    match op {
        IBin::Add => by_int!(ty, T => map2::<T, T, T>(r, at, mask, |a, b| a.wrapping_add(b))),
        IBin::Sub => by_int!(ty, T => map2::<T, T, T>(r, at, mask, |a, b| a.wrapping_sub(b))),
        IBin::Mul => by_int!(ty, T => map2::<T, T, T>(r, at, mask, |a, b| a.wrapping_mul(b))),
        IBin::And => by_int!(ty, T => map2::<T, T, T>(r, at, mask, |a, b| a & b)),
        IBin::Or => by_int!(ty, T => map2::<T, T, T>(r, at, mask, |a, b| a | b)),
        IBin::Xor => by_int!(ty, T => map2::<T, T, T>(r, at, mask, |a, b| a ^ b)),
        IBin::Min => by_int!(ty, T => map2::<T, T, T>(r, at, mask, |a, b| a.min(b))),
        IBin::Max => by_int!(ty, T => map2::<T, T, T>(r, at, mask, |a, b| a.max(b))),
        // Shift amounts beyond the width are clamped to it.
        IBin::Shl => {
            by_int!(ty, T => map2::<T, u32, T>(r, at, mask, |a, n| if n < T::BITS { a << n } else { 0 }))
        }
        IBin::Shr => by_int!(ty, T => map2::<T, u32, T>(r, at, mask, |a, n| {
            if n < T::BITS { a >> n } else { (a >> (T::BITS - 1)) >> (T::MIN == 0) as u32 }
        })),
        IBin::MulHi => by_int_or_wider!(ty, T, W => map2::<T, T, T>(r, at, mask, |a, b| {
            ((a as W).wrapping_mul(b as W) >> T::BITS) as T
        })),
        IBin::MulWide => match ty {
            IntTy::U16 => map2::<u16, u16, u32>(r, at, mask, |a, b| a as u32 * b as u32),
            IntTy::S16 => map2::<i16, i16, i32>(r, at, mask, |a, b| a as i32 * b as i32),
            IntTy::S32 => map2::<i32, i32, i64>(r, at, mask, |a, b| a as i64 * b as i64),
            _ => map2::<u32, u32, u64>(r, at, mask, |a, b| a as u64 * b as u64),
        },
        // The hardware's quotient by zero is all ones; PTX leaves it undefined. MIN / -1 wraps.
        IBin::Div => {
            by_int!(ty, T => map2::<T, T, T>(r, at, mask, |a, b| if b == 0 { !0 } else { a.wrapping_div(b) }))
        }
        IBin::Rem => {
            by_int!(ty, T => map2::<T, T, T>(r, at, mask, |a, b| if b == 0 { a } else { a.wrapping_rem(b) }))
        }
        IBin::BmskClamp => map2::<u32, u32, u32>(r, at, mask, |a, b| bit_mask(a, b, true)),
        IBin::BmskWrap => map2::<u32, u32, u32>(r, at, mask, |a, b| bit_mask(a, b, false)),
        IBin::SzextClamp => {
            map2::<u32, u32, u32>(r, at, mask, |a, b| extend_bits(a, b, ty == IntTy::S32, true))
        }
        IBin::SzextWrap => {
            map2::<u32, u32, u32>(r, at, mask, |a, b| extend_bits(a, b, ty == IntTy::S32, false))
        }
        IBin::AddSat => map2::<i32, i32, i32>(r, at, mask, |a, b| a.saturating_add(b)),
        IBin::SubSat => map2::<i32, i32, i32>(r, at, mask, |a, b| a.saturating_sub(b)),
        IBin::Mul24 => map2::<u32, u32, u32>(r, at, mask, |a, b| mul24(a, b, ty, false)),
        IBin::Mul24Hi => map2::<u32, u32, u32>(r, at, mask, |a, b| mul24(a, b, ty, true)),
    }
}

/// 48-bit product of the low 24 bits: its low 32 bits, or its bits 16 to 47.
fn mul24(a: u32, b: u32, ty: IntTy, hi: bool) -> u32 {
    let part = |x: u32| if ty == IntTy::S32 { ((x << 8) as i32 >> 8) as i64 } else { (x & 0xff_ffff) as i64 };
    let p = part(a) * part(b);
    (if hi { p >> 16 } else { p }) as u32
}

#[inline(always)]
fn int_ternary(r: &mut Regs, i: &Inst, op: ITri, ty: IntTy, mask: u32) {
    let at = [i.d, i.a, i.b, i.c];
    match op {
        ITri::Mad => {
            by_int!(ty, T => map3::<T, T, T, T>(r, at, mask, |a, b, c| a.wrapping_mul(b).wrapping_add(c)))
        }
        ITri::MadHi => by_int_or_wider!(ty, T, W => map3::<T, T, T, T>(r, at, mask, |a, b, c| {
            (((a as W).wrapping_mul(b as W) >> T::BITS) as T).wrapping_add(c)
        })),
        ITri::MadHiSat => map3::<i32, i32, i32, i32>(r, at, mask, |a, b, c| {
            (((a as i64 * b as i64) >> 32) as i32).saturating_add(c)
        }),
        ITri::MadWide => match ty {
            IntTy::U16 => {
                map3::<u16, u16, u32, u32>(r, at, mask, |a, b, c| (a as u32 * b as u32).wrapping_add(c))
            }
            IntTy::S16 => {
                map3::<i16, i16, i32, i32>(r, at, mask, |a, b, c| (a as i32 * b as i32).wrapping_add(c))
            }
            IntTy::S32 => {
                map3::<i32, i32, i64, i64>(r, at, mask, |a, b, c| (a as i64 * b as i64).wrapping_add(c))
            }
            _ => map3::<u32, u32, u64, u64>(r, at, mask, |a, b, c| (a as u64 * b as u64).wrapping_add(c)),
        },
        ITri::Mad24 => {
            map3::<u32, u32, u32, u32>(r, at, mask, |a, b, c| mul24(a, b, ty, false).wrapping_add(c))
        }
        ITri::Mad24Hi => {
            map3::<u32, u32, u32, u32>(r, at, mask, |a, b, c| mul24(a, b, ty, true).wrapping_add(c))
        }
        ITri::Sad => by_int!(ty, T => map3::<T, T, T, T>(r, at, mask, |a, b, c| {
            c.wrapping_add(if a < b { b.wrapping_sub(a) } else { a.wrapping_sub(b) })
        })),
        ITri::Bfe => match ty {
            IntTy::U64 | IntTy::S64 => {
                map3::<u64, u32, u32, u64>(r, at, mask, |a, pos, len| bfe(a, 64, pos, len, ty == IntTy::S64))
            }
            _ => map3::<u32, u32, u32, u32>(r, at, mask, |a, pos, len| {
                bfe(a as u64, 32, pos, len, ty == IntTy::S32) as u32
            }),
        },
    }
}

/// Bits pos.. of length len; beyond the top the sign bit (signed) or zero. pos and len count modulo 256.
fn bfe(a: u64, bits: u32, pos: u32, len: u32, signed: bool) -> u64 {
    let (pos, len) = (pos & 255, len & 255);
    let top = bits - 1;
    let sign = if !signed || len == 0 { 0 } else { a >> (pos + len - 1).min(top) & 1 };
    let field = if pos < bits { a >> pos } else { 0 };
    let present = len.min(bits.saturating_sub(pos));
    if present >= 64 {
        return field;
    }
    let low = (1u64 << present) - 1;
    (field & low) | if sign != 0 { !low } else { 0 }
}

#[inline(always)]
fn bfi(r: &mut Regs, i: &Inst, wide: bool, mask: u32) {
    let (pos, len) = (u32::load(r, i.c), u32::load(r, i.e));
    let insert = |a: u64, b: u64, pos: u32, len: u32, bits: u32| {
        let (pos, len) = (pos & 255, len & 255);
        if pos >= bits || len == 0 {
            return b;
        }
        let len = len.min(bits - pos);
        let field = if len >= 64 { u64::MAX } else { (1u64 << len) - 1 } << pos;
        (b & !field) | (a << pos & field)
    };
    let (a, b) = (load_wide(r, i.a, wide), load_wide(r, i.b, wide));
    let bits = if wide { 64 } else { 32 };
    let out = std::array::from_fn(|l| insert(a[l], b[l], pos[l], len[l], bits));
    store_wide(r, i.d, wide, &out, mask);
}

#[inline(always)]
fn int_unary(r: &mut Regs, i: &Inst, op: IUn, ty: IntTy, mask: u32) {
    let (d, a) = (i.d, i.a);
    match op {
        IUn::Neg => by_int!(ty, T => map1::<T, T>(r, d, a, mask, |a| (0 as T).wrapping_sub(a))),
        IUn::Abs => match ty {
            IntTy::S16 => map1::<i16, i16>(r, d, a, mask, i16::wrapping_abs),
            IntTy::S32 => map1::<i32, i32>(r, d, a, mask, i32::wrapping_abs),
            IntTy::S64 => map1::<i64, i64>(r, d, a, mask, i64::wrapping_abs),
            _ => by_int!(ty, T => map1::<T, T>(r, d, a, mask, |a| a)),
        },
        IUn::Not => by_int!(ty, T => map1::<T, T>(r, d, a, mask, |a| !a)),
        IUn::CNot => by_int!(ty, T => map1::<T, T>(r, d, a, mask, |a| (a == 0) as T)),
        IUn::Brev if ty.wide() => map1::<u64, u64>(r, d, a, mask, u64::reverse_bits),
        IUn::Brev => map1::<u32, u32>(r, d, a, mask, u32::reverse_bits),
        IUn::Clz if ty.wide() => map1::<u64, u32>(r, d, a, mask, u64::leading_zeros),
        IUn::Clz => map1::<u32, u32>(r, d, a, mask, u32::leading_zeros),
        IUn::Popc if ty.wide() => map1::<u64, u32>(r, d, a, mask, u64::count_ones),
        IUn::Popc => map1::<u32, u32>(r, d, a, mask, u32::count_ones),
        IUn::Bfind | IUn::BfindShift => {
            let shift = op == IUn::BfindShift;
            let find = |x: u64, bits: u32| match 63u32.wrapping_sub(x.leading_zeros()) {
                u32::MAX => u32::MAX,
                n if shift => bits - 1 - n,
                n => n,
            };
            match ty {
                IntTy::S64 => map1::<i64, u32>(r, d, a, mask, |x| find((x ^ (x >> 63)) as u64, 64)),
                IntTy::U64 => map1::<u64, u32>(r, d, a, mask, |x| find(x, 64)),
                IntTy::S32 => map1::<i32, u32>(r, d, a, mask, |x| find((x ^ (x >> 31)) as u32 as u64, 32)),
                _ => map1::<u32, u32>(r, d, a, mask, |x| find(x as u64, 32)),
            }
        }
    }
}

#[inline(always)]
fn carry(r: &mut Regs, i: &Inst, op: Carry, ty: IntTy, carry_in: bool, carry_out: bool, mask: u32) {
    let wide = ty.wide();
    let bits = if wide { 64 } else { 32 };
    let (a, b) = (load_wide(r, i.a, wide), load_wide(r, i.b, wide));
    let c = if matches!(op, Carry::MadLo | Carry::MadHi) { load_wide(r, i.c, wide) } else { [0; LANES] };
    let mut out = [0u64; LANES];
    let mut flags = 0u32;
    let low = if wide { u64::MAX as u128 } else { u32::MAX as u128 };
    for l in 0..LANES {
        let cin = (carry_in && r.carry >> l & 1 != 0) as u128;
        let (x, y) = (a[l] as u128, b[l] as u128);
        let product = match ty {
            IntTy::S64 => (a[l] as i64 as i128).wrapping_mul(b[l] as i64 as i128) as u128,
            IntTy::S32 => (a[l] as i32 as i128).wrapping_mul(b[l] as i32 as i128) as u128,
            _ => x.wrapping_mul(y),
        };
        // The borrow of a subtraction is kept as the flag.
        let v = match op {
            Carry::Add => x + y + cin,
            Carry::Sub => x.wrapping_sub(y).wrapping_sub(cin),
            Carry::MadLo => (product & low) + c[l] as u128 + cin,
            Carry::MadHi => (product >> bits & low) + c[l] as u128 + cin,
        };
        out[l] = (v & low) as u64;
        flags |= ((v >> bits & 1) as u32) << l;
    }
    if carry_out {
        r.carry = (r.carry & !mask) | (flags & mask);
    }
    store_wide(r, i.d, wide, &out, mask);
}

#[inline(always)]
fn dp4a(a: u32, b: u32, c: u32, sa: bool, sb: bool) -> u32 {
    let mut sum = c;
    for n in 0..4 {
        let (x, y) = (a >> (8 * n), b >> (8 * n));
        let x = if sa { x as i8 as i32 } else { x as u8 as i32 };
        let y = if sb { y as i8 as i32 } else { y as u8 as i32 };
        sum = sum.wrapping_add((x * y) as u32);
    }
    sum
}

fn prmt(mode: u8, a: u32, b: u32, c: u32) -> u32 {
    let bytes = ((b as u64) << 32 | a as u64).to_le_bytes();
    let n = (c & 3) as usize;
    let pick = |s: [usize; 4]| u32::from_le_bytes(s.map(|i| bytes[i & 7]));
    match mode {
        0 => u32::from_le_bytes(std::array::from_fn(|k| {
            let s = c >> (4 * k);
            let v = bytes[(s & 7) as usize];
            if s & 8 != 0 { (v as i8 >> 7) as u8 } else { v }
        })),
        // f4e, b4e, rc8, ecl, ecr, rc16
        1 => pick([n, n + 1, n + 2, n + 3]),
        2 => pick([n, n + 7, n + 6, n + 5]),
        3 => pick([n; 4]),
        4 => pick([n, n.max(1), n.max(2), 3]),
        5 => pick([0, n.min(1), n.min(2), n]),
        _ => {
            let h = 2 * (n & 1);
            pick([h, h + 1, h, h + 1])
        }
    }
}

#[inline(always)]
fn pack(r: &mut Regs, lists: &[u32], i: &Inst, wide: bool, part_bits: u8, mask: u32) {
    let mut out = [0u64; LANES];
    for (n, &row) in lists[i.b as usize..][..i.imm as usize].iter().enumerate() {
        let part = u32::load(r, row);
        let low = if part_bits == 16 { 0xffff } else { u32::MAX };
        for l in 0..LANES {
            out[l] |= ((part[l] & low) as u64) << (n as u32 * part_bits as u32);
        }
    }
    store_wide(r, i.d, wide, &out, mask);
}

#[inline(always)]
fn unpack(r: &mut Regs, lists: &[u32], i: &Inst, wide: bool, part_bits: u8, mask: u32) {
    let whole = load_wide(r, i.a, wide);
    let low = if part_bits == 16 { 0xffff } else { u32::MAX as u64 };
    for (n, &row) in lists[i.b as usize..][..i.imm as usize].iter().enumerate() {
        let part = std::array::from_fn(|l| (whole[l] >> (n as u32 * part_bits as u32) & low) as u32);
        u32::store(r, row, &part, mask);
    }
}

/// Compares the lower and the upper halves of two registers as f16.
fn compare_halves(r: &Regs, i: &Inst, cmp: Cmp, logic: Option<Logic>, ftz: bool) -> [u32; 2] {
    [false, true].map(|upper| {
        let t = compare_half(r, i, cmp, ftz, upper);
        logic.map_or(t, |l| combine(l, t, r.pred(i.c)))
    })
}

/// Compares the lower or the upper halves of two registers as f16.
#[allow(clippy::neg_cmp_op_on_partial_ord, clippy::eq_op, clippy::double_comparisons)] // the unordered comparisons are about NaN
fn compare_half(r: &Regs, i: &Inst, cmp: Cmp, ftz: bool, upper: bool) -> u32 {
    let value = |word: u32| flush16((word >> if upper { 16 } else { 0 }) as u16, ftz).to_f32();
    float_test!(r, i, cmp, |r: &Regs, row| u32::load(r, row).map(value))
}

#[inline(always)]
#[allow(clippy::neg_cmp_op_on_partial_ord, clippy::eq_op, clippy::double_comparisons)] // the unordered comparisons are about NaN
fn compare(r: &Regs, i: &Inst, cmp: Cmp, ty: Num, ftz: bool) -> u32 {
    let ty = match ty {
        Num::F32 if ftz => {
            return float_test!(r, i, cmp, |r: &Regs, row| f32::load(r, row).map(flush));
        }
        Num::F32 => return float_test!(r, i, cmp, f32::load),
        Num::F64 => return float_test!(r, i, cmp, f64::load),
        Num::F16 => return compare_half(r, i, cmp, ftz, false),
        Num::U16 | Num::U8 => IntTy::U16,
        Num::S16 | Num::S8 => IntTy::S16,
        Num::U32 => IntTy::U32,
        Num::S32 => IntTy::S32,
        Num::U64 => IntTy::U64,
        Num::S64 => IntTy::S64,
    };
    by_int!(ty, T => match cmp {
        Cmp::Eq => test2::<T>(r, i.a, i.b, |a, b| a == b),
        Cmp::Ne => test2::<T>(r, i.a, i.b, |a, b| a != b),
        Cmp::Lt => test2::<T>(r, i.a, i.b, |a, b| a < b),
        Cmp::Le => test2::<T>(r, i.a, i.b, |a, b| a <= b),
        Cmp::Gt => test2::<T>(r, i.a, i.b, |a, b| a > b),
        _ => test2::<T>(r, i.a, i.b, |a, b| a >= b),
    })
}
