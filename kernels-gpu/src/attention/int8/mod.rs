//! Attention whose queries and keys are multiplied in 8-bit integers, by `dp4a`. Probabilities and values are f32.
//!
//! Each query, and each key less a vector that all keys of the head have subtracted, is rounded to integers with one scale. Subtracting the
//! same vector from all keys changes no softmax, and takes out what keys have in common, which would cost bits.
//! Source: Zhang et al. 2024, "SageAttention: Accurate 8-Bit Attention for Plug-and-play Inference Acceleration", section 3.2 (the mean
//! of the keys) and 3.3 (integers with a scale for each token).
//!
//! | kernel                        | a block handles                       |
//! |-------------------------------|---------------------------------------|
//! | attention_int8_round          | 128 rows of a head of Q or K          |
//! | attention_int8_prefill_d‹D›   | 64 queries of a head, as [`prefill`](super::prefill) does |

pub mod prefill;
pub mod round;
mod rounded;

pub use rounded::{ROWS, words};
