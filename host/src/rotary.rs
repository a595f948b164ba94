//! Rotary embedding of Q and K, and append of K and V to a KV cache, in one launch.

use std::fmt;

use layout::{Arch, Dtype};
use variants::rotary::{CHUNK, ROTARY, RotaryArgs, RotaryKernel, RotaryRows, table_type, units};

use crate::attention::Layout;
use crate::backend::LaunchConfig;
use crate::checks::{
    argument, has_element_type, has_shape, has_type, rows_aligned, rows_aligned_to, same_device, same_devices,
};
use crate::element::ElementType;
use crate::error::Result;
use crate::runtime::gpu::Gpu;
use crate::runtime::module::Kernel;
use crate::runtime::param::KernelParam;
use crate::runtime::raw_tensor::RawTensor;
use crate::runtime::stream::StreamRef;

pub(crate) mod frequencies;
pub(crate) mod tensors;

use tensors::{RawRotaryCache, RawRotaryTensors, RotaryTensors};

const OP: &str = "rotary";

// SAFETY: plain `repr(C)` data without padding.
unsafe impl KernelParam for RotaryArgs {}

/// The loaded kernel for inputs and a cache of some types, for repeated calls and for captures, in which kernels are
/// not loaded.
///
/// ```
/// use ferrotile::{Arch, Dtype, Gpu, RotaryPlan};
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let plan = RotaryPlan::new(&gpu, Dtype::Bf16, Dtype::E4M3)?;
/// assert_eq!(plan.to_string(), "rotary_bf16_e4m3");
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a plan computes nothing until it is run"]
pub struct RotaryPlan {
    chosen: RotaryKernel,
    kernel: Kernel,
}

impl RotaryPlan {
    /// Loads the kernel for Q, K and V of type `dtype`, f16 or bf16, and a cache of that type or of E4M3. Calls
    /// without a cache take `cache_dtype == dtype`.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for other types, and those of loading a module.
    pub fn new(gpu: &Gpu, dtype: Dtype, cache_dtype: Dtype) -> Result<Self> {
        if !matches!(dtype, Dtype::F16 | Dtype::Bf16) {
            return Err(argument(OP, "element type", dtype, "f16 or bf16"));
        }
        let serves = |kernel: &RotaryKernel| (kernel.dtype, kernel.cache_dtype) == (dtype, cache_dtype);
        let Some(chosen) = ROTARY.into_iter().find(serves) else {
            return Err(argument(OP, "element type of the cache", cache_dtype, format!("{dtype} or e4m3")));
        };
        Ok(Self { chosen, kernel: gpu.kernel(OP, chosen.name)? })
    }

    /// Rotates and appends on `stream`, and returns before it is done; see [`rotary`].
    ///
    /// # Errors
    /// Those of [`rotary`], and [`Error::Argument`](crate::Error::Argument) for other element types than the plan's.
    pub fn run<'s>(&self, stream: impl Into<StreamRef<'s>>, tensors: RotaryTensors<'_>) -> Result<()> {
        // SAFETY: the views borrow tensors whose owners keep the memory until the stream has done the work, and no two
        // indices of a view that is written to are the same element.
        unsafe { self.run_raw(stream, &tensors.raw) }
    }

    /// As [`RotaryPlan::run`], for tensors whose types the compiler does not know: for bindings, and for Q and K that
    /// are rotated in place in the memory of a fused projection, which no borrows of Rust divide.
    ///
    /// # Safety
    /// As [`AttentionPlan::run_raw`](crate::AttentionPlan::run_raw). What is written is nothing else of what is read or
    /// written, but for a tensor that is rotated in place.
    ///
    /// # Errors
    /// Those of [`RotaryPlan::run`].
    pub unsafe fn run_raw<'s>(&self, stream: impl Into<StreamRef<'s>>, tensors: &RawRotaryTensors) -> Result<()> {
        let stream = stream.into();
        same_device("plan", self.kernel.ordinal(), stream.ordinal())?;
        let args = arguments(self.chosen, tensors, stream.ordinal())?;
        let threads = u64::from(args.tokens) * u64::from(args.token_units);
        if threads == 0 {
            return Ok(());
        }
        let blocks = threads.div_ceil(RotaryKernel::THREADS.into()) as u32;
        let overlaps = stream.gpu().arch() >= Arch::Sm90a;
        let config = LaunchConfig { overlaps, ..LaunchConfig::of_blocks(blocks, RotaryKernel::THREADS) };
        // SAFETY: the launch is the kernel's; the caller's promise is for the rest.
        unsafe { self.kernel.launch(stream, &config, &[&args]) }
    }
}

