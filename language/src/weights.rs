//! The tensors of a checkpoint: which ones a model needs, where they are, and loading them.

use super::adapter::Adapter;
use super::gguf_model::Tensors;
use super::json::bad;
use super::number::Number;
use super::options::{LoadOptions, Matrices, Storage};
use super::published::{Published, matrix};
use super::rows::{self, Cut};
use super::seam::{self, Config, ExpertPart};
use half::f16;
use pascaline::nn::{Change, Matrix};
use pascaline::quant::{DeviceStorage, Format, GgmlType, QuantTensor};
use pascaline::{DType, Device, Error, Result, Tensor, ops};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A checkpoint's tensors, checked: none missing, none unknown, all of the right shape.
pub struct Weights {
    source: Source,
    /// name → taken
    index: BTreeMap<String, bool>,
    device: Device,
    dtype: DType,
    format: Option<Format>,
    /// Whether quantised tensors of a file stay quantised.
    keep: bool,
    /// A buffer for blocks that are read from a file; reused.
    blocks: Vec<u8>,
    /// Matrices of which devices take parts, each read once.
    held: Held,
    conversions: BTreeMap<GgmlType, Conversion>,
    /// Merged into the matrices while they are read.
    adapter: Option<Arc<Adapter>>,
    /// Beside the matrices that are taken next, of whatever type.
    beside: Option<Arc<Adapter>>,
    /// What has been loaded, if several towers share it.
    shared: Option<Shared>,
}

/// Loaded tensors by their names, parts and devices.
#[derive(Default)]
struct Shared {
    matrices: HashMap<String, Matrix>,
    vectors: HashMap<String, Tensor>,
}

/// Matrices whose type has no kernels, and the format that they were converted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// In the file.
    pub from: GgmlType,
    /// On the device.
    pub to: Format,
    /// How many.
    pub matrices: usize,
}

pub use super::seam::Progress;

/// Whole matrices in host memory, by name.
#[derive(Default)]
struct Held {
    f32s: HashMap<String, Vec<f32>>,
    f16s: HashMap<String, Vec<f16>>,
    /// Blocks as the file has them.
    blocks: HashMap<String, Vec<u8>>,
    /// How often one was read.
    reads: usize,
}

/// An element of what is held.
trait Element: Copy {
    fn held(held: &mut Held) -> &mut HashMap<String, Vec<Self>>;
}

impl Element for f32 {
    fn held(held: &mut Held) -> &mut HashMap<String, Vec<Self>> {
        &mut held.f32s
    }
}

impl Element for f16 {
    fn held(held: &mut Held) -> &mut HashMap<String, Vec<Self>> {
        &mut held.f16s
    }
}

impl Element for u8 {
    fn held(held: &mut Held) -> &mut HashMap<String, Vec<Self>> {
        &mut held.blocks
    }
}

impl Held {
    /// A matrix, which `read` reads if it is not held.
    fn get<T: Element>(&mut self, name: &str, read: impl FnOnce() -> Result<Vec<T>>) -> Result<&[T]> {
        if !T::held(self).contains_key(name) {
            let values = read()?;
            self.reads += 1;
            T::held(self).insert(name.to_owned(), values);
        }
        Ok(T::held(self).get(name).map_or(&[], Vec::as_slice)) // it has just been seen there
    }
}

impl Weights {
    /// Opens the checkpoint in `dir` and checks every name, type and shape before anything is loaded. `dtype` (f32 or
    /// f16) is what matrices are stored as on `device`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the file and the tensor.
    pub fn open(dir: &Path, config: &Config, dtype: DType, device: &Device) -> Result<Self> {
        check_dtype(dtype)?;
        Ok(Self::new(Source::Published(Published::open(dir, config)?), dtype, device))
    }

    /// Loads all further tensors onto this device.
    pub(super) fn load_onto(&mut self, device: &Device) {
        self.device = device.clone();
    }

    /// The tensors of GGUF files, checked already.
    pub(crate) fn of_gguf(tensors: Tensors, dtype: DType, device: &Device) -> Result<Self> {
        check_dtype(dtype)?;
        Ok(Self::new(Source::Gguf(tensors), dtype, device))
    }

