//! `doctor`'s report on a device's memory pool and temperature.

use pascaline::cuda::CudaDevice;
use pascaline::format_bytes as bytes;
use pascaline::governor::nvml::Monitor;
use pascaline::internals::select::LOW_POWER_SLOWER;
use pascaline::internals::table;
use pascaline::memory;

/// Title and text of each line.
pub fn lines(device: &CudaDevice) -> [(&'static str, String); 3] {
    [("Memory pool", pool(device)), ("Heat", heat(device)), ("Low power", low_power(device))]
}

fn low_power(device: &CudaDevice) -> String {
    match table::for_card(device.properties()).map(|table| table.watts.len()) {
        Ok(0) => {
            "no kernel's power is measured, so heat changes no choice (`pascaline tune` measures it)".into()
        }
        Ok(kernels) => {
            let slower = 100.0 * (LOW_POWER_SLOWER - 1.0);
            format!(
                "the power of {kernels} kernels is measured; in heat, one that needs less may be {slower:.0} % slower"
            )
        }
        Err(error) => error.to_string(),
    }
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
