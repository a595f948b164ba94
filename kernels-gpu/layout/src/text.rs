//! Comparison of names in constants, where `==` on `str` is not available: tables are searched by name at compile time.

/// Whether two texts are equal.
#[must_use]
pub const fn same_text(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}
