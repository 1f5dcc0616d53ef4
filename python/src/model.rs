//! Qwen3-VL: load, generate, stream.

use crate::device::{self, PyDevice, detached};
use crate::error::{Failure, Result, unsupported};
use crate::picture::{images, picture, videos};
use crate::quant::format;
use crate::tensor::PyTensor;
use pascaline::Error;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use qwen3_vl::chat::{Message, Part};
use qwen3_vl::embed::{Content, shortened};
use qwen3_vl::generate::user_turn;
use qwen3_vl::media::PixelLimits;
use qwen3_vl::sparse::SoftmaxShare;
use qwen3_vl::weights::Progress;
use qwen3_vl::{
    Checkpoint, ExpertPlacement, LanguageModel, LoadOptions, Matrices, Options, Output, Prompt, Sampling,
    StopReason, VisionPlace, Visual,
};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

type Any<'a, 'py> = &'a Bound<'py, PyAny>;

/// How often a wait checks for Ctrl-C.
const SIGNALS: Duration = Duration::from_millis(50);
/// The most pieces of text that a stream is ahead of its reader.
const AHEAD: usize = 64;

/// The times and sizes of an answer. ``as_dict()`` returns all fields.
#[pyclass(frozen, get_all, name = "Statistics", module = "pascaline")]
pub struct PyStatistics {
    /// Tokens of the prompt.
    prompt_tokens: usize,
    /// Of these, the ones that were computed and not in a cache already.
    prefill_tokens: usize,
    /// Seconds from the prepared prompt to the first token, images included.
    time_to_first_token: f64,
    /// `prefill_tokens` per second of that.
    prefill_tokens_per_second: f64,
    /// Tokens after the first.
    decode_tokens: usize,
    /// Of these, per second.
    decode_tokens_per_second: f64,
    /// Bytes of weights that a decoded token reads.
    weight_bytes_per_token: usize,
    /// Bytes of the cache of keys and values.
    cache_bytes: usize,
    /// The most bytes in use that were measured: of the device on a GPU, of the process on the CPU.
    peak_bytes: Option<usize>,
    /// Seconds that tokens were held back because the GPU was near its thermal limit.
    paused_seconds: f64,
}

#[pymethods]
impl PyStatistics {
    /// All fields.
    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        macro_rules! items {
            ($($field:ident)*) => { $(dict.set_item(stringify!($field), self.$field)?;)* };
        }
        items!(prompt_tokens prefill_tokens time_to_first_token prefill_tokens_per_second decode_tokens
            decode_tokens_per_second weight_bytes_per_token cache_bytes peak_bytes paused_seconds);
        Ok(dict)
    }

    fn __repr__(&self, py: Python) -> PyResult<String> {
        Ok(format!("Statistics({})", self.as_dict(py)?.repr()?))
    }
}

/// An answer.
#[pyclass(frozen, name = "Output", module = "pascaline")]
pub struct PyOutput {
    inner: Output,
}

#[pymethods]
impl PyOutput {
    /// Its text.
    #[getter]
    fn text(&self) -> &str {
        &self.inner.text
    }

    /// Its tokens, a stop token included.
    #[getter]
    fn ids(&self) -> Vec<u32> {
        self.inner.ids.clone()
    }

    /// Why it ended: "eos", "stop_string", "max_new_tokens", "context_full" or "cancelled".
    #[getter]
    fn stop_reason(&self) -> &'static str {
        match self.inner.stop_reason {
            StopReason::Eos => "eos",
            StopReason::StopString => "stop_string",
            StopReason::MaxNewTokens => "max_new_tokens",
            StopReason::ContextFull => "context_full",
            StopReason::Cancelled => "cancelled",
        }
    }

    /// Its times and sizes.
    #[getter]
    fn statistics(&self) -> PyStatistics {
        let of = &self.inner.statistics;
        PyStatistics {
            prompt_tokens: of.prompt_tokens,
            prefill_tokens: of.prefill_tokens,
            time_to_first_token: of.time_to_first_token,
            prefill_tokens_per_second: of.prefill_tokens_per_second,
            decode_tokens: of.decode_tokens,
            decode_tokens_per_second: of.decode_tokens_per_second,
            weight_bytes_per_token: of.weight_bytes_per_token,
            cache_bytes: of.cache_bytes,
            peak_bytes: of.peak_bytes,
            paused_seconds: of.paused_seconds,
        }
    }

    fn __str__(&self) -> &str {
        &self.inner.text
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let of = slf.get();
        let text = PyString::new(slf.py(), &of.inner.text).repr()?;
        Ok(format!(
            "Output(text={text}, ids=[{} tokens], stop_reason='{}')",
            of.inner.ids.len(),
            of.stop_reason()
        ))
    }
}

