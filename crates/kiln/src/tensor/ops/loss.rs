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

    /// A loss of two values of one shape, reduced.
    fn reduced_loss(
        &self,
        op: &'static str,
        target: &Tensor,
        numbers: &[f64],
        reduction: Reduction,
        write: impl Fn(&mut GraphBuilder, &NodeId, &NodeId) -> Result<NodeId, kiln_ir::Error>,
        at: &Source,
    ) -> Result<Tensor> {
        let (x, target) = (&self.autocast(op, at)?, &target.autocast(op, at)?);
        x.same_dtype(op, target, at)?;
        if !self.is_shaped_like(target, at) {
            let (lhs, rhs) = (self.hint().to_vec(), target.hint().to_vec());
            return Err(Error::ShapeMismatch { op, lhs, rhs, sizes: None, at: at.clone() });
        }
        let mut key: Vec<Param> = numbers.iter().map(|&n| n.into()).collect();
        key.push((reduction as i64).into());
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let single = write(b, &inputs[0], &inputs[1])?;
            reduce(b, &single, reduction)
        };
        eager::composite(op, &key, &[x, target], write, at)
    }

    /// Huber's loss: d²/2 up to a distance of `delta`, delta·(|d| − delta/2) beyond.
    #[track_caller]
    pub fn huber_loss(&self, target: &Tensor, delta: f64, reduction: Reduction) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, x: &NodeId, y: &NodeId| {
            let smooth = build::smooth_l1_loss(b, x, y, delta, Reduction::None)?;
            build::mul_scalar(b, &smooth, delta)
        };
        self.reduced_loss("huber_loss", target, &[delta], reduction, write, &Source::caller())
    }

    /// −(y·ln x + (1 − y)·ln(1 − x)) of probabilities x; each logarithm is −100 at the least.
    #[track_caller]
    pub fn binary_cross_entropy(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, x: &NodeId, y: &NodeId| {
            let one = build::full_like(b, x, 1.0)?;
            let (rest, others) = (build::sub(b, &one, x)?, build::sub(b, &one, y)?);
            let mut sides = Vec::with_capacity(2);
            for (probability, share) in [(x, y), (&rest, &others)] {
                // The logarithm is not taken at 0, where its slope is infinite.
                let none = build::compare_scalar(b, kiln_ir::CompareOp::Eq, probability, 0.0)?;
                let safe = build::masked_fill(b, probability, &none, 1.0)?;
                let log = build::log(b, &safe)?;
                let log = build::binary_scalar(b, kiln_ir::BinaryOp::Max, &log, -100.0)?;
                let log = build::masked_fill(b, &log, &none, -100.0)?;
                sides.push(build::mul(b, share, &log)?);
            }
            let sum = build::add(b, &sides[0], &sides[1])?;
            build::neg(b, &sum)
        };
        self.reduced_loss("binary_cross_entropy", target, &[], reduction, write, &Source::caller())
    }

    /// Kullback and Leibler's divergence y·(ln y − x) of logarithms x from probabilities y, or from their logarithms.
    #[track_caller]
    pub fn kl_div(&self, target: &Tensor, log_target: bool, reduction: Reduction) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, x: &NodeId, y: &NodeId| {
            if log_target {
                let distance = build::sub(b, y, x)?;
                let probability = build::exp(b, y)?;
                return build::mul(b, &probability, &distance);
            }
            let own = build::xlogy(b, y, y)?;
            let crossed = build::mul(b, y, x)?;
            build::sub(b, &own, &crossed)
        };
        self.reduced_loss("kl_div", target, &[log_target as u8 as f64], reduction, write, &Source::caller())
    }

    /// eˣ − y·x of logarithms of rates x and counts y.
    #[track_caller]
    pub fn poisson_nll_loss(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, x: &NodeId, y: &NodeId| {
            let (rate, product) = (build::exp(b, x)?, build::mul(b, y, x)?);
            build::sub(b, &rate, &product)
        };
        self.reduced_loss("poisson_nll_loss", target, &[], reduction, write, &Source::caller())
    }

    /// ln(1 + e^(−y·x)) of scores x and labels y, −1 or 1.
    #[track_caller]
    pub fn soft_margin_loss(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, x: &NodeId, y: &NodeId| {
            let product = build::mul(b, x, y)?;
            let negative = build::neg(b, &product)?;
            build::softplus(b, &negative, 1.0, f64::INFINITY)
        };
        self.reduced_loss("soft_margin_loss", target, &[], reduction, write, &Source::caller())
    }

    /// x of the pairs whose label is 1, max(0, margin − x) of those whose label is −1.
    #[track_caller]
    pub fn hinge_embedding_loss(&self, target: &Tensor, margin: f64, reduction: Reduction) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, x: &NodeId, y: &NodeId| {
            let negative = build::neg(b, x)?;
            let room = build::add_scalar(b, &negative, margin)?;
            let room = build::relu(b, &room)?;
            let positive = build::compare_scalar(b, kiln_ir::CompareOp::Gt, y, 0.0)?;
            build::select(b, &positive, x, &room)
        };
        self.reduced_loss("hinge_embedding_loss", target, &[margin], reduction, write, &Source::caller())
    }

    /// Minus the logarithm of a probability at the targets, this tensor holding logarithms `[n, classes, …]`. Targets of −100 are ignored.
    /// Labels cannot be smoothed here: that takes all classes, as [`Tensor::cross_entropy_with`] has them.
    #[track_caller]
    pub fn nll_loss(&self, targets: &Tensor, choices: &CrossEntropy) -> Result<Tensor> {
        let at = Source::caller();
        if self.rank() < 2 {
            let expected = "two axes or more";
            return Err(Error::WrongRank { op: "nll_loss", shape: self.hint().to_vec(), expected, at });
        }
        if choices.label_smoothing != 0.0 {
            let (name, expected) = ("label_smoothing", "it has to be 0: cross_entropy has it");
            return Err(Error::BadArgument {
                op: "nll_loss",
                name,
                value: choices.label_smoothing.into(),
                expected,
                at,
            });
        }
        let mut shape = self.sizes();
        shape.remove(1);
        let sizes = targets.sizes();
        if sizes.len() != shape.len() || !sizes.iter().zip(&shape).all(|(a, b)| a.equals(*b, &at)) {
            let (lhs, rhs) = (self.hint().to_vec(), targets.hint().to_vec());
            return Err(Error::ShapeMismatch { op: "nll_loss", lhs, rhs, sizes: None, at });
        }
        let this = self.autocast("nll_loss", &at)?;
        let ignored = targets.eq(choices.ignore_index)?;
        let safe = ignored.where_(&targets.zeros_like()?, targets)?;
        let picked = this.gather(1, &safe.unsqueeze(1)?)?.squeeze(1)?.neg()?;
        let share = ignored.logical_not()?.to_dtype(this.dtype())?;
        let share = match &choices.weight {
            Some(weight) => share.mul(&weight.autocast("nll_loss", &at)?.take(&safe)?)?,
            None => share,
        };
        let losses = ignored.where_(0.0, &picked.mul(&share)?)?;
        match choices.reduction {
            Reduction::None => Ok(losses),
            Reduction::Sum => losses.sum(..),
            Reduction::Mean => losses.sum(..)?.div(&share.sum(..)?),
        }
    }

    /// max(0, d(self, positive) − d(self, negative) + margin) with distances of the p-norm over the last axis, reduced.
    #[track_caller]
    pub fn triplet_margin_loss(
        &self,
        positive: &Tensor,
        negative: &Tensor,
        margin: f64,
        p: f64,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let at = Source::caller();
        let cast = |side: &Tensor| side.autocast("triplet_margin_loss", &at);
        let (this, positive, negative) = (cast(self)?, cast(positive)?, cast(negative)?);
        let near = this.pairwise_distance(&positive, p, 1e-6)?;
        let far = this.pairwise_distance(&negative, p, 1e-6)?;
        let losses = near.sub(&far)?.add(margin)?.relu()?;
        match reduction {
            Reduction::None => Ok(losses),
            Reduction::Sum => losses.sum(..),
            Reduction::Mean => losses.mean(..),
        }
    }
}

fn reduce(b: &mut GraphBuilder, x: &NodeId, reduction: Reduction) -> Result<NodeId, kiln_ir::Error> {
    let axes: Vec<usize> = (0..build::Emit::ty(b, x).rank()).collect();
    match reduction {
        Reduction::None => Ok(*x),
        Reduction::Sum => build::sum(b, x, &axes, false),
        Reduction::Mean => build::mean(b, x, &axes, false),
    }
}
