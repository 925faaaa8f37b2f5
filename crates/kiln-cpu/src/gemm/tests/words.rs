//! Products of short elements, by every extension that multiplies them. Tiles are emulated on machines without them.

use super::*;
use crate::gemm::tiles::{Piece, generate};

const EXTENSIONS: [Extension; 3] = [Extension::None, Extension::Bf16, Extension::Amx];

/// What this machine runs or emulates.
fn extensions() -> impl Iterator<Item = Extension> {
    let best = detect();
    EXTENSIONS
        .into_iter()
        .filter(move |extension| best.isa == Isa::Avx512 && *extension <= best.extension.max(Extension::Amx))
        .filter(move |extension| *extension != Extension::Bf16 || best.extension >= Extension::Bf16)
}

fn shortened(extension: Extension, m: usize, n: usize, k: usize, acc: DType, threads: usize) -> Gemm {
    Gemm { extension, ..gemm(Isa::Avx512, m, n, k, acc, threads) }
}

/// Heights of one tile, of two and of several panels, odd ends of all sizes.
const SHAPES: [(usize, usize, usize); 17] = [
    (2, 3, 1),
    (9, 33, 31),
    (16, 32, 32),
    (17, 40, 64),
    (31, 65, 33),
    (32, 64, 96),
    (33, 31, 65),
    (48, 100, 130),
    (65, 70, 259),
    (70, 96, 600),
    (97, 33, 1100),
    (10, 300, 1003),
    (12, 16, 2111),
    (130, 17, 40),
    (27, 70, 1664),
    (13, 64, 1024),
    (14, 96, 256),
];

/// Bytes of a matrix that a test reads as bf16 made on demand.
struct MadeShort<'a>(Made<'a>);

impl RowSource for MadeShort<'_> {
    unsafe fn fill(&self, row: usize, columns: std::ops::Range<usize>, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.0.fill(row, columns, to) };
    }
    fn is_bf16(&self) -> bool {
        true
    }
}

#[test]
fn pairs_of_bf16() {
    pool::set_threads(3);
    let mut rng = Rng(101);
    for extension in extensions() {
        for (i, (m, n, k)) in SHAPES.into_iter().enumerate() {
            for lb in LAYOUTS {
                let la = LAYOUTS[rng.below(LAYOUTS.len())];
                let a = Data::new(&mut rng, m, k, DType::Bf16, la);
                let b = Data::new(&mut rng, k, n, DType::Bf16, lb);
                let g = shortened(extension, m, n, k, DType::F32, 1 + i % 3);
                // Both the way it takes and the packed one.
                for stream in [None, Some(false)] {
                    let g = Gemm { tuning: Tuning { stream, ..g.tuning }, ..g };
                    check(g, &a, &b, a.operand(), b.operand(), &format!("{la:?} {lb:?}"));
                }
                // SAFETY: `Data` covers its shape.
                let packed = unsafe { PackedB::new(Isa::Avx512, k, n, DType::F32, &b.matrix).unwrap() };
                check(g, &a, &b, a.operand(), Operand::Packed(&packed), &format!("packed {la:?} {lb:?}"));
            }
        }
    }
}

#[test]
fn bf16_that_are_made() {
    pool::set_threads(3);
    let mut rng = Rng(103);
    for extension in extensions() {
        for (m, n, k) in SHAPES {
            let a = Data::new(&mut rng, m, k, DType::Bf16, Layout::Rows);
            let b = Data::new(&mut rng, k, n, DType::Bf16, Layout::Columns);
            let made = |data, transposed| MadeShort(Made { data, acc: DType::F32, transposed });
            let (left, rows, columns) = (made(&a, false), made(&b, false), made(&b, true));
            let g = shortened(extension, m, n, k, DType::F32, 2);
            // SAFETY: `Data` covers its shape.
            let packed = unsafe { PackedB::new(Isa::Avx512, k, n, DType::F32, &b.matrix).unwrap() };
            check(g, &a, &b, Operand::Rows(&left), b.operand(), "made A");
            check(g, &a, &b, a.operand(), Operand::Rows(&rows), "made rows of B");
            check(g, &a, &b, Operand::Rows(&left), Operand::Columns(&columns), "made columns of B");
            check(g, &a, &b, Operand::Rows(&left), Operand::Packed(&packed), "made A, packed B");
        }
    }
}

