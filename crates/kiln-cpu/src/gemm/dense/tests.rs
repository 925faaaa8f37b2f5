use super::*;
use crate::features::Extension;
use crate::gemm::{Matrix, Panels};
use kiln_ir::examples::Random;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

fn axis(random: &mut Random, most: usize) -> WindowAxis {
    let (taps, stride, dilation) = (1 + random.below(4), 1 + random.below(3), 1 + random.below(2));
    let (length, padding) = (1 + random.below(most), random.below(3));
    let room = (length + 2 * padding) as isize - ((taps - 1) * dilation) as isize - 1;
    let places = if room < 0 { 0 } else { room as usize / stride + 1 };
    WindowAxis { taps, stride, dilation, start: -(padding as isize), length: length as isize, places, weight_stride: 0 }
}

/// Images of either order and of any float type, of sizes that are no multiple of anything, against plain loops.
#[test]
fn results_are_those_of_plain_loops() {
    let mut random = Random(11);
    for isa in Isa::available().filter(|&isa| isa != Isa::Portable) {
        let mut innermost = 0;
        for number in 0..300 {
            let (images, groups) = (1 + random.below(2), 1 + random.below(2));
            // Few channels, and as many as are the innermost loop.
            let (fewest, outputs) = (*random.choose(&[1, 2 * FEWEST_CHANNELS]), 1 + random.below(70));
            let channels = fewest + random.below(6);
            let (y, x) = (axis(&mut random, 12), axis(&mut random, 40));
            let (height, width) = (y.length as usize, x.length as usize);
            let taps = y.taps * x.taps;
            let all = groups * channels;
            let (last, pixels_first) = (random.below(2) == 0, random.below(2) == 0);
            // Strides of image, channel, row and pixel.
            let strides = match last {
                true => [height * width * all, 1, width * all, all],
                false => [height * width * all, height * width, width, 1],
            };
            let [image, channel, row, pixel] = strides.map(|n| n as isize);
            let memory = random.small_integers(images * all * height * width);
            let weights = random.small_integers(groups * outputs * channels * taps);
            // What all elements are, and how many of them a word has.
            let pairs = isa == Isa::Avx512 && Extension::get() >= Extension::Bf16;
            let pixels = match random.below(5) {
                0 => Pixels::Widened(DType::Bf16),
                1 => Pixels::Widened(DType::F16),
                2 if pairs && last && channels.is_multiple_of(2) => Pixels::Pairs,
                2 | 3 if pairs => Pixels::Interleaved(channels),
                _ => Pixels::Floats,
            };
            let short: Vec<u16> = match pixels {
                Pixels::Widened(DType::F16) => memory.iter().map(|&v| half::f16::from_f32(v).to_bits()).collect(),
                _ => memory.iter().map(|&v| half::bf16::from_f32(v).to_bits()).collect(),
            };
            let (words, packed_weights) = match pixels.has_pairs() {
                false => (channels, weights.clone()),
                true => {
                    let at = |output: usize, channel: usize, tap: usize| match channel < channels {
                        true => half::bf16::from_f32(weights[(output * channels + channel) * taps + tap]).to_bits(),
                        false => 0,
                    };
                    let mut words = Vec::new();
                    for output in 0..groups * outputs {
                        for (pair, tap) in (0..channels.div_ceil(2)).flat_map(|p| (0..taps).map(move |t| (p, t))) {
                            let (low, high) = (at(output, 2 * pair, tap), at(output, 2 * pair + 1, tap));
                            words.push(f32::from_bits(u32::from(low) | u32::from(high) << 16));
                        }
                    }
                    (channels.div_ceil(2), words)
                }
            };
            let first = y.start * row + x.start * pixel;
            let halved = |stride: isize| if pixels == Pixels::Pairs { stride / 2 } else { stride };
            let dense = Dense {
                isa,
                threads: 2,
                image: match pixels {
                    Pixels::Floats => memory.as_ptr().wrapping_offset(first).cast(),
                    _ => short.as_ptr().wrapping_offset(first).cast(),
                },
                pixels,
                images,
                image_stride: halved(image),
                group_stride: halved(channels as isize * channel),
                channels: words,
                channel_stride: channel,
                row_stride: halved(row),
                pixel_stride: halved(pixel),
                factors: None,
                weights: std::ptr::null(),
                taps_first: false,
                weight_group: 0,
                groups,
                several: 0,
                outputs,
                last_outputs: outputs,
                y,
                x,
                pixels_first,
            };
            let panels = dense.panels(words * taps).unwrap();
            let each = panels.bytes() / size_of::<f32>();
            let packed = Scratch::take::<f32>(groups * each);
            let taps_first = dense.has_channels_last() && random.below(4) > 0;
            let dense = Dense { weights: packed.ptr(), weight_group: each, taps_first, ..dense };
            innermost += usize::from(dense.taps_first);
            for group in 0..groups {
                let weights = TapWeights {
                    from: packed_weights[group * outputs * words * taps..].as_ptr(),
                    outputs: (words * taps) as isize,
                    channels: (words, taps as isize),
                    y: (y.taps, x.taps as isize),
                    x: (x.taps, 1),
                    taps_first: dense.taps_first,
                };
                // SAFETY: the weights of a group, and room for its panels.
                unsafe { weights.pack(&panels, packed.ptr::<f32>().add(group * each)) };
            }
            let places = images * y.places * x.places;
            let got = Mutex::new(vec![f32::NAN; groups * outputs * places]);
            let store = |tile: Tile| {
                let mut got = got.lock().unwrap();
                for r in 0..tile.rows {
                    for c in 0..tile.columns {
                        let (output, place) = match pixels_first {
                            true => (tile.column + c, tile.row + r),
                            false => (tile.row + r, tile.column + c),
                        };
                        let slot = &mut got[output * places + place];
                        assert!(slot.is_nan(), "a result twice");
                        // SAFETY: an element of the tile.
                        *slot = unsafe { *tile.data.cast::<f32>().add(r * tile.row_stride + c) };
                    }
                }
            };
            // SAFETY: everything is in memory.
            assert!(unsafe { dense.run(&store) }.unwrap());
            let got = got.into_inner().unwrap();
            for output in 0..groups * outputs {
                let group = output / outputs;
                for place in 0..places {
                    let (n, rest) = (place / (y.places * x.places), place % (y.places * x.places));
                    let (py, px) = (rest / x.places, rest % x.places);
                    let mut sum = 0.0;
                    for k in 0..channels * taps {
                        let (c, ky, kx) = (k / taps, k % taps / x.taps, k % x.taps);
                        let iy = y.start + (py * y.stride + ky * y.dilation) as isize;
                        let ix = x.start + (px * x.stride + kx * x.dilation) as isize;
                        if (0..y.length).contains(&iy) && (0..x.length).contains(&ix) {
                            let at =
                                n as isize * image + (group * channels + c) as isize * channel + iy * row + ix * pixel;
                            sum += memory[at as usize] * weights[output * channels * taps + k];
                        }
                    }
                    assert_eq!(
                        got[output * places + place],
                        sum,
                        "{isa:?} {number}: result {output} of {place}, {dense:?}"
                    );
                }
            }
        }
        assert!(innermost > 10, "channels were the innermost loop {innermost} times");
    }
}

