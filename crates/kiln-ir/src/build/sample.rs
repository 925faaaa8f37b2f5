//! Reading images at computed places: grid sampling and the alignment of regions.

use super::search::within;
use super::{
    Built, Emit, abs, add, add_scalar, and, binary_scalar, broadcast_to, cast, ceil, clamp, compare, compare_scalar,
    div, div_scalar, fail, flatten, floor, full, full_like, index_select, iota, minimum, mul, mul_scalar, or, permute,
    pick, rem, reshape, round, select, size_value, sub, sub_scalar, sum, unsqueeze, widen,
};
use crate::{BinaryOp, CompareOp, DType, Dim, Op, Scalar, TypeError};

/// What is read between the elements of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SampleMode {
    /// A blend of the four around.
    Bilinear,
    /// The nearest.
    Nearest,
    /// A cubic through the sixteen around.
    Bicubic,
}

/// What is read outside an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SamplePadding {
    /// Zeros.
    Zeros,
    /// The edge.
    Border,
    /// The mirror image.
    Reflection,
}

/// The image `x: [n, c, h, w]` read at the places `grid: [n, rows, columns, 2]`, pairs of x and y in which −1 and 1 are the
/// edges: of the outermost elements' centers with `align_corners`, of their areas without.
#[track_caller]
pub fn grid_sample<E: Emit>(
    e: &mut E,
    x: &E::Value,
    grid: &E::Value,
    mode: SampleMode,
    padding: SamplePadding,
    align_corners: bool,
) -> Built<E> {
    for (operand, value) in [(0, x), (1, grid)] {
        let ty = e.ty(value);
        if ty.rank() != 4 {
            return fail::<_, E>("grid_sample", TypeError::WrongRank { operand, ty, expected: "4".into() });
        }
    }
    let (x, dtype) = widen(e, x)?;
    let wide = e.ty(&x).dtype;
    let grid = cast(e, grid, wide)?;
    let shape = e.ty(&x).shape;
    let mut places = Vec::with_capacity(2);
    for (part, axis) in [(1, 2), (0, 3)] {
        let place = pick(e, &grid, 3, part)?;
        let size = size_value(e, &shape[axis], wide)?;
        places.push(unnormalize(e, &place, &size, align_corners)?);
    }
    let (rows, columns) = (&places[0], &places[1]);
    let edges = Edges { padding, align_corners };
    let y = match mode {
        SampleMode::Nearest => {
            let (row, column) = (edges.apply(e, rows, &shape[2])?, edges.apply(e, columns, &shape[3])?);
            let (row, column) = (round(e, &row)?, round(e, &column)?);
            read_pixels(e, &x, &row, &column)?
        }
        SampleMode::Bilinear => {
            let (row, column) = (edges.apply(e, rows, &shape[2])?, edges.apply(e, columns, &shape[3])?);
            blend_around(e, &x, [&row, &column])?
        }
        SampleMode::Bicubic => {
            let (row, column) = (floor(e, rows)?, floor(e, columns)?);
            let row_weights = cubic_weights(e, rows, &row)?;
            let column_weights = cubic_weights(e, columns, &column)?;
            let mut lines = Vec::with_capacity(row_weights.len());
            for (i, row_weight) in row_weights.iter().enumerate() {
                let at_row = add_scalar(e, &row, i as f64 - 1.0)?;
                let at_row = edges.apply(e, &at_row, &shape[2])?;
                let mut pixels = Vec::with_capacity(column_weights.len());
                for (j, column_weight) in column_weights.iter().enumerate() {
                    let at_column = add_scalar(e, &column, j as f64 - 1.0)?;
                    let at_column = edges.apply(e, &at_column, &shape[3])?;
                    let pixel = read_pixels(e, &x, &at_row, &at_column)?;
                    pixels.push(weighted(e, &pixel, column_weight)?);
                }
                let line = total(e, &pixels)?;
                lines.push(weighted(e, &line, row_weight)?);
            }
            total(e, &lines)?
        }
    };
    cast(e, &y, dtype)
}

