//! Aligned columns that fit the terminal, printed row by row, and numbers of a fixed width.

use super::colours::{Colours, Style};
use std::time::Duration;

/// A column. Its width is fixed, because rows are printed as they are computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub title: &'static str,
    pub width: usize,
    /// Text is left-aligned, numbers are right-aligned.
    pub right: bool,
    /// If there is no room for all columns, those with the largest rank are dropped first; those of rank 0 always stay.
    pub rank: u8,
}

impl Column {
    pub const fn left(title: &'static str, width: usize) -> Self {
        Self { title, width, right: false, rank: 0 }
    }

    pub const fn right(title: &'static str, width: usize) -> Self {
        Self { title, width, right: true, rank: 0 }
    }

    /// Dropped before columns of smaller rank.
    pub const fn rank(self, rank: u8) -> Self {
        Self { rank, ..self }
    }
}

/// A cell's text and style.
pub(super) type Cell = (String, Style);

/// Blanks between two columns.
const GAP: usize = 2;
/// A last column of width 0 takes the remaining width, if it is at least this.
const LEAST_OPEN: usize = 10;

/// A table; all rows have the same columns.
#[derive(Clone, Debug)]
pub(super) struct Table {
    columns: Vec<Column>,
    shown: Vec<bool>,
    /// The width of a row; `None`: unlimited.
    room: Option<usize>,
    colours: Colours,
}

impl Table {
    /// With the columns that fit `room`.
    pub fn new(columns: Vec<Column>, room: Option<usize>, colours: Colours) -> Self {
        let mut shown = vec![true; columns.len()];
        while let Some(room) = room {
            let used = columns.iter().zip(&shown).filter(|(_, shown)| **shown);
            let width = |column: &Column| if column.width == 0 { LEAST_OPEN } else { column.width } + GAP;
            if used.map(|(column, _)| width(column)).sum::<usize>() <= room + GAP {
                break;
            }
            let droppable = (0..columns.len()).filter(|&i| shown[i] && columns[i].rank > 0);
            match droppable.max_by_key(|&i| columns[i].rank) {
                Some(column) => shown[column] = false,
                None => break,
            }
        }
        Self { columns, shown, room, colours }
    }

    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Titles of the columns that do not fit.
    pub fn left_out(&self) -> impl Iterator<Item = &'static str> {
        self.columns.iter().zip(&self.shown).filter(|(_, shown)| !**shown).map(|(column, _)| column.title)
    }

    /// Formats a row with a cell for each column. A cell that is wider than its column shifts the rest; in the last column
    /// it is truncated.
    pub fn row(&self, cells: &[Cell]) -> String {
        let (mut line, mut used) = (String::new(), 0);
        let shown = self.columns.iter().zip(cells).zip(&self.shown).filter(|(_, shown)| **shown);
        for ((column, (text, style)), _) in shown {
            let open = column.width == 0;
            let left = self.room.filter(|_| open).map_or(usize::MAX, |room| room.saturating_sub(used));
            let text = shortened(text, left);
            let length = text.chars().count();
            let gap = " ".repeat(column.width.saturating_sub(length));
            let text = self.colours.paint(*style, &text);
            line += &if column.right { format!("{gap}{text}  ") } else { format!("{text}{gap}  ") };
            used += length.max(column.width) + GAP;
        }
        line.truncate(line.trim_end().len());
        line
    }

    /// The columns' titles, with the table's title instead of the first.
    pub fn header(&self, title: &str) -> String {
        let titles = self.columns.iter().map(|column| (column.title.to_owned(), Style::Faint));
        let mut cells: Vec<_> = titles.collect();
        if let Some(first) = cells.first_mut() {
            *first = (title.to_owned(), Style::Heading);
        }
        self.row(&cells)
    }
}

/// At most `room` characters of a text, ending in an ellipsis if it was longer.
fn shortened(text: &str, room: usize) -> String {
    match text.chars().count() > room {
        true => text.chars().take(room.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_owned(),
    }
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

/// An error, or a dash if there is none.
pub(super) fn error(error: f64) -> String {
    if error == 0.0 { "0".to_owned() } else { format!("{error:.1e}") }
}

/// A share as a whole percentage; below that `<1 %`, very large ones as a multiple.
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
        let columns = vec![Column::left("case", 6), Column::right("time", 9)];
        let table = Table::new(columns, None, Colours::for_stream(false));
        assert_eq!(table.row(&[plain("a"), plain("1.5 µs")]), "a          1.5 µs");
        assert_eq!(table.header("case"), "case         time");
    }

    fn plain(text: &str) -> Cell {
        (text.to_owned(), Style::Plain)
    }

    #[test]
    fn columns_go_by_rank_where_there_is_no_room() {
        let table = |room| {
            let columns = vec![
                Column::left("case", 6),
                Column::right("min", 5).rank(2),
                Column::right("time", 5),
                Column::left("kernel", 0).rank(1),
            ];
            Table::new(columns, room, Colours::for_stream(false))
        };
        let cells = ["a", "1", "2", "a-kernels-long-name"].map(plain);
        let row = |room| table(room).row(&cells);
        assert_eq!(row(None), "a           1      2  a-kernels-long-name");
        assert_eq!(row(Some(41)), "a           1      2  a-kernels-long-name");
        assert_eq!(row(Some(40)), "a           1      2  a-kernels-long-na…");
        assert_eq!(row(Some(32)), "a           1      2  a-kernels…");
        assert_eq!(row(Some(31)), "a           2  a-kernels-long-…");
        assert_eq!(table(Some(31)).left_out().collect::<Vec<_>>(), ["min"]);
        assert_eq!(row(Some(24)), "a           2");
        assert_eq!(row(Some(3)), "a           2", "what has no rank stays");
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
