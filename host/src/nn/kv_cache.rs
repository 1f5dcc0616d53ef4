//! Keys and values of the tokens so far.

use crate::kv::{KvFormat, KvMut, KvTensor};
use crate::{Device, Error, Result};

/// The keys and values of every layer. All layers hold the same number of tokens between two forward passes.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<LayerCache>,
    num_kv_heads: usize,
    head_dim: usize,
    format: KvFormat,
    device: Device,
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
        Ok(Self { layers, num_kv_heads, head_dim, format, device: device.clone() })
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
        // a layer whose turn had not come when memory ran out has less than those before it
        self.layers.iter().flat_map(|layer| [&layer.k, &layer.v]).map(|kv| kv.dims()[0]).min().unwrap_or(0)
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
            for tensor in [&mut layer.k, &mut layer.v].into_iter().filter(|kv| kv.dims()[0] < capacity) {
                let dims = [capacity, self.num_kv_heads, self.head_dim];
                let mut larger = KvTensor::uninitialized(dims, self.format, &self.device)?;
                larger.view_mut()?.narrow(0, layer.len)?.copy_from(tensor)?;
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
        self.room(tokens)?;
        write(self.k.view_mut()?, self.v.view_mut()?)?;
        self.advance(tokens)
    }

    fn room(&self, tokens: usize) -> Result<()> {
        if self.len + tokens <= self.k.dims()[0] {
            return Ok(());
        }
        let expected = format!("room for {} tokens", self.len + tokens);
        Err(Error::Shape { op: "KvCache", argument: "cache", expected, found: self.k.dims().into() })
    }

    fn advance(&mut self, tokens: usize) -> Result<()> {
        self.room(tokens)?;
        self.len += tokens;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As after a `reserve` that ran out of memory in the second layer.
    #[test]
    fn room_is_what_every_layer_has() -> Result<()> {
        let mut cache = KvCache::new(2, 1, 4, KvFormat::F32, &Device::Cpu)?;
        cache.reserve(3)?;
        cache.layers[0].k = KvTensor::uninitialized([8, 1, 4], KvFormat::F32, &Device::Cpu)?;
        assert_eq!(cache.capacity(), 3);
        cache.reserve(8)?;
        assert_eq!(cache.capacity(), 8);
        cache.layers_mut().iter_mut().try_for_each(|layer| layer.append(8, |_, _| Ok(())))
    }
}
