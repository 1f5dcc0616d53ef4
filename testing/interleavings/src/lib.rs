//! Tests only: see `tests/all`.
