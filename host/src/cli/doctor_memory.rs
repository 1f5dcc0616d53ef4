//! What `doctor` says of a device's memory pool and of its heat.

use crate::cuda::CudaDevice;
use crate::error::bytes;
use crate::governor::nvml::Monitor;
use crate::memory;

/// Title and text of each line.
pub fn lines(device: &CudaDevice) -> [(&'static str, String); 2] {
    [("Memory pool", pool(device)), ("Heat", heat(device))]
}

fn pool(device: &CudaDevice) -> String {
    let (source, pool) = match (memory::source(device), memory::pool(device)) {
        (Ok(source), Ok(pool)) => (source, pool),
        (Err(error), _) | (_, Err(error)) => return error.to_string(),
    };
    let books = pool.statistics();
    format!("on {source}; {} reserved, {} live", bytes(books.reserved), bytes(books.live))
}

fn heat(device: &CudaDevice) -> String {
    let sample = match Monitor::new(device) {
        Ok(monitor) => monitor.sample(),
        Err(reason) => return format!("not paced: {reason}"),
    };
    let Some(now) = sample else { return "not paced: the device reports no temperature".into() };
    let state = match (now.thermal, now.power_capped) {
        (true, _) => "slowed down by heat",
        (false, true) => "slowed down by its power limit",
        (false, false) => "not slowed down",
    };
    let (temperature, slowdown, power) = (now.temperature, now.slowdown, now.power);
    format!("{temperature:.0} °C, slows down at {slowdown:.0} °C; {power:.0} W, {} MHz, {state}", now.clock)
}
