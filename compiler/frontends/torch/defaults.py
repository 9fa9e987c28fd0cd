"""What torch's operators take for arguments left out; by scripts/torch_defaults."""

from __future__ import annotations

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
_safe_softmax.default dtype=None
_to_copy.default dtype=None
_trilinear.default unroll_dim=1
_unique2.default sorted=True return_inverse=False return_counts=False
_unsafe_index_put.default accumulate=False
_unsafe_index_put.hacked_twin accumulate=False
_upsample_bicubic2d_aa.default scales_h=None scales_w=None
_upsample_bilinear2d_aa.default scales_h=None scales_w=None
_upsample_nearest_exact1d.default scales=None
_upsample_nearest_exact2d.default scales_h=None scales_w=None
_upsample_nearest_exact3d.default scales_d=None scales_h=None scales_w=None
add.Scalar alpha=1
add.Tensor alpha=1
addbmm.default beta=1 alpha=1
addcdiv.default value=1
addcmul.default value=1
addmm.default beta=1 alpha=1
addmm.dtype beta=1 alpha=1
addmv.default beta=1 alpha=1
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
argsort.default dim=-1 descending=False
argsort.stable dim=-1 descending=False
as_strided.default storage_offset=None
as_strided_copy.default storage_offset=None
as_strided_scatter.default storage_offset=None
avg_pool1d.default stride=[] padding=[0] ceil_mode=False count_include_pad=True
avg_pool2d.default divisor_override=None
avg_pool2d.default stride=[] padding=[0,0] ceil_mode=False count_include_pad=True
avg_pool3d.default divisor_override=None
avg_pool3d.default stride=[] padding=[0,0,0] ceil_mode=False count_include_pad=True
baddbmm.default beta=1 alpha=1
baddbmm.dtype beta=1 alpha=1
binary_cross_entropy.default weight=None reduction=1
binary_cross_entropy_with_logits.default weight=None pos_weight=None reduction=1
blackman_window.default dtype=None
blackman_window.periodic dtype=None
bucketize.Tensor out_int32=False right=False
cat.default dim=0
cdist.default p=2.0 compute_mode=None
celu.default alpha=1.0
cholesky.default upper=False
cholesky_inverse.default upper=False
cholesky_solve.default upper=False
chunk.default dim=0
clamp.Tensor min=None max=None
clamp.default min=None max=None
clip.Tensor min=None max=None
clip.default min=None max=None
concat.default dim=0
concatenate.default dim=0
constant_pad_nd.default value=0
conv1d.default bias=None stride=[1] padding=[0] dilation=[1] groups=1
conv1d.padding bias=None stride=[1] padding='valid' dilation=[1] groups=1
conv2d.default bias=None stride=[1,1] padding=[0,0] dilation=[1,1] groups=1
conv2d.padding bias=None stride=[1,1] padding='valid' dilation=[1,1] groups=1
conv3d.default bias=None stride=[1,1,1] padding=[0,0,0] dilation=[1,1,1] groups=1
conv3d.padding bias=None stride=[1,1,1] padding='valid' dilation=[1,1,1] groups=1
conv_transpose1d.default bias=None stride=[1] padding=[0] output_padding=[0] groups=1 dilation=[1]
conv_transpose2d.input bias=None stride=[1,1] padding=[0,0] output_padding=[0,0] groups=1
conv_transpose2d.input dilation=[1,1]
conv_transpose3d.input bias=None stride=[1,1,1] padding=[0,0,0] output_padding=[0,0,0] groups=1
conv_transpose3d.input dilation=[1,1,1]
cosine_similarity.default dim=1 eps=1e-08
count_nonzero.default dim=None
cross_entropy_loss.default weight=None reduction=1 ignore_index=-100 label_smoothing=0.0
cumprod.default dtype=None
cumsum.default dtype=None
diagonal.default offset=0 dim1=0 dim2=1
diagonal_copy.default offset=0 dim1=0 dim2=1
diagonal_scatter.default offset=0 dim1=0 dim2=1
diff.default n=1 dim=-1 prepend=None append=None
einsum.default path=None
elu.default alpha=1 scale=1 input_scale=1
embedding.default padding_idx=-1 scale_grad_by_freq=False sparse=False
embedding_bag.default include_last_offset=False
embedding_bag.default scale_grad_by_freq=False mode=0 sparse=False per_sample_weights=None
empty.memory_format dtype=None
empty_like.default dtype=None
empty_permuted.default dtype=None
empty_strided.default dtype=None
expand.default implicit=False
expand_copy.default implicit=False
eye.default dtype=None
eye.m dtype=None
fft_fft.default n=None dim=-1 norm=None
fft_fft2.default s=None dim=[-2,-1] norm=None
fft_fftn.default s=None dim=None norm=None
fft_hfft.default n=None dim=-1 norm=None
fft_hfft2.default s=None dim=[-2,-1] norm=None
fft_hfftn.default s=None dim=None norm=None
fft_ifft.default n=None dim=-1 norm=None
fft_ifft2.default s=None dim=[-2,-1] norm=None
fft_ifftn.default s=None dim=None norm=None
fft_ihfft.default n=None dim=-1 norm=None
fft_ihfft2.default s=None dim=[-2,-1] norm=None
fft_ihfftn.default s=None dim=None norm=None
fft_irfft.default n=None dim=-1 norm=None
fft_irfft2.default s=None dim=[-2,-1] norm=None
fft_irfftn.default s=None dim=None norm=None
fft_rfft.default n=None dim=-1 norm=None
fft_rfft2.default s=None dim=[-2,-1] norm=None
fft_rfftn.default s=None dim=None norm=None
flatten.using_ints start_dim=0 end_dim=-1
full.default dtype=None
full_like.default dtype=None
gather.default sparse_grad=False
gelu.default approximate='none'
glu.default dim=-1
group_norm.default weight=None bias=None eps=1e-05 cudnn_enabled=True
hann_window.default dtype=None
hann_window.periodic dtype=None
hardshrink.default lambd=0.5
hardtanh.default min_val=-1 max_val=1
histc.default bins=100 min=0 max=0
huber_loss.default reduction=1 delta=1.0
index_add.default alpha=1
index_put.default accumulate=False
index_put.hacked_twin accumulate=False
index_reduce.default include_self=True
isclose.default rtol=1e-05 atol=1e-08 equal_nan=False
kl_div.default reduction=1 log_target=False
kthvalue.default dim=-1 keepdim=False
l1_loss.default reduction=1
layer_norm.default weight=None bias=None eps=1e-05 cudnn_enable=True
leaky_relu.default negative_slope=0.01
linalg_cholesky_ex.default upper=False check_errors=False
linalg_inv_ex.default check_errors=False
linalg_lu.default pivot=True
linalg_lu_factor_ex.default pivot=True check_errors=False
linalg_lu_solve.default left=True adjoint=False
linalg_norm.default ord=None dim=None keepdim=False dtype=None
linalg_pinv.atol_rtol_tensor atol=None rtol=None hermitian=False
linalg_qr.default mode='reduced'
linalg_solve_triangular.default left=True unitriangular=False
linalg_vector_norm.default ord=2 dim=None keepdim=False dtype=None
linear.default bias=None
linspace.Scalar_Tensor dtype=None
linspace.Tensor_Scalar dtype=None
linspace.Tensor_Tensor dtype=None
linspace.default dtype=None
log_softmax.int dtype=None
logspace.Scalar_Tensor base=10.0 dtype=None
logspace.Tensor_Scalar base=10.0 dtype=None
logspace.Tensor_Tensor base=10.0 dtype=None
logspace.default base=10.0 dtype=None
logsumexp.default keepdim=False
lu_unpack.default unpack_data=True unpack_pivots=True
margin_ranking_loss.default margin=0.0 reduction=1
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
mse_loss.default reduction=1
nanmedian.dim keepdim=False
new_empty.default dtype=None
new_empty_strided.default dtype=None
new_full.default dtype=None
new_ones.default dtype=None
new_zeros.default dtype=None
nll_loss.default weight=None reduction=1 ignore_index=-100
nll_loss2d.default weight=None reduction=1 ignore_index=-100
nll_loss_nd.default weight=None reduction=1 ignore_index=-100
nonzero_static.default fill_value=-1
norm.Scalar p=2
norm.ScalarOpt_dim keepdim=False
one_hot.default num_classes=-1
ones.default dtype=None
ones_like.default dtype=None
ormqr.default left=True transpose=False
pad.default mode='constant' value=None
prod.default dtype=None
prod.dim_int keepdim=False dtype=None
put.default accumulate=False
repeat_interleave.Tensor output_size=None
repeat_interleave.self_int dim=None output_size=None
rms_norm.default weight=None eps=None
roll.default dims=[]
rsub.Scalar alpha=1
rsub.Tensor alpha=1
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
smooth_l1_loss.default reduction=1 beta=1.0
soft_margin_loss.default reduction=1
softmax.int dtype=None
softplus.default beta=1 threshold=20
softshrink.default lambd=0.5
sort.Tensor reverse=False
sort.any reverse=False
sort.bool reverse=False
sort.default dim=-1 descending=False
sort.float reverse=False
sort.int reverse=False
sort.stable dim=-1 descending=False
sort.str reverse=False
special_logsumexp.default keepdim=False
special_round.default decimals=0
special_softmax.default dtype=None
split.Tensor dim=0
split.default dim=0
split.sizes dim=0
split.str separator=None max=-1
split_copy.Tensor dim=0
split_with_sizes.default dim=0
split_with_sizes_copy.default dim=0
stack.default dim=0
std.correction dim=None correction=None keepdim=False
std.default unbiased=True
std.dim unbiased=True keepdim=False
std_mean.correction dim=None correction=None keepdim=False
std_mean.default unbiased=True
std_mean.dim unbiased=True keepdim=False
sub.Scalar alpha=1
sub.Tensor alpha=1
subtract.Scalar alpha=1
subtract.Tensor alpha=1
sum.default dtype=None
sum.dim_IntList keepdim=False dtype=None
tensor_split.indices dim=0
tensor_split.sections dim=0
tensor_split.tensor_indices_or_sections dim=0
to.device copy=False
to.dtype copy=False
to.dtype_layout dtype=None copy=False
to.other copy=False
to.prim_Device dtype=None copy=False
to.prim_dtype dtype=None copy=False
to.prim_other copy=False
topk.default dim=-1 largest=True sorted=True
triangular_solve.default upper=True transpose=False unitriangular=False
tril.default diagonal=0
tril_indices.default offset=0 dtype=4
triu.default diagonal=0
triu_indices.default offset=0 dtype=4
unbind.int dim=0
unbind_copy.int dim=0
unique_consecutive.default return_inverse=False return_counts=False dim=None
unsafe_chunk.default dim=0
unsafe_split.Tensor dim=0
unsafe_split_with_sizes.default dim=0
upsample_bicubic2d.default scales_h=None scales_w=None
upsample_bilinear2d.default scales_h=None scales_w=None
upsample_linear1d.default scales=None
upsample_nearest1d.default scales=None
upsample_nearest2d.default scales_h=None scales_w=None
upsample_nearest3d.default scales_d=None scales_h=None scales_w=None
upsample_trilinear3d.default scales_d=None scales_h=None scales_w=None
var.correction dim=None correction=None keepdim=False
var.default unbiased=True
var.dim unbiased=True keepdim=False
var_mean.correction dim=None correction=None keepdim=False
var_mean.default unbiased=True
var_mean.dim unbiased=True keepdim=False
zeros.default dtype=None
zeros_like.default dtype=None
"""


def _read() -> Mapping[str, Mapping[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for line in _TEXT.split("\n")[1:-1]:
        name, *given = line.split(" ")
        pairs = (part.split("=") for part in given)
        held = found.setdefault(f"aten.{name}", {})
        held.update((key, ast.literal_eval(value)) for key, value in pairs)
    return MappingProxyType(found)


DEFAULTS = _read()  # by overload and name of the argument
