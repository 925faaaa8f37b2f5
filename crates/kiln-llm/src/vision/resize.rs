//! Pictures in other sizes, to the last bit as Pillow makes them: a filter as wide as the step, in whole numbers, across and
//! then down.

use super::Image;
use crate::Result;
use std::f64::consts::PI;

/// How a pixel is made of those around its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// The one that is there.
    Nearest,
    /// The mean of those it covers.
    Box,
    /// A triangle.
    Bilinear,
    /// A raised cosine.
    Hamming,
    /// Catmull-Rom's cubic, with a = −0.5.
    Bicubic,
    /// A sinc within a wider one.
    Lanczos,
}

impl Filter {
    /// The filter of this number, as Pillow counts them and `preprocessor_config.json` says it.
    ///
    /// ```
    /// use kiln_llm::vision::Filter;
    /// assert_eq!(Filter::numbered(3), Some(Filter::Bicubic));
    /// assert_eq!(Filter::named("bilinear"), Some(Filter::Bilinear));
    /// ```
    pub fn numbered(number: usize) -> Option<Filter> {
        let all = [Filter::Nearest, Filter::Lanczos, Filter::Bilinear, Filter::Bicubic, Filter::Box, Filter::Hamming];
        all.get(number).copied()
    }

    /// The filter of this name, as timm writes it.
    pub fn named(name: &str) -> Option<Filter> {
        Some(match name {
            "nearest" => Filter::Nearest,
            "box" => Filter::Box,
            "bilinear" => Filter::Bilinear,
            "hamming" => Filter::Hamming,
            "bicubic" => Filter::Bicubic,
            "lanczos" => Filter::Lanczos,
            _ => return None,
        })
    }

    /// How far it reaches to each side.
    fn reach(self) -> f64 {
        match self {
            Filter::Nearest | Filter::Box => 0.5,
            Filter::Bilinear | Filter::Hamming => 1.0,
            Filter::Bicubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        let sinc = |x: f64| if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) };
        let far = x.abs();
        match self {
            // Pillow's box holds its upper end and not its lower one.
            Filter::Nearest | Filter::Box => f64::from(x > -0.5 && x <= 0.5),
            Filter::Bilinear => (1.0 - far).max(0.0),
            Filter::Hamming if far == 0.0 => 1.0,
            Filter::Hamming if far >= 1.0 => 0.0,
            Filter::Hamming => sinc(far) * (0.54 + 0.46 * (far * PI).cos()),
            Filter::Bicubic if far < 1.0 => (1.5 * far - 2.5) * far * far + 1.0,
            Filter::Bicubic if far < 2.0 => ((far - 5.0) * far + 8.0) * far * -0.5 + 2.0,
            Filter::Bicubic => 0.0,
            Filter::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Filter::Lanczos => 0.0,
        }
    }
}

/// Bits behind the point of a weight.
const POINT: u32 = 32 - 8 - 2;

/// What a pixel of the result is made of along one axis: the first of the source's, and the weights from there on.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

fn taps(from: usize, to: usize, filter: Filter) -> Vec<Taps> {
    let step = from as f64 / to as f64;
    let wide = step.max(1.0);
    let reach = filter.reach() * wide;
    let one = |at: usize| {
        let centre = (at as f64 + 0.5) * step;
        // Numbers are cut towards 0, as C cuts them.
        let first = ((centre - reach + 0.5) as i64).max(0) as usize;
        let end = ((centre + reach + 0.5) as i64).clamp(0, from as i64) as usize;
        let weights: Vec<f64> =
            (first..end.max(first)).map(|place| filter.weight((place as f64 - centre + 0.5) * (1.0 / wide))).collect();
        let sum: f64 = weights.iter().sum();
        let whole = |weight: f64| {
            let weight = if sum != 0.0 { weight / sum } else { weight };
            let scaled = weight * f64::from(1u32 << POINT);
            (if weight < 0.0 { scaled - 0.5 } else { scaled + 0.5 }) as i32
        };
        Taps { first, weights: weights.into_iter().map(whole).collect() }
    };
    (0..to).map(one).collect()
}

/// The byte of a sum of weighted bytes.
fn byte(sum: i64) -> u8 {
    (sum >> POINT).clamp(0, 255) as u8
}

const HALF: i64 = 1 << (POINT - 1);

impl Image {
    /// The picture in another size.
    pub fn resize(&self, width: usize, height: usize, filter: Filter) -> Result<Image> {
        let mut result = Image::black(width, height)?;
        if filter == Filter::Nearest {
            return self.pick(width, height);
        }
        if (width, height) == (self.width(), self.height()) {
            return Ok(self.clone());
        }
        let across =
            if width == self.width() { self.clone() } else { self.across(&taps(self.width(), width, filter))? };
        if height == self.height() {
            return Ok(across);
        }
        let rows = across.rgb();
        let row = width * 3;
        let targets = result.rgb_mut().chunks_exact_mut(row);
        for (target, taps) in targets.zip(taps(self.height(), height, filter)) {
            for (x, out) in target.iter_mut().enumerate() {
                let column = rows[taps.first * row + x..].iter().step_by(row);
                let sum: i64 = column.zip(&taps.weights).map(|(&v, &w)| i64::from(v) * i64::from(w)).sum();
                *out = byte(sum + HALF);
            }
        }
        Ok(result)
    }

    fn across(&self, taps: &[Taps]) -> Result<Image> {
        let mut rgb = Vec::with_capacity(taps.len() * self.height() * 3);
        for row in self.rgb().chunks_exact(self.width() * 3) {
            for taps in taps {
                let pixels = row[taps.first * 3..].chunks_exact(3);
                let mut sums = [HALF; 3];
                for (pixel, &weight) in pixels.zip(&taps.weights) {
                    sums.iter_mut().zip(pixel).for_each(|(sum, &v)| *sum += i64::from(v) * i64::from(weight));
                }
                rgb.extend(sums.map(byte));
            }
        }
        Image::from_rgb(taps.len(), self.height(), rgb)
    }

    fn pick(&self, width: usize, height: usize) -> Result<Image> {
        let places = |from: usize, to: usize| -> Vec<usize> {
            let step = from as f64 / to as f64;
            (0..to).map(|at| (((at as f64 + 0.5) * step) as usize).min(from - 1)).collect()
        };
        let columns = places(self.width(), width);
        let mut rgb = Vec::with_capacity(width * height * 3);
        for y in places(self.height(), height) {
            rgb.extend(columns.iter().filter_map(|&x| self.pixel(x, y)).flatten());
        }
        Image::from_rgb(width, height, rgb)
    }
}
