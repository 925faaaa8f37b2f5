//! Attention against plain loops in f64: dtypes, shapes, strides, masks, groups, threads, targets and special values.

mod gradients;
mod hidden;
mod paged;
mod tensor;

use kiln_cpu::attention::Attention;
use kiln_cpu::features::Isa;
use kiln_ir::{DType, Dim, Scalar, Symbol};
use kiln_kernels::kernel::{Access, AttentionBody, BufferArg, Kernel, KernelBody};
use kiln_runtime::{Error, LaunchError, RawBuffer};
#[cfg(unix)]
use tensor::fenced;
use tensor::{Layout, Tensor, encode, noise, round};

/// One attention and its operands.
struct Case {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Option<Tensor>,
    out: Tensor,
    causal: bool,
    scale: f64,
}

/// Batch, heads, key heads, queries, keys, width, value width.
type Sizes = [usize; 7];

fn case(sizes: Sizes, dtype: DType, layout: Layout) -> Case {
    let [b, h, g, t, s, d, e] = sizes;
    let mut next = noise(sizes.iter().fold(7, |seed, &n| seed * 31 + n as u64));
    Case {
        q: Tensor::new(dtype, [b, h, t, d], layout, &mut next),
        k: Tensor::new(dtype, [b, g, s, d], layout, &mut next),
        v: Tensor::new(dtype, [b, g, s, e], layout, &mut next),
        mask: None,
        out: Tensor::new(dtype, [b, h, t, e], layout, || 77.0),
        causal: false,
        scale: 1.0 / (d.max(1) as f64).sqrt(),
    }
}

impl Case {
    fn kernel(&self) -> (Kernel, AttentionBody) {
        let [b, h, t, d] = self.q.shape;
        let [_, g, s, e] = self.v.shape;
        let body = AttentionBody {
            batch: Dim::from(b),
            heads: Dim::from(h),
            kv_heads: Dim::from(g),
            queries: Dim::from(t),
            keys: Dim::from(s),
            width: Dim::from(d),
            value_width: Dim::from(e),
            q: self.q.strided(0),
            k: self.k.strided(1),
            v: self.v.strided(2),
            k_pages: None,
            v_pages: None,
            mask: self.mask.as_ref().map(|m| m.strided(4)),
            out: self.out.strided(3),
            logsumexp: None,
            causal: self.causal,
            scale: Scalar::float(DType::F64, self.scale),
        };
        let tensors = [&self.q, &self.k, &self.v, &self.out].into_iter().chain(&self.mask);
        let buffers = tensors.map(|t| BufferArg { dtype: t.dtype, access: Access::ReadWrite }).collect();
        (Kernel { buffers, sizes: vec![], body: KernelBody::Attention(Box::new(body.clone())) }, body)
    }

    fn run(&mut self, isa: Isa) -> Vec<f64> {
        let (kernel, body) = self.kernel();
        let attention = Attention::new(isa, &kernel, &body, "test").unwrap();
        let mut buffers = vec![self.q.raw(), self.k.raw(), self.v.raw(), self.out.raw()];
        buffers.extend(self.mask.as_mut().map(Tensor::raw));
        // SAFETY: the tensors hold what their views reach.
        unsafe { attention.launch(&buffers, &[]) }.unwrap();
        self.out.read()
    }

    fn reference(&self) -> Vec<f64> {
        let [b, h, t, d] = self.q.shape;
        let [_, g, s, e] = self.v.shape;
        let mut out = vec![0.0; b * h * t * e];
        for row in 0..b * h * t {
            let (batch, head, query) = (row / (h * t), row / t % h, row % t);
            let kv = batch * g + head / (h / g);
            let q = &self.q.values[row * d..][..d];
            let visible = if self.causal { (query + 1 + s).saturating_sub(t).min(s) } else { s };
            let scores: Vec<f64> = (0..visible)
                .map(|j| {
                    let k = &self.k.values[(kv * s + j) * d..][..d];
                    let score = q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() * self.scale;
                    match &self.mask {
                        Some(m) if m.dtype == DType::Bool && m.values[row * s + j] == 0.0 => f64::NEG_INFINITY,
                        Some(m) if m.dtype == DType::Bool => score,
                        Some(m) if m.values[row * s + j] == f64::NEG_INFINITY => f64::NEG_INFINITY,
                        Some(m) => score + m.values[row * s + j],
                        None => score,
                    }
                })
                .collect();
            if scores.iter().all(|&score| score == f64::NEG_INFINITY) {
                continue;
            }
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for c in 0..e {
                let total: f64 = weights.iter().enumerate().map(|(j, w)| w * self.v.values[(kv * s + j) * e + c]).sum();
                out[row * e + c] = total / sum;
            }
        }
        out
    }

