//! By what an entry is found.

use std::fmt;

use sha2::{Digest, Sha256};

/// The hash of everything that an entry is made from, by SHA-256, and what kind of entry it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    kind: &'static str,
    hash: String,
}

impl Key {
    /// Starts a key for entries of one kind, such as `"ptx"`.
    pub fn builder(kind: &'static str) -> KeyBuilder {
        KeyBuilder { kind, hasher: Sha256::new() }
    }

    /// Which lock is that of the key.
    pub(crate) fn bucket(&self) -> &str {
        &self.hash[..2]
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.kind, self.hash)
    }
}

/// Takes in what an entry is made from, part by part.
#[derive(Debug, Clone)]
#[must_use = "the key is what `finish` returns"]
pub struct KeyBuilder {
    kind: &'static str,
    hasher: Sha256,
}

impl KeyBuilder {
    /// Adds a part. Where one part ends and the next one starts is part of the hash.
    #[expect(clippy::should_implement_trait, reason = "it takes parts, as builders do, and is no sum")]
    pub fn add(mut self, part: impl AsRef<[u8]>) -> KeyBuilder {
        let part = part.as_ref();
        self.hasher.update((part.len() as u64).to_le_bytes());
        self.hasher.update(part);
        self
    }

    /// The key.
    pub fn finish(self) -> Key {
        let hash = self.hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Key { kind: self.kind, hash }
    }
}

/// The hash of the content of an entry.
pub(crate) fn hash(content: &[u8]) -> [u8; 32] {
    Sha256::digest(content).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_hash_of_its_parts() {
        let key = |parts: &[&str]| parts.iter().fold(Key::builder("test"), |key, part| key.add(part)).finish();
        assert_eq!(key(&["ab", "c"]), key(&["ab", "c"]));
        let others = [key(&["a", "bc"]), key(&["abc"]), key(&["c", "ab"]), key(&["ab", "c", ""]), key(&[])];
        assert!(others.iter().all(|other| *other != key(&["ab", "c"])));
        assert_ne!(key(&[]), Key::builder("other").finish());
        let empty = "test-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(key(&[]).to_string(), empty);
    }
}
