"""Graph networks, point clouds, sets, trees."""

import torch
import torch.nn.functional as F
from torch import nn

from .registry import zoo


def graph(nodes: int = 5, width: int = 4, edges: int = 8):
    return lambda: (torch.randn(nodes, width), torch.randint(0, nodes, (2, edges)))


def dense(nodes: int = 5, width: int = 4):
    return lambda: (torch.randn(nodes, width), (torch.rand(nodes, nodes) > 0.5).float())


def cloud(points: int = 8, batch: int = 2):
    return lambda: (torch.randn(batch, points, 3),)


@zoo(dense())
class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(6, 2))

    def forward(self, x, adj):
        a = adj + torch.eye(adj.size(0))
        d = a.sum(1).pow(-0.5)
        a = d[:, None] * a * d[None]
        x = F.dropout(F.relu(a @ x @ self.w1), 0.5, training=self.training)
        return F.log_softmax(a @ x @ self.w2, dim=1)


@zoo(dense())
class GAT(nn.Module):
    def __init__(self):
        super().__init__()
        self.W, self.a = nn.Parameter(torch.empty(size=(4, 3))), nn.Parameter(torch.empty(size=(6, 1)))
        nn.init.xavier_uniform_(self.W.data, gain=1.414), nn.init.xavier_uniform_(self.a.data)

    def forward(self, h, adj):
        Wh = torch.mm(h, self.W)
        e = F.leaky_relu(Wh @ self.a[:3, :] + (Wh @ self.a[3:, :]).T, 0.2)
        attention = F.softmax(torch.where(adj > 0, e, -9e15 * torch.ones_like(e)), dim=1)
        return F.elu(torch.matmul(F.dropout(attention, 0.6, training=self.training), Wh))


class MessagePassing(nn.Module):
    def propagate(self, edge_index, x, size=None):
        src, dst = edge_index
        messages = self.message(x[dst], x[src])
        out = torch.zeros(size or x.size(0), messages.size(-1), dtype=x.dtype)
        return self.update(out.index_add_(0, dst, messages), x)

    def message(self, x_i, x_j):
        return x_j

    def update(self, aggregated, x):
        return aggregated


@zoo(graph())
class SAGE(MessagePassing):
    def __init__(self):
        super().__init__()
        self.lin_l, self.lin_r = nn.Linear(4, 3), nn.Linear(4, 3)

    def update(self, aggregated, x):
        return F.normalize(self.lin_l(aggregated) + self.lin_r(x), p=2.0, dim=-1)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x)


@zoo(graph())
class EdgeConv(MessagePassing):
    def __init__(self):
        super().__init__()
        self.nn = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))

    def message(self, x_i, x_j):
        return self.nn(torch.cat([x_i, x_j - x_i], dim=-1))

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x)


@zoo(graph())
class GIN(MessagePassing):
    def __init__(self):
        super().__init__()
        self.eps = nn.Parameter(torch.Tensor([0.1]))
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x, edge_index):
        return self.mlp((1 + self.eps) * x + self.propagate(edge_index, x))


@zoo(graph())
class GatedGraph(MessagePassing):
    def __init__(self):
        super().__init__()
        self.weight, self.gru = nn.Parameter(torch.randn(2, 4, 4)), nn.GRUCell(4, 4)

    def forward(self, x, edge_index):
        for w in self.weight:
            x = self.gru(self.propagate(edge_index, x @ w), x)
        return x


@zoo(graph())
class ScatterSoftmaxAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.att = nn.Linear(8, 1)

    def forward(self, x, edge_index):
        src, dst = edge_index[0], edge_index[1]
        e = self.att(torch.cat([x[src], x[dst]], 1)).squeeze(-1)
        top = torch.full((x.size(0),), float("-inf")).scatter_reduce(0, dst, e, "amax")
        e = (e - top[dst]).exp()
        total = torch.zeros(x.size(0)).scatter_add(0, dst, e)
        return torch.zeros_like(x).index_add(0, dst, (e / total[dst]).unsqueeze(1) * x[src])


@zoo(graph())
class LabelPropagation(nn.Module):
    def forward(self, x, edge_index):
        adj = torch.zeros(5, 5).index_put_((edge_index[0], edge_index[1]), torch.ones(8), accumulate=True)
        y = x.softmax(-1)
        for _ in range(3):
            y = (0.9 * adj @ y + 0.1 * x).clamp_(0.0, 1.0)
        return y


@zoo(dense())
class DiffPool(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.assign = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x, adj):
        z, s = F.relu(adj @ self.embed(x)), torch.softmax(self.assign(x), -1)
        link = torch.norm(adj - s @ s.t(), p=2) / adj.numel()
        entropy = (-s * torch.log(s + 1e-15)).sum(-1).mean()
        return s.t() @ z, s.t() @ adj @ s, link, entropy


@zoo(dense())
class TopKPool(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.randn(4))

    def forward(self, x, adj):
        score = (x @ self.p) / self.p.norm()
        values, index = torch.topk(score, 3)
        return x[index] * torch.tanh(values).unsqueeze(-1), adj[index, :][:, index]


@zoo(dense(4))
class ChebNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.theta = nn.ParameterList([nn.Parameter(torch.randn(4, 3)) for _ in range(3)])

    def forward(self, x, adj):
        lap = torch.eye(4) - adj / (adj.sum(1, keepdim=True) + 1)
        terms = [x, lap @ x]
        while len(terms) < len(self.theta):
            terms.append(2 * lap @ terms[-1] - terms[-2])
        return sum(t @ w for t, w in zip(terms, self.theta))


