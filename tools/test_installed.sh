#!/usr/bin/env bash
# Tests the package that is installed for `python`, which has the dependency group `wheel`, too:
# `tools/test_installed.sh compiled`, or `interpreted` for the wheel without compiled modules.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$(mktemp -d)"

python - "$1" <<'PYTHON'
import sys
from pathlib import Path

import tritonnb
from tritonnb.compiled import STATE

assert Path(tritonnb.__file__).is_relative_to(sys.prefix), f"expected the installed package, got {tritonnb.__file__}"
assert STATE == sys.argv[1], f"expected a package that is {sys.argv[1]}, got one that is {STATE}"
PYTHON
tritonnb doctor

# `append` leaves the checkout behind what is installed. The tests of OpenAI's API need torch.
python -m pytest --import-mode=append -p no:cacheprovider --config-file="$root/pyproject.toml" \
  -m "not (isolated or slow)" "$root"/tests/{core,scheduling,endpoints} --ignore="$root/tests/endpoints/test_openai.py"
