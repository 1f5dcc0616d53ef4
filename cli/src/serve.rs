//! `pascaline serve`: an OpenAI-compatible HTTP server for a model, with a web page for chat.

use super::device::DeviceArg;
use super::devices::{Replicas, replicas};
use super::failure::Failure;
use super::fit;
use super::model::{LoadArgs, ModelArgs, Work, check_model};
use super::output::{Output, complain};
use super::sampling::SamplingArgs;
use super::sizes::bytes;
use pascaline_server::metrics::Metrics;
use pascaline_server::worker::Worker;
use pascaline_server::{Config, End, Limits, Loaded, Served, Source, Stop};
use qwen3_vl::batch::PAGE;
use qwen3_vl::footprint::Workload;
use qwen3_vl::{ControlTokens, Options};
use serde::Serialize;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs, io};
use tracing::Level;

/// Serves a model over OpenAI's HTTP interface: POST /v1/chat/completions and /v1/completions, GET /v1/models, /health and
/// /metrics, POST /tokenize. / is a web page for chat.
///
/// The sampling options are the defaults of requests. SIGTERM and SIGINT end the server after the running answers; a second
/// signal ends it at once.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The model, as `generate` takes it: a directory, a GGUF file or a name on the Hugging Face hub. If it is given more than once, each
    /// is loaded when a request names it.
    #[arg(long, short, value_name = "MODEL", required_unless_present = "models", conflicts_with = "models")]
    model: Vec<PathBuf>,

    /// A folder of models: each of its folders and GGUF files that is one is loaded when a request names it.
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,

    /// Of several models, the most that are loaded at the same time. For another one, that which was used longest ago is unloaded
    /// when no request uses it. More than one on a GPU need --memory-limit, which is then each one's part.
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least::<1>)]
    keep_loaded: usize,

    #[command(flatten)]
    device: DeviceArg,

    #[command(flatten)]
    load: LoadArgs,

    /// Put a whole model on each of this many GPUs, those of --devices or the first ones, and balance requests over them;
    /// auto for all GPUs that it fits on. All have the types that fit the first one. If not given, there is one model.
    #[arg(long, value_name = "N", value_parser = replicas)]
    replicas: Option<Replicas>,

    /// The address to listen on. The default is reachable only from this machine; 0.0.0.0 is reachable by all, so give an
    /// --api-key.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,

    /// The port to listen on; 0 for any free one.
    #[arg(long, value_name = "N", default_value = "8080")]
    port: u16,

    /// The model's name in answers; if not given, the name in --model.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// The key that requests must have; if not given, that of PASCALINE_API_KEY, which other users of this machine can't
    /// see.
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,

    /// An origin of web pages that may use the server, such as https://chat.example, or * for all; may be given more than
    /// once.
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,

    /// A name that this server has besides localhost, such as that of a proxy before it; may be given more than once. On a
    /// loopback address without a key, and wherever this is given, requests to other names are refused.
    #[arg(long, value_name = "HOST")]
    allowed_host: Vec<String>,

    /// Read no video files, which the program ffmpeg decodes where it is installed. Animated GIF and WebP files and lists of
    /// frames are read all the same.
    #[arg(long)]
    no_video_files: bool,

    /// A host, or HOST:PORT, from which pictures and videos may be fetched; may be given more than once. Addresses that are not public
    /// are refused, whatever the host's name.
    #[arg(long, value_name = "HOST")]
    allow_image_host: Vec<String>,

    /// Read control tokens that are spelled in texts, such as <|im_end|>, as control tokens. Otherwise they are ordinary
    /// text.
    #[arg(long)]
    control_tokens: bool,

    /// The most tokens of a prompt and its answer together; if not given, as much of the model's context as was planned
    /// for.
    #[arg(long, value_name = "N", value_parser = at_least::<2>)]
    context: Option<usize>,

    /// The most requests that each replica answers at the same time; others wait. Each takes memory for its next token; the
    /// keys and values of all share the rest.
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u16).range(1..))]
    max_running: u16,

    /// The most waiting requests; more are refused with 429.
    #[arg(long, value_name = "N", default_value = "256", value_parser = at_least::<1>)]
    max_queue: usize,

    /// The most bytes of a request, with K, M or G.
    #[arg(long, value_name = "BYTES", default_value = "32M", value_parser = bytes)]
    max_body: usize,

    /// The most pictures of a request.
    #[arg(long, value_name = "N", default_value = "16")]
    max_pictures: usize,

    /// The most pixels of a picture, with K, M or G; larger ones are shrunk to it. --image-tokens shrinks them further unless a
    /// request says otherwise with max_pixels.
    #[arg(long, value_name = "N", default_value = "16M", value_parser = bytes)]
    max_pixels: usize,

    /// The most bytes of host memory that all requests together take, with K, M or G: bodies, pictures, and prompts that
    /// wait or run. A request that would take more is refused. If not given, a quarter of what is available.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory_budget: Option<usize>,

    /// The most open connections; on more, only /health is answered.
    #[arg(long, value_name = "N", default_value = "512", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,

    /// The most seconds from a request's first byte to its answer's last; after that it ends with 408.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = clap::value_parser!(u64).range(1..))]
    request_timeout: u64,

    /// The seconds that running answers have to end after SIGTERM or SIGINT.
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    grace: u64,

    /// The form of the log on stderr: a line for each request, with its times and token counts and nothing of what it says.
    /// With json, remarks of the start are such lines too.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,

    /// What is logged: error (requests that failed here), warn (those that were refused too), info (all) or debug (/health and
    /// /metrics too). If not given, info; with --quiet, error.
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<LogLevel>,

    #[command(flatten)]
    sampling: SamplingArgs,

    #[command(flatten)]
    output: Output,
}

