//! A matrix product in host memory, its solution on a card or on the CPU, and its check.

use ferrotile::reference::{self, GemmTerms};
use ferrotile::{
    Buffer, Float, GemmOptions, GemmPlan, GemmProblem, GemmTensors, Gpu, Result, TensorMut, TensorRef, tolerance,
};
use layout::descriptor::Major;
use ndarray::{Array3, ArrayView3};

use crate::files::convert::{Converted, in_range, is_beyond};
use crate::files::tensor::Stored;
use crate::problems::verdict::{Verdict, Verdicts, finite_error};

/// A product in host memory.
pub(crate) struct HostGemm<T, D> {
    /// Sizes and types.
    pub(crate) problem: GemmProblem,
    /// A, as it is stored.
    pub(crate) a: Vec<T>,
    /// B, as it is stored.
    pub(crate) b: Vec<T>,
    /// C.
    pub(crate) c: Option<Vec<D>>,
}

/// A, B and C in f64, as they are stored.
pub(crate) struct Operands {
    a: Vec<f64>,
    b: Vec<f64>,
    c: Option<Vec<f64>>,
}

impl Operands {
    /// The files' own elements, where a file has another type and somebody asked for its elements.
    pub(crate) fn of_files<T: Stored, D: Stored>(
        a: &Converted<T>,
        b: &Converted<T>,
        c: Option<&Converted<D>>,
    ) -> Option<Operands> {
        let has_own = a.own.is_some() || b.own.is_some() || c.is_some_and(|c| c.own.is_some());
        has_own.then(|| Operands {
            a: a.clone().into_own(),
            b: b.clone().into_own(),
            c: c.map(|c| c.clone().into_own()),
        })
    }

    /// The operands with each element rounded to its kernel type. Elements beyond the range of the type stay what they
    /// are.
    fn rounded<T: Float, D: Float>(&self) -> Operands {
        let of_ab = |values: &[f64]| values.iter().map(|&value| in_range::<T>(value)).collect();
        let c = self.c.as_ref().map(|c| c.iter().map(|&value| in_range::<D>(value)).collect());
        Operands { a: of_ab(&self.a), b: of_ab(&self.b), c }
    }

    /// Calls `body` with A and B in the order of the formula and what follows the product.
    fn with_terms<R>(
        &self,
        problem: &GemmProblem,
        options: &GemmOptions,
        body: impl FnOnce(ArrayView3<'_, f64>, ArrayView3<'_, f64>, &GemmTerms<'_>) -> R,
    ) -> R {
        let array = |values: &[f64], shape: [usize; 3], transposed: bool| {
            let array = Array3::from_shape_vec(shape, values.to_vec()).expect("elements fill the shape");
            if transposed { array.permuted_axes([0, 2, 1]) } else { array }
        };
        let layout = options.layout;
        let a = array(&self.a, problem.a_shape(layout), layout.a() == Major::Mn);
        let b = array(&self.b, problem.b_shape(layout), layout.b() == Major::K);
        let c = self.c.as_ref().map(|c| array(c, problem.d_shape(), false));
        let terms = GemmTerms {
            alpha: options.alpha.into(),
            beta: options.beta.into(),
            c: c.as_ref().filter(|_| options.beta != 0.0).map(|c| c.view()),
            activation: options.activation,
            ..GemmTerms::default()
        };
        body(a.view(), b.view(), &terms)
    }

    /// D in f64.
    fn solve(&self, problem: &GemmProblem, options: &GemmOptions) -> Vec<f64> {
        self.with_terms(problem, options, |a, b, terms| reference::gemm(a, b, terms).into_iter().collect())
    }
}

impl<T: Stored, D: Stored> HostGemm<T, D> {
    fn operands(&self) -> Operands {
        let wide = |values: &[T]| values.iter().map(|x| x.to_f64()).collect::<Vec<f64>>();
        let c = self.c.as_ref().map(|c| c.iter().map(|x| x.to_f64()).collect());
        Operands { a: wide(&self.a), b: wide(&self.b), c }
    }

    /// D on the CPU, rounded where a kernel rounds.
    pub(crate) fn on_cpu(&self, options: &GemmOptions) -> Vec<D> {
        let d = self
            .operands()
            .with_terms(&self.problem, options, |a, b, terms| reference::gemm_rounded(a, b, terms, D::DTYPE));
        d.into_iter().map(D::from_f64).collect()
    }

    /// D by a kernel; calls `started` with its name before it runs.
    pub(crate) fn on_card(&self, gpu: &Gpu, options: &GemmOptions, started: &dyn Fn(&str)) -> Result<Vec<D>> {
        let stream = gpu.new_stream()?;
        let (a, b) = (Buffer::upload_blocking(&stream, &self.a)?, Buffer::upload_blocking(&stream, &self.b)?);
        let c = self.c.as_ref().map(|c| Buffer::upload_blocking(&stream, c)).transpose()?;
        let mut d = Buffer::<D>::zeroed(gpu, self.problem.d_shape().iter().product())?;
        let tensors = GemmTensors::new(
            TensorRef::contiguous(&a, self.problem.a_shape(options.layout))?,
            TensorRef::contiguous(&b, self.problem.b_shape(options.layout))?,
            TensorMut::contiguous(&mut d, self.problem.d_shape())?,
        );
        let c = c.as_ref().map(|c| TensorRef::contiguous(c, self.problem.d_shape())).transpose()?;
        let tensors = GemmTensors { c, ..tensors };
        let plan = GemmPlan::new(gpu, &GemmProblem::of(&tensors, options.layout)?, options)?;
        started(&plan.to_string());
        let mut workspace = Buffer::<u8>::zeroed(gpu, plan.workspace_bytes())?;
        let bytes = workspace.len();
        plan.run(stream.as_ref(), tensors, Some(TensorMut::contiguous(&mut workspace, [bytes])?))?;
        d.download_blocking(&stream)
    }

    /// Compares D, of which the file has this shape, with the f64 reference.
    pub(crate) fn check(&self, own: Option<&Operands>, options: &GemmOptions, shape: &[usize], d: &[D]) -> Verdicts {
        let problem = &self.problem;
        let (exact, limit) = self.operands().with_terms(problem, options, |a, b, terms| {
            let exact: Vec<f64> = reference::gemm(a, b, terms).into_iter().collect();
            let rounded = reference::gemm_rounded(a, b, terms, D::DTYPE);
            // Where D is cut off, the distance says nothing about the size of errors.
            let in_type = |&(_, exact): &(&f64, &f64)| !is_beyond::<D>(*exact);
            let (rounded, of_exact): (Vec<f64>, Vec<f64>) = rounded.iter().zip(&exact).filter(in_type).unzip();
            let cost = finite_error(&rounded, &of_exact);
            let magnitude = reference::gemm_magnitude(a, b, terms, [problem.a, problem.b]);
            (exact, tolerance::gemm_limit(problem, options.accumulation, cost, magnitude))
        });
        let given = Verdict::new("D", shape).compare(0, d, &exact, |_| limit);
        let own = own.map(|own| {
            let own_exact = own.solve(problem, options);
            let rounded_exact = own.rounded::<T, D>().solve(problem, options);
            let of_own = |index: usize| {
                let of_rounding = (rounded_exact[index] - own_exact[index]).abs();
                limit + if of_rounding.is_finite() { of_rounding } else { 0.0 }
            };
            Verdict::new("D", shape).compare(0, d, &own_exact, of_own)
        });
        Verdicts { given, own }
    }
}
