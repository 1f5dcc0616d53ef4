//! The kernels' modules that a model launches, so that the driver compiles them while the weights are read.

use super::config::Config;
use super::model::LoadOptions;
use pascaline::cuda::{CudaDevice, ptx_modules};
use pascaline::kv::KvFormat;
use pascaline::{DType, Result};
use std::collections::BTreeSet;
use std::thread::{self, ScopedJoinHandle};

/// How matrices are stored on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stored {
    /// The format's name; `None` for floating point.
    pub format: Option<&'static str>,
    /// Whether they are quantised while they are loaded.
    pub encoded: bool,
}

/// Starts loading a model's modules on a thread of the scope. The driver compiles one module at a time, whichever thread
/// asks for it (all modules with driver 580 on an H200: 23.5 s with 16 threads, 26.2 s with one). So one thread is enough;
/// the gain is that it overlaps with reading the weights.
pub(super) fn load_ahead<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    device: &CudaDevice,
    config: &Config,
    options: &LoadOptions,
    stored: &BTreeSet<Stored>,
) -> ScopedJoinHandle<'scope, Result<()>> {
    let (device, modules) = (device.clone(), modules(config, options, stored));
    scope.spawn(move || device.load_modules(&modules).map(drop))
}

/// The types in the names of the kernels that read a cache, and the width of their heads.
fn of_cache(cache: KvFormat, head_dim: usize) -> (&'static str, usize) {
    let types = match cache {
        KvFormat::F32 => "f32",
        KvFormat::F16 => "f32_f16",
        KvFormat::Float16(_) => "f32_coded",
        KvFormat::Q8_0 => "f32_q8_0",
    };
    // formats other than floats have kernels for the larger head only
    let narrow = matches!(cache, KvFormat::F32 | KvFormat::F16) && head_dim <= 64;
    (types, if narrow { 64 } else { 128 })
}

/// The modules that batching takes in addition to those of [`load_ahead`].
pub(super) fn of_pages(cache: KvFormat, head_dim: usize) -> Vec<&'static str> {
    let (types, width) = of_cache(cache, head_dim);
    let attention = |kernel| format!("attention_paged_{kernel}_d{width}_{types}");
    let names = [format!("rope_append_each_{types}"), attention("prefill"), attention("decode")];
    names.iter().filter_map(|name| ptx_modules().find(|module| module == name)).collect()
}

/// The modules that loading and answering take, in the order of their first use; `stored` is how matrices are stored on the
/// device. A module that is missing here is loaded at the first launch of its kernels, which costs only time.
fn modules(config: &Config, options: &LoadOptions, stored: &BTreeSet<Stored>) -> Vec<&'static str> {
    let plain = if options.dtype == DType::F16 { "mixed" } else { "f32" };
    let (cache, text_dim) = of_cache(options.cache, config.text.head_dim);
    let vision_dim = if config.vision.hidden_size / config.vision.num_heads.max(1) <= 64 { 64 } else { 128 };

    let mut names: Vec<String> = Vec::new();
    let mut add = |modules: &[&str]| names.extend(modules.iter().map(|name| (*name).to_owned()));
    let each = |names: &[&str], name: &dyn Fn(&&str) -> String| names.iter().map(name).collect::<Vec<_>>();
    for Stored { format, encoded } in stored {
        match format {
            None => {
                add(&["copy", "elementwise", "layer_norm"]);
                let tiles = ["vector_nt", "tile64_nt", "tile32_nt", "tile128_nt", "tile64x128_nt"];
                let tiles = each(&tiles, &|tile| format!("matmul_{tile}_{plain}"));
                add(&tiles.iter().map(String::as_str).collect::<Vec<_>>());
                add(&["matmul_reduce"]);
            }
            Some(format) => {
                // some formats have modules of their own, the others share one
                let of = |op: &str| {
                    let own = format!("quant_{op}_{format}");
                    if ptx_modules().any(|module| module == own) { own } else { format!("quant::{op}") }
                };
                if *encoded {
                    add(&[&of("encode")]);
                }
                add(&["copy", "elementwise", "layer_norm", "quant_encode_rows"]);
                let kernels = ["tile32", "tile64", "slices64", "tile128", "gated128", "vector1", "vector"];
                let kernels = each(&kernels, &|kernel| format!("quant_{kernel}_{format}"));
                add(&kernels.iter().map(String::as_str).collect::<Vec<_>>());
                add(&[&of("decode")]);
            }
        }
    }
    add(&["rope_append_f32", &format!("attention_prefill_d{vision_dim}_f32"), "activate"]);
    add(&["embedding", "rms_norm", &format!("rope_append_{cache}")]);
    add(&["prefill", "decode"]
        .map(|kernel| format!("attention_{kernel}_d{text_dim}_{cache}"))
        .each_ref()
        .map(String::as_str));
    add(&["attention_prefill_merge", "reduce"]);
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names.iter().filter_map(|name| ptx_modules().find(|module| module == name)).collect()
}

