"""Functions and modules of torch that the tests of both import paths share."""

from __future__ import annotations

from typing import Any

import torch

F = torch.nn.functional


class Call(torch.nn.Module):
    """Wraps a function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def export(module: Any, *inputs: Any, shapes: Any = None) -> Any:
    model = module.eval() if isinstance(module, torch.nn.Module) else Call(module)
    with torch.no_grad():
        return torch.export.export(model, inputs, dynamic_shapes=shapes, strict=False)


# One line per kind of converter; all lines are one program, so that the test is quick.
POINTWISE = (
    lambda x, y: x + 2 * y,
    lambda x, y: torch.add(x, y, alpha=3),
    lambda x, y: 1.5 - x,
    lambda x, y: torch.rsub(x, y, alpha=2),
    lambda x, y: torch.maximum(x > 0, y > 0) ^ torch.minimum(x > y, y > 0),
    lambda x, y: torch.div(x, y, rounding_mode="floor"),
    lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    lambda x, y: torch.remainder(x, y),
    lambda x, y: torch.atan2(x, y),
    lambda x, y: torch.where(x > y, x, 0.0),
    lambda x, y: x.clamp(-0.5, 0.25),
    lambda x, y: (x > 0) & (y != 0),
    lambda x, y: torch.expm1(x) + torch.log1p(y.abs()),
    lambda x, y: F.softplus(x, 2.0, 1.0) + F.elu(y) + F.hardtanh(x) + F.silu(y),
    lambda x, y: F.gelu(x, approximate="tanh") + F.glu(torch.cat([x, y], -1)),
    lambda x, y: torch.copysign(x, y) + torch.fmax(x, y) + torch.logaddexp(x, y),
    lambda x, y: (x * 10).int() // 3 + (y * 10).int() % 4,
    lambda x, y: ((x * 10).int() << 3) + ((y * 10).int() >> 1),
    lambda x, y: F.relu((x * 10).int()) - (-(x.abs() * 10).to(torch.uint8)),
)
MOVEMENT = (
    lambda x, y: x[0].gather(0, torch.tensor(2)) + x[0].scatter(0, torch.tensor(1), y[0, 0]),
    lambda x, y: x.reshape(-1, 3)[1:, ::2].transpose(0, 1),
    lambda x, y: torch.stack([x, y], 1).flip(1).roll(1, -1),
    lambda x, y: torch.cat([x, y.repeat(2, 1)], 0).unfold(1, 3, 2),
    lambda x, y: F.pad(x, (1, -1, 2, 0), value=0.5),
    lambda x, y: F.pad(x[None], (1, 1), mode="reflect"),
    lambda x, y: x.tril(-1) + x.repeat_interleave(2, 1)[:, :6] + x.diagonal(1).sum(),
    lambda x, y: x[:, [0, -1]] + x[torch.tensor([[0], [2]]), torch.tensor([1, 2])][0],
    lambda x, y: x.T.as_strided((2, 2), (1, 2)) + x[1:].as_strided((2, 2), (7, 2), 8),
    lambda x, y: x.T.as_strided_scatter(y[:2, :2], (2, 2), (12, 2), 1),
    lambda x, y: x.index_put((torch.tensor([0, 2]),), y[:2], accumulate=True),
    lambda x, y: x.scatter_add(1, (y > 0).long(), y) + torch.gather(x, 0, (y < 0).long()),
    lambda x, y: torch.slice_scatter(x, y[:, :3], 1, 0, 6, 2),
    lambda x, y: torch.sort(x, 1, descending=True)[0] + torch.topk(y, 6, 1)[0],
    lambda x, y: torch.argsort(x, 1) + F.one_hot((x > 0).long(), 6).sum(1),
    lambda x, y: torch.linspace(0, 1, 6) + torch.arange(0.0, 3.0, 0.5) + torch.eye(4, 6),
)
REDUCED = (
    lambda x, y: x.sum(), lambda x, y: x.mean(1, keepdim=True), lambda x, y: x.max(0)[1],
    lambda x, y: x.var(1) + y.std(1, unbiased=False), lambda x, y: (x > 2).any(),
    lambda x, y: torch.cummax(x, 1)[1] + torch.cummin((x * 2).int(), 1)[0],
    lambda x, y: torch.any(x > 0, dim=()) & torch.all(x > 0, dim=(0, 1)),
    lambda x, y: torch.logcumsumexp(x, 0),
    lambda x, y: torch.linalg.vector_norm(x, 3, 1), lambda x, y: x.argmax(),
    lambda x, y: torch.softmax(x, 1) + F.log_softmax(y, 0), lambda x, y: x.cumsum(1).logsumexp(1),
    lambda x, y: F.layer_norm(x, (6,)) + F.rms_norm(y, (6,)), lambda x, y: x @ y.mT,
    lambda x, y: torch.einsum("ij,kj->ik", x, y),
    lambda x, y: torch.addmm(x[:, :4], x, y.T, beta=2),
)  # fmt: skip


COMPOSITES = (
    lambda x, y: torch.addcmul(x, y, y, value=0.5) + torch.addcdiv(x, y, y.abs() + 1),
    lambda x, y: torch.lerp(x, y, 0.75) + torch.lerp(x, y, y) + torch.deg2rad(x),
    lambda x, y: torch.float_power(x.abs(), 2) + F.mse_loss(x, y) + F.l1_loss(x, y),
    lambda x, y: F.cosine_similarity(x, y) + torch.diff(x, dim=0, n=2).sum(),
    lambda x, y: torch.tile(x, (2,)) + torch.tile(x[0], (2, 2)).sum(),
    lambda x, y: torch.meshgrid(x[0], y[:, 0], indexing="xy"),
    lambda x, y: torch.meshgrid(x[0], y[:, 0], indexing="ij"),
    lambda x, y: torch.movedim(x[None], 0, 2) + torch.swapaxes(y[None], 2, 0).sum(),
    lambda x, y: [torch.atleast_3d(v) for v in (x[0, 0], x[0], x)],
    lambda x, y: [torch.atleast_2d(v) for v in (x[0, 0], x[0], x)],
    lambda x, y: torch.hstack([x, y]).sum(0) + torch.hstack([x[0], y[0]]),
    lambda x, y: torch.vstack([x, y[0]]) + torch.dstack([x, y]).sum(),
    lambda x, y: torch.column_stack([x, y[:, 0]]) + torch.column_stack([x[0], y[0]]).sum(),
    lambda x, y: x.flipud() + y.fliplr() + torch.linalg.norm(x) + torch.linalg.norm(y, 3, dim=0),
    lambda x, y: F.batch_norm(x[:, :, None], None, None, y[0], y[1], training=True),
    lambda x, y: torch.broadcast_tensors(x, y[0]),
    lambda x, y: torch.isclose(x, x + 1e-7 * y) & torch.isclose(x, y, atol=0.5),
    lambda x, y: torch.isclose(torch.arange(99998, 100002), torch.tensor(100000), rtol=1e-5),
    lambda x, y: F.cosine_similarity(x[:, :4], y[:, :4].expand(4, 4, 4), dim=1),
    lambda x, y: torch.count_nonzero(x > 0, 1) + torch.inner(x, y).long(),
    lambda x, y: F.unfold(x[None, None], (2, 3), dilation=(1, 2), padding=1, stride=(2, 1)),
    lambda x, y: torch.max(x, y).square().multiply(y).subtract(1).T,
)


# Labels, weights and bounds cover every branch.
LOSSES = (
    lambda x, y: F.mse_loss(x, y) + F.l1_loss(x, y, reduction="sum"),
    lambda x, y: F.smooth_l1_loss(x, y, beta=0.5) + F.huber_loss(x, y, "none", 0.7),
    lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), weight=y.abs()),
    lambda x, y: F.binary_cross_entropy_with_logits(x * 9, y.sigmoid(), pos_weight=y[0].abs()),
    lambda x, y: F.kl_div(x, F.relu(y), reduction="none") + F.kl_div(x, y, log_target=True),
    lambda x, y: F.soft_margin_loss(x, y.sign()) + F.margin_ranking_loss(x, y, y.sign(), 0.3),
    lambda x, y: F.poisson_nll_loss(x, y.abs() * 2, full=True, reduction="none"),
    lambda x, y: F.poisson_nll_loss(x.abs(), y, log_input=False),
    lambda x, y: F.cross_entropy(x, torch.tensor([5, -100, 0, 2]), y[0].abs()),
    lambda x, y: F.cross_entropy(x[None], torch.tensor([[3, 0, 1, 1, 2, 0]]), reduction="none"),
    lambda x, y: F.cross_entropy(x, y.softmax(1), y[0].abs(), label_smoothing=0.1),
    lambda x, y: F.nll_loss(x, torch.tensor([1, 2, 3, 4]), ignore_index=2, reduction="sum"),
    lambda x, y: F.cross_entropy(x[0], torch.tensor(2)) + F.cross_entropy(x[0], y[0].softmax(0)),
)


def square(x: Any) -> Any:
    return x[:, :4] @ x[:, :4].mT + torch.eye(4)


# The signs of singular vectors are arbitrary.
LINALG = (
    lambda x, y: torch.linalg.inv(square(x)),
    lambda x, y: torch.linalg.solve(square(x), y),
    lambda x, y: torch.linalg.solve(square(x), y[:, 0]),
    lambda x, y: torch.linalg.solve(square(x), y.mT, left=False),
    lambda x, y: torch.linalg.lu(x)[0] @ torch.linalg.lu(x.mT)[2].mT,
    lambda x, y: torch.linalg.lu_factor_ex(torch.zeros(2, 3, 3))[2],
    lambda x, y: torch.linalg.lu_solve(*torch.linalg.lu_factor(square(x)), y, adjoint=True),
    lambda x, y: torch.linalg.slogdet(x[:, 1:5])[1] + torch.linalg.slogdet(x[:, :4])[0],
    lambda x, y: torch.linalg.det(x[:, :4]),
    lambda x, y: torch.linalg.cholesky(square(x)) + torch.linalg.cholesky(square(y), upper=True),
    lambda x, y: torch.cholesky_solve(y, torch.linalg.cholesky(square(x))),
    lambda x, y: torch.linalg.qr(x.mT)[0] @ torch.linalg.qr(x)[1],
    lambda x, y: torch.linalg.qr(x.mT, mode="complete")[0],
    lambda x, y: torch.ormqr(*torch.geqrf(x.mT), y.mT, transpose=True),
    lambda x, y: torch.linalg.svdvals(x),
    lambda x, y: torch.linalg.svd(x)[0].abs() + torch.linalg.svd(x)[2][:4, :4].abs(),
    lambda x, y: torch.linalg.eigvalsh(square(x)) + torch.linalg.eigh(y[:, :4], "U")[0],
    lambda x, y: torch.linalg.pinv(x) + torch.linalg.pinv(y[:, :1] @ x[:1]),
    lambda x, y: torch.linalg.matrix_exp(3 * x[:, :4]) / 1e3,
    lambda x, y: torch.linalg.solve_triangular(y[:, :4] + 4 * torch.eye(4), x, upper=True),
    lambda x, y: torch.linalg.matrix_rank(y[:, :1] @ x[:1]),
    lambda x, y: F.pad(x[None], (-5, 2, 1, -3), mode="replicate"),
)
COMPLEX = (
    lambda x, y: torch.fft.irfft2(torch.fft.rfft2(x, s=(-1, 8), norm="ortho"), s=(3, 5)),
    lambda x, y: torch.view_as_real(torch.fft.ifftn(torch.fft.fft(x, 5, 0), norm="forward")),
    # The first and the last number are real: rounding decides whether their angle is pi or -pi.
    lambda x, y: torch.fft.rfft(x).abs()[:, 1:3] + torch.fft.rfft(y, norm="ortho")[:, 1:3].angle(),
    lambda x, y: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(y), 6),
    lambda x, y: torch.view_as_real(torch.fft.fft2(x, norm="forward")),
    lambda x, y: torch.view_as_real(torch.fft.ifft(torch.complex(x, y), dim=0) / (1 + 2j)),
    lambda x, y: torch.view_as_real(
        torch.polar(x, y).conj()[:, 1:].T / torch.complex(x, y)[:, 1:].T
    ),
    lambda x, y: torch.view_as_real(
        torch.exp(torch.complex(x, y)) @ torch.complex(y, x).T + x[:, :4]
    ),
    lambda x, y: torch.fft.hfftn(x, norm="ortho"),
    lambda x, y: torch.view_as_real(torch.fft.ihfft2(torch.fft.hfft2(torch.complex(x, y), (4, 5)))),
    lambda x, y: torch.view_as_complex(x.reshape(4, 3, 2)).imag,
    lambda x, y: torch.angle(x),
)
STAIRS = 9 * torch.arange(-4, 4)[:, None]  # the last rows of a mask select nothing
WINDOWS = (
    lambda x, w: F.interpolate(x, (5, 3), mode="bilinear", antialias=True),
    lambda x, w: F.interpolate(x, scale_factor=0.6, mode="bicubic", antialias=True),
    lambda x, w: F.embedding_bag((w[0, :2] > 0).long().reshape(-1, 9), w[0, :, :, 0], mode="max"),
    lambda x, w: F.embedding_bag(
        torch.tensor([3, 1, 3, 0]), w[0, 0].new_ones(4, 2), torch.tensor([0, 0, 1]), padding_idx=-1
    ),
    lambda x, w: F.conv2d(x, w, stride=2, padding=1),
    lambda x, w: F.conv2d(x, w[:, :1], groups=4, padding="same"),
    lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
    lambda x, w: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    lambda x, w: F.max_pool2d(x, 2, return_indices=True)[1],
    lambda x, w: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    lambda x, w: F.adaptive_avg_pool2d(x, (3, 1)),
    lambda x, w: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
    lambda x, w: F.interpolate(x, (5, 3)),
    lambda x, w: F.interpolate(x, (9, 4), mode="bicubic", align_corners=True),
    lambda x, w: F.group_norm(x, 2) + F.instance_norm(x),
    lambda x, w: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2),
    lambda x, w: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    lambda x, w: F.scaled_dot_product_attention(x[0], x[0], x[0], x[0, :, :, :8] > 0),
    lambda x, w: F.scaled_dot_product_attention(x, x, x, x[:, :1] > STAIRS),
    lambda x, w: F.scaled_dot_product_attention(
        x[0], x[0], x[0], torch.where(x[0] > STAIRS, 0.5, -torch.inf)
    ),
    lambda x, w: F.grid_sample(x, torch.tanh(w[:2, :, :2, :].transpose(1, 3))[..., :2]),
)


class Recurrent(torch.nn.Module):
    """Recurrent layers of each kind: stacked, in both directions, without biases."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.LSTM(6, 3, num_layers=2, bidirectional=True, batch_first=True)
        self.second = torch.nn.GRU(6, 5, bidirectional=True)
        self.third = torch.nn.RNN(10, 4, nonlinearity="relu", bias=False)

    def forward(self, x: Any) -> Any:
        first, (h, c) = self.first(x)
        second, last = self.second(first)
        return [first, h, c, second, last, *self.third(second)]