/// `value: [n, c, rows, columns]` times `weight: [n, rows, columns]`.
#[track_caller]
fn weighted<E: Emit>(e: &mut E, value: &E::Value, weight: &E::Value) -> Built<E> {
    let weight = unsqueeze(e, weight, 1)?;
    mul(e, value, &weight)
}

/// The sum of one value or more.
#[track_caller]
fn total<E: Emit>(e: &mut E, parts: &[E::Value]) -> Built<E> {
    let Some((first, rest)) = parts.split_first() else {
        return fail::<_, E>("sample", TypeError::OperandCount { expected: "at least one operand", got: 0 });
    };
    let mut sum = first.clone();
    for part in rest {
        sum = add(e, &sum, part)?;
    }
    Ok(sum)
}

/// A place between −1 and 1 as an index.
#[track_caller]
fn unnormalize<E: Emit>(e: &mut E, place: &E::Value, size: &E::Value, align_corners: bool) -> Built<E> {
    let from_edge = add_scalar(e, place, 1.0)?;
    if align_corners {
        let half = mul_scalar(e, &from_edge, 0.5)?;
        let last = sub_scalar(e, size, 1.0)?;
        mul(e, &half, &last)
    } else {
        let scaled = mul(e, &from_edge, size)?;
        let shifted = sub_scalar(e, &scaled, 1.0)?;
        mul_scalar(e, &shifted, 0.5)
    }
}

/// What becomes of places outside.
#[derive(Clone, Copy)]
struct Edges {
    padding: SamplePadding,
    align_corners: bool,
}

impl Edges {
    #[track_caller]
    fn apply<E: Emit>(self, e: &mut E, place: &E::Value, size: &Dim) -> Built<E> {
        let dtype = e.ty(place).dtype;
        let last = size_value(e, &(size - 1), dtype)?;
        let inside = match self.padding {
            SamplePadding::Zeros => return Ok(place.clone()),
            SamplePadding::Border => place.clone(),
            SamplePadding::Reflection => {
                let (low, span) = if self.align_corners { (0.0, size - 1) } else { (-0.5, size.clone()) };
                if span.is_zero() {
                    return full_like(e, place, 0.0);
                }
                let span = size_value(e, &span, dtype)?;
                reflect(e, place, low, &span)?
            }
        };
        let upwards = binary_scalar(e, BinaryOp::Max, &inside, 0.0)?;
        minimum(e, &upwards, &last)
    }
}

/// A place mirrored at low and low + span as often as it takes.
#[track_caller]
fn reflect<E: Emit>(e: &mut E, place: &E::Value, low: f64, span: &E::Value) -> Built<E> {
    let from_low = add_scalar(e, place, -low)?;
    let distance = abs(e, &from_low)?;
    let extra = rem(e, &distance, span)?;
    let turns = div(e, &distance, span)?;
    let turns = floor(e, &turns)?;
    let odd = binary_scalar(e, BinaryOp::Rem, &turns, 2.0)?;
    let odd = compare_scalar(e, CompareOp::Ne, &odd, 0.0)?;
    let back = sub(e, span, &extra)?;
    let folded = select(e, &odd, &back, &extra)?;
    add_scalar(e, &folded, low)
}

