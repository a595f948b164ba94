//! Reading and writing NPY files (NumPy's format, versions 1 to 3) of 16-, 32- and 64-bit floats; reading of integers
//! and texts, which NPZ files have among their members.
//!
//! Every length in the file is checked before it is believed: a damaged file gives an [`NpyError`], never a panic or a
//! huge allocation. The header is a Python literal; the parser takes the dictionaries that NumPy writes, with their
//! three keys in any order, and nothing else.

use half::f16;
use ndarray::{ArrayD, IxDyn, ShapeBuilder};

use crate::tensor::{Elements, Tensor};

const MAGIC: &[u8] = b"\x93NUMPY";

/// Why bytes are not an NPY file that can be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NpyError {
    /// The file does not start as an NPY file does.
    #[error("not an NPY file (it does not start with \\x93NUMPY)")]
    Magic,
    /// A format version that does not exist yet.
    #[error("NPY format version {0}.{1} is not known")]
    Version(u8, u8),
    /// The header is cut off or is not the expected dictionary.
    #[error("the NPY header is damaged: {0}")]
    Header(&'static str),
    /// Elements of a type that is not expected.
    #[error("elements of type '{got}' are not supported; expected {expected}")]
    Dtype {
        /// The type, as NumPy writes it.
        got: String,
        /// The types that are read.
        expected: &'static str,
    },
    /// Numbers of another shape than a list's.
    #[error("the shape is {0:?}, expected one dimension")]
    NotAList(Vec<usize>),
    /// The header promises another number of bytes than there are.
    #[error("shape {shape:?} needs {expected} bytes of data, the file has {got}")]
    Length {
        /// The shape in the header.
        shape: Vec<usize>,
        /// The bytes that it needs.
        expected: usize,
        /// The bytes after the header.
        got: usize,
    },
}

/// What the header says.
struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<usize>,
}

/// Reads the bytes of an NPY file of floats into a tensor in C order.
pub(crate) fn decode(bytes: &[u8]) -> Result<Tensor, NpyError> {
    let (header, data) = open(bytes)?;
    let elements = match header.kind("f2, f4 or f8 (float16, float32 or float64)", &["f2", "f4", "f8"])? {
        ("f2", big_endian) => Elements::F16(numbers(data, &header, big_endian, f16::from_le_bytes)?),
        ("f4", big_endian) => Elements::F32(numbers(data, &header, big_endian, f32::from_le_bytes)?),
        (_, big_endian) => Elements::F64(numbers(data, &header, big_endian, f64::from_le_bytes)?),
    };
    Ok(Tensor { shape: header.shape, elements })
}

/// Reads the elements of an NPY file of a list of integers.
pub(crate) fn decode_integers(bytes: &[u8]) -> Result<Vec<i64>, NpyError> {
    let (header, data) = open(bytes)?;
    if header.shape.len() != 1 {
        return Err(NpyError::NotAList(header.shape));
    }
    match header.kind("i4 or i8 (int32 or int64)", &["i4", "i8"])? {
        ("i4", big_endian) => {
            Ok(numbers(data, &header, big_endian, i32::from_le_bytes)?.into_iter().map(i64::from).collect())
        }
        (_, big_endian) => numbers(data, &header, big_endian, i64::from_le_bytes),
    }
}