impl fmt::Display for RotaryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.chosen.fmt(f)
    }
}

/// The names of tensors in errors, Q, K and V.
const NAMES: [&str; 3] = ["Q", "K", "V"];
const OUT_NAMES: [&str; 2] = ["the rotated Q", "the rotated K"];
const CACHE_NAMES: [&str; 2] = ["the cache of K", "the cache of V"];
const TABLE_NAMES: [&str; 2] = ["rotary_cos", "rotary_sin"];
const DESCALE_NAMES: [&str; 2] = ["the descale factors of K", "the descale factors of V"];

/// The argument of the kernel, after a check that the tensors fit together and are on device `ordinal`.
fn arguments(kernel: RotaryKernel, tensors: &RawRotaryTensors, ordinal: u32) -> Result<RotaryArgs> {
    let RawRotaryTensors { layout, q, q_out, k, k_out, v, tables, cu_seqlens, .. } = tensors;
    on_device(tensors, ordinal)?;
    let [q, k, v] = [(q, 0), (k, 1), (v, 2)].map(|(x, index)| x.as_ref().map(|x| (NAMES[index], x)));
    let Some((_, first)) = q.or(k).or(v) else {
        return Err(argument(OP, "tensors", "none", "Q, K or V"));
    };
    let [batch, _, rows, _] = dimensions(first, *layout)?;
    for (name, x) in [q, k, v].into_iter().flatten() {
        has_type(OP, name, x.element_type(), kernel.dtype)?;
        let [_, heads, _, columns] = dimensions(x, *layout)?;
        has_shape(OP, name, x.shape(), &layout.reorder([batch, heads, rows, columns]))?;
    }
    let members = match cu_seqlens {
        None => batch,
        Some(starts) => {
            has_vector("cu_seqlens", starts)?;
            if batch != 1 || starts.dim(0) == 0 {
                let got = format!("batch {batch} and {} starts", starts.dim(0));
                return Err(argument(OP, "cu_seqlens", got, "batch 1 and one start more than members"));
            }
            starts.dim(0) - 1
        }
    };
    let mut args =
        RotaryArgs { q: rows_of(q, *layout)?, k: rows_of(k, *layout)?, v: rows_of(v, *layout)?, ..table(tables)? };
    for ((x, out), (rows, name)) in
        [(q, q_out), (k, k_out)].into_iter().zip([&mut args.q, &mut args.k].into_iter().zip(OUT_NAMES))
    {
        add_out(rows, x, out.as_ref(), *layout, name)?;
        if x.is_some() && rows.columns < args.rotary_dim {
            let expected = format!("at most the head dimension {}", rows.columns);
            return Err(argument(OP, "rotary dimension", args.rotary_dim, expected));
        }
    }
    if tables.is_none()
        && let Some(out) = OUT_NAMES.into_iter().zip([q_out, k_out]).find_map(|(name, out)| out.map(|_| name))
    {
        return Err(argument(OP, out, "no tables", "rotary_cos and rotary_sin"));
    }
    add_cache(&mut args, kernel, tensors, [k, v], members)?;
    add_numbers(&mut args, tensors, [batch, rows], members)?;
    args.interleaved = u32::from(tensors.interleaved);
    let (rotary_dim, columns) = (args.rotary_dim as usize, |rows: &RotaryRows| rows.columns as usize);
    let rotated = [&args.q, &args.k].into_iter().filter(|rows| rows.heads > 0);
    let of_rotated = rotated.map(|rows| units(columns(rows), rotary_dim)).max().unwrap_or(0);
    let of_row = of_rotated.max(units(columns(&args.v), 0));
    let heads = [&args.q, &args.k, &args.v].map(|rows| u64::from(rows.heads)).iter().sum::<u64>();
    let of_token = u32::try_from(heads.saturating_mul(of_row as u64));
    let tokens = batch.checked_mul(rows).and_then(|tokens| u32::try_from(tokens).ok());
    let threads =
        of_token.ok().zip(tokens).filter(|&(units, tokens)| u64::from(units) * u64::from(tokens) <= i32::MAX as u64);
    let Some((of_token, tokens)) = threads else {
        let got = format!("{batch} x {rows} rows of {heads} heads of {of_row} units");
        return Err(argument(OP, "elements", got, "fewer than 2^31 units of 16 elements in all"));
    };
    (args.tokens, args.rows, args.members) = (tokens, rows as u32, size("members", members)?);
    (args.units, args.token_units) = (of_row as u32, of_token);
    Ok(args)
}

