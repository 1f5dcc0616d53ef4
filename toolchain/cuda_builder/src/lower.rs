//! What LLVM lowers wrongly or not at all, in the PTX as LLVM wrote it.

use crate::ir::Facts;
use crate::items::{declared_name, entry_name, item_end};
use crate::ptx::PtxError;
use crate::remainder;

/// The functions of `cuda_std` that are there for kernels that need them.
const OFFERED: [&str; 5] = ["cuda_std_fmod_f32", "cuda_std_fmod_f64", "memcmp", "bcmp", "memmove"];

/// Makes remainders exact, and leaves out the functions that `cuda_std` offers and nobody calls.
///
/// # Errors
/// [`PtxError::Ordering`] and [`PtxError::Remainder`] for an operation that stays wrong.
pub fn lower(raw: &str, facts: &Facts) -> Result<String, PtxError> {
    if let Some((function, operation)) = facts.orderings.first() {
        return Err(PtxError::Ordering { function: function.clone(), operation: operation.clone() });
    }
    let lines: Vec<&str> = raw.lines().collect();
    // the name of each function and kernel, empty for other lines; its text
    let mut items: Vec<(String, String)> = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        let entry = entry_name(line);
        let name = match entry {
            Some(name) => name,
            None if line.contains(".func ") => declared_name(line),
            None => "",
        };
        let end = if name.is_empty() {
            at + 1
        } else {
            item_end(&lines, at).ok_or(PtxError::Malformed { line: at + 1, reason: "an item with an end" })?
        };
        let text = lines[at..end].iter().flat_map(|line| [line, "\n"]).collect::<String>();
        // the functions of `cuda_std` are what a remainder becomes
        let text = match facts.remainders.get(name) {
            // a function's declaration, which may come first, has no body
            Some(wanted) if text.contains('{') => {
                let (text, f32, f64) = remainder::exact(&text);
                if f32 < wanted.f32 || f64 < wanted.f64 {
                    return Err(PtxError::Remainder(name.to_owned()));
                }
                text
            }
            _ => text,
        };
        items.push((name.to_owned(), text));
        at = end;
    }
    let is_there = |name: &str| items.iter().any(|(other, _)| other == name);
    let counted = facts.remainders.iter().filter(|(_, wanted)| wanted.f32 + wanted.f64 > 0);
    if let Some((name, _)) = { counted }.find(|(name, _)| !is_there(name)) {
        return Err(PtxError::Remainder(name.clone()));
    }
    let is_offered = |name: &str| OFFERED.contains(&name);
    loop {
        let unused = items.iter().position(|(name, _)| {
            let calls = |text: &str| text.contains(&format!(" {name}")) && text.contains("call");
            is_offered(name) && !items.iter().any(|(other, text)| other != name && calls(text))
        });
        match unused {
            Some(index) => items.remove(index),
            None => break,
        };
    }
    // a function stands before its calls
    let first = items.iter().position(|(name, _)| !name.is_empty()).unwrap_or(0);
    let (offered, others): (Vec<_>, Vec<_>) = items.drain(first..).partition(|(name, _)| is_offered(name));
    Ok(items.into_iter().chain(offered).chain(others).map(|(_, text)| text).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Remainders;

    const RAW: &str = "\
.version 6.4
.target sm_61

.visible .entry k()
{
	div.rn.f32 	%r3, %r1, %r2;
	cvt.rzi.f32.f32 	%r4, %r3;
	neg.f32 	%r5, %r4;
	fma.rn.f32 	%r6, %r5, %r2, %r1;
}
	// .globl	memcmp
.visible .func  (.param .b32 func_retval0) memcmp(
	.param .b64 memcmp_param_0
)
{
	ret;
}
.visible .func  (.param .b32 func_retval0) cuda_std_fmod_f32(
	.param .b32 a,
	.param .b32 b
)
{
	ret;
}
";

    fn facts(f32: usize) -> Facts {
        let remainders = [("k".to_owned(), Remainders { f32, f64: 0 })].into();
        Facts { remainders, ..Facts::default() }
    }

    #[test]
    fn toolchain_functions_that_nobody_calls_go_and_others_come_first() {
        let text = lower(RAW, &facts(1)).unwrap();
        assert!(!text.contains(".func  (.param .b32 func_retval0) memcmp"), "{text}");
        let position = |part: &str| text.find(part).unwrap();
        assert!(
            position(".func  (.param .b32 func_retval0) cuda_std_fmod_f32") < position(".entry k"),
            "{text}"
        );
        assert!(text.contains("call (retval0), cuda_std_fmod_f32, (param0, param1);"), "{text}");
        let text = lower(RAW, &Facts::default()).unwrap();
        assert!(!text.contains(".func") && text.contains("fma.rn"), "nobody asked for a remainder: {text}");
    }

    #[test]
    fn toolchain_operations_that_stay_wrong_are_errors() {
        assert_eq!(lower(RAW, &facts(2)), Err(PtxError::Remainder("k".to_owned())));
        let declared = RAW.replace(".visible .entry k()", ".func k\n()\n;\n.func k()");
        assert!(lower(&declared, &facts(1)).is_ok(), "a declaration comes before the function");
        let elsewhere = RAW.replace(".entry k()", ".entry other()");
        assert_eq!(lower(&elsewhere, &facts(1)), Err(PtxError::Remainder("k".to_owned())));
        let orderings = vec![("k".to_owned(), "store atomic release".to_owned())];
        let error = lower(RAW, &Facts { orderings, ..Facts::default() }).unwrap_err();
        assert!(error.to_string().contains("`k`") && error.to_string().contains("store atomic"), "{error}");
    }
}
