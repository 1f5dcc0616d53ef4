//! The ops' problems as numbers and options: what `ops` makes of a checked call and `cpu` and `gpu` solve. What users
//! name of them is re-exported by `ops`.

pub(crate) mod activate;
pub(crate) mod attention;
pub(crate) mod copy;
pub(crate) mod elementwise;
pub(crate) mod matmul;
pub(crate) mod reduce;
pub(crate) mod rope_append;
pub(crate) mod transpose;
