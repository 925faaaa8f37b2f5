//! Sums of products: dot, convolution.

use super::compensated::Compensated;
use super::views::{filled, permute};
use super::{Fault, strides};
use crate::host::element_count;
use crate::{BlockFormat, ConvDims, DType, DotDims, HostTensor};

/// The elements of quantised blocks.
pub(super) fn dequantize(format: BlockFormat, shape: &[usize], x: &HostTensor) -> Result<HostTensor, Fault> {
    let mut elements = Vec::new();
    format.dequantise(x.bytes(), &mut elements);
    Ok(HostTensor::from_slice(shape, &elements)?)
}

/// The accumulator of products: f64 for shorter floats, twice its precision for f64, wrapping i64 for integers.
trait Number: Copy {
    fn zero() -> Self;
    fn multiply_add(self, x: Self, y: Self) -> Self;
    fn decode(x: &HostTensor) -> Vec<Self>;
    fn encode(dtype: DType, shape: &[usize], values: &[Self]) -> Result<HostTensor, Fault>;
}

impl Number for f64 {
    fn zero() -> f64 {
        0.0
    }
    fn multiply_add(self, x: f64, y: f64) -> f64 {
        self + x * y
    }
    fn decode(x: &HostTensor) -> Vec<f64> {
        x.to_f64()
    }
    fn encode(dtype: DType, shape: &[usize], values: &[f64]) -> Result<HostTensor, Fault> {
        Ok(HostTensor::from_f64(dtype, shape, values)?)
    }
}

impl Number for Compensated {
    fn zero() -> Compensated {
        Compensated::from(0.0)
    }
    fn multiply_add(self, x: Compensated, y: Compensated) -> Compensated {
        self.add(x.multiply(y))
    }
    fn decode(x: &HostTensor) -> Vec<Compensated> {
        Compensated::of(x)
    }
    fn encode(dtype: DType, shape: &[usize], values: &[Compensated]) -> Result<HostTensor, Fault> {
        Ok(HostTensor::from_f64(dtype, shape, &Compensated::round(values))?)
    }
}

impl Number for i64 {
    fn zero() -> i64 {
        0
    }
    fn multiply_add(self, x: i64, y: i64) -> i64 {
        self.wrapping_add(x.wrapping_mul(y))
    }
    fn decode(x: &HostTensor) -> Vec<i64> {
        x.to_i64()
    }
    fn encode(dtype: DType, shape: &[usize], values: &[i64]) -> Result<HostTensor, Fault> {
        Ok(HostTensor::from_i64(dtype, shape, values)?)
    }
}

pub(super) fn check_arithmetic(dtype: DType) -> Result<(), Fault> {
    if dtype.is_storage_only() { Err(Fault::NoArithmetic { dtype }) } else { Ok(()) }
}

pub(super) fn dot(dims: &DotDims, out: DType, x: &HostTensor, y: &HostTensor) -> Result<HostTensor, Fault> {
    check_arithmetic(x.dtype())?;
    match x.dtype() {
        DType::F64 => dot_of::<Compensated>(dims, out, x, y),
        dtype if dtype.is_float() => dot_of::<f64>(dims, out, x, y),
        _ => dot_of::<i64>(dims, out, x, y),
    }
}

