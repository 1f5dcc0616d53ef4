//! Counts of what a launch did.

use std::ops::AddAssign;

macro_rules! classes {
    ($($(#[$doc:meta])* $class:ident $name:literal)*) => {
        /// Instruction classes that an SM's scheduler treats differently.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Class { $($(#[$doc])* $class,)* }

        impl Class {
            pub const COUNT: usize = Self::ALL.len();

            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$class),*];

            /// Short name for tables and JSON.
            pub fn name(self) -> &'static str {
                match self { $(Self::$class => $name,)* }
            }
        }
    };
}

classes! {
    /// `fma.f32`
    Ffma "ffma"
    /// Other f32 arithmetic, comparisons and selections.
    Fp32 "fp32"
    Fp64 "fp64"
    /// Half-precision arithmetic: 1/64 rate on sm_61.
    Fp16 "fp16"
    /// Products of matrices by a warp: `mma`.
    Tensor "tensor"
    /// `dp4a`, `dp2a`
    Dp4a "dp4a"
    /// Video instructions of one word: `vadd`, `vmad` and their like.
    Video "video"
    /// Video instructions of two or four lanes, several others on this chip.
    VideoSimd "video_simd"
    /// Integer additions, logic, shifts, comparisons, moves.
    Int "int"
    /// 16- and 32-bit integer multiplies (XMADs) and 64-bit ones.
    IntMul "int_mul"
    /// Integer division and remainder: a subroutine on this chip.
    IntDiv "int_div"
    /// Reciprocal, square root, exponential, logarithm, sine.
    Special "special"
    /// Correctly rounded f32 division and square root: a subroutine on this chip.
    Fp32Div "fp32_div"
    Convert "convert"
    /// Register moves, which ptxas mostly removes.
    Move "move"
    LoadGlobal "load_global"
    StoreGlobal "store_global"
    LoadShared "load_shared"
    StoreShared "store_shared"
    /// Loads and stores of thread-local memory (spills, arrays).
    Local "local"
    /// Parameter and constant loads.
    Constant "constant"
    AtomicGlobal "atomic_global"
    AtomicShared "atomic_shared"
    Shuffle "shuffle"
    Vote "vote"
    Barrier "barrier"
    Control "control"
    /// No effect on the machine: prefetch hints and the like.
    Other "other"
}

/// Memory traffic of one kind of access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Warp-level requests.
    pub requests: u64,
    /// Distinct 32-byte sectors touched, summed over requests (global), or wavefronts (shared).
    pub units: u64,
    /// Bytes that the threads asked for.
    pub bytes: u64,
}

impl Traffic {
    /// Adds a request of the lanes of `mask`, `bytes` each, that takes this many units.
    pub(crate) fn count(&mut self, units: u32, mask: u32, bytes: u32) {
        let bytes = u64::from(mask.count_ones()) * u64::from(bytes);
        *self += Self { requests: 1, units: units.into(), bytes };
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, o: Self) {
        self.requests += o.requests;
        self.units += o.units;
        self.bytes += o.bytes;
    }
}

/// Counts of one launch, over all its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Warp instructions issued, by [`Class`].
    pub warp_instructions: [u64; Class::COUNT],
    /// Thread instructions executed (predicated-off lanes not counted), by [`Class`].
    pub thread_instructions: [u64; Class::COUNT],
    pub global_loads: Traffic,
    pub global_stores: Traffic,
    pub atomics: Traffic,
    pub shared_loads: Traffic,
    pub shared_stores: Traffic,
    pub local: Traffic,
    /// 32-byte sectors of global memory touched at least once: DRAM's traffic under a perfect cache.
    pub distinct_sectors: u64,
    /// Shared-memory wavefronts beyond the number that the data itself needs.
    pub bank_conflicts: u64,
    pub branches: u64,
    /// Branches on which the lanes of a warp disagreed.
    pub divergent_branches: u64,
    /// Warps arriving at block barriers.
    pub barriers: u64,
}

impl Counters {
    pub fn warp_total(&self) -> u64 {
        self.warp_instructions.iter().sum()
    }

    pub fn thread_total(&self) -> u64 {
        self.thread_instructions.iter().sum()
    }

    /// Warp instructions of a class.
    pub fn warps(&self, class: Class) -> u64 {
        self.warp_instructions[class as usize]
    }

    /// Share of a class in all warp instructions, 0 to 1.
    pub fn share(&self, class: Class) -> f64 {
        self.warps(class) as f64 / self.warp_total().max(1) as f64
    }

    /// Mean 32-byte sectors per global load, store or atomic request; a fully used 4-byte access has 4.
    pub fn sectors_per_request(&self) -> f64 {
        let (a, b, c) = (&self.global_loads, &self.global_stores, &self.atomics);
        (a.units + b.units + c.units) as f64 / (a.requests + b.requests + c.requests).max(1) as f64
    }

    /// Bank-conflict wavefronts per shared access.
    pub fn conflicts_per_access(&self) -> f64 {
        self.bank_conflicts as f64 / (self.shared_loads.requests + self.shared_stores.requests).max(1) as f64
    }

    /// Bytes moved between SMs and the memory system: sectors × 32.
    pub fn global_bytes(&self) -> u64 {
        32 * (self.global_loads.units + self.global_stores.units + self.atomics.units)
    }

    /// Floating-point operations: an FFMA counts two, a dp4a eight.
    pub fn operations(&self) -> u64 {
        let t = |c: Class| self.thread_instructions[c as usize];
        2 * t(Class::Ffma) + t(Class::Fp32) + t(Class::Fp64) + t(Class::Fp16) + 8 * t(Class::Dp4a)
    }

    /// Operations per byte of global traffic.
    pub fn arithmetic_intensity(&self) -> f64 {
        self.operations() as f64 / self.global_bytes().max(1) as f64
    }
}

impl AddAssign<&Counters> for Counters {
    fn add_assign(&mut self, o: &Counters) {
        for i in 0..Class::COUNT {
            self.warp_instructions[i] += o.warp_instructions[i];
            self.thread_instructions[i] += o.thread_instructions[i];
        }
        macro_rules! add {
            ($($field:ident)*) => { $(self.$field += o.$field;)* };
        }
        add!(global_loads global_stores atomics shared_loads shared_stores local distinct_sectors bank_conflicts
            branches divergent_branches barriers);
    }
}
