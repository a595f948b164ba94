//! An attention problem in host memory, checked, and its solution on a card or on the CPU.

use ferrotile::reference::AttentionTerms;
use ferrotile::{AttentionOptions, AttentionProblem, Dtype, Layout, reference, tolerance};
use half::{bf16, f16};
use ndarray::{Array1, Array3, Array4, ArrayView4};

use crate::memory::array_bytes;
use crate::sequences::StartsError;
use crate::tensor::{Elements, Tensor};

/// A 16-bit float type that kernels read and write.
pub(crate) trait Half: ferrotile::Float + Into<f64> {
    /// Elements of this type for a file.
    fn elements(values: Vec<Self>) -> Elements;

    /// The elements of a file where they have this type, else what was given.
    fn from_elements(elements: Elements) -> Result<Vec<Self>, Elements>;
}

impl Half for f16 {
    fn elements(values: Vec<f16>) -> Elements {
        Elements::F16(values)
    }

    fn from_elements(elements: Elements) -> Result<Vec<f16>, Elements> {
        match elements {
            Elements::F16(values) => Ok(values),
            others => Err(others),
        }
    }
}

impl Half for bf16 {
    fn elements(values: Vec<bf16>) -> Elements {
        Elements::Bf16(values)
    }

    fn from_elements(elements: Elements) -> Result<Vec<bf16>, Elements> {
        match elements {
            Elements::Bf16(values) => Ok(values),
            others => Err(others),
        }
    }
}

/// A tensor `[batch, head, row, column]`.
type View<'a> = ArrayView4<'a, f64>;

/// Q, K and V with the shapes that attention takes.
#[derive(Debug, Clone)]
pub(crate) struct Problem<T> {
    /// How the dimensions are ordered.
    pub(crate) layout: Layout,
    /// Sizes.
    pub(crate) sizes: AttentionProblem,
    /// Head dimension of V and O.
    pub(crate) value_dim: usize,
    /// Elements of Q.
    pub(crate) q: Vec<T>,
    /// Elements of K.
    pub(crate) k: Vec<T>,
    /// Elements of V.
    pub(crate) v: Vec<T>,
    /// Sinks and bias.
    pub(crate) terms: Terms<T>,
}

/// The optional tensors of a problem.
#[derive(Debug, Clone, Default)]
pub(crate) struct Terms<T> {
    /// The sinks `[q_heads]`.
    pub(crate) sink: Option<Vec<f32>>,
    /// The bias and its shape.
    pub(crate) bias: Option<(Vec<T>, [usize; 4])>,
}

impl<T: Half> Terms<T> {
    /// Checks tensors from files against the sizes, and converts them.
    pub(crate) fn new(
        sizes: &AttentionProblem,
        sink: Option<Tensor>,
        bias: Option<Tensor>,
    ) -> Result<Terms<T>, ProblemError> {
        let AttentionProblem { batch, q_heads, q_len, k_len, .. } = *sizes;
        if let Some(sink) = sink.as_ref().filter(|sink| sink.shape != [q_heads]) {
            return Err(ProblemError::shape("sink", &sink.shape, vec![q_heads]));
        }
        let bias = bias.map(|bias| {
            let one_of = |dim: usize, size: usize| if bias.shape.get(dim) == Some(&1) { 1 } else { size };
            let shape = [one_of(0, batch), one_of(1, q_heads), q_len, k_len];
            if bias.shape == shape {
                Ok((convert(bias.elements), shape))
            } else {
                Err(ProblemError::shape("bias", &bias.shape, shape.to_vec()))
            }
        });
        Ok(Terms { sink: sink.map(|sink| sink.elements.into_f32()), bias: bias.transpose()? })
    }
}

/// O and LSE.
#[derive(Debug, Clone)]
pub(crate) struct Solution<T> {
    /// Elements of O, in the problem's layout.
    pub(crate) out: Vec<T>,
    /// The log-sum-exp `[batch, q_heads, q_len]`.
    pub(crate) lse: Vec<f32>,
}

/// The exact solution and how far from it a kernel may be.
#[derive(Debug, Clone)]
pub(crate) struct Exact {
    /// O in f64, in the problem's layout.
    pub(crate) out: Vec<f64>,
    /// The largest error of O that a kernel may have.
    pub(crate) limit: f64,
}

