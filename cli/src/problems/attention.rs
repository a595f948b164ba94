//! An attention problem in host memory, checked, and its solution on the CPU.

use ferrotile::reference::{AttentionTerms, AttentionTypes};
use ferrotile::tolerance::Fp8Terms;
use ferrotile::{AttentionParams, BatchedSizes, Dtype, Layout, reference, tolerance};
use ndarray::{Array1, Array3, Array4, ArrayView4};

use crate::files::convert::{Converted, Converter, in_range, leaves_range};
use crate::files::input::{Input, SizesError, listed_shapes};
use crate::files::tensor::{Half, Number, Stored};
use crate::memory::array_bytes;
use crate::problems::bias;
use crate::problems::descale::{FactorSource, Factors, Order, factor_of};
use crate::problems::error::AttentionError;
use crate::problems::request::Request;
use crate::problems::verdict::{Verdict, Verdicts, finite_error};

/// A tensor `[batch, head, row, column]`.
type BhsdView<'a> = ArrayView4<'a, f64>;

/// Q, K and V with the shapes that attention takes, for an O of type `O`.
#[derive(Debug, Clone)]
pub(crate) struct HostAttention<T, O = T> {
    /// How the dimensions are ordered.
    pub(crate) layout: Layout,
    /// Sizes.
    pub(crate) sizes: BatchedSizes,
    /// Head dimension of V and O.
    pub(crate) value_dim: usize,
    /// Elements of Q.
    pub(crate) q: Vec<T>,
    /// Elements of K.
    pub(crate) k: Vec<T>,
    /// Elements of V.
    pub(crate) v: Vec<T>,
    /// What these elements are multiplied by, where they are of FP8 or u8.
    pub(crate) factors: Factors,
    /// Sinks and bias.
    pub(crate) terms: HostTerms<O>,
}

/// The optional tensors of a problem with an O of type `O`.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostTerms<O> {
    /// The sinks `[q_heads]`; kernels read the nearest f32.
    pub(crate) sink: Option<Vec<f64>>,
    /// The bias and its shape.
    pub(crate) bias: Option<(Vec<O>, [usize; 4])>,
}

/// The files of the optional tensors.
#[derive(Debug, Default)]
pub(crate) struct TermFiles {
    /// The factors of Q, K and V.
    pub(crate) factors: FactorSource,
    /// The sinks.
    pub(crate) sink: Option<Input>,
    /// The bias.
    pub(crate) bias: Option<Input>,
}

/// The tensors of a problem, converted to the types of a kernel.
#[derive(Debug)]
pub(crate) struct ConvertedInputs<T, O> {
    q_k_v: [Converted<T>; 3],
    factors: Factors,
    sink: Option<Converted<f32>>,
    bias: Option<(Converted<O>, [usize; 4])>,
    /// Whether a file's own elements have another type and are kept.
    has_own: bool,
}

