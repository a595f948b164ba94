//! Sequences of several lengths in one tensor, one after the other: their checks, and the attention of each.

use std::ops::Range;

use ferrotile::{BatchedSizes, Layout, VarlenSizes};
use ndarray::{Array2, ArrayView4, s};

use crate::files::convert::Converter;
use crate::files::input::{Input, SizesError, listed_shapes};
use crate::files::tensor::{Half, Stored};
use crate::memory::array_bytes;
use crate::problems::attention::{ConvertedInputs, HostAttention, HostTerms, TermFiles, WithOwn, dimensions};
use crate::problems::cu_seqlens::{CuSeqlensError, CuSeqlensFile};
use crate::problems::descale::{Factors, Order};
use crate::problems::error::AttentionError;
use crate::problems::request::Request;

/// Q, K and V of sequences that follow each other, `[rows or keys, heads, head dimension]`, for an O of type `O`.
#[derive(Debug, Clone)]
pub(crate) struct HostVarlen<T, O = T> {
    /// Sizes.
    pub(crate) sizes: VarlenSizes,
    /// Head dimension of V and O.
    pub(crate) value_dim: usize,
    /// Where the rows, and the keys, of each sequence start, and where those of the last one end.
    pub(crate) cu_seqlens: [Vec<usize>; 2],
    /// Elements of Q, K and V.
    pub(crate) inputs: [Vec<T>; 3],
    /// What these elements are multiplied by, where they are of FP8 or u8.
    pub(crate) factors: Factors,
    /// Sinks and bias.
    pub(crate) terms: HostTerms<O>,
}

impl<T: Half, O: Stored> HostVarlen<T, O> {
    /// Checks the tensors and the lengths of rows and keys, and converts elements; also the sequences of the files' own
    /// elements, where they have another type and the converter keeps them.
    pub(crate) fn new(
        inputs: [Input; 3],
        terms: TermFiles,
        [cu_seqlens_q, cu_seqlens_k]: [&CuSeqlensFile; 2],
        converter: &mut Converter,
    ) -> Result<WithOwn<HostVarlen<T, O>, HostVarlen<f64>>, AttentionError> {
        let expected = "the three dimensions [rows of all, heads, head dimension]";
        let [q, k, v] = inputs.each_ref().map(|input| dimensions(input, expected));
        let ([q_total, q_heads, head_dim], k, v) = (q?, k?, v?);
        let ([k_total, kv_heads, _], value_dim) = (k, v[2]);
        let wrong = |reason| SizesError::new(reason, listed_shapes(&inputs));
        for (input, got, expected) in
            [(&inputs[1], k, [k_total, kv_heads, head_dim]), (&inputs[2], v, [k_total, kv_heads, value_dim])]
        {
            if got != expected {
                let (tensor, expected) = (input.origin.clone(), format!("{expected:?}: {}", listed_shapes(&inputs)));
                return Err(AttentionError::Shape { tensor, shape: got.to_vec(), expected });
            }
        }
        let cu_seqlens = [cu_seqlens_q.check("q", q_total)?, cu_seqlens_k.check("k", k_total)?];
        let [batch, of_keys] = cu_seqlens.each_ref().map(|ends| ends.len() - 1);
        if batch != of_keys {
            return Err(CuSeqlensError::Count { q: batch, k: of_keys }.into());
        }
        let longest = |ends: &[usize]| ends.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or(0);
        let [max_q_len, max_k_len] = cu_seqlens.each_ref().map(|ends| longest(ends));
        let sizes = VarlenSizes { batch, q_heads, kv_heads, q_total, k_total, max_q_len, max_k_len, head_dim };
        sizes.check().map_err(wrong)?;
        for shape in [[q_total, q_heads, head_dim], k, v] {
            array_bytes::<f64>(&shape).map_err(wrong)?;
        }
        let [of_rows, of_keys] = cu_seqlens.each_ref().map(|starts| Order::Sequences(starts));
        let inputs = (inputs, [of_rows, of_keys, of_keys]);
        let (given, own) = ConvertedInputs::<T, O>::new(inputs, terms, &sizes.longest(), converter)?.split();
        let own = own.map(|(inputs, factors, terms)| {
            let cu_seqlens = cu_seqlens.clone();
            HostVarlen { sizes, value_dim, cu_seqlens, inputs, factors, terms }
        });
        let (inputs, factors, terms) = given;
        Ok((HostVarlen { sizes, value_dim, cu_seqlens, inputs, factors, terms }, own))
    }
}

impl<T: Copy, O: Copy> HostVarlen<T, O> {
    /// The request for the tensors of these sequences.
    pub(crate) fn request(&self, request: &Request) -> Request {
        request.clone().of_tensors(self.terms.bias.is_some(), self.value_dim)
    }

    /// Each sequence's rows, and the sequence as a problem of its own.
    pub(crate) fn each(&self) -> impl Iterator<Item = (Range<usize>, HostAttention<T, O>)> + '_ {
        let [rows, keys] = self.cu_seqlens.each_ref().map(|ends| ends.windows(2).map(|ends| ends[0]..ends[1]));
        rows.zip(keys).enumerate().map(|(index, (rows, keys))| (rows.clone(), self.sequence(index, rows, keys)))
    }

    fn sequence(&self, index: usize, rows: Range<usize>, keys: Range<usize>) -> HostAttention<T, O> {
        let VarlenSizes { q_heads, kv_heads, head_dim, .. } = self.sizes;
        let (q_len, k_len) = (rows.len(), keys.len());
        let part = |values: &[T], row_elems: usize, rows: &Range<usize>| {
            values[rows.start * row_elems..rows.end * row_elems].to_vec()
        };
        let bias = self.terms.bias.as_ref().map(|(values, shape)| {
            let bias = ArrayView4::from_shape(*shape, values).expect("the elements fill the shape");
            let entry = if shape[0] == 1 { 0 } else { index };
            let values = bias.slice(s![entry, .., ..q_len, ..k_len]).iter().copied().collect();
            (values, [1, shape[1], q_len, k_len])
        });
        let [q, k, v] = &self.inputs;
        HostAttention {
            layout: Layout::Bshd,
            sizes: BatchedSizes { batch: 1, q_heads, kv_heads, q_len, k_len, head_dim },
            value_dim: self.value_dim,
            q: part(q, q_heads * head_dim, &rows),
            k: part(k, kv_heads * head_dim, &keys),
            v: part(v, kv_heads * self.value_dim, &keys),
            factors: self.factors.each_ref().map(|factors| factors.as_ref().map(|factors| of_entry(factors, index))),
            terms: HostTerms { sink: self.terms.sink.clone(), bias },
        }
    }
}

/// The factors of a batch entry.
fn of_entry(factors: &Array2<f32>, entry: usize) -> Array2<f32> {
    let entry = if factors.dim().0 == 1 { 0 } else { entry };
    factors.slice(s![entry..=entry, ..]).to_owned()
}
