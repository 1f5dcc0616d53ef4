//! What a layer of a pass appends its keys and values to: a cache of one sequence, or pages of many.

use super::kv_cache::{KvCache, LayerCache};
use super::kv_pages::{KvPages, LayerPages, PagedRows};
use super::sparse_prompt::SparsePrompt;
use std::ops::Range;

/// Where an [`Attention`](super::Attention) appends keys and values, and which keys its rows attend to.
///
/// ```
/// use pascaline::Device;
/// use pascaline::kv::KvFormat;
/// use pascaline::nn::{Cache, KvCache};
/// let mut cache = KvCache::new(1, 1, 16, KvFormat::F16, &Device::Cpu)?;
/// let layer: Option<Cache> = cache.layers_mut().first_mut().map(Cache::from);
/// // block.forward(&x, &rope, layer)?
/// # assert!(layer.is_some());
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Debug)]
pub enum Cache<'a> {
    /// Consecutive tokens of one sequence, of which many rows may read a part only.
    Contiguous(&'a mut LayerCache, Option<&'a SparsePrompt>),
    /// Pages of many sequences. [`Rope::at`](super::Rope::at) gives each row's index in the pool.
    Pages(&'a mut LayerPages, &'a PagedRows),
}

impl<'a> From<&'a mut LayerCache> for Cache<'a> {
    fn from(cache: &'a mut LayerCache) -> Self {
        Self::Contiguous(cache, None)
    }
}

impl KvCache {
    /// The layers in order, as a pass needs them.
    pub fn caches(&mut self) -> impl Iterator<Item = Cache<'_>> {
        self.layers_mut().iter_mut().map(Cache::from)
    }

    /// The layers in order, where the first few are on one device, the next few on another, and so on. Each device has its own copy of what
    /// the rows of a long prompt read.
    pub fn caches_of_each<'a>(
        &'a mut self,
        devices: impl IntoIterator<Item = (usize, Option<&'a SparsePrompt>)>,
    ) -> impl Iterator<Item = Cache<'a>> {
        let sparse = devices.into_iter().flat_map(|(layers, sparse)| std::iter::repeat_n(sparse, layers));
        self.layers_mut().iter_mut().zip(sparse).map(|(layer, sparse)| Cache::Contiguous(layer, sparse))
    }

    /// Some of the layers, in order, for a part of a pass.
    pub fn caches_of(&mut self, layers: Range<usize>) -> impl Iterator<Item = Cache<'_>> {
        let all = self.layers_mut();
        let len = all.len();
        all[layers.start.min(len)..layers.end.min(len)].iter_mut().map(Cache::from)
    }
}

impl KvPages {
    /// The layers in order, for a pass of these rows.
    pub fn caches<'a>(&'a mut self, rows: &'a PagedRows) -> impl Iterator<Item = Cache<'a>> {
        self.caches_of(0..self.layers.len(), rows)
    }

    /// Some of the layers, in order, for a part of a pass. The tensors of `rows` are on the device of these layers.
    pub fn caches_of<'a>(
        &'a mut self,
        layers: Range<usize>,
        rows: &'a PagedRows,
    ) -> impl Iterator<Item = Cache<'a>> {
        let len = self.layers.len();
        let layers = &mut self.layers[layers.start.min(len)..layers.end.min(len)];
        layers.iter_mut().map(|layer| Cache::Pages(layer, rows))
    }

    /// The layers in order, where the first few are on one device, the next few on another, and so on. Each device has its
    /// own copy of the rows' tensors.
    pub fn caches_of_each<'a>(
        &'a mut self,
        devices: impl IntoIterator<Item = (usize, &'a PagedRows)>,
    ) -> impl Iterator<Item = Cache<'a>> {
        let rows = devices.into_iter().flat_map(|(layers, rows)| std::iter::repeat_n(rows, layers));
        self.layers.iter_mut().zip(rows).map(|(layer, rows)| Cache::Pages(layer, rows))
    }
}
