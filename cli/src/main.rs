//! The program `ferrotile`.
fn main() {}
