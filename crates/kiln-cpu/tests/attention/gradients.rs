//! Gradients of attention, and the logarithms of its sums, against plain loops in f64.

use super::tensor::fenced;
use super::tensor::{Layout, Tensor, noise};
use super::{FLOATS, LAYOUTS, Sizes};
use kiln_cpu::backend::CpuBackend;
use kiln_cpu::features::Isa;
use kiln_ir::{DType, Dim, Scalar};
use kiln_kernels::kernel::{
    Access, AttentionBackwardBody, AttentionGradients, AttentionPart, BufferArg, Kernel, KernelBody,
};
use kiln_runtime::{Backend, RawBuffer};

/// q, k, v, gradient, logsumexp, delta, the three results, then the mask.
const RESULTS: usize = 6;

struct Case {
    tensors: Vec<Tensor>,
    sizes: Sizes,
    causal: bool,
    scale: f64,
    /// The gradients that are asked for: of queries, keys and values.
    wanted: [bool; 3],
}

fn case(sizes: Sizes, dtype: DType, layout: Layout) -> Case {
    let [b, h, g, t, s, d, e] = sizes;
    let mut next = noise(sizes.iter().fold(11, |seed, &n| seed * 31 + n as u64));
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let mut tensors = Vec::new();
    for shape in [[b, h, t, d], [b, g, s, d], [b, g, s, e], [b, h, t, e]] {
        tensors.push(Tensor::new(dtype, shape, layout, &mut next));
    }
    for _ in 0..2 {
        tensors.push(Tensor::new(wide, [b, h, t, 1], layout, &mut next));
    }
    for shape in [[b, h, t, d], [b, g, s, d], [b, g, s, e]] {
        tensors.push(Tensor::new(dtype, shape, layout, || 77.0));
    }
    let mut case = Case { tensors, sizes, causal: false, scale: 1.0 / (d.max(1) as f64).sqrt(), wanted: [true; 3] };
    case.use_own_logarithms();
    case
}

impl Case {
    fn score(&self, row: usize, key: usize) -> f64 {
        let [_, h, g, t, s, d, _] = self.sizes;
        let (batch, head, query) = (row / (h * t), row / t % h, row % t);
        if self.causal && key >= (query + 1 + s).saturating_sub(t).min(s) {
            return f64::NEG_INFINITY;
        }
        let kv = batch * g + head / (h / g);
        let (q, k) = (&self.tensors[0].values[row * d..][..d], &self.tensors[1].values[(kv * s + key) * d..][..d]);
        let score = q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() * self.scale;
        match self.tensors.get(9).map(|mask| (mask.dtype, mask.values[row * s + key])) {
            Some((DType::Bool, 0.0)) => f64::NEG_INFINITY,
            Some((DType::Bool, _)) | None => score,
            Some((_, added)) => score + added,
        }
    }

