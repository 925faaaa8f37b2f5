//! Products against a plain loop in f64, over shapes, layouts, dtypes, targets and thread counts.

mod words;

use super::*;
use half::{bf16, f16};

/// Deterministic values in -2 ..= 2, exact in every float type (and small integers when scaled).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// A matrix in memory with its values in f64 beside it.
struct Data {
    bytes: Vec<u8>,
    matrix: Matrix,
    values: Vec<f64>,
    columns: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    Rows,
    Columns,
    PaddedRows,
    PaddedColumns,
    Strided,
    ReversedRows,
    ReversedColumns,
}
const LAYOUTS: [Layout; 7] = [
    Layout::Rows,
    Layout::Columns,
    Layout::PaddedRows,
    Layout::PaddedColumns,
    Layout::Strided,
    Layout::ReversedRows,
    Layout::ReversedColumns,
];

/// The bytes of `v / 8` for floats, of `v` for integers; `None` is a NaN, or a value that would be noticed.
fn encode(dtype: DType, v: Option<i64>) -> [u8; 8] {
    let f = v.map_or(f64::NAN, |v| v as f64 / 8.0);
    let v = v.unwrap_or(77);
    let mut bytes = [0; 8];
    match dtype {
        DType::F32 => bytes[..4].copy_from_slice(&(f as f32).to_le_bytes()),
        DType::F64 => bytes = f.to_le_bytes(),
        DType::F16 => bytes[..2].copy_from_slice(&f16::from_f64(f).to_le_bytes()),
        DType::Bf16 => bytes[..2].copy_from_slice(&bf16::from_f64(f).to_le_bytes()),
        // The low bytes of a wider integer are those of a narrower one.
        _ => bytes = v.to_le_bytes(),
    }
    bytes
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::Bf16)
}

impl Data {
    fn new(rng: &mut Rng, rows: usize, columns: usize, dtype: DType, layout: Layout) -> Data {
        let (r, c) = (rows.max(1) as isize, columns.max(1) as isize);
        let (row_stride, column_stride) = match layout {
            Layout::Rows => (c, 1),
            Layout::Columns => (1, r),
            Layout::PaddedRows => (c + 3, 1),
            Layout::PaddedColumns => (1, r + 5),
            Layout::Strided => (2 * c + 1, 2),
            Layout::ReversedRows => (-c, 1),
            Layout::ReversedColumns => (1, -r),
        };
        let size = dtype.size_in_bits() / 8;
        let first = (r - 1) * (-row_stride).max(0) + (c - 1) * (-column_stride).max(0);
        let extent = ((r - 1) * row_stride.abs() + (c - 1) * column_stride.abs() + 1) as usize;
        // Everything outside the matrix is poison: it must never reach a result.
        let mut bytes = encode(dtype, None)[..size].repeat(extent);
        let mut values = vec![0.0; rows * columns];
        for i in 0..rows {
            for j in 0..columns {
                let v = rng.below(33) as i64 - if dtype == DType::U8 { 0 } else { 16 };
                let at = (first + i as isize * row_stride + j as isize * column_stride) as usize * size;
                bytes[at..at + size].copy_from_slice(&encode(dtype, Some(v))[..size]);
                values[i * columns + j] = if is_float(dtype) { v as f64 / 8.0 } else { v as f64 };
            }
        }
        let mut data = Data {
            bytes,
            matrix: Matrix { data: std::ptr::null(), dtype, row_stride, column_stride },
            values,
            columns,
        };
        data.matrix.data = data.bytes[first as usize * size..].as_ptr();
        data
    }

    fn at(&self, i: usize, j: usize) -> f64 {
        self.values[i * self.columns + j]
    }

    fn operand(&self) -> Operand<'_> {
        Operand::Strided(self.matrix)
    }
}

/// Sources that callers make on demand.
struct Made<'a> {
    data: &'a Data,
    acc: DType,
    transposed: bool,
}

impl RowSource for Made<'_> {
    unsafe fn fill(&self, row: usize, columns: std::ops::Range<usize>, to: *mut u8) {
        for (i, column) in columns.enumerate() {
            let v = if self.transposed { self.data.at(column, row) } else { self.data.at(row, column) };
            // SAFETY: room for all columns.
            unsafe {
                match self.acc {
                    DType::F32 => to.cast::<f32>().add(i).write(v as f32),
                    DType::F64 => to.cast::<f64>().add(i).write(v),
                    DType::I32 => to.cast::<i32>().add(i).write(v as i32),
                    _ => to.cast::<i64>().add(i).write(v as i64),
                }
            }
        }
    }
}

