"""What random tensor programs are made of: a table of calls with holes.

`{x}` a tensor, `{y}` one that likely broadcasts with it, `{z}` any other, `{f}` a float one, `{i}` an integer
one, `{b}` a bool one, `{c}` a complex one; `{d}` a dimension of the first tensor, `{e}` another, `{ds}` several; `{s}` a Python scalar,
`{n}` a small int, `{p}` a small positive one, `{k}` True or False, `{t}` a dtype. A hole that stands twice is filled once. The rows need not be
valid for what they get: what eager refuses is drawn again.
"""

from __future__ import annotations

UNARY = """
torch.sin({x}) torch.cos({x}) torch.tan({x}) torch.tanh({x}) torch.exp({x}) torch.exp2({x}) torch.expm1({x}) torch.log({x}) torch.log2({x})
torch.log10({x}) torch.log1p({x}) torch.sqrt({x}) torch.rsqrt({x}) torch.reciprocal({x}) torch.abs({x}) torch.neg({x}) torch.sign({x}) torch.sgn({x})
torch.floor({x}) torch.ceil({x}) torch.round({x}) torch.trunc({x}) torch.frac({x}) torch.erf({x}) torch.erfc({x}) torch.erfinv({f}) torch.lgamma({f})
torch.digamma({f}) torch.sigmoid({x}) torch.logit({f},eps=0.1) torch.asin({x}) torch.acos({x}) torch.atan({x}) torch.sinh({x}) torch.cosh({x})
torch.asinh({x}) torch.acosh({x}) torch.atanh({x}) torch.square({x}) torch.isnan({x}) torch.isinf({x}) torch.isfinite({x}) torch.isposinf({x})
torch.isneginf({x}) torch.signbit({x}) torch.logical_not({x}) torch.bitwise_not({x}) torch.nan_to_num({f}) torch.nan_to_num({f},nan=2.0,posinf=1.0)
torch.positive({x}) torch.deg2rad({x}) torch.sinc({x}) torch.i0({f}) torch.special.i1({f}) torch.special.entr({f}) torch.special.ndtri({f}.sigmoid())
torch.special.log_ndtr({f}) torch.special.erfcx({f}) torch.real({x}) torch.angle({x}) torch.conj({c}) {c}.imag torch.view_as_real({c}) {c}.abs()
F.relu({x}) F.relu6({x}) F.gelu({f}) F.gelu({f},approximate='tanh') F.silu({f}) F.mish({f}) F.softplus({f}) F.softplus({f},2,3) F.elu({f}) F.selu({f})
F.celu({f},0.7) F.leaky_relu({f},0.1) F.leaky_relu({f},-0.5) F.hardswish({f}) F.hardsigmoid({f}) F.hardtanh({x},-1,2) F.logsigmoid({f}) F.softsign({f})
F.tanhshrink({f}) F.threshold({x},0,3) F.hardshrink({f},0.3) F.softshrink({f},0.3) F.glu({f},{d}) F.dropout({f},0.4) F.dropout({f},0.4,training=False)
F.normalize({f},dim={d}) {x}.clone() {x}.detach() {x}.contiguous() {x}.to({t}) {x}.type_as({y}) {x}.double() {x}.half() {x}.bfloat16() {x}.long() {x}.int()
{x}.bool() {x}.byte() {x}.float() {x}.to({t},copy=True) torch.zeros_like({x}) torch.ones_like({x}) torch.full_like({x},{s}) torch.zeros_like({x},dtype={t})
torch.rand_like({f}) torch.randn_like({f}) torch.bernoulli({f}.sigmoid()) {x}.new_zeros({x}.shape) {x}.new_full({x}.shape[:1],{s}) {x}.new_ones(({n},))
""".split()

