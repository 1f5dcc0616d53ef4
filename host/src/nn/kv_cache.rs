//! Keys and values of the tokens so far.

use crate::{DType, Device, Error, Result, Tensor, TensorMut, ops};

/// The keys and values of every layer. All layers hold the same number of tokens between two forward passes.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<LayerCache>,
    num_kv_heads: usize,
    head_dim: usize,
    dtype: DType,
    device: Device,
}

/// The keys and values of one layer.
#[derive(Debug)]
pub struct LayerCache {
    /// [capacity, num_kv_heads, head_dim]
    k: Tensor,
    /// [capacity, num_kv_heads, head_dim]
    v: Tensor,
    len: usize,
}

impl KvCache {
    /// An empty cache without capacity, for keys and values in f32 or f16.
    ///
    /// # Errors
    /// A device error.
    pub fn new(
        layers: usize,
        num_kv_heads: usize,
        head_dim: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let layer = |_| LayerCache::with_room(0, num_kv_heads, head_dim, dtype, device);
        let layers = (0..layers).map(layer).collect::<Result<_>>()?;
        Ok(Self { layers, num_kv_heads, head_dim, dtype, device: device.clone() })
    }

    /// Tokens in the cache.
    pub fn len(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.len)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens that there is memory for.
    pub fn capacity(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.k.dims()[0])
    }

    /// Makes room for `capacity` tokens in all; what is in the cache stays.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or another device error. Nothing is lost then.
    pub fn reserve(&mut self, capacity: usize) -> Result<()> {
        if capacity <= self.capacity() {
            return Ok(());
        }
        for layer in &mut self.layers {
            for tensor in [&mut layer.k, &mut layer.v] {
                let shape = [capacity, self.num_kv_heads, self.head_dim];
                let mut larger = Tensor::uninitialized(shape, self.dtype, &self.device)?;
                let kept = tensor.narrow(0, 0, layer.len)?;
                ops::copy_into(larger.view_mut()?.narrow(0, 0, layer.len)?, &kept)?;
                *tensor = larger;
            }
        }
        Ok(())
    }

    /// Forgets all tokens from number `len` on.
    pub fn truncate(&mut self, len: usize) {
        for layer in &mut self.layers {
            layer.len = layer.len.min(len);
        }
    }

    /// Counts tokens whose keys and values were written by a replayed graph.
    ///
    /// # Errors
    /// [`Error::Shape`] if there was no room for them: they were not written.
    pub fn advance(&mut self, tokens: usize) -> Result<()> {
        self.layers.iter_mut().try_for_each(|layer| layer.advance(tokens))
    }

    /// The layers, in order.
    pub fn layers_mut(&mut self) -> &mut [LayerCache] {
        &mut self.layers
    }

    /// Bytes that it takes on the device.
    pub fn bytes(&self) -> usize {
        let elements: usize = self.layers.iter().map(|layer| 2 * layer.k.shape().elements()).sum();
        elements * self.dtype.size()
    }
}

impl LayerCache {
    /// An empty cache.
    pub(super) fn with_room(
        tokens: usize,
        num_kv_heads: usize,
        head_dim: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let room = || Tensor::uninitialized([tokens, num_kv_heads, head_dim], dtype, device);
        Ok(Self { k: room()?, v: room()?, len: 0 })
    }

    /// Appends `tokens` tokens: `write` fills in their keys and values, in caches that begin with the first token's.
    ///
    /// # Errors
    /// [`Error::Shape`] if the cache has no room for them, and what `write` fails with; nothing is appended then.
    pub(super) fn append(
        &mut self,
        tokens: usize,
        write: impl FnOnce(TensorMut, TensorMut) -> Result<()>,
    ) -> Result<()> {
        self.room(tokens)?;
        write(self.k.view_mut()?, self.v.view_mut()?)?;
        self.advance(tokens)
    }

    fn room(&self, tokens: usize) -> Result<()> {
        if self.len + tokens <= self.k.dims()[0] {
            return Ok(());
        }
        let expected = format!("room for {} tokens", self.len + tokens);
        Err(Error::Shape { op: "KvCache", argument: "cache", expected, found: self.k.shape().clone() })
    }

    fn advance(&mut self, tokens: usize) -> Result<()> {
        self.room(tokens)?;
        self.len += tokens;
        Ok(())
    }

    /// The keys and values so far, each [num_kv_heads, len, head_dim].
    pub(super) fn views(&self) -> Result<(Tensor, Tensor)> {
        let view = |x: &Tensor| x.narrow(0, 0, self.len)?.swap_dims(0, 1);
        Ok((view(&self.k)?, view(&self.v)?))
    }

    /// All that there is room for, each [num_kv_heads, capacity, head_dim].
    pub(super) fn whole(&self) -> Result<(Tensor, Tensor)> {
        Ok((self.k.swap_dims(0, 1)?, self.v.swap_dims(0, 1)?))
    }
}