/// `--log-format`
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// `--log-level`
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

impl Args {
    /// Starts the log; with JSON the remarks are in it.
    fn log(&self) -> Output {
        let usual = if self.output.is_quiet() { LogLevel::Error } else { LogLevel::Info };
        let level = match self.log_level.unwrap_or(usual) {
            LogLevel::Error => Level::ERROR,
            LogLevel::Warn => Level::WARN,
            LogLevel::Info => Level::INFO,
            LogLevel::Debug => Level::DEBUG,
        };
        // nobody is told that stderr is closed
        let log = tracing_subscriber::fmt().with_writer(io::stderr).log_internal_errors(false);
        let log = log.with_max_level(level).with_target(false);
        match self.log_format {
            LogFormat::Text => {
                log.init();
                self.output.clone()
            }
            LogFormat::Json => {
                log.json().flatten_event(true).with_current_span(false).with_span_list(false).init();
                self.output.logged(|text| tracing::info!("{text}"))
            }
        }
    }
}

fn at_least<const LEAST: usize>(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count >= LEAST);
    count.ok_or_else(|| format!("it must be a whole number from {LEAST} on"))
}

/// The server's address, written when it accepts requests.
#[derive(Serialize)]
struct Json<'a> {
    address: String,
    model: &'a str,
    device: String,
    /// The device of each replica.
    replicas: &'a [String],
    context: usize,
    load_seconds: f64,
}

/// The same, of several models.
#[derive(Serialize)]
struct SeveralJson {
    address: String,
    models: Vec<String>,
    keep_loaded: usize,
}

/// How a model is loaded and started.
#[derive(Clone)]
struct Start {
    model: ModelArgs,
    replicas: Option<Replicas>,
    max_pixels: usize,
    context: Option<usize>,
    max_running: u16,
    max_queue: usize,
    sampling: SamplingArgs,
    output: Output,
}

