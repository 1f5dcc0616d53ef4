//! Arguments that are numbers of bytes.

/// Bytes, with K, M or G, or KB or KiB and so on, for powers of 1024.
pub(super) fn bytes(text: &str) -> Result<usize, String> {
    let unit_less = match text.strip_suffix(['b', 'B']) {
        Some(rest) => rest.strip_suffix(['i', 'I']).unwrap_or(rest),
        None => text,
    };
    let (number, unit) = match unit_less.char_indices().next_back() {
        Some((at, unit @ ('k' | 'K' | 'm' | 'M' | 'g' | 'G'))) => (&unit_less[..at], unit),
        _ if unit_less.len() + 1 < text.len() => (text, ' '), // iB alone is no unit
        _ => (unit_less, ' '),
    };
    let shift = match unit.to_ascii_uppercase() {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        _ => 0,
    };
    let number: Option<f64> = number.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    let bytes = number.map(|number| number * (1u64 << shift) as f64);
    let bytes = bytes.filter(|bytes| (1.0..1e18).contains(bytes));
    bytes
        .map(|bytes| bytes as usize)
        .ok_or_else(|| "it must be a number of bytes, such as 1900M or 1.8G".to_owned())
}
