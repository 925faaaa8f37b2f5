//! Pictures as files hold them: PNG and JPEG of any kind become rows of red, green and blue.

use super::exif::Orientation;
use crate::{Error, Result, files};
use png::{BitDepth, ColorType, Transformations};
use std::io::Cursor;
use std::path::Path;
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// Pixels of a picture at the most: one that claims more is refused before there is memory for it.
const MOST_PIXELS: usize = 1 << 27;
/// Pixels of a side at the most.
const LONGEST_SIDE: usize = 1 << 16;

/// What is wrong with a picture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// Neither of the kinds that there is code for.
    #[error("neither a PNG nor a JPEG file")]
    UnknownFormat,
    /// Damaged, or a kind of its format that is not supported.
    #[error("cannot be read as {format}: {message}")]
    Malformed {
        /// PNG or JPEG.
        format: &'static str,
        /// What is wrong.
        message: String,
    },
    /// No pixels, or more than anyone has a use for.
    #[error("a picture of {width} × {height} pixels is not supported")]
    BadSize {
        /// Pixels of a row.
        width: usize,
        /// Rows.
        height: usize,
    },
    /// Pixels that are not as many as the sides say.
    #[error("{got} bytes are no picture of {width} × {height} pixels")]
    WrongLength {
        /// Bytes.
        got: usize,
        /// Pixels of a row.
        width: usize,
        /// Rows.
        height: usize,
    },
}

/// A picture: rows of pixels from the top, each red, green and blue.
///
/// ```
/// use kiln_llm::vision::Image;
/// let image = Image::from_rgb(2, 1, vec![255, 0, 0, 0, 0, 255])?;
/// assert_eq!((image.width(), image.height()), (2, 1));
/// assert_eq!(image.pixel(1, 0), Some([0, 0, 255]));
/// # Ok::<(), kiln_llm::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

fn checked(width: usize, height: usize) -> Result<usize, ImageError> {
    let within = (1..=LONGEST_SIDE).contains(&width) && (1..=LONGEST_SIDE).contains(&height);
    match within && width * height <= MOST_PIXELS {
        true => Ok(width * height),
        false => Err(ImageError::BadSize { width, height }),
    }
}

impl Image {
    /// Of pixels in memory.
    pub fn from_rgb(width: usize, height: usize, rgb: Vec<u8>) -> Result<Image> {
        if checked(width, height)? * 3 != rgb.len() {
            return Err(ImageError::WrongLength { got: rgb.len(), width, height }.into());
        }
        Ok(Image { width, height, rgb })
    }

    /// All pixels black.
    pub fn black(width: usize, height: usize) -> Result<Image> {
        Ok(Image { width, height, rgb: vec![0; checked(width, height)? * 3] })
    }

    /// Reads a PNG or JPEG file.
    pub fn open(path: impl AsRef<Path>) -> Result<Image> {
        let path = path.as_ref();
        let bytes = files::read(path, files::Kind::Picture)?;
        Image::decode(&bytes).map_err(|error| match error {
            Error::Image { cause, .. } => Error::Image { path: Some(path.to_owned()), cause },
            other => other,
        })
    }

    /// Reads the bytes of a PNG or JPEG file. Grey becomes three equal channels, palettes their colours, 16 bits a channel the
    /// upper 8; what is said of transparency is dropped, as Pillow's `convert("RGB")` does. A picture that its EXIF data says
    /// is turned or mirrored is put upright, as `ImageOps.exif_transpose` does.
    pub fn decode(bytes: &[u8]) -> Result<Image> {
        if bytes.starts_with(&[0x89, b'P', b'N', b'G']) {
            Orientation::of_png(bytes).upright(decode_png(bytes)?)
        } else if bytes.starts_with(&[0xff, 0xd8]) {
            Orientation::of_jpeg(bytes).upright(decode_jpeg(bytes)?)
        } else {
            Err(ImageError::UnknownFormat.into())
        }
    }

