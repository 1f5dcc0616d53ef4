//! The tensors of a directory as published, by the names of [`Config::tensors`]: which file has them and in which layout.
//!
//! | layout  | in the files                                                                                          |
//! |---------|-------------------------------------------------------------------------------------------------------|
//! | whole   | the tensor itself                                                                                     |
//! | stacked | `experts.gate_up_proj` [experts, hidden, 2 · inner], gates first, and `experts.down_proj` [experts, inner, hidden]; or each matrix transposed, as linear maps have it. Shapes tell which |
//! | each    | `experts.‹number›.gate_proj.weight` and so on, a matrix per expert                                    |
//!
//! Each may be in FP8 (E4M3), with `‹name›_scale_inv` beside it: a factor for each block of a matrix, of which the last ones may be
//! partial. Values are read some rows at a time, so that no matrix need be in memory twice.

use super::json::{self, MAX_CONFIG, bad};
use super::number::Number;
use super::safetensors::{Entry, FileType, SafeTensors};
use super::seam::{Config, ExpertPart};
use pascaline::Result;
use rayon::prelude::*;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The stacks of a layer's experts.
const GATE_UP: &str = "gate_up_proj";
const DOWN: &str = "down_proj";
/// Values of an FP8 matrix that are read at a time, at least a row of blocks.
const PIECE: usize = 4 << 20;

/// A checkpoint's files, checked: no tensor is missing, none unknown, all of the right shape.
pub(super) struct Published {
    files: Vec<SafeTensors>,
    tensors: BTreeMap<String, Stored>,
    /// Rows and columns of a block of FP8 values.
    block: [usize; 2],
}

/// A tensor of the model.
struct Stored {
    shape: Vec<usize>,
    layout: Layout,
}

enum Layout {
    Whole(Source),
    Stacked {
        source: Source,
        /// Whether a matrix's columns are the rows of the linear map.
        transposed: bool,
        /// The first row of the linear map in the file's matrix.
        first: usize,
    },
    Each(Vec<Source>),
}

/// A tensor of a file.
struct Source {
    file: usize,
    name: String,
    /// The file of its scales, if it is in FP8.
    scales: Option<usize>,
}

/// The value of a code of FP8 E4M3: sign, four bits of exponent with bias 7, three of fraction.
fn e4m3(code: u8) -> f32 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction / 8.0 * 2f32.powi(-6),
        _ => (1.0 + fraction / 8.0) * 2f32.powi(exponent - 7),
    };
    if code >> 7 == 1 { -magnitude } else { magnitude }
}

/// The dimensions of a tensor as a matrix: experts' matrices lie one below the other, and a convolution's kernel has a row per output
/// channel.
pub(super) fn matrix(shape: &[usize]) -> [usize; 2] {
    match *shape {
        [experts, rows, columns] => [experts * rows, columns],
        [rows, ref rest @ ..] => [rows, rest.iter().product()],
        [] => [0, 0],
    }
}

impl Published {
    /// Opens the checkpoint in `dir` and checks every name, type and shape.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the file and the tensor.
    pub fn open(dir: &Path, config: &Config) -> Result<Self> {
        let files = open_files(dir)?;
        let held = files.iter().map(|file| file.entries().len()).sum();
        if let Some(count) = config.far_more_than(held) {
            let reason = format!("the configuration has {count} tensors, the files only {held}");
            return Err(bad(&dir.join("config.json"), Some("num_hidden_layers or depth"), reason));
        }
        let mut index: HashMap<&str, usize> = HashMap::new();
        for (number, file) in files.iter().enumerate() {
            for name in file.entries().keys() {
                if let Some(other) = index.insert(name, number) {
                    let reason = format!("is in {} too", files[other].path().display());
                    return Err(bad(file.path(), Some(name), reason));
                }
            }
        }
        let entry = |name: &str| index.get(name).and_then(|&file| files[file].entries().get(name));
        let mut wanted: BTreeMap<String, Vec<Vec<usize>>> = BTreeMap::new();
        let mut plans = Vec::new();
        for (name, shape) in config.tensors() {
            let plan = Plan::new(&name, &shape, &entry);
            for (name, shapes) in plan.sources(&name, &shape) {
                wanted.insert(name, shapes);
            }
            plans.push((name, shape, plan));
        }
        for file in &files {
            for (name, entry) in file.entries() {
                check(file, name, entry, &wanted, &files, &index, config)?;
            }
        }
        let mut missing = wanted.keys().filter(|name| !index.contains_key(name.as_str()));
        if let Some(name) = missing.next() {
            let others = match missing.count() {
                0 => String::new(),
                others => format!(", and {others} more"),
            };
            return Err(bad(dir, Some(name), format!("is in no file of the checkpoint{others}")));
        }
        let source = |name: &str| {
            let file = index.get(name).copied().unwrap_or(0); // none is missing
            let scales = index.get(&*scales_of(name)).copied();
            Source { file, name: name.to_owned(), scales }
        };
        let stored = |(name, shape, plan): (String, Vec<usize>, Plan)| {
            let layout = match plan {
                Plan::Whole => Layout::Whole(source(&name)),
                Plan::Stacked { file_name, other, first } => {
                    // a square matrix does not tell; then the other is not square
                    let told =
                        [&file_name, &other].into_iter().find_map(|name| match entry(name)?.shape[..] {
                            [_, height, width] if height != width => {
                                let inputs = if name.ends_with(DOWN) { width } else { height };
                                Some(inputs == config.text.hidden_size)
                            }
                            _ => None,
                        });
                    let source = source(&file_name);
                    Layout::Stacked { source, transposed: told.unwrap_or(true), first: first.unwrap_or(0) }
                }
                Plan::Each(names) => Layout::Each(names.iter().map(|name| source(name)).collect()),
            };
            (name, Stored { shape, layout })
        };
        let tensors = plans.into_iter().map(stored).collect();
        let block = config.fp8_block.unwrap_or([1, 1]);
        Ok(Self { tensors, block, files })
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.tensors.keys()
    }

