//! Direct convolutions, and the gradients of their weights, against plain loops.

use half::{bf16, f16};
use kiln_cpu::features::Isa;
use kiln_cpu::gemm::{Direct, Epilogue, Gradient, Tile, WindowAxis};
use kiln_ir::DType;
use kiln_ir::examples::Random;
use std::sync::Mutex;

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

/// A convolution of random sizes with its operands in memory.
struct Case {
    direct: Direct,
    image: Vec<f32>,
    weights: Vec<f32>,
    padding: [usize; 2],
    size: [usize; 2],
    /// What the convolution points to.
    _memory: [Vec<u8>; 2],
}

impl Case {
    fn new(random: &mut Random, isa: Isa, dtype: DType, outputs: usize, size: [usize; 2]) -> Case {
        let [images, groups, channels] = [1 + random.below(2), 1 + random.below(5), 1 + random.below(3)];
        let taps = [1 + random.below(7), 1 + random.below(7)];
        let stride = [1 + random.below(3), 1 + random.below(3)];
        let dilation = [1 + random.below(2), 1 + random.below(2)];
        let padding = [random.below(4), random.below(4)];
        let places = [0, 1].map(|i| {
            let room = (size[i] + 2 * padding[i]).checked_sub((taps[i] - 1) * dilation[i] + 1);
            room.map_or(0, |room| room / stride[i] + 1)
        });
        let image = random.small_integers(images * groups * channels * size[0] * size[1]);
        let weights = random.small_integers(groups * outputs * channels * taps[0] * taps[1]);
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
        Case { direct, image, weights, padding, size, _memory: [image_bytes, weight_bytes] }
    }

    /// Elements of the weights of one result.
    fn each(&self) -> usize {
        self.direct.channels * self.direct.y.taps * self.direct.x.taps
    }

    /// The pixel under an element of a result's weights, for a column of the results.
    fn pixel(&self, row: usize, k: usize, column: usize) -> f32 {
        let Direct { channels, groups, outputs, y, x, .. } = self.direct;
        let (n, at_y, at_x) = (column / (y.places * x.places), column / x.places % y.places, column % x.places);
        let (c, ky, kx) = (k / (y.taps * x.taps), k / x.taps % y.taps, k % x.taps);
        let py = (at_y * y.stride + ky * y.dilation).wrapping_sub(self.padding[0]);
        let px = (at_x * x.stride + kx * x.dilation).wrapping_sub(self.padding[1]);
        if py >= self.size[0] || px >= self.size[1] {
            return 0.0;
        }
        let plane = (n * groups + row / outputs) * channels + c;
        self.image[(plane * self.size[0] + py) * self.size[1] + px]
    }
}

fn check(random: &mut Random, isa: Isa, dtype: DType, outputs: usize, size: [usize; 2]) -> bool {
    let case = Case::new(random, isa, dtype, outputs, size);
    let direct = &case.direct;
    let (columns, rows) = (direct.images * direct.y.places * direct.x.places, direct.groups * outputs);
    let kept = Kept { columns, results: Mutex::new(vec![f32::NAN; rows * columns]) };
    // SAFETY: pixels inside the images and all weights are in memory.
    if !unsafe { direct.run(&kept) }.unwrap() {
        return false;
    }
    let results = kept.results.into_inner().unwrap();
    for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
        let product = |k| case.weights[row * case.each() + k] * case.pixel(row, k, column);
        let wanted: f32 = (0..case.each()).map(product).sum();
        assert_eq!(results[row * columns + column], wanted, "{direct:?}, result {row}, pixel {column}");
    }
    true
}

/// The gradient of the weights, for a gradient whose rows have something else between them and images with their channels first or last.
fn check_gradient(random: &mut Random, isa: Isa, dtype: DType, outputs: usize, size: [usize; 2], last: bool) -> bool {
    let case = Case::new(random, isa, dtype, outputs, size);
    let mut windows = case.direct.clone();
    let (channels, pixels) = (windows.groups * windows.channels, case.size[0] * case.size[1]);
    let turned: Vec<f32> = (0..case.image.len())
        .map(|at| (at / (channels * pixels), at / channels % pixels, at % channels))
        .map(|(image, pixel, channel)| case.image[(image * channels + channel) * pixels + pixel])
        .collect();
    let turned = stored(&turned, dtype);
    if last {
        let before = ((case.padding[0] * case.size[1] + case.padding[1]) * channels) as isize;
        windows = Direct {
            image: turned.as_ptr().wrapping_offset(-before * (dtype.size_in_bits() / 8) as isize),
            group_stride: windows.channels as isize,
            channel_stride: 1,
            row_stride: (case.size[1] * channels) as isize,
            ..windows
        };
    }
    let Direct { images, groups, y, x, .. } = windows;
    let (rows, places) = (groups * outputs, y.places * x.places);
    let pitch = x.places + random.below(3);
    let numbers = random.small_integers(images * rows * places);
    let mut memory = vec![f32::NAN; images * rows * y.places * pitch];
    for (at, number) in numbers.iter().enumerate() {
        memory[at / x.places * pitch + at % x.places] = *number;
    }
    let bytes = stored(&memory, dtype);
    let plane = (y.places * pitch) as isize;
    let gradient = Gradient {
        gradient: bytes.as_ptr(),
        dtype,
        image_stride: rows as isize * plane,
        group_stride: outputs as isize * plane,
        output_stride: plane,
        row_stride: pitch as isize,
        pixel_stride: 1,
        image_pixel: if last { channels as isize } else { 1 },
        windows,
    };
    let columns = case.each();
    let kept = Kept { columns, results: Mutex::new(vec![f32::NAN; rows * columns]) };
    // SAFETY: pixels inside the images and the gradient of every place are in memory.
    if !unsafe { gradient.run(&kept) }.unwrap() {
        return false;
    }
    let results = kept.results.into_inner().unwrap();
    for (row, k) in (0..rows).flat_map(|row| (0..columns).map(move |k| (row, k))) {
        let product = |column: usize| {
            let (image, place) = (column / places, column % places);
            numbers[(image * rows + row) * places + place] * case.pixel(row, k, column)
        };
        let wanted: f32 = (0..images * places).map(product).sum();
        assert_eq!(results[row * columns + k], wanted, "{gradient:?}, output {row}, weight {k}");
    }
    true
}

