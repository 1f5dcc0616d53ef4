//! Attention with queries and keys in 8-bit integers. The reference rounds as the op is defined, in f32, and then follows the definition
//! of attention.

use super::attention::{NORMAL, Shape, naive, tolerance};
use super::{About, Case, HostTensor, Purpose, data};
use pascaline::ops::{self, Attention};
use pascaline::{DType, Result, Tensor, TensorMut};

#[derive(Clone, Copy)]
struct Int8 {
    shape: Shape,
    data: Data,
    purpose: Purpose,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Data {
    Normal,
    /// Every fifth column of all keys is larger by 20, which would cost all others four bits.
    Offset,
    /// A few entries of q and k are a hundred times as large, so that single keys win.
    Outliers,
    /// Every third query and key is 0, whose scale is 0.
    Zeros,
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let new = |heads, q_len, kv_len, head_dim, causal| Int8 {
        shape: Shape::new(heads, q_len, kv_len, head_dim, causal),
        data: Data::Normal,
        purpose: Purpose::Test,
    };
    let swapped = |case: Int8, batch| Int8 { shape: Shape { batch, swapped: true, ..case.shape }, ..case };
    let mut cases = Vec::new();
    // lengths around the edges of tiles and of the samples
    for (q_len, kv_len) in [
        (0, 5),
        (3, 0),
        (1, 1),
        (1, 200),
        (17, 63),
        (64, 64),
        (65, 65),
        (63, 129),
        (129, 128),
        (130, 7),
        (40, 600),
    ] {
        for causal in [false, true] {
            cases.push(new((2, 2), q_len, kv_len, 64, causal));
        }
    }
    // head_dim, each with another grouping
    for (head_dim, heads) in [
        (16, (2, 1)),
        (24, (4, 1)),
        (40, (3, 3)),
        (72, (2, 2)),
        (80, (8, 1)),
        (96, (2, 1)),
        (120, (1, 1)),
        (128, (4, 2)),
    ] {
        cases.push(new(heads, 70, 140, head_dim, false));
        cases.push(swapped(new(heads, 33, 65, head_dim, true), 2));
    }
    // keys in parts, and hard data
    for head_dim in [72, 128] {
        cases.push(new((2, 1), 65, 1025, head_dim, true));
    }
    for data in [Data::Offset, Data::Outliers, Data::Zeros] {
        cases.push(Int8 { data, ..new((2, 1), 66, 200, 64, false) });
        cases.push(Int8 { data, ..swapped(new((2, 1), 66, 200, 72, true), 1) });
    }
    // the vision towers of the 2B and of the 8B size, 1024 × 1024
    for head_dim in [64, 72] {
        cases
            .push(Int8 { purpose: Purpose::Bench, ..swapped(new((16, 16), 4096, 4096, head_dim, false), 1) });
    }
    cases.into_iter().map(|case| Box::new(case) as Box<dyn Case>).collect()
}

/// The samples of a head's keys, and those of a partial sum.
const SAMPLES: usize = 64;
const IN_ORDER: usize = 8;

/// Rows less `mean`, each rounded to integers within ±127 times a scale of 22 bits.
fn rounded(row: &[f32], mean: &[f32]) -> Vec<f32> {
    let row: Vec<f32> = row.iter().zip(mean).map(|(x, mean)| x - mean).collect();
    let largest = row.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let scale = f32::from_bits((largest / 127.0).to_bits() & !3);
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    row.iter().map(|x| (x * inverse).round_ties_even().clamp(-127.0, 127.0) * scale).collect()
}

impl Case for Int8 {
    fn about(&self) -> About {
        let id = format!("int8_attention_f32/{}{}", self.shape.label(), data::label(self.data));
        // of rounded queries and keys, whose products are exact, as attention's
        let abs = if self.data == Data::Outliers { 2e-3 } else { NORMAL };
        About {
            op: "int8_attention",
            id,
            purpose: self.purpose,
            output: (self.shape.stored(self.shape.num_q_heads, self.shape.q_len).into(), DType::F32),
            tolerance: tolerance(DType::F32, abs),
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let id = self.id();
        let values = |argument, heads, len| {
            let shape = self.shape.stored(heads, len);
            let mut x = match self.data {
                Data::Outliers if argument != "v" => data::outliers(&id, argument, shape, DType::F32),
                _ => data::normal(&id, argument, shape, DType::F32),
            };
            for (i, row) in x.values.chunks_mut(self.shape.head_dim).enumerate() {
                match self.data {
                    Data::Offset if argument == "k" => row.iter_mut().step_by(5).for_each(|x| *x += 20.0),
                    Data::Zeros if argument != "v" && i % 3 == 0 => row.fill(0.0),
                    _ => {}
                }
            }
            x
        };
        let Shape { num_q_heads, num_kv_heads, q_len, kv_len, .. } = self.shape;
        vec![
            values("q", num_q_heads, q_len),
            values("k", num_kv_heads, kv_len),
            values("v", num_kv_heads, kv_len),
        ]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let options = Attention { scale: None, causal: self.shape.causal };
        let [q, k, v] = inputs else { unreachable!("three inputs") };
        if !self.shape.swapped {
            return ops::int8_attention_into(y, q, k, v, &options);
        }
        let (q, k, v) = (q.swap_dims(1, 2)?, k.swap_dims(1, 2)?, v.swap_dims(1, 2)?);
        ops::int8_attention_into(y.swap_dims(1, 2)?, &q, &k, &v, &options)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let [q, k, v] = inputs else { unreachable!("three inputs") };
        let Shape { num_kv_heads, kv_len, head_dim, .. } = self.shape;
        let zeros = vec![0.0; head_dim];
        let mut keys_of = std::collections::HashMap::new();
        let mut out = Vec::with_capacity(rows.len() * head_dim);
        for &r in rows {
            let (batch, kv_head, i) = self.shape.place(r);
            let row = |j| self.shape.row(batch, num_kv_heads, kv_head, kv_len, j);
            let keys: &Vec<Vec<f32>> = keys_of.entry((batch, kv_head)).or_insert_with(|| {
                let add = |mut sum: Vec<f32>, x: &[f32]| {
                    sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
                    sum
                };
                let partial = |part: usize| {
                    (part * IN_ORDER..(part + 1) * IN_ORDER)
                        .fold(zeros.clone(), |sum, s| add(sum, k.row(row(s * kv_len / SAMPLES))))
                };
                let sums = (0..if kv_len > 0 { SAMPLES / IN_ORDER } else { 0 }).map(partial);
                let sum = sums.fold(zeros.clone(), |sum, partial| add(sum, &partial));
                let mean: Vec<f32> = sum.iter().map(|sum| sum / SAMPLES as f32).collect();
                (0..kv_len).map(|j| rounded(k.row(row(j)), &mean)).collect()
            });
            let keys = (0..self.shape.visible(i)).map(|j| (&keys[j][..], v.row(row(j))));
            out.extend(naive(&rounded(q.row(r), &zeros), keys));
        }
        out
    }

    /// As attention: the products of integers count like others.
    fn flops(&self) -> f64 {
        self.shape.flops()
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        self.shape.bytes([size_of::<f32>(); 2])
    }

    fn compute_bound(&self) -> bool {
        true
    }
}
