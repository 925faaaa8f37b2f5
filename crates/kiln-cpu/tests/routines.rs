//! Scan, sort and scatter against plain loops, on contiguous and strided views, with one and several threads' worth of work.

use kiln_cpu::routine::Routine;
use kiln_ir::{DType, Dim, ReduceKind, ScatterKind};
use kiln_kernels::kernel::{Access, BufferArg, Kernel, KernelBody, RoutineBody, Strided};
use kiln_runtime::{LaunchError, RawBuffer};

fn dims(numbers: &[i64]) -> Vec<Dim> {
    numbers.iter().map(|&n| Dim::from(n)).collect()
}

fn view(buffer: usize, offset: i64, strides: &[i64]) -> Strided {
    Strided { buffer, offset: Dim::from(offset), strides: dims(strides) }
}

fn launch(dtypes: &[DType], body: RoutineBody, buffers: &mut [RawBuffer]) -> Result<(), LaunchError> {
    let buffers_of = dtypes.iter().map(|&dtype| BufferArg { dtype, access: Access::ReadWrite }).collect();
    let kernel = Kernel { buffers: buffers_of, sizes: vec![], body: KernelBody::Routine(body.clone()) };
    let routine = Routine::new(&kernel, &body, "test").unwrap();
    // SAFETY: every test passes buffers that hold what its views reach.
    unsafe { routine.launch(buffers, &[]) }
}

fn raw<T>(data: &mut [T]) -> RawBuffer {
    RawBuffer { ptr: data.as_mut_ptr().cast(), bytes: std::mem::size_of_val(data) }
}

fn noise(count: usize) -> Vec<f32> {
    let mut state = 0x1234_5678_9abc_def0u64;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 40) as f32) / 1e6 - 8.0
        })
        .collect()
}

#[test]
fn scan_runs_along_any_axis_both_ways() {
    let (rows, columns) = (37i64, 1001i64);
    let mut x = noise((rows * columns) as usize);
    for (axis, reverse) in [(0usize, false), (0, true), (1, false), (1, true)] {
        let mut y = vec![0f32; x.len()];
        let body = RoutineBody::Scan {
            shape: dims(&[rows, columns]),
            axis,
            kind: ReduceKind::Sum,
            reverse,
            input: view(0, 0, &[columns, 1]),
            output: view(1, 0, &[columns, 1]),
        };
        launch(&[DType::F32, DType::F32], body, &mut [raw(&mut x), raw(&mut y)]).unwrap();
        for row in 0..rows {
            for column in 0..columns {
                let line: Vec<i64> = if axis == 0 { (0..rows).collect() } else { (0..columns).collect() };
                let here = if axis == 0 { row } else { column };
                let want: f64 = line
                    .iter()
                    .filter(|&&i| if reverse { i >= here } else { i <= here })
                    .map(|&i| if axis == 0 { i * columns + column } else { row * columns + i })
                    .map(|at| x[at as usize] as f64)
                    .sum();
                let got = y[(row * columns + column) as usize] as f64;
                assert!((got - want).abs() <= 1e-3, "{axis} {reverse} {row} {column}: {got} {want}");
            }
        }
    }
}

#[test]
fn scan_max_keeps_nan_and_bytes_wrap() {
    let mut x = [1f32, f32::NAN, 3.0, -1.0];
    let mut y = [0f32; 4];
    let scan = |kind| RoutineBody::Scan {
        shape: dims(&[4]),
        axis: 0,
        kind,
        reverse: false,
        input: view(0, 0, &[1]),
        output: view(1, 0, &[1]),
    };
    launch(&[DType::F32, DType::F32], scan(ReduceKind::Max), &mut [raw(&mut x), raw(&mut y)]).unwrap();
    assert_eq!(y[0], 1.0);
    assert!(y[1..].iter().all(|v| v.is_nan()));
    let (mut x, mut y) = ([100i8, 100, 100, -1], [0i8; 4]);
    launch(&[DType::I8, DType::I8], scan(ReduceKind::Sum), &mut [raw(&mut x), raw(&mut y)]).unwrap();
    assert_eq!(y, [100, -56, 44, 43]);
}

