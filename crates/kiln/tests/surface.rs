//! Tensor methods against PyTorch's functions: results and gradients, eager and compiled. The numbers are in
//! `reference/surface.safetensors`, made by `reference/surface.py`; every case there has a line here.

use kiln::{
    Bag, CrossEntropy, Device, FftNorm, Filter, MatrixNorm, Pool, Reduction, ResampleOptions, Result, RoiAlignOptions,
    SampleMode, SamplePadding, Tensor,
};
use std::collections::{BTreeMap, BTreeSet};

type Run = fn(&[Tensor]) -> Result<Vec<Tensor>>;

/// The results of a method: one tensor, or several.
trait Results {
    fn list(self) -> Vec<Tensor>;
}

impl Results for Tensor {
    fn list(self) -> Vec<Tensor> {
        vec![self]
    }
}

impl Results for (Tensor, Tensor) {
    fn list(self) -> Vec<Tensor> {
        vec![self.0, self.1]
    }
}

impl Results for (Tensor, Tensor, Tensor) {
    fn list(self) -> Vec<Tensor> {
        vec![self.0, self.1, self.2]
    }
}

impl Results for Vec<Tensor> {
    fn list(self) -> Vec<Tensor> {
        self
    }
}

macro_rules! cases {
    ($($name:literal => |$x:ident| $run:expr;)*) => {
        &[$(($name, |$x: &[Tensor]| -> Result<Vec<Tensor>> { Ok($run?.list()) })),*]
    };
}

const BACKWARD: FftNorm = FftNorm::Backward;
const MEAN: Reduction = Reduction::Mean;

fn curve(filter: Filter, antialias: bool) -> ResampleOptions {
    ResampleOptions { filter, align_corners: false, antialias, scales: None }
}

fn sampled(x: &[Tensor], mode: SampleMode, padding: SamplePadding) -> Result<Tensor> {
    x[0].grid_sample(&x[1], mode, padding, false)
}

fn sign() -> Result<Tensor> {
    Tensor::new([1f32, -1., -1.], Device::Cpu)?.expand([4, 3])
}

fn positive(x: &Tensor) -> Result<Tensor> {
    x.matmul(&x.transpose(-2, -1)?)?.add(&Tensor::eye(4, x.dtype(), Device::Cpu)?)
}

fn even(x: &Tensor) -> Result<Tensor> {
    x.add(&x.transpose(-2, -1)?)
}

fn einsum(equation: &str, x: &[Tensor]) -> Result<Tensor> {
    Tensor::einsum(equation, &x.iter().collect::<Vec<_>>())
}

fn regions() -> Result<Tensor> {
    let regions =
        [[0f32, 1.0, 1.0, 6.5, 5.0], [1.0, 0.0, 2.5, 7.9, 7.9], [0.0, 3.0, 3.0, 3.2, 3.1], [1.0, -2.0, 4.0, 9.0, 12.0]];
    Tensor::new(regions, Device::Cpu)
}

fn regional(samples: Option<usize>, aligned: bool, scale: f64) -> RoiAlignOptions {
    RoiAlignOptions { size: [2, 3], scale, samples, aligned }
}