    /// Runs on every target and compares.
    fn check(mut self, what: &str) {
        let want = self.reference();
        let before = self.out.clone();
        for isa in Isa::available() {
            self.out = before.clone();
            let got = self.run(isa);
            self.compare(&got, &want, &format!("{what} on {isa:?}"));
        }
    }

    fn compare(&self, got: &[f64], want: &[f64], what: &str) {
        // Weights are rounded to bf16 where all operands are; results once more to their own type.
        let tolerance = match self.out.dtype {
            DType::F64 => 1e-12,
            DType::F32 => 4e-6,
            DType::F16 => 2e-3,
            _ => 1.6e-2,
        };
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let close = (got - want).abs() <= tolerance * (1.0 + want.abs()) || (got.is_nan() && want.is_nan());
            assert!(close || got == want, "{what}, {:?}: element {i} is {got}, not {want}", self.q.shape);
        }
        assert_eq!(got.len(), want.len());
    }
}

const FLOATS: [DType; 4] = [DType::F32, DType::Bf16, DType::F16, DType::F64];
const LAYOUTS: [Layout; 5] = [Layout::Packed, Layout::Transposed, Layout::HeadsInner, Layout::Reversed, Layout::Sparse];

#[test]
fn all_shapes_agree() {
    let shapes: [Sizes; 22] = [
        [1, 1, 1, 1, 1, 1, 1],
        [1, 2, 2, 1, 7, 64, 64],
        [1, 8, 8, 1, 300, 64, 64],
        [2, 3, 3, 1, 1031, 32, 32],
        [1, 1, 1, 2, 17, 3, 5],
        [2, 3, 1, 1, 33, 128, 128],
        [1, 8, 2, 1, 257, 64, 48],
        [1, 8, 1, 2, 65, 40, 72],
        [1, 2, 2, 7, 7, 16, 16],
        [1, 2, 2, 8, 31, 24, 8],
        [1, 1, 1, 9, 13, 17, 19],
        [1, 2, 1, 16, 16, 64, 64],
        [2, 2, 2, 17, 23, 31, 33],
        [1, 1, 1, 64, 64, 64, 64],
        [1, 2, 2, 61, 127, 80, 80],
        [1, 1, 1, 65, 300, 128, 128],
        [1, 4, 2, 37, 41, 20, 44],
        [1, 1, 1, 100, 531, 8, 1],
        [1, 1, 1, 3, 2100, 16, 16],
        [1, 2, 1, 130, 257, 256, 96],
        [1, 1, 1, 20, 20, 513, 300],
        [3, 1, 1, 5, 5, 1, 1],
    ];
    for sizes in shapes {
        for dtype in FLOATS {
            for causal in [false, true] {
                let mut case = case(sizes, dtype, Layout::Packed);
                case.causal = causal;
                case.check(&format!("{dtype}, causal {causal}, {sizes:?}"));
            }
        }
    }
}

#[test]
fn all_layouts_agree() {
    for sizes in [[2, 4, 2, 1, 70, 32, 32], [2, 4, 2, 19, 70, 32, 48], [1, 2, 2, 70, 300, 33, 31]] {
        for dtype in FLOATS {
            for layout in LAYOUTS {
                let mut case = case(sizes, dtype, layout);
                case.causal = true;
                case.check(&format!("{dtype} {layout:?} {sizes:?}"));
            }
        }
    }
}