#[test]
fn gradients_of_weights_are_those_of_plain_loops() {
    let mut random = Random(3);
    let mut ran = 0;
    for isa in Isa::available().filter(|isa| *isa != Isa::Portable) {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            for outputs in [1, 2, 3, 4, 7, 11, 12, 16, 17, 40] {
                for _ in 0..12 {
                    let size = [1 + random.below(20), 1 + random.below(60)];
                    let last = random.below(2) == 1;
                    ran += usize::from(check_gradient(&mut random, isa, dtype, outputs, size, last));
                }
            }
            for (outputs, last) in [(1, false), (33, false), (1, true), (33, true)] {
                assert!(check_gradient(&mut random, isa, dtype, outputs, [70, 130], last), "not run");
            }
        }
    }
    // The others have fewer places than taps, or one tap.
    assert!(ran > 400, "{ran}");
}

/// The gradient of a column of taps over square images of ones, all of which are the same memory.
fn gradient_of_ones(
    isa: Isa,
    ones: &[f32],
    [images, channels, outputs]: [usize; 3],
    size: usize,
    taps: usize,
) -> Gradient {
    assert_eq!(ones.len(), (size + taps - 1) * size, "an image");
    let axis = |taps: usize| WindowAxis {
        taps,
        stride: 1,
        dilation: 1,
        start: 0,
        length: (size + taps - 1) as isize,
        places: size,
        weight_stride: 1,
    };
    let windows = Direct {
        isa,
        threads: 2,
        image: ones.as_ptr().cast(),
        image_dtype: DType::F32,
        images,
        image_stride: 0,
        group_stride: 0,
        channels,
        channel_stride: 0,
        row_stride: size as isize,
        weights: std::ptr::null(),
        weight_dtype: DType::F32,
        weight_group: 0,
        weight_output: 0,
        weight_channel: taps as isize,
        groups: 1,
        outputs,
        y: axis(taps),
        x: axis(1),
    };
    Gradient {
        windows,
        gradient: ones.as_ptr().cast(),
        dtype: DType::F32,
        image_stride: 0,
        group_stride: 0,
        output_stride: 0,
        row_stride: size as isize,
        pixel_stride: 1,
        image_pixel: 1,
    }
}

/// A chain of single additions of ones sticks at 2²⁴. Lanes are outputs here: each has every pixel.
#[test]
fn long_sums_of_gradients_lose_nothing() {
    let (images, outputs, size, taps) = (65, 12, 512, 2);
    let ones = vec![1.0; (size + taps - 1) * size];
    for isa in Isa::available().filter(|isa| *isa != Isa::Portable) {
        let gradient = gradient_of_ones(isa, &ones, [images, 1, outputs], size, taps);
        let kept = Kept { columns: taps, results: Mutex::new(vec![f32::NAN; outputs * taps]) };
        // SAFETY: every image and every output's gradient are the ones.
        assert!(unsafe { gradient.run(&kept) }.unwrap(), "not run");
        let wanted = (images * size * size) as f32;
        assert_eq!(kept.results.into_inner().unwrap(), vec![wanted; outputs * taps], "{isa:?}");
    }
}

/// Keeps the first column and the number of columns of each tile.
struct Columns(Mutex<Vec<(usize, usize)>>);

impl Epilogue for Columns {
    unsafe fn apply(&self, tile: Tile) {
        self.0.lock().unwrap().push((tile.column, tile.columns));
    }
}

/// One group with few outputs would else be the work of one thread.
#[test]
fn channels_of_a_group_are_tasks_of_their_own() {
    let (channels, size, taps) = (5, 16, 3);
    let ones = vec![1.0; (size + taps - 1) * size];
    for isa in Isa::available().filter(|isa| *isa != Isa::Portable) {
        let gradient = gradient_of_ones(isa, &ones, [1, channels, 2], size, taps);
        let columns = Columns(Mutex::default());
        // SAFETY: every channel and every output's gradient are the ones.
        assert!(unsafe { gradient.run(&columns) }.unwrap(), "not run");
        let mut tiles = columns.0.into_inner().unwrap();
        tiles.sort_unstable();
        assert_eq!(tiles, (0..channels).map(|channel| (channel * taps, taps)).collect::<Vec<_>>(), "{isa:?}");
    }
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