/// Several images whose channels have factors of their own, results of several panels, and channels that are added up in parts.
#[test]
fn channels_are_multiplied_by_their_factors() {
    let mut random = Random(23);
    for isa in Isa::available().filter(|&isa| isa != Isa::Portable) {
        for channels in [1, 7, 40, 9000] {
            let (images, outputs, pixels) = (if channels > 1000 { 2 } else { 3 }, 1 + random.below(90), 37);
            let memory = random.small_integers(images * channels * pixels);
            let weights = random.small_integers(outputs * channels);
            // One after the other, or as the last column of a matrix.
            let step = 1 + random.below(3);
            let factors = random.small_integers(images * channels * step);
            let line = WindowAxis {
                taps: 1,
                stride: 1,
                dilation: 1,
                start: 0,
                length: pixels as isize,
                places: pixels,
                weight_stride: 0,
            };
            let dense = Dense {
                isa,
                threads: 1 + random.below(2),
                image: memory.as_ptr().cast(),
                pixels: Pixels::Floats,
                images,
                image_stride: (channels * pixels) as isize,
                group_stride: 0,
                channels,
                channel_stride: pixels as isize,
                row_stride: 0,
                pixel_stride: 1,
                factors: Some(ChannelFactors {
                    first: factors.as_ptr(),
                    channel: step as isize,
                    image: (channels * step) as isize,
                }),
                weights: std::ptr::null(),
                taps_first: false,
                weight_group: 0,
                groups: 1,
                several: 0,
                outputs,
                last_outputs: outputs,
                y: WindowAxis { length: 1, places: 1, ..line },
                x: line,
                pixels_first: false,
            };
            let panels = dense.panels(channels).unwrap();
            let packed = Scratch::take::<f32>(panels.bytes() / size_of::<f32>());
            let from = TapWeights {
                from: weights.as_ptr(),
                outputs: channels as isize,
                channels: (channels, 1),
                y: (1, 0),
                x: (1, 0),
                taps_first: false,
            };
            // SAFETY: the weights, and room for their panels.
            unsafe { from.pack(&panels, packed.ptr()) };
            let dense = Dense { weights: packed.ptr(), ..dense };
            let got = Mutex::new(vec![f32::NAN; outputs * images * pixels]);
            let store = |tile: Tile| {
                let mut got = got.lock().unwrap();
                for (r, c) in (0..tile.rows).flat_map(|r| (0..tile.columns).map(move |c| (r, c))) {
                    // SAFETY: an element of the tile.
                    let value = unsafe { *tile.data.cast::<f32>().add(r * tile.row_stride + c) };
                    got[(tile.row + r) * images * pixels + tile.column + c] = value;
                }
            };
            // SAFETY: everything is in memory.
            assert!(unsafe { dense.run(&store) }.unwrap());
            let got = got.into_inner().unwrap();
            for (output, image) in (0..outputs).flat_map(|o| (0..images).map(move |i| (o, i))) {
                for pixel in 0..pixels {
                    let product = |c: usize| {
                        let at = image * channels + c;
                        memory[at * pixels + pixel] * factors[at * step] * weights[output * channels + c]
                    };
                    let sum: f32 = (0..channels).map(product).sum();
                    let found = got[(output * images + image) * pixels + pixel];
                    assert_eq!(found, sum, "{isa:?} {channels}: result {output} of {image}, {pixel}");
                }
            }
            // There are none of windows of several pixels.
            let windows = Dense { x: WindowAxis { taps: 2, places: pixels - 1, ..line }, ..dense };
            assert!(windows.plan().unwrap().is_none());
        }
    }
}

