//! An LRU cache of picture embeddings, limited in bytes.

use super::prefix::Key;
use crate::media::VisionOutput;
use std::collections::HashMap;

/// The cache. The key is a hash of the picture's contents.
pub(super) struct Images {
    limit: usize,
    bytes: usize,
    clock: u64,
    held: HashMap<Key, Held>,
}

struct Held {
    output: VisionOutput,
    bytes: usize,
    used: u64,
}

/// Bytes of an output's tensors.
fn bytes_of(output: &VisionOutput) -> usize {
    let all = output.deepstack.iter().chain([&output.embeddings]);
    all.map(|tensor| tensor.shape().elements() * tensor.dtype().size()).sum()
}

impl Images {
    /// An empty cache of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, bytes: 0, clock: 0, held: HashMap::new() }
    }

    /// Bytes of device memory in use.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The embeddings of a picture, if the cache has them.
    pub fn get(&mut self, key: Key) -> Option<VisionOutput> {
        self.clock += 1;
        let held = self.held.get_mut(&key)?;
        held.used = self.clock;
        Some(held.output.clone())
    }

    /// Stores a picture's embeddings, if they fit at all, and evicts others for them.
    pub fn put(&mut self, key: Key, output: &VisionOutput) {
        let bytes = bytes_of(output);
        if bytes > self.limit || self.held.contains_key(&key) {
            return;
        }
        self.shrink(self.limit - bytes);
        self.clock += 1;
        self.bytes += bytes;
        self.held.insert(key, Held { output: output.clone(), bytes, used: self.clock });
    }

    /// Evicts embeddings until at most `bytes` are in use.
    pub fn shrink(&mut self, bytes: usize) {
        while self.bytes > bytes {
            let Some(key) = self.held.iter().min_by_key(|(_, held)| held.used).map(|(key, _)| *key) else {
                return;
            };
            self.bytes -= self.held.remove(&key).map_or(0, |held| held.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pascaline::{DType, Device, Tensor};

    #[test]
    fn the_one_used_longest_ago_leaves() {
        let output = || VisionOutput {
            embeddings: Tensor::zeros([2, 3], DType::F32, &Device::Cpu).unwrap(),
            deepstack: vec![Tensor::zeros([2, 3], DType::F32, &Device::Cpu).unwrap()],
        };
        let mut images = Images::new(100);
        images.put(1, &output());
        images.put(2, &output());
        assert_eq!(images.bytes(), 96);
        assert!(images.get(1).is_some());
        images.put(3, &output());
        assert!(images.get(2).is_none() && images.get(1).is_some() && images.get(3).is_some());
        assert_eq!(images.bytes(), 96);
        let mut small = Images::new(47);
        small.put(1, &output());
        assert!(small.get(1).is_none());
    }
}
