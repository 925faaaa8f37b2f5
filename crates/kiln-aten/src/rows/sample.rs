//! Resizing and reading images at computed places.

use crate::Error;
use crate::call::{Context, real};
use crate::rows::Row;
use kiln_ir::build::{self, Filter, ResampleOptions, RoiAlignOptions, SampleMode, SamplePadding};

pub(super) const ROWS: &[Row] = &[
    Row {
        ops: &["aten.grid_sampler_2d.default"],
        text: "`grid_sample`",
        build: |c| {
            let (x, grid) = (c.node("input")?, c.node("grid")?);
            let modes = [SampleMode::Bilinear, SampleMode::Nearest, SampleMode::Bicubic];
            let paddings = [SamplePadding::Zeros, SamplePadding::Border, SamplePadding::Reflection];
            let mode = modes.get(c.size("interpolation_mode")?);
            let (Some(&mode), Some(&padding)) = (mode, paddings.get(c.size("padding_mode")?)) else {
                return c.unsupported("in this mode");
            };
            let corners = c.flag("align_corners")?;
            Ok(vec![real(build::grid_sample(&mut c.b, &x, &grid, mode, padding, corners)?)])
        },
    },
    Row {
        ops: &[
            "aten.upsample_nearest1d.default",
            "aten.upsample_nearest2d.default",
            "aten._upsample_nearest_exact2d.default",
        ],
        text: "`resample_nearest`",
        build: |c| {
            let (x, scales, centered) = (c.node("self")?, scales(c)?, c.op().contains("exact"));
            let sizes = c.sizes("output_size")?;
            Ok(vec![real(build::resample_nearest(&mut c.b, &x, &sizes, scales.as_deref(), centered)?)])
        },
    },
    Row {
        ops: &[
            "aten.upsample_linear1d.default",
            "aten.upsample_bilinear2d.default",
            "aten.upsample_trilinear3d.default",
            "aten.upsample_bicubic2d.default",
            "aten._upsample_bilinear2d_aa.default",
            "aten._upsample_bicubic2d_aa.default",
        ],
        text: "`resample`",
        build: |c| {
            let x = c.node("self")?;
            let options = ResampleOptions {
                filter: if c.op().contains("cubic") { Filter::Cubic } else { Filter::Linear },
                align_corners: c.flag("align_corners")?,
                antialias: c.op().contains("_aa"),
                scales: scales(c)?,
            };
            let sizes = c.sizes("output_size")?;
            Ok(vec![real(build::resample(&mut c.b, &x, &sizes, &options)?)])
        },
    },
    Row {
        ops: &["torchvision.roi_align.default"],
        text: "`roi_align`",
        build: |c| {
            let (x, regions) = (c.node("input")?, c.node("rois")?);
            let options = RoiAlignOptions {
                size: [c.size("pooled_height")?, c.size("pooled_width")?],
                scale: c.float("spatial_scale")?,
                samples: usize::try_from(c.int("sampling_ratio")?).ok().filter(|&n| n > 0),
                aligned: c.flag("aligned")?,
            };
            Ok(vec![real(build::roi_align(&mut c.b, &x, &regions, &options)?)])
        },
    },
];

/// The scales of all axes, where they are given.
fn scales(c: &Context) -> Result<Option<Vec<f64>>, Error> {
    let mut scales = Vec::new();
    for name in ["scales", "scales_d", "scales_h", "scales_w"] {
        scales.extend(c.optional_float(name)?);
    }
    Ok((!scales.is_empty()).then_some(scales))
}