/// A model that answers.
struct Started {
    loaded: Loaded,
    /// The device of each replica.
    devices: Vec<String>,
    seconds: f64,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let output = &args.log();
    let models = models(args)?;
    for model in &models {
        ModelArgs::new(model.clone(), args.device.clone(), args.load.clone()).check_to_serve()?;
    }
    let report = output.report()?;
    let api_key = args.api_key.clone().or_else(|| env::var("PASCALINE_API_KEY").ok());
    let api_key = match api_key.as_deref().map(str::trim) {
        Some("") => return Err(Failure::Usage("the API key is empty".to_owned())),
        key => key.map(str::to_owned),
    };
    // an address in use is detected before the model is loaded
    let (listener, address) = listen(&args.host, args.port)?;
    if !address.ip().is_loopback() && api_key.is_none() {
        output.note(&format!("whoever reaches {address} can use this server, as it has no --api-key"));
    }
    let start = |model: &PathBuf| {
        let model = ModelArgs::new(model.clone(), args.device.clone(), args.load.clone());
        Start {
            model: model.one_of(args.keep_loaded),
            replicas: args.replicas,
            max_pixels: args.max_pixels,
            context: args.context,
            max_running: args.max_running,
            max_queue: args.max_queue,
            sampling: args.sampling.clone(),
            output: output.clone(),
        }
    };
    let address = format!("http://{address}");
    let (served, config) = match &models[..] {
        [model] if args.models.is_none() => {
            let Started { loaded, devices, seconds } = start(model).run(Arc::default())?;
            let Loaded { worker, defaults, context } = loaded;
            let adapters = worker.model().adapters().map(str::to_owned).collect();
            let name = args.name.clone().unwrap_or_else(|| name(model));
            let config = config(args, name, adapters, defaults, context, api_key);
            if let Some(adapter) = config.adapters.iter().find(|adapter| **adapter == config.name) {
                let reason = "is the model's name too; requests could not tell them apart";
                return Err(Failure::Usage(format!("the adapter's name {adapter} {reason}")));
            }
            output.note(&format!("{} at {address}, with a web page for chat", config.name));
            if let Some(report) = report {
                let (model, device) = (&config.name, devices.first().cloned().unwrap_or_default());
                let (replicas, load_seconds) = (&devices[..], seconds);
                report.write(&Json { address, model, device, replicas, context, load_seconds })?;
            }
            (Served::from(worker), config)
        }
        several => {
            let names: Vec<_> = several.iter().map(|model| name(model)).collect();
            output.note(&format!("{} models at {address}: {}", names.len(), names.join(", ")));
            if let Some(report) = report {
                let keep_loaded = args.keep_loaded;
                report.write(&SeveralJson { address, models: names.clone(), keep_loaded })?;
            }
            let sources = several.iter().zip(names).map(|(model, name)| source(name, start(model)));
            let (sources, keep, queue) = (sources.collect(), args.keep_loaded, args.max_queue);
            // each model has its own name, defaults and context
            let config = config(args, String::new(), Vec::new(), Options::default(), 0, api_key);
            (Served::Several { sources, keep, queue }, config)
        }
    };
    let end = pascaline_server::run(listener, served, config, Stop::Signals);
    match end.map_err(|error| Failure::Failed(format!("the server can't go on: {error}")))? {
        End::Stopped { cut_off: 0 } => Ok(()),
        End::Stopped { cut_off } => {
            complain(&format!("{cut_off} answers took longer than --grace and were cut off"));
            Ok(())
        }
        End::DeviceLost(reason) => Err(Failure::Again(reason)),
    }
}

/// The models to serve; options that are for one of them are refused with several.
fn models(args: &Args) -> Result<Vec<PathBuf>, Failure> {
    let found = match &args.models {
        None => args.model.clone(),
        Some(dir) => models_in(dir)?,
    };
    if found.len() == 1 && args.models.is_none() {
        return match args.keep_loaded {
            1 => Ok(found),
            _ => Err(Failure::Usage("--keep-loaded is for several models".to_owned())),
        };
    }
    let given = [
        (args.name.is_some(), "--name"),
        (!args.load.adapter.is_empty(), "--adapter"),
        (args.load.mmproj.is_some(), "--mmproj"),
    ];
    if let Some((_, option)) = given.iter().find(|(is_given, _)| *is_given) {
        return Err(Failure::Usage(format!("{option} is for one --model, and there are several")));
    }
    let mut names: Vec<_> = found.iter().map(|model| name(model)).collect();
    names.sort();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Failure::Usage(format!(
            "two models are called {}; requests could not tell them apart",
            pair[0]
        )));
    }
    if args.keep_loaded > 1 && args.load.memory_limit.is_none() {
        let first = ModelArgs::new(found[0].clone(), args.device.clone(), args.load.clone());
        if first.first_device()?.0.is_cuda() {
            let reason = "on a GPU --keep-loaded needs --memory-limit, each model's part of the memory";
            return Err(Failure::Usage(reason.to_owned()));
        }
    }
    Ok(found)
}

