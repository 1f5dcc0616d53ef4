//! Counters, and their text for Prometheus.
//!
//! Source: Prometheus text exposition format, version 0.0.4.

use qwen3_vl::batch;
use std::fmt::Write;
use std::iter::Sum;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the time buckets, in seconds.
const BOUNDS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];

/// A monotonic counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it.
    pub fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A histogram of times: how many were at most each bound.
#[derive(Debug, Default)]
pub struct Histogram(Mutex<Times>);

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// The last bucket is for times above all bounds.
    counts: [u64; BOUNDS.len() + 1],
    seconds: f64,
}

impl Histogram {
    /// Counts a time.
    pub fn record(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let mut times = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        times.counts[BOUNDS.partition_point(|bound| *bound < seconds)] += 1;
        times.seconds += seconds;
    }
}

/// All counters. Those of the worker are updated only by it.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Complete answers.
    pub finished: Counter,
    /// Answers that ended with an error.
    pub failed: Counter,
    /// Answers whose client disconnected before their end.
    pub left: Counter,
    /// Requests that were refused because the queue was full.
    pub refused: Counter,
    /// Requests with any other 4xx answer.
    pub malformed: Counter,
    /// Prompt tokens.
    pub prompt_tokens: Counter,
    /// Of these, the ones whose keys and values were cached.
    pub cached_tokens: Counter,
    /// Generated tokens.
    pub generated_tokens: Counter,
    /// From the end of the queue to the first token.
    pub first_token: Histogram,
    /// Time in the queue.
    pub queued: Histogram,
    /// Time between tokens.
    pub next_token: Histogram,
}

/// Current values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Whether new requests are accepted.
    pub up: bool,
    /// Of each replica.
    pub replicas: Vec<ReplicaGauges>,
}

/// Current values of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaGauges {
    /// Its device.
    pub device: String,
    /// Its model's name, if there are several models.
    pub model: Option<String>,
    /// Answers that are being computed.
    pub running: usize,
    /// Answers that wait for it.
    pub waiting: usize,
    /// Why its device can't be used, if so.
    pub lost: Option<String>,
    /// The batch's pages and counters.
    pub batch: batch::Metrics,
}

impl Gauges {
    /// Answers that are being computed.
    pub fn running(&self) -> usize {
        self.replicas.iter().map(|replica| replica.running).sum()
    }

    /// Answers that wait.
    pub fn waiting(&self) -> usize {
        self.replicas.iter().map(|replica| replica.waiting).sum()
    }

    /// The sum over the batches of all replicas.
    fn sum<N: Sum>(&self, of: impl Fn(&batch::Metrics) -> N) -> N {
        self.replicas.iter().map(|replica| of(&replica.batch)).sum()
    }
}

impl Metrics {
    /// The text for Prometheus.
    pub fn text(&self, now: &Gauges) -> String {
        let mut text = String::new();
        let mut one = |name: &str, kind: &str, help: &str, values: &[(&str, u64)]| {
            let _ = writeln!(text, "# HELP pascaline_{name} {help}\n# TYPE pascaline_{name} {kind}");
            for (label, value) in values {
                let _ = writeln!(text, "pascaline_{name}{label} {value}");
            }
        };
        one(
            "requests_total",
            "counter",
            "Requests by outcome.",
            &[
                ("{outcome=\"finished\"}", self.finished.get()),
                ("{outcome=\"failed\"}", self.failed.get()),
                ("{outcome=\"left\"}", self.left.get()),
                ("{outcome=\"refused\"}", self.refused.get()),
                ("{outcome=\"malformed\"}", self.malformed.get()),
            ],
        );
        one("prompt_tokens_total", "counter", "Prompt tokens.", &[("", self.prompt_tokens.get())]);
        one(
            "prompt_tokens_cached_total",
            "counter",
            "Prompt tokens whose keys and values were cached.",
            &[("", self.cached_tokens.get())],
        );
        one("generated_tokens_total", "counter", "Generated tokens.", &[("", self.generated_tokens.get())]);
        one("requests_running", "gauge", "Answers that are being computed.", &[("", now.running() as u64)]);
        one("requests_waiting", "gauge", "Requests in the queue.", &[("", now.waiting() as u64)]);
        let (used, free) = (now.sum(|batch| batch.pages_used), now.sum(|batch| batch.pages_free));
        one(
            "pages",
            "gauge",
            "Pages of keys and values.",
            &[("{state=\"used\"}", used as u64), ("{state=\"free\"}", free as u64)],
        );
        let help = "Prompt tokens that were found in the pages at admission.";
        one("prefix_hit_tokens_total", "counter", help, &[("", now.sum(|batch| batch.prefix_hits))]);
        let help = "Preempted requests: they gave their pages back and are computed again.";
        one("preemptions_total", "counter", help, &[("", now.sum(|batch| batch.preemptions))]);
        let help = "Picture embeddings that are cached for later requests.";
        one("picture_cache_bytes", "gauge", help, &[("", now.sum(|batch| batch.image_bytes) as u64)]);
        one("up", "gauge", "Whether new requests are taken.", &[("", now.up.into())]);
        now.replicas_text(&mut text);
        histogram(&mut text, "queue_seconds", "Time in the queue.", &self.queued);
        let help = "Time from the end of queueing to the first token.";
        histogram(&mut text, "time_to_first_token_seconds", help, &self.first_token);
        histogram(&mut text, "time_per_token_seconds", "Time between tokens.", &self.next_token);
        text
    }
}