/// Whether all tensors are on the device of the stream.
fn on_device(tensors: &RawRotaryTensors, ordinal: u32) -> Result<()> {
    let RawRotaryTensors {
        q, q_out, k, k_out, v, tables, positions, cu_seqlens, cache, cache_seqlens, descales, ..
    } = tensors;
    let of_inputs = NAMES.into_iter().zip([q, k, v]).chain(OUT_NAMES.into_iter().zip([q_out, k_out]));
    let of_numbers = [("positions", positions), ("cu_seqlens", cu_seqlens), ("cache_seqlens", cache_seqlens)];
    let of_factors = DESCALE_NAMES.into_iter().zip(descales);
    let optional = of_inputs.chain(of_numbers).chain(of_factors).map(|(name, tensor)| (name, tensor.as_ref()));
    let of_tables = TABLE_NAMES.into_iter().zip(tables.iter().flatten().map(Some));
    let (caches, table) = match cache {
        None => (None, None),
        Some(RawRotaryCache::Contiguous(caches, _)) => (Some(caches), None),
        Some(RawRotaryCache::Paged(caches, table)) => (Some(caches), Some(table)),
    };
    let of_cache = CACHE_NAMES.into_iter().zip(caches.into_iter().flatten().map(Some));
    same_devices(optional.chain(of_tables).chain(of_cache).chain([("the block table", table)]), ordinal)
}

/// A size that kernels take.
fn size(name: &'static str, size: usize) -> Result<u32> {
    match i32::try_from(size) {
        Ok(size) => Ok(size as u32),
        Err(_) => Err(argument(OP, name, size, "fewer than 2^31")),
    }
}

/// Batch, heads, rows and columns.
fn dimensions(x: &RawTensor, layout: Layout) -> Result<[usize; 4]> {
    match *x.shape() {
        [first, second, third, last] => Ok(layout.reorder([first, second, third, last])),
        _ => Err(argument(OP, "dimensions", x.shape().len(), "4")),
    }
}

/// Elements from one batch entry, head and row to the next.
fn strides(x: &RawTensor, layout: Layout) -> [i64; 3] {
    let [batch, head, row, _] = layout.reorder(std::array::from_fn(|dim| x.step(dim)));
    [batch, head, row]
}

/// Whether a tensor is one dimension of i32.
fn has_vector(name: &'static str, numbers: &RawTensor) -> Result<()> {
    has_element_type(OP, name, numbers, ElementType::I32)?;
    match numbers.shape() {
        [_] => Ok(()),
        shape => Err(argument(OP, name, format!("{} dimensions", shape.len()), "1")),
    }
}

/// The argument with the tables alone.
fn table(tables: &Option<[RawTensor; 2]>) -> Result<RotaryArgs> {
    let Some([cos, sin]) = tables else { return Ok(RotaryArgs::default()) };
    let &[positions, half] = cos.shape() else {
        return Err(argument(OP, "rotary_cos", format!("{} dimensions", cos.shape().len()), "2"));
    };
    let Some(kind) = cos.element_type().dtype().and_then(table_type) else {
        return Err(argument(OP, "rotary_cos", format!("a tensor of {}", cos.element_type()), "f32, f16 or bf16"));
    };
    has_element_type(OP, "rotary_sin", sin, cos.element_type())?;
    has_shape(OP, "rotary_sin", sin.shape(), cos.shape())?;
    Ok(RotaryArgs {
        tables: [cos.as_raw(), sin.as_raw()],
        table_strides: [cos.step(0), sin.step(0)],
        table_len: size("positions of the tables", positions)?,
        rotary_dim: size("rotary dimension", half.saturating_mul(2))?,
        table_type: kind,
        table_aligned: u32::from(rows_aligned(cos) && rows_aligned(sin)),
        ..RotaryArgs::default()
    })
}

