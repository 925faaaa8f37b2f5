//! Blocks of elements transposed: what vector code calls where a load jumps along the lanes.

/// The C signature: source, elements from one of its rows to the next, target, `rows << 32 | columns`, elements from one
/// column to the next in the target. Element (r, c) of the source becomes element `c · pitch + r` of the target.
pub type TransposeFn = unsafe extern "C" fn(source: *const u8, stride: i64, target: *mut u8, shape: u64, pitch: usize);

/// The function for elements of that many bytes; `vectors` says that the machine has AVX2.
pub fn transpose(bytes: usize, vectors: bool) -> TransposeFn {
    match (bytes, vectors) {
        #[cfg(target_arch = "x86_64")]
        (4, true) => words_by_eight,
        (1, _) => plain::<u8>,
        (2, _) => plain::<u16>,
        (4, _) => plain::<u32>,
        _ => plain::<u64>,
    }
}

unsafe extern "C" fn plain<T: Copy>(source: *const u8, stride: i64, target: *mut u8, shape: u64, pitch: usize) {
    let (rows, columns) = ((shape >> 32) as usize, shape as u32 as usize);
    let (source, target) = (source.cast::<T>(), target.cast::<T>());
    for r in 0..rows {
        for c in 0..columns {
            // SAFETY: the caller's block is in memory it may read, and the target has room for `columns` columns.
            unsafe {
                *target.add(c * pitch + r) = source.offset(r as isize * stride as isize + c as isize).read_unaligned()
            };
        }
    }
}

/// Whole blocks of 8 × 8 in registers, the rest one by one.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn words_by_eight(source: *const u8, stride: i64, target: *mut u8, shape: u64, pitch: usize) {
    let (rows, columns) = ((shape >> 32) as usize, shape as u32 as usize);
    let (from, to) = (source.cast::<f32>(), target.cast::<f32>());
    let (whole_rows, whole_columns) = (rows & !7, columns & !7);
    let at = |r: usize, c: usize| r as isize * stride as isize + c as isize;
    // SAFETY: as for `plain`, and the caller has AVX2.
    unsafe {
        for r in (0..whole_rows).step_by(8) {
            for c in (0..whole_columns).step_by(8) {
                eight_by_eight(from.offset(at(r, c)), stride as isize, to.add(c * pitch + r), pitch);
            }
        }
        let (right, below) = ((columns - whole_columns) as u64, (rows - whole_rows) as u64);
        if right > 0 && whole_rows > 0 {
            let shape = (whole_rows as u64) << 32 | right;
            plain::<u32>(
                from.offset(at(0, whole_columns)).cast(),
                stride,
                to.add(whole_columns * pitch).cast(),
                shape,
                pitch,
            );
        }
        if below > 0 {
            plain::<u32>(
                from.offset(at(whole_rows, 0)).cast(),
                stride,
                to.add(whole_rows).cast(),
                below << 32 | columns as u64,
                pitch,
            );
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn eight_by_eight(from: *const f32, stride: isize, to: *mut f32, pitch: usize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's 8 × 8 elements.
    unsafe {
        let row = |r: isize| _mm256_loadu_ps(from.offset(r * stride));
        let r: [__m256; 8] = std::array::from_fn(|n| row(n as isize));
        let pair = |n: usize| (_mm256_unpacklo_ps(r[n], r[n + 1]), _mm256_unpackhi_ps(r[n], r[n + 1]));
        let ((a, b), (c, d), (e, f), (g, h)) = (pair(0), pair(2), pair(4), pair(6));
        let four = |x: __m256, y: __m256| (_mm256_shuffle_ps(x, y, 0x44), _mm256_shuffle_ps(x, y, 0xee));
        let ((p0, p1), (p2, p3)) = (four(a, c), four(b, d));
        let ((q0, q1), (q2, q3)) = (four(e, g), four(f, h));
        let store = |n: usize, v: __m256| _mm256_storeu_ps(to.add(n * pitch), v);
        for (n, (p, q)) in [(p0, q0), (p1, q1), (p2, q2), (p3, q3)].into_iter().enumerate() {
            store(n, _mm256_permute2f128_ps(p, q, 0x20));
            store(n + 4, _mm256_permute2f128_ps(p, q, 0x31));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape() {
        for vectors in [false, crate::features::detect().isa != crate::features::Isa::Portable] {
            for (rows, columns) in (0..=16).flat_map(|r| (0..=16).map(move |c| (r, c))) {
                let source: Vec<u32> = (0..16 * 40).collect();
                let mut target = vec![u32::MAX; 16 * 16];
                let shape = (rows as u64) << 32 | columns as u64;
                // SAFETY: both hold a whole block.
                unsafe { transpose(4, vectors)(source.as_ptr().cast(), 40, target.as_mut_ptr().cast(), shape, 16) };
                for (i, &v) in target.iter().enumerate() {
                    let (c, r) = (i / 16, i % 16);
                    let want = if r < rows && c < columns { (r * 40 + c) as u32 } else { u32::MAX };
                    assert_eq!(v, want, "{rows} x {columns} at {r}, {c}");
                }
            }
        }
    }
}