BINARY = """
torch.add({x},{y}) torch.add({x},{y},alpha={s}) torch.sub({x},{y}) torch.sub({x},{y},alpha=2) torch.mul({x},{y}) torch.div({x},{y})
torch.div({x},{y},rounding_mode='floor') torch.div({x},{y},rounding_mode='trunc') torch.floor_divide({x},{y}) torch.remainder({x},{y}) torch.fmod({x},{y})
torch.pow({x},{y}) torch.maximum({x},{y}) torch.minimum({x},{y}) torch.fmax({x},{y}) torch.fmin({x},{y}) torch.atan2({x},{y}) torch.hypot({x},{y})
torch.eq({x},{y}) torch.ne({x},{y}) torch.lt({x},{y}) torch.le({x},{y}) torch.gt({x},{y}) torch.ge({x},{y}) torch.logical_and({x},{y})
torch.logical_or({x},{y}) torch.logical_xor({x},{y}) torch.bitwise_and({x},{y}) torch.bitwise_or({x},{y}) torch.bitwise_xor({x},{y})
torch.bitwise_left_shift({x},{y}.clamp(0,5)) torch.bitwise_right_shift({x},{y}.clamp(0,5)) ({i}<<{p}) ({i}>>{p}) torch.copysign({x},{y}) torch.nextafter({f},{y})
torch.heaviside({x},{y}) torch.logaddexp({x},{y}) torch.logaddexp2({x},{y}) torch.xlogy({x},{y}) torch.gcd({x},{y}) torch.lcm({i},{y}) torch.ldexp({x},{y})
torch.float_power({x},{y}) torch.rsub({x},{y}) torch.lerp({f},{y},{s}) torch.lerp({f},{y},{z}) torch.addcmul({x},{y},{z}) torch.addcmul({x},{y},{z},value={s})
torch.addcdiv({x},{y},{z}) torch.where({b},{y},{z}) torch.where({b},{y},{s}) torch.where({y}>0,{s},{x}) torch.where({x}>0,{x},{y}) torch.clamp({x},{y},{z})
torch.clamp({x},min={y}) torch.clamp({x},{s},{s2}) torch.clamp({x},max={s}) torch.clip({x},{s}) {x}.masked_fill({y}>0,{s}) {x}.masked_fill({b},{s})
torch.isclose({x},{y}) torch.complex({f},{y}) torch.polar({f},{y}) torch.dist({f},{y}) F.mse_loss({f},{y}) F.l1_loss({f},{y}) F.smooth_l1_loss({f},{y})
F.huber_loss({f},{y},reduction='none') F.binary_cross_entropy_with_logits({f},{y}) F.kl_div({f},{y}) F.prelu({f},{y}) F.cosine_similarity({f},{y},dim={d})
({x}+{s}) ({s}+{x}) ({x}-{s}) ({s}-{x}) ({x}*{s}) ({x}/{s}) ({s}/{x}) ({x}//{s}) ({s}//{x}) ({x}%{s}) ({s}%{x}) ({x}**{s}) ({s}**{x}) ({x}>{s}) ({x}=={s})
({x}&{n}) ({x}|{n}) ({x}^{n}) (~{x}) torch.pow({x},{n}) torch.pow({x},0.5) torch.fmod({x},{s}) torch.remainder({s},{x}) torch.div({x},{s},rounding_mode='floor')
torch.div({x},{s},rounding_mode='trunc') ({x}+torch.tensor({s})) ({x}*torch.tensor({s},dtype={t})) ({x}+{x}.sum()) torch.true_divide({x},{n})
torch.outer({x}.flatten(),{y}.flatten()) torch.broadcast_tensors({x},{y})[1] {x}.expand_as({y}) torch.equal({x},{y}) torch.result_type({x},{y})
torch.threshold({x},{s},{s2}) torch.nn.functional.hardtanh({x},-{p},{p}) torch.special.zeta({f}.abs()+1.5,{y}.abs()+1) torch.special.xlog1py({x},{y})
""".split()

VIEWS = """
{x}.t() {x}.T {x}.mT {x}.transpose({d},{e}) {x}.permute(*range({x}.dim()-1,-1,-1)) {x}.movedim({d},{e}) {x}.swapaxes({d},{e}) {x}.unsqueeze({d}) {x}.unsqueeze(-1)
{x}.squeeze() {x}.squeeze({d}) {x}[0] {x}[-1] {x}[1:] {x}[:-1] {x}[...,::2] {x}[::2] {x}[...,1:] {x}[...,0] {x}[None] {x}[...,None] {x}[:,-1:] {x}[1:,1:] {x}[:0]
{x}.select({d},0) {x}.select({d},-1) {x}.narrow({d},0,1) {x}.narrow({d},-1,1) {x}.narrow({d},1,{p}) {x}.view(-1) {x}.reshape(-1) {x}.reshape({x}.shape[::-1]) {x}.flatten()
{x}.flatten({d}) {x}.unflatten({d},(1,-1)) {x}.unflatten({d},(-1,2)) {x}.view({x}.shape) {x}.view_as({x}) {x}.expand(2,*{x}.shape) {x}.expand(*([-1]*{x}.dim())) {x}.unsqueeze({d}).expand(*{x}.shape[:1],*{x}.shape)
{x}.diagonal() {x}.diagonal(1,{d},{e}) {x}.diagonal(-1) {x}.unfold({d},2,1) {x}.unfold({d},2,2) {x}.chunk(2,{d})[0] {x}.chunk(2,{d})[-1] {x}.split(1,{d})[-1] {x}.split(2,{d})[0]
{x}.tensor_split(3,{d})[1] {x}.unbind({d})[0] {x}.unbind({d})[-1] {x}.as_strided((2,2),(1,1)) {x}.as_strided((2,),(2,),1) {x}.as_strided((1,3),(5,1)) {x}.detach()
{x}.view({t}) torch.atleast_2d({x}) torch.atleast_3d({x}) {x}.hsplit(2)[0] {x}.ravel() torch.view_as_complex({f}.reshape(-1,2)) {x}.data {x}.alias() {c}.conj() {c}.real {x}.imag
{x}.resolve_conj() {x}.to(memory_format=torch.channels_last) {x}.contiguous(memory_format=torch.channels_last) torch.broadcast_to({x},(2,)+tuple({x}.shape))
""".split()

