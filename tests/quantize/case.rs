//! One quantisation on the device, and what the reference makes of the same input.

use ferrotile::{
    Buffer, DequantizeTensors, Float, Gpu, Layout, QuantizeTensors, TensorMut, TensorRef, dequantize, quantize,
    reference,
};
use libtest_mimic::Failed;
use ndarray::{Array2, Array4};
use tests::guard::{Guarded, Poison};
use tests::view::View;

/// Where the wide and the quantised elements lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placement {
    pub(crate) wide: View,
    pub(crate) narrow: View,
    pub(crate) layout: Layout,
}

impl Placement {
    /// Without gaps, in the order of `layout`.
    pub(crate) fn contiguous(shape: [usize; 4], layout: Layout) -> Placement {
        let view = View::contiguous(shape, layout);
        Placement { wide: view, narrow: view, layout }
    }
}

/// What quantisation gives: elements in C order, and factors.
#[derive(Debug, Clone)]
pub(crate) struct Quantized<Q> {
    pub(crate) elements: Vec<Q>,
    pub(crate) factors: Vec<f32>,
}

impl<Q: Poison> Quantized<Q> {
    /// Fails where a bit differs.
    pub(crate) fn expect(&self, expected: &Quantized<Q>) -> Result<(), Failed> {
        let bits = |factors: &[f32]| factors.iter().map(|factor| factor.to_bits()).collect::<Vec<_>>();
        if bits(&self.factors) != bits(&expected.factors) {
            return Err(format!("factors {:?}, expected {:?}", self.factors, expected.factors).into());
        }
        let differing = self.elements.iter().zip(&expected.elements).position(|(got, of)| got.bits() != of.bits());
        match differing {
            None => Ok(()),
            Some(at) => {
                let (got, of) = (self.elements[at], expected.elements[at]);
                Err(format!("element {at} is {got:?}, expected {of:?}").into())
            }
        }
    }
}

/// The four dimensions of a view, with its elements.
pub(crate) fn array<T: Clone>(shape: [usize; 4], values: Vec<T>) -> Array4<T> {
    Array4::from_shape_vec(shape, values).expect("one value an element")
}

/// What the reference makes of `x`, in C order.
pub(crate) fn expected<T: Float, Q: Float>(shape: [usize; 4], x: &[T], groups: [usize; 2]) -> Quantized<Q> {
    let wide = x.iter().map(|x| x.to_f64() as f32).collect();
    let (elements, factors) = reference::quantize(array(shape, wide).view(), groups);
    Quantized { elements: elements.into_raw_vec_and_offset().0, factors: factors.into_raw_vec_and_offset().0 }
}

/// Quantises on the device, after a check of everything around the output.
pub(crate) fn quantized<T: Float + Poison, Q: Float + Poison>(
    gpu: &Gpu,
    x: &[T],
    groups: [usize; 2],
    place: &Placement,
) -> Result<Quantized<Q>, Failed> {
    let stream = gpu.new_stream()?;
    let mut storage = vec![T::poison(); place.wide.storage_len()];
    place.wide.scatter(x, &mut storage);
    let storage = Buffer::upload_blocking(&stream, &storage)?;
    let mut out = Guarded::<Q>::new(gpu, &stream, place.narrow.storage_len())?;
    let mut factors = Guarded::<f32>::new(gpu, &stream, groups.iter().product())?;
    let (narrow, of_factors) = (place.narrow.moved(out.offset()), factors.offset());
    let layout = place.layout;
    let tensors = QuantizeTensors {
        x: place.wide.tensor(&storage, layout)?,
        out: narrow.tensor_mut(out.buffer(), layout)?,
        descales: TensorMut::strided(factors.buffer(), of_factors, groups, [groups[1] as i64, 1])?,
    };
    quantize(&stream, tensors, layout)?;
    let elements = place.narrow.gather_alone(&out.read(&stream)?)?;
    Ok(Quantized { elements, factors: factors.read(&stream)? })
}

/// Brings quantised elements back on the device.
pub(crate) fn dequantized<Q: Float + Poison, T: Float + Poison>(
    gpu: &Gpu,
    quantized: &Quantized<Q>,
    groups: [usize; 2],
    place: &Placement,
) -> Result<Vec<T>, Failed> {
    let stream = gpu.new_stream()?;
    let mut storage = vec![Q::poison(); place.narrow.storage_len()];
    place.narrow.scatter(&quantized.elements, &mut storage);
    let storage = Buffer::upload_blocking(&stream, &storage)?;
    let factors = Buffer::upload_blocking(&stream, &quantized.factors)?;
    let mut out = Guarded::<T>::new(gpu, &stream, place.wide.storage_len())?;
    let (wide, layout) = (place.wide.moved(out.offset()), place.layout);
    let tensors = DequantizeTensors {
        x: place.narrow.tensor(&storage, layout)?,
        descales: TensorRef::contiguous(&factors, groups)?,
        out: wide.tensor_mut(out.buffer(), layout)?,
    };
    dequantize(&stream, tensors, layout)?;
    Ok(place.wide.gather_alone(&out.read(&stream)?)?)
}

/// What elements and factors stand for, in f64.
pub(crate) fn products<Q: Float>(shape: [usize; 4], quantized: &Quantized<Q>, groups: [usize; 2]) -> Vec<f64> {
    let elements = array(shape, quantized.elements.iter().map(|x| x.to_f64()).collect());
    let factors = quantized.factors.iter().map(|&factor| f64::from(factor)).collect();
    let factors = Array2::from_shape_vec(groups, factors).expect("one factor a group");
    reference::dequantize(elements.view(), factors.view()).into_raw_vec_and_offset().0
}
