//! Functions that the standard library lacks, in double precision: the error function, its inverse, and ln|Γ|.

use std::f64::consts::PI;
use std::sync::LazyLock;

/// A polynomial by its coefficients, highest first.
fn poly(x: f64, coefficients: &[f64]) -> f64 {
    coefficients.iter().fold(0.0, |sum, &c| sum * x + c)
}

/// The error function. Rational approximations of W. J. Cody, "Rational Chebyshev approximations for the error
/// function" (1969): relative error below 2e-16.
pub fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a <= 0.46875 {
        erf_near_zero(x)
    } else if a.is_nan() {
        x
    } else {
        (1.0 - erfc_tail(a)).copysign(x)
    }
}

/// The complementary error function, 1 − erf(x), without loss for large x.
pub fn erfc(x: f64) -> f64 {
    let a = x.abs();
    if a <= 0.46875 {
        1.0 - erf_near_zero(x)
    } else if x > 0.0 {
        erfc_tail(a)
    } else {
        2.0 - erfc_tail(a)
    }
}

/// erf for |x| ≤ 0.46875.
fn erf_near_zero(x: f64) -> f64 {
    const NUM: [f64; 5] = [
        1.857_777_061_846_031_5e-1,
        3.161_123_743_870_565_5,
        1.138_641_541_510_501_6e2,
        3.774_852_376_853_02e2,
        3.209_377_589_138_469_4e3,
    ];
    const DEN: [f64; 5] =
        [1.0, 2.360_129_095_234_412_2e1, 2.440_246_379_344_441_7e2, 1.282_616_526_077_372_3e3, 2.844_236_833_439_171e3];
    let y = x * x;
    x * poly(y, &NUM) / poly(y, &DEN)
}

/// erfc for x ≥ 0.46875.
fn erfc_tail(x: f64) -> f64 {
    const NUM_MIDDLE: [f64; 9] = [
        2.153_115_354_744_038_3e-8,
        5.641_884_969_886_701e-1,
        8.883_149_794_388_377,
        6.611_919_063_714_163e1,
        2.986_351_381_974_001e2,
        8.819_522_212_417_69e2,
        1.712_047_612_634_070_7e3,
        2.051_078_377_826_071_6e3,
        1.230_339_354_797_997_2e3,
    ];
    const DEN_MIDDLE: [f64; 9] = [
        1.0,
        1.574_492_611_070_983_5e1,
        1.176_939_508_913_125e2,
        5.371_811_018_620_099e2,
        1.621_389_574_566_690_3e3,
        3.290_799_235_733_459_7e3,
        4.362_619_090_143_247e3,
        3.439_367_674_143_721_6e3,
        1.230_339_354_803_749_5e3,
    ];
    const NUM_FAR: [f64; 6] = [
        1.631_538_713_730_209_7e-2,
        3.053_266_349_612_323_6e-1,
        3.603_448_999_498_044_5e-1,
        1.257_817_261_112_292_6e-1,
        1.608_378_514_874_227_5e-2,
        6.587_491_615_298_378e-4,
    ];
    const DEN_FAR: [f64; 6] = [
        1.0,
        2.568_520_192_289_822,
        1.872_952_849_923_460_4,
        5.279_051_029_514_285e-1,
        6.051_834_131_244_132e-2,
        2.335_204_976_268_691_8e-3,
    ];
    if x > 27.3 {
        return 0.0;
    }
    let scaled = if x <= 4.0 {
        poly(x, &NUM_MIDDLE) / poly(x, &DEN_MIDDLE)
    } else {
        let y = 1.0 / (x * x);
        let tail = y * poly(y, &NUM_FAR) / poly(y, &DEN_FAR);
        (1.0 / PI.sqrt() - tail) / x
    };
    // exp(−x²) with x split so that the square of its head is exact.
    let head = (x * 16.0).trunc() / 16.0;
    let rest = (x - head) * (x + head);
    (-head * head).exp() * (-rest).exp() * scaled
}

/// The inverse of [`erf`]: ±∞ at ±1, NaN beyond. A rough start, then Halley's iteration on the smaller of erf and erfc, so that
/// the last bits count.
pub fn erf_inv(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() || a > 1.0 {
        return f64::NAN;
    }
    if a == 1.0 {
        return f64::INFINITY.copysign(x);
    }
    // S. Winitzki's approximation, good to 2e-3.
    const C: f64 = 0.147;
    let log = (1.0 - a).ln() + a.ln_1p();
    let b = 2.0 / (PI * C) + log / 2.0;
    let mut y = ((b * b - log / C).sqrt() - b).max(0.0).sqrt();
    for _ in 0..4 {
        let error = if a < 0.5 { erf(y) - a } else { (1.0 - a) - erfc(y) };
        let step = error / (2.0 / PI.sqrt() * (-y * y).exp());
        if !step.is_finite() || step == 0.0 {
            break;
        }
        y -= step / (1.0 + y * step);
    }
    y.copysign(x)
}

