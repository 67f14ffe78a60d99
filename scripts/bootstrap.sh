#!/usr/bin/env bash
# Makes .venv and installs Phalanx with its shell, the data of the demo and the development tools there. Safe to run again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1

fail() {
    printf 'Cannot set up Phalanx: %s\n' "$*" >&2
    exit 1
}

require_python() {
    command -v "$python" >/dev/null ||
        fail "'$python' was not found. Install Python 3.11 or newer, or name one: make PYTHON=python3.12"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "'$python' is $("$python" --version 2>&1), but 3.11 or newer is needed. Name one: make PYTHON=python3.12"
}

# Debian ships ensurepip, without which a virtual environment has no pip, as a package of its own.
can_make_venv() {
    "$python" -c 'import ensurepip, venv' 2>/dev/null
}

require_venv() {
    if can_make_venv; then
        return
    fi
    if [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
        echo "Installing python3-venv ..."
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null ||
            fail "apt-get could not install python3-venv."
    fi
    can_make_venv ||
        fail "'$python' has no venv module. On Debian and Ubuntu: sudo apt-get install python3-venv"
}

# An interrupted run may leave an environment without pip: then it is made anew.
if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    require_python
    require_venv
    echo "Creating .venv ..."
    "$python" -m venv --clear .venv
fi

echo "Installing Phalanx and its tools into .venv ..."
.venv/bin/python -m pip install --quiet --editable '.[cli,demo,dev]'
