//! The decoded form: one fixed-size [`Inst`] per PTX instruction, registers and constants alike numbered as
//! rows of the warp's register files, so that the executor never looks at a name or an operand kind.

use super::words::words;

/// The most bytes of local memory of a thread (compute capability 6.1).
pub(crate) const MAX_LOCAL: u32 = 512 << 10;

/// Row of the 32-bit (also 16-bit), 64-bit or predicate file, by the instruction's type.
pub(crate) type Row = u32;
/// Set in a predicate row: the operand is negated.
pub(crate) const NEG: Row = 1 << 31;
/// No operand.
pub(crate) const NONE: Row = u32::MAX;

words! {
    Round { Near "rn" Zero "rz" Down "rm" Up "rp" }

    /// `mul.wide` and `mad.wide` go from 16 to 32 and from 32 to 64 bits.
    IBin {
        Add "add" AddSat "add.sat" Sub "sub" SubSat "sub.sat" Mul "mul.lo" MulHi "mul.hi" MulWide "mul.wide"
        Mul24 "mul24.lo" Mul24Hi "mul24.hi" Div "div" Rem "rem" Min "min" Max "max" And "and" Or "or" Xor "xor"
        Shl "shl" Shr "shr" BmskClamp "bmsk.clamp" BmskWrap "bmsk.wrap" SzextClamp "szext.clamp" SzextWrap "szext.wrap"
    }
    IUn {
        Neg "neg" Abs "abs" Not "not" CNot "cnot" Clz "clz" Popc "popc" Brev "brev" Bfind "bfind"
        BfindShift "bfind.shiftamt"
    }
    ITri {
        Mad "mad.lo" MadHi "mad.hi" MadHiSat "mad.hi.sat" MadWide "mad.wide" Mad24 "mad24.lo" Mad24Hi "mad24.hi"
        Sad "sad" Bfe "bfe"
    }
    /// Extended-precision arithmetic over the carry flag.
    Carry { Add "add" Sub "sub" MadLo "mad.lo" MadHi "mad.hi" }
    FBin { Add "add" Sub "sub" Mul "mul" Div "div" Min "min" Max "max" }
    FUn {
        Neg "neg" Abs "abs" Sqrt "sqrt" Rcp "rcp" Rsqrt "rsqrt" Sin "sin" Cos "cos" Lg2 "lg2" Ex2 "ex2"
        Tanh "tanh"
    }
    Cmp {
        Eq "eq" Ne "ne" Lt "lt" Le "le" Gt "gt" Ge "ge" Equ "equ" Neu "neu" Ltu "ltu" Leu "leu" Gtu "gtu" Geu "geu"
        Num "num" Nan "nan"
    }
    Logic { And "and" Or "or" Xor "xor" }
    Testp {
        Finite "finite" Infinite "infinite" Number "number" NotANumber "notanumber" Normal "normal"
        Subnormal "subnormal"
    }
    Atom {
        And "and" Or "or" Xor "xor" Exch "exch" Cas "cas" Add "add" Inc "inc" Dec "dec" Min "min" Max "max"
    }
    Shfl { Up "up" Down "down" Bfly "bfly" Idx "idx" }
    Vote { All "all" Any "any" Uni "uni" Ballot "ballot" }
    /// What an access orders (sm_70): what is before or after it in its thread.
    Order { Relaxed "relaxed" Acquire "acquire" Release "release" Both "acq_rel" }
    BarRed { None "" Popc "popc" And "and" Or "or" }
    /// Special registers that change while a warp runs; the others are constant rows (see [`Init`]).
    Clock { Clock32 "%clock" Clock32Hi "%clock_hi" Clock64 "%clock64" Globaltimer "%globaltimer" }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntTy {
    U16,
    S16,
    U32,
    S32,
    U64,
    S64,
}

impl Order {
    pub fn acquires(self) -> bool {
        matches!(self, Self::Acquire | Self::Both)
    }
    pub fn releases(self) -> bool {
        matches!(self, Self::Release | Self::Both)
    }
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
pub(crate) struct FMode {
    pub ty: FltTy,
    pub round: Round,
    pub ftz: bool,
    pub sat: bool,
    /// `.approx`: has an effect only where the ISA gives the approximation other special values.
    pub approx: bool,
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
    /// Of a function's or a call's `.param`.
    pub of_call: bool,
    /// Volatile, or with an order.
    pub strong: bool,
    pub order: Order,
}

impl Access {
    /// The data registers, of which the instruction has one, or the place of several among its function's lists.
    pub fn rows<'f>(self, f: &'f Function, single: &'f Row) -> &'f [Row] {
        match self.count {
            1 => std::slice::from_ref(single),
            n => &f.lists[*single as usize..][..n as usize],
        }
    }
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
    /// imm = [`Selectors`](super::video::Selectors)
    Video(super::video::Video),
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
    /// d = `one`, which is all ones or 1.0, or 0
    Set {
        cmp: Cmp,
        ty: Num,
        logic: Option<Logic>,
        ftz: bool,
        one: u32,
    },
    /// p = compare of the lower halves, q of the upper ones; both f16
    SetpHalves {
        cmp: Cmp,
        logic: Option<Logic>,
        ftz: bool,
    },
    /// The same packed into the halves of a register
    SetHalves {
        cmp: Cmp,
        logic: Option<Logic>,
        ftz: bool,
        one: u16,
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
    /// `tex` and `tld4`
    Fetch(super::texture::Fetch),
    SurfaceLoad(super::texture::SurfaceAccess),
    SurfaceStore(super::texture::SurfaceAccess),
    /// `txq` and `suq`: d = an attribute of the object in row a
    Query {
        query: super::texture::Query,
        surface: bool,
    },
    /// d = old value (NONE for `red`), b operand, c second operand of `cas`.
    Atom {
        op: Atom,
        ty: Num,
        space: Space,
        addr_wide: bool,
        order: Order,
    },
    Shfl {
        mode: Shfl,
        sync: bool,
    },
    Vote {
        mode: Vote,
        sync: bool,
    },
    /// imm = the row of the lanes named; e = whether all are equal, NONE for `match.any`
    Match {
        wide: bool,
    },
    /// d, a, b, c are lists
    Mma(super::matrix::Mma),
    LoadMatrix(super::matrix::LoadMatrix),
    Activemask,
    /// `nanosleep`: others run
    Sleep,
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
    /// As `Call`, of a function that may be running already
    CallAgain,
    /// a = the function's address, imm = call site
    CallPointer,
    /// A call of `vprintf`; imm = call site
    Print,
    /// A call of `__assertfail`; imm = call site
    AssertFail,
    Ret,
    Exit,
    Trap,
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

impl Inst {
    /// Without operands.
    pub fn new(op: Op, class: crate::counters::Class, guard: Row, line: u32) -> Self {
        Self { op, class, guard, d: NONE, e: NONE, a: NONE, b: NONE, c: NONE, imm: 0, line }
    }
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
    /// The lower or the upper half of the address at which the blocks of a cooperative launch wait.
    Workspace(u8),
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
    /// Address of a function.
    Function(u32),
}

/// Parameters and results of a function, each in its local memory: (offset, bytes).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Signature {
    pub formals: Vec<(u32, u32)>,
    pub returns: Vec<(u32, u32)>,
}

/// How a pointer is called: `.callprototype`, or `.calltargets` with the functions that it may point to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prototype {
    pub signature: Signature,
    pub targets: Vec<u32>,
}

#[derive(Clone, Debug)]
pub(crate) struct CallSite {
    /// `None`: what a pointer points to, which has the bytes that `args` and `rets` say.
    pub callee: Option<u32>,
    /// (caller's value, callee's local offset, bytes)
    pub args: Vec<(Value, u32, u32)>,
    /// (callee's local offset, caller's place, bytes)
    pub rets: Vec<(u32, Value, u32)>,
    /// The functions that a call by pointer is limited to; empty if it is not.
    pub targets: Vec<u32>,
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
    pub signature: Signature,
    /// Whether it may be called by pointer.
    pub address_taken: bool,
    /// Whether it is called while it runs.
    pub called_again: bool,
    /// Local memory of a call by pointer or of one that closes a circle: its own and that of the functions that it calls by name.
    pub stack_bytes: u32,
    /// The most 32-bit registers live at once, once it is asked for.
    pub live: std::sync::OnceLock<u32>,
    /// The registers that only carry bytes, once they are asked for: see `carriers`.
    pub carriers: std::sync::OnceLock<Box<[bool]>>,
    /// Smallest shared or generic access, in bytes: the granule of the race check.
    pub granule: u8,
    /// Smallest store to global memory or through a generic address, in bytes: the granule of the race check there.
    pub store_granule: u8,
    pub defined: bool,
}