/// Sums over so many channels that they are added up in parts.
#[test]
fn parts_of_the_channels_are_added_up() {
    for isa in Isa::available().filter(|&isa| isa != Isa::Portable) {
        let width = VECTORS * Dense::vector_of(isa);
        let channels = 2 * WEIGHT_BYTES / (width * size_of::<f32>()) + 3;
        let line = WindowAxis { taps: 1, stride: 1, dilation: 1, start: 0, length: 3, places: 3, weight_stride: 0 };
        let memory: Vec<f32> = (0..channels * 3).map(|i| (i % 3) as f32).collect();
        let weights = vec![1f32; channels * width];
        let dense = Dense {
            isa,
            threads: 1,
            image: memory.as_ptr().cast(),
            pixels: Pixels::Floats,
            images: 1,
            image_stride: 0,
            group_stride: 0,
            channels,
            channel_stride: 3,
            row_stride: 3,
            pixel_stride: 1,
            factors: None,
            weights: weights.as_ptr(),
            taps_first: false,
            weight_group: 0,
            groups: 1,
            several: 0,
            outputs: width,
            last_outputs: width,
            y: WindowAxis { length: 1, places: 1, ..line },
            x: line,
            pixels_first: false,
        };
        let seen = AtomicUsize::new(0);
        let check = |tile: Tile| {
            for (r, c) in (0..tile.rows).flat_map(|r| (0..tile.columns).map(move |c| (r, c))) {
                // SAFETY: an element of the tile.
                let got = unsafe { *tile.data.cast::<f32>().add(r * tile.row_stride + c) };
                assert_eq!(got, (channels * (tile.column + c)) as f32);
            }
            seen.fetch_add(tile.rows * tile.columns, Ordering::Relaxed);
        };
        // SAFETY: everything is in memory.
        assert!(unsafe { dense.run(&check) }.unwrap());
        assert_eq!(seen.into_inner(), 3 * width);
    }
}