/// Operands in f32 that bf16 hold exactly give the same at every precision.
#[test]
fn floats_that_may_be_rounded() {
    pool::set_threads(3);
    let mut rng = Rng(107);
    for extension in extensions() {
        for (m, n, k) in SHAPES {
            for lb in [Layout::Rows, Layout::Columns, Layout::Strided] {
                let la = LAYOUTS[rng.below(LAYOUTS.len())];
                let dtypes = [DType::F32, DType::Bf16];
                let (da, db) = (dtypes[rng.below(2)], dtypes[rng.below(2)]);
                let (a, b) = (Data::new(&mut rng, m, k, da, la), Data::new(&mut rng, k, n, db, lb));
                let g = Gemm { precision: Precision::Medium, ..shortened(extension, m, n, k, DType::F32, 2) };
                let g = Gemm { tuning: Tuning { stream: Some(false), ..g.tuning }, ..g };
                check(g, &a, &b, a.operand(), b.operand(), &format!("{la:?} {da} {lb:?} {db}"));
                let panels = Panels::new(Isa::Avx512, k, n, DType::F32, db).unwrap().rounded(Precision::Medium);
                let mut memory = vec![[0u64; 8]; panels.bytes() / 64 + 1];
                let at = memory.as_mut_ptr().cast::<u8>();
                let at = at.wrapping_add(at.align_offset(64));
                // SAFETY: `Data` covers its shape, and the memory has the size of the panels.
                let packed = unsafe {
                    panels.pack(&b.matrix, at);
                    PackedB::at(panels, at)
                };
                check(
                    g,
                    &a,
                    &b,
                    a.operand(),
                    Operand::Packed(&packed),
                    &format!("rounded panels {la:?} {da} {lb:?} {db}"),
                );
            }
        }
    }
}

/// What is rounded is rounded to nearest even, once, before it is multiplied; at the highest precision nothing is.
#[test]
fn rounding_happens_once() {
    if detect().extension < Extension::Bf16 {
        return;
    }
    let (m, n, k) = (20, 40, 65);
    let a: Vec<f32> = (0..m * k).map(|i| ((i * 37 % 1013) as f32).sin()).collect();
    let b: Vec<f32> = (0..k * n).map(|i| ((i * 53 % 2111) as f32).cos()).collect();
    let matrix = |data: &[f32], stride: usize| Matrix {
        data: data.as_ptr().cast(),
        dtype: DType::F32,
        row_stride: stride as isize,
        column_stride: 1,
    };
    for (precision, bits) in [(Precision::Medium, 8), (Precision::High, 24), (Precision::Highest, 24)] {
        let mut out = vec![0f32; m * n];
        let store = Store::new(out.as_mut_ptr().cast(), DType::F32, n as isize, 1).unwrap();
        let tuning = Tuning { stream: Some(false), ..Tuning::default() };
        let g = Gemm { precision, tuning, ..shortened(Extension::Bf16, m, n, k, DType::F32, 1) };
        // SAFETY: the vectors cover the shapes.
        unsafe { g.run(Operand::Strided(matrix(&a, k)), Operand::Strided(matrix(&b, n)), &store).unwrap() };
        let of = |v: f32| if bits == 8 { bf16::from_f32(v).to_f64() } else { f64::from(v) };
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let want: f64 = (0..k).map(|p| of(a[i * k + p]) * of(b[p * n + j])).sum();
            let size: f64 = (0..k).map(|p| (of(a[i * k + p]) * of(b[p * n + j])).abs()).sum();
            let error = (f64::from(out[i * n + j]) - want).abs();
            assert!(error <= size * 2f64.powi(-20), "{precision:?} at ({i}, {j}): {error:.1e} of {size:.1}");
        }
    }
}

