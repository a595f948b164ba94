//! Plain text tables.

/// Lays rows out in columns: the first left-aligned, the others right-aligned, two spaces between.
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = heading.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (column, (cell, &width)) in cells.zip(&widths).enumerate() {
            text += &if column == 0 { format!("{cell:width$}") } else { format!("  {cell:>width$}") };
        }
        text.trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut heading.iter().copied());
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".to_owned(), "1234".to_owned()], vec!["long".to_owned(), "5".to_owned()]];
        assert_eq!(table(&["name", "us"], &rows), "name    us\na     1234\nlong     5\n");
    }
}