/// The same with panels that have taps first, some of which are outside the image.
#[test]
fn parts_of_innermost_channels_are_added_up() {
    for isa in Isa::available().filter(|&isa| isa != Isa::Portable) {
        let width = VECTORS * Dense::vector_of(isa);
        let (taps, pixels) = (3, 5);
        let channels = 2 * WEIGHT_BYTES / (taps * width * size_of::<f32>()) + 3;
        let line = WindowAxis { taps: 1, stride: 1, dilation: 1, start: 0, length: 1, places: 1, weight_stride: 0 };
        let memory: Vec<f32> = (0..pixels * channels).map(|i| (i / channels + 1) as f32).collect();
        let weight = |tap: usize, channel: usize| ((tap + 1) * usize::from(channel.is_multiple_of(3))) as f32;
        let weights: Vec<f32> = (0..taps * channels * width)
            .map(|i| (i / (channels * width), i / width % channels))
            .map(|(tap, channel)| weight(tap, channel))
            .collect();
        let dense = Dense {
            isa,
            threads: 1,
            image: memory.as_ptr().wrapping_sub(2 * channels).cast(),
            pixels: Pixels::Floats,
            images: 1,
            image_stride: 0,
            group_stride: 0,
            channels,
            channel_stride: 1,
            row_stride: 0,
            pixel_stride: channels as isize,
            factors: None,
            weights: weights.as_ptr(),
            taps_first: true,
            weight_group: 0,
            groups: 1,
            several: 0,
            outputs: width,
            last_outputs: width,
            y: line,
            x: WindowAxis { taps, start: -2, length: pixels as isize, places: pixels, ..line },
            pixels_first: true,
        };
        let want = |place: usize| -> f32 {
            let inside = (0..taps).filter(|tap| (2..pixels + 2).contains(&(place + tap)));
            inside.map(|tap| (0..channels).map(|c| weight(tap, c)).sum::<f32>() * (place + tap - 1) as f32).sum()
        };
        assert!(dense.plan().unwrap().unwrap().parts > 1);
        let seen = AtomicUsize::new(0);
        let check = |tile: Tile| {
            for (r, c) in (0..tile.rows).flat_map(|r| (0..tile.columns).map(move |c| (r, c))) {
                // SAFETY: an element of the tile.
                let got = unsafe { *tile.data.cast::<f32>().add(r * tile.row_stride + c) };
                assert_eq!(got, want(tile.row + r), "{isa:?}: place {}", tile.row + r);
            }
            seen.fetch_add(tile.rows * tile.columns, Ordering::Relaxed);
        };
        // SAFETY: everything is in memory; what is outside the row is not read.
        assert!(unsafe { dense.run(&check) }.unwrap());
        assert_eq!(seen.into_inner(), pixels * width);
    }
}