    fn logarithms(&self) -> Vec<f64> {
        let [b, h, _, t, s, ..] = self.sizes;
        let of_row = |row| {
            let scores: Vec<f64> = (0..s).map(|key| self.score(row, key)).collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - top).exp()).sum();
            if top == f64::NEG_INFINITY { top } else { top + sum.ln() }
        };
        (0..b * h * t).map(of_row).collect()
    }

    /// Logarithms of the scores, so that weights are those of a softmax.
    fn use_own_logarithms(&mut self) {
        let mut values = self.logarithms().into_iter();
        let old = &self.tensors[4];
        let layout = [old.dtype].map(|dtype| Tensor::new(dtype, old.shape, Layout::Packed, || values.next().unwrap()));
        let [new] = layout;
        self.tensors[4] = new;
    }

    fn hide(&mut self, mask: Tensor) {
        self.tensors.push(mask);
        self.use_own_logarithms();
    }

    fn kernel(&self, part: AttentionPart) -> Kernel {
        let [b, h, g, t, s, d, _] = self.sizes.map(Dim::from);
        let body = AttentionBackwardBody {
            batch: b,
            heads: h,
            kv_heads: g,
            queries: t,
            keys: s,
            width: d,
            q: self.tensors[0].strided(0),
            k: self.tensors[1].strided(1),
            mask: self.tensors.get(9).map(|mask| mask.strided(9)),
            causal: self.causal,
            scale: Scalar::float(DType::F64, self.scale),
            part,
        };
        let buffers = self.tensors.iter().map(|t| BufferArg { dtype: t.dtype, access: Access::ReadWrite }).collect();
        Kernel { buffers, sizes: vec![], body: KernelBody::AttentionBackward(Box::new(body)) }
    }

    fn gradients(&self) -> Kernel {
        let result = |i: usize| self.wanted[i].then(|| self.tensors[RESULTS + i].strided(RESULTS + i));
        self.kernel(AttentionPart::Gradients(Box::new(AttentionGradients {
            value_width: Dim::from(self.sizes[6]),
            v: self.tensors[2].strided(2),
            gradient: self.tensors[3].strided(3),
            logsumexp: self.tensors[4].strided(4),
            delta: self.tensors[5].strided(5),
            queries: result(0),
            keys: result(1),
            values: result(2),
        })))
    }

    fn run(&mut self, isa: Isa) -> [Vec<f64>; 3] {
        let made = CpuBackend::with_isa(isa).compile(&self.gradients()).unwrap();
        let buffers: Vec<RawBuffer> = self.tensors.iter_mut().map(Tensor::raw).collect();
        // SAFETY: the tensors hold what their views reach.
        unsafe { made.launch(&buffers, &[]) }.unwrap();
        [0, 1, 2].map(|i| self.tensors[RESULTS + i].read())
    }

    fn reference(&self) -> [Vec<f64>; 3] {
        let [b, h, g, t, s, d, e] = self.sizes;
        let [q, k, v, gradient, logsumexp, delta] = [0, 1, 2, 3, 4, 5].map(|i| &self.tensors[i].values);
        let (mut dq, mut dk, mut dv) = (vec![0.0; b * h * t * d], vec![0.0; b * g * s * d], vec![0.0; b * g * s * e]);
        for row in 0..b * h * t {
            let kv = row / (h * t) * g + row / t % h / (h / g);
            for key in 0..s {
                let score = self.score(row, key);
                if score == f64::NEG_INFINITY {
                    continue;
                }
                let weight = (score - logsumexp[row]).exp();
                let at = kv * s + key;
                let product: f64 = (0..e).map(|i| gradient[row * e + i] * v[at * e + i]).sum();
                let difference = self.scale * weight * (product - delta[row]);
                (0..e).for_each(|i| dv[at * e + i] += weight * gradient[row * e + i]);
                (0..d).for_each(|i| dq[row * d + i] += difference * k[at * d + i]);
                (0..d).for_each(|i| dk[at * d + i] += difference * q[row * d + i]);
            }
        }
        [dq, dk, dv]
    }

    /// Runs on every target and compares.
    fn check(mut self, what: &str) {
        let want = self.reference();
        for isa in Isa::available() {
            let got = self.run(isa);
            self.compare(&got, &want, &format!("{what} on {isa:?}"));
            self.check_logarithms(isa, what);
        }
    }

    fn compare(&self, got: &[Vec<f64>; 3], want: &[Vec<f64>; 3], what: &str) {
        let tolerance = match self.tensors[0].dtype {
            DType::F64 => 1e-12,
            DType::F32 => 2e-5,
            DType::F16 => 2e-3,
            _ => 1e-2,
        };
        for (i, name) in ["queries", "keys", "values"].into_iter().enumerate() {
            // What is not asked for is not touched.
            let untouched = vec![77.0; got[i].len()];
            let want = if self.wanted[i] { &want[i] } else { &untouched };
            assert_eq!(got[i].len(), want.len());
            let largest = want.iter().fold(1.0, |m: f64, x| m.max(x.abs()));
            for (at, (got, want)) in got[i].iter().zip(want).enumerate() {
                let close = (got - want).abs() <= tolerance * largest;
                assert!(close, "{what}, {:?}: {name} {at} is {got}, not {want}", self.sizes);
            }
        }
    }

    fn check_logarithms(&mut self, isa: Isa, what: &str) {
        let want = self.logarithms();
        let kernel = self.kernel(AttentionPart::Logsumexp { out: self.tensors[4].strided(4) });
        let made = CpuBackend::with_isa(isa).compile(&kernel).unwrap();
        let buffers: Vec<RawBuffer> = self.tensors.iter_mut().map(Tensor::raw).collect();
        // SAFETY: the tensors hold what their views reach.
        unsafe { made.launch(&buffers, &[]) }.unwrap();
        let short = matches!(self.tensors[0].dtype, DType::Bf16);
        let tolerance = if short { 2e-2 } else { 1e-5 };
        for (got, want) in self.tensors[4].read().iter().zip(&want) {
            assert!(got == want || (got - want).abs() < tolerance, "{what} on {isa:?}: {got}, not {want}");
        }
    }
}

#[test]
fn all_shapes_agree() {
    let shapes: [Sizes; 16] = [
        [1, 1, 1, 1, 1, 1, 1],
        [1, 2, 2, 1, 7, 64, 64],
        [1, 1, 1, 2, 17, 3, 5],
        [2, 3, 1, 1, 33, 128, 128],
        [1, 8, 2, 1, 257, 64, 48],
        [1, 2, 2, 7, 7, 16, 16],
        [1, 2, 1, 16, 16, 64, 64],
        [2, 2, 2, 17, 23, 31, 33],
        [1, 1, 1, 64, 64, 64, 64],
        [1, 2, 2, 61, 127, 80, 80],
        [1, 1, 1, 65, 300, 128, 128],
        [1, 4, 2, 37, 41, 20, 44],
        [1, 1, 1, 300, 200, 8, 1],
        [1, 2, 1, 130, 257, 96, 96],
        [33, 1, 1, 20, 20, 32, 32],
        [3, 1, 1, 5, 5, 1, 1],
    ];
    for sizes in shapes {
        for dtype in FLOATS {
            for causal in [false, true] {
                let mut case = case(sizes, dtype, Layout::Packed);
                case.causal = causal;
                case.use_own_logarithms();
                case.check(&format!("{dtype}, causal {causal}, {sizes:?}"));
            }
        }
    }
}

