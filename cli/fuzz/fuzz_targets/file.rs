//! Bytes as a file: the readers of the program take paths.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

thread_local! {
    /// The file of this process, which each input overwrites.
    static PATH: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// Calls `body` with a file of these bytes whose name has this extension.
pub fn with(extension: &str, bytes: &[u8], body: impl FnOnce(&Path)) {
    let path = PATH.with_borrow_mut(|path| {
        let name = format!("ferrotile-fuzz-{}.{extension}", std::process::id());
        path.get_or_insert_with(|| std::env::temp_dir().join(name)).clone()
    });
    fs::write(&path, bytes).expect("there is room for temporary files");
    body(&path);
}