/// Runs a product and compares every element; values are multiples of 1/64 small enough that f32 sums are exact.
fn check(gemm: Gemm, a: &Data, b: &Data, left: Operand<'_>, right: Operand<'_>, what: &str) {
    let (m, n, k) = (gemm.m, gemm.n, gemm.k);
    let mut out = vec![f64::NAN; m * n];
    let store = Store::new(out.as_mut_ptr().cast(), DType::F64, n as isize, 1).unwrap();
    // SAFETY: `Data` covers its shape and `out` is M × N.
    unsafe { gemm.run(left, right, &store).unwrap() };
    let mut want = vec![0.0; n];
    for i in 0..m {
        want.fill(0.0);
        for p in 0..k {
            let row = &b.values[p * n..(p + 1) * n];
            for (want, b) in want.iter_mut().zip(row) {
                *want += a.at(i, p) * b;
            }
        }
        for j in 0..n {
            assert_eq!(out[i * n + j], want[j], "{what}: {gemm:?} at ({i}, {j})");
        }
    }
}

fn gemm(isa: Isa, m: usize, n: usize, k: usize, acc: DType, threads: usize) -> Gemm {
    Gemm { isa, threads, ..Gemm::new(m, n, k, acc) }
}

const SIZES: [usize; 12] = [0, 1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 64];

#[test]
fn small_shapes_and_layouts() {
    pool::set_threads(3);
    let mut rng = Rng(42);
    for isa in Isa::available() {
        for round in 0..600 {
            let pick = |rng: &mut Rng| SIZES[rng.below(SIZES.len())];
            let (m, n, k) = (pick(&mut rng), pick(&mut rng), pick(&mut rng));
            let (la, lb) = (LAYOUTS[rng.below(LAYOUTS.len())], LAYOUTS[rng.below(LAYOUTS.len())]);
            let dtypes = [DType::F32, DType::Bf16, DType::F16, DType::F64, DType::I8];
            let (da, db) = (dtypes[rng.below(4)], dtypes[rng.below(5)]);
            let (a, b) = (Data::new(&mut rng, m, k, da, la), Data::new(&mut rng, k, n, db, lb));
            let g = gemm(isa, m, n, k, DType::F32, 1 + round % 3);
            check(g, &a, &b, a.operand(), b.operand(), &format!("{la:?} {da} {lb:?} {db}"));
        }
    }
}

#[test]
fn larger_shapes() {
    pool::set_threads(3);
    let mut rng = Rng(7);
    let shapes = [
        (1, 1000, 333),
        (1, 64, 3000),
        (1, 203, 767),
        (2, 130, 257),
        (3, 97, 1031),
        (4, 200, 96),
        (5, 61, 128),
        (6, 515, 130),
        (8, 129, 700),
        (12, 65, 67),
        (13, 96, 500),
        (15, 33, 900),
        (29, 200, 600),
        (61, 97, 1030),
        (128, 130, 257),
        (150, 31, 90),
        (200, 1, 400),
        (301, 1, 65),
        (90, 5, 133),
        (1, 16, 9000),
        (3, 37, 5000),
        (16, 100, 3000),
        (2, 150, 1999),
        (17, 270, 2001),
        (97, 150, 2900),
        (128, 200, 3001),
        (70, 96, 2048),
        (13, 70, 768),
        (80, 64, 1600),
    ];
    for isa in Isa::available() {
        for (m, n, k) in shapes {
            for lb in [Layout::Rows, Layout::Columns, Layout::PaddedColumns, Layout::ReversedColumns] {
                for (da, db) in [
                    (DType::F32, DType::F32),
                    (DType::F32, DType::Bf16),
                    (DType::Bf16, DType::Bf16),
                    (DType::Bf16, DType::F16),
                    (DType::F32, DType::I8),
                    (DType::Bf16, DType::I8),
                ] {
                    let la = [Layout::PaddedRows, Layout::Rows, Layout::Columns, Layout::Strided][rng.below(4)];
                    let a = Data::new(&mut rng, m, k, da, la);
                    let b = Data::new(&mut rng, k, n, db, lb);
                    let g = gemm(isa, m, n, k, DType::F32, 1 + rng.below(3));
                    // One row has two ways through W.
                    for row_by_row in if m == 1 { &[Some(false), Some(true)][..] } else { &[None] } {
                        let g = Gemm { tuning: Tuning { row_by_row: *row_by_row, ..g.tuning }, ..g };
                        check(g, &a, &b, a.operand(), b.operand(), &format!("{la:?} {da} {lb:?} {db} {row_by_row:?}"));
                    }
                }
            }
        }
    }
}

