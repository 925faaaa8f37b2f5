//! From a picture to the numbers that a model was trained on: size, part, scale.

use super::{Filter, Image};
use crate::Result;
use crate::config::Fields;
use kiln::{Device, Tensor};
use std::path::Path;

/// The size that a picture is brought to first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resize {
    /// Stays as it is.
    Keep,
    /// This width and height, whatever the picture's are.
    To {
        /// Pixels of a row.
        width: usize,
        /// Rows.
        height: usize,
    },
    /// The shorter side gets this length, the other keeps the proportion.
    Shorter(usize),
}

/// The preprocessing of a picture for a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Preprocess {
    /// First.
    pub resize: Resize,
    /// By this filter.
    pub filter: Filter,
    /// Then the part around the centre, `(width, height)`.
    pub crop: Option<(usize, usize)>,
    /// Then every byte times this.
    pub scale: f64,
    /// Less this, a channel.
    pub mean: [f64; 3],
    /// Over this, a channel.
    pub deviation: [f64; 3],
}

/// Of the pictures of ImageNet.
const IMAGENET: ([f64; 3], [f64; 3]) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);

impl Preprocess {
    /// What timm does for a model of this size: the shorter side somewhat longer than that, the centre, ImageNet's scale.
    ///
    /// ```
    /// use kiln_llm::vision::{Preprocess, Resize};
    /// assert_eq!(Preprocess::imagenet(224, 0.9).resize, Resize::Shorter(248));
    /// ```
    pub fn imagenet(size: usize, crop: f64) -> Preprocess {
        Preprocess {
            resize: Resize::Shorter((size as f64 / crop).floor() as usize),
            filter: Filter::Bicubic,
            crop: Some((size, size)),
            scale: 1.0 / 255.0,
            mean: IMAGENET.0,
            deviation: IMAGENET.1,
        }
    }

    /// What `preprocessor_config.json` of a folder asks for, if there is one.
    pub fn read(folder: impl AsRef<Path>) -> Result<Option<Preprocess>> {
        let path = folder.as_ref().join("preprocessor_config.json");
        if !path.exists() {
            return Ok(None);
        }
        Preprocess::from_fields(&Fields::read(path)?).map(Some)
    }

    /// From the members of a `preprocessor_config.json`.
    pub fn from_fields(fields: &Fields) -> Result<Preprocess> {
        let resize = match (fields.flag("do_resize", true)?, sides(fields, "size")?) {
            (false, _) => Resize::Keep,
            (true, resize) => resize.unwrap_or(Resize::To { width: 224, height: 224 }),
        };
        let crop = match (fields.flag("do_center_crop", false)?, sides(fields, "crop_size")?) {
            (false, _) => None,
            (true, Some(Resize::To { width, height })) => Some((width, height)),
            (true, None) => Some((224, 224)),
            (true, Some(_)) => return Err(fields.bad("crop_size", "it has no width and height")),
        };
        // Processors of some models do more than their members say.
        let processor = match fields.text("image_processor_type")? {
            Some(name) => name,
            None => fields.text("feature_extractor_type")?.unwrap_or_default(),
        };
        let (resize, crop) = match (processor.starts_with("ConvNext"), resize, sides(fields, "size")?) {
            (true, _, Some(size)) if resize != Resize::Keep => cropped(fields, size)?,
            _ => (resize, crop),
        };
        let number = fields.size("resample", 2)?;
        let filter = Filter::numbered(number);
        let scaled = fields.flag("do_rescale", true)?;
        let normalized = fields.flag("do_normalize", true)?;
        let channels =
            |name: &str, default: [f64; 3]| if normalized { triple(fields, name, default) } else { Ok(default) };
        let identity = ([0.0; 3], [1.0; 3]);
        let usual = if normalized { IMAGENET } else { identity };
        let deviation = channels("image_std", usual.1)?;
        if deviation.contains(&0.0) {
            return Err(fields.bad("image_std", "must not be 0"));
        }
        let mut mean = channels("image_mean", usual.0)?;
        let mut deviation = deviation;
        if processor.starts_with("EfficientNet") {
            if scaled && fields.flag("rescale_offset", false)? {
                mean = mean.map(|mean| mean + 1.0);
            }
            // The original network divides by the deviation once more.
            if normalized && fields.flag("include_top", true)? {
                deviation = deviation.map(|deviation| deviation * deviation);
            }
        }
        Ok(Preprocess {
            resize,
            filter: filter.ok_or_else(|| fields.bad("resample", format!("there is no filter {number}")))?,
            crop,
            scale: if scaled { fields.number("rescale_factor", 1.0 / 255.0)? } else { 1.0 },
            mean,
            deviation,
        })
    }

