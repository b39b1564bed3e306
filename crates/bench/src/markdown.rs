//! Markdown of a report. Paths and notes may have what means something there.

/// A text as it is, within a line or a table's cell: what would end the cell or the line, or look like something else, does not.
pub fn text(plain: &str) -> String {
    let mut text = String::with_capacity(plain.len());
    for char in plain.chars() {
        match char {
            char if char.is_control() => text.push(' '),
            '\\' | '|' | '`' | '*' | '<' | '[' => text.extend(['\\', char]),
            char => text.push(char),
        }
    }
    text
}

/// A text as code, within a line: between more backticks than it has in one piece.
pub fn code(plain: &str) -> String {
    let plain = plain.replace(|char: char| char.is_control(), " ");
    let longest = plain.split(|char| char != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    // A backtick at an end would be one of those around it: one blank at each end is not shown.
    let blank = if plain.starts_with('`') || plain.ends_with('`') { " " } else { "" };
    format!("{fence}{blank}{plain}{blank}{fence}")
}

/// Rows of cells, the first of which are headings: names to the left, numbers to the right.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let mut lines = String::new();
    for (number, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row.iter().map(|cell| text(cell)).collect();
        lines += &format!("| {} |\n", cells.join(" | "));
        if number == 0 {
            lines += &format!("|---|{}\n", "---:|".repeat(row.len().saturating_sub(1)));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bar in a target's name made one column of a table two, and a line end made one row two.
    #[test]
    fn names_stay_in_their_cells() {
        let rows = [["", "/a|b\nc"], ["`read`", "1\\2 *"]].map(|row| row.map(String::from).to_vec());
        assert_eq!(table(&rows), "|  | /a\\|b c |\n|---|---:|\n| \\`read\\` | 1\\\\2 \\* |\n");
        assert_eq!(text("fs_mark:files=20,sync=1: ±3% ×"), "fs_mark:files=20,sync=1: ±3% ×", "as it was");
    }

    #[test]
    fn code_ends_where_it_ends() {
        assert_eq!(code("bench /a|b\n-w read"), "`bench /a|b -w read`");
        assert_eq!(code("a `b` c"), "``a `b` c``");
        assert_eq!(code("a ``b`"), "``` a ``b` ```");
    }
}