    /// Those of a model of which sizes alone are known, for planned devices: they have no values.
    pub(super) fn planned(config: &Config, storage: &dyn Fn(&str) -> Storage, device: &Device) -> Self {
        let stored = |(name, shape): (String, Vec<usize>)| {
            let storage = storage(&name);
            (name, (shape, storage))
        };
        Self::new(Source::Planned(config.tensors().into_iter().map(stored).collect()), DType::F32, device)
    }

    fn new(source: Source, dtype: DType, device: &Device) -> Self {
        let index = source.names().map(|name| (name.clone(), false)).collect();
        let (blocks, conversions) = (Vec::new(), BTreeMap::new());
        let (device, adapter, beside, shared) = (device.clone(), None, None, None);
        let (format, keep, held) = (None, false, Held::default());
        Self {
            source,
            index,
            device,
            dtype,
            format,
            keep,
            blocks,
            held,
            conversions,
            adapter,
            beside,
            shared,
        }
    }

    /// Merges an adapter into the matrices while they are read.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if the adapter changes a tensor that is no matrix of the model, or has another shape.
    pub(crate) fn adapted(self, adapter: Arc<Adapter>, file: &Path) -> Result<Self> {
        self.check(&adapter, file)?;
        Ok(Self { adapter: Some(adapter), ..self })
    }

    /// Keeps what is loaded from now on for further towers, which share its memory.
    pub(super) fn share(&mut self) {
        self.shared = Some(Shared::default());
    }

    /// The matrices that are taken next have this adapter beside them, of whatever type. It has been checked.
    pub(super) fn beside(&mut self, adapter: Arc<Adapter>) {
        self.beside = Some(adapter);
    }

    /// Checks that an adapter changes matrices of this model.
    ///
    /// # Errors
    /// As [`adapted`](Self::adapted).
    pub(super) fn check(&self, adapter: &Adapter, file: &Path) -> Result<()> {
        for (module, low) in adapter.maps() {
            let shape = self.source.shape(&format!("{module}.weight"));
            match shape {
                Ok(_) if module.ends_with(".mlp.gate") => {
                    return Err(bad(
                        file,
                        Some(module),
                        "changes the router of a mixture, which is read without adapters",
                    ));
                }
                Ok(shape) if shape == low.shape => {}
                Ok(shape) => {
                    let reason = format!("changes a matrix of {:?}, the model's is {shape:?}", low.shape);
                    return Err(bad(file, Some(module), reason));
                }
                Err(_) => return Err(bad(file, Some(module), "is no linear map of the model")),
            }
        }
        Ok(())
    }

    /// As the options say.
    pub(super) fn stored_as(self, options: &LoadOptions) -> Self {
        match options.quantize {
            Some(format) => self.quantized(format),
            None if options.keep_quantized => self.kept(),
            None => self,
        }
    }

    /// Keeps quantised tensors of GGUF files quantised. Types without kernels are converted to the nearest format with
    /// kernels.
    pub fn kept(self) -> Self {
        Self { keep: true, ..self }
    }

    /// The types converted so far because they have no kernels.
    pub fn conversions(&self) -> Vec<Conversion> {
        self.conversions.values().copied().collect()
    }

    /// Stores all further matrices in this type.
    pub fn store_as(&mut self, matrices: Matrices) {
        self.keep = false;
        (self.dtype, self.format) = match matrices {
            Matrices::Float(dtype) => (dtype, None),
            Matrices::Quantized(format) => (self.dtype, Some(format)),
        };
    }

    /// Quantises the matrices of linear maps and embeddings on the device while they are loaded.
    pub fn quantized(self, format: Format) -> Self {
        Self { format: Some(format), ..self }
    }

    /// The matrix of a linear map or embedding; of several tensors of equal width, their rows concatenated.
    ///
    /// # Errors
    /// As [`matrix`](Self::matrix).
    pub fn weight(&mut self, names: &[impl AsRef<str>]) -> Result<Matrix> {
        self.cut(names, Cut::Whole)
    }