/// How the tokens of an answer are chosen, and when it ends, as Python gives it.
struct Rules {
    max_new_tokens: Option<usize>,
    greedy: Option<bool>,
    temperature: Option<f64>,
    top_k: Option<usize>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    repetition_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    seed: Option<u64>,
    stop: Option<Vec<String>>,
    stop_at_eos: bool,
}

impl Rules {
    /// `published` is the limit of the checkpoint's authors.
    fn options(self, published: Option<usize>) -> Result<Options> {
        let shaping = [
            ("temperature", self.temperature.is_some_and(|temperature| temperature != 0.0)),
            ("top_k", self.top_k.is_some()),
            ("top_p", self.top_p.is_some()),
            ("min_p", self.min_p.is_some()),
        ];
        let shaped = shaping.iter().find(|(_, given)| *given).map(|(name, _)| *name);
        let greedy = match (self.greedy, shaped) {
            (Some(true), Some(name)) => {
                return Err(unsupported("generate", name, "given", "greedy=True takes the likeliest token"));
            }
            (greedy, shaped) => greedy.unwrap_or(shaped.is_none()),
        };
        let mut sampling = if greedy { Sampling::GREEDY } else { Sampling::INSTRUCT };
        macro_rules! given {
            ($($field:ident)*) => { $(if let Some(given) = self.$field { sampling.$field = given; })* };
        }
        given!(temperature top_k top_p min_p repetition_penalty presence_penalty frequency_penalty seed);
        sampling.check()?;
        let Self { max_new_tokens, stop, stop_at_eos, .. } = self;
        Ok(Options {
            max_new_tokens: max_new_tokens.or(published).unwrap_or(usize::MAX),
            sampling,
            stop: stop.unwrap_or_default(),
            stop_at_eos,
            ..Options::default()
        })
    }
}

/// An entry of a message, or of a part of one.
fn field<'py>(of: &Bound<'py, PyDict>, name: &str) -> Result<Bound<'py, PyAny>> {
    let missing = || Error::Prompt { reason: format!("a message or a part of one has no `{name}`") };
    Ok(of.get_item(name)?.ok_or_else(missing)?)
}

/// The messages and pictures of a prompt: a text, or a list of messages as Hugging Face's chat templates take them.
fn conversation(
    prompt: Any,
    images: Option<Any>,
    videos: Option<Any>,
) -> Result<(Vec<Message>, Vec<Visual>)> {
    let given = [self::images(images)?, self::videos(videos)?].concat();
    if let Ok(text) = prompt.extract::<String>() {
        return Ok((vec![user_turn(&given, &text)], given));
    }
    let Ok(turns) = prompt.extract::<Vec<Bound<PyDict>>>() else {
        return Err(PyTypeError::new_err("a prompt is a str or a list of messages {role, content}").into());
    };
    let (mut messages, mut visuals, mut given) = (Vec::new(), Vec::new(), given.into_iter());
    for turn in turns {
        let role = field(&turn, "role")?.extract::<String>()?;
        let content = field(&turn, "content")?;
        if let Ok(text) = content.extract::<String>() {
            messages.push(Message::text(&role, text));
            continue;
        }
        let mut parts = Vec::new();
        for part in content.extract::<Vec<Bound<PyDict>>>()? {
            let kind = field(&part, "type")?.extract::<String>()?;
            match kind.as_str() {
                "text" => parts.push(Part::Text { text: field(&part, "text")?.extract()? }),
                "image" | "video" => {
                    let visual = match part.get_item(&kind)? {
                        Some(own) if kind == "image" => {
                            let name = format!("number {}", visuals.len());
                            Some(Visual::Image { picture: picture(&own, &name)?, name })
                        }
                        Some(own) => {
                            let list = PyList::new(own.py(), [own])?;
                            self::videos(Some(list.as_any()))?.into_iter().next()
                        }
                        None => given.next(),
                    };
                    let none =
                        || Error::Prompt { reason: format!("fewer pictures than parts of type {kind}") };
                    let visual = visual.ok_or_else(none)?;
                    parts.push(visual.part());
                    visuals.push(visual);
                }
                other => {
                    let reason = format!("a part has the type {other:?}, and not text, image or video");
                    return Err(Error::Prompt { reason }.into());
                }
            }
        }
        messages.push(Message { role, content: parts });
    }
    visuals.extend(given); // too many: refused when they are prepared
    Ok((messages, visuals))
}