    fn find(&self, name: &str) -> Result<&Stored> {
        let folder = self.files.first().and_then(|file| file.path().parent()).unwrap_or(Path::new(""));
        self.tensors.get(name).ok_or_else(|| bad(folder, Some(name), "is not a tensor of this model"))
    }

    pub fn shape(&self, name: &str) -> Result<&[usize]> {
        Ok(&self.find(name)?.shape)
    }

    /// The rows of a matrix that are read at a time: all, unless it is of experts or in FP8.
    pub fn piece_rows(&self, name: &str) -> Result<usize> {
        let Stored { shape, layout } = self.find(name)?;
        let [rows, columns] = matrix(shape);
        Ok(match layout {
            Layout::Whole(Source { scales: None, .. }) => rows,
            Layout::Whole(_) => {
                let block = self.block[0];
                (PIECE / columns.max(1) / block * block).max(block)
            }
            Layout::Stacked { .. } | Layout::Each(_) => shape[1],
        })
    }

    /// Whether a tensor is read some rows at a time.
    pub fn is_in_pieces(&self, name: &str) -> Result<bool> {
        self.find(name)?;
        Ok(!self.is_whole(name))
    }

    /// Some rows of a matrix. Of experts' they are one expert's.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the tensor and the element that is no number, or beyond the type's range.
    pub fn rows<T: Number>(&self, name: &str, rows: Range<usize>) -> Result<Vec<T>> {
        let Stored { shape, layout } = self.find(name)?;
        let columns = matrix(shape)[1];
        match layout {
            Layout::Whole(source) => self.read(source, [0, columns], rows),
            Layout::Each(sources) => {
                let expert = rows.start / shape[1];
                self.read(&sources[expert.min(sources.len() - 1)], [0, columns], 0..shape[1])
            }
            Layout::Stacked { source, transposed, first } => {
                let expert = rows.start / shape[1];
                let [_, height, width] = self.entry(source)?.shape[..] else {
                    return Err(self.files[source.file].bad(&source.name, "is no stack of matrices"));
                };
                if !transposed {
                    return self.read(source, [expert * height, width], *first..first + shape[1]);
                }
                let values: Vec<T> = self.read(source, [expert * height, width], 0..height)?;
                let mut turned = vec![T::default(); shape[1] * columns];
                turned.par_chunks_exact_mut(columns.max(1)).enumerate().for_each(|(row, turned)| {
                    for (value, from) in turned.iter_mut().zip(values.chunks_exact(width)) {
                        *value = from[first + row];
                    }
                });
                Ok(turned)
            }
        }
    }