    /// As [`weight`](Self::weight), with the part of each tensor that one of several devices takes. Whole tensors are held in
    /// host memory for the other devices until [`let_go`](Self::let_go).
    ///
    /// # Errors
    /// As [`weight`](Self::weight).
    pub fn cut(&mut self, names: &[impl AsRef<str>], cut: Cut) -> Result<Matrix> {
        let key =
            format!("{:?} {cut:?} {}", names.iter().map(AsRef::as_ref).collect::<Vec<_>>(), self.device);
        let loaded = self.shared.as_ref().and_then(|shared| shared.matrices.get(&key).cloned());
        let matrix = loaded.map_or_else(|| self.load(names, cut), Ok)?;
        if let Some(shared) = &mut self.shared {
            shared.matrices.insert(key, matrix.clone());
        }
        match &self.beside {
            Some(adapter) => matrix.with(&self.change(adapter, names, cut)?),
            None => Ok(matrix),
        }
    }

    /// Loads what [`cut`](Self::cut) returns, with the adapter that is merged.
    fn load(&mut self, names: &[impl AsRef<str>], cut: Cut) -> Result<Matrix> {
        if let Source::Planned(_) = self.source {
            return self.cut_planned(names, cut);
        }
        if cut == Cut::Whole && self.in_pieces(names)? {
            let storage = self.format.map_or(Storage::Float(self.dtype), Storage::Quantized);
            let base = self.read_pieces(names, storage)?;
            return if self.format.is_some() { self.with_merged(base, names, cut) } else { Ok(base) };
        }
        if let Some(format) = self.format {
            return self.requantized(names, cut, format);
        }
        if !self.keep {
            return Ok(self.stacked_cut(names, cut)?.into());
        }
        let types = names.iter().map(|name| self.source.ty(name.as_ref())).collect::<Result<Vec<_>>>()?;
        let mut parts = Vec::new();
        let mut rest = names;
        for run in types.chunk_by(|a, b| a == b) {
            let (names, others) = rest.split_at(run.len());
            parts.push(match run[0].map_or(DeviceStorage::Plain, DeviceStorage::from) {
                DeviceStorage::Plain => self.stacked_cut(names, cut)?.into(),
                DeviceStorage::AsIs(format) => {
                    let base = self.as_is(names, cut, format)?;
                    self.with_merged(base, names, cut)?
                }
                DeviceStorage::Converted(format) => {
                    if let Some(from) = run[0] {
                        let none = Conversion { from, to: format, matrices: 0 };
                        self.conversions.entry(from).or_insert(none).matrices += names.len();
                    }
                    self.requantized(names, cut, format)?
                }
            });
            rest = others;
        }
        Matrix::stacked(parts)
    }

    /// As [`cut`](Self::cut), without values.
    fn cut_planned(&mut self, names: &[impl AsRef<str>], cut: Cut) -> Result<Matrix> {
        let mut runs: Vec<(Storage, [usize; 2])> = Vec::new();
        if let [name] = names
            && ExpertPart::of(name.as_ref()).is_some()
            && !matches!(self.source.storage(name.as_ref()), Storage::Stored(_))
        {
            return self.read_pieces(names, self.source.storage(name.as_ref()));
        }
        for name in names.iter().map(AsRef::as_ref) {
            let (source, own) = self.take(name)?;
            let storage = source.storage(name);
            let [rows, columns] = cut.ranges(matrix(&own)).map(|range| range.len());
            match runs.last_mut() {
                Some((same, shape)) if *same == storage => shape[0] += rows,
                _ => runs.push((storage, [rows, columns])),
            }
        }
        let part = |(storage, shape): (Storage, [usize; 2])| {
            Ok(match storage {
                Storage::Float(dtype) => Tensor::uninitialized(shape, dtype, &self.device)?.into(),
                Storage::Stored(format) => {
                    QuantTensor::uninitialized(format, shape.into(), &self.device)?.into()
                }
                Storage::Quantized(format) => {
                    let values = vec![0.0; shape[0] * shape[1]]; // zero pages that are never touched
                    QuantTensor::from_f32(&values, shape, format, &self.device)?.into()
                }
            })
        };
        Matrix::stacked(runs.into_iter().map(part).collect::<Result<_>>()?)
    }

    /// Frees the matrices of which all devices have taken their parts.
    pub fn let_go(&mut self) {
        self.held = Held { reads: self.held.reads, ..Held::default() };
    }

    /// Whether tensors of a directory are read some rows at a time: experts' and those in FP8, unless an adapter is merged.
    fn in_pieces(&self, names: &[impl AsRef<str>]) -> Result<bool> {
        let Source::Published(published) = &self.source else { return Ok(false) };
        let mut any = false;
        for name in names.iter().map(AsRef::as_ref) {
            if self.format.is_none() && self.is_adapted(name) {
                return Ok(false);
            }
            any |= published.is_in_pieces(name)?;
        }
        Ok(any)
    }

