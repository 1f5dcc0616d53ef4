//! The choices of a call, and its operands.

use half::f16;
use pascaline::{DType, Device, Result, Tensor, TensorMut};
use std::fmt::Write;

/// The value of an output, and of the memory beside it, before the call.
const BEFORE: f64 = 77.0;

/// A call in the making.
pub struct Call<'a> {
    choices: std::slice::Iter<'a, u8>,
    pub device: &'a Device,
    text: String,
    outputs: Vec<(Tensor, [f64; 2])>,
    /// Which places operands have: aligned (0), flat (1), with strides (2), never aligned (3), any (4).
    style: usize,
}

/// A step from a storage to a view.
enum Step {
    Narrow(usize, usize, usize),
    Reshape(Vec<usize>),
    Swap(usize, usize),
}

/// How a view lies in its storage.
struct Place {
    storage: Vec<usize>,
    steps: Vec<Step>,
}

/// An output's storage, which the call gets a view of.
pub struct Room {
    storage: Tensor,
    steps: Vec<Step>,
    tolerance: [f64; 2],
}

impl Room {
    pub fn view(&mut self) -> Result<TensorMut<'_>> {
        self.steps.iter().try_fold(self.storage.view_mut()?, |view, step| match step {
            Step::Narrow(dim, start, len) => view.narrow(*dim, *start, *len),
            Step::Reshape(dims) => view.reshape(&dims[..]),
            Step::Swap(a, b) => view.swap_dims(*a, *b),
        })
    }
}