/// Both sides brought to [batch, free, contracted], then three loops.
fn dot_of<T: Number>(dims: &DotDims, out: DType, x: &HostTensor, y: &HostTensor) -> Result<HostTensor, Fault> {
    let free = |t: &HostTensor, batch: &[usize], contract: &[usize]| -> Vec<usize> {
        (0..t.rank()).filter(|a| !batch.contains(a) && !contract.contains(a)).collect()
    };
    let sizes = |t: &HostTensor, axes: &[usize]| -> Vec<usize> { axes.iter().map(|&a| t.shape()[a]).collect() };
    let (x_free, y_free) = (free(x, &dims.lhs_batch, &dims.lhs_contract), free(y, &dims.rhs_batch, &dims.rhs_contract));
    let batch = sizes(x, &dims.lhs_batch);
    let contract = sizes(x, &dims.lhs_contract);
    if batch != sizes(y, &dims.rhs_batch) || contract != sizes(y, &dims.rhs_contract) {
        return Err(Fault::SizesDiffer { what: "dot", lhs: x.shape().to_vec(), rhs: y.shape().to_vec() });
    }
    let x_order = [&dims.lhs_batch[..], &x_free, &dims.lhs_contract].concat();
    let y_order = [&dims.rhs_batch[..], &y_free, &dims.rhs_contract].concat();
    let shape = [batch.clone(), sizes(x, &x_free), sizes(y, &y_free)].concat();
    let xs = T::decode(&permute(x, &x_order)?);
    let ys = T::decode(&permute(y, &y_order)?);
    let count = |sizes: &[usize]| element_count(sizes).unwrap_or(0);
    let (b, m, n, k) = (count(&batch), count(&sizes(x, &x_free)), count(&sizes(y, &y_free)), count(&contract));
    let mut result = filled(&shape, T::zero())?;
    for (at, sum) in result.iter_mut().enumerate() {
        let (row, column) = (at / n, (at / (m * n)) * n + at % n);
        let (left, right) = (&xs[row * k..(row + 1) * k], &ys[column * k..(column + 1) * k]);
        *sum = left.iter().zip(right).fold(T::zero(), |sum, (&x, &y)| sum.multiply_add(x, y));
    }
    debug_assert_eq!(result.len(), b * m * n);
    T::encode(out, &shape, &result)
}

pub(super) fn conv(dims: &ConvDims, shape: &[usize], x: &HostTensor, w: &HostTensor) -> Result<HostTensor, Fault> {
    check_arithmetic(x.dtype())?;
    match x.dtype() {
        DType::F64 => conv_of::<Compensated>(dims, shape, x, w),
        dtype if dtype.is_float() => conv_of::<f64>(dims, shape, x, w),
        _ => conv_of::<i64>(dims, shape, x, w),
    }
}

/// For each output element, each channel of its group and each tap: the input element that the tap falls on, if any.
fn conv_of<T: Number>(dims: &ConvDims, shape: &[usize], x: &HostTensor, w: &HostTensor) -> Result<HostTensor, Fault> {
    let (spatial, kernel) = (&x.shape()[2..], &w.shape()[2..]);
    let channels = w.shape()[1];
    if channels * dims.groups != x.shape()[1] {
        return Err(Fault::SizesDiffer { what: "channels", lhs: x.shape().to_vec(), rhs: w.shape().to_vec() });
    }
    let (xs, ws) = (T::decode(x), T::decode(w));
    let steps = strides(spatial);
    let (area, taps) = (element_count(spatial).unwrap_or(0), element_count(kernel).unwrap_or(0));
    let out_area = element_count(&shape[2..]).unwrap_or(0);
    let outputs = w.shape()[0];
    let mut result = filled(shape, T::zero())?;
    for (at, sum) in result.iter_mut().enumerate() {
        let (image, output, place) = (at / out_area / outputs, at / out_area % outputs, at % out_area);
        let group = output / (outputs / dims.groups);
        for tap in 0..taps {
            let Some(position) = tap_position(dims, spatial, kernel, &shape[2..], &steps, place, tap) else { continue };
            for channel in 0..channels {
                let value = xs[(image * x.shape()[1] + group * channels + channel) * area + position];
                *sum = sum.multiply_add(value, ws[(output * channels + channel) * taps + tap]);
            }
        }
    }
    T::encode(x.dtype(), shape, &result)
}

/// Where a tap of the window at `place` falls in the input's spatial axes; nothing for padding and dilation zeros.
fn tap_position(
    dims: &ConvDims,
    spatial: &[usize],
    kernel: &[usize],
    out: &[usize],
    steps: &[isize],
    mut place: usize,
    mut tap: usize,
) -> Option<usize> {
    let mut position = 0;
    for axis in (0..spatial.len()).rev() {
        let (i, j) = (place % out[axis], tap % kernel[axis]);
        (place, tap) = (place / out[axis], tap / kernel[axis]);
        let at = (i * dims.stride[axis] + j * dims.dilation[axis]) as i64 - dims.padding[axis].0;
        let at = usize::try_from(at).ok()?;
        let spread = dims.input_dilation[axis];
        if at % spread != 0 || at / spread >= spatial[axis] {
            return None;
        }
        position += at / spread * steps[axis] as usize;
    }
    Some(position)
}
