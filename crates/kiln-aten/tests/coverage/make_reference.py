"""Writes reference.txt: what PyTorch gives for each op of ops.txt on small inputs.

    python make_reference.py            # with torch 2.11 on the CPU

One case is a few lines: `case OP attribute=value …` with every argument that is no tensor, under the name that the op's
schema gives it; `in NAME type[shape] elements…` for each tensor (`in NAME none` for one left out, the name repeated for the
members of a list); then one line a result: `out` with its elements, `undefined` where only dtype and shape are promised,
or `random` with mean, variance and bounds. Complex elements are two numbers; one number alone stands for all.
"""

import math
import pathlib

import draws
import torch
import torch._inductor.inductor_prims  # registers the prims that are Inductor's own
from samples import b, c, distinct, f, i, inf, nan, positive, specials
from writer import case, lines, ops, own_case, random_case, resolve

HERE = pathlib.Path(__file__).parent
torch.manual_seed(0)


def views():
    case("aten.view.default", f(2, 3, 4), [6, 4])
    case("aten.view.default", f(2, 3, 4), [2, -1, 2])
    case("aten.view.default", c(2, 6), [2, 3, -1])
    case("aten.permute.default", f(2, 3, 4), [2, 0, 1])
    case("aten.permute.default", i(0, 9, 2, 3, 1, 2), [0, -1, 1, 2])
    case("aten.clone.default", f(2, 3))
    case("aten.clone.default", c(2, 2))
    case("aten.expand.default", f(2, 1, 3), [4, 2, -1, 3])
    case("aten.expand.default", c(1, 2), [3, 2])
    case("aten.unsqueeze.default", f(2, 3), 1)
    case("aten.unsqueeze.default", f(2, 3), -1)
    case("aten.unsqueeze.default", c(2), -1)
    case("aten.squeeze.dims", f(1, 2, 1, 3), [0, 2])
    case("aten.squeeze.dims", f(1, 2, 1), [-1, 1])
    case("aten.squeeze.dim", f(2, 1, 3), 1)
    case("aten.squeeze.dim", f(2, 1, 3), 0)
    case("aten.squeeze.default", f(1, 2, 1))
    case("aten.cat.default", [f(2, 3), f(2, 1)], -1)
    case("aten.cat.default", [torch.empty(0), f(1, 2, 3, 2), f(1, 2, 1, 2)], -2)
    case("aten.cat.default", [i(0, 9, 2), f(3)], 0)
    case("aten.cat.default", [c(2, 2), c(2, 1)], -1)
    case("aten.slice.Tensor", f(3, 5), 1, 1, 9223372036854775807)
    case("aten.slice.Tensor", f(3, 7), 1, -6, -1, 2)
    case("aten.slice.Tensor", c(4, 2), 0, 1, 3)
    case("aten.select.int", f(2, 3, 4), 1, -1)
    case("aten.select.int", c(2, 3), -1, 0)
    case("aten.split_with_sizes.default", f(2, 6), [1, 3, 2], -1)
    case("aten.split_with_sizes.default", c(3), [1, 2])
    case("aten.split.Tensor", f(2, 5), 2, 1)
    case("aten.unbind.int", f(2, 3), -1)
    case("aten.alias.default", i(0, 9, 2, 3))
    case("aten.lift_fresh_copy.default", f(3))
    case("aten.copy.default", f(2, 3), i(0, 9, 3))
    case("aten.copy.default", c(2), c(2))
    case("aten.copy_.default", f(2, 3), f(1, 3))
    case("aten.repeat.default", f(2, 3), [2, 1, 2])
    case("aten.repeat.default", c(2), [3])
    case("aten.flip.default", f(2, 3, 2), [0, -1])
    case("prims.rev.default", f(2, 3, 2), [0, 2])
    case("aten.unfold.default", f(2, 7, 2), 1, 3, 2)
    case("aten.unfold.default", b(5), -1, 2, 1)
    case("aten.as_strided.default", f(2, 9), [3, 2, 2], [4, 1, 3], 2)
    case("aten.as_strided.default", f(12), [4, 3], [0, 1])
    case("aten.as_strided_scatter.default", f(12), f(2, 3), [2, 3], [6, 2], 1)
    case("aten.constant_pad_nd.default", f(2, 3), [1, 2, 0, 1], 1.5)
    case("aten.constant_pad_nd.default", i(0, 9, 2, 4), [-1, 2], 7)
    case("aten.constant_pad_nd.default", b(3), [1, 1], True)
    case("aten.slice_scatter.default", f(3, 5), f(3, 2), 1, 1, 3)
    case("aten.slice_scatter.default", f(7, 2), f(3, 2), 0, 1, -1, 2)
    case("aten.slice_scatter.default", f(2, 3), f(2, 3), 1)
    case("aten.select_scatter.default", f(2, 3, 2), f(2, 2), 1, -2)


def creation():
    case("aten.arange.start_step", 2, 11, 3)
    case("aten.arange.start_step", 5, -5, -3, dtype=torch.int32)
    case("aten.arange.start_step", 0.5, 3, 0.75)
    case("aten.arange.start_step", 0, 5, dtype=torch.uint8)
    case("aten.arange.start_step", 0, 4, dtype=torch.float32)
    case("prims.iota.default", 4, start=3, step=2, dtype=torch.int64, device="cpu", requires_grad=False)
    case("aten.full.default", [2, 3], 1.5)
    case("aten.full.default", [2], True)
    case("aten.full.default", [], 3)
    case("aten.full.default", [2], 1.5, dtype=torch.complex128)
    case("aten.full_like.default", i(0, 9, 2, 2), 3)
    case("aten.full_like.default", f(3), -inf)
    case("aten.full_like.default", f(3), 1, dtype=torch.bool)
    case("aten.scalar_tensor.default", -inf)
    case("aten.scalar_tensor.default", 3, dtype=torch.int64)
    case("aten.empty.memory_format", [2, 3], dtype=torch.int64, undefined=[0])
    case("aten.empty_permuted.default", [2, 3], [1, 0], undefined=[0])
    case("aten.new_empty_strided.default", f(2), [2, 3], [1, 2], undefined=[0])
    case("aten._to_copy.default", specials[1:9], dtype=torch.int64)
    case("aten._to_copy.default", specials, dtype=torch.bool)
    case("aten._to_copy.default", f(4), dtype=torch.bfloat16)
    case("aten._to_copy.default", b(4), dtype=torch.float32)
    case("aten._to_copy.default", f(2), dtype=torch.complex64)
    case("aten._to_copy.default", c(2), dtype=torch.complex128)
    case("prims.convert_element_type.default", f(2), torch.float64)


