//! Paged keys and values: the same results as contiguous ones, to the last bit where pages are whole steps.

use super::hidden::{POSITIONS, Rule, masked};
use super::tensor::{Layout, encode, noise};
use super::{Case, FLOATS, Sizes};
use kiln_cpu::attention::Attention;
use kiln_cpu::features::Isa;
use kiln_ir::{DType, Dim};
use kiln_kernels::kernel::{Access, BufferArg, KernelBody, Pages, Strided};
use kiln_runtime::{LaunchError, RawBuffer};

/// Pages of keys or values, each [heads, page, width], in any order and with others between them.
struct Pool {
    bytes: Vec<u8>,
    page: usize,
    /// Elements of a page.
    stride: usize,
    count: usize,
    strides: [usize; 4],
}

/// A table with an entry for each page of each batch; no two the same, and page 0 unused.
fn table(batch: usize, pages: usize) -> Vec<i64> {
    let mut random = noise(23);
    let mut order: Vec<i64> = (1..=(batch * pages) as i64).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, ((random() + 2.0) / 4.0 * (i + 1) as f64) as usize % (i + 1));
    }
    order
}

impl Pool {
    /// The values of `tensor`, under a table; rows that are in no page, and unused pages, are NaN.
    fn new(tensor: &super::Tensor, table: &[i64], page: usize) -> Pool {
        let [b, g, s, d] = tensor.shape;
        let size = tensor.dtype.size_in_bits() / 8;
        let (per_text, stride, count) = (s / page, g * page * d, table.len() + 2);
        assert_eq!(table.len(), b * per_text);
        let mut bytes = encode(tensor.dtype, f64::NAN).repeat(stride * count);
        for i in 0..tensor.values.len() {
            let (batch, head, key, column) = (i / (g * s * d), i / (s * d) % g, i / d % s, i % d);
            let number = table[batch * per_text + key / page] as usize;
            let to = (number * stride + (head * page + key % page) * d + column) * size;
            let from = tensor.at(i);
            bytes[to..to + size].copy_from_slice(&tensor.bytes[from..from + size]);
        }
        Pool { bytes, page, stride, count, strides: [0, page * d, d, 1] }
    }

    fn views(&self, buffer: usize, table: usize, per_text: usize) -> (Strided, Option<Pages>) {
        let strides = self.strides.iter().map(|&s| Dim::from(s)).collect();
        let table = Strided { buffer: table, offset: Dim::default(), strides: vec![Dim::from(per_text), Dim::from(1)] };
        let (length, stride, count) = (Dim::from(self.page), Dim::from(self.stride), Dim::from(self.count));
        (Strided { buffer, offset: Dim::default(), strides }, Some(Pages { table, length, stride, count }))
    }
}

/// Runs a case with its keys and values in pages.
fn run(case: &mut Case, isa: Isa, entries: &[i64], page: usize, wide: bool) -> Result<Vec<f64>, LaunchError> {
    let (mut kernel, mut body) = case.kernel();
    let honest: Vec<i64> = entries.iter().map(|&e| e.clamp(0, entries.len() as i64)).collect();
    let (mut k, mut v) = (Pool::new(&case.k, &honest, page), Pool::new(&case.v, &honest, page));
    let per_text = case.k.shape[2] / page;
    let at = kernel.buffers.len();
    (body.k, body.k_pages) = k.views(1, at, per_text);
    (body.v, body.v_pages) = v.views(2, at, per_text);
    let dtype = if wide { DType::I64 } else { DType::I32 };
    kernel.buffers.push(BufferArg { dtype, access: Access::Read });
    kernel.body = KernelBody::Attention(Box::new(body.clone()));
    let mut table: Vec<u8> = match wide {
        true => entries.iter().flat_map(|e| e.to_le_bytes()).collect(),
        false => entries.iter().flat_map(|&e| (e as i32).to_le_bytes()).collect(),
    };
    let raw = |bytes: &mut Vec<u8>| RawBuffer { ptr: bytes.as_mut_ptr(), bytes: bytes.len() };
    let mut buffers = vec![case.q.raw(), raw(&mut k.bytes), raw(&mut v.bytes), case.out.raw()];
    buffers.extend(case.mask.as_mut().map(super::Tensor::raw));
    buffers.push(raw(&mut table));
    let attention = Attention::new(isa, &kernel, &body, "test").unwrap();
    // SAFETY: pools, table and tensors hold what their views reach.
    unsafe { attention.launch(&buffers, &[]) }?;
    Ok(case.out.read())
}

