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
    let after = line.split_once(".func").map_or(line, |(_, after)| after).trim_start();
    // a result, which may be an array, stands before a function's name
    let named =
        after.strip_prefix('(').and_then(|result| result.split_once(')')).map_or(line, |(_, name)| name);
    let head = named.split(['[', '=', ';']).next().unwrap_or(named);
    let head = head.strip_suffix('(').unwrap_or(head).trim_end();
    head.rsplit([' ', '\t', '(']).find(|word| !word.is_empty()).unwrap_or(head)
}

/// The name in `.visible .entry NAME(`.
pub(crate) fn entry_name(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(".entry ")?;
    Some(rest.split(['(', ' ']).next().unwrap_or(rest).trim())
}

#[cfg(test)]
mod tests {
    use super::declared_name;

    #[test]
    fn names_are_those_that_lines_declare() {
        for (line, name) in [
            (".global .align 8 .u64 vtable_$_0[5] = {0, 4, 4, area, scaled};", "vtable_$_0"),
            (".visible .global .align 4 .u32 count;", "count"),
            (".extern .shared .align 16 .b8 dynamic[];", "dynamic"),
            (".func stops", "stops"),
            (".func  (.param .b32 func_retval0) sum(", "sum"),
            (".visible .func  (.param .align 16 .b8 func_retval0[8]) sincosf(", "sincosf"),
            (".func  (.param .align 16 .b8 func_retval0[8]) sincosf", "sincosf"),
            ("(.param .b32 func_retval0) vprintf", "vprintf"),
        ] {
            assert_eq!(declared_name(line), name, "{line}");
        }
    }
}
