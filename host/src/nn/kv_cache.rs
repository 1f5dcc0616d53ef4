//! Keys and values of the tokens so far.

use crate::kv::{KvFormat, KvMut, KvTensor};
use crate::{Device, Error, Result};

/// The keys and values of every layer. All layers hold the same number of tokens between two forward passes.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<LayerCache>,
}

/// The keys and values of one layer.
#[derive(Debug)]
pub struct LayerCache {
    /// [capacity, num_kv_heads, head_dim]
    k: KvTensor,
    /// [capacity, num_kv_heads, head_dim]
    v: KvTensor,
    len: usize,
}

impl KvCache {
    /// An empty cache without capacity, for keys and values in a format.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a number of exponent bits that no format has, or a device error.
    pub fn new(
        layers: usize,
        num_kv_heads: usize,
        head_dim: usize,
        format: KvFormat,
        device: &Device,
    ) -> Result<Self> {
        let layer = |_| LayerCache::with_room(0, num_kv_heads, head_dim, format, device);
        let layers = (0..layers).map(layer).collect::<Result<_>>()?;
        Ok(Self { layers })
    }

    /// Tokens that all layers hold. A pass that failed may have left more in the first ones.
    pub fn len(&self) -> usize {
        self.layers.iter().map(|layer| layer.len).min().unwrap_or(0)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens that there is memory for in every layer.
    pub fn capacity(&self) -> usize {
        self.layers.iter().map(LayerCache::capacity).min().unwrap_or(0)
    }

    /// Makes room for `capacity` tokens in all; what is in the cache stays.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or another device error. Capacity and contents are as before then.
    pub fn reserve(&mut self, capacity: usize) -> Result<()> {
        let before = self.capacity();
        if capacity <= before {
            return Ok(());
        }
        // Layer by layer, which takes one layer more than the cache; all at once would take the cache twice.
        let grown = self.layers.iter_mut().try_for_each(|layer| layer.resize(capacity));
        if grown.is_err() {
            for layer in &mut self.layers {
                // The next request may need what the first layers have taken. One that can't give it back stays larger
                // and is right: `capacity` counts the smallest.
                let _ = layer.resize(before);
            }
        }
        grown
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
    /// [`Error::Shape`] if there was no room for them: they were not written. Nothing is counted then.
    pub fn advance(&mut self, tokens: usize) -> Result<()> {
        let lens = self.layers.iter().map(|layer| layer.room(tokens)).collect::<Result<Vec<_>>>()?;
        self.layers.iter_mut().zip(lens).for_each(|(layer, len)| layer.len = len);
        Ok(())
    }

    /// The layers, in order.
    pub fn layers_mut(&mut self) -> &mut [LayerCache] {
        &mut self.layers
    }

    /// Bytes that it takes on the device.
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

    /// Appends `tokens` tokens: `write` fills in their keys and values, in caches that begin with the first token's.
    ///
    /// # Errors
    /// [`Error::Shape`] if the cache has no room for them, and what `write` fails with; nothing is appended then.
    pub(super) fn append(
        &mut self,
        tokens: usize,
        write: impl FnOnce(KvMut, KvMut) -> Result<()>,
    ) -> Result<()> {
        let len = self.room(tokens)?;
        write(self.k.view_mut()?, self.v.view_mut()?)?;
        self.len = len;
        Ok(())
    }

    fn capacity(&self) -> usize {
        self.k.dims()[0]
    }

    /// The length with so many tokens more, if there is room for them.
    fn room(&self, tokens: usize) -> Result<usize> {
        match self.len.checked_add(tokens) {
            Some(len) if len <= self.capacity() => Ok(len),
            _ => {
                let expected = format!("room for {tokens} tokens behind {}", self.len);
                Err(Error::Shape { op: "KvCache", argument: "cache", expected, found: self.k.dims().into() })
            }
        }
    }

    /// Memory for `capacity` tokens, no fewer than are held; both tensors or neither.
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

    /// Tokens in it.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Keys and values, with all that there is room for.
    pub(super) fn parts(&self) -> [&KvTensor; 2] {
        [&self.k, &self.v]
    }
}
