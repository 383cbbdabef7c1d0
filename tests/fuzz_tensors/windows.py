"""More rows for random tensor programs: parts of tensors whose beginnings and lengths follow from sizes.

The holes are those of `operations`.
"""

from __future__ import annotations

from tests.fuzz_tensors.operations import BINARY, PRODUCTS, REDUCTIONS, UNARY

PARTS = """
{x}.chunk(2,{d})[1] {x}.chunk(2,{d})[0] {x}.chunk(3,{d})[-1] {x}.chunk(3,{d})[1] {x}.tensor_split(2,{d})[1] {x}.tensor_split(3,{d})[0] {x}.tensor_split(4,{d})[2] {x}.split({p},{d})[-1] {x}.split({p},{d})[1]
{x}.split({x}.shape[{d}]//2,{d})[-1] {x}.split(({x}.shape[{d}]+1)//2,{d})[-1] {x}.split([{x}.shape[{d}]//3,{x}.shape[{d}]-{x}.shape[{d}]//3],{d})[1] {x}.split([1,{x}.shape[{d}]-1],{d})[1]
{x}.narrow({d},{x}.shape[{d}]//2,{x}.shape[{d}]-{x}.shape[{d}]//2) {x}.narrow({d},1,{x}.shape[{d}]-1) {x}.narrow({d},{x}.shape[{d}]//3,{x}.shape[{d}]//3) {x}.narrow({d},0,{x}.shape[{d}]//2) {x}.narrow({d},-{p},1)
{x}[{x}.shape[0]//2:] {x}[:{x}.shape[0]//2] {x}[{x}.shape[0]//2] {x}[1::2] {x}[{p}:] {x}[{p}::{p}] {x}[:-{p}] {x}[-{p}:] {x}[1:-1] {x}[{x}.shape[-1]//4:] {x}[:{x}.shape[-1]%5] {x}[::{p}]
{x}[...,{x}.shape[-1]//2:] {x}[...,:{x}.shape[-1]//2] {x}[...,1::3] {x}[...,{p}:-1] {x}[...,-{p}:] {x}[...,:-{p}] {x}[...,1::2] {x}[...,{x}.shape[0]%3:] {x}[:,{x}.shape[1]//2:,None] {x}[1:,{p}:] {x}[:-1,1:]
{x}.unfold({d},{p},{p}) {x}.unfold({d},2,1) {x}.unfold({d},{x}.shape[{d}]//2,{p}) {x}.unfold({d},{x}.shape[{d}]-1,1) {x}.diagonal(1) {x}.diagonal({n},{d},{e}) {x}.mT[{p}:] {x}.t()[1:] {x}.flatten()[{p}:].view(-1)
{x}.as_strided(({x}.shape[0]//2,2),(2,1),1) {x}.as_strided(({x}.numel()//2,),(2,),1) {x}.as_strided(({x}.shape[0]-1,2),(1,1)) {x}.flatten()[1::2] {x}.view(-1)[{x}.numel()//2:] {x}.reshape(-1)[:{x}.numel()//2*2].view(2,-1)
{x}.reshape(-1)[:{x}.numel()//3*3].view(-1,3).mT {x}.transpose({d},{e})[1:] {x}.unsqueeze({d})[...,1:] {x}.expand(2,*{x}.shape)[:,1:] {x}.movedim({d},{e})[...,{p}:] {x}.hsplit(2)[1] {x}.select({d},{x}.shape[{d}]//2)
""".split()

