//! Where the functions of a line were inlined. LLVM writes into the PTX only the innermost place of each instruction: for a barrier a
//! line of `core`. Its intermediate code knows the calls that lead there. They are added as a comment, because PTX's own
//! word for them needs ISA 7.2 and so a newer driver:
//!
//! ```text
//! .loc 2 55 5 // inlined_at 3 74 9, 96 113 9
//! ```
//!
//! One line of a library may be inlined at several places of a function. Then that basic block of the intermediate
//! code decides which has most of the places of the PTX's block; where none has, the calls are left out.

use crate::items::entry_name;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

/// File, line and column.
type Place<'a> = (String, &'a str, &'a str);
/// The places of an instruction from the inside out.
type Chain<'a> = Vec<Place<'a>>;
/// A basic block: the chains in the order of its instructions, by the number of the metadata that describes them.
type BasicBlock<'a> = Vec<&'a str>;

/// Adds the comments. `ir` is the module from which LLVM made the PTX.
pub(crate) fn annotate(ptx: &str, ir: &str) -> String {
    let numbers: HashMap<String, &str> = ptx.lines().filter_map(file).collect();
    if numbers.is_empty() {
        return ptx.to_owned();
    }
    let metadata: HashMap<&str, &str> =
        ir.lines().filter(|line| line.starts_with('!')).filter_map(|line| line.split_once(" = ")).collect();
    let functions = functions(ir);
    let mut text = String::with_capacity(ptx.len() + ptx.len() / 8);
    let mut lines = ptx.lines().peekable();
    let mut blocks: Vec<Vec<Chain<'_>>> = Vec::new();
    let paths: HashMap<&str, &str> = numbers.iter().map(|(path, number)| (*number, path.as_str())).collect();
    while let Some(line) = lines.next() {
        if let Some(name) = function_name(line) {
            let chain = |id: &&str| chain(&metadata, id);
            let chains = |block: &BasicBlock<'_>| block.iter().filter_map(chain).collect();
            blocks = functions.get(name).into_iter().flatten().map(chains).collect();
        }
        if !line.starts_with("\t.loc\t") && !is_label(line) {
            let _ = writeln!(text, "{line}");
            continue;
        }
        // one basic block, from its label or first place on
        let mut block = vec![line];
        while let Some(line) = lines.next_if(|line| !is_label(line) && function_name(line).is_none()) {
            block.push(line);
        }
        let keys: Vec<_> = block.iter().filter_map(|line| key(line, &paths)).collect();
        let seen: BTreeSet<_> = keys.iter().collect();
        // each candidate's chains and how many of the keys it has
        let candidates: Vec<(&[Chain<'_>], usize)> = blocks
            .iter()
            .map(|chains| {
                let firsts: BTreeSet<_> =
                    chains.iter().map(|chain| &chain[0]).filter(|first| seen.contains(first)).collect();
                (chains.as_slice(), firsts.len())
            })
            .collect();
        let mut passed: HashMap<&Place<'_>, usize> = HashMap::new();
        let mut keys_left = keys.iter();
        let mut last = None;
        for line in block {
            let key = key(line, &paths).and_then(|_| keys_left.next());
            let Some(key) = key else {
                let _ = writeln!(text, "{line}");
                continue;
            };
            let turn = passed.entry(key).or_default();
            if last != Some(key) {
                *turn += 1;
            }
            last = Some(key);
            let turns = runs(&keys, key);
            let callers = callers(&candidates, key, *turn - 1, turns);
            let places: Option<Vec<String>> = callers
                .unwrap_or_default()
                .iter()
                .map(|(path, line, column)| Some(format!("{} {line} {column}", numbers.get(path)?)))
                .collect();
            let _ = match places {
                Some(places) if !places.is_empty() => {
                    writeln!(text, "{line} // inlined_at {}", places.join(", "))
                }
                _ => writeln!(text, "{line}"),
            };
        }
    }
    text
}

/// The calls that lead to a place, if they are known. `turn` counts the place's runs in the block of the PTX.
fn callers<'a>(
    candidates: &[(&[Chain<'a>], usize)],
    key: &Place<'a>,
    turn: usize,
    turns: usize,
) -> Option<Chain<'a>> {
    let of_key = |chains: &[Chain<'a>]| {
        let mut found: Vec<Chain<'a>> = Vec::new();
        for chain in chains.iter().filter(|chain| chain[0] == *key) {
            if !found.contains(chain) {
                found.push(chain.clone());
            }
        }
        found
    };
    let all: Vec<_> = candidates.iter().map(|(chains, shared)| (of_key(chains), *shared)).collect();
    let distinct: BTreeSet<_> = all.iter().flat_map(|(found, _)| found).collect();
    if distinct.len() == 1 {
        return distinct.first().map(|chain| chain[1..].to_vec());
    }
    let having = || all.iter().filter(|(found, _)| !found.is_empty());
    let most = having().map(|(_, shared)| *shared).max()?;
    let mut best = having().filter(|(_, shared)| *shared == most);
    let (Some((found, _)), None) = (best.next(), best.next()) else { return None };
    match found.len() {
        1 => Some(found[0][1..].to_vec()),
        n if n == turns => Some(found[turn][1..].to_vec()),
        _ => None,
    }
}

/// How often a place begins anew in a block.
fn runs<'a>(keys: &[Place<'a>], key: &Place<'a>) -> usize {
    let begins = |at: usize| keys[at] == *key && (at == 0 || keys[at - 1] != *key);
    (0..keys.len()).filter(|&at| begins(at)).count()
}

/// The path and number in `.file 2 "path"`.
fn file(line: &str) -> Option<(String, &str)> {
    let (number, path) = line.trim().strip_prefix(".file")?.trim().split_once(' ')?;
    Some((path.trim().trim_matches('"').to_owned(), number))
}

/// A label of the code; `$L__tmp` and `$L__func` mark no jump's target.
fn is_label(line: &str) -> bool {
    line.starts_with("$L__BB")
}

/// The name of the function or kernel that begins on a line.
fn function_name(line: &str) -> Option<&str> {
    entry_name(line).or_else(|| {
        let (_, rest) = line.split_once(".func ")?;
        let rest = rest.trim_start();
        let rest = if rest.starts_with('(') { rest.split_once(')')?.1 } else { rest };
        Some(rest.trim_start().split(['(', ' ', ';']).next().unwrap_or(rest))
    })
}

/// The place in `.loc 2 55 5`.
fn key<'a>(line: &'a str, paths: &HashMap<&str, &str>) -> Option<Place<'a>> {
    let mut numbers = line.strip_prefix("\t.loc\t")?.split_whitespace();
    let path = paths.get(numbers.next()?)?;
    Some(((*path).to_owned(), numbers.next()?, numbers.next()?))
}

