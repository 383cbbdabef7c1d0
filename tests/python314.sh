#!/bin/sh
# Runs the tests under Python 3.14 in a Debian of its own: for machines whose system has no 3.14.
# tests/python314.sh FOLDER [arguments of pytest]; needs root, debootstrap, and a pip (PIP).
set -eu
root=$(realpath -m "$1")
shift
PIP=${PIP:-python3 -m pip}
here=$(dirname "$(dirname "$(realpath "$0")")")
packages=$root/opt/venv/lib/python3.14/site-packages

[ -x "$root/usr/bin/python3.14" ] ||
    debootstrap --include=python3.14,python3.14-venv,python3.14-dev,g++,make sid "$root"
mkdir -p "$root/work"
leave() {
    for place in work proc dev; do
        if mountpoint -q "$root/$place"; then umount "$root/$place"; fi
    done
}
trap leave EXIT
leave
mount -t devtmpfs devtmpfs "$root/dev"
mount -t proc proc "$root/proc"
mount --bind "$here" "$root/work"

[ -x "$root/opt/venv/bin/python" ] || chroot "$root" python3.14 -m venv /opt/venv
# The host's pip, for the folder may have no network.
[ -d "$packages/torch" ] ||
    $PIP install -q --target "$packages" --python-version 314 --implementation cp --abi cp314 \
        --only-binary=:all: --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
        torch==2.14.1 numpy jinja2 setuptools packaging pytest pytest-xdist hypothesis \
        transformers einops bytecode rich
inside() {
    chroot "$root" /usr/bin/env -i PATH=/opt/venv/bin:/usr/bin:/bin HOME=/tmp PYTHONPATH=/work \
        OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" DYNAMO_CACHE_DIR=/tmp/cache \
        sh -c 'cd /work && exec "$@"' sh "$@"
}
inside python setup.py -q build_ext --inplace
[ $# -gt 0 ] || set -- -n auto --dist worksteal
inside python -m pytest -q -p no:cacheprovider "$@"