JOINED = """
torch.cat([{x}[1:],{x}[:1]]) torch.cat([{x}[...,1:],{x}[...,:1]],-1) torch.cat([{x}.chunk(2,{d})[1],{x}.chunk(2,{d})[0]],{d}) torch.cat([-{x}[...,{x}.shape[-1]//2:],{x}[...,:{x}.shape[-1]//2]],-1) torch.cat([{x},{y}],{d})
torch.cat([{x}.narrow({d},0,1),{x},{x}.narrow({d},1,1)],{d}) torch.cat({x}.split({p},{d})[::-1],{d}) torch.cat({x}.tensor_split(3,{d}),{d}) torch.cat([{x}[1:]*2,{y}[:-1]],{d}) torch.stack([{x}[1:],{x}[:-1]],{d}) torch.stack([{x}[...,:-1],{y}[...,1:]])
torch.cat([{x}.new_zeros({x}.shape[0],1),{x}[:,:-1]],1) torch.cat([{x}.flip(0),{x}[1:]]) torch.cat([{x}.cumsum({d}),{y}],{d}) torch.hstack([{x}[...,1:],{y}]) F.pad({x},(1,{p})) F.pad({x},(-1,0)) F.pad({x},(-{p},{p}),value={s}) F.pad({x},(0,{x}.shape[-1]//2))
F.pad({x},(0,{x}.shape[-1]%4)) F.pad({x}[1:],(0,0,1,0)) F.pad({x}[...,1:],(1,0)) F.pad({x},(1,1),mode='reflect') F.pad({x},({p},1),mode='replicate') F.pad({x},(1,{p}),mode='circular') F.pad({x}[...,{p}:],(0,{p}),value={s})
torch.roll({x},{x}.shape[{d}]//2,{d}) torch.roll({x},{n},{d}) torch.roll({x}[1:],{n},{d}) torch.roll({x},{n}) torch.flip({x},({d},)) torch.flip({x}[1:],({d},)) torch.flip({x}[...,{p}:],(-1,)) torch.rot90({x}[1:]) {x}.repeat_interleave(2,{d})[1:] {x}.repeat(2,*([1]*({x}.dim()-1)))[{x}.shape[0]//2:]
torch.index_select({x},{d},torch.arange({x}.shape[{d}]//2)) torch.index_select({x},{d},torch.arange({x}.shape[{d}]-1,-1,-1)) {x}[torch.arange(0,{x}.shape[0],2)] {x}[torch.arange({x}.shape[0]).flip(0)] {x}[...,torch.arange(1,{x}.shape[-1])] {x}[1:][torch.tensor([0,-1,0])]
torch.gather({x},{d},{x}.argsort({d}).narrow({d},0,{x}.shape[{d}]//2)) torch.gather({x}.narrow({d},1,{x}.shape[{d}]-1),{d},{x}.narrow({d},1,{x}.shape[{d}]-1).argsort({d})) torch.take_along_dim({x}[1:],{x}[1:].argmax({d},keepdim=True),{d})
torch.scatter({x},{d},{x}.argsort({d}).narrow({d},0,{x}.shape[{d}]//2),{x}.narrow({d},0,{x}.shape[{d}]//2)) torch.scatter_add({x},{d},{x}.argsort({d})//2,{x}) torch.slice_scatter({x},{x}[1:]*2,0,1) torch.slice_scatter({x},{x}[...,::2]+1,-1,0,None,2)
torch.slice_scatter({x},{x}[:{x}.shape[0]//2].exp().to({x}.dtype),0,0,{x}.shape[0]//2) torch.select_scatter({x},{x}.select({d},0)*2,{d},{x}.shape[{d}]//2) torch.diagonal_scatter({x},{x}.diagonal()*2) torch.index_add({x},{d},torch.arange({x}.shape[{d}]//2),{x}.narrow({d},0,{x}.shape[{d}]//2))
torch.where(torch.arange({x}.shape[-1])<{x}.shape[-1]//2,{x},-{x}) torch.where(torch.arange({x}.shape[0])[:,None]%2==0,{x},{y}) torch.arange({x}.shape[0])[{p}:] torch.arange({x}.numel()).view({x}.shape)[1:] torch.tril({x}[1:]) torch.triu({x}[...,1:],{n}) torch.diff({x}[1:],dim={d}) torch.index_copy({x},{d},torch.arange({x}.shape[{d}]//2),{x}.narrow({d},{x}.shape[{d}]//2,{x}.shape[{d}]//2))
""".split()

COMPUTED = """
({x}.chunk(2,{d})[0]*{x}.chunk(2,{d})[-1]) ({x}[1:]-{x}[:-1]) ({x}[...,1:]+{x}[...,:-1]) ({x}[1:]*{y}) ({x}[...,{p}:]/{y}[...,:-{p}]) (F.silu({f}.tensor_split(2,{d})[0])+{f}.tensor_split(2,{d})[1].sum()) F.glu({f},{d}) ({x}.tensor_split(2,-1)[0].sum(-1)*{x}.tensor_split(2,-1)[1].sum(-1))
({f}.chunk(2,-1)[0]@{f}.chunk(2,-1)[0].mT) ({f}[1:]@{f}[1:].mT) ({f}[...,1:]@{f}[...,1:].mT) ({f}.mT[...,1:]@{f}[...,1:,:]) torch.addmm({f}[1:,:1],{f}[1:],{f}[1:].t()) torch.einsum('ij,kj->ik',{f}[1:],{f}) F.linear({f}[...,1:],{f}[...,1:]) torch.outer({f}.flatten()[1:9],{y}.flatten()[:7])
torch.softmax({f}[...,1:],-1) torch.softmax({f}.chunk(2,{d})[1],{d}) torch.log_softmax({f}[1:],{d}) F.layer_norm({f}[...,1:],{f}[...,1:].shape[-1:]) F.layer_norm({f}.chunk(2,-1)[-1],{f}.chunk(2,-1)[-1].shape[-1:]) F.rms_norm({f}[1:],{f}[1:].shape[-1:]) torch.logsumexp({f}[...,{p}:],{d})
{x}[1:].sum({d}) {x}.chunk(2,{d})[1].sum({d},keepdim={k}) {x}[...,1::2].amax({d}) {x}.unfold({d},2,1).sum(-1) {x}.unfold({d},{p},1).amax(-1) {x}[{x}.shape[0]//2:].cumsum({d}) {x}[1:].argmax({d}) {x}[...,{p}:].argmin(-1) {x}[1:].sort({d})[0] {x}[1:].sort({d})[1] {x}[1:].cummax({d})[0]
{f}[...,1:].mean(-1,keepdim=True) ({f}-{f}[...,1:].mean(-1,keepdim=True)) {f}[1:].var(0) {f}.narrow({d},0,{f}.shape[{d}]//2).std({d}) {f}[1:].norm(dim={d}) torch.prod({x}[...,-3:],{d}) torch.any({x}[1:],{d}) {x}[:-1].all() {f}[{p}:].mean() F.avg_pool1d({f}.reshape(1,1,-1)[...,1:],2) F.max_pool1d({f}.reshape(1,1,-1)[...,{p}:],2)
F.conv1d({f}.reshape(1,1,-1)[...,1:],torch.ones(2,1,2)) torch.var_mean({f}[...,{p}:],-1)[0] F.scaled_dot_product_attention({f}[None],{f}[None],{f}[None])[:,1:] torch.cdist({f}[1:],{f}[:-1]) F.cosine_similarity({f}[1:],{f}[:-1],dim={d}) F.normalize({f}.chunk(2,{d})[-1],dim={d})
""".split()

