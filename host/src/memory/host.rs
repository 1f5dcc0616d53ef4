//! The memory of the host and of this process, as the system reports it.

/// Free and total bytes of host memory; zeros where the system does not report them.
pub(crate) fn of_the_host() -> (usize, usize) {
    let bytes = |name| reported("/proc/meminfo", name).unwrap_or(0);
    (bytes("MemAvailable:"), bytes("MemTotal:"))
}

/// The most bytes of host memory that this process had; `None` where the system does not report it.
pub fn peak_of_the_process() -> Option<usize> {
    reported("/proc/self/status", "VmHWM:")
}

/// The bytes on a line such as `MemTotal: 16 kB` of a file of the system.
fn reported(file: &str, name: &str) -> Option<usize> {
    let text = std::fs::read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name))?.trim().strip_suffix(" kB")?;
    value.parse::<usize>().ok()?.checked_mul(1 << 10)
}