/// One row of many pixels is cut into blocks and tasks, each a part of it.
#[test]
fn long_rows_are_cut() {
    for isa in Isa::available().filter(|&isa| isa != Isa::Portable) {
        let (width, channels, length) = (VECTORS * Dense::vector_of(isa), 5, 20_011);
        let memory: Vec<f32> = (0..channels * length).map(|i| (i % 7) as f32).collect();
        let weights: Vec<f32> = (0..channels * 3 * width).map(|i| ((i / width) % 4) as f32).collect();
        let line = WindowAxis { taps: 1, stride: 1, dilation: 1, start: 0, length: 1, places: 1, weight_stride: 0 };
        let x = WindowAxis { taps: 3, start: -1, length: length as isize, places: length, ..line };
        for (threads, pixels_first) in [(1, true), (3, false)] {
            let dense = Dense {
                isa,
                threads,
                image: memory.as_ptr().wrapping_sub(1).cast(),
                pixels: Pixels::Floats,
                images: 1,
                image_stride: 0,
                group_stride: 0,
                channels,
                channel_stride: length as isize,
                row_stride: 0,
                pixel_stride: 1,
                factors: None,
                weights: weights.as_ptr(),
                taps_first: false,
                weight_group: 0,
                groups: 1,
                several: 0,
                outputs: width,
                last_outputs: width,
                y: line,
                x,
                pixels_first,
            };
            let at = |channel: usize, place: usize| match place.checked_sub(1) {
                Some(pixel) if pixel < length => memory[channel * length + pixel],
                _ => 0.0,
            };
            let want = |place: usize| -> f32 {
                let terms = (0..channels).flat_map(|c| (0..3).map(move |t| (c, t)));
                terms.map(|(c, t)| at(c, place + t) * weights[(c * 3 + t) * width]).sum()
            };
            let (seen, tiles) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let check = |tile: Tile| {
                for (r, c) in (0..tile.rows).flat_map(|r| (0..tile.columns).map(move |c| (r, c))) {
                    let place = if pixels_first { tile.row + r } else { tile.column + c };
                    // SAFETY: an element of the tile.
                    let got = unsafe { *tile.data.cast::<f32>().add(r * tile.row_stride + c) };
                    assert_eq!(got, want(place), "{isa:?} {place}");
                }
                seen.fetch_add(tile.rows * tile.columns, Ordering::Relaxed);
                tiles.fetch_add(1, Ordering::Relaxed);
            };
            // SAFETY: everything is in memory; what is outside the row is not read.
            assert!(unsafe { dense.run(&check) }.unwrap());
            assert_eq!(seen.into_inner(), length * width);
            assert!(tiles.into_inner() > 4);
        }
    }
}

/// Groups of as many channels as results, side by side, of which a vector has several.
#[test]
fn groups_share_vectors() {
    let mut random = Random(17);
    for isa in Isa::available().filter(|&isa| isa != Isa::Portable) {
        let lanes = Dense::vector_of(isa);
        // Vectors that are full, and a last one that is not where there are masks.
        let cases = [2, 4, 8].into_iter().flat_map(|each| [(each, 2 * lanes), (each, lanes + each)]);
        for (each, all) in cases.filter(|&(each, all)| each < lanes && (all == 2 * lanes || isa == Isa::Avx512)) {
            let (height, width) = (1 + random.below(6), 1 + random.below(19));
            let axis = |length: usize| WindowAxis {
                taps: 3,
                stride: 1,
                dilation: 1,
                start: -1,
                length: length as isize,
                places: length,
                weight_stride: 0,
            };
            let memory = random.small_integers(height * width * all);
            let weights = random.small_integers(all * each * 9);
            let dense = Dense {
                isa,
                threads: 2,
                image: memory.as_ptr().wrapping_sub((width + 1) * all).cast(),
                pixels: Pixels::Floats,
                images: 1,
                image_stride: 0,
                group_stride: lanes as isize,
                channels: each,
                channel_stride: 0,
                row_stride: (width * all) as isize,
                pixel_stride: all as isize,
                factors: None,
                weights: std::ptr::null(),
                taps_first: false,
                weight_group: 0,
                groups: 2,
                several: each,
                outputs: lanes,
                last_outputs: all - lanes,
                y: axis(height),
                x: axis(width),
                pixels_first: true,
            };
            let panels = dense.panels(each * 9).unwrap();
            let size = panels.bytes() / size_of::<f32>();
            let packed = Scratch::take::<f32>(2 * size);
            for (vector, outputs) in [lanes, all - lanes].into_iter().enumerate() {
                let data = weights[vector * lanes * each * 9..].as_ptr().cast();
                let matrix = Matrix { data, dtype: DType::F32, row_stride: 1, column_stride: (each * 9) as isize };
                // SAFETY: the weights of a vector, and room for its panels.
                unsafe { panels.of_columns(outputs).pack(&matrix, packed.ptr::<f32>().add(vector * size).cast()) };
            }
            let dense = Dense { weights: packed.ptr(), weight_group: size, ..dense };
            let seen = AtomicUsize::new(0);
            let check = |tile: Tile| {
                for (r, c) in (0..tile.rows).flat_map(|r| (0..tile.columns).map(move |c| (r, c))) {
                    let (place, output) = (tile.row + r, tile.column + c);
                    let (py, px) = (place / width, place % width);
                    let mut sum = 0.0;
                    for k in 0..each * 9 {
                        let (channel, ky, kx) = (output / each * each + k / 9, k % 9 / 3, k % 3);
                        let (iy, ix) = ((py + ky).wrapping_sub(1), (px + kx).wrapping_sub(1));
                        if iy < height && ix < width {
                            sum += memory[(iy * width + ix) * all + channel] * weights[output * each * 9 + k];
                        }
                    }
                    // SAFETY: an element of the tile.
                    let got = unsafe { *tile.data.cast::<f32>().add(r * tile.row_stride + c) };
                    assert_eq!(got, sum, "{isa:?} {each}: result {output} of {place}");
                }
                seen.fetch_add(tile.rows * tile.columns, Ordering::Relaxed);
            };
            // SAFETY: everything is in memory; what is outside the image is not read.
            assert!(unsafe { dense.run(&check) }.unwrap());
            assert_eq!(seen.into_inner(), all * height * width);
        }
    }
}

