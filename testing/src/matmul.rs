//! Matrix products.

use super::{About, Case, Gemm, HostTensor, Purpose, Tolerance, data};
use kernels_gpu::matmul::regtile::FAMILIES;
use ops::{Matmul, Variant};
use pascaline::{DType, Result, Tensor, TensorMut, ops};
use rayon::prelude::*;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Layouts {
    Nn,
    Nt,
    Tn,
    Tt,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Types {
    F32,
    F16,
    Mixed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Data {
    Normal,
    /// Every sum is exact in f32 whatever its order, so results must be equal.
    Integers,
    /// b is the identity matrix and the result a itself.
    Identity,
}

struct Product {
    /// Batch dimensions.
    batch_a: Vec<usize>,
    batch_b: Vec<usize>,
    m: usize,
    n: usize,
    k: usize,
    layouts: Layouts,
    types: Types,
    data: Data,
    /// Columns before and after each row of a and b in memory.
    margin: usize,
    options: Matmul,
    purpose: Purpose,
}

const LAYOUTS: [Layouts; 4] = [Layouts::Nn, Layouts::Nt, Layouts::Tn, Layouts::Tt];
const TYPES: [Types; 3] = [Types::F32, Types::F16, Types::Mixed];

impl Product {
    fn new(layouts: Layouts, types: Types, [m, n, k]: [usize; 3]) -> Self {
        Self {
            batch_a: Vec::new(),
            batch_b: Vec::new(),
            m,
            n,
            k,
            layouts,
            types,
            data: Data::Normal,
            margin: 0,
            options: Matmul::default(),
            purpose: Purpose::Test,
        }
    }

    fn batch(self, a: &[usize], b: &[usize]) -> Self {
        Self { batch_a: a.to_vec(), batch_b: b.to_vec(), ..self }
    }

    fn options(self, alpha: f32, beta: f32, variant: Variant, splits: Option<u32>) -> Self {
        Self { options: Matmul { alpha, beta, variant, splits }, ..self }
    }

    fn output_batch(&self) -> Vec<usize> {
        let rank = self.batch_a.len().max(self.batch_b.len());
        let size = |dims: &[usize], d: usize| (d + dims.len()).checked_sub(rank).map_or(1, |at| dims[at]);
        let pick = |d| match size(&self.batch_a, d) {
            1 => size(&self.batch_b, d),
            x => x,
        };
        (0..rank).map(pick).collect()
    }

    fn dtypes(&self) -> (DType, DType) {
        match self.types {
            Types::F32 => (DType::F32, DType::F32),
            Types::F16 => (DType::F16, DType::F16),
            Types::Mixed => (DType::F32, DType::F16),
        }
    }

    fn transposed(&self) -> (bool, bool) {
        (matches!(self.layouts, Layouts::Tn | Layouts::Tt), matches!(self.layouts, Layouts::Nt | Layouts::Tt))
    }

    /// The shape in memory of an operand that is [rows, cols] to the op.
    fn stored(&self, batch: &[usize], rows: usize, cols: usize, transposed: bool) -> Vec<usize> {
        let (rows, cols) = if transposed { (cols, rows) } else { (rows, cols) };
        [batch, &[rows, cols + 2 * self.margin]].concat()
    }

    /// The op's view of an operand in memory.
    fn view(&self, x: &Tensor, transposed: bool) -> Result<Tensor> {
        let rank = x.shape().rank();
        let x = x.narrow(rank - 1, self.margin, x.dims()[rank - 1] - 2 * self.margin)?;
        if transposed { x.swap_dims(rank - 2, rank - 1) } else { Ok(x) }
    }

    fn run_as(&self, c: TensorMut, inputs: &[Tensor], options: &Matmul) -> Result<()> {
        let (transposed_a, transposed_b) = self.transposed();
        let (a, b) = (self.view(&inputs[0], transposed_a)?, self.view(&inputs[1], transposed_b)?);
        ops::matmul_into(c, &a, &b, options)
    }
}

/// Element [entry, row, col] of an operand in memory.
fn element(x: &HostTensor, margin: usize, transposed: bool, entry: usize, (row, col): (usize, usize)) -> f64 {
    let (row, col) = if transposed { (col, row) } else { (row, col) };
    let dims = x.shape.dims();
    let (rows, cols) = (dims[dims.len() - 2], dims[dims.len() - 1]);
    x.values[(entry * rows + row) * cols + margin + col].into()
}

/// The batch entry of an operand, with batch dimensions `own`, that entry `index` of the output, with `all`, is computed from.
fn entry(mut index: usize, all: &[usize], own: &[usize]) -> usize {
    let (mut at, mut stride) = (0, 1);
    for (d, &size) in all.iter().enumerate().rev() {
        let i = index % size;
        index /= size;
        if let Some(&own) = (d + own.len()).checked_sub(all.len()).and_then(|d| own.get(d)) {
            at += if own == 1 { 0 } else { i * stride };
            stride *= own;
        }
    }
    at
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases: Vec<Product> = Vec::new();
    let every_type = |layouts, dims| TYPES.map(|types| Product::new(layouts, types, dims));

    // edges of tiles and vectors, every layout
    for layouts in LAYOUTS {
        for dims in [[1, 1, 1], [17, 31, 33], [65, 67, 63], [36, 40, 44]] {
            cases.extend(every_type(layouts, dims));
        }
        cases.push(Product::new(layouts, Types::F32, [129, 132, 20]));
        cases.push(Product::new(layouts, Types::Mixed, [128, 64, 200]));
    }
    for dims in [[0, 5, 3], [5, 0, 3], [3, 5, 0], [2, 3, 257], [127, 3, 16], [64, 1, 129], [3, 200, 8]] {
        cases.push(Product::new(Layouts::Nn, Types::F32, dims));
        cases.push(Product::new(Layouts::Nt, Types::F16, dims));
    }
    // few rows
    for m in [1, 2, 4, 5, 8] {
        cases.extend(every_type(Layouts::Nt, [m, 33, 776]));
        cases.push(Product::new(Layouts::Nt, Types::F32, [m, 19, 515]));
    }
    for m in [1, 2, 3, 4, 5] {
        for n in [131, 132] {
            cases.extend(every_type(Layouts::Nn, [m, n, 300]));
        }
    }
    // exact arithmetic
    for (layouts, dims) in [
        (Layouts::Nn, [64, 64, 64]),
        (Layouts::Nt, [33, 65, 257]),
        (Layouts::Tn, [68, 72, 100]),
        (Layouts::Nt, [1, 65, 1100]),
    ] {
        cases.extend(every_type(layouts, dims).map(|case| Product { data: Data::Integers, ..case }));
    }
    for layouts in LAYOUTS {
        cases.extend(every_type(layouts, [37, 48, 48]).map(|case| Product { data: Data::Identity, ..case }));
    }
    // views: misaligned by one, and aligned with a gap
    for margin in [1, 4] {
        for layouts in LAYOUTS {
            let case = |types, dims| Product { margin, ..Product::new(layouts, types, dims) };
            cases.push(case(Types::F32, [20, 36, 24]));
            cases.push(case(Types::Mixed, [12, 20, 40]));
        }
        for types in TYPES {
            cases.push(Product { margin, ..Product::new(Layouts::Nt, types, [1, 21, 520]) });
        }
        for (types, m) in [(Types::F16, 1), (Types::F32, 3), (Types::Mixed, 4)] {
            cases.push(Product { margin, ..Product::new(Layouts::Nn, types, [m, 60, 70]) });
        }
    }
    // batch dimensions
    for (a, b) in [
        (&[3][..], &[3][..]),
        (&[2, 3], &[2, 3]),
        (&[2, 3], &[]),
        (&[], &[3]),
        (&[2, 1], &[2, 3]),
        (&[2, 3], &[2, 1]),
        (&[0], &[0]),
    ] {
        cases.push(Product::new(Layouts::Nn, Types::F32, [20, 24, 16]).batch(a, b));
        cases.push(Product::new(Layouts::Nt, Types::Mixed, [3, 17, 21]).batch(a, b));
        cases.push(Product::new(Layouts::Nn, Types::F32, [3, 132, 40]).batch(a, b));
        cases.push(Product::new(Layouts::Tn, Types::F16, [1, 8, 12]).batch(a, b));
    }
    // alpha and beta
    for (alpha, beta) in [(0.5, 0.0), (1.0, 1.0), (-2.0, 0.25), (0.0, 0.0), (0.0, 1.0)] {
        for (layouts, types, dims) in [
            (Layouts::Nn, Types::F32, [20, 36, 28]),
            (Layouts::Nt, Types::F16, [1, 36, 64]),
            (Layouts::Nt, Types::Mixed, [9, 11, 13]),
            (Layouts::Nn, Types::F16, [7, 9, 0]),
        ] {
            let case = Product::new(layouts, types, dims);
            cases.push(case.options(alpha, beta, Variant::Auto, None));
        }
    }
    // every kernel, without and with split-K
    for splits in [None, Some(3)] {
        let forced = |case: Product, variant| case.options(1.5, 1.0, variant, splits);
        for types in TYPES {
            for layouts in [Layouts::Nn, Layouts::Nt, Layouts::Tn] {
                let case = |dims| Product::new(layouts, types, dims);
                cases.push(forced(case([33, 31, 37]), Variant::Strided));
                // one tile and four rows and columns of the next; k larger than all slices
                for family in FAMILIES.iter().filter(|family| family.layouts > layouts as usize) {
                    let dims = [family.bm as usize + 4, family.bn as usize + 4, 76];
                    cases.push(forced(case(dims), Variant::Tile(family.name)));
                }
            }
            cases.push(forced(Product::new(Layouts::Nt, types, [3, 9, 1000]), Variant::Vector));
            for m in [1, 3] {
                cases.push(forced(Product::new(Layouts::Nn, types, [m, 140, 1000]), Variant::Vector));
            }
        }
    }
    // cut in two, where parts are full tiles, ragged ones and few rows
    for (variant, dims) in [
        (Variant::Rows(64), [68, 132, 60]),
        (Variant::Rows(5), [12, 31, 37]),
        (Variant::Columns(128), [36, 132, 76]),
        (Variant::Columns(7), [20, 33, 24]),
    ] {
        for layouts in LAYOUTS {
            cases.extend(every_type(layouts, dims).map(|case| case.options(1.5, 1.0, variant, None)));
        }
    }
    cases.push(Product::new(Layouts::Nt, Types::F32, [9, 20, 16]).batch(&[3], &[3]).options(
        1.0,
        0.0,
        Variant::Rows(4),
        None,
    ));
    // benches
    let bench =
        |layouts, types, dims| Product { purpose: Purpose::Bench, ..Product::new(layouts, types, dims) };
    let square = [256, 512, 1024, 2048, 4096, 8192].map(|n| [n, n, n]);
    let linear = [16, 64, 256, 1024]
        .into_iter()
        .flat_map(|m| [(2048, 2048), (6144, 2048), (2048, 6144)].map(|(n, k)| [m, n, k]));
    for dims in square.into_iter().chain(linear) {
        cases.push(bench(Layouts::Nn, Types::F32, dims));
        cases.push(bench(Layouts::Nt, Types::F32, dims));
    }
    // a few rows past full tiles
    for (n, k) in [(2048, 2048), (6144, 2048), (2048, 6144)] {
        cases.extend([Layouts::Nn, Layouts::Nt].map(|layouts| bench(layouts, Types::F32, [1028, n, k])));
    }
    for (n, k) in [(2048, 2048), (6144, 2048), (2048, 6144), (151936, 2048)] {
        cases.extend(TYPES.map(|types| bench(Layouts::Nt, types, [1, n, k])));
    }
    cases.into_iter().map(|case| Box::new(case) as Box<dyn Case>).collect()
}

impl Case for Product {
    fn about(&self) -> About {
        let layouts = match self.layouts {
            Layouts::Nn => "",
            Layouts::Nt => "_nt",
            Layouts::Tn => "_tn",
            Layouts::Tt => "_tt",
        };
        let types = match self.types {
            Types::F32 => "f32",
            Types::F16 => "f16",
            Types::Mixed => "mixed",
        };
        let mut id = format!("matmul{layouts}_{types}/m={},n={},k={}", self.m, self.n, self.k);
        if !self.batch_a.is_empty() || !self.batch_b.is_empty() {
            id += &format!(",batch={:?}x{:?}", self.batch_a, self.batch_b);
        }
        match self.data {
            Data::Normal => {}
            Data::Integers => id += ",data=integers",
            Data::Identity => id += ",data=identity",
        }
        if self.margin > 0 {
            id += &format!(",margin={}", self.margin);
        }
        let Matmul { alpha, beta, variant, splits } = self.options;
        if (alpha, beta) != (1.0, 0.0) {
            id += &format!(",alpha={alpha},beta={beta}");
        }
        if variant != Variant::Auto {
            let name = match variant {
                Variant::Tile(name) => name.to_owned(),
                Variant::Rows(rows) => format!("rows{rows}"),
                Variant::Columns(columns) => format!("columns{columns}"),
                other => format!("{other:?}").to_lowercase(),
            };
            id += &format!(",variant={name}");
        }
        if let Some(splits) = splits {
            id += &format!(",splits={splits}");
        }
        let exact_sums = self.data != Data::Normal;
        let f16_output = self.dtypes().0 == DType::F16;
        // Products of the data are 12 at most, and their sum after i steps is √i large, so that k roundings of half an
        // ulp add up to about k/3 ulp of 1; six times that for the worst element, and six ulp for the single products.
        let scale = f64::from(self.options.alpha.abs() + self.options.beta.abs()).max(1.0);
        let sums =
            if exact_sums { 0.0 } else { f64::from(f32::EPSILON) * (6.0 + 2.0 * self.k as f64) * scale };
        let tolerance = match f16_output {
            _ if exact_sums && !(f16_output && self.data == Data::Integers) => Tolerance::EXACT,
            true => Tolerance::new(sums + 3.0e-8, 1.0 / 2048.0, "f32 sums in any order, one rounding to f16"),
            false => Tolerance::new(sums, f32::EPSILON.into(), "f32 sums in any order"),
        };
        About {
            op: "matmul",
            id,
            purpose: self.purpose,
            output: ([&self.output_batch()[..], &[self.m, self.n]].concat().into(), self.dtypes().0),
            tolerance,
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let id = self.id();
        let (type_a, type_b) = self.dtypes();
        let (transposed_a, transposed_b) = self.transposed();
        let shape_a = self.stored(&self.batch_a, self.m, self.k, transposed_a);
        let shape_b = self.stored(&self.batch_b, self.k, self.n, transposed_b);
        match self.data {
            Data::Normal => {
                vec![data::normal(&id, "a", shape_a, type_a), data::normal(&id, "b", shape_b, type_b)]
            }
            Data::Integers => vec![
                data::small_integers(&id, "a", shape_a, type_a),
                data::small_integers(&id, "b", shape_b, type_b),
            ],
            Data::Identity => {
                let diagonal = |i: usize| f32::from(u8::from(i / self.n == i % self.n));
                let b = (0..self.k * self.n).map(diagonal).collect();
                vec![data::normal(&id, "a", shape_a, type_a), HostTensor::new(shape_b, type_b, b)]
            }
        }
    }

    fn initial(&self) -> Option<HostTensor> {
        let (shape, dtype) = self.output();
        (self.options.beta != 0.0).then(|| data::normal(&self.id(), "c", shape, dtype))
    }

    fn run(&self, c: TensorMut, inputs: &[Tensor]) -> Result<()> {
        self.run_as(c, inputs, &self.options)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let (transposed_a, transposed_b) = self.transposed();
        let (all, initial) = (self.output_batch(), self.initial());
        let (alpha, beta) = (f64::from(self.options.alpha), f64::from(self.options.beta));
        let mut c = Vec::with_capacity(rows.len() * self.n);
        for &index in rows {
            let (index, row) = (index / self.m, index % self.m);
            let (entry_a, entry_b) = (entry(index, &all, &self.batch_a), entry(index, &all, &self.batch_b));
            c.par_extend((0..self.n).into_par_iter().map(|col| {
                let product = |i| {
                    element(&inputs[0], self.margin, transposed_a, entry_a, (row, i))
                        * element(&inputs[1], self.margin, transposed_b, entry_b, (i, col))
                };
                let sum: f64 = (0..self.k).map(product).sum();
                let before =
                    initial.as_ref().map_or(0.0, |c| c.values[(index * self.m + row) * self.n + col].into());
                alpha * sum + beta * before
            }));
        }
        c
    }

    fn flops(&self) -> f64 {
        let entries: usize = self.output_batch().iter().product();
        2.0 * entries as f64 * self.m as f64 * self.n as f64 * self.k as f64
    }

    fn gemm(&self) -> Option<Gemm> {
        let plain = self.margin == 0 && (self.options.alpha, self.options.beta) == (1.0, 0.0);
        let single = self.batch_a.is_empty() && self.batch_b.is_empty();
        let dtype = match self.types {
            Types::F32 => DType::F32,
            Types::F16 => DType::F16,
            Types::Mixed => return None,
        };
        let (transpose_x, transpose_w) = self.transposed();
        let Self { m, n, k, .. } = *self;
        (plain && single).then_some(Gemm { transpose_x, transpose_w, batch: 1, m, n, k, dtype })
    }

    fn compute_bound(&self) -> bool {
        self.m > 8
    }
}
