//! The served models: one that is there from the start, or several that are loaded when a request names them.
//!
//! Of several, at most `keep` are loaded at a time. A request for another one waits until there is room: the model that was used
//! longest ago is unloaded when no request uses it any more. Such requests wait in the order in which they came, and while one
//! waits, all later ones wait behind it, also those to a loaded model: so a busy model does not keep the others out.

use super::account::Account;
use super::error::ApiError;
use super::lanes::Lanes;
use super::metrics::{Gauges, Metrics};
use super::model::{App, Config};
use super::worker::{Health, Refused, Worker};
use qwen3_vl::Options;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex as Gate, watch};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

type Result<T> = std::result::Result<T, ApiError>;

/// How often a request that waits for room asks whether a model is idle.
const ASKS: Duration = Duration::from_millis(10);

/// A model that is loaded when it is needed.
pub struct Source {
    /// Its name in requests and answers.
    pub name: String,
    /// Loads it and starts its threads, which count in these metrics. The error is a sentence.
    pub load: Box<dyn Fn(Arc<Metrics>) -> std::result::Result<Loaded, String> + Send + Sync>,
}

/// A model that has been loaded.
pub struct Loaded {
    /// Its threads.
    pub worker: Worker,
    /// As in [`Config`](super::Config).
    pub defaults: Options,
    /// Tokens of a prompt and its answer together.
    pub context: usize,
}

/// What a server serves.
pub enum Served {
    /// One model, which is there.
    One(Arc<Worker>),
    /// Several; at most `keep` are loaded at a time.
    Several {
        /// Each has another name.
        sources: Vec<Source>,
        /// One at least.
        keep: usize,
        /// The most requests that wait for a model; more are refused with 429.
        queue: usize,
    },
}

impl From<Worker> for Served {
    fn from(worker: Worker) -> Self {
        Self::One(Arc::new(worker))
    }
}

impl From<Arc<Worker>> for Served {
    fn from(worker: Arc<Worker>) -> Self {
        Self::One(worker)
    }
}

/// The models of a server.
pub(crate) enum Models {
    One(Arc<App>),
    Several(Arc<Several>),
}

/// Several models.
pub(crate) struct Several {
    /// Of the server; each model has its own name, defaults and context.
    config: Config,
    account: Arc<Account>,
    lanes: Arc<Lanes>,
    sources: Vec<Source>,
    keep: usize,
    queue: usize,
    /// In the order of their last use.
    loaded: Mutex<Vec<Arc<App>>>,
    /// Held by whoever makes room and loads; it is fair.
    gate: Arc<Gate<()>>,
    waiting: AtomicUsize,
    loads: AtomicUsize,
    health: watch::Sender<Health>,
    metrics: Arc<Metrics>,
}

