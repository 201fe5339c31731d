"""Recurrent cells, memory networks, sequence models, attention of older styles."""

import math
from collections import deque, namedtuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Variable

from .registry import sequences, vectors, zoo


@zoo(sequences())
class PlainLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 5, num_layers=2, batch_first=True, dropout=0.1), nn.Linear(5, 2)

    def forward(self, x):
        out, (h, c) = self.lstm(x)
        return self.head(out[:, -1]), h, c


@zoo(sequences())
class BiGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(6, 4, batch_first=True, bidirectional=True)

    def forward(self, x):
        h0 = torch.zeros(2, x.size(0), 4).to(x.device)
        out, h = self.gru(x, h0)
        return torch.cat((h[-2], h[-1]), dim=1), out.max(1)[0]


@zoo(sequences())
class ElmanRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(6, 4, nonlinearity="relu")

    def forward(self, x):
        return self.rnn(x.transpose(0, 1))


@zoo(sequences())
class CellLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(6, 4)

    def forward(self, x):
        h = c = torch.zeros(x.size(0), 4)
        outs = []
        for t in range(x.size(1)):
            h, c = self.cell(x[:, t], (h, c))
            outs.append(h)
        return torch.stack(outs, 1), (h, c)


@zoo(sequences())
class GRUCellLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.h = nn.GRUCell(6, 6), None

    def forward(self, x):
        h = None
        for step in x.unbind(1):
            h = self.cell(step, h)
        return h


@zoo(sequences())
class HandmadeLSTM(nn.Module):
    def __init__(self, i=6, h=4):
        super().__init__()
        self.hidden = h
        self.weight_ih, self.weight_hh = nn.Parameter(torch.Tensor(i, h * 4)), nn.Parameter(torch.Tensor(h, h * 4))
        self.bias = nn.Parameter(torch.Tensor(h * 4))
        self.init_weights()

    def init_weights(self):
        for p in self.parameters():
            if p.data.ndimension() >= 2:
                nn.init.xavier_uniform_(p.data)
            else:
                nn.init.zeros_(p.data)

    def forward(self, x, init_states=None):
        bs, seq, _ = x.size()
        hidden_seq = []
        h_t, c_t = (torch.zeros(self.hidden), torch.zeros(self.hidden)) if init_states is None else init_states
        for t in range(seq):
            gates = x[:, t, :] @ self.weight_ih + h_t @ self.weight_hh + self.bias
            i_t, f_t, g_t, o_t = (torch.sigmoid(gates[:, :4]), torch.sigmoid(gates[:, 4:8]),
                                  torch.tanh(gates[:, 8:12]), torch.sigmoid(gates[:, 12:]))  # fmt: skip
            c_t = f_t * c_t + i_t * g_t
            h_t = o_t * torch.tanh(c_t)
            hidden_seq.append(h_t.unsqueeze(0))
        return torch.cat(hidden_seq, dim=0).transpose(0, 1).contiguous()