IN_PLACE = """
{x}.add_({y}) {x}.add_({s}) {x}.sub_({y}) {x}.sub_({y},alpha=2) {x}.mul_({y}) {x}.mul_({s}) {x}.div_({y}) {x}.div_({y},rounding_mode='floor') {x}.pow_({n}) {x}.neg_()
{x}.abs_() {x}.relu_() {x}.sin_() {x}.exp_() {x}.sigmoid_() {x}.zero_() {x}.fill_({s}) {x}.fill_({y}.sum()) {x}.copy_({y}) {x}.clamp_({s},{s2}) {x}.clamp_(min=0)
{x}.floor_() {x}.remainder_({s}) {x}.fmod_({y}) {x}.logical_not_() {x}.bitwise_and_({y}) {x}.eq_({y}) {x}.gt_({s}) {x}.masked_fill_({b},{s}) {x}.masked_fill_({x}>0,{s})
{x}.lerp_({y},0.3) {x}.addcmul_({y},{z}) {x}.addcdiv_({y},{z}) {x}[0].add_({s}) {x}[1:].mul_({s}) {x}[...,::2].copy_({y}) {x}.t().add_({y}) {x}.view(-1)[1:].neg_()
{x}.select({d},-1).fill_({s}) {x}.narrow({d},0,1).copy_({y}) {x}.diagonal().zero_() {x}.unsqueeze(0).add_({y}) {x}.detach().add_(1) {x}.flatten().add_(1)
{x}.index_fill_({d},torch.tensor([0,-1]),{s}) {x}.index_add_({d},torch.tensor([0,0]),{x}.narrow({d},0,2)*2) {x}.index_copy_({d},torch.tensor([1,0]),{x}.narrow({d},0,2)*2)
{x}.scatter_({d},{x}.argsort({d}),{y}) {x}.scatter_({d},{x}.argmax({d},keepdim=True),{s}) {x}.scatter_add_({d},{x}.argmin({d},keepdim=True),{x}*2)
{x}.index_put_((torch.tensor([0,-1,0]),),torch.tensor(2).to({x}.dtype),accumulate=True) {x}.index_put_((torch.tensor([0]),),{x}[-1:]*2) {x}.masked_scatter_({x}>0,{x}*2+1)
{x}.bernoulli_(0.5) {x}.uniform_() {x}.normal_() {x}.random_(0,9) {x}.cumsum_({d}) {x}.tril_() {x}.triu_(1) {x}.fill_diagonal_({s}) {x}.put_(torch.tensor([0,-1]),{x}.view(-1)[:2]*3)
{x}.round_() {x}.trunc_() {x}.sqrt_() {x}.reciprocal_() {x}.xor_({y}) {x}.__iadd__({y}) {x}.__imul__({s}) {x}.__setitem__(0,{s}) {x}.__setitem__((...,-1),{y}.sum())
{x}.__setitem__(slice(1,None),{y}[:1]) {x}.__setitem__({x}>0,{s}) {x}.t_() {x}.transpose_({d},{e}) {x}.unsqueeze_(0) {x}.squeeze_() {x}.requires_grad_() {x}.detach_() F.relu({x},inplace=True)
F.dropout({f},0.5,inplace=True) F.hardtanh_({x}) torch.add({x},{y},out={x}) {x}.scatter_reduce_({d},{x}.argmax({d},keepdim=True),{x}*3,'amax') {x}.swapaxes({d},{e}).mul_({y})
{x}.expand(*{x}.shape).add_(1) {x}.nan_to_num_() {x}.heaviside_({y}) {x}.atan2_({y}) {x}.copysign_({y}) {x}.__ior__({y}) {x}.__ifloordiv__({n}) {x}.__ilshift__({p}) {x}.__imod__({n})
""".split()

