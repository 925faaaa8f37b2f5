//! Products with quantised blocks against sums in f64 of what the blocks stand for.

use super::*;
use crate::gemm::{Gemm, Matrix, Operand, Store};
use half::{bf16, f16};
use kiln_ir::DType;
use kiln_ir::examples::Random;
use kiln_kernels::Precision;

/// Rows of blocks with ordinary scales, a few bytes apart.
fn blocks(random: &mut Random, format: BlockFormat, rows: usize, k: usize) -> (Vec<u8>, usize, Vec<f32>) {
    blocks_of(random, format, rows, k, |random| random.bits() as u8)
}

/// Rows of blocks with ordinary scales and such bytes.
fn blocks_of(
    random: &mut Random,
    format: BlockFormat,
    rows: usize,
    k: usize,
    byte: impl Fn(&mut Random) -> u8,
) -> (Vec<u8>, usize, Vec<f32>) {
    let row = format.row_bytes(k).unwrap();
    let stride = row + 7;
    let mut bytes: Vec<u8> = (0..rows * stride).map(|_| byte(random)).collect();
    let mut elements = Vec::new();
    for n in 0..rows {
        let of_row = &mut bytes[n * stride..][..row];
        for block in of_row.chunks_exact_mut(format.bytes()) {
            for &at in format.halves() {
                let scale = f16::from_f64(random.unit() - 0.5);
                block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            }
        }
        format.dequantise(of_row, &mut elements);
    }
    (bytes, stride, elements)
}

struct Source<'a>(&'a [f32], usize);

impl RowSource for Source<'_> {
    unsafe fn fill(&self, row: usize, columns: Range<usize>, to: *mut u8) {
        let from = &self.0[row * self.1..][columns];
        // SAFETY: the caller has room for the columns.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.cast(), from.len()) };
    }
}

#[derive(Debug, Clone, Copy)]
enum Left {
    Rows,
    Columns,
    Bf16,
    Made,
}

fn check(isa: Isa, format: BlockFormat, shape: [usize; 3], left: Left, threads: usize) {
    check_at(Precision::Highest, isa, format, shape, left, threads);
}

/// How far off a product may be of its terms' sizes, and what rounding A may add, of each group's largest times the sum of its weights.
fn bounds(precision: Precision) -> (f64, f64) {
    match precision {
        Precision::Highest => (1e-6, 0.501 / 4_194_300.0),
        Precision::High => (1e-6, 0.501 / 32639.0),
        Precision::Medium => (1e-6, 0.501 / 127.0),
    }
}

fn check_at(precision: Precision, isa: Isa, format: BlockFormat, [m, n, k]: [usize; 3], left: Left, threads: usize) {
    let mut random = Random((m * 31 + n * 7 + k) as u64);
    let (bytes, stride, w) = blocks(&mut random, format, n, k);
    let mut a: Vec<f32> = (0..m * k).map(|_| (random.unit() * 4.0 - 2.0) as f32).collect();
    let short: Vec<bf16> = a.iter().map(|&x| bf16::from_f32(x)).collect();
    let transposed: Vec<f32> = (0..m * k).map(|i| a[i % m * k + i / m]).collect();
    let kept = a.clone();
    let source = Source(&kept, k);
    let strided = |data: *const u8, dtype, row_stride, column_stride| {
        Operand::Strided(Matrix { data, dtype, row_stride, column_stride })
    };
    let operand = match left {
        Left::Rows => strided(kept.as_ptr().cast(), DType::F32, k as isize, 1),
        Left::Columns => strided(transposed.as_ptr().cast(), DType::F32, 1, m as isize),
        Left::Bf16 => {
            a.iter_mut().zip(&short).for_each(|(a, short)| *a = short.to_f32());
            strided(short.as_ptr().cast(), DType::Bf16, k as isize, 1)
        }
        Left::Made => Operand::Rows(&source),
    };
    let mut c = vec![f32::NAN; m * n];
    let store = Store::new(c.as_mut_ptr().cast(), DType::F32, n as isize, 1).unwrap();
    let gemm = Gemm { isa, threads, precision, ..Gemm::new(m, n, k, DType::F32) };
    let matrix = BlockMatrix { data: bytes.as_ptr(), format, stride: stride as isize };
    // SAFETY: the operands have these sizes.
    unsafe { gemm.run(operand, Operand::Blocks(matrix), &store) }.unwrap();
    compare(&format!("{precision:?} {isa:?} {format:?} {m}×{n}×{k} {left:?}"), bounds(precision), [&a, &w, &c], k);
}