@zoo(lambda: (torch.randn(2, 3, 2, 6, 6),))
class ConvLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2 + 3, 4 * 3, 3, padding=1)

    def init_hidden(self, b, shape):
        return Variable(torch.zeros(b, 3, *shape)), Variable(torch.zeros(b, 3, *shape))

    def forward(self, x):
        h, c = self.init_hidden(x.size(0), x.shape[-2:])
        for t in range(x.size(1)):
            i, f, o, g = torch.split(self.conv(torch.cat([x[:, t], h], dim=1)), 3, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h, c


@zoo(lambda: (torch.randint(1, 9, (3, 6)), torch.tensor([6, 4, 2])))
class PackedEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.gru = nn.Embedding(9, 5, padding_idx=0), nn.GRU(5, 4, batch_first=True)

    def forward(self, tokens, lengths):
        mask = torch.arange(tokens.size(1))[None, :] < lengths[:, None]
        out, _ = self.gru(self.emb(tokens) * mask.unsqueeze(-1))
        return out[torch.arange(out.size(0)), lengths - 1]


@zoo(lambda: (torch.randint(0, 9, (2, 5)), torch.randint(0, 9, (2, 4))))
class Seq2SeqAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.src, self.tgt = nn.Embedding(9, 6), nn.Embedding(9, 6)
        self.enc, self.dec = nn.GRU(6, 6, batch_first=True), nn.GRUCell(12, 6)
        self.attn, self.v, self.out = nn.Linear(12, 6), nn.Linear(6, 1, bias=False), nn.Linear(12, 9)

    def attend(self, h, memory):
        energy = torch.tanh(self.attn(torch.cat([h.unsqueeze(1).repeat(1, memory.size(1), 1), memory], 2)))
        return F.softmax(self.v(energy).squeeze(2), dim=1)

    def forward(self, src, tgt):
        memory, h = self.enc(self.src(src))
        h, outputs = h.squeeze(0), []
        for t in range(tgt.shape[1]):
            weights = self.attend(h, memory)
            context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
            h = self.dec(torch.cat((self.tgt(tgt[:, t]), context), -1), h)
            outputs += [self.out(torch.cat((h, context), 1))]
        return torch.stack(outputs, dim=1)


@zoo(lambda: (torch.randint(0, 9, (2, 3)),))
class GreedyDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.cell, self.out = nn.Embedding(9, 4), nn.GRUCell(4, 4), nn.Linear(4, 9)

    def forward(self, prompt, steps=4):
        h = torch.zeros(prompt.size(0), 4)
        for i in range(prompt.size(1)):
            h = self.cell(self.emb(prompt[:, i]), h)
        token, result = prompt[:, -1], []
        for _ in range(steps):
            h = self.cell(self.emb(token), h)
            token = self.out(h).argmax(-1)
            result.append(token)
        return torch.stack(result, 1)


@zoo(sequences())
class SRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(6, 18)

    def forward(self, x):
        u, f, r = self.w(x).chunk(3, -1)
        f, r = torch.sigmoid(f), torch.sigmoid(r)
        c, outputs = x.new_zeros(x.size(0), 6), []
        for t in range(x.size(1)):
            c = f[:, t] * c + (1 - f[:, t]) * u[:, t]
            outputs.append(r[:, t] * c.tanh() + (1 - r[:, t]) * x[:, t])
        return torch.stack(outputs, 1)


@zoo(sequences())
class ZoneoutRNN(nn.Module):
    def __init__(self, p=0.2):
        super().__init__()
        self.p, self.cell = p, nn.RNNCell(6, 6)

    def forward(self, x):
        h = x[:, 0] * 0
        for t in range(x.size(1)):
            new = self.cell(x[:, t], h)
            if self.training:
                mask = torch.empty_like(h).bernoulli_(self.p)
                h = mask * h + (1 - mask) * new
            else:
                h = self.p * h + (1 - self.p) * new
        return h


@zoo(lambda: (torch.randint(0, 9, (2, 4, 3)), torch.randint(0, 9, (2, 3))))
class MemN2N(nn.Module):
    def __init__(self, hops=2):
        super().__init__()
        for hop in range(hops + 1):
            setattr(self, f"C_{hop}", nn.Embedding(9, 5, padding_idx=0))
        self.hops, self.te = hops, nn.Parameter(torch.randn(4, 5))

    def __getitem__(self, i):
        return getattr(self, f"C_{i}")

    def forward(self, story, query):
        u = [self[0](query).sum(1)]
        for hop in range(self.hops):
            m = self[hop](story).sum(2) + self.te
            prob = torch.softmax(torch.sum(m * u[-1].unsqueeze(1).expand_as(m), 2), -1)
            c = self[hop + 1](story).sum(2) + self.te
            u.append(u[-1] + (c * prob.unsqueeze(-1)).sum(1))
        return u[-1] @ self[self.hops].weight.transpose(0, 1)


@zoo(vectors(4))
class NTMHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("memory", torch.randn(5, 3))
        self.fc = nn.Linear(4, 3 + 1 + 1 + 3 + 1)

    def forward(self, x):
        k, beta, g, s, gamma = torch.split(self.fc(x), [3, 1, 1, 3, 1], dim=1)
        w = F.softmax(F.softplus(beta) * F.cosine_similarity(self.memory[None] + 1e-16, k[:, None] + 1e-16, dim=-1), 1)
        w = torch.sigmoid(g) * w + (1 - torch.sigmoid(g)) / 5
        s = F.softmax(s, 1)
        padded = torch.cat([w[:, -1:], w, w[:, :1]], 1)
        shifted = torch.stack([F.conv1d(p.view(1, 1, -1), q.view(1, 1, -1)).view(-1) for p, q in zip(padded, s)])
        w = shifted ** (1 + F.softplus(gamma))
        w = w / (w.sum(1, keepdim=True) + 1e-16)
        return w @ self.memory, w


State = namedtuple("State", ["hidden", "steps"])


@zoo(sequences())
class NamedTupleState(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.RNNCell(6, 4)

    def forward(self, x):
        state = State(hidden=x.new_zeros(x.size(0), 4), steps=0)
        for t in range(x.size(1)):
            state = state._replace(hidden=self.cell(x[:, t], state.hidden), steps=state.steps + 1)
        return state


@zoo(sequences())
class SlidingWindow(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(12, 3)

    def forward(self, x):
        window, outs = deque(maxlen=2), []
        for t in range(x.size(1)):
            window.append(x[:, t])
            if len(window) == 2:
                outs.append(self.fc(torch.cat(list(window), -1)))
        return sum(outs) / len(outs)


@zoo(sequences(8, 6))
class SelfAttentionOld(nn.Module):
    def __init__(self, d=8, heads=2):
        super().__init__()
        self.d_k, self.h = d // heads, heads
        self.q_linear, self.v_linear, self.k_linear = (nn.Linear(d, d) for _ in range(3))
        self.dropout, self.out = nn.Dropout(0.1), nn.Linear(d, d)

    def forward(self, x):
        bs = x.size(0)
        k, q, v = (
            layer(x).view(bs, -1, self.h, self.d_k).transpose(1, 2)
            for layer in (self.k_linear, self.q_linear, self.v_linear)
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        mask = torch.tril(torch.ones(x.size(1), x.size(1))).bool()
        scores = scores.masked_fill(~mask, -1e9)
        scores = self.dropout(F.softmax(scores, dim=-1))
        return self.out(torch.matmul(scores, v).transpose(1, 2).contiguous().view(bs, -1, self.h * self.d_k))


@zoo(sequences(8, 6))
class TorchTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.register_buffer("pe", torch.randn(6, 8))

    def forward(self, x):
        return self.encoder(x + self.pe, mask=nn.Transformer.generate_square_subsequent_mask(6))


@zoo(sequences(8, 6))
class MultiheadModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x, need_weights=True)


@zoo(sequences(6, 8))
class TCN(nn.Module):
    class Chomp(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.n = n

        def forward(self, x):
            return x[:, :, : -self.n].contiguous()

    def __init__(self):
        super().__init__()
        layers = []
        for i in range(2):
            d = 2**i
            conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(6, 6, 2, padding=d, dilation=d))
            layers += [conv, self.Chomp(d), nn.ReLU(), nn.Dropout(0.2)]
        self.network = nn.Sequential(*layers)

    def forward(self, x):
        return self.network(x.transpose(1, 2))


@zoo(sequences(4, 8))
class WaveNetBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleDict({f"d{d}": nn.Conv1d(4, 8, 2, dilation=d) for d in (1, 2)})
        self.skip = nn.ModuleList(nn.Conv1d(4, 4, 1) for _ in range(2))

    def forward(self, x):
        x, skips = x.transpose(1, 2), 0
        for (name, conv), skip in zip(self.convs.items(), self.skip):
            d = int(name[1:])
            f, g = conv(F.pad(x, (d, 0))).chunk(2, 1)
            z = torch.tanh(f) * torch.sigmoid(g)
            skips = skips + skip(z)
            x = x + z
        return skips


@zoo(sequences(4, 6))
class LinearAttention(nn.Module):
    def forward(self, x):
        q, k, v = F.elu(x) + 1, F.elu(x) + 1, x
        kv, z = torch.zeros(x.size(0), 4, 4), torch.zeros(x.size(0), 4)
        out = []
        for t in range(x.size(1)):
            kv = kv + torch.einsum("bi,bj->bij", k[:, t], v[:, t])
            z += k[:, t]
            out.append(torch.einsum("bi,bij->bj", q[:, t], kv) / (q[:, t] * z).sum(-1, keepdim=True))
        return torch.stack(out, dim=1)


@zoo(lambda: (torch.randn(2, 6, 5), torch.randint(0, 5, (2, 6))))
class LinearChainCRF(nn.Module):
    def __init__(self, n=5):
        super().__init__()
        self.transitions, self.start = nn.Parameter(torch.randn(n, n)), nn.Parameter(torch.randn(n))

    def forward(self, emissions, tags):
        score = self.start[tags[:, 0]] + emissions[:, 0].gather(1, tags[:, :1]).squeeze(1)
        alpha = self.start + emissions[:, 0]
        for t in range(1, emissions.size(1)):
            score = (
                score
                + self.transitions[tags[:, t - 1], tags[:, t]]
                + emissions[:, t].gather(1, tags[:, t : t + 1]).squeeze(1)
            )
            alpha = torch.logsumexp(alpha.unsqueeze(2) + self.transitions, 1) + emissions[:, t]
        return (torch.logsumexp(alpha, 1) - score).mean()


@zoo(lambda: (torch.randn(5, 2, 7).log_softmax(-1), torch.randint(1, 7, (2, 3))))
class CTCHead(nn.Module):
    def forward(self, logp, targets):
        return F.ctc_loss(logp, targets, torch.tensor([5, 5]), torch.tensor([3, 2]), zero_infinity=True)


@zoo(lambda: (torch.randint(0, 9, (7,)), torch.tensor([0, 3])))
class FastText(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.fc = nn.EmbeddingBag(9, 4, mode="mean"), nn.Linear(4, 2)

    def forward(self, text, offsets):
        return F.log_softmax(self.fc(self.bag(text, offsets)), dim=1)


@zoo(lambda: (torch.randint(0, 9, (2, 6)),))
class TextCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 5)
        self.convs = nn.ModuleList([nn.Conv2d(1, 4, (k, 5)) for k in (2, 3)])
        self.dropout, self.fc = nn.Dropout(0.5), nn.Linear(8, 2)

    def forward(self, x):
        x = self.embed(x).unsqueeze(1)
        x = [F.relu(conv(x)).squeeze(3) for conv in self.convs]
        x = torch.cat([F.max_pool1d(i, i.size(2)).squeeze(2) for i in x], 1)
        return self.fc(self.dropout(x))