/// A Qwen3-VL model on a device: ``Qwen3VL.load(path)``.
#[pyclass(frozen, name = "Qwen3VL", module = "pascaline")]
pub struct PyQwen3Vl {
    inner: Arc<LanguageModel>,
    path: PathBuf,
}

impl PyQwen3Vl {
    fn prepared(&self, py: Python, prompt: Any, images: Option<Any>, videos: Option<Any>) -> Result<Prompt> {
        let (messages, visuals) = conversation(prompt, images, videos)?;
        Ok(py.detach(|| self.inner.processor.prepare(&messages, &visuals))?)
    }
}

/// The load options that were asked for.
pub fn load_options(
    device: &pascaline::Device,
    dtype: Option<&str>,
    cache: Option<&str>,
    gpu_layers: Option<usize>,
    (experts, cached_experts): (Option<&str>, usize),
    vision: Option<&str>,
    tokens_per_pass: Option<usize>,
    sparse_prefill: Option<f64>,
) -> Result<LoadOptions> {
    let mut options = LoadOptions::for_device(device);
    if let Some(name) = dtype {
        options = matrices(name)?.apply(options);
    }
    if let Some(cache) = cache {
        options.cache = cache.parse()?;
    }
    if let Some(place) = vision {
        options.vision = self::place(place)?;
    }
    options.gpu_layers = gpu_layers;
    options.experts = experts.map(self::experts).transpose()?.unwrap_or_default();
    options.cached_experts = cached_experts;
    options.tokens_per_pass = tokens_per_pass.unwrap_or(options.tokens_per_pass);
    let share = |share: f64| {
        let reason = "a share is above 0 and up to 1";
        SoftmaxShare::new(share)
            .ok_or_else(|| unsupported("load", "sparse_prefill", share.to_string(), reason))
    };
    options.sparse_prefill = sparse_prefill.map(share).transpose()?;
    Ok(options)
}

/// The type of matrices of this name.
pub fn matrices(name: &str) -> Result<Matrices> {
    Ok(match name {
        "f32" | "float32" => Matrices::Float(pascaline::DType::F32),
        "f16" | "float16" => Matrices::Float(pascaline::DType::F16),
        "i8" => return Err(unsupported("load", "dtype", name, "use f32, f16 or a format of GGUF files")),
        _ => Matrices::Quantized(format(name)?),
    })
}

/// The place of the vision tower of this name.
pub fn place(name: &str) -> Result<VisionPlace> {
    match name {
        "gpu" => Ok(VisionPlace::Resident),
        "stream" => Ok(VisionPlace::Streamed),
        "cpu" => Ok(VisionPlace::Cpu),
        _ => Err(unsupported("load", "vision", name, "use gpu, stream or cpu")),
    }
}

/// The place of a mixture's experts of this name.
pub fn experts(name: &str) -> Result<ExpertPlacement> {
    match name {
        "gpu" => Ok(ExpertPlacement::Gpu),
        "stream" => Ok(ExpertPlacement::Stream),
        "cpu" => Ok(ExpertPlacement::Cpu),
        "auto" => Ok(ExpertPlacement::AUTO),
        _ => Err(unsupported("load", "experts", name, "use gpu, stream, cpu or auto")),
    }
}

