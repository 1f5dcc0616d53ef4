//! Tests under shuttle's schedulers, which choose the thread that goes on at every lock and atomic access:
//!
//!     cargo test --package pascaline-interleavings --features shuttle

mod pool;
mod team;
