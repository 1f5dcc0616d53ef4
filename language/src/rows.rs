//! Row split: a part of every layer on each of several devices, after Megatron-LM (Shoeybi et al. 2019, section 3).
//!
//! ```text
//! q, k, v         by rows: whole heads        each device has its heads, and their keys and values
//! o               by columns: the same heads  → a partial sum on each device, added over the devices
//! gate, up        by rows
//! down            by columns                  → a partial sum on each device, added over the devices
//! output matrix   by rows                     each device has the logits of a part of the vocabulary
//! norms           whole, on every device      as is the residual stream
//! embedding       whole, on the first device
//! ```

pub use super::cut::{Cut, share};
use super::options::Storage;
use super::seam::Config;
use super::spec::LinearSpec;
use pascaline::{Error, Result};
use std::ops::Range;

/// Appends these rows and columns of row-major values, whose rows have so many.
pub(super) fn take<T: Copy>(
    taken: &mut Vec<T>,
    values: &[T],
    columns: usize,
    [rows, of_row]: &[Range<usize>; 2],
) {
    if of_row.len() == columns {
        return taken.extend_from_slice(&values[rows.start * columns..rows.end * columns]);
    }
    taken.reserve(rows.len() * of_row.len());
    for row in rows.clone() {
        taken.extend_from_slice(&values[row * columns..][of_row.clone()]);
    }
}

/// Refuses a model whose layers do not divide over so many devices; `storage` is that of the matrix with a published name.
///
/// # Errors
/// [`Error::Unsupported`] that names all sizes that do not divide.
pub(super) fn check(config: &Config, devices: usize, storage: &dyn Fn(&str) -> Storage) -> Result<()> {
    let text = &config.text;
    if text.experts.is_some() {
        let reason = "experts are not divided between devices; split by layers".into();
        return Err(refused(vec!["experts".into()], reason));
    }
    let sizes = [
        ("num_attention_heads", text.num_attention_heads),
        ("num_key_value_heads", text.num_key_value_heads),
        ("intermediate_size", text.intermediate_size),
    ];
    let left = |size: usize| devices == 0 || !size.is_multiple_of(devices);
    let mut wrong: Vec<String> = Vec::new();
    wrong.extend(sizes.iter().filter(|(_, size)| left(*size)).map(|(name, size)| format!("{name} {size}")));
    if !wrong.is_empty() {
        return Err(refused(wrong, format!("not a multiple of the {devices} devices that share each layer")));
    }
    for layer in 0..text.num_hidden_layers {
        let (prefix, block) = (config.layer_prefix(layer), config.block(layer));
        for LinearSpec { parts, columns, .. } in
            [Some(&block.attention.out), block.mlp.dense().map(|mlp| &mlp.fc2)].into_iter().flatten()
        {
            let Some((map, _)) = parts.first() else { continue };
            let (name, part) = (format!("{map}.weight"), map.strip_prefix(&prefix).unwrap_or(map));
            let (Storage::Stored(format) | Storage::Quantized(format)) = storage(&name) else { continue };
            let (block, own) = (pascaline::quant::block_len(format), columns / devices);
            if !own.is_multiple_of(block) {
                let name = pascaline::quant::name(format);
                wrong.push(format!("layer {layer} {part}: {own} columns, blocks of {block} in {name}"));
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => {
            wrong.truncate(2); // the others are of other layers, and the same
            let reason = format!("a part of a row for each of {devices} devices must be whole blocks");
            Err(refused(wrong, reason))
        }
    }
}

fn refused(sizes: Vec<String>, reason: String) -> Error {
    Error::Unsupported { op: "row split", argument: "sizes", value: sizes.join(", "), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_the_whole() {
        let values: Vec<u32> = (0..24).collect(); // [4, 6]
        let take = |ranges: &[Range<usize>; 2]| {
            let mut taken = Vec::new();
            take(&mut taken, &values, 6, ranges);
            taken
        };
        for of in 1..4 {
            let mut rows = Vec::new();
            let mut columns = vec![Vec::new(); 4];
            for index in 0..of {
                let part = |cut: Cut| take(&cut.ranges([4, 6]));
                rows.extend(part(Cut::Rows { index, of }));
                let width = share(6, index, of).len();
                for (whole, own) in columns.iter_mut().zip(part(Cut::Columns { index, of }).chunks(width)) {
                    whole.extend_from_slice(own);
                }
            }
            assert_eq!((rows, columns.concat()), (values.clone(), values.clone()), "{of}");
        }
        assert_eq!(take(&Cut::Whole.ranges([4, 6])), values);
        assert_eq!(take(&[1..3, 4..6]), [10, 11, 16, 17]);
    }

    #[test]
    fn a_vocabulary_need_not_divide() {
        assert_eq!([share(7, 0, 2), share(7, 1, 2)], [0..3, 3..7]);
        assert_eq!([share(2, 0, 3), share(2, 1, 3), share(2, 2, 3)], [0..0, 0..1, 1..2]);
    }
}