/// Q, K or V as kernels take it.
fn rows_of(x: Option<(&'static str, &RawTensor)>, layout: Layout) -> Result<RotaryRows> {
    let Some((name, x)) = x else { return Ok(RotaryRows::default()) };
    let [_, heads, _, columns] = dimensions(x, layout)?;
    Ok(RotaryRows {
        x: x.as_raw(),
        x_strides: strides(x, layout),
        heads: size(name, heads)?,
        columns: size(name, columns)?,
        aligned: [u32::from(rows_aligned(x)), 0, 0],
        ..RotaryRows::default()
    })
}

/// Adds where rotated rows go.
fn add_out(
    rows: &mut RotaryRows,
    x: Option<(&'static str, &RawTensor)>,
    out: Option<&RawTensor>,
    layout: Layout,
    name: &'static str,
) -> Result<()> {
    let Some(out) = out else {
        return match x {
            Some((of @ "Q", _)) => Err(argument(OP, name, "none", format!("a tensor for {of}"))),
            _ => Ok(()),
        };
    };
    let Some((_, x)) = x else { return Err(argument(OP, name, "a tensor", "its input too")) };
    has_element_type(OP, name, out, x.element_type())?;
    has_shape(OP, name, out.shape(), x.shape())?;
    (rows.out, rows.out_strides) = (out.as_raw(), strides(out, layout));
    rows.aligned[1] = u32::from(rows_aligned(out));
    Ok(())
}

/// Adds the cache of K and V, its block table and its factors.
fn add_cache(
    args: &mut RotaryArgs,
    kernel: RotaryKernel,
    tensors: &RawRotaryTensors,
    inputs: [Option<(&'static str, &RawTensor)>; 2],
    members: usize,
) -> Result<()> {
    let Some(cache) = &tensors.cache else {
        return match inputs {
            [Some(_), _] if tensors.k_out.is_none() => Err(argument(OP, "K", "nowhere to go", "an output or a cache")),
            [_, Some(_)] => Err(argument(OP, "V", "nowhere to go", "a cache")),
            _ if tensors.descales.iter().any(Option::is_some) => {
                Err(argument(OP, "descale factors", "no cache", "a cache of e4m3"))
            }
            _ => Ok(()),
        };
    };
    let (caches, cache_layout) = match cache {
        RawRotaryCache::Contiguous(caches, layout) => (caches, *layout),
        // `[page, row, head, column]`.
        RawRotaryCache::Paged(caches, _) => (caches, Layout::Bshd),
    };
    let of_k = dimensions(&caches[0], cache_layout)?;
    let [pages, _, page_len, _] = of_k;
    for (index, rows) in [&mut args.k, &mut args.v].into_iter().enumerate() {
        let (name, cache) = (CACHE_NAMES[index], &caches[index]);
        if inputs[index].is_none() {
            return Err(argument(OP, NAMES[index + 1], "none", "a tensor, as there is a cache"));
        }
        has_type(OP, name, cache.element_type(), kernel.cache_dtype)?;
        let (heads, columns) = (rows.heads as usize, rows.columns as usize);
        let entries = if matches!(tensors.cache, Some(RawRotaryCache::Paged(..))) { pages } else { members };
        let of_cache = [entries, heads, page_len, columns];
        has_shape(OP, name, cache.shape(), &cache_layout.reorder(of_cache))?;
        (rows.cache, rows.cache_strides) = (cache.as_raw(), strides(cache, cache_layout));
        rows.aligned[2] = u32::from(rows_aligned_to(cache, CHUNK * cache.element_type().size_bytes()));
        if let Some(factors) = &tensors.descales[index] {
            let name = DESCALE_NAMES[index];
            if kernel.cache_dtype != Dtype::E4M3 {
                return Err(argument(OP, name, format!("a cache of {}", kernel.cache_dtype), "a cache of e4m3"));
            }
            has_element_type(OP, name, factors, ElementType::F32)?;
            let one_or = |dim: usize, of: usize| if factors.shape().get(dim) == Some(&1) { 1 } else { of };
            has_shape(OP, name, factors.shape(), &[one_or(0, members), one_or(1, heads)])?;
            (rows.descale, rows.descale_strides) = (factors.as_raw(), [factors.step(0), factors.step(1)]);
        }
    }
    (args.page_len, args.pages, args.member_pages) = (size("capacity", page_len)?, size("pages", pages)?, 1);
    if let RawRotaryCache::Paged(_, table) = cache {
        has_element_type(OP, "the block table", table, ElementType::I32)?;
        let table_len = table.shape().get(1).copied().unwrap_or(0);
        has_shape(OP, "the block table", table.shape(), &[members, table_len])?;
        if page_len == 0 {
            return Err(argument(OP, "page_len", 0, "at least 1"));
        }
        (args.block_table, args.block_table_stride) = (table.as_raw(), table.step(0));
        args.member_pages = size("table_len", table_len)?;
    }
    Ok(())
}

/// Adds the numbers of the call on the card.
fn add_numbers(
    args: &mut RotaryArgs,
    tensors: &RawRotaryTensors,
    [batch, rows]: [usize; 2],
    members: usize,
) -> Result<()> {
    args.cu_seqlens = tensors.cu_seqlens.as_ref().map_or(0, RawTensor::as_raw);
    if let Some(seqlens) = &tensors.cache_seqlens {
        has_vector("cache_seqlens", seqlens)?;
        has_shape(OP, "cache_seqlens", seqlens.shape(), &[members])?;
        args.cache_seqlens = seqlens.as_raw();
    }
    args.position_words = 1;
    if let Some(positions) = &tensors.positions {
        match positions.element_type() {
            ElementType::I32 => {}
            ElementType::I64 => args.position_words = 2,
            other => return Err(argument(OP, "positions", format!("a tensor of {other}"), "i32 or i64")),
        }
        has_shape(OP, "positions", positions.shape(), &[batch, rows])?;
        (args.positions, args.position_stride) = (positions.as_raw(), positions.step(0));
    }
    Ok(())
}

/// Rotates Q and K by their positions and appends K and V to a cache, on `stream`, and returns before it is done: what
/// `rotary_embedding` and `reshape_and_cache` of vLLM do, in one launch.
///
/// With the position p of a row, pair i of its first `rotary_dim` columns becomes
/// `(a cos[p][i] - b sin[p][i], a sin[p][i] + b cos[p][i])`, in f32, rounded once to the type that it goes to. Other
/// columns, and V, are copied. [`RotaryTensors`] says what each tensor is. What is not given is left out: without
/// tables nothing is rotated, without a cache nothing is appended.
///
/// An element of a cache of E4M3 is divided by its factor and rounded as [`quantize`](crate::quantize()) does. A
/// rotated K is not rounded to its own type before that.
///
/// The caller raises `cache_seqlens` after the call: decoding wants the old number in every layer, as the caches of all
/// layers have one length. Numbers on the card are read by the kernel, so they may change between replays of a graph.
/// Those that do not describe rows reach no other memory:
///
/// - A row beyond the capacity of the cache, one of a `cache_seqlens` below 0, and one whose entry of the block table
///   names no page (-1, for example) is not appended. It is rotated all the same.
/// - A position that the tables do not have makes NaN of the rotated columns, in the cache too (as
///   [`paged_attention`](crate::paged_attention()) does for pages that are not there).
/// - A row of no member is left out.
///
/// Members of which two share a page row at the same place of it leave either row there.
///
/// One step of decoding: rotate, append, attend.
///
/// ```
/// use ferrotile::{
///     Arch, AttentionOptions, AttentionParams, Buffer, Gpu, Layout, PagedTensors, RotaryFrequencies, RotaryScaling,
///     RotaryTensors, TensorMut, TensorRef, paged_attention, rotary,
/// };
/// use half::f16;
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let stream = gpu.new_stream()?;
/// let frequencies = RotaryFrequencies { base: 10_000.0, rotary_dim: 64, scaling: RotaryScaling::None };
/// let (cos, sin) = frequencies.table(0..64)?;
/// let (cos, sin) = (Buffer::upload_blocking(&stream, &cos)?, Buffer::upload_blocking(&stream, &sin)?);
///
/// // The projection of one token: two heads of Q, one of K, one of V.
/// let qkv = Buffer::upload_blocking(&stream, &[f16::ONE; 4 * 64])?;
/// let of_heads = |first: usize, heads| TensorRef::strided(&qkv, first * 64, [1, 1, heads, 64], [256, 256, 64, 1]);
/// let mut q = Buffer::<f16>::zeroed(&gpu, 2 * 64)?;
///
/// // Three pages of 16 rows; the member has two of them, and 20 rows so far.
/// let mut pages = [Buffer::<f16>::zeroed(&gpu, 3 * 16 * 64)?, Buffer::<f16>::zeroed(&gpu, 3 * 16 * 64)?];
/// let table = Buffer::upload_blocking(&stream, &[2, 0])?;
/// let (before, after) = (Buffer::upload_blocking(&stream, &[20])?, Buffer::upload_blocking(&stream, &[21])?);
/// let block_table = TensorRef::contiguous(&table, [1, 2])?;
///
/// let [k_pages, v_pages] = &mut pages;
/// let tensors = RotaryTensors::new(Layout::Bshd)
///     .q_to(of_heads(0, 2)?, TensorMut::contiguous(&mut q, [1, 1, 2, 64])?)
///     .k(of_heads(2, 1)?)
///     .v(of_heads(3, 1)?)
///     .rotary(TensorRef::contiguous(&cos, [64, 32])?, TensorRef::contiguous(&sin, [64, 32])?)
///     .cache_seqlens(TensorRef::contiguous(&before, [1])?)
///     .paged_cache(
///         [TensorMut::contiguous(k_pages, [3, 16, 1, 64])?, TensorMut::contiguous(v_pages, [3, 16, 1, 64])?],
///         block_table,
///     );
/// rotary(&stream, tensors)?;
///
/// let mut out = Buffer::<f16>::zeroed(&gpu, 2 * 64)?;
/// let [k_pages, v_pages] = &pages;
/// let tensors = PagedTensors::new(
///     TensorRef::contiguous(&q, [1, 1, 2, 64])?,
///     [TensorRef::contiguous(k_pages, [3, 16, 1, 64])?, TensorRef::contiguous(v_pages, [3, 16, 1, 64])?],
///     block_table,
///     TensorRef::contiguous(&after, [1])?,
///     TensorMut::contiguous(&mut out, [1, 1, 2, 64])?,
/// );
/// paged_attention(&stream, tensors, &AttentionParams::new(Layout::Bshd), &AttentionOptions::default())?;
/// // Position 20 is row 4 of page 0.
/// assert_eq!(pages[1].download_blocking(&stream)?[4 * 64..][..64], [f16::ONE; 64]);
/// # Ok::<(), ferrotile::Error>(())
/// ```
///
/// The first call loads a kernel; [`RotaryPlan`] does so ahead of time.
///
/// # Errors
/// [`Error::Shape`], [`Error::Argument`] or [`Error::WrongDevice`] for tensors that do not fit, with the name of the
/// tensor, and [`Error::ForeignCapture`], before anything is enqueued; those of loading a module; [`Error::Driver`]
/// where the driver refuses a launch.
///
/// [`Error::Shape`]: crate::Error::Shape
/// [`Error::Argument`]: crate::Error::Argument
/// [`Error::WrongDevice`]: crate::Error::WrongDevice
/// [`Error::ForeignCapture`]: crate::Error::ForeignCapture
/// [`Error::Driver`]: crate::Error::Driver
pub fn rotary<'s>(stream: impl Into<StreamRef<'s>>, tensors: RotaryTensors<'_>) -> Result<()> {
    let stream = stream.into();
    let RawRotaryTensors { q, k, v, cache, .. } = &tensors.raw;
    let Some(first) = q.or(*k).or(*v) else {
        return Err(argument(OP, "tensors", "none", "Q, K or V"));
    };
    let of_cache = match cache {
        None => &first,
        Some(RawRotaryCache::Contiguous([k, _], _) | RawRotaryCache::Paged([k, _], _)) => k,
    };
    let dtype = |name, x: &RawTensor| {
        x.element_type().dtype().ok_or_else(|| argument(OP, name, x.element_type(), "f16 or bf16"))
    };
    let [of_inputs, of_cache] = [dtype("element type", &first)?, dtype("the cache of K", of_cache)?];
    RotaryPlan::new(stream.gpu(), of_inputs, of_cache)?.run(stream, tensors)
}