/// Reads the bytes of an NPY file of one text: of bytes (`|S3`), as SciPy writes it, or of Unicode (`<U3`).
pub(crate) fn decode_text(bytes: &[u8]) -> Result<String, NpyError> {
    let (header, data) = open(bytes)?;
    let text: String = if header.descr.starts_with("|S") {
        String::from_utf8_lossy(data).into_owned()
    } else if header.descr.starts_with("<U") {
        let characters = data.as_chunks().0.iter().map(|&bytes| char::from_u32(u32::from_le_bytes(bytes)));
        characters.map(|character| character.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
    } else {
        return Err(NpyError::Dtype { got: header.descr, expected: "a text" });
    };
    Ok(text.trim_end_matches('\0').to_owned())
}

/// The header of a file, and the data behind it.
fn open(bytes: &[u8]) -> Result<(Header, &[u8]), NpyError> {
    let (text, data) = split(bytes)?;
    Ok((HeaderParser { rest: text }.dictionary()?, data))
}

impl Header {
    /// The type without its order of bytes, one of `known`, and whether the order is big-endian.
    fn kind(&self, expected: &'static str, known: &[&'static str]) -> Result<(&'static str, bool), NpyError> {
        let parts = self.descr.split_at_checked(1).and_then(|(order, kind)| {
            let kind = known.iter().find(|known| **known == kind)?;
            matches!(order, "<" | ">").then_some((*kind, order == ">"))
        });
        parts.ok_or_else(|| NpyError::Dtype { got: self.descr.clone(), expected })
    }
}

/// The bytes of an NPY file (version 1.0, little-endian, C order) that holds `data` of type `descr`.
pub(crate) fn encode(descr: &str, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}", sizes.trim_end());
    // The data starts on a multiple of 64 bytes, with a newline before it.
    let unpadded = MAGIC.len() + 4 + header.len() + 1;
    header.push_str(&" ".repeat(unpadded.next_multiple_of(64) - unpadded));
    header.push('\n');
    let header_len = u16::try_from(header.len()).expect("the header of a tensor of a few dimensions is short");
    [MAGIC, &[1, 0], &header_len.to_le_bytes(), header.as_bytes(), data].concat()
}

/// Splits a file into the text of its header and its data.
fn split(bytes: &[u8]) -> Result<(&str, &[u8]), NpyError> {
    let cut = NpyError::Header("the file ends within it");
    let after_magic = bytes.strip_prefix(MAGIC).ok_or(NpyError::Magic)?;
    let (&[major, minor], rest) = after_magic.split_first_chunk().ok_or(cut.clone())?;
    let (len, rest) = match (major, minor) {
        (1, 0) => rest.split_first_chunk().map(|(len, rest)| (u16::from_le_bytes(*len) as usize, rest)),
        (2 | 3, 0) => rest.split_first_chunk().map(|(len, rest)| (u32::from_le_bytes(*len) as usize, rest)),
        _ => return Err(NpyError::Version(major, minor)),
    }
    .ok_or(cut.clone())?;
    let (header, data) = rest.split_at_checked(len).ok_or(cut)?;
    let text = str::from_utf8(header).map_err(|_| NpyError::Header("it is not text"))?;
    Ok((text, data))
}

fn numbers<T: Clone, const SIZE: usize>(
    data: &[u8],
    header: &Header,
    big_endian: bool,
    from_le_bytes: fn([u8; SIZE]) -> T,
) -> Result<Vec<T>, NpyError> {
    let too_large = NpyError::Header("the shape has more elements than memory");
    let expected = header.shape.iter().try_fold(SIZE, |bytes, &size| bytes.checked_mul(size)).ok_or(too_large)?;
    if expected != data.len() {
        return Err(NpyError::Length { shape: header.shape.clone(), expected, got: data.len() });
    }
    let (chunks, _) = data.as_chunks::<SIZE>();
    let values = chunks.iter().map(|&(mut bytes)| {
        if big_endian {
            bytes.reverse();
        }
        from_le_bytes(bytes)
    });
    let values: Vec<T> = values.collect();
    if !header.fortran_order {
        return Ok(values);
    }
    let array = ArrayD::from_shape_vec(IxDyn(&header.shape).f(), values)
        .map_err(|_| NpyError::Header("the shape has more elements than memory"))?;
    Ok(array.iter().cloned().collect())
}

/// A parser of the header's dictionary.
struct HeaderParser<'a> {
    rest: &'a str,
}

