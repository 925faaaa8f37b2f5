//! tanh and the error function.

use super::super::lanes::*;
use super::exponential::exp_nonpositive;

/// (tanh x / x − 1) / x² by x², for |x| ≤ 0.55.
const TANH: [f64; 11] = [
    -1.948_957_548_780_750_3e-5,
    8.330_772_877_333_104e-5,
    -0.000_233_375_185_549_403_96,
    0.000_588_441_868_320_183_4,
    -0.001_455_542_184_840_548,
    0.003_592_091_924_447_219_7,
    -0.008_863_232_590_677_69,
    0.021_869_488_385_186_958,
    -0.053_968_253_963_737_02,
    0.133_333_333_333_265_8,
    -0.333_333_333_333_333,
];

/// erf x / x − 1 by x², for |x| ≤ 1.
const ERF_NEAR: [f64; 12] = [
    -7.599_433_868_525_563e-10,
    1.361_317_028_694_996_2e-8,
    -1.618_337_336_910_500_6e-7,
    1.644_409_217_449_606_7e-6,
    -1.492_446_239_404_008_8e-5,
    0.000_120_552_803_880_313_56,
    -0.000_854_832_548_284_786_7,
    0.005_223_977_596_711_935,
    -0.026_866_170_641_957_805,
    0.112_837_916_709_369_48,
    -0.376_126_389_031_833_43,
    0.128_379_167_095_512_56,
];

/// The eighth root of 1 − erf x by x − 2.5, for 1 ≤ x ≤ 5.95.
const ERF_FAR: [f64; 19] = [
    8.273_277_218_378_993e-14,
    -2.114_008_741_894_601_8e-13,
    -7.417_183_118_293_587e-14,
    -3.190_674_524_873_998e-12,
    -2.222_631_661_710_211_8e-11,
    4.514_934_829_580_232_6e-10,
    -8.404_755_499_670_716e-10,
    -1.591_504_158_925_322_4e-8,
    5.720_632_615_173_362_5e-8,
    6.362_023_810_971_319e-7,
    -4.037_268_142_370_443e-6,
    -1.358_912_053_273_868e-5,
    0.000_172_846_673_260_379_97,
    -9.867_064_967_259_762e-5,
    -0.003_738_588_968_683_544,
    0.010_425_687_572_034_352,
    0.039_892_081_309_099_95,
    -0.252_158_873_327_528_45,
    0.376_871_156_802_781_7,
];

/// tanh x
pub fn tanh<F: Float>(x: F) -> F {
    let size = x.abs();
    let z = x.square();
    let near = polynomial(z, &TANH).mul_add(size * z, size);
    // 1 − 2e/(1 + e) with e = exp(−2|x|) ≤ 1.
    let e = exp_nonpositive(size * x.lit(-2.0));
    let one = x.lit(1.0);
    let far = one - (e + e) / (one + e);
    F::select(size.lt(x.lit(0.55)), near, far).signed(x.sign())
}

/// The error function.
pub fn erf<F: Float>(x: F) -> F {
    let size = x.abs();
    let near = polynomial(x.square(), &ERF_NEAR).mul_add(size, size);
    // Beyond 5.95 the result is 1. The operand comes last, so that NaN passes.
    let far = polynomial(x.lit(5.95).min(size) - x.lit(2.5), &ERF_FAR);
    let far = far.square().square();
    let far = far.neg_mul_add(far, x.lit(1.0));
    F::select(size.lt(x.lit(1.0)), near, far).signed(x.sign())
}