def pointwise():
    wide = dict(dtype=torch.float64)
    case("aten.add.Tensor", f(2, 3), f(3))
    case("aten.add.Tensor", f(2, 1), i(0, 9, 3), alpha=2)
    case("aten.add.Tensor", i(0, 9, 3), 2)
    case("aten.add.Tensor", b(4), b(4))
    case("aten.add.Scalar", f(3), 1.5, 2)
    case("aten.sub.Tensor", f(2, 3), i(0, 9, 3))
    case("aten.sub.Tensor", f(3), torch.tensor(2.5, **wide), alpha=3)
    case("aten.mul.Tensor", f(2, 3), f(2, 1))
    case("aten.mul.Tensor", i(0, 9, 3), 2.5)
    case("aten.mul.Tensor", b(4), b(4))
    case("aten.mul.Tensor", f(4, dtype=torch.bfloat16), f(4, dtype=torch.bfloat16))
    case("aten.mul.Tensor", c(2, 3), c(3))
    case("aten.mul.Tensor", c(3), f(2, 3))
    case("aten.mul.Scalar", f(3), 0.125)
    case("aten.div.Tensor", f(2, 3), positive(3))
    case("aten.div.Tensor", i(-9, 9, 4), 3)
    case("aten.div.Tensor", i(0, 9, 4, dtype=torch.uint8), 2.5)
    case("aten.div.Scalar", f(3), 4)
    for mode in ["floor", "trunc"]:
        case("aten.div.Tensor_mode", i(-9, 9, 8), 4, rounding_mode=mode)
        case("aten.div.Tensor_mode", f(8, scale=5), f(8), rounding_mode=mode)
        case("aten.div.Tensor_mode", i(-9, 9, 8), torch.tensor([3, -3, 2, -2, 1, -1, 5, -5]), rounding_mode=mode)
    case("aten.div.Tensor_mode", i(-9, 9, 4), 2, rounding_mode=None)
    case("prims.div.default", torch.tensor([7, -7, 6]), torch.tensor([2, 2, 3]))
    case("prims.div.default", f(3), positive(3))
    case("prims.fma.default", f(2, 3), f(2, 3), f(2, 3))
    case("aten.fmod.Scalar", i(-9, 9, 8), 4)
    case("aten.fmod.Scalar", f(8, scale=5), -1.5)
    case("aten.remainder.Scalar", i(-9, 9, 8), 4)
    case("aten.remainder.Scalar", f(8, scale=5), -1.5)
    case("aten.remainder.Tensor", i(-9, 9, 8), torch.tensor([3, -3, 2, -2, 1, -1, 5, -5]))
    case("aten.remainder.Scalar_Tensor", 7, torch.tensor([3, -3, 2, -5]))
    case("aten.where.self", b(2, 3), f(3), torch.tensor(2.0))
    case("aten.where.self", b(3), i(0, 9, 3), f(2, 1))
    case("aten.where.self", b(3), c(3), c(3))
    for name in ["eq", "ne", "gt", "ge", "lt", "le"]:
        case(f"aten.{name}.Scalar", specials, 0.5)
        case(f"aten.{name}.Scalar", i(-2, 3, 6), 0)
        case(f"aten.{name}.Scalar", i(-2, 3, 6), 0.5)
        case(f"aten.{name}.Tensor", i(-2, 3, 2, 3), i(-2, 3, 3))
        case(f"aten.{name}.Tensor", f(4), torch.tensor(0.25, **wide))
    case("aten.eq.Scalar", specials, -inf)
    case("aten.eq.Scalar", b(4), True)
    case("aten.eq.Tensor", i(0, 3, 2, 3, dtype=torch.uint8), i(0, 3, 3, dtype=torch.uint8))
    case("aten.logical_not.default", b(4))
    case("aten.logical_not.default", specials)
    case("aten.logical_and.default", b(2, 4), b(4))
    case("aten.logical_and.default", i(0, 2, 4), i(0, 2, 4))
    case("aten.bitwise_and.Tensor", b(2, 4), b(4))
    case("aten.bitwise_and.Tensor", i(-9, 9, 4), i(-9, 9, 4))
    case("aten.bitwise_or.Tensor", b(), b(2, 2))
    case("aten.bitwise_not.default", b(4))
    case("aten.bitwise_not.default", i(-9, 9, 4))
    for name in ["sigmoid", "relu", "sin", "cos", "neg", "exp", "tanh", "floor", "ceil", "round", "sign", "abs", "erf",
                 "expm1"]:
        case(f"aten.{name}.default", specials)
    for name in ["rsqrt", "sqrt", "log", "log1p", "log2", "reciprocal", "lgamma"]:
        case(f"aten.{name}.default", torch.tensor([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 7.25, 100.0, inf, -1.5, nan]))
    case("aten.acos.default", torch.tensor([-1.0, -0.75, -0.1, 0.0, 0.3, 0.9, 1.0, 1.5]))
    case("aten.erfinv.default", torch.tensor([-1.0, -0.99, -0.5, 0.0, 0.1, 0.75, 0.9999, 1.0, 1.5]))
    case("aten.sin.default", f(3, **wide))
    case("aten.cos.default", f(3, **wide))
    case("aten.exp.default", f(3, **wide))
    case("aten.neg.default", i(-9, 9, 3))
    case("aten.abs.default", i(-9, 9, 3))
    case("aten.sign.default", i(-2, 3, 5))
    case("aten.sqrt.default", i(0, 9, 3))
    case("aten.reciprocal.default", i(1, 9, 3))
    for exponent in [2, 3, 0.5, -0.5, -1, 4, 1.7, 0]:
        case("aten.pow.Tensor_Scalar", positive(5), exponent)
    case("aten.pow.Tensor_Scalar", f(5), 3.0)
    case("aten.pow.Tensor_Scalar", i(-3, 4, 5), 3)
    case("aten.pow.Tensor_Scalar", i(-3, 4, 5), 5)
    case("aten.pow.Scalar", 10000, f(4))
    case("aten.pow.Scalar", 2.0, f(4, **wide))
    case("aten.pow.Tensor_Tensor", torch.tensor(1.5), i(-3, 4, 5, dtype=torch.int32))
    case("aten.pow.Tensor_Tensor", positive(2, 3), f(3))
    case("aten.minimum.default", f(3), i(-2, 3, 3))
    case("aten.minimum.default", specials, torch.tensor(0.25))
    case("aten.maximum.default", i(-9, 9, 3), i(-9, 9, 3))
    case("aten.maximum.default", specials, torch.tensor(0.25))
    case("aten.clamp.default", specials, -1, 1.5)
    case("aten.clamp.default", i(-9, 9, 5), None, 3)
    case("aten.clamp.default", i(-9, 9, 5), 0.5, None)
    case("aten.clamp.Tensor", f(2, 3), f(3) - 1, f(3) + 1)
    case("aten.clamp.Tensor", f(2, 3), f(2, 1))
    case("aten.clamp_min.default", f(5), 0)
    case("aten.clamp_min.default", i(-9, 9, 5), 2)
    case("aten.clamp_max.default", f(5), 0.5)
    case("aten.clamp_min.Tensor", f(2, 3), f(3))
    case("aten.hardtanh.default", specials, 0.0, 6.0)
    case("aten.leaky_relu.default", specials, 0.2)
    case("aten.elu.default", specials, 1.5, 2.0, 0.5)
    case("aten.gelu.default", f(6, scale=2))
    case("aten.gelu.default", f(6, scale=2), approximate="tanh")
    case("aten.glu.default", f(2, 4, 3), 1)
    case("aten.lcm.default", torch.tensor([12, -8, 0, 7, 21]), torch.tensor([18, 6, 5, 0, 6]))
    case("aten.gcd.default", torch.tensor([12, -8, 0, 7, 0, 7540113804746346429]),
         torch.tensor([18, 6, 5, 0, 0, 4660046610375530309]))
    case("aten.gcd.default", i(0, 256, 8, dtype=torch.uint8), i(0, 256, 8, dtype=torch.uint8))


