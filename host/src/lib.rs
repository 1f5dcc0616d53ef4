//! Pascaline.