#[test]
fn masks_hide_and_add() {
    for sizes in [[2, 4, 2, 1, 70, 32, 32], [1, 4, 2, 21, 300, 16, 16]] {
        let [b, h, _, t, s, ..] = sizes;
        for dtype in FLOATS {
            for mask in [DType::Bool, DType::F32, dtype] {
                for layout in LAYOUTS {
                    let mut next = noise(99);
                    let value = || {
                        let x = next();
                        match mask {
                            DType::Bool => f64::from(x > 0.0),
                            _ if x > 1.0 => f64::NEG_INFINITY,
                            _ => x,
                        }
                    };
                    let mut case = case(sizes, dtype, Layout::Packed);
                    let mut tensor = Tensor::new(mask, [b, h, t, s], layout, value);
                    // A row in which nothing is left.
                    for j in 0..s {
                        let nothing = if mask == DType::Bool { 0.0 } else { f64::NEG_INFINITY };
                        let (size, at) = (mask.size_in_bits() / 8, tensor.at(j));
                        tensor.values[j] = nothing;
                        tensor.bytes[at..at + size].copy_from_slice(&encode(mask, nothing));
                    }
                    case.mask = Some(tensor);
                    assert!(case.reference()[..16].iter().all(|&v| v == 0.0));
                    case.causal = layout == Layout::HeadsInner;
                    case.check(&format!("{dtype}, mask {mask} {layout:?}"));
                }
            }
        }
    }
}

#[test]
fn a_mask_is_broadcast_by_strides_of_zero() {
    let sizes = [2, 4, 2, 21, 70, 16, 16];
    let [b, h, _, t, s, ..] = sizes;
    let mut row = noise(3);
    let row: Vec<f64> = (0..s).map(|_| round(DType::F32, row())).collect();
    let mut case = case(sizes, DType::F32, Layout::Packed);
    let mut tensor = Tensor::new(DType::F32, [1, 1, 1, s], Layout::Packed, {
        let mut i = row.clone().into_iter();
        move || i.next().unwrap()
    });
    tensor.strides = [0, 0, 0, 1];
    tensor.shape = [b, h, t, s];
    tensor.values = (0..b * h * t).flat_map(|_| row.clone()).collect();
    case.mask = Some(tensor);
    case.check("one row for all");
}

#[test]
fn keys_and_values_are_broadcast_by_strides_of_zero() {
    for t in [1, 30] {
        let mut case = case([3, 2, 2, t, 50, 16, 16], DType::F32, Layout::Packed);
        for tensor in [&mut case.k, &mut case.v] {
            tensor.strides[0] = 0;
            let one = tensor.values.len() / 3;
            tensor.values = tensor.values[..one].repeat(3);
        }
        case.check("one batch of keys for all");
    }
}

#[test]
fn zero_sizes_do_nothing_or_give_zero() {
    for dtype in FLOATS {
        for causal in [false, true] {
            for sizes in [[1, 2, 2, 3, 0, 8, 8], [1, 2, 2, 30, 0, 8, 8], [2, 1, 1, 0, 5, 8, 8], [0, 1, 1, 3, 3, 4, 4]] {
                let mut case = case(sizes, dtype, Layout::Packed);
                case.causal = causal;
                case.check("no keys or no queries");
            }
            // A width of zero: all scores are 0, the mean of the values is left.
            for t in [2, 40] {
                let mut case = case([1, 2, 2, t, 50, 0, 8], dtype, Layout::Packed);
                case.causal = causal;
                case.check("no width");
            }
            case([1, 2, 2, 3, 5, 8, 0], dtype, Layout::Packed).check("no value width");
        }
    }
}

#[test]
fn more_queries_than_keys_leave_the_first_rows_empty() {
    for dtype in FLOATS {
        for sizes in [[1, 2, 2, 40, 7, 16, 16], [1, 1, 1, 5, 2, 16, 16], [1, 1, 1, 200, 100, 16, 16]] {
            let mut case = case(sizes, dtype, Layout::Packed);
            case.causal = true;
            let hidden = sizes[3] - sizes[4];
            assert!(case.reference()[..hidden * 16].iter().all(|&v| v == 0.0));
            case.check("causal with few keys");
        }
    }
}

#[test]
fn operands_may_differ_in_dtype() {
    for (q, k, v, out) in [
        (DType::F32, DType::Bf16, DType::F16, DType::F32),
        (DType::Bf16, DType::F32, DType::Bf16, DType::F16),
        (DType::F16, DType::F16, DType::F32, DType::Bf16),
        (DType::F32, DType::F64, DType::F32, DType::F32),
    ] {
        for t in [1, 33] {
            let mut case = case([1, 2, 2, t, 70, 32, 32], DType::F32, Layout::Packed);
            for (tensor, dtype) in [(&mut case.q, q), (&mut case.k, k), (&mut case.v, v), (&mut case.out, out)] {
                let mut values = tensor.values.clone().into_iter();
                *tensor = Tensor::new(dtype, tensor.shape, Layout::Packed, || values.next().unwrap());
            }
            case.check(&format!("{q} {k} {v} {out}"));
        }
    }
}

