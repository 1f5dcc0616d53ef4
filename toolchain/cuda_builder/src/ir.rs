//! LLVM's intermediate code, which rustc leaves beside the PTX: there stands what the PTX must do and may not show.

use std::collections::BTreeMap;

/// Remainders of floats in a function, without those by ±1, ±2, ±4, …, which LLVM computes exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remainders {
    /// Of f32.
    pub f32: usize,
    /// Of f64.
    pub f64: usize,
}

/// What the PTX is compared with.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// By function.
    pub remainders: BTreeMap<String, Remainders>,
    /// Functions, and an operation in each whose ordering the architecture does not have.
    pub orderings: Vec<(String, String)>,
}

/// Reads the text of a module.
pub fn facts(text: &str) -> Facts {
    let (mut facts, mut function) = (Facts::default(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("define ") {
            let name = rest.split_once('@').map_or("", |(_, rest)| rest.split('(').next().unwrap_or(rest));
            name.trim_matches('"').clone_into(&mut function);
            continue;
        }
        let operation = line.trim_start();
        let operation = operation.split_once(" = ").map_or(operation, |(_, operation)| operation);
        let operation = operation.split(", !dbg").next().unwrap_or(operation);
        if let Some(operands) = operation.strip_prefix("frem ") {
            let found = facts.remainders.entry(function.clone()).or_default();
            let lanes = operands.split_once('<').and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
            if !operands.rsplit([' ', ',']).next().and_then(constant).is_some_and(is_exact_divisor) {
                *if operands.contains("double") { &mut found.f64 } else { &mut found.f32 } +=
                    lanes.unwrap_or(1);
            }
        }
        let is_atomic = ["atomicrmw ", "cmpxchg ", "load atomic ", "store atomic "];
        if is_atomic.iter().any(|word| operation.starts_with(word))
            && [" acquire", " release", " acq_rel", " seq_cst"].iter().any(|order| operation.contains(order))
        {
            let operation = operation.split(", align").next().unwrap_or(operation);
            facts.orderings.push((function.clone(), operation.to_owned()));
        }
    }
    facts
}

/// `4.000000e+00` or, where that is not exact, `0x` and the bits of the f64.
fn constant(text: &str) -> Option<f64> {
    match text.strip_prefix("0x") {
        Some(bits) => u64::from_str_radix(bits, 16).ok().map(f64::from_bits),
        None => text.parse().ok(),
    }
}

/// Whether the quotient by it is exact and does not overflow: a power of two that is not below one.
pub fn is_exact_divisor(value: f64) -> bool {
    value.abs() >= 1.0 && value.is_finite() && value.to_bits() << 12 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toolchain_operations_are_found_in_their_functions() {
        let facts = facts(
            "define ptx_kernel void @one(ptr %0) {\n  %1 = frem nnan double %a, 4.000000e+00\n  \
             %4 = frem double %a, 0x400D99999999999A\n  %5 = frem float %a, 2.500000e-01, !dbg !7\n  %6 = frem float %a, 2.000000e+00, !dbg !8\n  %2 = frem <2 x float> %b, %c\n}\ndefine void @\"two\"() {\n  \
             %3 = atomicrmw add ptr %x, i32 1 monotonic, align 4\n  store atomic i32 3, ptr %x release, align 4\n}\n",
        );
        let one = Remainders { f32: 3, f64: 1 };
        assert_eq!(facts.remainders.into_iter().collect::<Vec<_>>(), [("one".to_owned(), one)]);
        let store = "store atomic i32 3, ptr %x release".to_owned();
        assert_eq!(facts.orderings, [("two".to_owned(), store)]);
    }
}
