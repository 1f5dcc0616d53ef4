//! Finishing, checking and reading the PTX that LLVM writes.

use crate::items::{declared_name, entry_name, item_end};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The marker constant that `#[kernel]` leaves for each kernel.
const MARKER: &str = "__launch_bounds_";
/// The marker constant that names the PTX module of each kernel.
const MODULE_MARKER: &str = "__kernel_module_";
/// A comment line before an entry of the finished text, with the name of its module.
const MODULE_LINE: &str = "// module ";

/// A fault in a PTX text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PtxError {
    /// A directive that every PTX file has is missing.
    #[error("no {0} directive")]
    Missing(&'static str),
    /// Another architecture than asked for.
    #[error("the target is {found}, not {wanted}")]
    Target {
        /// As the file says.
        found: String,
        /// As asked for.
        wanted: String,
    },
    /// Another ISA version than asked for.
    #[error("the PTX version is {}.{}, not {}.{}", .found.0, .found.1, .wanted.0, .wanted.1)]
    Version {
        /// As the file says.
        found: (u32, u32),
        /// As asked for.
        wanted: (u32, u32),
    },
    /// A `#[kernel]` of the crate is not among the entries.
    #[error("kernel {0} is declared but has no entry")]
    MissingKernel(String),
    /// The file holds no kernel at all.
    #[error("no kernel")]
    NoKernels,
    /// A function that is called and not defined.
    #[error("unresolved function {0}")]
    Unresolved(String),
    /// `%` of floats in this function is in a form for which there is no exact one.
    #[error("`{0}`: a remainder (`%`) of floats can't be made exact; compute it in a function of its own")]
    Remainder(String),
    /// The address of such a static was taken by `&raw`: it is not in shared memory.
    #[error(
        "the address of the static {0} in shared memory is taken by `&raw`; take that of an element, or use shared_array!"
    )]
    SharedAddress(String),
    /// An atomic operation whose ordering the architecture does not have, and which was compiled without fences.
    #[error(
        "`{function}`: no fences for the ordering of `{operation}`; install the component rust-src, or use Relaxed and fences of cuda_std::thread"
    )]
    Ordering {
        /// The kernel or function.
        function: String,
        /// As LLVM writes it.
        operation: String,
    },
    /// A line that LLVM does not write.
    #[error("line {line}: {reason}")]
    Malformed {
        /// Counted from one.
        line: usize,
        /// The expected text.
        reason: &'static str,
    },
}

/// One kernel as the PTX declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The symbol.
    pub name: String,
    /// `.maxntid`: the most threads in a block, zero where not given.
    pub max_threads: u32,
    /// `.minnctapersm`: the blocks per SM to leave registers for, zero where not given.
    pub min_blocks: u32,
    /// Bytes of static shared memory declared in the body.
    pub shared_bytes: u32,
    /// Bytes of each parameter.
    pub parameters: Vec<usize>,
    /// The body's text, between its braces.
    pub body: String,
}

impl Entry {
    /// How many instructions of the body begin so (`"shfl.sync"`), predicated ones included.
    pub fn count(&self, mnemonic: &str) -> usize {
        self.body.lines().filter(|line| instruction(line).starts_with(mnemonic)).count()
    }
}

/// A line without its indentation and predicate.
fn instruction(line: &str) -> &str {
    let line = line.trim_start();
    match line.strip_prefix('@') {
        Some(rest) => rest.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim_start()),
        None => line,
    }
}

/// Writes launch bounds into the entries, and the names of their modules before them, from the markers that `#[kernel]`
/// left; takes the markers out, and checks that each has its entry.
///
/// # Errors
/// [`PtxError::MissingKernel`], [`PtxError::Malformed`].
pub fn finish(raw: &str) -> Result<String, PtxError> {
    let (mut bounds, mut modules) = (BTreeMap::new(), BTreeMap::new());
    let mut lines = Vec::new();
    for (index, line) in raw.lines().enumerate() {
        if line.trim_start().starts_with("// .globl") {
            continue;
        }
        if line.contains(".global") && line.contains(MARKER) {
            let (name, values) = parse_bounds(line)
                .ok_or(PtxError::Malformed { line: index + 1, reason: "a launch-bounds marker" })?;
            bounds.insert(name, values);
            continue;
        }
        if line.contains(".global") && line.contains(MODULE_MARKER) {
            let (name, bytes) = parse_marker(line, MODULE_MARKER)
                .ok_or(PtxError::Malformed { line: index + 1, reason: "a module marker" })?;
            modules.insert(name, String::from_utf8_lossy(&bytes).into_owned());
            continue;
        }
        lines.push(line);
    }

    let mut text = String::with_capacity(raw.len());
    let mut current: Option<&str> = None;
    let mut blank = false;
    for line in lines {
        if line.trim().is_empty() {
            blank = true;
            continue;
        }
        if std::mem::take(&mut blank) {
            text.push('\n');
        }
        if let Some(name) = entry_name(line) {
            current = Some(name);
            if let Some(module) = modules.remove(name) {
                let _ = writeln!(text, "{MODULE_LINE}{module}");
            }
        }
        if line == "{"
            && let Some(name) = current.take()
        {
            let (max_threads, min_blocks) =
                bounds.remove(name).ok_or_else(|| PtxError::MissingKernel(name.to_owned()))?;
            if max_threads > 0 {
                let _ = writeln!(text, ".maxntid {max_threads}, 1, 1");
            }
            if min_blocks > 0 {
                let _ = writeln!(text, ".minnctapersm {min_blocks}");
            }
        }
        text.push_str(line);
        text.push('\n');
    }
    match bounds.pop_first() {
        Some((name, _)) => Err(PtxError::MissingKernel(name)),
        None => Ok(text),
    }
}

