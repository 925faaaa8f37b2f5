//! Batch norms, with running statistics for evaluation.

use super::linear::value;
use super::{Forward, Mode, Module, init};
use crate::{DType, Error, Result, Tensor, Var};
use kiln_ir::Source;

/// The parameters and statistics that batch norms of any rank share.
#[derive(Debug, Clone, Module)]
pub struct BatchNorm {
    /// `[channels]`.
    pub weight: Option<Var>,
    /// `[channels]`.
    pub bias: Option<Var>,
    /// The running mean, used in evaluation. Without it, the statistics of the batch are always used.
    #[module(buffer)]
    pub running_mean: Option<Var>,
    /// The running variance, unbiased.
    #[module(buffer)]
    pub running_var: Option<Var>,
    /// The number of batches in the running statistics.
    #[module(buffer)]
    pub num_batches_tracked: Option<Var>,
    /// The weight of a new batch in the running statistics; `None` weighs all batches equally.
    pub momentum: Option<f64>,
    /// Added to the variance, so that the divisor is not 0.
    pub epsilon: f64,
    /// In training the statistics are those of the batch, in evaluation the running ones.
    pub mode: Mode,
}

impl BatchNorm {
    #[track_caller]
    fn new(channels: usize) -> Result<BatchNorm> {
        let (device, _) = init::place();
        Ok(BatchNorm {
            weight: Some(init::parameter("weight", &init::ones(channels)?)),
            bias: Some(init::parameter("bias", &init::zeros(channels)?)),
            running_mean: Some(Var::named("running_mean", &init::zeros(channels)?)),
            running_var: Some(Var::named("running_var", &init::ones(channels)?)),
            num_batches_tracked: Some(Var::named("num_batches_tracked", &Tensor::scalar(0, DType::I64, device)?)),
            momentum: Some(0.1),
            epsilon: 1e-5,
            mode: Mode::new(),
        })
    }

    #[track_caller]
    fn normalize(&self, x: &Tensor) -> Result<Tensor> {
        let (weight, bias) = (value(&self.weight), value(&self.bias));
        let running = (&self.running_mean, &self.running_var);
        if let ((Some(mean), Some(var)), false) = (running, self.mode.is_training()) {
            return x.batch_norm(&mean.get(), &var.get(), weight.as_ref(), bias.as_ref(), self.epsilon);
        }
        let axes: Vec<usize> = (0..x.rank()).filter(|&axis| axis != 1).collect();
        let count = x.elements() / x.shape()[1].max(1);
        if self.mode.is_training() && count < 2 {
            let (op, shape) = ("batch_norm", x.shape().to_vec());
            let expected = "more than one element a channel in training";
            return Err(Error::WrongRank { op, shape, expected, at: Source::caller() });
        }
        let mean = x.mean(&axes)?;
        let var = x.var_with(&axes, 0.0, false)?;
        if let ((Some(running_mean), Some(running_var)), true) = (running, self.mode.is_training()) {
            let share = self.share()?;
            // The running variance is the unbiased one.
            let unbiased = var.detach().mul(count as f64 / (count - 1) as f64)?;
            running_mean.set(&running_mean.get().lerp(&mean.detach(), &share)?)?;
            running_var.set(&running_var.get().lerp(&unbiased, &share)?)?;
        }
        x.batch_norm(&mean, &var, weight.as_ref(), bias.as_ref(), self.epsilon)
    }

    /// Counts the batch; gives its share in the running statistics.
    #[track_caller]
    fn share(&self) -> Result<Tensor> {
        let (device, dtype) = self.running_mean.as_ref().map_or_else(init::place, |var| (var.device(), var.dtype()));
        if let Some(count) = &self.num_batches_tracked {
            count.add_assign(1)?;
            if self.momentum.is_none() {
                return count.get().to_dtype(dtype)?.recip();
            }
        }
        Tensor::scalar(self.momentum.unwrap_or(0.0), dtype, device)
    }

    fn without_affine(self) -> BatchNorm {
        BatchNorm { weight: None, bias: None, ..self }
    }

    fn without_running_stats(self) -> BatchNorm {
        BatchNorm { running_mean: None, running_var: None, num_batches_tracked: None, ..self }
    }
}

macro_rules! batch_norms {
    ($($(#[$doc:meta])* $name:ident, $ranks:expr, $expected:literal;)*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Module)]
        pub struct $name(pub BatchNorm);

        impl $name {
            /// Makes a batch norm of `channels` channels, with a momentum of 0.1 and an epsilon of 1e-5.
            #[track_caller]
            pub fn new(channels: usize) -> Result<$name> {
                Ok($name(BatchNorm::new(channels)?))
            }

            /// Removes weight and bias.
            pub fn without_affine(self) -> $name {
                $name(self.0.without_affine())
            }

            /// Removes the running statistics: those of the batch are always used.
            pub fn without_running_stats(self) -> $name {
                $name(self.0.without_running_stats())
            }
        }

        impl std::ops::Deref for $name {
            type Target = BatchNorm;
            fn deref(&self) -> &BatchNorm {
                &self.0
            }
        }

        impl Forward for $name {
            type Output = Tensor;
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _line = Source::scope();
                if !$ranks.contains(&x.rank()) {
                    let (op, shape) = ("batch_norm", x.shape().to_vec());
                    return Err(Error::WrongRank { op, shape, expected: $expected, at: Source::caller() });
                }
                self.0.normalize(x)
            }
        }
    )* };
}

batch_norms! {
    /// Batch norm of `[n, channels]` or `[n, channels, length]`.
    ///
    /// ```
    /// use kiln::nn::{BatchNorm1d, Forward, Module};
    /// use kiln::{DType, Device, Tensor};
    /// let norm = BatchNorm1d::new(2)?;
    /// let x = Tensor::new([[1f32, 5.], [3., 5.]], Device::Cpu)?;
    /// assert!(norm.forward(&x)?.mean(0)?.allclose(&Tensor::zeros(2, DType::F32, Device::Cpu)?, 0.0, 1e-6)?);
    /// let mean = norm.running_mean.as_ref().map(|var| var.get().to_vec::<f32>());
    /// assert_eq!(mean, Some(Ok(vec![0.2, 0.5])));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    BatchNorm1d, 2..=3, "[n, channels] or [n, channels, length]";
    /// Batch norm of `[n, channels, height, width]`.
    ///
    /// ```
    /// use kiln::nn::{BatchNorm2d, Forward};
    /// use kiln::{DType, Device, Tensor};
    /// let norm = BatchNorm2d::new(3)?;
    /// assert_eq!(norm.forward(&Tensor::ones([2, 3, 4, 4], DType::F32, Device::Cpu)?)?.shape(), [2, 3, 4, 4]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    BatchNorm2d, 4..=4, "[n, channels, height, width]";
}
