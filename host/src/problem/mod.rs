//! The ops' problems as sizes, strides and options. `ops` creates them from checked calls, `cpu` and `gpu` solve them. `ops`
//! re-exports those that users name.

pub(crate) mod activate;
pub(crate) mod attention;
pub(crate) mod chosen_attention;
pub(crate) mod copy;
pub(crate) mod elementwise;
pub(crate) mod experts;
pub(crate) mod matmul;
pub(crate) mod pieces;
pub(crate) mod reduce;
pub(crate) mod rope_append;
pub(crate) mod transpose;

#[cfg(feature = "training")]
#[path = "."]
mod training {
    use super::*;
    pub(crate) mod adamw8bit;
    pub(crate) mod attention_backward;
    pub(crate) mod optimizer;
}
#[cfg(feature = "training")]
pub(crate) use training::*;
