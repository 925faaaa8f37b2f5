//! What several tests need.

use kiln_kernels::Target;

/// A target that differs from a CPU in everything that it may.
pub const GPU: Target = Target {
    few_rows: 8,
    long_row: 4,
    guarded_operands: true,
    scaled_operands: 0,
    split_phases: true,
    depthwise_products: false,
    stored_windows: true,
    unrolled_windows: false,
    separate_windows: false,
    product_order: true,
    attention_gradients: true,
    joined_gradients: false,
    visible_keys: true,
    short_operands: true,
    many_columns: 1 << 16,
    busy_results: 1 << 12,
    recomputed: 64,
    direct_gradients: true,
    row_alignment: 16,
};