def reductions():
    case("aten.mean.dim", f(2, 3, 4), [1, -1], True)
    case("aten.mean.dim", f(2, 3), [-1])
    case("aten.mean.default", f(2, 3, 4))
    case("aten.sum.dim_IntList", f(2, 3, 4), [-2])
    case("aten.sum.dim_IntList", b(2, 5), [1], True)
    case("aten.sum.dim_IntList", i(-9, 9, 2, 3), [])
    case("aten.sum.default", b(2, 5))
    case("aten.sum.default", f(2, 5))
    case("aten.any.dim", b(3, 4), -1, True)
    case("aten.any.dim", f(3, 2).gt(0.3), 0)
    case("aten.any.default", torch.tensor([False, True]))
    case("aten.any.dims", b(2, 3, 2), [0, 2])
    case("aten.any.dims", torch.zeros(4).bool(), None)
    case("aten.amax.default", f(2, 3, 4), [1, -1])
    case("aten.amax.default", f(2, 3), [-1], True)
    case("aten.max.default", f(2, 3))
    case("aten.max.default", i(-9, 9, 5))
    case("aten.min.default", f(5))
    case("aten.max.dim", distinct(3, 5), -1)
    case("aten.max.dim", torch.tensor([[1, 3, 3], [2, 2, 1]]), 1, True)
    case("aten.argmax.default", distinct(3, 5), -1)
    case("aten.argmax.default", distinct(3, 5))
    case("aten.argmax.default", torch.tensor([[0, 2, 2], [1, 1, 0]], dtype=torch.int32), -1, True)
    case("aten.argmin.default", distinct(3, 5), 1)
    case("aten.prod.default", i(1, 5, 6))
    case("aten.prod.default", f(4))
    case("aten.prod.dim_int", i(-3, 4, 2, 3), -1)
    case("aten.var.correction", f(2, 3, 4), [-1], correction=0, keepdim=True)
    case("aten.var.correction", f(2, 3, 4), [0, 2], correction=1.0)
    case("aten.var.correction", f(2, 3))
    case("aten.var_mean.correction", f(2, 3, 4), [1, 2], correction=0, keepdim=True)
    case("aten.linalg_vector_norm.default", f(2, 3, 4), 2, [-1], True)
    case("aten.linalg_vector_norm.default", f(2, 3, 4), 1.0, [1, 2])
    case("aten.linalg_vector_norm.default", f(2, 3), 3.0)
    case("aten.linalg_vector_norm.default", f(2, 3), inf, [0])
    case("aten.linalg_vector_norm.default", f(2, 3), 2, [1], dtype=torch.float64)
    case("aten._softmax.default", f(2, 3, 4), -1, False)
    case("aten._softmax.default", f(2, 3, 4), 1, False)
    case("aten._softmax.default", torch.tensor([[0.5, -inf, 1.0], [-inf, -inf, -inf]]), -1, False)
    case("aten._log_softmax.default", f(2, 5), 1, False)
    case("aten.cumsum.default", f(2, 5), -1)
    case("aten.cumsum.default", b(2, 5), 1)
    case("aten.cumsum.default", i(0, 9, 2, 3, dtype=torch.int32), 0)
    case("aten.cumsum.default", f(5).abs(), 0, dtype=torch.int32)
    case("aten.topk.default", distinct(3, 7), 3)
    case("aten.topk.default", distinct(6, 2), 4, 0, False)
    case("aten.sort.default", distinct(2, 7))
    case("aten.sort.default", torch.randperm(9), 0, True)
    case("aten.bucketize.Tensor", torch.tensor([[0.5, 1.0, 1.5], [-inf, 9.0, nan]]), torch.tensor([0.0, 1.0, 1.0, 2.0]))
    case("aten.bucketize.Tensor", torch.tensor([[0.5, 1.0, 1.5], [-inf, 9.0, nan]]), torch.tensor([0.0, 1.0, 1.0, 2.0]),
         out_int32=True, right=True)
    case("aten.histc.default", i(0, 8, 40).float(), 8, 0, 7)
    case("aten.histc.default", torch.cat([f(30), torch.tensor([-1.0, 1.0])]), 5, -1, 1)
    case("aten.histc.default", f(30), 4, 0, 0)
    case("aten.histc.default", torch.tensor([2.0, 2.0, 2.0]), 4, 0, 0)


def indexing():
    case("aten.index.Tensor", f(4, 3), [i(-4, 4, 5)])
    case("aten.index.Tensor", f(4, 3), [i(0, 4, 2, 2)])
    case("aten.index.Tensor", f(4, 3, 2), [i(-4, 4, 2, 1), i(0, 3, 3)])
    case("aten.index.Tensor", f(2, 2, 3, 4), [None, None, i(0, 3, 5, 1), i(0, 4, 2)])
    case("aten.index.Tensor", f(2, 3, 4), [None, i(0, 3, 2)])
    case("aten.index.Tensor", f(2, 3, 4), [i(0, 2, 3), None, i(0, 4, 3)])
    case("aten.index.Tensor", b(4, 4), [i(0, 4, 2, 1, dtype=torch.int32), i(0, 4, 3, dtype=torch.int32)])
    case("aten._unsafe_index.Tensor", f(2, 2, 3, 4), [None, None, i(0, 3, 5, 1), i(0, 4, 2)])
    case("aten.index_select.default", f(2, 4), 1, i(0, 4, 3))
    case("aten.index_select.default", f(3), 0, i(0, 3, 5, dtype=torch.int32))
    case("aten.gather.default", f(3, 4), 1, i(0, 4, 2, 3))
    case("aten.gather.default", i(0, 9, 2, 3), -2, i(0, 2, 4, 3))
    case("aten.gather.default", c(2, 3), 1, i(0, 3, 2, 2))
    case("aten.embedding.default", f(5, 3), i(0, 5, 2, 4))
    case("aten.embedding.default", f(5, 3), i(0, 5, 4), 2)
    case("aten.scatter.value", f(3, 5), 1, torch.tensor([[0, 3], [4, 1]]), -inf)
    case("aten.scatter.value", i(0, 9, 4, 2), -2, torch.tensor([[0, 3]]), 7)
    case("aten.scatter.src", f(3, 5), 0, torch.tensor([[0, 1, 2], [2, 0, 1]]), f(4, 4))
    case("aten.scatter.src", f(2, 3, 4), -1, torch.tensor([[[3, 0], [2, 1]]]), f(1, 2, 2))
    case("aten.scatter_add.default", f(3, 5), 1, i(0, 5, 2, 6), f(2, 6))
    case("aten.scatter_add.default", torch.zeros(2, 2, 4), -1, i(0, 4, 2, 2, 3), f(2, 2, 3))
    for reduce in ["sum", "prod", "amax", "amin", "mean"]:
        for include in [True, False]:
            case("aten.scatter_reduce.two", f(5), 0, i(0, 4, 7), f(7), reduce, include_self=include)
    case("aten.index_put.default", f(4, 3), [i(0, 4, 3).sort().values], f(3), True)
    case("aten.index_put.default", f(5), [torch.tensor([3, -5, 1])], f(3))
    case("aten.index_put.default", i(0, 9, 3, 4), [torch.tensor([0, 2]), torch.tensor([-1, 1])], i(0, 9, 2))
    case("aten.index_put.default", f(2, 2, 3, 4), [None, None, i(0, 3, 5, 1), i(0, 4, 2)], f(2, 2, 5, 2), True)
    case("aten.index_put.default", f(2, 3, 4), [None, torch.tensor([2, 0])], f(2, 4))
    case("aten.index_put.default", f(2, 3, 4), [torch.tensor([1, 0]), None, torch.tensor([3, 1])], f(2, 3))
    mask = torch.tensor([[True, False, True], [False, False, True]])
    case("aten.index_put.default", f(2, 3), [mask], torch.tensor(2.5))
    case("aten.index_put.default", f(2, 3), [mask], f(3))
    case("aten.index_put.default", f(2, 3, 2), [mask], f(3, 2))
    case("aten.index_put.default", f(2, 3, 2), [mask], f(2))
    case("aten.index_put.default", f(2, 3), [None, torch.tensor([True, False, True])], f(2, 1))
    case("aten.index_put.default", f(2, 3), [mask], f(3), True)
    case("aten.masked_scatter.default", f(2, 3), mask, f(4))
    case("aten.masked_scatter.default", f(2, 3, 2), mask[:, :, None], f(4, 2))
    case("aten.masked_scatter_backward.default", f(2, 3), mask, [2, 2])


