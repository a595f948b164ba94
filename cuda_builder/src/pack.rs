//! PTX as programs carry it: compressed, each kernel by itself, since a program loads kernels one by one.
//!
//! A part of the PTX is a stream in the format `.lzma`, which says how long its text is. LZMA takes 0.9 ms to inflate
//! a kernel of 150 kB, and makes it a third smaller than Deflate does. Its fast mode compresses ten times as fast as
//! its normal mode, for a sixth more bytes.

use std::fmt::Write as _;
use std::io::Write as _;
use std::ops::Range;

use kernel_cache::{Cache, Key};
use lzma_rust2::{LzmaOptions, LzmaWriter};

use crate::ptx::entry_ranges;

/// The PTX of one family for one architecture, compressed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    /// All streams.
    pub(crate) bytes: Vec<u8>,
    /// What a program finds them by: an expression of the type `([Range<usize>; 2], &[(&str, Range<usize>)])`. The
    /// first two streams are the text before the first entry and the text after the last; the others are the entries.
    pub(crate) index: String,
}

impl Packed {
    /// Compresses PTX, or takes what an earlier build made of the same from the cache.
    pub(crate) fn new(ptx: &str, cache: Option<&Cache>) -> Packed {
        let key = Key::builder("packed").add(include_str!("pack.rs")).add(ptx).finish();
        let kept = || {
            let mut bytes = cache?.get(&key)?;
            let index = bytes.split_off(bytes.iter().position(|byte| *byte == 0)? + 1);
            let index = std::mem::replace(&mut bytes, index);
            Some(Packed { bytes, index: String::from_utf8(index[..index.len() - 1].to_vec()).ok()? })
        };
        kept().unwrap_or_else(|| {
            let packed = Packed::compress(ptx);
            if let Some(cache) = cache {
                // Where the cache cannot be written, the next build takes as long as this one.
                let _ = cache.put(&key, &[packed.index.as_bytes(), b"\0", &packed.bytes].concat());
            }
            packed
        })
    }

    fn compress(ptx: &str) -> Packed {
        let entries = entry_ranges(ptx);
        let first = entries.first().map_or(ptx.len(), |(_, range)| range.start);
        let end = entries.last().map_or(ptx.len(), |(_, range)| range.end);
        let texts: Vec<&str> = [&ptx[..first], &ptx[end..]]
            .into_iter()
            .chain(entries.iter().map(|(_, range)| &ptx[range.clone()]))
            .collect();
        let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let streams: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let chunks = texts.chunks(texts.len().div_ceil(workers));
            let threads: Vec<_> =
                chunks.map(|chunk| scope.spawn(|| chunk.iter().map(|text| stream(text)).collect::<Vec<_>>())).collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        let mut bytes = Vec::new();
        let ranges: Vec<Range<usize>> = streams
            .iter()
            .map(|stream| {
                bytes.extend(stream);
                bytes.len() - stream.len()..bytes.len()
            })
            .collect();
        let mut index = format!("([{:?}, {:?}], &[", ranges[0], ranges[1]);
        for ((name, _), range) in entries.iter().zip(&ranges[2..]) {
            // Writing to a String cannot fail.
            let _ = write!(index, "({name:?}, {range:?}), ");
        }
        index += "])";
        Packed { bytes, index }
    }
}

/// A text, compressed.
fn stream(text: &str) -> Vec<u8> {
    let mut options = LzmaOptions::with_preset(1);
    // For bytes of text, whose places in a word mean nothing.
    (options.lc, options.lp, options.pb) = (4, 0, 0);
    // No larger than the text, or than a reader would take memory for.
    options.dict_size = (text.len() as u32).clamp(1 << 12, 1 << 20);
    let write = || {
        let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(text.len() as u64))?;
        writer.write_all(text.as_bytes())?;
        writer.finish()
    };
    write().expect("memory takes what is written, and the options are valid")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    const PTX: &str = "head\n.visible .entry a(\n)\n{\n}\n.visible .entry ab()\n{\n}\n\t.file\t1 \"x\"\n";

    fn inflate(stream: &[u8]) -> String {
        let mut text = String::new();
        lzma_rust2::LzmaReader::new_mem_limit(stream, u32::MAX, None).unwrap().read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn every_part_of_the_text_is_a_stream() {
        let Packed { bytes, index } = Packed::new(PTX, None);
        let numbers: Vec<usize> =
            index.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
        let parts: Vec<String> = numbers.chunks(2).map(|range| inflate(&bytes[range[0]..range[1]])).collect();
        let entries = [".visible .entry a(\n)\n{\n}\n", ".visible .entry ab()\n{\n}\n"];
        assert_eq!(parts, ["head\n", "\t.file\t1 \"x\"\n", entries[0], entries[1]]);
        assert!(index.contains("(\"a\", ") && index.contains("(\"ab\", ") && numbers[7] == bytes.len(), "{index}");
        assert!(Packed::new("head\n", None).index.ends_with(", &[])"));
    }

    #[test]
    fn what_the_cache_keeps_is_what_was_made() {
        let folder = std::env::temp_dir().join(format!("cuda_builder-pack-{}", std::process::id()));
        let cache = Cache::new(&folder, 1 << 20);
        let made = Packed::new(PTX, Some(&cache));
        let kept = Packed::new(PTX, Some(&cache));
        let entries = std::fs::read_dir(&folder).unwrap().count();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((made, entries), (kept, 1));
    }
}
