//! Discrete Fourier transforms, and complex numbers as pairs.
//!
//! A tensor of complex numbers is one of floats with a last axis of 2, the real part first, as `torch.view_as_real` shows it. Axes of
//! transforms count those of the numbers: the pairs' axis is none of them. A length without a large prime factor takes O(n log n)
//! steps by Cooley and Tukey's rule, any other one by Bluestein's.

use crate::tensor::eager::{self, Param};
use crate::tensor::promotion::to_float;
use crate::tensor::shape::resolve_axis;
use crate::{Axes, DType, Dim, Error, Result, Size, Tensor};
use kiln_ir::build::{self, GraphBuilder};
use kiln_ir::{NodeId, Source};

/// What a transform is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FftNorm {
    /// The inverse transform by n, the forward one by nothing.
    #[default]
    Backward,
    /// Both by √n.
    Ortho,
    /// The forward transform by n, the inverse one by nothing.
    Forward,
}

impl FftNorm {
    fn factor(self, n: usize, forward: bool) -> f64 {
        match (self, forward) {
            (FftNorm::Ortho, _) => 1.0 / (n as f64).sqrt(),
            (FftNorm::Backward, false) | (FftNorm::Forward, true) => 1.0 / n as f64,
            _ => 1.0,
        }
    }
}

/// One transform: of which numbers, in which direction.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    forward: bool,
    from_real: bool,
    to_real: bool,
}

const fn complex_kind(name: &'static str, forward: bool) -> Kind {
    Kind { name, forward, from_real: false, to_real: false }
}

impl Tensor {
    /// How many axes the numbers have.
    fn number_axes(&self, kind: Kind, at: &Source) -> Result<usize> {
        if kind.from_real {
            return Ok(self.rank());
        }
        self.expect_pairs(kind.name, at)?;
        Ok(self.rank() - 1)
    }

    fn expect_pairs(&self, op: &'static str, at: &Source) -> Result<()> {
        if self.hint().last() != Some(&2) {
            let expected = "a last axis of 2, real and imaginary parts";
            return Err(Error::WrongRank { op, shape: self.hint().to_vec(), expected, at: at.clone() });
        }
        match self.dtype() {
            DType::F32 | DType::F64 => Ok(()),
            got => Err(Error::WrongDType { op, got, expected: "f32 or f64", at: at.clone() }),
        }
    }

