//! Reading NPY files (NumPy's format, versions 1 to 3) of floats, integers, Booleans and texts, and writing those of
//! floats.
//!
//! Every length in the file is checked before use, and no more is read than the shape in the header needs. So a damaged
//! file gives an [`NpyError`], never a panic or a huge allocation. The header is a Python literal; the parser takes the
//! dictionaries that NumPy writes, with their three keys in any order, and nothing else.

use std::io::{self, Read};

use half::{bf16, f16};
use ndarray::{ArrayD, IxDyn, ShapeBuilder};

use crate::files::tensor::{Elements, Tensor};

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// The longest header that is read. NumPy refuses those of more than 10,000 bytes unless it is told to trust them.
const MAX_HEADER_BYTES: u32 = 1 << 16;

/// Why bytes are not an NPY file that can be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NpyError {
    /// The file cannot be read, or its compressed data cannot be unpacked.
    #[error("{0}")]
    Read(io::Error),
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
    /// Elements of a type that NumPy does not know, as those of ml_dtypes are written.
    #[error("elements of type '{got}', of which NumPy knows the size alone: {hint}")]
    Opaque {
        /// The type, as NumPy writes it.
        got: String,
        /// What they may be, and how to have them read.
        hint: &'static str,
    },
    /// The header promises another number of bytes than there are.
    #[error("shape {shape:?} needs {expected} bytes of data, the file has {}", got.map_or("more".to_owned(), |got| got.to_string()))]
    Length {
        /// The shape in the header.
        shape: Vec<usize>,
        /// The bytes that it needs.
        expected: u64,
        /// The bytes after the header; `None` for more, where not all were read.
        got: Option<u64>,
    },
}

/// What elements of a type without a name (`V1` and `V2`) are taken for, by the words of `--dtype`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opaque {
    /// The type that the request names: bf16 says what elements of two bytes are, e4m3 what those of one byte are.
    pub(crate) dtype: Option<&'static str>,
    /// The types that the command can be asked for.
    pub(crate) offered: &'static [&'static str],
}

impl Opaque {
    /// For a command without `--dtype`: no type.
    pub(crate) const REFUSED: Opaque = Opaque { dtype: None, offered: &[] };
}

/// What the header says.
struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<usize>,
}

/// An NPY file of which the header has been read, and is about to give its data.
pub(crate) struct NpyReader<R> {
    header: Header,
    data: R,
    /// The bytes of data, where the size of the file is known.
    data_bytes: Option<u64>,
}

impl<R: Read> NpyReader<R> {
    /// Reads the header of a file of `file_bytes`; `None` where the size is not known, as that of a pipe.
    pub(crate) fn open(mut source: R, file_bytes: Option<u64>) -> Result<NpyReader<R>, NpyError> {
        let (header, header_bytes) = read_header(&mut source)?;
        let data_bytes = file_bytes.map(|bytes| bytes.saturating_sub(header_bytes));
        Ok(NpyReader { header, data: source, data_bytes })
    }

