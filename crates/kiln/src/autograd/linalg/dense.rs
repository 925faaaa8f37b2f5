//! Factorisations of one dense matrix, row-major, in f64. What is given in f32 is widened, so that results are rounded once.

/// A matrix of `rows · columns` numbers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Matrix {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) data: Vec<f64>,
}

impl Matrix {
    pub(super) fn new(rows: usize, columns: usize, data: Vec<f64>) -> Matrix {
        debug_assert_eq!(data.len(), rows * columns);
        Matrix { rows, columns, data }
    }

    pub(super) fn zeros(rows: usize, columns: usize) -> Matrix {
        Matrix { rows, columns, data: vec![0.0; rows * columns] }
    }

    pub(super) fn identity(n: usize) -> Matrix {
        let mut unit = Matrix::zeros(n, n);
        (0..n).for_each(|i| unit.data[i * n + i] = 1.0);
        unit
    }

    pub(super) fn at(&self, i: usize, j: usize) -> f64 {
        self.data[i * self.columns + j]
    }

    fn set(&mut self, i: usize, j: usize, value: f64) {
        self.data[i * self.columns + j] = value;
    }

    fn row(&self, i: usize) -> &[f64] {
        &self.data[i * self.columns..(i + 1) * self.columns]
    }

    pub(super) fn transposed(&self) -> Matrix {
        let mut turned = Matrix::zeros(self.columns, self.rows);
        for i in 0..self.rows {
            for j in 0..self.columns {
                turned.set(j, i, self.at(i, j));
            }
        }
        turned
    }
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(a, b)| a * b).sum()
}

/// The lower triangular L with L·Lᵀ equal to a symmetric matrix, of which the lower half is read; `Err` says how many rows were positive.
pub(super) fn cholesky(a: &Matrix) -> Result<Matrix, usize> {
    let n = a.rows;
    let mut l = Matrix::zeros(n, n);
    for i in 0..n {
        for j in 0..=i {
            let rest = a.at(i, j) - dot(&l.row(i)[..j], &l.row(j)[..j]);
            if i == j {
                if rest.is_nan() || rest <= 0.0 {
                    return Err(i);
                }
                l.set(i, i, rest.sqrt());
            } else {
                l.set(i, j, rest / l.at(j, j));
            }
        }
    }
    Ok(l)
}

/// Rows in the order of pivots, both triangles in one matrix, and whether the order is an odd permutation.
pub(super) struct Lu {
    pub(super) both: Matrix,
    pub(super) order: Vec<usize>,
    pub(super) is_odd: bool,
}

/// Gauss's elimination with the largest element of each column as the pivot.
pub(super) fn lu(a: &Matrix) -> Lu {
    let (mut both, mut order, mut is_odd) = (a.clone(), (0..a.rows).collect::<Vec<_>>(), false);
    let width = a.columns;
    for k in 0..a.rows.min(width) {
        let size = |i: usize| both.at(i, k).abs();
        let pivot = (k..a.rows).fold(k, |best, i| if size(i) > size(best) { i } else { best });
        if pivot != k {
            (0..width).for_each(|j| both.data.swap(k * width + j, pivot * width + j));
            order.swap(k, pivot);
            is_odd = !is_odd;
        }
        if both.at(k, k) == 0.0 {
            continue;
        }
        for i in k + 1..a.rows {
            let factor = both.at(i, k) / both.at(k, k);
            both.set(i, k, factor);
            if factor != 0.0 {
                let (upper, lower) = both.data.split_at_mut(i * width);
                let (row, target) = (&upper[k * width..(k + 1) * width], &mut lower[..width]);
                (k + 1..width).for_each(|j| target[j] -= factor * row[j]);
            }
        }
    }
    Lu { both, order, is_odd }
}

impl Lu {
    /// Whether a pivot is zero.
    pub(super) fn is_singular(&self) -> bool {
        (0..self.both.rows.min(self.both.columns)).any(|i| self.both.at(i, i) == 0.0)
    }

    /// The solution of A·X = B.
    pub(super) fn solve(&self, b: &Matrix) -> Matrix {
        let (n, width) = (self.both.rows, b.columns);
        let mut x = Matrix::zeros(n, width);
        for (i, &from) in self.order.iter().enumerate() {
            x.data[i * width..(i + 1) * width].copy_from_slice(b.row(from));
        }
        substitute(&self.both, &mut x, false, true);
        substitute(&self.both, &mut x, true, false);
        x
    }
}