#[test]
fn any_scale_works() {
    for dtype in FLOATS {
        for scale in [-0.7, 0.0, 0.8, 1e-3] {
            for t in [1, 33] {
                let mut case = case([1, 2, 2, t, 70, 32, 32], dtype, Layout::Packed);
                case.scale = scale;
                case.causal = true;
                case.check(&format!("{dtype} scaled by {scale}"));
            }
        }
    }
}

#[test]
fn large_scores_do_not_overflow() {
    for t in [2, 33] {
        for factor in [30.0, 1e4] {
            let mut case = case([1, 2, 2, t, 700, 32, 32], DType::F32, Layout::Packed);
            case.scale = factor;
            // The largest score decides alone; ties of rounding aside, results are rows of values.
            for isa in Isa::available() {
                let got = case.run(isa);
                assert!(got.iter().all(|v| v.is_finite() && v.abs() <= 2.0), "{isa:?}");
            }
        }
    }
}

#[test]
fn not_a_number_stays_in_its_row() {
    for dtype in FLOATS {
        for t in [3, 40] {
            for bad in [f64::NAN, f64::INFINITY] {
                let sizes = [1, 2, 1, t, 600, 16, 16];
                let mut source = case(sizes, dtype, Layout::Packed);
                let mut values = source.q.values.clone();
                values[16 * (t + 1) + 3] = bad;
                let mut values = values.into_iter();
                source.q = Tensor::new(dtype, source.q.shape, Layout::Packed, || values.next().unwrap());
                source.check(&format!("{dtype} with {bad} in a query"));
            }
        }
    }
}

#[test]
fn a_mask_hides_what_is_not_a_number() {
    for dtype in [DType::F32, DType::Bf16, DType::F64] {
        for t in [2, 40] {
            let sizes = [1, 1, 1, t, 300, 16, 16];
            let mut case = case(sizes, dtype, Layout::Packed);
            let mut values = case.k.values.clone();
            values[16 * 255 + 1] = f64::NAN;
            values[16 * 299 + 1] = f64::INFINITY;
            let mut values = values.into_iter();
            case.k = Tensor::new(dtype, case.k.shape, Layout::Packed, || values.next().unwrap());
            let mut i = 0;
            let mask = Tensor::new(DType::Bool, [1, 1, t, 300], Layout::Packed, || {
                i += 1;
                f64::from(!matches!((i - 1) % 300, 255 | 299))
            });
            case.mask = Some(mask);
            assert!(case.reference().iter().all(|v| v.is_finite()));
            case.check(&format!("{dtype} hidden"));
        }
    }
}

#[test]
fn hidden_keys_have_no_weight_at_all() {
    // Values of hidden keys are large enough to show in any weight above 0.
    for dtype in [DType::F32, DType::Bf16] {
        for t in [1, 40] {
            let mut case = case([1, 1, 1, t, 64, 16, 16], dtype, Layout::Packed);
            let mut row = 0;
            case.v = Tensor::new(dtype, [1, 1, 64, 16], Layout::Packed, || {
                row += 1;
                if (row - 1) / 16 % 2 == 0 { 1.0 } else { 3e38 }
            });
            let mut key = 0;
            case.mask = Some(Tensor::new(DType::F32, [1, 1, t, 64], Layout::Packed, || {
                key += 1;
                if key % 2 == 1 { 0.0 } else { f64::NEG_INFINITY }
            }));
            for isa in Isa::available() {
                let got = case.run(isa);
                assert!(got.iter().all(|v| (v - 1.0).abs() < 5e-3), "{dtype} {isa:?}");
            }
        }
    }
}

