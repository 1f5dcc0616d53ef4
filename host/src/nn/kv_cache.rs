//! Keys and values of the tokens so far.

use crate::kv::{KvFormat, KvTensor};
use crate::{Device, Error, Result};

/// The keys and values of every layer. Between two forward passes all layers hold the same number of tokens.
///
/// ```
/// use pascaline::kv::KvFormat;
/// use pascaline::nn::{Attention, KvCache, Linear, Rope};
/// use pascaline::{DType, Device, Tensor, ops};
/// # let cpu = Device::Cpu;
/// # let eye = Tensor::from_slice(&std::array::from_fn::<f32, 256, _>(|i| (i % 17 == 0) as u8 as f32), [16, 16], &cpu)?;
/// # let qkv = ops::cat(&[Tensor::zeros([32, 16], DType::F32, &cpu)?, eye.clone()], 0)?; // q = k = 0, v = x
/// # let attention = Attention::new(Linear::new(qkv, None)?, None, Linear::new(eye, None)?, [1, 1, 16], true)?;
/// # let angles = || Ok::<_, pascaline::Error>([Tensor::ones([8, 8], DType::F32, &cpu)?, Tensor::zeros([8, 8], DType::F32, &cpu)?]);
/// # let [cos, sin] = angles()?;
/// // `attention` gives the mean of the rows up to each; cos and sin are the angles
/// let mut cache = KvCache::new(1, 1, 16, KvFormat::F32, &cpu)?; // 1 layer, 1 kv head of 16
/// cache.reserve(8)?;
/// for token in 0..3 {
///     let x = Tensor::full(token as f32, [1, 16], &cpu)?;
///     let rope = Rope::new(cos.clone(), sin.clone(), cache.len(), cache.len())?;
///     let y = attention.forward(&x, &rope, cache.caches().next())?;
///     assert_eq!(y.to_vec::<f32>()?, [token as f32 / 2.0; 16]);
/// }
/// assert_eq!((cache.len(), cache.capacity()), (3, 8));
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<LayerCache>,
}

/// The keys and values of one layer of a [`KvCache`], which an [`Attention`](super::Attention) appends to.
///
/// ```
/// use pascaline::Device;
/// use pascaline::kv::KvFormat;
/// use pascaline::nn::KvCache;
/// let mut cache = KvCache::new(2, 1, 16, KvFormat::F16, &Device::Cpu)?;
/// let [first, second] = cache.layers_mut() else { unreachable!("two layers") };
/// // first_block.forward(&x, &rope, Some(first.into()))?, then second_block.forward(&x, &rope, Some(second.into()))?
/// # let _ = (first, second);
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Debug)]
pub struct LayerCache {
    /// [capacity, num_kv_heads, head_dim]
    k: KvTensor,
    /// [capacity, num_kv_heads, head_dim]
    v: KvTensor,
    len: usize,
}

impl KvCache {
    /// An empty cache without capacity, for keys and values in `format`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a number of exponent bits without a format.
    pub fn new(
        layers: usize,
        num_kv_heads: usize,
        head_dim: usize,
        format: KvFormat,
        device: &Device,
    ) -> Result<Self> {
        Self::across(std::iter::repeat_n(device, layers), num_kv_heads, head_dim, format)
    }

