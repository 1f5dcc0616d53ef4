//! The decoded form: one fixed-size [`Inst`] per PTX instruction, registers and constants alike numbered as
//! rows of the warp's register files, so that the executor never looks at a name or an operand kind.

/// Row of the 32-bit (also 16-bit), 64-bit or predicate file, by the instruction's type.
pub(crate) type Row = u32;
/// Set in a predicate row: the operand is negated.
pub(crate) const NEG: Row = 1 << 31;
/// No operand.
pub(crate) const NONE: Row = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntTy {
    U16,
    S16,
    U32,
    S32,
    U64,
    S64,
}

impl IntTy {
    pub fn wide(self) -> bool {
        matches!(self, Self::U64 | Self::S64)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FltTy {
    F16,
    F16x2,
    F32,
    F64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    Near,
    Zero,
    Down,
    Up,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FMode {
    pub ty: FltTy,
    pub round: Round,
    pub ftz: bool,
    pub sat: bool,
    /// `.approx`: has an effect only where the ISA gives the approximation other special values.
    pub approx: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IBin {
    Add,
    AddSat,
    Sub,
    SubSat,
    Mul,
    MulHi,
    /// 16 → 32 and 32 → 64 bits.
    MulWide,
    Mul24,
    Mul24Hi,
    Div,
    Rem,
    Min,
    Max,
    And,
    Or,
    Xor,
    Shl,
    Shr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IUn {
    Neg,
    Abs,
    Not,
    CNot,
    Clz,
    Popc,
    Brev,
    Bfind,
    BfindShift,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ITri {
    Mad,
    MadHi,
    MadHiSat,
    MadWide,
    Mad24,
    Mad24Hi,
    Sad,
    Bfe,
}

/// Extended-precision arithmetic over the carry flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carry {
    Add,
    Sub,
    MadLo,
    MadHi,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FBin {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FUn {
    Neg,
    Abs,
    Sqrt,
    Rcp,
    Rsqrt,
    Sin,
    Cos,
    Lg2,
    Ex2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    Num,
    Nan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logic {
    And,
    Or,
    Xor,
}

/// The type that a comparison or conversion reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Num {
    U8,
    S8,
    U16,
    S16,
    U32,
    S32,
    U64,
    S64,
    F16,
    F32,
    F64,
}

impl Num {
    pub fn bits(self) -> u32 {
        match self {
            Self::U8 | Self::S8 => 8,
            Self::U16 | Self::S16 | Self::F16 => 16,
            Self::U32 | Self::S32 | Self::F32 => 32,
            Self::U64 | Self::S64 | Self::F64 => 64,
        }
    }
    pub fn float(self) -> bool {
        matches!(self, Self::F16 | Self::F32 | Self::F64)
    }
    pub fn signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CvtMode {
    pub to: Num,
    pub from: Num,
    /// Rounding to the destination, or to an integral value (`int`).
    pub round: Round,
    pub int: bool,
    pub sat: bool,
    pub ftz: bool,
    /// The registers are 64-bit ones (they may be wider than the types).
    pub to_wide: bool,
    pub from_wide: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    /// Kernel parameters.
    Param,
}

/// A load or store. For `count == 1` the register is `d` (load) or `b` (store), else it is a list index.
/// The address is row `a` (64-bit if `addr_wide`) plus `imm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub space: Space,
    /// Bytes of one element: 1, 2, 4, 8.
    pub size: u8,
    pub count: u8,
    /// Sign-extend into the wider register.
    pub signed: bool,
    /// The data registers are 64-bit ones.
    pub wide: bool,
    pub addr_wide: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atom {
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Add,
    Inc,
    Dec,
    Min,
    Max,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shfl {
    Up,
    Down,
    Bfly,
    Idx,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Uni,
    Ballot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarRed {
    None,
    Popc,
    And,
    Or,
}

/// Special registers that change while a warp runs; the others are constant rows (see [`Init`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    Clock32,
    Clock32Hi,
    Clock64,
    Globaltimer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Scheduling hints and other instructions without an effect here.
    Nop,
    Mov32,
    Mov64,
    /// d = a, b combined by the logic; `mov.pred` is `Or` of a with itself.
    PredLogic(Logic),
    /// d (64 or 32 bits) = list b.. of `count` parts, low first.
    Pack {
        wide: bool,
        part_bits: u8,
    },
    Unpack {
        wide: bool,
        part_bits: u8,
    },
    IBin(IBin, IntTy),
    IUn(IUn, IntTy),
    ITri(ITri, IntTy),
    Carry {
        op: Carry,
        ty: IntTy,
        carry_in: bool,
        carry_out: bool,
    },
    /// d = bfi(a, b, c, e)
    Bfi {
        wide: bool,
    },
    /// Funnel shift.
    Shf {
        left: bool,
        clamp: bool,
    },
    Lop3,
    Prmt(u8),
    /// imm = signedness: bit 0 of a, bit 1 of b.
    Dp4a,
    Dp2a {
        hi: bool,
    },
    Sel32,
    Sel64,
    Slct {
        wide: bool,
        float: bool,
        ftz: bool,
    },
    /// p|q = (a cmp b) combined with c
    Setp {
        cmp: Cmp,
        ty: Num,
        logic: Option<Logic>,
        ftz: bool,
    },
    /// d = all ones or 1.0
    Set {
        cmp: Cmp,
        ty: Num,
        logic: Option<Logic>,
        ftz: bool,
        float_dst: bool,
    },
    FBin(FBin, FMode),
    Fma(FMode),
    FUn(FUn, FMode),
    Testp {
        kind: Testp,
        wide: bool,
    },
    Copysign {
        wide: bool,
    },
    Cvt(CvtMode),
    /// Address between a window and the generic space: d = a ± the window's base.
    Cvta {
        space: Space,
        to: bool,
        wide: bool,
    },
    IsSpace {
        space: Space,
    },
    Ld(Access),
    St(Access),
    /// d = old value (NONE for `red`), b operand, c second operand of `cas`.
    Atom {
        op: Atom,
        ty: Num,
        space: Space,
        addr_wide: bool,
    },
    Shfl {
        mode: Shfl,
        sync: bool,
    },
    Vote {
        mode: Vote,
        sync: bool,
    },
    Activemask,
    WarpSync,
    /// a = barrier number, b = thread count (NONE: all), c = predicate, d = result.
    Bar {
        red: BarRed,
        arrive: bool,
    },
    Fence,
    Clock(Clock),
    /// imm = target
    Bra,
    /// a = index; list b.. of targets
    Brx,
    /// imm = call site
    Call,
    /// A call of `vprintf`; imm = call site
    Print,
    Ret,
    Exit,
    Trap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Testp {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Inst {
    pub op: Op,
    pub class: crate::counters::Class,
    /// Predicate row, [`NEG`] if negated, [`NONE`] if unguarded.
    pub guard: Row,
    pub d: Row,
    /// Second destination, or fourth source.
    pub e: Row,
    pub a: Row,
    pub b: Row,
    pub c: Row,
    pub imm: i64,
    pub line: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    Laneid,
    Warpid,
    Nwarpid,
    Smid,
    Nsmid,
    Gridid,
    LanemaskEq,
    LanemaskLe,
    LanemaskLt,
    LanemaskGe,
    LanemaskGt,
    DynamicSmem,
    TotalSmem,
    Zero,
}

/// The value that a constant row is set to when a function's frame begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Init {
    Bits(u64),
    Special(Special),
    /// Address of a module variable (global or const) plus an addend.
    Global(u32, i64),
    Shared(u32, i64),
    /// Offset in this function's local memory.
    Local(i64),
}

#[derive(Clone, Debug)]
pub(crate) struct CallSite {
    pub callee: u32,
    /// (caller's value, callee's local offset, bytes)
    pub args: Vec<(Value, u32, u32)>,
    /// (callee's local offset, caller's place, bytes)
    pub rets: Vec<(u32, Value, u32)>,
}

/// A call's actual parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    /// `.param` variable: offset in the caller's local memory.
    Local(u32),
    Row32(Row),
    Row64(Row),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Function {
    pub name: String,
    pub code: Vec<Inst>,
    /// Reconvergence point of the branch at each instruction; `u32::MAX` where paths meet only at the end.
    pub reconverge: Vec<u32>,
    pub lists: Vec<u32>,
    pub calls: Vec<CallSite>,
    pub rows32: u32,
    pub rows64: u32,
    pub preds: u32,
    /// (row, 64-bit file, content)
    pub inits: Vec<(Row, bool, Init)>,
    pub local_bytes: u32,
    /// Formal parameters in local memory: (offset, bytes).
    pub formals: Vec<(u32, u32)>,
    pub returns: Vec<(u32, u32)>,
    /// Smallest shared or generic access, in bytes: the granule of the race check.
    pub granule: u8,
    pub defined: bool,
}
