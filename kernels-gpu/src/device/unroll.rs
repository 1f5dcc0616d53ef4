//! Loops whose counter is a constant in every iteration, so that arrays indexed by it are in registers and offsets are
//! immediates. LLVM unrolls only up to a size limit, and an array in a loop that it does not unroll is in local memory.

/// `unroll!(I < 8 => statement)`: the statement for I = 0 to 7; for 2, 4, 6, 8, 16 and 32, and for a const parameter of at most 8.
macro_rules! unroll {
    ($i:ident < 2 => $body:expr) => { unroll!(@ $i $body; 0 1) };
    ($i:ident < 4 => $body:expr) => { unroll!(@ $i $body; 0 1 2 3) };
    ($i:ident < 6 => $body:expr) => { unroll!(@ $i $body; 0 1 2 3 4 5) };
    ($i:ident < 8 => $body:expr) => { unroll!(@ $i $body; 0 1 2 3 4 5 6 7) };
    ($i:ident < 16 => $body:expr) => { unroll!(@ $i $body; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15) };
    ($i:ident < 32 => $body:expr) => {
        unroll!(@ $i $body; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
    };
    ($i:ident < $count:ident => $body:expr) => { unroll!($i < 8 => if $i < $count { $body }) };
    (@ $i:ident $body:expr; $($value:literal)*) => {
        {$({
            const $i: usize = $value;
            $body
        })*}
    };
}
pub(crate) use unroll;