impl<'a> Call<'a> {
    pub fn new(choices: &'a [u8], device: &'a Device) -> Self {
        let mut call =
            Self { choices: choices.iter(), device, text: String::new(), outputs: Vec::new(), style: 0 };
        call.style = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 4][call.below(11)];
        call
    }

    /// A choice of `0..n`, for n up to 256; 0 after the last byte.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.choices.next().copied().unwrap_or(0)) % n
    }

    pub fn pick<T: Copy + std::fmt::Debug>(&mut self, of: &[T]) -> T {
        let picked = of[self.below(of.len())];
        self.note(&picked);
        picked
    }

    pub fn note(&mut self, value: &impl std::fmt::Debug) {
        let _ = write!(self.text, " {value:?}");
    }

    /// One of `n` calls on average.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    /// Sizes of dimensions: the small ones, and those around vectors, warps and tiles.
    pub fn size(&mut self) -> usize {
        const SIZES: [usize; 24] =
            [1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 11, 12, 13, 15, 16, 16, 17, 24, 31, 32, 33, 40, 64, 0];
        SIZES[self.below(SIZES.len())]
    }

    /// 0 to 3 leading dimensions of small sizes, and a last one.
    pub fn shape(&mut self) -> Vec<usize> {
        let rank = self.below(4);
        let mut dims: Vec<_> =
            (0..rank).map(|_| [1, 2, 3, 4, 5, 0][self.below(6).min(self.below(6))]).collect();
        dims.push(self.size());
        dims
    }

    pub fn float(&mut self) -> DType {
        self.pick(&[DType::F32, DType::F16])
    }

    /// A storage that holds a view of these dimensions.
    fn place(&mut self, dims: &[usize]) -> Place {
        let (mut storage, mut steps) = (dims.to_vec(), Vec::new());
        let kinds = [[0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 3, 6], [2, 4, 5, 7]][self.style.min(3)];
        let kind = if self.style == 4 { self.below(8) } else { kinds[self.below(4)] };
        match (kind, dims.len()) {
            (1 | 2, _) => {
                // anywhere in a flat storage
                let elements: usize = dims.iter().product();
                let start = if kind == 1 { [8, 16, 32][self.below(3)] } else { 1 + self.below(9) };
                storage = vec![start + elements + self.below(5)];
                steps = vec![Step::Narrow(0, start, elements), Step::Reshape(dims.to_vec())];
            }
            (3..=5, 1..) => {
                // a part of one dimension, or (5) the first entries
                let (dim, before) = (self.below(dims.len()), self.below(5));
                let before = if kind == 3 {
                    8 * before
                } else if kind == 4 {
                    before
                } else {
                    0
                };
                storage[dim] += before + [0, 1, 3, 8][self.below(4)];
                steps = vec![Step::Narrow(dim, before, dims[dim])];
            }
            (6, 2..) => {
                let (a, b) = (self.below(dims.len()), self.below(dims.len()));
                storage.swap(a, b);
                steps = vec![Step::Swap(a, b)];
            }
            (7, 2..) => {
                let (a, b, dim) = (self.below(dims.len()), self.below(dims.len()), self.below(dims.len()));
                storage.swap(a, b);
                let (len, before) = (storage[dim], self.below(9));
                storage[dim] += before + self.below(5);
                steps = vec![Step::Narrow(dim, before, len), Step::Swap(a, b)];
            }
            _ => {}
        }
        if !steps.is_empty() {
            let _ = write!(self.text, " of {storage:?} kind {kind}");
        }
        Place { storage, steps }
    }

    /// Rarely another shape, and another type.
    fn mistaken(&mut self, dims: &[usize], dtype: DType) -> (Vec<usize>, DType) {
        let mut dims = dims.to_vec();
        match self.below(256) {
            90 if !dims.is_empty() => {
                let dim = self.below(dims.len());
                dims[dim] += 1;
            }
            91 if !dims.is_empty() => {
                let dim = self.below(dims.len());
                dims[dim] = dims[dim].saturating_sub(1);
            }
            92 => dims.push(1),
            93 => drop(dims.pop()),
            94 => return (dims, [DType::F32, DType::F16, DType::U32][self.below(3)]),
            _ => {}
        }
        (dims, dtype)
    }

    /// An input of small numbers, in any place. Numbers are exact in f16.
    pub fn input(&mut self, dims: &[usize], dtype: DType) -> Result<Tensor> {
        let (dims, dtype) = self.mistaken(dims, dtype);
        let _ = write!(self.text, " {dtype}{dims:?}");
        let place = self.place(&dims);
        let seed = self.below(256) as u32;
        let number = |i: usize| {
            let mixed = (i as u32).wrapping_add(seed.wrapping_mul(0x85EB_CA6B)).wrapping_mul(0x9E37_79B1);
            f64::from((mixed >> 24) as i32 - 128) / 64.0
        };
        self.view_of(place, dtype, number)
    }

    /// Indices below `limit`; rarely beyond it.
    pub fn indices(&mut self, dims: &[usize], limit: usize) -> Result<Tensor> {
        let beyond = usize::from(self.one_in(8));
        let (dims, dtype) = self.mistaken(dims, DType::U32);
        let _ = write!(self.text, " {dtype}{dims:?}");
        let place = self.place(&dims);
        let (seed, limit) = (self.below(256), (limit + beyond).max(1));
        self.view_of(place, dtype, |i| (((i + 1) * (2 * seed + 7)) % 251 % limit) as f64)
    }

    fn view_of(
        &self,
        Place { storage, steps }: Place,
        dtype: DType,
        number: impl Fn(usize) -> f64,
    ) -> Result<Tensor> {
        let x = self.filled(&storage, dtype, number)?;
        steps.iter().try_fold(x, |x, step| match step {
            Step::Narrow(dim, start, len) => x.narrow(*dim, *start, *len),
            Step::Reshape(dims) => x.reshape(&dims[..]),
            Step::Swap(a, b) => x.swap_dims(*a, *b),
        })
    }

    fn filled(&self, dims: &[usize], dtype: DType, number: impl Fn(usize) -> f64) -> Result<Tensor> {
        let numbers = (0..dims.iter().product()).map(number);
        match dtype {
            DType::F32 => {
                Tensor::from_slice(&numbers.map(|x| x as f32).collect::<Vec<_>>(), dims, self.device)
            }
            DType::F16 => {
                Tensor::from_slice(&numbers.map(f16::from_f64).collect::<Vec<_>>(), dims, self.device)
            }
            DType::U32 => {
                Tensor::from_slice(&numbers.map(|x| x as u32).collect::<Vec<_>>(), dims, self.device)
            }
        }
    }

    /// An output in any place, which may differ by `tolerance`.
    pub fn output(&mut self, dims: &[usize], dtype: DType, tolerance: [f64; 2]) -> Result<Room> {
        let (dims, dtype) = self.mistaken(dims, dtype);
        let _ = write!(self.text, " → {dtype}{dims:?}");
        let Place { storage, steps } = self.place(&dims);
        let storage = self.filled(&storage, dtype, |_| BEFORE)?;
        Ok(Room { storage, steps, tolerance })
    }

    /// An output that is a whole tensor.
    pub fn whole(&mut self, dims: &[usize], dtype: DType, tolerance: [f64; 2]) -> Result<Room> {
        Ok(Room { storage: self.filled(dims, dtype, |_| BEFORE)?, steps: Vec::new(), tolerance })
    }

    /// Takes back an output after the call.
    pub fn written(&mut self, room: Room) {
        self.outputs.push((room.storage, room.tolerance));
    }

    /// A result to compare.
    pub fn result(&mut self, tensor: Tensor, tolerance: [f64; 2]) {
        self.outputs.push((tensor, tolerance));
    }

    /// The call in words, and what its outputs hold.
    pub fn finish(self) -> (String, Vec<Output>) {
        let read = |tensor: &Tensor| -> Result<Vec<f64>> {
            Ok(match tensor.dtype() {
                DType::F32 => tensor.to_vec::<f32>()?.into_iter().map(f64::from).collect(),
                DType::F16 => tensor.to_vec::<f16>()?.into_iter().map(f64::from).collect(),
                DType::U32 => tensor.to_vec::<u32>()?.into_iter().map(f64::from).collect(),
            })
        };
        // a device that has stopped gives no values
        let read = |(tensor, tolerance): (Tensor, _)| (read(&tensor).unwrap_or_default(), tolerance);
        (self.text, self.outputs.into_iter().map(read).collect())
    }
}

/// The values of an output, and their absolute and relative tolerance.
pub type Output = (Vec<f64>, [f64; 2]);

/// Runs `$op` on the view of an output and takes the output back, whatever the verdict.
macro_rules! into {
    ($call:ident, $($room:ident),+ => $run:expr) => {{
        let verdict = (|| $run)();
        $($call.written($room);)+
        verdict
    }};
}
pub(super) use into;