def products():
    case("aten.mm.default", f(2, 3), f(3, 4))
    case("aten.bmm.default", f(2, 2, 3), f(2, 3, 4))
    case("aten.addmm.default", f(4), f(2, 3), f(3, 4))
    case("aten.addmm.default", f(2, 4), f(2, 3), f(3, 4), beta=0.5, alpha=2)
    case("aten.baddbmm.default", f(2, 1, 4), f(2, 2, 3), f(2, 3, 4), beta=0.5, alpha=2.0)
    case("aten.baddbmm.default", torch.full((2, 2, 4), nan), f(2, 2, 3), f(2, 3, 4), beta=0)
    x, w, offsets = f(7, 3), f(3, 3, 2), torch.tensor([2, 2, 7], dtype=torch.int32)
    own_case("transformers.grouped_mm_fallback.default", [("input", x), ("weight", w), ("offs", offsets)],
             torch.cat([x[:2] @ w[0], x[2:] @ w[2]]))
    convolutions = [
        ((2, 3, 8), (4, 3, 3), [2], [1], [1], False, [0], 1),
        ((2, 4, 5, 6), (6, 2, 3, 2), [2, 1], [1, 0], [1, 2], False, [0, 0], 2),
        ((1, 4, 5, 5), (4, 1, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 4),
        ((1, 2, 3, 4, 3), (2, 2, 2, 1, 2), [1, 2, 1], [0, 0, 1], [1, 1, 1], False, [0, 0, 0], 1),
        ((2, 3, 4), (3, 2, 3), [2], [1], [1], True, [1], 1),
        ((1, 4, 3, 2), (4, 3, 2, 3), [2, 1], [0, 1], [1, 2], True, [1, 0], 2),
        ((1, 2, 2, 2, 2), (2, 1, 2, 2, 2), [2, 2, 2], [0, 0, 0], [1, 1, 1], True, [0, 0, 0], 1),
        ((1, 2, 7, 6), (2, 2, 2, 3), [3, 2], [1, 0], [1, 1], False, [0, 0], 1),
        ((1, 2, 4), (2, 2, 2), [1], [0], [3], True, [2], 1),
    ]
    for at, (xs, ws, stride, padding, dilation, transposed, output_padding, groups) in enumerate(convolutions):
        x, w = f(*xs), f(*ws)
        bias = f(ws[1] * groups if transposed else ws[0]) if at % 2 == 0 else None
        rest = (stride, padding, dilation, transposed, output_padding, groups)
        case("aten.convolution.default", x, w, bias, *rest)
        y = ops.aten.convolution(x, w, bias, *rest)
        bias_sizes = [y.shape[1]] if bias is not None else None
        case("aten.convolution_backward.default", f(*y.shape), x, w, bias_sizes, *rest, [True, True, bias is not None])
    y = ops.aten.convolution(f(1, 2, 4), f(2, 2, 3), None, [1], [1], [1], False, [0], 1)
    case("aten.convolution_backward.default", y, f(1, 2, 4), f(2, 2, 3), None, [1], [1], [1], False, [0], 1,
         [False, True, False])


def complex_numbers():
    case("aten.view_as_real.default", c(2, 3))
    case("aten.view_as_real.default", c(2, dtype=torch.complex128))
    case("aten.view_as_complex.default", f(2, 3, 2))
    case("aten.polar.default", positive(2, 3), f(2, 3))
    case("aten._fft_c2c.default", c(2, 3, 4), [1, 2], 0, True)
    case("aten._fft_c2c.default", c(5, 2), [0], 2, False)
    case("aten._fft_c2c.default", c(2, 6), [1], 1, True)


def layers():
    case("aten.native_layer_norm.default", f(2, 3, 4), [4], f(4), f(4), 1e-5)
    case("aten.native_layer_norm.default", f(2, 3, 4), [3, 4], None, None, 1e-6)
    case("aten.native_group_norm.default", f(2, 4, 3), f(4), f(4), 2, 4, 3, 2, 1e-5)
    case("aten.native_group_norm.default", f(2, 4, 3, 2), f(4), None, 2, 4, 6, 4, 1e-5)
    x = f(3, 2, 4)
    case("aten._native_batch_norm_legit_no_training.default", x, f(2), f(2), f(2), positive(2), 0.1, 1e-5)
    case("aten._native_batch_norm_legit_no_training.default", f(3, 2), None, None, f(2), positive(2), 0.1, 1e-3)
    case("aten._native_batch_norm_legit.no_stats", x, f(2), None, True, 0.1, 1e-5)
    case("aten._native_batch_norm_legit.no_stats", f(3, 2, 2, 2), None, None, True, 0.1, 1e-5)
    case("aten._native_batch_norm_legit_functional.default", x, f(2), f(2), f(2), positive(2), True, 0.25, 1e-5)
    v, g = f(3, 2, 4), positive(1, 1, 4)
    norms = torch.linalg.vector_norm(v, dim=(0, 1), keepdim=True)
    case("aten._weight_norm_interface_backward.default", f(3, 2, 4), v, g, norms, 2)
    v, g = f(3, 2), positive(3, 1)
    case("aten._weight_norm_interface_backward.default", f(3, 2), v, g, v.norm(dim=1, keepdim=True), 0)
    pools = [
        ([3, 3], [2, 2], [1, 1], [1, 1], False),
        ([3, 2], [2, 2], [0, 1], [1, 2], True),
        ([2, 2], [], [0, 0], [1, 1], True),
    ]
    for size, stride, padding, dilation, ceil in pools:
        x = distinct(1, 2, 7, 6)
        case("aten.max_pool2d_with_indices.default", x, size, stride, padding, dilation, ceil)
        y, indices = ops.aten.max_pool2d_with_indices(x, size, stride, padding, dilation, ceil)
        case("aten.max_pool2d_with_indices_backward.default", f(*y.shape), x, size, stride, padding, dilation, ceil,
             indices)
        if stride:
            case("prims._low_memory_max_pool_with_offsets.default", x, size, stride, padding, dilation, ceil)
            _, offsets = ops.prims._low_memory_max_pool_with_offsets(x, size, stride, padding, dilation, ceil)
            case("prims._low_memory_max_pool_offsets_to_indices.default", offsets, size, [7, 6], stride, padding,
                 dilation)
    # Everything at −∞: the padding must not win.
    case("aten.max_pool2d_with_indices.default", torch.full((1, 3, 3), -inf), [2, 2], [2, 2], [1, 1])
    case("aten.max_pool3d_with_indices.default", distinct(1, 1, 3, 5, 4), [1, 3, 3], [1, 2, 2], [0, 1, 1])
    case("aten.max_pool3d_with_indices.default", distinct(1, 1, 4, 4, 4), [2, 2, 2], [], [1, 1, 1], [1, 1, 1], True)
    averages = [
        ([3, 3], [1, 1], [1, 1], False, False, None),
        ([2, 2], [2, 2], [0, 0], True, False, None),
        ([3, 2], [2, 2], [1, 1], True, True, None),
        ([2, 3], [], [0, 1], False, True, None),
        ([2, 2], [2, 1], [0, 1], True, True, 3),
    ]
    for options in averages:
        x = f(1, 2, 5, 6)
        case("aten.avg_pool2d.default", x, *options)
        y = ops.aten.avg_pool2d(x, *options)
        case("aten.avg_pool2d_backward.default", f(*y.shape), x, *options)
    case("aten.avg_pool3d.default", f(1, 2, 3, 4, 4), [2, 3, 3], [1, 1, 1])
    case("aten.avg_pool3d.default", f(1, 1, 3, 4, 5), [2, 2, 2], [2, 2, 2], [1, 0, 1], True, False)
    for size in [[2, 3], [3, 4], [1, 1], [7, 5]]:
        x = f(1, 2, 6, 5)
        case("aten._adaptive_avg_pool2d.default", x, size)
        case("aten._adaptive_avg_pool2d_backward.default", f(1, 2, *size), x)
    for interpolation in [0, 1, 2]:
        for padding in [0, 1, 2]:
            for corners in [False, True]:
                grid = torch.cat([f(1, 1, 4, 2, scale=0.6), f(1, 1, 4, 2, scale=3)], 1)
                case("aten.grid_sampler_2d.default", f(1, 2, 4, 3), grid, interpolation, padding, corners)
    case("aten.grid_sampler_2d.default", f(2, 1, 2, 3), f(2, 2, 3, 2, scale=0.5), 0, 0, False)
    case("aten._upsample_bicubic2d_aa.default", f(1, 2, 5, 6), [3, 2], False, None, None)
    case("aten._upsample_bicubic2d_aa.default", f(1, 1, 3, 3), [7, 4], False, None, None)
    case("aten._upsample_bicubic2d_aa.default", f(1, 1, 6, 5), [3, 7], True, None, None)
    case("aten._upsample_bicubic2d_aa.default", f(1, 1, 6, 6), [3, 4], False, 0.5, 0.6)
    rois = torch.tensor([[0, 0.5, 0.25, 6.0, 5.5], [1, -1.0, 2.0, 3.0, 9.0], [0, 2.0, 2.0, 2.25, 2.25]])
    for scale, ratio, aligned in [(1.0, 2, False), (0.5, 2, True), (1.0, -1, False), (0.75, 0, True)]:
        x = f(2, 2, 6, 7)
        own_case("torchvision.roi_align.default",
                 [("input", x), ("rois", rois), ("spatial_scale", scale), ("pooled_height", 2), ("pooled_width", 3),
                  ("sampling_ratio", ratio), ("aligned", aligned)],
                 roi_align(x, rois, scale, 2, 3, ratio, aligned))


def roi_align(x, rois, scale, height, width, ratio, aligned):
    """The loops of torchvision's kernel; torchvision itself need not be there."""

    def pixel(image, y, x):
        h, w = image.shape[1:]
        if y < -1 or y > h or x < -1 or x > w:
            return torch.zeros(image.shape[0], dtype=torch.float64)
        y, x = max(y, 0.0), max(x, 0.0)
        top, left = int(y), int(x)
        if top >= h - 1:
            top = bottom = h - 1
            y = float(top)
        else:
            bottom = top + 1
        if left >= w - 1:
            left = right = w - 1
            x = float(left)
        else:
            right = left + 1
        ly, lx = y - top, x - left
        return ((1 - ly) * (1 - lx) * image[:, top, left] + (1 - ly) * lx * image[:, top, right]
                + ly * (1 - lx) * image[:, bottom, left] + ly * lx * image[:, bottom, right])

    out = torch.zeros(len(rois), x.shape[1], height, width, dtype=torch.float64)
    for n, roi in enumerate(rois.double()):
        image = x[int(roi[0])].double()
        offset = 0.5 if aligned else 0.0
        left, top, right, bottom = [float(v) * scale - offset for v in roi[1:]]
        w, h = right - left, bottom - top
        if not aligned:
            w, h = max(w, 1.0), max(h, 1.0)
        bin_h, bin_w = h / height, w / width
        grid_h = ratio if ratio > 0 else math.ceil(h / height)
        grid_w = ratio if ratio > 0 else math.ceil(w / width)
        for ph in range(height):
            for pw in range(width):
                total = sum((pixel(image, top + ph * bin_h + (iy + 0.5) * bin_h / grid_h,
                                   left + pw * bin_w + (ix + 0.5) * bin_w / grid_w)
                             for iy in range(grid_h) for ix in range(grid_w)), torch.zeros(x.shape[1]).double())
                out[n, :, ph, pw] = total / max(grid_h * grid_w, 1)
    return out.float()


def others():
    x, w = f(7, 16, dtype=torch.bfloat16), f(3, 16, 8, dtype=torch.bfloat16)
    offsets = torch.tensor([2, 2, 7], dtype=torch.int32)
    case("aten._grouped_mm.default", x, w, offsets)
    case("aten._grouped_mm.default", f(7, 8, dtype=torch.bfloat16).t(), f(7, 8, dtype=torch.bfloat16), offsets)
    case("aten._weight_norm_interface.default", f(3, 2, 4), positive(1, 1, 4), 2)
    case("aten.embedding_dense_backward.default", f(2, 4, 3), i(0, 5, 2, 4), 5, -1, False)
    case("aten.embedding_dense_backward.default", f(6, 3), i(0, 4, 6), 4, 2, True)
    case("aten.upsample_nearest1d.default", f(1, 2, 5), [7])
    case("aten.upsample_nearest2d.default", f(1, 2, 3, 4), [6, 4])
    case("aten.upsample_nearest2d.default", f(1, 1, 4, 4), [7, 6], 1.8, 1.6)
    case("aten._upsample_nearest_exact2d.default", f(1, 1, 5, 4), [3, 7])
    case("aten.upsample_linear1d.default", f(1, 2, 5), [7], False)
    for corners in [False, True]:
        case("aten.upsample_bilinear2d.default", f(1, 2, 3, 4), [5, 3], corners)
        case("aten.upsample_bicubic2d.default", f(1, 1, 4, 5), [7, 3], corners)
    case("aten.upsample_bilinear2d.default", f(1, 1, 4, 4), [7, 6], False, 1.8, 1.6)
    case("aten.upsample_bicubic2d.default", f(1, 1, 4, 4), [7, 6], False, 1.8, 1.6)
    case("aten.upsample_trilinear3d.default", f(1, 1, 2, 3, 2), [3, 2, 4], False)
    case("aten._upsample_bilinear2d_aa.default", f(1, 1, 6, 5), [3, 7], False)
    for size in [[2, 3], [3, 4], [1, 1]]:
        case("aten.adaptive_max_pool2d.default", distinct(1, 2, 7, 5), size)
    case("aten._adaptive_avg_pool3d.default", f(1, 1, 3, 4, 5), [2, 2, 3])
    case("aten.im2col.default", f(1, 2, 5, 4), [2, 3], [2, 1], [1, 0], [1, 1])
    case("aten.col2im.default", f(1, 12, 10), [5, 4], [2, 3], [2, 1], [1, 0], [1, 1])
    case("aten.col2im.default", f(1, 8, 6), [5, 6], [2, 2], [1, 1], [0, 0], [2, 2])
    case("aten.index_add.default", f(4, 3), 0, torch.tensor([2, 0, 2]), f(3, 3), alpha=2)
    case("aten._fft_r2c.default", f(2, 6), [1], 0, True)
    case("aten._fft_r2c.default", f(3, 5), [0, 1], 1, True)
    case("aten._fft_r2c.default", f(2, 4), [1], 0, False)
    case("aten._fft_c2r.default", c(2, 4), [1], 2, 6)
    case("aten._fft_c2r.default", c(3, 3), [0, 1], 2, 5)


def attention():
    forward = "aten._scaled_dot_product_flash_attention_for_cpu"
    for mask, causal, scale, lengths in [(False, False, None, (3, 4)), (True, False, 0.4, (3, 4)),
                                         (False, True, None, (4, 4)), (False, True, None, (2, 4))]:
        t, s = lengths
        q, k, v = f(1, 2, t, 4), f(1, 2, s, 4), f(1, 2, s, 4)
        options = dict(scale=scale, attn_mask=f(1, 1, t, s) if mask else None)
        case(forward + ".default", q, k, v, 0.0, causal, **options)
        out, lse = resolve(forward + ".default")(q, k, v, 0.0, causal, **options)
        case(forward + "_backward.default", f(*out.shape), q, k, v, out, lse, 0.0, causal, **options)


def random():
    bounds = (-6.5, 6.5)
    random_case("aten.rand.default", [64, 64], moments=[(0.5, 1 / 12, 0, 1)])
    random_case("aten.randn.default", [64, 64], moments=[(0, 1, *bounds)])
    random_case("aten.randn.generator", [64, 64], generator=None, moments=[(0, 1, *bounds)])
    random_case("aten.randn_like.default", torch.zeros(64, 64), moments=[(0, 1, *bounds)])
    random_case("aten.bernoulli.p", torch.zeros(64, 64), 0.3, moments=[(0.3, 0.21, 0, 1)])
    random_case("aten.native_dropout.default", torch.ones(64, 64), 0.2, True,
                moments=[(1, 0.25, 0, 1.25), (0.8, 0.16, 0, 1)])
    case("aten.native_dropout.default", f(2, 3), 0.2, False)
    case("aten.native_dropout.default", f(2, 3), 0.0, True)


def core():
    case("aten._unsafe_view.default", f(2, 6), [3, 4])
    case("aten.reshape.default", f(2, 6), [3, -1])
    case("aten.arange.default", 5)
    case("aten.arange.default", 2.5)
    case("aten.arange.start", 2, 7)
    case("aten.empty_like.default", f(2, 3), undefined=[0])
    case("aten.empty_strided.default", [2, 3], [1, 2], undefined=[0])
    case("aten.new_empty.default", f(2), [2, 3], undefined=[0])
    for name in ["tan", "atan", "exp2", "sinh", "cosh", "asinh"]:
        case(f"aten.{name}.default", f(5))
        case(f"aten.{name}.default", i(-3, 4, 3))
    for name in ["asin", "atanh"]:
        case(f"aten.{name}.default", f(5, scale=0.2))
    case("aten.acosh.default", positive(4) + 1)
    case("aten.log10.default", positive(4))
    case("aten.trunc.default", specials)
    case("aten.trunc.default", i(-3, 4, 3))
    case("aten.atan2.default", f(2, 3), f(3))
    case("aten.fmod.Tensor", f(4) * 3, positive(4))
    case("aten.sub.Scalar", f(3), 2, 3)
    case("aten.rsub.Scalar", f(3), 2, 3)
    case("aten.rsub.Tensor", f(3), i(0, 5, 3))
    for mode in [None, "floor", "trunc"]:
        case("aten.div.Scalar_mode", f(4) * 5, 2, rounding_mode=mode)
        case("aten.div.Scalar_mode", i(-9, 9, 4), 2, rounding_mode=mode)
    case("aten.bitwise_and.Scalar", i(0, 99, 4), 12)
    case("aten.bitwise_or.Scalar", i(0, 99, 4), 12)
    case("aten.bitwise_xor.Scalar", b(4), True)
    case("aten.bitwise_xor.Tensor", i(-9, 99, 4), i(-9, 99, 4))
    case("aten.logical_or.default", f(3), b(3))
    case("aten.logical_xor.default", i(0, 2, 5), i(0, 2, 5))
    case("aten.isnan.default", specials)
    case("aten.isinf.default", specials)
    case("aten.isinf.default", i(0, 5, 2))
    case("aten.fill.Scalar", i(0, 5, 2, 2), 3.7)
    case("aten.fill.Tensor", f(2, 2), torch.tensor(3))
    case("aten.zeros_like.default", i(0, 5, 2, 2))
    case("aten.ones_like.default", f(2, 2), dtype=torch.int64)
    case("aten.zeros.default", [2, 3])
    case("aten.ones.default", [2], dtype=torch.bool)
    case("aten.new_zeros.default", i(0, 5, 2), [3])
    case("aten.new_ones.default", f(2), [3, 1])
    case("aten.new_full.default", f(2), [3], 2.5)
    for name in ["silu", "hardswish", "hardsigmoid", "mish"]:
        case(f"aten.{name}.default", f(6) * 4)
    case("aten.softplus.default", f(6) * 4)
    case("aten.softplus.default", f(6) * 4, 2, 3)
    case("aten.amin.default", f(2, 3, 4), [0, -1], True)
    case("aten.min.dim", distinct(3, 4), 1)
    case("aten.all.default", b(2, 3))
    case("aten.all.dim", b(3, 3), 1, True)
    case("aten.all.dims", f(2, 2, 2), [0, 2])
    case("aten.cumprod.default", f(2, 4), 1)
    case("aten.cumprod.default", i(1, 4, 5), 0)
    case("aten.logsumexp.default", f(2, 4), [1])
    case("aten.tril.default", f(3, 4), 1)
    case("aten.triu.default", f(2, 3, 3), -1)
    case("aten.masked_fill.Scalar", f(2, 3), b(3), -inf)
    case("aten.masked_fill.Tensor", i(0, 9, 2, 3), b(2, 1), torch.tensor(4))
    case("aten.t.default", f(2, 3))
    case("aten.t.default", f(3))
    case("aten.transpose.int", f(2, 3, 4), 0, -1)
    case("aten.transpose.int", c(2, 3), 0, 1)
    case("aten.linear.default", f(2, 3, 4), f(5, 4), f(5))
    case("aten.linear.default", f(4), f(5, 4))
    case("aten.matmul.default", f(2, 3, 4), f(4, 2))
    case("aten.mv.default", f(3, 4), f(4))
    case("aten.dot.default", f(4), f(4))
    case("aten.diagonal.default", f(3, 4))
    case("aten.fmax.default", torch.tensor([1.0, nan, nan, 2.0]), torch.tensor([nan, 2.0, nan, 3.0]))
    case("aten.fmin.default", i(0, 9, 3), i(0, 9, 3))
    case("aten.addmv.default", f(2), f(2, 3), f(3), beta=2, alpha=0.5)
    case("aten.addbmm.default", f(2, 2), f(3, 2, 4), f(3, 4, 2))
    case("aten.addbmm.default", f(2, 2) * nan, f(3, 2, 4), f(3, 4, 2), beta=0)
    case("aten.complex.default", f(2, 3), f(2, 3))
    case("aten.real.default", c(2, 3))
    case("aten.imag.default", c(2, 3))
    case("aten.view.dtype", f(4), torch.int32)
    case("aten.view.dtype", i(0, 99, 3), torch.int64)
    case("aten.detach.default", f(2))
    case("aten.lift_fresh.default", f(2))
    case("aten.contiguous.default", f(2, 2))
    case("aten.constant_pad_nd.default", c(2, 2), [1, 0])
    case("aten.convolution.default", f(1, 2, 4, 4), f(3, 2, 2, 2), None, [2], [1], [1], False, [0], 1)
    case("aten.convolution.default", f(1, 2, 3, 3), f(2, 3, 2, 2), None, [2], [0], [1], True, [1], 1)
    case("aten.diagonal.default", f(2, 3, 4), 1, 0, 2)
    case("aten.diagonal.default", f(4, 3, 2), -2, 1, 0)


def scalars():
    """Ops along an axis of what has none, and lists of no axes."""
    scalar, place = f(), torch.tensor(0)
    case("aten.max.dim", scalar, 0)
    case("aten.min.dim", scalar, -1, True)
    case("aten.argmax.default", scalar, 0)
    case("aten.argmin.default", distinct(2, 3), None, True)
    case("aten._softmax.default", scalar, 0, False)
    case("aten._log_softmax.default", scalar, 0, False)
    case("aten.cumsum.default", b(), 0)
    case("aten.cumprod.default", scalar, 0)
    case("aten.topk.default", scalar, 1, 0)
    case("aten.sort.default", scalar, 0)
    case("aten.gather.default", scalar, 0, place)
    case("aten.gather.default", f(3), 0, place)
    case("aten.scatter.src", scalar, 0, place, f())
    case("aten.scatter_add.default", f(3), 0, place, f())
    case("aten.scatter.value", scalar, 0, place, 2.5)
    case("aten.scatter_reduce.two", scalar, 0, place, f(), "prod")
    case("aten.unfold.default", scalar, 0, 1, 1)
    case("aten.flip.default", f(2, 3), [])
    case("aten.index_select.default", scalar, 0, torch.tensor([0]))
    case("aten.index_select.default", f(3), 0, torch.tensor(2))
    case("aten.sign.default", b(3))
    case("aten.squeeze.dims", f(1, 2, 1), [])
    case("aten.copy.default", c(2), f(2))
    case("aten.copy.default", f(2, 2), c(2))
    case("aten._native_batch_norm_legit_functional.default", f(2, 3, 2), f(3), f(3), f(3), positive(3), False, 0.1, 1e-5)


def seldom():
    case("aten.view_copy.default", f(2, 6), [3, -1])
    case("aten.permute_copy.default", f(2, 3), [1, 0])
    case("aten.unbind_copy.int", f(2, 3), 1)
    case("aten.sort.stable", distinct(2, 5), stable=True, dim=1)
    case("aten.signbit.default", specials)
    case("aten.signbit.default", i(-2, 3, 4))
    case("aten.copysign.Tensor", specials, torch.tensor(-0.0))
    case("aten.copysign.Tensor", i(-3, 4, 5), f(5))
    case("aten.copysign.Scalar", f(3), -1)
    case("aten.hypot.default", torch.tensor([3.0, 0.0, 3e30, -inf, nan, 5.0]), torch.tensor([-4.0, 0.0, 4e30, nan, 1.0, 0.0]))
    case("aten.ldexp.Tensor", f(4), i(-3, 4, 4))
    case("aten.round.decimals", f(4) * 10, decimals=1)
    case("aten.round.decimals", f(4) * 100, decimals=-1)
    case("aten.digamma.default", torch.tensor([0.0, -0.0, -1.0, -2.5, 0.3, 1.0, 7.0, 100.0, inf, nan]))
    for name in ["bitwise_left_shift", "bitwise_right_shift"]:
        case(f"aten.{name}.Tensor", i(-9, 9, 6), torch.tensor([0, 1, 5, 63, 64, -1]))
        case(f"aten.{name}.Tensor_Scalar", i(-9, 9, 3, dtype=torch.int32), 2)
        case(f"aten.{name}.Tensor", torch.tensor([3, 129, 255, 255], dtype=torch.uint8), torch.tensor([0, 1, 7, 200], dtype=torch.uint8))
    case("aten.round.default", i(-9, 9, 3))
    case("aten.narrow_copy.default", f(2, 5), 1, 1, 3)
    case("aten.narrow_copy.default", f(2, 5), -1, -3, 2)
    case("aten._batch_norm_with_update_functional.default", f(2, 3, 2), f(3), f(3), f(3), positive(3), 0.1, 1e-5)
    random_case("aten.uniform.default", torch.zeros(64, 64), -1.0, 3.0, moments=[(1.0, 4 / 3, -1, 3)])
    random_case("aten.normal_functional.default", torch.zeros(64, 64), 2.0, 0.5, moments=[(2.0, 0.25, -1.5, 5.5)])
    case("aten.scatter.reduce", f(3, 2), 0, torch.tensor([[0, 1], [0, 2]]), f(2, 2), reduce="add")
    case("aten.scatter.value_reduce", f(3, 2), 1, torch.tensor([[0], [1]]), 3, reduce="multiply")
    for reduce in ["prod", "mean", "amax", "amin"]:
        case("aten.index_reduce.default", f(4, 3), 0, torch.tensor([2, 0, 2]), f(3, 3), reduce)
        case("aten.index_reduce.default", f(2, 4), 1, torch.tensor([3, 0, 3]), f(2, 3), reduce, include_self=False)


def attention_on_cuda():
    """Ops that PyTorch has on CUDA alone: they give what the one on the CPU does, and what nobody reads is left out."""
    own, mask = "aten._scaled_dot_product_flash_attention_for_cpu", f(1, 2, 3, 4)
    for kind, bias, causal, (t, s) in [("flash", None, True, (4, 4)), ("efficient", mask, False, (3, 4)),
                                       ("efficient", None, True, (3, 4)), ("cudnn", mask, False, (3, 4))]:
        q, k, v = f(1, 2, t, 4), f(1, 2, s, 4), f(1, 2, s, 4)
        given = dict(dropout_p=0.0, is_causal=causal, scale=0.4)
        out, lse = resolve(own + ".default")(q, k, v, 0.0, causal, attn_mask=bias, scale=0.4)
        tensors = dict(query=q, key=k, value=v, **({} if bias is None else dict(attn_bias=bias)))
        own_case(f"aten._scaled_dot_product_{kind}_attention.default", {**tensors, **given}.items(), out, lse)
        gradient = f(*out.shape)
        wanted = resolve(own + "_backward.default")(gradient, q, k, v, out, lse, 0.0, causal, attn_mask=bias, scale=0.4)
        saved = {"grad_out_" if kind == "efficient" else "grad_out": gradient, "out": out, "logsumexp": lse}
        own_case(f"aten._scaled_dot_product_{kind}_attention_backward.default", {**saved, **tensors, **given}.items(), *wanted)


def lazy():
    for name in ["_conj", "_conj_physical", "conj_physical", "resolve_conj", "resolve_neg"]:
        case(f"aten.{name}.default", c(2, 3))
    case("aten.resolve_conj.default", c(2, 3).conj())
    case("aten.conj_physical.default", f(3))
    case("aten._neg_view.default", f(2, 3))
    case("aten._neg_view.default", c(2))
    case("aten.neg.default", c(3))
    case("aten.add.Tensor", c(2, 3), c(3))
    case("aten.add.Tensor", f(2, 3), c(3), alpha=2)
    case("aten.sub.Tensor", c(2, 1), f(3))
    case("aten.add.Tensor", c(3), 1.5)
    case("aten.rsub.Scalar", c(3), 2)
    case("aten._fft_r2c.default", f(3, 12), [0, 1], 0, False)
    case("aten._fft_c2c.default", c(2, 18), [1], 2, False)
    case("aten._fft_c2c.default", c(25, 2), [0], 0, True)
    case("aten.avg_pool2d.default", f(1, 2, 3), [4, 5], [4, 4], [0, 1], True, True)
    case("aten.avg_pool2d.default", f(1, 2, 3), [4, 5], [4, 4], [0, 1], True, False)
    case("aten.max_pool2d_with_indices.default", f(1, 2, 3), [4, 4], [4, 4], [0, 0], [1, 1], True)
    # Numbers that bf16 does not hold.
    case("aten.mul.Tensor", f(8, dtype=torch.bfloat16), 3.4445)
    case("aten.mul.Tensor", f(8, dtype=torch.bfloat16), torch.tensor(3.4445))
    case("aten.div.Tensor", f(8, dtype=torch.bfloat16), 3.4445)
    case("aten.addmm.default", f(3, 4, dtype=torch.bfloat16), f(3, 2, dtype=torch.bfloat16), f(2, 4, dtype=torch.bfloat16), beta=3.4445, alpha=-4.775)
    case("aten.log10.default", positive(8, dtype=torch.bfloat16))
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        case("aten.erfc.default", torch.tensor([-inf, -7.0, -1.5, -0.0, 0.3, 1.0, 2.5, 4.0, 9.0, 30.0, inf, nan], dtype=dtype))
    case("aten.erfc.default", i(-2, 3, 4))
    for axes, sizes, parts in [(2, (3, 5), (2, 2)), (3, (4, 4, 5), (2, 2, 3))]:
        x = distinct(1, 2, *sizes)
        values, indices = resolve(f"aten.adaptive_max_pool{axes}d.default")(x, parts)
        case(f"aten.adaptive_max_pool{axes}d.default", x, parts)
        case(f"aten.adaptive_max_pool{axes}d_backward.default", f(*values.shape), x, indices)
        case(f"aten._adaptive_avg_pool{axes}d_backward.default", f(1, 2, *parts), x)
        drawn = torch.rand(1, 2, axes)
        values, indices = resolve(f"aten.fractional_max_pool{axes}d.default")(x, [2] * axes, [2] * axes, drawn)
        case(f"aten.fractional_max_pool{axes}d_backward.default", f(*values.shape), x, [2] * axes, [2] * axes, indices)
    x = distinct(1, 2, 4, 4, 5)
    values, indices = resolve("aten.max_pool3d_with_indices.default")(x, [2, 3, 2], [2, 1, 2], [1, 1, 0])
    case("aten.max_pool3d_with_indices_backward.default", f(*values.shape), x, [2, 3, 2], [2, 1, 2], [1, 1, 0], [1, 1, 1], False, indices)
    for divisor in (None, 5):
        case("aten.avg_pool3d_backward.default", f(1, 2, 3, 4, 2), f(1, 2, 4, 4, 5), [2, 3, 2], [2, 1, 2], [1, 1, 0], False, False, divisor)
    case("aten.slice_scatter.default", c(2, 5), c(2, 2), 1, 1, 4, 2)
    case("aten.select_scatter.default", c(2, 3), c(2), 1, -1)
    for offset, length in [(0, 3), (2, 2), (-1, 2), (3, 1)]:
        case("aten.diagonal_scatter.default", f(3, 4), f(length), offset)
    case("aten.diagonal_scatter.default", f(4, 2, 3), f(2, 2), -1, 2, 0)
    for op in ("aten.cummax.default", "aten.cummin.default"):
        case(op, f(3, 5), 1)
        case(op, i(0, 4, 6, 2), 0)
        case(op, b(7), 0)
        case(op, torch.tensor([1.0, math.nan, 0.5, math.nan, 2.0]), 0)
        case(op, torch.tensor(3.0), 0)
    case("aten._int_mm.default", i(-128, 128, 3, 8, dtype=torch.int8), i(-128, 128, 8, 4, dtype=torch.int8))
    for dtype in (torch.float32, torch.bfloat16):
        case("aten._weight_int8pack_mm.default", f(3, 32, dtype=dtype), i(-128, 128, 4, 32, dtype=torch.int8), positive(4, dtype=dtype))


def of_numbers():
    """What PyTorch makes of numbers that calls bring."""
    case("aten.true_divide.Tensor", torch.tensor([[-0.49, 0.67, 1.94]]), torch.tensor([[1.5], [-0.86]]))
    case("aten.true_divide.Tensor", torch.tensor([-6, 6, -3, 0]), torch.tensor([5, 6, 4, 2]))
    case("prims.scalar_tensor.default", 2.5, dtype=torch.float64, device=torch.device("cpu"))


for group in [views, creation, pointwise, reductions, indexing, products, complex_numbers, layers, attention,
              random, others, core, scalars, seldom, attention_on_cuda, lazy]:
    group()
draws.write_all(case, random_case)
of_numbers()

(HERE / "reference.txt").write_text("# Written by make_reference.py.\n" + "\n".join(lines) + "\n")
wanted = {l for l in (HERE / "ops.txt").read_text().split("\n") if l and not l.startswith("#")}
written = {l.split()[1] for l in lines if l.startswith("case ")}
print("without a case:", sorted(wanted - written), "not in ops.txt:", sorted(written - wanted))