impl Exact {
    /// Whether O may have this largest error.
    ///
    /// An infinite one it may not, though the limit is infinite where scores overflow the f32 of the kernels.
    pub(crate) fn accepts(&self, error: f64) -> bool {
        error.is_finite() && error <= self.limit
    }
}

/// Why tensors are not an attention problem.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum ProblemError {
    /// Not as many dimensions.
    #[error("{tensor} has shape {shape:?}, expected {expected}")]
    Rank {
        /// The tensor.
        tensor: &'static str,
        /// Its shape.
        shape: Vec<usize>,
        /// The dimensions that it has to have.
        expected: &'static str,
    },
    /// Tensors of different types.
    #[error("q, k and v have elements of different types: {q}, {k} and {v}")]
    MixedTypes {
        /// Type of Q.
        q: &'static str,
        /// Type of K.
        k: &'static str,
        /// Type of V.
        v: &'static str,
    },
    /// Shapes or sizes that attention does not take.
    #[error(transparent)]
    Sizes(#[from] ferrotile::Error),
    /// Starts of sequences that are not those of the tensors.
    #[error(transparent)]
    Starts(#[from] StartsError),
    /// Elements that the kernels do not read.
    #[error("the elements are {0}; kernels read f16 and bf16: give --dtype f16 or --dtype bf16 to convert them")]
    NeedsDtype(&'static str),
    /// A kernel named where there is none.
    #[error("--variant names a kernel of the GPU, but this runs on the CPU")]
    VariantOnCpu,
}

impl ProblemError {
    pub(crate) fn shape(tensor: &'static str, got: &[usize], expected: Vec<usize>) -> ProblemError {
        ProblemError::Sizes(ferrotile::Error::Shape { op: "attention", tensor, got: got.to_vec(), expected })
    }
}

/// A problem of either type.
#[derive(Debug, Clone)]
pub(crate) enum AnyProblem {
    /// Of f16 elements.
    F16(Problem<f16>),
    /// Of bf16 elements.
    Bf16(Problem<bf16>),
}

impl AnyProblem {
    /// Checks the tensors and converts their elements to `dtype` where one is given.
    pub(crate) fn new(tensors: [Tensor; 3], layout: Layout, dtype: Option<Dtype>) -> Result<AnyProblem, ProblemError> {
        let [q, k, v] = &tensors;
        let (sizes, value_dim) = sizes(&q.shape, &k.shape, &v.shape, layout)?;
        let dtype = element_type(&tensors, dtype)?;
        let [q, k, v] = tensors.map(|tensor| tensor.elements);
        Ok(match dtype {
            Dtype::Bf16 => AnyProblem::Bf16(Problem::new(layout, sizes, value_dim, [q, k, v])),
            _ => AnyProblem::F16(Problem::new(layout, sizes, value_dim, [q, k, v])),
        })
    }
}

/// The type that elements of Q, K and V are converted to, or that they have.
pub(crate) fn element_type(tensors: &[Tensor; 3], wanted: Option<Dtype>) -> Result<Dtype, ProblemError> {
    match (wanted, tensors.each_ref().map(|tensor| tensor.elements.dtype_name())) {
        (Some(dtype), _) => Ok(dtype),
        (None, ["f16", "f16", "f16"]) => Ok(Dtype::F16),
        (None, ["bf16", "bf16", "bf16"]) => Ok(Dtype::Bf16),
        (None, [q, k, v]) if q == k && k == v => Err(ProblemError::NeedsDtype(q)),
        (None, [q, k, v]) => Err(ProblemError::MixedTypes { q, k, v }),
    }
}

/// Elements of the type of a problem. Those that have it stay as they are: rounding takes some 30 ns each.
pub(crate) fn convert<T: Half>(elements: Elements) -> Vec<T> {
    T::from_elements(elements).unwrap_or_else(|others| others.into_f64().into_iter().map(T::from_f64).collect())
}

/// The sizes of the problem that tensors of these shapes make, and the head dimension of V.
fn sizes(q: &[usize], k: &[usize], v: &[usize], layout: Layout) -> Result<(AttentionProblem, usize), ProblemError> {
    let expected = match layout {
        Layout::Bhsd => "the four dimensions [batch, heads, rows, head dimension]",
        Layout::Bshd => "the four dimensions [batch, rows, heads, head dimension]",
    };
    let [q, k, v] = [("q", q), ("k", k), ("v", v)].map(|(tensor, shape)| dimensions(tensor, shape, expected));
    let (q, k, v) = (q?, k?, v?);
    let sizes = AttentionProblem::of_shapes(q, k, v, layout)?;
    sizes.check()?;
    for shape in [q, k, v] {
        array_bytes::<f64>(&shape)?;
    }
    Ok((sizes, v[3]))
}

/// The shape of a tensor that must have so many dimensions: those of `expected`.
pub(crate) fn dimensions<const RANK: usize>(
    tensor: &'static str,
    shape: &[usize],
    expected: &'static str,
) -> Result<[usize; RANK], ProblemError> {
    shape.try_into().map_err(|_| ProblemError::Rank { tensor, shape: shape.to_vec(), expected })
}

impl<T: Half> Problem<T> {
    fn new(layout: Layout, sizes: AttentionProblem, value_dim: usize, inputs: [Elements; 3]) -> Problem<T> {
        let [q, k, v] = inputs.map(convert);
        Problem { layout, sizes, value_dim, q, k, v, terms: Terms::default() }
    }

    /// The shape of V.
    pub(crate) fn v_shape(&self) -> [usize; 4] {
        self.sizes.v_shape(self.layout, self.value_dim)
    }

    /// The shape of O.
    pub(crate) fn out_shape(&self) -> [usize; 4] {
        self.sizes.out_shape(self.layout, self.value_dim)
    }

    /// The options of a plan for the tensors of this problem.
    pub(crate) fn options(&self, options: &AttentionOptions) -> AttentionOptions {
        AttentionOptions { bias: self.terms.bias.is_some(), value_dim: Some(self.value_dim), ..options.clone() }
    }

    /// Solves the problem on the CPU, rounding where a kernel does.
    pub(crate) fn solve_on_cpu(&self, options: &AttentionOptions) -> Solution<T> {
        let (out, lse) =
            self.by_reference(options, |q, k, v, terms| reference::attention_with_rounded(q, k, v, terms, T::DTYPE));
        let out = out.into_iter().map(T::from_f64).collect();
        let lse = lse.into_iter().map(|x| x as f32).collect();
        Solution { out, lse }
    }

    /// Solves the problem in f64 on the CPU.
    pub(crate) fn solve_exactly(&self, options: &AttentionOptions) -> (Vec<f64>, Array3<f64>) {
        self.by_reference(options, reference::attention_with)
    }

    /// O in the problem's layout, and the LSE, as a reference computes them.
    fn by_reference(
        &self,
        options: &AttentionOptions,
        solve: impl Fn(View<'_>, View<'_>, View<'_>, &AttentionTerms<'_>) -> (Array4<f64>, Array3<f64>),
    ) -> (Vec<f64>, Array3<f64>) {
        let [q, k, v] = self.wide();
        let sink = self.terms.sink.as_ref().map(|sink| sink.iter().copied().map(f64::from).collect::<Array1<f64>>());
        let bias = self.terms.bias.as_ref().map(|(values, shape)| {
            let values = values.iter().map(|&x| x.into()).collect();
            Array4::from_shape_vec(*shape, values).expect("the elements fill the shape")
        });
        let scale = options.scale.map_or_else(|| (self.sizes.head_dim as f64).sqrt().recip(), f64::from);
        let terms = AttentionTerms {
            softcap: options.softcap.map(f64::from),
            sink: sink.as_ref().map(|sink| sink.view()),
            bias: bias.as_ref().map(|bias| bias.view()),
            ..AttentionTerms::new(options.mask, scale)
        };
        let (q_shape, kv_shape) = (self.sizes.q_shape(self.layout), self.sizes.kv_shape(self.layout));
        let v = self.bhsd(&v, self.v_shape());
        let (out, lse) = solve(self.bhsd(&q, q_shape), self.bhsd(&k, kv_shape), v, &terms);
        (self.stored(out), lse)
    }

    /// The exact solution, and the limit that the error of the same-precision reference gives.
    pub(crate) fn exact(&self, options: &AttentionOptions) -> Exact {
        let (out, _) = self.solve_exactly(options);
        let rounded = self.solve_on_cpu(options);
        let limit = tolerance::limit(T::DTYPE, tolerance::max_error(&rounded.out, &out));
        Exact { out, limit }
    }

    fn wide(&self) -> [Vec<f64>; 3] {
        [&self.q, &self.k, &self.v].map(|values| values.iter().map(|&x| x.into()).collect())
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