REDUCTIONS = """
torch.sum({x}) torch.sum({x},{d}) torch.sum({x},{ds},keepdim={k}) torch.sum({x},{d},dtype={t}) torch.mean({f}) torch.mean({f},{ds},keepdim={k}) torch.prod({x}) torch.prod({x},{d},keepdim={k})
torch.amax({x},{ds},keepdim={k}) torch.amin({x},{ds},keepdim={k}) torch.max({x}) torch.min({x}) torch.argmax({x}) torch.argmax({x},{d},keepdim={k}) torch.argmin({x},{d}) torch.argmin({x})
torch.any({x}) torch.any({x},{d}) torch.all({x}) torch.all({x},{d},keepdim={k}) torch.var({f},{ds},correction={n},keepdim={k}) torch.var({f}) torch.std({f},{d}) torch.std({f},{ds},correction=0)
torch.norm({f}) torch.norm({f},{s},{d}) torch.linalg.vector_norm({f},{s},{ds}) torch.linalg.vector_norm({f},1) torch.logsumexp({f},{ds}) torch.logsumexp({x},{d},keepdim={k})
torch.nansum({x},{d}) torch.nanmean({f},{d}) torch.count_nonzero({x}) torch.count_nonzero({x},{d}) torch.median({x}) torch.nanmedian({f}) torch.softmax({f},{d}) torch.log_softmax({f},{d})
torch.softmax({x},{d},dtype=torch.float32) F.softmin({f},{d}) torch.cumsum({x},{d}) torch.cumprod({x},{d}) torch.cumsum({x},{d},dtype={t}) torch.logcumsumexp({f},{d}) torch.trace({x})
{x}.sum().item() {x}.numel() torch.aminmax({x}).max torch.var_mean({f},{d})[1] torch.std_mean({f})[0] torch.max({x},{d})[1] torch.max({x},{d},keepdim={k})[0] torch.min({x},{d})[0] torch.min({x},{d})[1]
torch.median({x},{d})[0] torch.mode({x},{d})[0] torch.kthvalue({x},1,{d})[0] torch.sort({x},{d})[0] torch.sort({x},{d},descending={k},stable=True)[1] torch.sort({x},{d},{k})[1] torch.argsort({x},{d})
torch.topk({x},1,{d})[1] torch.topk({x},2,{d})[0] torch.topk({x},2,{d},largest=False)[1] torch.cummax({x},{d})[0] torch.cummax({x},{d})[1] torch.cummin({x},{d})[1] torch.diff({x},dim={d}) torch.quantile({f},0.3)
torch.unique({x}) {x}.nonzero() torch.bincount({i}.flatten().abs()%9) torch.histc({f},4,-1,1) torch.isin({x},{y}) torch.searchsorted({f}.flatten().sort()[0],{y}) torch.bucketize({x},torch.tensor([-1,0,1]))
torch.renorm({f},2,{d},1.0) torch.cdist({f},{y}) torch.mean({x},{d},dtype={t}) {x}.std() {x}.logsumexp({d}) torch.linalg.norm({f}) F.pairwise_distance({f},{y}) torch.trapezoid({x},dim={d})
""".split()