    /// What the `pretrained_cfg` of a timm `config.json` asks for, for a model of this size.
    pub fn from_timm(fields: &Fields, size: usize) -> Result<Preprocess> {
        let crop = fields.number("crop_pct", 0.9)?;
        if !(0.05..=1.0).contains(&crop) {
            return Err(fields.bad("crop_pct", format!("{crop} is no part of a picture")));
        }
        let usual = Preprocess::imagenet(size, crop);
        let filter = match fields.text("interpolation")? {
            Some(name) => {
                Filter::named(name).ok_or_else(|| fields.bad("interpolation", format!("there is no '{name}'")))?
            }
            None => usual.filter,
        };
        let (mean, deviation) = (triple(fields, "mean", usual.mean)?, triple(fields, "std", usual.deviation)?);
        if deviation.contains(&0.0) {
            return Err(fields.bad("std", "must not be 0"));
        }
        let resize = match fields.text("crop_mode")? {
            Some("squash") => match usual.resize {
                Resize::Shorter(side) => Resize::To { width: side, height: side },
                other => other,
            },
            _ => usual.resize,
        };
        Ok(Preprocess { resize, filter, mean, deviation, ..usual })
    }

    /// The size of what comes out where it is the same for every picture, `(width, height)`.
    pub fn size(&self) -> Option<(usize, usize)> {
        match (self.crop, self.resize) {
            (Some(crop), _) => Some(crop),
            (None, Resize::To { width, height }) => Some((width, height)),
            _ => None,
        }
    }

    /// The picture in its size and part, still in bytes.
    pub fn fit(&self, image: &Image) -> Result<Image> {
        let resized = match self.resize {
            Resize::Keep => image.clone(),
            Resize::To { width, height } => image.resize(width, height, self.filter)?,
            Resize::Shorter(side) => {
                let (width, height) = (image.width(), image.height());
                let longer = |long: usize, short: usize| (side as f64 * long as f64 / short as f64) as usize;
                match width <= height {
                    true => image.resize(side, longer(height, width), self.filter)?,
                    false => image.resize(longer(width, height), side, self.filter)?,
                }
            }
        };
        match self.crop {
            Some((width, height)) => resized.centre_crop(width, height),
            None => Ok(resized),
        }
    }

    /// The numbers of pictures, `[pictures, 3, height, width]` in f32. All have to come out in one size.
    pub fn apply(&self, images: &[Image], device: Device) -> Result<Tensor> {
        let fitted: Vec<Image> = images.iter().map(|image| self.fit(image)).collect::<Result<_>>()?;
        let (width, height) = fitted.first().map_or((0, 0), |image| (image.width(), image.height()));
        if let Some(other) = fitted.iter().find(|image| (image.width(), image.height()) != (width, height)) {
            let (width, height) = (other.width(), other.height());
            return Err(super::ImageError::BadSize { width, height }.into());
        }
        let mut values = Vec::with_capacity(fitted.len() * 3 * width * height);
        for image in &fitted {
            for channel in 0..3 {
                // One number a byte there can be.
                let table: Vec<f32> = (0..256)
                    .map(|byte| ((f64::from(byte) * self.scale - self.mean[channel]) / self.deviation[channel]) as f32)
                    .collect();
                values.extend(image.rgb().chunks_exact(3).map(|pixel| table[usize::from(pixel[channel])]));
            }
        }
        Ok(Tensor::from_vec(values, [fitted.len(), 3, height, width], device)?)
    }
}

/// Of a ConvNeXt: small pictures are cut out of somewhat larger ones, large ones are squashed.
fn cropped(fields: &Fields, size: Resize) -> Result<(Resize, Option<(usize, usize)>)> {
    let side = match size {
        Resize::Shorter(side) => side,
        Resize::To { width, height } if width == height => width,
        _ => return Err(fields.bad("size", "it has no shortest_edge")),
    };
    let part = fields.number("crop_pct", 224.0 / 256.0)?;
    if !(0.05..=1.0).contains(&part) {
        return Err(fields.bad("crop_pct", format!("{part} is no part of a picture")));
    }
    Ok(match side < 384 {
        true => (Resize::Shorter((side as f64 / part) as usize), Some((side, side))),
        false => (Resize::To { width: side, height: side }, None),
    })
}

/// A size given as one number for both sides, as width and height, or as the shorter side.
fn sides(fields: &Fields, name: &str) -> Result<Option<Resize>> {
    if let Some(number) = fields.get(name).and_then(|value| value.as_u64()) {
        let side = fields.positive(name, number as usize)?;
        let both = Resize::To { width: side, height: side };
        return Ok(Some(both));
    }
    let Some(object) = fields.object(name)? else { return Ok(None) };
    match (object.size_if("width")?, object.size_if("height")?, object.size_if("shortest_edge")?) {
        (Some(width), Some(height), _) if width > 0 && height > 0 => Ok(Some(Resize::To { width, height })),
        (None, None, Some(side)) if side > 0 => Ok(Some(Resize::Shorter(side))),
        _ => Err(fields.bad(name, "it has neither a width and a height nor a shortest_edge")),
    }
}

/// A number a channel; one number alone is for all.
fn triple(fields: &Fields, name: &str, default: [f64; 3]) -> Result<[f64; 3]> {
    let Some(value) = fields.get(name) else { return Ok(default) };
    let numbers: Option<Vec<f64>> = match value.as_array() {
        Some(items) => items.iter().map(|item| item.as_f64()).collect(),
        None => value.as_f64().map(|number| vec![number; 3]),
    };
    let numbers = numbers.and_then(|numbers| <[f64; 3]>::try_from(numbers).ok());
    numbers.ok_or_else(|| fields.bad(name, format!("{value} is no number a channel")))
}
