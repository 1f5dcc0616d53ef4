//! The error of attention in 8-bit integers is what its documentation says.

use pascaline::ops::{self, Attention};
use pascaline::{DType, Device, Result, Tensor};
use pascaline_testing::data;

const D: usize = 64;

fn tensor(name: &str, rows: usize, change: impl Fn(usize, &mut f32)) -> Result<Tensor> {
    let mut x = data::normal("int8", name, [1, rows, D], DType::F32).values;
    x.iter_mut().enumerate().for_each(|(i, x)| change(i % D, x));
    Tensor::from_slice(&x, [1, rows, D], &Device::Cpu)
}

/// The root mean square of the error as a share of that of the result, for scores of this standard deviation and keys that are all larger by
/// `shift` in some columns.
fn error(deviation: f32, shift: f32) -> Result<f64> {
    let q = tensor("q", 256, |_, x| *x *= deviation)?;
    let k = tensor("k", 1024, |column, x| *x += if column.is_multiple_of(16) { shift } else { 0.0 })?;
    let v = tensor("v", 1024, |_, _| {})?;
    let options = Attention::default();
    let want = ops::attention(&q, &k, &v, &options)?.to_vec::<f32>()?;
    let found = ops::int8_attention(&q, &k, &v, &options)?.to_vec::<f32>()?;
    let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
    let lost = squares(&mut want.iter().zip(&found).map(|(want, found)| want - found));
    Ok((lost / squares(&mut want.iter().copied())).sqrt())
}

#[test]
fn the_error_is_the_documented_one() {
    for (deviation, documented) in [(1.0, 0.009), (2.0, 0.016), (3.0, 0.018)] {
        let found = error(deviation, 0.0).unwrap();
        assert!((0.7..1.3).contains(&(found / documented)), "{found} for scores of deviation {deviation}");
    }
}

#[test]
fn what_all_keys_have_in_common_costs_nothing() {
    let [plain, shifted] = [0.0, 20.0].map(|shift| error(2.0, shift).unwrap());
    assert!(shifted < 1.1 * plain, "{shifted} in place of {plain}");
}
