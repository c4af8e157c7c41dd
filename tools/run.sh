#!/bin/sh
# Install ptymesh from this folder without a network, and run what is named:
#
#     ./run.sh                                 installs, checks, says what is here
#     ./run.sh ptymesh demo                    ptymesh's commands
#     ./run.sh python my_script.py             a Python that can import ptymesh
#     ./run.sh gpu-check --minutes 6           what a GPU can tell; the report is in gpu-check/
#     ./run.sh gpu-check --only failed         what failed in it, or was left
#
# PYTHON names the Python with PyTorch (python3). PTYMESH_SITE is the folder to install into (site, beside this file);
# nothing is written elsewhere, and no environment is changed. Delete the folder to be rid of it.
set -eu

PTYMESH_STARTED=$(date +%s)  # from which gpu-check counts its minutes
export PTYMESH_STARTED
kit=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
site=${PTYMESH_SITE:-$kit/site}

fail() {
    echo "run.sh: $1" >&2
    exit 2
}

wanted=$(sed -n 's/^ "python": "\([^"]*\)".*/\1/p' "$kit/kit.json")
version=$(sed -n 's/^ "ptymesh": "\([^"]*\)".*/\1/p' "$kit/kit.json")
has=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
    fail "$python does not run: set PYTHON to a Python $wanted with PyTorch."
[ "$has" = "$wanted" ] || fail "this kit is for Python $wanted, and $python is $has: set PYTHON, or make another kit."

if ! cmp -s "$kit/SHA256SUMS" "$site/.installed"; then
    if command -v sha256sum >/dev/null; then
        (cd "$kit" && sha256sum --check --quiet SHA256SUMS) >&2 ||
            fail "files of the kit are damaged, changed or missing (see above): copy it again."
    fi
    rm -rf "$site.part" "$site"
    "$python" -m pip --disable-pip-version-check install --quiet --no-index --no-deps --no-compile \
        --target "$site.part" "$kit"/wheels/*.whl ||
        fail "the wheels could not be installed into $site (see above)."
    cp "$kit/SHA256SUMS" "$site.part/.installed"
    mv "$site.part" "$site"
fi

PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH
found=$("$python" -c '
import ptymesh, torch, pydantic, platform
print(ptymesh.__version__, ptymesh.__file__)
print(f"Python {platform.python_version()}, torch {torch.__version__}")') ||
    fail "what was installed cannot be imported (see above): is there a package that the kit was made without?"
case $found in
"$version $site"/*) ;;
*) fail "$python imports ptymesh $found, and the kit has $version in $site." ;;
esac
echo "ptymesh $version, $(echo "$found" | tail -n 1), ready after $(($(date +%s) - PTYMESH_STARTED)) s" >&2

[ $# -gt 0 ] || exit 0
what=$1
shift
case $what in
ptymesh) exec "$python" -m ptymesh "$@" ;;
python) exec "$python" "$@" ;;
gpu-check) exec "$python" "$kit/tests/kernels/gpu_check.py" "$@" ;;
*) fail "$what is none of ptymesh, python, gpu-check." ;;
esac
