# SPDX-License-Identifier: Apache-2.0
"""Exits 0 if this interpreter has a torch in the supported range (and the one TORCH_VERSION names)."""

import importlib.metadata
import os
import re
import sys

try:
    have = importlib.metadata.version("torch")
except importlib.metadata.PackageNotFoundError:
    sys.exit(1)
numbers = tuple(map(int, re.findall(r"\d+", have)[:2]))
want = os.environ.get("TORCH_VERSION")
sys.exit(not ((2, 11) <= numbers < (2, 15) and (not want or have.split("+")[0] == want.split("+")[0])))
