"""Backbones, detection heads, segmentation, capsules, image processing."""

import functools
import math
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import images, zoo


class BasicBlock(nn.Module):
    expansion: int = 1

    def __init__(self, i, o, stride=1, downsample=None, norm_layer=None):
        super().__init__()
        norm_layer = norm_layer or nn.BatchNorm2d
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), norm_layer(o)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), norm_layer(o)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


@zoo(images(3, 16))
class TinyResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inplanes = 4
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1, self.layer2 = self._make_layer(4, 1), self._make_layer(8, 2, 2)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(8, 3)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out")

    def _make_layer(self, planes, blocks, stride=1):
        down = None
        if stride != 1 or self.inplanes != planes:
            down = nn.Sequential(nn.Conv2d(self.inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))
        layers = [BasicBlock(self.inplanes, planes, stride, down)]
        self.inplanes = planes
        layers.extend(BasicBlock(planes, planes) for _ in range(1, blocks))
        return nn.Sequential(*layers)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(self.layer2(self.layer1(x))), 1))


@zoo(images(3, 8))
class DenseNetBlock(nn.Module):
    class Layer(nn.Module):
        def __init__(self, i):
            super().__init__()
            self.add_module("norm1", nn.BatchNorm2d(i))
            self.add_module("conv1", nn.Conv2d(i, 2, 3, padding=1))
            self.drop_rate = 0.2

        def forward(self, inputs):
            prev = [inputs] if isinstance(inputs, Tensor) else inputs
            new = self.conv1(F.relu(self.norm1(torch.cat(prev, 1))))
            return F.dropout(new, p=self.drop_rate, training=self.training) if self.drop_rate > 0 else new

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict(OrderedDict((f"denselayer{i + 1}", self.Layer(3 + 2 * i)) for i in range(3)))

    def forward(self, x):
        features = [x]
        for _, layer in self.layers.items():
            features.append(layer(features))
        return torch.cat(features, 1)


@zoo(images(4, 8))
class SqueezeExcite(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(
            nn.Linear(4, 2, bias=False), nn.ReLU(inplace=True), nn.Linear(2, 4, bias=False), nn.Sigmoid()
        )

    def forward(self, x):
        b, c, _, _ = x.size()
        y = self.fc(nn.AdaptiveAvgPool2d(1)(x).view(b, c)).view(b, c, 1, 1)
        return x * y.expand_as(x)


@zoo(images(4, 8))
class CBAM(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp, self.conv = (
            nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 4)),
            nn.Conv2d(2, 1, 3, padding=1),
        )

    def forward(self, x):
        att = None
        for pool in ["avg", "max"]:
            if pool == "avg":
                p = F.avg_pool2d(x, (x.size(2), x.size(3)), stride=(x.size(2), x.size(3)))
            elif pool == "max":
                p = F.max_pool2d(x, (x.size(2), x.size(3)), stride=(x.size(2), x.size(3)))
            raw = self.mlp(p)
            att = raw if att is None else att + raw
        x = x * torch.sigmoid(att).unsqueeze(2).unsqueeze(3)
        return x * torch.sigmoid(
            self.conv(torch.cat((torch.max(x, 1)[0].unsqueeze(1), torch.mean(x, 1).unsqueeze(1)), dim=1))
        )


@zoo(images(3, 16))
class InceptionBlock(nn.Module):
    def __init__(self):
        super().__init__()
        conv = functools.partial(nn.Conv2d, 3)
        self.branch1, self.branch2, self.branch3 = (
            conv(2, 1),
            nn.Sequential(conv(2, 1), nn.Conv2d(2, 3, 3, padding=1)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), conv(2, 1)),
        )

    def _forward(self, x):
        return [self.branch1(x), self.branch2(x), self.branch3(x)]

    def forward(self, x):
        return torch.cat(self._forward(x), 1)