#[pymethods]
impl PyQwen3Vl {
    /// Loads a model: a directory as published (config.json, safetensors, tokenizer.json), or a GGUF file with its vision file
    /// (mmproj) in the same folder.
    ///
    /// device: a name or a Device. dtype: the type of matrices, "f32", "f16", or a quantised format such as "q8_0" or "q4_k"; if not
    /// given, f32 on the CPU, f16 on a GPU, and the quantised matrices of a GGUF file as they are. cache: "f32", "f16", "bf16" or "q8_0".
    /// gpu_layers: the decoder layers whose weights stay on the GPU; the others are streamed. vision: "gpu", "stream" or "cpu".
    /// experts: where those of a mixture are, "gpu", "stream" or "cpu"; with "auto" the CPU computes short passes and long ones are streamed.
    /// cached_experts: how many of each layer, the most used, are on the GPU all the same.
    /// ``pascaline.fit`` chooses these. min_pixels, max_pixels: the pixels that pictures are resized to, as Qwen's own processor takes them;
    /// the checkpoint's if not given. progress: called with (tensors loaded, all tensors) after each layer.
    ///
    /// Raises CheckpointError, UnsupportedError, NoDeviceError, OutOfMemoryError.
    #[staticmethod]
    #[pyo3(signature = (path, device = None, dtype = None, *, cache = None, gpu_layers = None, experts = None, cached_experts = 0, vision = None, mmproj = None,
        tokens_per_pass = None, sparse_prefill = None, min_pixels = None, max_pixels = None, progress = None))]
    fn load(
        py: Python,
        path: PathBuf,
        device: Option<Any>,
        dtype: Option<&str>,
        cache: Option<&str>,
        gpu_layers: Option<usize>,
        experts: Option<&str>,
        cached_experts: usize,
        vision: Option<&str>,
        mmproj: Option<PathBuf>,
        tokens_per_pass: Option<usize>,
        sparse_prefill: Option<f64>,
        min_pixels: Option<usize>,
        max_pixels: Option<usize>,
        progress: Option<Py<PyAny>>,
    ) -> Result<Self> {
        if let (Some(min), Some(max)) = (min_pixels, max_pixels)
            && min > max
        {
            return Err(unsupported("load", "min_pixels", min.to_string(), "it is above max_pixels"));
        }
        let pixels = PixelLimits { min: min_pixels, max: max_pixels, most: None };
        let device = device::given(device, "auto")?;
        let options = load_options(
            &device,
            dtype,
            cache,
            gpu_layers,
            (experts, cached_experts),
            vision,
            tokens_per_pass,
            sparse_prefill,
        )?;
        let mut failed: Option<PyErr> = None;
        let report = |state: Progress| {
            let (Some(progress), None) = (&progress, &failed) else { return };
            failed = Python::attach(|py| progress.call1(py, (state.loaded, state.total)).err());
        };
        let loaded = detached(py, || {
            let checkpoint = Checkpoint::open(&path, mmproj.as_deref())?.with_pixel_limits(pixels);
            LanguageModel::load_checkpoint(&checkpoint, &device, options, report)
        });
        match failed {
            Some(error) => Err(error.into()),
            None => {
                py.check_signals()?;
                Ok(Self { inner: Arc::new(loaded?), path })
            }
        }
    }

    /// Answers a prompt about images and videos.
    ///
    /// prompt: a str, or a list of messages ``{"role": …, "content": str or [{"type": "text" | "image" | "video", …}]}``. images:
    /// paths, PIL images, or uint8 arrays [h, w, 3]. videos: pairs (frames, frames per second), frames being pictures or a folder.
    ///
    /// greedy: True takes the likeliest token each time, and is the default unless a sampling option is given; False samples with
    /// the published settings, which temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty and seed
    /// override.
    /// stop: strings that end the answer. on_text: called with each piece of text; an exception that it raises ends the answer and is raised
    /// here. Ctrl-C raises KeyboardInterrupt within a token.
    ///
    /// Raises PromptError, ImageError, UnsupportedError, NotFiniteError, OutOfMemoryError.
    #[pyo3(signature = (prompt, images = None, *, videos = None, max_new_tokens = None, greedy = None, temperature = None,
        top_k = None, top_p = None, min_p = None, repetition_penalty = None, presence_penalty = None, frequency_penalty = None, seed = None, stop = None,
        stop_at_eos = true, on_text = None))]
    fn generate(
        &self,
        py: Python,
        prompt: Any,
        images: Option<Any>,
        videos: Option<Any>,
        max_new_tokens: Option<usize>,
        greedy: Option<bool>,
        temperature: Option<f64>,
        top_k: Option<usize>,
        top_p: Option<f64>,
        min_p: Option<f64>,
        repetition_penalty: Option<f64>,
        presence_penalty: Option<f64>,
        frequency_penalty: Option<f64>,
        seed: Option<u64>,
        stop: Option<Vec<String>>,
        stop_at_eos: bool,
        on_text: Option<Py<PyAny>>,
    ) -> Result<PyOutput> {
        let rules = Rules {
            max_new_tokens,
            greedy,
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            seed,
            stop,
            stop_at_eos,
        };
        let options = rules.options(self.inner.processor.generation.max_new_tokens)?;
        let prompt = self.prepared(py, prompt, images, videos)?;
        let mut interrupted: Option<PyErr> = None;
        let receive = |piece: &str| {
            let result = Python::attach(|py| {
                py.check_signals()?;
                match &on_text {
                    Some(on_text) if !piece.is_empty() => on_text.call1(py, (piece,)).map(|_| ()),
                    _ => Ok(()),
                }
            });
            match result {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    interrupted.get_or_insert(error);
                    ControlFlow::Break(())
                }
            }
        };
        let output =
            detached(py, || self.inner.generate_from(&mut self.inner.session()?, &prompt, &options, receive));
        match interrupted {
            Some(error) => Err(error.into()),
            None => Ok(PyOutput { inner: output? }),
        }
    }

    /// As ``generate``, but returns an iterator over the text as it is generated. Its ``output`` is the whole answer at the end.
    ///
    /// The answer is generated on a thread of its own, which ends when the iterator is closed or dropped.
    #[pyo3(signature = (prompt, images = None, *, videos = None, max_new_tokens = None, greedy = None, temperature = None,
        top_k = None, top_p = None, min_p = None, repetition_penalty = None, presence_penalty = None, frequency_penalty = None, seed = None, stop = None,
        stop_at_eos = true))]
    fn stream(
        &self,
        py: Python,
        prompt: Any,
        images: Option<Any>,
        videos: Option<Any>,
        max_new_tokens: Option<usize>,
        greedy: Option<bool>,
        temperature: Option<f64>,
        top_k: Option<usize>,
        top_p: Option<f64>,
        min_p: Option<f64>,
        repetition_penalty: Option<f64>,
        presence_penalty: Option<f64>,
        frequency_penalty: Option<f64>,
        seed: Option<u64>,
        stop: Option<Vec<String>>,
        stop_at_eos: bool,
    ) -> Result<PyTextStream> {
        let rules = Rules {
            max_new_tokens,
            greedy,
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            seed,
            stop,
            stop_at_eos,
        };
        let options = rules.options(self.inner.processor.generation.max_new_tokens)?;
        let prompt = self.prepared(py, prompt, images, videos)?;
        PyTextStream::start(Arc::clone(&self.inner), prompt, options)
    }

    /// The tokens of a prompt, pad tokens of its images and videos included.
    #[pyo3(signature = (prompt, images = None, *, videos = None))]
    fn tokenize(
        &self,
        py: Python,
        prompt: Any,
        images: Option<Any>,
        videos: Option<Any>,
    ) -> Result<Vec<u32>> {
        Ok(self.prepared(py, prompt, images, videos)?.ids)
    }

    /// The embedding of a text with images and videos before it: a list of floats, of length 1 as a vector. The model is a
    /// Qwen3-VL-Embedding.
    ///
    /// instruction: the task; "Represent the user's input." if not given. dimensions: shortens the vector to its beginning.
    ///
    /// Raises PromptError, ImageError, UnsupportedError, OutOfMemoryError.
    #[pyo3(signature = (text = "", images = None, *, videos = None, instruction = None, dimensions = None))]
    fn embed(
        &self,
        py: Python,
        text: &str,
        images: Option<Any>,
        videos: Option<Any>,
        instruction: Option<&str>,
        dimensions: Option<usize>,
    ) -> Result<Vec<f32>> {
        let visuals = [self::images(images)?, self::videos(videos)?].concat();
        let content = Content { text: text.to_owned(), visuals };
        let found = detached(py, || self.inner.embed(&content, instruction))?;
        Ok(match dimensions {
            Some(dimensions) => shortened(&found.vector, dimensions)?,
            None => found.vector,
        })
    }

    /// How well a document answers a query, from 0 to 1. The model is a Qwen3-VL-Reranker.
    ///
    /// Raises PromptError, ImageError, OutOfMemoryError.
    #[pyo3(signature = (query, document = "", images = None, *, query_images = None, instruction = None))]
    fn relevance(
        &self,
        py: Python,
        query: &str,
        document: &str,
        images: Option<Any>,
        query_images: Option<Any>,
        instruction: Option<&str>,
    ) -> Result<f64> {
        let query = Content { text: query.to_owned(), visuals: self::images(query_images)? };
        let document = Content { text: document.to_owned(), visuals: self::images(images)? };
        let found = detached(py, || {
            let mut session = self.inner.session()?;
            self.inner.relevance(&mut session, &query, &document, instruction)
        })?;
        Ok(found.score)
    }

    /// The text of tokens, without special ones.
    fn decode(&self, ids: Vec<u32>) -> String {
        self.inner.processor.tokenizer.decode(&ids)
    }

    /// The intermediate results of a prompt, as a dict: ``ids`` and ``positions`` (time, height, width) of its tokens, ``grids``
    /// (frames, rows, columns of patches) of its images, ``embeddings`` [tokens, hidden] and ``deepstack`` (a list of the same) of each
    /// image, ``hidden``: the embeddings, each layer's output before deepstack features are added, and in the last one's place the
    /// normalised hidden states, each [tokens, hidden], and ``logits`` [tokens, vocab].
    #[pyo3(signature = (prompt, images = None, *, videos = None))]
    fn trace<'py>(
        &self,
        py: Python<'py>,
        prompt: Any,
        images: Option<Any>,
        videos: Option<Any>,
    ) -> Result<Bound<'py, PyDict>> {
        let prompt = self.prepared(py, prompt, images, videos)?;
        let mut hidden = Vec::new();
        let grids: Vec<[usize; 3]> = prompt.patches.iter().map(|patches| patches.grid).collect();
        let (outputs, logits) = detached(py, || {
            let outputs = prompt
                .patches
                .iter()
                .map(|patches| self.inner.encode_image(patches))
                .collect::<Result<Vec<_>, _>>()?;
            let seen = |_: usize, layer: &pascaline::Tensor| hidden.push(layer.clone());
            let logits = self.inner.trace(&prompt.ids, &outputs, &grids, seen)?;
            Ok((outputs, logits))
        })?;
        let tensors = |tensors: Vec<pascaline::Tensor>| -> PyResult<Vec<Py<PyTensor>>> {
            tensors.into_iter().map(|tensor| Py::new(py, PyTensor::from(tensor))).collect()
        };
        let dict = PyDict::new(py);
        dict.set_item("ids", prompt.ids)?;
        dict.set_item("positions", prompt.positions.axes)?;
        dict.set_item("grids", grids)?;
        let embeddings = outputs.iter().map(|output| output.embeddings.clone()).collect();
        dict.set_item("embeddings", tensors(embeddings)?)?;
        let deepstack =
            outputs.into_iter().map(|output| tensors(output.deepstack)).collect::<PyResult<Vec<_>>>()?;
        dict.set_item("deepstack", deepstack)?;
        dict.set_item("hidden", tensors(hidden)?)?;
        dict.set_item("logits", Py::new(py, PyTensor::from(logits))?)?;
        Ok(dict)
    }

    /// The device that it is on.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice { inner: self.inner.device().clone() }
    }

    /// The path that it was loaded from.
    #[getter]
    fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// The elements of all its tensors.
    #[getter]
    fn parameters(&self) -> usize {
        self.inner.parameters()
    }

    /// Bytes of weights that a decoded token reads.
    #[getter]
    fn weight_bytes(&self) -> usize {
        self.inner.weight_bytes()
    }

    /// The sizes of the model as a dict.
    #[getter]
    fn config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let text = &self.inner.config().text;
        let dict = PyDict::new(py);
        macro_rules! items {
            ($of:ident: $($field:ident)*) => { $(dict.set_item(stringify!($field), $of.$field)?;)* };
        }
        items!(text: hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim vocab_size
            max_position_embeddings rms_norm_eps rope_theta);
        dict.set_item("mrope_section", text.mrope_section)?;
        if let Some(seeing) = qwen3_vl::config::seeing(self.inner.config()) {
            items!(seeing: image_token_id);
            let tower = &seeing.tower;
            items!(tower: patch_size spatial_merge_size);
        }
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        let device = device::name(self.inner.device());
        format!("Qwen3VL({} parameters, device='{device}')", self.inner.parameters())
    }
}