/// Solves with a triangle of a matrix in place; `unit` takes its diagonal for ones.
pub(super) fn substitute(a: &Matrix, x: &mut Matrix, upper: bool, unit: bool) {
    let (n, width) = (a.rows, x.columns);
    for step in 0..n {
        let i = if upper { n - 1 - step } else { step };
        let known = if upper { i + 1..n } else { 0..i };
        for k in known {
            let factor = a.at(i, k);
            if factor != 0.0 {
                for j in 0..width {
                    x.data[i * width + j] -= factor * x.data[k * width + j];
                }
            }
        }
        if !unit {
            let divisor = a.at(i, i);
            x.data[i * width..(i + 1) * width].iter_mut().for_each(|v| *v /= divisor);
        }
    }
}

/// The reduced factors Q of `[m, k]` and R of `[k, n]`, k being the smaller of m and n, by Householder's reflections.
pub(super) fn qr(a: &Matrix) -> (Matrix, Matrix) {
    let (m, n) = (a.rows, a.columns);
    let k = m.min(n);
    let mut r = a.clone();
    let mut mirrors: Vec<Option<Vec<f64>>> = Vec::with_capacity(k);
    for j in 0..k {
        let mut v: Vec<f64> = (j..m).map(|i| r.at(i, j)).collect();
        let rest: f64 = v[1..].iter().map(|x| x * x).sum();
        if rest == 0.0 {
            mirrors.push(None);
            continue;
        }
        let length = (v[0] * v[0] + rest).sqrt();
        v[0] += if v[0] < 0.0 { -length } else { length };
        let scale = (v[0] * v[0] + rest).sqrt();
        v.iter_mut().for_each(|x| *x /= scale);
        reflect(&mut r, &v, j, j);
        mirrors.push(Some(v));
    }
    let mut q = Matrix::zeros(m, k);
    (0..k).for_each(|i| q.set(i, i, 1.0));
    for (j, mirror) in mirrors.iter().enumerate().rev() {
        if let Some(v) = mirror {
            reflect(&mut q, v, j, 0);
        }
    }
    let mut upper = Matrix::zeros(k, n);
    for i in 0..k {
        (i..n).for_each(|j| upper.set(i, j, r.at(i, j)));
    }
    (q, upper)
}

/// x − 2·v·vᵀ·x for the rows from `top` and the columns from `left`.
fn reflect(x: &mut Matrix, v: &[f64], top: usize, left: usize) {
    let width = x.columns;
    let mut sums = vec![0.0; width];
    for (i, &weight) in v.iter().enumerate() {
        let row = &x.data[(top + i) * width..(top + i + 1) * width];
        (left..width).for_each(|j| sums[j] += weight * row[j]);
    }
    for (i, &weight) in v.iter().enumerate() {
        let row = &mut x.data[(top + i) * width..(top + i + 1) * width];
        (left..width).for_each(|j| row[j] -= 2.0 * weight * sums[j]);
    }
}

/// How many times all pairs are turned at the most; Jacobi's method squares the error with each of the last few.
const SWEEPS: usize = 60;

/// Eigenvalues in ascending order and eigenvectors as columns of a symmetric matrix, of which the lower half is read, by Jacobi's rotations.
/// `None` where it holds something that is no number.
pub(super) fn eigh(a: &Matrix) -> Option<(Vec<f64>, Matrix)> {
    let n = a.rows;
    let mut x = Matrix::zeros(n, n);
    for i in 0..n {
        for j in 0..n {
            x.set(i, j, if i >= j { a.at(i, j) } else { a.at(j, i) });
        }
    }
    if x.data.iter().any(|v| !v.is_finite()) {
        return None;
    }
    // Rows of this are eigenvectors.
    let mut vectors = Matrix::identity(n);
    let scale = x.data.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    for _ in 0..SWEEPS {
        let mut turned = false;
        for p in 0..n {
            for q in p + 1..n {
                let off = x.at(p, q);
                if off.abs() <= f64::EPSILON * f64::EPSILON.sqrt() * scale {
                    continue;
                }
                let small = f64::EPSILON * (x.at(p, p).abs() * x.at(q, q).abs()).sqrt();
                turned |= off.abs() > small;
                let (cos, sin) = rotation(x.at(p, p), x.at(q, q), off);
                for i in 0..n {
                    let (a, b) = (x.at(i, p), x.at(i, q));
                    x.set(i, p, cos * a - sin * b);
                    x.set(i, q, sin * a + cos * b);
                }
                turn_rows(&mut x, p, q, cos, sin);
                turn_rows(&mut vectors, p, q, cos, sin);
            }
        }
        if !turned {
            break;
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| x.at(i, i).total_cmp(&x.at(j, j)));
    let values = order.iter().map(|&i| x.at(i, i)).collect();
    let mut columns = Matrix::zeros(n, n);
    for (to, &from) in order.iter().enumerate() {
        (0..n).for_each(|i| columns.set(i, to, vectors.at(from, i)));
    }
    Some((values, columns))
}

/// The rotation that makes the element between two diagonal ones zero.
fn rotation(pp: f64, qq: f64, pq: f64) -> (f64, f64) {
    let theta = (qq - pp) / (2.0 * pq);
    let t = if theta.is_infinite() { 0.0 } else { theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt()) };
    let cos = 1.0 / (t * t + 1.0).sqrt();
    (cos, t * cos)
}

