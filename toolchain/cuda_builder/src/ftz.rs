//! Flushing of subnormals to zero: `.ftz` on the f32 instructions of a PTX text. rustc has no option by which LLVM writes it.

/// Instructions that have the modifier.
const INSTRUCTIONS: [&str; 19] = [
    "abs", "add", "cos", "cvt", "div", "ex2", "fma", "lg2", "max", "min", "mul", "neg", "rcp", "rsqrt",
    "set", "setp", "sin", "sqrt", "sub",
];

/// The text with `.ftz` wherever an instruction on f32 can have it.
pub fn flush(text: &str) -> String {
    let mut flushed = String::with_capacity(text.len() + text.len() / 64);
    for line in text.split_inclusive('\n') {
        let code = line.split("//").next().unwrap_or(line);
        // blocks of inline PTX may have several statements in a line
        let mut rest = line;
        for statement in code.split_inclusive([';', '{', '}']) {
            flushed.push_str(&statement_flushed(statement));
            rest = &rest[statement.len()..];
        }
        flushed.push_str(rest);
    }
    flushed
}

fn statement_flushed(statement: &str) -> String {
    let is_mnemonic = |word: &&str| !word.is_empty() && !word.starts_with('@');
    let mnemonic = statement.split(char::is_whitespace).find(is_mnemonic).unwrap_or("");
    match with_modifier(mnemonic) {
        Some(flushing) => statement.replacen(mnemonic, &flushing, 1),
        None => statement.to_owned(),
    }
}

/// `add.rn.ftz.f32` of `add.rn.f32`: the modifier comes before `.sat` and the types.
fn with_modifier(mnemonic: &str) -> Option<String> {
    let parts: Vec<&str> = mnemonic.split('.').collect();
    let is_type =
        |part: &str| part.len() > 1 && part[1..].bytes().all(|byte| byte.is_ascii_digit() || byte == b'x');
    let types = 1 + parts.iter().skip(1).position(|part| *part == "sat" || is_type(part))?;
    let of = |index: usize| parts.len().checked_sub(index).map(|index| parts[index]);
    let is_on_f32 = match parts[0] {
        // to f32 from f64, or from f32; integers and halves have no subnormals of f32
        "cvt" => of(1) == Some("f32") || (of(2) == Some("f32") && of(1) == Some("f64")),
        _ => of(1) == Some("f32"),
    };
    let can = INSTRUCTIONS.contains(&parts[0]) && is_on_f32 && !parts.contains(&"ftz");
    can.then(|| [&parts[..types], &["ftz"], &parts[types..]].concat().join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toolchain_instructions_on_f32_flush_and_others_stay() {
        for (plain, flushing) in [
            ("add.rn.f32", "add.rn.ftz.f32"),
            ("fma.rn.sat.f32", "fma.rn.ftz.sat.f32"),
            ("setp.lt.and.f32", "setp.lt.and.ftz.f32"),
            ("set.gt.u32.f32", "set.gt.ftz.u32.f32"),
            ("cvt.rzi.s32.f32", "cvt.rzi.ftz.s32.f32"),
            ("cvt.f64.f32", "cvt.ftz.f64.f32"),
            ("cvt.rn.f32.f64", "cvt.rn.ftz.f32.f64"),
            ("cvt.sat.f32.f32", "cvt.ftz.sat.f32.f32"),
            ("ex2.approx.f32", "ex2.approx.ftz.f32"),
            ("neg.f32", "neg.ftz.f32"),
        ] {
            assert_eq!(with_modifier(plain).as_deref(), Some(flushing));
        }
        for other in [
            "add.rn.f64",
            "add.s32",
            "ld.global.f32",
            "mov.f32",
            "selp.f32",
            "cvt.rn.f32.s32",
            "cvt.f32.f16",
            "ex2.approx.ftz.f32",
            "atom.add.f32",
            "setp.lt.f64",
            "set",
            "",
        ] {
            assert_eq!(with_modifier(other), None, "{other}");
        }
    }

    #[test]
    fn toolchain_statements_are_found_in_lines() {
        let text = "\t@%p1 add.rn.f32 \t%r1, %r2, %r3;\n{ .reg .f32 t; mul.f32 t, a, b; mov.f32 b, t; } // neg.f32\nmul.f32:\n";
        let wanted = "\t@%p1 add.rn.ftz.f32 \t%r1, %r2, %r3;\n{ .reg .f32 t; mul.ftz.f32 t, a, b; mov.f32 b, t; } // neg.f32\nmul.f32:\n";
        assert_eq!(flush(text), wanted);
        assert_eq!(flush("no end"), "no end");
    }
}