/// The elements of `x: [n, c, h, w]` at whole places `[n, rows, columns]`, as `[n, c, rows, columns]`; 0 outside.
#[track_caller]
fn read_pixels<E: Emit>(e: &mut E, x: &E::Value, row: &E::Value, column: &E::Value) -> Built<E> {
    let (ty, places) = (e.ty(x), e.ty(row).shape);
    // Twice as many of the shorter ones are computed at a time.
    let pixels = (&ty.shape[2] * &ty.shape[3]).as_const();
    let index = if pixels.is_some_and(|pixels| pixels < i32::MAX.into()) { DType::I32 } else { DType::I64 };
    let (row, in_height) = whole_place(e, row, &ty.shape[2], index)?;
    let (column, in_width) = whole_place(e, column, &ty.shape[3], index)?;
    let inside = and(e, &in_height, &in_width)?;
    let width = size_value(e, &ty.shape[3], index)?;
    let start = mul(e, &row, &width)?;
    let index = add(e, &start, &column)?;
    let count = &places[1] * &places[2];
    let flat = flatten(e, x, 2, 3)?;
    let index = reshape(e, &index, &[places[0].clone(), Dim::from(1), count.clone()])?;
    let index = broadcast_to(e, &index, &[ty.shape[0].clone(), ty.shape[1].clone(), count])?;
    let picked = e.emit(Op::Gather { axis: 2 }, &[flat, index])?;
    let shape = [ty.shape[0].clone(), ty.shape[1].clone(), places[1].clone(), places[2].clone()];
    let picked = reshape(e, &picked, &shape)?;
    let inside = unsqueeze(e, &inside, 1)?;
    let zero = full(e, Scalar::float(ty.dtype, 0.0), &[])?;
    select(e, &inside, &picked, &zero)
}

/// A whole position along an axis as an index, 0 where it is out of range, and whether it is in range.
#[track_caller]
fn whole_place<E: Emit>(
    e: &mut E,
    place: &E::Value,
    size: &Dim,
    index: DType,
) -> Result<(E::Value, E::Value), E::Error> {
    let dtype = e.ty(place).dtype;
    let length = size_value(e, size, dtype)?;
    let inside = within(e, place, &length)?;
    let start = full_like(e, place, 0.0)?;
    let place = select(e, &inside, place, &start)?;
    Ok((cast(e, &place, index)?, inside))
}

/// The blend of the four elements around places.
#[track_caller]
fn blend_around<E: Emit>(e: &mut E, x: &E::Value, places: [&E::Value; 2]) -> Built<E> {
    let mut taps = Vec::with_capacity(2);
    for place in places {
        let below = floor(e, place)?;
        let above = add_scalar(e, &below, 1.0)?;
        let upper = sub(e, place, &below)?;
        let lower = sub(e, &above, place)?;
        taps.push([(below, lower), (above, upper)]);
    }
    let mut corners = Vec::with_capacity(4);
    for (row, row_weight) in &taps[0] {
        for (column, column_weight) in &taps[1] {
            let pixel = read_pixels(e, x, row, column)?;
            let weight = mul(e, row_weight, column_weight)?;
            corners.push(weighted(e, &pixel, &weight)?);
        }
    }
    total(e, &corners)
}

/// The weights of the taps from one before the place below to two behind it.
#[track_caller]
fn cubic_weights<E: Emit>(e: &mut E, place: &E::Value, below: &E::Value) -> Result<Vec<E::Value>, E::Error> {
    const A: f64 = -0.75;
    let t = sub(e, place, below)?;
    let one = full_like(e, &t, 1.0)?;
    let rest = sub(e, &one, &t)?;
    let mut weights = Vec::with_capacity(4);
    for (near, far) in [(&t, true), (&t, false), (&rest, false), (&rest, true)] {
        weights.push(if far {
            // ((a·d − 5a)·d + 8a)·d − 4a at d = near + 1.
            let d = add_scalar(e, near, 1.0)?;
            polynomial(e, &d, &[A, -5.0 * A, 8.0 * A, -4.0 * A])?
        } else {
            polynomial(e, near, &[A + 2.0, -(A + 3.0), 0.0, 1.0])?
        });
    }
    Ok(weights)
}

/// A polynomial of these coefficients, the highest power's first.
#[track_caller]
fn polynomial<E: Emit>(e: &mut E, x: &E::Value, coefficients: &[f64]) -> Built<E> {
    let (highest, rest) = coefficients.split_first().unwrap_or((&0.0, &[]));
    let mut y = full_like(e, x, *highest)?;
    for &coefficient in rest {
        let product = mul(e, &y, x)?;
        y = add_scalar(e, &product, coefficient)?;
    }
    Ok(y)
}

