//! Scan, sort and scatter: routines over strided views, written once for all dtypes and run on the pool. They are the same
//! code on every instruction set.

mod element;
mod scan;
mod scatter;
mod sort;

use kiln_ir::{DType, Dim, Symbol};
use kiln_kernels::kernel::{BufferArg, Kernel, RoutineBody, Strided};
use kiln_runtime::{Error, LaunchError, RawBuffer};

/// A routine ready to launch.
pub struct Routine {
    body: RoutineBody,
    buffers: Vec<BufferArg>,
    sizes: Vec<Symbol>,
}

/// A strided view with its numbers filled in.
struct View {
    base: *mut u8,
    dtype: DType,
    offset: isize,
    strides: Vec<isize>,
}

// SAFETY: a view is an address and numbers; who dereferences it answers for the access.
unsafe impl Sync for View {}

impl View {
    /// The address of the element at `offset` elements from the view's first.
    ///
    /// # Safety
    /// The element must be inside the buffer and `T` must be the buffer's element type.
    unsafe fn at<T>(&self, offset: isize) -> *mut T {
        // SAFETY: promised by the caller.
        unsafe { (self.base as *mut T).offset(self.offset + offset) }
    }
}

impl Routine {
    /// Takes a routine kernel; `target` names the backend in an error.
    pub fn new(kernel: &Kernel, body: &RoutineBody, target: &str) -> Result<Routine, Error> {
        if let Some(bad) = kernel.buffers.iter().find(|b| b.dtype.is_storage_only()) {
            let reason = format!("scan, sort and scatter do not work on {}: cast first", bad.dtype);
            return Err(Error::Compile { target: target.to_owned(), reason });
        }
        Ok(Routine { body: body.clone(), buffers: kernel.buffers.clone(), sizes: kernel.sizes.clone() })
    }

    /// Runs it.
    ///
    /// # Safety
    /// The buffers hold what the kernel's views reach at these sizes and do not overlap but where the kernel says so.
    pub unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        let number = |dim: &Dim| -> Result<i64, LaunchError> {
            dim.eval(&|symbol| self.sizes.iter().position(|s| *s == symbol).and_then(|i| sizes.get(i).copied()))
                .ok_or(LaunchError::WrongArguments { what: "sizes", expected: self.sizes.len(), got: sizes.len() })
        };
        let view = |strided: &Strided| -> Result<View, LaunchError> {
            Ok(View {
                base: buffers[strided.buffer].ptr,
                dtype: self.buffers[strided.buffer].dtype,
                offset: number(&strided.offset)? as isize,
                strides: strided.strides.iter().map(|s| number(s).map(|n| n as isize)).collect::<Result<_, _>>()?,
            })
        };
        let shape_of =
            |dims: &[Dim]| dims.iter().map(|d| number(d).map(|n| n.max(0) as usize)).collect::<Result<Vec<_>, _>>();
        match &self.body {
            RoutineBody::Scan { shape, axis, kind, reverse, input, output } => {
                // SAFETY: passed on from the caller.
                unsafe { scan::run(&shape_of(shape)?, *axis, *kind, *reverse, &view(input)?, &view(output)?) }
            }
            RoutineBody::SortIndices { shape, axis, descending, count, input, output } => {
                let count = number(count)?.max(0) as usize;
                // SAFETY: passed on from the caller.
                unsafe { sort::run(&shape_of(shape)?, *axis, *descending, count, &view(input)?, &view(output)?) }
            }
            RoutineBody::Scatter { shape, updates_shape, axis, kind, index, updates, output } => {
                let (shape, updates_shape) = (shape_of(shape)?, shape_of(updates_shape)?);
                // SAFETY: passed on from the caller.
                unsafe {
                    scatter::run(&shape, &updates_shape, *axis, *kind, &view(index)?, &view(updates)?, &view(output)?)
                }
            }
        }
    }
}

/// Visits every coordinate of `shape` (row-major), from position `begin` to `end`, giving each view's offset.
fn visit<const N: usize>(
    shape: &[usize],
    strides: [&[isize]; N],
    begin: usize,
    end: usize,
    mut f: impl FnMut(usize, [isize; N]),
) {
    let mut coordinate = vec![0usize; shape.len()];
    let mut rest = begin;
    for axis in (0..shape.len()).rev() {
        coordinate[axis] = rest % shape[axis].max(1);
        rest /= shape[axis].max(1);
    }
    let mut offsets = strides.map(|s| coordinate.iter().zip(s).map(|(&c, &s)| c as isize * s).sum::<isize>());
    for position in begin..end {
        f(position, offsets);
        for axis in (0..shape.len()).rev() {
            coordinate[axis] += 1;
            for (offset, stride) in offsets.iter_mut().zip(&strides) {
                *offset += stride[axis];
            }
            if coordinate[axis] < shape[axis] {
                break;
            }
            for (offset, stride) in offsets.iter_mut().zip(&strides) {
                *offset -= stride[axis] * shape[axis] as isize;
            }
            coordinate[axis] = 0;
        }
    }
}

/// `items` without the one at `axis`.
fn without<T: Copy>(items: &[T], axis: usize) -> Vec<T> {
    items.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, &item)| item).collect()
}

/// Cuts `lines` pieces of work of `cost` elements each into chunks for the pool.
fn in_parallel(lines: usize, cost: usize, f: &(dyn Fn(usize, usize) + Sync)) {
    let threads = crate::pool::threads();
    let chunks = if lines.saturating_mul(cost) < 16384 { 1 } else { (threads * 4).min(lines) };
    if lines == 0 {
        return;
    }
    crate::pool::run(chunks, threads, &|chunk| f(lines * chunk / chunks, lines * (chunk + 1) / chunks));
}