    /// The shape in the header.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.header.shape
    }

    /// Reads a tensor in C order.
    pub(crate) fn tensor(mut self, opaque: Opaque) -> Result<Tensor, NpyError> {
        let descr = self.header.descr.clone();
        let Some((order, kind)) = descr.split_at_checked(1) else { return Err(self.unknown_type()) };
        let has_no_order = matches!(kind, "i1" | "u1" | "b1" | "V1" | "V2");
        if !(matches!(order, "<" | ">") || order == "|" && has_no_order) {
            return Err(self.unknown_type());
        }
        let big_endian = order == ">";
        let elements = match (kind, opaque.dtype) {
            ("f2", _) => Elements::F16(self.numbers(big_endian, f16::from_le_bytes)?),
            ("f4", _) => Elements::F32(self.numbers(big_endian, f32::from_le_bytes)?),
            ("f8", _) => Elements::F64(self.numbers(big_endian, f64::from_le_bytes)?),
            ("i1", _) => Elements::Integers("i8", self.numbers(big_endian, |x| i8::from_le_bytes(x).into())?),
            ("i2", _) => Elements::Integers("i16", self.numbers(big_endian, |x| i16::from_le_bytes(x).into())?),
            ("i4", _) => Elements::Integers("i32", self.numbers(big_endian, |x| i32::from_le_bytes(x).into())?),
            ("i8", _) => Elements::Integers("i64", self.numbers(big_endian, |x| i64::from_le_bytes(x) as f64)?),
            ("u1", _) => Elements::Integers("u8", self.numbers(big_endian, |x| u8::from_le_bytes(x).into())?),
            ("u2", _) => Elements::Integers("u16", self.numbers(big_endian, |x| u16::from_le_bytes(x).into())?),
            ("u4", _) => Elements::Integers("u32", self.numbers(big_endian, |x| u32::from_le_bytes(x).into())?),
            ("u8", _) => Elements::Integers("u64", self.numbers(big_endian, |x| u64::from_le_bytes(x) as f64)?),
            ("b1", _) => Elements::Bool(self.numbers(big_endian, |[byte]| byte != 0)?),
            ("V2", Some("bf16")) => Elements::Bf16(self.numbers(big_endian, bf16::from_le_bytes)?),
            ("V1", Some("e4m3")) => Elements::E4m3(self.numbers(big_endian, u8::from_le_bytes)?),
            _ => return Err(self.opaque_type(kind, opaque)),
        };
        Ok(Tensor { shape: self.header.shape, elements })
    }

    /// Reads one text: of bytes (`|S3`), as SciPy writes it, or of Unicode (`<U3`).
    pub(crate) fn text(mut self) -> Result<String, NpyError> {
        const MOST: u64 = 64;
        let (kind, length) = self.header.descr.split_at_checked(2).unwrap_or_default();
        let element_bytes = match (kind, length.parse::<u64>()) {
            ("|S", Ok(length @ ..=MOST)) => length,
            ("<U", Ok(length @ ..=MOST)) => 4 * length,
            _ => return Err(NpyError::Dtype { got: self.header.descr, expected: "a short text" }),
        };
        let is_unicode = kind == "<U";
        let data = self.bytes(element_bytes)?;
        let text: String = if is_unicode {
            let characters = data.as_chunks().0.iter().map(|&bytes| char::from_u32(u32::from_le_bytes(bytes)));
            characters.map(|character| character.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
        } else {
            String::from_utf8_lossy(&data).into_owned()
        };
        Ok(text.trim_end_matches('\0').to_owned())
    }

    fn unknown_type(self) -> NpyError {
        NpyError::Dtype { got: self.header.descr, expected: "floats of 16, 32 or 64 bits, integers or bool" }
    }

    fn opaque_type(self, kind: &str, opaque: Opaque) -> NpyError {
        let hint = match (kind, opaque.offered) {
            ("V2", offered) if offered.contains(&"bf16") => {
                "bf16 of ml_dtypes? give --dtype bf16, or save them as float32"
            }
            ("V2", _) => "bf16 of ml_dtypes? save them as float32",
            ("V1", offered) if offered.contains(&"e4m3") => {
                "e4m3 of ml_dtypes? give --dtype e4m3, or save them as float32"
            }
            ("V1", _) => "e4m3 of ml_dtypes? save them as float32",
            _ => return self.unknown_type(),
        };
        NpyError::Opaque { got: self.header.descr, hint }
    }

    fn numbers<T: Clone, const SIZE: usize>(
        &mut self,
        big_endian: bool,
        from_le_bytes: impl Fn([u8; SIZE]) -> T,
    ) -> Result<Vec<T>, NpyError> {
        let data = self.bytes(SIZE as u64)?;
        let values = data.as_chunks::<SIZE>().0.iter().map(|&(mut bytes)| {
            if big_endian {
                bytes.reverse();
            }
            from_le_bytes(bytes)
        });
        let values: Vec<T> = values.collect();
        if !self.header.fortran_order {
            return Ok(values);
        }
        let array = ArrayD::from_shape_vec(IxDyn(&self.header.shape).f(), values).map_err(|_| TOO_LARGE)?;
        Ok(array.iter().cloned().collect())
    }

    /// Reads the data: as many bytes as elements of this size fill the shape with, and not one more.
    fn bytes(&mut self, element_bytes: u64) -> Result<Vec<u8>, NpyError> {
        let shape = &self.header.shape;
        let mut sizes = shape.iter().map(|&size| size as u64);
        let expected = sizes.try_fold(element_bytes, u64::checked_mul).ok_or(TOO_LARGE)?;
        let wrong = |got: Option<u64>| NpyError::Length { shape: shape.clone(), expected, got };
        let mut data = Vec::new();
        if let Some(bytes) = self.data_bytes {
            if bytes != expected {
                return Err(wrong(Some(bytes)));
            }
            let len = usize::try_from(expected).map_err(|_| TOO_LARGE)?;
            data.try_reserve_exact(len).map_err(|_| TOO_LARGE)?;
        }
        // Nobody reads further data, and an archive compares its checksum only at the end of the data.
        self.data.by_ref().take(expected).read_to_end(&mut data).map_err(NpyError::Read)?;
        if data.len() as u64 != expected {
            return Err(wrong(Some(data.len() as u64)));
        }
        match self.data.read(&mut [0]) {
            Ok(0) => Ok(data),
            Ok(_) => Err(wrong(None)),
            Err(error) => Err(NpyError::Read(error)),
        }
    }
}

