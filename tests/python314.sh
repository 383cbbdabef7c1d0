#!/bin/sh
# Runs the tests under Python 3.14 in a Debian of its own: for machines whose system has no 3.14.
# tests/python314.sh FOLDER [arguments of pytest]; needs root, debootstrap, and a pip (PIP).
# What is mounted there already stays, and is used; what this mounts, it unmounts.
set -eu
root=$(realpath -m "$1")
shift
PIP=${PIP:-python3 -m pip}
here=$(dirname "$(dirname "$(realpath "$0")")")
packages=$root/opt/venv/lib/python3.14/site-packages
# A place of this run's own: two checkouts may be tested at a time.
inner=/mnt/checkout.$$

[ -x "$root/usr/bin/python3.14" ] ||
    debootstrap --include=python3.14,python3.14-venv,python3.14-dev,g++,make sid "$root"
mounted=
leave() {
    for place in $mounted; do umount "$place"; done
    rmdir "$root$inner" 2>/dev/null || true
}
trap leave EXIT
trap 'exit 130' INT TERM
attach() { # attach PLACE OPTION...
    place=$root$1
    shift
    mkdir -p "$place"
    if ! mountpoint -q "$place"; then
        mount "$@" "$place"
        mounted="$place $mounted"
    fi
}
attach /dev -t devtmpfs devtmpfs
attach /proc -t proc proc
attach "$inner" --bind "$here"

[ -x "$root/opt/venv/bin/python3.14" ] || [ -L "$root/opt/venv/bin/python3.14" ] ||
    chroot "$root" python3.14 -m venv /opt/venv
# The host's pip, for the folder may have no network.
[ -d "$packages/torch" ] ||
    $PIP install -q --target "$packages" --python-version 314 --implementation cp --abi cp314 \
        --only-binary=:all: --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
        torch==2.14.1 numpy jinja2 setuptools packaging pytest pytest-xdist hypothesis \
        transformers einops bytecode rich
inside() {
    chroot "$root" /usr/bin/env -i PATH=/opt/venv/bin:/usr/bin:/bin HOME=/tmp PYTHONPATH="$inner" \
        OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" DYNAMO_CACHE_DIR=/tmp/cache \
        sh -c 'cd "$0" && exec "$@"' "$inner" "$@"
}
inside python setup.py -q build_ext --inplace
[ $# -gt 0 ] || set -- -n auto --dist worksteal
inside python -m pytest -q -p no:cacheprovider "$@"
