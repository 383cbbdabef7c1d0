"""GEMMs side by side, each tile with what becomes of it (`codegen/triton/template.py`).

A program takes one tile of one part: `im`, `jn` say which, `b` in which batch. All parts share one
loop, since each loop has memory on the chip of its own. Sizes are literals, or parameters where
they are known at a call only; a mask is there where a tile may reach over an end. Tiles of some
rows run together, so that what they read of the right operand stays in the second-level cache.
A persistent function has as many programs as run at once, each of which takes several tiles: what a
tile needs is on its way while the one before is finished. The left operand of a convolution is read
out of images (`codegen/triton/window.py`): its rows are pixels of the result.
"""

GEMM = """\
@triton.jit{{ head }}
def {{ name }}({{ signature }}):
    BLOCK_M: tl.constexpr = {{ blocks.rows }}
    BLOCK_N: tl.constexpr = {{ blocks.columns }}
    BLOCK_K: tl.constexpr = {{ blocks.depth }}
    tiles_m = {{ tiles_m if tiles_m else "(" ~ m ~ " + BLOCK_M - 1) // BLOCK_M" }}
    {%- for part in parts %}
    tiles{{ loop.index0 }} = {{ part.tiles }}
    {%- endfor %}
    tiles_n = {% for part in parts %}{{ " + " if not loop.first }}tiles{{ loop.index0 }}{% endfor %}
    {%- for text in descriptors %}
    {{ text }}
    {%- endfor %}
    {%- if blocks.persistent %}
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, {{ programs }}, flatten=True):
    {%- endif %}
    {%- filter indent(4 if blocks.persistent else 0, first=True) %}
    pid = {{ "tile" if blocks.persistent else "tl.program_id(0)" }}
    first = pid // ({{ blocks.group }} * tiles_n) * {{ blocks.group }}
    group = tl.minimum(tiles_m - first, {{ blocks.group }})
    pid = pid % ({{ blocks.group }} * tiles_n)
    im = first + pid % group
    jn = pid // group
    {%- if batched %}
    b = tl.program_id(1){{ wide }}
    {%- endif %}
    om = im{{ wide }} * BLOCK_M + tl.arange(0, BLOCK_M)
    {%- if blocks.splits > 1 %}
    g = tl.program_id(2){{ wide }}
    {%- endif %}
    {%- for text in chosen %}
    {{ text }}
    {%- endfor %}
    {%- for text in columns %}
    {{ text }}
    {%- endfor %}
    on = {{ "start_n" if columns else "jn" ~ wide ~ " * BLOCK_N" }} + tl.arange(0, BLOCK_N)
    {%- if window %}
    {%- for text in window.rows %}
    {{ text }}
    {%- endfor %}
    {%- endif %}
    {%- if not blocks.descriptors %}
    ok = tl.arange(0, BLOCK_K){{ wide }}
    {%- endif %}
    {%- for right in rights %}
    acc{{ loop.index0 }} = tl.zeros({{ shape }}, tl.float32)
    {%- endfor %}
    {%- if prologue %}
    left_row = om[:, None]
    {%- if row_mask %}
    left_mask = left_row < {{ m }}
    {%- endif %}
    {%- endif %}
    {%- if weights %}
    n0 = on[None, :]
    {%- for part in parts if part.column_mask %}
    n_mask = n0 < {{ part.n }}
    {%- endfor %}
    {%- endif %}
    {%- for name, size in faults %}
    {{ name }} = tl.zeros({{ size }}, tl.int1)
    {%- endfor %}
    for base in range({{ bounds }}, BLOCK_K):
        {%- if window %}
        {%- for text in window.step %}
        {{ text }}
        {%- endfor %}
        {%- elif not blocks.descriptors %}
        kk = ok + base
        {%- endif %}
        {%- if prologue %}
        k0 = kk[None, :]
        {%- if k_mask %}
        k_mask = k0 < {{ k_mask }}
        {%- endif %}
{{ prologue }}
        {%- endif %}
        left = {{ left }}
        {%- if weights %}
        right_row = kk[:, None]
        {%- if right_mask %}
        right_mask = {{ right_mask }}
        {%- endif %}
        {%- endif %}
        {%- for text in words %}
        {{ text }}
        {%- endfor %}
        {%- for right in rights %}
        {%- if weights %}
{{ weights[loop.index0] }}
        {%- endif %}
        right = {{ right }}
        acc{{ loop.index0 }} = tl.dot({{ operands }}, acc{{ loop.index0 }}{{ precision }})
        {%- endfor %}
    {%- for name, size in faults %}
    tl.device_assert({{ name }} == 0, "index out of range")
    {%- endfor %}
    {%- if turned %}
    {%- for right in rights %}
    acc{{ loop.index0 }} = acc{{ loop.index0 }}.T
    {%- endfor %}
    {%- endif %}
    x = {{ "b * " ~ m ~ " + " if batched }}om[:, None]
    r0 = on[None, :]
    {%- if row_mask %}
    xmask = {{ inside ~ "[:, None]" if inside else "om[:, None] < " ~ m }}
    {%- endif %}
    {%- for part in parts %}
    {%- if parts | length > 1 %}
    {{ "else" if loop.last else ("if" if loop.first else "elif") ~ " part == " ~ loop.index0 }}:
    {%- endif %}
    {%- filter indent(4 if parts | length > 1 else 0, first=True) %}
    {%- if part.column_mask %}
    rmask0 = r0 < {{ part.end }}
    {%- endif %}
{{ part.epilogue }}
    {%- endfilter %}
    {%- endfor %}
    {%- endfilter %}
"""
