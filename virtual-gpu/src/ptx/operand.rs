//! Names and operands of one function body: scopes, register rows, constants, addresses.

use std::collections::HashMap;

use super::PtxError;
use super::inst::{Function, Init, NEG, NONE, Prototype, Row, Special};
use crate::arch::Arch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    Pred,
    B16,
    B32,
    B64,
}

impl Width {
    pub fn bits(self) -> u32 {
        match self {
            Width::Pred => 1,
            Width::B16 => 16,
            Width::B32 => 32,
            Width::B64 => 64,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Imm {
    Int(u64),
    F32(u32),
    F64(u64),
}

impl Imm {
    /// The constant's bits for an operand of `bits`; `float` says that a float is wanted.
    pub fn bits(self, bits: u32, float: bool) -> Option<u64> {
        let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        match (self, float, bits) {
            (Imm::Int(v), false, _) => Some(v & mask),
            (Imm::Int(v), true, 32) => Some((v as i64 as f32).to_bits() as u64),
            (Imm::Int(v), true, 64) => Some((v as i64 as f64).to_bits()),
            (Imm::F32(v), _, 32) => Some(v as u64),
            (Imm::F32(v), true, 64) => Some((f32::from_bits(v) as f64).to_bits()),
            (Imm::F64(v), _, 64) => Some(v),
            (Imm::F64(v), true, 32) => Some((f64::from_bits(v) as f32).to_bits() as u64),
            _ => None,
        }
    }
}

/// An operand as written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Arg<'a> {
    Word(&'a str),
    /// `!p`
    Not(&'a str),
    /// `-r`, of `vmad`
    Negated(&'a str),
    Imm(Imm),
    /// `sym + 4`
    Offset(&'a str, i64),
    Vector(Vec<Arg<'a>>),
    /// `[base + offset]`
    Address(Option<&'a str>, i64),
    /// `[object, {x, y}]`
    Object(&'a str, Vec<Arg<'a>>),
    /// `p|q`
    Pair(&'a str, &'a str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Reg(Row, Width),
    /// Module variable (global or const).
    Global(u32),
    Shared(u32),
    /// Variable in local memory, `.param` variables of functions included: its offset.
    Local(u32),
    /// Kernel parameter: its offset.
    KernelParam(u32),
    Function(u32),
}

#[derive(Default)]
pub(super) struct Scope<'a> {
    pub names: HashMap<&'a str, Name>,
    /// `.reg .b32 %r<100>`: (prefix, first row, count, width)
    pub ranges: Vec<(&'a str, Row, u32, Width)>,
    pub labels: HashMap<&'a str, u32>,
    pub prototypes: HashMap<&'a str, Prototype>,
    /// Branches whose labels are resolved when the scope ends: (instruction, label, line).
    pub pending: Vec<(usize, &'a str, u32)>,
    pub tables: HashMap<&'a str, Vec<&'a str>>,
    /// `brx.idx` by table, resolved with the scope: (instruction, table, line).
    pub pending_tables: Vec<(usize, &'a str, u32)>,
}

/// What a file says that it is for.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub arch: Arch,
    /// The ISA's version.
    pub version: (u32, u32),
}

/// A function body being decoded.
pub(super) struct Body<'a, 'm> {
    pub f: Function,
    pub scopes: Vec<Scope<'a>>,
    pub module_names: &'m HashMap<&'a str, Name>,
    pub entry: bool,
    pub target: Target,
    interned: HashMap<(bool, Init), Row>,
    pub line: u32,
}

impl<'a, 'm> Body<'a, 'm> {
    pub fn new(f: Function, module_names: &'m HashMap<&'a str, Name>, entry: bool, target: Target) -> Self {
        let (scopes, interned) = (vec![Scope::default()], HashMap::new());
        Self { f, scopes, module_names, entry, target, interned, line: 0 }
    }

    pub fn err<T>(&self, reason: impl Into<String>) -> Result<T, PtxError> {
        Err(PtxError::new(self.line, reason))
    }

    pub fn scope(&mut self) -> &mut Scope<'a> {
        self.scopes.last_mut().expect("a body has at least one scope")
    }

    pub fn new_row(&mut self, width: Width) -> Row {
        let n = match width {
            Width::Pred => &mut self.f.preds,
            Width::B16 | Width::B32 => &mut self.f.rows32,
            Width::B64 => &mut self.f.rows64,
        };
        *n += 1;
        *n - 1
    }

    pub fn declare(&mut self, name: &'a str, n: Name) -> Result<(), PtxError> {
        if self.scope().names.insert(name, n).is_some() {
            return self.err(format!("`{name}` is declared twice"));
        }
        Ok(())
    }

    pub fn declare_regs(&mut self, prefix: &'a str, count: u32, width: Width) -> Result<(), PtxError> {
        let n = match width {
            Width::Pred => &mut self.f.preds,
            Width::B16 | Width::B32 => &mut self.f.rows32,
            Width::B64 => &mut self.f.rows64,
        };
        let first = *n;
        match n.checked_add(count).filter(|&n| n < 1 << 20) {
            Some(total) => *n = total,
            None => return self.err("more than 2^20 registers"),
        }
        self.scope().ranges.push((prefix, first, count, width));
        Ok(())
    }

    pub fn alloc_local(&mut self, bytes: u64, align: u64) -> Result<u32, PtxError> {
        let at = (self.f.local_bytes as u64).next_multiple_of(align.max(1));
        match u32::try_from(at + bytes) {
            Ok(end) if end <= 512 << 10 => {
                self.f.local_bytes = end;
                Ok(at as u32)
            }
            _ => self.err("more than 512 KB of local memory per thread"),
        }
    }

    pub fn lookup(&self, name: &str) -> Option<Name> {
        for s in self.scopes.iter().rev() {
            if let Some(&n) = s.names.get(name) {
                return Some(n);
            }
            for &(prefix, first, count, width) in &s.ranges {
                if let Some(digits) = name.strip_prefix(prefix)
                    && (digits == "0" || !digits.starts_with('0'))
                    && let Ok(i) = digits.parse::<u32>()
                    && i < count
                {
                    return Some(Name::Reg(first + i, width));
                }
            }
        }
        self.module_names.get(name).copied()
    }

    pub fn intern(&mut self, wide: bool, init: Init) -> Row {
        if let Some(&row) = self.interned.get(&(wide, init)) {
            return row;
        }
        let row = self.new_row(if wide { Width::B64 } else { Width::B32 });
        self.f.inits.push((row, wide, init));
        self.interned.insert((wide, init), row);
        row
    }

    pub fn constant(&mut self, bits: u32, value: u64) -> Row {
        self.intern(bits == 64, Init::Bits(value))
    }

    fn address_of(&mut self, name: &str, addend: i64, bits: u32) -> Result<Option<Row>, PtxError> {
        let init = match self.lookup(name) {
            Some(Name::Global(v)) => Init::Global(v, addend),
            Some(Name::Shared(v)) => Init::Shared(v, addend),
            Some(Name::Local(at)) => Init::Local(at as i64 + addend),
            // its offset: an address for ld.param alone
            Some(Name::KernelParam(at)) => Init::Bits((at as i64 + addend) as u64),
            Some(Name::Function(_)) if addend != 0 => {
                return self.err(format!("`{name}` is a function: an address inside of it is not supported"));
            }
            Some(Name::Function(id)) => Init::Function(id),
            _ => return Ok(None),
        };
        if bits == 32 && matches!(init, Init::Global(..) | Init::Function(_)) {
            return self.err(format!("the address of `{name}` has 64 bits"));
        }
        Ok(Some(self.intern(bits == 64, init)))
    }

    /// Row of a source operand of exactly `bits` (16, 32, 64).
    pub fn src(&mut self, arg: &Arg<'a>, bits: u32, float: bool) -> Result<Row, PtxError> {
        match *arg {
            Arg::Word(w) => match self.lookup(w) {
                Some(Name::Reg(row, width)) if width.bits() == bits => Ok(row),
                Some(Name::Reg(_, width)) => self
                    .err(format!("register `{w}` has {} bits, the instruction takes {bits}", width.bits())),
                Some(_) => match self.address_of(w, 0, bits)? {
                    Some(row) => Ok(row),
                    None => self.err(format!("`{w}` is not a value")),
                },
                None if w == "WARP_SZ" => Ok(self.constant(bits, 32)),
                None => match special(w) {
                    Some(s) => Ok(self.intern(bits == 64, Init::Special(s))),
                    None => self.err(format!("`{w}` is not declared")),
                },
            },
            Arg::Offset(w, n) => match self.address_of(w, n, bits)? {
                Some(row) => Ok(row),
                None => self.err(format!("`{w}` has no address")),
            },
            Arg::Imm(imm) => match imm.bits(bits, float) {
                Some(v) => Ok(self.constant(bits, v)),
                None => self.err("the constant does not have the instruction's type"),
            },
            _ => self.err("a register or constant is expected here"),
        }
    }

    /// Row of a source register of at least `bits`, and whether it is in the 64-bit file.
    /// Loads, stores and conversions may name wider registers than their type.
    pub fn src_any(&mut self, arg: &Arg<'a>, bits: u32, float: bool) -> Result<(Row, bool), PtxError> {
        if let Arg::Word(w) = *arg
            && let Some(Name::Reg(row, width)) = self.lookup(w)
            && width != Width::Pred
        {
            if width.bits() < bits {
                return self.err(format!("register `{w}` is narrower than the instruction's type"));
            }
            return Ok((row, width == Width::B64));
        }
        let bits = if bits == 8 { 32 } else { bits };
        Ok((self.src(arg, bits, float)?, bits == 64))
    }

    pub fn dst(&mut self, arg: &Arg<'a>, bits: u32) -> Result<Row, PtxError> {
        match *arg {
            Arg::Word("_") => Ok(self.new_row(if bits == 64 { Width::B64 } else { Width::B32 })),
            Arg::Word(w) => match self.lookup(w) {
                Some(Name::Reg(row, width)) if width.bits() == bits => Ok(row),
                Some(Name::Reg(_, width)) => self
                    .err(format!("register `{w}` has {} bits, the instruction writes {bits}", width.bits())),
                _ => self.err(format!("`{w}` is not a register")),
            },
            _ => self.err("a destination register is expected here"),
        }
    }

    pub fn dst_any(&mut self, arg: &Arg<'a>, bits: u32) -> Result<(Row, bool), PtxError> {
        match *arg {
            Arg::Word("_") => {
                Ok((self.new_row(if bits == 64 { Width::B64 } else { Width::B32 }), bits == 64))
            }
            Arg::Word(w) => match self.lookup(w) {
                Some(Name::Reg(row, width)) if width != Width::Pred && width.bits() >= bits => {
                    Ok((row, width == Width::B64))
                }
                Some(Name::Reg(..)) => {
                    self.err(format!("register `{w}` is narrower than the instruction's type"))
                }
                _ => self.err(format!("`{w}` is not a register")),
            },
            _ => self.err("a destination register is expected here"),
        }
    }

    /// A predicate operand, possibly negated or constant.
    pub fn pred(&mut self, arg: &Arg<'a>) -> Result<Row, PtxError> {
        let (name, neg) = match *arg {
            Arg::Word(w) => (w, 0),
            Arg::Not(w) => (w, NEG),
            // Predicate row 0 is constantly false.
            Arg::Imm(Imm::Int(v)) => return Ok(if v != 0 { NEG } else { 0 }),
            _ => return self.err("a predicate is expected here"),
        };
        match self.lookup(name) {
            Some(Name::Reg(row, Width::Pred)) => Ok(row | neg),
            _ => self.err(format!("`{name}` is not a predicate")),
        }
    }

    pub fn pred_dst(&mut self, arg: &Arg<'a>) -> Result<Row, PtxError> {
        match *arg {
            Arg::Word("_") => Ok(self.new_row(Width::Pred)),
            Arg::Word(w) => match self.lookup(w) {
                Some(Name::Reg(row, Width::Pred)) => Ok(row),
                _ => self.err(format!("`{w}` is not a predicate")),
            },
            _ => self.err("a predicate is expected here"),
        }
    }

    /// Base row (or [`NONE`] for a kernel parameter), whether it is 64-bit, and the offset.
    pub fn address(&mut self, arg: &Arg<'a>) -> Result<(Row, bool, i64, Option<Name>), PtxError> {
        let Arg::Address(base, offset) = *arg else {
            return self.err("an address in brackets is expected here");
        };
        let Some(base) = base else {
            return Ok((self.constant(64, offset as u64), true, 0, None));
        };
        match self.lookup(base) {
            Some(Name::Reg(row, Width::B64)) => Ok((row, true, offset, None)),
            Some(Name::Reg(row, Width::B32)) => Ok((row, false, offset, None)),
            Some(Name::Reg(..)) => self.err(format!("`{base}` cannot hold an address")),
            Some(Name::KernelParam(at)) => Ok((NONE, true, at as i64 + offset, Some(Name::KernelParam(at)))),
            name @ Some(Name::Global(_) | Name::Shared(_) | Name::Local(_)) => {
                match self.address_of(base, offset, 64)? {
                    Some(row) => Ok((row, true, 0, name)),
                    None => self.err(format!("`{base}` has no address")),
                }
            }
            _ => self.err(format!("`{base}` is not declared")),
        }
    }
}

/// Special registers whose value does not change while a warp runs.
fn special(w: &str) -> Option<Special> {
    let axis = |s: &str| match s {
        "x" => Some(0),
        "y" => Some(1),
        "z" => Some(2),
        _ => None,
    };
    if let Some((base, comp)) = w.split_once('.') {
        let i = axis(comp);
        return match (base, i) {
            ("%tid", Some(i)) => Some(Special::Tid(i)),
            ("%ntid", Some(i)) => Some(Special::Ntid(i)),
            ("%ctaid", Some(i)) => Some(Special::Ctaid(i)),
            ("%nctaid", Some(i)) => Some(Special::Nctaid(i)),
            ("%tid" | "%ntid" | "%ctaid" | "%nctaid", None) if comp == "w" => Some(Special::Zero),
            _ => None,
        };
    }
    Some(match w {
        "%laneid" => Special::Laneid,
        "%warpid" => Special::Warpid,
        "%nwarpid" => Special::Nwarpid,
        "%smid" => Special::Smid,
        "%nsmid" => Special::Nsmid,
        "%gridid" => Special::Gridid,
        "%lanemask_eq" => Special::LanemaskEq,
        "%lanemask_le" => Special::LanemaskLe,
        "%lanemask_lt" => Special::LanemaskLt,
        "%lanemask_ge" => Special::LanemaskGe,
        "%lanemask_gt" => Special::LanemaskGt,
        "%dynamic_smem_size" => Special::DynamicSmem,
        "%total_smem_size" => Special::TotalSmem,
        "%envreg1" => Special::Workspace(0),
        "%envreg2" => Special::Workspace(1),
        _ if w.strip_prefix("%envreg").and_then(|n| n.parse().ok()).is_some_and(|n: u8| n < 32) => {
            Special::Zero
        }
        _ => return None,
    })
}
