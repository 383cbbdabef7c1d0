"""More rows for random tensor programs: values that something is decided by, in several places.

A row computes a value v and decides by it: compares, rounds, sorts, finds, pools, masks. Those of `SURE`
give what no rounding of v changes: an element equals the maximum, the place that is found holds it. The
holes are those of `operations`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.fuzz_tensors.nested import gradient, saved_little
from tests.fuzz_tensors.operations import MOVES, VIEWS

COMPUTED = """
{f}.cos() {f}.sin()*{y} {f}*{y}+{f}*0.3-{y} torch.sigmoid({f})*{y} normal({f}) F.gelu({f}) F.gelu({f}*{y},approximate='tanh') {f}.abs().pow(1.7)
{f}/({y}.abs()+0.7)*1.1 torch.softmax({f},-1) torch.log1p({f}.abs()) F.silu({f}) torch.tanh({f}*{y}) {f}-{f}.mean(-1,keepdim=True) torch.exp(-{f}*{f}) ({f}@{f}.mT).cos()
torch.cat([{f},{f}*2],{d}).sin() {f}.cos().mT {f}.cos().to(torch.bfloat16) ({f}*0.37).half() torch.rsqrt({f}*{f}+0.1) {f}.bfloat16().sin()*{f}.bfloat16() {f}.cos()[...,1:] {f}.sin().float()
sized({f})*{y} ({f}*{y}).cos().exp() {f}*1.7+0.3 ({f}-{y}).abs() torch.atan2({f},{y}) {f}.sin().cumsum({d}) F.softplus({f}) torch.log_softmax({f},-1)
""".split()

SURE = """
(v==v.amax({d},keepdim=True)).any({d}) (v==v.amin({d},keepdim=True)).any({d}) (v==v.max()).any() (v==v.amax()).sum()>0 v.gather({d},v.argmax({d},keepdim=True))==v.amax({d},keepdim=True)
v.flatten()[v.argmax()]==v.max() v.flatten()[v.argmin()]==v.min() v.gather({d},v.argmin({d},keepdim=True))-v.amin({d},keepdim=True) (v-v.amax({d},keepdim=True)).amax({d}) v.max({d})[0]-v.amax({d})
v.gather({d},v.max({d},keepdim=True)[1])-v.max({d},keepdim=True)[0] torch.aminmax(v).max-v.max() v.sort({d})[0].select({d},-1)==v.amax({d}) v.cummax({d})[0].select({d},-1)==v.amax({d}) v.topk(1,{d})[0]==v.amax({d},keepdim=True)
(v<=v.amax({d},keepdim=True)).all() (v>v.amax()).any() v.gather({d},v.sort({d})[1])-v.sort({d})[0] (v.median({d},keepdim=True)[0]==v).any({d}) (v.kthvalue(1,{d},keepdim=True)[0]==v).any({d}) (v.mode({d},keepdim=True)[0]==v).any({d})
torch.where(v==v.amax({d},keepdim=True),1,0).amax({d}) v.eq(v.amax({d},keepdim=True)).int().argmax({d})==v.argmax({d}) torch.isin(v.max(),v) (gradient(lambda u:u.cos().amax({d}),v)!=0).any({d})|v.sin().eq(0).any({d}) (v/v.abs().amax({d},keepdim=True)).abs().amax({d})
torch.round(v/v.abs().amax({d},keepdim=True)*127).abs().amax({d}) (v.exp()==v.exp().amax({d},keepdim=True)).any({d}) F.max_pool1d(v.reshape(1,1,-1),2)-torch.maximum(v.reshape(-1)[:v.numel()//2*2:2],v.reshape(-1)[1:v.numel()//2*2:2])
""".split()

DECIDED = """
v.amax({d}) v.amin({d},keepdim={k}) v.max() v.min() v.max({d})[0] v.min({d})[0] v.max({d})[1] v.argmax({d}) v.argmin() (v*(v==v.amax({d},keepdim=True))).sum({d}) torch.where(v==v.amax({d},keepdim=True),v,0) v.median({d})[0] v.median() v.nanmedian()
v.mode({d})[0] v.kthvalue(2,{d})[0] v.cummax({d})[0] v.cummin({d})[0] v.sort({d})[0] v.sort({d},descending={k})[0] v.sort({d})[1] v.topk(2,{d})[0] v.topk(1,{d},largest=False)[0] torch.where(v>=v.mean(),v,-v) torch.where(v>{y},v,{y}) torch.maximum(v,{y})
F.relu(v) F.relu6(v*4) F.hardtanh(v) F.hardtanh(v,-0.25,0.5) v.clamp(-0.5,0.5) v.clamp(min=v.mean()) F.hardswish(v*3) F.hardsigmoid(v*3) F.leaky_relu(v,-0.5) F.hardshrink(v,0.3) F.softshrink(v,0.3) F.threshold(v,0.1,3) F.elu(v) F.prelu(v,torch.tensor([0.3]).to(v.dtype))
torch.round(v/v.abs().amax({d},keepdim=True)*127) (torch.round(v*9)-v*9) torch.floor(v*3)*v torch.ceil(v*3) torch.trunc(v*5) torch.frac(v*3) (v%0.3) torch.remainder(v,{y}) torch.fmod(v,0.3) (v//0.3) torch.sign(v-v.mean())*v v.sgn() torch.signbit(v) (v*5).long() (v*5).int()+1
(v>0.5).sum({d}) (v>v.mean({d},keepdim=True)) v.masked_fill(v>0.25,0)*v (v*(v>0.1)) (v>0.5)&(v<0.7) F.max_pool1d(v.reshape(1,1,-1),2) F.max_pool2d(v[None],2,1) F.max_pool2d(v[None],3,1,1) F.adaptive_max_pool1d(v,2) F.max_pool1d(v.reshape(1,1,-1),3,return_indices=True)[1]
torch.bucketize(v,torch.tensor([-0.5,0.0,0.25,0.5]).to(v.dtype)) torch.searchsorted(v.flatten().sort()[0],v.flatten()) (v>v.mean()).nonzero().shape[0] torch.unique(v).numel()>0 F.embedding((v.abs()*3).long()%4,torch.arange(8.).view(4,2)) v[v.argmax(0)] v.take((v.abs()*2).long()%2)
F.smooth_l1_loss(v,{y}) F.huber_loss(v,{y},delta=0.5) F.l1_loss(v,v.detach().roll(1)) F.hinge_embedding_loss(v,torch.ones_like(v)) F.margin_ranking_loss(v,v.roll(1).detach(),torch.ones_like(v)) F.cross_entropy(v,v.argmax(-1)) torch.exp(v-v.amax({d},keepdim=True)) torch.logsumexp(v,{d})
v.norm(p=float('inf'),dim={d}) v.norm(p=0,dim={d}) torch.linalg.vector_norm(v,1,{d}) torch.isclose(v,v.roll(1)) torch.scatter(v,{d},v.argsort({d}),v*2) v.scatter_reduce({d},v.argmax({d},keepdim=True),v*2,'amax') torch.histc(v.float(),4,-1,1).sum() v.renorm(2,0,1.0) torch.dist(v,v.roll(1),float('inf'))
saved_little(lambda u:u.cos().amax({d}),v) saved_little(lambda u:torch.where(u.sin()>0.2,u,u*2),v) saved_little(lambda u:F.relu6(u*4)*u.cos().amax({d},keepdim=True),v) gradient(lambda u:u.cos().max({d})[0],v) gradient(lambda u:u.sin().median({d})[0],v) torch.quantile(v.float(),0.3)
""".split()

LISTS = """
torch._foreach_maximum([{f}.cos(),{f}.sin()],0.5) torch._foreach_clamp_max([{f}.cos(),{y}*1.5],0.25) torch._foreach_sign([{f}.sin(),{f}.cos()]) torch._foreach_round([{f}.sin()*5,{f}*3]) torch._foreach_norm([{f}.sin(),{f}*2])
torch._foreach_maximum([{f}*2,{f}.sin()],[{f}.cos(),{f}]) doubled({f}.cos()) doubled({f}*1.5) {f}.cos().max({d}) {f}.sin().sort({d}) ({f}*{y}).topk(2,{d}) {f}.cos().cummax({d}) torch.aminmax({f}.sin()) torch.frexp({f}.cos()) {f}.sin().median({d})
""".split()


def doubled(x: Tensor) -> tuple[Tensor, Tensor]:
    """A list written in place, and where a view of it is greatest."""
    whole = x.clone()
    part = whole[:1]
    torch._foreach_mul_([whole], 2.0)
    return part, whole == whole.amax()


def normal(x: Tensor) -> Tensor:
    """Of few elements a gradient is what rounding leaves of two large numbers."""
    return F.layer_norm(x, x.shape[-1:]) if x.dim() and x.shape[-1] > 3 else x.tanh()


def sized(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:]) if x.dim() and x.shape[-1] > 3 else x.sigmoid()


def _rows(decisions: list[str]) -> list[str]:
    return [f"(lambda v:{decision})({computed})" for decision in decisions for computed in COMPUTED]


HELPERS = (doubled, normal, sized, gradient, saved_little)

# As `operations.TABLE`.
DECISIONS = (
    (_rows(SURE), 5, 1), (_rows(DECIDED), 8, 1), (COMPUTED, 4, 1), (VIEWS, 1, 1), (MOVES, 1, 1), (LISTS, 2, 2),
)  # fmt: skip