/// The basic blocks of each function.
fn functions(ir: &str) -> HashMap<&str, Vec<BasicBlock<'_>>> {
    let mut functions: HashMap<&str, Vec<BasicBlock<'_>>> = HashMap::new();
    let mut name = "";
    for line in ir.lines() {
        if let Some(rest) = line.strip_prefix("define ") {
            name = rest.split_once('@').map_or("", |(_, rest)| rest.split('(').next().unwrap_or(rest));
            name = name.trim_matches('"');
        } else if line == "}" {
            name = "";
        } else if !name.is_empty() && !line.starts_with(' ') && !line.is_empty() {
            functions.entry(name).or_default().push(Vec::new());
        } else if !name.is_empty()
            && let Some((_, rest)) = line.split_once(", !dbg ")
            && let Some(block) = functions.get_mut(name).and_then(|blocks| blocks.last_mut())
        {
            block.push(rest.split([',', ' ']).next().unwrap_or(rest));
        }
    }
    functions
}

/// The places that a `!DILocation` stands for.
fn chain<'a>(metadata: &HashMap<&str, &'a str>, id: &str) -> Option<Chain<'a>> {
    let mut chain = Vec::new();
    let mut next = Some(id);
    while let Some(text) = next.and_then(|id| metadata.get(id)) {
        let mut scope = field(text, "scope: ")?;
        let file = loop {
            let scope_text = metadata.get(scope)?;
            match field(scope_text, "file: ") {
                Some(file) => break file,
                None => scope = field(scope_text, "scope: ")?,
            }
        };
        let file = metadata.get(file)?;
        let quoted = |name: &str| file.split_once(name)?.1.split('"').next();
        let (filename, folder) = (quoted("filename: \"")?, quoted("directory: \"")?);
        let is_whole = filename.starts_with('/') || filename.get(1..2) == Some(":");
        let path = if is_whole { filename.to_owned() } else { format!("{folder}/{filename}") };
        chain.push((path, field(text, "line: ")?, field(text, "column: ").unwrap_or("0")));
        next = field(text, "inlinedAt: ");
    }
    (!chain.is_empty()).then_some(chain)
}

