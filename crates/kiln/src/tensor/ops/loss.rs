//! Losses: the distance of a prediction from its target, as one number (or one per element).

use crate::tensor::autocast;
use crate::tensor::eager::{self, Param};
use crate::{Error, Result, Tensor};
use kiln_ir::build::{self, CrossEntropyOptions, GraphBuilder, Reduction};
use kiln_ir::{NodeId, Source};

/// Writes a loss of two values.
type Write = fn(&mut GraphBuilder, &NodeId, &NodeId, Reduction) -> Result<NodeId, kiln_ir::Error>;

/// Options of [`Tensor::cross_entropy_with`].
#[derive(Debug, Clone)]
pub struct CrossEntropy {
    /// A weight for each class.
    pub weight: Option<Tensor>,
    /// Targets of this value are ignored.
    pub ignore_index: i64,
    /// The part of the target that is spread evenly over the classes.
    pub label_smoothing: f64,
    /// How the single losses are reduced; a mean is weighted.
    pub reduction: Reduction,
}

impl Default for CrossEntropy {
    fn default() -> CrossEntropy {
        CrossEntropy { weight: None, ignore_index: -100, label_smoothing: 0.0, reduction: Reduction::Mean }
    }
}

impl Tensor {
    /// Cross entropy: the mean of −log softmax at the targets. This tensor holds logits `[n, classes, …]`, `targets` the
    /// class numbers `[n, …]`. Targets of −100 are ignored.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let logits = Tensor::new([[0f32, 0.], [0., 0.]], Device::Cpu)?;
    /// let loss = logits.cross_entropy(&Tensor::new([0i64, 1], Device::Cpu)?)?;
    /// assert!((loss.item::<f32>()? - 2f32.ln()).abs() < 1e-6);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn cross_entropy(&self, targets: &Tensor) -> Result<Tensor> {
        self.cross_entropy_with(targets, &CrossEntropy::default())
    }

    /// [`Tensor::cross_entropy`] with weights, smoothing or another reduction.
    #[track_caller]
    pub fn cross_entropy_with(&self, targets: &Tensor, choices: &CrossEntropy) -> Result<Tensor> {
        let at = Source::caller();
        let mut operands = vec![self, targets];
        operands.extend(&choices.weight);
        let cast = autocast::operands("cross_entropy", &operands, &at)?;
        let operands = cast.as_ref().map_or(operands, |cast| cast.iter().collect());
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let options = CrossEntropyOptions {
                weight: inputs.get(2).copied(),
                ignore_index: choices.ignore_index,
                label_smoothing: choices.label_smoothing,
                reduction: choices.reduction,
            };
            build::cross_entropy(b, &inputs[0], &inputs[1], &options)
        };
        let key: [Param; 3] =
            [choices.ignore_index.into(), choices.label_smoothing.into(), (choices.reduction as i64).into()];
        eager::composite("cross_entropy", &key, &operands, write, &at)
    }

    /// The mean of (x − y)².
    #[track_caller]
    pub fn mse_loss(&self, target: &Tensor) -> Result<Tensor> {
        self.pair_loss("mse_loss", target, build::mse_loss, &Source::caller())
    }

    /// The mean of |x − y|.
    #[track_caller]
    pub fn l1_loss(&self, target: &Tensor) -> Result<Tensor> {
        self.pair_loss("l1_loss", target, build::l1_loss, &Source::caller())
    }

    /// The mean of (x − y)²/2 up to a distance of 1 and |x − y| − 1/2 beyond.
    #[track_caller]
    pub fn smooth_l1_loss(&self, target: &Tensor) -> Result<Tensor> {
        let write: Write = |b, x, y, reduction| build::smooth_l1_loss(b, x, y, 1.0, reduction);
        self.pair_loss("smooth_l1_loss", target, write, &Source::caller())
    }

    /// The mean of −(y·ln σ(x) + (1 − y)·ln(1 − σ(x))), without overflow.
    #[track_caller]
    pub fn binary_cross_entropy_with_logits(&self, target: &Tensor) -> Result<Tensor> {
        let write: Write = build::binary_cross_entropy_with_logits;
        self.pair_loss("binary_cross_entropy_with_logits", target, write, &Source::caller())
    }

    /// Shapes have to be equal: a loss that broadcasts is a mistake more often than not.
    fn pair_loss(&self, op: &'static str, target: &Tensor, write: Write, at: &Source) -> Result<Tensor> {
        let (x, target) = (&self.autocast(op, at)?, &target.autocast(op, at)?);
        x.same_dtype(op, target, at)?;
        if !self.is_shaped_like(target, at) {
            let (lhs, rhs) = (self.hint().to_vec(), target.hint().to_vec());
            return Err(Error::ShapeMismatch { op, lhs, rhs, sizes: None, at: at.clone() });
        }
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| write(b, &inputs[0], &inputs[1], Reduction::Mean);
        eager::composite(op, &[], &[x, target], write, at)
    }
}
