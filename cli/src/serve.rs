//! `pascaline serve`: an OpenAI-compatible HTTP server for a model, with a web page for chat.

use super::devices::{Replicas, replicas};
use super::failure::Failure;
use super::fit;
use super::model::{ModelArgs, Work};
use super::output::{Output, complain};
use super::sampling::SamplingArgs;
use super::sizes::bytes;
use pascaline_server::worker::Worker;
use pascaline_server::{Config, End, Limits, Stop};
use qwen3_vl::batch::PAGE;
use qwen3_vl::footprint::Workload;
use qwen3_vl::{ControlTokens, LanguageModel};
use serde::Serialize;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Duration;
use std::{env, io};
use tracing::Level;

/// Serves a model over OpenAI's HTTP interface: POST /v1/chat/completions and /v1/completions, GET /v1/models, /health and
/// /metrics, POST /tokenize. / is a web page for chat.
///
/// The sampling options are the defaults of requests. SIGTERM and SIGINT end the server after the running answers; a second
/// signal ends it at once.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,

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

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    args.model.check_to_serve()?;
    let output = &args.log();
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
    let devices = match args.replicas {
        None => vec![args.model.device(output)?],
        Some(count) => args.model.devices_of_replicas(count)?,
    };
    let opened = args.model.open(&devices[0], output)?.with_most_pixels(args.max_pixels);
    let most = opened.config.text.max_position_embeddings;
    let mut works = fit::requests(&opened.config, opened.image_tokens.max);
    if let Some(context) = args.context.map(|context| context.min(most)) {
        works = vec![Workload { context, prompt: context, ..works[0] }];
    }
    let work = Work { most: works.first().copied(), exactly: &|_| Ok(works.clone()) };
    let loaded = match args.replicas {
        None => vec![(devices[0].clone(), args.model.load(&opened, &devices[0], &work, output)?)],
        Some(count) => args.model.load_replicas(&opened, devices, count == Replicas::All, &work, output)?,
    };
    let fitting = loaded.iter().filter_map(|(_, loaded)| loaded.work.map(|work| work.context)).min();
    let context = args.context.or(fitting).unwrap_or(most).min(most);
    let load_seconds = loaded.last().map_or(0.0, |(_, loaded)| loaded.seconds);
    let (mut devices, mut replicas) = (Vec::new(), Vec::new());
    for (device, loaded) in loaded {
        let batch = args.model.batch(&opened, &device, &loaded, context, args.max_running.into())?;
        let on = if args.replicas.is_some() { format!("{device}: ") } else { String::new() };
        output.note(&format!(
            "{on}up to {} requests at a time, with keys and values of {} tokens together",
            batch.max_sequences,
            batch.pages * PAGE
        ));
        devices.push(device.to_string());
        replicas.push((loaded.model, batch));
    }
    let worker = Worker::start_replicas(replicas, args.max_queue)
        .map_err(|error| Failure::Failed(format!("the model's threads can't be started: {error}")))?;
    let config = config(args, worker.model(), context, api_key);
    let address = format!("http://{address}");
    output.note(&format!("{} at {address}, with a web page for chat", config.name));
    if let Some(report) = report {
        let (model, device) = (&config.name, devices.first().cloned().unwrap_or_default());
        report.write(&Json { address, model, device, replicas: &devices, context, load_seconds })?;
    }
    let end = pascaline_server::run(listener, worker, config, Stop::Signals);
    match end.map_err(|error| Failure::Failed(format!("the server can't go on: {error}")))? {
        End::Stopped { cut_off: 0 } => Ok(()),
        End::Stopped { cut_off } => {
            complain(&format!("{cut_off} answers took longer than --grace and were cut off"));
            Ok(())
        }
        End::DeviceLost(reason) => Err(Failure::Again(reason)),
    }
}

fn listen(host: &str, port: u16) -> Result<(TcpListener, SocketAddr), Failure> {
    let failed = |error: io::Error| Failure::Failed(format!("{host}, port {port}: {error}"));
    let addresses: Vec<_> = (host, port).to_socket_addrs().map_err(failed)?.collect();
    let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

fn config(args: &Args, model: &LanguageModel, context: usize, api_key: Option<String>) -> Config {
    let path = &args.model.model;
    let last = path.file_name().map(|name| name.to_string_lossy().into_owned());
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
        name: args.name.clone().or(last).unwrap_or_else(|| "model".to_owned()),
        defaults: args.sampling.options(model),
        seed: args.sampling.seed(),
        limits,
        control_tokens: if args.control_tokens { ControlTokens::Recognized } else { ControlTokens::AsText },
        api_key,
        adapters: model.adapters().map(str::to_owned).collect(),
        cors_origins: args.cors_origin.clone(),
        allowed_hosts: args.allowed_host.clone(),
        grace: Duration::from_secs(args.grace),
    }
}