const TOO_LARGE: NpyError = NpyError::Header("the shape has more elements than memory");

/// The bytes of an NPY file (version 1.0, little-endian, C order) that holds `data` of type `descr`.
pub(crate) fn encode(descr: &str, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}", sizes.trim_end());
    // The data starts on a multiple of 64 bytes, with a newline before it.
    let unpadded = MAGIC.len() + 4 + header.len() + 1;
    header.push_str(&" ".repeat(unpadded.next_multiple_of(64) - unpadded));
    header.push('\n');
    let header_len = u16::try_from(header.len()).expect("the header of a tensor of a few dimensions is short");
    [MAGIC, &[1, 0][..], &header_len.to_le_bytes(), header.as_bytes(), data].concat()
}

/// Reads the header of a file; also how many bytes it takes.
fn read_header(source: &mut impl Read) -> Result<(Header, u64), NpyError> {
    let mut magic = [0; MAGIC.len()];
    match source.read_exact(&mut magic) {
        Ok(()) if magic == *MAGIC => (),
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(NpyError::Read(error)),
        _ => return Err(NpyError::Magic),
    }
    let [major, minor] = exactly(source)?;
    let (len, len_bytes) = match (major, minor) {
        (1, 0) => (u16::from_le_bytes(exactly(source)?).into(), 2),
        (2 | 3, 0) => (u32::from_le_bytes(exactly(source)?), 4),
        _ => return Err(NpyError::Version(major, minor)),
    };
    if len > MAX_HEADER_BYTES {
        return Err(NpyError::Header("it is longer than any that NumPy writes"));
    }
    let mut text = vec![0; len as usize];
    source.read_exact(&mut text).map_err(cut_off)?;
    let text = str::from_utf8(&text).map_err(|_| NpyError::Header("it is not text"))?;
    let header_bytes = (MAGIC.len() + 2 + len_bytes) as u64 + u64::from(len);
    Ok((HeaderParser { rest: text }.dictionary()?, header_bytes))
}

fn exactly<const N: usize>(source: &mut impl Read) -> Result<[u8; N], NpyError> {
    let mut bytes = [0; N];
    source.read_exact(&mut bytes).map_err(cut_off)?;
    Ok(bytes)
}

