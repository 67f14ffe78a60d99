#!/usr/bin/env bash
# Creates .venv and installs Phalanx in it, with the shell, Spark, the data of the demo and the development tools.
# Spark needs Java 17 or newer, and some tests need a PostgreSQL server. If one is missing, the script tries to
# install it. It can be run again.
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

# The version of a Java that Spark would find, such as 17; nothing if there is none.
java_version() {
    local java=${JAVA_HOME:+$JAVA_HOME/bin/}java
    "$java" -version 2>&1 | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1
}

has_java() {
    local version
    version=$(java_version || true)
    [[ -n $version && $version -ge 17 ]]
}

require_java() {
    if has_java; then
        return
    fi
    if [[ -z ${JAVA_HOME:-} && $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
        echo "Installing Java for Spark ..."
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq || fail "apt-get could not update its lists of packages, to install Java."
        # Releases of Debian after 12 have newer ones only.
        apt-get install -y -qq openjdk-17-jdk-headless >/dev/null 2>&1 ||
            apt-get install -y -qq default-jdk-headless >/dev/null ||
            fail "apt-get could not install openjdk-17-jdk-headless, nor default-jdk-headless."
    fi
    has_java || fail "Spark needs Java 17 or newer, and $(found_java). \
On Debian and Ubuntu: sudo apt-get install openjdk-17-jdk-headless. Or name one: JAVA_HOME=/path/to/java make ..."
}

found_java() {
    local version
    version=$(java_version || true)
    if [[ -n $version ]]; then
        echo "${JAVA_HOME:-the one on the PATH} is version $version"
    elif [[ -n ${JAVA_HOME:-} ]]; then
        echo "there is none in JAVA_HOME, which is $JAVA_HOME"
    else
        echo "there is none on the PATH"
    fi
}

has_postgres() {
    command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

# Only tests need it, and they say so themselves where it is missing.
want_postgres() {
    if has_postgres; then
        return
    fi
    if [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
        echo "Installing PostgreSQL for the tests of DuckLake ..."
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq || fail "apt-get could not update its lists of packages, to install PostgreSQL."
        apt-get install -y -qq postgresql >/dev/null || fail "apt-get could not install postgresql."
    else
        echo "Some tests need PostgreSQL's server. On Debian and Ubuntu: sudo apt-get install postgresql" >&2
    fi
}

main() {
    require_java
    want_postgres
    # An interrupted run may leave an environment without pip: then it is created again.
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        require_python
        require_venv
        echo "Creating .venv ..."
        "$python" -m venv --clear .venv
    fi
    echo "Installing Phalanx and its tools into .venv ..."
    .venv/bin/python -m pip install --quiet --editable '.[cli,demo,dev,spark]'
}

# Its functions can be tried by themselves: source it.
if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
    main
fi
