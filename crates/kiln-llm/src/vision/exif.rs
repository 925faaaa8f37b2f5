//! The orientation of a picture: cameras write pixels as their sensor has them, and beside them (EXIF) how to rotate them.
//!
//! A file may hold anything there. What cannot be read says nothing, as in other readers; no place is read that is not in the file.

use super::Image;
use crate::Result;

/// How the rows and columns of a file stand to the picture, by EXIF's numbers: the number of a mirroring or turn that was done to
/// the picture and has to be undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Orientation {
    #[default]
    Upright = 1,
    Mirrored = 2,
    UpsideDown = 3,
    Flipped = 4,
    Transposed = 5,
    /// The top of the picture is at the right of the file.
    TurnedLeft = 6,
    Transversed = 7,
    /// The top of the picture is at the left of the file.
    TurnedRight = 8,
}

const ORIENTATION: u16 = 0x0112;
/// What precedes the TIFF structure in a JPEG's segment.
const JPEG_MARK: &[u8] = b"Exif\0\0";

impl Orientation {
    fn numbered(number: u32) -> Option<Orientation> {
        use Orientation::*;
        let all = [Upright, Mirrored, UpsideDown, Flipped, Transposed, TurnedLeft, Transversed, TurnedRight];
        all.get((number as usize).checked_sub(1)?).copied()
    }

    /// What the bytes of a JPEG file say.
    pub(super) fn of_jpeg(bytes: &[u8]) -> Orientation {
        let mut rest = bytes.get(2..).unwrap_or_default();
        while let [0xff, marker, after @ ..] = rest {
            rest = match marker {
                // Filling; and marks without a segment.
                0xff => &rest[1..],
                0x01 | 0xd0..=0xd7 => after,
                // The pixels begin, or the file ends.
                0xda | 0xd9 => break,
                _ => {
                    let Some((segment, next)) = segment(after) else { break };
                    let exif = segment.strip_prefix(JPEG_MARK).filter(|_| *marker == 0xe1);
                    if let Some(found) = exif.and_then(Orientation::of_tiff) {
                        return found;
                    }
                    next
                }
            };
        }
        Orientation::Upright
    }

    /// What the bytes of a PNG file say.
    pub(super) fn of_png(bytes: &[u8]) -> Orientation {
        let mut rest = bytes.get(8..).unwrap_or_default();
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*length) as usize;
            let Some((kind, after)) = after.split_first_chunk::<4>() else { break };
            let Some(data) = after.get(..length) else { break };
            if kind == b"eXIf" {
                return Orientation::of_tiff(data).unwrap_or_default();
            }
            // A check sum of four bytes is behind it.
            rest = after.get(length..).and_then(|after| after.get(4..)).unwrap_or_default();
        }
        Orientation::Upright
    }

    /// What a TIFF structure says in its first directory.
    fn of_tiff(bytes: &[u8]) -> Option<Orientation> {
        let little = match bytes.get(..4)? {
            b"II*\0" => true,
            b"MM\0*" => false,
            _ => return None,
        };
        let short = |at: usize| {
            let two = *bytes.get(at..)?.first_chunk::<2>()?;
            Some(if little { u16::from_le_bytes(two) } else { u16::from_be_bytes(two) })
        };
        let long = |at: usize| {
            let four = *bytes.get(at..)?.first_chunk::<4>()?;
            Some(if little { u32::from_le_bytes(four) } else { u32::from_be_bytes(four) })
        };
        let directory = usize::try_from(long(4)?).ok()?;
        let entries = usize::from(short(directory)?);
        for entry in 0..entries {
            // A tag, a type, a count, and a value that fits four bytes.
            let at = directory.checked_add(2 + 12 * entry)?;
            if short(at)? == ORIENTATION {
                let value = match short(at + 2)? {
                    1 => u32::from(*bytes.get(at + 8)?),
                    3 => u32::from(short(at + 8)?),
                    4 => long(at + 8)?,
                    _ => return None,
                };
                return Orientation::numbered(value);
            }
        }
        None
    }

    /// The picture as it was meant.
    pub(super) fn upright(self, image: Image) -> Result<Image> {
        use Orientation::*;
        let (width, height) = (image.width(), image.height());
        let (columns, rows) = match self {
            Upright => return Ok(image),
            Mirrored | UpsideDown | Flipped => (width, height),
            Transposed | TurnedLeft | Transversed | TurnedRight => (height, width),
        };
        let mut rgb = Vec::with_capacity(image.rgb().len());
        for y in 0..rows {
            for x in 0..columns {
                let (from_x, from_y) = match self {
                    Upright => (x, y),
                    Mirrored => (width - 1 - x, y),
                    UpsideDown => (width - 1 - x, height - 1 - y),
                    Flipped => (x, height - 1 - y),
                    Transposed => (y, x),
                    TurnedLeft => (y, height - 1 - x),
                    Transversed => (width - 1 - y, height - 1 - x),
                    TurnedRight => (width - 1 - y, x),
                };
                let at = (from_y * width + from_x) * 3;
                rgb.extend_from_slice(&image.rgb()[at..at + 3]);
            }
        }
        Image::from_rgb(columns, rows, rgb)
    }
}