/// A message of a stream's thread.
enum Sent {
    Piece(String),
    Done(Box<pascaline::Result<Output>>),
}

/// The text of an answer as it is generated: ``Qwen3VL.stream``.
#[pyclass(frozen, name = "TextStream", module = "pascaline")]
pub struct PyTextStream {
    /// `None` when it has ended or was closed.
    receiver: Mutex<Option<Receiver<Sent>>>,
    output: Mutex<Option<Py<PyOutput>>>,
}

impl PyTextStream {
    fn start(model: Arc<LanguageModel>, prompt: Prompt, options: Options) -> Result<Self> {
        let (sender, receiver): (SyncSender<Sent>, _) = sync_channel(AHEAD);
        let work = move || {
            let receive = |piece: &str| match sender.send(Sent::Piece(piece.to_owned())) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()), // nobody reads any more
            };
            let session = model.session();
            let output =
                session.and_then(|mut session| model.generate_from(&mut session, &prompt, &options, receive));
            drop(model); // so that its memory is free when the reader has seen the end
            let _ = sender.send(Sent::Done(Box::new(output)));
        };
        let thread = std::thread::Builder::new().name("pascaline-stream".into()).spawn(work);
        thread.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        Ok(Self { receiver: Mutex::new(Some(receiver)), output: Mutex::new(None) })
    }

    /// The next message, `Ok(None)` if none came within `wait`, or an error if the thread has ended; `None` after the end.
    fn next(&self, wait: Duration) -> Option<std::result::Result<Option<Sent>, ()>> {
        let receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        Some(match receiver.as_ref()?.recv_timeout(wait) {
            Ok(sent) => Ok(Some(sent)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(()),
        })
    }
}