/// A field's value in the text of a node.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let rest = text.split_once(&format!("({name}")).or_else(|| text.split_once(&format!(" {name}")))?.1;
    rest.split([',', ')']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const IR: &str = r#"
define ptx_kernel void @k(ptr %y) !dbg !1 {
start:
  br i1 %c, label %a, label %b, !dbg !10

a:                                                ; preds = %start
  store float 1.0, ptr %y, align 4, !dbg !11
  call void @barrier(i32 0), !dbg !12
  br label %b, !dbg !12

b:                                                ; preds = %start
  store float 2.0, ptr %y, align 4, !dbg !13
  call void @barrier(i32 0), !dbg !14
  ret void, !dbg !10
}

!1 = distinct !DISubprogram(name: "k", scope: null, file: !2, line: 1, unit: !4)
!2 = !DIFile(filename: "src/k.rs", directory: "/home/me/kernels")
!3 = !DIFile(filename: "/rust/core.rs", directory: "/home/me/kernels")
!5 = distinct !DISubprogram(name: "barrier", scope: !1, file: !3, line: 50, unit: !4)
!6 = distinct !DILexicalBlock(scope: !1, file: !2, line: 2, column: 1)
!10 = !DILocation(line: 3, column: 8, scope: !1)
!11 = !DILocation(line: 4, column: 9, scope: !6)
!12 = !DILocation(line: 55, column: 5, scope: !5, inlinedAt: !20)
!13 = !DILocation(line: 7, column: 9, scope: !6)
!14 = !DILocation(line: 55, column: 5, scope: !5, inlinedAt: !21)
!20 = distinct !DILocation(line: 5, column: 9, scope: !6)
!21 = distinct !DILocation(line: 8, column: 9, scope: !6)
"#;

    #[test]
    fn the_calls_of_a_place_are_those_of_its_block() {
        let ptx = "\
.visible .entry k(
)
{
\t.loc\t1 3 8
\t@%p1 bra \t$L__BB0_2;
$L__BB0_1:
\t.loc\t1 7 9
\tst.global.b32 \t[%rd1], 0;
\t.loc\t2 55 5
\tbar.sync \t0;
$L__BB0_2:
\t.loc\t1 4 9
\tst.global.b32 \t[%rd1], 0;
\t.loc\t2 55 5
\tbar.sync \t0;
}
\t.file\t1 \"/home/me/kernels/src/k.rs\"
\t.file\t2 \"/rust/core.rs\"
";
        let text = annotate(ptx, IR);
        let found: Vec<_> = text.lines().filter(|line| line.contains("inlined_at")).collect();
        assert_eq!(found, ["\t.loc\t2 55 5 // inlined_at 1 8 9", "\t.loc\t2 55 5 // inlined_at 1 5 9"]);
        let plain: String =
            text.lines().map(|line| line.split(" // ").next().unwrap().to_owned() + "\n").collect();
        assert_eq!(plain, ptx);
        // a block that has both: nothing tells them apart, unless both are there
        let one = "\t.loc\t2 55 5\n\tbar.sync \t0;\n";
        let merged = |times: usize| {
            let head = ".visible .entry k(\n)\n{\n\t.loc\t1 4 9\n\tx;\n\t.loc\t1 7 9\n\tx;\n";
            let files = "}\n\t.file\t1 \"/home/me/kernels/src/k.rs\"\n\t.file\t2 \"/rust/core.rs\"\n";
            annotate(&format!("{head}{}{files}", one.repeat(times)), IR)
        };
        assert!(!merged(1).contains("inlined_at"));
    }
}
