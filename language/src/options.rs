//! How a model is loaded and stored, and how a batch of requests uses it.

use super::seam::{VisionPlace, VisionScores};
use super::softmax_share::SoftmaxShare;
use pascaline::kv::KvFormat;
use pascaline::ops::PAGE;
use pascaline::quant::{Format, QuantTensor};
use pascaline::{DType, Device, Result};

/// How [`LanguageModel::load_checkpoint`](super::model::LanguageModel::load_checkpoint) loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// The type of matrices on the device: f32 or f16. All arithmetic is f32.
    pub dtype: DType,
    /// The cache's format: f32, or one that rounds keys and values and takes a half or a quarter of the memory.
    pub cache: KvFormat,
    /// The format that the matrices of linear maps and embeddings are quantised to on the device; it overrides `dtype`.
    pub quantize: Option<Format>,
    /// Whether matrices that are quantised in a GGUF file stay quantised on the device. This overrides `dtype`; `quantize`
    /// overrides it. Types without kernels are converted to the nearest format with kernels ([`LanguageModel::conversions`](super::model::LanguageModel::conversions) lists
    /// them).
    pub keep_quantized: bool,
    /// The number of decoder layers whose weights stay on the GPU; `None`: all. The weights of the layers after them stay
    /// in pinned host memory. They are streamed through two buffers on the device, each while the layer before computes.
    /// This is for cards that can't hold the model. The results are the same. A decoded token takes at least the time of
    /// copying these weights, and uses no graph.
    pub gpu_layers: Option<usize>,
    /// Whether the embedding stays in pinned host memory, where the kernel that looks up rows reads them. For models whose output
    /// projection has weights of its own: the others' embedding is read whole for each token.
    pub host_embedding: bool,
    /// Where the experts of a mixture are, for cards that can't hold them.
    pub experts: ExpertPlacement,
    /// The experts of each layer, the most used first, that are in device memory although `experts` says otherwise: as many as there is
    /// room for.
    pub cached_experts: usize,
    /// Where the vision tower is, for cards that can't hold both it and the text model.
    pub vision: VisionPlace,
    /// The type of the vision tower's matrices, if not that of the others.
    pub vision_matrices: Option<Matrices>,
    /// How the vision tower multiplies queries and keys.
    pub vision_scores: VisionScores,
    /// The share of each softmax that prompts of at least [`LEAST_KEYS`](super::sparse::LEAST_KEYS) tokens read; `None`: all keys. Less
    /// time, and results that differ.
    pub sparse_prefill: Option<SoftmaxShare>,
    /// Prompt tokens of one pass. A lower number bounds the memory of a long prompt's activations, a higher one keeps a GPU
    /// busy. Between its layers a pass can be ended, so on a CPU a pass is short.
    pub tokens_per_pass: usize,
}

impl LoadOptions {
    /// Matrices in f32 on the CPU, where conversion costs more than it saves, and in f16 on a GPU; those that are quantised
    /// in a GGUF file as they are. The cache in f32.
    pub fn for_device(device: &Device) -> Self {
        match device {
            Device::Cpu => Self { dtype: DType::F32, tokens_per_pass: 256, ..Self::for_gpu() },
            Device::Cuda(_) => Self::for_gpu(),
        }
    }

    /// With the experts of a mixture in this place.
    ///
    /// ```
    /// use language::options::{ExpertPlacement, LoadOptions};
    /// let options = LoadOptions::for_gpu().experts(ExpertPlacement::Stream);
    /// assert_eq!(options.experts, ExpertPlacement::Stream);
    /// ```
    pub fn experts(self, experts: ExpertPlacement) -> Self {
        Self { experts, ..self }
    }

    /// Whether weights of a model of `layers` layers are in host memory and pass through the GPU.
    pub(crate) fn is_streaming(&self, layers: usize) -> bool {
        self.experts != ExpertPlacement::Gpu || self.gpu_layers.is_some_and(|on_gpu| on_gpu < layers)
    }

    /// Those of [`for_device`](Self::for_device) for a GPU, which need not be there.
    pub fn for_gpu() -> Self {
        Self {
            dtype: DType::F16,
            quantize: None,
            keep_quantized: true,
            cache: KvFormat::F32,
            gpu_layers: None,
            host_embedding: false,
            experts: ExpertPlacement::Gpu,
            cached_experts: 0,
            vision: VisionPlace::Resident,
            vision_matrices: None,
            vision_scores: VisionScores::F32,
            sparse_prefill: None,
            tokens_per_pass: 1024,
        }
    }
}

