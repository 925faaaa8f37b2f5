//! Direct convolutions against a plain loop.

use half::{bf16, f16};
use kiln_cpu::features::Isa;
use kiln_cpu::gemm::{Direct, Epilogue, Tile, WindowAxis};
use kiln_ir::DType;
use std::sync::Mutex;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }

    /// Small integers, whose sums are exact.
    fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.below(9) as f32 - 4.0).collect()
    }
}

/// Elements in memory as a type has them.
fn stored(numbers: &[f32], dtype: DType) -> Vec<u8> {
    let bytes = |&x: &f32| match dtype {
        DType::Bf16 => bf16::from_f32(x).to_le_bytes().to_vec(),
        DType::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    };
    numbers.iter().flat_map(bytes).collect()
}

/// Keeps results, and checks that each comes once.
struct Kept {
    columns: usize,
    results: Mutex<Vec<f32>>,
}

impl Epilogue for Kept {
    unsafe fn apply(&self, tile: Tile) {
        let mut results = self.results.lock().unwrap();
        for row in 0..tile.rows {
            for column in 0..tile.columns {
                // SAFETY: an element of the tile.
                let x = unsafe { tile.data.cast::<f32>().add(row * tile.row_stride + column).read() };
                let at = (tile.row + row) * self.columns + tile.column + column;
                assert!(results[at].is_nan(), "twice");
                results[at] = x;
            }
        }
    }
}

fn check(random: &mut Random, isa: Isa, dtype: DType, outputs: usize, size: [usize; 2]) -> bool {
    let [images, groups, channels] = [1 + random.below(2), 1 + random.below(5), 1 + random.below(3)];
    let taps = [1 + random.below(7), 1 + random.below(7)];
    let stride = [1 + random.below(3), 1 + random.below(3)];
    let dilation = [1 + random.below(2), 1 + random.below(2)];
    let padding = [random.below(4), random.below(4)];
    let places = [0, 1].map(|i| {
        let room = (size[i] + 2 * padding[i]).checked_sub((taps[i] - 1) * dilation[i] + 1);
        room.map_or(0, |room| room / stride[i] + 1)
    });
    let image = random.numbers(images * groups * channels * size[0] * size[1]);
    let weights = random.numbers(groups * outputs * channels * taps[0] * taps[1]);
    let area = size[0] * size[1];
    let axis = |i: usize, weight_stride: usize| WindowAxis {
        taps: taps[i],
        stride: stride[i],
        dilation: dilation[i],
        start: -(padding[i] as isize),
        length: size[i] as isize,
        places: places[i],
        weight_stride: weight_stride as isize,
    };
    let each = channels * taps[0] * taps[1];
    let (image_bytes, weight_bytes) = (stored(&image, dtype), stored(&weights, dtype));
    let first = -((padding[0] * size[1] + padding[1]) as isize) * (dtype.size_in_bits() / 8) as isize;
    let direct = Direct {
        isa,
        threads: 2,
        image: image_bytes.as_ptr().wrapping_offset(first),
        image_dtype: dtype,
        images,
        image_stride: (groups * channels * area) as isize,
        group_stride: (channels * area) as isize,
        channels,
        channel_stride: area as isize,
        row_stride: size[1] as isize,
        weights: weight_bytes.as_ptr(),
        weight_dtype: dtype,
        weight_group: (outputs * each) as isize,
        weight_output: each as isize,
        weight_channel: (taps[0] * taps[1]) as isize,
        groups,
        outputs,
        y: axis(0, taps[1]),
        x: axis(1, 1),
    };
    let columns = images * places[0] * places[1];
    let kept = Kept { columns, results: Mutex::new(vec![f32::NAN; groups * outputs * columns]) };
    // SAFETY: pixels inside the images and all weights are in memory.
    if !unsafe { direct.run(&kept) }.unwrap() {
        return false;
    }
    let results = kept.results.into_inner().unwrap();
    for row in 0..groups * outputs {
        for column in 0..columns {
            let (n, y, x) = (column / (places[0] * places[1]), column / places[1] % places[0], column % places[1]);
            let mut wanted = 0.0;
            for k in 0..each {
                let (c, ky, kx) = (k / (taps[0] * taps[1]), k / taps[1] % taps[0], k % taps[1]);
                let at =
                    |i: usize, at: usize, tap: usize| (at * stride[i] + tap * dilation[i]).wrapping_sub(padding[i]);
                let (py, px) = (at(0, y, ky), at(1, x, kx));
                if py < size[0] && px < size[1] {
                    let plane = (n * groups + row / outputs) * channels + c;
                    wanted += weights[row * each + k] * image[plane * area + py * size[1] + px];
                }
            }
            assert_eq!(results[row * columns + column], wanted, "{direct:?}, result {row}, pixel {column}");
        }
    }
    true
}

#[test]
fn results_are_those_of_plain_loops() {
    let mut random = Random(11);
    for isa in Isa::available().filter(|isa| *isa != Isa::Portable) {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            for outputs in [1, 2, 3, 4, 7, 8, 9, 16] {
                for _ in 0..25 {
                    let size = [1 + random.below(20), 1 + random.below(60)];
                    assert!(check(&mut random, isa, dtype, outputs, size), "not run");
                }
            }
        }
    }
}

#[test]
fn blocks_of_rows_meet() {
    let mut random = Random(5);
    for isa in Isa::available().filter(|isa| *isa != Isa::Portable) {
        for outputs in [1, 4] {
            assert!(check(&mut random, isa, DType::F32, outputs, [70, 130]));
        }
    }
}