    /// Matrices of equal width as one, their rows concatenated, read some rows at a time.
    fn read_pieces(&mut self, names: &[impl AsRef<str>], storage: Storage) -> Result<Matrix> {
        let mut shape = [0; 2];
        for name in names.iter().map(AsRef::as_ref) {
            let [rows, columns] = matrix(&self.take(name)?.1);
            shape = [shape[0] + rows, columns];
        }
        let mut base: Matrix = match storage {
            Storage::Float(dtype) => Tensor::uninitialized(shape, dtype, &self.device)?.into(),
            Storage::Stored(format) | Storage::Quantized(format) => {
                QuantTensor::uninitialized(format, shape.into(), &self.device)?.into()
            }
        };
        let mut to = 0;
        for name in names.iter().map(AsRef::as_ref) {
            let [rows, columns] = matrix(self.source.shape(name)?);
            let step = self.source.piece_rows(name)?.max(1);
            for start in (0..rows).step_by(step) {
                let (range, len) = (start..rows.min(start + step), step.min(rows - start));
                match &mut base {
                    Matrix::Quantized(base) => {
                        base.write_rows(to, &self.source.rows::<f32>(name, range)?)?;
                    }
                    Matrix::Plain(base) => {
                        let piece = match base.dtype() {
                            DType::F16 => {
                                let values = self.source.rows::<f16>(name, range)?;
                                Tensor::from_slice(&values, [len, columns], &self.device)?
                            }
                            _ => {
                                let values = self.source.rows::<f32>(name, range)?;
                                Tensor::from_slice(&values, [len, columns], &self.device)?
                            }
                        };
                        ops::copy_into(base.view_mut()?.narrow(0, to, len)?, &piece)?;
                    }
                    Matrix::Stacked(_) | Matrix::Adapted(_) => {} // neither is made above
                }
                to += len;
            }
        }
        Ok(base)
    }

    fn requantized(&mut self, names: &[impl AsRef<str>], cut: Cut, format: Format) -> Result<Matrix> {
        let (values, shape) = self.read(names, cut, Source::all)?;
        let base = QuantTensor::from_f32(&values, shape, format, &self.device)?;
        self.with_merged(base.into(), names, cut)
    }

    /// The merged adapter's change beside a quantised matrix, which merging would round anew.
    fn with_merged(&self, base: Matrix, names: &[impl AsRef<str>], cut: Cut) -> Result<Matrix> {
        match &self.adapter {
            Some(adapter) => base.with(&self.change(adapter, names, cut)?),
            None => Ok(base),
        }
    }

    /// An adapter's change of what [`cut`](Self::cut) returns, on the device that is loaded onto.
    ///
    /// # Errors
    /// [`Error::Checkpoint`], or a device error.
    pub(super) fn change(&self, adapter: &Adapter, names: &[impl AsRef<str>], cut: Cut) -> Result<Change> {
        let ranges = |name: &str| {
            let shape = self.source.shape(name)?;
            Ok(cut.ranges(matrix(shape)))
        };
        let ranges = names.iter().map(|name| ranges(name.as_ref())).collect::<Result<Vec<_>>>()?;
        let Some([a, b]) = adapter.stacked(names, &ranges) else { return Ok(None) };
        let [a, b] = [a, b].map(|(values, shape)| Tensor::from_slice(&values, shape, &self.device));
        Ok(Some([a?, b?]))
    }

