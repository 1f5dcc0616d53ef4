//! Unrolled loops.

/// Repeats a block with `$i` a constant 0, 1, …. Arrays that only constants index stay in registers, and addresses become
/// immediates. A count that is a const parameter is at most 8.
macro_rules! unroll {
    ($i:ident < 2 $body:block) => { unroll!(@ $i $body 0 1) };
    ($i:ident < 4 $body:block) => { unroll!(@ $i $body 0 1 2 3) };
    ($i:ident < 6 $body:block) => { unroll!(@ $i $body 0 1 2 3 4 5) };
    ($i:ident < 8 $body:block) => { unroll!(@ $i $body 0 1 2 3 4 5 6 7) };
    ($i:ident < 16 $body:block) => { unroll!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15) };
    ($i:ident < $count:ident $body:block) => { unroll!($i < 8 { if $i < $count $body }) };
    (@ $i:ident $body:block $($n:literal)*) => { $({ const $i: usize = $n; $body })* };
}
pub(super) use unroll;