MOVES = """
torch.cat([{x},{x}],{d}) torch.cat([{x},{y}],{d}) torch.cat([{x},{y},{z}],{d}) torch.stack([{x},{y}],{d}) torch.stack([{x},{x}]) torch.hstack([{x},{y}]) torch.vstack([{x},{y}]) torch.cat([{x},{y}.to({t})],{d})
F.pad({x},(1,2)) F.pad({x},(-1,1)) F.pad({x},(0,1,2,0),value={s}) F.pad({x},(1,1),mode='reflect') F.pad({x},(1,1),mode='replicate') F.pad({x},(1,1),mode='circular') F.pad({x}[None],(1,1,1,1),mode='reflect')
torch.roll({x},{n}) torch.roll({x},{n},{d}) torch.roll({x},(1,-2),({d},{e})) torch.flip({x},({d},)) torch.flip({x},[]) torch.rot90({x}) {x}.repeat(2,*([1]*{x}.dim())) {x}.repeat_interleave(2,{d}) torch.tile({x},(2,))
torch.gather({x},{d},{x}.argsort({d})) torch.gather({x},{d},{x}.argmax({d},keepdim=True)) torch.scatter({x},{d},{x}.argsort({d}),{y}) torch.scatter({x},{d},{x}.argmin({d},keepdim=True),{s})
torch.scatter_add({x},{d},{x}.argsort({d})//2,{x}) torch.scatter_reduce({x},{d},{x}.argsort({d})//2,{x},'mean') torch.scatter_reduce({x},{d},{x}.argsort({d})//2,{x},'prod',include_self=False)
torch.index_select({x},{d},torch.tensor([0,0,1])) torch.index_select({x},{d},{i}.flatten()%{p}) {x}[torch.tensor([0,-1])] {x}[:,torch.tensor([-1,0,0])] {x}[torch.tensor([[0],[1]]),torch.tensor([0,-1])]
{x}[{b}] {x}[{x}>0] {x}[{i}%{p}] {x}[...,{i}%{p}] {x}[{i}.clamp(-1,0)] {x}[torch.tensor(0)] {x}[torch.tensor([True,False])] torch.take({x},torch.tensor([0,-1,1])) torch.take_along_dim({x},{x}.argsort({d}),{d})
torch.index_add({x},{d},torch.tensor([1,1]),{x}.narrow({d},0,2)) torch.index_copy({x},{d},torch.tensor([1,0]),{x}.narrow({d},0,2)) torch.index_fill({x},{d},torch.tensor([-1]),{s})
torch.index_put({x},(torch.tensor([0,0,-1]),),{x}[:1],accumulate=True) torch.index_put({x},(torch.tensor([1,-1]),torch.tensor([0])),{x}.sum().to({x}.dtype)) torch.masked_scatter({x},{b},{x}*2) torch.masked_select({x},{b})
torch.tril({x}) torch.triu({x},1) torch.tril({x},{n}) torch.diag({x}) torch.diag_embed({x}) torch.kron({x},{y}) torch.combinations({x}) torch.meshgrid({x},{y},indexing='ij')[0] torch.cartesian_prod({x},{y})
torch.arange({x}.shape[0]) torch.arange(0,{p},0.5) torch.linspace(0,1,{x}.numel()) torch.eye({p}) torch.full(({p},),{s}) torch.full(({x}.shape[0],2),{s},dtype={t}) torch.zeros(()) torch.ones(2,dtype={t})
torch.arange({x}.numel()).view({x}.shape) F.one_hot({i}.abs()%{p},{p}) F.embedding({i}.abs()%2,torch.arange(6.).view(2,3)) {x}.new_tensor([1,2]) torch.tensor({s}) torch.scalar_tensor({s}) torch.slice_scatter({x},{x}[1:]*2,0,1)
torch.select_scatter({x},{x}.select({d},0)*2,{d},-1) torch.diagonal_scatter({x},{x}.diagonal()*2) torch.as_strided_scatter({x},torch.ones(2).to({x}.dtype),(2,),(1,)) torch.narrow_copy({x},{d},0,1) F.pixel_shuffle({x},1)
""".split()

