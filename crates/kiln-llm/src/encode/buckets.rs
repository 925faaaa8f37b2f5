//! Which texts go through the model together: few shapes, so that few programs are made, and little filling.

/// Lengths that texts are filled up to.
pub(super) const LENGTHS: [usize; 12] = [8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024];

/// Texts that share a program's run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Batch {
    /// Which.
    pub texts: Vec<usize>,
    /// Rows of the batch; those beyond the texts are filling.
    pub rows: usize,
    /// Tokens of a row.
    pub length: usize,
}

/// The batches of texts with these lengths, of `most` texts each and `longest` tokens a text.
pub(super) fn batches(lengths: &[usize], most: usize, longest: usize) -> Vec<Batch> {
    let bucket = |length: usize| {
        let bucket = LENGTHS.into_iter().find(|&bucket| bucket >= length);
        bucket.unwrap_or(longest).min(longest)
    };
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&text| lengths[text]);
    let mut batches = Vec::new();
    for alike in order.chunk_by(|&a, &b| bucket(lengths[a]) == bucket(lengths[b])) {
        let mut rest = alike;
        while let Some(&first) = rest.first() {
            let rows = rows(rest.len(), most);
            let (texts, later) = rest.split_at(rows.min(rest.len()));
            batches.push(Batch { texts: texts.to_vec(), rows, length: bucket(lengths[first]) });
            rest = later;
        }
    }
    batches
}

/// Rows of the next batch where so many texts are left: a power of two, with at most a quarter of it filling.
pub(crate) fn rows(left: usize, most: usize) -> usize {
    let above = left.next_power_of_two();
    match () {
        () if left >= most => most,
        () if above <= most && (above - left) * 4 <= above => above,
        () => 1 << left.ilog2(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every text is in one batch, fits it, and filling stays within its bounds.
    #[test]
    fn batches_hold_every_text_once() {
        for count in 0..70 {
            let lengths: Vec<usize> = (0..count).map(|i| 1 + i * 37 % 300).collect();
            for most in [1, 3, 8, 32] {
                let batches = batches(&lengths, most, 300);
                let mut seen: Vec<usize> = batches.iter().flat_map(|batch| batch.texts.clone()).collect();
                seen.sort_unstable();
                assert_eq!(seen, (0..count).collect::<Vec<_>>());
                for batch in batches {
                    assert!(batch.texts.len() <= batch.rows && batch.rows <= most.max(1));
                    assert!((batch.rows - batch.texts.len()) * 4 <= batch.rows);
                    assert!(batch.texts.iter().all(|&text| lengths[text] <= batch.length && batch.length <= 300));
                }
            }
        }
    }

    #[test]
    fn few_shapes_serve_all() {
        assert_eq!(rows(1, 32), 1);
        assert_eq!(rows(3, 32), 4);
        assert_eq!(rows(5, 32), 4);
        assert_eq!(rows(7, 32), 8);
        assert_eq!(rows(100, 32), 32);
        assert_eq!(rows(2, 3), 2);
    }
}