/// The data of a JPEG's segment, whose length counts itself, and what is behind it.
fn segment(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = usize::from(u16::from_be_bytes(*bytes.first_chunk::<2>()?));
    let data = bytes.get(2..length)?;
    Some((data, &bytes[length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A TIFF structure with an entry before the orientation.
    fn tiff(little: bool, kind: u16, value: u32) -> Vec<u8> {
        let short = |n: u16| if little { n.to_le_bytes() } else { n.to_be_bytes() };
        let long = |n: u32| if little { n.to_le_bytes() } else { n.to_be_bytes() };
        let mut bytes = if little { b"II*\0".to_vec() } else { b"MM\0*".to_vec() };
        bytes.extend(long(8));
        bytes.extend(short(2));
        bytes.extend([&short(0x010f)[..], &short(2), &long(2), b"K\0\0\0"].concat());
        bytes.extend([&short(ORIENTATION)[..], &short(kind), &long(1)].concat());
        bytes.extend(match kind {
            1 => [value as u8, 0, 0, 0],
            3 => {
                let [a, b] = short(value as u16);
                [a, b, 0, 0]
            }
            _ => long(value),
        });
        bytes.extend(long(0));
        bytes
    }

    fn jpeg(tiff: &[u8]) -> Vec<u8> {
        let other = [&[0xff, 0xe0, 0, 6][..], b"JFIF"].concat();
        let length = ((JPEG_MARK.len() + tiff.len() + 2) as u16).to_be_bytes();
        [&[0xff, 0xd8][..], &other, &[0xff, 0xff, 0xe1], &length, JPEG_MARK, tiff, &[0xff, 0xda, 0, 2]].concat()
    }

    #[test]
    fn every_number_is_read_in_both_orders_and_all_types() {
        for number in 1..=8 {
            for little in [true, false] {
                for kind in [1, 3, 4] {
                    let tiff = tiff(little, kind, number);
                    assert_eq!(Orientation::of_tiff(&tiff).map(|o| o as u32), Some(number));
                    assert_eq!(Orientation::of_jpeg(&jpeg(&tiff)) as u32, number);
                }
            }
        }
        for bad in [tiff(true, 3, 0), tiff(true, 3, 9), tiff(false, 4, u32::MAX), tiff(true, 7, 6), b"II".to_vec()] {
            assert_eq!(Orientation::of_jpeg(&jpeg(&bad)), Orientation::Upright);
        }
    }

    /// Against what turning a sheet of paper does: a quarter turn and a mirror make all eight.
    #[test]
    fn pictures_are_turned_as_paper_is() {
        fn turned_right(rows: &[Vec<u8>]) -> Vec<Vec<u8>> {
            (0..rows[0].len()).map(|x| rows.iter().rev().map(|row| row[x]).collect()).collect()
        }
        fn mirrored(rows: &[Vec<u8>]) -> Vec<Vec<u8>> {
            rows.iter().map(|row| row.iter().rev().copied().collect()).collect()
        }
        let file = vec![vec![1, 2, 3], vec![4, 5, 6]];
        let turns = |n: usize| (0..n).fold(file.clone(), |rows, _| turned_right(&rows));
        let expected = [
            turns(0),
            mirrored(&turns(0)),
            turns(2),
            mirrored(&turns(2)),
            mirrored(&turns(1)),
            turns(1),
            mirrored(&turns(3)),
            turns(3),
        ];
        for (number, rows) in expected.iter().enumerate() {
            let pixels = |rows: &[Vec<u8>]| rows.iter().flatten().flat_map(|&n| [n, n + 10, n + 20]).collect();
            let image = Image::from_rgb(3, 2, pixels(&file)).unwrap();
            let upright = Orientation::numbered(number as u32 + 1).unwrap().upright(image).unwrap();
            assert_eq!(upright, Image::from_rgb(rows[0].len(), rows.len(), pixels(rows)).unwrap(), "{}", number + 1);
        }
    }

    /// Files with bytes changed, cut and put in are read without a panic.
    #[test]
    fn damage_is_no_orientation() {
        let mut state = 7u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % below.max(1)
        };
        let png = |tiff: &[u8]| {
            let length = (tiff.len() as u32).to_be_bytes();
            [b"\x89PNG\r\n\x1a\n", &length[..], b"eXIf", tiff, &[0; 4], &[0, 0, 0, 0], b"IEND", &[0; 4]].concat()
        };
        for round in 0..20_000 {
            let tiff = tiff(round % 2 == 0, [1, 3, 4][round % 3], 6);
            let mut file = if round % 2 == 0 { jpeg(&tiff) } else { png(&tiff) };
            for _ in 0..=random(4) {
                let at = random(file.len());
                match random(3) {
                    0 => file[at] = [0, 1, 0x7f, 0x80, 0xff, random(256) as u8][random(6)],
                    1 => file.truncate(at.max(1)),
                    _ => file.insert(at, random(256) as u8),
                }
            }
            assert!((1..=8).contains(&(Orientation::of_jpeg(&file) as u32)));
            assert!((1..=8).contains(&(Orientation::of_png(&file) as u32)));
        }
        assert_eq!(Orientation::of_png(&png(&tiff(true, 3, 6))), Orientation::TurnedLeft);
    }
}
