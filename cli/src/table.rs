//! Aligned columns, printed row by row, and numbers of a width.

use super::screen::{Colours, Style};
use std::time::Duration;

/// A column. Its width is fixed beforehand, because rows are printed as they come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub title: &'static str,
    pub width: usize,
    /// Text stands left, numbers right.
    pub right: bool,
}

impl Column {
    pub const fn left(title: &'static str, width: usize) -> Self {
        Self { title, width, right: false }
    }

    pub const fn right(title: &'static str, width: usize) -> Self {
        Self { title, width, right: true }
    }
}

/// A cell's text and how it is meant.
pub(super) type Cell = (String, Style);

/// A row of cells; what is longer than its column pushes the rest along.
pub(super) fn row(columns: &[Column], cells: &[Cell], colours: Colours) -> String {
    let mut line = String::new();
    for (column, (text, style)) in columns.iter().zip(cells) {
        let gap = " ".repeat(column.width.saturating_sub(text.chars().count()));
        let text = colours.paint(*style, text);
        line += &if column.right { format!("{gap}{text}  ") } else { format!("{text}{gap}  ") };
    }
    line.truncate(line.trim_end().len());
    line
}

/// The columns' titles, with that of the table in the place of the first.
pub(super) fn header(title: &str, columns: &[Column], colours: Colours) -> String {
    let mut cells: Vec<_> = columns.iter().map(|column| (column.title.to_owned(), Style::Faint)).collect();
    if let Some(first) = cells.first_mut() {
        *first = (title.to_owned(), Style::Heading);
    }
    row(columns, &cells, colours)
}

/// Four digits of a positive number: `0.1234`, `12.34`, `1234`.
pub(super) fn digits(value: f64) -> String {
    match value {
        _ if !value.is_finite() => "–".to_owned(),
        value if value >= 999.95 => format!("{value:.0}"),
        value if value >= 99.995 => format!("{value:.1}"),
        value if value >= 9.9995 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

/// `12.34 ms`.
pub(super) fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        s if s >= 1.0 => format!("{} s ", digits(s)),
        s if s >= 1e-3 => format!("{} ms", digits(s * 1e3)),
        s => format!("{} µs", digits(s * 1e6)),
    }
}

/// An error, or a dash where none was looked at.
pub(super) fn error(error: f64) -> String {
    if error == 0.0 { "0".to_owned() } else { format!("{error:.1e}") }
}

/// A share as a whole percentage; small ones as `<1 %`, absurd ones as a multiple.
pub(super) fn percent(share: f64) -> String {
    match share * 100.0 {
        p if !p.is_finite() => "–".to_owned(),
        p if p > 0.0 && p < 0.5 => "<1 %".to_owned(),
        p if p >= 999.5 => format!("{:.0}×", p / 100.0),
        p => format!("{p:.0} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_whatever_the_bytes() {
        let columns = [Column::left("case", 6), Column::right("time", 9)];
        let colours = Colours::for_stream(false);
        let plain = |text: &str| (text.to_owned(), Style::Plain);
        assert_eq!(row(&columns, &[plain("a"), plain("1.5 µs")], colours), "a          1.5 µs");
        assert_eq!(header("case", &columns, colours), "case         time");
    }

    #[test]
    fn numbers_keep_their_width() {
        assert_eq!(digits(0.12345), "0.123");
        assert_eq!(digits(9.99996), "10.00");
        assert_eq!(digits(99.996), "100.0");
        assert_eq!(digits(999.96), "1000");
        assert_eq!(digits(f64::NAN), "–");
        assert_eq!(time(Duration::from_micros(1500)), "1.500 ms");
        assert_eq!(percent(0.001), "<1 %");
        assert_eq!(percent(0.845), "84 %");
        assert_eq!(percent(1188.3), "1188×");
    }
}
