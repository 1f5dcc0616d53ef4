//! The declarations, functions and entries of a PTX text, line by line.

/// One past the last line of the declaration, function or entry that begins at `first`.
pub(crate) fn item_end(lines: &[&str], first: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (index, line) in lines.iter().enumerate().skip(first) {
        let opened = line.matches('{').count();
        let closed = line.matches('}').count();
        depth = (depth + opened).saturating_sub(closed);
        if depth == 0 && (closed > 0 || line.trim_end().ends_with(';')) {
            return Some(index + 1);
        }
    }
    None
}

/// The name that a line outside of entries declares: the last word before its size, value, parameters or end.
pub(crate) fn declared_name(line: &str) -> &str {
    let head = line.split(['[', '=', ';']).next().unwrap_or(line);
    let head = head.strip_suffix('(').unwrap_or(head).trim_end();
    head.rsplit([' ', '\t', '(']).find(|word| !word.is_empty()).unwrap_or(head)
}

/// The name in `.visible .entry NAME(`.
pub(crate) fn entry_name(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(".entry ")?;
    Some(rest.split(['(', ' ']).next().unwrap_or(rest).trim())
}