/// The folders and GGUF files in a folder that are models, by their names.
fn models_in(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error: io::Error| Failure::Failed(format!("{}: {error}", dir.display()));
    let entries = fs::read_dir(dir).map_err(failed)?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let name = name(&path);
        let is_later_part = name.contains("-of-") && !name.contains("-00001-of-");
        let is_no_model =
            name.starts_with('.') || path.is_file() && (name.starts_with("mmproj") || is_later_part);
        if !is_no_model && check_model(&path).is_ok() {
            found.push(path);
        }
    }
    found.sort();
    match found.is_empty() {
        true => Err(Failure::Failed(format!("{}: no folder or GGUF file in it is a model", dir.display()))),
        false => Ok(found),
    }
}

/// A model's name in requests.
fn name(model: &Path) -> String {
    model.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// One of several models.
fn source(name: String, start: Start) -> Source {
    let load = move |metrics| match start.run(metrics) {
        Ok(started) => Ok(started.loaded),
        Err(failure) => Err(failure.sentence().unwrap_or("it failed").to_owned()),
    };
    Source { name, load: Box::new(load) }
}

impl Start {
    /// Loads the model and starts its threads, which count in `metrics`.
    fn run(&self, metrics: Arc<Metrics>) -> Result<Started, Failure> {
        let (model, output) = (&self.model, &self.output);
        let devices = match self.replicas {
            None => vec![model.device(output)?],
            Some(count) => model.devices_of_replicas(count)?,
        };
        let opened = model.open(&devices[0], output)?.with_most_pixels(self.max_pixels);
        let most = opened.config.text.max_position_embeddings;
        let mut works = fit::requests(&opened.config, opened.image_tokens.max);
        if let Some(context) = self.context.map(|context| context.min(most)) {
            works = vec![Workload { context, prompt: context, ..works[0] }];
        }
        let work = Work { most: works.first().copied(), exactly: &|_| Ok(works.clone()) };
        let loaded = match self.replicas {
            None => vec![(devices[0].clone(), model.load(&opened, &devices[0], &work, output)?)],
            Some(count) => model.load_replicas(&opened, devices, count == Replicas::All, &work, output)?,
        };
        let fitting = loaded.iter().filter_map(|(_, loaded)| loaded.work.map(|work| work.context)).min();
        let context = self.context.or(fitting).unwrap_or(most).min(most);
        let seconds = loaded.last().map_or(0.0, |(_, loaded)| loaded.seconds);
        let (mut devices, mut replicas) = (Vec::new(), Vec::new());
        for (device, loaded) in loaded {
            let batch = model.batch(&opened, &device, &loaded, context, self.max_running.into())?;
            let on = if self.replicas.is_some() { format!("{device}: ") } else { String::new() };
            output.note(&format!(
                "{on}up to {} requests at a time, with keys and values of {} tokens together",
                batch.max_sequences,
                batch.pages * PAGE
            ));
            devices.push(device.to_string());
            replicas.push((loaded.model, batch));
        }
        let worker = Worker::start_counted(replicas, self.max_queue, metrics)
            .map_err(|error| Failure::Failed(format!("the model's threads can't be started: {error}")))?;
        let defaults = self.sampling.options(worker.model());
        Ok(Started { loaded: Loaded { worker, defaults, context }, devices, seconds })
    }
}

fn listen(host: &str, port: u16) -> Result<(TcpListener, SocketAddr), Failure> {
    let failed = |error: io::Error| Failure::Failed(format!("{host}, port {port}: {error}"));
    let addresses: Vec<_> = (host, port).to_socket_addrs().map_err(failed)?.collect();
    let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

fn config(
    args: &Args,
    name: String,
    adapters: Vec<String>,
    defaults: Options,
    context: usize,
    api_key: Option<String>,
) -> Config {
    let limits = Limits {
        body: args.max_body,
        pictures: args.max_pictures,
        resized_pixels: args.max_pixels,
        time: Duration::from_secs(args.request_timeout),
        connections: args.max_connections as usize,
        memory: args.memory_budget.unwrap_or_else(pascaline_server::default_memory),
        image_hosts: args.allow_image_host.clone(),
        reads_video_files: !args.no_video_files,
        ..Limits::for_context(context)
    };
    Config {
        name,
        defaults,
        seed: args.sampling.seed(),
        limits,
        control_tokens: if args.control_tokens { ControlTokens::Recognized } else { ControlTokens::AsText },
        api_key,
        adapters,
        cors_origins: args.cors_origin.clone(),
        allowed_hosts: args.allowed_host.clone(),
        grace: Duration::from_secs(args.grace),
    }
}