@zoo(images(4, 8))
class ShuffleUnit(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1, groups=2)

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        x = torch.cat((a, self.conv(b)), dim=1)
        n, c, h, w = x.data.size()
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, -1, h, w)


@zoo(images(4, 8))
class GhostModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.primary, self.cheap = nn.Conv2d(4, 3, 1), nn.Conv2d(3, 3, 3, 1, 1, groups=3)

    def forward(self, x):
        x1 = F.hardswish(self.primary(x))
        return torch.cat([x1, F.hardsigmoid(self.cheap(x1))], dim=1)[:, :5, :, :]


@zoo(images(3, 16))
class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        dc = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True))  # noqa: E731
        self.inc, self.down, self.up = (
            dc(3, 4),
            nn.Sequential(nn.MaxPool2d(2), dc(4, 8)),
            nn.ConvTranspose2d(8, 4, 2, stride=2),
        )
        self.conv, self.outc = dc(8, 4), nn.Conv2d(4, 2, 1)

    def forward(self, x):
        x1 = self.inc(x)
        u = self.up(self.down(x1))
        dy, dx = x1.size()[2] - u.size()[2], x1.size()[3] - u.size()[3]
        u = F.pad(u, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.outc(self.conv(torch.cat([x1, u], dim=1)))


@zoo(images(3, 16))
class FPN(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.ModuleList([nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 8, 3, 2, 1)])
        self.inner, self.layer = (
            nn.ModuleList([nn.Conv2d(4, 4, 1), nn.Conv2d(8, 4, 1)]),
            nn.ModuleList([nn.Conv2d(4, 4, 3, 1, 1) for _ in range(2)]),
        )

    def get_result_from_inner_blocks(self, x, idx):
        for i, module in enumerate(self.inner):
            if i == idx:
                x = module(x)
        return x

    def forward(self, x):
        feats = OrderedDict()
        for i, m in enumerate(self.body):
            x = feats[f"feat{i}"] = m(x)
        names, values = list(feats.keys()), list(feats.values())
        last = self.get_result_from_inner_blocks(values[-1], -1 + len(values))
        results = [self.layer[-1](last)]
        for idx in range(len(values) - 2, -1, -1):
            inner = self.get_result_from_inner_blocks(values[idx], idx)
            last = inner + F.interpolate(last, size=inner.shape[-2:], mode="nearest")
            results.insert(0, self.layer[idx](last))
        return OrderedDict(zip(names, results))


@zoo(images(4, 8))
class SSDHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.cls, self.reg = nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)

    def forward(self, x):
        n, _, h, w = x.shape
        cls = self.cls(x).view(n, 2, 3, h, w).permute(0, 3, 4, 1, 2).reshape(n, -1, 3)
        sx, sy = (torch.arange(w) + 0.5) / w, (torch.arange(h) + 0.5) / h
        cy, cx = torch.meshgrid(sy, sx, indexing="ij")
        anchors = (
            torch.stack([cx, cy, torch.full_like(cx, 0.2), torch.full_like(cx, 0.3)], -1)
            .view(-1, 1, 4)
            .repeat(1, 2, 1)
            .view(-1, 4)
        )
        reg = self.reg(x).view(n, 2, 4, h, w).permute(0, 3, 4, 1, 2).reshape(n, -1, 4)
        centre = reg[..., :2] * anchors[:, 2:] * 0.1 + anchors[:, :2]
        size = anchors[:, 2:] * torch.exp(reg[..., 2:] * 0.2)
        return cls.softmax(-1), torch.cat([centre - size / 2, centre + size / 2], -1)


