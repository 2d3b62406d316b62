# Sourced by the commands beside it: ensure_venv ROOT runtime|dev; ensure_generation ROOT NAME
# The stamp in .venv names the lock it was made from; a changed lock is installed anew.

# What runs here asks what runs here: directly, whatever proxy the environment names.
export no_proxy="127.0.0.1,localhost${no_proxy:+,$no_proxy}" NO_PROXY="127.0.0.1,localhost${NO_PROXY:+,$NO_PROXY}"

find_python() {
    local candidate
    for candidate in "${FRONTDOOR_PYTHON:-}" python3.11 python3.12 python3.13 python3.14 python3; do
        if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return 0
        fi
    done
    echo "frontdoor: Python 3.11 or newer is needed; none was found on PATH" >&2
    return 1
}

ensure_venv() {
    local root="$1" extras="$2" python stamp lock
    stamp="$root/.venv/.lock-$extras"
    lock="$root/lock/$extras.txt"
    if cmp -s "$lock" "$stamp" 2>/dev/null; then
        return 0
    fi
    # A development environment holds all that the runtime needs.
    if [ "$extras" = runtime ] && cmp -s "$root/lock/dev.txt" "$root/.venv/.lock-dev" 2>/dev/null; then
        return 0
    fi
    python="$(find_python)"
    exec 9>"$root/.venv.lock"
    flock 9
    if ! cmp -s "$lock" "$stamp" 2>/dev/null; then
        echo "frontdoor: installing what lock/$extras.txt pins into $root/.venv (once, about a minute)" >&2
        if [ ! -x "$root/.venv/bin/python" ] || ! "$root/.venv/bin/python" -c '' 2>/dev/null; then
            rm -rf "$root/.venv"
            "$python" -m venv "$root/.venv"
        fi
        if ! "$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check \
            --require-hashes -r "$lock" >&2; then
            echo "frontdoor: the installation failed; nothing was changed but $root/.venv" >&2
            exit 1
        fi
        cp "$lock" "$stamp"
    fi
    flock -u 9
    exec 9>&-
}

# Another generation of a package that .venv holds already, for tests against it: what lock/NAME.txt
# pins goes into .venv/generations/NAME, which a subprocess puts first on its PYTHONPATH.
ensure_generation() {
    local root="$1" name="$2" folder lock
    folder="$root/.venv/generations/$name"
    lock="$root/lock/$name.txt"
    if cmp -s "$lock" "$folder/.lock" 2>/dev/null; then
        return 0
    fi
    exec 9>"$root/.venv.lock"
    flock 9
    if ! cmp -s "$lock" "$folder/.lock" 2>/dev/null; then
        echo "frontdoor: installing what lock/$name.txt pins into $folder (once)" >&2
        rm -rf "$folder"
        if ! "$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check \
            --require-hashes --target "$folder" -r "$lock" >&2; then
            echo "frontdoor: the installation failed; nothing was changed but $folder" >&2
            exit 1
        fi
        cp "$lock" "$folder/.lock"
    fi
    flock -u 9
    exec 9>&-
}
