//! Tests only: see `tests/pool.rs`.