#[test]
fn packed_weights() {
    pool::set_threads(3);
    let mut rng = Rng(9);
    for isa in Isa::available() {
        for (m, n, k) in [(1, 100, 70), (3, 33, 5), (8, 64, 333), (15, 96, 64), (40, 31, 1000), (7, 1, 1), (2, 16, 0)] {
            for db in [DType::F32, DType::Bf16, DType::F16, DType::F64] {
                for lb in [Layout::Rows, Layout::Columns, Layout::Strided] {
                    let da = [DType::F32, DType::Bf16][rng.below(2)];
                    let a = Data::new(&mut rng, m, k, da, Layout::Rows);
                    let b = Data::new(&mut rng, k, n, db, lb);
                    // SAFETY: `Data` covers its shape.
                    let packed = unsafe { PackedB::new(isa, k, n, DType::F32, &b.matrix).unwrap() };
                    if isa != Isa::Portable && db == DType::Bf16 && k > 4 {
                        assert!(packed.bytes() <= n.next_multiple_of(32) * (k + 31) * 2 + 64);
                    }
                    let g = gemm(isa, m, n, k, DType::F32, 2);
                    check(g, &a, &b, a.operand(), Operand::Packed(&packed), &format!("packed {da} {lb:?} {db}"));
                }
            }
        }
    }
}

#[test]
fn other_accumulators() {
    pool::set_threads(3);
    let mut rng = Rng(11);
    let cases = [
        (DType::F64, DType::F64, DType::F64),
        (DType::F32, DType::F64, DType::F64),
        (DType::I8, DType::I8, DType::I32),
        (DType::U8, DType::I8, DType::I32),
        (DType::I32, DType::I32, DType::I32),
        (DType::I16, DType::I32, DType::I64),
        (DType::I64, DType::I64, DType::I64),
    ];
    for isa in Isa::available() {
        for (da, db, acc) in cases {
            for (m, n, k) in [(1, 1, 1), (3, 5, 7), (17, 33, 65), (1, 40, 300), (50, 8, 0), (30, 70, 500)] {
                let (la, lb) = (LAYOUTS[rng.below(LAYOUTS.len())], LAYOUTS[rng.below(LAYOUTS.len())]);
                let (a, b) = (Data::new(&mut rng, m, k, da, la), Data::new(&mut rng, k, n, db, lb));
                let g = gemm(isa, m, n, k, acc, 2);
                check(g, &a, &b, a.operand(), b.operand(), &format!("{da} {db} {acc}"));
                // SAFETY: `Data` covers its shape.
                let packed = unsafe { PackedB::new(isa, k, n, acc, &b.matrix).unwrap() };
                check(g, &a, &b, a.operand(), Operand::Packed(&packed), &format!("packed {da} {db} {acc}"));
            }
        }
    }
}

#[test]
fn rows_made_on_demand() {
    pool::set_threads(3);
    let mut rng = Rng(13);
    for isa in Isa::available() {
        for acc in [DType::F32, DType::F64, DType::I32, DType::I64] {
            let dtype = if is_float(acc) { DType::F32 } else { DType::I32 };
            for (m, n, k) in [(1, 70, 200), (5, 33, 90), (40, 65, 300)] {
                let a = Data::new(&mut rng, m, k, dtype, Layout::Rows);
                let b = Data::new(&mut rng, k, n, dtype, Layout::Columns);
                let left = Made { data: &a, acc, transposed: false };
                let rows = Made { data: &b, acc, transposed: false };
                let columns = Made { data: &b, acc, transposed: true };
                let g = gemm(isa, m, n, k, acc, 2);
                check(g, &a, &b, Operand::Rows(&left), b.operand(), "made A");
                check(g, &a, &b, a.operand(), Operand::Rows(&rows), "made rows of B");
                check(g, &a, &b, Operand::Rows(&left), Operand::Columns(&columns), "made columns of B");
            }
        }
    }
}

#[test]
fn long_k_carries_its_accumulators() {
    pool::set_threads(2);
    let mut rng = Rng(17);
    for isa in Isa::available() {
        let (m, n, k) = (20, 40, 20_000);
        let a = Data::new(&mut rng, m, k, DType::F64, Layout::Rows);
        let b = Data::new(&mut rng, k, n, DType::F64, Layout::Columns);
        check(gemm(isa, m, n, k, DType::F64, 2), &a, &b, a.operand(), b.operand(), "long");
    }
}