const CASES: &[(&str, Run)] = cases! {
    "fft" => |x| x[0].fft(None, -1, BACKWARD);
    "fft_axis_norm" => |x| x[0].fft(Some(5), 0, FftNorm::Ortho);
    "fft_prime" => |x| x[0].fft(None, 1, BACKWARD);
    "ifft_prime" => |x| x[0].ifft(None, 0, BACKWARD);
    "ifft" => |x| x[0].ifft(None, -1, FftNorm::Forward);
    "rfft" => |x| x[0].rfft(None, -1, BACKWARD);
    "rfft_odd" => |x| x[0].rfft(None, 0, FftNorm::Forward);
    "irfft" => |x| x[0].irfft(None, -1, BACKWARD);
    "irfft_odd" => |x| x[0].irfft(Some(15), -1, BACKWARD);
    "fft2" => |x| x[0].fft2(BACKWARD);
    "ifft2" => |x| x[0].ifft2(FftNorm::Ortho);
    "rfft2" => |x| x[0].rfft2(BACKWARD);
    "irfft2" => |x| x[0].irfft2(None, BACKWARD);
    "fftn" => |x| x[0].fftn(None, .., BACKWARD);
    "rfftn" => |x| x[0].rfftn(Some(&[4, 8]), [0, 2], BACKWARD);
    "irfftn" => |x| x[0].irfftn(None, [0, 1], BACKWARD);
    "stft" => |x| x[0].stft(8, 4, Some(&x[1]), true);
    "fftshift" => |x| x[0].fftshift(0);
    "ifftshift" => |x| x[0].ifftshift(0);
    "complex_mul" => |x| x[0].complex_mul(&x[1]);
    "complex_abs" => |x| x[0].complex_abs();
    "angle" => |x| x[0].angle();
    "polar" => |x| Tensor::polar(&x[0], &x[1]);
    "conj" => |x| x[0].conj();
    "log10" => |x| x[0].log10();
    "lgamma" => |x| x[0].lgamma();
    "sqrt" => |x| x[0].sqrt();
    "erfc" => |x| x[0].erfc();
    "digamma" => |x| x[0].digamma();
    "sinc" => |x| x[0].sinc();
    "frac" => |x| x[0].frac();
    "deg2rad" => |x| x[0].deg2rad();
    "rad2deg" => |x| x[0].rad2deg();
    "tanhshrink" => |x| x[0].tanhshrink();
    "quick_gelu" => |x| x[0].quick_gelu();
    "celu" => |x| x[0].celu(1.5);
    "hardtanh" => |x| x[0].hardtanh(-0.5, 0.75);
    "threshold" => |x| x[0].threshold(0.2, -3.0);
    "hardshrink" => |x| x[0].hardshrink(0.6);
    "softshrink" => |x| x[0].softshrink(0.6);
    "softplus_with" => |x| x[0].softplus_with(2.0, 3.0);
    "logit" => |x| x[0].logit(Some(0.2));
    "prelu" => |x| x[0].prelu(&x[1]);
    "hypot" => |x| x[0].hypot(&x[1]);
    "copysign" => |x| x[0].copysign(&x[1]);
    "ldexp" => |x| x[0].ldexp(&x[1]);
    "fmax" => |x| x[0].fmax(&x[1]);
    "fmin" => |x| x[0].fmin(&x[1]);
    "logaddexp" => |x| x[0].logaddexp(&x[1]);
    "xlogy" => |x| x[0].xlogy(&x[1]);
    "xlogy_grad" => |x| x[0].xlogy(&x[1]);
    "rsub" => |x| x[0].rsub(2.5);
    "heaviside" => |x| x[0].heaviside(&x[1]);
    "signbit" => |x| x[0].signbit();
    "round_decimals" => |x| x[0].round_decimals(2);
    "nan_to_num" => |x| x[0].nan_to_num(Some(7.0), None, None);
    "addcmul" => |x| x[0].addcmul(&x[1], &x[2], 0.5);
    "addcdiv" => |x| x[0].addcdiv(&x[1], &x[2], 0.5);
    "gcd" => |x| x[0].gcd(&x[1]);
    "lcm" => |x| x[0].lcm(&x[1]);
    "grid_sample_bilinear_zeros" => |x| sampled(x, SampleMode::Bilinear, SamplePadding::Zeros);
    "grid_sample_bilinear_border" => |x| sampled(x, SampleMode::Bilinear, SamplePadding::Border);
    "grid_sample_bilinear_reflection" => |x| sampled(x, SampleMode::Bilinear, SamplePadding::Reflection);
    "grid_sample_nearest_zeros" => |x| sampled(x, SampleMode::Nearest, SamplePadding::Zeros);
    "grid_sample_nearest_border" => |x| sampled(x, SampleMode::Nearest, SamplePadding::Border);
    "grid_sample_nearest_reflection" => |x| sampled(x, SampleMode::Nearest, SamplePadding::Reflection);
    "grid_sample_bicubic_zeros" => |x| sampled(x, SampleMode::Bicubic, SamplePadding::Zeros);
    "grid_sample_bicubic_border" => |x| sampled(x, SampleMode::Bicubic, SamplePadding::Border);
    "grid_sample_bicubic_reflection" => |x| sampled(x, SampleMode::Bicubic, SamplePadding::Reflection);
    "affine_grid" => |x| x[0].affine_grid([2, 3, 4, 5], false);
    "bicubic" => |x| x[0].resample(&[7, 3], &curve(Filter::Cubic, false));
    "bicubic_aa" => |x| x[0].resample(&[3, 4], &curve(Filter::Cubic, true));
    "bilinear_aa" => |x| x[0].resample(&[3, 4], &curve(Filter::Linear, true));
    "nearest_exact" => |x| x[0].interpolate_nearest_exact(&[7, 3]);
    "im2col" => |x| x[0].im2col(&Pool { dilation: [1, 2], padding: [1, 1], stride: [2, 1], ..Pool::new([2, 3]) });
    "col2im" => |x| x[0].col2im([5, 6], &Pool { padding: [1, 1], stride: [1, 1], ..Pool::new([2, 3]) });
    "max_pool1d_with_indices" =>
        |x| x[0].max_pool1d_with_indices(&Pool { stride: [2], padding: [1], ..Pool::new([3]) });
    "max_pool2d_with_indices" =>
        |x| x[0].max_pool2d_with_indices(&Pool { stride: [2, 1], padding: [1, 1], ..Pool::new([2, 3]) });
    "max_pool3d_with_indices" => |x| x[0].max_pool3d_with_indices(&Pool::new([2, 2, 2]));
    "adaptive_max_pool1d" => |x| x[0].adaptive_max_pool1d(3);
    "adaptive_max_pool2d" => |x| x[0].adaptive_max_pool2d([3, 2]);
    "adaptive_max_pool3d" => |x| x[0].adaptive_max_pool3d([2, 2, 1]);
    "max_unpool2d" => |x| x[0].max_unpool2d(&x[1], [6, 6]);
    "lp_pool2d" => |x| x[0].lp_pool2d(3.0, &Pool::new([2, 2]));
    "bucketize" => |x| x[0].bucketize(&x[1], false);
    "bucketize_many" => |x| x[0].bucketize(&x[1], true);
    "searchsorted" => |x| x[0].searchsorted(&x[1], false);
    "histc" => |x| x[0].histc(5, -1.0, 1.0);
    "histogram" => |x| x[0].histogram(&x[1], Some(&x[2]));
    "bincount" => |x| x[0].bincount(None, 3);
    "bincount_weights" => |x| x[0].bincount(Some(&x[1]), 0);
    "unique_with_counts" => |x| x[0].unique_with_counts();
    "unique_consecutive" => |x| x[0].unique_consecutive();
    "isin" => |x| x[0].isin(&x[1]);
    "kthvalue" => |x| x[0].kthvalue(2, 0);
    "median" => |x| x[0].median(1);
    "quantile" => |x| x[0].quantile(0.3, 1);
    "cdist_0.0" => |x| x[0].cdist(&x[1], 0.0);
    "cdist_1.0" => |x| x[0].cdist(&x[1], 1.0);
    "cdist_2.0" => |x| x[0].cdist(&x[1], 2.0);
    "cdist_3.0" => |x| x[0].cdist(&x[1], 3.0);
    "cdist_inf" => |x| x[0].cdist(&x[1], f64::INFINITY);
    "pdist" => |x| x[0].pdist(2.0);
    "embedding_bag_sum" => |x| x[0].embedding_bag(&x[1], &x[2], Bag::Sum);
    "embedding_bag_mean" => |x| x[0].embedding_bag(&x[1], &x[2], Bag::Mean);
    "embedding_bag_max" => |x| x[0].embedding_bag(&x[1], &x[2], Bag::Max);
    "cdist_self" => |x| x[0].cdist(&x[0], 2.0);
    "pairwise_distance" => |x| x[0].pairwise_distance(&x[1], 2.0, 1e-6);
    "cosine_similarity" => |x| x[0].cosine_similarity(&x[1], 1, 1e-8);
    "normalize" => |x| x[0].normalize(2.0, 0, 1e-12);
    "addmm" => |x| x[0].addmm(&x[1], &x[2], 0.5, 2.0);
    "addmv" => |x| x[0].addmv(&x[1], &x[2], 0.5, 2.0);
    "baddbmm" => |x| x[0].baddbmm(&x[1], &x[2], 0.0, 1.0);
    "addbmm" => |x| x[0].addbmm(&x[1], &x[2], 1.0, 1.0);
    "mv" => |x| x[0].mv(&x[1]);
    "tensordot" => |x| x[0].tensordot(&x[1], 2);
    "kron" => |x| x[0].kron(&x[1]);
    "cross" => |x| x[0].cross(&x[1], 0);
    "trace" => |x| x[0].trace();
    "diag_embed" => |x| x[0].diag_embed(2);
    "diag_embed_below" => |x| x[0].diag_embed(-1);
    "select_scatter" => |x| x[0].select_scatter(&x[1], 1, -2);
    "diagonal_scatter" => |x| x[0].diagonal_scatter(&x[1], 1);
    "diagonal_scatter_below" => |x| x[0].diagonal_scatter(&x[1], -1);
    "masked_scatter" => |x| x[0].masked_scatter(&x[1], &x[2]);
    "index_fill" => |x| x[0].index_fill(1, &x[1], 7.0);
    "take" => |x| x[0].take(&x[1]);
    "index_axes" => |x| x[0].index_axes(&[Some(&x[1]), None, Some(&x[2])]);
    "as_strided" => |x| x[0].as_strided(&[3, 4], &[2, 1], 1);
    "rot90" => |x| x[0].rot90(1, [0, 1]);
    "rot270" => |x| x[0].rot90(3, [0, 1]);
    "meshgrid" => |x| Tensor::meshgrid(&[&x[0], &x[1]]);
    "var_mean" => |x| x[0].var_mean(1, 1.0);
    "std_mean" => |x| x[0].std_mean(0, 0.0);
    "aminmax" => |x| x[0].aminmax(1);
    "count_nonzero" => |x| x[0].count_nonzero(0);
    "nansum" => |x| x[0].nansum(1);
    "nanmean" => |x| x[0].nanmean(1);
    "diff" => |x| x[0].diff(2, 1);
    "logcumsumexp" => |x| x[0].logcumsumexp(1);
    "cov" => |x| x[0].cov(1.0);
    "huber_loss" => |x| x[0].huber_loss(&x[1], 0.7, MEAN);
    "binary_cross_entropy" => |x| x[0].binary_cross_entropy(&x[1], MEAN);
    "kl_div" => |x| x[0].kl_div(&x[1], false, Reduction::Sum);
    "kl_div_log" => |x| x[0].kl_div(&x[1], true, Reduction::None);
    "poisson_nll_loss" => |x| x[0].poisson_nll_loss(&x[1], MEAN);
    "soft_margin_loss" => |x| x[0].soft_margin_loss(&sign()?, MEAN);
    "hinge_embedding_loss" => |x| x[0].hinge_embedding_loss(&sign()?, 0.5, MEAN);
    "nll_loss" => |x| x[0].log_softmax(1)?
        .nll_loss(&x[1], &CrossEntropy { weight: Some(x[2].detach()), ..CrossEntropy::default() });
    "cholesky" => |x| positive(&x[0])?.cholesky();
    "cholesky_f32" => |x| positive(&x[0])?.cholesky();
    "cholesky_solve" => |x| positive(&x[0])?.cholesky()?.cholesky_solve(&x[1]);
    "solve" => |x| x[0].solve(&x[1]);
    "solve_broadcast" => |x| x[0].solve(&x[1]);
    "solve_vector" => |x| x[0].solve(&x[1]);
    "solve_triangular" => |x| x[0].solve_triangular(&x[1], true, false);
    "solve_triangular_unit" => |x| x[0].solve_triangular(&x[1], false, true);
    "inverse" => |x| x[0].inverse();
    "det" => |x| x[0].det();
    "slogdet" => |x| x[0].slogdet();
    "logdet" => |x| positive(&x[0])?.logdet();
    "lu" => |x| x[0].lu();
    "qr" => |x| x[0].qr();
    "qr_square" => |x| x[0].qr();
    "eigh" => |x| even(&x[0])?.eigh().and_then(|(values, vectors)| Ok((values, vectors.square()?)));
    "eigvalsh" => |x| even(&x[0])?.eigvalsh();
    "svd_tall" => |x| x[0].svd().and_then(|(u, values, vt)| Ok((u.square()?, values, vt.square()?)));
    "svd_wide" => |x| x[0].svd().and_then(|(u, values, vt)| Ok((u.square()?, values, vt.square()?)));
    "svdvals" => |x| x[0].svdvals();
    "lstsq" => |x| x[0].lstsq(&x[1]);
    "pinv" => |x| x[0].pinv(None);
    "matrix_norm_fro" => |x| x[0].matrix_norm(MatrixNorm::Frobenius);
    "matrix_norm_nuc" => |x| x[0].matrix_norm(MatrixNorm::Nuclear);
    "matrix_norm_2" => |x| x[0].matrix_norm(MatrixNorm::Spectral);
    "matrix_norm_1" => |x| x[0].matrix_norm(MatrixNorm::One);
    "matrix_norm_inf" => |x| x[0].matrix_norm(MatrixNorm::Infinity);
    "matrix_power" => |x| x[0].matrix_power(3);
    "matrix_power_inverse" => |x| x[0].matrix_power(-2);
    "matrix_rank" => |x| x[0].matmul(&x[0].transpose(-2, -1)?)?.matrix_rank(None);
    "triplet_margin_loss" => |x| x[0].triplet_margin_loss(&x[1], &x[2], 0.5, 2.0, MEAN);
    "einsum ij,jk->ik" => |x| einsum("ij,jk->ik", x);
    "einsum bij,bjk->bik" => |x| einsum("bij,bjk->bik", x);
    "einsum bhqd,bhkd->bhqk" => |x| einsum("bhqd,bhkd->bhqk", x);
    "einsum ii->i" => |x| einsum("ii->i", x);
    "einsum ii" => |x| einsum("ii", x);
    "einsum ij" => |x| einsum("ij", x);
    "einsum ba" => |x| einsum("ba", x);
    "einsum ij->" => |x| einsum("ij->", x);
    "einsum i,j->ij" => |x| einsum("i,j->ij", x);
    "einsum i,i" => |x| einsum("i,i", x);
    "einsum ...ij,...jk->...ik" => |x| einsum("...ij,...jk->...ik", x);
    "einsum i...,...j->ij..." => |x| einsum("i...,...j->ij...", x);
    "einsum ..." => |x| einsum("...", x);
    "einsum ij,jk,kl->il" => |x| einsum("ij,jk,kl->il", x);
    "einsum ab,ab,ab->b" => |x| einsum("ab,ab,ab->b", x);
    "einsum bii->bi" => |x| einsum("bii->bi", x);
    "einsum ijj,jk->ik" => |x| einsum("ijj,jk->ik", x);
    "einsum i j , j k -> k i" => |x| einsum("i j , j k -> k i", x);
    "einsum aB,Bc->ac" => |x| einsum("aB,Bc->ac", x);
    "einsum ij,ij->ij" => |x| einsum("ij,ij->ij", x);
    "einsum ij,kj" => |x| einsum("ij,kj", x);
    "einsum bn,anm,bm->ba" => |x| einsum("bn,anm,bm->ba", x);
    "einsum ab,b->a" => |x| einsum("ab,b->a", x);
    "einsum ,ij->ij" => |x| einsum(",ij->ij", x);
    "einsum ij,...->...i" => |x| einsum("ij,...->...i", x);
    "roi_align_fixed" => |x| x[0].roi_align(&regions()?, &regional(Some(2), true, 1.0));
    "roi_align_adaptive" => |x| x[0].roi_align(&regions()?, &regional(None, false, 0.5));
    "roi_align_old" => |x| x[0].roi_align(&regions()?, &regional(Some(3), false, 1.0));
};