    /// All values of a tensor.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub fn all<T: Number>(&self, name: &str) -> Result<Vec<T>> {
        let (rows, step) = (matrix(self.shape(name)?)[0], self.piece_rows(name)?);
        if step >= rows {
            return self.rows(name, 0..rows);
        }
        let mut values = Vec::new();
        for start in (0..rows).step_by(step.max(1)) {
            values.append(&mut self.rows(name, start..rows.min(start + step))?);
        }
        Ok(values)
    }

    /// Whether a tensor is one of a file, in numbers.
    pub fn is_whole(&self, name: &str) -> bool {
        self.find(name)
            .is_ok_and(|stored| matches!(stored.layout, Layout::Whole(Source { scales: None, .. })))
    }

    /// Values of such a tensor, from number `first` on.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub fn read_into<T: Number>(&self, name: &str, first: usize, values: &mut [T]) -> Result<()> {
        let Layout::Whole(source) = &self.find(name)?.layout else {
            return Err(self.files[0].bad(name, "is no tensor of a file"));
        };
        self.files[source.file].read_into(&source.name, first, values)
    }

    fn entry(&self, source: &Source) -> Result<&Entry> {
        let file = &self.files[source.file];
        file.entries().get(&source.name).ok_or_else(|| file.bad(&source.name, "missing"))
    }

    /// Rows of the matrix that begins at row `base` of a file's tensor, whose rows have `columns` values.
    fn read<T: Number>(
        &self,
        source: &Source,
        [base, columns]: [usize; 2],
        rows: Range<usize>,
    ) -> Result<Vec<T>> {
        let file = &self.files[source.file];
        let range = (base + rows.start) * columns..(base + rows.end) * columns;
        let Some(scale_file) = source.scales.filter(|_| self.entry(source).is_ok_and(is_fp8)) else {
            return file.read(&source.name, range);
        };
        let entry = self.entry(source)?;
        let [height, width] = [entry.shape[entry.shape.len() - 2], columns];
        let [down, across] = [height.div_ceil(self.block[0]), width.div_ceil(self.block[1])];
        let matrix = base / height.max(1); // `base` is the first row of one
        let scales = self.files[scale_file]
            .read::<f32>(&scales_of(&source.name), matrix * down * across..(matrix + 1) * down * across)?;
        let codes = file.read_bytes(&source.name, range.clone())?;
        let table: Vec<f32> = (0..=255).map(e4m3).collect();
        let mut values = vec![T::default(); codes.len()];
        let lines = values.par_chunks_exact_mut(width).zip(codes.par_chunks_exact(width)).enumerate();
        lines.for_each(|(line, (values, codes))| {
            let of_row = &scales[(rows.start + line) / self.block[0] * across..];
            let blocks = values.chunks_mut(self.block[1]).zip(codes.chunks(self.block[1]));
            for ((values, codes), scale) in blocks.zip(of_row) {
                for (value, code) in values.iter_mut().zip(codes) {
                    *value = T::from_f32(table[usize::from(*code)] * scale);
                }
            }
        });
        let Some(at) = values.par_iter().position_first(|value| !value.is_finite()) else {
            return Ok(values);
        };
        let code = codes[at];
        let reason = match table[usize::from(code)].is_nan() {
            true => format!("element {} is NaN (code {code:#04x})", range.start + at),
            false => format!("element {} is beyond the range of f16 (±65504); use f32", range.start + at),
        };
        Err(file.bad(&source.name, reason))
    }
}

fn is_fp8(entry: &Entry) -> bool {
    entry.dtype == FileType::F8E4M3
}

/// The name of an FP8 tensor's scales.
fn scales_of(name: &str) -> String {
    format!("{name}_scale_inv")
}

/// The layout of a tensor of the model, by the names in the files.
enum Plan {
    Whole,
    Stacked {
        file_name: String,
        /// The layer's other stack.
        other: String,
        /// Rows of the linear map before this one in a matrix that holds two; `None` if it holds one.
        first: Option<usize>,
    },
    Each(Vec<String>),
}

impl Plan {
    fn new<'a>(name: &str, shape: &[usize], entry: &dyn Fn(&str) -> Option<&'a Entry>) -> Self {
        let Some((prefix, part)) = ExpertPart::of(name) else { return Self::Whole };
        let each = |expert: usize| format!("{prefix}{expert}.{}.weight", part.name());
        if entry(&each(0)).is_some() {
            return Self::Each((0..shape[0]).map(each).collect());
        }
        let [gate_up, down] = [GATE_UP, DOWN].map(|name| format!("{prefix}{name}"));
        match part {
            ExpertPart::Gate => Self::Stacked { file_name: gate_up, other: down, first: Some(0) },
            ExpertPart::Up => Self::Stacked { file_name: gate_up, other: down, first: Some(shape[1]) },
            ExpertPart::Down => Self::Stacked { file_name: down, other: gate_up, first: None },
        }
    }

    /// The tensors in the files, and the shapes that they may have.
    fn sources(&self, name: &str, shape: &[usize]) -> Vec<(String, Vec<Vec<usize>>)> {
        match self {
            Self::Whole => vec![(name.to_owned(), vec![shape.to_vec()])],
            Self::Stacked { file_name, first, .. } => {
                let rows = if first.is_some() { 2 * shape[1] } else { shape[1] };
                let shapes = vec![vec![shape[0], shape[2], rows], vec![shape[0], rows, shape[2]]];
                vec![(file_name.clone(), shapes)]
            }
            Self::Each(names) => names.iter().map(|name| (name.clone(), vec![shape[1..].to_vec()])).collect(),
        }
    }
}