#[test]
fn pages_are_as_good_as_rows_that_lie_together() {
    let shapes: [Sizes; 6] = [
        [4, 2, 2, 1, 704, 64, 64],
        [3, 6, 2, 1, 640, 48, 40],
        [2, 3, 1, 3, 192, 32, 32],
        [4, 4, 2, 21, 640, 16, 16],
        [2, 2, 2, 70, 320, 33, 31],
        [1, 2, 1, 1, 64, 128, 256],
    ];
    let all: Rule = |_, _, _| 0..1000;
    for sizes in shapes {
        for dtype in FLOATS {
            for (rule, what) in [(POSITIONS, "positions"), (all, "all")] {
                for page in [8, 16, 64] {
                    let mut case = masked(sizes, dtype, DType::Bool, rule, 0.0, true);
                    let want = case.reference();
                    let entries = table(sizes[0], sizes[4] / page);
                    for isa in Isa::available() {
                        let together = case.run(isa);
                        let got = run(&mut case, isa, &entries, page, page == 16).unwrap();
                        let what = format!("{what}, pages of {page}, {dtype} {sizes:?} on {isa:?}");
                        case.compare(&got, &want, &what);
                        assert!(got == together, "{what}: not the same bits");
                    }
                }
            }
        }
    }
}

#[test]
fn pages_of_any_length_and_causal_masks_work() {
    for sizes in [[2, 4, 2, 1, 165, 16, 24], [2, 4, 2, 5, 165, 33, 20], [2, 2, 2, 40, 165, 16, 16]] {
        for dtype in FLOATS {
            for page in [1, 3, 11, 165] {
                let mut case = super::case(sizes, dtype, Layout::Packed);
                case.causal = true;
                let want = case.reference();
                let entries = table(sizes[0], sizes[4] / page);
                for isa in Isa::available() {
                    let got = run(&mut case, isa, &entries, page, true).unwrap();
                    case.compare(&got, &want, &format!("pages of {page}, {dtype} {sizes:?} on {isa:?}"));
                }
            }
        }
    }
}

#[test]
fn pages_without_visible_keys_are_not_read() {
    // Their entries name page 0, which holds no number.
    for (sizes, dtype) in [[4, 2, 2, 1, 640, 64, 64], [4, 4, 2, 21, 640, 16, 16]]
        .into_iter()
        .flat_map(|sizes: Sizes| FLOATS.map(|dtype| (sizes, dtype)))
    {
        let mut case = masked(sizes, dtype, DType::Bool, POSITIONS, 0.0, true);
        let want = case.reference();
        let (page, t) = (16, sizes[3]);
        let mut entries = table(sizes[0], sizes[4] / page);
        let per_text = sizes[4] / page;
        for (i, entry) in entries.iter_mut().enumerate() {
            let seen = (0..t).map(|query| POSITIONS(i / per_text, query, t).end).max().unwrap();
            if i % per_text * page >= seen {
                *entry = 0;
            }
        }
        for isa in Isa::available() {
            // The pool is made under this table: rows of page 0 are overwritten by one another, so poison them again.
            let got = run_poisoned(&mut case, isa, &entries, page);
            case.compare(&got, &want, &format!("{dtype} {sizes:?} on {isa:?}"));
        }
    }
}

/// As [`run`], with page 0 filled with what is not a number.
fn run_poisoned(case: &mut Case, isa: Isa, entries: &[i64], page: usize) -> Vec<f64> {
    let nan = |tensor: &mut super::Tensor| {
        let (shape, size) = (tensor.shape, tensor.dtype.size_in_bits() / 8);
        let [_, g, s, d] = shape;
        for i in 0..tensor.values.len() {
            let (batch, key) = (i / (g * s * d), i / d % s);
            if entries[batch * (s / page) + key / page] == 0 {
                let at = tensor.at(i);
                tensor.bytes[at..at + size].copy_from_slice(&encode(tensor.dtype, f64::NAN));
            }
        }
    };
    nan(&mut case.k);
    nan(&mut case.v);
    run(case, isa, entries, page, true).unwrap()
}

#[test]
fn entries_out_of_range_are_reported() {
    for sizes in [[2, 2, 2, 1, 64, 16, 16], [2, 2, 2, 40, 64, 16, 16]] {
        for bad in [-1, 100, i64::from(i32::MIN)] {
            for wide in [true, false] {
                let mut case = masked(sizes, DType::F32, DType::Bool, POSITIONS, 0.0, true);
                let mut entries = table(2, 4);
                entries[7] = bad;
                let error = run(&mut case, Isa::get(), &entries, 16, wide).unwrap_err();
                assert_eq!(error, LaunchError::IndexOutOfRange { index: bad, size: 10 });
            }
        }
    }
}