PRODUCTS = """
torch.matmul({f},{y}) torch.matmul({x},{y}.mT) torch.mm({f},{y}) torch.mm({f},{f}.t()) torch.mm({x}.t(),{x}) torch.bmm({f}.reshape(1,-1,{f}.shape[-1]),{f}.reshape(1,-1,{f}.shape[-1]).mT) torch.mv({f},{y})
torch.dot({x}.flatten(),{x}.flatten()) F.linear({f},{y}) F.linear({f},{f}.reshape(-1,{f}.shape[-1])) F.linear({f},{f}.reshape(-1,{f}.shape[-1])[:1],{z}) torch.addmm({y},{f},{f}.t(),beta={s},alpha=0.5)
torch.addmm({y},{f}.t(),{f}) torch.baddbmm({y},{f},{f}.mT,beta=0.5) torch.einsum('i...,i...->i',{f},{f}) torch.einsum('...i,...j->ij',{f},{f}) torch.tensordot({f},{f},{f}.dim()) torch.addmv({y},{f},{f}[0])
F.conv1d({f}.reshape(1,1,-1),torch.ones(2,1,2)) F.conv1d({f}.reshape(1,1,-1),torch.ones(1,1,3),padding=1,stride=2) F.conv2d({f}.reshape(1,1,-1,{f}.shape[-1]),torch.ones(2,1,2,1)) F.conv2d({f}[None,None],{f}[None,None,:2,:1],padding='same')
F.conv_transpose1d({f}.reshape(1,1,-1),torch.ones(1,2,2),stride=2) F.max_pool1d({f}.reshape(1,1,-1),2) F.max_pool2d({f}[None],2,1) F.max_pool2d({f}[None],2,padding=1,ceil_mode={k}) F.avg_pool1d({f}.reshape(1,1,-1),2)
F.avg_pool2d({f}[None],2,1,1,count_include_pad={k},ceil_mode={k}) F.adaptive_avg_pool2d({f}[None],(2,1)) F.adaptive_max_pool1d({f},1) F.adaptive_avg_pool1d({f},2) F.interpolate({f}[None,None],scale_factor=2.0)
F.interpolate({f}[None,None],scale_factor=2.0,mode='bilinear',align_corners={k}) F.interpolate({f}[None],size=3,mode='linear') F.interpolate({f}[None,None],size=(3,2),mode='bicubic') F.layer_norm({f},{f}.shape[-1:])
F.interpolate({f}[None,None],size=(2,3),mode='area') F.interpolate({f}[None],size=5,mode='nearest-exact') F.layer_norm({f},{f}.shape[-2:]) F.layer_norm({f},{f}.shape[-1:],{f}.flatten()[:{f}.shape[-1]])
F.group_norm({f}[None],1) F.instance_norm({f}[None]) F.batch_norm({f},None,None,training=True) F.rms_norm({f},{f}.shape[-1:]) F.local_response_norm({f}[None],2) F.cross_entropy({f},{f}.argmax(-1)) F.nll_loss({f},{f}.argmax(-1))
F.cross_entropy({f},{f}.argmax(-1),label_smoothing=0.1,reduction='none') F.nll_loss({f},{f}.argmax(-1),reduction='sum',ignore_index=0) F.cross_entropy({f},{f}.softmax(-1)) F.scaled_dot_product_attention({f}[None],{f}[None],{f}[None])
F.scaled_dot_product_attention({f}[None,None],{f}[None,None],{f}[None,None],is_causal=True) F.unfold({f}[None,None],2) F.fold({f}[None],(2,2),(1,1)) F.lp_pool1d({f}.reshape(1,1,-1),2,2) F.max_pool2d({f}[None],2,2,dilation=2)
torch.linalg.det({f}@{f}.mT) torch.linalg.inv({f}@{f}.mT+torch.eye({f}.shape[-2])) torch.chain_matmul({f},{f}.t(),{f}) F.bilinear({f},{f},torch.ones(2,{f}.shape[-1],{f}.shape[-1])) torch.cross({f},{y},dim={d}) torch.vander({x}) torch.cov({f})
""".split()

PAIRS = """
torch.max({x},{d}) torch.min({x},{d},keepdim={k}) torch.sort({x},{d}) torch.topk({x},2,{d}) torch.var_mean({f},{ds},keepdim={k}) torch.std_mean({f},{d}) torch.aminmax({x}) torch.frexp({f}) {x}.chunk(2,{d})
{x}.tensor_split(2,{d}) torch.broadcast_tensors({x},{y}) torch.cummax({x},{d}) torch.median({x},{d}) {x}.unbind({d}) {x}.split(1,{d}) torch.native_dropout({f},0.5,True) torch.kthvalue({x},1,{d}) torch.mode({x},{d})
F.max_pool1d({f}.reshape(1,1,-1),2,return_indices=True) torch.split({x},[1,1],{d}) torch.nanmedian({x},{d}) torch.meshgrid({x},{y},indexing='xy') torch._foreach_add([{x},{y}],{s}) torch._foreach_mul([{x},{y}],[{y},{x}])
torch.split_with_sizes({x},[0,{x}.shape[0]]) torch._foreach_sqrt([{f},{y}]) torch.unbind(torch.stack([{x},{x}*2]))
""".split()

# (rows, how often a row of them is drawn, how many values a row gives)
TABLE = (
    (UNARY, 5, 1), (BINARY, 7, 1), (VIEWS, 6, 1), (IN_PLACE, 5, 1), (REDUCTIONS, 5, 1), (MOVES, 5, 1),
    (PRODUCTS, 2, 1), (PAIRS, 2, 2),
)  # fmt: skip