@zoo(cloud())
class PointNet(nn.Module):
    class TNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc, self.bn = nn.Conv1d(3, 8, 1), nn.Linear(8, 9), nn.BatchNorm1d(8)

        def forward(self, x):
            h = torch.max(F.relu(self.bn(self.conv(x))), 2, keepdim=True)[0].view(-1, 8)
            iden = torch.eye(3).view(1, 9).repeat(x.size(0), 1)
            return (self.fc(h) + iden).view(-1, 3, 3)

    def __init__(self):
        super().__init__()
        self.stn, self.conv, self.fc = self.TNet(), nn.Conv1d(3, 8, 1), nn.Linear(8, 2)

    def forward(self, x):
        x = x.transpose(2, 1)
        x = torch.bmm(x.transpose(2, 1), self.stn(x)).transpose(2, 1)
        return F.log_softmax(self.fc(torch.max(self.conv(x), 2)[0]), dim=-1)


def farthest_point_sample(xyz, n):
    b, total, _ = xyz.shape
    centroids, distance = torch.zeros(b, n, dtype=torch.long), torch.ones(b, total) * 1e10
    farthest, batch = torch.zeros(b, dtype=torch.long), torch.arange(b)
    for i in range(n):
        centroids[:, i] = farthest
        d = torch.sum((xyz - xyz[batch, farthest, :].view(b, 1, 3)) ** 2, -1)
        mask = d < distance
        distance[mask] = d[mask]
        farthest = torch.max(distance, -1)[1]
    return centroids


@zoo(cloud())
class PointNet2Sampling(nn.Module):
    """Masked assignment: d[mask] has as many entries as the data says, but d[mask] = e[mask] is a choice."""

    def forward(self, xyz):
        index = farthest_point_sample(xyz, 3)
        return xyz.gather(1, index.unsqueeze(-1).expand(-1, -1, 3))


@zoo(cloud())
class DGCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(6, 8, 1, bias=False), nn.BatchNorm2d(8), nn.LeakyReLU(0.2))

    def forward(self, x, k=3):
        x = x.transpose(1, 2)
        b, c, n = x.size()
        inner = -2 * torch.matmul(x.transpose(2, 1), x)
        xx = torch.sum(x**2, dim=1, keepdim=True)
        idx = (-xx - inner - xx.transpose(2, 1)).topk(k=k, dim=-1)[1]
        idx = (idx + torch.arange(0, b).view(-1, 1, 1) * n).view(-1)
        flat = x.transpose(2, 1).contiguous()
        feature = flat.view(b * n, -1)[idx, :].view(b, n, k, c)
        flat = flat.view(b, n, 1, c).repeat(1, 1, k, 1)
        return self.conv(torch.cat((feature - flat, flat), dim=3).permute(0, 3, 1, 2)).max(dim=-1)[0]


@zoo(cloud())
class BallQuery(nn.Module):
    def forward(self, xyz):
        d = torch.cdist(xyz, xyz)
        b, n, _ = xyz.shape
        group = torch.arange(n).view(1, 1, n).repeat(b, n, 1)
        group = torch.where(d > 1.5, n, group).sort(dim=-1)[0][:, :, :4]
        return torch.where(group == n, group[:, :, :1], group)


@zoo(cloud())
class ChamferLoss(nn.Module):
    def forward(self, x):
        d = ((x[:, :, None] - x.flip(1)[:, None] * 1.1) ** 2).sum(-1)
        return d.min(1).values.mean() + d.min(2).values.mean()


@zoo(cloud())
class DeepSets(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi, self.rho = nn.Sequential(nn.Linear(3, 8), nn.ELU()), nn.Linear(8, 2)

    def forward(self, x):
        return self.rho(self.phi(x - x.max(1, keepdim=True).values).mean(1))


@zoo(cloud())
class SetTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.I = nn.Parameter(torch.randn(1, 4, 8))
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(3, 8), nn.Linear(3, 8)

    def forward(self, x):
        q = self.q(self.I.repeat(x.size(0), 1, 1))
        q_, k_, v_ = (torch.cat(t.split(4, 2), 0) for t in (q, self.k(x), self.v(x)))
        a = torch.softmax(q_.bmm(k_.transpose(1, 2)) / 8**0.5, 2)
        o = torch.cat((q_ + a.bmm(v_)).split(x.size(0), 0), 2)
        return o + F.relu(o)


@zoo(cloud())
class EGNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.edge, self.coord = nn.Linear(1, 4), nn.Linear(4, 1)

    def forward(self, x):
        diff = x.unsqueeze(2) - x.unsqueeze(1)
        m = F.silu(self.edge((diff**2).sum(-1, keepdim=True)))
        return x + (diff * self.coord(m)).mean(2), m.sum(2)


@zoo(lambda: (torch.randn(4, 3), {"left": {"left": 0, "right": 1}, "right": {"left": 2, "right": 3}}))
class RecursiveTree(nn.Module):
    def __init__(self):
        super().__init__()
        self.merge = nn.Linear(6, 3)

    def forward(self, leaves, tree):
        def walk(node):
            if isinstance(node, int):
                return leaves[node]
            return torch.tanh(self.merge(torch.cat([walk(node["left"]), walk(node["right"])])))

        return walk(tree)


@zoo(lambda: (torch.randint(0, 4, (6,)), torch.randint(0, 4, (6,)), torch.randint(0, 3, (6,))))
class TransE(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.r = nn.Embedding(4, 5, max_norm=None), nn.Embedding(3, 5)

    def forward(self, h, t, r):
        score = torch.norm(F.normalize(self.e(h)) + self.r(r) - F.normalize(self.e(t)), p=1, dim=-1)
        return F.margin_ranking_loss(score[:3], score[3:], -torch.ones(3), margin=1.0)