/// Choices of [`roi_align`].
#[derive(Debug, Clone, PartialEq)]
pub struct RoiAlignOptions {
    /// Rows and columns of a result.
    pub size: [usize; 2],
    /// Elements of the image a unit of the regions' coordinates.
    pub scale: f64,
    /// Samples an element of the result along each axis; `None` takes as many as the elements of the image that a part
    /// covers, rounded up.
    pub samples: Option<usize>,
    /// Coordinates are those of areas, not of centers.
    pub aligned: bool,
}

/// Regions `[k, 5]` (image number, left, top, right, bottom) of the images `x: [n, c, h, w]`, each divided into parts of
/// which the mean is taken: `[k, c, rows, columns]`.
#[track_caller]
pub fn roi_align<E: Emit>(e: &mut E, x: &E::Value, regions: &E::Value, options: &RoiAlignOptions) -> Built<E> {
    const NAME: &str = "roi_align";
    for (operand, value, rank) in [(0, x, 4), (1, regions, 2)] {
        let ty = e.ty(value);
        if ty.rank() != rank {
            return fail::<_, E>(NAME, TypeError::WrongRank { operand, ty, expected: rank.to_string() });
        }
    }
    let (x, dtype) = widen(e, x)?;
    let ty = e.ty(&x);
    let regions = cast(e, regions, ty.dtype)?;
    let count = e.ty(&regions).shape[0].clone();
    // Along each axis: low and high neighbour, the weight of the high one and of the sample, as [k, parts, samples].
    let rows = region_samples(e, &regions, [2, 4], options.size[0], &ty.shape[2], options)?;
    let columns = region_samples(e, &regions, [1, 3], options.size[1], &ty.shape[3], options)?;
    // Every element of every image is a row of c numbers.
    let pixels = permute(e, &x, &[0, 2, 3, 1])?;
    let pixels = flatten(e, &pixels, 0, 2)?;
    let image = pick(e, &regions, 1, 0)?;
    let image = cast(e, &image, DType::I64)?;
    let image = reshape(e, &image, &[count.clone(), Dim::from(1), Dim::from(1), Dim::from(1), Dim::from(1)])?;
    let height = size_value(e, &ty.shape[2], DType::I64)?;
    let width = size_value(e, &ty.shape[3], DType::I64)?;
    let first_row = mul(e, &image, &height)?;
    let mut corners = Vec::with_capacity(4);
    for (row, row_weight) in &rows.taps {
        for (column, column_weight) in &columns.taps {
            let row = spread(e, row, [1, 2])?;
            let column = spread(e, column, [3, 4])?;
            let row = add(e, &first_row, &row)?;
            let start = mul(e, &row, &width)?;
            let index = add(e, &start, &column)?;
            let index_ty = e.ty(&index);
            let flat = reshape(e, &index, &[index_ty.elements()])?;
            let picked = index_select(e, &pixels, 0, &flat)?;
            let picked_shape: Vec<Dim> = index_ty.shape.iter().chain([&ty.shape[1]]).cloned().collect();
            let picked = reshape(e, &picked, &picked_shape)?;
            let row_weight = spread(e, row_weight, [1, 2])?;
            let column_weight = spread(e, column_weight, [3, 4])?;
            let weight = mul(e, &row_weight, &column_weight)?;
            let weight = unsqueeze(e, &weight, 5)?;
            let part = mul(e, &picked, &weight)?;
            corners.push(sum(e, &part, &[2, 4], false)?);
        }
    }
    let covered = total(e, &corners)?;
    let samples = mul(e, &rows.count, &columns.count)?;
    let samples = binary_scalar(e, BinaryOp::Max, &samples, 1.0)?;
    let samples = reshape(e, &samples, &[count, Dim::from(1), Dim::from(1), Dim::from(1)])?;
    let mean = div(e, &covered, &samples)?;
    let y = permute(e, &mean, &[0, 3, 1, 2])?;
    cast(e, &y, dtype)
}