impl<T: Half, O: Stored> ConvertedInputs<T, O> {
    /// Checks sinks, bias and factors against the sizes, and converts all.
    pub(crate) fn new(
        (inputs, orders): ([Input; 3], [Order<'_>; 3]),
        terms: TermFiles,
        sizes: &BatchedSizes,
        converter: &mut Converter,
    ) -> Result<ConvertedInputs<T, O>, AttentionError> {
        let q_heads = sizes.q_heads;
        if let Some(sink) = terms.sink.as_ref().filter(|sink| sink.tensor.shape != [q_heads]) {
            let (tensor, shape) = (sink.origin.clone(), sink.tensor.shape.clone());
            return Err(AttentionError::Shape {
                tensor,
                shape,
                expected: format!("[{q_heads}], a number for each head"),
            });
        }
        let (mut q_k_v, factors) = terms.factors.convert::<T>(inputs, orders, sizes, converter)?;
        let sink = terms.sink.map(|sink| converter.convert(sink));
        let bias = terms.bias.map(|bias| bias::convert(bias, sizes, converter)).transpose()?;
        let has_own = q_k_v.iter().any(|tensor| tensor.own.is_some())
            || bias.as_ref().is_some_and(|(bias, _): &(Converted<O>, _)| bias.own.is_some())
            || sink.as_ref().is_some_and(|sink| sink.own.is_some());
        if has_own {
            // What elements of FP8 stand for is beside what the files of the others have.
            for (index, heads) in [q_heads, sizes.kv_heads, sizes.kv_heads].into_iter().enumerate() {
                let (Converted { shape, values, own }, order) = (&mut q_k_v[index], orders[index]);
                if let (Some(factors), None) = (&factors[index], &own) {
                    let factor = |flat: usize| factor_of(factors, order.place(flat, shape), heads);
                    *own = Some(values.iter().enumerate().map(|(flat, &x)| x.number() * factor(flat)).collect());
                }
            }
        }
        Ok(ConvertedInputs { q_k_v, factors, sink, bias, has_own })
    }

    /// Q, K, V and terms as kernels read them; and the files' own elements, where some have another type and somebody
    /// asked for them.
    pub(crate) fn split(self) -> (HostTensors<T, O>, Option<HostTensors<f64>>) {
        let ConvertedInputs { q_k_v, factors, sink, bias, has_own } = self;
        let own = has_own.then(|| {
            let bias = bias.as_ref().map(|(bias, shape)| (bias.clone().into_own(), *shape));
            let sink = sink.clone().map(Converted::into_own);
            (q_k_v.clone().map(Converted::into_own), Factors::default(), HostTerms { sink, bias })
        });
        let sink = sink.map(|sink| sink.values.into_iter().map(f64::from).collect());
        let bias = bias.map(|(bias, shape)| (bias.values, shape));
        ((q_k_v.map(|tensor| tensor.values), factors, HostTerms { sink, bias }), own)
    }
}

/// Q, K and V, their factors, and what is beside them. The files' own elements have no factors.
pub(crate) type HostTensors<T, O = T> = ([Vec<T>; 3], Factors, HostTerms<O>);

/// A task, and that of the files' own elements, where they have another type and somebody asked for them.
pub(crate) type WithOwn<P, Own> = (P, Option<Own>);

/// O and LSE.
#[derive(Debug, Clone)]
pub(crate) struct Solution<T> {
    /// Elements of O, in the problem's layout.
    pub(crate) out: Vec<T>,
    /// The log-sum-exp `[batch, q_heads, q_len]`.
    pub(crate) lse: Vec<f32>,
}

/// The type that elements of Q, K and V are converted to, or that they have.
pub(crate) fn element_type(inputs: &[Input; 3], wanted: Option<Dtype>) -> Result<Dtype, AttentionError> {
    if let Some(dtype) = wanted {
        return Ok(dtype);
    }
    let types = inputs.each_ref().map(|input| input.tensor.elements.dtype_name());
    let listed = || {
        let one = |input: &Input| format!("{} has {}", input.origin, input.tensor.elements.dtype_name());
        inputs.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    match types {
        ["f16", "f16", "f16"] => Ok(Dtype::F16),
        ["bf16", "bf16", "bf16"] => Ok(Dtype::Bf16),
        ["e4m3", "e4m3", "e4m3"] => Ok(Dtype::E4M3),
        ["u8", "u8", "u8"] => Ok(Dtype::U8),
        [q, k, v] if q == k && k == v => Err(AttentionError::NeedsDtype(listed())),
        _ => Err(AttentionError::MixedTypes(listed())),
    }
}

/// The sizes of the problem that tensors of these shapes make, and the head dimension of V.
fn sizes(inputs: &[Input; 3], layout: Layout) -> Result<(BatchedSizes, usize), AttentionError> {
    let expected = match layout {
        Layout::Bhsd => "the four dimensions [batch, heads, rows, head dimension]",
        Layout::Bshd => "the four dimensions [batch, rows, heads, head dimension]",
    };
    let [q, k, v] = inputs.each_ref().map(|input| dimensions(input, expected));
    let (q, k, v) = (q?, k?, v?);
    let wrong = |reason| SizesError::new(reason, listed_shapes(inputs));
    let sizes = BatchedSizes::of_shapes(q, k, v, layout).map_err(wrong)?;
    sizes.check().map_err(wrong)?;
    for shape in [q, k, v] {
        array_bytes::<f64>(&shape).map_err(wrong)?;
    }
    Ok((sizes, v[3]))
}

/// A note on tensors that are more likely `[batch, rows, heads, head dimension]` than the default layout: in the latter
/// they have more heads than rows and more heads than keys, and the former is a valid problem too.
pub(crate) fn looks_like_bshd(inputs: &[Input; 3]) -> Option<String> {
    let [q, k, v] = inputs.each_ref().map(|input| input.tensor.shape.as_slice().try_into().ok());
    let (q, k, v): ([usize; 4], _, _) = (q?, k?, v?);
    let [bhsd, bshd] = [Layout::Bhsd, Layout::Bshd].map(|layout| BatchedSizes::of_shapes(q, k, v, layout));
    let (BatchedSizes { q_heads, kv_heads, q_len, k_len, .. }, other) = (bhsd.ok()?, bshd.ok()?);
    let is_odd = q_heads > q_len && kv_heads > k_len && q_len * k_len > 0 && other.check().is_ok();
    is_odd
        .then(|| format!("{q_heads} heads of {q_len} rows each: if Q is [batch, rows, heads, ..], give --layout bshd"))
}

/// The shape of a tensor that must have so many dimensions: those of `expected`.
pub(crate) fn dimensions<const RANK: usize>(input: &Input, expected: &str) -> Result<[usize; RANK], AttentionError> {
    let Input { origin, tensor } = input;
    tensor.shape.as_slice().try_into().map_err(|_| AttentionError::Shape {
        tensor: origin.clone(),
        shape: tensor.shape.clone(),
        expected: expected.to_owned(),
    })
}

impl<T: Half, O: Stored> HostAttention<T, O> {
    /// Checks the tensors of files and converts their elements; also the problem of the files' own elements, where they
    /// have another type and the converter keeps them.
    pub(crate) fn new(
        inputs: [Input; 3],
        terms: TermFiles,
        layout: Layout,
        converter: &mut Converter,
    ) -> Result<WithOwn<HostAttention<T, O>, HostAttention<f64>>, AttentionError> {
        let (sizes, value_dim) = sizes(&inputs, layout)?;
        let inputs = (inputs, [order_of(layout); 3]);
        let (converted, own) = ConvertedInputs::<T, O>::new(inputs, terms, &sizes, converter)?.split();
        let own = own.map(|tensors| HostAttention::of_tensors(layout, sizes, value_dim, tensors));
        Ok((HostAttention::of_tensors(layout, sizes, value_dim, converted), own))
    }

    /// Solves the problem on the CPU, rounding where a kernel does.
    pub(crate) fn solve_on_cpu(&self, params: &AttentionParams) -> Solution<O> {
        let types = AttentionTypes { inputs: T::DTYPE, out: O::DTYPE };
        let (out, lse) =
            self.by_reference(params, |q, k, v, terms| reference::attention_with_rounded(q, k, v, terms, types));
        let out = out.into_iter().map(O::from_f64).collect();
        let lse = lse.into_iter().map(|x| x as f32).collect();
        Solution { out, lse }
    }

    /// Compares O, whose first element is the `first` of a larger one, with the f64 results; adds to what is known of
    /// the elements before.
    pub(crate) fn compare(
        &self,
        own: Option<&HostAttention<f64>>,
        out: &[O],
        request: &Request,
        first: usize,
        before: Verdicts,
    ) -> Verdicts {
        let params = &request.params;
        let (exact, lse) = self.solve_exactly(params);
        let limits = self.limits(request, (&exact, &lse));
        let given = before.given.compare(first, out, &exact, |index| limits[index]);
        let Some((own, before)) = own.zip(before.own) else { return Verdicts { given, own: None } };
        let own_exact = own.solve_exactly(params).0;
        let rounded = own.rounded(self);
        let rounded_exact = if rounded.is(self) { exact } else { rounded.solve_exactly(params).0 };
        let of_own = |index: usize| {
            let of_rounding = (rounded_exact[index] - own_exact[index]).abs();
            limits[index] + if of_rounding.is_finite() { of_rounding } else { 0.0 }
        };
        Verdicts { given, own: Some(before.compare(first, out, &own_exact, of_own)) }
    }

    /// How far each element of O, of which this is the exact result, may be from it. Sums of products of FP8 lose more
    /// than the obvious computation in f32 does, so each element has a limit of its own there.
    fn limits(&self, request: &Request, (exact, lse): (&[f64], &Array3<f64>)) -> Vec<f64> {
        if T::DTYPE.size_bytes() != 1 {
            let error = finite_error(&self.solve_on_cpu(&request.params).out, exact);
            return vec![tolerance::limit(O::DTYPE, error); exact.len()];
        }
        let factors = self.factors.each_ref().map(|factors| factors.as_ref().map(|factors| factors.mapv(f64::from)));
        let factors = factors.each_ref().map(|factors| factors.as_ref().map(|factors| factors.view()));
        let fp8 = Fp8Terms { factors, out: O::DTYPE, accumulation: request.accumulation() };
        let stored = [&self.q, &self.k, &self.v].map(|values| values.iter().map(|&x| x.number()).collect::<Vec<f64>>());
        let inputs = [0, 1, 2].map(|index| self.bhsd(&stored[index], self.shape(index)));
        let exact = (self.bhsd(exact, self.out_shape()), lse.view());
        let limits = self.with_terms(&request.params, |terms| match (T::DTYPE, fp8.factors) {
            (Dtype::U8, [Some(of_q), Some(of_k), Some(of_v)]) => {
                tolerance::u8_attention_limits(inputs, terms, [of_q, of_k, of_v], O::DTYPE, exact)
            }
            _ => tolerance::fp8_attention_limits(inputs, terms, &fp8, exact),
        });
        self.stored(limits.out)
    }
}

impl HostAttention<f64> {
    /// The problem with each element rounded as in `given`, to which it was converted. Elements beyond the range of
    /// their type there stay as they are.
    fn rounded<T: Half, O: Stored>(&self, given: &HostAttention<T, O>) -> HostAttention<f64> {
        let wide = given.wide();
        let [q, k, v] = [(0, &self.q), (1, &self.k), (2, &self.v)].map(|(index, own)| {
            let factor = given.factor(index);
            let rounded = own.iter().zip(&wide[index]).enumerate();
            rounded.map(|(at, (&own, &given))| if leaves_range::<T>(own / factor(at)) { own } else { given }).collect()
        });
        let sink = self.terms.sink.as_ref().map(|sink| sink.iter().map(|&value| in_range::<f32>(value)).collect());
        let in_range_of_o = |values: &[f64]| values.iter().map(|&value| in_range::<O>(value)).collect();
        let bias = self.terms.bias.as_ref().map(|(values, shape)| (in_range_of_o(values), *shape));
        HostAttention { q, k, v, factors: Factors::default(), terms: HostTerms { sink, bias }, ..*self }
    }

    /// Whether its elements are what those of another one of the same sizes stand for.
    fn is<T: Half, O: Stored>(&self, other: &HostAttention<T, O>) -> bool {
        let same = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan());
        let alike = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(&a, &b)| same(a, b));
        let alike_bias = |a: &[f64], b: &[O]| a.iter().zip(b).all(|(&a, &b)| same(a, b.number()));
        let bias = self.terms.bias.as_ref().zip(other.terms.bias.as_ref());
        let sink = self.terms.sink.as_ref().zip(other.terms.sink.as_ref());
        self.wide().iter().zip(&other.wide()).all(|(a, b)| alike(a, b))
            && bias.is_none_or(|((a, _), (b, _))| alike_bias(a, b))
            && sink.is_none_or(|(a, b)| a.iter().zip(b).all(|(&a, &b)| same(a, b)))
    }
}

impl<T, O> HostAttention<T, O> {
    fn of_tensors(
        layout: Layout,
        sizes: BatchedSizes,
        value_dim: usize,
        ([q, k, v], factors, terms): HostTensors<T, O>,
    ) -> HostAttention<T, O> {
        HostAttention { layout, sizes, value_dim, q, k, v, factors, terms }
    }