@zoo(images(16, 4))
class YOLOLayer(nn.Module):
    def __init__(self, anchors=((10, 13), (16, 30)), classes=3):
        super().__init__()
        self.na, self.no, self.nx, self.ny, self.stride = 2, classes + 5, 0, 0, 8
        self.register_buffer("anchors", torch.tensor(anchors).float().view(2, 2))
        self.grid = torch.zeros(1)

    def create_grids(self, ng=(13, 13)):
        self.nx, self.ny = ng
        yv, xv = torch.meshgrid([torch.arange(self.ny), torch.arange(self.nx)], indexing="ij")
        self.grid = torch.stack((xv, yv), 2).view((1, 1, self.ny, self.nx, 2)).float()

    def forward(self, p):
        bs, _, ny, nx = p.shape
        if (self.nx, self.ny) != (nx, ny):
            self.create_grids((nx, ny))
        p = p.view(bs, self.na, self.no, self.ny, self.nx).permute(0, 1, 3, 4, 2).contiguous()
        io = p.sigmoid()
        io[..., :2] = (io[..., :2] * 2.0 - 0.5 + self.grid) * self.stride
        io[..., 2:4] = (io[..., 2:4] * 2) ** 2 * self.anchors.view(1, self.na, 1, 1, 2)
        return io.view(bs, -1, self.no), p


def box_iou(a, b):
    area = lambda x: (x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1])  # noqa: E731
    lt, rb = torch.max(a[:, None, :2], b[:, :2]), torch.min(a[:, None, 2:], b[:, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[:, :, 0] * wh[:, :, 1]
    return inter / (area(a)[:, None] + area(b) - inter)


@zoo(lambda: (torch.rand(5, 2).repeat(1, 2) + torch.tensor([0.0, 0, 0.5, 0.5]), torch.rand(5)))
class MatrixNMS(nn.Module):
    def forward(self, boxes, scores):
        order = scores.argsort(descending=True)
        iou = box_iou(boxes[order], boxes[order]).triu(diagonal=1)
        decay = ((1 - iou) / (1 - iou.max(0).values[:, None])).min(0).values
        return scores[order] * decay


@zoo(lambda: (torch.tensor([[0.0, 0, 1, 1], [0.1, 0, 1, 1], [2, 2, 3, 3]]), torch.tensor([0.9, 0.8, 0.7])), breaks=2)
class GreedyNMS(nn.Module):
    """As many turns as boxes are left: nobody knows before."""

    def forward(self, boxes, scores):
        keep, order = [], scores.argsort(descending=True)
        while order.numel() > 0:
            i = order[0]
            keep.append(i)
            iou = box_iou(boxes[i][None], boxes[order])[0]
            order = order[iou <= 0.5]
        return torch.stack(keep)


@zoo(images(2, 4))
class FocalLoss(nn.Module):
    def forward(self, x, gamma: float = 2.0, alpha: float = 0.25):
        target = (x > 0).float()
        p = torch.sigmoid(x)
        ce = F.binary_cross_entropy_with_logits(x, target, reduction="none")
        p_t = p * target + (1 - p) * (1 - target)
        loss = ce * ((1 - p_t) ** gamma)
        if alpha >= 0:
            loss = (alpha * target + (1 - alpha) * (1 - target)) * loss
        return loss.mean()


@zoo(lambda: (torch.rand(4, 4).cumsum(1), torch.rand(4, 4).cumsum(1)))
class GIoULoss(nn.Module):
    def forward(self, a, b):
        x1, y1, x2, y2 = a.unbind(dim=-1)
        u1, v1, u2, v2 = b.unbind(dim=-1)
        inter = (torch.min(x2, u2) - torch.max(x1, u1)).clamp(0) * (torch.min(y2, v2) - torch.max(y1, v1)).clamp(0)
        union = (x2 - x1) * (y2 - y1) + (u2 - u1) * (v2 - v1) - inter
        hull = (torch.max(x2, u2) - torch.min(x1, u1)) * (torch.max(y2, v2) - torch.min(y1, v1))
        return (1 - inter / (union + 1e-7) + (hull - union) / (hull + 1e-7)).sum()


@zoo(images(1, 12))
class CapsNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.primary = nn.Conv2d(1, 4, 5), nn.ModuleList([nn.Conv2d(4, 2, 4, 2) for _ in range(3)])
        self.W = nn.Parameter(torch.randn(1, 18, 4, 5, 3))

    @staticmethod
    def squash(s):
        n = (s**2).sum(-1, keepdim=True)
        return n * s / ((1.0 + n) * torch.sqrt(n))

    def forward(self, x):
        u = torch.stack([c(F.relu(self.conv(x))) for c in self.primary], dim=1).view(x.size(0), 3, -1)
        u = self.squash(u.transpose(1, 2))
        u_hat = torch.matmul(self.W, u[:, :, None, :, None].expand(-1, -1, 4, -1, -1)).squeeze(-1)
        b_ij = torch.zeros(1, u_hat.size(1), 4, 1)
        for iteration in range(3):
            v = self.squash((F.softmax(b_ij, dim=1) * u_hat).sum(dim=1, keepdim=True))
            if iteration < 2:
                b_ij = b_ij + (u_hat * v).sum(-1, keepdim=True).mean(dim=0, keepdim=True)
        return v.squeeze(1).norm(dim=-1)


@zoo(images(1, 8))
class SpatialTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc = nn.Linear(64, 6)
        self.loc.weight.data.zero_()
        self.loc.bias.data.copy_(torch.tensor([1, 0, 0.1, 0, 1, 0], dtype=torch.float))

    def forward(self, x):
        theta = self.loc(x.view(-1, 64)).view(-1, 2, 3)
        return F.grid_sample(x, F.affine_grid(theta, x.size(), align_corners=False), align_corners=False)


@zoo(images(4, 8))
class ASPP(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(4, 2, 1)] + [nn.Conv2d(4, 2, 3, padding=r, dilation=r) for r in (1, 2)])
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 2, 1), nn.ReLU())

    def forward(self, x):
        res = [F.relu(conv(x)) for conv in self.convs]
        res.append(F.interpolate(self.pool(x), size=x.shape[-2:], mode="bilinear", align_corners=False))
        return torch.cat(res, dim=1)


