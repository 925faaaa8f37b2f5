//! Inputs in awkward places: transposed, with gaps, reversed, broadcast where their values allow it.

use crate::tensor::layout::Layout;
use crate::{Device, Result, Tensor};
use kiln_ir::HostTensor;

/// How inputs lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LayoutChoice {
    /// Row-major.
    #[default]
    Contiguous,
    /// The last two axes swapped in memory.
    Transposed,
    /// Every second element along each axis of a larger tensor, not from its start.
    Sliced,
    /// Backwards along the last axis.
    Reversed,
}

impl LayoutChoice {
    /// All of them.
    pub const ALL: [LayoutChoice; 4] =
        [LayoutChoice::Contiguous, LayoutChoice::Transposed, LayoutChoice::Sliced, LayoutChoice::Reversed];

    /// A tensor with the host tensor's elements, lying as chosen. Packed 4-bit types and scalars are always row-major.
    pub fn place(self, host: &HostTensor, device: Device) -> Result<Tensor> {
        let shape = host.shape().to_vec();
        let rank = shape.len();
        let bits = host.dtype().size_in_bits();
        if rank == 0 || bits < 8 || host.elements() == 0 || self == LayoutChoice::Contiguous {
            return Tensor::from_bytes(host.bytes(), shape, host.dtype(), device);
        }
        // The order of the axes in memory, the gap between elements, and the direction of the last axis.
        let mut order: Vec<usize> = (0..rank).collect();
        if self == LayoutChoice::Transposed && rank >= 2 {
            order.swap(rank - 1, rank - 2);
        }
        let gap = if self == LayoutChoice::Sliced { 2 } else { 1 };
        let mut strides = vec![0isize; rank];
        let mut span = 1usize;
        for &axis in order.iter().rev() {
            strides[axis] = (span * gap) as isize;
            span *= shape[axis] * gap;
        }
        let mut offset = if self == LayoutChoice::Sliced { 1 } else { 0 };
        if self == LayoutChoice::Reversed && shape[rank - 1] > 0 {
            offset += strides[rank - 1] as usize * (shape[rank - 1] - 1);
            strides[rank - 1] = -strides[rank - 1];
        }
        let width = bits / 8;
        let mut memory = vec![0x5au8; (span + gap) * width];
        let mut coordinate = vec![0usize; rank];
        for element in 0..host.elements() {
            let mut rest = element;
            for axis in (0..rank).rev() {
                coordinate[axis] = rest % shape[axis];
                rest /= shape[axis];
            }
            let at = coordinate.iter().zip(&strides).fold(offset as isize, |at, (&c, &s)| at + c as isize * s) as usize;
            memory[at * width..][..width].copy_from_slice(&host.bytes()[element * width..][..width]);
        }
        let flat = Tensor::from_bytes(&memory, vec![memory.len() / width], host.dtype(), device)?;
        Ok(flat.with_layout(Layout::new(shape, strides, offset)))
    }
}