fn cut_off(error: io::Error) -> NpyError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => NpyError::Header("the file ends within it"),
        _ => NpyError::Read(error),
    }
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
        const BAD: &str = "'shape' is not a tuple of sizes";
        self.expect('(', BAD)?;
        let (inside, rest) = self.rest.split_once(')').ok_or(NpyError::Header(BAD))?;
        self.rest = rest;
        let inside = inside.trim();
        if inside.is_empty() {
            return Ok(Vec::new());
        }
        // Python 2 wrote sizes as long integers: 3L.
        let size = |text: &str| text.trim().trim_end_matches('L').parse().map_err(|_| NpyError::Header(BAD));
        inside.strip_suffix(',').unwrap_or(inside).split(',').map(size).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: Opaque = Opaque::REFUSED;

    fn gemm(dtype: Option<&'static str>) -> Opaque {
        Opaque { dtype, offered: &["f16", "bf16", "e4m3"] }
    }

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let len = (header.len() as u16).to_le_bytes();
        [MAGIC, &[1, 0][..], &len, header.as_bytes(), data].concat()
    }

    fn decode_as(bytes: &[u8], opaque: Opaque) -> Result<Tensor, NpyError> {
        NpyReader::open(bytes, Some(bytes.len() as u64))?.tensor(opaque)
    }

    fn decode(bytes: &[u8]) -> Result<Tensor, NpyError> {
        decode_as(bytes, REFUSED)
    }

    /// A file of two elements of this type.
    fn two(descr: &str, data: &[u8]) -> Vec<u8> {
        file(&format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2,)}}"), data)
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
        let mut bytes = [MAGIC, &[3, 0][..], &(header.len() as u32).to_le_bytes(), header.as_bytes()].concat();
        bytes.extend(0.1f64.to_le_bytes());
        assert_eq!(decode(&bytes).unwrap().elements, Elements::F64(vec![0.1]));
    }

    #[test]
    fn integers_and_booleans_are_read() {
        let cases: [(&str, Vec<u8>, &str); 6] = [
            ("<i4", [(-7i32).to_le_bytes(), 9i32.to_le_bytes()].concat(), "i32"),
            (">i8", [(-7i64).to_be_bytes(), 9i64.to_be_bytes()].concat(), "i64"),
            (">i2", [(-7i16).to_be_bytes(), 9i16.to_be_bytes()].concat(), "i16"),
            ("|i1", vec![249, 9], "i8"),
            ("<i2", [(-7i16).to_le_bytes(), 9i16.to_le_bytes()].concat(), "i16"),
            ("<i8", [(-7i64).to_le_bytes(), 9i64.to_le_bytes()].concat(), "i64"),
        ];
        for (descr, data, name) in cases {
            assert_eq!(decode(&two(descr, &data)).unwrap().elements, Elements::Integers(name, vec![-7.0, 9.0]));
        }
        let cases = [("|u1", vec![200, 9], 200.0), ("<u2", vec![0, 200, 9, 0], 51200.0)];
        for (descr, data, first) in cases {
            let Elements::Integers(_, values) = decode(&two(descr, &data)).unwrap().elements else { panic!("{descr}") };
            assert_eq!(values, [first, 9.0]);
        }
        assert_eq!(decode(&two("|b1", &[0, 1])).unwrap().elements, Elements::Bool(vec![false, true]));
    }

    #[test]
    fn types_without_a_name_are_read_as_what_the_caller_says() {
        let bf16s = two("<V2", &[0x80, 0x3F, 0x00, 0xC0]);
        let expected = Elements::Bf16(vec![bf16::ONE, bf16::from_f32(-2.0)]);
        assert_eq!(decode_as(&bf16s, gemm(Some("bf16"))).unwrap().elements, expected);
        let fp8s = two("|V1", &[0x38, 0xC0]);
        assert_eq!(decode_as(&fp8s, gemm(Some("e4m3"))).unwrap().elements, Elements::E4m3(vec![0x38, 0xC0]));
        let message = |bytes: &[u8], opaque| decode_as(bytes, opaque).unwrap_err().to_string();
        for other in [None, Some("f16"), Some("e4m3")] {
            assert!(message(&bf16s, gemm(other)).contains("bf16 of ml_dtypes? give --dtype bf16"));
        }
        assert!(message(&fp8s, gemm(None)).contains("e4m3 of ml_dtypes? give --dtype e4m3"));
        assert!(message(&bf16s, REFUSED).ends_with("bf16 of ml_dtypes? save them as float32"));
        assert!(message(&fp8s, Opaque { dtype: None, offered: &["bf16"] }).ends_with("? save them as float32"));
        assert!(message(&two("|V3", &[0; 6]), gemm(Some("bf16"))).contains("'|V3' are not supported"));
    }

    #[test]
    fn texts_are_read() {
        let text = |header: &str, data: &[u8]| NpyReader::open(&file(header, data)[..], None).unwrap().text();
        let header = "{'descr': '|S4', 'fortran_order': False, 'shape': ()}";
        assert_eq!(text(header, b"dia\0").unwrap(), "dia");
        let header = "{'descr': '<U2', 'fortran_order': False, 'shape': ()}";
        assert_eq!(text(header, b"\xe9\0\0\0x\0\0\0").unwrap(), "\u{e9}x");
        let header = "{'descr': '|S999999999', 'fortran_order': False, 'shape': ()}";
        assert!(matches!(text(header, b"dia"), Err(NpyError::Dtype { .. })));
    }

    #[test]
    fn every_prefix_of_a_file_is_refused() {
        let bytes = encode("<f2", &[2, 3], &bytes_of(&[1.0; 6]));
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err(), "{len} bytes");
            let unsized_file = NpyReader::open(&bytes[..len], None).and_then(|reader| reader.tensor(REFUSED));
            assert!(unsized_file.is_err(), "{len} bytes of a pipe");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(decode(&longer).unwrap_err().to_string().contains("needs 12 bytes of data, the file has 13"));
        let pipe = NpyReader::open(&longer[..], None).unwrap().tensor(REFUSED);
        assert!(pipe.unwrap_err().to_string().contains("the file has more"));
    }

    #[test]
    fn no_more_is_read_than_the_shape_needs() {
        let header = two("<f4", &[]);
        let endless = (&header[..]).chain(io::repeat(1));
        let refused = NpyReader::open(endless, None).unwrap().tensor(REFUSED);
        assert!(refused.unwrap_err().to_string().contains("needs 8 bytes"));
        // A file that says how long it is is refused before a byte of data is read.
        let endless = (&header[..]).chain(io::repeat(1));
        let refused = NpyReader::open(endless, Some(u64::MAX)).unwrap().tensor(REFUSED);
        assert!(matches!(refused, Err(NpyError::Length { expected: 8, .. })));
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
            ("{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", "'<c8'"),
            ("{'descr': '|f4', 'fortran_order': False, 'shape': (1,)}", "'|f4'"),
            ("{'descr': '<', 'fortran_order': False, 'shape': (1,)}", "'<'"),
            ("{'descr': '', 'fortran_order': False, 'shape': (1,)}", "''"),
            ("{'descr': '\u{e9}', 'fortran_order': False, 'shape': (1,)}", "'\u{e9}'"),
            ("{'descr': '<\u{e9}', 'fortran_order': False, 'shape': (1,)}", "'<\u{e9}'"),
        ];
        for (header, reason) in cases {
            let message = decode(&file(header, &[0; 4])).unwrap_err().to_string();
            assert!(message.contains(reason), "{header}: {message}");
        }
        assert!(matches!(decode(b"PK\x03\x04"), Err(NpyError::Magic)));
        assert!(matches!(decode(b"\x93NUMPY\x09\x00\x00\x00"), Err(NpyError::Version(9, 0))));
        let vast = [&MAGIC[..], &[2, 0], &u32::MAX.to_le_bytes()].concat();
        assert!(decode(&vast).unwrap_err().to_string().contains("longer than any"));
    }
}
