use super::*;

/// Numbers that look random, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }
}

/// A picture of `height × width` under windows: fixed axes (channel, ky, kx), running axes (image, y, x).
struct Picture {
    memory: Vec<u8>,
    windows: Windows,
    wanted: Vec<Vec<f32>>,
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

fn picture(random: &mut Random, isa: Isa, dtype: DType) -> Picture {
    let [images, channels] = [1 + random.below(3), 1 + random.below(3)];
    let size = [1 + random.below(12), 1 + random.below(40)];
    let taps = [1 + random.below(4), 1 + random.below(4)];
    let stride = [1 + random.below(3), 1 + random.below(4)];
    let dilation = [1 + random.below(2), 1 + random.below(2)];
    let padding = [random.below(4) as isize, random.below(4) as isize];
    let places = [0, 1].map(|i| {
        let room = size[i] as isize + 2 * padding[i] - ((taps[i] - 1) * dilation[i]) as isize - 1;
        if room < 0 { 0 } else { room as usize / stride[i] + 1 }
    });
    let memory: Vec<f32> = (0..images * channels * size[0] * size[1]).map(|i| (i % 251) as f32 + 1.0).collect();
    let (row, area) = (size[1] as isize, (size[0] * size[1]) as isize);
    let extent = |size: usize, stride: isize| Extent { size, stride };
    let fixed = vec![
        extent(channels, area),
        extent(taps[0], dilation[0] as isize * row),
        extent(taps[1], dilation[1] as isize),
    ];
    let running = vec![
        extent(images, channels as isize * area),
        extent(places[0], stride[0] as isize * row),
        extent(places[1], stride[1] as isize),
    ];
    let guard = |i: usize| {
        let (mut fixed, mut running) = (vec![0; 3], vec![0; 3]);
        (fixed[i + 1], running[i + 1]) = (dilation[i] as isize, stride[i] as isize);
        Guard { fixed, running, start: -padding[i], length: size[i] as isize }
    };
    let guards = vec![guard(0), guard(1)];
    let at = |f: usize, r: usize| {
        let (c, ky, kx) = (f / (taps[0] * taps[1]), f / taps[1] % taps[0], f % taps[1]);
        let (n, y, x) = (r / (places[0] * places[1]), r / places[1] % places[0], r % places[1]);
        let y = (y * stride[0] + ky * dilation[0]) as isize - padding[0];
        let x = (x * stride[1] + kx * dilation[1]) as isize - padding[1];
        let inside = (0..size[0] as isize).contains(&y) && (0..size[1] as isize).contains(&x);
        let place = ((n * channels + c) as isize * size[0] as isize + y) * row + x;
        if inside { memory[place as usize] } else { 0.0 }
    };
    let columns = images * places[0] * places[1];
    let wanted = (0..channels * taps[0] * taps[1]).map(|f| (0..columns).map(|r| at(f, r)).collect()).collect();
    let memory = stored(&memory, dtype);
    let first = (-padding[0] * row - padding[1]) * (dtype.size_in_bits() / 8) as isize;
    let first = memory.as_ptr().wrapping_offset(first);
    Picture { windows: Windows::new(isa, dtype, first, fixed, running, guards), wanted, memory }
}

#[test]
fn rows_and_panels_have_the_elements_under_the_windows() {
    let mut random = Random(7);
    for (isa, dtype) in Isa::available().flat_map(|isa| [DType::F32, DType::Bf16, DType::F16].map(|d| (isa, d))) {
        for _ in 0..200 {
            let Picture { windows, wanted, memory } = picture(&mut random, isa, dtype);
            let columns = wanted[0].len();
            if columns == 0 {
                continue;
            }
            let range = random.below(columns)..columns;
            for (row, wanted) in wanted.iter().enumerate() {
                let mut got = vec![f32::NAN; range.len()];
                // SAFETY: the picture is in memory, and the row has room.
                unsafe { windows.fill(row, range.clone(), got.as_mut_ptr().cast()) };
                assert_eq!(got, wanted[range.clone()], "{windows:?}");
            }
            let rows = random.below(wanted.len())..wanted.len();
            let rows = rows.start..rows.end.min(rows.start + LANES);
            let mut got = vec![f32::NAN; range.len() * LANES];
            // SAFETY: as above, with room for as many lanes.
            if unsafe { windows.fill_panel(rows.clone(), range.clone(), LANES, got.as_mut_ptr().cast()) } {
                for (i, column) in range.clone().enumerate() {
                    for (lane, row) in rows.clone().enumerate() {
                        assert_eq!(got[i * LANES + lane], wanted[row][column], "lane {lane} of {windows:?}");
                    }
                }
            }
            let windows = windows.with_rows();
            let rows = random.below(wanted.len())..wanted.len();
            let width = if isa == Isa::Avx512 { 32 } else { 16 };
            let panels = range.len().div_ceil(width);
            let mut got = vec![f32::NAN; panels * rows.len() * width + SLACK];
            // SAFETY: as above, with room for whole panels and the slack.
            assert!(unsafe { windows.fill_panels(rows.clone(), range.clone(), width, got.as_mut_ptr().cast()) });
            for panel in 0..panels {
                for (i, row) in rows.clone().enumerate() {
                    for lane in 0..width {
                        let column = range.start + panel * width + lane;
                        let wanted = if column < range.end { wanted[row][column] } else { 0.0 };
                        let got = got[(panel * rows.len() + i) * width + lane];
                        assert_eq!(got, wanted, "{isa:?} panel {panel}, row {row}, lane {lane} of {windows:?}");
                    }
                }
            }
            if windows.has_pairs() {
                let mut words = vec![u32::MAX; panels * rows.len().div_ceil(2) * width + SLACK];
                // SAFETY: as above, a word a pair.
                unsafe { windows.fill_pairs(rows.clone(), range.clone(), width, words.as_mut_ptr()) };
                for (at, word) in words[..words.len() - SLACK].iter().enumerate() {
                    let (panel, lane) = (at / width / rows.len().div_ceil(2), at % width);
                    let column = range.start + panel * width + lane;
                    for (half, bits) in [*word as u16, (*word >> 16) as u16].into_iter().enumerate() {
                        let row = rows.start + at / width % rows.len().div_ceil(2) * 2 + half;
                        let inside = column < range.end && row < rows.end;
                        let wanted = if inside { wanted[row][column] } else { 0.0 };
                        assert_eq!(bf16::from_bits(bits).to_f32(), wanted, "pair {at}, half {half} of {windows:?}");
                    }
                }
            }
            drop(memory);
        }
    }
}

#[test]
fn guards_hold_where_they_say() {
    for step in -4..=4isize {
        for start in -20..=20isize {
            for length in [0, 1, 5, 9] {
                let wanted: Vec<usize> =
                    (0..12).filter(|&x| (0..length).contains(&(start + x as isize * step))).collect();
                let got: Vec<usize> = holds(start, step, length, 12).collect();
                assert_eq!(got, wanted, "{start} + x·{step} below {length}");
            }
        }
    }
}
