"""Counts of layers that choose what they attend to against compiled programs over 8 devices."""

from typing import Any

import pytest
from test_reference_counts import answered, check

from codesign.reference.verify import DEVIATION

#: Small layers in several splits; each case is compiled once and run.
SCRIPT = """
import json
from codesign.runtime import prepare
prepare()
from dataclasses import replace
from codesign.layers import compressed, dsa, msa
from codesign.reference.parts import Part
from codesign.reference.sparse_cases import compressed_case, dsa_case, msa_case
from codesign.reference.verify import compare

sparse = dsa.DSA(8, 16, 32, 16, 8, 8, index_heads=8, index_width=16, top_k=8)
shared = replace(sparse, shared_index=True)
blocks = msa.MSA(16, 4, 8, 16, index_heads=2, index_width=16, block=4, top_blocks=8, qk_norm=True)
base = dict(heads=16, width=16, q_rank=16, window=16, out_groups=4, out_rank=8)
one = compressed.Compressed(**base, ratio=16)
two = compressed.Compressed(**base, ratio=4, overlap=True, index_heads=8, index_width=16, top_k=8)
h, ranges, four = 48, Part(tp=8, context=True), Part(tp=4, dp=2, context=True)
cases = {
    "chosen, TP 4": dsa_case(sparse, h, Part(tp=4, dp=2)),
    "chosen, by context": dsa_case(sparse, h, four),
    "chosen, short ranges": dsa_case(sparse, h, four, context=16),
    "chosen, a prompt": dsa_case(sparse, h, Part(tp=2, dp=1), 11, expanded=True),
    "chosen before, by context": dsa_case(shared, h, four),
    "blocks, TP 2": msa_case(blocks, h, Part(tp=2, dp=1), 4),
    "blocks, by context": msa_case(blocks, h, ranges),
    "entries, TP 8": compressed_case(one, h, Part(tp=8)),
    "entries, by context": compressed_case(one, h, Part(tp=2, dp=4, context=True)),
    "chosen entries, by context": compressed_case(two, h, ranges),
    "uneven tokens": dsa_case(sparse, h, ranges, even=False),
    "uneven blocks": msa_case(blocks, h, ranges, even=False),
}
print(json.dumps({name: compare(name, case) for name, case in cases.items()}))
"""

NAMES = [line.strip().split('"')[1] for line in SCRIPT.splitlines() if line.startswith('    "')]
CASES = [name for name in NAMES if not name.startswith("uneven")]


@pytest.fixture(scope="module")
def compared() -> dict[str, Any]:
    return answered(SCRIPT)


@pytest.mark.parametrize("case", CASES)
def test_counts_are_those_of_the_compiled_program(case: str, compared: dict[str, Any]) -> None:
    check(*compared[case])


@pytest.mark.parametrize("case", ["uneven tokens", "uneven blocks"])
def test_what_is_chosen_may_lie_anywhere(case: str, compared: dict[str, Any]) -> None:
    """Chips with none of it, and with more than their share."""
    assert compared[case][1]["deviation"] < DEVIATION


def test_by_hand(compared: dict[str, Any]) -> None:
    """Some of these numbers worked out from the sizes, apart from both the count and the reader."""

    def cell(case: str, operation: str, what: str) -> float:
        return next(row for row in compared[case][0] if row["operation"] == operation)[what]["compiled"]

    # 8 sequences score 512 keys of width 16 with 8 index heads, and attend to 8 latents of 32 + 8 with 2 heads.
    assert cell("chosen, TP 4", "index", "flop") == 2 * 8 * 512 * 8 * 16
    assert cell("chosen, TP 4", "scan", "flop") == 2 * 8 * 8 * 2 * (40 + 32)
    # Scores and positions of 8 candidates, or of the 4 tokens of a range, go to 3 other chips.
    assert cell("chosen, by context", "index_merge", "sent_bytes") == 3 * 8 * 8 * 8
    assert cell("chosen, short ranges", "index_merge", "sent_bytes") == 3 * 8 * 4 * 8
    # New tokens behind one see 2 to 12 keys, masked or not, of width 24 and 8 on 4 heads.
    assert cell("chosen, a prompt", "scan", "flop") == 2 * 8 * sum(range(2, 13)) * 4 * (24 + 8)
    # One index head here for two key heads; 8 of 128 blocks of 4 tokens, on 8 query heads.
    assert cell("blocks, TP 2", "index", "flop") == 2 * 8 * (509 + 510 + 511 + 512) * 16
    assert cell("blocks, TP 2", "scan", "flop") == 2 * 8 * 4 * 32 * 8 * (8 + 16)
    # Queries of 2 index heads of width 16 go with those of 16 heads of width 8, whose answers of width 16 come back
    # with their sums; the key and value of one head go to the chip that keeps them.
    assert cell("blocks, by context", "context_merge", "sent_bytes") == 7 / 8 * 8 * (2 * 16 + 16 * 25 + 24) * 4
    # An eighth of 16 plain entries and of 32 for 16 tokens each, or of 8 chosen ones, for all 16 heads.
    assert cell("entries, TP 8", "scan", "flop") == 4 * 8 * (16 + 32) * 2 * 16
    assert cell("chosen entries, by context", "scan", "flop") == 4 * 8 * (2 + 1) * 16 * 16
    assert cell("chosen entries, by context", "index", "flop") == 2 * 8 * 16 * 8 * 16
    # Two heads of one of four groups: to rank 8, and that to the residual.
    assert cell("entries, TP 8", "output", "flop") == 2 * 8 * (2 * 16 * 8 + 8 * 48)
