"""Rules for ops of torchvision, where it is imported: means of bilinear samples of regions."""

import torch

aten = torch.ops.aten

_LONG = (torch.float32, torch.float64)


def vision_rules():
    """Rules by op. One that gives ``NotImplemented`` leaves the op as it is."""
    if not torch._C._dispatch_has_kernel("torchvision::roi_align"):
        return {}
    vision = torch.ops.torchvision
    return {vision.roi_align.default: _roi_align, vision._roi_align_backward.default: _roi_align_backward}


def _corners(place, size):
    """Of places along an axis: pairs of a pixel's number and its share, which is nothing for places outside."""
    is_inside = (place >= -1) & (place <= size)
    place = place.clamp(0, size - 1)
    first = place.floor()
    share = torch.where(is_inside, place - first, 0)
    rest = torch.where(is_inside, 1 - (place - first), 0)
    first = first.long()
    return [(first, rest), ((first + 1).clamp(max=size - 1), share)]


def _samples(rois, scale, height, width, pooled_height, pooled_width, count, aligned):
    """For each of the four pixels of every sample: its number in all images, and its share; axes are regions, rows and columns."""
    shift = 0.5 if aligned else 0.0
    left, top, right, bottom = (rois[:, 1:] * scale - shift).unbind(1)

    def along(first, last, cells, size):
        length = last - first if aligned else (last - first).clamp(min=1.0)
        within = (torch.arange(cells * count, dtype=rois.dtype, device=rois.device) + 0.5) / count
        return _corners(first.unsqueeze(1) + within * (length / cells).unsqueeze(1), size)

    image = rois[:, 0].long()[:, None, None]
    for row, of_row in along(top, bottom, pooled_height, height):
        for column, of_column in along(left, right, pooled_width, width):
            number = (image * height + row.unsqueeze(2)) * width + column.unsqueeze(1)
            yield number, of_row.unsqueeze(2) * of_column.unsqueeze(1)


def _is_sampled(dtype, rois, count, sizes):
    known = all(isinstance(n, int) and n > 0 for n in sizes)
    return dtype in _LONG and rois.dtype == dtype and count > 0 and known


def _roi_align(x, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    """How many samples there are where ``sampling_ratio`` does not say it depends on data: then the op stays as it is."""
    count, (batch, channels, height, width) = sampling_ratio, x.shape
    if not _is_sampled(x.dtype, rois, count, (*x.shape, pooled_height, pooled_width)):
        return NotImplemented
    pixels = x.permute(0, 2, 3, 1).reshape(batch * height * width, channels)
    total = 0
    for number, share in _samples(rois, spatial_scale, height, width, pooled_height, pooled_width, count, aligned):
        total = total + pixels[number] * share.unsqueeze(3)
    cells = total.reshape(rois.shape[0], pooled_height, count, pooled_width, count, channels)
    return cells.mean((2, 4)).permute(0, 3, 1, 2).contiguous()


def _roi_align_backward(
    grad, rois, spatial_scale, pooled_height, pooled_width, batch, channels, height, width, sampling_ratio, aligned
):  # fmt: skip
    count = sampling_ratio
    if not _is_sampled(grad.dtype, rois, count, (batch, channels, height, width, pooled_height, pooled_width)):
        return NotImplemented
    felt = grad.permute(0, 2, 3, 1) / (count * count)
    felt = felt.repeat_interleave(count, 1).repeat_interleave(count, 2)
    total = torch.zeros(batch * height * width, channels, dtype=grad.dtype, device=grad.device)
    for number, share in _samples(rois, spatial_scale, height, width, pooled_height, pooled_width, count, aligned):
        total = aten.index_put(total, [number], felt * share.unsqueeze(3), True)
    return total.reshape(batch, height, width, channels).permute(0, 3, 1, 2).contiguous()
