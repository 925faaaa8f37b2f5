//! Inputs in unusual layouts: transposed, with gaps, reversed.

use kiln::{Device, Result, Tensor};
use kiln_ir::HostTensor;

/// The layout of inputs in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LayoutChoice {
    /// Row-major.
    #[default]
    Contiguous,
    /// The last two axes swapped in memory.
    Transposed,
    /// Every second element along each axis of a larger tensor, not from its start.
    Sliced,
    /// Reversed along the last axis.
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
        if self == LayoutChoice::Reversed {
            offset += strides[rank - 1] as usize * (shape[rank - 1] - 1);
            strides[rank - 1] = -strides[rank - 1];
        }
        let width = bits / 8;
        let mut memory = vec![0x5au8; span * width];
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
        let whole: Vec<usize> = order.iter().map(|&axis| shape[axis] * gap).collect();
        let mut tensor = Tensor::from_bytes(&memory, whole, host.dtype(), device)?;
        match self {
            LayoutChoice::Contiguous => Ok(tensor),
            LayoutChoice::Transposed if rank == 1 => Ok(tensor),
            LayoutChoice::Transposed => tensor.transpose(rank - 1, rank - 2),
            LayoutChoice::Reversed => tensor.flip(rank - 1),
            LayoutChoice::Sliced => {
                for (axis, size) in shape.iter().enumerate() {
                    let first = usize::from(axis == rank - 1);
                    tensor = tensor.slice(axis, first, 2 * size, 2)?;
                }
                Ok(tensor)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_where_the_choice_says() {
        let host = HostTensor::from_slice(&[2, 3], &[0f32, 1., 2., 3., 4., 5.]).unwrap();
        let places = [(vec![3, 1], 0), (vec![1, 2], 0), (vec![12, 2], 1), (vec![3, -1], 2)];
        for (choice, (strides, offset)) in LayoutChoice::ALL.into_iter().zip(places) {
            let tensor = choice.place(&host, Device::Cpu).unwrap();
            assert_eq!((tensor.strides(), tensor.layout().offset()), (&strides[..], offset), "{choice:?}");
            assert_eq!(kiln::inspect::to_host(&tensor).unwrap().to_f64(), host.to_f64(), "{choice:?}");
        }
    }
}