/// The kernel's name and the two numbers of a launch-bounds marker.
fn parse_bounds(line: &str) -> Option<(String, (u32, u32))> {
    let (name, bytes) = parse_marker(line, MARKER)?;
    let bytes: [u8; 8] = bytes.try_into().ok()?;
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Some((name, (word(0), word(4))))
}

/// NAME and the bytes of `.visible .global .align 4 .b8 ‹marker›NAME[8] = {0, 1, 0, 0, 4};` (trailing zeros are left out).
fn parse_marker(line: &str, marker: &str) -> Option<(String, Vec<u8>)> {
    let (_, rest) = line.split_once(marker)?;
    let (name, rest) = rest.split_once('[')?;
    let (count, rest) = rest.split_once(']')?;
    let mut bytes = vec![0u8; count.trim().parse().ok().filter(|&count| count <= rest.len().max(8))?];
    if let Some((_, list)) = rest.split_once('{') {
        let (list, _) = list.split_once('}')?;
        for (byte, value) in bytes.iter_mut().zip(list.split(',')) {
            *byte = value.trim().parse().ok()?;
        }
    }
    Some((name.to_owned(), bytes))
}

/// A finished text cut into one complete PTX text for each module, with its name, in the order in which the modules begin.
/// Declarations and functions outside of entries go to every module that names them. Entries without a module form one
/// whose name is empty.
///
/// # Errors
/// [`PtxError::Malformed`] for an entry or function without an end.
pub fn modules(text: &str) -> Result<Vec<(String, String)>, PtxError> {
    let (mut header, mut shared, mut modules) = (String::new(), Vec::new(), Vec::<(String, String)>::new());
    let mut module = String::new();
    let lines: Vec<&str> = text.lines().collect();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        // those about lines of the source come last in the text, with a tab
        let directives = [".version", ".target", ".address_size", "\t.file", "\t.section"];
        if directives.iter().any(|directive| line.starts_with(directive)) {
            header.push_str(line);
            header.push('\n');
            at += 1;
            continue;
        }
        if let Some(name) = line.strip_prefix(MODULE_LINE) {
            module = name.to_owned();
        }
        if line.is_empty() || line.starts_with("//") {
            at += 1;
            continue;
        }
        let end = item_end(&lines, at)
            .ok_or(PtxError::Malformed { line: at + 1, reason: "an item with an end" })?;
        let item = lines[at..end].iter().flat_map(|line| [line, "\n"]).collect::<String>();
        at = end;
        if entry_name(line).is_none() {
            shared.push((declared_name(line).to_owned(), item));
            continue;
        }
        let name = std::mem::take(&mut module);
        let index = modules.iter().position(|(other, _)| *other == name).unwrap_or_else(|| {
            modules.push((name, String::new()));
            modules.len() - 1
        });
        let kernels = modules[index].1.lines().filter(|line| entry_name(line).is_some()).count();
        modules[index].1.push('\n');
        modules[index].1.push_str(&numbered_labels(&item, kernels));
    }
    for (_, body) in &mut modules {
        let mut needed = vec![false; shared.len()];
        // repeated until nothing is added, as a function may name further items
        loop {
            let next = (0..shared.len()).find(|&i| {
                let named = |text: &str| text.contains(&shared[i].0);
                !needed[i] && (named(body) || (0..shared.len()).any(|j| needed[j] && named(&shared[j].1)))
            });
            match next {
                Some(index) => needed[index] = true,
                None => break,
            }
        }
        let declarations =
            shared.iter().zip(&needed).filter(|(_, needed)| **needed).map(|((_, item), _)| &**item);
        *body = [&*header].into_iter().chain(declarations).chain([&**body]).collect();
    }
    Ok(modules)
}