struct Reference(BTreeMap<String, Tensor>);

impl Reference {
    fn load() -> Reference {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference/surface.safetensors");
        Reference(kiln::safetensors::load(path, Device::Cpu).unwrap())
    }

    /// The tensors `case/kind/0 …`, with their numbers.
    fn of(&self, case: &str, kind: &str) -> BTreeMap<usize, Tensor> {
        let start = format!("{case}/{kind}/");
        let numbered =
            self.0.iter().filter_map(|(name, t)| Some((name.strip_prefix(&start)?.parse().ok()?, t.clone())));
        numbered.collect()
    }
}

/// What differs, if anything does; NaN is itself.
fn difference(got: &Tensor, expected: &Tensor) -> Option<String> {
    if got.shape() != expected.shape() || got.dtype() != expected.dtype() {
        return Some(format!(
            "{:?} of {:?} for {:?} of {:?}",
            got.dtype(),
            got.shape(),
            expected.dtype(),
            expected.shape()
        ));
    }
    let wide = |t: &Tensor| t.to_dtype(kiln::DType::F64).unwrap().to_vec::<f64>().unwrap();
    let (a, b) = (wide(got), wide(expected));
    let scale = b.iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
    let far = |x: f64, y: f64| {
        !(x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= 1e-5 * scale.max(1.0) + 2e-5 * y.abs())
    };
    let place = a.iter().zip(&b).position(|(&x, &y)| far(x, y))?;
    Some(format!("at {place}: {} for {}", a[place], b[place]))
}