/// All bytes there are, so that an offset or a sign that is missing somewhere is noticed.
#[test]
fn bytes_of_every_value() {
    pool::set_threads(3);
    let mut rng = Rng(109);
    for extension in extensions() {
        for (m, n, k) in SHAPES {
            for (row_stride, column_stride) in [(n, 1), (1, k), (1, k + 3), (1, k.next_multiple_of(4)), (n + 1, 1)] {
                let a: Vec<i8> = (0..m * k).map(|_| rng.next() as i8).collect();
                let b: Vec<i8> = (0..(k + 4) * (n + 1) * 2).map(|_| rng.next() as i8).collect();
                let matrix = |data: &[i8], row_stride: usize, column_stride: usize| Matrix {
                    data: data.as_ptr().cast(),
                    dtype: DType::I8,
                    row_stride: row_stride as isize,
                    column_stride: column_stride as isize,
                };
                let mut out = vec![0i32; m * n];
                let store = Store::new(out.as_mut_ptr().cast(), DType::I32, n as isize, 1).unwrap();
                let g = shortened(extension, m, n, k, DType::I32, 2);
                let right = matrix(&b, row_stride, column_stride);
                // SAFETY: the vectors cover the shapes.
                unsafe { g.run(Operand::Strided(matrix(&a, k, 1)), Operand::Strided(right), &store).unwrap() };
                for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                    let at = |p: usize| i32::from(b[p * row_stride + j * column_stride]);
                    let want: i32 = (0..k).map(|p| i32::from(a[i * k + p]) * at(p)).sum();
                    assert_eq!(out[i * n + j], want, "{g:?} at ({i}, {j}), strides {row_stride}, {column_stride}");
                }
            }
        }
    }
}

#[test]
fn sums_are_the_same_for_any_number_of_threads() {
    pool::set_threads(16);
    for extension in extensions() {
        for (m, n, k) in [(33, 150, 1100), (9, 331, 1203), (70, 40, 9000)] {
            let values = |count: usize, by: usize| -> Vec<u16> {
                (0..count).map(|i| bf16::from_f32(((i * by % 1013) as f32).sin()).to_bits()).collect()
            };
            let (a, b) = (values(m * k, 37), values(k * n, 53));
            let left = Matrix { data: a.as_ptr().cast(), dtype: DType::Bf16, row_stride: k as isize, column_stride: 1 };
            let right = Matrix { data: b.as_ptr().cast(), row_stride: 1, column_stride: k as isize, ..left };
            let run = |threads| {
                let mut out = vec![0f32; m * n];
                let store = Store::new(out.as_mut_ptr().cast(), DType::F32, n as isize, 1).unwrap();
                let g = shortened(extension, m, n, k, DType::F32, threads);
                // SAFETY: the vectors cover the shapes.
                unsafe { g.run(Operand::Strided(left), Operand::Strided(right), &store).unwrap() };
                out.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
            };
            let one = run(1);
            assert!([2, 3, 16].iter().all(|threads| run(*threads) == one), "{extension:?} {m} {n} {k}");
        }
    }
}

/// The code that runs where there are tiles has no instruction but these.
#[test]
fn tile_code_is_what_it_looks_like() {
    let names = |piece| {
        let code = generate(piece);
        let decoder = iced_x86::Decoder::new(64, &code, iced_x86::DecoderOptions::NONE);
        let mut names = Vec::new();
        for i in decoder {
            names.push(format!("{:?}", i.mnemonic()).to_lowercase());
            if i.mnemonic() == iced_x86::Mnemonic::Ret {
                break;
            }
        }
        names
    };
    assert_eq!(names(Piece::Configure { rows: 20 }), ["ldtilecfg", "ret"]);
    assert_eq!(names(Piece::Release), ["tilerelease", "ret"]);
    for (bytes, product) in [(false, "tdpbf16ps"), (true, "tdpbssd")] {
        for (rows, accumulate) in [(1, false), (16, true), (17, false), (32, true)] {
            let names = names(Piece::Multiply { bytes, rows, accumulate });
            let count = |name: &str| names.iter().filter(|n| *n == name).count();
            let heights = if rows > 16 { 2 } else { 1 };
            assert_eq!(count(product), 2 * heights);
            assert_eq!(count("tilestored"), 2 * heights);
            assert_eq!(count("tileloadd"), heights + 2 + if accumulate { 2 * heights } else { 0 });
        }
    }
}