    /// The shape of V.
    pub(crate) fn v_shape(&self) -> [usize; 4] {
        self.sizes.v_shape(self.layout, self.value_dim)
    }

    /// The shape of Q, K or V.
    fn shape(&self, index: usize) -> [usize; 4] {
        [self.sizes.q_shape(self.layout), self.sizes.kv_shape(self.layout), self.v_shape()][index]
    }

    /// What the elements of Q, K or V are multiplied by.
    fn factor(&self, index: usize) -> impl Fn(usize) -> f64 + '_ {
        let heads = if index == 0 { self.sizes.q_heads } else { self.sizes.kv_heads };
        let (order, shape, factors) = (order_of(self.layout), self.shape(index), self.factors[index].as_ref());
        move |flat| factors.map_or(1.0, |factors| factor_of(factors, order.place(flat, &shape), heads))
    }

    /// The shape of O.
    pub(crate) fn out_shape(&self) -> [usize; 4] {
        self.sizes.out_shape(self.layout, self.value_dim)
    }

    /// The request for the tensors of this problem.
    pub(crate) fn request(&self, request: &Request) -> Request {
        request.clone().of_tensors(self.terms.bias.is_some(), self.value_dim)
    }
}

impl<T: Number, O: Number> HostAttention<T, O> {
    /// Solves the problem in f64 on the CPU.
    pub(crate) fn solve_exactly(&self, params: &AttentionParams) -> (Vec<f64>, Array3<f64>) {
        self.by_reference(params, reference::attention_with)
    }

