//! `x % y` of floats, made exact. LLVM writes
//!
//! ```text
//! div.rn.f64 q, x, y;  cvt.rzi.f64.f64 t, q;  neg.f64 n, t;  fma.rn.f64 r, n, y, x;
//! testp.infinite.f64 p, y;  selp.f64 z, x, r, p;
//! ```
//!
//! which is wrong where the quotient has more digits than the type, loses the sign of a zero, and takes infinity for a
//! remainder of infinities. With a constant y the negation is in the constant and the test is not there; for a power of two a
//! product takes the place of the quotient, which is exact unless it overflows. Here r becomes a call of `cuda_std`'s
//! function, and z is r.

use crate::ir::is_exact_divisor;
use std::collections::HashMap;

/// The function of `cuda_std` for a type.
fn function(ty: &str) -> &'static str {
    if ty == "f64" { "cuda_std_fmod_f64" } else { "cuda_std_fmod_f32" }
}

/// An instruction's words: its name, then its operands.
fn words(line: &str) -> Vec<&str> {
    line.split([' ', '\t', ',', ';']).filter(|word| !word.is_empty()).collect()
}

/// The value of `0dBITS` or `0fBITS`.
fn literal(operand: &str) -> Option<f64> {
    if let Some(bits) = operand.strip_prefix("0d") {
        return u64::from_str_radix(bits, 16).ok().map(f64::from_bits);
    }
    let bits = operand.strip_prefix("0f")?;
    u32::from_str_radix(bits, 16).ok().map(|bits| f32::from_bits(bits).into())
}

/// A literal with the other sign.
fn negated(operand: &str) -> Option<String> {
    if let Some(bits) = operand.strip_prefix("0d") {
        return u64::from_str_radix(bits, 16).ok().map(|bits| format!("0d{:016X}", bits ^ 1 << 63));
    }
    let bits = operand.strip_prefix("0f")?;
    u32::from_str_radix(bits, 16).ok().map(|bits| format!("0f{:08X}", bits ^ 1 << 31))
}

/// The body with exact remainders, and how many of f32 and of f64 they are.
pub fn exact(body: &str) -> (String, usize, usize) {
    let lines: Vec<&str> = body.lines().collect();
    // each register's only definition; two of them tell nothing
    let mut definitions: HashMap<&str, Option<Vec<&str>>> = HashMap::new();
    for line in &lines {
        let words = words(line);
        if words.len() > 2 && words[1].starts_with('%') {
            definitions.entry(words[1]).and_modify(|old| *old = None).or_insert(Some(words));
        }
    }
    let defined = |register: &str| definitions.get(register).and_then(Option::as_deref);
    let (mut text, mut counts) = (String::with_capacity(body.len()), (0, 0));
    // of each remainder: its register, x, y
    let mut remainders: Vec<(&str, &str, String)> = Vec::new();
    for line in &lines {
        let words = words(line);
        let mut replacement = None;
        for ty in ["f32", "f64"] {
            if let Some((r, x, y)) = remainder(&words, ty, defined) {
                replacement = Some(call(ty, r, x, &y));
                *if ty == "f32" { &mut counts.0 } else { &mut counts.1 } += 1;
                remainders.push((r, x, y));
            }
            if let [selp, z, x, r, p] = words[..]
                && selp.strip_prefix("selp.").is_some_and(|of| of == ty)
                && remainders.iter().any(|(of, from, by)| {
                    let test = defined(p).filter(|test| test[0].starts_with("testp.infinite"));
                    *of == r && *from == x && test.is_some_and(|test| test[2] == by)
                })
            {
                replacement = Some(format!("\tmov.b{} \t{z}, {r};\n", &ty[1..]));
            }
        }
        match replacement {
            Some(lines) => text.push_str(&lines),
            None => text.extend([line, "\n"]),
        }
    }
    (text, counts.0, counts.1)
}