/// Compares C with the product in f64 of A and W, rows of `k` both.
fn compare(what: &str, (sums, groups): (f64, f64), [a, w, c]: [&[f32]; 3], k: usize) {
    let n = w.len() / k;
    for (i, a) in a.chunks_exact(k).enumerate() {
        for (j, w) in w.chunks_exact(k).enumerate() {
            let (mut sum, mut size, mut rounding) = (0.0, 0.0, 0.0);
            for (a, w) in a.chunks(32).zip(w.chunks(32)) {
                let terms = a.iter().zip(w).map(|(&a, &w)| f64::from(a) * f64::from(w));
                (sum, size) = terms.fold((sum, size), |(sum, size), x| (sum + x, size + x.abs()));
                let largest = a.iter().fold(0f64, |most, &a| most.max(f64::from(a.abs())));
                rounding += largest * w.iter().map(|&w| f64::from(w.abs())).sum::<f64>();
            }
            let off = (f64::from(c[i * n + j]) - sum).abs();
            let most = size * sums + rounding * groups;
            assert!(off <= most, "{what}: [{i}, {j}] is off by {off}, {most} allowed, of {size}");
        }
    }
}

#[test]
fn every_format_and_height() {
    for isa in Isa::available() {
        for format in BlockFormat::ALL {
            for m in [1, 2, 3, 8, 17, 64] {
                for (n, blocks) in [(1, 1), (7, 3), (33, 2)] {
                    check(isa, format, [m, n, blocks * format.elements()], Left::Rows, 2);
                }
            }
        }
    }
}

#[test]
fn every_kind_of_left_operand() {
    for isa in Isa::available() {
        for left in [Left::Columns, Left::Bf16, Left::Made] {
            for m in [1, 5, 40] {
                check(isa, BlockFormat::Q4_1, [m, 19, 96], left, 1);
                check(isa, BlockFormat::Q6_K, [m, 9, 512], left, 2);
            }
        }
    }
}

/// Long enough for several tasks, several blocks of K, and blocks cut in the middle.
#[test]
fn large_products() {
    for isa in Isa::available().skip(1) {
        check(isa, BlockFormat::Q4_0, [1, 517, 1632], Left::Rows, 2);
        for format in BlockFormat::ALL {
            check(isa, format, [1, 37, 6400], Left::Rows, 2);
        }
        check(isa, BlockFormat::Q4_K, [6, 130, 2304], Left::Rows, 2);
        check(isa, BlockFormat::Q8_0, [33, 70, 9216 + 32], Left::Rows, 2);
    }
}

/// Every number of rows and of columns beyond whole tiles and panels, K shorter and longer than what is unpacked at once.
#[test]
fn every_format_and_height_in_bytes() {
    for format in BlockFormat::ALL {
        for precision in [Precision::High, Precision::Medium] {
            for m in (1..14).chain([29, 64, 70]) {
                let n = [1, 15, 16, 17, 31, 32, 33, 50, 70][m % 9];
                let blocks = [1, 2, 3, 5, 18][m % 5];
                check_at(precision, Isa::get(), format, [m, n, blocks * format.elements()], Left::Rows, 2);
            }
            check_at(precision, Isa::get(), format, [19, 300, 768], Left::Rows, 2);
        }
    }
}

#[test]
fn every_kind_of_left_operand_in_bytes() {
    for isa in Isa::available() {
        for precision in [Precision::High, Precision::Medium] {
            for left in [Left::Columns, Left::Bf16, Left::Made] {
                check_at(precision, isa, BlockFormat::Q4_K, [40, 19, 512], left, 2);
                check_at(precision, isa, BlockFormat::Q8_0, [520, 9, 96], left, 2);
            }
        }
    }
}

