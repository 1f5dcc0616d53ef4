//! The kernels' modules that a model launches, so that the driver compiles them while the weights are read.

use super::config::Config;
use super::model::LoadOptions;
use pascaline::cuda::{CudaDevice, ptx_modules};
use pascaline::kv::KvFormat;
use pascaline::{DType, Result, quant};
use std::thread::{self, ScopedJoinHandle};

/// Begins to load the modules of a model, on a thread of the scope. The driver compiles one module at a time, whichever thread
/// asks for it (measured with driver 580 on an H200: 23.5 s by 16 threads, 26.2 s by one, for all of them), so one thread is
/// enough, and what it gains is the time in which the weights are read.
pub(super) fn load_ahead<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    device: &CudaDevice,
    config: &Config,
    options: &LoadOptions,
) -> ScopedJoinHandle<'scope, Result<()>> {
    let (device, modules) = (device.clone(), modules(config, options));
    scope.spawn(move || device.load_modules(&modules).map(drop))
}

/// The modules that loading and answering take, in the order of their first use. One that is missing here is loaded when its
/// first kernel is launched: that costs time and no more.
fn modules(config: &Config, options: &LoadOptions) -> Vec<&'static str> {
    let plain = if options.dtype == DType::F16 { "mixed" } else { "f32" };
    let cache = match options.cache {
        KvFormat::F32 => "f32",
        KvFormat::F16 => "f32_f16",
        KvFormat::Float16(_) => "f32_coded",
        KvFormat::Q8_0 => "f32_q8_0",
    };
    // formats other than floats have kernels for the larger head alone
    let text_dim = match options.cache {
        KvFormat::F32 | KvFormat::F16 if config.text.head_dim <= 64 => 64,
        _ => 128,
    };
    let vision_dim = if config.vision.hidden_size / config.vision.num_heads.max(1) <= 64 { 64 } else { 128 };

    let mut names: Vec<String> = Vec::new();
    let mut add = |modules: &[&str]| names.extend(modules.iter().map(|name| (*name).to_owned()));
    match options.quantize.map(quant::name) {
        None => {
            add(&["copy", "elementwise", "layer_norm"]);
            add(&["vector_nt", "tile64_nt", "tile32_nt", "tile128_nt", "tile64x128_nt"]
                .map(|tile| format!("matmul_{tile}_{plain}"))
                .each_ref()
                .map(String::as_str));
            add(&["matmul_reduce"]);
        }
        Some(format) => {
            // of some formats the kernels are modules of their own, of the others one module
            let of = |op: &str| {
                let own = format!("quant_{op}_{format}");
                if ptx_modules().any(|module| module == own) { own } else { format!("quant::{op}") }
            };
            add(&[&of("encode"), "copy", "elementwise", "layer_norm", "quant_encode_rows"]);
            add(&["tile32", "tile64", "slices64", "tile128", "vector1", "vector"]
                .map(|kernel| format!("quant_{kernel}_{format}"))
                .each_ref()
                .map(String::as_str));
            add(&[&of("decode")]);
        }
    }
    add(&["rope_append_f32", &format!("attention_prefill_d{vision_dim}_f32"), "activate"]);
    add(&["embedding", "rms_norm", &format!("rope_append_{cache}")]);
    add(&["prefill", "decode"]
        .map(|kernel| format!("attention_{kernel}_d{text_dim}_{cache}"))
        .each_ref()
        .map(String::as_str));
    add(&["reduce"]);
    names.iter().filter_map(|name| ptx_modules().find(|module| module == name)).collect()
}

#[cfg(all(test, feature = "virtual-gpu"))]
mod tests {
    use super::*;
    use crate::{Options, Qwen3Vl, Visual};
    use pascaline::Device;
    use pascaline::cuda;
    use pascaline::quant::Format;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// A module that is launched and was not loaded ahead makes the first answer wait.
    #[test]
    fn what_is_launched_was_loaded_ahead() -> Result<()> {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3-vl/tiny");
        let device = Device::virtual_gpu()?;
        let module_of = |kernel: &str| {
            let mut all = kernels_gpu::KERNELS.iter().copied().flatten();
            all.find(|info| info.name == kernel).map_or("none", |info| info.module)
        };
        for (dtype, quantize, cache) in [
            (DType::F32, None, KvFormat::F32),
            (DType::F16, None, KvFormat::F16),
            (DType::F16, None, KvFormat::BF16),
            (DType::F16, Some(Format::Q8_0), KvFormat::F32),
            (DType::F16, Some(Format::Q4_0), KvFormat::Q8_0),
            (DType::F16, Some(Format::Q4K), KvFormat::F16),
            (DType::F16, Some(Format::Q6K), KvFormat::F16),
        ] {
            let options = LoadOptions { dtype, quantize, cache, ..LoadOptions::for_device(&device) };
            let (answered, launched) = cuda::trace(|| -> Result<_> {
                let model = Qwen3Vl::load_with(&tiny, &device, options, |_| {})?;
                let picture = Visual::image(&tiny.join("cases/small.png"))?;
                model.generate(
                    &[picture],
                    "What is it?",
                    &Options { max_new_tokens: 3, ..Options::default() },
                )?;
                Ok(model)
            });
            let ahead: BTreeSet<_> = modules(answered?.config(), &options).into_iter().collect();
            let launched: BTreeSet<_> = launched.into_iter().map(module_of).collect();
            let late: Vec<_> = launched.difference(&ahead).collect();
            assert!(late.is_empty(), "{dtype:?} {quantize:?} {cache:?}: {late:?}");
        }
        Ok(())
    }
}