#[test]
fn results_are_the_same_for_any_number_of_threads() {
    pool::set_threads(16);
    for isa in Isa::available() {
        // Among them shapes whose K is split: few columns, long K.
        for (m, n, k) in [
            (1, 700, 900),
            (4, 300, 900),
            (100, 300, 900),
            (1, 200, 2500),
            (9, 331, 1203),
            (33, 150, 1100),
            (128, 300, 2900),
        ] {
            let a: Vec<f32> = (0..m * k).map(|i| ((i * 37 % 101) as f32).sin()).collect();
            let b: Vec<f32> = (0..k * n).map(|i| ((i * 53 % 211) as f32).cos()).collect();
            let left = Matrix { data: a.as_ptr().cast(), dtype: DType::F32, row_stride: k as isize, column_stride: 1 };
            let run = |threads, right: Operand<'_>| {
                let mut out = vec![0f32; m * n];
                let store = Store::new(out.as_mut_ptr().cast(), DType::F32, n as isize, 1).unwrap();
                let g = gemm(isa, m, n, k, DType::F32, threads);
                // SAFETY: the vectors cover the shapes.
                unsafe { g.run(Operand::Strided(left), right, &store).unwrap() };
                out.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
            };
            for (row_stride, column_stride) in [(n as isize, 1), (1, k as isize)] {
                let right = Matrix { data: b.as_ptr().cast(), row_stride, column_stride, ..left };
                // SAFETY: as above.
                let packed = unsafe { PackedB::new(isa, k, n, DType::F32, &right).unwrap() };
                for right in [Operand::Strided(right), Operand::Packed(&packed)] {
                    let one = run(1, right);
                    assert!([2, 3, 4, 16].iter().all(|t| run(*t, right) == one), "{isa:?} {m} {n} {k} {row_stride}");
                }
            }
        }
    }
}

#[test]
fn stores_round_to_every_dtype_and_stride() {
    for isa in Isa::available() {
        let (m, n, k) = (3, 21, 65);
        let mut rng = Rng(23);
        let a = Data::new(&mut rng, m, k, DType::F32, Layout::Rows);
        let b = Data::new(&mut rng, k, n, DType::F32, Layout::Rows);
        let want = |i, j| (0..k).map(|p| a.at(i, p) * b.at(p, j)).sum::<f64>();
        for transposed in [false, true] {
            let (rs, cs) = if transposed { (1, m) } else { (n, 1) };
            let mut out = vec![bf16::ZERO; m * n];
            let mut half = vec![f16::ZERO; m * n];
            let g = gemm(isa, m, n, k, DType::F32, 1);
            for (data, dtype) in [(out.as_mut_ptr().cast(), DType::Bf16), (half.as_mut_ptr().cast(), DType::F16)] {
                let store = Store::new(data, dtype, rs as isize, cs as isize).unwrap();
                // SAFETY: everything covers its shape.
                unsafe { g.run(a.operand(), b.operand(), &store).unwrap() };
            }
            for i in 0..m {
                for j in 0..n {
                    assert_eq!(out[i * rs + j * cs], bf16::from_f64(want(i, j)));
                    assert_eq!(half[i * rs + j * cs], f16::from_f64(want(i, j)));
                }
            }
        }
    }
}

#[test]
fn infinite_weights_stay_infinite() {
    // K has a tail for every vector length, and the weight's row ends in infinity.
    for isa in Isa::available() {
        for k in [65, 79, 97] {
            let a = vec![1f32; k];
            let mut w = vec![1f32; k * 3];
            w[k - 1] = f32::INFINITY;
            let matrix =
                Matrix { data: a.as_ptr().cast(), dtype: DType::F32, row_stride: k as isize, column_stride: 1 };
            let weights = Matrix { data: w.as_ptr().cast(), row_stride: 1, column_stride: k as isize, ..matrix };
            let mut out = [0f32; 3];
            let store = Store::new(out.as_mut_ptr().cast(), DType::F32, 3, 1).unwrap();
            let g = gemm(isa, 1, 3, k, DType::F32, 1);
            // SAFETY: everything covers its shape.
            unsafe { g.run(Operand::Strided(matrix), Operand::Strided(weights), &store).unwrap() };
            assert_eq!(out, [f32::INFINITY, k as f32, k as f32]);
        }
    }
}

#[test]
fn bad_products_are_errors() {
    let matrix = |dtype| Matrix { data: std::ptr::dangling(), dtype, row_stride: 1, column_stride: 1 };
    let strided = |dtype| Operand::Strided(matrix(dtype));
    let sink = |_: Tile| {};
    let g = gemm(Isa::Portable, 1, 1, 1, DType::F32, 1);
    // SAFETY: every call fails before it touches memory.
    unsafe {
        assert!(matches!(g.run(strided(DType::I4), strided(DType::F32), &sink), Err(GemmError::Unreadable { .. })));
        let bad = Gemm { acc: DType::Bf16, ..g };
        assert!(matches!(bad.run(strided(DType::F32), strided(DType::F32), &sink), Err(GemmError::Accumulator { .. })));
        let packed = PackedB::new(Isa::Portable, 0, 4, DType::F32, &matrix(DType::F32)).unwrap();
        let error = g.run(strided(DType::F32), Operand::Packed(&packed), &sink);
        assert!(matches!(error, Err(GemmError::WrongPacking { .. })));
        let left = g.run(Operand::Packed(&packed), strided(DType::F32), &sink);
        assert!(matches!(left, Err(GemmError::LeftOperand)));
    }
    assert!(matches!(Store::new(std::ptr::null_mut(), DType::F8E4M3, 1, 1), Err(GemmError::Unwritable { .. })));
}