impl Gauges {
    /// The series per replica.
    fn replicas_text(&self, text: &mut String) {
        let mut each = |name: &str, help: &str, value: &dyn Fn(&ReplicaGauges) -> u64| {
            let _ = writeln!(
                text,
                "# HELP pascaline_replica_{name} {help}\n# TYPE pascaline_replica_{name} gauge"
            );
            for (index, replica) in self.replicas.iter().enumerate() {
                let value = value(replica);
                let plain = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
                let device = plain(&replica.device);
                let model = replica.model.as_deref().map(|model| format!(",model=\"{}\"", plain(model)));
                let model = model.unwrap_or_default();
                let _ = writeln!(
                    text,
                    "pascaline_replica_{name}{{replica=\"{index}\",device=\"{device}\"{model}}} {value}"
                );
            }
        };
        each("up", "Whether the replica's device can be used.", &|replica| replica.lost.is_none().into());
        let help = "Answers that the replica computes.";
        each("requests_running", help, &|replica| replica.running as u64);
        let help = "Requests that wait for the replica.";
        each("requests_waiting", help, &|replica| replica.waiting as u64);
        let help = "Pages of the replica that requests use.";
        each("pages_used", help, &|replica| replica.batch.pages_used as u64);
        let help = "Prompt tokens that were found in the replica's pages.";
        each("prefix_hit_tokens", help, &|replica| replica.batch.prefix_hits);
    }
}

fn histogram(text: &mut String, name: &str, help: &str, histogram: &Histogram) {
    let times = *histogram.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let _ = writeln!(text, "# HELP pascaline_{name} {help}\n# TYPE pascaline_{name} histogram");
    let mut sum = 0;
    for (bound, count) in BOUNDS.iter().map(f64::to_string).chain(["+Inf".to_owned()]).zip(times.counts) {
        sum += count;
        let _ = writeln!(text, "pascaline_{name}_bucket{{le=\"{bound}\"}} {sum}");
    }
    let _ = writeln!(text, "pascaline_{name}_sum {}\npascaline_{name}_count {sum}", times.seconds);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up() {
        let metrics = Metrics::default();
        for milliseconds in [1, 5, 6, 200_000] {
            metrics.queued.record(Duration::from_millis(milliseconds));
        }
        metrics.prompt_tokens.add(3);
        let replica = |device: &str, running, lost| ReplicaGauges {
            device: device.into(),
            running,
            waiting: 1,
            lost,
            ..ReplicaGauges::default()
        };
        let replicas = vec![replica("cuda:0", 1, None), replica("cuda:1", 0, Some("gone".into()))];
        let text = metrics.text(&Gauges { up: true, replicas });
        for line in [
            "pascaline_queue_seconds_bucket{le=\"0.005\"} 2",
            "pascaline_queue_seconds_bucket{le=\"0.01\"} 3",
            "pascaline_queue_seconds_bucket{le=\"120\"} 3",
            "pascaline_queue_seconds_bucket{le=\"+Inf\"} 4",
            "pascaline_queue_seconds_sum 200.012",
            "pascaline_queue_seconds_count 4",
            "pascaline_prompt_tokens_total 3",
            "pascaline_requests_running 1",
            "pascaline_requests_waiting 2",
            "pascaline_pages{state=\"free\"} 0",
            "pascaline_requests_waiting 2",
            "pascaline_up 1",
            "pascaline_replica_up{replica=\"0\",device=\"cuda:0\"} 1",
            "pascaline_replica_up{replica=\"1\",device=\"cuda:1\"} 0",
            "pascaline_replica_requests_running{replica=\"0\",device=\"cuda:0\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
