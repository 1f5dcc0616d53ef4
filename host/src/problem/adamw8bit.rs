//! The moments of AdamW in 8 bits.

use crate::{DType, Device, Error, Result, Tensor};
use kernels_gpu::adamw8bit::{BLOCK, first_code, first_share, scale, second_code, second_share};

/// 8-bit moments of a parameter's elements, with two f32 scales for every 256 elements (Dettmers et al. 2021): 2.03 bytes
/// per element, where f32 needs 8.
#[derive(Debug)]
pub struct Moments8bit {
    /// u32 [2, blocks, 64]: the codes of the first and of the second moment, four in a word.
    pub(crate) codes: Tensor,
    /// f32 [2, blocks]
    pub(crate) scales: Tensor,
    elements: usize,
}

/// One of the two moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The running mean of the gradient.
    First,
    /// The running mean of its square.
    Second,
}

impl Moments8bit {
    /// Moments of zero for a number of elements.
    pub fn zeros(elements: usize, device: &Device) -> Result<Self> {
        let blocks = elements.div_ceil(BLOCK);
        let codes = Tensor::zeros([2, blocks, BLOCK / 4], DType::U32, device)?;
        let scales = Tensor::zeros([2, blocks], DType::F32, device)?;
        Ok(Self { codes, scales, elements })
    }

    /// Encodes the values of both moments. The result of [`to_vec`](Self::to_vec) gives the same codes and scales again.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are not equally many.
    pub fn from_f32(first: &[f32], second: &[f32], device: &Device) -> Result<Self> {
        if first.len() != second.len() {
            let expected = format!("{} values", first.len());
            let found = [second.len()].into();
            return Err(Error::Shape { op: "adamw8bit", argument: "second", expected, found });
        }
        let blocks = first.len().div_ceil(BLOCK);
        let (mut words, mut scales) = (vec![0u32; 2 * blocks * (BLOCK / 4)], vec![0.0f32; 2 * blocks]);
        let words_of = words.chunks_mut(blocks.max(1) * (BLOCK / 4));
        for ((moment, words), scales) in
            [first, second].into_iter().zip(words_of).zip(scales.chunks_mut(blocks.max(1)))
        {
            let is_first = std::ptr::eq(moment, first);
            for ((values, words), scale) in moment.chunks(BLOCK).zip(words.chunks_mut(BLOCK / 4)).zip(scales)
            {
                *scale = encode(values, if is_first { Moment::First } else { Moment::Second }, words);
            }
        }
        let codes = Tensor::from_slice(&words, [2, blocks, BLOCK / 4], device)?;
        let scales = Tensor::from_slice(&scales, [2, blocks], device)?;
        Ok(Self { codes, scales, elements: first.len() })
    }

    /// The values of one moment.
    pub fn to_vec(&self, moment: Moment) -> Result<Vec<f32>> {
        let (codes, scales) = (self.codes.to_vec::<u32>()?, self.scales.to_vec::<f32>()?);
        let part = |len: usize| moment as usize * (len / 2)..(moment as usize + 1) * (len / 2);
        let (codes, scales) = (&codes[part(codes.len())], scales[part(scales.len())].to_vec());
        let bytes = codes.iter().flat_map(|word| word.to_le_bytes());
        let values = bytes.zip(scales.into_iter().flat_map(|scale| [scale; BLOCK]));
        let value = |(code, scale)| decode(code, scale, moment);
        Ok(values.take(self.elements).map(value).collect())
    }

    /// Number of elements of the parameter.
    pub fn elements(&self) -> usize {
        self.elements
    }
}

/// Writes the codes of a block's values; returns its scale.
pub(crate) fn encode(values: &[f32], moment: Moment, words: &mut [u32]) -> f32 {
    let (scale, inverse) = scale(values.iter().fold(0.0, |largest: f32, value| largest.max(value.abs())));
    let code = |value: &f32| match moment {
        Moment::First => first_code(value * inverse),
        Moment::Second => second_code(value * inverse),
    };
    for (word, four) in words.iter_mut().zip(values.chunks(4)) {
        *word = four.iter().enumerate().fold(0, |word, (i, value)| word | code(value) << (8 * i));
    }
    scale
}

/// The value of a code.
pub(crate) fn decode(code: u8, scale: f32, moment: Moment) -> f32 {
    scale
        * match moment {
            Moment::First => first_share(code.into()),
            Moment::Second => second_share(code.into()),
        }
}

/// A parameter of [`adamw8bit_step`](crate::ops::adamw8bit_step).
pub struct AdamW8bitTensor<'a> {
    /// p: f32, contiguous; read and written.
    pub parameter: &'a mut Tensor,
    /// The gradient, of the parameter's shape and type.
    pub gradient: &'a Tensor,
    /// Both moments; zeros at first.
    pub moments: &'a mut Moments8bit,
    /// The decay.
    pub weight_decay: f32,
}