class Network(torch.nn.Module):
    """A module with a parameter, a buffer, nested results and a result that is None."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.register_buffer("shift", torch.randn(8))

    def forward(self, x: Any, *, scale: Any = None) -> Any:
        hidden = self.norm(F.relu(self.first(x)))
        hidden = hidden if scale is None else hidden * scale
        return {"hidden": hidden, "pair": [hidden + self.shift, None], "count": x.shape[0] * 2}


def regions(x: Any) -> Any:
    """Returns results of operators that hold blocks; their imports take a second."""
    from torch._higher_order_ops.map import map as mapped
    from torch._higher_order_ops.scan import scan
    from torch._higher_order_ops.while_loop import while_loop

    return (
        torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,)),
        torch.cond(x.sum() <= 0, lambda x: (x * 2, x + 1), lambda x: (x - 1, x * x), (x,)),
        while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.5 + i), (torch.tensor(0), x)),
        scan(lambda c, x: (c + x, c * x), torch.zeros(4), x),
        mapped(lambda row, y: row * 2 + y, x, torch.ones(4)),
    )


def plain_regions(x: Any) -> Any:
    """Returns the results of `regions` in plain Python, because torch would trace its own operators
    again."""
    positive = bool(x.sum() > 0)
    looped, total, rows = x, torch.zeros(4), []
    for i in range(5):
        looped = looped * 1.5 + i
    for row in x:
        rows.append(total * row)
        total = total + row
    return (
        x * 2 if positive else x - 1,
        (x - 1, x * x) if positive else (x * 2, x + 1),
        (torch.tensor(5), looped),
        (total, torch.stack(rows)),
        x * 2 + 1,
    )


def forward_and_backward(program: Any) -> Any:
    """Returns the program with its gradients."""
    # torch's compiler takes seconds to import, and only the worker of these tests imports it
    from torch.export.experimental import _export_forward_backward

    return _export_forward_backward(program)
