#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the project's interpreter, with the project's packages importable and the plug-ins that were built within reach.
. "$(dirname "$0")/env.sh"
plugins=
for dir in "$BUILD/cuda" "$BUILD/hip"; do
  [ ! -d "$dir" ] || plugins=$plugins${plugins:+:}$dir
done
export LIBTE_BACKEND_PATH=${LIBTE_BACKEND_PATH:-$plugins}
exec "$PY" "$@"
