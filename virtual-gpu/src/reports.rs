//! Reports of launches through the driver API, kept on request.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock};

use crate::card::Card;
use crate::cost::Estimate;
use crate::exec::LaunchReport;

/// Is called with a launch, the card that ran it, and its estimated time.
pub type LaunchObserver = fn(&LaunchReport, &'static Card, &Estimate);

static OBSERVER: OnceLock<LaunchObserver> = OnceLock::new();

/// From now on calls `observer` after each launch through the driver API; a second observer is ignored. It must not call the
/// driver API.
pub fn on_launch(observer: LaunchObserver) {
    let _ = OBSERVER.set(observer);
}

pub(crate) fn launched(report: &LaunchReport, card: &'static Card, estimate: &Estimate) {
    OBSERVER.get().iter().for_each(|observer| observer(report, card, estimate));
}

/// A launch without the addresses of its memory.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct LaunchKey {
    pub kernel: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub params: Vec<u8>,
}

#[derive(Default)]
struct Kept {
    reports: Vec<LaunchReport>,
    /// Under [`Config::once`](crate::Config::once): the report of each launch that was run.
    counted: HashMap<LaunchKey, LaunchReport>,
}

/// `None` until [`keep_reports`].
static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Kept>> {
    KEPT.lock().unwrap_or_else(|e| e.into_inner())
}

/// From now on every launch through the driver API in this process leaves its report for [`take_reports`].
pub fn keep_reports() {
    lock().get_or_insert_default();
}

/// Takes the reports of all launches that have ended since [`keep_reports`] or the last call, in the order in which
/// they ran; none without [`keep_reports`]. Launches after it are counted from zero, also under
/// [`Config::once`](crate::Config::once).
pub fn take_reports() -> Vec<LaunchReport> {
    lock().as_mut().map(std::mem::take).unwrap_or_default().reports
}

/// The report of an equal launch since the last [`take_reports`].
pub(crate) fn counted(key: &LaunchKey) -> Option<LaunchReport> {
    lock().as_ref().and_then(|kept| kept.counted.get(key).cloned())
}

/// Keeps a report if reports are kept.
pub(crate) fn keep(key: Option<LaunchKey>, report: LaunchReport) {
    if let Some(kept) = lock().as_mut() {
        if let Some(key) = key {
            kept.counted.insert(key, report.clone());
        }
        kept.reports.push(report);
    }
}
