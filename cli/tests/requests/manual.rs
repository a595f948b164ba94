//! Completions and manual pages.

use crate::program::{Scratch, assert_refused, assert_succeeded, ferrotile};

#[test]
fn every_shell_has_completions_of_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = ferrotile(&["completions", shell]);
        assert_succeeded(&output);
        let text = String::from_utf8_lossy(&output.stdout);
        for word in ["attention", "emulate-report", "validate", "--softcap", "--is-wrong"] {
            let known = text.contains(word.trim_start_matches('-'));
            assert_eq!(known, word != "--is-wrong", "{shell}: {word}");
        }
    }
    assert_refused(&ferrotile(&["completions", "tcsh"]), "tcsh");
}

#[test]
fn every_command_has_a_page() {
    let output = ferrotile(&["man"]);
    assert_succeeded(&output);
    let page = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(page.contains(".TH ferrotile 1") && page.contains("Exit codes"), "{page}");
    let scratch = Scratch::new("man");
    let folder = scratch.path("man1");
    assert_succeeded(&ferrotile(&["man", "--out", folder.to_str().unwrap()]));
    for (name, text) in
        [("ferrotile", "validate"), ("ferrotile-attention", "softcap"), ("ferrotile-bench-gemm", "layout")]
    {
        let page = std::fs::read_to_string(folder.join(format!("{name}.1"))).unwrap();
        assert!(page.contains(text), "{name}: {page}");
    }
    let file = scratch.write("file", b"");
    assert_eq!(ferrotile(&["man", "--out", file.to_str().unwrap()]).status.code(), Some(1));
}