/// Weights whose channels, taps (either way) or neither follow each other, one by one.
#[test]
fn weights_of_any_order_are_packed() {
    let mut random = Random(19);
    for isa in Isa::available().filter(|&isa| isa != Isa::Portable) {
        for (outputs, channels) in [(1, 1), (5, 3), (33, 20), (70, 37)] {
            let (y, x) = (3usize, 2usize);
            let (o, c, t) = (outputs as isize, channels as isize, (y * x) as isize);
            // Strides of result, channel, row and column of taps, and where the first weight is.
            let orders = [
                ([c * t, t, 2, 1], 0),
                ([c * t, t, -2, -1], t - 1),
                ([c * t, 1, 2 * c, c], 0),
                ([c * t, 1, -2 * c, -c], (t - 1) * c),
                ([1, o * t, 2 * o, o], 0),
            ];
            for (([output, channel, row, column], first), taps_first) in
                orders.into_iter().flat_map(|order| [(order, false), (order, true)])
            {
                let memory = random.small_integers(outputs * channels * y * x);
                let panels = Panels::new(isa, channels * y * x, outputs, DType::F32, DType::F32).unwrap();
                let packed = Scratch::take::<f32>(panels.bytes() / size_of::<f32>());
                let from = memory.as_ptr().wrapping_offset(first);
                let (channels_axis, y_axis, x_axis) = ((channels, channel), (y, row), (x, column));
                let weights =
                    TapWeights { from, outputs: output, channels: channels_axis, y: y_axis, x: x_axis, taps_first };
                // SAFETY: all weights are in memory, and there is room for the panels.
                unsafe { weights.pack(&panels, packed.ptr()) };
                let width = VECTORS * Dense::vector_of(isa);
                for (n, k) in (0..outputs).flat_map(|n| (0..channels * y * x).map(move |k| (n, k))) {
                    let [ch, tap] = match taps_first {
                        true => [k % channels, k / channels],
                        false => [k / (y * x), k % (y * x)],
                    };
                    let [ch, ky, kx] = [ch, tap / x, tap % x].map(|i| i as isize);
                    let at = first + n as isize * output + ch * channel + ky * row + kx * column;
                    let place = (n / width * channels * y * x + k) * width + n % width;
                    // SAFETY: a weight of the panels.
                    let got = unsafe { *packed.ptr::<f32>().add(place) };
                    assert_eq!(got, memory[at as usize], "{isa:?} {outputs} {channels} {channel}: {n}, {k}");
                }
            }
        }
    }
}