#[test]
fn sort_is_stable_and_puts_nan_last() {
    let mut x = [2f32, 1.0, f32::NAN, 1.0, -0.0, 0.0, f32::INFINITY, 2.0];
    let sorted = |x: &mut [f32], descending, count: usize| {
        let mut y = vec![-1i64; count];
        let body = RoutineBody::SortIndices {
            shape: dims(&[8]),
            axis: 0,
            descending,
            count: Dim::from(count),
            input: view(0, 0, &[1]),
            output: view(1, 0, &[1]),
        };
        launch(&[DType::F32, DType::I64], body, &mut [raw(x), raw(&mut y)]).unwrap();
        y
    };
    assert_eq!(sorted(&mut x, false, 8), [4, 5, 1, 3, 0, 7, 6, 2]);
    assert_eq!(sorted(&mut x, true, 8), [2, 6, 0, 7, 1, 3, 4, 5]);
    assert_eq!(sorted(&mut x, true, 3), [2, 6, 0]);
    assert_eq!(sorted(&mut x, false, 0), [0i64; 0]);
}

#[test]
fn sort_of_many_lines_agrees_with_a_stable_sort() {
    let (rows, columns) = (64usize, 517usize);
    // Few distinct keys, read through a transposed view.
    let mut x: Vec<f32> = noise(rows * columns).into_iter().map(|v| v.round()).collect();
    let mut y = vec![0i64; rows * columns];
    let body = RoutineBody::SortIndices {
        shape: dims(&[rows as i64, columns as i64]),
        axis: 1,
        descending: true,
        count: Dim::from(columns),
        input: view(0, 0, &[1, rows as i64]),
        output: view(1, 0, &[columns as i64, 1]),
    };
    launch(&[DType::F32, DType::I64], body, &mut [raw(&mut x), raw(&mut y)]).unwrap();
    for row in 0..rows {
        let mut want: Vec<i64> = (0..columns as i64).collect();
        want.sort_by(|&a, &b| x[b as usize * rows + row].partial_cmp(&x[a as usize * rows + row]).unwrap());
        assert_eq!(y[row * columns..][..columns], want[..]);
    }
}

fn scatter(
    kind: ScatterKind,
    index: &mut [i64],
    updates: &mut [f32],
    out: &mut [f32],
    width: i64,
) -> Result<(), LaunchError> {
    let (steps, lines) = (index.len() as i64, out.len() as i64 / width);
    let body = RoutineBody::Scatter {
        shape: dims(&[lines, width]),
        updates_shape: dims(&[steps, width]),
        axis: 0,
        kind,
        index: view(0, 0, &[1, 0]),
        updates: view(1, 0, &[width, 1]),
        output: view(2, 0, &[width, 1]),
    };
    launch(&[DType::I64, DType::F32, DType::F32], body, &mut [raw(index), raw(updates), raw(out)])
}

#[test]
fn scatter_combines_rows() {
    let width = 333usize;
    let steps = 211usize;
    let lines = 19usize;
    let mut index: Vec<i64> = (0..steps).map(|i| (i * 7 % lines) as i64).collect();
    let mut updates = noise(steps * width);
    for kind in ScatterKind::ALL.iter().copied() {
        let mut got = vec![1.5f32; lines * width];
        let mut want = got.clone();
        scatter(kind, &mut index, &mut updates, &mut got, width as i64).unwrap();
        for step in 0..steps {
            for column in 0..width {
                let place = &mut want[index[step] as usize * width + column];
                let update = updates[step * width + column];
                *place = match kind {
                    ScatterKind::Set => update,
                    ScatterKind::Add => *place + update,
                    ScatterKind::Max => place.max(update),
                    ScatterKind::Min => place.min(update),
                    ScatterKind::Mul => *place * update,
                };
            }
        }
        assert_eq!(got, want, "{}", kind.name());
    }
}

#[test]
fn scatter_reports_an_index_out_of_range() {
    for bad in [-1i64, 3, i64::MAX] {
        let result = scatter(ScatterKind::Set, &mut [0, bad], &mut [1.0, 2.0], &mut [0.0; 3], 1);
        assert_eq!(result, Err(LaunchError::IndexOutOfRange { index: bad, size: 3 }));
    }
}