/// (ζ(k) − 1) / k for k = 2, 3, …, highest first, followed by zeros for k = 1, 0: the Taylor coefficients of ln Γ(2 + w)
/// but for their signs.
static ZETA: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let zeta_minus_one = |k: i32| {
        // Σ n⁻ᵏ for n = 2…N−1, and the rest by Euler–Maclaurin.
        const N: f64 = 64.0;
        let s = k as f64;
        let sum: f64 = (2..64).rev().map(|n| (n as f64).powi(-k)).sum();
        let p = N.powi(-k);
        let rest = p * N / (s - 1.0) + p / 2.0 + s * p / (12.0 * N)
            - s * (s + 1.0) * (s + 2.0) * p / (720.0 * N.powi(3))
            + s * (s + 1.0) * (s + 2.0) * (s + 3.0) * (s + 4.0) * p / (30240.0 * N.powi(5))
            - s * (s + 1.0) * (s + 2.0) * (s + 3.0) * (s + 4.0) * (s + 5.0) * (s + 6.0) * p / (1_209_600.0 * N.powi(7));
        sum + rest
    };
    (2..=30).rev().map(|k| zeta_minus_one(k) / k as f64).chain([0.0, 0.0]).collect()
});

/// Euler's constant.
const EULER: f64 = 0.577_215_664_901_532_9;

/// ln Γ(2 + w) for |w| ≤ 1/2.
fn lgamma_near_two(w: f64) -> f64 {
    w * (1.0 - EULER) + poly(-w, &ZETA)
}

/// ln|π / (x·sin πx)|, with the sine's argument reduced exactly.
fn reflection(x: f64) -> f64 {
    let fraction = x - x.round();
    (PI / (x * (PI * fraction).sin()).abs()).ln()
}

/// The sum of the sizes of the terms of which [`lgamma`] is made: near its zeros on the negative side it is as far off as they are.
pub(super) fn lgamma_terms(x: f64) -> f64 {
    if x < 0.0 && x != x.floor() { reflection(x).abs() + lgamma(-x).abs() } else { lgamma(x).abs() }
}