    /// Blocks as the file has them.
    fn as_is(&mut self, names: &[impl AsRef<str>], cut: Cut, format: Format) -> Result<Matrix> {
        let (mut sizes, mut shape, mut cuts) = (Vec::new(), [0; 2], Vec::new());
        for name in names.iter().map(AsRef::as_ref) {
            let (source, own) = self.take(name)?;
            let [rows, columns] = cut.ranges(matrix(&own));
            shape = [shape[0] + rows.len(), columns.len()];
            let in_row = source.bytes_of(name, columns.start)?..source.bytes_of(name, columns.end)?;
            let row = source.bytes_of(name, matrix(&own)[1])?;
            sizes.push(source.bytes(name)?);
            cuts.push((row, [rows, in_row]));
        }
        if cut != Cut::Whole {
            let mut taken = Vec::new();
            for ((name, size), (row, ranges)) in names.iter().map(AsRef::as_ref).zip(&sizes).zip(&cuts) {
                let blocks = self.held.get(name, || {
                    let mut blocks = vec![0; *size];
                    self.source.read_blocks(name, &mut blocks)?;
                    Ok(blocks)
                })?;
                rows::take(&mut taken, blocks, *row, ranges);
            }
            return Ok(QuantTensor::from_gguf_bytes(format, shape, &taken, &self.device)?.into());
        }
        let size = sizes.iter().sum();
        if self.blocks.len() < size {
            self.blocks = vec![0; size];
        }
        let blocks = &mut self.blocks[..size];
        let mut rest = &mut *blocks;
        for (name, size) in names.iter().zip(&sizes) {
            let (own, others) = rest.split_at_mut(*size);
            self.source.read_blocks(name.as_ref(), own)?;
            rest = others;
        }
        Ok(QuantTensor::from_gguf_bytes(format, shape, blocks, &self.device)?.into())
    }

    /// A matrix in the chosen storage type.
    ///
    /// # Errors
    /// [`Error::Checkpoint`], or a device error.
    pub fn matrix(&mut self, name: &str) -> Result<Tensor> {
        self.stacked(&[name])
    }

    /// Matrices of equal width as one, their rows concatenated.
    ///
    /// # Errors
    /// As [`matrix`](Self::matrix).
    pub fn stacked(&mut self, names: &[impl AsRef<str>]) -> Result<Tensor> {
        self.stacked_cut(names, Cut::Whole)
    }

    fn stacked_cut(&mut self, names: &[impl AsRef<str>], cut: Cut) -> Result<Tensor> {
        let is_adapted = names.iter().any(|name| self.is_adapted(name.as_ref()));
        if cut == Cut::Whole && !is_adapted && names.iter().all(|name| self.source.is_whole(name.as_ref())) {
            return match self.dtype {
                DType::F16 => self.direct::<f16>(names),
                _ => self.direct::<f32>(names),
            };
        }
        if self.dtype == DType::F16 && !is_adapted {
            let (values, shape) = self.read(names, cut, Source::all::<f16>)?;
            return Tensor::from_slice(&values, shape, &self.device);
        }
        let (values, shape) = self.read_adapted(names, cut)?;
        if self.dtype == DType::F16 {
            let values: Vec<f16> = values.into_iter().map(f16::from_f32).collect();
            return Tensor::from_slice(&values, shape, &self.device);
        }
        Tensor::from_slice(&values, shape, &self.device)
    }

    /// Matrices of equal width as one, their rows concatenated, read into the memory that the device copies from.
    fn direct<T: Number>(&mut self, names: &[impl AsRef<str>]) -> Result<Tensor> {
        let (mut parts, mut shape) = (Vec::new(), [0; 2]);
        for name in names.iter().map(AsRef::as_ref) {
            let [rows, columns] = matrix(&self.take(name)?.1);
            parts.push((shape[0] * columns, name));
            shape = [shape[0] + rows, columns];
        }
        let (source, all) = (&self.source, shape[0] * shape[1]);
        Tensor::from_pieces(shape, &self.device, |mut first, mut piece: &mut [T]| {
            while !piece.is_empty() {
                let next = parts.partition_point(|(begin, _)| *begin <= first);
                let (begin, name) = parts[next - 1]; // the first part begins at 0
                let end = parts.get(next).map_or(all, |(begin, _)| *begin);
                let (own, others) = piece.split_at_mut(piece.len().min(end - first));
                source.read_into(name, first - begin, own)?;
                (first, piece) = (first + own.len(), others);
            }
            Ok(())
        })
    }

    fn is_adapted(&self, name: &str) -> bool {
        self.adapter.as_ref().is_some_and(|adapter| adapter.changes(name))
    }

    /// Matrices of equal width as one, their rows concatenated, in f32, with the adapter merged.
    fn read_adapted(&mut self, names: &[impl AsRef<str>], cut: Cut) -> Result<(Vec<f32>, [usize; 2])> {
        let adapter = self.adapter.clone();
        self.read(names, cut, |source, name| {
            let mut values = source.all::<f32>(name)?;
            if let Some(adapter) = &adapter {
                adapter.add_to(name, &mut values);
            }
            Ok(values)
        })
    }