/// The register, x and y, if the instruction is the last of a remainder.
fn remainder<'a>(
    words: &[&'a str],
    ty: &str,
    defined: impl Fn(&str) -> Option<&'a [&'a str]>,
) -> Option<(&'a str, &'a str, String)> {
    let truncated = |t: &str| {
        let cvt = defined(t)?;
        (cvt[0] == format!("cvt.rzi.{ty}.{ty}")).then_some(cvt[2])
    };
    let [fma, r, factor, by, x] = words[..] else { return None };
    if fma != format!("fma.rn.{ty}") {
        return None;
    }
    let (t, y) = match defined(factor) {
        Some([neg, _, t]) if *neg == format!("neg.{ty}") => (*t, by.to_owned()),
        _ => (factor, negated(by)?),
    };
    let quotient = defined(truncated(t)?)?;
    let &[operation, _, dividend, divisor] = quotient else { return None };
    let is_quotient = operation == format!("div.rn.{ty}") && divisor == y;
    let is_reciprocal = |(factor, divisor): (f64, f64)| factor * divisor == 1.0 && !is_exact_divisor(divisor);
    // without `.rn` where products may be contracted
    let is_product = [format!("mul.rn.{ty}"), format!("mul.{ty}")].iter().any(|name| name == operation)
        && literal(divisor).zip(literal(&y)).is_some_and(is_reciprocal);
    // a constant dividend is in a register for the quotient alone
    let is_dividend = dividend == x
        || matches!(defined(dividend), Some([mov, _, value]) if mov.starts_with("mov.b") && *value == x);
    (is_dividend && (is_quotient || is_product)).then_some((r, x, y))
}

fn call(ty: &str, r: &str, x: &str, y: &str) -> String {
    let bits = &ty[1..];
    format!(
        "\t{{\n\t.param .b{bits} param0;\n\tst.param.{ty} \t[param0], {x};\n\t.param .b{bits} param1;\n\
         \tst.param.{ty} \t[param1], {y};\n\t.param .b{bits} retval0;\n\tcall (retval0), {}, (param0, param1);\n\
         \tld.param.{ty} \t{r}, [retval0];\n\t}}\n",
        function(ty)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const VARIABLE: &str = "\tdiv.rn.f64 \t%rd7, %rd5, %rd6;\n\tcvt.rzi.f64.f64 \t%rd8, %rd7;\n\tneg.f64 \t%rd9, %rd8;\n\
        \tfma.rn.f64 \t%rd10, %rd9, %rd6, %rd5;\n\ttestp.infinite.f64 \t%p1, %rd6;\n\tselp.f64 \t%rd11, %rd5, %rd10, %p1;\n";

    #[test]
    fn toolchain_each_form_of_a_remainder_is_found() {
        let (text, f32s, f64s) = exact(VARIABLE);
        assert_eq!((f32s, f64s), (0, 1));
        assert!(
            text.contains("mov.b64 \t%rd11, %rd10;") && !text.contains("selp") && !text.contains("fma"),
            "{text}"
        );
        let constant = "div.rn.f32 %r6, %r5, 0f406CCCCD;\ncvt.rzi.f32.f32 %r7, %r6;\nfma.rn.f32 %r8, %r7, 0fC06CCCCD, %r5;\n";
        let (text, f32s, _) = exact(constant);
        assert!(f32s == 1 && text.contains("[param1], 0f406CCCCD;"), "{text}");
        let power = "mul.rn.f32 %r6, %r5, 0f40800000;\ncvt.rzi.f32.f32 %r7, %r6;\nfma.rn.f32 %r8, %r7, 0fBE800000, %r5;\n";
        assert_eq!(exact(power).1, 1, "by 1/4 the quotient may overflow");
        assert_eq!(exact(&power.replace("mul.rn", "mul")).1, 1, "a product that may be contracted");
        let other = VARIABLE.replace("%rd6, %rd5;\n\ttestp", "%rd4, %rd5;\n\ttestp");
        assert_eq!(exact(&other), (other.clone(), 0, 0), "another factor than the divisor");
    }
}