/// A block of rows with elements that have no limbs is multiplied in floats, and only that one.
#[test]
fn rows_without_limbs() {
    let (m, n, k) = (600, 33, 64);
    let mut random = Random(7);
    let (bytes, stride, w) = blocks(&mut random, BlockFormat::Q5_0, n, k);
    let matrix = BlockMatrix { data: bytes.as_ptr(), format: BlockFormat::Q5_0, stride: stride as isize };
    let usual: Vec<f32> = (0..m * k).map(|_| (random.unit() - 0.5) as f32).collect();
    for special in [f32::NAN, f32::INFINITY, 1e30, 1e-30] {
        for made in [false, true] {
            let mut a = usual.clone();
            a[550 * k..551 * k].fill(special);
            let source = Source(&a, k);
            let rows = Matrix { data: a.as_ptr().cast(), dtype: DType::F32, row_stride: k as isize, column_stride: 1 };
            let operand = if made { Operand::Rows(&source) } else { Operand::Strided(rows) };
            let mut c = vec![f32::MAX; m * n];
            let store = Store::new(c.as_mut_ptr().cast(), DType::F32, n as isize, 1).unwrap();
            let gemm = Gemm { precision: Precision::Medium, ..Gemm::new(m, n, k, DType::F32) };
            // SAFETY: the operands have these sizes.
            unsafe { gemm.run(operand, Operand::Blocks(matrix), &store) }.unwrap();
            let (first, second) = (300 * k, 550 * k);
            compare("usual rows", bounds(Precision::Medium), [&a[..first], &w, &c], k);
            compare("rows beside", bounds(Precision::Highest), [&a[first..second], &w, &c[300 * n..]], k);
            if special.is_finite() {
                compare("tiny or huge", bounds(Precision::Highest), [&a[second..][..k], &w, &c[550 * n..]], k);
            } else {
                assert!(c[550 * n..551 * n].iter().all(|x| !x.is_finite()));
            }
            compare("rows after", bounds(Precision::Highest), [&a[551 * k..], &w, &c[551 * n..]], k);
        }
    }
}

/// Numbers that differ much beside each other, several rows of them.
#[test]
fn several_rows_of_all_kinds_of_numbers() {
    for format in BlockFormat::ALL {
        for (m, count) in [(2, 1), (3, 2), (5, 4), (7, 3)] {
            let mut random = Random(count as u64);
            let k = count * format.elements();
            let (bytes, stride, w) = blocks(&mut random, format, 5, k);
            let matrix = BlockMatrix { data: bytes.as_ptr(), format, stride: stride as isize };
            for (exponents, shift) in [(1, 0), (20, 0), (60, 0), (1, -100), (1, 100), (20, -70), (20, 60)] {
                let mut number =
                    || ((random.unit() - 0.5) * 2f64.powi((random.bits() % exponents) as i32 + shift)) as f32;
                let mut a: Vec<f32> = (0..m * k).map(|_| number()).collect();
                a[..16].fill(0.0);
                let rows =
                    Matrix { data: a.as_ptr().cast(), dtype: DType::F32, row_stride: k as isize, column_stride: 1 };
                for precision in Precision::ALL {
                    let mut c = vec![f32::NAN; m * 5];
                    let store = Store::new(c.as_mut_ptr().cast(), DType::F32, 5, 1).unwrap();
                    let gemm = Gemm { precision, ..Gemm::new(m, 5, k, DType::F32) };
                    // SAFETY: the operands have these sizes.
                    unsafe { gemm.run(Operand::Strided(rows), Operand::Blocks(matrix), &store) }.unwrap();
                    let what = format!("{precision:?} {format:?} {k} {exponents} {shift}");
                    compare(&what, bounds(precision), [&a, &w, &c], k);
                }
            }
        }
    }
}