/// A request that waits for a model.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Several {
    pub fn new(
        (sources, keep, queue): (Vec<Source>, usize, usize),
        config: Config,
        account: Arc<Account>,
        lanes: Arc<Lanes>,
    ) -> Self {
        Self {
            config,
            account,
            lanes,
            sources,
            keep: keep.max(1),
            queue,
            loaded: Mutex::default(),
            gate: Arc::default(),
            waiting: AtomicUsize::new(0),
            loads: AtomicUsize::new(0),
            health: watch::Sender::new(Health::Up),
            metrics: Arc::default(),
        }
    }

    fn loaded(&self) -> MutexGuard<'_, Vec<Arc<App>>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A loaded model, which is now the one used last.
    fn held(&self, name: &str) -> Option<Arc<App>> {
        let mut loaded = self.loaded();
        let at = loaded.iter().position(|app| app.config.name == name)?;
        let app = loaded.remove(at);
        loaded.push(Arc::clone(&app));
        Some(app)
    }

    /// The loaded model that was used longest ago and that no request uses.
    fn take_idle(&self) -> Option<Arc<App>> {
        let mut loaded = self.loaded();
        let at = loaded.iter().position(|app| Arc::strong_count(app) == 1)?; // only this list can make it more
        Some(loaded.remove(at))
    }

    fn check(&self) -> Result<()> {
        match &*self.health.borrow() {
            Health::Up => Ok(()),
            Health::Draining => Err(Refused::Draining.into()),
            Health::Lost(reason) => Err(Refused::Lost(reason.clone()).into()),
        }
    }

    async fn acquire(self: &Arc<Self>, name: Option<&str>) -> Result<Arc<App>> {
        let known = || self.sources.iter().map(|source| source.name.clone());
        let Some(name) = name else { return Err(ApiError::which_model(known())) };
        let Some(at) = self.sources.iter().position(|source| source.name == name) else {
            return Err(ApiError::no_model(name, known()));
        };
        self.check()?;
        if self.waiting.load(Ordering::Relaxed) == 0
            && let Some(app) = self.held(name)
        {
            return Ok(app);
        }
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting(&self.waiting);
        if before >= self.queue {
            self.metrics.refused.add(1);
            return Err(Refused::QueueFull(before).into());
        }
        let turn = Arc::clone(&self.gate).lock_owned().await;
        if let Some(app) = self.held(name) {
            return Ok(app);
        }
        let mut idle = Vec::new();
        while self.loaded().len() >= self.keep {
            self.check()?;
            match self.take_idle() {
                Some(app) => idle.push(app),
                None => sleep(ASKS).await,
            }
        }
        let same = Arc::clone(self);
        // it goes on if the client leaves meanwhile: a half-loaded model is of no use
        let load = tokio::spawn(async move {
            let _turn = turn;
            same.load(at, idle).await
        });
        let loaded = load.await;
        drop(waiting);
        loaded.unwrap_or_else(|_| Err(ApiError::internal("a bug ended the loading of the model")))
    }

    /// Unloads the idle ones, and loads a model. If it can't be, further idle ones are unloaded first.
    async fn load(self: &Arc<Self>, at: usize, mut idle: Vec<Arc<App>>) -> Result<Arc<App>> {
        loop {
            let (same, unloaded) = (Arc::clone(self), std::mem::take(&mut idle));
            let work = spawn_blocking(move || {
                for app in unloaded.into_iter().filter_map(Arc::into_inner) {
                    tracing::info!(model = app.config.name, "unloaded");
                    app.end();
                }
                (same.sources[at].load)(Arc::clone(&same.metrics))
            });
            let name = self.sources[at].name.clone();
            let found = work.await.map_err(|_| ApiError::internal("a bug ended the loading of the model"))?;
            match found {
                Ok(Loaded { worker, defaults, context }) => {
                    self.loads.fetch_add(1, Ordering::Relaxed);
                    let mut config = self.config.clone();
                    (config.name, config.defaults, config.limits.context) = (name, defaults, context);
                    let (account, lanes) = (Arc::clone(&self.account), Arc::clone(&self.lanes));
                    let app = Arc::new(App::new(Arc::new(worker), config, account, lanes));
                    self.watch(&app);
                    self.loaded().push(Arc::clone(&app));
                    return Ok(app);
                }
                Err(reason) => match self.take_idle() {
                    Some(app) => idle.push(app),
                    None => return Err(ApiError::not_loaded(&name, &reason, !self.loaded().is_empty())),
                },
            }
        }
    }

    /// What becomes of the model's devices becomes of the server's.
    fn watch(self: &Arc<Self>, app: &Arc<App>) {
        let (several, mut health) = (Arc::downgrade(self), app.worker.health());
        tokio::spawn(async move {
            let lost = health.wait_for(|health| matches!(health, Health::Lost(_))).await;
            if let Ok(lost) = lost.as_deref().cloned()
                && let Some(several) = several.upgrade()
            {
                several.health.send_replace(lost);
            }
        });
    }
}

impl Models {
    /// The model that a request names, with which it is answered; loaded if it is not.
    pub async fn acquire(&self, name: Option<&str>) -> Result<Arc<App>> {
        match self {
            Self::One(app) => Ok(Arc::clone(app)),
            Self::Several(several) => several.acquire(name).await,
        }
    }

