"""The journals of bench_decode and bench_split as a Markdown table.

python -m tests.cuda.table results/h200/decode-3.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any


def rows(paths: list[str]) -> list[dict[str, Any]]:
    """Every arm in the files, by KV type, context and order of appearance."""
    lines = [json.loads(line) for p in paths for line in Path(p).read_text().splitlines()]
    arms = [line for line in lines if "arm" in line]
    return sorted(arms, key=lambda a: (a["kv"], a["rows"]))


def main() -> None:
    found = rows(sys.argv[1:])
    compute = {(a["kv"], a["rows"]): median(a["token_ms"]) for a in found if a["arm"] == "resident"}
    ordered = {(a["kv"], a["rows"]): median(a["token_ms"]) for a in found if a["arm"] == "ordered"}
    print("| KV | rows | arm | ms a token | copies alone | compute alone | of the ceiling "
          "| gain over ordered | link GB/s | logits |")  # fmt: skip
    print("|---|---:|---|---:|---:|---:|---:|---:|---:|---|")
    for a in found:
        at = (a["kv"], a["rows"])
        token, copies = median(a["token_ms"]), a.get("copies_alone_ms", 0.0)
        share = f"{max(compute.get(at, 0.0), copies) / token:.1%}"
        if at not in compute:  # the ceiling is at least the copies
            share = f"≥ {share}" if copies else ""
        gain = f"{ordered[at] / token - 1:+.1%}" if at in ordered else ""
        link = f"{a['window_bytes'] / token / 1e6:.1f}" if a.get("window_bytes") else ""
        base = f"{compute[at]:.2f}" if at in compute else ""
        print(
            f"| {a['kv']} | {a['rows']} | {a['arm']} | {token:.2f} | {copies or 0:.2f} | {base} "
            f"| {share} | {gain} | {link} | {a['logits']} |"
        )


if __name__ == "__main__":
    main()