/// A kernel whose labels have number `kernel` and not the one in the whole text, so that a module's text stays as it is when
/// kernels are added elsewhere.
fn numbered_labels(kernel: &str, number: usize) -> String {
    const LABEL: &str = "$L__BB";
    let Some((_, after)) = kernel.split_once(LABEL) else { return kernel.to_owned() };
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    kernel.replace(&format!("{LABEL}{}_", &after[..digits]), &format!("{LABEL}{number}_"))
}

/// Functions that the driver links into every module. Source: CUDA C++ Programming Guide, "Formatted Output" and "Assertion".
const OF_THE_DRIVER: [&str; 2] = ["vprintf", "__assertfail"];

/// Checks target, version, that there are kernels, and that every function called is defined, or the driver's.
///
/// # Errors
/// [`PtxError`], the first thing found.
pub fn check(text: &str, target: &str, isa: (u32, u32)) -> Result<(), PtxError> {
    let found = self::target(text)?;
    if found != target {
        return Err(PtxError::Target { found: found.to_owned(), wanted: target.to_owned() });
    }
    let version = version(text)?;
    if version != isa {
        return Err(PtxError::Version { found: version, wanted: isa });
    }
    let entries = entries(text)?;
    let declared = text.lines().filter(|line| line.starts_with(".extern .func"));
    let mut names = declared.map(|line| declared_name(line.trim_start_matches(".extern .func").trim()));
    if let Some(name) = names.find(|name| !OF_THE_DRIVER.contains(name)) {
        let is_call = |line: &str| instruction(line).starts_with("call") && line.contains(name);
        let callers = entries.iter().filter(|entry| entry.body.lines().any(is_call));
        let callers = callers.map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", ");
        let by = if callers.is_empty() { callers } else { format!(", called by kernel {callers}") };
        return Err(PtxError::Unresolved(format!("{name}{by}")));
    }
    if entries.is_empty() {
        return Err(PtxError::NoKernels);
    }
    Ok(())
}

/// The architecture named by `.target`.
///
/// # Errors
/// [`PtxError::Missing`].
pub fn target(text: &str) -> Result<&str, PtxError> {
    let line = text.lines().find_map(|line| line.strip_prefix(".target "));
    line.map(|rest| rest.split(',').next().unwrap_or(rest).trim()).ok_or(PtxError::Missing(".target"))
}

/// The ISA version named by `.version`.
///
/// # Errors
/// [`PtxError::Missing`].
pub fn version(text: &str) -> Result<(u32, u32), PtxError> {
    let line = text.lines().find_map(|line| line.strip_prefix(".version "));
    let parts = line.and_then(|rest| rest.trim().split_once('.'));
    let numbers = parts.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    numbers.ok_or(PtxError::Missing(".version"))
}