fn turn_rows(x: &mut Matrix, p: usize, q: usize, cos: f64, sin: f64) {
    let width = x.columns;
    let (upper, lower) = x.data.split_at_mut(q * width);
    let (first, second) = (&mut upper[p * width..(p + 1) * width], &mut lower[..width]);
    for (a, b) in first.iter_mut().zip(second) {
        (*a, *b) = (cos * *a - sin * *b, sin * *a + cos * *b);
    }
}

/// U of `[m, k]`, the singular values in descending order, and Vᵀ of `[k, n]`, by Jacobi's rotations of columns (Hestenes). `None` where
/// the matrix holds something that is no number.
pub(super) fn svd(a: &Matrix) -> Option<(Matrix, Vec<f64>, Matrix)> {
    if a.rows < a.columns {
        let (u, values, vt) = svd(&a.transposed())?;
        return Some((vt.transposed(), values, u.transposed()));
    }
    if a.data.iter().any(|v| !v.is_finite()) {
        return None;
    }
    let (m, n) = (a.rows, a.columns);
    // Rows of these are columns of A·V and of V.
    let (mut x, mut v) = (a.transposed(), Matrix::identity(n));
    for _ in 0..SWEEPS {
        let mut turned = false;
        for p in 0..n {
            for q in p + 1..n {
                let (pp, qq) = (dot(x.row(p), x.row(p)), dot(x.row(q), x.row(q)));
                let pq = dot(x.row(p), x.row(q));
                if pq == 0.0 || pq.abs() <= f64::EPSILON * (pp * qq).sqrt() {
                    continue;
                }
                turned = true;
                let (cos, sin) = rotation(pp, qq, pq);
                turn_rows(&mut x, p, q, cos, sin);
                turn_rows(&mut v, p, q, cos, sin);
            }
        }
        if !turned {
            break;
        }
    }
    let lengths: Vec<f64> = (0..n).map(|i| dot(x.row(i), x.row(i)).sqrt()).collect();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| lengths[j].total_cmp(&lengths[i]));
    let largest = order.first().map_or(0.0, |&i| lengths[i]);
    let (mut u, mut vt) = (Matrix::zeros(n, m), Matrix::zeros(n, n));
    for (to, &from) in order.iter().enumerate() {
        vt.data[to * n..(to + 1) * n].copy_from_slice(v.row(from));
        if lengths[from] > largest * f64::EPSILON * m as f64 {
            let unit: Vec<f64> = x.row(from).iter().map(|value| value / lengths[from]).collect();
            u.data[to * m..(to + 1) * m].copy_from_slice(&unit);
        } else {
            complete(&mut u, to);
        }
    }
    Some((u.transposed(), order.iter().map(|&i| lengths[i]).collect(), vt))
}

/// Makes a row a unit vector at right angles to those before it.
fn complete(u: &mut Matrix, row: usize) {
    let m = u.columns;
    for candidate in 0..m {
        let mut unit = vec![0.0; m];
        unit[candidate] = 1.0;
        // Twice is enough.
        for _ in 0..2 {
            for i in 0..row {
                let share = dot(u.row(i), &unit);
                unit.iter_mut().zip(u.row(i)).for_each(|(x, y)| *x -= share * y);
            }
        }
        let length = dot(&unit, &unit).sqrt();
        if length > 0.5 / (m as f64).sqrt() {
            unit.iter_mut().for_each(|x| *x /= length);
            u.data[row * m..(row + 1) * m].copy_from_slice(&unit);
            return;
        }
    }
}

/// V·diag⁻¹·Uᵀ of a singular value decomposition, of the values above a share of the largest.
pub(super) fn pseudo_inverse(u: &Matrix, values: &[f64], vt: &Matrix, tolerance: f64) -> Matrix {
    let bound = tolerance * values.first().copied().unwrap_or(0.0);
    let (rows, columns) = (vt.columns, u.rows);
    let mut data = Vec::with_capacity(rows * columns);
    for i in 0..rows {
        for j in 0..columns {
            let used = values.iter().enumerate().filter(|&(_, &value)| value > bound);
            data.push(used.map(|(k, value)| vt.at(k, i) * u.at(j, k) / value).sum());
        }
    }
    Matrix::new(rows, columns, data)
}