    fn read<T: Element>(
        &mut self,
        names: &[impl AsRef<str>],
        cut: Cut,
        read: impl Fn(&Source, &str) -> Result<Vec<T>>,
    ) -> Result<(Vec<T>, [usize; 2])> {
        let (mut values, mut shape) = (Vec::new(), [0; 2]);
        for name in names.iter().map(AsRef::as_ref) {
            let (_, own) = self.take(name)?;
            let own = matrix(&own);
            let ranges = cut.ranges(own);
            shape = [shape[0] + ranges[0].len(), ranges[1].len()];
            if cut != Cut::Whole {
                let whole = self.held.get(name, || read(&self.source, name))?;
                rows::take(&mut values, whole, own[1], &ranges);
                continue;
            }
            let mut read = read(&self.source, name)?;
            match values.is_empty() {
                true => values = read,
                false => values.append(&mut read),
            }
        }
        Ok((values, shape))
    }

    /// A norm's weight or a bias: always f32.
    ///
    /// # Errors
    /// [`Error::Checkpoint`], or a device error.
    pub fn vector(&mut self, name: &str) -> Result<Tensor> {
        let device = self.device.clone();
        let key = format!("{name} {device}");
        if let Some(vector) = self.shared.as_ref().and_then(|shared| shared.vectors.get(&key)) {
            return Ok(vector.clone());
        }
        let (source, shape) = self.take(name)?;
        if let Source::Planned(_) = source {
            return Tensor::uninitialized(shape, DType::F32, &device);
        }
        let vector = Tensor::from_slice(&source.all::<f32>(name)?, shape, &device)?;
        if let Some(shared) = &mut self.shared {
            shared.vectors.insert(key, vector.clone());
        }
        Ok(vector)
    }

    /// A table that stays in host memory, in f32.
    ///
    /// # Errors
    /// [`Error::Checkpoint`].
    pub fn host(&mut self, name: &str) -> Result<Vec<f32>> {
        let (source, _) = self.take(name)?;
        if let Source::Planned(_) = source {
            return Ok(Vec::new());
        }
        source.all(name)
    }

    /// How many matrices were read to be cut into parts for several devices.
    pub fn reads(&self) -> usize {
        self.held.reads
    }

    /// The number of tensors taken so far, and of all.
    pub fn progress(&self) -> Progress {
        let loaded = self.index.values().filter(|taken| **taken).count();
        Progress { loaded, total: self.index.len() }
    }

    /// The tensors' names.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.index.keys()
    }

    /// The elements of all tensors.
    pub fn parameters(&self) -> usize {
        let shapes = self.index.keys().filter_map(|name| self.source.shape(name).ok());
        shapes.map(|shape| shape.iter().product::<usize>()).sum()
    }

    /// The tensors that the model has not taken: none after it has been built.
    pub fn unused(&self) -> Vec<&str> {
        self.index.iter().filter(|(_, taken)| !**taken).map(|(name, _)| name.as_str()).collect()
    }

    fn take(&mut self, name: &str) -> Result<(&Source, Vec<usize>)> {
        let shape = self.source.shape(name)?.to_vec();
        self.index.insert(name.to_owned(), true);
        Ok((&self.source, shape))
    }
}

impl seam::Tensors for Weights {
    fn weight(&mut self, names: &[String], cut: Cut) -> Result<Matrix> {
        self.cut(names, cut)
    }

    fn vector(&mut self, name: &str) -> Result<Tensor> {
        self.vector(name)
    }

    fn host(&mut self, name: &str) -> Result<Vec<f32>> {
        self.host(name)
    }

    fn progress(&self) -> Progress {
        self.progress()
    }
}

fn check_dtype(dtype: DType) -> Result<()> {
    let expected = "f32 or f16".into();
    match dtype.is_float() {
        true => Ok(()),
        false => Err(Error::DType { op: "load", argument: "dtype", expected, found: dtype }),
    }
}

/// The files that tensors are read from, checked, by published names.
enum Source {
    Published(Published),
    Gguf(Tensors),
    /// Shapes, and how matrices are stored.
    Planned(BTreeMap<String, (Vec<usize>, Storage)>),
}