impl HeaderParser<'_> {
    fn dictionary(mut self) -> Result<Header, NpyError> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        self.expect('{', "it is not a dictionary")?;
        while !self.take('}') {
            let key = self.string("a key is not a string")?;
            self.expect(':', "a key has no value")?;
            match key.as_str() {
                "descr" => descr = Some(self.string("'descr' is not the name of a plain type")?),
                "fortran_order" => fortran_order = Some(self.boolean()?),
                "shape" => shape = Some(self.shape()?),
                _ => return Err(NpyError::Header("it has a key other than 'descr', 'fortran_order' and 'shape'")),
            }
            if !self.take(',') {
                self.expect('}', "the dictionary is not closed")?;
                break;
            }
        }
        if !self.rest.trim().is_empty() {
            return Err(NpyError::Header("something follows the dictionary"));
        }
        Ok(Header {
            descr: descr.ok_or(NpyError::Header("'descr' is missing"))?,
            fortran_order: fortran_order.ok_or(NpyError::Header("'fortran_order' is missing"))?,
            shape: shape.ok_or(NpyError::Header("'shape' is missing"))?,
        })
    }

    fn take(&mut self, wanted: char) -> bool {
        match self.rest.trim_start().strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, wanted: char, otherwise: &'static str) -> Result<(), NpyError> {
        if self.take(wanted) { Ok(()) } else { Err(NpyError::Header(otherwise)) }
    }

    fn string(&mut self, otherwise: &'static str) -> Result<String, NpyError> {
        for quote in ['\'', '"'] {
            if self.take(quote) {
                let (text, rest) = self.rest.split_once(quote).ok_or(NpyError::Header("a string is not closed"))?;
                self.rest = rest;
                return Ok(text.to_owned());
            }
        }
        Err(NpyError::Header(otherwise))
    }

    fn boolean(&mut self) -> Result<bool, NpyError> {
        for (text, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.rest.trim_start().strip_prefix(text) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err(NpyError::Header("'fortran_order' is neither True nor False"))
    }

    fn shape(&mut self) -> Result<Vec<usize>, NpyError> {
        let bad = NpyError::Header("'shape' is not a tuple of sizes");
        self.expect('(', "'shape' is not a tuple of sizes")?;
        let (inside, rest) = self.rest.split_once(')').ok_or(bad.clone())?;
        self.rest = rest;
        let inside = inside.trim();
        if inside.is_empty() {
            return Ok(Vec::new());
        }
        // Python 2 wrote sizes as long integers: 3L.
        let size = |text: &str| text.trim().trim_end_matches('L').parse().map_err(|_| bad.clone());
        inside.strip_suffix(',').unwrap_or(inside).split(',').map(size).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let len = (header.len() as u16).to_le_bytes();
        [MAGIC, &[1, 0], &len, header.as_bytes(), data].concat()
    }

    fn bytes_of(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect()
    }

    fn f16s(tensor: &Tensor) -> Vec<f32> {
        let Elements::F16(values) = &tensor.elements else { panic!("expected f16") };
        values.iter().map(|x| x.to_f32()).collect()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let data = bytes_of(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        for shape in [&[2, 3][..], &[6], &[1, 6, 1, 1]] {
            let bytes = encode("<f2", shape, &data);
            assert_eq!((bytes.len() - data.len()) % 64, 0);
            let tensor = decode(&bytes).unwrap();
            assert_eq!(tensor.shape, shape);
            assert_eq!(f16s(&tensor), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        }
        assert_eq!(decode(&encode("<f2", &[0, 3], &[])).unwrap().shape, [0, 3]);
    }

    #[test]
    fn fortran_order_and_big_endian_are_undone() {
        let header = "{'descr': '<f2', 'fortran_order': True, 'shape': (2, 3), }\n";
        assert_eq!(
            f16s(&decode(&file(header, &bytes_of(&[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]))).unwrap())[..3],
            [0.0, 1.0, 2.0]
        );
        let mut data = bytes_of(&[1.5, -2.0]);
        data.chunks_mut(2).for_each(<[u8]>::reverse);
        let header = "{'descr': '>f2', 'fortran_order': False, 'shape': (2,)}";
        assert_eq!(f16s(&decode(&file(header, &data)).unwrap()), [1.5, -2.0]);
    }

    #[test]
    fn wider_floats_and_later_versions_are_read() {
        let header = "{\"shape\": (1L,), 'fortran_order': False, 'descr': '<f8'}   \n";
        let mut bytes = [MAGIC, &[3, 0], &(header.len() as u32).to_le_bytes(), header.as_bytes()].concat();
        bytes.extend(0.1f64.to_le_bytes());
        assert_eq!(decode(&bytes).unwrap().elements, Elements::F64(vec![0.1]));
    }

    #[test]
    fn integers_and_texts_are_read() {
        let header = "{'descr': '<i4', 'fortran_order': False, 'shape': (2,)}";
        let data = [(-7i32).to_le_bytes(), 9i32.to_le_bytes()].concat();
        assert_eq!(decode_integers(&file(header, &data)), Ok(vec![-7, 9]));
        let header = "{'descr': '>i8', 'fortran_order': False, 'shape': (1,)}";
        assert_eq!(decode_integers(&file(header, &(-2i64).to_be_bytes())), Ok(vec![-2]));
        let header = "{'descr': '<i8', 'fortran_order': False, 'shape': (1, 1)}";
        assert_eq!(decode_integers(&file(header, &[0; 8])), Err(NpyError::NotAList(vec![1, 1])));
        let refused = decode_integers(&file("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", &[0; 4]));
        assert!(matches!(refused, Err(NpyError::Dtype { got, .. }) if got == "<f4"));
        let header = "{'descr': '|S4', 'fortran_order': False, 'shape': ()}";
        assert_eq!(decode_text(&file(header, b"dia\0")).as_deref(), Ok("dia"));
        let header = "{'descr': '<U2', 'fortran_order': False, 'shape': ()}";
        assert_eq!(decode_text(&file(header, b"\xe9\0\0\0x\0\0\0")).as_deref(), Ok("\u{e9}x"));
    }

    #[test]
    fn every_prefix_of_a_file_is_refused() {
        let bytes = encode("<f2", &[2, 3], &bytes_of(&[1.0; 6]));
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(decode(&longer), Err(NpyError::Length { shape: vec![2, 3], expected: 12, got: 13 }));
    }

    #[test]
    fn damaged_headers_are_refused_by_name() {
        let cases = [
            ("", "not a dictionary"),
            ("{", "a key is not a string"),
            ("{'descr': '<f2', 'fortran_order': False}", "'shape' is missing"),
            ("{'descr': '<f2', 'fortran_order': 1, 'shape': (1,)}", "neither True nor False"),
            ("{'descr': '<f2', 'fortran_order': False, 'shape': (-1,)}", "tuple of sizes"),
            ("{'descr': '<f2', 'fortran_order': False, 'shape': (1 2)}", "tuple of sizes"),
            ("{'descr': [('a', '<f2')], 'fortran_order': False, 'shape': (1,)}", "plain type"),
            ("{'descr': '<f2', 'fortran_order': False, 'shape': (1,)} x", "something follows"),
            ("{'descr': '<f2', 'fortran_order': False, 'shape': (9999999999, 9999999999)}", "more elements"),
            ("{'descr': '<i4', 'fortran_order': False, 'shape': (1,)}", "'<i4'"),
            ("{'descr': '', 'fortran_order': False, 'shape': (1,)}", "''"),
            ("{'descr': '\u{e9}', 'fortran_order': False, 'shape': (1,)}", "'\u{e9}'"),
        ];
        for (header, reason) in cases {
            let message = decode(&file(header, &[0; 4])).unwrap_err().to_string();
            assert!(message.contains(reason), "{header}: {message}");
        }
        assert_eq!(decode(b"PK\x03\x04"), Err(NpyError::Magic));
        assert_eq!(decode(b"\x93NUMPY\x09\x00\x00\x00"), Err(NpyError::Version(9, 0)));
    }
}