/// The largest elements everywhere times the largest integers: sums that just fit into 32 bits.
#[test]
fn largest_sums() {
    for format in BlockFormat::ALL {
        for byte in [0x00, 0x7f, 0x80, 0xff] {
            let (m, n, k) = (7, 33, 2 * format.elements());
            let (bytes, stride, w) = blocks_of(&mut Random(3), format, n, k, |_| byte);
            let matrix = BlockMatrix { data: bytes.as_ptr(), format, stride: stride as isize };
            for precision in Precision::ALL {
                // Scaling rounds 1 ± a few last bits differently.
                let a: Vec<f32> = (0..m * k).map(|i| [1.0, -1.0][i / k % 2] + (i / k) as f32 * f32::EPSILON).collect();
                let rows =
                    Matrix { data: a.as_ptr().cast(), dtype: DType::F32, row_stride: k as isize, column_stride: 1 };
                let mut c = vec![f32::NAN; m * n];
                let store = Store::new(c.as_mut_ptr().cast(), DType::F32, n as isize, 1).unwrap();
                let gemm = Gemm { precision, ..Gemm::new(m, n, k, DType::F32) };
                // SAFETY: the operands have these sizes.
                unsafe { gemm.run(Operand::Strided(rows), Operand::Blocks(matrix), &store) }.unwrap();
                compare(&format!("{precision:?} {format:?} {byte:#x}"), bounds(precision), [&a, &w, &c], k);
            }
        }
    }
}

/// As [`largest_sums`], of one row: its elements are just below a power of two.
#[test]
fn largest_sums_of_one_row() {
    for format in BlockFormat::ALL {
        for byte in [0x00, 0x7f, 0x80, 0xff] {
            let (n, k) = (9, 2 * format.elements());
            let (bytes, stride, w) = blocks_of(&mut Random(3), format, n, k, |_| byte);
            for precision in Precision::ALL {
                for largest in [2f32.next_down(), -2f32.next_down()] {
                    let a = vec![largest; k];
                    let c = one_row_at(precision, Isa::get(), format, &bytes, stride, &a, n);
                    compare(&format!("{precision:?} {format:?} {byte:#x}"), bounds(precision), [&a, &w, &c], k);
                }
            }
        }
    }
}

/// Lower precisions take fewer limbs where the machine has byte products; where it has none all of them are one.
#[test]
#[cfg(target_arch = "x86_64")]
fn precision_chooses_the_limbs() {
    let gemm = |precision| Gemm { precision, ..Gemm::new(64, 64, 64, DType::F32) };
    let able = Isa::get() == Isa::Avx512 && exact::available();
    for (precision, count) in [(Precision::Highest, 3), (Precision::High, 2), (Precision::Medium, 1)] {
        assert_eq!(bytes::limbs(&gemm(precision)), able.then_some(count));
        let portable = Gemm { isa: Isa::Portable, ..gemm(precision) };
        assert_eq!(bytes::limbs(&portable), None);
    }
}

/// One row of every length of the last step, of numbers that differ much, and of numbers that fixed point is not made for.
#[test]
fn one_row_of_all_kinds_of_numbers() {
    for isa in Isa::available() {
        for format in BlockFormat::ALL {
            for count in 1..6 {
                let mut random = Random(count as u64);
                let k = count * format.elements();
                let (bytes, stride, w) = blocks(&mut random, format, 5, k);
                for (exponents, shift) in [(1, 0), (20, 0), (60, 0), (1, -100), (1, 100), (20, -70), (20, 60)] {
                    let a: Vec<f32> = (0..k)
                        .map(|_| ((random.unit() - 0.5) * 2f64.powi((random.bits() % exponents) as i32 + shift)) as f32)
                        .collect();
                    let c = one_row(isa, format, &bytes, stride, &a, 5);
                    for (j, c) in c.into_iter().enumerate() {
                        // Beside large elements small ones may lose as much as the large ones do.
                        let w = &w[j * k..][..k];
                        let terms = |at: usize| (at..at + 16).map(|p| f64::from(a[p]) * f64::from(w[p]));
                        let largest = |x: &[f32]| x.iter().fold(0f64, |most, x| most.max(f64::from(x.abs())));
                        let (mut sum, mut size) = (0.0, 0.0);
                        for at in (0..k).step_by(16) {
                            sum += terms(at).sum::<f64>();
                            let near = at / 32 * 32..at / 32 * 32 + 32;
                            size +=
                                terms(at).map(f64::abs).sum::<f64>() + largest(&a[near.clone()]) * largest(&w[near]);
                        }
                        let off = (f64::from(c) - sum).abs();
                        assert!(
                            off <= size * 1e-6,
                            "{isa:?} {format:?} {k} {exponents} {shift}: off by {off} of {size}"
                        );
                    }
                }
                let none = one_row(isa, format, &bytes, stride, &vec![0.0; k], 5);
                assert_eq!(none, [0.0; 5], "{isa:?} {format:?}");
                for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut a = vec![1f32; k];
                    a[k / 2] = special;
                    let c = one_row(isa, format, &bytes, stride, &a, 5);
                    assert!(c.iter().all(|x| !x.is_finite()), "{isa:?} {format:?} {special}: {c:?}");
                }
            }
        }
    }
}