/// Checks a tensor of a file: that the model has it, and its shape and type; of scales, whose they are.
fn check(
    file: &SafeTensors,
    name: &str,
    entry: &Entry,
    wanted: &BTreeMap<String, Vec<Vec<usize>>>,
    files: &[SafeTensors],
    index: &HashMap<&str, usize>,
    config: &Config,
) -> Result<()> {
    let of_codes = name.strip_suffix("_scale_inv").filter(|codes| wanted.contains_key(*codes));
    let codes = of_codes.and_then(|codes| files[*index.get(codes)?].entries().get(codes));
    if let Some(codes) = codes.filter(|codes| is_fp8(codes)) {
        let [down, across] = config.fp8_block.unwrap_or([1, 1]);
        let mut expected = codes.shape.clone();
        if let [.., rows, columns] = &mut expected[..] {
            (*rows, *columns) = (rows.div_ceil(down), columns.div_ceil(across));
        }
        return match entry.shape == expected && !matches!(entry.dtype, FileType::I64 | FileType::F8E4M3) {
            true => Ok(()),
            false => {
                let found = (entry.dtype, &entry.shape);
                let reason = format!("is {found:?}; blocks of {down} × {across} need {expected:?}");
                Err(file.bad(name, reason))
            }
        };
    }
    let Some(shapes) = wanted.get(name) else {
        return Err(file.bad(name, "is not a tensor of this model"));
    };
    if !shapes.contains(&entry.shape) {
        let expected: Vec<_> = shapes.iter().map(|shape| format!("{shape:?}")).collect();
        let expected = expected.join(" or ");
        let reason = format!("has shape {:?}, the configuration says {expected}", entry.shape);
        return Err(file.bad(name, reason));
    }
    match entry.dtype {
        FileType::I64 => Err(file.bad(name, "holds integers")),
        FileType::F8E4M3 if config.fp8_block.is_none() => {
            Err(file.bad(name, "is FP8, and config.json has no quantization_config of that kind"))
        }
        FileType::F8E4M3 if entry.shape.len() < 2 => Err(file.bad(name, "is FP8, and no matrix")),
        FileType::F8E4M3 if !index.contains_key(&*scales_of(name)) => {
            Err(file.bad(name, format!("is FP8, and its scales, {}, are in no file", scales_of(name))))
        }
        _ => Ok(()),
    }
}

/// `model.safetensors`, or the files that `model.safetensors.index.json` names.
fn open_files(dir: &Path) -> Result<Vec<SafeTensors>> {
    let index_path = dir.join("model.safetensors.index.json");
    if !index_path.exists() {
        return Ok(vec![SafeTensors::open(dir.join("model.safetensors"))?]);
    }
    let index = json::read_object(&index_path, MAX_CONFIG)?;
    let Some(Value::Object(map)) = index.get("weight_map") else {
        return Err(bad(&index_path, Some("weight_map"), "missing or not an object"));
    };
    let mut names = BTreeSet::new();
    for (tensor, file) in map {
        let plain = file.as_str().filter(|name| {
            let path = Path::new(name);
            path.file_name().is_some_and(|file| file == *name) && path.parent() == Some(Path::new(""))
        });
        match plain {
            Some(name) => names.insert(name),
            None => return Err(bad(&index_path, Some(tensor), format!("{file} is not a file name"))),
        };
    }
    let files: Vec<_> =
        names.iter().map(|name| SafeTensors::open(PathBuf::from(dir).join(name))).collect::<Result<_>>()?;
    for (name, file) in names.iter().zip(&files) {
        for tensor in file.entries().keys() {
            if map.get(tensor).and_then(Value::as_str) != Some(name) {
                return Err(bad(
                    &index_path,
                    Some(tensor),
                    format!("is in {name}, the index says otherwise"),
                ));
            }
        }
    }
    let held: BTreeSet<_> = files.iter().flat_map(|file| file.entries().keys()).collect();
    match map.iter().find(|(tensor, _)| !held.contains(tensor)) {
        None => Ok(files),
        Some((tensor, file)) => Err(bad(&index_path, Some(tensor), format!("is not in {file}"))),
    }
}