/// Where the experts of a mixture are, and what computes with them. The other parts of the decoder and the router are on the GPU in any
/// case. A dense model has none, and only [`Gpu`](Self::Gpu) fits it.
///
/// Experts that the GPU computes give the same bits, wherever they are. Those that the CPU computes differ by the order of f32 sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertPlacement {
    /// In device memory.
    #[default]
    Gpu,
    /// In pinned host memory. For prompts a layer's experts are copied to the GPU while the layer before computes; for a pass of few
    /// tokens kernels read the chosen experts over the bus.
    Stream,
    /// In host memory, and the CPU computes: rows alone go over the bus.
    Cpu,
    /// In pinned host memory: the CPU computes passes of up to `cpu_rows` tokens, and longer ones are streamed.
    Mixed {
        /// Tokens of a pass.
        cpu_rows: usize,
    },
}

impl ExpertPlacement {
    /// In host memory, where nothing is known of the card: the CPU computes passes up to the length at which copying all of a layer's experts
    /// over sixteen lanes takes about as long ([`expert_rows`](super::estimate::expert_rows)).
    pub const AUTO: Self = Self::Mixed { cpu_rows: 16 };

    /// The most tokens of a pass that the CPU computes.
    pub fn cpu_rows(self) -> usize {
        match self {
            Self::Gpu | Self::Stream => 0,
            Self::Cpu => usize::MAX,
            Self::Mixed { cpu_rows } => cpu_rows,
        }
    }

    /// Whether some pass has a layer's experts copied to the GPU.
    pub(crate) fn is_streamed(self) -> bool {
        matches!(self, Self::Stream | Self::Mixed { .. })
    }

    /// The word of `--experts`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Stream => "stream",
            Self::Cpu => "cpu",
            Self::Mixed { .. } => "auto",
        }
    }
}

/// A type for matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matrices {
    /// In f32 or f16.
    Float(DType),
    /// Quantised while they are loaded.
    Quantized(Format),
}

impl Matrices {
    /// `options` with this type for all matrices.
    pub fn apply(self, options: LoadOptions) -> LoadOptions {
        match self {
            Self::Float(dtype) => LoadOptions { dtype, quantize: None, keep_quantized: false, ..options },
            Self::Quantized(format) => LoadOptions { quantize: Some(format), ..options },
        }
    }
}

/// The storage of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In f32 or f16.
    Float(DType),
    /// As it comes from a file of this format.
    Stored(Format),
    /// Quantised on the device while it is loaded.
    Quantized(Format),
}

impl Storage {
    /// Bytes of a matrix of these rows and columns.
    ///
    /// # Errors
    /// [`Error::TooLarge`](pascaline::Error::TooLarge) for sizes that overflow.
    pub fn bytes(self, [rows, columns]: [usize; 2]) -> Result<usize> {
        match self {
            Self::Float(dtype) => Ok(rows.saturating_mul(columns).saturating_mul(dtype.size())),
            Self::Stored(format) | Self::Quantized(format) => {
                Ok(QuantTensor::part_bytes(format, [rows, columns])?.iter().sum())
            }
        }
    }
}

/// How a [`Batch`](super::batch::Batch) uses memory and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOptions {
    /// Pages of the KV cache, each of [`PAGE`] tokens, which all requests share.
    pub pages: usize,
    /// The most requests that run at once; others wait.
    pub max_sequences: usize,
    /// The most prompt tokens in a step while answers run. A step takes fewer if it would otherwise be longer than
    /// three steps without prompts. While more requests wait for their first token than have it, this rule is off. Without
    /// running answers the limit is the model's [`tokens_per_pass`](LoadOptions::tokens_per_pass).
    pub prompt_tokens: usize,
    /// The most bytes of picture embeddings that are kept for later requests.
    pub image_bytes: usize,
    /// Whether, on a GPU, decode passes are captured into graphs and replayed.
    pub graph: bool,
}

impl BatchOptions {
    /// Room for `tokens` tokens of all requests together, 64 requests, up to 512 prompt tokens in a step while answers run,
    /// and 256 MiB of picture embeddings.
    pub fn with_room(tokens: usize) -> Self {
        let pages = tokens.div_ceil(PAGE).max(1);
        Self { pages, max_sequences: 64, prompt_tokens: 512, image_bytes: 256 << 20, graph: true }
    }

    /// The most rows of all captured passes together: the largest pass, and smaller ones.
    pub(crate) fn captured_rows(&self) -> usize {
        (2 * self.max_sequences.next_power_of_two()).max(32)
    }
}
