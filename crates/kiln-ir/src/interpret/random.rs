//! Random bits: Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), a counter-based
//! generator: an element's bits depend on seed, stream and position alone.

use super::Fault;
use crate::HostTensor;
use crate::host::try_with_capacity;

/// Ten rounds of Philox on one counter.
pub(super) fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = counter[0] as u64 * 0xD251_1F53;
        let b = counter[2] as u64 * 0xCD9E_8D57;
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// Word 0 of Philox for each position.
pub(super) fn bits(seed: &HostTensor, shape: &[usize], stream: u32) -> Result<HostTensor, Fault> {
    let seed = seed.get_i64(0) as u64;
    let n = crate::host::element_count(shape).unwrap_or(0);
    let mut words: Vec<i32> = try_with_capacity(n).ok_or_else(|| Fault::TooLarge { shape: shape.to_vec() })?;
    words.extend((0..n as u64).map(|i| {
        let counter = [i as u32, (i >> 32) as u32, stream, 0];
        philox(counter, [seed as u32, (seed >> 32) as u32])[0] as i32
    }));
    Ok(HostTensor::from_slice(shape, &words)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_matches_the_published_vectors() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn bits_depend_on_seed_stream_and_position() {
        let seed = |s: i64| HostTensor::from_slice(&[], &[s]).unwrap();
        let a = bits(&seed(0), &[4], 0).unwrap();
        assert_eq!(a.get_i64(0), 0x6627_e8d5);
        assert_eq!(bits(&seed(0), &[2, 2], 0).unwrap().bytes(), a.bytes());
        assert_ne!(bits(&seed(0), &[4], 1).unwrap(), a);
        assert_ne!(bits(&seed(1 << 32), &[4], 0).unwrap(), a);
        let want = philox([3, 0, 7, 0], [0xffff_fffe, 0xffff_ffff])[0] as i32;
        assert_eq!(bits(&seed(-2), &[4], 7).unwrap().get_i64(3), want as i64);
    }
}