    /// Transforms along axes; of real numbers, and to them, the last is the one that is half as long.
    fn transformed(
        &self,
        kind: Kind,
        axes: &[usize],
        lengths: Option<&[usize]>,
        norm: FftNorm,
        at: &Source,
    ) -> Result<Tensor> {
        let dtype = match to_float(self.dtype()) {
            DType::F64 => DType::F64,
            DType::F32 => DType::F32,
            got => return Err(Error::WrongDType { op: kind.name, got, expected: "f32 or f64", at: at.clone() }),
        };
        if lengths.is_some_and(|lengths| lengths.len() != axes.len()) {
            let expected = "a length for each axis";
            return Err(Error::WrongRank { op: kind.name, shape: self.hint().to_vec(), expected, at: at.clone() });
        }
        // What each axis has after padding or cutting; the transform has as many, but for halves of real ones.
        let mut sizes = Vec::with_capacity(axes.len());
        for (i, &axis) in axes.iter().enumerate() {
            let have = self.length_of(axis, at);
            let half = kind.to_real && i + 1 == axes.len();
            let n = lengths.map_or(if half { 2 * have.saturating_sub(1) } else { have }, |lengths| lengths[i]);
            if n == 0 {
                let expected = "a transform has one element at the least";
                let (name, value) = ("length", n.into());
                return Err(Error::BadArgument { op: kind.name, name, value, expected, at: at.clone() });
            }
            sizes.push(n);
        }
        let mut x = self.clone();
        for (i, &axis) in axes.iter().enumerate() {
            let half = kind.to_real && i + 1 == axes.len();
            let wanted = if half { sizes[i] / 2 + 1 } else { sizes[i] };
            x = x.fit(kind.name, axis, wanted, at)?;
        }
        let key: Vec<Param> = vec![axes.into(), sizes[..].into(), (norm as i64).into(), dtype.into()];
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let mut y = build::cast(b, &inputs[0], dtype)?;
            for (i, (&axis, &n)) in axes.iter().zip(&sizes).enumerate().rev() {
                let (last, factor) = (i + 1 == axes.len(), norm.factor(n, kind.forward));
                y = match () {
                    () if kind.from_real && last => build::dft_of_real(b, &y, axis, kind.forward, factor)?,
                    // The half is last: the others are done when it becomes real.
                    () if kind.to_real && last => continue,
                    () => build::dft(b, &y, axis, kind.forward, factor)?,
                };
            }
            if let (true, Some((&axis, &n))) = (kind.to_real, axes.last().zip(sizes.last())) {
                y = build::dft_to_real(b, &y, axis, &n.into(), kind.forward, norm.factor(n, kind.forward))?;
            }
            Ok(y)
        };
        eager::composite(kind.name, &key, &[&x], write, at)
    }

    /// The size of an axis as a number, which a function being captured is then made for.
    pub(super) fn length_of(&self, axis: usize, at: &Source) -> usize {
        usize::try_from(self.extent(axis).number(at)).unwrap_or(0)
    }

    /// An axis padded with zeros, or cut, to a length.
    fn fit(&self, op: &'static str, axis: usize, length: usize, at: &Source) -> Result<Tensor> {
        let have = self.length_of(axis, at);
        if have >= length {
            return if have == length { Ok(self.clone()) } else { self.narrow(axis, 0, length) };
        }
        let mut amounts = vec![(Dim::plain(0), Dim::plain(0)); self.rank()];
        amounts[axis].1 = Dim::plain((length - have) as i64);
        self.pad_at(op, &amounts, 0.0, at)
    }

    fn one_axis(&self, kind: Kind, n: Option<usize>, axis: impl Size, norm: FftNorm, at: &Source) -> Result<Tensor> {
        let count = self.number_axes(kind, at)?;
        let axis = resolve_axis(kind.name, axis, &self.hint()[..count], 0, at)?;
        self.transformed(kind, &[axis], n.as_ref().map(std::slice::from_ref), norm, at)
    }

    fn several_axes(
        &self,
        kind: Kind,
        axes: impl Axes,
        lengths: Option<&[usize]>,
        norm: FftNorm,
        at: &Source,
    ) -> Result<Tensor> {
        let count = self.number_axes(kind, at)?;
        let mut resolved = Vec::new();
        for axis in axes.axes(count) {
            resolved.push(resolve_axis(kind.name, axis, &self.hint()[..count], 0, at)?);
        }
        self.transformed(kind, &resolved, lengths, norm, at)
    }

    /// The discrete Fourier transform of complex numbers (pairs on the last axis) along an axis, first padded or cut to `n`.
    ///
    /// ```
    /// use kiln::{Device, FftNorm, Tensor};
    /// let x = Tensor::new([[1f32, 0.], [0., 0.], [0., 0.], [0., 0.]], Device::Cpu)?;
    /// let y = x.fft(None, -1, FftNorm::Backward)?;
    /// assert_eq!(y.to_vec::<f32>()?, [1., 0., 1., 0., 1., 0., 1., 0.]);
    /// assert!(y.ifft(None, -1, FftNorm::Backward)?.allclose(&x, 0.0, 1e-6)?);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn fft(&self, n: Option<usize>, axis: impl Size, norm: FftNorm) -> Result<Tensor> {
        self.one_axis(complex_kind("fft", true), n, axis, norm, &Source::caller())
    }

    /// The inverse of [`Tensor::fft`].
    #[track_caller]
    pub fn ifft(&self, n: Option<usize>, axis: impl Size, norm: FftNorm) -> Result<Tensor> {
        self.one_axis(complex_kind("ifft", false), n, axis, norm, &Source::caller())
    }

    /// The transform of real numbers along an axis: `n/2 + 1` complex numbers, pairs on a new last axis; the others are their conjugates.
    ///
    /// ```
    /// use kiln::{DType, Device, FftNorm, Tensor};
    /// let x = Tensor::arange(6, DType::F32, Device::Cpu)?;
    /// let y = x.rfft(None, 0, FftNorm::Backward)?;
    /// assert_eq!(y.shape(), [4, 2]);
    /// assert!(y.irfft(Some(6), 0, FftNorm::Backward)?.allclose(&x, 0.0, 1e-5)?);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn rfft(&self, n: Option<usize>, axis: impl Size, norm: FftNorm) -> Result<Tensor> {
        let kind = Kind { from_real: true, ..complex_kind("rfft", true) };
        self.one_axis(kind, n, axis, norm, &Source::caller())
    }

    /// The inverse of [`Tensor::rfft`]: `n` real numbers, by default an even number of them.
    #[track_caller]
    pub fn irfft(&self, n: Option<usize>, axis: impl Size, norm: FftNorm) -> Result<Tensor> {
        let kind = Kind { to_real: true, ..complex_kind("irfft", false) };
        self.one_axis(kind, n, axis, norm, &Source::caller())
    }

    /// [`Tensor::fft`] along several axes, `..` for all; `lengths` as many.
    #[track_caller]
    pub fn fftn(&self, lengths: Option<&[usize]>, axes: impl Axes, norm: FftNorm) -> Result<Tensor> {
        self.several_axes(complex_kind("fftn", true), axes, lengths, norm, &Source::caller())
    }

    /// The inverse of [`Tensor::fftn`].
    #[track_caller]
    pub fn ifftn(&self, lengths: Option<&[usize]>, axes: impl Axes, norm: FftNorm) -> Result<Tensor> {
        self.several_axes(complex_kind("ifftn", false), axes, lengths, norm, &Source::caller())
    }

    /// [`Tensor::rfft`] along the last of these axes, [`Tensor::fft`] along the others.
    #[track_caller]
    pub fn rfftn(&self, lengths: Option<&[usize]>, axes: impl Axes, norm: FftNorm) -> Result<Tensor> {
        let kind = Kind { from_real: true, ..complex_kind("rfftn", true) };
        self.several_axes(kind, axes, lengths, norm, &Source::caller())
    }

    /// The inverse of [`Tensor::rfftn`].
    #[track_caller]
    pub fn irfftn(&self, lengths: Option<&[usize]>, axes: impl Axes, norm: FftNorm) -> Result<Tensor> {
        let kind = Kind { to_real: true, ..complex_kind("irfftn", false) };
        self.several_axes(kind, axes, lengths, norm, &Source::caller())
    }

    /// [`Tensor::fftn`] of the last two axes.
    #[track_caller]
    pub fn fft2(&self, norm: FftNorm) -> Result<Tensor> {
        self.several_axes(complex_kind("fft2", true), [-2i64, -1], None, norm, &Source::caller())
    }

    /// The inverse of [`Tensor::fft2`].
    #[track_caller]
    pub fn ifft2(&self, norm: FftNorm) -> Result<Tensor> {
        self.several_axes(complex_kind("ifft2", false), [-2i64, -1], None, norm, &Source::caller())
    }

    /// [`Tensor::rfftn`] of the last two axes.
    #[track_caller]
    pub fn rfft2(&self, norm: FftNorm) -> Result<Tensor> {
        let kind = Kind { from_real: true, ..complex_kind("rfft2", true) };
        self.several_axes(kind, [-2i64, -1], None, norm, &Source::caller())
    }

    /// The inverse of [`Tensor::rfft2`]; `lengths` are those of the result.
    #[track_caller]
    pub fn irfft2(&self, lengths: Option<[usize; 2]>, norm: FftNorm) -> Result<Tensor> {
        let kind = Kind { to_real: true, ..complex_kind("irfft2", false) };
        self.several_axes(kind, [-2i64, -1], lengths.as_ref().map(|l| &l[..]), norm, &Source::caller())
    }

    /// Moves frequency 0 to the middle of an axis. The axis counts all axes of the tensor, those of pairs included.
    #[track_caller]
    pub fn fftshift(&self, axis: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("fftshift", axis, self.hint(), 0, &at)?;
        self.roll((self.length_of(axis, &at) / 2) as i64, axis)
    }

    /// The inverse of [`Tensor::fftshift`].
    #[track_caller]
    pub fn ifftshift(&self, axis: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("ifftshift", axis, self.hint(), 0, &at)?;
        self.roll(-((self.length_of(axis, &at) / 2) as i64), axis)
    }

    /// Complex numbers of real and imaginary parts: pairs on a new last axis.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let i = Tensor::complex(&Tensor::new([0f32], Device::Cpu)?, &Tensor::new([1f32], Device::Cpu)?)?;
    /// assert_eq!(i.complex_mul(&i)?.to_vec::<f32>()?, [-1., 0.]);
    /// assert_eq!((i.complex_abs()?.to_vec::<f32>()?, i.real()?.shape()), (vec![1.], &[1][..]));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn complex(real: &Tensor, imaginary: &Tensor) -> Result<Tensor> {
        real.paired("complex", imaginary, build::complex, &Source::caller())
    }

    /// Complex numbers of magnitudes and angles.
    #[track_caller]
    pub fn polar(magnitude: &Tensor, angle: &Tensor) -> Result<Tensor> {
        magnitude.paired("polar", angle, build::polar, &Source::caller())
    }

    fn paired(
        &self,
        name: &'static str,
        other: &Tensor,
        write: fn(&mut GraphBuilder, &NodeId, &NodeId) -> Result<NodeId, kiln_ir::Error>,
        at: &Source,
    ) -> Result<Tensor> {
        self.same_dtype(name, other, at)?;
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let (x, y) = build::broadcast(b, &inputs[0], &inputs[1])?;
            write(b, &x, &y)
        };
        eager::composite(name, &[], &[self, other], write, at)
    }

    /// The real parts of complex numbers.
    #[track_caller]
    pub fn real(&self) -> Result<Tensor> {
        self.expect_pairs("real", &Source::caller())?;
        self.select(-1, 0)
    }

    /// The imaginary parts of complex numbers.
    #[track_caller]
    pub fn imag(&self) -> Result<Tensor> {
        self.expect_pairs("imag", &Source::caller())?;
        self.select(-1, 1)
    }

    fn of_pairs(
        &self,
        name: &'static str,
        write: fn(&mut GraphBuilder, &NodeId, &NodeId) -> Result<NodeId, kiln_ir::Error>,
        at: &Source,
    ) -> Result<Tensor> {
        self.expect_pairs(name, at)?;
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let (real, imaginary) = build::complex_parts(b, &inputs[0])?;
            write(b, &real, &imaginary)
        };
        eager::composite(name, &[], &[self], write, at)
    }

    /// The magnitudes of complex numbers.
    #[track_caller]
    pub fn complex_abs(&self) -> Result<Tensor> {
        self.of_pairs("complex_abs", build::hypot, &Source::caller())
    }

    /// The angles of complex numbers, −π to π.
    #[track_caller]
    pub fn angle(&self) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, real: &NodeId, imaginary: &NodeId| build::atan2(b, imaginary, real);
        self.of_pairs("angle", write, &Source::caller())
    }

    /// The conjugates of complex numbers.
    #[track_caller]
    pub fn conj(&self) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, real: &NodeId, imaginary: &NodeId| {
            let imaginary = build::neg(b, imaginary)?;
            build::complex(b, real, &imaginary)
        };
        self.of_pairs("conj", write, &Source::caller())
    }

    /// The product of complex numbers, whose axes before the pairs broadcast.
    #[track_caller]
    pub fn complex_mul(&self, other: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        self.expect_pairs("complex_mul", &at)?;
        other.expect_pairs("complex_mul", &at)?;
        self.same_dtype("complex_mul", other, &at)?;
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::complex_mul(b, &inputs[0], &inputs[1]);
        eager::composite("complex_mul", &[], &[self, other], write, &at)
    }

    /// Short-time Fourier transform of `[…, samples]`: `n_fft` samples at every `hop`, times a window, transformed:
    /// `[…, n_fft/2 + 1, frames, 2]`. With `center` frames are around their places, of a signal that is reflected at its ends.
    #[track_caller]
    pub fn stft(&self, n_fft: usize, hop: usize, window: Option<&Tensor>, center: bool) -> Result<Tensor> {
        let at = Source::caller();
        if self.rank() == 0 {
            let expected = "one axis or more";
            return Err(Error::WrongRank { op: "stft", shape: vec![], expected, at });
        }
        if hop == 0 || n_fft == 0 {
            let (name, expected) = (if hop == 0 { "hop" } else { "n_fft" }, "one sample or more");
            return Err(Error::BadArgument { op: "stft", name, value: 0usize.into(), expected, at });
        }
        let last = self.rank() - 1;
        let signal = match center {
            true => self.pad_axis(last, n_fft / 2, n_fft / 2, kiln_ir::build::PadMode::Reflect)?,
            false => self.clone(),
        };
        let frames = signal.unfold(last, n_fft, hop)?;
        let frames = match window {
            Some(window) => frames.mul(window)?,
            None => frames,
        };
        // […, frames, bins, 2] as PyTorch has it: bins first.
        let spectrum = frames.rfft(None, -1, FftNorm::Backward)?;
        spectrum.transpose(last, last + 1)
    }
}