#[pymethods]
impl PyTextStream {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python) -> Result<Option<String>> {
        loop {
            if let Err(interrupt) = py.check_signals() {
                self.close(py);
                return Err(interrupt.into());
            }
            match py.detach(|| self.next(SIGNALS)) {
                None => return Ok(None),
                Some(Ok(None)) => {}
                Some(Ok(Some(Sent::Piece(piece)))) if piece.is_empty() => {}
                Some(Ok(Some(Sent::Piece(piece)))) => return Ok(Some(piece)),
                Some(Ok(Some(Sent::Done(output)))) => {
                    self.close(py);
                    let output = Py::new(py, PyOutput { inner: (*output)? })?;
                    *self.output.lock().unwrap_or_else(PoisonError::into_inner) = Some(output);
                    return Ok(None);
                }
                Some(Err(())) => {
                    self.close(py);
                    let message = "the thread that generates has ended without an answer";
                    return Err(Failure::Python(PyRuntimeError::new_err(message)));
                }
            }
        }
    }

    /// Ends the answer.
    fn close(&self, py: Python) {
        let receiver = py.detach(|| self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(receiver);
    }

    /// The whole answer; None before the end.
    #[getter]
    fn output(&self, py: Python) -> Option<Py<PyOutput>> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|output| output.clone_ref(py))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyQwen3Vl>()?;
    module.add_class::<PyOutput>()?;
    module.add_class::<PyStatistics>()?;
    module.add_class::<PyTextStream>()
}
