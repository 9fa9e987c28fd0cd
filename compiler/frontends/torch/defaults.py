"""Default arguments of torch's operators; scripts/torch_defaults writes the table."""

import ast
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_TEXT = """
_embedding_bag.default include_last_offset=False padding_idx=-1
_embedding_bag.default scale_grad_by_freq=False mode=0 sparse=False per_sample_weights=None
_embedding_bag_forward_only.default padding_idx=-1
_embedding_bag_forward_only.default per_sample_weights=None include_last_offset=False
_embedding_bag_forward_only.default scale_grad_by_freq=False mode=0 sparse=False
_grouped_mm.default offs=None bias=None out_dtype=None
_linalg_eigh.default UPLO='L' compute_v=True
_linalg_solve_ex.default left=True check_errors=False
_linalg_svd.default full_matrices=False compute_uv=True driver=None
_pdist_forward.default p=2.0
_scaled_dot_product_flash_attention_for_cpu.default dropout_p=0.0 is_causal=False attn_mask=None
_scaled_dot_product_flash_attention_for_cpu.default scale=None
_scaled_dot_product_flash_attention_for_cpu_backward.default attn_mask=None scale=None
_to_copy.default dtype=None
_trilinear.default unroll_dim=1
_unique2.default sorted=True return_inverse=False return_counts=False
_upsample_bicubic2d_aa.default scales_h=None scales_w=None
_upsample_bicubic2d_aa_backward.default scales_h=None scales_w=None
_upsample_bilinear2d_aa.default scales_h=None scales_w=None
_upsample_bilinear2d_aa_backward.default scales_h=None scales_w=None
_upsample_nearest_exact1d.default scales=None
_upsample_nearest_exact1d_backward.default scales=None
_upsample_nearest_exact2d.default scales_h=None scales_w=None
_upsample_nearest_exact2d_backward.default scales_h=None scales_w=None
_upsample_nearest_exact3d.default scales_d=None scales_h=None scales_w=None
_upsample_nearest_exact3d_backward.default scales_d=None scales_h=None scales_w=None
add.Scalar alpha=1
add.Tensor alpha=1
addbmm.default beta=1 alpha=1
addmm.default beta=1 alpha=1
addmm.dtype beta=1 alpha=1
all.dim keepdim=False
all.dims dim=None keepdim=False
amax.default dim=[] keepdim=False
amin.default dim=[] keepdim=False
any.dim keepdim=False
any.dims dim=None keepdim=False
arange.default dtype=None
arange.start dtype=None
arange.start_step step=1 dtype=None
argmax.default dim=None keepdim=False
argmin.default dim=None keepdim=False
as_strided.default storage_offset=None
as_strided_scatter.default storage_offset=None
avg_pool1d.default stride=[] padding=[0] ceil_mode=False count_include_pad=True
avg_pool2d.default divisor_override=None
avg_pool2d.default stride=[] padding=[0,0] ceil_mode=False count_include_pad=True
avg_pool3d.default divisor_override=None
avg_pool3d.default stride=[] padding=[0,0,0] ceil_mode=False count_include_pad=True
bincount.default weights=None minlength=0
blackman_window.default dtype=None
blackman_window.periodic dtype=None
bucketize.Tensor out_int32=False right=False
cat.default dim=0
cholesky.default upper=False
cholesky_inverse.default upper=False
cholesky_solve.default upper=False
clamp.Tensor min=None max=None
clamp.default min=None max=None
constant_pad_nd.default value=0
cumprod.default dtype=None
cumsum.default dtype=None
diagonal.default offset=0 dim1=0 dim2=1
diagonal_scatter.default offset=0 dim1=0 dim2=1
einsum.default path=None
elu.default alpha=1 scale=1 input_scale=1
embedding.default padding_idx=-1 scale_grad_by_freq=False sparse=False
empty.memory_format dtype=None
empty_permuted.default dtype=None
empty_strided.default dtype=None
expand.default implicit=False
full.default dtype=None
full_like.default dtype=None
gather.default sparse_grad=False
gelu.default approximate='none'
group_norm.default weight=None bias=None eps=1e-05 cudnn_enabled=True
hardtanh.default min_val=-1 max_val=1
histc.default bins=100 min=0 max=0
index_put.default accumulate=False
index_put.hacked_twin accumulate=False
index_reduce.default include_self=True
kthvalue.default dim=-1 keepdim=False
layer_norm.default weight=None bias=None eps=1e-05 cudnn_enable=True
leaky_relu.default negative_slope=0.01
linalg_cholesky_ex.default upper=False check_errors=False
linalg_inv_ex.default check_errors=False
linalg_lu.default pivot=True
linalg_lu_factor_ex.default pivot=True check_errors=False
linalg_lu_solve.default left=True adjoint=False
linalg_pinv.atol_rtol_tensor atol=None rtol=None hermitian=False
linalg_qr.default mode='reduced'
linalg_solve_triangular.default left=True unitriangular=False
linalg_vector_norm.default ord=2 dim=None keepdim=False dtype=None
linear.default bias=None
log_softmax.int dtype=None
logsumexp.default keepdim=False
lu_unpack.default unpack_data=True unpack_pivots=True
max.dim keepdim=False
max_pool1d.default stride=[] padding=[0] dilation=[1] ceil_mode=False
max_pool1d_with_indices.default stride=[] padding=[0] dilation=[1] ceil_mode=False
max_pool2d.default stride=[] padding=[0,0] dilation=[1,1] ceil_mode=False
max_pool2d_with_indices.default stride=[] padding=[0,0] dilation=[1,1] ceil_mode=False
max_pool3d.default stride=[] padding=[0,0,0] dilation=[1,1,1] ceil_mode=False
max_pool3d_with_indices.default stride=[] padding=[0,0,0] dilation=[1,1,1] ceil_mode=False
mean.default dtype=None
mean.dim keepdim=False dtype=None
median.dim keepdim=False
min.dim keepdim=False
mode.default dim=-1 keepdim=False
multinomial.default replacement=False
nanmedian.dim keepdim=False
nonzero_static.default fill_value=-1
normal_functional.default mean=0.0 std=1.0
ormqr.default left=True transpose=False
prod.default dtype=None
prod.dim_int keepdim=False dtype=None
put.default accumulate=False
rand.default dtype=None
rand.generator dtype=None
rand_like.default dtype=None
rand_like.generator dtype=None
randint.default dtype=4
randint.generator dtype=4
randint.low dtype=4
randint.low_generator dtype=4
randint_like.Tensor dtype=None
randint_like.Tensor_generator dtype=None
randint_like.default dtype=None
randint_like.generator dtype=None
randint_like.low_dtype dtype=None
randint_like.low_generator_dtype dtype=None
randn.default dtype=None
randn.generator dtype=None
randn_like.default dtype=None
randn_like.generator dtype=None
randperm.default dtype=4
randperm.generator dtype=4
repeat_interleave.Tensor output_size=None
rms_norm.default weight=None eps=None
roll.default dims=[]
scalar_tensor.default dtype=None
scaled_dot_product_attention.default attn_mask=None dropout_p=0.0 is_causal=False scale=None
scaled_dot_product_attention.default enable_gqa=False
scatter_reduce.two include_self=True
searchsorted.Scalar out_int32=False right=False side=None sorter=None
searchsorted.Tensor out_int32=False right=False side=None sorter=None
slice.Tensor dim=0 start=None end=None step=1
slice.str start=None end=None step=1
slice.t start=None end=None step=1
slice_copy.Tensor dim=0 start=None end=None step=1
slice_scatter.default dim=0 start=None end=None step=1
softmax.int dtype=None
softplus.default beta=1 threshold=20
sort.Tensor reverse=False
sort.any reverse=False
sort.bool reverse=False
sort.default dim=-1 descending=False
sort.float reverse=False
sort.int reverse=False
sort.stable dim=-1 descending=False
sort.str reverse=False
split_copy.Tensor dim=0
split_with_sizes.default dim=0
sub.Scalar alpha=1
sub.Tensor alpha=1
sum.default dtype=None
sum.dim_IntList keepdim=False dtype=None
topk.default dim=-1 largest=True sorted=True
triangular_solve.default upper=True transpose=False unitriangular=False
tril.default diagonal=0
triu.default diagonal=0
unique_consecutive.default return_inverse=False return_counts=False dim=None
upsample_bicubic2d.default scales_h=None scales_w=None
upsample_bicubic2d_backward.default scales_h=None scales_w=None
upsample_bilinear2d.default scales_h=None scales_w=None
upsample_bilinear2d_backward.default scales_h=None scales_w=None
upsample_linear1d.default scales=None
upsample_linear1d_backward.default scales=None
upsample_nearest1d.default scales=None
upsample_nearest1d_backward.default scales=None
upsample_nearest2d.default scales_h=None scales_w=None
upsample_nearest2d_backward.default scales_h=None scales_w=None
upsample_nearest3d.default scales_d=None scales_h=None scales_w=None
upsample_nearest3d_backward.default scales_d=None scales_h=None scales_w=None
upsample_trilinear3d.default scales_d=None scales_h=None scales_w=None
upsample_trilinear3d_backward.default scales_d=None scales_h=None scales_w=None
var.correction dim=None correction=None keepdim=False
var.default unbiased=True
var.dim unbiased=True keepdim=False
var_mean.correction dim=None correction=None keepdim=False
var_mean.default unbiased=True
var_mean.dim unbiased=True keepdim=False
"""


def _read() -> Mapping[str, Mapping[str, Any]]:
    defaults: dict[str, dict[str, Any]] = {}
    for line in _TEXT.split("\n")[1:-1]:
        name, *assignments = line.split(" ")
        pairs = (part.split("=") for part in assignments)
        overload = defaults.setdefault(f"aten.{name}", {})
        overload.update((key, ast.literal_eval(value)) for key, value in pairs)
    return MappingProxyType(defaults)


DEFAULTS = _read()  # maps an overload and an argument's name to the argument's default
