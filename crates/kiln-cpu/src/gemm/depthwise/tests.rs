use super::*;
use half::bf16;
use kiln_ir::examples::Random;
use std::sync::Mutex;

fn axis(random: &mut Random, most: usize) -> WindowAxis {
    let (taps, stride, dilation) = (1 + random.below(7), 1 + random.below(3), 1 + random.below(2));
    let (length, padding) = (1 + random.below(most), random.below(5));
    let room = (length + 2 * padding) as isize - ((taps - 1) * dilation) as isize - 1;
    let places = if room < 0 { 0 } else { room as usize / stride + 1 };
    let (start, length) = (-(padding as isize), length as isize);
    WindowAxis { taps, stride, dilation, start, length, places, weight_stride: 0 }
}

fn stored(numbers: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F16 => numbers.iter().flat_map(|&v| half::f16::from_f32(v).to_bits().to_le_bytes()).collect(),
        DType::Bf16 => numbers.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        _ => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

/// Images of either order and type, of sizes that are no multiple of anything, with taps in any order, against plain loops.
#[test]
fn results_are_those_of_plain_loops() {
    let mut random = Random(5);
    for isa in Isa::available().filter(|&isa| isa != Isa::Portable) {
        let mut ran = 0;
        for number in 0..200 {
            let (images, channels) = (1 + random.below(2), 1 + random.below(40));
            let (mut y, mut x) = (axis(&mut random, 14), axis(&mut random, 40));
            let (height, width) = (y.length as usize, x.length as usize);
            let taps = y.taps * x.taps;
            let (last, pixels_first) = (random.below(2) == 0, random.below(2) == 0);
            let dtype = [DType::F32, DType::F32, DType::Bf16, DType::F16][random.below(4)];
            let size = dtype.size_in_bits() / 8;
            // Strides of channel, row and pixel; rows may have a rest that is not read.
            let rest = random.below(2);
            let [channel, row, pixel] = match last {
                true => [1, (width + rest) * channels, channels],
                false => [height * (width + rest), width + rest, 1],
            };
            let area = height * (width + rest) * channels;
            let numbers = random.small_integers(images * area);
            let weights = random.small_integers(channels * taps);
            let (memory, weight_memory) = (stored(&numbers, dtype), stored(&weights, dtype));
            // Taps forwards, backwards, or with rows and columns exchanged.
            let (first_tap, strides) = match random.below(3) {
                0 => (0, [x.taps as isize, 1]),
                1 => (taps - 1, [-(x.taps as isize), -1]),
                _ => (0, [1, y.taps as isize]),
            };
            [y.weight_stride, x.weight_stride] = strides;
            let start = y.start * row as isize + x.start * pixel as isize;
            let depthwise = Depthwise {
                isa,
                threads: 1 + random.below(2),
                image: memory.as_ptr().wrapping_offset(start * size as isize),
                image_dtype: dtype,
                images,
                image_stride: area as isize,
                channels,
                channel_stride: channel as isize,
                row_stride: row as isize,
                pixel_stride: pixel as isize,
                weights: weight_memory[first_tap * size..].as_ptr(),
                weight_dtype: dtype,
                weight_channel: taps as isize,
                y,
                x,
                pixels_first,
            };
            let columns = images * y.places * x.places;
            let results = Mutex::new(vec![f32::NAN; channels * columns]);
            let keep = |tile: Tile| {
                let mut results = results.lock().unwrap();
                for (r, c) in (0..tile.rows).flat_map(|r| (0..tile.columns).map(move |c| (r, c))) {
                    let (row, column) = (tile.row + r, tile.column + c);
                    let (channel, place) = if pixels_first { (column, row) } else { (row, column) };
                    // SAFETY: inside the tile.
                    let value = unsafe { *tile.data.cast::<f32>().add(r * tile.row_stride + c) };
                    let slot = &mut results[channel * columns + place];
                    assert!(slot.is_nan(), "number {number}: a result came twice");
                    *slot = value;
                }
            };
            // SAFETY: pixels inside the images and all weights are in memory.
            if !unsafe { depthwise.run(&keep) }.unwrap() {
                continue;
            }
            ran += columns.min(1);
            for (at, &result) in results.into_inner().unwrap().iter().enumerate() {
                let (c, place) = (at / columns, at % columns);
                let (image, at_y, at_x) =
                    (place / (y.places * x.places), place / x.places % y.places, place % x.places);
                let mut wanted = 0.0;
                for (ky, kx) in (0..y.taps).flat_map(|ky| (0..x.taps).map(move |kx| (ky, kx))) {
                    let py = y.start + (at_y * y.stride + ky * y.dilation) as isize;
                    let px = x.start + (at_x * x.stride + kx * x.dilation) as isize;
                    if (0..y.length).contains(&py) && (0..x.length).contains(&px) {
                        let tap = first_tap as isize + ky as isize * strides[0] + kx as isize * strides[1];
                        let weight = weights[c * taps + tap as usize];
                        wanted +=
                            weight * numbers[image * area + c * channel + py as usize * row + px as usize * pixel];
                    }
                }
                assert_eq!(result, wanted, "{isa:?}, number {number}: channel {c}, place {place}");
            }
        }
        assert!(ran > 100, "only {ran} of the sizes have results");
    }
}
