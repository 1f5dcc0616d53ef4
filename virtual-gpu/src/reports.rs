//! Reports of launches through the driver API, kept on request.

use std::sync::{Mutex, MutexGuard};

use crate::exec::LaunchReport;

/// `None` until [`keep_reports`].
static REPORTS: Mutex<Option<Vec<LaunchReport>>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Vec<LaunchReport>>> {
    REPORTS.lock().unwrap_or_else(|e| e.into_inner())
}

/// From now on every launch through the driver API in this process leaves its report for [`take_reports`].
pub fn keep_reports() {
    lock().get_or_insert_default();
}

/// Takes the reports of all launches that have ended since [`keep_reports`] or the last call, in the order in which
/// they ran; none without [`keep_reports`].
pub fn take_reports() -> Vec<LaunchReport> {
    lock().as_mut().map(std::mem::take).unwrap_or_default()
}

/// Keeps a report if reports are kept.
pub(crate) fn keep(report: LaunchReport) {
    if let Some(reports) = lock().as_mut() {
        reports.push(report);
    }
}
