#![doc = include_str!("../README.md")]
//!
//! # How it is kept
//!
//! An entry is found by a [`Key`], the hash of everything that the entry is made from. So profiles, clones and programs
//! share entries, and an entry never becomes stale.
//!
//! Several processes may use a folder at once. An entry appears as a whole, by renaming its file. A damaged entry is
//! removed and counts as absent. Where the entries exceed the limit, those that nothing has used for the longest time
//! are removed.

mod key;

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

pub use key::{Key, KeyBuilder};

/// The variable that names the folder, or is `off`.
pub const VARIABLE: &str = "FERROTILE_CACHE";

/// The limit of the user's cache: some 50 builds of all kernels for all architectures.
const LIMIT_BYTES: u64 = 1 << 30;

/// What the file of an entry starts with, before the hash of its content.
const MAGIC: &[u8] = b"ferrotile cache 1\n";

/// The bytes of a hash.
const HASH_BYTES: usize = 32;

/// A file that a process was writing this long ago has no process any more.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A folder of entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    folder: PathBuf,
    limit_bytes: u64,
}

impl Cache {
    /// The cache in a folder, which need not exist, for at most so many bytes.
    pub fn new(folder: impl Into<PathBuf>, limit_bytes: u64) -> Cache {
        Cache { folder: folder.into(), limit_bytes }
    }

    /// The user's cache, of at most 1 GiB: the folder that the variable `FERROTILE_CACHE` names, else `ferrotile` in
    /// `XDG_CACHE_HOME`, else `~/.cache/ferrotile`. None where the variable is `off`, or the user has no home.
    pub fn of_user() -> Option<Cache> {
        let folder = user_folder(|name| std::env::var_os(name).map(PathBuf::from), std::env::home_dir())?;
        Some(Cache::new(folder, LIMIT_BYTES))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The content of an entry, if it is there and undamaged.
    pub fn get(&self, key: &Key) -> Option<Vec<u8>> {
        let path = self.path(key);
        let mut file = fs::read(&path).ok()?;
        let head = MAGIC.len() + HASH_BYTES;
        let is_whole =
            file.len() >= head && file.starts_with(MAGIC) && file[MAGIC.len()..head] == key::hash(&file[head..]);
        if !is_whole {
            let _ = fs::remove_file(&path);
            return None;
        }
        // The order of removal follows the times of files. Where a time cannot be set the entry only goes earlier.
        let _ = OpenOptions::new().append(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        file.drain(..head);
        Some(file)
    }

    /// Keeps the content of an entry, and removes what exceeds the limit.
    ///
    /// # Errors
    /// Where the folder cannot be made or written. Nothing but time is lost then, so callers may go on.
    pub fn put(&self, key: &Key, content: &[u8]) -> io::Result<()> {
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        fs::create_dir_all(&self.folder)?;
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!("{PARTIAL}{}-{number}", process::id()));
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(MAGIC)?;
            file.write_all(&key::hash(content))?;
            file.write_all(content)?;
            drop(file);
            fs::rename(&path, self.path(key))
        };
        let written = write();
        if written.is_err() {
            let _ = fs::remove_file(&path);
        }
        written.and_then(|()| self.shrink(self.limit_bytes))
    }

    /// Waits until no other caller holds this lock of the key, in any process. Who makes an entry under its lock makes
    /// it once, where several want it. The lock ends with the value.
    ///
    /// Unrelated keys may share a lock, so a caller holds one at a time.
    ///
    /// # Errors
    /// Where the folder cannot be made or written, or its file system knows no locks.
    pub fn lock(&self, key: &Key) -> io::Result<File> {
        fs::create_dir_all(&self.folder)?;
        let file = File::create(self.folder.join(format!("{LOCK}{}", key.bucket())))?;
        file.lock()?;
        Ok(file)
    }

    /// Removes all entries and returns how many bytes they had.
    ///
    /// # Errors
    /// Where the folder or an entry in it cannot be removed.
    pub fn clear(&self) -> io::Result<u64> {
        let files = self.files()?;
        let size_bytes = files.iter().map(|file| file.size_bytes).sum();
        self.shrink(0)?;
        Ok(size_bytes)
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(key.to_string())
    }

    /// Removes the entries that nothing has used for the longest time, until no more than the limit remains.
    fn shrink(&self, limit_bytes: u64) -> io::Result<()> {
        let mut files = self.files()?;
        files.sort_by_key(|file| file.used);
        let mut size_bytes: u64 = files.iter().map(|file| file.size_bytes).sum();
        for file in files {
            if size_bytes <= limit_bytes {
                break;
            }
            remove(&file.path)?;
            size_bytes -= file.size_bytes;
        }
        Ok(())
    }

    /// The files of entries. Removes what interrupted processes have left.
    fn files(&self) -> io::Result<Vec<EntryFile>> {
        let mut files = Vec::new();
        let folder = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(files),
            folder => folder?,
        };
        for item in folder {
            let item = item?;
            let name = item.file_name();
            let name = name.to_string_lossy();
            // Another process may have removed it meanwhile.
            let Ok(metadata) = item.metadata() else { continue };
            let used = metadata.modified()?;
            if name.starts_with(PARTIAL) {
                if used.elapsed().is_ok_and(|age| age > ABANDONED) {
                    remove(&item.path())?;
                }
            } else if metadata.is_file() && !name.starts_with(LOCK) {
                files.push(EntryFile { path: item.path(), size_bytes: metadata.len(), used });
            }
        }
        Ok(files)
    }
}

/// The start of the names of files that are being written.
const PARTIAL: &str = "partial-";

/// The start of the names of lock files.
const LOCK: &str = "lock-";

