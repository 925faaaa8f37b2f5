//! Resizing and reading images at computed places.

use crate::context::{Context, Entry, real};
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
        ops: &[
            "aten.upsample_nearest1d.default",
            "aten.upsample_nearest2d.default",
            "aten._upsample_nearest_exact2d.default",
        ],
        text: "`resample_nearest`",
        build: |c| {
            let (x, scales, centered) = (c.node("self"), scales(c), c.call.op.contains("exact"));
            let sizes = c.call.sizes("output_size");
            Ok(vec![real(build::resample_nearest(&mut c.b, &x, &sizes, scales.as_deref(), centered)?)])
        },
    },
    Entry {
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
            let x = c.node("self");
            let options = ResampleOptions {
                filter: if c.call.op.contains("cubic") { Filter::Cubic } else { Filter::Linear },
                align_corners: c.call.flag("align_corners"),
                antialias: c.call.op.contains("_aa"),
                scales: scales(c),
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

/// The scales of all axes, where they are given.
fn scales(c: &Context) -> Option<Vec<f64>> {
    let given = |name: &str| c.call.attribute(name).map(|_| c.call.float(name));
    let scales: Vec<f64> = ["scales", "scales_d", "scales_h", "scales_w"].into_iter().filter_map(given).collect();
    (!scales.is_empty()).then_some(scales)
}