    /// As [`new`](Self::new), with each layer on its own device.
    pub fn across<'d>(
        devices: impl IntoIterator<Item = &'d Device>,
        num_kv_heads: usize,
        head_dim: usize,
        format: KvFormat,
    ) -> Result<Self> {
        let layer = |device| LayerCache::with_room(0, num_kv_heads, head_dim, format, device);
        let layers = devices.into_iter().map(layer).collect::<Result<_>>()?;
        Ok(Self { layers })
    }

    /// Number of tokens that all layers hold. A pass that failed may have left more in the first layers.
    pub fn len(&self) -> usize {
        self.layers.iter().map(|layer| layer.len).min().unwrap_or(0)
    }

    /// Whether there are no tokens in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of tokens that every layer has memory for.
    pub fn capacity(&self) -> usize {
        self.layers.iter().map(LayerCache::capacity).min().unwrap_or(0)
    }

    /// Makes room for `capacity` tokens in total; the tokens in the cache stay.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or another device error. Capacity and contents are then unchanged.
    pub fn reserve(&mut self, capacity: usize) -> Result<()> {
        let before = self.capacity();
        if capacity <= before {
            return Ok(());
        }
        // Layer by layer, which needs memory for one more layer; all at once would need twice the cache.
        let grown = self.layers.iter_mut().try_for_each(|layer| layer.resize(capacity));
        if grown.is_err() {
            for layer in &mut self.layers {
                // The next request may need the memory that the first layers have taken. A layer that can't be shrunk again
                // stays larger and correct: `capacity` is that of the smallest.
                let _ = layer.resize(before);
            }
        }
        grown
    }

    /// Removes all tokens from number `len` on; the capacity stays.
    pub fn truncate(&mut self, len: usize) {
        for layer in &mut self.layers {
            layer.len = layer.len.min(len);
        }
    }

    /// Counts tokens whose keys and values a replayed graph has written.
    ///
    /// # Errors
    /// [`Error::Shape`] if there was no room for them, so that they were not written. The length is then unchanged.
    pub fn advance(&mut self, tokens: usize) -> Result<()> {
        let lens = self.layers.iter().map(|layer| layer.room(tokens)).collect::<Result<Vec<_>>>()?;
        self.layers.iter_mut().zip(lens).for_each(|(layer, len)| layer.len = len);
        Ok(())
    }

    /// The layers, in order.
    pub fn layers_mut(&mut self) -> &mut [LayerCache] {
        &mut self.layers
    }

    /// Bytes of device memory, including unused capacity.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.k.bytes() + layer.v.bytes()).sum()
    }
}

impl LayerCache {
    /// An empty cache.
    pub(super) fn with_room(
        tokens: usize,
        num_kv_heads: usize,
        head_dim: usize,
        format: KvFormat,
        device: &Device,
    ) -> Result<Self> {
        let room = || KvTensor::uninitialized([tokens, num_kv_heads, head_dim], format, device);
        Ok(Self { k: room()?, v: room()?, len: 0 })
    }

    /// Appends `tokens` tokens. `write` is called with the whole caches of keys and values, and writes the rows of these
    /// tokens.
    ///
    /// # Errors
    /// [`Error::Shape`] if the cache has no room for them, and `write`'s errors; nothing is appended then.
    pub(super) fn append<T>(
        &mut self,
        tokens: usize,
        write: impl FnOnce([&mut KvTensor; 2]) -> Result<T>,
    ) -> Result<T> {
        let len = self.room(tokens)?;
        let written = write([&mut self.k, &mut self.v])?;
        self.len = len;
        Ok(written)
    }

    fn capacity(&self) -> usize {
        self.k.dims()[0]
    }

    /// The length after so many more tokens, if there is room for them.
    fn room(&self, tokens: usize) -> Result<usize> {
        match self.len.checked_add(tokens) {
            Some(len) if len <= self.capacity() => Ok(len),
            _ => {
                let expected = format!("room for {tokens} tokens after {}", self.len);
                Err(Error::Shape { op: "KvCache", argument: "cache", expected, found: self.k.dims().into() })
            }
        }
    }

    /// Allocates memory for `capacity` tokens, at least as many as the cache holds; changes both tensors or neither.
    fn resize(&mut self, capacity: usize) -> Result<()> {
        if capacity == self.capacity() {
            return Ok(());
        }
        let resized = |tensor: &KvTensor| -> Result<KvTensor> {
            let [_, heads, dim] = tensor.dims();
            let mut other =
                KvTensor::uninitialized([capacity, heads, dim], tensor.format(), &tensor.device())?;
            other.view_mut()?.narrow(0, self.len)?.copy_from(tensor)?;
            Ok(other)
        };
        (self.k, self.v) = (resized(&self.k)?, resized(&self.v)?);
        Ok(())
    }

    /// Number of tokens in it.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Keys and values, including unused capacity.
    pub(super) fn parts(&self) -> [&KvTensor; 2] {
        [&self.k, &self.v]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state after a `reserve` that ran out of memory in the second layer.
    #[test]
    fn room_is_what_every_layer_has() -> Result<()> {
        let mut cache = KvCache::new(2, 1, 4, KvFormat::F32, &Device::Cpu)?;
        cache.reserve(3)?;
        cache.layers[0].k = KvTensor::uninitialized([8, 1, 4], KvFormat::F32, &Device::Cpu)?;
        assert_eq!(cache.capacity(), 3);
        cache.reserve(8)?;
        assert_eq!(cache.capacity(), 8);
        cache.layers_mut().iter_mut().try_for_each(|layer| layer.append(8, |_| Ok(())))
    }
}