#[test]
fn the_lowest_finite_mask_is_not_a_hidden_row() {
    // A common way to mask: with all keys at the lowest finite number, the mean of the values is left.
    for t in [1, 40] {
        let mut case = case([1, 1, 1, t, 50, 16, 16], DType::F32, Layout::Packed);
        case.scale = 1e-6;
        case.mask = Some(Tensor::new(DType::F32, [1, 1, t, 50], Layout::Packed, || f64::from(f32::MIN)));
        case.check("all at the lowest");
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    for sizes in [[1, 2, 2, 1, 3000, 64, 64], [1, 2, 2, 150, 700, 32, 32], [1, 8, 2, 4, 1500, 64, 64]] {
        for dtype in [DType::F32, DType::Bf16, DType::F64] {
            let mut case = case(sizes, dtype, Layout::Packed);
            let want = case.reference();
            let mut first: Option<Vec<f64>> = None;
            for threads in [1, 2, 5] {
                kiln_cpu::pool::set_threads(threads);
                let got = case.run(Isa::get());
                case.compare(&got, &want, &format!("{threads} threads"));
                assert_eq!(first.get_or_insert_with(|| got.clone()), &got, "{threads} threads");
            }
            kiln_cpu::pool::set_threads(0);
        }
    }
}

#[test]
fn sizes_come_with_the_launch() {
    let case = case([2, 2, 2, 30, 40, 16, 16], DType::F32, Layout::Packed);
    let (mut kernel, mut body) = case.kernel();
    let (queries, keys) = (Symbol::new("t").unwrap(), Symbol::new("s").unwrap());
    (body.queries, body.keys) = (Dim::from(queries), Dim::from(keys));
    kernel.sizes = vec![queries, keys];
    let attention = Attention::new(Isa::get(), &kernel, &body, "test").unwrap();
    let mut case = case;
    let buffers = [case.q.raw(), case.k.raw(), case.v.raw(), case.out.raw()];
    // SAFETY: the tensors hold what their views reach.
    unsafe {
        attention.launch(&buffers, &[30, 40]).unwrap();
        case.compare(&case.out.read(), &case.reference(), "symbolic sizes");
        let missing = attention.launch(&buffers, &[30]);
        assert_eq!(missing, Err(LaunchError::WrongArguments { what: "sizes", expected: 2, got: 1 }));
        assert_eq!(attention.launch(&buffers, &[-1, 40]), Err(LaunchError::BadSize { value: -1 }));
        let missing = attention.launch(&buffers[..3], &[30, 40]);
        assert_eq!(missing, Err(LaunchError::WrongArguments { what: "buffers", expected: 4, got: 3 }));
    }
}

#[test]
fn integers_are_refused() {
    let case = case([1, 1, 1, 2, 2, 4, 4], DType::F32, Layout::Packed);
    let (mut kernel, body) = case.kernel();
    kernel.buffers[1].dtype = DType::I32;
    let refused = Attention::new(Isa::get(), &kernel, &body, "test");
    assert!(matches!(refused, Err(Error::Compile { target, .. }) if target == "test"));
}

#[cfg(unix)]
#[test]
fn nothing_outside_the_operands_is_touched() {
    let shapes =
        [[1, 2, 2, 1, 37, 64, 64], [1, 2, 1, 3, 19, 33, 31], [1, 1, 1, 21, 35, 17, 19], [1, 1, 1, 64, 64, 64, 64]];
    for (sizes, dtype) in shapes.into_iter().flat_map(|sizes| FLOATS.map(|dtype| (sizes, dtype))) {
        for layout in [Layout::Packed, Layout::Transposed] {
            let [b, h, _, t, s, ..] = sizes;
            let mut case = case(sizes, dtype, layout);
            case.mask = Some(Tensor::new(dtype, [b, h, t, s], layout, noise(5)));
            let (kernel, body) = case.kernel();
            for isa in Isa::available() {
                for at_end in [false, true] {
                    let tensors = [&case.q, &case.k, &case.v, &case.out].into_iter().chain(&case.mask);
                    let buffers: Vec<RawBuffer> = tensors.map(|t| fenced(&t.bytes, at_end)).collect();
                    let attention = Attention::new(isa, &kernel, &body, "test").unwrap();
                    // SAFETY: the buffers hold what the views reach; anything beyond ends the process.
                    let out = unsafe {
                        attention.launch(&buffers, &[]).unwrap();
                        std::slice::from_raw_parts(buffers[3].ptr, buffers[3].bytes)
                    };
                    let got = Tensor { bytes: out.to_vec(), ..case.out.clone() }.read();
                    case.compare(&got, &case.reference(), "fenced");
                }
            }
        }
    }
}