#[test]
fn nothing_happens_without_elements() {
    assert_eq!(scatter(ScatterKind::Add, &mut [], &mut [], &mut [1.0, 2.0], 1), Ok(()));
}

#[test]
fn sort_of_wide_integers_agrees_with_a_stable_sort() {
    let (rows, columns) = (3usize, 2500usize);
    for spread in [1e0f32, 1e3, 1e14] {
        let mut x: Vec<i64> = noise(rows * columns).into_iter().map(|v| (v * spread) as i64).collect();
        (x[7], x[8]) = (i64::MIN, i64::MAX);
        for (descending, count) in [(false, columns), (true, columns), (true, 100)] {
            let mut y = vec![0i64; rows * count];
            let body = RoutineBody::SortIndices {
                shape: dims(&[rows as i64, columns as i64]),
                axis: 1,
                descending,
                count: Dim::from(count),
                input: view(0, 0, &[columns as i64, 1]),
                output: view(1, 0, &[count as i64, 1]),
            };
            launch(&[DType::I64, DType::I64], body, &mut [raw(&mut x), raw(&mut y)]).unwrap();
            for (row, got) in y.chunks(count).enumerate() {
                let key = |i: i64| x[row * columns + i as usize];
                let mut want: Vec<i64> = (0..columns as i64).collect();
                want.sort_by(|&a, &b| if descending { key(b).cmp(&key(a)) } else { key(a).cmp(&key(b)) });
                assert_eq!(got, &want[..count], "{spread} {descending}");
            }
        }
    }
}

/// Sums of short floats along a line are rounded once, wherever the line lies and whichever way its updates do.
#[test]
fn scatter_adds_up_lines_of_short_floats() {
    use half::{bf16, f16};
    let (lines, size, along) = (5usize, 100usize, 300usize);
    let values = noise(lines * along);
    // As a float of two bytes holds them.
    let exact = |i: usize| f64::from(bf16::from_f32(values[i]).to_f32());
    let mut index: Vec<i64> = (0..lines * along).map(|i| (i * i % 97 + i % 4) as i64).collect();
    let body = |size: usize| RoutineBody::Scatter {
        shape: dims(&[lines as i64, size as i64]),
        updates_shape: dims(&[lines as i64, along as i64]),
        axis: 1,
        kind: ScatterKind::Add,
        index: view(0, 0, &[along as i64, 1]),
        // Backwards.
        updates: view(1, along as i64 - 1, &[along as i64, -1]),
        output: view(2, 3, &[size as i64 + 2, 1]),
    };
    let mut want = vec![1.5f64; lines * (size + 2) + 3];
    for line in 0..lines {
        for n in 0..along {
            let at = index[line * along + n] as usize;
            want[3 + line * (size + 2) + at] += exact(line * along + along - 1 - n);
        }
    }
    let mut updates: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
    let mut out = vec![bf16::from_f32(1.5); want.len()];
    launch(
        &[DType::I64, DType::Bf16, DType::Bf16],
        body(size),
        &mut [raw(&mut index), raw(&mut updates), raw(&mut out)],
    )
    .unwrap();
    for (i, (got, want)) in out.iter().zip(&want).enumerate() {
        // One rounding of the sum, and those of f32 on the way.
        assert!((got.to_f64() - want).abs() <= want.abs() / 255.0 + 1e-4, "{i}: {got} {want}");
    }
    let mut updates: Vec<f16> = updates.iter().map(|v| f16::from_f32(v.to_f32())).collect();
    let mut out = vec![f16::from_f32(1.5); want.len()];
    launch(&[DType::I64, DType::F16, DType::F16], body(size), &mut [raw(&mut index), raw(&mut updates), raw(&mut out)])
        .unwrap();
    for (i, (got, want)) in out.iter().zip(&want).enumerate() {
        assert!((got.to_f64() - want).abs() <= want.abs() / 2000.0 + 1e-3, "{i}: {got} {want}");
    }
    for bad in [-1i64, size as i64, i64::MAX] {
        index[along + 7] = bad;
        let result = launch(
            &[DType::I64, DType::F16, DType::F16],
            body(size),
            &mut [raw(&mut index), raw(&mut updates), raw(&mut out)],
        );
        assert_eq!(result, Err(LaunchError::IndexOutOfRange { index: bad, size: size as i64 }));
    }
}

