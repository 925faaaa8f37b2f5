//! Reading images at computed places, and resizing by wider curves than a line.

use crate::tensor::autocast;
use crate::tensor::eager::{self, Param};
use crate::{Error, Result, Tensor};
use kiln_ir::build::{self, GraphBuilder, ResampleOptions, RoiAlignOptions, SampleMode, SamplePadding};
use kiln_ir::{NodeId, Source};

impl Tensor {
    /// This image `[n, c, h, w]` read at the places `grid: [n, rows, columns, 2]`, pairs of x and y in which −1 and 1 are the edges: of
    /// the outermost elements' centers with `align_corners`, of their areas without.
    ///
    /// ```
    /// use kiln::{DType, Device, SampleMode, SamplePadding, Tensor};
    /// let x = Tensor::arange(4, DType::F32, Device::Cpu)?.reshape([1, 1, 2, 2])?;
    /// let middle = Tensor::zeros([1, 1, 1, 2], DType::F32, Device::Cpu)?;
    /// let y = x.grid_sample(&middle, SampleMode::Bilinear, SamplePadding::Zeros, false)?;
    /// assert_eq!(y.to_vec::<f32>()?, [1.5]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn grid_sample(
        &self,
        grid: &Tensor,
        mode: SampleMode,
        padding: SamplePadding,
        align_corners: bool,
    ) -> Result<Tensor> {
        let at = Source::caller();
        let [this, grid] = &autocast::met("grid_sample", [self, grid], &at)?;
        this.same_dtype("grid_sample", grid, &at)?;
        let fits = self.rank() == 4 && grid.rank() == 4 && grid.hint()[3] == 2;
        if !fits || !self.extent(0).equals(grid.extent(0), &at) {
            let (lhs, rhs) = (self.hint().to_vec(), grid.hint().to_vec());
            return Err(Error::ShapeMismatch { op: "grid_sample", lhs, rhs, sizes: None, at });
        }
        let key = [(mode as i64).into(), (padding as i64).into(), align_corners.into()];
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            build::grid_sample(b, &inputs[0], &inputs[1], mode, padding, align_corners)
        };
        eager::composite("grid_sample", &key, &[this, grid], write, &at)
    }

    /// The places that an affine map `theta: [n, 2, 3]` (this tensor) reads for images of `[n, c, h, w]`: the grid of [`Tensor::grid_sample`].
    #[track_caller]
    pub fn affine_grid(&self, size: [usize; 4], align_corners: bool) -> Result<Tensor> {
        let at = Source::caller();
        let fits = self.rank() == 3 && self.hint()[1..] == [2, 3] && self.hint()[0] == size[0];
        if !fits {
            let (lhs, rhs) = (self.hint().to_vec(), vec![size[0], 2, 3]);
            return Err(Error::ShapeMismatch { op: "affine_grid", lhs, rhs, sizes: None, at });
        }
        let (h, w) = (size[2], size[3]);
        let places = |n: usize| -> Vec<f64> {
            let edge = if align_corners { 1.0 } else { (n as f64 - 1.0) / n as f64 };
            let step = if n > 1 { 2.0 * edge / (n as f64 - 1.0) } else { 0.0 };
            (0..n).map(|i| if n > 1 { -edge + step * i as f64 } else { 0.0 }).collect()
        };
        let (rows, columns) = (places(h), places(w));
        let base: Vec<f64> = rows.iter().flat_map(|&y| columns.iter().flat_map(move |&x| [x, y, 1.0])).collect();
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let dtype = kiln_ir::build::Emit::ty(b, &inputs[0]).dtype;
            let base = build::constant_f64(b, dtype, &[h * w, 3], &base)?;
            let turned = build::matrix_transpose(b, &inputs[0])?;
            let y = build::matmul(b, &base, &turned)?;
            build::reshape(b, &y, &[size[0].into(), h.into(), w.into(), 2usize.into()])
        };
        eager::composite("affine_grid", &[size[..].into(), align_corners.into()], &[self], write, &at)
    }

    /// Regions `[k, 5]` (image number, left, top, right, bottom) of these images `[n, c, h, w]`, each divided into parts of which the
    /// mean is taken: `[k, c, rows, columns]`.
    ///
    /// ```
    /// use kiln::{DType, Device, RoiAlignOptions, Tensor};
    /// let x = Tensor::ones([1, 3, 8, 8], DType::F32, Device::Cpu)?;
    /// let regions = Tensor::new([[0f32, 1., 1., 6., 5.]], Device::Cpu)?;
    /// let options = RoiAlignOptions { size: [2, 2], scale: 1.0, samples: Some(2), aligned: true };
    /// assert_eq!(x.roi_align(&regions, &options)?.to_vec::<f32>()?, [1.; 12]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn roi_align(&self, regions: &Tensor, options: &RoiAlignOptions) -> Result<Tensor> {
        let at = Source::caller();
        self.same_dtype("roi_align", regions, &at)?;
        if self.rank() != 4 || regions.rank() != 2 || regions.hint()[1] != 5 {
            let (lhs, rhs) = (self.hint().to_vec(), regions.hint().to_vec());
            return Err(Error::ShapeMismatch { op: "roi_align", lhs, rhs, sizes: None, at });
        }
        let RoiAlignOptions { size, scale, samples, aligned } = options;
        let key: Vec<Param> =
            vec![size[..].into(), (*scale).into(), samples.map_or(-1, |n| n as i64).into(), (*aligned).into()];
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::roi_align(b, &inputs[0], &inputs[1], options);
        eager::composite("roi_align", &key, &[self, regions], write, &at)
    }

    /// Resizes the last axes by a straight or cubic curve through neighbours: `nn.functional.interpolate` of the modes `bilinear` and
    /// `bicubic`, also with antialiasing.
    ///
    /// ```
    /// use kiln::{DType, Device, Filter, ResampleOptions, Tensor};
    /// let x = Tensor::ones([1, 1, 4, 4], DType::F32, Device::Cpu)?;
    /// let options = ResampleOptions { filter: Filter::Cubic, align_corners: false, antialias: true, scales: None };
    /// assert_eq!(x.resample(&[2, 3], &options)?.shape(), [1, 1, 2, 3]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn resample(&self, sizes: &[usize], options: &ResampleOptions) -> Result<Tensor> {
        let mut key: Vec<Param> = vec![sizes.into(), (options.filter as i64).into(), options.align_corners.into()];
        key.push(options.antialias.into());
        key.extend(options.scales.iter().flatten().map(|&scale| Param::from(scale)));
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::resample(b, &inputs[0], sizes, options);
        eager::composite("resample", &key, &[self], write, &Source::caller())
    }

    /// Resizes the last axes to these sizes by the element whose middle is nearest: `interpolate(mode="nearest-exact")`.
    #[track_caller]
    pub fn interpolate_nearest_exact(&self, sizes: &[usize]) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::resample_nearest(b, &inputs[0], sizes, None, true);
        eager::composite("interpolate_nearest_exact", &[sizes.into()], &[self], write, &Source::caller())
    }

    /// Windows of the last axes as columns: `[n, c, spatial…]` becomes `[n, c · window, windows]`, as `nn.functional.unfold` gives it.
    ///
    /// ```
    /// use kiln::{DType, Device, Pool, Tensor};
    /// let x = Tensor::arange(16, DType::F32, Device::Cpu)?.reshape([1, 1, 4, 4])?;
    /// let windows = Pool::new([2, 2]);
    /// let columns = x.im2col(&windows)?;
    /// assert_eq!(columns.shape(), [1, 4, 4]);
    /// assert_eq!(columns.col2im([4, 4], &windows)?.to_vec::<f32>()?, x.to_vec::<f32>()?);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn im2col<const N: usize>(&self, windows: &crate::Pool<N>) -> Result<Tensor> {
        let (built, key) = windows.keyed();
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::image_to_columns(b, &inputs[0], &built);
        eager::composite("im2col", &key, &[self], write, &Source::caller())
    }

    /// Columns of windows as an image of these spatial sizes, shared elements added up: the transpose of [`Tensor::im2col`], and
    /// `nn.functional.fold`.
    #[track_caller]
    pub fn col2im<const N: usize>(&self, sizes: [usize; N], windows: &crate::Pool<N>) -> Result<Tensor> {
        let (built, mut key) = windows.keyed();
        key.push(sizes[..].into());
        let dims: Vec<kiln_ir::Dim> = sizes.iter().map(|&n| n.into()).collect();
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::columns_to_image(b, &inputs[0], &dims, &built);
        eager::composite("col2im", &key, &[self], write, &Source::caller())
    }
}