WRITTEN = """
{x}.chunk(2,{d})[1].add_({s}) {x}.chunk(2,{d})[0].mul_({x}.chunk(2,{d})[0]) {x}[{x}.shape[0]//2:].mul_({s}) {x}[...,1::2].copy_({y}[...,:1]) {x}[1:].add_({x}[:-1].clone()) {x}[1:].copy_({x}[:-1].clone()) {x}[:-1].sub_({x}[1:]*2) {x}[...,1:].copy_({x}[...,:-1].exp())
{x}.__setitem__(slice(1,None,2),{s}) {x}.__setitem__((...,slice({p},None)),{s}) {x}.__setitem__(slice({x}.shape[0]//2,None),{y}[:1]) {x}.__setitem__((...,slice(None,{x}.shape[-1]//2)),{x}[...,-({x}.shape[-1]//2):]) {x}.__setitem__(slice(1,-1),{x}[1:-1]*2)
{x}.narrow({d},{x}.shape[{d}]//2,1).zero_() {x}.narrow({d},1,{x}.shape[{d}]-1).neg_() {x}.unfold({d},2,2).mul_({s}) {x}.as_strided(({x}.shape[0]//2,),(2,),1).add_({s}) {x}.view(-1)[{x}.numel()//3:].neg_() {x}.tensor_split(3,{d})[1].fill_({s}) F.relu({x}.chunk(2,{d})[0],inplace=True)
{x}[{p}:].clamp_({s},{s2}) {x}.t()[1:].add_({s}) {x}.select({d},{x}.shape[{d}]//2).copy_({y}) {x}.index_copy_({d},torch.arange({x}.shape[{d}]//2),{x}.narrow({d},{x}.shape[{d}]//2,{x}.shape[{d}]//2)*2) {x}.index_add_({d},torch.arange({x}.shape[{d}]-1),{x}.narrow({d},1,{x}.shape[{d}]-1)*2) {x}[1:].masked_fill_({x}[1:]>0,{s})
{x}.diagonal(1).add_({s}) {x}[...,{x}.shape[-1]//2:].copy_({x}[...,:({x}.shape[-1]+1)//2].clone()) {x}[1:].scatter_(0,{x}[1:].argsort(0),{s}) {x}.copy_({x}.flip(0)) {x}.copy_(torch.roll({x},1,{d})) {x}[1:].index_fill_({d},torch.tensor([0]),{s}) {x}[{x}.shape[0]//2:][1:].add_({y})
torch.add({x}[1:],{x}[1:],out={x}[1:]) {x}[::2].mul_({s}) {x}[:{x}.shape[0]//2].lerp_({x}[:{x}.shape[0]//2].sin(),0.3) {x}.swapaxes({d},{e})[1:].mul_({s}) {x}.cumsum_({d}) {x}[1:].zero_() {x}[...,{p}:].exp_() {x}.flip(0).add_({x})
""".split()

PAIRS = """
{x}.chunk(2,{d}) {x}.tensor_split(2,{d}) {x}.split([1,{x}.shape[{d}]-1],{d}) {x}.split(({x}.shape[{d}]+1)//2,{d}) {x}[1:].sort({d}) torch.max({x}[1:],{d}) torch.var_mean({f}[...,1:],-1) torch.topk({x}[1:],2,{d}) {x}[:2].unbind(0)
torch.split({x},[{x}.shape[{d}]//3,{x}.shape[{d}]-{x}.shape[{d}]//3],{d}) torch.cummin({x}[...,1:],{d}) ({x}[1:]*2).chunk(2,{d}) torch.min({x}.chunk(2,{d})[0],{d})
""".split()

# As `operations.TABLE`.
WINDOWS = (
    (UNARY, 4, 1), (BINARY, 5, 1), (REDUCTIONS, 3, 1), (PRODUCTS, 1, 1), (PARTS, 7, 1), (JOINED, 5, 1), (COMPUTED, 6, 1),
    (WRITTEN, 5, 1), (PAIRS, 3, 2),
)  # fmt: skip