/// Long rows, at every precision.
#[test]
fn one_row_at_lower_precisions() {
    for isa in Isa::available() {
        for format in BlockFormat::ALL {
            for precision in Precision::ALL {
                for (n, k) in [(1, 256), (5, 512), (9, 1536), (38, 8960)] {
                    check_at(precision, isa, format, [1, n, k], Left::Rows, 2);
                }
            }
        }
    }
}

/// Small elements beside a large one: the highest precision keeps what 16 bits of the large one would lose, and 16 bits what 8 would.
#[test]
fn one_row_has_the_limbs_of_its_precision() {
    for isa in Isa::available() {
        for format in BlockFormat::ALL {
            let (k, n) = (2 * format.elements(), 9);
            let (bytes, stride, w) = blocks(&mut Random(3), format, n, k);
            for (small, exact, rounded) in [
                (2f32.powi(-18), Precision::Highest, Precision::High),
                (2f32.powi(-10), Precision::High, Precision::Medium),
            ] {
                let row = |small: f32| -> Vec<f32> { (0..k).map(|i| if i % 16 == 0 { 1.0 } else { small }).collect() };
                let [with, without] = [small, 0.0].map(row);
                let product = |precision, a: &[f32]| one_row_at(precision, isa, format, &bytes, stride, a, n);
                let (first, second) = (product(exact, &with), product(exact, &without));
                for (j, w) in w.chunks_exact(k).enumerate() {
                    let parts = |large: bool| w.iter().enumerate().filter(move |(i, _)| (i % 16 == 0) == large);
                    let sum = |large: bool| parts(large).map(|(_, w)| f64::from(*w)).sum::<f64>();
                    let size = |large: bool| parts(large).map(|(_, w)| f64::from(w.abs())).sum::<f64>();
                    let off = (f64::from(first[j]) - f64::from(second[j]) - sum(false) * f64::from(small)).abs();
                    // A sixteenth of the small elements, and what sums in f32 lose of the large ones.
                    let most = size(false) * f64::from(small) / 16.0 + size(true) * 5e-7;
                    assert!(off <= most, "{isa:?} {format:?} {exact:?} [{j}]: off by {off}, {most} allowed");
                }
                if isa == Isa::Avx512 && in_fixed_point() {
                    assert_eq!(product(rounded, &with), product(rounded, &without), "{format:?} {rounded:?}");
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn in_fixed_point() -> bool {
    exact::available()
}
#[cfg(not(target_arch = "x86_64"))]
fn in_fixed_point() -> bool {
    false
}

/// One row times all rows of blocks.
fn one_row(isa: Isa, format: BlockFormat, bytes: &[u8], stride: usize, a: &[f32], n: usize) -> Vec<f32> {
    one_row_at(Precision::Highest, isa, format, bytes, stride, a, n)
}

fn one_row_at(
    precision: Precision,
    isa: Isa,
    format: BlockFormat,
    bytes: &[u8],
    stride: usize,
    a: &[f32],
    n: usize,
) -> Vec<f32> {
    let mut c = vec![f32::NAN; n];
    let store = Store::new(c.as_mut_ptr().cast(), DType::F32, n as isize, 1).unwrap();
    let gemm = Gemm { isa, precision, threads: 1, ..Gemm::new(1, n, a.len(), DType::F32) };
    let row = Matrix { data: a.as_ptr().cast(), dtype: DType::F32, row_stride: a.len() as isize, column_stride: 1 };
    let matrix = BlockMatrix { data: bytes.as_ptr(), format, stride: stride as isize };
    // SAFETY: the operands have these sizes.
    unsafe { gemm.run(Operand::Strided(row), Operand::Blocks(matrix), &store) }.unwrap();
    c
}

/// A scale or minimum that is not finite gives what the dequantised elements give: NaN, or an infinity where all terms agree in sign.
/// Every format, target, height of the left operand and precision; the damaged block first, in the middle or last.
#[test]
fn damaged_blocks_give_what_their_elements_give() {
    let halves = [f16::INFINITY, f16::NEG_INFINITY, f16::NAN, f16::MAX, f16::MIN];
    let mut seen = [0; 3];
    for (isa, format) in Isa::available().flat_map(|isa| BlockFormat::ALL.map(|format| (isa, format))) {
        for (case, (m, n, count)) in
            [(1, 5, 3), (2, 3, 4), (3, 1, 1), (6, 40, 2), (17, 3, 3), (29, 33, 1)].into_iter().enumerate()
        {
            let mut random = Random(case as u64);
            let k = count * format.elements();
            for (at, half) in format.halves().iter().flat_map(|at| halves.map(|half| (at, half))) {
                // All integers alike, so that all elements of a block may be an infinity of one sign; or any.
                let byte = [0x00, 0x77, 0x99, 0xff][random.below(4)];
                let mixed = random.chance(0.5);
                let one = |random: &mut Random| if mixed { random.bits() as u8 } else { byte };
                let (mut bytes, stride, _) = blocks_of(&mut random, format, n, k, one);
                for column in (0..n).step_by(2) {
                    let block = random.below(count) * format.bytes();
                    bytes[column * stride + block + at..][..2].copy_from_slice(&half.to_le_bytes());
                }
                let mut w = Vec::new();
                (0..n).for_each(|j| format.dequantise(&bytes[j * stride..][..format.row_bytes(k).unwrap()], &mut w));
                let sign = [1.0, -1.0][random.below(2)];
                let any = random.chance(0.3);
                let a: Vec<f32> =
                    (0..m * k).map(|_| (random.unit() - if any { 0.5 } else { 0.0 }) as f32 * sign).collect();
                for precision in Precision::ALL {
                    let mut c = vec![0f32; m * n];
                    let store = Store::new(c.as_mut_ptr().cast(), DType::F32, n as isize, 1).unwrap();
                    let rows =
                        Matrix { data: a.as_ptr().cast(), dtype: DType::F32, row_stride: k as isize, column_stride: 1 };
                    let matrix = BlockMatrix { data: bytes.as_ptr(), format, stride: stride as isize };
                    let gemm = Gemm { isa, precision, ..Gemm::new(m, n, k, DType::F32) };
                    // SAFETY: the operands have these sizes.
                    unsafe { gemm.run(Operand::Strided(rows), Operand::Blocks(matrix), &store) }.unwrap();
                    for (i, &got) in c.iter().enumerate() {
                        let (row, column) = (&a[i / n * k..][..k], &w[i % n * k..][..k]);
                        let want: f64 = row.iter().zip(column).map(|(&a, &w)| f64::from(a) * f64::from(w)).sum();
                        let same = if want.is_finite() { got.is_finite() } else { f64::from(got) == want };
                        let what = format!("{isa:?} {format:?} {m}×{n}×{k} {half} at {at}, {precision:?}, element {i}");
                        assert!(same || want.is_nan() && got.is_nan(), "{what}: {got}, expected {want}");
                        seen[if want.is_nan() { 0 } else { 1 + usize::from(want.is_infinite()) }] += 1;
                    }
                }
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 1000), "{seen:?}");
}

#[test]
fn broken_blocks_are_an_error() {
    let x = [0f32; 33];
    let operand = Matrix { data: x.as_ptr().cast(), dtype: DType::F32, row_stride: 33, column_stride: 1 };
    let blocks = BlockMatrix { data: x.as_ptr().cast(), format: BlockFormat::Q4_0, stride: 18 };
    let mut c = [0f32];
    let store = Store::new(c.as_mut_ptr().cast(), DType::F32, 1, 1).unwrap();
    let gemm = Gemm::new(1, 1, 33, DType::F32);
    // SAFETY: nothing is read before the error.
    let outcome = unsafe { gemm.run(Operand::Strided(operand), Operand::Blocks(blocks), &store) };
    assert_eq!(outcome.unwrap_err().to_string(), "K = 33 is no multiple of a q4_0 block's 32 elements");
}