    /// Pixels of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// All pixels, three bytes each.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    pub(super) fn rgb_mut(&mut self) -> &mut [u8] {
        &mut self.rgb
    }

    /// One pixel, if there is one.
    pub fn pixel(&self, x: usize, y: usize) -> Option<[u8; 3]> {
        if x >= self.width || y >= self.height {
            return None;
        }
        let at = (y * self.width + x) * 3;
        Some([self.rgb[at], self.rgb[at + 1], self.rgb[at + 2]])
    }

    /// The part around the centre; black where the picture ends before.
    pub fn centre_crop(&self, width: usize, height: usize) -> Result<Image> {
        let mut part = Image::black(width, height)?;
        // Halves go to the even side, as torchvision's do.
        let start = |whole: usize, part: usize| {
            let spare = whole as i64 - part as i64;
            let half = spare.div_euclid(2);
            if spare % 2 != 0 && half % 2 != 0 { half + 1 } else { half }
        };
        let (left, top) = (start(self.width, width), start(self.height, height));
        let columns = left.max(0)..(left + width as i64).min(self.width as i64);
        for y in 0..height {
            let from = top + y as i64;
            if !(0..self.height as i64).contains(&from) {
                continue;
            }
            let source = (from * self.width as i64 + columns.start) as usize * 3;
            let target = (y * width) * 3 + (columns.start - left) as usize * 3;
            let count = (columns.end - columns.start).max(0) as usize * 3;
            part.rgb[target..target + count].copy_from_slice(&self.rgb[source..source + count]);
        }
        Ok(part)
    }
}

fn decode_png(bytes: &[u8]) -> Result<Image, ImageError> {
    let bad = |e: png::DecodingError| ImageError::Malformed { format: "PNG", message: e.to_string() };
    // The rows themselves are ours to allocate; what is left is for chunks and palettes.
    let limits = png::Limits { bytes: 8 * MOST_PIXELS };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let header = decoder.read_header_info().map_err(bad)?;
    let (width, height) = (header.width as usize, header.height as usize);
    let pixels = checked(width, height)?;
    let mut reader = decoder.read_info().map_err(bad)?;
    let (colour, depth) = reader.output_color_type();
    let channels = colour.samples();
    let unsupported = || ImageError::Malformed { format: "PNG", message: format!("{colour:?} of {depth:?}") };
    if depth != BitDepth::Eight || reader.output_buffer_size() != Some(pixels * channels) {
        return Err(unsupported());
    }
    let mut samples = vec![0; pixels * channels];
    reader.next_frame(&mut samples).map_err(bad)?;
    let rgb = match colour {
        ColorType::Rgb => samples,
        ColorType::Grayscale | ColorType::GrayscaleAlpha => {
            samples.chunks_exact(channels).flat_map(|pixel| [pixel[0]; 3]).collect()
        }
        ColorType::Rgba => samples.chunks_exact(4).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect(),
        ColorType::Indexed => return Err(unsupported()),
    };
    Ok(Image { width, height, rgb })
}

fn decode_jpeg(bytes: &[u8]) -> Result<Image, ImageError> {
    let bad = |message: String| ImageError::Malformed { format: "JPEG", message };
    let options = DecoderOptions::default()
        .set_max_width(LONGEST_SIDE)
        .set_max_height(LONGEST_SIDE)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(Cursor::new(bytes), options);
    decoder.decode_headers().map_err(|e| bad(e.to_string()))?;
    let (width, height) = decoder.dimensions().ok_or_else(|| bad("it has no size".into()))?;
    let pixels = checked(width, height)?;
    let rgb = decoder.decode().map_err(|e| bad(e.to_string()))?;
    match rgb.len() == pixels * 3 {
        true => Ok(Image { width, height, rgb }),
        false => Err(bad(format!("{:?} cannot be shown as red, green and blue", decoder.input_colorspace()))),
    }
}