impl Source {
    /// How a planned matrix is stored.
    fn storage(&self, name: &str) -> Storage {
        match self {
            Self::Planned(tensors) => {
                tensors.get(name).map_or(Storage::Float(DType::F32), |(_, storage)| *storage)
            }
            Self::Published(_) | Self::Gguf(_) => Storage::Float(DType::F32),
        }
    }

    fn names(&self) -> Box<dyn Iterator<Item = &String> + '_> {
        match self {
            Self::Published(published) => Box::new(published.names()),
            Self::Gguf(tensors) => Box::new(tensors.names()),
            Self::Planned(tensors) => Box::new(tensors.keys()),
        }
    }

    fn shape(&self, name: &str) -> Result<&[usize]> {
        match self {
            Self::Published(published) => published.shape(name),
            Self::Gguf(tensors) => tensors.shape(name),
            Self::Planned(tensors) => {
                let missing = || bad(Path::new(""), Some(name), "is not a tensor of this model");
                tensors.get(name).map(|(shape, _)| shape.as_slice()).ok_or_else(missing)
            }
        }
    }

    /// How a tensor of a GGUF file is stored.
    fn ty(&self, name: &str) -> Result<Option<GgmlType>> {
        match self {
            Self::Published(_) | Self::Planned(_) => Ok(None),
            Self::Gguf(tensors) => tensors.ty(name).map(Some),
        }
    }

    /// The bytes of a GGUF file's tensor; safetensors have no blocks.
    fn bytes(&self, name: &str) -> Result<usize> {
        match self {
            Self::Published(_) | Self::Planned(_) => Ok(0),
            Self::Gguf(tensors) => Ok(tensors.ty(name)?.bytes(tensors.shape(name)?.iter().product())),
        }
    }

    /// The bytes of `values` values of a GGUF file's tensor; whole blocks only.
    fn bytes_of(&self, name: &str, values: usize) -> Result<usize> {
        match self {
            Self::Published(_) | Self::Planned(_) => Ok(0),
            Self::Gguf(tensors) => Ok(tensors.ty(name)?.bytes(values)),
        }
    }

    /// Reads a tensor's blocks; `bytes` must have [`bytes`](Self::bytes) elements.
    fn read_blocks(&self, name: &str, bytes: &mut [u8]) -> Result<()> {
        match self {
            Self::Published(_) | Self::Planned(_) => Ok(()),
            Self::Gguf(tensors) => tensors.read_bytes(name, bytes),
        }
    }

    /// The rows of a matrix that are read at a time.
    fn piece_rows(&self, name: &str) -> Result<usize> {
        match self {
            Self::Published(published) => published.piece_rows(name),
            Self::Gguf(_) | Self::Planned(_) => {
                Ok(self.shape(name)?.iter().rev().nth(1).copied().unwrap_or(1))
            }
        }
    }

    /// Some rows of a matrix of a directory; zeros of a planned one.
    fn rows<T: Number>(&self, name: &str, rows: Range<usize>) -> Result<Vec<T>> {
        match self {
            Self::Published(published) => published.rows(name, rows),
            Self::Gguf(_) | Self::Planned(_) => {
                Ok(vec![T::default(); rows.len() * matrix(self.shape(name)?)[1]])
            }
        }
    }

    /// All values of a tensor; of a planned one, none.
    fn all<T: Number>(&self, name: &str) -> Result<Vec<T>> {
        match self {
            Self::Published(published) => published.all(name),
            Self::Gguf(tensors) => tensors.read(name),
            Self::Planned(_) => Ok(Vec::new()),
        }
    }

    /// Whether [`read_into`](Self::read_into) reads it.
    fn is_whole(&self, name: &str) -> bool {
        match self {
            Self::Published(published) => published.is_whole(name),
            Self::Gguf(tensors) => tensors.is_whole(name),
            Self::Planned(_) => false,
        }
    }

    /// Values of a tensor from number `first` on.
    fn read_into<T: Number>(&self, name: &str, first: usize, values: &mut [T]) -> Result<()> {
        match self {
            Self::Published(published) => published.read_into(name, first, values),
            Self::Gguf(tensors) => tensors.read_into(name, first, values),
            Self::Planned(_) => Ok(()),
        }
    }
}
