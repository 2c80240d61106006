//! Text tables: each column as wide as its widest cell, two spaces apart.

/// A header and rows of as many cells.
pub(crate) struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    pub(crate) fn new<const N: usize>(head: [&str; N]) -> TextTable {
        TextTable { rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    /// Adds a row. Line breaks in cells become spaces.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.rows[0].len());
        self.rows.push(cells.into_iter().map(|cell| cell.replace('\n', " ")).collect());
    }

    /// Returns the lines, each with a line break and without trailing blanks.
    pub(crate) fn text(&self) -> String {
        let columns = self.rows[0].len();
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&format!("{cell:width$}  "));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = TextTable::new(["NAME", "STATE"]);
        table.row(["ähm".into(), "ready".into()]);
        table.row(["longer".into(), String::new()]);
        assert_eq!(table.text(), "NAME    STATE\nähm     ready\nlonger\n");
    }
}