#[test]
fn all_layouts_agree() {
    for sizes in [[2, 4, 2, 19, 70, 32, 48], [1, 2, 2, 70, 150, 33, 31]] {
        for dtype in FLOATS {
            for layout in LAYOUTS {
                let mut case = case(sizes, dtype, layout);
                case.causal = true;
                case.use_own_logarithms();
                case.check(&format!("{dtype} {layout:?} {sizes:?}"));
            }
        }
    }
}

#[test]
fn each_gradient_alone_is_the_same() {
    for wanted in [[true, false, false], [false, true, false], [false, false, true], [true, false, true]] {
        for sizes in [[1, 4, 2, 37, 150, 20, 44], [40, 1, 1, 9, 9, 16, 16]] {
            let mut case = case(sizes, DType::F32, Layout::Packed);
            case.wanted = wanted;
            case.check(&format!("{wanted:?}"));
        }
    }
}

#[test]
fn masks_hide_and_add() {
    for sizes in [[2, 4, 2, 1, 70, 32, 32], [1, 4, 2, 70, 300, 16, 16]] {
        let [b, h, _, t, s, ..] = sizes;
        for dtype in FLOATS {
            for mask in [DType::Bool, DType::F32, dtype] {
                for layout in LAYOUTS {
                    let (mut next, mut count) = (noise(99), 0);
                    let value = || {
                        let x = next();
                        count += 1;
                        // Nothing is left in the first row, and a band at the end is hidden from all.
                        let hidden = count <= s || (count - 1) % s >= s - 40 || x > 1.0;
                        match mask {
                            DType::Bool => f64::from(!hidden),
                            _ if hidden => f64::NEG_INFINITY,
                            _ => x,
                        }
                    };
                    let mut case = case(sizes, dtype, Layout::Packed);
                    case.causal = layout == Layout::HeadsInner;
                    case.hide(Tensor::new(mask, [b, h, t, s], layout, value));
                    let dq = &case.reference()[0];
                    assert!(dq[..sizes[5]].iter().all(|&x| x == 0.0));
                    case.check(&format!("{dtype}, mask {mask} {layout:?}"));
                }
            }
        }
    }
}

#[test]
fn zero_sizes_give_zero() {
    for sizes in [[1, 2, 1, 0, 5, 4, 4], [1, 2, 1, 5, 0, 4, 4], [0, 1, 1, 3, 3, 4, 4], [1, 1, 1, 3, 3, 4, 0]] {
        case(sizes, DType::F32, Layout::Packed).check("nothing");
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    for sizes in [[1, 2, 2, 300, 300, 32, 32], [40, 1, 1, 70, 70, 16, 16]] {
        for dtype in [DType::F32, DType::Bf16, DType::F64] {
            let mut case = case(sizes, dtype, Layout::Packed);
            let mut first: Option<[Vec<f64>; 3]> = None;
            for threads in [1, 2, 5] {
                kiln_cpu::pool::set_threads(threads);
                let got = case.run(Isa::get());
                assert_eq!(first.get_or_insert_with(|| got.clone()), &got, "{threads} threads");
            }
            kiln_cpu::pool::set_threads(0);
        }
    }
}

#[cfg(unix)]
#[test]
fn nothing_outside_the_operands_is_touched() {
    for sizes in
        [[1, 2, 2, 1, 37, 64, 64], [1, 2, 1, 3, 19, 33, 31], [1, 1, 1, 70, 135, 17, 19], [1, 1, 1, 64, 64, 64, 64]]
    {
        for dtype in FLOATS {
            for layout in [Layout::Packed, Layout::Transposed] {
                let case = case(sizes, dtype, layout);
                for isa in Isa::available() {
                    for at_end in [false, true] {
                        let buffers: Vec<RawBuffer> = case.tensors.iter().map(|t| fenced(&t.bytes, at_end)).collect();
                        let made = CpuBackend::with_isa(isa).compile(&case.gradients()).unwrap();
                        // SAFETY: the buffers hold what the views reach; anything beyond ends the process.
                        unsafe { made.launch(&buffers, &[]) }.unwrap();
                        let got = [0, 1, 2].map(|i| {
                            let (tensor, raw) = (&case.tensors[RESULTS + i], &buffers[RESULTS + i]);
                            // SAFETY: as many bytes as the fence was made for.
                            let bytes = unsafe { std::slice::from_raw_parts(raw.ptr, raw.bytes) }.to_vec();
                            Tensor { bytes, ..tensor.clone() }.read()
                        });
                        case.compare(&got, &case.reference(), "fenced");
                    }
                }
            }
        }
    }
}