/// ln|Γ(x)|; +∞ at 0, −1, −2, … and at ±∞.
pub fn lgamma(x: f64) -> f64 {
    if x.is_nan() {
        x
    } else if x.is_infinite() || (x <= 0.0 && x == x.floor()) {
        f64::INFINITY
    } else if x < 0.0 {
        // Γ(x)·Γ(−x) = −π / (x·sin πx).
        reflection(x) - lgamma(-x)
    } else if x < 0.5 {
        lgamma_near_two(x) - x.ln_1p() - x.ln()
    } else if x < 1.5 {
        lgamma_near_two(x - 1.0) - (x - 1.0).ln_1p()
    } else if x < 8.0 {
        let mut product = 1.0;
        let mut z = x;
        while z > 2.5 {
            z -= 1.0;
            product *= z;
        }
        lgamma_near_two(z - 2.0) + product.ln()
    } else {
        // Stirling's series.
        const SERIES: [f64; 8] = [
            -3617.0 / 122_400.0,
            1.0 / 156.0,
            -691.0 / 360_360.0,
            1.0 / 1188.0,
            -1.0 / 1680.0,
            1.0 / 1260.0,
            -1.0 / 360.0,
            1.0 / 12.0,
        ];
        let y = 1.0 / x;
        (x - 0.5) * x.ln() - x + 0.5 * (2.0 * PI).ln() + y * poly(y * y, &SERIES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_near(name: &str, x: f64, got: f64, want: f64, relative: f64, absolute: f64) {
        assert!((got - want).abs() <= relative * want.abs() + absolute, "{name}({x}) = {got:e}, expected {want:e}");
    }

    #[test]
    fn erf_matches_known_values() {
        for (x, erf_x, erfc_x) in [
            (1e-300, 1.1283791670955126e-300, 1.0),
            (1e-10, 1.1283791670955126e-10, 0.999999999887162),
            (0.1, 0.1124629160182849, 0.8875370839817152),
            (0.3, 0.3286267594591274, 0.6713732405408726),
            (0.46875, 0.49261347321793797, 0.507386526782062),
            (0.5, 0.5204998778130465, 0.4795001221869535),
            (0.9, 0.7969082124228322, 0.20309178757716786),
            (1.5, 0.9661051464753108, 0.033894853524689274),
            (2.0, 0.9953222650189527, 0.004677734981047265),
            (3.0, 0.9999779095030014, 2.2090496998585438e-05),
            (3.9, 0.9999999652077514, 3.479224859723177e-08),
            (4.1, 0.9999999932999724, 6.700027654084918e-09),
            (5.0, 0.9999999999984626, 1.5374597944280351e-12),
            (10.0, 1.0, 2.088487583762545e-45),
            (20.0, 1.0, 5.3958656116079005e-176),
            (26.0, 1.0, 5.663192408856143e-296),
        ] {
            assert_near("erf", x, erf(x), erf_x, 4e-16, 0.0);
            assert_near("erf", -x, erf(-x), -erf_x, 4e-16, 0.0);
            assert_near("erfc", x, erfc(x), erfc_x, 2e-15, 0.0);
            assert_near("erfc", -x, erfc(-x), 2.0 - erfc_x, 4e-16, 0.0);
        }
        assert_eq!(erf(f64::INFINITY), 1.0);
        assert_eq!(erf(f64::NEG_INFINITY), -1.0);
        assert!(erf(f64::NAN).is_nan());
    }

    #[test]
    fn erf_inv_inverts() {
        for x in [1e-300, 1e-12, 0.01, 0.25, 0.4999, 0.5, 0.7, 0.99, 0.999_999, 1.0 - 1e-12, 1.0 - f64::EPSILON / 2.0] {
            for x in [x, -x] {
                let y = erf_inv(x);
                // The condition number of erf at y relates an error in y to one in x.
                let slope = 2.0 / PI.sqrt() * (-y * y).exp();
                assert!((erf(y) - x).abs() <= 4e-16 * x.abs() + 8e-16 * slope * y.abs(), "erf_inv({x}) = {y}");
            }
        }
        assert_eq!(erf_inv(0.0), 0.0);
        assert_near("erf_inv", 0.5, erf_inv(0.5), 0.476_936_276_204_469_9, 2e-15, 0.0);
        assert_near("erf_inv", 0.999, erf_inv(0.999), 2.326_753_765_513_524_7, 2e-15, 0.0);
        assert_eq!(erf_inv(1.0), f64::INFINITY);
        assert_eq!(erf_inv(-1.0), f64::NEG_INFINITY);
        assert!(erf_inv(1.5).is_nan());
    }

    #[test]
    fn lgamma_matches_known_values() {
        for (x, want) in [
            (1e-08, 18.42068073818021),
            (0.001, 6.907178885383853),
            (0.25, 1.2880225246980774),
            (0.499, 0.5743309231606863),
            (0.5, 0.5723649429247001),
            (0.75, 0.20328095143129535),
            (0.999, 0.0005780385328913802),
            (1.0001, -5.771334222047127e-05),
            (1.25, -0.09827183642181316),
            (1.4999, -0.12078588195849393),
            (1.5, -0.12078223763524522),
            (1.99, -0.004195529088791668),
            (2.0001, 4.2281658112919945e-05),
            (2.5, 0.2846828704729192),
            (2.51, 0.29173891549286796),
            (3.0, std::f64::consts::LN_2),
            (4.7, 2.736405146315567),
            (7.99, 8.50501160608848),
            (8.0, 8.525161361065413),
            (8.5, 9.549267257300997),
            (20.0, 39.339884187199495),
            (171.5, 709.1431630309282),
            (100000.0, 1051287.7089736569),
            (1e+300, 6.897755278982137e+302),
            (-0.5, 1.2655121234846454),
            (-1.3, 1.2024757863901112),
            (-2.7, -0.07140708531564569),
            (-10.25, -14.20399790093109),
            (-1e-05, 11.512931237209125),
        ] {
            assert_near("lgamma", x, lgamma(x), want, 2e-15, 2e-16);
        }
        assert_eq!(lgamma(1.0), 0.0);
        assert_eq!(lgamma(2.0), 0.0);
        assert_eq!(lgamma(0.0), f64::INFINITY);
        assert_eq!(lgamma(-3.0), f64::INFINITY);
        assert_eq!(lgamma(f64::NEG_INFINITY), f64::INFINITY);
        assert!(lgamma(f64::NAN).is_nan());
    }
}