/// Lines side by side and alone, pieces and what is left of a line, both ways.
#[test]
fn scans_of_short_floats_are_rounded_once() {
    use half::{bf16, f16};
    let (rows, columns) = (11usize, 45usize);
    let values = noise(rows * columns);
    for (kind, reverse) in [(ReduceKind::Sum, false), (ReduceKind::Sum, true), (ReduceKind::Max, false)] {
        let body = RoutineBody::Scan {
            shape: dims(&[rows as i64, columns as i64]),
            axis: 1,
            kind,
            reverse,
            input: view(0, 0, &[columns as i64, 1]),
            output: view(1, 0, &[columns as i64, 1]),
        };
        let exact = |i: usize| f64::from(bf16::from_f32(values[i]).to_f32());
        let want = |row: usize, column: usize| {
            let range = if reverse { column..columns } else { 0..column + 1 };
            let elements = range.map(|c| exact(row * columns + c));
            if kind == ReduceKind::Sum { elements.sum::<f64>() } else { elements.fold(f64::MIN, f64::max) }
        };
        let mut x: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
        let mut y = vec![bf16::ZERO; x.len()];
        launch(&[DType::Bf16; 2], body.clone(), &mut [raw(&mut x), raw(&mut y)]).unwrap();
        let mut short: Vec<f16> = x.iter().map(|v| f16::from_f32(v.to_f32())).collect();
        let mut shorts = vec![f16::ZERO; x.len()];
        launch(&[DType::F16; 2], body, &mut [raw(&mut short), raw(&mut shorts)]).unwrap();
        for i in 0..x.len() {
            let want = want(i / columns, i % columns);
            // One rounding of the sum: what would be rounded at each step is far off after a few dozen.
            assert!((y[i].to_f64() - want).abs() <= want.abs() / 256.0 + 1e-4, "{i}: {} {want}", y[i]);
            assert!((shorts[i].to_f64() - want).abs() <= want.abs() / 2048.0 + 1e-3, "{i}: {} {want}", shorts[i]);
        }
    }
}

/// NaN wins, of equals the first stays, and an index out of range hides none of its neighbours.
#[test]
fn scatter_takes_extremes_element_by_element() {
    let n = 9usize;
    let body = |kind| RoutineBody::Scatter {
        shape: dims(&[4]),
        updates_shape: dims(&[n as i64]),
        axis: 0,
        kind,
        index: view(0, 0, &[1]),
        updates: view(1, 0, &[1]),
        output: view(2, 0, &[1]),
    };
    let mut index = [0i64, 1, 2, 3, 0, 1, 2, 3, 2];
    let mut updates = [1.0f32, f32::NAN, 0.0, -3.0, 5.0, 2.0, -0.0, -7.0, f32::NAN];
    for (kind, want) in
        [(ScatterKind::Max, [5.0, f32::NAN, f32::NAN, -1.0]), (ScatterKind::Min, [-1.0, f32::NAN, f32::NAN, -7.0])]
    {
        let mut out = [-1.0f32; 4];
        launch(
            &[DType::I64, DType::F32, DType::F32],
            body(kind),
            &mut [raw(&mut index), raw(&mut updates), raw(&mut out)],
        )
        .unwrap();
        assert_eq!(out.map(f32::to_bits).map(|bits| bits & 0x7fff_ffff >= 0x7f80_0001), want.map(f32::is_nan));
        out.iter().zip(want).filter(|(_, want)| !want.is_nan()).for_each(|(got, want)| assert_eq!(*got, want));
    }
    index[5] = 4;
    let mut out = [-1.0f32; 4];
    let result = launch(
        &[DType::I64, DType::F32, DType::F32],
        body(ScatterKind::Max),
        &mut [raw(&mut index), raw(&mut updates), raw(&mut out)],
    );
    assert_eq!(result, Err(LaunchError::IndexOutOfRange { index: 4, size: 4 }));
    assert_eq!((out[0], out[3]), (5.0, -1.0));
}