/// The kernels in the order of the text.
///
/// # Errors
/// [`PtxError::Malformed`] for an entry without an end.
pub fn entries(text: &str) -> Result<Vec<Entry>, PtxError> {
    let lines: Vec<&str> = text.lines().collect();
    let mut entries = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let Some(name) = entry_name(lines[at]) else {
            at += 1;
            continue;
        };
        let mut entry = Entry {
            name: name.to_owned(),
            max_threads: 0,
            min_blocks: 0,
            shared_bytes: 0,
            parameters: Vec::new(),
            body: String::new(),
        };
        let malformed = PtxError::Malformed { line: at + 1, reason: "an entry with a body" };
        while at < lines.len() && lines[at] != "{" {
            entry.parameters.extend(lines[at].split(".param ").skip(1).filter_map(parameter_bytes));
            if let Some(rest) = lines[at].strip_prefix(".maxntid ") {
                let threads = rest.split(',').map(|n| n.trim().parse::<u32>().unwrap_or(0));
                entry.max_threads = threads.product();
            }
            if let Some(rest) = lines[at].strip_prefix(".minnctapersm ") {
                entry.min_blocks = rest.trim().parse().unwrap_or(0);
            }
            at += 1;
        }
        at += 1;
        // Inline PTX may have braces of its own, so count their depth.
        let mut depth = 1usize;
        while depth > 0 {
            let line = *lines.get(at).ok_or(malformed.clone())?;
            depth += line.matches('{').count();
            depth = depth.saturating_sub(line.matches('}').count());
            if depth > 0 {
                if line.trim_start().starts_with(".shared") {
                    entry.shared_bytes += array_bytes(line);
                }
                entry.body.push_str(line);
                entry.body.push('\n');
            }
            at += 1;
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// The bytes of `.u64 name` or `.align 4 .b8 name[12]`.
fn parameter_bytes(declaration: &str) -> Option<usize> {
    let bits =
        |word: &str| word.strip_prefix('.')?.trim_start_matches(char::is_alphabetic).parse::<usize>().ok();
    let size = declaration.split_whitespace().filter(|word| *word != ".align").find_map(bits)? / 8;
    let count = declaration.split_once('[').and_then(|(_, rest)| rest.split_once(']')?.0.parse().ok());
    Some(size * count.unwrap_or(1))
}

/// The bytes in `.shared .align 16 .b32 name[COUNT];`.
fn array_bytes(line: &str) -> u32 {
    let count = line.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    let count: u32 = count.and_then(|(count, _)| count.trim().parse().ok()).unwrap_or(1);
    let bits = line.split_whitespace().find_map(|word| word.strip_prefix(".b")?.parse::<u32>().ok());
    count * bits.unwrap_or(8) / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAW: &str = "\
.version 6.4
.target sm_61
.address_size 64

\t// .globl\tdouble
.visible .global .align 4 .b8 __launch_bounds_double[8] = {0, 1, 0, 0, 4};
.visible .global .align 4 .b8 __launch_bounds_plain[8];

.visible .entry double(
\t.param .u64 .ptr .align 1 double_param_0,
\t.param .align 4 .b8 double_param_1[12]
)
{
\t.reg .b32 \t%r<3>;
\t{
.shared .align 16 .b8 tile[4096];
.shared .align 16 .b32 words[16];
mov.u32 %r1, tile;
}
\t@%p1 shfl.sync.down.b32 \t%r2, %r1, 16, 31, -1;
\tret;
}

.visible .entry plain()
{
\tret;
}
";

    #[test]
    fn launch_bounds_move_from_markers_into_entries() {
        let text = finish(RAW).unwrap();
        assert!(!text.contains(MARKER), "{text}");
        let entries = entries(&text).unwrap();
        assert_eq!(entries[0].name, "double");
        assert_eq!((entries[0].max_threads, entries[0].min_blocks), (256, 4));
        assert_eq!((entries[1].max_threads, entries[1].min_blocks), (0, 0));
        assert_eq!(entries[0].parameters, [8, 12]);
        assert!(check(&text, "sm_61", (6, 4)).is_ok());
    }

    #[test]
    fn bodies_are_read_through_nested_braces() {
        let entries = entries(&finish(RAW).unwrap()).unwrap();
        assert_eq!(entries[0].shared_bytes, 4096 + 64);
        assert_eq!(entries[0].count("shfl.sync"), 1, "a predicated shuffle counts");
        assert_eq!(entries[0].count("shfl"), 1);
        assert_eq!(entries[1].count("shfl"), 0);
    }

    #[test]
    fn a_text_is_cut_into_modules_with_what_they_need() {
        let raw = RAW
            .replace(
                ".visible .entry double(",
                ".visible .global .align 1 .b8 __kernel_module_double[3] = {97, 58, 98};\n\
                 .visible .global .align 1 .b8 __kernel_module_plain[1] = {99};\n\
                 .global .align 4 .b8 table[8] = {1};\n.extern .shared .align 16 .b8 dynamic[];\n.visible .entry double(",
            )
            .replace("mov.u32 %r1, tile;", "mov.u32 %r1, tile;\nmov.u64 %rd1, table;");
        let text = finish(&raw).unwrap();
        assert!(!text.contains(MODULE_MARKER), "{text}");
        let modules = modules(&text).unwrap();
        let names: Vec<_> = modules.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a:b", "c"]);
        for (_, module) in &modules {
            assert!(
                check(module, "sm_61", (6, 4)).is_ok() && entries(module).unwrap().len() == 1,
                "{module}"
            );
            assert!(!module.contains("dynamic"), "nobody names it: {module}");
        }
        assert!(modules[0].1.contains("table[8]") && !modules[1].1.contains("table[8]"));
    }

    #[test]
    fn a_marker_without_its_kernel_is_an_error() {
        let raw = RAW.replace(".visible .entry plain()", ".visible .entry other()");
        assert_eq!(finish(&raw), Err(PtxError::MissingKernel("other".into())));
    }

    #[test]
    fn wrong_target_version_and_unresolved_calls_are_errors() {
        let text = finish(RAW).unwrap();
        assert!(matches!(check(&text, "sm_70", (6, 4)), Err(PtxError::Target { .. })));
        assert!(matches!(check(&text, "sm_61", (6, 5)), Err(PtxError::Version { .. })));
        let unresolved = format!("{text}.extern .func  malloc\n");
        assert_eq!(check(&unresolved, "sm_61", (6, 4)), Err(PtxError::Unresolved("malloc".into())));
        assert_eq!(check("", "sm_61", (6, 4)), Err(PtxError::Missing(".target")));
    }

    #[test]
    fn an_unfinished_entry_is_an_error() {
        assert!(matches!(
            entries(".visible .entry a()\n{\n\tret;\n"),
            Err(PtxError::Malformed { line: 1, .. })
        ));
    }
}
