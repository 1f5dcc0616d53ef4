//! The lines of the source from which PTX was compiled: `.file` and `.loc`.
//!
//! One entry for each `.loc`, found by the line of the PTX. Instructions hold nothing, so that PTX without lines costs nothing.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Of a source file.
const MOST_BYTES: u64 = 16 << 20;

/// A place in the source of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceLine {
    /// The path as the compiler wrote it.
    pub file: Arc<str>,
    /// 1-based.
    pub line: u32,
    /// 1-based; 0 where it is not known.
    pub column: u32,
}

impl SourceLine {
    /// The text of the line without the spaces around it, if the file can be read here and is not larger than 16 MiB.
    pub fn text(&self) -> Option<String> {
        // the PTX may be anyone's and name a device
        std::fs::metadata(&*self.file).ok().filter(|about| about.is_file() && about.len() <= MOST_BYTES)?;
        let text = std::fs::read_to_string(&*self.file).ok()?;
        text.lines().nth(self.line.checked_sub(1)? as usize).map(|line| line.trim().to_owned())
    }

    /// Whether it is in the standard library or in `cuda_std`, and so not what a kernel's author wrote.
    pub fn is_library(&self) -> bool {
        let file = self.file.replace('\\', "/");
        ["/library/core/", "/library/compiler-builtins/", "/cuda_std/src/", "cuda-std-", "/rustc/"]
            .iter()
            .any(|part| file.contains(part))
    }
}

/// `src/kernel.rs:42:9`, relative to the working directory where the file is below it.
impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let here = std::env::current_dir().ok();
        let path = Path::new(&*self.file);
        let path = here.and_then(|here| path.strip_prefix(here).ok()).unwrap_or(path);
        write!(f, "{}:{}", path.display(), self.line)?;
        match self.column {
            0 => Ok(()),
            column => write!(f, ":{column}"),
        }
    }
}

/// File, line, column.
pub(super) type Place = (u32, u32, u32);

#[derive(Debug)]
struct Mark {
    ptx_line: u32,
    place: Place,
    /// Where the function of this place was inlined, from the inside out.
    callers: Box<[Place]>,
}

/// The table of a module.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    files: HashMap<u32, Arc<str>>,
    /// By line of the PTX. A mark without a file begins a function.
    marks: Vec<Mark>,
}

impl Lines {
    pub(super) fn file(&mut self, number: u32, path: &str) {
        self.files.insert(number, path.into());
    }

    /// A function begins, whose instructions have no place until the next `.loc`.
    pub(super) fn function(&mut self, ptx_line: u32) {
        self.marks.push(Mark { ptx_line, place: (0, 0, 0), callers: Box::default() });
    }

    pub(super) fn loc(&mut self, ptx_line: u32, place: Place, mut callers: Vec<Place>) {
        // `inlined_at` names the place of an earlier `.loc` of the function, which may be inlined itself
        if let [caller] = callers[..] {
            let function = self.marks.iter().rev().take_while(|mark| mark.place.0 != 0);
            let outer = { function }.find(|mark| mark.place == caller && !mark.callers.is_empty());
            callers.extend(outer.iter().flat_map(|mark| mark.callers.iter().copied()));
        }
        self.marks.push(Mark { ptx_line, place, callers: callers.into() });
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The places of the instruction on a line of the PTX, from the inside out; none where they are not known.
    pub fn find(&self, ptx_line: u32) -> Vec<SourceLine> {
        if self.is_empty() {
            return Vec::new();
        }
        let after = self.marks.partition_point(|mark| mark.ptx_line <= ptx_line);
        let Some(mark) = after.checked_sub(1).map(|at| &self.marks[at]) else { return Vec::new() };
        let places = std::iter::once(&mark.place).chain(&mark.callers);
        let known = places.filter(|place| place.1 > 0); // line 0: the compiler's own code
        known
            .filter_map(|&(file, line, column)| {
                self.files.get(&file).map(|file| SourceLine { file: file.clone(), line, column })
            })
            .collect()
    }
}