struct EntryFile {
    path: PathBuf,
    size_bytes: u64,
    used: SystemTime,
}

/// Removes a file, which another process may have removed already.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn user_folder(variable: impl Fn(&str) -> Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    match variable(VARIABLE).filter(|value| !value.as_os_str().is_empty()) {
        Some(value) if value.as_os_str() == "off" => return None,
        Some(folder) => return std::path::absolute(folder).ok(),
        None => {}
    }
    // The XDG specification says to ignore a path that is not absolute.
    let xdg = variable("XDG_CACHE_HOME").filter(|folder| folder.is_absolute());
    let of_home = || home.filter(|home| home.is_absolute()).map(|home| home.join(".cache"));
    Some(xdg.or_else(of_home)?.join("ferrotile"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache of its own for a test, removed at the end.
    struct Temporary(Cache);

    impl Temporary {
        fn new(name: &str, limit_bytes: u64) -> Temporary {
            let folder = std::env::temp_dir().join(format!("kernel_cache-{name}-{}", process::id()));
            Temporary(Cache::new(folder, limit_bytes))
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0.folder);
        }
    }

    fn key(name: &str) -> Key {
        Key::builder("test").add(name).finish()
    }

    #[test]
    fn a_damaged_entry_is_absent() {
        let temporary = Temporary::new("damaged", 1 << 20);
        let cache = &temporary.0;
        assert_eq!(cache.get(&key("a")), None);
        cache.put(&key("a"), b"content").unwrap();
        let whole = fs::read(cache.path(&key("a"))).unwrap();
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        let longer = [&whole[..], b"x"].concat();
        for damaged in [&whole[..whole.len() - 1], &whole[..10], &[], &flipped, &longer] {
            fs::write(cache.path(&key("a")), damaged).unwrap();
            assert_eq!(cache.get(&key("a")), None);
            assert!(!cache.path(&key("a")).exists(), "a damaged entry is removed");
            cache.put(&key("a"), b"content").unwrap();
            assert_eq!(cache.get(&key("a")).unwrap(), b"content");
        }
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let temporary = Temporary::new("limit", 3500);
        let cache = &temporary.0;
        let age = |name: &str, seconds: u64| {
            let file = OpenOptions::new().append(true).open(cache.path(&key(name))).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        };
        for (name, seconds) in [("a", 30), ("b", 20), ("c", 10)] {
            cache.put(&key(name), &[0; 1000]).unwrap();
            age(name, seconds);
        }
        assert!(cache.get(&key("a")).is_some(), "a is used now");
        cache.put(&key("d"), &[0; 1000]).unwrap();
        let kept = ["a", "b", "c", "d"].map(|name| cache.get(&key(name)).is_some());
        assert_eq!(kept, [true, false, true, true]);
    }

    #[test]
    fn what_processes_left_unfinished_goes_after_an_hour() {
        let temporary = Temporary::new("partial", 1 << 20);
        let cache = &temporary.0;
        cache.put(&key("a"), b"content").unwrap();
        let (old, new) = (cache.folder.join(format!("{PARTIAL}1-0")), cache.folder.join(format!("{PARTIAL}2-0")));
        fs::write(&new, "").unwrap();
        File::create(&old).unwrap().set_modified(SystemTime::now() - 2 * ABANDONED).unwrap();
        cache.put(&key("b"), b"content").unwrap();
        assert!(new.exists() && !old.exists());
    }

    #[test]
    fn threads_make_an_entry_once() {
        let temporary = Temporary::new("threads", 1 << 20);
        let made = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let _lock = temporary.0.lock(&key("a")).unwrap();
                    if temporary.0.get(&key("a")).is_none() {
                        made.fetch_add(1, Ordering::Relaxed);
                        temporary.0.put(&key("a"), &[7; 100_000]).unwrap();
                    }
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }

    #[test]
    fn readers_and_writers_meet_whole_entries_alone() {
        let temporary = Temporary::new("writers", 1 << 20);
        let cache = &temporary.0;
        cache.put(&key("a"), &[0; 50_000]).unwrap();
        std::thread::scope(|scope| {
            for value in 0..4 {
                scope.spawn(move || (0..25).for_each(|_| cache.put(&key("a"), &[value; 50_000]).unwrap()));
            }
            for _ in 0..100 {
                let content = cache.get(&key("a")).expect("every rename leaves an entry");
                assert!(content.len() == 50_000 && content.iter().all(|byte| *byte == content[0]));
            }
        });
        assert_eq!(cache.clear().unwrap(), 50_000 + (MAGIC.len() + HASH_BYTES) as u64);
        assert_eq!(cache.clear().unwrap(), 0);
    }

    #[test]
    fn the_folder_follows_the_variables() {
        let folder = |variables: &[(&str, &str)], home: Option<&str>| {
            let value = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
            user_folder(value, home.map(PathBuf::from))
        };
        let home = Some("/home/u");
        assert_eq!(folder(&[], home).unwrap(), Path::new("/home/u/.cache/ferrotile"));
        assert_eq!(folder(&[("XDG_CACHE_HOME", "/x")], home).unwrap(), Path::new("/x/ferrotile"));
        assert_eq!(folder(&[("XDG_CACHE_HOME", "x")], home).unwrap(), Path::new("/home/u/.cache/ferrotile"));
        assert_eq!(folder(&[("XDG_CACHE_HOME", "/x"), (VARIABLE, "/y/z")], home).unwrap(), Path::new("/y/z"));
        assert_eq!(folder(&[(VARIABLE, "")], home).unwrap(), Path::new("/home/u/.cache/ferrotile"));
        assert_eq!(folder(&[(VARIABLE, "off")], home), None);
        assert_eq!(folder(&[], None), None);
    }
}