@zoo(images(4, 8))
class PixelShuffleSR(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 12, 3, padding=1)

    def forward(self, x):
        return F.pixel_shuffle(self.conv(x), 2).clamp(0, 1) + F.interpolate(x[:, :3], scale_factor=2, mode="bicubic")


@zoo(images(4, 8))
class NonLocal(nn.Module):
    def __init__(self):
        super().__init__()
        self.theta, self.phi, self.g, self.W = (
            nn.Conv2d(4, 2, 1),
            nn.Conv2d(4, 2, 1),
            nn.Conv2d(4, 2, 1),
            nn.Conv2d(2, 4, 1),
        )

    def forward(self, x):
        b = x.size(0)
        g = self.g(x).view(b, 2, -1).permute(0, 2, 1)
        f = torch.matmul(self.theta(x).view(b, 2, -1).permute(0, 2, 1), self.phi(x).view(b, 2, -1))
        y = torch.matmul(f / f.size(-1), g).permute(0, 2, 1).contiguous().view(b, 2, *x.size()[2:])
        return self.W(y) + x


@zoo(images(3, 8))
class MLPMixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm1, self.norm2 = nn.Conv2d(3, 8, 2, 2), nn.LayerNorm(8), nn.LayerNorm(8)
        self.token, self.channel = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)), nn.Linear(8, 8)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        x = x + self.token(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return (x + self.channel(self.norm2(x))).mean(1)


def window_partition(x, w):
    b, h, wd, c = x.shape
    return x.view(b, h // w, w, wd // w, w, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, w, w, c)


@zoo(lambda: (torch.randn(2, 8, 8, 4),))
class ShiftedWindows(nn.Module):
    def forward(self, x):
        mask, cnt = torch.zeros((1, 8, 8, 1)), 0
        for h in (slice(0, -4), slice(-4, -2), slice(-2, None)):
            for w in (slice(0, -4), slice(-4, -2), slice(-2, None)):
                mask[:, h, w, :] = cnt
                cnt += 1
        m = window_partition(mask, 4).view(-1, 16)
        attn_mask = m.unsqueeze(1) - m.unsqueeze(2)
        attn_mask = attn_mask.masked_fill(attn_mask != 0, (-100.0)).masked_fill(attn_mask == 0, 0.0)
        q = window_partition(torch.roll(x, shifts=(-2, -2), dims=(1, 2)), 4).view(-1, 16, 4)
        a = (q @ q.transpose(-2, -1)).view(2, 4, 16, 16) + attn_mask.unsqueeze(0)
        return F.softmax(a, -1).view(-1, 16, 16) @ q


@zoo(images(3, 8))
class PerceptualStyle(nn.Module):
    def __init__(self):
        super().__init__()
        self.slices = nn.ModuleList([nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)])
        for p in self.parameters():
            p.requires_grad = False

    def gram(self, y):
        b, ch, h, w = y.size()
        f = y.view(b, ch, w * h)
        return f.bmm(f.transpose(1, 2)) / (ch * h * w)

    def forward(self, x):
        grams = []
        for s in self.slices:
            x = F.relu(s(x))
            grams.append(self.gram(x))
        return grams


@zoo(images(1, 12))
class SSIM(nn.Module):
    def __init__(self):
        super().__init__()
        g = torch.Tensor([math.exp(-((x - 2) ** 2) / 4.5) for x in range(5)])
        g = (g / g.sum()).unsqueeze(1)
        self.register_buffer("window", g.mm(g.t())[None, None], persistent=False)

    def forward(self, a):
        b = a.roll(1, -1)
        conv = lambda t: F.conv2d(t, self.window, padding=2)  # noqa: E731
        mu1, mu2 = conv(a), conv(b)
        s1, s2, s12 = conv(a * a) - mu1**2, conv(b * b) - mu2**2, conv(a * b) - mu1 * mu2
        return (((2 * mu1 * mu2 + 1e-4) * (2 * s12 + 9e-4)) / ((mu1**2 + mu2**2 + 1e-4) * (s1 + s2 + 9e-4))).mean()


@zoo(images(3, 8))
class FourierUnit(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(6, 6, 1)

    def forward(self, x):
        f = torch.fft.rfft2(x, norm="ortho")
        y = self.conv(torch.cat([f.real, f.imag], 1))
        real, imag = y.chunk(2, 1)
        return torch.fft.irfft2(torch.complex(real, imag), s=x.shape[-2:], norm="ortho")


@zoo(lambda: (torch.randn(3, 4), torch.randn(3, 4)))
class BarlowTwins(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(4, affine=False)

    def forward(self, a, b):
        c = self.bn(a).T @ self.bn(b)
        c.div_(a.size(0))
        off = c.flatten()[:-1].view(3, 5)[:, 1:].flatten()
        return torch.diagonal(c).add_(-1).pow_(2).sum() + 0.005 * off.pow(2).sum()


@zoo(lambda: (torch.randn(3, 4), torch.randn(3, 4)))
class MoCo(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(4, 3), nn.Linear(4, 3)
        self.register_buffer("queue", F.normalize(torch.randn(3, 9), dim=0))
        self.ptr = 0

    @torch.no_grad()
    def _update(self, keys):
        for pq, pk in zip(self.q.parameters(), self.k.parameters()):
            pk.data = pk.data * 0.9 + pq.data * 0.1
        self.queue[:, self.ptr : self.ptr + 3] = keys.T
        self.ptr = (self.ptr + 3) % 9

    def forward(self, a, b):
        q, k = F.normalize(self.q(a), dim=1), F.normalize(self.k(b), dim=1).detach()
        pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        return F.cross_entropy(torch.cat([pos, neg], dim=1) / 0.07, torch.zeros(3, dtype=torch.long))