/// Results and, where cotangents are given, gradients by the inputs that are floats.
fn outcome(run: Run, inputs: &[Tensor], cotangents: &BTreeMap<usize, Tensor>) -> Result<Vec<Tensor>> {
    let inputs: Vec<Tensor> = inputs.iter().map(Tensor::requires_grad).collect();
    let mut results = run(&inputs)?;
    let mut loss: Option<Tensor> = None;
    for (&i, cotangent) in cotangents {
        let part = results[i].mul(cotangent)?.sum(..)?;
        loss = Some(match loss {
            Some(loss) => loss.add(&part)?,
            None => part,
        });
    }
    if let Some(loss) = loss {
        let by: Vec<&Tensor> = inputs.iter().filter(|t| t.has_tape()).collect();
        let gradients = loss.gradients(&by)?;
        for tensor in by {
            results.push(match gradients.get(tensor) {
                Some(gradient) => gradient.clone(),
                None => tensor.zeros_like()?.detach(),
            });
        }
    }
    Ok(results.iter().map(Tensor::detach).collect())
}

#[test]
fn methods_agree_with_pytorch_eager_and_compiled() {
    let reference = Reference::load();
    let known: BTreeSet<&str> = reference.0.keys().filter_map(|name| name.split('/').next()).collect();
    let listed: BTreeSet<&str> = CASES.iter().map(|(name, _)| *name).collect();
    assert_eq!(known, listed);
    let mut wrong = Vec::new();
    for &(name, run) in CASES {
        let inputs: Vec<Tensor> = reference.of(name, "input").into_values().collect();
        let cotangents = reference.of(name, "cotangent");
        let mut expected: Vec<Tensor> = reference.of(name, "output").into_values().collect();
        let gradients = reference.of(name, "grad");
        if !cotangents.is_empty() {
            for (i, input) in inputs.iter().enumerate().filter(|(_, t)| t.dtype().is_float()) {
                expected.push(gradients.get(&i).cloned().unwrap_or_else(|| input.zeros_like().unwrap()));
            }
        }
        let compiled = kiln::compile({
            let cotangents = cotangents.clone();
            move |x: &Vec<Tensor>| outcome(run, x, &cotangents)
        });
        let runs = [("eager", outcome(run, &inputs, &cotangents)), ("compiled", compiled.call(&inputs))];
        for (how, got) in runs {
            match got {
                Err(error) => wrong.push(format!("{name}, {how}: {error}")),
                Ok(got) if got.len() != expected.len() => wrong.push(format!("{name}, {how}: {} results", got.len())),
                Ok(got) => {
                    let differs = got.iter().zip(&expected).enumerate();
                    let differs = differs.filter_map(|(i, (got, want))| Some((i, difference(got, want)?)));
                    wrong.extend(differs.map(|(i, text)| format!("{name}, {how}, result {i}: {text}")));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Elements that lie further from the largest than exponents reach.
#[test]
fn running_sums_of_exponentials_keep_what_is_far_below() {
    let masked = [-1e9f32, -1e9, 2.0, 3.0, -1e9, 3.0];
    let infinite = [800.0, 1.0, f32::INFINITY, 0.0, f32::NEG_INFINITY, 5.0];
    let none = [f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0, 0.0, f32::NAN, 1.0];
    let x = Tensor::from_vec([masked, infinite, none].concat(), [3, 6], Device::Cpu).unwrap();
    let three = 3.0 + (1.0 + (-1f32).exp()).ln();
    let four = 3.0 + (2.0 + (-1f32).exp()).ln();
    let rows = [
        [-1e9, -1e9, 2.0, three, three, four],
        [800.0, 800.0, f32::INFINITY, f32::INFINITY, f32::INFINITY, f32::INFINITY],
        [f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0, 2f32.ln(), f32::NAN, f32::NAN],
    ];
    let compiled = kiln::compile(|x: &Tensor| x.logcumsumexp(-1));
    for got in [x.logcumsumexp(-1).unwrap(), compiled.call(&x).unwrap()] {
        let got: Vec<f32> = got.to_vec().unwrap();
        for (got, want) in got.iter().zip(rows.as_flattened()) {
            assert!(got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() < 1e-5, "{got} {want}");
        }
    }
}
