//! Element by element.

/// z = f(x, y)
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Binary {
    Add,
    Mul,
    SiluMul,
}

/// y = f(x)
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unary {
    Scale(f32),
    GeluTanh,
    GeluErf,
}
