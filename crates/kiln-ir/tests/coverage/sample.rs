//! Resizing and reading images at computed places.

use crate::context::{Entry, real};
use kiln_ir::build::{self, Filter, ResampleOptions, RoiAlignOptions, SampleMode, SamplePadding};

pub const ENTRIES: &[Entry] = &[
    Entry {
        ops: &["aten.grid_sampler_2d.default"],
        text: "`grid_sample`",
        build: |c| {
            let (x, grid) = (c.node("input"), c.node("grid"));
            let mode =
                [SampleMode::Bilinear, SampleMode::Nearest, SampleMode::Bicubic][c.call.size("interpolation_mode")];
            let padding = [SamplePadding::Zeros, SamplePadding::Border, SamplePadding::Reflection];
            let padding = padding[c.call.size("padding_mode")];
            Ok(vec![real(build::grid_sample(&mut c.b, &x, &grid, mode, padding, c.call.flag("align_corners"))?)])
        },
    },
    Entry {
        ops: &["aten._upsample_bicubic2d_aa.default"],
        text: "`resample`",
        build: |c| {
            let x = c.node("self");
            let scale = |name: &str| c.call.attribute(name).map(|_| c.call.float(name));
            let options = ResampleOptions {
                filter: Filter::Cubic,
                align_corners: c.call.flag("align_corners"),
                antialias: true,
                scales: scale("scales_h").zip(scale("scales_w")).map(|(h, w)| vec![h, w]),
            };
            Ok(vec![real(build::resample(&mut c.b, &x, &c.call.sizes("output_size"), &options)?)])
        },
    },
    Entry {
        ops: &["torchvision.roi_align.default"],
        text: "`roi_align`",
        build: |c| {
            let (x, regions) = (c.node("input"), c.node("rois"));
            let options = RoiAlignOptions {
                size: [c.call.size("pooled_height"), c.call.size("pooled_width")],
                scale: c.call.float("spatial_scale"),
                samples: usize::try_from(c.call.int("sampling_ratio")).ok().filter(|&n| n > 0),
                aligned: c.call.flag("aligned"),
            };
            Ok(vec![real(build::roi_align(&mut c.b, &x, &regions, &options)?)])
        },
    },
];