#[cfg(all(test, feature = "virtual-gpu"))]
mod tests {
    use super::*;
    use crate::batch::{Batch, BatchOptions};
    use crate::generate::user_turn;
    use crate::{Checkpoint, Options, Qwen3Vl, Visual};
    use pascaline::Device;
    use pascaline::cuda;
    use pascaline::quant::Format;
    use std::path::Path;

    /// A module that is launched and was not loaded ahead makes the first answer wait.
    #[test]
    fn what_is_launched_was_loaded_ahead() -> Result<()> {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
        let tiny = fixtures.join("qwen3-vl/tiny");
        let mixed = fixtures.join("qwen3-vl-gguf/model-Q4_K_M.gguf");
        let device = Device::virtual_gpu()?;
        let module_of = |kernel: &str| {
            let mut all = kernels_gpu::KERNELS.iter().copied().flatten();
            all.find(|info| info.name == kernel).map_or("none", |info| info.module)
        };
        for (path, dtype, quantize, cache) in [
            (&tiny, DType::F32, None, KvFormat::F32),
            (&tiny, DType::F16, None, KvFormat::F16),
            (&tiny, DType::F16, None, KvFormat::BF16),
            (&tiny, DType::F16, Some(Format::Q8_0), KvFormat::F32),
            (&tiny, DType::F16, Some(Format::Q4_0), KvFormat::Q8_0),
            (&tiny, DType::F16, Some(Format::Q4K), KvFormat::F16),
            (&tiny, DType::F16, Some(Format::Q6K), KvFormat::F16),
            (&mixed, DType::F16, None, KvFormat::F32),
        ] {
            let options = LoadOptions { dtype, quantize, cache, ..LoadOptions::for_device(&device) };
            let generation = Options { max_new_tokens: 3, ..Options::default() };
            let picture = [Visual::image(&tiny.join("cases/small.png"))?];
            let (answered, launched) = cuda::trace(|| -> Result<_> {
                let model = Qwen3Vl::load_with(path, &device, options, |_| {})?;
                model.generate(&picture, "What is it?", &generation)?;
                Ok(model)
            });
            let model = answered?;
            let stored = Checkpoint::open(path, None)?.stored(&options);
            let mut ahead: BTreeSet<_> = modules(model.config(), &options, &stored).into_iter().collect();
            let late = |launched: Vec<&'static str>, ahead: &BTreeSet<&'static str>| {
                let launched: BTreeSet<_> = launched.into_iter().map(module_of).collect();
                let late: Vec<_> = launched.difference(ahead).copied().collect();
                assert!(late.is_empty(), "{path:?} {dtype:?} {quantize:?} {cache:?}: {late:?}");
            };
            late(launched, &ahead);
            let (answered, launched) = cuda::trace(|| -> Result<()> {
                let mut batch = Batch::new(&model, BatchOptions::with_room(400))?;
                for _ in 0..2 {
                    let prompt = model.processor.prepare(&[user_turn(&picture, "What is it?")], &picture)?;
                    batch.add(prompt, &generation)?;
                }
                while !batch.is_idle() {
                    batch.step();
                }
                Ok(())
            });
            answered?;
            ahead.extend(of_pages(cache, model.config().text.head_dim));
            late(launched, &ahead);
        }
        Ok(())
    }
}