    /// The one model.
    pub fn one(&self) -> Option<&Arc<App>> {
        match self {
            Self::One(app) => Some(app),
            Self::Several(_) => None,
        }
    }

    /// What requests may name, each with its model if it is loaded.
    pub fn names(&self) -> Vec<(String, Option<Arc<App>>)> {
        match self {
            Self::One(app) => app.config.names().map(|name| (name, Some(Arc::clone(app)))).collect(),
            Self::Several(several) => {
                let loaded = several.loaded();
                let held = |name: &str| loaded.iter().find(|app| app.config.name == name).cloned();
                several.sources.iter().map(|source| (source.name.clone(), held(&source.name))).collect()
            }
        }
    }

    /// The model of this name, if it is loaded; without a name the one used last.
    pub fn seen(&self, name: Option<&str>) -> Result<Arc<App>> {
        match self {
            Self::One(app) => Ok(Arc::clone(app)),
            Self::Several(several) => {
                let loaded = several.loaded();
                let found = match name {
                    Some(name) => loaded.iter().find(|app| app.config.name == name),
                    None => loaded.last(),
                };
                let message = || match name {
                    Some(name) => format!("{name:?} is not loaded: a request to it loads it"),
                    None => "no model is loaded: a request to one loads it".to_owned(),
                };
                found.cloned().ok_or_else(|| ApiError::not_found(message()))
            }
        }
    }

    fn workers(&self) -> Vec<Arc<App>> {
        match self {
            Self::One(app) => vec![Arc::clone(app)],
            Self::Several(several) => several.loaded().clone(),
        }
    }

    /// Whether requests are taken, and a notification when it changes.
    pub fn health(&self) -> watch::Receiver<Health> {
        match self {
            Self::One(app) => app.worker.health(),
            Self::Several(several) => several.health.subscribe(),
        }
    }

    /// No more requests are taken.
    pub fn drain(&self) {
        if let Self::Several(several) = self {
            several.health.send_if_modified(|health| {
                let was_up = *health == Health::Up;
                if was_up {
                    *health = Health::Draining;
                }
                was_up
            });
        }
        self.workers().iter().for_each(|app| app.worker.drain());
    }

    /// The counters of all.
    pub fn metrics(&self) -> &Metrics {
        match self {
            Self::One(app) => app.worker.metrics(),
            Self::Several(several) => &several.metrics,
        }
    }

    /// The current values of the loaded ones together.
    pub fn gauges(&self) -> Gauges {
        match self {
            Self::One(app) => app.worker.gauges(),
            Self::Several(several) => {
                let mut all = Gauges { up: *several.health.borrow() == Health::Up, replicas: Vec::new() };
                for app in several.loaded().iter() {
                    let replicas = app.worker.gauges().replicas.into_iter();
                    all.replicas.extend(replicas.map(|mut replica| {
                        replica.model = Some(app.config.name.clone());
                        replica
                    }));
                }
                all
            }
        }
    }

    /// The series of several models, as Prometheus reads them.
    pub fn text(&self) -> String {
        let Self::Several(several) = self else { return String::new() };
        let mut text = format!(
            "# HELP pascaline_model_loads_total Models loaded.\n# TYPE pascaline_model_loads_total counter\n\
             pascaline_model_loads_total {}\n\
             # HELP pascaline_requests_waiting_for_model Requests that wait until their model is loaded.\n\
             # TYPE pascaline_requests_waiting_for_model gauge\npascaline_requests_waiting_for_model {}\n\
             # HELP pascaline_model_loaded Whether the model is loaded.\n# TYPE pascaline_model_loaded gauge\n",
            several.loads.load(Ordering::Relaxed),
            several.waiting.load(Ordering::Relaxed),
        );
        for (name, app) in self.names() {
            let name = name.replace('\\', "\\\\").replace('"', "\\\"");
            text += &format!("pascaline_model_loaded{{model=\"{name}\"}} {}\n", u8::from(app.is_some()));
        }
        text
    }
}