/// `[k, parts, samples]` as five axes, the last two in these places.
#[track_caller]
fn spread<E: Emit>(e: &mut E, x: &E::Value, places: [usize; 2]) -> Built<E> {
    let from = e.ty(x).shape;
    let mut shape = vec![Dim::from(1); 5];
    shape[0] = from[0].clone();
    shape[places[0]] = from[1].clone();
    shape[places[1]] = from[2].clone();
    reshape(e, x, &shape)
}

/// The samples of regions along one axis.
struct RegionSamples<V> {
    /// Neighbours (i64) and their weights, `[k, parts, samples]`; the weight of a sample that does not count is 0.
    taps: [(V, V); 2],
    /// How many samples a part has, `[k]`.
    count: V,
}

#[track_caller]
fn region_samples<E: Emit>(
    e: &mut E,
    regions: &E::Value,
    bounds: [usize; 2],
    parts: usize,
    size: &Dim,
    options: &RoiAlignOptions,
) -> Result<RegionSamples<E::Value>, E::Error> {
    let ty = e.ty(regions);
    let shift = if options.aligned { -0.5 } else { 0.0 };
    let mut edges = Vec::with_capacity(2);
    for bound in bounds {
        let edge = pick(e, regions, 1, bound)?;
        let edge = mul_scalar(e, &edge, options.scale)?;
        edges.push(add_scalar(e, &edge, shift)?);
    }
    let mut extent = sub(e, &edges[1], &edges[0])?;
    if !options.aligned {
        extent = binary_scalar(e, BinaryOp::Max, &extent, 1.0)?;
    }
    let part = div_scalar(e, &extent, parts as f64)?;
    let length = size_value(e, size, ty.dtype)?;
    // As many samples as there can be; those that a region does not have count for nothing.
    let (most, count) = match options.samples {
        Some(samples) => (Dim::from(samples), full_like(e, &part, samples as f64)?),
        None => (size.clone(), ceil(e, &part)?),
    };
    let column = [ty.shape[0].clone(), Dim::from(1), Dim::from(1)];
    let start = reshape(e, &edges[0], &column)?;
    let part = reshape(e, &part, &column)?;
    let counted = reshape(e, &count, &column)?;
    let grid = [Dim::from(1), Dim::from(parts), most];
    let number = iota(e, ty.dtype, &grid, 1)?;
    let sample = iota(e, ty.dtype, &grid, 2)?;
    let middle = add_scalar(e, &sample, 0.5)?;
    let whole = mul(e, &number, &part)?;
    let safe = binary_scalar(e, BinaryOp::Max, &counted, 1.0)?;
    let scaled = mul(e, &middle, &part)?;
    let inside = div(e, &scaled, &safe)?;
    let place = add(e, &start, &whole)?;
    let place = add(e, &place, &inside)?;
    // Further than one element outside nothing is read; nearer, the edge is.
    let below = compare_scalar(e, CompareOp::Lt, &place, -1.0)?;
    let above = compare(e, CompareOp::Gt, &place, &length)?;
    let outside = or(e, &below, &above)?;
    let surplus = compare(e, CompareOp::Ge, &sample, &counted)?;
    let ignored = or(e, &outside, &surplus)?;
    let place = clamp(e, &place, Some(0.0), None)?;
    let last = sub_scalar(e, &length, 1.0)?;
    let place = minimum(e, &place, &last)?;
    let low = floor(e, &place)?;
    let high = add_scalar(e, &low, 1.0)?;
    let high = minimum(e, &high, &last)?;
    let high_weight = sub(e, &place, &low)?;
    let one = full_like(e, &high_weight, 1.0)?;
    let low_weight = sub(e, &one, &high_weight)?;
    let zero = full(e, Scalar::float(ty.dtype, 0.0), &[])?;
    let low_weight = select(e, &ignored, &zero, &low_weight)?;
    let high_weight = select(e, &ignored, &zero, &high_weight)?;
    let low = cast(e, &low, DType::I64)?;
    let high = cast(e, &high, DType::I64)?;
    Ok(RegionSamples { taps: [(low, low_weight), (high, high_weight)], count })
}