    /// O in the problem's layout, and the LSE, as a reference computes them.
    fn by_reference(
        &self,
        params: &AttentionParams,
        solve: impl Fn(BhsdView<'_>, BhsdView<'_>, BhsdView<'_>, &AttentionTerms<'_>) -> (Array4<f64>, Array3<f64>),
    ) -> (Vec<f64>, Array3<f64>) {
        let [q, k, v] = self.wide();
        let [q, k, v] = [(0, &q), (1, &k), (2, &v)].map(|(index, values)| self.bhsd(values, self.shape(index)));
        let (out, lse) = self.with_terms(params, |terms| solve(q, k, v, terms));
        (self.stored(out), lse)
    }

    /// Calls `body` with the terms of a reference.
    fn with_terms<R>(&self, params: &AttentionParams, body: impl FnOnce(&AttentionTerms<'_>) -> R) -> R {
        let sink = self.terms.sink.as_ref().map(|sink| Array1::from_vec(sink.clone()));
        let bias = self.terms.bias.as_ref().map(|(values, shape)| {
            let values = values.iter().map(|&x| x.number()).collect();
            Array4::from_shape_vec(*shape, values).expect("the elements fill the shape")
        });
        let scale = params.scale.map_or_else(|| (self.sizes.head_dim as f64).sqrt().recip(), f64::from);
        let terms = AttentionTerms {
            softcap: params.softcap.map(f64::from),
            sink: sink.as_ref().map(|sink| sink.view()),
            bias: bias.as_ref().map(|bias| bias.view()),
            ..AttentionTerms::new(params.mask, scale)
        };
        body(&terms)
    }

    /// What the elements of Q, K and V stand for.
    fn wide(&self) -> [Vec<f64>; 3] {
        [(0, &self.q), (1, &self.k), (2, &self.v)].map(|(index, values)| {
            let factor = self.factor(index);
            values.iter().enumerate().map(|(flat, &x)| x.number() * factor(flat)).collect()
        })
    }

    /// A view of stored elements as `[B, H, S, D]`.
    fn bhsd<'a>(&self, values: &'a [f64], stored: [usize; 4]) -> ArrayView4<'a, f64> {
        let view = ArrayView4::from_shape(stored, values).expect("the elements fill the shape");
        match self.layout {
            Layout::Bhsd => view,
            Layout::Bshd => view.permuted_axes([0, 2, 1, 3]),
        }
    }

    /// The elements of a `[B, H, S, D]` array in the order of the problem's layout.
    fn stored(&self, array: Array4<f64>) -> Vec<f64> {
        match self.layout {
            Layout::Bhsd => array.iter().copied().collect(),
            Layout::Bshd => array.permuted_axes([0, 2, 1, 3]).iter().copied().collect(),
        }
    }
}

/// How elements lie in a layout.
fn order_of(layout: Layout) -> Order<'static> {
    match layout {
        Layout::Bhsd => Order::Bhsd,
        Layout::Bshd => Order::Bshd,
    }
}

/// The verdicts on O before any element is compared: one, or two where the files have values of their own.
pub(crate) fn nothing_compared(out_shape: &[usize], has_own: bool) -> Verdicts {
    let verdict = Verdict::new("O", out_shape);
    Verdicts { own: has_own.then(|| verdict.clone()), given: verdict }
}
